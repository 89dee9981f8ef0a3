//! Other hosts that use up budgets, and what that leaves to programs of this host and to honest hosts.

use rgaps_control::{Budget, Exhaustion, Limits};

use super::lies::{Impostor, request};
use super::*;

const GREEDY: HostId = HostId([3; 16]);
const MIB: u64 = 1 << 20;

fn pair(limits: Limits) -> Pair {
    Pair::configured(host(), host(), 20, Config { peer_timeout_ms: 60_000, limits, ..Config::default() })
}

fn invented(number: u64) -> HostId {
    HostId((u128::from(number) + (1 << 64)).to_be_bytes())
}

/// Makes host `from` begin a message, which it never ends, on another topic with subscribers here.
fn begin(pair: &Pair, number: u64, from: HostId) -> Impostor {
    let mut request = request(pair, from);
    let key = TopicKey::new(0, &format!("greed{number}")).unwrap();
    request.endpoint.key = key.clone();
    let mut topic = Topic::create(key, "rgaps/Bytes").unwrap();
    let subscriber = LocalSubscriber { qos: SubscriberQos::default(), event: None };
    topic.subscribers.insert(rgaps_shm::SubscriberSlot { index: 0, generation: 1 }, subscriber);
    let offer = {
        let mut to = pair.to();
        let offer = to.manager.offer(&mut topic, &request).unwrap();
        to.others.insert(topic.id, topic);
        offer
    };
    let mut impostor = Impostor::join(&offer);
    impostor.begin(from, 900 << 10, 800 << 10);
    impostor
}

/// Bytes that messages of other hosts occupy, except in the honest host's topic.
fn occupied(pair: &Pair) -> u64 {
    let mut to = pair.to();
    to.read_events();
    to.others.values().map(|topic| topic.pools.resident_bytes()).sum()
}

fn met(pair: &Pair) -> Vec<String> {
    pair.to().budgets.refusals.met().into_keys().collect()
}

#[test]
fn a_host_that_never_ends_its_messages_gets_no_more_memory_than_its_budget() {
    let limits = Limits { arrived_bytes_max: 16 * MIB, arrived_host_bytes_max: 4 * MIB, ..Limits::default() };
    let mut pair = pair(limits);
    let mut subscriber = pair.subscriber();
    pair.announce(true);
    let mut greedy = Vec::new();
    for number in 0..24 {
        greedy.push(begin(&pair, number, GREEDY));
        pair.send(100_000);
        pair.check(&subscriber.take());
        let occupied = occupied(&pair);
        // An evicted port's memory may not be freed yet.
        assert!(occupied <= 8 * MIB, "{occupied} B after {} messages were begun", number + 1);
    }
    until("the memory of evicted ports", || occupied(&pair) <= 4 * MIB);
    assert_eq!(met(&pair), ["arrived_host_bytes_max"]);
    assert_eq!(subscriber.lost(), 0);
}

#[test]
fn hosts_that_never_end_their_messages_are_evicted_for_one_that_does() {
    let mut pair = pair(Limits { arrived_bytes_max: 8 * MIB, ..Limits::default() });
    let mut subscriber = pair.subscriber();
    pair.announce(true);
    let mut greedy = Vec::new();
    for number in 0..24 {
        greedy.push(begin(&pair, number, invented(number)));
        let occupied = occupied(&pair);
        assert!(occupied <= 16 * MIB, "{occupied} B after {} messages were begun", number + 1);
    }
    for _ in 0..5 {
        pair.send(100_000);
        pair.check(&subscriber.take());
    }
    until("the memory of evicted ports", || occupied(&pair) <= 8 * MIB);
    assert!(met(&pair).contains(&"arrived_bytes_max".to_owned()));
    assert_eq!(subscriber.lost(), 0);
}

