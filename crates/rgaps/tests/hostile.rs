//! Clients that ask for what they must not have, or for too much: the manager answers the others as before.

#![allow(clippy::unwrap_used)] // helpers of tests, outside #[test] functions
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use rgaps::types::Bytes;
use rgaps::{Node, PublisherQos, SubscriberQos};
use rgaps_control::local::{
    Body, Connection, HandedBack, PROTOCOL_VERSION, Refusal, Reply, Request, Role, Seat, ToClient,
};
use rgaps_control::{RuntimeDir as Dir, TopicId, TopicKey};
use rgaps_device::{Backend, PoolSpec};
use rgaps_os::PidFd;
use rgaps_standin_cuda::link_into;
use rgaps_testing::{Child, RuntimeDir, Watchdog, again_with, programs};

const TOPIC: &str = "hostile";
const LONG: Duration = Duration::from_secs(60);

/// `rgapsd` of a host, with settings, in a directory of its own.
fn manager(dir: &RuntimeDir, settings: &[(&str, String)]) -> Child {
    let mut command = Command::new(programs::find("rgapsd"));
    dir.apply(&mut command);
    command.env("RGAPS_MULTICAST", "off").env("RGAPS_LISTEN", "tcp/127.0.0.1:0").env("RGAPS_DATA_ADDRESS", "127.0.0.1");
    command.envs(settings.iter().map(|(name, value)| (name, value)));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let child = Child::spawn(&mut command).unwrap();
    let socket = Dir::open(dir.path()).unwrap().socket();
    while !matches!(Connection::connect(&socket), Ok(Some(_))) {
        std::thread::yield_now();
    }
    child
}

fn node(dir: &RuntimeDir) -> Node {
    Node::builder().runtime_dir(dir.path()).no_autostart().build().unwrap()
}

/// A client that speaks the protocol by hand.
struct Hostile(Connection);

impl Hostile {
    fn stranger(dir: &RuntimeDir) -> Connection {
        Connection::connect(&Dir::open(dir.path()).unwrap().socket()).unwrap().unwrap()
    }

    fn new(dir: &RuntimeDir) -> Self {
        let client = Self(Self::stranger(dir));
        let hello = Body::Hello { protocol: PROTOCOL_VERSION, program: "hostile".to_owned() };
        let pidfd = PidFd::own().unwrap();
        assert!(matches!(client.ask(hello, &[pidfd.as_fd()]).0, Ok(Reply::Welcome(_))));
        client
    }

