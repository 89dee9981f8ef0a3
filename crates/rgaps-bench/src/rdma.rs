//! `bench link --transport rdma` and `bench scan`: a ring over verbs against perftest's `ib_write_bw`, the bare device.
//!
//! ```text
//!   ours  source ──RdmaSender::post──▶ wire ──▶ ring, RdmaReceiver ──▶ released, credit goes back     message after message
//!   bare  ib_write_bw: as many bytes, in writes of the same length, between the same two ports
//! ```
//!
//! If this machine has two active ports, bytes go from one to the other; with a single port, they loop back. A ring holds at most as many records as
//! receives are posted, hence the alignment.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rgaps_link::rdma::{Candidate, ports};
use rgaps_link::{RingGeometry, RingOptions, Watermark};

use super::ring::Ring;
use crate::link::{failed, source, system};
use crate::measure::Pairs;
use crate::results::Part;
use crate::{BenchError, Bound, Effort, Options, Row};

/// The ring of `bench link`.
const RING_BYTES: u64 = 64 << 20;
/// Most receives of a ring in this bench.
const RECEIVES: u64 = 4096;
/// How long `ib_write_bw` may take to listen, and to exit.
const PATIENCE: Duration = Duration::from_secs(60);
/// Bytes sent in a round of the scan.
const SCAN_BYTES: u64 = 32 << 20;
/// Bytes of a message of the scan.
const SCAN_MESSAGE_BYTES: u64 = 2 << 20;

/// Two ports of this machine that can be connected, or why there are none.
pub fn candidates() -> Result<(Candidate, Candidate), String> {
    let ports = ports().map_err(|error| format!("no RDMA device: {error}"))?;
    let mut usable = ports.iter().filter_map(|port| port.candidates().into_iter().next());
    let first = usable.next().ok_or("no RDMA device")?;
    let second = usable.next().unwrap_or_else(|| first.clone());
    Ok((first, second))
}

/// A ring of so many bytes, whose records are at most as many as its receives.
pub(crate) fn ring_options(ring_bytes: u64, chunk_bytes: u64, watermark: Watermark) -> RingOptions {
    let alignment = (ring_bytes / RECEIVES).next_power_of_two().clamp(64, 1 << 16) as u32;
    RingOptions { ring_bytes, chunk_bytes: chunk_bytes as u32 - 64, watermark, alignment, ..RingOptions::default() }
}

/// The sizes, each as ours / bare.
pub(crate) fn run(options: &Options) -> Result<Part, BenchError> {
    let ports = candidates().map_err(failed)?;
    let ring = ring_options(RING_BYTES, 1 << 20, Watermark::default());
    let mut rows = Vec::new();
    for (bytes, name) in [(8 << 20, "8 MiB"), (64 << 20, "64 MiB")] {
        let what = Case { bench: "link", case: format!("rdma {name}"), bound: Some(Bound::AtLeast(0.9)) };
        if options.wants(&what.case) {
            rows.push(case(&ports, options.effort.rounds(10), bytes, (256 << 20) / bytes, ring, what)?.0);
        }
    }
    Ok(rows.into())
}

/// Ring lengths, chunks and watermarks: rates, and credits against the number that the watermark implies.
pub(crate) fn scan(options: &Options) -> Result<Part, BenchError> {
    let effort = options.effort;
    let ports = candidates().map_err(failed)?;
    let rings: &[u64] = if effort == Effort::Quick { &[16 << 20] } else { &[4 << 20, 16 << 20, 64 << 20] };
    let mut rows = Vec::new();
    for ring_bytes in rings {
        for chunk_bytes in [64 << 10, 256 << 10, 1 << 20] {
            for watermark in Watermark::ALL {
                let ring = ring_options(*ring_bytes, chunk_bytes, watermark);
                // A chunk is at most half of what the watermark leaves.
                let Ok(geometry) = RingGeometry::new(ring) else { continue };
                let case_name =
                    format!("ring {} MiB, chunk {} KiB, watermark {watermark:?}", ring_bytes >> 20, chunk_bytes >> 10);
                if !options.wants(&case_name) {
                    continue;
                }
                let what = Case { bench: "scan", case: case_name.clone(), bound: None };
                let messages = SCAN_BYTES / SCAN_MESSAGE_BYTES;
                let (row, credits) = case(&ports, effort.rounds(3), SCAN_MESSAGE_BYTES, messages, ring, what)?;
                rows.push(row);
                rows.push(credit_row(case_name, credits, &geometry));
            }
        }
    }
    Ok(rows.into())
}

