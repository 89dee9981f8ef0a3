//! Runs the contract on the tcp link, and tests failures that only sockets have: foreign peers, garbage, cuts, stalls.

use std::any::Any;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use crate::contract::{Fixture, Pair, WATCHDOG};
use crate::contract_suite;
use crate::credit::CreditPair;
use crate::error::LinkError;
use crate::geometry::{FlowControl, RingGeometry, RingOptions};
use crate::link::{Landing, LandingPlace, LinkReceiver, LinkSender, Release, RingRecord};
use crate::memory::RingMemory;
use crate::position::RingSpan;
use crate::record::{HEADER_BYTES, MessageHead, MessageId, MessageName, RecordError, RecordHeader, RecordSequence};
use crate::ring::AdmitError;
use crate::tcp::integrity::{credit_frame, sum};
use crate::tcp::{
    AcceptError, ConnectError, HELLO_BYTES, Hello, HelloError, LinkToken, RingSetup, TcpOptions, TcpReceiver,
    TcpRingListener, TcpSender, Verdict,
};

pub(super) struct Loopback;

contract_suite!(Loopback);
crate::contract_suite!(Loopback, without_flow_control);

pub(super) const TOKEN: LinkToken = LinkToken([9; 16]);

pub(super) fn listener() -> TcpRingListener {
    TcpRingListener::bind("127.0.0.1:0".parse().unwrap(), WATCHDOG).unwrap()
}

pub(super) fn small() -> RingOptions {
    RingOptions { ring_bytes: 16 << 10, chunk_bytes: 2 << 10, ..RingOptions::default() }
}

pub(super) fn geometry() -> RingGeometry {
    RingGeometry::new(small()).unwrap()
}

pub(super) fn setup(options: RingOptions, tcp: TcpOptions) -> RingSetup {
    let memory = RingMemory::create("test-ring", options.ring_bytes).unwrap();
    RingSetup { geometry: RingGeometry::new(options).unwrap(), memory, options: tcp }
}

/// A raw client that has shaken hands with a ring, and the ring's receiver.
fn raw_client(options: RingOptions, tcp: TcpOptions) -> (TcpStream, TcpReceiver) {
    let listener = listener();
    let setup = setup(options, tcp);
    let mut stream = TcpStream::connect(listener.address()).unwrap();
    let hello = Hello { token: TOKEN, geometry: setup.geometry, verdict: None };
    stream.write_all(&hello.encode()).unwrap();
    let arrivals = listener.accept_ring(TOKEN, &setup, WATCHDOG).unwrap();
    let mut answer = [0; HELLO_BYTES];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(Hello::decode(&answer).unwrap().verdict, Some(Verdict::Accepted));
    (stream, arrivals)
}

/// The bytes of one record of a message of `total` bytes.
pub(super) fn record_bytes(record: u64, message: u64, total: u64, data: &[u8]) -> Vec<u8> {
    let head = MessageHead { id: MessageId(message), name: MessageName::default(), total };
    let header = head.first(b"", data).header(RecordSequence(record), &geometry()).unwrap().encode();
    with_sums(&header, data)
}

fn with_sums(header: &[u8; HEADER_BYTES], data: &[u8]) -> Vec<u8> {
    let whole = [&header[..], data].concat();
    [&header[..], &sum(header).to_le_bytes(), data, &sum(&whole).to_le_bytes()].concat()
}

impl Fixture for Loopback {
    fn pair(&self, options: RingOptions) -> Pair {
        let listener = listener();
        let setup = setup(options, TcpOptions::default());
        let (geometry, address) = (setup.geometry, listener.address());
        let accept = thread::spawn(move || listener.accept_ring(TOKEN, &setup, WATCHDOG).unwrap());
        let sender = TcpSender::connect(address, TOKEN, geometry, TcpOptions::default()).unwrap();
        let receiver = accept.join().unwrap();
        Pair { sender: Box::new(sender), receiver: Box::new(receiver), keep: Box::new(()) }
    }