    fn ask(&self, body: Body, descriptors: &[BorrowedFd<'_>]) -> (Result<Reply, Refusal>, Vec<OwnedFd>) {
        self.0.send(&Request { id: 1, body }, descriptors).unwrap();
        loop {
            let packet = self.0.receive::<ToClient>(LONG).unwrap().expect("an answer");
            if let ToClient::Reply { reply, .. } = packet.message {
                return (reply, packet.descriptors);
            }
        }
    }
}

#[test]
fn a_list_of_topics_longer_than_a_message_comes_in_parts() {
    let _watchdog = Watchdog::new(Duration::from_secs(120));
    let dir = RuntimeDir::new("many").unwrap();
    let _manager = manager(&dir, &[]);
    let node = node(&dir);
    let name = |number: usize| format!("/{}/t{number:03}", "long".repeat(45));
    let subscribers: Vec<_> = (0..250).map(|number| node.subscriber::<Bytes>(&name(number)).unwrap()).collect();
    let listed: Vec<String> = node.topics().unwrap().iter().map(|topic| topic.key.name().to_owned()).collect();
    assert_eq!(listed, (0..subscribers.len()).map(name).collect::<Vec<_>>());
}

#[test]
fn a_topic_for_which_a_request_was_refused_does_not_stay() {
    let _watchdog = Watchdog::new(Duration::from_secs(120));
    let dir = RuntimeDir::new("refused").unwrap();
    let _manager = manager(&dir, &[]);
    let node = node(&dir);
    let qos = PublisherQos { pool_bytes: Some(1 << 40), ..PublisherQos::default() };
    let error = node.publisher_with::<Bytes>(TOPIC, qos).unwrap_err().to_string();
    assert!(error.contains("lower pool_bytes"), "{error}");
    assert_eq!(node.topics().unwrap(), []);
}

#[test]
fn callers_that_never_say_hello_keep_nobody_out() {
    let _watchdog = Watchdog::new(Duration::from_secs(120));
    let dir = RuntimeDir::new("strangers").unwrap();
    let _manager = manager(&dir, &[]);
    let first = Hostile::stranger(&dir);
    let strangers: Vec<Connection> = (0..300).map(|_| Hostile::stranger(&dir)).collect();
    assert_eq!(node(&dir).topics().unwrap(), []);
    assert!(first.receive::<ToClient>(LONG).is_err(), "the oldest are turned away");
    drop(strangers);
}

/// Two hosts on loopback, the second of which knows where the first is and has settings of its own.
fn linked(a: &RuntimeDir, b: &RuntimeDir, settings: &[(&str, &str)]) -> [Child; 2] {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let address = format!("tcp/127.0.0.1:{port}");
    let mut second = vec![("RGAPS_PEERS", address.clone())];
    second.extend(settings.iter().map(|(name, value)| (*name, (*value).to_owned())));
    [manager(a, &[("RGAPS_LISTEN", address)]), manager(b, &second)]
}

#[test]
fn a_pool_larger_than_the_other_hosts_memory_keeps_small_messages_from_nobody() {
    // Devices of different size, as only the stand-in has them on one machine.
    if !again_with(&[("RGAPS_DEVICE", "cuda")], link_into) {
        return;
    }
    let _watchdog = Watchdog::new(Duration::from_secs(120));
    let (a, b) = (RuntimeDir::new("fat-a").unwrap(), RuntimeDir::new("fat-b").unwrap());
    let small = [("RGAPS_TEST_STANDIN_MEMORY", "268435456"), ("RGAPS_ARRIVAL_POOL_BYTES", "33554432")];
    let _managers = linked(&a, &b, &small);
    let (sending, receiving) = (node(&a), node(&b));
    let subscriber = receiving.subscriber::<Bytes>(TOPIC).unwrap();
    let qos = PublisherQos { pool_bytes: Some(900 << 20), ..PublisherQos::default() };
    let publisher = sending.publisher_with::<Bytes>(TOPIC, qos).unwrap();
    loop {
        publisher.push(&Bytes::new(1000), &[5; 1000]).unwrap();
        if let Some(frame) = subscriber.wait(Duration::from_millis(100)).unwrap() {
            return assert_eq!(frame.bytes(), [5; 1000]);
        }
    }
}

#[test]
fn seats_that_are_the_managers_own_cannot_be_handed_back() {
    let _watchdog = Watchdog::new(Duration::from_secs(120));
    let (a, b) = (RuntimeDir::new("seats-a").unwrap(), RuntimeDir::new("seats-b").unwrap());
    let _managers = linked(&a, &b, &[]);
    let (sending, receiving) = (node(&a), node(&b));
    let subscriber = receiving.subscriber::<Bytes>(TOPIC).unwrap();
    let publisher = sending.publisher::<Bytes>(TOPIC).unwrap();
    let send = || {
        let mut loan = publisher.loan(Bytes::new(1000)).unwrap();
        loan.fill(7);
        loan.publish().unwrap();
    };
    while subscriber.wait(Duration::from_millis(100)).unwrap().is_none() {
        send();
    }

    // On each host: the segment, by looking on, and a pool of one's own.
    for dir in [&a, &b] {
        let hostile = Hostile::new(dir);
        let key = TopicKey::new(0, TOPIC).unwrap();
        let (observed, segment) = hostile.ask(Body::Observe { key: key.clone() }, &[]);
        let Ok(Reply::Observed { topic, type_name }) = observed else { panic!("{observed:?}") };
        let backend: Arc<dyn Backend> = Arc::new(rgaps_device::host::HostBackend::new());
        let pool = backend.create_pool(&PoolSpec { name: "hostile".to_owned(), bytes: 1 << 20 }).unwrap();
        pool.seal().unwrap();
        let (description, slabs) = pool.export().unwrap();
        for (role, slot, generation) in (0..3).flat_map(|slot| {
            [Role::Publisher, Role::Subscriber].into_iter().flat_map(move |role| (1..4).map(move |g| (role, slot, g)))
        }) {
            let handed = HandedBack {
                key: key.clone(),
                topic: TopicId(topic.0),
                type_name: type_name.clone(),
                role,
                seat: Seat { slot, generation },
                publisher: Some(PublisherQos::default()),
                publisher_id: 1,
                subscriber: Some(SubscriberQos::default()),
                pool: serde_json::to_value(&description).ok(),
            };
            let descriptors = [segment[0].as_fd(), slabs[0].as_fd()];
            let (answer, _) =
                hostile.ask(Body::HandBack(handed), &descriptors[..if role == Role::Publisher { 2 } else { 1 }]);
            // This process has seats of its own there, by its nodes; those it may hand back as often as it likes.
            let is_ours = matches!((std::ptr::eq(dir, &a), role), (true, Role::Publisher) | (false, Role::Subscriber));
            assert!(answer.is_err() || is_ours, "{role:?} {slot} {generation}: {answer:?}");
        }
    }
    for _ in 0..20 {
        send();
        let frame = subscriber.wait(LONG).unwrap().unwrap();
        assert_eq!(frame.bytes(), [7; 1000], "message {}", frame.info().sequence);
    }
}
