//! An impostor that pretends to be a host and sends arbitrary bytes over a real socket: which messages it can suppress, and for how long.

use std::net::{SocketAddr, TcpListener};

use rgaps_link::record::MessageHead;
use rgaps_link::tcp::{LinkToken, TcpOptions, TcpSender};
use rgaps_link::{LinkSender, MessageId, MessageName, RingGeometry, RingOptions, Watermark};

use super::*;
use crate::envelope::{Envelope, Gap};

const OTHER: HostId = HostId([3; 16]);
/// The bytes that the impostor sends.
const FORGED: &[u8] = b"forged";

/// A peer that speaks the link's protocol by hand.
pub(super) struct Impostor {
    link: TcpSender,
    next: u64,
}

/// Connects to the ring of an offer.
pub(super) fn link(offer: &RingOffer) -> TcpSender {
    let address: SocketAddr = offer.addresses[0].parse().unwrap();
    let options = RingOptions {
        ring_bytes: offer.ring_bytes,
        chunk_bytes: u32::try_from(offer.chunk_bytes).unwrap(),
        watermark: Watermark::ALL.into_iter().find(|w| w.bytes(offer.ring_bytes) == offer.watermark_bytes).unwrap(),
        alignment: offer.alignment,
        ..RingOptions::default()
    };
    let geometry = RingGeometry::new(options).unwrap();
    TcpSender::connect(address, LinkToken(offer.token.0), geometry, TcpOptions::default()).unwrap()
}

impl Impostor {
    /// Requests a ring as `host`, and connects.
    fn connect(pair: &Pair, host: HostId) -> Self {
        Self::join(&pair.to().offer(&request(pair, host)).unwrap())
    }

    /// Connects.
    pub(super) fn join(offer: &RingOffer) -> Self {
        Self { link: link(offer), next: 1 }
    }

    /// Sends a complete message with `source` as its source host.
    fn send(&mut self, source: HostId, sequence: u64) {
        let info = MessageInfo { source_host: source.0, bytes: FORGED.len() as u64, ..MessageInfo::default() };
        let gap = Gap { previous: sequence - 1, is_notice: false };
        let envelope = Envelope::seal(&info, 0, gap, b"meta");
        let name = MessageName { publisher: PUBLISHER, sequence };
        let head = MessageHead { id: MessageId(self.next), name, total: FORGED.len() as u64 };
        self.next += 1;
        assert_eq!(self.link.post(&[head.first(envelope.bytes(), FORGED)]).unwrap(), 1);
    }

    /// Begins a message of `total` bytes and sends `sent` of them, while the link lasts.
    pub(super) fn begin(&mut self, source: HostId, total: u64, sent: u64) {
        let info = MessageInfo { source_host: source.0, bytes: total, ..MessageInfo::default() };
        let envelope = Envelope::seal(&info, 0, Gap::default(), b"meta");
        let name = MessageName { publisher: PUBLISHER, sequence: self.next };
        let head = MessageHead { id: MessageId(self.next), name, total };
        self.next += 1;
        assert_eq!(self.link.post(&[head.first(envelope.bytes(), FORGED)]).unwrap(), 1);
        let part = vec![7; 4 << 10];
        let mut offset = FORGED.len() as u64;
        while offset + part.len() as u64 <= sent {
            let room = self.link.wait_for_room(part.len() as u32, LIMIT);
            if room.and_then(|()| self.link.post(&[head.part(offset, &part[..])])).is_err() {
                return;
            }
            offset += part.len() as u64;
        }
    }

    /// Disconnects when the receiver has taken everything.
    fn leave(mut self, pair: &Pair, host: HostId) {
        self.link.drain(LIMIT).unwrap();
        self.link.close();
        drop(self);
        gone(pair, host);
    }
}

pub(super) fn request(pair: &Pair, host: HostId) -> RingRequest {
    RingRequest {
        version: rgaps_control::wire::WIRE_VERSION,
        host,
        host_name: "impostor".to_owned(),
        endpoint: pair.topic.publisher_endpoint().unwrap(),
        message_bytes_max: 1 << 20,
        flow_control: true,
        integrity: rgaps_control::wire::Integrity::Crc32c,
        rdma: Vec::new(),
        no_rdma: String::new(),
        published: Vec::new(),
    }
}

/// Waits until the receiver has noticed the end of a host's link.
fn gone(pair: &Pair, host: HostId) {
    until("the end of the impostor's link", || {
        let mut to = pair.to();
        to.read_events();
        !matches!(to.topic.inbound.get(&host), Some(Inbound::Active(_)))
    });
}