    fn sender_with_lying_peer(
        &self,
        options: RingOptions,
        lie: CreditPair,
    ) -> (Box<dyn LinkSender>, Box<dyn Any + Send>) {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let liar = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut hello = [0; HELLO_BYTES];
            stream.read_exact(&mut hello).unwrap();
            let hello = Hello::decode(&hello).unwrap();
            stream.write_all(&Hello { verdict: Some(Verdict::Accepted), ..hello }.encode()).unwrap();
            let mut header = [0; HEADER_BYTES];
            stream.read_exact(&mut header).unwrap();
            let (frame, bytes) = credit_frame(lie, hello.geometry.integrity());
            stream.write_all(&frame[..bytes]).unwrap();
            stream
        });
        let geometry = RingGeometry::new(options).unwrap();
        let sender = TcpSender::connect(address, TOKEN, geometry, TcpOptions::default()).unwrap();
        (Box::new(sender), Box::new(liar))
    }
}

/// Receives what the client wrote, to the link's end; returns the records before it.
pub(super) fn read_over(
    bytes: &[u8],
    options: RingOptions,
    tcp: TcpOptions,
    hang_up: bool,
) -> (LinkError, Vec<RingRecord>, TcpReceiver) {
    let (mut stream, mut arrivals) = raw_client(options, tcp);
    stream.write_all(bytes).unwrap();
    if hang_up {
        stream.shutdown(std::net::Shutdown::Write).unwrap();
    }
    let mut records = Vec::new();
    let error = loop {
        match arrivals.next(WATCHDOG) {
            Ok(record) => records.push(record.expect("the link ends")),
            Err(error) => break error,
        }
    };
    (error, records, arrivals)
}

#[test]
fn garbage_is_an_error_and_disconnects_the_peer() {
    let (mut stream, mut arrivals) = raw_client(small(), TcpOptions::default());
    stream.write_all(&with_sums(&[b'x'; HEADER_BYTES], b"garbage")).unwrap();
    let error = arrivals.next(WATCHDOG).unwrap_err();
    assert!(matches!(error, LinkError::Record(RecordError::Magic { .. })) && error.is_protocol_violation(), "{error}");
    assert_eq!(arrivals.next(WATCHDOG), Err(error));
    assert!(!matches!(stream.read(&mut [0; 1]), Ok(1..)), "the peer gets no answer");
}

pub(super) fn payload(arrivals: &TcpReceiver, record: &crate::link::RingRecord) -> Vec<u8> {
    let mut bytes = vec![0; record.payload().bytes as usize];
    arrivals.copy_out(record, 0, &mut bytes).unwrap();
    bytes
}

#[test]
fn a_peer_that_exceeds_its_credit_is_disconnected_before_it_overwrites() {
    let data = [7; 2048];
    let stream: Vec<u8> = (0..9).flat_map(|i| record_bytes(i, i + 1, 2048, &data)).collect();
    let (error, records, mut arrivals) = read_over(&stream, small(), TcpOptions::default(), true);
    assert!(matches!(error, LinkError::Admit(AdmitError::Production(_))), "{error}");
    assert!(error.to_string().contains("without credit"), "{error}");
    // Records within the credit are whole.
    assert_eq!(records.len(), 7);
    for record in records {
        assert_eq!(payload(&arrivals, &record), data);
        assert_eq!(arrivals.release(record).unwrap(), Release::Intact);
    }
    assert_eq!(arrivals.next(WATCHDOG), Err(error));
}

#[test]
fn records_arrive_whole_wherever_their_bytes_are_split() {
    let sizes: Vec<usize> = (0..40).map(|i| [0, 1, 3, 700, 2048][i % 5]).collect();
    let contents: Vec<Vec<u8>> = sizes.iter().map(|size| (0..*size).map(|i| (i * 7 + size) as u8).collect()).collect();
    let stream: Vec<u8> =
        (0..).zip(&contents).flat_map(|(i, data)| record_bytes(i, i + 1, data.len() as u64, data)).collect();
    for piece in [1, 2, 67, 68, 69, 73, 500, 5000] {
        let (mut client, mut receiver) = raw_client(small(), TcpOptions::default());
        client.set_nodelay(true).unwrap();
        thread::scope(|scope| {
            scope.spawn(|| {
                for part in stream.chunks(piece) {
                    client.write_all(part).unwrap();
                    thread::yield_now();
                }
            });
            for content in &contents {
                let record = receiver.next(WATCHDOG).unwrap().unwrap();
                assert!(payload(&receiver, &record) == *content, "pieces of {piece} B");
                assert_eq!(receiver.release(record).unwrap(), Release::Intact);
            }
        });
    }
}

