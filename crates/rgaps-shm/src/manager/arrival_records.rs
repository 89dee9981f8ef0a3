//! What has arrived from publishers of other hosts, in the segment: a manager's successor learns here which messages need not be sent again,
//! which were counted as lost, and which late joiners have had.
//!
//! Each host has a share of the records, so that no number of publishers of other hosts, real or invented, takes all.
//!
//! Only the manager writes records. Each has one writer at a time: the thread that has reserved it. A record is in use if its sequence is not 0,
//! which is written last. If the manager dies between the words of one update, the position may be that of a later message than the sequence; the
//! message table then tells of that message, too (last_received.rs).
//!
//! Trusts      nothing: the numbers are only compared.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::layout::{ARRIVAL_RECORDS_MAX, PUBLISHERS_MAX};
use crate::manager::last_received::LastReceived;
use crate::segment::Segment;
use crate::words::queue::Position;

/// Most hosts that have records of one topic: those with a port, and `DEPARTED_HOSTS_MAX` without one.
const HOSTS_MAX: u32 = PUBLISHERS_MAX as u32 + DEPARTED_HOSTS_MAX;
/// Hosts without a port that a manager remembers for each topic.
pub const DEPARTED_HOSTS_MAX: u32 = 64;
/// Records that each host can have, whatever other hosts have.
pub const RECORDS_RESERVED: u32 = 12;
/// Records that all hosts together can have beyond these.
const RECORDS_COMMON: u32 = ARRIVAL_RECORDS_MAX - HOSTS_MAX * RECORDS_RESERVED;

// A host that is alone has records for all publishers that it can have at a time.
const _: () = assert!(RECORDS_COMMON >= PUBLISHERS_MAX as u32);

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
    shares: Arc<Mutex<Shares>>,
}

/// Who has how many records.
#[derive(Debug, Default)]
struct Shares {
    /// Records that were used, and are free.
    free: BTreeSet<u32>,
    by_host: HashMap<[u8; 16], u32>,
    /// Records beyond `RECORDS_RESERVED` of their host.
    common: u32,
}

impl Shares {
    fn may_have_another(&self, host: [u8; 16]) -> bool {
        self.common < RECORDS_COMMON || self.by_host.get(&host).is_none_or(|count| *count < RECORDS_RESERVED)
    }

    fn note_reserved(&mut self, host: [u8; 16]) {
        let count = self.by_host.entry(host).or_insert(0);
        self.common += u32::from(*count >= RECORDS_RESERVED);
        *count += 1;
    }

    fn note_freed(&mut self, host: [u8; 16]) {
        if let Some(count) = self.by_host.get_mut(&host) {
            self.common -= u32::from(*count > RECORDS_RESERVED);
            *count -= 1;
            if *count == 0 {
                self.by_host.remove(&host);
            }
        }
    }
}

impl ArrivalRecords {
    /// The records of a new segment.
    pub fn new(segment: Arc<Segment>) -> Self {
        Self { segment, shares: Arc::default() }
    }

