//! What an arrival grants to the other host, when it wants it back, and when it frees the blocks. The link is a double, so no device is needed.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use rgaps_control::{HostId, Limits, TopicKey};
use rgaps_device::host::HostBackend;
use rgaps_device::{Backend, BufferSpec};
use rgaps_link::tcp::LinkToken;
use rgaps_link::{GrantNumber, MessageHead, MessageId, MessageName, RingGeometry, RingMemory, RingOptions};
use rgaps_os::EventFd;
use rgaps_shm::{Exhaustion, MessageInfo, PublisherSpec, ReaderPort, SubscriberFile, SubscriberSpec, WriterPort};

use super::granted::IDLE;
use super::loans::LOOK_EVERY_BYTES;
use super::scripted_link::Peer;
use super::setup::ArrivalSetup;
use super::*;
use crate::budgets::Budgets;
use crate::device_access::DeviceAccess;
use crate::device_memory::DeviceMemoryManager;
use crate::envelope::{Envelope, Gap};
use crate::event::Mailbox;
use crate::inbound::ArrivalControl;
use crate::received::Received;
use crate::topics::Topic;

const FROM: HostId = HostId([1; 16]);
const MIB: u64 = 1 << 20;

/// An arrival whose link is a double. A test makes its turns, so nothing happens meanwhile.
pub(super) struct Receiving {
    pub(super) arrival: Arrival,
    pub(super) peer: Peer,
    pub(super) topic: Topic,
    events: Receiver<Event>,
    next_id: u64,
}

impl Receiving {
    fn new(pool_bytes: u64) -> Self {
        Self::on(Arc::new(HostBackend::new()), None, pool_bytes)
    }

    /// On this device. `device_access`: what is known of the network card.
    pub(super) fn on(backend: Arc<dyn Backend>, device_access: Option<Arc<DeviceAccess>>, pool_bytes: u64) -> Self {
        let topic = Topic::create(TopicKey::new(0, "granted").unwrap(), "rgaps/Bytes").unwrap();
        let spec = PublisherSpec { pid: std::process::id(), pool_bytes, remote: true, messages: 60, publisher: 0 };
        let slot = topic.slot_table.admit_publisher(&spec).unwrap();
        let pool = DeviceMemoryManager::new(backend.clone()).create(&topic.pools, slot, pool_bytes).unwrap();
        topic.pools.seal(slot).unwrap();
        let port = WriterPort::new(topic.segment.clone(), slot, pool.allocation_right().unwrap()).unwrap();
        let budgets = Budgets::new(&Limits::default());
        let charge = budgets.arrived.charge((topic.id, FROM));
        let received = Received::new(FROM.0, topic.arrived.clone());
        let state = ArrivalState::new(port, (pool, charge), received, pool_bytes);
        let options = RingOptions { ring_bytes: 64 * MIB, chunk_bytes: 8 * MIB as u32, ..RingOptions::default() };
        let spec = BufferSpec { name: "rgaps-ring".to_owned(), bytes: options.ring_bytes };
        let buffer = Arc::new(backend.host_buffer(&spec).unwrap());
        let fd = buffer.as_fd().try_clone_to_owned().unwrap();
        let memory = RingMemory::from_fd(fd, options.ring_bytes).unwrap();
        let (peer, link) = Peer::new(RingGeometry::new(options).unwrap(), memory);
        let (mailbox, events, _) = Mailbox::new().unwrap();
        let (event, permit) = (Arc::new(EventFd::new().unwrap()), budgets.links.take(FROM).unwrap());
        let stream = backend.stream().unwrap();
        let setup = ArrivalSetup {
            topic: topic.id,
            key: topic.key.clone(),
            host: FROM,
            host_name: "from".to_owned(),
            exhaustion: None,
            keep_all_timeout: Duration::from_millis(100),
            backend,
            buffer,
            slot_table: topic.slot_table.clone(),
            mailbox,
            control: Arc::new(ArrivalControl::new(String::new(), event, LinkToken([0; 16]), slot, permit)),
            landing_bytes_min: 128 << 10,
            device_access,
            transport_text: "a double".to_owned(),
        };
        let arrival = Arrival::new(setup, state, Box::new(link), stream);
        Self { arrival, peer, topic, events, next_id: 1 }
    }

    /// The next message that the peer sends; it begins with a record with `first` bytes.
    pub(super) fn begin(&mut self, sequence: u64, total: u64, first: u64, grant: Option<u64>) -> MessageHead {
        let name = MessageName { publisher: 7, sequence };
        let head = MessageHead { id: MessageId(self.next_id), name, total };
        self.next_id += 1;
        let info = MessageInfo { source_host: FROM.0, bytes: total, ..MessageInfo::default() };
        let gap = Gap { previous: sequence - 1, is_notice: false };
        self.peer.begin(head, Envelope::seal(&info, 0, gap, b"meta").bytes(), first, grant);
        head
    }

