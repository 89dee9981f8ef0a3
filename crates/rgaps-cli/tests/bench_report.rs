//! The report of `rgaps bench`: what it writes, the commands in it, and a peer that is missing.

#![allow(clippy::unwrap_used)] // helpers of tests, outside #[test] functions

mod host;

use std::path::Path;
use std::process::{Command, Stdio};

use host::{Host, outcome};

/// The rows of a report.
fn rows(folder: &Path) -> Vec<serde_json::Value> {
    let report: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(folder.join("report.json")).unwrap()).unwrap();
    report["rows"].as_array().unwrap().clone()
}

#[test]
fn a_missing_peer_is_named_in_the_output_and_in_every_file_of_the_report() {
    let host = Host::new("bench-peer");
    let folder = host.dir.path().join("report");
    let empty = host.dir.path().join("empty");
    std::fs::create_dir(&empty).unwrap();
    let only = "1 KiB received N=1 beside zenoh SHM";
    let arguments = ["bench", "local", "--quick", "--only", only, "--peers", empty.to_str().unwrap(), "--report"];
    let (good, said, errors) = outcome(host.rgaps(&arguments).arg(&folder));
    // A table on a terminal may break lines.
    assert!(good && said.contains("zenoh SHM") && said.contains("MISSING: "), "{said}{errors}");
    let rows = rows(&folder);
    let why = format!("there is no program rgaps-peers in {}", empty.display());
    assert_eq!((rows.len(), rows[0]["missing"].as_str()), (1, Some(why.as_str())), "{rows:?}");
    let command = format!("rgaps bench local --quick --peers {} --only '{only}'", empty.display());
    assert_eq!(rows[0]["command"].as_str(), Some(command.as_str()));
    for name in ["index.html", "report.md"] {
        assert!(std::fs::read_to_string(folder.join(name)).unwrap().contains("zenoh SHM"), "{name}");
    }
}

#[test]
fn a_folder_of_peers_that_does_not_exist_is_an_error() {
    let host = Host::new("bench-folder");
    let nowhere = host.dir.path().join("nowhere");
    let (good, _, errors) = outcome(host.rgaps(&["bench", "local", "--quick", "--peers"]).arg(&nowhere));
    assert!(!good && errors.contains(&format!("--peers {}: there is no such folder", nowhere.display())), "{errors}");
}

#[test]
fn the_command_of_a_row_measures_that_row_alone() {
    let host = Host::new("bench-row");
    let folder = host.dir.path().join("report");
    let only = "4 KiB, 10 % full beside bare rlsf";
    // Whether the ratio holds is not the question here.
    let (_, said, errors) =
        outcome(host.rgaps(&["bench", "alloc", "--quick", "--only", only, "--report"]).arg(&folder));
    assert!(said.contains("bare rlsf"), "{said}{errors}");
    let command = rows(&folder)[0]["command"].as_str().unwrap().to_owned();
    assert_eq!(command, "rgaps bench alloc --quick --only '4 KiB, 10 % full beside bare rlsf'");

    let (again, programs) = (host.dir.path().join("again"), Path::new(env!("CARGO_BIN_EXE_rgaps")).parent().unwrap());
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap());
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("{command} --report \"$0\"")]).arg(&again).env("PATH", path).stdin(Stdio::null());
    let (_, said, errors) = outcome(&mut shell);
    let rows = rows(&again);
    assert_eq!((rows.len(), rows[0]["case"].as_str()), (1, Some("4 KiB, 10 % full")), "{said}{errors}");
}

#[test]
fn a_row_that_no_bench_has_is_an_error() {
    let host = Host::new("bench-none");
    let (good, _, errors) = outcome(&mut host.rgaps(&["bench", "alloc", "--quick", "--only", "64 B beside nothing"]));
    assert!(!good && errors.contains("no row is named \"64 B beside nothing\""), "{errors}");
}
