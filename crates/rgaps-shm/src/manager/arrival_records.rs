//! What has arrived from publishers of other hosts, in the segment: a manager's successor learns here which messages need not be sent again,
//! which were counted as lost, and which late joiners have had.
//!
//! Only the manager writes records. Each has one writer at a time: the thread that has reserved it. A record is in use if its sequence is not 0,
//! which is written last. If the manager dies between the words of one update, the position may be that of a later message than the sequence; the
//! message table then tells of that message, too (last_received.rs).
//!
//! Trusts      nothing: the numbers are only compared.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::manager::last_received::LastReceived;
use crate::segment::Segment;
use crate::words::queue::Position;

/// A record that is reserved for one publisher.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RecordIndex(u32);

/// Through which ports late joiners have had a publisher's messages. A port keeps history for those that join before it ends; the next port gives it to
/// later ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortHistory {
    /// The last sequence in the present port; 0: none.
    last_in_port: u64,
    /// The last sequence in the last port that had one, and has ended.
    last_in_ended: u64,
    /// How many ports of the topic had ended when that one had.
    ended_ports: u32,
    /// The same for sequences after `last_in_ended`, which an earlier port had.
    ended_ports_beyond: u32,
}

impl PortHistory {
    /// The last sequence in the present port; 0: none.
    pub fn last_in_port(&self) -> u64 {
        self.last_in_port
    }

    /// Notes a message in the present port.
    pub fn note(&mut self, sequence: u64) {
        self.last_in_port = sequence;
    }

    /// The present port has ended, as the `ended_ports`th of the topic.
    pub fn end_port(&mut self, ended_ports: u32) {
        if self.last_in_port == 0 {
            return;
        }
        // It had only a part of what an earlier one had. If it is not the first such port, what neither had counts as had by the earlier of the two.
        if self.last_in_port < self.last_in_ended {
            self.ended_ports_beyond = self.ended_ports;
        }
        self.last_in_ended = self.last_in_port;
        self.ended_ports = ended_ports;
        self.last_in_port = 0;
    }

    /// Subscribers that joined before so many ports had ended have had the message with this sequence, if the port kept it.
    pub fn had_before(&self, sequence: u64) -> u32 {
        if sequence <= self.last_in_ended { self.ended_ports } else { self.ended_ports_beyond }
    }
}

/// What the segment says of a publisher's messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordedArrival {
    /// The last one.
    pub last: LastReceived,
    /// Which ports have had them.
    pub history: PortHistory,
    /// Its record, if it has one.
    pub record: Option<RecordIndex>,
}

/// The records of a topic, for its manager. Pages of records that were never used are never touched.
#[derive(Clone, Debug)]
pub struct ArrivalRecords {
    segment: Arc<Segment>,
    /// Records that were used, and are free.
    free: Arc<Mutex<BTreeSet<u32>>>,
}

impl ArrivalRecords {
    /// The records of a new segment.
    pub fn new(segment: Arc<Segment>) -> Self {
        Self { segment, free: Arc::default() }
    }

    /// The records of a segment that a predecessor had, and what they say, by host and publisher.
    pub fn take_over(segment: Arc<Segment>) -> (Self, HashMap<[u8; 16], HashMap<u64, RecordedArrival>>) {
        let (arrived, mut told) = (Self::new(segment), HashMap::<_, HashMap<_, _>>::new());
        for index in 0..arrived.segment.header().arrival_records.load(Ordering::Acquire) {
            let Some(record) = arrived.segment.arrival_record(index) else { break };
            let sequence = record.sequence.load(Ordering::Acquire);
            if sequence == 0 {
                arrived.free().insert(index);
                continue;
            }
            let host = [&record.source_host[0], &record.source_host[1]].map(|half| half.load(Ordering::Relaxed));
            let position = Position(record.position.load(Ordering::Relaxed));
            let publisher = record.publisher.load(Ordering::Relaxed);
            let of_host = told.entry(host_of(host)).or_default();
            let history = PortHistory {
                last_in_port: record.last_in_port.load(Ordering::Relaxed),
                last_in_ended: record.last_in_ended.load(Ordering::Relaxed),
                ended_ports: record.ended_ports.load(Ordering::Relaxed),
                ended_ports_beyond: record.ended_ports_beyond.load(Ordering::Relaxed),
            };
            let (last, record) = (LastReceived { sequence, position }, Some(RecordIndex(index)));
            of_host.insert(publisher, RecordedArrival { last, history, record });
        }
        (arrived, told)
    }

