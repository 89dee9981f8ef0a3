//! A host in one process: its slot table, publishers with pools, subscribers.

#![allow(dead_code)] // Each test program uses its part.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rgaps_os::{Access, Mapping, memfd};
use rgaps_shm::SubscriberSlot;
use rgaps_shm::reader::seen_publishers::{MessageName, TakenByName};
use rgaps_shm::{
    Exhaustion, Held, LoanError, MessageInfo, MessageSpec, PendingMessage, PublisherSpec, ReaderPort, Segment,
    SlotTable, SubscriberFile, SubscriberPages, SubscriberSpec, WriterPort,
};

/// The process id that subscribers report.
pub const SUBSCRIBER_PID: u32 = 4711;

pub struct Host {
    pub slot_table: SlotTable,
    /// Entries of each publisher's run.
    pub messages: u32,
    /// The file that all subscribers write.
    pub file: Arc<SubscriberFile>,
}

pub struct Publisher {
    slot_table: SlotTable,
    pub port: WriterPort,
    pub pool: Mapping,
    /// As its complete messages name it.
    pub identity: u64,
    pub sequence: u64,
    pub history: u32,
}

impl Host {
    pub fn new(messages: u32) -> Self {
        let slot_table = SlotTable::new(Arc::new(Segment::create([3; 16]).unwrap()));
        Self { slot_table, messages, file: SubscriberFile::create().unwrap() }
    }

    pub fn publisher(&self, pool_bytes: u64, history: u32) -> Publisher {
        self.publisher_here(pool_bytes, history, false)
    }

    /// The manager's port for another host.
    pub fn remote_publisher(&self, pool_bytes: u64) -> Publisher {
        self.publisher_here(pool_bytes, 0, true)
    }

    fn publisher_here(&self, pool_bytes: u64, history: u32, remote: bool) -> Publisher {
        let spec = PublisherSpec { publisher: 77, messages: self.messages, remote, ..Default::default() };
        let slot = self.slot_table.admit_publisher(&spec).unwrap();
        let fd = memfd::create("pool", pool_bytes).unwrap();
        let pool = Mapping::map(&fd, pool_bytes, Access::ReadWrite).unwrap();
        let right = pool.allocation_right().unwrap();
        let port = WriterPort::new(self.slot_table.segment().clone(), slot, right).unwrap();
        Publisher { slot_table: self.slot_table.clone(), port, pool, identity: 77, sequence: 0, history }
    }

    pub fn subscriber(&self, depth: u32) -> ReaderPort {
        self.subscriber_with(depth, false)
    }

    pub fn subscriber_with(&self, depth: u32, history: bool) -> ReaderPort {
        let spec = SubscriberSpec { depth, pid: SUBSCRIBER_PID, ..Default::default() };
        let slot = self.slot_table.admit_subscriber(&spec, &self.file).unwrap();
        self.reader(slot, history)
    }

    /// A subscriber's port as a client has it: the segment is mapped for reading, and the subscriber's own words for writing.
    pub fn reader(&self, slot: SubscriberSlot, history: bool) -> ReaderPort {
        let made = self.slot_table.segment();
        let segment = Segment::observe(made.read_only().unwrap(), made.topic()).unwrap();
        let own = self.slot_table.pages(slot).unwrap();
        let file = SubscriberFile::adopt(own.file().unwrap().as_fd().try_clone_to_owned().unwrap());
        let own = SubscriberPages::attach(file, own.place(), made.topic(), slot).unwrap();
        ReaderPort::new(Arc::new(segment), Arc::new(own), history).unwrap()
    }

    pub fn release(&self, reader: &ReaderPort) {
        let slot = reader.slot();
        assert!(self.slot_table.release_subscriber(slot));
    }
}

impl Publisher {
    /// Adds the subscribers whose words the manager has handed out by now.
    pub fn meet(&mut self) {
        for slot in self.slot_table.active_subscribers() {
            self.port.add_subscriber(self.slot_table.pages(slot).unwrap(), None);
        }
    }

    pub fn publish(&mut self, bytes: u64, exhaustion: Exhaustion) -> Result<u64, LoanError> {
        self.meet();
        self.publish_unmet(bytes, exhaustion)
    }

    /// Like `publish`, but the words of subscribers that joined since the last `meet` have not arrived yet.
    pub fn publish_unmet(&mut self, bytes: u64, exhaustion: Exhaustion) -> Result<u64, LoanError> {
        let mut loan = self.port.loan(bytes, exhaustion)?;
        self.sequence += 1;
        let fill = self.sequence as u8;
        self.pool.bytes_mut(loan.block_mut().unwrap().range_mut()).unwrap()[..bytes as usize].fill(fill);
        let info = MessageInfo { publisher: self.identity, sequence: self.sequence, bytes, ..Default::default() };
        let spec = MessageSpec { info, meta: &self.sequence.to_le_bytes(), history_depth: self.history };
        self.port.publish(loan, &spec).unwrap();
        Ok(self.sequence)
    }

    pub fn publish_pending(&mut self) -> PendingMessage {
        self.publish_behind(|_| {})
    }

    /// Calls `tell` with the ready word before the message is published: a stream may write it that early.
    pub fn publish_behind(&mut self, tell: impl FnOnce((u64, u32))) -> PendingMessage {
        self.meet();
        let loan = self.port.loan(10, Exhaustion::Refuse).unwrap();
        tell(self.port.segment().ready_word(loan.message()));
        self.sequence += 1;
        let publisher = self.port.slot().index;
        let info =
            MessageInfo { publisher: publisher.into(), sequence: self.sequence, bytes: 10, ..Default::default() };
        let spec = MessageSpec { info, meta: &[], history_depth: 0 };
        self.port.publish_pending(loan, &spec).unwrap().1
    }

    pub fn content(&self, held: &Held) -> Vec<u8> {
        self.pool.shared(held.offset(), held.info().bytes).unwrap().to_vec()
    }
}

pub fn take(reader: &mut ReaderPort) -> Option<Held> {
    reader.take().unwrap()
}

pub fn take_by_name(reader: &mut ReaderPort, name: MessageName) -> TakenByName {
    reader.take_by_name(name).unwrap()
}

pub fn sequences(reader: &mut ReaderPort) -> Vec<u64> {
    std::iter::from_fn(|| take(reader).map(|held| held.info().sequence)).collect()
}

pub fn lost(reader: &ReaderPort) -> u64 {
    reader.counters().lost
}

/// Writes READY, like a producer's stream.
pub fn write_ready(host: &Host, (offset, value): (u64, u32)) {
    host.slot_table.segment().ready_words().unwrap().atomic_u32(offset).unwrap().store(value, Ordering::Release);
}

/// Writes RELEASED, like a subscriber's stream.
pub fn write_released(reader: &ReaderPort, (offset, value): (u64, u32)) {
    reader.pages().hold_words().unwrap().atomic_u32(offset).unwrap().store(value, Ordering::Release);
}
