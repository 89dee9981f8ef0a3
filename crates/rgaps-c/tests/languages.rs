//! Builds and runs the examples in C, C++ and Python as their first lines say, together with those in Rust.
//!
//! `./dev test` sets TEST_PREFIX to the prefix of an installed RGAPS, and TEST_PYTHON to a Python that has the package.

// In a test program every failure is a failed test.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Lines};
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Command, Stdio};
use std::time::Duration;

use rgaps::types::{Encoding, Image, Meta, PointCloud};
use rgaps::{Node, Origin, Sample};
use rgaps_testing::{Child, Ended, RuntimeDir, Watchdog, programs, skipped};

const LIMIT: Duration = Duration::from_secs(60);
const COUNT: &str = "5";

/// An installed RGAPS, and a runtime directory.
struct Installed {
    prefix: PathBuf,
    dir: RuntimeDir,
}

impl Installed {
    fn new(name: &str) -> Option<Self> {
        let Some(prefix) = std::env::var_os("TEST_PREFIX") else {
            skipped("no TEST_PREFIX, where RGAPS is installed (./dev test-c sets it)");
            return None;
        };
        Some(Self { prefix: prefix.into(), dir: RuntimeDir::new(name).unwrap() })
    }

    /// Compiles an example like a user: with a compiler, its flags and those of pkg-config.
    fn compiled(&self, compiler: &str, flags: &[&str], source: &str) -> PathBuf {
        self.compiled_from(compiler, flags, &repository().join("examples").join(source))
    }

    fn compiled_from(&self, compiler: &str, flags: &[&str], source: &Path) -> PathBuf {
        let program = Path::new(env!("CARGO_TARGET_TMPDIR"))
            .join(source.file_name().unwrap().to_str().unwrap().replace('.', "-"));
        let mut pkg_config = Command::new("pkg-config");
        pkg_config.args(["--cflags", "--libs", "rgaps"]).env("PKG_CONFIG_PATH", self.prefix.join("lib/pkgconfig"));
        let found = pkg_config.output().unwrap();
        assert!(found.status.success(), "pkg-config: {}", String::from_utf8_lossy(&found.stderr));
        let found = String::from_utf8(found.stdout).unwrap();
        let mut compile = Command::new(compiler);
        compile.args(flags).args(["-O1", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]).arg(source);
        compile.args(found.split_whitespace()).arg("-lm").arg("-o").arg(&program);
        let compiled = compile.output().unwrap();
        assert!(compiled.status.success(), "{compile:?}: {}", String::from_utf8_lossy(&compiled.stderr));
        program
    }

    fn command(&self, program: &Path, arguments: &[&str]) -> Command {
        let mut command = Command::new(program);
        self.dir.apply(&mut command);
        command.args(arguments).env("LD_LIBRARY_PATH", self.prefix.join("lib")).env("RGAPSD", programs::find("rgapsd"));
        command.env("RGAPS_NETWORK", "local").stdout(Stdio::piped());
        command
    }

    fn start(&self, program: &Path, arguments: &[&str]) -> Running {
        let mut child = Child::spawn(&mut self.command(program, arguments)).unwrap();
        let lines = BufReader::new(child.std().stdout.take().unwrap()).lines();
        Running { child, lines }
    }

    /// Starts a subscribing program, and waits until it is ready.
    fn start_ready(&self, program: &Path, arguments: &[&str]) -> Running {
        let mut running = self.start(program, arguments);
        assert_eq!(running.lines.next().transpose().unwrap().as_deref(), Some("ready"), "{program:?} {arguments:?}");
        running
    }
}

struct Running {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Running {
    /// Waits for the program's successful end, and returns its last line.
    fn last_line(mut self) -> String {
        let last = self.lines.map_while(Result::ok).last().unwrap_or_default();
        let ended = self.child.wait_within(LIMIT).unwrap();
        assert!(matches!(ended, Ended::Exited(status) if status.success()), "{ended:?} after '{last}'");
        last
    }
}

fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().parent().unwrap()
}

/// The built example of the Rust API, found relative to this test's program.
fn rust_example(name: &str) -> PathBuf {
    programs::find("rgaps").with_file_name("examples").join(name)
}

/// Sends every kind from Rust to another language and back.
fn exchanges(installed: &Installed, program: &Path, before: &[&str]) {
    let rust = rust_example("exchange");
    for kind in ["bytes", "image", "point_cloud", "tensor"] {
        for from_rust in [true, false] {
            let topic = format!("{kind}_{from_rust}");
            let arguments = |what| [what, kind, topic.as_str(), COUNT];
            let other = |what| [before, &arguments(what)].concat();
            let (taker, giver) = if from_rust {
                (installed.start_ready(program, &other("sub")), installed.start(&rust, &arguments("pub")))
            } else {
                (installed.start_ready(&rust, &arguments("sub")), installed.start(program, &other("pub")))
            };
            assert_eq!(taker.last_line(), format!("took {COUNT} {kind} messages"));
            assert_eq!(giver.last_line(), format!("published {COUNT} {kind} messages"));
        }
    }
}

