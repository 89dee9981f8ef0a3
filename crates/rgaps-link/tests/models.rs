//! Random operations on the protocol, checked against simple models: a ring that records each byte's owner, and messages cut into records.

#![allow(clippy::unwrap_used)] // The helpers of tests are not tests to the lint.

use std::collections::VecDeque;

use proptest::prelude::*;
use rgaps_link::invariants::{consumption, lag, production};
use rgaps_link::record::Flags;
use rgaps_link::ring::is_intact;
use rgaps_link::{
    Assembler, AssemblerOptions, Continuity, CreditBatch, CreditPair, Event, Exceed, FlowControl, MessageHead,
    MessageId, MessageName, Placement, Position, ReceiverRing, RecordHeader, RecordSequence, RingGeometry, RingOffset,
    RingOptions, RingSpan, SenderRing, Watermark,
};

/// Small rings of every kind, which wrap soon.
fn geometries(flow_control: FlowControl) -> impl Strategy<Value = RingGeometry> {
    (
        prop::sample::select(vec![64_u32, 128, 256]),
        8_u64..40,
        prop::sample::select(Watermark::ALL.to_vec()),
        1_u32..2048,
    )
        .prop_filter_map("a chunk too large for its ring", move |(alignment, slots, watermark, chunk_bytes)| {
            let ring_bytes = slots * u64::from(alignment);
            let options =
                RingOptions { ring_bytes, chunk_bytes, watermark, alignment, flow_control, ..RingOptions::default() };
            RingGeometry::new(options).ok()
        })
}

#[derive(Clone, Copy, Debug)]
enum Step {
    /// The sender places a record with this part (of 256) of the largest payload; it may end its message.
    Send(u8, bool),
    /// The wire delivers a record.
    Deliver,
    /// The consumer releases a record.
    Consume,
    /// A credit arrives at the sender.
    Credit,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        3 => (any::<u8>(), any::<bool>()).prop_map(|(size, last)| Step::Send(size, last)),
        2 => Just(Step::Deliver),
        2 => Just(Step::Consume),
        1 => Just(Step::Credit),
    ];
    prop::collection::vec(step, 1..400)
}

fn header(record: RecordSequence, payload_bytes: u32) -> RecordHeader {
    RecordHeader {
        flags: Flags::FIRST,
        record,
        message: MessageId(record.0 + 1),
        name: MessageName::default(),
        offset: 0,
        total: u64::MAX,
        payload_bytes,
        envelope_bytes: 0,
    }
}

/// Both ends, the wire between them, and the model: which record owns which byte of memory.
struct Model {
    geometry: RingGeometry,
    sender: SenderRing,
    receiver: ReceiverRing,
    batch: CreditBatch,
    /// Records sent and not delivered.
    wire: VecDeque<(RecordSequence, u32, Placement, bool)>,
    /// Records delivered and not consumed.
    held: VecDeque<(RecordSequence, Placement, bool)>,
    credits: VecDeque<CreditPair>,
    owner: Vec<Option<u64>>,
    sent_messages: Vec<MessageId>,
    acknowledged: Vec<MessageId>,
}

impl Model {
    fn new(geometry: RingGeometry) -> Self {
        Self {
            geometry,
            sender: SenderRing::new(geometry),
            receiver: ReceiverRing::new(geometry),
            batch: CreditBatch::new(geometry.watermark_bytes()),
            wire: VecDeque::new(),
            held: VecDeque::new(),
            credits: VecDeque::new(),
            owner: vec![None; geometry.ring_bytes() as usize],
            sent_messages: Vec::new(),
            acknowledged: Vec::new(),
        }
    }

    fn bytes(&self, placement: &Placement) -> std::ops::Range<usize> {
        let start = placement.header(&self.geometry).0 as usize;
        start..start + (placement.end.since(placement.start)) as usize
    }