/// Credits per 1000 messages against the most that the watermark allows: one for each watermark of bytes, and one after each message, when the ring
/// is empty.
fn credit_row(case: String, credits: f64, geometry: &RingGeometry) -> Row {
    let chunk = u64::from(geometry.chunk_bytes());
    let records = SCAN_MESSAGE_BYTES.div_ceil(chunk);
    let bytes = SCAN_MESSAGE_BYTES / chunk * geometry.record_bytes(chunk as u32)
        + if SCAN_MESSAGE_BYTES.is_multiple_of(chunk) {
            0
        } else {
            geometry.record_bytes((SCAN_MESSAGE_BYTES % chunk) as u32)
        };
    let most = match geometry.watermark_bytes() {
        0 => records as f64,
        watermark => bytes as f64 / watermark as f64 + 1.0,
    };
    let (ours, theirs) = (credits * 1000.0, most.min(records as f64) * 1000.0);
    let reference = "the most that the watermark allows";
    Row::of(("scan", case), reference, "credits per 1000 messages", (ours, theirs), Some(Bound::AtMost(1.0)))
}

struct Case {
    bench: &'static str,
    case: String,
    bound: Option<Bound>,
}

/// Rates in alternation, and our credits for each message.
fn case(
    ports: &(Candidate, Candidate),
    rounds: usize,
    bytes: u64,
    messages: u64,
    options: RingOptions,
    what: Case,
) -> Result<(Row, f64), BenchError> {
    let source = source(bytes)?;
    let data = source.mapping().shared(0, bytes).map_err(failed)?;
    let mut ring = Ring::rdma(ports, options)?;
    ring.register(&source)?;
    ring.transfer(data)?;
    let credits_before = ring.credits();
    let ours = || {
        let start = Instant::now();
        for _ in 0..messages {
            ring.transfer(data)?;
        }
        Ok((messages * bytes) as f64 / start.elapsed().as_secs_f64() / 1e6)
    };
    let write_bytes = u64::from(options.chunk_bytes) + 64;
    let theirs = || write_bw(ports, write_bytes, (messages * bytes).div_ceil(write_bytes).max(5));
    let pairs = Pairs::run(rounds, ours, theirs)?;
    if ring.copies() != 0 {
        return Err(failed("payload was copied on its way"));
    }
    let credits = (ring.credits() - credits_before) as f64 / (rounds as u64 * messages) as f64;
    let reference = format!("ib_write_bw, {} KiB a write", write_bytes >> 10);
    let row = Row::of_pairs((what.bench, what.case), &reference, "MB/s", &pairs, what.bound);
    Ok((row, credits))
}

/// MB/s of perftest's `ib_write_bw`, for a number of writes of a given length.
pub(crate) fn write_bw(ports: &(Candidate, Candidate), bytes: u64, writes: u64) -> Result<f64, BenchError> {
    let command = |device: &str| {
        let mut command = Command::new("ib_write_bw");
        let count = [bytes.to_string(), writes.to_string(), (write_port()).to_string()];
        command.args(["-d", device, "-F", "-s", &count[0], "-n", &count[1], "-p", &count[2]]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        command
    };
    let missing = system("ib_write_bw (Debian package perftest)");
    let mut server = Ended(command(&ports.1.device).spawn().map_err(&missing)?);
    let deadline = Instant::now() + PATIENCE;
    // The server needs some time to listen: the client tries until then.
    loop {
        let output = command(&ports.0.device).arg("127.0.0.1").output().map_err(&missing)?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        if let Some(rate) = average(&text, bytes) {
            return Ok(rate);
        }
        if Instant::now() >= deadline || server.0.try_wait().map_err(&missing)?.is_some() {
            return Err(failed(format!("ib_write_bw gave no rate: {text}")));
        }
    }
}

/// A port that depends on this process's id, so that two benches do not collide.
fn write_port() -> u32 {
    20_000 + std::process::id() % 20_000
}

/// The column "BW average[MB/sec]" (MB = 2^20 B) of the line that begins with the size.
fn average(text: &str, bytes: u64) -> Option<f64> {
    let line = text.lines().map(str::trim).find(|line| line.starts_with(&format!("{bytes} ")))?;
    let mebibytes: f64 = line.split_whitespace().nth(3)?.parse().ok()?;
    Some(mebibytes * f64::from(1 << 20) / 1e6)
}

/// A process that is killed on drop.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_average_is_found_in_what_perftest_prints() {
        let text = " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]\n \
                    1048576    100              139.50             100.00 \t\t   0.000133\n";
        assert!((average(text, 1 << 20).unwrap() - 104.8576).abs() < 1e-9);
        assert_eq!(average(text, 4096), None);
    }
}
