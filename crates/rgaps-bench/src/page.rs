//! The page that a bench shares with its waiting processes: the current round, which processes have seen it, and when each of them woke.
//!
//! Words       `round`, `awaited` and the bare futex word: written by the bench; `seen`, `woke` and `proof` of a slot: by the process in that slot,
//!             which also rings `bell` if the bench waits for that round. So the bench sleeps while others work.
//! Invariants  A process stores `woke` before `seen`, so a reader that finds the round in `seen` reads the time that belongs to it.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rgaps_os::{Access, Mapping, futex, memfd};

use crate::BenchError;
use crate::measure::median;

/// A process or a round that takes longer has failed.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);
/// In `round`: exit. In `seen`: ready for the first round.
pub(super) const MARK: u64 = u64::MAX;
/// In `seen`: the process has failed and printed why.
const FAILED: u64 = u64::MAX - 1;
/// In `awaited`: the bench does not wait.
const NOTHING: u64 = u64::MAX - 2;
/// Most processes on a page.
const SLOTS: u64 = 64;
const PAGE_BYTES: u64 = 4096;
/// How long the bench sleeps before it looks again, if nobody rings.
const LOOK: Duration = Duration::from_millis(1);

// Offsets: the round, the bare futex word, the round that the bench waits for, the bell, and for each slot the round it has seen, when it woke, and its mapping.
const ROUND: u64 = 0;
const WORD: u64 = 8;
const AWAITED: u64 = 16;
const BELL: u64 = 24;
const SEEN: u64 = 64;
const WOKE: u64 = SEEN + SLOTS * 8;
const PROOF: u64 = WOKE + SLOTS * 8;

/// A subscriber's mapping: device, inode, offset, and mode as in /proc/self/maps.
pub(super) type Proof = [u64; 4];

const _: () = assert!(PROOF + SLOTS * size_of::<Proof>() as u64 <= PAGE_BYTES);

/// A process exits after this long without a round.
const SILENCE: Duration = Duration::from_secs(600);

/// Tells a process when to exit: the bench has ended it, has died, or has been silent for long.
pub(super) struct BenchWatch {
    bench: u32,
    since: Instant,
}

impl BenchWatch {
    pub(super) fn new() -> Self {
        Self { bench: std::os::unix::process::parent_id(), since: Instant::now() }
    }

    pub(super) fn should_run(&self, page: &Page) -> bool {
        let is_alone = std::os::unix::process::parent_id() != self.bench;
        !is_alone && self.since.elapsed() < SILENCE && page.round().load(Ordering::SeqCst) != MARK
    }

    /// The bench has started a round.
    pub(super) fn renew(&mut self) {
        self.since = Instant::now();
    }
}

/// The page, as mapped by the bench or by one of its processes.
pub(super) struct Page {
    fd: OwnedFd,
    mapping: Mapping,
    bench: &'static str,
}

impl Page {
    /// A new page.
    pub(super) fn new(bench: &'static str) -> Result<Self, BenchError> {
        let fd = memfd::create("rgaps-bench", PAGE_BYTES).map_err(BenchError::system(bench, "a shared page"))?;
        Self::map(bench, fd)
    }

    /// The page of the bench that started this process.
    pub(super) fn open(bench: &'static str, path: &str) -> Result<Self, BenchError> {
        Self::map(bench, open(bench, path)?)
    }

    /// Another handle to the same page.
    pub(super) fn again(&self) -> Result<Self, BenchError> {
        let fd = self.fd.try_clone().map_err(BenchError::system(self.bench, "a shared page"))?;
        Self::map(self.bench, fd)
    }

    fn map(bench: &'static str, fd: OwnedFd) -> Result<Self, BenchError> {
        let mapping =
            Mapping::map(&fd, PAGE_BYTES, Access::ReadWrite).map_err(|error| BenchError::failed(bench, error))?;
        Ok(Self { fd, mapping, bench })
    }

    /// The path by which a child process opens it.
    pub(super) fn path(&self) -> String {
        path(&self.fd)
    }

    /// The word that the bare futex waits on.
    pub(super) fn futex(&self) -> &AtomicU32 {
        self.word32(WORD)
    }

    /// The current round.
    pub(super) fn round(&self) -> &AtomicU64 {
        self.word(ROUND)
    }

    /// Called by the process in `slot`: it woke for `round` at `now`.
    pub(super) fn woke(&self, slot: u64, round: u64, now: u64) {
        self.word(WOKE + slot * 8).store(now, Ordering::Release);
        self.word(SEEN + slot * 8).store(round, Ordering::SeqCst);
        if self.word(AWAITED).load(Ordering::SeqCst) == round {
            let bell = self.word32(BELL);
            bell.fetch_add(1, Ordering::SeqCst);
            futex::wake_all(bell);
        }
    }

    /// Called by the process in `slot`: it is waiting.
    pub(super) fn ready(&self, slot: u64) {
        self.word(SEEN + slot * 8).store(MARK, Ordering::Release);
    }

    /// Called by the process in `slot`: it has failed.
    pub(super) fn failed(&self, slot: u64) {
        self.word(SEEN + slot * 8).store(FAILED, Ordering::Release);
    }

