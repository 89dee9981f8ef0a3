//! The contract suite of links, which every transport passes. A transport adds one line, `contract_suite!(its_fixture())`,
//! or `contract_suite!(its_fixture(), needs "an RDMA device")` if its tests cannot run everywhere: they are ignored then unless asked for.
//!
//! The suite uses only the traits. The transport's `Fixture` provides a connected pair and a peer that sends false credit. Nothing here
//! sleeps; every wait fails after WATCHDOG.

#![allow(clippy::unwrap_used, clippy::expect_used)] // A test suite, compiled as a library for other crates.

use std::any::Any;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rgaps_os::Mapping;

use crate::assemble::{AbortReason, Assembler, AssemblerOptions, Continuity, Event};
use crate::credit::CreditPair;
use crate::error::LinkError;
use crate::geometry::{FlowControl, RingOptions, Watermark};
use crate::link::{Landing, LandingPlace, LinkReceiver, LinkSender, Release};
use crate::position::{Position, RingSpan};
use crate::record::{MessageHead, MessageId, MessageName, RecordHeader};

/// The longest wait of the suite.
pub const WATCHDOG: Duration = Duration::from_secs(30);

/// Two connected ends, and what must live as long as they do.
pub struct Pair {
    /// The sending end.
    pub sender: Box<dyn LinkSender>,
    /// The receiving end.
    pub receiver: Box<dyn LinkReceiver>,
    /// Threads, listeners.
    pub keep: Box<dyn Any + Send>,
}

/// What a transport provides for the suite.
pub trait Fixture {
    /// Two ends connected by a ring of that shape.
    fn pair(&self, options: RingOptions) -> Pair;

    /// A sender whose peer never reads its ring, and sends this credit once, after the first record.
    fn sender_with_lying_peer(
        &self,
        options: RingOptions,
        lie: CreditPair,
    ) -> (Box<dyn LinkSender>, Box<dyn Any + Send>);
}