#[test]
fn c_exchanges_every_kind_with_rust() {
    let _watchdog = Watchdog::new(Duration::from_secs(300));
    let Some(installed) = Installed::new("lang-c") else { return };
    let flags = ["-std=c11", "-D_POSIX_C_SOURCE=200809L"];
    exchanges(&installed, &installed.compiled("cc", &flags, "exchange/exchange.c"), &[]);
}

#[test]
fn cpp_exchanges_every_kind_with_rust() {
    let _watchdog = Watchdog::new(Duration::from_secs(300));
    let Some(installed) = Installed::new("lang-cpp") else { return };
    exchanges(&installed, &installed.compiled("c++", &["-std=c++17"], "exchange/exchange.cpp"), &[]);
}

#[test]
fn python_exchanges_every_kind_with_rust() {
    let _watchdog = Watchdog::new(Duration::from_secs(300));
    let Some(python) = std::env::var_os("TEST_PYTHON") else {
        return skipped("no TEST_PYTHON, which has the package rgaps (./dev test-python sets it)");
    };
    let installed = Installed { prefix: PathBuf::new(), dir: RuntimeDir::new("lang-py").unwrap() };
    let script = repository().join("examples/exchange/exchange.py");
    exchanges(&installed, Path::new(&python), &[script.to_str().unwrap()]);
}

#[test]
fn the_papers_calls_publish_and_pull() {
    let _watchdog = Watchdog::new(Duration::from_secs(120));
    let Some(installed) = Installed::new("lang-paper") else { return };
    let paper = installed.compiled("cc", &["-std=c11"], "paper/paper.c");
    let taker = installed.start_ready(&paper, &["subscribe", "paper", COUNT]);
    let giver = installed.start(&paper, &["publish", "paper", COUNT]);
    assert_eq!(taker.last_line(), "pulled 5 messages of 4194304 B");
    assert_eq!(giver.last_line(), "pushed 5 messages of 4194304 B");
}

/// Runs a program that takes one topic and publishes another on a file. Returns its last line and the published message.
fn stage<T: Meta>(
    installed: &Installed,
    (program, arguments): (&Path, &[&str]),
    (from, to): (&str, &str),
    input: &str,
) -> (String, Sample<T>) {
    let stage = installed.start_ready(program, arguments);
    // The stage program has started the manager.
    let node = Node::builder().runtime_dir(installed.dir.path()).no_autostart().build().unwrap();
    let subscriber = node.subscriber::<T>(to).unwrap();
    let input = repository().join("examples/data").join(input);
    let arguments = ["pub", from, "--input", input.to_str().unwrap(), "--wait-for", "1"];
    let giver = installed.start(&programs::find("rgaps"), &arguments);
    let made = subscriber.wait(LIMIT).unwrap().unwrap();
    giver.last_line();
    (stage.last_line(), made)
}

#[test]
fn a_stage_in_cpp_finds_the_edges_of_a_picture() {
    let _watchdog = Watchdog::new(Duration::from_secs(120));
    let Some(installed) = Installed::new("lang-edges") else { return };
    let edges = installed.compiled("c++", &["-std=c++17"], "picture/edges.cpp");
    let (said, picture) = stage::<Image>(&installed, (&edges, &["1"]), ("camera/front", "camera/edges"), "rocket.jpg");
    let strong = picture.bytes().iter().filter(|edge| **edge > 128).count();
    assert_eq!(said, format!("640 x 427: {strong} pixels on edges"));
    assert_eq!((picture.meta().encoding, picture.info().origin, strong > 0), (Encoding::Mono8, Origin::Loaned, true));
}

#[test]
fn a_filter_in_c_thins_a_cloud() {
    let _watchdog = Watchdog::new(Duration::from_secs(120));
    let Some(installed) = Installed::new("lang-voxel") else { return };
    let voxel = installed.compiled("cc", &["-std=c11"], "cloud/voxel.c");
    let (said, cloud) =
        stage::<PointCloud>(&installed, (&voxel, &["0.2", "1"]), ("points", "points/filtered"), "saddle.pcd");
    assert_eq!(said, format!("{} of 16384 points", cloud.meta().points()));
    let float = |bytes: &[u8]| f32::from_le_bytes(bytes.try_into().unwrap());
    let point_step = cloud.meta().point_step as usize;
    let cubes: BTreeSet<[i64; 3]> = cloud
        .bytes()
        .chunks(point_step)
        .map(|point| [0, 4, 8].map(|at| (f64::from(float(&point[at..at + 4])) / 0.2).floor() as i64))
        .collect();
    assert_eq!((cubes.len() as u64, cloud.info().origin), (cloud.meta().points(), Origin::Loaned), "one point a cube");
}

