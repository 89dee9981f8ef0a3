//! Runs the contract on the rdma link, and tests failures that only verbs have. Needs an RDMA device, for example Soft-RoCE; without one
//! each test reports that it was skipped.

use std::any::Any;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

use rgaps_os::{Mapping, SharedBytes};

use crate::contract::{Fixture, Pair, WATCHDOG};
use crate::credit::CreditPair;
use crate::error::LinkError;
use crate::geometry::{RingGeometry, RingOptions, Watermark};
use crate::link::{LinkReceiver, LinkSender, Release};
use crate::memory::RingMemory;
use crate::rdma::{
    Candidate, Domain, RdmaOptions, RdmaReceiver, RdmaSender, ReceiverEnd, RingEnd, SenderEnd, TransferError, ports,
};
use crate::record::{Flags, MessageHead, MessageId, MessageName, RecordHeader, RecordSequence};

/// The two ends of a wire, or of one device.
pub(super) fn candidates() -> Result<(Candidate, Candidate), String> {
    let ports = ports().map_err(|error| format!("no RDMA device: {error}"))?;
    let mut usable = ports.iter().filter_map(|port| port.candidates().into_iter().next());
    let first = usable.next().ok_or_else(|| "no RDMA device".to_owned())?;
    let second = usable.next().unwrap_or_else(|| first.clone());
    Ok((first, second))
}

fn liveness_sockets() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (near, listener.accept().unwrap().0)
}

fn options(mut options: RingOptions) -> RingGeometry {
    // At most 8192 records, the receives of a software device.
    options.alignment = options.alignment.max(u32::try_from((options.ring_bytes / 8192).next_power_of_two()).unwrap());
    RingGeometry::new(options).unwrap()
}

pub(super) fn pair(ring: RingOptions) -> (RdmaSender, RdmaReceiver) {
    let (here, there) = candidates().unwrap();
    let geometry = options(ring);
    let memory = RingMemory::create("rgaps-test-ring", geometry.ring_bytes()).unwrap();
    let sender = SenderEnd::new(&Domain::open(&here.device).unwrap(), &here).unwrap();
    let domain = Domain::open(&there.device).unwrap();
    let peer = (&sender.address(), sender.credit());
    let receiver = ReceiverEnd::new(&domain, &there, &memory, geometry, peer, RdmaOptions::default()).unwrap();
    receiver.connect().unwrap();
    let (near, far) = liveness_sockets();
    let end = RingEnd {
        address: receiver.address(),
        memory: receiver.ring(),
        grants_from_bytes: receiver.grants_from_bytes(),
    };
    let sender = sender.connect(&end, geometry, near, RdmaOptions::default()).unwrap();
    (sender, receiver.start(far))
}

struct Verbs;

impl Fixture for Verbs {
    fn pair(&self, options: RingOptions) -> Pair {
        let (sender, receiver) = pair(options);
        Pair { sender: Box::new(sender), receiver: Box::new(receiver), keep: Box::new(()) }
    }

    fn sender_with_lying_peer(
        &self,
        options: RingOptions,
        lie: CreditPair,
    ) -> (Box<dyn LinkSender>, Box<dyn Any + Send>) {
        let (sender, mut receiver) = pair(options);
        let liar = std::thread::spawn(move || {
            let record = receiver.next(WATCHDOG).unwrap();
            receiver.lie(lie).unwrap();
            (receiver, record)
        });
        (Box::new(sender), Box::new(liar))
    }
}

crate::contract_suite!(Verbs, needs "an RDMA device (./dev test-rdma)");

/// Bytes that differ between messages and are cheap to make and check: a window of one block of noise.
pub(super) struct Noise(pub(super) Vec<u8>);

const NOISE_WINDOWS: u64 = 1 << 16;