#[test]
fn a_message_beyond_a_budget_is_dropped_with_the_key_and_the_link_goes_on() {
    let mut pair = pair(Limits { arrived_topic_bytes_max: MIB / 2, ..Limits::default() });
    let mut subscriber = pair.subscriber();
    pair.announce(true);
    pair.send(100);
    pair.send(600_000);
    pair.send(100);
    assert_eq!(subscriber.sequences_to(3), [1, 3]);
    assert_eq!(subscriber.lost(), 1);
    let mut to = pair.to();
    to.read_events();
    assert!(to.warnings.iter().any(|text| text.contains("arrived_topic_bytes_max = 512 KiB")), "{:?}", to.warnings);
    assert_eq!(to.resumes.len(), 1, "one connection");
    drop(to);
    assert_eq!(met(&pair), ["arrived_topic_bytes_max"]);
}

#[test]
fn a_port_without_more_memory_keeps_the_newest_messages() {
    for exhaustion in [Exhaustion::DropOldest, Exhaustion::Wait { timeout_ms: 1 }] {
        keeps_the_newest(exhaustion);
    }
}

fn keeps_the_newest(exhaustion: Exhaustion) {
    let mut pair = pair(Limits { arrived_topic_bytes_max: 400_000, ..Limits::default() });
    pair.topic.publishers.values_mut().for_each(|publisher| publisher.qos.exhaustion = exhaustion);
    let mut subscriber = pair.subscriber();
    pair.announce(true);
    for sent in 1..=10 {
        pair.send(100_000);
        until("its arrival", || {
            pair.to().topic.inbound.get(&FROM).is_some_and(|from| from.status().contains(&format!(" {sent} messages")))
        });
    }
    let taken = subscriber.sequences_to(10);
    assert!((2..=4).contains(&taken.len()) && taken[0] == 11 - taken.len() as u64, "{taken:?}");
    assert_eq!(subscriber.lost(), 10 - taken.len() as u64);
    let mut to = pair.to();
    to.read_events();
    assert!(to.warnings.is_empty() && to.topic.pools.resident_bytes() <= 500_000, "{:?}", to.warnings);
}

#[test]
fn an_invented_largest_message_makes_no_pool_beyond_the_budget() {
    let pair = pair(Limits { arrival_pool_bytes_max: 2 * MIB, ..Limits::default() });
    let _subscriber = pair.subscriber();
    let claims = RingRequest { message_bytes_max: 1 << 28, ..request(&pair, GREEDY) };
    pair.to().offer(&claims).unwrap();
    let to = pair.to();
    let slot = to.topic.inbound[&GREEDY].slot().unwrap();
    assert_eq!(to.topic.pools.memory(slot).unwrap().bytes(), 2 * MIB);
    drop(to);
    assert_eq!(met(&pair), ["arrival_pool_bytes_max"]);
}

#[test]
fn ring_requests_of_invented_hosts_leave_slots_to_programs_of_this_host() {
    let pair = pair(Limits::default());
    let _subscriber = pair.subscriber();
    let refused = (0..300).filter(|number| {
        let asked = pair.to().offer(&request(&pair, invented(*number)));
        asked.inspect_err(|refusal| assert!(matches!(refusal, RingRefusal::NoRoom(_)), "{refusal}")).is_err()
    });
    let refused = refused.count();
    let to = pair.to();
    let admitted = (0..64).map_while(|_| to.topic.slot_table.admit_publisher(&PublisherSpec::default()).ok()).count();
    assert_eq!((admitted, refused), (64, 300 - 192));
    drop(to);
    assert_eq!(met(&pair), ["remote_publishers_max"]);
}

#[test]
fn an_unused_port_is_ended_for_another_host() {
    let pair = pair(Limits { remote_publishers_max: 2, ..Limits::default() });
    let _subscriber = pair.subscriber();
    for number in 0..2 {
        let offer = pair.to().offer(&request(&pair, invented(number))).unwrap();
        drop(Impostor::join(&offer));
        until("the end of its link", || {
            let mut to = pair.to();
            to.read_events();
            matches!(to.topic.inbound.get(&invented(number)), Some(Inbound::Idle(_)))
        });
    }
    pair.to().offer(&request(&pair, invented(2))).unwrap();
    assert_eq!(pair.to().topic.inbound.len(), 2);
}