#[test]
fn a_record_out_of_sequence_is_refused() {
    let (error, ..) = read_over(&record_bytes(1, 1, 4, b"data"), small(), TcpOptions::default(), true);
    assert!(matches!(error, LinkError::Admit(AdmitError::Sequence { .. })), "{error}");
}

#[test]
fn an_impossible_payload_is_refused_before_a_byte_of_it_is_read() {
    let head = MessageHead { id: MessageId(1), name: MessageName::default(), total: u64::MAX };
    let mut header = head.first(b"", b"").header(RecordSequence(0), &geometry()).unwrap().encode();
    header[56..60].copy_from_slice(&u32::MAX.to_le_bytes());
    let (error, _, mut arrivals) = read_over(&with_sums(&header, b""), small(), TcpOptions::default(), false);
    assert!(matches!(error, LinkError::Admit(AdmitError::Record(RecordError::Chunk { .. }))), "{error}");
    assert_eq!(arrivals.next(WATCHDOG), Err(error));
}

#[test]
fn a_hang_up_within_a_record_differs_from_a_close_between_records() {
    let record = record_bytes(0, 1, 100, &[1; 100]);
    let (error, ..) = read_over(&record, small(), TcpOptions::default(), true);
    assert_eq!(error, LinkError::Closed { by_peer: true });
    let (error, ..) = read_over(&record[..HEADER_BYTES + 4 + 60], small(), TcpOptions::default(), true);
    assert_eq!(error, LinkError::Cut { missing: 44 });
    let (error, ..) = read_over(&record[..record.len() - 1], small(), TcpOptions::default(), true);
    assert_eq!(error, LinkError::Cut { missing: 1 });
    let (error, ..) = read_over(&record[..10], small(), TcpOptions::default(), true);
    assert_eq!(error, LinkError::Cut { missing: 58 });
}

#[test]
fn a_peer_that_stops_within_a_record_ends_the_link() {
    let tcp = TcpOptions { stall_timeout: Duration::from_millis(20), ..TcpOptions::default() };
    let record = record_bytes(0, 1, 100, &[1; 100]);
    let (error, ..) = read_over(&record[..HEADER_BYTES + 4 + 60], small(), tcp, false);
    assert!(matches!(error, LinkError::Stalled { missing: 44, .. }), "{error}");
}

#[test]
fn a_peer_that_reads_nothing_ends_the_link() {
    // The peer shakes hands and never reads; flow control is off, so only the socket stops the sender.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let peer = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut hello = [0; HELLO_BYTES];
        stream.read_exact(&mut hello).unwrap();
        let hello = Hello::decode(&hello).unwrap();
        stream.write_all(&Hello { verdict: Some(Verdict::Accepted), ..hello }.encode()).unwrap();
        stream
    });
    let options = RingOptions { flow_control: FlowControl::Off, ..RingOptions::default() };
    let tcp = TcpOptions { send_timeout: Duration::from_millis(20), ..TcpOptions::default() };
    let mut sender = TcpSender::connect(address, TOKEN, RingGeometry::new(options).unwrap(), tcp).unwrap();
    let _stream = peer.join().unwrap();
    let data = vec![0; 1 << 20 >> 1];
    let head = MessageHead { id: MessageId(1), name: MessageName::default(), total: 1 << 40 };
    sender.post(&[head.first(b"", b"")]).unwrap();
    let error = loop {
        let offset = sender.counters().bytes;
        if let Err(error) = sender.post(&[head.part(offset, &data)]) {
            break error;
        }
    };
    assert!(matches!(error, LinkError::SendTimedOut { .. }), "{error}");
    assert_eq!(sender.progress(), Err(error), "the error stays");
}