impl Noise {
    pub(super) fn new(bytes: u64) -> Self {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let words = (bytes + NOISE_WINDOWS).div_ceil(8);
        let next = |_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_le_bytes()
        };
        Self((0..words).flat_map(next).collect())
    }

    pub(super) fn message(&self, id: u64, bytes: u64) -> &[u8] {
        let start = (id.wrapping_mul(7919) % NOISE_WINDOWS) as usize;
        &self.0[start..start + bytes as usize]
    }
}

pub(super) fn head(id: u64, total: u64) -> MessageHead {
    MessageHead { id: MessageId(id), name: MessageName { publisher: 1, sequence: id }, total }
}

/// Sends one message, chunk by chunk, and waits for room.
pub(super) fn send<'a>(sender: &mut RdmaSender, id: u64, data: impl Into<SharedBytes<'a>>) -> Result<(), LinkError> {
    let data = data.into();
    let chunk = sender.geometry().chunk_bytes() as usize;
    let head = head(id, data.len() as u64);
    let mut offset = 0;
    let mut is_first = true;
    while is_first || offset < data.len() {
        let part = data.part(offset, chunk.min(data.len() - offset)).unwrap();
        let record = if is_first { head.first(&[], part) } else { head.part(offset as u64, part) };
        sender.wait_for_room(part.len() as u32, WATCHDOG)?;
        if sender.post(&[record])? == 1 {
            (is_first, offset) = (false, offset + part.len());
        }
    }
    Ok(())
}

/// Receives until the link ends and checks every byte; returns the number of messages.
fn receive(receiver: &mut RdmaReceiver, noise: &Noise) -> (u64, LinkError) {
    let mut bytes = vec![0; receiver.geometry().chunk_bytes() as usize];
    let mut messages = 0;
    loop {
        let record = match receiver.next(WATCHDOG) {
            Ok(record) => record.expect("the sender goes on or ends"),
            Err(error) => return (messages, error),
        };
        let header = *record.header();
        let data = &mut bytes[..header.payload_bytes as usize];
        receiver.copy_out(&record, 0, data).unwrap();
        let whole = noise.message(header.message.0, header.total);
        assert!(whole[header.offset as usize..][..data.len()] == *data, "message {} differs", header.message.0);
        assert_eq!(header.message.0, messages + 1, "in order");
        messages += u64::from(header.ends_message());
        assert_eq!(receiver.release(record).unwrap(), Release::Intact);
    }
}

/// A random size whose logarithm is uniform between 1 B and `max`.
fn sizes(count: u64, max: u64) -> impl Iterator<Item = u64> {
    let mut state = 1_u64;
    (0..count).map(move |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let part = (state >> 40) as f64 / f64::from(1 << 24);
        ((max as f64).powf(part) as u64).clamp(1, max)
    })
}

fn exchange(options: RingOptions, sizes: Vec<u64>) {
    let (mut sender, mut receiver) = pair(options);
    let noise = Noise::new(sizes.iter().copied().max().unwrap_or(0));
    let memory = Arc::new(Mapping::anonymous(noise.0.len() as u64).unwrap());
    memory.copy_in(0, &noise.0).unwrap();
    sender.register(&memory.clone().into()).unwrap();
    let pool = memory.shared(0, noise.0.len() as u64).unwrap();
    let count = sizes.len() as u64;
    std::thread::scope(|scope| {
        let sender = &mut sender;
        scope.spawn(move || {
            for (id, bytes) in (1..).zip(sizes) {
                let start = (id * 7919 % NOISE_WINDOWS) as usize;
                send(sender, id, pool.part(start, bytes as usize).unwrap()).unwrap();
            }
            sender.drain(WATCHDOG).unwrap();
            sender.close();
        });
        assert_eq!(receive(&mut receiver, &noise), (count, LinkError::Closed { by_peer: true }));
    });
    let (sent, received) = (sender.counters(), receiver.counters());
    assert_eq!((sent.payload_copies, received.payload_copies, sent.registrations), (0, 0, 0));
    println!("{count} messages, {} records, {} B, {} credits", received.records, received.bytes, received.credits_sent);
}

