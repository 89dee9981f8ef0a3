//! Generates the bindings for the sourced ROS in OUT_DIR: layouts and types differ by distro. If none is sourced, or RMW_RGAPS_HEADERS names a
//! distro, it uses the stand-in headers. With RMW_RGAPS_HEADERS=ros a ROS must be sourced.
//!
//! The C compiler checks everything: it compares each type of the tables in abi/ with the headers, and reports sizes, offsets and values as
//! comments in its assembly output. So neither libclang nor a C parser is needed.

#[path = "build/table.rs"]
mod table;

use std::collections::BTreeMap;
use std::env;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use table::{Entry, Function};

/// Distros of the stand-in, indexed by RGAPS_STANDIN.
const STANDINS: [&str; 4] = ["humble", "jazzy", "kilted", "lyrical"];
const NEWEST: u32 = 3;

fn main() {
    for file in ["build.rs", "build/table.rs", "abi"] {
        println!("cargo::rerun-if-changed={file}");
    }
    for variable in ["RMW_RGAPS_HEADERS", "AMENT_PREFIX_PATH", "CC", "ROS_DISTRO"] {
        println!("cargo::rerun-if-env-changed={variable}");
    }
    // If the library were unloaded, its thread, and those of the inner RMW, would return into unmapped memory.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,librmw_rgaps.so");

    let (headers, flags) = headers();
    let types = table::entries(&read("abi/types.def"));
    let functions = read("abi/functions.def");
    let known = probe(&flags, &types, &table::functions(&functions, NEWEST));
    let Some(level) = known.get("RGAPS_LEVEL").and_then(|level| u32::try_from(*level).ok()) else {
        panic!("the C compiler reported nothing about the headers: {known:?}")
    };
    let functions = table::functions(&functions, level);
    let text = bindings(&types, &functions, &known);
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default());
    fs::write(out.join("bindings.rs"), text).expect("OUT_DIR can be written");
    println!("cargo::rustc-env=RMW_HEADERS={headers}");
    println!("cargo::rustc-env=RMW_FLAGS={}", flags.join("\n").replace('\n', ";"));
    println!("cargo::rustc-env=RMW_LEVEL={level}");
    println!("cargo::rustc-env=RMW_MESSAGE_LOST={}", known["RMW_EVENT_MESSAGE_LOST"]);
    println!("cargo::rustc-check-cfg=cfg(rmw_dynamic)");
    if functions.iter().any(|function| function.name == "rmw_take_dynamic_message") {
        println!("cargo::rustc-cfg=rmw_dynamic");
    }
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The name of the headers, and the C compiler's flags for them.
fn headers() -> (String, Vec<String>) {
    let here = env::var("CARGO_MANIFEST_DIR").unwrap_or_default();
    let mut flags = vec![format!("-I{here}/abi")];
    let asked = env::var("RMW_RGAPS_HEADERS").unwrap_or_default();
    if asked.is_empty() || asked == "ros" {
        let found = ros_folders();
        assert!(!found.is_empty() || asked.is_empty(), "no rmw/rmw.h in AMENT_PREFIX_PATH: source ROS's setup file");
        if !found.is_empty() {
            flags.extend(found.iter().map(|folder| format!("-I{}", folder.display())));
            return (env::var("ROS_DISTRO").unwrap_or_else(|_| "a sourced ROS".to_owned()), flags);
        }
    }
    let distro = if asked.is_empty() { STANDINS[NEWEST as usize] } else { &asked };
    let Some(level) = STANDINS.iter().position(|name| *name == distro) else {
        panic!("RMW_RGAPS_HEADERS is ros or one of {STANDINS:?}, not {distro:?}")
    };
    flags.push(format!("-DRGAPS_STANDIN={level}"));
    (format!("stand-in for {distro}"), flags)
}

/// The include folders of the sourced prefixes, if rmw is among them: each package has its own.
fn ros_folders() -> Vec<PathBuf> {
    let prefixes = env::var_os("AMENT_PREFIX_PATH").unwrap_or_default();
    let includes: Vec<PathBuf> = env::split_paths(&prefixes).map(|prefix| prefix.join("include")).collect();
    let mut folders = includes.clone();
    for include in &includes {
        let entries = fs::read_dir(include).into_iter().flatten().flatten();
        let own = entries.filter(|entry| entry.path().join(entry.file_name()).is_dir());
        folders.extend(own.map(|entry| entry.path()));
    }
    if folders.iter().any(|folder| folder.join("rmw/rmw.h").is_file()) { folders } else { Vec::new() }
}