#[test]
fn a_batch_for_a_peer_that_reads_slowly_ends_after_the_record_that_had_to_wait() {
    let tcp = TcpOptions { socket_buffer_bytes: Some(64 << 10), ..TcpOptions::default() };
    let listener = listener();
    let setup = setup(RingOptions::default(), tcp);
    let (geometry, address) = (setup.geometry, listener.address());
    let accept = thread::spawn(move || listener.accept_ring(TOKEN, &setup, WATCHDOG).unwrap());
    let mut sender = TcpSender::connect(address, TOKEN, geometry, tcp).unwrap();
    let mut receiver = accept.join().unwrap();
    let data = vec![7; 1 << 19];
    let heads: Vec<_> = (1..=8)
        .map(|id| MessageHead { id: MessageId(id), name: MessageName::default(), total: data.len() as u64 })
        .collect();
    let records: Vec<_> = heads.iter().map(|head| head.first(b"", &data)).collect();
    thread::scope(|scope| {
        scope.spawn(|| {
            // Longer than what counts as slow.
            thread::sleep(Duration::from_millis(300));
            assert!(receiver.next(WATCHDOG).unwrap().is_some());
        });
        let posted = sender.post(&records).unwrap();
        assert_eq!(posted, 1, "the first one does not fit into the socket's buffers");
    });
}

/// The time-out is for a record of `chunk_bytes`, not for all that fit into a piece.
#[test]
fn a_peer_that_takes_each_record_in_time_keeps_the_link() {
    let tcp = TcpOptions {
        send_timeout: Duration::from_secs(1),
        socket_buffer_bytes: Some(32 << 10),
        ..TcpOptions::default()
    };
    let options = RingOptions { ring_bytes: 16 << 20, chunk_bytes: 16 << 10, ..RingOptions::default() };
    let listener = listener();
    let setup = setup(options, tcp);
    let (geometry, address) = (setup.geometry, listener.address());
    let accept = thread::spawn(move || listener.accept_ring(TOKEN, &setup, WATCHDOG).unwrap());
    let mut sender = TcpSender::connect(address, TOKEN, geometry, tcp).unwrap();
    let mut receiver = accept.join().unwrap();
    let data = vec![7; 16_000];
    let total = data.len() as u64;
    let heads: Vec<_> =
        (1..=32).map(|id| MessageHead { id: MessageId(id), name: MessageName::default(), total }).collect();
    let records: Vec<_> = heads.iter().map(|head| head.first(b"", &data)).collect();
    thread::scope(|scope| {
        scope.spawn(|| {
            for _ in &records {
                thread::sleep(Duration::from_millis(100));
                assert!(receiver.next(WATCHDOG).unwrap().is_some());
            }
        });
        let mut posted = 0;
        while posted < records.len() {
            posted += sender.post(&records[posted..]).unwrap();
        }
    });
}

#[test]
fn a_record_that_begins_after_a_long_silence_is_no_stall() {
    let tcp = TcpOptions { stall_timeout: Duration::from_millis(300), ..TcpOptions::default() };
    let (mut stream, mut receiver) = raw_client(small(), tcp);
    assert_eq!(receiver.next(Duration::from_millis(10)), Ok(None));
    // Longer than a record may stall. Nothing is under way.
    thread::sleep(Duration::from_millis(400));
    let record = record_bytes(0, 1, 4, b"data");
    stream.write_all(&record[..10]).unwrap();
    assert_eq!(receiver.next(Duration::from_millis(100)), Ok(None));
    stream.write_all(&record[10..]).unwrap();
    assert!(receiver.next(WATCHDOG).unwrap().is_some());
}

struct Refused;

impl Landing for Refused {
    fn place(&mut self, header: &RecordHeader, _: RingSpan, _: &[u8]) -> Option<LandingPlace> {
        unreachable!("record {}: without flow control all records go through the ring", header.record.0)
    }
}

#[test]
fn without_flow_control_no_record_gets_a_place() {
    let options = RingOptions { flow_control: FlowControl::Off, ..small() };
    let (mut stream, mut receiver) = raw_client(options, TcpOptions::default());
    stream.write_all(&record_bytes(0, 1, 4, b"data")).unwrap();
    let record = receiver.next_into(WATCHDOG, &mut Refused).unwrap().unwrap();
    assert_eq!(payload(&receiver, &record), b"data");
}