#[test]
#[ignore = "needs an RDMA device (./dev test-rdma)"]
fn ten_thousand_messages_of_random_sizes_arrive_unharmed() {
    let count = if std::env::var_os("RDMA_VM").is_some() { 10_000 } else { 1000 };
    exchange(RingOptions { ring_bytes: 16 << 20, ..RingOptions::default() }, sizes(count, 4 << 20).collect());
}

#[test]
#[ignore = "needs an RDMA device (./dev test-rdma)"]
fn a_message_of_256_mib_passes_a_ring_of_16_mib() {
    exchange(RingOptions { ring_bytes: 16 << 20, ..RingOptions::default() }, vec![256 << 20]);
}

#[test]
#[ignore = "needs an RDMA device (./dev test-rdma)"]
fn records_of_awkward_sizes_wrap_unharmed() {
    for chunk_bytes in [8_000, 20_001, 24_000] {
        let options =
            RingOptions { ring_bytes: 64 << 10, chunk_bytes, watermark: Watermark::Eighth, ..RingOptions::default() };
        let lengths = (0..300_u64).map(|i| i * 977 % (3 * u64::from(chunk_bytes)) + 1);
        exchange(options, lengths.collect());
    }
}

/// Returns the receiver's error after the sender has written something invalid.
fn told(tell: impl FnOnce(&mut RdmaSender)) -> String {
    let (mut sender, mut receiver) =
        pair(RingOptions { ring_bytes: 64 << 10, chunk_bytes: 8 << 10, ..RingOptions::default() });
    tell(&mut sender);
    let error = receiver.next(WATCHDOG).unwrap_err();
    assert!(error.is_protocol_violation(), "{error}");
    assert_eq!(receiver.next(WATCHDOG), Err(error.clone()), "the error stays");
    error.to_string()
}

#[test]
#[ignore = "needs an RDMA device (./dev test-rdma)"]
fn a_sender_that_violates_the_protocol_is_disconnected_with_an_error() {
    let record = |number: u64, payload: u32| {
        let flags = Flags::FIRST;
        let (message, name) = (MessageId(1), MessageName { publisher: 1, sequence: 1 });
        let record = RecordSequence(number);
        RecordHeader {
            flags,
            record,
            message,
            name,
            offset: 0,
            total: 1 << 20,
            payload_bytes: payload,
            envelope_bytes: 0,
        }
        .encode()
    };
    let text = told(|sender| sender.write_raw(0, &[&record(0, 0)[..], &[0; 64]].concat(), Some(7)).unwrap());
    assert!(text.contains("immediate 0x00000007"), "{text}");
    let text = told(|sender| sender.write_raw(0, &[&record(0, 9)[..], &[0; 64]].concat(), Some(0)).unwrap());
    assert!(text.contains("says 73 B, but the peer wrote 128 B"), "{text}");
    let text = told(|sender| sender.write_raw(0, &[0xee; 128], Some(0)).unwrap());
    assert!(text.contains("magic"), "{text}");
    let text = told(|sender| sender.write_raw(0, &[1; 16], Some(0)).unwrap());
    assert!(text.contains("the peer wrote 16 B"), "{text}");
    let text = told(|sender| sender.write_raw(0, &[&record(5, 64)[..], &[0; 64]].concat(), Some(0)).unwrap());
    assert!(text.contains("record 5 where 0"), "{text}");
}

#[test]
#[ignore = "needs an RDMA device (./dev test-rdma)"]
fn a_write_beyond_the_ring_is_refused_by_the_device() {
    let (mut sender, _receiver) =
        pair(RingOptions { ring_bytes: 64 << 10, chunk_bytes: 8 << 10, ..RingOptions::default() });
    sender.write_raw((64 << 10) - 8, &[0; 64], Some(0)).unwrap();
    let error = loop {
        if let Err(error) = sender.progress() {
            break error;
        }
        sender.wait(WATCHDOG, &[]).unwrap();
    };
    assert_eq!(error, LinkError::Transfer(TransferError::RemoteAccess));
}

