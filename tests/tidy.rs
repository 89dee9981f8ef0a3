//! The rules of structure that nobody should have to watch: each test is one rule, and its failure lists every place that breaks it.
//!
//! Rules look at text, not at syntax trees: comments and string literals are blanked first, and a file's tests are what follows its
//! first `#[cfg(test)]` or `#[cfg(all(test, ...))]` at the start of a line.

// A test program: what does not work here is a failed test.
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

#[path = "tidy/circles.rs"]
mod circles;

/// Words that were given up for the field's own, each with what is said now. Written with a gap, so that this file does not find itself.
const RETIRED: &[(&str, &str)] = &[
    ("se|at", "slot"),
    ("se|ats", "slots"),
    ("ten|ant", "occupant"),
    ("ten|ancy", "generation"),
    ("jan|itor", "slot table"),
    ("life|line", "liveness socket"),
    ("in|take", "socket reader"),
    ("un|ready", "pending"),
    ("bu|ry", "drain"),
    ("bu|ried", "draining"),
    ("swe|ep", "reclaim"),
    ("vac|ate", "release"),
    ("dis|miss", "release"),
    ("lets_|go_of", "releases"),
    ("let_|go_of", "release"),
];

/// Folders of code where a descriptor is the kernel's, and is called a file descriptor or an fd. The word alone means a message of rgaps_msgs.
const WITHOUT_DESCRIPTORS: &[&str] = &["crates/", "fuzz/", "tests/"];

/// The parts of these folders that are about ROS.
const WITH_DESCRIPTORS: &[&str] = &[
    "crates/rgaps-ros/",
    "crates/rgaps-ros-policy/",
    "crates/rgaps-c/include/rgaps.h",
    "crates/rgaps-c/src/ros.rs",
    "crates/rgaps-c/src/ros_buffers.rs",
    "crates/rgaps-c/tests/ros.c",
    "crates/rgaps-c/tests/ros_buffers.c",
    "crates/rgaps-py/src/ros.rs",
    "crates/rgaps-py/python/rgaps/ros/",
    "crates/rgaps-py/tests/test_ros.py",
    "tests/hosts/buffers.rs",
    "tests/messages.rs",
    "tests/msgs/",
    "tests/ros/",
];

/// Circles of files that import each other, by crate: what holds each together. None has more than three files.
const CIRCLES: &[(&str, &[&str], &str)] = &[
    (
        "rgaps",
        &["endpoint/session.rs", "endpoint/session/granted.rs", "endpoint/session/requests.rs"],
        "a session, its requests, and the slots that it gives back",
    ),
    ("rgaps", &["types/meta.rs", "types/wire.rs"], "metadata and its bytes"),
    ("rgaps-c", &["simple.rs", "subscriber.rs"], "the six calls of the paper and the subscriber that they wrap"),
    ("rgaps-media", &["npy.rs", "pcd.rs", "save.rs"], "formats and what saves them"),
    ("rgaps-bench", &["link.rs", "ring.rs"], "a bench and its ring"),
    ("rgaps-control", &["config.rs", "range.rs"], "the configuration and how far the network goes by it"),
    (
        "rgaps-control",
        &["client_lock.rs", "runtime.rs", "runtime_path.rs"],
        "a runtime directory, where it is and its locks",
    ),
    ("rgaps-control", &["network.rs", "zenoh_config.rs"], "the network and zenoh's configuration of it"),
    ("rgaps-control", &["spawn.rs", "spawn/pauses.rs"], "the start of a manager and the pauses between attempts"),
    ("rgaps-device", &["raw/dlpack.rs", "view.rs"], "a view and its DLPack struct"),
    ("rgaps-link", &["geometry.rs", "record.rs"], "the cut of a ring and its records"),
    ("rgaps-manager", &["budgets.rs", "links.rs"], "budgets and the permits that count links"),
    ("rgaps-os", &["mapping.rs", "range.rs", "shared.rs"], "a mapping and its parts"),
    ("rgaps-py", &["layout.rs", "meta/cloud.rs"], "layouts of arrays and of clouds"),
    ("rgaps-shm", &["notify.rs", "pages.rs", "segment.rs"], "the mapped words and the futexes among them"),
    (
        "rgaps-standin-cuda",
        &["operation.rs", "state.rs", "stream.rs"],
        "a stream, and its operations, which look their memory up when they run",
    ),
    ("rgaps-testing", &["bad_network/damage.rs", "bad_network/line.rs"], "a line and the damage that it does"),
];

/// Lines of a source file, its tests left out.
const LINES_MAX: usize = 600;