/// Sends `count` messages, each after the one before was taken.
fn all_pass(pair: &mut Pair, subscriber: &mut Subscriber, count: u64) {
    for _ in 0..count {
        pair.send(100);
        let sequence = pair.sequence;
        assert_eq!(subscriber.sequences_to(sequence), [sequence]);
    }
}

#[test]
fn one_forged_sequence_suppresses_no_message_even_after_both_managers_restart() {
    for forged in [100, 1 << 62, u64::MAX] {
        let mut pair = Pair::new(host(), 20, 60_000);
        let mut subscriber = pair.subscriber();
        pair.announce(true);
        all_pass(&mut pair, &mut subscriber, 3);
        pair.cut();
        let mut impostor = Impostor::connect(&pair, FROM);
        impostor.send(FROM, forged);
        impostor.leave(&pair, FROM);
        assert_eq!(subscriber.sequences_to(forged), [forged]);
        // Messages that were published meanwhile arrive too.
        (0..5).for_each(|_| pair.send(100));
        pair.mend();
        assert_eq!(subscriber.sequences_to(8), [4, 5, 6, 7, 8], "after {forged:#x}");
        all_pass(&mut pair, &mut subscriber, 160);
        pair.cut();
        (0..3).for_each(|_| pair.send(100));
        pair.to().restart();
        pair.mend();
        assert_eq!(subscriber.sequences_to(171), [169, 170, 171], "after {forged:#x}, the receiver's successor");
        assert_eq!(pair.to().resumes.last(), Some(&vec![(PUBLISHER, 168)]));
        pair.restart_sender();
        all_pass(&mut pair, &mut subscriber, 10);
        assert_eq!(subscriber.lost(), 0, "a jump of an impostor is no loss");
    }
}

#[test]
fn after_a_forged_first_message_all_real_messages_of_the_publisher_arrive() {
    let mut pair = Pair::new(host(), 20, 60_000);
    let mut subscriber = pair.subscriber();
    let mut impostor = Impostor::connect(&pair, FROM);
    impostor.send(FROM, 1 << 40);
    impostor.leave(&pair, FROM);
    pair.announce(true);
    assert_eq!(subscriber.sequences_to(1 << 40), [1 << 40]);
    all_pass(&mut pair, &mut subscriber, 10);
    assert_eq!(subscriber.lost(), 0);
}

#[test]
fn a_host_that_sends_for_another_hosts_publishers_is_cut_off_without_effect() {
    let mut pair = Pair::new(host(), 20, 60_000);
    let mut subscriber = pair.subscriber();
    pair.announce(true);
    all_pass(&mut pair, &mut subscriber, 3);
    let mut impostor = Impostor::connect(&pair, OTHER);
    impostor.send(FROM, 50);
    gone(&pair, OTHER);
    assert!(subscriber.reader.take().unwrap().is_none(), "the forged message was published");
    pair.cut();
    pair.to().restart();
    pair.mend();
    all_pass(&mut pair, &mut subscriber, 10);
    assert_eq!(pair.to().resumes, [[(PUBLISHER, 3)]]);
    assert_eq!(subscriber.lost(), 0);
}

#[test]
fn the_same_publisher_of_another_host_is_another_publisher() {
    let mut pair = Pair::new(host(), 20, 60_000);
    let mut subscriber = pair.subscriber();
    pair.announce(true);
    all_pass(&mut pair, &mut subscriber, 3);
    let mut impostor = Impostor::connect(&pair, OTHER);
    impostor.send(OTHER, 50);
    impostor.leave(&pair, OTHER);
    assert_eq!(subscriber.sequences_to(50), [50]);
    all_pass(&mut pair, &mut subscriber, 10);
    assert_eq!(subscriber.lost(), 0);
}

#[test]
fn an_offer_from_another_machine_never_leads_to_a_port_of_this_one() {
    let victim = TcpListener::bind("127.0.0.1:0").unwrap();
    victim.set_nonblocking(true).unwrap();
    let mut pair = Pair::new(host(), 20, 1_000);
    let _subscriber = pair.subscriber();
    let mut elsewhere = Seen::default();
    elsewhere.add([10, 9, 9, 1].into(), [10, 9, 9, 9].into());
    *pair.peer.seen.lock().unwrap() = elsewhere;
    let address = victim.local_addr().unwrap().to_string();
    *pair.peer.alter.lock().unwrap() = Some(Box::new(move |offer| offer.addresses = vec![address.clone()]));
    pair.announce(true);
    until("the sender's refusal", || pair.status().contains("not connected: "));
    let said = pair.status();
    assert!(said.contains("seen at 10.9.9.9") && said.contains("data_networks"), "{said}");
    assert_eq!(victim.accept().unwrap_err().kind(), std::io::ErrorKind::WouldBlock, "the sender has connected");
}
