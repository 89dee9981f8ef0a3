//! Which files of a crate import each other in a circle. Files named mod.rs, lib.rs, main.rs and error.rs are left out: who imports them
//! usually wants what they export of others.

use std::collections::{BTreeMap, BTreeSet};

/// Names of files that make no circle.
const LEFT_OUT: &[&str] = &["mod.rs", "lib.rs", "main.rs", "error.rs"];

/// A crate's files: each relative to its folder of sources, with the code in it (no comments, no literals, no tests).
pub type Code = BTreeMap<String, String>;

/// The circles, each with its files in order, the largest first. A circle is a strongly connected part of the graph of imports.
pub fn circles(code: &Code) -> Vec<Vec<String>> {
    let modules: BTreeMap<Vec<String>, &str> = code.keys().map(|file| (module_of(file), file.as_str())).collect();
    let edges: BTreeMap<&str, BTreeSet<&str>> =
        code.iter().map(|(file, text)| (file.as_str(), imports(file, text, &modules))).collect();
    let reached: BTreeMap<&str, BTreeSet<&str>> = edges.keys().map(|file| (*file, reachable(file, &edges))).collect();
    let mut found = BTreeSet::new();
    for (file, others) in &reached {
        let circle: Vec<String> =
            others.iter().filter(|other| reached[*other].contains(file)).map(|other| (*other).to_owned()).collect();
        if circle.len() > 1 {
            found.insert(circle);
        }
    }
    let mut found: Vec<Vec<String>> = found.into_iter().collect();
    found.sort_by_key(|circle| std::cmp::Reverse(circle.len()));
    found
}

fn module_of(file: &str) -> Vec<String> {
    let mut path: Vec<String> = file.trim_end_matches(".rs").split('/').map(str::to_owned).collect();
    if matches!(path.last().map(String::as_str), Some("mod" | "lib" | "main")) {
        path.pop();
    }
    path
}

/// The files that a file names by `use` or by a path that begins with `crate`, `self` or `super`.
fn imports<'a>(file: &str, text: &str, modules: &BTreeMap<Vec<String>, &'a str>) -> BTreeSet<&'a str> {
    let own = module_of(file);
    let is_left_out = |file: &str| LEFT_OUT.contains(&file.rsplit('/').next().unwrap_or(file));
    if is_left_out(file) {
        return BTreeSet::new();
    }
    let targets = paths(text).into_iter().filter_map(|path| {
        let absolute = absolute(&own, &path, modules)?;
        (0..=absolute.len()).rev().find_map(|length| modules.get(&absolute[..length]).copied())
    });
    targets.filter(|target| *target != file && !is_left_out(target)).collect()
}

fn absolute(own: &[String], path: &[String], modules: &BTreeMap<Vec<String>, &str>) -> Option<Vec<String>> {
    let rest = |skipped: usize| path[skipped..].iter().cloned();
    match path.first()?.as_str() {
        "crate" => Some(rest(1).collect()),
        "self" => Some(own.iter().cloned().chain(rest(1)).collect()),
        "super" => {
            let ups = path.iter().take_while(|part| *part == "super").count();
            Some(own[..own.len().saturating_sub(ups)].iter().cloned().chain(rest(ups)).collect())
        }
        _ => {
            let below: Vec<String> = own.iter().cloned().chain(rest(0)).collect();
            modules.contains_key(&below[..own.len() + 1]).then_some(below)
        }
    }
}

/// Every path that is imported, groups in braces taken apart, and every other path from `crate`, `self` or `super` on.
fn paths(text: &str) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    let mut rest = String::new();
    for (number, part) in text.split("use ").enumerate() {
        let is_import = number > 0 && part.contains(';');
        let (tree, other) = if is_import { part.split_once(';').unwrap_or((part, "")) } else { ("", part) };
        expand(&[], tree, &mut found);
        rest.push_str(other);
        rest.push(' ');
    }
    let words: Vec<&str> =
        rest.split(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':')).filter(|word| !word.is_empty()).collect();
    for word in words {
        let parts: Vec<String> = word.split("::").filter(|part| !part.is_empty()).map(str::to_owned).collect();
        if parts.len() > 1 && matches!(parts[0].as_str(), "crate" | "self" | "super") {
            found.push(parts);
        }
    }
    found
}

fn expand(prefix: &[String], tree: &str, found: &mut Vec<Vec<String>>) {
    for part in split_outside_braces(tree) {
        let (path, group) = match part.trim().split_once('{') {
            Some((path, group)) => (path, group.trim_end().strip_suffix('}')),
            None => (part.split(" as ").next().unwrap_or(part), None),
        };
        let path = path.split("::").map(str::trim).filter(|part| !part.is_empty());
        let whole: Vec<String> = prefix.iter().cloned().chain(path.map(str::to_owned)).collect();
        match group {
            Some(group) => expand(&whole, group, found),
            None => found.push(whole),
        }
    }
}

fn split_outside_braces(tree: &str) -> Vec<&str> {
    let (mut depth, mut start, mut parts) = (0_i32, 0, Vec::new());
    for (index, character) in tree.char_indices() {
        match character {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&tree[start..index]);
                start = index + 1;
            }
            _ => {}
        }
    }
    parts.push(&tree[start..]);
    parts.into_iter().filter(|part| !part.trim().is_empty()).collect()
}

fn reachable<'a>(from: &'a str, edges: &BTreeMap<&'a str, BTreeSet<&'a str>>) -> BTreeSet<&'a str> {
    let (mut seen, mut next) = (BTreeSet::new(), vec![from]);
    while let Some(file) = next.pop() {
        if seen.insert(file) {
            next.extend(edges.get(file).into_iter().flatten());
        }
    }
    seen
}

#[test]
fn circles_are_found_through_groups_and_super_and_not_through_mod_rs() {
    let code = |files: &[(&str, &str)]| files.iter().map(|(file, text)| ((*file).into(), (*text).into())).collect();
    let three = [
        ("lib.rs", "mod a; mod b; mod c; mod d;"),
        ("a.rs", "use std::io; use crate::{b::{One, Two as Other}, d::Three};"),
        ("b.rs", "fn f() { crate::c::g() }"),
        ("c.rs", "use super::a::Four;"),
        ("d.rs", "use crate::error::Error;"),
        ("error.rs", "use crate::d::Three;"),
    ];
    assert_eq!(circles(&code(&three)), [["a.rs", "b.rs", "c.rs"]]);
    let nested = [("x/mod.rs", "mod y; mod z;"), ("x/y.rs", "use super::z::Z;"), ("x/z.rs", "use crate::x::y::Y;")];
    assert_eq!(circles(&code(&nested)), [["x/y.rs", "x/z.rs"]]);
    assert!(circles(&code(&[("a.rs", "use crate::b::B;"), ("b.rs", "use std::a;")])).is_empty());
}