/// Which crates of the workspace each crate may be built on. A crate that is missing here fails, so that a new one is thought about.
const EDGES: &[(&str, &[&str])] = &[
    ("rgaps-os", &[]),
    ("rgaps-shm", &["rgaps-os"]),
    ("rgaps-device", &["rgaps-os"]),
    ("rgaps-link", &["rgaps-os"]),
    ("rgaps-control", &["rgaps-os", "rgaps-shm"]),
    ("rgaps-manager", &["rgaps-os", "rgaps-shm", "rgaps-device", "rgaps-link", "rgaps-control"]),
    ("rgaps", &["rgaps-os", "rgaps-shm", "rgaps-device", "rgaps-control"]),
    ("rgaps-ros-policy", &["rgaps"]),
    ("rgaps-py", &["rgaps", "rgaps-ros-policy"]),
    ("rgaps-testing", &[]),
    ("rgaps-standin-cuda", &[]),
    (
        "rgaps-cli",
        &[
            "rgaps",
            "rgaps-os",
            "rgaps-shm",
            "rgaps-link",
            "rgaps-control",
            "rgaps-media",
            "rgaps-testing",
            "rgaps-command",
            "rgaps-bench",
        ],
    ),
    (
        "rgaps-bench",
        &[
            "rgaps",
            "rgaps-os",
            "rgaps-shm",
            "rgaps-device",
            "rgaps-link",
            "rgaps-control",
            "rgaps-testing",
            "rgaps-command",
        ],
    ),
    ("rgaps-command", &["rgaps", "rgaps-control"]),
    ("rgaps-media", &["rgaps"]),
    ("rgaps-c", &["rgaps", "rgaps-ros-policy"]),
    ("rmw-rgaps", &["rgaps", "rgaps-ros-policy"]),
    ("rgaps-ros", &["rgaps", "rgaps-ros-policy"]),
    ("rgaps-peers", &[]),
    ("rgaps-tests", &[]),
];

/// What a program that only publishes and subscribes must not be made to link.
const NOT_IN_THE_API: &[&str] = &[
    "zenoh",
    "tokio",
    "rgaps-link",
    "rgaps-manager",
    "rgaps-testing",
    "rgaps-standin-cuda",
    "iceoryx2",
    "ibverbs-sys",
    "clap",
];

/// Crates whose every target says `#![forbid(unsafe_code)]`.
const WITHOUT_UNSAFE: &[&str] = &[
    "rgaps-control",
    "rgaps-manager",
    "rgaps-media",
    "rgaps-command",
    "rgaps-bench",
    "rgaps-cli",
    "rgaps-ros-policy",
    "rgaps-peers",
];

/// The crates that say `#![deny(unsafe_code)]`, with one exception: their module `raw`, which in `rgaps` sees the payload of a sample as a slice, and
/// in `rgaps-testing` makes a network interface.
const UNSAFE_IN_RAW_ONLY: &[&str] = &["rgaps", "rgaps-testing"];

/// A file of the repository; its path is relative to the root.
struct File {
    path: String,
    text: String,
    /// Whether it holds nothing but tests.
    is_test: bool,
}

impl File {
    /// Its lines with numbers, comments and string literals blanked, up to its tests.
    fn code(&self) -> Vec<(usize, String)> {
        let blanked = blank(&self.text);
        let lines = blanked.lines().enumerate().take(self.lines_without_tests());
        lines.map(|(index, line)| (index + 1, line.to_owned())).collect()
    }

    fn lines_without_tests(&self) -> usize {
        let starts_tests = |line: &str| line.starts_with("#[cfg(test)]") || line.starts_with("#[cfg(all(test");
        let lines: Vec<&str> = self.text.lines().collect();
        // A `mod` line for a file of tests is no end of the code.
        let is_block = |index: usize| {
            lines[index + 1..].iter().find(|line| !line.starts_with("#[")).is_some_and(|line| line.ends_with('{'))
        };
        (0..lines.len()).find(|index| starts_tests(lines[*index]) && is_block(*index)).unwrap_or(lines.len())
    }

    /// Paths of the modules that it declares for tests only: `#[cfg(test)] mod name;` and the like.
    fn test_modules(&self) -> Vec<String> {
        let folder = match self.path.rsplit_once('/') {
            Some((folder, "lib.rs" | "main.rs" | "mod.rs")) => folder.to_owned(),
            _ => self.path.trim_end_matches(".rs").to_owned(),
        };
        let lines: Vec<&str> = self.text.lines().map(str::trim).collect();
        let is_for_tests = |line: &str| line.starts_with("#[cfg(") && has_word(line, "test") && !line.contains("not(");
        let declared = lines.windows(2).filter(|pair| is_for_tests(pair[0]));
        let names = declared.filter_map(|pair| {
            let declaration = pair[1].trim_start_matches("pub ").trim_start_matches("pub(crate) ");
            declaration.strip_prefix("mod ")?.strip_suffix(';')
        });
        names.flat_map(|name| [format!("{folder}/{name}.rs"), format!("{folder}/{name}/mod.rs")]).collect()
    }
}

