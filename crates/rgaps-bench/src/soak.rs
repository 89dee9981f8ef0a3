//! `bench soak`: whether memory, file descriptors, threads or latency drift while messages go from host to host for hours.
//!
//! A publisher sends frames of 4 MiB at 30 Hz to a subscriber on another host. Meanwhile another subscriber process comes and goes on each host. What
//! the managers use is noted a hundred times; a row compares the medians of the last and the first tenth. The first tenth begins when everything has
//! been used once.

use std::time::{Duration, Instant};

use crate::e2e::Journey;
use crate::measure::median;
use crate::network::Network;
use crate::results::Part;
use crate::{BenchError, Bound, Options, Row, cpu};

const BENCH: &str = "soak";
const BYTES: u64 = 4 << 20;
const FRAME: Duration = Duration::from_nanos(1_000_000_000 / 30);
/// Notes of a run; a tenth of them is compared.
const NOTES: u32 = 100;
const TENTH: usize = NOTES as usize / 10;
/// Notes before the first tenth.
const WARM_UP: u32 = 5;

/// What was noted at a time.
#[derive(Clone, Copy)]
struct Note {
    latency_ms: f64,
    memory_mib: f64,
    fds: f64,
    threads: f64,
}

/// One of them.
type Of = fn(&Note) -> f64;

/// Runs for so many hours.
pub(crate) fn run(options: &Options, hours: f64) -> Result<Part, BenchError> {
    let period = Duration::try_from_secs_f64(hours * 3600.0 / f64::from(NOTES))
        .map_err(|error| BenchError::failed(BENCH, format!("--hours {hours}: {error}")))?;
    let mut journey = Journey::new(&Network::Loopback, BYTES, |_| Vec::new())?;
    let mut notes = Vec::new();
    for number in 0..WARM_UP + NOTES {
        let note = note(&mut journey, period)?;
        if number >= WARM_UP {
            notes.push(note);
        }
    }
    let tenth = |notes: &[Note], of: Of| median(notes.iter().map(of).collect());
    let quantities: [(&str, &str, Of, f64); 4] = [
        ("4 MiB at 30 Hz", "ms", |note| note.latency_ms, 1.25),
        ("memory of both managers", "MiB", |note| note.memory_mib, 1.02),
        ("file descriptors of both managers", "open", |note| note.fds, 1.0),
        ("threads of both managers", "threads", |note| note.threads, 1.0),
    ];
    let row = |(name, unit, of, bound): (&str, &'static str, Of, f64)| {
        let figures = (tenth(&notes[notes.len() - TENTH..], of), tenth(&notes[..TENTH], of));
        let case = format!("{hours} h, {name}, the last tenth");
        Row::of((BENCH, case), "the first tenth", unit, figures, Some(Bound::AtMost(bound)))
    };
    Ok(quantities.into_iter().map(row).filter(|row| options.wants(&row.name())).collect::<Vec<_>>().into())
}

/// Sends messages for so long, with a subscriber process more on each host for most of the time.
fn note(journey: &mut Journey, period: Duration) -> Result<Note, BenchError> {
    let end = Instant::now() + period;
    let mut latencies = Vec::new();
    {
        let _visitors = journey.visitors()?;
        while Instant::now() < end || latencies.is_empty() {
            let next = Instant::now() + FRAME;
            latencies.push(journey.round(BYTES)?);
            std::thread::sleep(next.saturating_duration_since(Instant::now()));
        }
    }
    // The visitors are gone when a message has been sent without them.
    latencies.push(journey.round(BYTES)?);
    let all = |of: fn(u32) -> std::io::Result<u64>| {
        let sum: std::io::Result<u64> = journey.manager_ids().into_iter().map(of).sum();
        sum.map(|sum| sum as f64).map_err(BenchError::system(BENCH, "a manager's counters"))
    };
    Ok(Note {
        latency_ms: median(latencies),
        memory_mib: all(cpu::resident_bytes)? / f64::from(1 << 20),
        fds: all(cpu::open_fds)?,
        threads: all(cpu::threads)?,
    })
}