    fn send(&mut self, payload: u32, last: bool) -> bool {
        let record = self.sender.next_record();
        let message = last.then_some(MessageId(record.0));
        match self.sender.place(payload, message) {
            Ok(placement) => {
                for byte in self.bytes(&placement) {
                    assert_eq!(self.owner[byte].replace(record.0), None, "an unread byte was overwritten");
                }
                self.sent_messages.extend(message);
                self.wire.push_back((record, payload, placement, last));
                true
            }
            Err(Exceed::Bytes { missing, .. }) => {
                assert!(missing > 0);
                false
            }
            Err(Exceed::Messages) => panic!("so many messages do not fit in this ring"),
        }
    }

    fn deliver(&mut self) -> bool {
        let Some((record, payload, sent, last)) = self.wire.pop_front() else { return false };
        self.receiver.consumed(self.batch.head()).unwrap();
        self.receiver.check_immediate(record.immediate()).unwrap();
        let placement = self.receiver.admit(&header(record, payload)).unwrap();
        assert_eq!(placement, sent, "both sides compute the same place");
        self.held.push_back((record, placement, last));
        true
    }

    fn consume(&mut self) -> bool {
        let Some((record, placement, last)) = self.held.pop_front() else { return false };
        for byte in self.bytes(&placement) {
            assert_eq!(self.owner[byte].take(), Some(record.0), "a byte of a held record changed");
        }
        self.credits.extend(self.batch.consume(placement.end, last, self.receiver.tail()));
        true
    }

    fn credit(&mut self) -> bool {
        let Some(pair) = self.credits.pop_front() else { return false };
        self.sender.credit(pair).unwrap();
        self.acknowledged.extend(std::iter::from_fn(|| self.sender.next_acknowledged()));
        true
    }