/// Runs `tc` of the virtual machine.
fn tc(words: &str) {
    assert!(Command::new("tc").args(words.split(' ')).status().unwrap().success(), "tc {words}");
}

#[test]
#[ignore = "needs the virtual machine of ./dev test-rdma"]
fn a_wait_for_memory_ends_when_records_complete_though_no_credit_comes() {
    let options = RingOptions { ring_bytes: 1 << 20, chunk_bytes: 64 << 10, ..RingOptions::default() };
    let (mut sender, _receiver) = pair(options);
    let data = Noise::new(64 << 10);
    // So that the record has not completed when the wait begins.
    tc("qdisc add dev wire_a root netem delay 300ms");
    let sent = send(&mut sender, 1, data.message(1, 1000));
    let (mut waits, mut is_woken) = (0, true);
    while is_woken && sender.progress().unwrap().reusable.0 == 0 {
        is_woken = sender.wait_for_reuse(WATCHDOG, &[]).unwrap().link;
        waits += 1;
    }
    tc("qdisc del dev wire_a root");
    sent.unwrap();
    assert!(waits > 0 && is_woken, "no completion wakes it");
}

#[test]
#[ignore = "needs the virtual machine of ./dev test-rdma"]
fn a_peer_that_acknowledges_nothing_ends_the_link_with_an_error() {
    let options = RingOptions { ring_bytes: 1 << 20, chunk_bytes: 64 << 10, ..RingOptions::default() };
    let (mut sender, _receiver) = pair(options);
    let data = Noise::new(64 << 10);
    send(&mut sender, 1, data.message(1, 1000)).unwrap();
    let sent = Instant::now();
    while sender.progress().unwrap().reusable.0 == 0 {
        assert!(sent.elapsed() < WATCHDOG, "the first message never completed");
        std::thread::yield_now();
    }
    tc("qdisc add dev wire_a root netem loss 100%");
    let start = Instant::now();
    let error = (2..).find_map(|id| send(&mut sender, id, data.message(id, 1000)).err()).unwrap();
    println!("reported after {:?}: {error}", start.elapsed());
    drop(sender);
    tc("qdisc del dev wire_a root");
    assert_eq!(error, LinkError::Transfer(TransferError::RetriesExceeded));
    exchange(options, vec![1 << 20]);
}

#[test]
#[ignore = "needs the virtual machine of ./dev test-rdma"]
fn a_port_that_goes_down_is_reported_and_a_new_link_works_once_it_is_up() {
    let ip = |state: &str| {
        let status = Command::new("ip").args(["link", "set", "wire_a", state]).status().unwrap();
        assert!(status.success());
    };
    let options = RingOptions { ring_bytes: 1 << 20, chunk_bytes: 64 << 10, ..RingOptions::default() };
    let (mut sender, _receiver) = pair(options);
    let data = Noise::new(64 << 10);
    send(&mut sender, 1, data.message(1, 1000)).unwrap();
    ip("down");
    let start = Instant::now();
    let error = (2..).find_map(|id| send(&mut sender, id, data.message(id, 1000)).err()).unwrap();
    assert!(matches!(error, LinkError::Transfer(_)), "{error}");
    println!("reported after {:?}: {error}", start.elapsed());
    drop(sender);
    ip("up");
    // `ip link set down` has removed these.
    for words in [
        "route replace 10.77.0.0/24 dev wire_a table 101",
        "neigh replace 10.77.0.2 lladdr 02:00:0a:4d:00:02 dev wire_a nud permanent",
    ] {
        assert!(Command::new("ip").args(words.split(' ')).status().unwrap().success());
    }
    let deadline = Instant::now() + WATCHDOG;
    while candidates().map_or(true, |(here, there)| here.device == there.device || here.gid.to_string().contains(':')) {
        assert!(Instant::now() < deadline, "the port is up again");
        std::thread::yield_now();
    }
    exchange(options, vec![5 << 20]);
}