    /// Called by the process in `slot` before `woke`: its mapping, or another value that the bench needs.
    pub(super) fn prove(&self, slot: u64, proof: Proof) {
        for (field, value) in (0..).zip(proof) {
            self.word(PROOF + slot * 32 + field * 8).store(value, Ordering::Release);
        }
    }

    /// The value that the process in `slot` stored.
    pub(super) fn proof(&self, slot: u64) -> Proof {
        [0, 1, 2, 3].map(|field| self.word(PROOF + slot * 32 + field * 8).load(Ordering::Acquire))
    }

    /// Waits until the first `count` processes are waiting.
    pub(super) fn wait_until_ready(&self, count: u64) -> Result<(), BenchError> {
        self.wait_until(count, MARK, "a waiting process did not start")
    }

    /// Waits until the first `count` processes have woken for `round`; µs from `start` (monotonic) to the median one.
    pub(super) fn latency(&self, count: u64, round: u64, start: u64) -> Result<f64, BenchError> {
        Ok(median(self.latencies(count, round, start)?))
    }

    /// The same; µs from `start` to each of them.
    pub(super) fn latencies(&self, count: u64, round: u64, start: u64) -> Result<Vec<f64>, BenchError> {
        self.wait_until(count, round, "a waiting process did not wake")?;
        let woke = (0..count).map(|slot| self.word(WOKE + slot * 8).load(Ordering::Acquire));
        Ok(woke.map(|woke| woke.saturating_sub(start) as f64 / 1e3).collect())
    }

    fn wait_until(&self, count: u64, seen: u64, otherwise: &str) -> Result<(), BenchError> {
        let deadline = Instant::now() + PATIENCE;
        self.word(AWAITED).store(seen, Ordering::SeqCst);
        for slot in 0..count {
            loop {
                let bell = self.word32(BELL).load(Ordering::SeqCst);
                match self.word(SEEN + slot * 8).load(Ordering::SeqCst) {
                    found if found == seen => break,
                    FAILED => return Err(BenchError::failed(self.bench, "a process of the bench failed, see above")),
                    _ => {}
                }
                if Instant::now() > deadline {
                    return Err(BenchError::failed(self.bench, format!("{otherwise} within {PATIENCE:?}")));
                }
                futex::wait(self.word32(BELL), bell, LOOK);
            }
        }
        self.word(AWAITED).store(NOTHING, Ordering::SeqCst);
        Ok(())
    }

    fn word32(&self, offset: u64) -> &AtomicU32 {
        match self.mapping.atomic_u32(offset) {
            Ok(word) => word,
            Err(error) => unreachable!("offsets of the page are constants: {error}"),
        }
    }

    fn word(&self, offset: u64) -> &AtomicU64 {
        match self.mapping.atomic_u64(offset) {
            Ok(word) => word,
            Err(error) => unreachable!("offsets of the page are constants: {error}"),
        }
    }
}

/// Gives the waiting processes time to sleep again: on an idle core they do within microseconds, so this only paces the rounds.
pub(super) fn pace() {
    std::thread::sleep(Duration::from_micros(300));
}

/// The path by which a child process opens a file descriptor of this one.
pub(super) fn path(fd: &impl AsFd) -> String {
    format!("/proc/{}/fd/{}", std::process::id(), fd.as_fd().as_raw_fd())
}

/// Opens a file descriptor of the bench that started this process.
pub(super) fn open(bench: &'static str, path: &str) -> Result<OwnedFd, BenchError> {
    let file = std::fs::File::options().read(true).write(true).open(path);
    Ok(file.map_err(BenchError::system(bench, "opening a file descriptor"))?.into())
}

/// A command that runs this program.
pub(super) fn program() -> std::path::PathBuf {
    std::env::current_exe().unwrap_or_else(|_| "rgaps".into())
}

/// Processes of a bench; killed and reaped on drop.
#[derive(Default)]
pub(super) struct Children(Vec<std::process::Child>);

impl Children {
    /// Starts one more.
    pub(super) fn spawn(&mut self, bench: &'static str, command: &mut std::process::Command) -> Result<(), BenchError> {
        self.0.push(command.spawn().map_err(BenchError::system(bench, "a waiting process"))?);
        Ok(())
    }

    /// Their process numbers.
    pub(super) fn ids(&self) -> impl Iterator<Item = u32> {
        self.0.iter().map(std::process::Child::id)
    }

    /// Number of processes.
    pub(super) fn count(&self) -> u64 {
        self.0.len() as u64
    }
}

impl Drop for Children {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_mapping_of_the_page_reads_what_another_writes() {
        let page = Page::new("test").unwrap();
        let process = Page::open("test", &page.path()).unwrap();
        for slot in 0..3 {
            process.ready(slot);
        }
        page.wait_until_ready(3).unwrap();
        for (slot, woke) in [(0, 5_000), (1, 9_000), (2, 6_000)] {
            process.prove(slot, [slot, 1, 2, 3]);
            process.woke(slot, 7, woke);
        }
        assert_eq!(page.latency(3, 7, 1_000).unwrap(), 5.0);
        assert_eq!(page.proof(SLOTS - 1), [0; 4]);
        assert_eq!(page.proof(2), [2, 1, 2, 3]);
    }
}
