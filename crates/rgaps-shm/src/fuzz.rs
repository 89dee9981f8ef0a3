//! Fuzz entry: a topic of one host in one process, whose shared words are overwritten between any two steps, as another process could do.
//!
//! Only programs of this host's user can write the segment. Their garbage costs messages and nothing else: no code panics, loops for ever, or
//! reads out of bounds.

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use rgaps_os::{Access, Mapping, memfd};

use crate::layout::{META_BYTES_MAX, QUEUE_OFFSET, READY_OFFSET, SEGMENT_BYTES, SUBSCRIBER_PAGES_BYTES};
use crate::layout::{arrival_record_offset, message_offset, publisher_offset, subscriber_offset};
use crate::manager::arrival_records::ArrivalRecords;
use crate::manager::last_received::{LastReceived, last_received};
use crate::observer::Observer;
use crate::reader::seen_publishers::MessageName;
use crate::words::queue::MessageIndex;
use crate::{
    Exhaustion, Held, MessageInfo, MessageSpec, PublisherSlot, PublisherSpec, ReaderPort, Segment, SlotTable,
    SubscriberFile, SubscriberPages, SubscriberSpec, WriterPort,
};

const TOPIC: [u8; 16] = [3; 16];
const POOL_BYTES: u64 = 1 << 16;
/// Steps of an input, at most.
const STEPS_MAX: usize = 64;

/// The words of one topic, its manager, two publishers, a subscriber and an observer.
struct Topic {
    segment: File,
    words: File,
    slot_table: SlotTable,
    writers: [(WriterPort, PublisherSlot); 2],
    reader: ReaderPort,
    observer: Observer,
    held: Vec<Held>,
    sequence: u64,
}

/// Runs any bytes as steps: each overwrites a word, or calls one of the participants.
pub fn fuzz_segment(mut data: &[u8]) -> bool {
    let Some(mut topic) = Topic::new() else { return false };
    for _ in 0..STEPS_MAX {
        let Some((step, rest)) = data.split_first() else { break };
        data = topic.step(*step, rest);
    }
    topic.end();
    true
}

impl Topic {
    /// `None` if the kernel has no memory.
    fn new() -> Option<Self> {
        let slot_table = SlotTable::new(Arc::new(Segment::create(TOPIC).ok()?));
        let made = slot_table.segment().clone();
        let file = SubscriberFile::create().ok()?;
        let [first, second] = [1, 2].map(|publisher| Self::writer(&slot_table, publisher));
        let spec = SubscriberSpec { depth: 4, pid: 1, remote: false };
        let slot = slot_table.admit_subscriber(&spec, &file).ok()?;
        let own = slot_table.pages(slot)?;
        let words = own.file()?.as_fd().try_clone_to_owned().ok()?;
        let adopted = SubscriberFile::adopt(words.try_clone().ok()?);
        let own = SubscriberPages::attach(adopted, own.place(), TOPIC, slot).ok()?;
        let observed = Arc::new(Segment::observe(made.read_only().ok()?, TOPIC).ok()?);
        let reader = ReaderPort::new(observed.clone(), Arc::new(own), true).ok()?;
        let (segment, observer) = (made.as_fd().try_clone_to_owned().ok()?, Observer::new(observed));
        let (held, writers) = (Vec::new(), [first?, second?]);
        Some(Self {
            segment: segment.into(),
            words: words.into(),
            slot_table,
            writers,
            reader,
            observer,
            held,
            sequence: 0,
        })
    }

    fn writer(slot_table: &SlotTable, publisher: u64) -> Option<(WriterPort, PublisherSlot)> {
        let slot = slot_table.admit_publisher(&PublisherSpec { publisher, messages: 4, ..Default::default() }).ok()?;
        let fd = memfd::create("pool", POOL_BYTES).ok()?;
        let right = Mapping::map(&fd, POOL_BYTES, Access::ReadWrite).ok()?.allocation_right()?;
        let port = WriterPort::new(slot_table.segment().clone(), slot, right).ok()?;
        Some((port, slot))
    }