    /// Sends a message in one record and receives it.
    pub(super) fn send(&mut self, sequence: u64, total: u64, grant: Option<u64>) {
        self.begin(sequence, total, total, grant);
        self.receive();
    }

    /// Receives all that the peer has sent.
    pub(super) fn receive(&mut self) {
        while !self.peer.has_sent_all() || !self.arrival.landed.is_empty() {
            self.arrival.turn().unwrap();
        }
    }

    /// Grants and revokes what is due at that time.
    fn look_at(&mut self, now: Instant) {
        let Arrival { messages, link, .. } = &mut self.arrival;
        messages.grant_ahead(link.as_mut(), now);
    }

    fn used_bytes(&self) -> u64 {
        self.arrival.messages.state.port.pool().used_bytes
    }

    pub(super) fn subscriber(&mut self) -> ReaderPort {
        let spec = SubscriberSpec { depth: 60, ..Default::default() };
        let slot = self.topic.slot_table.admit_subscriber(&spec, &SubscriberFile::create().unwrap()).unwrap();
        let pages = self.topic.slot_table.pages(slot).unwrap();
        self.arrival.messages.state.port.add_subscriber(pages.clone(), None);
        ReaderPort::new(self.topic.segment.clone(), pages, false).unwrap()
    }
}

/// The sequences of all messages that a subscriber can take.
fn sequences(reader: &mut ReaderPort) -> Vec<u64> {
    std::iter::from_fn(|| reader.take().unwrap()).map(|held| held.info().sequence).collect()
}

#[test]
fn a_message_is_published_in_its_granted_block_and_the_next_grant_comes_first() {
    let mut receiving = Receiving::new(8 * MIB);
    let mut reader = receiving.subscriber();
    receiving.send(1, MIB, None);
    let granted = receiving.peer.rights();
    assert_eq!(granted, [1, 2, 3, 4]);
    let block = receiving.peer.script().rights[&GrantNumber(2)].clone();
    receiving.send(2, MIB, Some(2));
    assert_eq!(receiving.peer.rights(), [1, 3, 4, 5]);
    assert_eq!(receiving.peer.script().rights_at_ends, [4, 4], "the peer would wait for a grant");
    let copied =
        [(); 2].map(|()| reader.take().unwrap().unwrap()).map(|held| (held.info().copies.pooled, held.offset()));
    assert_eq!((copied[0].0, copied[1]), (1, (0, block.start)));
}

#[test]
fn at_most_half_of_the_pool_is_granted_ahead() {
    let mut receiving = Receiving::new(4 * MIB);
    receiving.send(1, MIB, None);
    assert_eq!(receiving.peer.rights(), [1, 2]);
    let mut receiving = Receiving::new(4 * MIB);
    receiving.send(1, 3 * MIB, None);
    assert!(receiving.peer.rights().is_empty());
}

#[test]
fn at_most_eight_mebibytes_and_two_messages_are_granted_ahead() {
    let mut receiving = Receiving::new(64 * MIB);
    receiving.send(1, 4 * MIB, None);
    assert_eq!(receiving.peer.rights(), [1, 2, 3, 4]);
}

#[test]
fn no_more_is_granted_than_the_peer_takes() {
    let mut receiving = Receiving::new(64 * MIB);
    receiving.peer.script().grants_max = 3;
    receiving.send(1, MIB, None);
    assert_eq!(receiving.peer.rights(), [1, 2, 3]);
}

#[test]
fn nothing_is_granted_for_small_messages() {
    let mut receiving = Receiving::new(4 * MIB);
    receiving.send(1, 1000, None);
    assert!(receiving.peer.rights().is_empty());
}

#[test]
fn the_block_of_an_unwanted_message_is_free_only_after_its_last_record() {
    for is_aborted in [false, true] {
        let mut receiving = Receiving::new(4 * MIB);
        receiving.send(1, MIB, None);
        assert_eq!(receiving.peer.rights(), [1, 2]);
        let used = receiving.used_bytes();
        let head = receiving.begin(1, MIB, 1000, Some(1));
        receiving.receive();
        assert_eq!(receiving.peer.rights(), [1, 2], "the peer still writes into the first block");
        assert_eq!((receiving.used_bytes(), receiving.arrival.messages.duplicates), (used, 1));
        match is_aborted {
            false => receiving.peer.finish(head, 1000, Some(1)),
            true => receiving.peer.abort(head, 1000),
        }
        receiving.receive();
        assert_eq!(receiving.peer.rights(), [2, 3], "the block is free, and granted again");
        assert_eq!((receiving.used_bytes(), receiving.arrival.messages.arrived), (used, 1));
    }
}

