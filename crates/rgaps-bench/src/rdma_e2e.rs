//! `bench e2e --transport rdma`: from a publisher on one host to a subscriber process on another over verbs, against perftest's `ib_write_bw`.
//!
//! ```text
//!   ours  publisher ─▶ manager A ══ writes into granted blocks ══▶ manager B: pool ─▶ subscriber process     as many as the pools hold under way
//!   bare  ib_write_bw: as many bytes, in writes of a chunk each, between the same two ports
//! ```
//!
//! Two managers in network namespaces that have the addresses of two devices: in the virtual machine of `./dev bench-rdma`. The rate is that of
//! several messages, from the first `publish` until the subscriber has the last one. `bench scan --transport rdma` measures the same messages with
//! landing in place and through the ring, size by size: `rdma_landing_bytes` should be the smallest size at which landing is as fast.

use std::net::IpAddr;

use rgaps_link::rdma::Candidate;

use crate::e2e::Journey;
use crate::measure::Pairs;
use crate::network::Network;
use crate::rdma::{candidates, write_bw};
use crate::results::{Part, Table, of_figures};
use crate::{BenchError, Bound, Options, Row};

const BENCH: &str = "e2e";
const SIZES: [(u64, &str); 2] = [(8 << 20, "8 MiB"), (64 << 20, "64 MiB")];
/// Bytes of a round.
const ROUND_BYTES: u64 = 256 << 20;
/// Messages before the first round: the first one goes through the ring, and with it the receiver learns the size of the others.
const WARM_UP: u64 = 4;
/// Bytes of a chunk, and of a write of `ib_write_bw`.
const CHUNK_BYTES: u64 = 1 << 20;
/// The sizes of the scan.
const SCAN_SIZES: [(u64, &str); 7] = [
    (4 << 10, "4 KiB"),
    (16 << 10, "16 KiB"),
    (64 << 10, "64 KiB"),
    (128 << 10, "128 KiB"),
    (256 << 10, "256 KiB"),
    (1 << 20, "1 MiB"),
    (4 << 20, "4 MiB"),
];
/// Bytes of a round of the scan, and most messages of it.
const SCAN_BYTES: u64 = 16 << 20;
const SCAN_MESSAGES: u64 = 256;

/// The sizes, each as ours / bare.
pub(crate) fn run(options: &Options) -> Result<Part, BenchError> {
    let (ports, network) = hosts()?;
    let (mut rows, mut lines) = (Vec::new(), Vec::new());
    for (bytes, size) in SIZES {
        let case = format!("{size} (ours: rdma)");
        if !options.wants(&case) {
            continue;
        }
        let mut journey = journey(&ports, &network, bytes, 1)?;
        let count = ROUND_BYTES / bytes;
        journey.stream(bytes, WARM_UP)?;
        let before = journey.arrived()?;
        let ours = || journey.stream(bytes, count).map(|took| megabytes_per_second(count * bytes, took));
        let theirs = || write_bw(&ports, CHUNK_BYTES, count * bytes / CHUNK_BYTES);
        let pairs = Pairs::run(options.effort.rounds(10), ours, theirs)?;
        let after = journey.arrived()?;
        lines.push((size.to_owned(), vec![(after.0 - before.0) as f64, (after.1 - before.1) as f64]));
        let reference = format!("ib_write_bw, {} KiB a write", CHUNK_BYTES >> 10);
        rows.push(Row::of_pairs((BENCH, case), &reference, "MB/s", &pairs, Some(Bound::AtLeast(0.95))));
    }
    let columns = ["message", "arrived", "copied from the ring"].map(str::to_owned).to_vec();
    let title = "From host to host over rdma, messages that the receiving host copied".to_owned();
    let lines = of_figures(lines);
    let table = Table { number: None, title, columns, lines, unit: "messages".into() };
    Ok(Part { rows, tables: vec![table], ..Part::default() })
}

/// Sizes of messages: landing in place against the ring.
pub(crate) fn scan(options: &Options) -> Result<Part, BenchError> {
    let (ports, network) = hosts()?;
    let mut rows = Vec::new();
    for (bytes, size) in SCAN_SIZES {
        let case = format!("landing in place, {size}");
        if !options.wants(&case) {
            continue;
        }
        let count = (SCAN_BYTES / bytes).min(SCAN_MESSAGES);
        let [mut landing, mut ring] = [journey(&ports, &network, bytes, bytes)?, journey(&ports, &network, bytes, 0)?];
        let rate =
            |journey: &mut Journey| journey.stream(bytes, count).map(|took| megabytes_per_second(count * bytes, took));
        for journey in [&mut landing, &mut ring] {
            journey.stream(bytes, WARM_UP)?;
        }
        let pairs = Pairs::run(options.effort.rounds(15), || rate(&mut landing), || rate(&mut ring))?;
        rows.push(Row::of_pairs(("scan", case), "the same through the ring", "MB/s", &pairs, None));
    }
    Ok(rows.into())
}

/// Two ports, and namespaces with their addresses.
fn hosts() -> Result<((Candidate, Candidate), Network), BenchError> {
    let failed = |why: String| BenchError::failed(BENCH, why);
    let ports = candidates().map_err(failed)?;
    let network = Network::namespaces().map_err(|why| failed(why.to_string()))?;
    for (side, port) in [(0, &ports.0), (1, &ports.1)] {
        let (address, wanted) = (port.gid.address(), network.address(side));
        if address != IpAddr::from(wanted) {
            let device = &port.device;
            return Err(failed(format!("{device} has the address {address}, not {wanted}; run ./dev bench-rdma")));
        }
    }
    Ok((ports, network))
}

/// Two hosts, each with one of the ports. Messages of at least `landing_bytes` land in place; 0: none.
fn journey(
    ports: &(Candidate, Candidate),
    network: &Network,
    bytes: u64,
    landing_bytes: u64,
) -> Result<Journey, BenchError> {
    let settings = |side: usize| {
        let port = if side == 0 { &ports.0 } else { &ports.1 };
        vec![
            ("transport", "rdma".to_owned()),
            ("rdma_device", port.device.clone()),
            ("rdma_gid", port.gid.to_string()),
            ("rdma_landing_bytes", landing_bytes.to_string()),
            ("arrival_pool_bytes", (4 * bytes).max(128 << 20).to_string()),
            ("chunk_bytes", CHUNK_BYTES.to_string()),
            // An emulated device may keep a message under way for seconds.
            ("keep_all_timeout_ms", "60000".to_owned()),
            ("peer_timeout_ms", "30000".to_owned()),
            ("rdma_timeout_ms", "30000".to_owned()),
        ]
    };
    Journey::new(network, bytes, settings)
}

fn megabytes_per_second(bytes: u64, seconds: f64) -> f64 {
    bytes as f64 / seconds / 1e6
}