fn compiler() -> Command {
    let (target, host) = (env::var("TARGET").unwrap_or_default(), env::var("HOST").unwrap_or_default());
    let of_target = env::var(format!("CC_{}", target.replace('-', "_"))).ok();
    let name = of_target.or_else(|| env::var("CC").ok()).unwrap_or_else(|| {
        let cross = format!("{}-gcc", target.replace("-unknown", ""));
        let has_cross = Command::new(&cross).arg("--version").output().is_ok();
        // Layouts are the same on every 64-bit Linux, so without the target's compiler (as for `cargo check`) this machine's compiler will do.
        if target != host && has_cross { cross } else { "cc".to_owned() }
    });
    let mut words = name.split_whitespace();
    let mut command = Command::new(words.next().unwrap_or("cc"));
    command.args(words);
    command
}

/// Has the C compiler check the tables' types, and then report sizes, offsets and values by name.
fn probe(flags: &[String], types: &[Entry], functions: &[Function]) -> BTreeMap<String, i64> {
    let mut c = String::from("#include \"headers.h\"\n");
    let mut values = String::new();
    for Entry { what, arguments } in types {
        let name = &arguments[0];
        let checks = match what.as_str() {
            "SCALAR" => vec![same(name, &arguments[1], name)],
            "ENUM" => vec![format!("_Static_assert(sizeof({name}) == 4, \"{name} is no 32-bit enum\");")],
            "CALLBACK" => vec![same(name, &format!("{} (*){}", arguments[1], arguments[2]), name)],
            "STRUCT" => {
                value(&mut values, name, &format!("sizeof({name})"));
                value(&mut values, &format!("{name}:align"), &format!("_Alignof({name})"));
                Vec::new()
            }
            "FIELD" => {
                let (field, c_type) = (&arguments[1], arguments[2].as_str());
                let member = format!("(({name} *)0)->{field}");
                value(&mut values, &format!("{name}.{field}"), &format!("offsetof({name}, {field})"));
                value(&mut values, &format!("{name}.{field}:size"), &format!("sizeof({member})"));
                match c_type {
                    "BYTES" => Vec::new(),
                    "POINTER" => {
                        vec![format!("_Static_assert(sizeof({member}) == sizeof(void *), \"{name}.{field}\");")]
                    }
                    _ => vec![same(&format!("__typeof__({member})"), c_type, &format!("{name}.{field}"))],
                }
            }
            "CONSTANT" => {
                value(&mut values, name, &format!("(long long)({name})"));
                Vec::new()
            }
            other => panic!("types.def: {other} is no known macro"),
        };
        checks.iter().for_each(|check| line(&mut c, check));
    }
    for Function { level, result, name, parameters, .. } in functions {
        let parameters = if parameters.is_empty() { "void".to_owned() } else { parameters.join(", ") };
        let check = same(&format!("__typeof__({name})"), &format!("{result} ({parameters})"), name);
        line(&mut c, &format!("#if RGAPS_LEVEL >= {level}\n{check}\n#endif"));
    }
    line(&mut c, &format!("void values(void)\n{{\n{values}}}"));
    let file = Path::new(&env::var_os("OUT_DIR").unwrap_or_default()).join("probe.c");
    fs::write(&file, c).expect("OUT_DIR can be written");
    let output = compiler().args(["-std=gnu11", "-S", "-o", "-"]).args(flags).arg(&file).output();
    let output = output.unwrap_or_else(|error| panic!("the C compiler cannot be run: {error} (set CC)"));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "the rmw headers differ from abi/*.def, or cannot be compiled:\n{errors}");
    let assembly = String::from_utf8_lossy(&output.stdout);
    let told = assembly.lines().filter_map(|line| line.trim().strip_prefix("#VALUE "));
    told.filter_map(|told| told.split_once(' '))
        .filter_map(|(name, value)| Some((name.to_owned(), value.parse().ok()?)))
        .collect()
}

fn same(left: &str, right: &str, name: &str) -> String {
    format!("_Static_assert(__builtin_types_compatible_p({left}, {right}), \"{name} is of another type\");")
}

fn value(values: &mut String, name: &str, expression: &str) {
    line(values, &format!("  __asm__ volatile(\"\\n#VALUE {name} %c0\" : : \"i\"({expression}));"));
}

fn line(text: &mut String, line: &str) {
    writeln!(text, "{line}").expect("a String takes everything");
}