#[test]
fn reading_ahead_ends_though_the_peer_sends_without_end() {
    let options = RingOptions { flow_control: FlowControl::Off, ..small() };
    let (mut stream, mut receiver) = raw_client(options, TcpOptions::default());
    let stop = std::sync::atomic::AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            for batch in (0_u64..).step_by(256) {
                let bytes: Vec<u8> = (batch..batch + 256).flat_map(|i| record_bytes(i, i + 1, 64, &[7; 64])).collect();
                if stop.load(std::sync::atomic::Ordering::Relaxed) || stream.write_all(&bytes).is_err() {
                    return;
                }
            }
        });
        while receiver.counters().records == 0 {
            receiver.read_ahead();
        }
        let before = receiver.counters().records;
        receiver.read_ahead();
        let records = receiver.counters().records - before;
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        receiver.close();
        assert!(records <= small().ring_bytes / 128 + 1, "{records} records, more than a lap");
    });
}

#[test]
fn a_foreign_peer_is_refused_and_the_right_one_still_connects() {
    let listener = listener();
    let setup = setup(small(), TcpOptions::default());
    let (geometry, address) = (setup.geometry, listener.address());
    let accept = thread::spawn(move || listener.accept_ring(TOKEN, &setup, WATCHDOG).map(|_| ()));
    let error = TcpSender::connect(address, LinkToken([1; 16]), geometry, TcpOptions::default()).unwrap_err();
    assert!(matches!(error, ConnectError::UnknownToken { .. }), "{error}");
    let mut browser = TcpStream::connect(address).unwrap();
    browser.write_all(&[b'G'; HELLO_BYTES]).unwrap();
    assert_eq!(browser.read(&mut [0; 1]).unwrap_or(0), 0, "a foreign peer gets no answer");
    drop(TcpStream::connect(address).unwrap());
    TcpSender::connect(address, TOKEN, geometry, TcpOptions::default()).unwrap();
    accept.join().unwrap().unwrap();
}

#[test]
fn another_geometry_is_refused_on_both_sides() {
    let listener = listener();
    let setup = setup(small(), TcpOptions::default());
    let address = listener.address();
    let accept = thread::spawn(move || listener.accept_ring(TOKEN, &setup, WATCHDOG).map(|_| ()));
    let other = RingGeometry::new(RingOptions { chunk_bytes: 1 << 10, ..small() }).unwrap();
    let error = TcpSender::connect(address, TOKEN, other, TcpOptions::default()).unwrap_err();
    assert!(matches!(error, ConnectError::OtherGeometry { .. }), "{error}");
    let error = accept.join().unwrap().unwrap_err();
    assert!(matches!(error, AcceptError::OtherGeometry { .. }) && error.is_strangers(), "{error}");
}

#[test]
fn memory_that_does_not_fit_the_ring_is_refused() {
    let listener = listener();
    let setup =
        RingSetup { memory: RingMemory::create("test-ring", 8192).unwrap(), ..setup(small(), TcpOptions::default()) };
    let mut stream = TcpStream::connect(listener.address()).unwrap();
    stream.write_all(&Hello { token: TOKEN, geometry: setup.geometry, verdict: None }.encode()).unwrap();
    assert!(matches!(listener.accept_ring(TOKEN, &setup, WATCHDOG), Err(AcceptError::Memory(_))));
}

#[test]
fn accepting_ends_without_a_peer_and_with_a_silent_one() {
    let listener = TcpRingListener::bind("127.0.0.1:0".parse().unwrap(), Duration::from_millis(5)).unwrap();
    let error = listener.accept(Duration::from_millis(2)).unwrap_err();
    assert!(matches!(error, AcceptError::TimedOut { .. }) && !error.is_strangers(), "{error}");
    let _silent = TcpStream::connect(listener.address()).unwrap();
    let error = listener.accept(WATCHDOG).unwrap_err();
    assert!(matches!(error, AcceptError::Silent { .. }) && error.is_strangers(), "{error}");
}