#[test]
fn links_with_one_host_are_bounded_and_the_refusal_has_the_key() {
    let mut pair = pair(Limits { links_host_max: 3, ..Limits::default() });
    let _subscriber = pair.subscriber();
    let _links: Vec<Impostor> = (0..3).map(|number| begin(&pair, number, GREEDY)).collect();
    let refused = pair.to().offer(&request(&pair, GREEDY)).unwrap_err();
    assert!(refused.to_string().contains("links_host_max = 3"), "{refused}");
    pair.announce(true);
    pair.send(100);
    until("the honest host's link", || pair.status().contains("1 messages sent"));
}

#[test]
fn announced_subscribers_leave_slots_to_this_hosts_programs_and_are_reported() {
    let mut pair = pair(Limits { remote_subscribers_max: 8, ..Limits::default() });
    pair.peer.reachable.store(false, Ordering::Release);
    for number in 0..1023 {
        pair.directory.host_up(invented(number), "invented").unwrap();
        pair.directory.endpoint_up(invented(number), "token", pair.endpoint()).unwrap();
    }
    pair.publish.reconcile(&mut pair.topic, &pair.directory);
    let file = SubscriberFile::create().unwrap();
    let local = (0..16).map_while(|_| pair.topic.slot_table.admit_subscriber(&SubscriberSpec::default(), &file).ok());
    assert_eq!((pair.topic.outbound.len(), local.count()), (8, 16));
    assert_eq!(pair.topic.without_sender.len(), 1015);
    let said = pair.topic.without_sender.values().next().unwrap();
    assert!(said.starts_with("to invented: ") && said.contains("remote_subscribers_max = 8"), "{said}");
    (0..1000).for_each(|number| drop(pair.directory.host_down(invented(number), "invented")));
    pair.publish.reconcile(&mut pair.topic, &pair.directory);
    assert!(pair.topic.without_sender.len() <= 23, "hosts that are gone are not listed any more");
}

#[test]
fn silent_callers_are_closed_and_keep_no_honest_host_out() {
    let mut pair = pair(Limits { pending_connections_max: 8, pending_connections_address_max: 4, ..Limits::default() });
    let address = pair.to().manager.addresses()[0];
    let silent: Vec<TcpStream> = (0..200).map(|_| TcpStream::connect(address).unwrap()).collect();
    let mut subscriber = pair.subscriber();
    pair.announce(true);
    pair.send(100);
    assert_eq!(subscriber.sequences_to(1), [1]);
    assert_eq!(met(&pair), [Budget::PendingConnectionsOfAddress.key()]);
    drop(silent);
}

#[test]
fn the_chunks_of_another_host_make_staging_no_larger() {
    let config = Config { staging: "always".to_owned(), peer_timeout_ms: 60_000, ..Config::default() };
    let mut pair = Pair::configured(host(), host(), 20, config);
    {
        let mut to = pair.to();
        let config = Config { chunk_bytes: 24 << 10, ..Config::clone(&to.config) };
        let topic = Topic::create(to.topic.key.clone(), "rgaps/Bytes").unwrap();
        *to = Subscribing::new(&Arc::new(config), host(), topic);
    }
    let mut subscriber = pair.subscriber();
    pair.announce(true);
    pair.send(200_000);
    pair.check(&subscriber.take());
    // The staging memory of other tests has the same chunks.
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let staging: Vec<u64> = maps.lines().filter(|line| line.contains("rgaps-staging")).map(length).collect();
    assert!(!staging.is_empty() && staging.iter().all(|bytes| *bytes <= 16 * (8 << 10)), "{staging:?}");
}

/// Bytes of the mapping in a line of `/proc/PID/maps`.
fn length(line: &str) -> u64 {
    let (from, rest) = line.split_once('-').unwrap();
    let address = |text: &str| u64::from_str_radix(text, 16).unwrap();
    address(rest.split(' ').next().unwrap()) - address(from)
}