fn root() -> PathBuf {
    match Path::new(env!("CARGO_MANIFEST_DIR")).parent() {
        Some(root) => root.to_owned(),
        None => unreachable!("tests/ lies in the repository"),
    }
}

/// Every text file of the repository but what is built or ignored.
fn files() -> Vec<File> {
    fn walk(folder: &Path, root: &Path, files: &mut Vec<File>) {
        for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
            let (path, name) = (entry.path(), entry.file_name().into_string().unwrap());
            // A fuzzer's corpus says anything.
            let ignored =
                ["target", "build", "install", "log", "demo-out", "bench-report", "__pycache__", "corpus", "artifacts"];
            let ignored = ignored.contains(&name.as_str());
            let hidden = name.starts_with('.') && name != ".ci" && name != ".gitignore";
            if ignored || hidden || name.starts_with("target-") {
                continue;
            }
            if entry.file_type().unwrap().is_dir() {
                walk(&path, root, files);
            } else if let Ok(text) = fs::read_to_string(&path) {
                let path = path.strip_prefix(root).unwrap().display().to_string();
                let is_test = path.split('/').any(|part| part == "tests" || part == "benches");
                files.push(File { path, text, is_test });
            }
        }
    }
    let mut files = Vec::new();
    walk(&root(), &root(), &mut files);
    assert!(files.iter().any(|file| file.path == "Cargo.toml"), "the repository was not found");
    files
}

/// Rust sources; never an empty list.
fn sources() -> Vec<File> {
    let mut sources: Vec<File> = files().into_iter().filter(|file| file.path.ends_with(".rs")).collect();
    let declared: BTreeSet<String> = sources.iter().flat_map(File::test_modules).collect();
    for file in &mut sources {
        // A folder of tests is declared by its mod.rs.
        let is_below = |path: &String| path.strip_suffix("mod.rs").is_some_and(|folder| file.path.starts_with(folder));
        file.is_test |= declared.contains(&file.path) || declared.iter().any(is_below);
    }
    assert!(sources.len() > 20, "only {} Rust files were found", sources.len());
    sources
}

/// The text with comments, string and character literals replaced by spaces; lines stay where they are.
fn blank(text: &str) -> String {
    let mut output = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let taken = literal_or_comment(rest, output.chars().next_back());
        let length = if taken > 0 { taken } else { first.len_utf8() };
        let (head, tail) = rest.split_at(length);
        if taken > 0 {
            output.extend(head.chars().map(|character| if character == '\n' { '\n' } else { ' ' }));
        } else {
            output.push(first);
        }
        rest = tail;
    }
    output
}

/// Bytes of the comment or literal that the text begins with, 0 if with neither.
fn literal_or_comment(text: &str, before: Option<char>) -> usize {
    if text.starts_with("//") {
        return text.find('\n').unwrap_or(text.len());
    }
    if text.starts_with("/*") {
        return text.find("*/").map_or(text.len(), |end| end + 2);
    }
    let in_word = before.is_some_and(|character| character.is_alphanumeric() || character == '_');
    if !in_word && (text.starts_with("r\"") || text.starts_with("r#")) {
        let hashes = text[1..].len() - text[1..].trim_start_matches('#').len();
        if text[1 + hashes..].starts_with('"') {
            let close = format!("\"{}", "#".repeat(hashes));
            let body = 2 + hashes;
            return text[body..].find(&close).map_or(text.len(), |end| body + end + close.len());
        }
    }
    if text.starts_with('"') {
        return end_of_quoted(text, '"');
    }
    // 'a' and '\n', but not a lifetime.
    let mut characters = text.chars();
    if characters.next() == Some('\'') {
        let (second, third) = (characters.next(), characters.next());
        if second == Some('\\') || third == Some('\'') {
            return end_of_quoted(text, '\'');
        }
    }
    0
}

fn end_of_quoted(text: &str, quote: char) -> usize {
    let mut escaped = false;
    for (index, character) in text.char_indices().skip(1) {
        match character {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            _ if character == quote => return index + character.len_utf8(),
            _ => {}
        }
    }
    text.len()
}

/// Whether a line has the word, not as a part of another.
fn has_word(line: &str, word: &str) -> bool {
    let is_word = |character: char| character.is_alphanumeric() || character == '_';
    line.match_indices(word)
        .any(|(start, _)| !line[..start].ends_with(is_word) && !line[start + word.len()..].starts_with(is_word))
}