#[test]
fn connecting_to_a_closed_port_or_a_silent_or_foreign_peer_is_an_error() {
    let connect = |address: SocketAddr| {
        let options = TcpOptions { hello_timeout: Duration::from_millis(50), ..TcpOptions::default() };
        TcpSender::connect(address, TOKEN, geometry(), options).unwrap_err()
    };
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let error = connect(address);
    assert!(matches!(error, ConnectError::TimedOut { .. }), "{error}");
    let stranger = thread::spawn(move || {
        listener.accept().unwrap();
        let (mut stream, _) = listener.accept().unwrap();
        stream.read_exact(&mut [0; HELLO_BYTES]).unwrap();
        stream.write_all(&[b'H'; HELLO_BYTES]).unwrap();
        let (stream, _) = listener.accept().unwrap();
        drop(stream);
    });
    let error = connect(address);
    assert!(matches!(error, ConnectError::Hello { source: HelloError::Magic { .. }, .. }), "{error}");
    let error = connect(address);
    assert!(matches!(error, ConnectError::HungUp { .. }), "{error}");
    stranger.join().unwrap();
    let error = connect(address);
    assert!(matches!(error, ConnectError::Unreachable { during: "connecting", .. }), "{error}");
}

#[test]
fn many_ready_records_go_out_in_one_write() {
    let pair = Loopback.pair(RingOptions { ring_bytes: 1 << 20, chunk_bytes: 1 << 10, ..RingOptions::default() });
    let mut sender = pair.sender;
    let heads: Vec<_> =
        (1..=100).map(|id| MessageHead { id: MessageId(id), name: MessageName::default(), total: 8 }).collect();
    let records: Vec<_> = heads.iter().map(|head| head.first(b"meta", &[1; 8])).collect();
    assert_eq!(sender.post(&records).unwrap(), 100);
    let counters = sender.counters();
    assert_eq!((counters.records, counters.messages, counters.batches), (100, 100, 1));
    // One call, unless the kernel accepts it in parts.
    assert!(counters.writes <= 3, "{counters:?}");
}

#[test]
fn a_listener_that_answers_byte_by_byte_times_out() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let geometry = RingGeometry::new(RingOptions::default()).unwrap();
    let drips = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(Duration::from_millis(150))).unwrap();
        let answer = Hello { token: TOKEN, geometry, verdict: Some(Verdict::Accepted) }.encode();
        // Each byte arrives within the time for a whole answer; the loop ends when the other side gives up.
        for byte in answer {
            if stream.write_all(&[byte]).is_err() {
                return;
            }
            let _ = stream.read_exact(&mut [0; HELLO_BYTES]);
        }
    });
    let options = TcpOptions { hello_timeout: Duration::from_millis(300), ..TcpOptions::default() };
    let connected = TcpSender::connect(address, TOKEN, geometry, options);
    assert!(matches!(connected, Err(ConnectError::TimedOut { .. })), "{:?}", connected.map(drop));
    drips.join().unwrap();
}

#[test]
fn an_idle_ring_frees_its_pages_and_stays_usable() {
    let tcp = TcpOptions { give_back_after: Some(Duration::from_millis(5)), ..TcpOptions::default() };
    let (mut stream, mut arrivals) = raw_client(small(), tcp);
    let resident = |arrivals: &TcpReceiver| rgaps_os::memfd::resident_bytes(arrivals.memory().fd()).unwrap();
    for i in 0..3 {
        stream.write_all(&record_bytes(i, i + 1, 2048, &[7; 2048])).unwrap();
        let record = arrivals.next(WATCHDOG).unwrap().unwrap();
        assert_eq!(payload(&arrivals, &record), [7; 2048]);
        assert!(resident(&arrivals) > 0, "a held record keeps its pages");
        assert_eq!(arrivals.release(record).unwrap(), Release::Intact);
        let start = Instant::now();
        while resident(&arrivals) > 0 {
            assert!(start.elapsed() < WATCHDOG);
            assert_eq!(arrivals.next(Duration::from_millis(1)), Ok(None));
        }
    }
}
