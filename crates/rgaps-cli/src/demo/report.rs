//! The reports of the demo's processes, and the final summary.

use std::collections::BTreeMap;

use comfy_table::Table;
use rgaps_command::output;
use serde::{Deserialize, Serialize};

/// Stages of a message's way, as subscribers measure them.
pub(crate) const STAGES: [&str; 5] = ["staged", "sent", "landed", "in pool", "taken"];

/// One report (a line) of a process, intermediate or final.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Report {
    /// Frames received on each topic.
    pub(crate) frames: BTreeMap<String, u64>,
    /// Their bytes.
    pub(crate) bytes: u64,
    /// Frames missing by their sequence numbers.
    pub(crate) lost: u64,
    /// Frames whose checksum was wrong.
    pub(crate) mismatched: u64,
    /// Bytes copied for this subscriber alone, by RGAPS.
    pub(crate) copied_bytes: u64,
    /// Bytes of device memory copied to the CPU for checking.
    pub(crate) fetched_bytes: u64,
    /// Frames a second of the camera topic, since the last report.
    pub(crate) hz: f64,
    /// For each stage, µs since publication: (p50, p99).
    pub(crate) stages: Vec<(f64, f64)>,
    /// The memory that frames were read from: (device, inode, whether its pages are read-only).
    pub(crate) mapped: Vec<(u64, u64, bool)>,
    /// Route of the frames.
    pub(crate) route: String,
    /// Why no better route was used.
    pub(crate) route_reason: String,
    /// Whether the process is done.
    pub(crate) done: bool,
}

/// Traffic between the hosts.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Wire {
    /// Counted by the network interface.
    pub(crate) received_bytes: u64,
    /// Payload of all messages.
    pub(crate) payload_bytes: u64,
    /// received_bytes / payload_bytes.
    pub(crate) times: f64,
}

/// The final result of a subscriber.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) report: Report,
}

/// The final result of the demo.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Summary {
    pub(crate) frames: u64,
    pub(crate) subscribers: usize,
    pub(crate) lost: u64,
    pub(crate) mismatched: u64,
    pub(crate) copies_per_subscriber: u64,
    /// Bytes of device memory that subscribers copied to the CPU for checking.
    pub(crate) fetched_bytes: u64,
    /// Whether all subscribers on a host read the same memory, through read-only pages.
    pub(crate) shared_read_only: bool,
    pub(crate) namespaces: bool,
    pub(crate) wire: Option<Wire>,
    pub(crate) rows: Vec<Row>,
}

impl Summary {
    pub(crate) fn is_good(&self) -> bool {
        self.lost == 0 && self.mismatched == 0 && self.copies_per_subscriber == 0 && self.shared_read_only
    }

    pub(crate) fn table(&self) -> Table {
        table(self.rows.iter().map(|row| (row.name.as_str(), &row.report)))
    }
}

/// A table with a row for each subscriber.
pub(crate) fn table<'a>(rows: impl Iterator<Item = (&'a str, &'a Report)>) -> Table {
    let mut table = output::table([
        "subscriber",
        "frames",
        "lost",
        "mismatched",
        "Hz",
        "bytes",
        "staged",
        "sent",
        "landed",
        "in pool",
        "taken p50",
        "p99",
        "path",
    ]);
    for (name, report) in rows {
        let p50 = |stage: usize| report.stages.get(stage).map_or_else(|| "-".to_owned(), |(p50, _)| micros(*p50));
        let p99 = report.stages.last().map_or_else(|| "-".to_owned(), |(_, p99)| micros(*p99));
        table.add_row([
            name.to_owned(),
            report.frames.values().sum::<u64>().to_string(),
            report.lost.to_string(),
            report.mismatched.to_string(),
            if report.hz > 0.0 { format!("{:.1}", report.hz) } else { "-".to_owned() },
            output::bytes(report.bytes as f64),
            p50(0),
            p50(1),
            p50(2),
            p50(3),
            p50(4),
            p99,
            report.route.clone(),
        ]);
    }
    table
}

fn micros(us: f64) -> String {
    if us <= 0.0 { "-".to_owned() } else { output::micros(us) }
}