fn bindings(types: &[Entry], functions: &[Function], known: &BTreeMap<String, i64>) -> String {
    let number = |name: &str| *known.get(name).unwrap_or_else(|| panic!("the C compiler did not report {name}"));
    let mut out = String::new();
    let mut complete = Vec::new();
    for Entry { what, arguments } in types {
        let name = &arguments[0];
        complete.push(name.clone());
        match what.as_str() {
            "SCALAR" => line(&mut out, &format!("pub type {name} = {};", table::rust_type(&arguments[1]))),
            "ENUM" => line(&mut out, &format!("pub type {name} = u32;")),
            "CALLBACK" => line(
                &mut out,
                &format!("pub type {name} = {};", callback(&arguments[1], &table::inner_list(&arguments[2]))),
            ),
            "STRUCT" => structure(&mut out, name, types, &number),
            // Used by this script alone.
            "CONSTANT" if name == "RGAPS_LEVEL" => {}
            "CONSTANT" => {
                let c_type = if name.starts_with("RMW_RET_") { "rmw_ret_t" } else { "u32" };
                line(&mut out, &format!("pub const {name}: {c_type} = {};", number(name)));
            }
            _ => {}
        }
    }
    let fields = types.iter().filter(|entry| entry.what == "FIELD").map(|entry| &entry.arguments[2]);
    let signatures = functions.iter().flat_map(|function| function.parameters.iter().chain([&function.result]));
    let callbacks =
        types.iter().filter(|entry| entry.what == "CALLBACK").flat_map(|entry| table::inner_list(&entry.arguments[2]));
    let mut named: Vec<String> =
        fields.chain(signatures).cloned().chain(callbacks).map(|name| table::base(&name).to_owned()).collect();
    named.sort();
    named.dedup();
    for name in
        named.iter().filter(|name| name.contains("rmw_") || name.contains("rosidl_") || name.contains("rcutils_"))
    {
        if !complete.contains(name) {
            line(&mut out, &format!("#[repr(C)] pub struct {name} {{ _pointed_to_only: [u8; 0] }}"));
        }
    }
    line(&mut out, "macro_rules! for_each_function {\n    ($apply:ident) => {\n        $apply! {");
    for Function { required, result, name, parameters, .. } in functions {
        let parameters =
            parameters.iter().enumerate().map(|(index, c_type)| format!("a{index}: {}", table::rust_type(c_type)));
        let parameters = parameters.collect::<Vec<_>>().join(", ");
        line(&mut out, &format!("            {required} fn {name}({parameters}) -> {};", table::rust_type(result)));
    }
    line(&mut out, "        }\n    };\n}\npub(crate) use for_each_function;");
    out
}

fn callback(result: &str, parameters: &[String]) -> String {
    let parameters = parameters.iter().map(|c_type| table::rust_type(c_type)).collect::<Vec<_>>().join(", ");
    let result = if result == "void" { String::new() } else { format!(" -> {}", table::rust_type(result)) };
    format!("::core::option::Option<unsafe extern \"C\" fn({parameters}){result}>")
}

/// A struct with its fields at the C compiler's offsets; the bytes between them are copied opaquely.
fn structure(out: &mut String, name: &str, types: &[Entry], number: &dyn Fn(&str) -> i64) {
    let of_it = types.iter().filter(|entry| entry.what == "FIELD" && entry.arguments[0] == name);
    let mut fields: Vec<(i64, i64, &str, &str)> = of_it
        .map(|entry| {
            let (field, c_type) = (entry.arguments[1].as_str(), entry.arguments[2].as_str());
            (number(&format!("{name}.{field}")), number(&format!("{name}.{field}:size")), field, c_type)
        })
        .collect();
    fields.sort_unstable();
    let size = number(name);
    line(
        out,
        &format!(
            "#[repr(C, align({}))]\n#[derive(Clone, Copy)]\npub struct {name} {{",
            number(&format!("{name}:align"))
        ),
    );
    let mut place = 0;
    let between = |out: &mut String, from: i64, to: i64| {
        if from < to {
            line(out, &format!("    _from_{from}: ::core::mem::MaybeUninit<[u8; {}]>,", to - from));
        }
    };
    for (offset, bytes, field, c_type) in &fields {
        between(out, place, *offset);
        let rust = match *c_type {
            "BYTES" => format!("[u8; {bytes}]"),
            "POINTER" => "*mut ::core::ffi::c_void".to_owned(),
            other => table::rust_type(other),
        };
        line(out, &format!("    pub {field}: {rust},"));
        place = offset + bytes;
    }
    between(out, place, size);
    line(out, "}");
    line(out, &format!("const _: () = assert!(::core::mem::size_of::<{name}>() == {size});"));
    for (offset, _, field, _) in &fields {
        line(out, &format!("const _: () = assert!(::core::mem::offset_of!({name}, {field}) == {offset});"));
    }
}
