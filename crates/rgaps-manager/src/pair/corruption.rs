//! Two hosts whose connection passes a proxy that swaps words, which TCP's checksum does not detect.

use rgaps_control::wire::Integrity;
use rgaps_testing::{Proxy, Swap, Toward};

use super::*;

/// Bytes of each message here, far from the edges of its record.
const BYTES: u64 = 4000;

fn proxied(integrity: &str) -> (Pair, Subscriber, Proxy) {
    let config = Config { integrity: integrity.to_owned(), peer_timeout_ms: 60_000, ..Config::default() };
    let mut pair = Pair::configured(host(), host(), 60, config);
    let proxy = put_proxy_between(&pair);
    let subscriber = pair.subscriber();
    pair.announce(true);
    until("the link", || pair.status().contains("connected over"));
    (pair, subscriber, proxy)
}

/// Makes the sender connect to a proxy.
pub(super) fn put_proxy_between(pair: &Pair) -> Proxy {
    let proxy = Proxy::new(pair.to().manager.addresses()[0]).unwrap();
    let address = proxy.address().to_string();
    *pair.peer.alter.lock().unwrap() = Some(Box::new(move |offer| offer.addresses = vec![address.clone()]));
    proxy
}

impl Pair {
    fn is_whole(&self, held: &Held) -> bool {
        let pool = self.to().topic.pools.memory(held.pool()).unwrap();
        let MessageInfo { sequence, bytes, .. } = *held.info();
        pool.shared(held.offset(), bytes).unwrap().to_vec() == content(sequence, bytes)
    }

    fn inbound_status(&self) -> String {
        self.to().topic.inbound[&FROM].status()
    }
}

/// Sends `count` messages, and swaps words in each after `after` bytes. Checks that all arrive intact and once.
fn strike(count: u64, after: u64) {
    let (mut pair, mut subscriber, proxy) = proxied("crc32c");
    let (mut wrong, mut sequences) = (0, Vec::new());
    for _ in 0..count {
        proxy.order(Swap { toward: Toward::Listener, after, apart: 2 });
        pair.send(BYTES);
        let held = subscriber.take();
        wrong += u32::from(!pair.is_whole(&held));
        sequences.push(held.info().sequence);
    }
    assert_eq!((proxy.swaps(), wrong, subscriber.lost()), (count, 0, 0), "of {count} messages");
    assert_eq!(sequences, (1..=count).collect::<Vec<u64>>());
    let counted = format!("{count} corrupt");
    until("the count of what was damaged", || pair.inbound_status().ends_with(&counted));
}

#[test]
fn no_message_with_swapped_words_arrives_and_none_is_lost() {
    strike(25, 1000);
}

#[test]
fn no_message_whose_header_has_swapped_words_arrives_and_none_is_lost() {
    // The header's message, publisher, offset and length.
    [16, 24, 40, 56].into_iter().for_each(|after| strike(1, after));
}

#[test]
fn a_credit_with_swapped_words_releases_nothing() {
    let (mut pair, mut subscriber, proxy) = proxied("crc32c");
    for sequence in 1..=3 {
        proxy.order(Swap { toward: Toward::Caller, after: 0, apart: 8 });
        pair.send(BYTES);
        let held = subscriber.take();
        assert!(pair.is_whole(&held));
        assert_eq!(held.info().sequence, sequence);
        // The credit follows the message.
        let counted = format!("{sequence} credits corrupt");
        until("the count of the damaged credit", || pair.status().contains(&counted));
        until("the next link", || pair.status().contains("connected over"));
    }
    assert_eq!(subscriber.lost(), 0);
}

#[test]
fn without_checksums_on_either_host_words_pass_swapped_and_the_status_warns() {
    let (mut pair, mut subscriber, proxy) = proxied("none");
    assert!(pair.status().contains("without checksums"), "{}", pair.status());
    until("the same from the receiver", || pair.inbound_status().contains("without checksums"));
    proxy.order(Swap { toward: Toward::Listener, after: 1000, apart: 2 });
    pair.send(BYTES);
    let held = subscriber.take();
    assert!(!pair.is_whole(&held));
    assert!(pair.inbound_status().ends_with("0 corrupt"));
}

#[test]
fn an_offer_without_the_requested_checksums_is_not_taken_up() {
    let mut pair = Pair::new(host(), 20, 60_000);
    *pair.peer.alter.lock().unwrap() = Some(Box::new(|offer| offer.integrity = Integrity::None));
    let _subscriber = pair.subscriber();
    pair.announce(true);
    until("the refusal", || pair.status().contains("offers no checksums"));
}

#[test]
fn a_link_has_checksums_if_only_one_host_wants_them() {
    let (pair, ..) = proxied("none");
    let mut to = pair.to();
    let Subscribing { manager, topic, .. } = &mut *to;
    let request = RingRequest {
        version: rgaps_control::wire::WIRE_VERSION,
        host: HostId([3; 16]),
        host_name: "other".to_owned(),
        endpoint: Endpoint {
            role: Role::Publisher,
            offers: vec![PublisherQos { history_depth: 1, ..PublisherQos::default() }],
            requests: Vec::new(),
            ..pair.endpoint()
        },
        message_bytes_max: 100,
        flow_control: true,
        integrity: Integrity::Crc32c,
        rdma: Vec::new(),
        no_rdma: String::new(),
        published: Vec::new(),
    };
    assert_eq!(manager.offer(topic, &request).unwrap().integrity, Integrity::Crc32c);
}