fn header(name: &str) -> String {
    std::fs::read_to_string(repository().join("crates/rgaps-c/include").join(name)).unwrap()
}

/// The examples in the comments of rgaps.h: its code blocks.
fn examples_of_the_c_header() -> Vec<String> {
    let header = header("rgaps.h");
    let blocks = header.split(" * ```c\n").skip(1).map(|rest| rest.split(" * ```").next().unwrap());
    blocks.map(|block| block.lines().map(|line| format!("{}\n", line.trim_start_matches(" * "))).collect()).collect()
}

/// The examples in the comments of rgaps.hpp: what is indented there.
fn examples_of_the_cpp_header() -> Vec<String> {
    let mut examples = vec![String::new()];
    for line in header("rgaps.hpp").lines() {
        match line.strip_prefix("///     ") {
            Some(code) => examples.last_mut().unwrap().extend([code, "\n"]),
            None if line == "///" => {}
            None if examples.last().unwrap().is_empty() => {}
            None => examples.push(String::new()),
        }
    }
    examples.retain(|example| !example.is_empty());
    examples
}

/// Runs examples, each as a function of a node. `head` has their includes; `node` is the type of `node`; `call` makes a node for function `NUMBER`.
fn run_examples(examples: &[String], (compiler, flags): (&str, &[&str]), name: &str, [head, node, call]: [&str; 3]) {
    let Some(installed) = Installed::new("lang-examples") else { return };
    assert!(examples.len() > 10, "{} examples", examples.len());
    let functions = examples
        .iter()
        .enumerate()
        .map(|(number, example)| format!("static void example_{number}({node}node) {{\n(void)node;\n{example}}}\n"));
    let calls = (0..examples.len()).map(|number| call.replace("NUMBER", &number.to_string()));
    let program = format!(
        "#undef NDEBUG\n#include <assert.h>\n{head}{}int main(void) {{\n{}}}\n",
        functions.collect::<String>(),
        calls.collect::<String>()
    );
    let source = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&source, program).unwrap();
    let program = installed.compiled_from(compiler, flags, &source);
    let output = installed.command(&program, &[]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn the_examples_of_the_c_header_compile_and_run() {
    let _watchdog = Watchdog::new(Duration::from_secs(120));
    let head = r#"#include <poll.h>
#include <rgaps.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
static void check(rgaps_status_t status) {
  if (status == RGAPS_OK) return;
  fprintf(stderr, "%s: %s\n", rgaps_status_name(status), rgaps_error_text());
  exit(1);
}
"#;
    // Each has a domain of its own, so that it does not meet the topics of others.
    let call = "{ rgaps_node_options_t options = rgaps_node_options_default(); rgaps_node_t *node; options.domain = 100 + NUMBER;
        check(rgaps_node_create(&options, &node)); example_NUMBER(node); rgaps_node_destroy(node); }\n";
    let compiler: (&str, &[&str]) = ("cc", &["-std=c11", "-D_POSIX_C_SOURCE=200809L"]);
    run_examples(&examples_of_the_c_header(), compiler, "header_examples.c", [head, "rgaps_node_t *", call]);
}

#[test]
fn the_examples_of_the_cpp_header_compile_and_run() {
    let _watchdog = Watchdog::new(Duration::from_secs(120));
    let call = "{ auto node = rgaps::Node::create(\"example\").value(); example_NUMBER(node); }\n";
    let parts = ["#include <rgaps.hpp>\n", "rgaps::Node &", call];
    run_examples(&examples_of_the_cpp_header(), ("c++", &["-std=c++17"]), "header_examples.cpp", parts);
}

#[test]
fn what_the_readme_shows_compiles() {
    let _watchdog = Watchdog::new(Duration::from_secs(120));
    let Some(installed) = Installed::new("lang-readme") else { return };
    let readme = std::fs::read_to_string(repository().join("crates/rgaps-c/README.md")).unwrap();
    for (language, compiler, flags) in [("c", "cc", "-std=c11"), ("cpp", "c++", "-std=c++17")] {
        let shown: Vec<&str> = readme.split(&format!("```{language}\n")).skip(1).collect();
        assert_eq!(shown.len(), 1, "programs in {language}");
        let program = shown[0].split("```").next().unwrap();
        let source = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("readme.{language}"));
        std::fs::write(&source, program).unwrap();
        installed.compiled_from(compiler, &[flags], &source);
    }
}
