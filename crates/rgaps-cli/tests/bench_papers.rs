//! The benches of the papers' questions: what they report, with few rounds. Times are not judged.

#![allow(clippy::unwrap_used)] // helpers of tests, outside #[test] functions

mod host;

use host::{Host, outcome};
use serde_json::Value;

/// The report of `rgaps bench --quick` with these arguments.
fn report(arguments: &[&str]) -> Value {
    let host = Host::new("bench-papers");
    let folder = host.dir.path().join("report");
    let all = [&["bench"], arguments, &["--quick", "--report"]].concat();
    let (good, said, errors) = outcome(host.rgaps(&all).arg(&folder));
    assert!(good, "{said}{errors}");
    serde_json::from_str(&std::fs::read_to_string(folder.join("report.json")).unwrap()).unwrap()
}

/// The one row of a report, which has figures.
fn only_row(bench: &str, only: &str) -> Value {
    let report = report(&[bench, "--only", only]);
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 1, "{rows:?}");
    let row = rows[0].clone();
    assert!(row["ours"].as_f64().unwrap() > 0.0 && row["theirs"].as_f64().unwrap() > 0.0, "{row}");
    assert_eq!(row["command"].as_str().unwrap(), format!("rgaps bench {bench} --quick --only '{only}'"));
    row
}

#[test]
fn the_papers_tables_stand_beside_ours_which_say_what_needs_a_gpu() {
    let report = report(&["paper", "--device", "host"]);
    let tables = report["tables"].as_array().unwrap();
    let numbers: Vec<&str> = tables.iter().filter_map(|table| table["number"].as_str()).collect();
    assert_eq!(numbers, ["4.1", "4.2", "4.3", "4.4", "4.5"]);
    let line = |table: &Value, name: &str| {
        let lines = table["lines"].as_array().unwrap();
        lines.iter().find(|line| line[0] == name).unwrap()[1].as_array().unwrap().clone()
    };
    let path_1 = tables.iter().find(|table| table["number"] == "4.2").unwrap();
    assert!(path_1["title"].as_str().unwrap().contains("RTX 3090"), "{path_1}");
    assert_eq!(line(path_1, "4 MB, the paper's"), [1.0, 224.0, 1.0]);
    assert_eq!(line(path_1, "4 MiB, ours"), ["needs a GPU"; 3]);
    let path_2 = tables.iter().find(|table| table["title"].as_str().unwrap().starts_with("Figure 4.2")).unwrap();
    let ours = line(path_2, "4 MiB, ours");
    assert!(ours[0] == "needs RDMA" && ours[1].is_f64() && ours[2].is_f64(), "{ours:?}");
    let figures: Vec<&str> =
        report["figures"].as_array().unwrap().iter().filter_map(|shown| shown["number"].as_str()).collect();
    assert_eq!(figures, ["4.1", "4.3", "4.4", "4.5", "4.6 (a)", "4.6 (b)", "4.6 (c)", "3.9", "4.2"]);
}

#[test]
fn rates_are_measured_between_processes_and_beside_one_of_them() {
    only_row("rates", "100 B on one host, 1 to 1 beside bare socket");
    only_row("rates", "100 B on one host, 2 publishers beside 1 publisher");
    only_row("rates", "1 B from host to host, 2 subscribers beside 1 subscriber");
}

#[test]
fn a_slow_subscriber_is_measured_beside_fast_ones_with_either_qos() {
    only_row("rates", "1 KB on one host, 3 subscribers with a slow one (keep-last 10) beside without the slow one");
    only_row("rates", "1 KB on one host, 3 subscribers with a slow one (keep-all) beside the slow one");
}

#[test]
fn processor_time_and_latency_are_measured_at_a_fixed_rate() {
    only_row("fixed-rate", "34 B at 1000/s on one host, CPU of the subscriber beside bare socket");
    only_row("fixed-rate", "34 B at 1000/s from host to host, the median message beside bare socket");
}

#[test]
fn the_time_to_the_first_message_has_a_manager_in_it_or_not() {
    let report = report(&["first-message"]);
    let rows = report["rows"].as_array().unwrap();
    assert!(rows.len() == 4 && rows.iter().all(|row| row["ours"].as_f64().unwrap() > 0.0), "{rows:?}");
    let lines = report["tables"][0]["lines"].as_array().unwrap();
    assert!(lines.len() == 8 && lines.iter().all(|line| line[1].as_array().unwrap().len() == 4), "{lines:?}");
}
