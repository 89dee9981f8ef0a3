//! `bench scan`: lengths of ring and chunk, and watermarks, over tcp. Each setting carries messages from host to host in turns with the defaults.

use rgaps_control::config::Config;

use crate::e2e::Journey;
use crate::measure::Pairs;
use crate::network::Network;
use crate::results::Part;
use crate::{BenchError, Effort, Options, Row};

const BENCH: &str = "scan";
/// Bytes of a message: a camera's frame.
const BYTES: u64 = 4 << 20;
/// Messages of a round, and before the first.
const MESSAGES: u64 = 16;
const ROUNDS: usize = 15;

/// Each setting against the defaults.
pub(crate) fn run(options: &Options) -> Result<Part, BenchError> {
    let defaults = Config::default();
    let reference = format!(
        "defaults ({} MiB, {} KiB, 1/{})",
        defaults.ring_bytes >> 20,
        defaults.chunk_bytes >> 10,
        defaults.watermark_divisor
    );
    let mut usual = Journey::new(&Network::Loopback, BYTES, |_| Vec::new())?;
    usual.stream(BYTES, MESSAGES)?;
    let rings: &[u64] = if options.effort == Effort::Quick { &[16] } else { &[4, 16, 64] };
    let mut rows = Vec::new();
    for ring_mib in rings {
        for chunk_kib in [64, 256, 1024] {
            for divisor in [0, 2, 4, 8] {
                let watermark = if divisor == 0 { "none".to_owned() } else { format!("1/{divisor}") };
                let case = format!("tcp, ring {ring_mib} MiB, chunk {chunk_kib} KiB, watermark {watermark}");
                if !options.wants(&case) {
                    continue;
                }
                let settings = |_| {
                    vec![
                        ("ring_bytes", (ring_mib << 20).to_string()),
                        ("chunk_bytes", (chunk_kib << 10).to_string()),
                        ("watermark_divisor", divisor.to_string()),
                    ]
                };
                let mut scanned = Journey::new(&Network::Loopback, BYTES, settings)?;
                scanned.stream(BYTES, MESSAGES)?;
                let rate = |journey: &mut Journey| {
                    Ok::<_, BenchError>((MESSAGES * BYTES) as f64 / journey.stream(BYTES, MESSAGES)? / 1e6)
                };
                let pairs = Pairs::run(options.effort.rounds(ROUNDS), || rate(&mut scanned), || rate(&mut usual))?;
                rows.push(Row::of_pairs((BENCH, case), &reference, "MB/s", &pairs, None));
            }
        }
    }
    Ok(rows.into())
}