#[test]
fn blocks_that_the_peer_may_write_are_freed_only_when_the_link_is_gone() {
    let mut receiving = Receiving::new(8 * MIB);
    receiving.send(1, MIB, None);
    assert_eq!(receiving.peer.rights(), [1, 2, 3, 4]);
    // One message is partial, one is unwanted, and some blocks are unused.
    receiving.begin(2, MIB, 1000, Some(1));
    receiving.begin(1, MIB, 1000, Some(2));
    receiving.receive();
    let used = receiving.used_bytes();
    assert!(used >= 5 * MIB, "{used} B");
    let slot = receiving.arrival.messages.state.slot();
    let (segment, at_drop) = (receiving.topic.segment.clone(), Arc::new(AtomicU64::new(0)));
    let seen = at_drop.clone();
    receiving.peer.script().on_drop = Some(Box::new(move || {
        seen.store(segment.publisher(slot.index).unwrap().used_bytes.load(Ordering::Relaxed), Ordering::Relaxed);
    }));
    receiving.peer.script().ends = true;
    let Receiving { arrival, events, topic: _topic, .. } = receiving;
    arrival.run();
    assert_eq!(at_drop.load(Ordering::Relaxed), used, "a block was free while the peer could write it");
    let ended = events.try_iter().find_map(|event| match event {
        Event::ArrivalEnded { state, .. } => Some(state),
        _ => None,
    });
    let mut state = ended.unwrap();
    state.port.reclaim();
    assert_eq!(state.port.pool().used_bytes, 0);
}

#[test]
fn a_message_recalls_granted_blocks_before_it_waits_for_space_or_drops_others() {
    for exhaustion in [None, Some(Exhaustion::DropOldest), Some(Exhaustion::Wait { timeout_ms: 100 })] {
        let mut receiving = Receiving::new(4 * MIB);
        receiving.arrival.messages.setup.exhaustion = exhaustion;
        let mut reader = receiving.subscriber();
        (1..=2).for_each(|sequence| receiving.send(sequence, MIB, None));
        assert_eq!((receiving.peer.rights(), receiving.peer.revocations()), (vec![1, 2], 0));
        receiving.send(3, MIB, None);
        assert_eq!((receiving.peer.rights(), receiving.peer.revocations()), (vec![], 1));
        assert_eq!((sequences(&mut reader), reader.counters().lost), (vec![1, 2, 3], 0), "{exhaustion:?}");
    }
}

#[test]
fn a_message_that_needs_space_does_without_blocks_that_are_not_returned() {
    let mut receiving = Receiving::new(4 * MIB);
    receiving.peer.script().returns = false;
    let mut reader = receiving.subscriber();
    (1..=3).for_each(|sequence| receiving.send(sequence, MIB, None));
    assert_eq!((sequences(&mut reader), reader.counters().lost), (vec![2, 3], 1));
    assert_eq!(receiving.peer.rights(), [1, 2]);
    let used = receiving.used_bytes();
    receiving.peer.give_back();
    receiving.look_at(Instant::now());
    assert_eq!((receiving.peer.rights(), receiving.used_bytes()), (vec![], used - 2 * MIB));
}

#[test]
fn grants_are_revoked_when_no_large_message_has_arrived_for_a_while() {
    let mut receiving = Receiving::new(4 * MIB);
    let before = Instant::now();
    receiving.send(1, MIB, None);
    let after = Instant::now();
    receiving.look_at(before + IDLE - Duration::from_nanos(1));
    assert_eq!((receiving.peer.revocations(), receiving.peer.rights()), (0, vec![1, 2]));
    receiving.look_at(after + IDLE);
    assert_eq!((receiving.peer.revocations(), receiving.peer.rights()), (1, vec![]));
    receiving.look_at(after + IDLE);
    receiving.arrival.messages.state.port.reclaim();
    assert_eq!((receiving.peer.revocations(), receiving.used_bytes()), (1, 0));
    assert!(receiving.peer.rights().is_empty() && !receiving.arrival.messages.granted.is_in_use());
    receiving.send(2, MIB, None);
    assert_eq!(receiving.peer.rights(), [3, 4]);
}

#[test]
fn memory_that_the_peer_writes_is_measured() {
    let mut receiving = Receiving::new(32 * MIB);
    receiving.send(1, 4 * MIB, None);
    let pool = receiving.arrival.messages.state.pool.clone();
    // A fragmented pool occupies more than its blocks.
    pool.as_host().unwrap().mapping().copy_in(0, &vec![1; 32 * MIB as usize]).unwrap();
    let charged = receiving.arrival.messages.state.charge.granted();
    assert!(charged < 32 * MIB);
    for grant in 1..=LOOK_EVERY_BYTES / (4 * MIB) {
        receiving.send(1 + grant, 4 * MIB, Some(grant));
    }
    assert_eq!(receiving.arrival.messages.state.charge.granted(), pool.resident_bytes());
}