/// Adds the suite for a fixture as tests of the calling module. A transport that supports links without flow control adds their tests by a
/// second line.
#[macro_export]
macro_rules! contract_suite {
    ($fixture:expr) => {
        $crate::contract_suite!($fixture, #[test]);
    };
    ($fixture:expr, needs $what:literal) => {
        $crate::contract_suite!($fixture, #[test] #[ignore = $what]);
    };
    ($fixture:expr, $(#[$attribute:meta])+) => {
        $crate::contract_suite!(@ $fixture, $(#[$attribute])+;
            messages_arrive_in_order_and_unharmed_whatever_their_size
            a_message_larger_than_the_ring_streams_through
            every_watermark_keeps_the_link_alive
            small_messages_batch_their_credit
            withheld_credit_is_sent_once_when_it_is_flushed
            messages_interleave_and_an_abort_frees_only_its_own
            consumed_messages_are_acknowledged_once_and_in_order
            a_full_ring_has_no_room_until_the_receiver_releases
            a_wait_for_a_receiver_that_never_releases_ends_with_the_reason
            several_arrivals_may_be_held_and_are_released_in_order
            data_land_where_the_consumer_says_or_stay_in_the_ring
            a_receiver_that_reads_ahead_loses_nothing_and_keeps_within_its_ring
            a_sender_that_closes_ends_the_stream_behind_its_last_record
            a_receiver_that_closes_is_seen_by_the_sender
            a_credit_beyond_what_was_sent_is_refused
            a_torn_credit_is_refused
            an_invalid_record_is_the_callers_error_and_keeps_the_link
            an_idle_link_times_out_without_an_error
        );
    };
    ($fixture:expr, without_flow_control) => {
        $crate::contract_suite!(@ $fixture, #[test];
            without_flow_control_the_sender_never_waits_and_no_torn_byte_is_used
        );
    };
    (@ $fixture:expr, $(#[$attribute:meta])+; $($name:ident)*) => {
        $crate::contract_suite!(@@ $fixture, { $(#[$attribute])+ }; $($name)*);
    };
    (@@ $fixture:expr, $attributes:tt; $($name:ident)*) => {
        $($crate::contract_suite!(@@@ $fixture, $attributes; $name);)*
    };
    (@@@ $fixture:expr, { $(#[$attribute:meta])+ }; $name:ident) => {
        $(#[$attribute])+
        fn $name() {
            $crate::contract::$name(&$fixture);
        }
    };
}

fn small_ring() -> RingOptions {
    RingOptions { ring_bytes: 64 << 10, chunk_bytes: 8 << 10, ..RingOptions::default() }
}

/// A reproducible pseudo-random number: splitmix64.
fn mix(seed: u64) -> u64 {
    let a = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let b = (a ^ (a >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let c = (b ^ (b >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    c ^ (c >> 31)
}

/// The content of message `id`: a function of id and offset.
fn content(id: u64, bytes: u64) -> Vec<u8> {
    (0..bytes).map(|i| mix(id ^ (i / 8) << 20).to_le_bytes()[(i % 8) as usize]).collect()
}

fn head(id: u64, total: u64) -> MessageHead {
    MessageHead { id: MessageId(id), name: MessageName { publisher: 42, sequence: id }, total }
}

fn envelope(id: u64) -> Vec<u8> {
    format!("message {id}").into_bytes()
}

/// Sends a message in chunks: waits for room, and until its bytes may be reused.
fn send(sender: &mut dyn LinkSender, id: u64, data: &[u8]) -> Result<(), LinkError> {
    let (head, envelope) = (head(id, data.len() as u64), envelope(id));
    let chunk = sender.geometry().chunk_bytes() as usize;
    let first = data.len().min(chunk - envelope.len());
    let mut records = vec![head.first(&envelope, &data[..first])];
    let mut offset = first;
    for part in data[first..].chunks(chunk) {
        records.push(head.part(offset as u64, part));
        offset += part.len();
    }
    let mut rest = &records[..];
    while !rest.is_empty() {
        let posted = sender.post(rest)?;
        rest = &rest[posted..];
        if let Some(record) = rest.first() {
            let (envelope, data) = record.payload();
            sender.wait_for_room((envelope.len() + data.len()) as u32, WATCHDOG)?;
        }
    }
    let start = Instant::now();
    while sender.progress()?.reusable.0 < sender.counters().records {
        assert!(start.elapsed() < WATCHDOG, "the transport keeps the bytes");
        sender.wait(WATCHDOG, &[])?;
    }
    Ok(())
}

#[derive(Debug, PartialEq, Eq)]
struct Received {
    id: u64,
    envelope: Vec<u8>,
    data: Vec<u8>,
}

/// A consumer like the manager: copies, releases, and uses only intact records.
struct Consumer<'a> {
    receiver: &'a mut dyn LinkReceiver,
    assembler: Assembler,
    partial: Vec<(MessageId, Received)>,
    done: Vec<Received>,
    aborted: Vec<(MessageId, AbortReason)>,
    torn: u64,
    landing: Option<Places>,
}

/// Memory for messages with odd ids.
struct Places {
    memory: Arc<Mapping>,
    message_bytes: u64,
    envelope: Vec<u8>,
}

impl Places {
    fn offset(&self, header: &RecordHeader) -> u64 {
        header.message.0 * self.message_bytes + header.offset
    }
}

impl Landing for Places {
    fn place(&mut self, header: &RecordHeader, _: RingSpan, envelope: &[u8]) -> Option<LandingPlace> {
        self.envelope = envelope.to_vec();
        let place = LandingPlace { memory: self.memory.clone().into(), offset: self.offset(header) };
        (header.message.0 % 2 == 1).then_some(place)
    }
}

impl<'a> Consumer<'a> {
    fn new(receiver: &'a mut dyn LinkReceiver) -> Self {
        let continuity = match receiver.geometry().flow_control() {
            FlowControl::On => Continuity::Reliable,
            FlowControl::Off => Continuity::Lossy,
        };
        let assembler = Assembler::new(AssemblerOptions { continuity, ..AssemblerOptions::default() });
        Self { receiver, assembler, partial: Vec::new(), done: Vec::new(), aborted: Vec::new(), torn: 0, landing: None }
    }

    /// Consumes one record; `false` after a time-out.
    fn step(&mut self) -> Result<bool, LinkError> {
        let record = match &mut self.landing {
            Some(landing) => self.receiver.next_into(WATCHDOG, landing)?,
            None => self.receiver.next(WATCHDOG)?,
        };
        let Some(record) = record else { return Ok(false) };
        let (header, span) = (*record.header(), record.payload());
        let mut copy = vec![0; span.bytes as usize];
        match self.landing.as_ref().filter(|_| record.has_landed()) {
            Some(places) => {
                let (envelope, data) = copy.split_at_mut(header.envelope_bytes as usize);
                envelope.copy_from_slice(&places.envelope);
                places.memory.copy_out(places.offset(&header), data).expect("it is in there");
            }
            None => self.receiver.copy_out(&record, 0, &mut copy)?,
        }
        if self.receiver.release(record)? == Release::Torn {
            self.torn += 1;
            return Ok(true);
        }
        let at = |span_offset: u64| (span_offset - span.offset.0) as usize;
        for event in self.assembler.push(&header, span).expect("the sender is honest") {
            match event {
                Event::Begin { message, total, envelope, .. } => {
                    let envelope = copy[at(envelope.offset.0)..][..envelope.bytes as usize].to_vec();
                    let data = vec![0; total as usize];
                    self.partial.push((message, Received { id: message.0, envelope, data }));
                }
                Event::Data { message, offset, span } => {
                    let from = &copy[at(span.offset.0)..][..span.bytes as usize];
                    let (_, received) = self.partial.iter_mut().find(|(id, _)| *id == message).unwrap();
                    received.data[offset as usize..][..from.len()].copy_from_slice(from);
                }
                Event::End { message } => {
                    let received = self.remove(message);
                    self.done.extend(received);
                }
                Event::Aborted { message, reason } => {
                    self.remove(message);
                    self.aborted.push((message, reason));
                }
            }
        }
        Ok(true)
    }

    fn remove(&mut self, message: MessageId) -> Option<Received> {
        let index = self.partial.iter().position(|(id, _)| *id == message)?;
        Some(self.partial.swap_remove(index).1)
    }

    /// Consumes everything until the sender closes.
    fn run_to_end(mut self) -> Self {
        loop {
            match self.step() {
                Ok(progress) => assert!(progress, "nothing came"),
                Err(LinkError::Closed { by_peer: true }) => return self,
                Err(error) => panic!("{error}"),
            }
        }
    }
}

/// Sends messages of these sizes from a thread and receives them here.
fn exchange(fixture: &dyn Fixture, options: RingOptions, sizes: &[u64]) -> Pair {
    let mut pair = fixture.pair(options);
    thread::scope(|scope| {
        let sender = &mut pair.sender;
        scope.spawn(move || {
            for (id, size) in (1..).zip(sizes) {
                send(sender.as_mut(), id, &content(id, *size)).unwrap();
            }
            sender.drain(WATCHDOG).unwrap();
            sender.close();
        });
        let consumer = Consumer::new(pair.receiver.as_mut()).run_to_end();
        assert_eq!(consumer.done.len(), sizes.len());
        for ((id, size), received) in (1..).zip(sizes).zip(&consumer.done) {
            assert!(received.id == id && received.envelope == envelope(id), "message {id} is another");
            assert!(received.data == content(id, *size), "message {id} of {size} B differs");
        }
    });
    pair
}

/// Sizes from 0 to several chunks, around every boundary, over many laps.
pub fn messages_arrive_in_order_and_unharmed_whatever_their_size(fixture: &dyn Fixture) {
    let chunk = 8 << 10;
    let mut sizes = vec![0, 1, 63, 64, 65, chunk - 64, chunk - 10, chunk - 9, chunk - 1, chunk, chunk + 1, 3 * chunk];
    sizes.extend((0..300).map(|i| mix(i) % (1 + (mix(i + 1000) % (5 * chunk)))));
    let pair = exchange(fixture, small_ring(), &sizes);
    let (sent, received) = (pair.sender.counters(), pair.receiver.counters());
    assert_eq!((sent.records, sent.bytes), (received.records, received.bytes));
    assert_eq!(sent.messages, sizes.len() as u64);
    assert_eq!(sent.payload_copies + received.payload_copies, 0);
    assert_eq!(received.torn, 0);
}

/// Forty times the ring.
pub fn a_message_larger_than_the_ring_streams_through(fixture: &dyn Fixture) {
    exchange(fixture, small_ring(), &[40 * (64 << 10) + 17]);
}

/// The largest chunk that each watermark allows.
pub fn every_watermark_keeps_the_link_alive(fixture: &dyn Fixture) {
    for watermark in Watermark::ALL {
        let ring_bytes = 64 << 10;
        let chunk_bytes = ((ring_bytes - watermark.bytes(ring_bytes)) / 2 - 64) as u32;
        let options = RingOptions { ring_bytes, chunk_bytes, watermark, ..RingOptions::default() };
        exchange(fixture, options, &[1, 5 * ring_bytes, u64::from(chunk_bytes), 3, 200_000, 0]);
    }
}

/// A large watermark sends fewer credits than a small one, and both send enough.
pub fn small_messages_batch_their_credit(fixture: &dyn Fixture) {
    let records = 64;
    let credits = |watermark| {
        let options = RingOptions { ring_bytes: 1 << 20, chunk_bytes: 1 << 10, watermark, ..RingOptions::default() };
        let mut pair = fixture.pair(options);
        let data = content(1, records << 10);
        send(pair.sender.as_mut(), 1, &data).unwrap();
        // Hold all records before releasing any, so that the ring is empty only once.
        let mut held = Vec::new();
        while held.len() <= records as usize {
            held.push(pair.receiver.next(WATCHDOG).unwrap().expect("a record"));
        }
        for record in held {
            assert_eq!(pair.receiver.release(record).unwrap(), Release::Intact);
        }
        pair.sender.drain(WATCHDOG).unwrap();
        pair.receiver.counters().credits_sent
    };
    assert_eq!(credits(Watermark::Zero), records + 1);
    assert_eq!(credits(Watermark::Half), 1);
}

/// In the middle of a message a receiver withholds credit below the watermark.
pub fn withheld_credit_is_sent_once_when_it_is_flushed(fixture: &dyn Fixture) {
    let mut pair = fixture.pair(RingOptions { watermark: Watermark::Half, ..small_ring() });
    let head = head(1, 2000);
    assert_eq!(pair.sender.post(&[head.first(b"", &[0; 1000])]).unwrap(), 1);
    let record = pair.receiver.next(WATCHDOG).unwrap().expect("a record");
    assert_eq!(pair.receiver.release(record).unwrap(), Release::Intact);
    assert_eq!(pair.receiver.counters().credits_sent, 0);
    pair.receiver.flush_credit();
    pair.receiver.flush_credit();
    assert_eq!(pair.receiver.counters().credits_sent, 1);
    let start = Instant::now();
    loop {
        let progress = pair.sender.progress().unwrap();
        if progress.delayed_head == progress.tail {
            break;
        }
        assert!(start.elapsed() < WATCHDOG, "{progress:?}");
        pair.sender.wait(WATCHDOG, &[]).unwrap();
    }
}

/// Three interleaved messages; the sender aborts the middle one.
pub fn messages_interleave_and_an_abort_frees_only_its_own(fixture: &dyn Fixture) {
    let mut pair = fixture.pair(small_ring());
    let bodies: Vec<_> = (1..=3).map(|id| content(id, 3000)).collect();
    let heads: Vec<_> = (1..=3).map(|id| head(id, 3000)).collect();
    let sender = pair.sender.as_mut();
    let mut records: Vec<_> = (0..3).map(|i| heads[i].first(b"", &[])).collect();
    records.extend((0..3).map(|i| heads[i].part(0, &bodies[i][..1000])));
    records.push(heads[1].abort(1000));
    records.extend([2, 0].map(|i| heads[i].part(1000, &bodies[i][1000..])));
    assert_eq!(sender.post(&records).unwrap(), records.len());
    sender.close();
    let consumer = Consumer::new(pair.receiver.as_mut()).run_to_end();
    assert_eq!(consumer.aborted, [(MessageId(2), AbortReason::Sender)]);
    assert_eq!(consumer.done.iter().map(|received| received.id).collect::<Vec<_>>(), [3, 1]);
    assert!(consumer.done[0].data == bodies[2] && consumer.done[1].data == bodies[0]);
    assert_eq!(consumer.assembler.partial(), 0);
}

/// Acknowledged means consumed whole; an aborted message is not acknowledged.
pub fn consumed_messages_are_acknowledged_once_and_in_order(fixture: &dyn Fixture) {
    let mut pair = fixture.pair(RingOptions { watermark: Watermark::Zero, ..small_ring() });
    let heads: Vec<_> = (1..=3).map(|id| head(id, 10)).collect();
    let records =
        [heads[0].first(b"", &[0; 10]), heads[1].first(b"", &[0; 4]), heads[1].abort(4), heads[2].first(b"", &[0; 10])];
    assert_eq!(pair.sender.post(&records).unwrap(), 4);
    assert_eq!(pair.sender.next_acknowledged(), None);
    assert_eq!(pair.sender.unacknowledged(), 2);
    let mut consumer = Consumer::new(pair.receiver.as_mut());
    for _ in 0..4 {
        assert!(consumer.step().unwrap());
    }
    pair.sender.drain(WATCHDOG).unwrap();
    let acknowledged: Vec<_> = std::iter::from_fn(|| pair.sender.next_acknowledged()).collect();
    assert_eq!(acknowledged, [MessageId(1), MessageId(3)]);
    assert_eq!(pair.sender.unacknowledged(), 0);
}

/// Production integrity, seen by the caller.
pub fn a_full_ring_has_no_room_until_the_receiver_releases(fixture: &dyn Fixture) {
    let mut pair = fixture.pair(small_ring());
    let data = content(1, 8 << 10);
    let head = head(1, 1 << 30);
    let mut posted = pair.sender.post(&[head.first(b"", &data)]).unwrap();
    let mut offset = data.len() as u64;
    while posted == 1 {
        posted = pair.sender.post(&[head.part(offset, &data)]).unwrap();
        offset += data.len() as u64;
    }
    assert!(!pair.sender.room_for(8 << 10));
    let error = pair.sender.wait_for_room(8 << 10, Duration::from_millis(1)).unwrap_err();
    assert!(matches!(error, LinkError::NoCredit { .. }) && !error.is_fatal(), "{error}");
    let mut consumer = Consumer::new(pair.receiver.as_mut());
    while !pair.sender.room_for(8 << 10) {
        assert!(consumer.step().unwrap());
        pair.sender.progress().unwrap();
        if consumer.receiver.counters().credits_sent > 0 {
            pair.sender.wait_for_room(8 << 10, WATCHDOG).unwrap();
        }
    }
    assert_eq!(pair.sender.post(&[head.part(offset - data.len() as u64, &data)]).unwrap(), 1);
}

/// A wait for a peer that never returns credit ends, with a text that says why.
pub fn a_wait_for_a_receiver_that_never_releases_ends_with_the_reason(fixture: &dyn Fixture) {
    let mut pair = fixture.pair(small_ring());
    let data = content(1, 8 << 10);
    for id in 1.. {
        if pair.sender.post(&[head(id, 8 << 10).first(b"", &data)]).unwrap() == 0 {
            break;
        }
    }
    let text = pair.sender.wait_for_room(8 << 10, Duration::from_millis(5)).unwrap_err().to_string();
    assert!(text.contains("released") && text.contains("enlarge the ring"), "{text}");
    let error = pair.sender.drain(Duration::from_millis(5)).unwrap_err();
    assert!(matches!(error, LinkError::NotDrained { .. }), "{error}");
}

/// Copies of several records may be under way.
pub fn several_arrivals_may_be_held_and_are_released_in_order(fixture: &dyn Fixture) {
    let mut pair = fixture.pair(small_ring());
    send(pair.sender.as_mut(), 1, &content(1, 20_000)).unwrap();
    let first = pair.receiver.next(WATCHDOG).unwrap().unwrap();
    let second = pair.receiver.next(WATCHDOG).unwrap().unwrap();
    assert!(first.placement().end <= second.placement().start);
    let error = pair.receiver.release(second).unwrap_err();
    assert!(matches!(error, LinkError::ReleaseOrder { .. }) && !error.is_fatal(), "{error}");
    assert_eq!(pair.receiver.release(first).unwrap(), Release::Intact);
}

/// Half of the messages have a place outside the ring, the other half have none.
pub fn data_land_where_the_consumer_says_or_stay_in_the_ring(fixture: &dyn Fixture) {
    let mut pair = fixture.pair(small_ring());
    let (message_bytes, messages) = (64 << 10, 60);
    let size = |id| if id < 5 { id } else { mix(id) % message_bytes };
    thread::scope(|scope| {
        let sender = &mut pair.sender;
        scope.spawn(move || {
            for id in 1..=messages {
                send(sender.as_mut(), id, &content(id, size(id))).unwrap();
            }
            sender.drain(WATCHDOG).unwrap();
            sender.close();
        });
        let memory = Arc::new(Mapping::anonymous((messages + 1) * message_bytes).unwrap());
        let mut consumer = Consumer::new(pair.receiver.as_mut());
        consumer.landing = Some(Places { memory, message_bytes, envelope: Vec::new() });
        let consumer = consumer.run_to_end();
        assert_eq!(consumer.done.len(), messages as usize);
        for (id, received) in (1..).zip(&consumer.done) {
            assert!(received.id == id && received.envelope == envelope(id), "message {id} is another");
            assert!(received.data == content(id, size(id)), "message {id} differs");
        }
    });
}

/// A consumer that is busy lets the receiver read ahead. The sender keeps within its credit, and all records are there afterwards, in order.
pub fn a_receiver_that_reads_ahead_loses_nothing_and_keeps_within_its_ring(fixture: &dyn Fixture) {
    let mut pair = fixture.pair(small_ring());
    let data = content(1, 8 << 10);
    let mut id = 0;
    while pair.sender.post(&[head(id + 1, 8 << 10).first(b"", &data)]).unwrap() == 1 {
        id += 1;
        pair.receiver.read_ahead();
    }
    for expected in 1..=id {
        pair.receiver.read_ahead();
        let record = pair.receiver.next(WATCHDOG).unwrap().expect("a record");
        assert_eq!(record.header().message, MessageId(expected));
        let mut copy = vec![0; data.len()];
        pair.receiver.copy_out(&record, 0, &mut copy).unwrap();
        assert!(copy == data, "message {expected} differs");
        assert_eq!(pair.receiver.release(record).unwrap(), Release::Intact);
    }
    pair.sender.drain(WATCHDOG).unwrap();
}

/// Everything posted arrives, then every call reports the end.
pub fn a_sender_that_closes_ends_the_stream_behind_its_last_record(fixture: &dyn Fixture) {
    let mut pair = fixture.pair(small_ring());
    send(pair.sender.as_mut(), 1, &content(1, 100)).unwrap();
    pair.sender.close();
    pair.sender.close();
    assert_eq!(pair.sender.post(&[]), Err(LinkError::Closed { by_peer: false }));
    let consumer = Consumer::new(pair.receiver.as_mut()).run_to_end();
    assert_eq!(consumer.done.len(), 1);
    assert!(matches!(pair.receiver.next(WATCHDOG), Err(LinkError::Closed { by_peer: true })));
}

/// The sender notices the close at the latest when it waits.
pub fn a_receiver_that_closes_is_seen_by_the_sender(fixture: &dyn Fixture) {
    let mut pair = fixture.pair(small_ring());
    send(pair.sender.as_mut(), 1, &content(1, 100)).unwrap();
    let record = pair.receiver.next(WATCHDOG).unwrap().unwrap();
    pair.receiver.close();
    pair.receiver.close();
    assert_eq!(pair.receiver.release(record).unwrap(), Release::Intact);
    assert!(matches!(pair.receiver.next(WATCHDOG), Err(LinkError::Closed { by_peer: false })));
    let error = loop {
        if let Err(error) = pair.sender.progress() {
            break error;
        }
        let wake = pair.sender.wait(WATCHDOG, &[]).unwrap();
        assert!(wake.link, "the sender noticed nothing");
    };
    assert!(matches!(error, LinkError::Closed { by_peer: true } | LinkError::Broken { .. }), "{error}");
    assert_eq!(pair.sender.post(&[]).unwrap_err(), error, "the error stays");
}

fn lied_to(fixture: &dyn Fixture, lie: CreditPair) -> LinkError {
    let (mut sender, _keep) = fixture.sender_with_lying_peer(small_ring(), lie);
    sender.post(&[head(1, 100).first(b"", &[0; 100])]).unwrap();
    loop {
        if let Err(error) = sender.progress() {
            assert_eq!(sender.progress(), Err(error.clone()), "the error stays");
            return error;
        }
        assert!(sender.wait(WATCHDOG, &[]).unwrap().link, "the lie never came");
    }
}

/// Lag integrity: the receiver cannot have consumed bytes that were not sent.
pub fn a_credit_beyond_what_was_sent_is_refused(fixture: &dyn Fixture) {
    let error = lied_to(fixture, CreditPair::new(Position::new(1 << 20)));
    assert!(error.is_protocol_violation() && error.to_string().contains("runs ahead"), "{error}");
}

/// The two words must agree.
pub fn a_torn_credit_is_refused(fixture: &dyn Fixture) {
    let error = lied_to(fixture, CreditPair::from_words(64, 64));
    assert!(error.is_protocol_violation() && error.to_string().contains("torn"), "{error}");
}

/// A record too long, or outside its message, is an error, and the link stays usable.
pub fn an_invalid_record_is_the_callers_error_and_keeps_the_link(fixture: &dyn Fixture) {
    let mut pair = fixture.pair(small_ring());
    let good = head(1, 4).first(b"", b"good");
    let too_long = vec![0; (8 << 10) + 1];
    for bad in [head(2, 1 << 20).first(b"", &too_long), head(2, 3).first(b"", b"long"), head(2, 9).part(8, b"xx")] {
        let error = pair.sender.post(&[good, bad]).unwrap_err();
        assert!(matches!(error, LinkError::Unsendable(_)) && !error.is_fatal(), "{error}");
    }
    assert_eq!(pair.sender.post(&[good]).unwrap(), 1);
    pair.sender.close();
    assert_eq!(Consumer::new(pair.receiver.as_mut()).run_to_end().done.len(), 1);
}

/// Neither side treats silence as a failure.
pub fn an_idle_link_times_out_without_an_error(fixture: &dyn Fixture) {
    let mut pair = fixture.pair(small_ring());
    assert_eq!(pair.receiver.next(Duration::from_millis(2)).unwrap(), None);
    assert!(!pair.sender.wait(Duration::from_millis(2), &[]).unwrap().link);
    let readable = std::fs::File::open("/dev/zero").unwrap();
    let wake = pair.sender.wait(WATCHDOG, &[std::os::fd::AsFd::as_fd(&readable)]).unwrap();
    assert!(!wake.link && wake.others == 1);
}

/// Overwrites the ring many times while the consumer waits; every record that it then uses is whole. Hoang et al., RocketBufs, DEBS 2020,
/// section 3.3.
pub fn without_flow_control_the_sender_never_waits_and_no_torn_byte_is_used(fixture: &dyn Fixture) {
    let options = RingOptions { flow_control: FlowControl::Off, ..small_ring() };
    let mut pair = fixture.pair(options);
    let messages = 400;
    let (held_one, go) = std::sync::mpsc::channel();
    thread::scope(|scope| {
        let sender = &mut pair.sender;
        scope.spawn(move || {
            for id in 1..=messages {
                if id == 2 {
                    go.recv_timeout(WATCHDOG).unwrap();
                }
                send(sender.as_mut(), id, &content(id, 1 + mix(id) % 20_000)).unwrap();
            }
            assert_eq!(sender.counters().out_of_room, 0);
            sender.drain(WATCHDOG).unwrap();
            sender.close();
        });
        let held = pair.receiver.next(WATCHDOG).unwrap().expect("a record");
        held_one.send(()).unwrap();
        // Consume nothing until the held record has been overwritten.
        while pair.receiver.counters().bytes < 2 * options.ring_bytes {
            pair.receiver.read_ahead();
            thread::yield_now();
        }
        let mut torn = [0; 1];
        pair.receiver.copy_out(&held, 0, &mut torn).unwrap();
        assert_eq!(pair.receiver.release(held).unwrap(), Release::Torn);
        let consumer = Consumer::new(pair.receiver.as_mut()).run_to_end();
        assert!(!consumer.done.is_empty(), "the newest messages are still there");
        for received in &consumer.done {
            assert!(received.data == content(received.id, 1 + mix(received.id) % 20_000), "message {}", received.id);
        }
    });
    assert!(pair.receiver.counters().torn > 0);
    assert_eq!(pair.receiver.counters().credits_sent, 0);
    assert_eq!(pair.sender.next_acknowledged(), None);
}