    /// Reserves a record for a publisher; `None` if all are in use.
    pub fn reserve(&self, source_host: [u8; 16], publisher: u64) -> Option<RecordIndex> {
        let mut free = self.free();
        let used = &self.segment.header().arrival_records;
        let index = free.pop_first().unwrap_or_else(|| used.load(Ordering::Relaxed));
        let record = self.segment.arrival_record(index)?;
        used.fetch_max(index + 1, Ordering::Release);
        drop(free);
        for (half, bytes) in record.source_host.iter().zip(source_host.chunks_exact(8)) {
            half.store(u64::from_le_bytes(bytes.try_into().unwrap_or_default()), Ordering::Relaxed);
        }
        record.publisher.store(publisher, Ordering::Relaxed);
        Some(RecordIndex(index))
    }

    /// Notes the last message of the record's publisher, and which ports have had its messages.
    pub fn note(&self, index: RecordIndex, last: LastReceived, history: PortHistory) {
        if let Some(record) = self.segment.arrival_record(index.0) {
            // In this order: after a death between two of them, the successor ends the port again, with the same result.
            record.ended_ports_beyond.store(history.ended_ports_beyond, Ordering::Release);
            record.last_in_ended.store(history.last_in_ended, Ordering::Release);
            record.ended_ports.store(history.ended_ports, Ordering::Release);
            record.last_in_port.store(history.last_in_port, Ordering::Release);
            record.position.store(last.position.0, Ordering::Relaxed);
            record.sequence.store(last.sequence, Ordering::Release);
        }
    }

    /// Frees the record of a publisher that is forgotten.
    pub fn free_record(&self, index: RecordIndex) {
        if let Some(record) = self.segment.arrival_record(index.0) {
            record.sequence.store(0, Ordering::Release);
            self.free().insert(index.0);
        }
    }

    fn free(&self) -> MutexGuard<'_, BTreeSet<u32>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn host_of(halves: [u64; 2]) -> [u8; 16] {
    let mut host = [0; 16];
    host.chunks_exact_mut(8).zip(halves).for_each(|(bytes, half)| bytes.copy_from_slice(&half.to_le_bytes()));
    host
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::ARRIVAL_RECORDS_MAX;

    fn at(sequence: u64, position: u64) -> LastReceived {
        LastReceived { sequence, position: Position(position) }
    }

    #[test]
    fn a_successor_reads_what_was_noted_and_reuses_what_was_freed() {
        let segment = Arc::new(Segment::create([1; 16]).unwrap());
        let arrived = ArrivalRecords::new(segment.clone());
        let indices: Vec<RecordIndex> = (0..300).map(|n| arrived.reserve([n as u8 % 3 + 1; 16], n).unwrap()).collect();
        for (n, index) in (0..).zip(&indices) {
            arrived.note(*index, at(n + 1, n), PortHistory::default());
        }
        let mut history = PortHistory::default();
        history.note(90);
        history.end_port(2);
        history.note(100);
        arrived.note(indices[7], at(100, 50), history);
        indices[60..260].iter().for_each(|index| arrived.free_record(*index));
        let (successor, told) = ArrivalRecords::take_over(segment);
        assert_eq!(told.values().map(HashMap::len).sum::<usize>(), 100);
        assert_eq!(told[&[2; 16]][&7], RecordedArrival { last: at(100, 50), history, record: Some(indices[7]) });
        assert_eq!(successor.reserve([9; 16], 1), Some(indices[60]));
        let reserved = std::iter::from_fn(|| successor.reserve([9; 16], 2)).count();
        assert_eq!(reserved, ARRIVAL_RECORDS_MAX as usize - 100 - 1);
    }

    #[test]
    fn only_a_port_that_had_a_message_counts_as_having_given_it_to_late_joiners() {
        let mut history = PortHistory::default();
        let had_before = |history: &PortHistory| [1, 5, 6, 8, 9].map(|sequence| history.had_before(sequence));
        history.note(8);
        history.end_port(1);
        assert_eq!(had_before(&history), [1, 1, 1, 1, 0]);
        history.end_port(2);
        assert_eq!(had_before(&history), [1, 1, 1, 1, 0], "that port had none of them");
        history.note(5);
        history.end_port(3);
        assert_eq!(had_before(&history), [3, 3, 1, 1, 1], "that port had a part of them");
        history.note(6);
        history.end_port(4);
        assert_eq!(had_before(&history), [4, 4, 4, 1, 1]);
        history.note(9);
        history.end_port(5);
        assert_eq!(had_before(&history), [5, 5, 5, 5, 5]);
    }

    #[test]
    fn a_topic_that_never_received_takes_no_memory_for_records() {
        let segment = Arc::new(Segment::create([1; 16]).unwrap());
        let before = segment.resident_bytes().unwrap();
        let (_, told) = ArrivalRecords::take_over(segment.clone());
        assert!(told.is_empty());
        assert_eq!(segment.resident_bytes().unwrap(), before);
    }
}