    /// Runs one step, and returns the rest of the input.
    fn step<'a>(&mut self, step: u8, rest: &'a [u8]) -> &'a [u8] {
        match step % 16 {
            0..6 => return self.overwrite(step % 16, rest).unwrap_or_default(),
            6 | 7 => self.publish(usize::from(step % 2), Exhaustion::DropOldest),
            8 => self.publish(0, Exhaustion::Refuse),
            9 => self.held.extend(self.reader.take().ok().flatten()),
            10 => drop(self.held.pop()),
            11 => drop(self.observer.poll()),
            12 => drop(self.reader.take_by_name(MessageName { publisher: 1, sequence: self.sequence })),
            13 => self.manage(),
            14 => self.held.extend(self.reader.take_pending().ok().flatten()),
            _ => self.held.pop().into_iter().for_each(|held| self.reader.put_back(held)),
        }
        rest
    }

    /// Overwrites one word.
    fn overwrite<'a>(&self, what: u8, rest: &'a [u8]) -> Option<&'a [u8]> {
        let (place, rest) = rest.split_first_chunk::<2>()?;
        let (word, rest) = rest.split_first_chunk::<8>()?;
        let place = u64::from(u16::from_le_bytes(*place));
        let offset = match what {
            0 if place < 1 << 15 => place % 128 * 8,
            0 => arrival_record_offset((place / 16 % 8) as u32)? + place % 16 * 8,
            1 => subscriber_offset((place / 8 % 32) as u16)? + place % 8 * 8,
            2 => publisher_offset((place / 16 % 8) as u16)? + place % 16 * 8,
            3 => QUEUE_OFFSET + place * 8,
            4 => READY_OFFSET + place / 2 * 8,
            _ => message_offset(MessageIndex((place / 32) as u16)) + place % 32 * 8,
        };
        // Half of the ready words' offsets stand for the subscriber's own words.
        let own = what == 4 && place % 2 == 1;
        let written = match own {
            true => self.words.write_at(word, place % SUBSCRIBER_PAGES_BYTES / 8 * 8),
            false => self.segment.write_at(word, offset.min(SEGMENT_BYTES - 8)),
        };
        written.is_ok().then_some(rest)
    }

    fn publish(&mut self, of: usize, exhaustion: Exhaustion) {
        let (port, _) = &mut self.writers[of];
        for slot in self.slot_table.active_subscribers() {
            self.slot_table.pages(slot).into_iter().for_each(|pages| port.add_subscriber(pages, None));
        }
        let Ok(loan) = port.loan(64, exhaustion) else { return };
        self.sequence += 1;
        let info = MessageInfo { publisher: of as u64 + 1, sequence: self.sequence, bytes: 64, ..Default::default() };
        let _ = port.publish(loan, &MessageSpec { info, meta: b"meta", history_depth: 2 });
    }

    fn manage(&mut self) {
        let _ =
            (self.writers[0].0.stalled_by(), self.slot_table.messages_in_use(), self.slot_table.remote_publishers());
        let _ = (
            self.slot_table.active_publishers().count(),
            self.slot_table.draining().count(),
            self.reader.ready_count(8),
        );
        let _ = last_received(self.slot_table.segment(), [0; 16]);
        self.take_over();
        self.held.iter().for_each(|held| {
            let mut meta = [0; META_BYTES_MAX];
            assert!(held.copy_meta(&mut meta) <= META_BYTES_MAX);
            let _ = (held.readiness(), held.ready_word(), held.release_word(), held.pool());
        });
    }

    /// A successor takes over what has arrived from other hosts, notes a message of each publisher, and frees its record.
    fn take_over(&mut self) {
        let (records, told) = ArrivalRecords::take_over(self.slot_table.segment().clone());
        let ended_ports = self.slot_table.end_port();
        for (host, mut arrived) in
            told.into_iter().flat_map(|(host, of_host)| of_host.into_values().map(move |it| (host, it)))
        {
            arrived.history.end_port(ended_ports);
            arrived.history.note(self.sequence);
            let _ = arrived.history.had_before(self.sequence);
            arrived.record.into_iter().for_each(|record| {
                records.note(record, arrived.last, arrived.history);
                records.free_record(host, record);
            });
        }
        let last = LastReceived { sequence: self.sequence, position: self.slot_table.segment().queue().end() };
        let record = records.reserve([1; 16], 1);
        record.into_iter().for_each(|record| records.note(record, last, Default::default()));
    }

    /// All participants leave, and the manager cleans up.
    fn end(mut self) {
        self.manage();
        let _ = (self.reader.counters(), self.reader.awaits_bytes(), self.observer.publisher(1));
        self.reader.close();
        let slot = self.reader.slot();
        self.held.clear();
        self.slot_table.release_subscriber(slot);
        for (_, slot) in &self.writers {
            self.slot_table.drain_publisher(*slot);
            self.slot_table.finish_draining(*slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_overwritten_queue_slot_costs_its_message_and_no_other() {
        let mut topic = Topic::new().unwrap();
        (0..3).for_each(|_| topic.publish(0, Exhaustion::DropOldest));
        // Position 1 looks overrun by a lap, but the tail does not say so.
        topic.overwrite(3, &[&[1, 0][..], &(65_538_u64 << 32).to_le_bytes()].concat()).unwrap();
        let taken: Vec<u64> =
            (0..3).flat_map(|_| topic.reader.take().unwrap()).map(|held| held.info().sequence).collect();
        assert_eq!((taken, topic.reader.counters().lost), (vec![1, 3], 1));
    }
}