    /// The records of a segment that a predecessor had, and what they say, by host and publisher.
    pub fn take_over(segment: Arc<Segment>) -> (Self, HashMap<[u8; 16], HashMap<u64, RecordedArrival>>) {
        let (arrived, mut told) = (Self::new(segment), HashMap::<_, HashMap<_, _>>::new());
        for index in 0..arrived.segment.header().arrival_records.load(Ordering::Acquire) {
            let Some(record) = arrived.segment.arrival_record(index) else { break };
            let sequence = record.sequence.load(Ordering::Acquire);
            if sequence == 0 {
                arrived.shares().free.insert(index);
                continue;
            }
            let host = [&record.source_host[0], &record.source_host[1]].map(|half| half.load(Ordering::Relaxed));
            let host = host_of(host);
            arrived.shares().note_reserved(host);
            let position = Position(record.position.load(Ordering::Relaxed));
            let publisher = record.publisher.load(Ordering::Relaxed);
            let of_host = told.entry(host).or_default();
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

    /// Reserves a record for a publisher; `None` if its host has its share, or all are in use.
    pub fn reserve(&self, source_host: [u8; 16], publisher: u64) -> Option<RecordIndex> {
        let mut shares = self.shares();
        if !shares.may_have_another(source_host) {
            return None;
        }
        let used = &self.segment.header().arrival_records;
        let index = shares.free.pop_first().unwrap_or_else(|| used.load(Ordering::Relaxed));
        let record = self.segment.arrival_record(index)?;
        used.fetch_max(index + 1, Ordering::Release);
        shares.note_reserved(source_host);
        drop(shares);
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

    /// Gives a record to another publisher of the same host.
    pub fn pass_on(&self, index: RecordIndex, publisher: u64) {
        if let Some(record) = self.segment.arrival_record(index.0) {
            record.sequence.store(0, Ordering::Release);
            record.publisher.store(publisher, Ordering::Release);
        }
    }

    /// Frees the record of a publisher of this host that is forgotten.
    pub fn free_record(&self, source_host: [u8; 16], index: RecordIndex) {
        if let Some(record) = self.segment.arrival_record(index.0) {
            record.sequence.store(0, Ordering::Release);
            let mut shares = self.shares();
            shares.free.insert(index.0);
            shares.note_freed(source_host);
        }
    }

    fn shares(&self) -> MutexGuard<'_, Shares> {
        self.shares.lock().unwrap_or_else(PoisonError::into_inner)
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

    fn at(sequence: u64, position: u64) -> LastReceived {
        LastReceived { sequence, position: Position(position) }
    }

    #[test]
    fn a_successor_reads_what_was_noted_and_reuses_what_was_freed() {
        let segment = Arc::new(Segment::create([1; 16]).unwrap());
        let arrived = ArrivalRecords::new(segment.clone());
        let indices: Vec<RecordIndex> = (0..290).map(|n| arrived.reserve([n as u8 % 3 + 1; 16], n).unwrap()).collect();
        for (n, index) in (0..).zip(&indices) {
            arrived.note(*index, at(n + 1, n), PortHistory::default());
        }
        let mut history = PortHistory::default();
        history.note(90);
        history.end_port(2);
        history.note(100);
        arrived.note(indices[7], at(100, 50), history);
        (60..250).for_each(|n| arrived.free_record([n as u8 % 3 + 1; 16], indices[n]));
        let (successor, told) = ArrivalRecords::take_over(segment);
        assert_eq!(told.values().map(HashMap::len).sum::<usize>(), 100);
        assert_eq!(told[&[2; 16]][&7], RecordedArrival { last: at(100, 50), history, record: Some(indices[7]) });
        assert_eq!(successor.reserve([9; 16], 1), Some(indices[60]));
        successor.free_record([9; 16], indices[60]);
        let reserved = std::iter::from_fn(|| successor.reserve([9; 16], 2)).count();
        assert_eq!(reserved, (RECORDS_COMMON + 4 * RECORDS_RESERVED) as usize - 100);
    }

    #[test]
    fn hosts_with_many_publishers_leave_records_to_every_other_host() {
        let records = ArrivalRecords::new(Arc::new(Segment::create([1; 16]).unwrap()));
        let host = |n: u32| u128::from(n).to_le_bytes();
        let reserve_all = |n| std::iter::from_fn(|| records.reserve(host(n), 1)).count() as u32;
        assert_eq!(reserve_all(0), RECORDS_RESERVED + RECORDS_COMMON);
        for n in 1..HOSTS_MAX {
            assert_eq!(reserve_all(n), RECORDS_RESERVED);
        }
        assert_eq!(records.reserve(host(HOSTS_MAX), 1), None, "all are in use");
        records.free_record(host(0), RecordIndex(0));
        assert_eq!((reserve_all(1), reserve_all(2)), (1, 0), "what is free is for all");
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
