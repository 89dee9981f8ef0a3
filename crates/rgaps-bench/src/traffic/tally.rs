//! What a subscriber process of `traffic` counts, in memory that it shares with the bench: sizes of batches, messages taken and lost, and latencies.
//!
//! Words       for each subscriber: `BUCKETS` counts of batches, then taken and lost, then a latency in ns for each message of a round. Written by
//!             the process; read by the bench when the process has reported the round.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rgaps_link::RingMemory;

use crate::BenchError;
use crate::page::{open, path};

/// Batches of 1, 2 to 3, 4 to 7 and so on; the last bucket has all larger ones.
pub(crate) const BUCKETS: usize = 9;
const TAKEN: u64 = BUCKETS as u64;
const LOST: u64 = TAKEN + 1;
const HEAD: u64 = LOST + 1;

/// The counts of all subscribers.
pub(crate) struct Tally {
    memory: Arc<RingMemory>,
    /// Latencies that each subscriber has room for.
    room: u64,
    bench: &'static str,
}

impl Tally {
    /// For so many subscribers, and messages in a round.
    pub(crate) fn new(bench: &'static str, subscribers: u64, room: u64) -> Result<Self, BenchError> {
        let memory = RingMemory::create("rgaps-bench-tally", bytes(subscribers, room));
        Ok(Self { memory: memory.map_err(|error| BenchError::failed(bench, error))?, room, bench })
    }

    /// The one of the bench that started this process.
    pub(crate) fn open(bench: &'static str, at: &str, subscribers: u64, room: u64) -> Result<Self, BenchError> {
        let fd: OwnedFd = open(bench, at)?;
        let memory = RingMemory::from_fd(fd, bytes(subscribers, room));
        Ok(Self { memory: memory.map_err(|error| BenchError::failed(bench, error))?, room, bench })
    }

    /// The path by which a process opens it.
    pub(crate) fn path(&self) -> String {
        path(&self.memory.fd())
    }

    /// Counts a batch of so many messages.
    pub(crate) fn add_batch(&self, slot: u64, messages: u64) -> Result<(), BenchError> {
        self.word(slot, bucket(messages) as u64)?.fetch_add(1, Ordering::Relaxed);
        self.word(slot, TAKEN)?.fetch_add(messages, Ordering::Release);
        Ok(())
    }

    /// Notes how many messages were lost.
    pub(crate) fn set_lost(&self, slot: u64, messages: u64) -> Result<(), BenchError> {
        self.word(slot, LOST)?.store(messages, Ordering::Release);
        Ok(())
    }

    /// Notes the latency of the n-th message, in place of that of the round before.
    pub(crate) fn set_latency(&self, slot: u64, number: u64, ns: u64) -> Result<(), BenchError> {
        self.word(slot, HEAD + number % self.room)?.store(ns, Ordering::Release);
        Ok(())
    }

    /// Batches by bucket, and messages taken and lost.
    pub(crate) fn counts(&self, slot: u64) -> Result<([u64; BUCKETS], u64, u64), BenchError> {
        let mut buckets = [0; BUCKETS];
        for (at, bucket) in (0..).zip(&mut buckets) {
            *bucket = self.word(slot, at)?.load(Ordering::Acquire);
        }
        let [taken, lost] = [self.word(slot, TAKEN)?, self.word(slot, LOST)?].map(|word| word.load(Ordering::Acquire));
        Ok((buckets, taken, lost))
    }

    /// The latencies of the last round in us.
    pub(crate) fn latencies(&self, slot: u64) -> Result<Vec<f64>, BenchError> {
        (0..self.room).map(|at| Ok(self.word(slot, HEAD + at)?.load(Ordering::Acquire) as f64 / 1e3)).collect()
    }

    fn word(&self, slot: u64, at: u64) -> Result<&AtomicU64, BenchError> {
        let offset = (slot * (HEAD + self.room) + at) * 8;
        self.memory.mapping().atomic_u64(offset).map_err(|error| BenchError::failed(self.bench, error))
    }
}

fn bytes(subscribers: u64, room: u64) -> u64 {
    (subscribers * (HEAD + room) * 8).next_multiple_of(4096)
}

fn bucket(messages: u64) -> usize {
    (messages.max(1).ilog2() as usize).min(BUCKETS - 1)
}

/// The sizes of a bucket, for people.
pub(crate) fn name_of_bucket(bucket: usize) -> String {
    match bucket {
        0 => "1".to_owned(),
        _ if bucket == BUCKETS - 1 => format!("{} or more", 1 << bucket),
        _ => format!("{} to {}", 1 << bucket, (2 << bucket) - 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_mapping_reads_what_another_counts_and_subscribers_do_not_share_words() {
        let tally = Tally::new("test", 2, 3).unwrap();
        let process = Tally::open("test", &tally.path(), 2, 3).unwrap();
        for (slot, batch) in [(0, 1), (0, 3), (1, 1000)] {
            process.add_batch(slot, batch).unwrap();
        }
        process.set_lost(1, 7).unwrap();
        for number in 0..5 {
            process.set_latency(1, number, number * 1000).unwrap();
        }
        let (first, second) = (tally.counts(0).unwrap(), tally.counts(1).unwrap());
        assert_eq!((first.0[..2].to_vec(), first.1, first.2), (vec![1, 1], 4, 0));
        assert_eq!((second.0[BUCKETS - 1], second.1, second.2), (1, 1000, 7));
        assert_eq!(tally.latencies(1).unwrap(), [3.0, 4.0, 2.0]);
    }

    #[test]
    fn buckets_have_the_sizes_that_their_names_say() {
        assert_eq!([1, 2, 3, 4, 255, 256, 9999].map(bucket), [0, 1, 1, 2, 7, 8, 8]);
        assert_eq!([0, 1, 7, 8].map(name_of_bucket), ["1", "2 to 3", "128 to 255", "256 or more"]);
    }
}