/// Fails with every breach, one a line.
fn none(rule: &str, breaches: &[String]) {
    let mut text = String::new();
    for breach in breaches {
        let _ = writeln!(text, "  {breach}");
    }
    assert!(breaches.is_empty(), "{rule}:\n{text}");
}

fn cargo(arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO")).args(arguments).current_dir(root()).output().unwrap();
    assert!(output.status.success(), "cargo {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Manifests of workspaces: the repository's, and those of packages with a lock of their own.
const WORKSPACES: &[&str] = &["Cargo.toml", "crates/rgaps-ros/Cargo.toml", "bench/peers/Cargo.toml"];

/// The packages of the workspaces, as `cargo metadata` tells them.
fn packages() -> Vec<serde_json::Value> {
    let mut packages = Vec::new();
    for manifest in WORKSPACES {
        let asked = ["metadata", "--format-version", "1", "--no-deps", "--locked", "--manifest-path", manifest];
        let metadata: serde_json::Value = serde_json::from_str(&cargo(&asked)).unwrap();
        packages.extend(metadata["packages"].as_array().unwrap().iter().cloned());
    }
    assert!(packages.len() >= EDGES.len(), "cargo metadata names {} packages", packages.len());
    packages
}

#[test]
fn dependencies_point_downwards_only() {
    let allowed: BTreeMap<&str, &[&str]> = EDGES.iter().copied().collect();
    let mut breaches = Vec::new();
    for package in packages() {
        let name = package["name"].as_str().unwrap();
        let Some(allowed) = allowed.get(name) else {
            breaches.push(format!("{name} is not in EDGES of tests/tidy.rs: say there what it may be built on"));
            continue;
        };
        for dependency in package["dependencies"].as_array().unwrap() {
            let on = dependency["name"].as_str().unwrap();
            let is_ours = !dependency["path"].is_null();
            if is_ours && dependency["kind"].as_str() != Some("dev") && !allowed.contains(&on) {
                breaches.push(format!("{name} -> {on}"));
            }
            // A test may be a stranger on the network, and the peers of the benches are strangers altogether.
            if on == "zenoh"
                && !["rgaps-control", "rgaps-peers"].contains(&name)
                && dependency["kind"].as_str() != Some("dev")
            {
                breaches.push(format!("{name} -> zenoh: the network is rgaps-control's"));
            }
        }
    }
    none("dependencies that the design does not have", &breaches);
}

#[test]
fn the_api_links_neither_the_network_nor_the_manager() {
    let tree = cargo(&["tree", "-p", "rgaps", "-e", "normal", "--prefix", "none", "--format", "{p}", "--locked"]);
    let linked: BTreeSet<&str> = tree.lines().filter_map(|line| line.split(' ').next()).collect();
    assert!(linked.contains("rgaps-shm"), "cargo tree shows no dependencies: {tree}");
    let breaches: Vec<String> =
        NOT_IN_THE_API.iter().filter(|name| linked.contains(**name)).map(|name| format!("rgaps -> {name}")).collect();
    none("the API crate must build fast and start everywhere", &breaches);
}

#[test]
fn every_package_has_the_lints_of_the_workspace() {
    let manifests: Vec<File> = files()
        .into_iter()
        .filter(|file| file.path.ends_with("/Cargo.toml") && !file.path.contains("/fuzz/"))
        .collect();
    assert!(!manifests.is_empty(), "no manifests were found");
    let without = manifests.iter().filter(|file| !file.text.contains("[lints]\nworkspace = true"));
    none("no [lints] workspace = true", &without.map(|file| file.path.clone()).collect::<Vec<_>>());
    for manifest in WORKSPACES {
        let workspace = fs::read_to_string(root().join(manifest)).unwrap();
        for lint in ["undocumented_unsafe_blocks", "multiple_unsafe_ops_per_block", "unwrap_used"] {
            assert!(workspace.contains(&format!("{lint} = \"deny\"")), "{manifest} does not deny {lint}");
        }
    }
}

#[test]
fn colcon_finds_ros_packages_and_no_others() {
    // It looks no further below a folder that is a package of any kind, and colcon-cargo asks the workspace where to look.
    let names: BTreeSet<String> = files().into_iter().map(|file| file.path).collect();
    let marks = ["/Cargo.toml", "/CMakeLists.txt", "/setup.py"];
    let looks_like_one = |path: &&String| marks.iter().any(|mark| path.ends_with(mark));
    let is_below = |path: &str, mark: &str| {
        path.match_indices('/').any(|(end, _)| names.contains(&format!("{}/{mark}", &path[..end])))
    };
    let found: Vec<&String> = names.iter().filter(looks_like_one).collect();
    assert!(found.len() > EDGES.len(), "only {found:?} look like packages");
    let breaches = found.iter().filter(|path| !is_below(path, "COLCON_IGNORE") && !is_below(path, "package.xml"));
    none("neither a ROS package nor with a COLCON_IGNORE", &breaches.map(|path| (*path).clone()).collect::<Vec<_>>());

    let workspace = fs::read_to_string(root().join("Cargo.toml")).unwrap();
    assert!(!names.contains("package.xml") && !names.contains("CMakeLists.txt"), "the root would be the only package");
    let manifests = names.iter().filter_map(|path| path.strip_suffix("/package.xml"));
    let named = |folder: &str| match folder.strip_prefix("examples/ros/") {
        Some(example) => !example.contains('/') && workspace.contains("\"examples/ros/*\""),
        None => workspace.contains(&format!("\"{folder}\"")),
    };
    let unnamed = manifests.filter(|folder| !named(folder)).map(str::to_owned);
    none("not among the workspace's additional-packages", &unnamed.collect::<Vec<_>>());
    // colcon-cargo takes a member at its word, whatever lies above it.
    let members = packages().into_iter().map(|package| package["manifest_path"].as_str().unwrap().to_owned());
    let unmarked = members.filter(|path| {
        let folder = std::path::Path::new(path).parent().unwrap();
        !folder.join("COLCON_IGNORE").exists() && !folder.join("package.xml").exists()
    });
    none("members of the workspace without COLCON_IGNORE", &unmarked.collect::<Vec<_>>());
}

#[test]
fn every_source_file_says_its_idea_in_its_first_line() {
    let without = sources().into_iter().filter(|file| !file.text.starts_with("//! "));
    none("no //! header", &without.map(|file| file.path).collect::<Vec<_>>());
}

#[test]
fn an_invariants_label_names_one_invariant() {
    let is_label = |word: &&str| {
        let letters = word.trim_end_matches(|character: char| character.is_ascii_digit());
        letters.len() < word.len() && matches!(letters.len(), 1..=2) && letters.chars().all(char::is_uppercase)
    };
    let mut files_of: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for file in sources() {
        let header = file.text.lines().skip_while(|line| !line.starts_with("//! Invariant"));
        let lines = header.enumerate().take_while(|(index, line)| *index == 0 || line.starts_with("//!  "));
        for label in lines.flat_map(|(_, line)| line.split(' ').filter(is_label)) {
            files_of.entry(label.to_owned()).or_default().insert(file.path.clone());
        }
    }
    assert!(files_of.len() > 50, "only {} labels were found", files_of.len());
    let shared = files_of.into_iter().filter(|(_, files)| files.len() > 1);
    none(
        "labels of invariants in more than one file",
        &shared.map(|(label, files)| format!("{label}: {files:?}")).collect::<Vec<_>>(),
    );
}

#[test]
fn a_file_holds_one_idea() {
    let long = sources().into_iter().filter(|file| !file.is_test && file.lines_without_tests() > LINES_MAX);
    let long = long.map(|file| format!("{}: {} lines without tests", file.path, file.lines_without_tests()));
    none("over 600 lines: which second idea has moved in?", &long.collect::<Vec<_>>());
}

#[test]
fn the_name_of_a_test_has_80_characters_at_most() {
    let all = files();
    let code = all.iter().filter(|file| file.path.ends_with(".rs") || file.path.ends_with(".py"));
    let long = code.flat_map(|file| {
        let names =
            file.text.lines().filter_map(|line| line.trim_start().strip_prefix("fn ").or(line.strip_prefix("def ")));
        let names = names.filter_map(|rest| rest.split(['(', '<']).next()).filter(|name| name.len() > 80);
        names.map(|name| format!("{}: {name}", file.path)).collect::<Vec<_>>()
    });
    none("names over 80 characters", &long.collect::<Vec<_>>());
}

#[test]
fn unsafe_lives_in_its_places_only() {
    let mut breaches = Vec::new();
    for file in sources() {
        let place = ["/raw/", "/cuda/", "/rdma/"].iter().any(|place| file.path.contains(place));
        // The stand-in is a library of C; only tests load it. Whoever launches a kernel vouches for its arguments. A layer between two C
        // interfaces has nothing but their pointers.
        let crates = ["crates/rgaps-os/", "crates/rgaps-standin-cuda/", "examples/kernel/", "rmw_rgaps/src/"];
        if place || crates.iter().any(|name| file.path.starts_with(name)) || file.is_test {
            continue;
        }
        for (number, line) in file.code() {
            let is_exported = line.contains("unsafe extern") || line.trim() == "#[unsafe(no_mangle)]";
            if has_word(&line, "unsafe") && !is_exported {
                breaches.push(format!("{}:{number}: {}", file.path, line.trim()));
            }
        }
    }
    none("unsafe outside raw/, cuda/, rdma/, launches of kernels and exported C functions", &breaches);
}

#[test]
fn crates_without_unsafe_say_so_to_the_compiler() {
    let mut breaches = Vec::new();
    for package in packages() {
        if !WITHOUT_UNSAFE.contains(&package["name"].as_str().unwrap()) {
            continue;
        }
        for target in package["targets"].as_array().unwrap() {
            let kind = target["kind"][0].as_str().unwrap();
            let path = target["src_path"].as_str().unwrap();
            let is_program_or_library = kind == "lib" || kind == "bin";
            if is_program_or_library && !fs::read_to_string(path).unwrap().contains("#![forbid(unsafe_code)]") {
                breaches.push(path.to_owned());
            }
        }
    }
    none("no #![forbid(unsafe_code)]", &breaches);
    for name in UNSAFE_IN_RAW_ONLY {
        let folder = format!("crates/{name}/src/");
        let exceptions: Vec<String> = sources()
            .iter()
            .filter(|file| file.path.starts_with(&folder))
            .flat_map(|file| file.code().into_iter().map(|(_, line)| (file.path.clone(), line)).collect::<Vec<_>>())
            .filter(|(_, line)| line.contains("(unsafe_code)"))
            .map(|(path, line)| format!("{}: {}", path.trim_start_matches(&folder), line.trim()))
            .collect();
        assert_eq!(exceptions, ["lib.rs: #![deny(unsafe_code)]", "lib.rs: #[allow(unsafe_code)]"], "{name}");
        let library = fs::read_to_string(root().join(&folder).join("lib.rs")).unwrap();
        assert!(library.contains("#[allow(unsafe_code)]\nmod raw;"), "the exception of {name} is for raw");
    }
}

#[test]
fn nothing_but_a_test_unwraps() {
    let mut breaches = Vec::new();
    for file in sources().into_iter().filter(|file| !file.is_test) {
        for (number, line) in file.code() {
            if line.contains(".unwrap()") || line.contains("clippy::unwrap_used") {
                breaches.push(format!("{}:{number}: {}", file.path, line.trim()));
            }
        }
    }
    none("unwrap outside tests", &breaches);
}

#[test]
fn every_crash_point_is_listed_passed_and_killed_at_by_name() {
    let sources = sources();
    let list = sources.iter().find(|file| file.path.ends_with("rgaps-shm/src/crash.rs")).unwrap();
    let (_, list) = list.text.split_once("POINTS").unwrap();
    let points: BTreeSet<&str> = list.split("];").next().unwrap().split('"').skip(1).step_by(2).collect();
    assert!(!points.is_empty(), "crash.rs lists no points");
    let mut passed = BTreeSet::new();
    for file in sources.iter().filter(|file| !file.is_test) {
        passed.extend(file.text.split("crash::point(\"").skip(1).filter_map(|rest| rest.split('"').next()));
    }
    let tests: String = sources.iter().filter(|file| file.is_test).map(|file| file.text.as_str()).collect();
    let mut breaches: Vec<String> = passed.difference(&points).map(|point| format!("{point}: not in POINTS")).collect();
    breaches.extend(points.difference(&passed).map(|point| format!("{point}: no code passes it")));
    let not_killed = points.iter().filter(|point| !tests.contains(&format!("\"{point}\"")));
    breaches.extend(not_killed.map(|point| format!("{point}: no test in a tests/ folder kills at it by name")));
    none("crash points", &breaches);
}

#[test]
fn every_promise_names_its_test_or_says_that_it_has_none() {
    let promises = fs::read_to_string(root().join("docs/promises.md")).unwrap();
    let all = files();
    let written_in = |ending: &str| -> String {
        all.iter().filter(|file| file.path.ends_with(ending)).map(|file| file.text.as_str()).collect()
    };
    let (tests, python) = (written_in(".rs"), written_in(".py"));
    // Tests in C and C++ are functions of the programs that ctest runs, or gtest's.
    let is_c =
        |file: &&File| ["crates/rgaps-c/tests/", "rgaps_ros/test/"].iter().any(|folder| file.path.starts_with(folder));
    let c_tests: String = all.iter().filter(is_c).map(|file| file.text.as_str()).collect();
    let is_test = |name: &str| {
        let written = [format!("fn {name}("), format!("def {name}("), format!("void {name}("), format!(", {name}) {{")];
        let in_c = written[2..].iter().any(|text| c_tests.contains(text));
        tests.contains(&written[0]) || python.contains(&written[1]) || in_c
    };
    let mut breaches = Vec::new();
    let mut count = 0;
    for row in promises.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| Promise")) {
        count += 1;
        let Some(held_by) = row.trim_end_matches('|').rsplit('|').next().map(str::trim) else { continue };
        if held_by == "untested" {
            continue;
        }
        let names: Vec<&str> = held_by.split('`').skip(1).step_by(2).collect();
        if names.is_empty() {
            breaches.push(format!("neither a test nor the word untested: {row}"));
        }
        for name in names {
            let is_file = all.iter().any(|file| file.path == name);
            if !is_file && !is_test(name) {
                breaches.push(format!("no test `{name}`: {row}"));
            }
        }
    }
    assert!(count > 0, "docs/promises.md has no rows");
    none("promises", &breaches);
}

/// The code of each crate, by its files below `src`.
fn code_by_crate() -> BTreeMap<String, circles::Code> {
    let mut crates: BTreeMap<String, circles::Code> = BTreeMap::new();
    for file in sources().into_iter().filter(|file| !file.is_test) {
        let Some((folder, path)) = file.path.split_once("/src/") else { continue };
        let name = folder.rsplit('/').next().unwrap_or(folder).replace('_', "-");
        let is_program = path.starts_with("bin/") || folder.starts_with("examples") || folder == "fuzz";
        if !is_program {
            let code: Vec<String> = file.code().into_iter().map(|(_, line)| line).collect();
            crates.entry(name).or_default().insert(path.to_owned(), code.join("\n"));
        }
    }
    crates
}

#[test]
fn files_import_each_other_in_no_circle_but_the_named_ones() {
    let mut breaches = Vec::new();
    let mut named: BTreeSet<(&str, Vec<&str>)> =
        CIRCLES.iter().map(|(name, files, _)| (*name, files.to_vec())).collect();
    let found: BTreeMap<String, Vec<Vec<String>>> =
        code_by_crate().into_iter().map(|(name, code)| (name, circles::circles(&code))).collect();
    for (name, circles) in &found {
        for circle in circles {
            let files: Vec<&str> = circle.iter().map(String::as_str).collect();
            match circle.len() {
                0..=3 if named.remove(&(name.as_str(), files)) => {}
                count => breaches.push(format!("{name}: {count} files: {}", circle.join(" "))),
            }
        }
    }
    breaches.extend(
        named.iter().map(|(name, files)| format!("{name}: {files:?} are no circle any more: take it off CIRCLES")),
    );
    none("circles of files that import each other", &breaches);
}

#[test]
fn retired_words_stay_out() {
    let words: Vec<(String, &str)> = RETIRED.iter().map(|(word, now)| (word.replace('|', ""), *now)).collect();
    let mut breaches = Vec::new();
    for file in files().into_iter().filter(|file| !["LICENSE", "CHANGELOG.md"].contains(&file.path.as_str())) {
        for (index, line) in file.text.lines().enumerate() {
            let plain = line.to_lowercase();
            // In a name, too: a word ends at an underscore.
            let parts = plain.replace('_', " ");
            for (word, now) in &words {
                if has_word(&plain, word) || has_word(&parts, &word.replace('_', " ")) {
                    breaches.push(format!("{}:{}: say {now}: {}", file.path, index + 1, line.trim()));
                }
            }
        }
    }
    none("words that were retired", &breaches);
}

#[test]
fn a_descriptor_is_a_ros_message_or_a_file_descriptor() {
    let is_in = |file: &File, folders: &[&str]| folders.iter().any(|folder| file.path.starts_with(folder));
    let kernels = |file: &File| is_in(file, WITHOUT_DESCRIPTORS) && !is_in(file, WITH_DESCRIPTORS);
    let mut breaches = Vec::new();
    for file in files().into_iter().filter(|file| kernels(file) && file.path != "tests/tidy.rs") {
        let plain = file.text.to_lowercase();
        for (start, _) in plain.match_indices("descriptor") {
            // The word before it may end the line before, or be joined to it in a name.
            let before = plain[..start].trim_end_matches(|character: char| !character.is_alphanumeric());
            // getset_descriptor is a type of Python.
            if !before.ends_with("file") && !before.ends_with("getset") {
                breaches.push(format!("{}:{}", file.path, plain[..start].matches('\n').count() + 1));
            }
        }
    }
    none("say file descriptor, or fd; a descriptor is a ROS message (docs/glossary.md)", &breaches);
}

#[test]
fn the_architecture_page_names_every_crate() {
    let page = fs::read_to_string(root().join("docs/architecture.md")).unwrap();
    let missing = EDGES.iter().map(|(name, _)| *name).filter(|name| *name != "rgaps-tests");
    let missing = missing.filter(|name| !page.contains(&format!("**{name}**")));
    none("docs/architecture.md has no paragraph for", &missing.map(str::to_owned).collect::<Vec<_>>());
}

#[test]
fn the_walks_of_the_architecture_name_functions_that_exist() {
    let page = fs::read_to_string(root().join("docs/architecture.md")).unwrap();
    let walks = page.split("## A message's walk").nth(1).and_then(|rest| rest.split("## Where to change what").next());
    let code: Vec<String> = sources().into_iter().map(|file| blank(&file.text)).collect();
    let has =
        |text: &str, kind: &str, name: &str| text.lines().any(|line| has_word(line, kind) && has_word(line, name));
    let mut breaches = Vec::new();
    let mut count = 0;
    for name in walks.unwrap().split('`').skip(1).step_by(2) {
        let Some((owner, function)) = name.split_once("::") else { continue };
        count += 1;
        let written = [format!("fn {function}("), format!("fn {function}<")];
        let is_there = code.iter().any(|text| {
            (has(text, "impl", owner) || has(text, "trait", owner)) && written.iter().any(|name| text.contains(name))
        });
        if !is_there {
            breaches.push(name.to_owned());
        }
    }
    assert!(count > 30, "only {count} functions are named");
    none("docs/architecture.md names functions that are not there", &breaches);
}

#[test]
fn the_index_of_decisions_has_each_one_with_its_title() {
    let files = files();
    let text_of = |path: &str| files.iter().find(|file| file.path == path).unwrap().text.as_str();
    let index = text_of("docs/decisions/README.md");
    let pages = files.iter().filter_map(|file| Some((file, file.path.strip_prefix("docs/decisions/")?)));
    let row = |(file, name): (&File, &str)| {
        let (number, title) = file.text.lines().next().unwrap().strip_prefix("# ").unwrap().split_once(": ").unwrap();
        format!("| [{number}]({name}) | {title} |")
    };
    let missing = pages.filter(|(_, name)| *name != "README.md").map(row).filter(|row| !index.contains(row.as_str()));
    none("docs/decisions/README.md lacks", &missing.collect::<Vec<_>>());
}

#[test]
fn the_documents_and_module_headers_name_files_that_exist() {
    let files = files();
    let (mut count, mut breaches) = (0, Vec::new());
    for file in &files {
        let is_document = file.path.ends_with(".md") && file.path != "CHANGELOG.md";
        let lines = file.text.lines().enumerate();
        let prose = lines.filter(|(_, line)| is_document || file.path.ends_with(".rs") && line.starts_with("//!"));
        for (index, line) in prose {
            let names = line.split('`').skip(1).step_by(2);
            let source =
                |name: &&str| [".rs", ".py", ".hpp"].iter().any(|end| name.len() > end.len() && name.ends_with(end));
            for name in names.filter(source).filter(|name| !name.contains([' ', '*', '<', '{', '$'])) {
                count += 1;
                let end = format!("/{}", name.trim_start_matches("../"));
                if !files.iter().any(|there| format!("/{}", there.path).ends_with(&end)) {
                    breaches.push(format!("{}:{}: {name}", file.path, index + 1));
                }
            }
        }
    }
    assert!(count > 100, "only {count} files are named");
    none("documents name files that are not there", &breaches);
}

#[test]
fn no_machine_is_named_and_nothing_is_put_off() {
    // Put together here, so that this file does not find itself.
    let words: Vec<String> =
        [("/wo", "rk/"), ("/ro", "ot/"), ("/home", "/"), ("TO", "DO"), ("FIX", "ME"), ("XX", "X"), ("todo", "!(")]
            .iter()
            .map(|(start, end)| format!("{start}{end}"))
            .collect();
    let mut breaches = Vec::new();
    for file in files().into_iter().filter(|file| file.path != "LICENSE" && file.path != "Cargo.lock") {
        for (index, line) in file.text.lines().enumerate() {
            if words.iter().any(|word| line.contains(word.as_str())) {
                breaches.push(format!("{}:{}: {}", file.path, index + 1, line.trim()));
            }
        }
    }
    none("paths of a machine, or words that put something off", &breaches);
}

#[test]
fn comments_and_literals_are_blanked_and_nothing_else() {
    let text = "let a = \"unsafe \\\" x\"; // unsafe\nlet b: &'static str = r#\"un\"safe\"#; /* unsafe */ let c = '\"'; unsafe {}";
    let blanked = blank(text);
    assert_eq!(blanked.len(), text.len());
    assert_eq!(blanked.matches("unsafe").count(), 1);
    assert!(blanked.contains("&'static str") && blanked.ends_with("let c =    ; unsafe {}"), "{blanked}");
    assert!(has_word("unsafe {", "unsafe") && !has_word("unsafe_code", "unsafe"));
}