    fn check(&self) {
        let (head, tail, delayed_head) = (self.batch.head(), self.sender.tail(), self.sender.delayed_head());
        production(tail, delayed_head, self.geometry.ring_bytes()).unwrap();
        consumption(head, tail).unwrap();
        lag(delayed_head, head).unwrap();
        consumption(self.receiver.head(), self.receiver.tail()).unwrap();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_ring_never_overwrites_and_never_stalls(geometry in geometries(FlowControl::On), steps in steps()) {
        let mut model = Model::new(geometry);
        let payload = |size: u8| (u64::from(geometry.chunk_bytes()) * u64::from(size) / 255) as u32;
        for step in steps {
            match step {
                Step::Send(size, last) => model.send(payload(size), last),
                Step::Deliver => model.deliver(),
                Step::Consume => model.consume(),
                Step::Credit => model.credit(),
            };
            model.check();
        }
        // Once all records are consumed and all credit has arrived, there is room for the largest record.
        while model.deliver() || model.consume() || model.credit() {
            model.check();
        }
        prop_assert!(model.send(geometry.chunk_bytes(), true), "the link stalled");
        while model.deliver() || model.consume() || model.credit() {
            model.check();
        }
        prop_assert_eq!(model.acknowledged, model.sent_messages, "all are acknowledged, once, in order");
        prop_assert_eq!(model.sender.delayed_head(), model.sender.tail(), "no credit is withheld after a message");
    }

    /// Compares the thesis' two cases on offsets, with the bytes in use to distinguish full from empty, with our single comparison.
    #[test]
    fn the_check_on_positions_equals_the_thesis_check_on_offsets(
        geometry in geometries(FlowControl::On), lap in 0_u64..3, head in any::<u64>(), used in any::<u64>(), size in any::<u8>(),
    ) {
        let (ring, alignment) = (geometry.ring_bytes(), u64::from(geometry.options().alignment));
        let head = lap * ring + head % (ring / alignment) * alignment;
        let used = used % (ring / alignment + 1) * alignment;
        let mut sender = ring_at(geometry, head, used);
        let payload = (u64::from(geometry.chunk_bytes()) * u64::from(size) / 255) as u32;
        let bytes = geometry.record_bytes(payload);
        let (x, y) = ((head + used) % ring, head % ring);
        let linear = used == 0 || (y < x && used < ring);
        let fits = if linear {
            // Free: [x, ring) and [0, y). A record that does not fit before the end of memory goes to its start.
            x + bytes <= ring || bytes <= y
        } else {
            // Free: [x, y); nothing if the ring is full.
            x + bytes <= y
        };
        prop_assert_eq!(sender.place(payload, None).is_ok(), fits);
    }

    #[test]
    fn without_flow_control_a_record_is_used_only_while_it_is_whole(
        geometry in geometries(FlowControl::Off), sizes in prop::collection::vec(any::<u8>(), 1..200), lag in 0_usize..30,
    ) {
        let mut sender = SenderRing::new(geometry);
        let mut receiver = ReceiverRing::new(geometry);
        let mut owner = vec![None; geometry.ring_bytes() as usize];
        let mut landed = VecDeque::new();
        for size in sizes {
            let payload = (u64::from(geometry.chunk_bytes()) * u64::from(size) / 255) as u32;
            let record = sender.next_record();
            let placement = sender.place(payload, None).unwrap();
            prop_assert_eq!(receiver.admit(&header(record, payload)).unwrap(), placement);
            let start = placement.header(&geometry).0 as usize;
            let range = start..start + placement.end.since(placement.start) as usize;
            owner[range.clone()].fill(Some(record));
            landed.push_back((record, placement, range));
            if landed.len() > lag {
                let (record, placement, range) = landed.pop_front().unwrap();
                if is_intact(&geometry, placement.start, receiver.tail()) {
                    prop_assert!(owner[range].iter().all(|byte| *byte == Some(record)), "a torn record was believed");
                }
            }
        }
    }
}

/// A ring whose tail is `used` bytes ahead of its delayed head, which is at `head`. Built in steps of one header.
fn ring_at(geometry: RingGeometry, head: u64, used: u64) -> SenderRing {
    let mut ring = SenderRing::new(geometry);
    while ring.tail().value() < head + used {
        let credited = ring.tail().value().min(head);
        ring.credit(CreditPair::new(Position::new(credited))).unwrap();
        ring.place(0, None).unwrap();
    }
    ring.credit(CreditPair::new(Position::new(head))).unwrap();
    ring
}

/// One thing that a sender can do with its messages.
#[derive(Clone, Copy, Debug)]
enum Send {
    Begin { total: u16, envelope: u8, first: u8 },
    Go { which: u8, bytes: u8 },
    Abort { which: u8 },
}

fn sends() -> impl Strategy<Value = Vec<Send>> {
    let send = prop_oneof![
        2 => (0_u16..600, any::<u8>(), any::<u8>()).prop_map(|(total, envelope, first)| Send::Begin { total, envelope, first }),
        6 => (any::<u8>(), any::<u8>()).prop_map(|(which, bytes)| Send::Go { which, bytes }),
        1 => any::<u8>().prop_map(|which| Send::Abort { which }),
    ];
    prop::collection::vec(send, 1..200)
}

/// The headers of these sends' records; at most 64 messages are open at a time.
fn cut(sends: &[Send]) -> Vec<RecordHeader> {
    let geometry = RingGeometry::new(RingOptions::default()).unwrap();
    let bytes = [0_u8; 1024];
    let mut open: Vec<(MessageHead, u64)> = Vec::new();
    let mut headers = Vec::new();
    let mut next_id = 1;
    for send in sends {
        let record = match *send {
            Send::Begin { total, envelope, first } if open.len() < 64 => {
                let head =
                    MessageHead { id: MessageId(next_id), name: MessageName::default(), total: u64::from(total) };
                next_id += 1;
                let first = u64::from(first).min(head.total);
                open.push((head, first));
                head.first(&bytes[..usize::from(envelope)], &bytes[..first as usize])
            }
            Send::Go { which, bytes: wanted } if !open.is_empty() => {
                let index = usize::from(which) % open.len();
                let (head, done) = &mut open[index];
                let from = *done;
                let wanted = u64::from(wanted).max(1).min(head.total - from);
                *done += wanted;
                head.part(from, &bytes[..wanted as usize])
            }
            Send::Abort { which } if !open.is_empty() => {
                let index = usize::from(which) % open.len();
                let (head, done) = open.swap_remove(index);
                head.abort(done)
            }
            _ => continue,
        };
        headers.push(record.header(RecordSequence(headers.len() as u64), &geometry).unwrap());
        open.retain(|(head, done)| *done < head.total);
    }
    headers
}

/// A message at the receiver: bytes so far, and whether and how it ended.
#[derive(Debug, Default, PartialEq, Eq)]
struct Seen {
    total: u64,
    bytes: u64,
    envelope: u64,
    ended: bool,
    aborted: bool,
}

fn observe(assembler: &mut Assembler, header: &RecordHeader, seen: &mut std::collections::BTreeMap<MessageId, Seen>) {
    let payload = RingSpan { offset: RingOffset(64), bytes: u64::from(header.payload_bytes) };
    for event in assembler.push(header, payload).unwrap() {
        match event {
            Event::Begin { message, total, envelope, .. } => {
                assert_eq!(envelope.offset, payload.offset);
                let seen = seen.insert(message, Seen { total, envelope: envelope.bytes, ..Seen::default() });
                assert_eq!(seen, None, "a message begins once");
            }
            Event::Data { message, offset, span } => {
                let seen = seen.get_mut(&message).expect("data follow a beginning");
                assert!(!seen.ended && !seen.aborted && offset == seen.bytes);
                assert!(span.offset.0 + span.bytes == payload.offset.0 + payload.bytes, "the data end the payload");
                seen.bytes += span.bytes;
            }
            Event::End { message } => {
                let seen = seen.get_mut(&message).expect("an end follows a beginning");
                assert!(seen.bytes == seen.total && !seen.aborted && !std::mem::replace(&mut seen.ended, true));
            }
            Event::Aborted { message, .. } => {
                let seen = seen.get_mut(&message).expect("an abort follows a beginning");
                assert!(!seen.ended && !std::mem::replace(&mut seen.aborted, true));
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn interleaved_messages_are_assembled_unchanged(sends in sends()) {
        let mut assembler = Assembler::new(AssemblerOptions::default());
        let mut seen = Default::default();
        let headers = cut(&sends);
        let mut expected: std::collections::BTreeMap<MessageId, Seen> = Default::default();
        for header in &headers {
            observe(&mut assembler, header, &mut seen);
            let model = expected.entry(header.message).or_insert(Seen { total: header.total, ..Seen::default() });
            model.bytes += u64::from(header.data_bytes());
            model.envelope += u64::from(header.envelope_bytes);
            model.ended |= header.flags.contains(Flags::LAST);
            model.aborted |= header.flags.contains(Flags::ABORT);
        }
        let open = expected.values().filter(|model| !model.ended && !model.aborted).count();
        prop_assert_eq!(seen, expected);
        prop_assert_eq!(assembler.partial(), open);
        prop_assert_eq!(assembler.abandon().count(), open);
    }

    #[test]
    fn lost_records_never_make_a_whole_message(sends in sends(), lost in prop::collection::vec(any::<bool>(), 200)) {
        let options = AssemblerOptions { continuity: Continuity::Lossy, ..AssemblerOptions::default() };
        let mut assembler = Assembler::new(options);
        let mut seen = Default::default();
        let mut harmed = std::collections::BTreeSet::new();
        for (header, lost) in cut(&sends).iter().zip(lost) {
            if lost {
                harmed.insert(header.message);
            } else {
                observe(&mut assembler, header, &mut seen);
            }
        }
        for (message, seen) in seen {
            prop_assert!(!(seen.ended && harmed.contains(&message)), "message {} lost a record and ended", message.0);
        }
    }
}
