//! Clients that request what they must not have, or too much: the manager goes on serving other clients.

#![allow(clippy::unwrap_used)] // helpers of tests, outside #[test] functions
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use rgaps::types::Bytes;
use rgaps::{Node, PublisherQos, SubscriberQos};
use rgaps_control::local::{
    Advertised, Body, Connection, Handed, HandedSlot, HandedTopic, PROTOCOL_VERSION, Refusal, Reply, Request, ToClient,
};
use rgaps_control::{EndpointSlot, LockId, PublisherSlot, RuntimeDir as Dir, SubscriberSlot, TopicId, TopicKey};
use rgaps_device::{Backend, PoolSpec};
use rgaps_os::{Access, Mapping, PidFd, ProcessLock, memfd};
use rgaps_shm::layout::LAYOUT_VERSION;
use rgaps_standin_cuda::link_into;
use rgaps_testing::{Child, RuntimeDir, Watchdog, again_with, manager, programs};

const TOPIC: &str = "hostile";
const LONG: Duration = Duration::from_secs(60);

/// Starts `rgapsd` with settings in a runtime directory.
fn manager(dir: &RuntimeDir, settings: &[(&str, String)]) -> Child {
    let mut command = Command::new(programs::find("rgapsd"));
    command.env("RGAPS_LISTEN", "tcp/127.0.0.1:0").env("RGAPS_DATA_ADDRESS", "127.0.0.1");
    command.envs(settings.iter().map(|(name, value)| (name, value)));
    manager::start(dir, command).unwrap()
}

fn node(dir: &RuntimeDir) -> Node {
    Node::builder().runtime_dir(dir.path()).no_autostart().build().unwrap()
}

fn hello(protocol: u32, layout: u32, locks: Vec<LockId>) -> Body {
    Body::Hello { protocol, program: "hostile".to_owned(), layout, locks }
}

/// A client that sends hand-made requests.
struct Hostile(Connection, Option<ProcessLock>);

/// What a welcome says of a client's lock, and the file that came beside it.
fn lock_of((welcome, files): (Result<Reply, Refusal>, Vec<OwnedFd>)) -> (LockId, Option<OwnedFd>) {
    let Ok(Reply::Welcome(welcome)) = welcome else { panic!("{welcome:?}") };
    (welcome.lock, files.into_iter().next())
}

impl Hostile {
    fn stranger(dir: &RuntimeDir) -> Connection {
        Connection::connect(&Dir::open(dir.path()).unwrap().socket()).unwrap().unwrap()
    }

    fn new(dir: &RuntimeDir) -> Self {
        let mut client = Self(Self::stranger(dir), None);
        let (welcome, mut files) = client.hello(Vec::new());
        assert!(matches!(welcome, Ok(Reply::Welcome(_))), "{welcome:?}");
        assert!(client.ask(Body::Topics { after: None }, &[]).0.is_err(), "it has locked nothing yet");
        assert!(client.ask(Body::Locked, &[]).0.is_err(), "saying so is not enough");
        client.1 = Some(ProcessLock::take(files.remove(0)).unwrap());
        assert!(matches!(client.ask(Body::Locked, &[]).0, Ok(Reply::Done)));
        client
    }

    fn hello(&self, locks: Vec<LockId>) -> (Result<Reply, Refusal>, Vec<OwnedFd>) {
        let pidfd = PidFd::own().unwrap();
        self.ask(hello(PROTOCOL_VERSION, LAYOUT_VERSION, locks), &[pidfd.as_fd()])
    }

    fn subscribe(&self, topic: &str) -> Result<(), Refusal> {
        let (key, type_name) = (TopicKey::new(0, topic).unwrap(), "rgaps/Bytes".to_owned());
        self.ask(Body::Subscribe { key, type_name, qos: SubscriberQos::default() }, &[]).0.map(drop)
    }

    /// Whether a topic is there.
    fn observes(&self, topic: &str) -> bool {
        matches!(self.asks(topic), Some(Reply::Observed { .. }))
    }

    /// What a manager answers that listens; `None` if it has hung up.
    fn asks(&self, topic: &str) -> Option<Reply> {
        let key = TopicKey::new(0, topic).unwrap();
        self.0.send(&Request { id: 1, body: Body::Observe { key } }, &[]).ok()?;
        let answer = self.0.receive::<ToClient>(LONG).ok()?.expect("an answer").message;
        let ToClient::Reply { reply, .. } = answer else { panic!("{answer:?}") };
        Some(reply.unwrap_or(Reply::Done))
    }

    fn ask(&self, body: Body, fds: &[BorrowedFd<'_>]) -> (Result<Reply, Refusal>, Vec<OwnedFd>) {
        self.0.send(&Request { id: 1, body }, fds).unwrap();
        self.hear()
    }

    fn hear(&self) -> (Result<Reply, Refusal>, Vec<OwnedFd>) {
        loop {
            let packet = self.0.receive::<ToClient>(LONG).unwrap().expect("an answer");
            if let ToClient::Reply { reply, .. } = packet.message {
                return (reply, packet.fds);
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
fn callers_that_never_say_hello_block_no_client() {
    let _watchdog = Watchdog::new(Duration::from_secs(120));
    let dir = RuntimeDir::new("strangers").unwrap();
    let _manager = manager(&dir, &[]);
    let first = Hostile::stranger(&dir);
    let strangers: Vec<Connection> = (0..300).map(|_| Hostile::stranger(&dir)).collect();
    assert_eq!(node(&dir).topics().unwrap(), []);
    assert!(first.receive::<ToClient>(LONG).is_err(), "the oldest are turned away");
    drop(strangers);
}

/// Two hosts on loopback. The second one knows the first one's address, and has these settings.
fn linked(a: &RuntimeDir, b: &RuntimeDir, settings: &[(&str, &str)]) -> [Child; 2] {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let address = format!("tcp/127.0.0.1:{port}");
    let mut second = vec![("RGAPS_PEERS", address.clone())];
    second.extend(settings.iter().map(|(name, value)| (*name, (*value).to_owned())));
    [manager(a, &[("RGAPS_LISTEN", address)]), manager(b, &second)]
}

#[test]
fn a_pool_larger_than_the_other_hosts_memory_still_delivers_small_messages() {
    // Two devices of different size on one machine, which only the stand-in has.
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
        if let Some(sample) = subscriber.wait(Duration::from_millis(100)).unwrap() {
            return assert_eq!(sample.bytes(), [5; 1000]);
        }
    }
}

#[test]
fn slots_that_are_the_managers_own_cannot_be_handed_back() {
    let _watchdog = Watchdog::new(Duration::from_secs(120));
    let (a, b) = (RuntimeDir::new("slots-a").unwrap(), RuntimeDir::new("slots-b").unwrap());
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

    // On each host: observe the segment, and create a publisher with its pool.
    for dir in [&a, &b] {
        let hostile = Hostile::new(dir);
        let key = TopicKey::new(0, TOPIC).unwrap();
        let (observed, segment) = hostile.ask(Body::Observe { key: key.clone() }, &[]);
        let Ok(Reply::Observed { topic, type_name }) = observed else { panic!("{observed:?}") };
        let backend: Arc<dyn Backend> = Arc::new(rgaps_device::host::HostBackend::new());
        let pool = backend.create_pool(&PoolSpec { name: "hostile".to_owned(), bytes: 1 << 20 }).unwrap();
        pool.seal().unwrap();
        let (description, slabs) = pool.export().unwrap();
        let guessed = (0..3).flat_map(|index| (1..4).map(move |generation| (index, generation)));
        let handed = guessed.flat_map(|(index, generation)| {
            let (slot, pool) = (PublisherSlot { index, generation }, serde_json::to_value(&description).unwrap());
            let publisher = Handed::Publisher { slot, qos: PublisherQos::default(), pool };
            let slot = SubscriberSlot { index, generation };
            [publisher, Handed::Subscriber { slot, qos: SubscriberQos::default(), place: 0 }]
        });
        for of in handed {
            let (slot, fds) = (of.slot(), vec![segment[0].as_fd(), slabs[0].as_fd()]);
            let slots = vec![HandedSlot { fds: fds.len() as u32 - 1, of }];
            let topics =
                vec![HandedTopic { key: key.clone(), topic: TopicId(topic.0), type_name: type_name.clone(), slots }];
            let (answer, _) = hostile.ask(Body::HandBack { topics }, &fds);
            // The manager's slots are refused, and so are the nodes' slots: their locks differ, although they are in this process.
            let Ok(Reply::HandedBack { refused }) = &answer else { panic!("{answer:?}") };
            assert_eq!(refused.len(), 1, "{slot}");
        }
    }
    for _ in 0..20 {
        send();
        let sample = subscriber.wait(LONG).unwrap().unwrap();
        assert_eq!(sample.bytes(), [7; 1000], "message {}", sample.info().sequence);
    }
}

#[test]
fn a_pool_that_is_handed_back_must_be_the_one_that_its_publisher_was_granted() {
    const BYTES: u64 = 1 << 16;
    let _watchdog = Watchdog::new(Duration::from_secs(120));
    let dir = RuntimeDir::new("pools").unwrap();
    let host = || manager(&dir, &[("RGAPS_DEVICE", "host".to_owned())]);
    let mut first = host();
    let (before, key) = (Hostile::stranger(&dir), TopicKey::new(0, TOPIC).unwrap());
    let before = Hostile(before, None);
    let (lock, file) = lock_of(before.hello(Vec::new()));
    let _held = ProcessLock::take(file.expect("a new lock")).unwrap();
    before.ask(Body::Locked, &[]).0.unwrap();
    let qos = PublisherQos { pool_bytes: Some(BYTES), ..PublisherQos::default() };
    let made = || {
        let type_name = "rgaps/Bytes".to_owned();
        let (made, fds) = before.ask(Body::Advertise { key: key.clone(), type_name, qos, pool_of: None }, &[]);
        let Ok(Reply::Advertised(made)) = made else { panic!("{made:?}") };
        assert!(matches!(before.ask(Body::PoolMapped { topic: made.topic, slot: made.slot }, &[]).0, Ok(Reply::Done)));
        (made, fds)
    };
    let (one, two) = (made(), made());
    first.kill().unwrap();
    let _next = host();
    let client = Hostile(Hostile::stranger(&dir), None);
    assert_eq!(lock_of(client.hello(vec![lock])).0, lock);

    // Sealed memory without a page in it, of any size.
    let sparse = |bytes| {
        let fd = memfd::create_to_be_sealed("sparse", bytes).unwrap();
        memfd::seal_future_write(&fd).unwrap();
        fd
    };
    let hand_back = |(made, own): &(Advertised, Vec<OwnedFd>), bytes: u64, pool: &OwnedFd| {
        let slabs = serde_json::json!([{ "index": 0, "generation": 1, "bytes": bytes }]);
        let own_pool = made.pool.as_ref().unwrap();
        let (kind, device) = (&own_pool["kind"], &own_pool["device"]);
        let pool_of = serde_json::json!({ "kind": kind, "device": device, "bytes": bytes, "slabs": slabs });
        let of = Handed::Publisher { slot: made.slot, qos, pool: pool_of };
        let slots = vec![HandedSlot { fds: 1, of }];
        let (topic, type_name) = (made.topic, "rgaps/Bytes".to_owned());
        let topics = vec![HandedTopic { key: key.clone(), topic, type_name, slots }];
        let (answer, _) = client.ask(Body::HandBack { topics }, &[own[0].as_fd(), pool.as_fd()]);
        let Ok(Reply::HandedBack { refused }) = answer else { panic!("{answer:?}") };
        refused.into_iter().map(|refused| refused.why).collect::<Vec<_>>()
    };
    for (bytes, pool) in [(1 << 40, sparse(1 << 40)), (BYTES, sparse(BYTES)), (BYTES, two.1[1].try_clone().unwrap())] {
        let why = hand_back(&one, bytes, &pool);
        assert!(
            why.iter().any(|why| why.contains("not the pool that the publisher was granted")),
            "{bytes} B: {why:?}"
        );
    }
    for own in [&one, &two] {
        assert_eq!(hand_back(own, BYTES, &own.1[1]), Vec::<String>::new());
    }
    assert!(node(&dir).publisher::<Bytes>("another").is_ok());
}

#[test]
fn a_publisher_shares_only_a_sealed_pool_of_its_own_client() {
    let _watchdog = Watchdog::new(Duration::from_secs(120));
    let dir = RuntimeDir::new("sharing").unwrap();
    let _manager = manager(&dir, &[("RGAPS_DEVICE", "host".to_owned())]);
    let (owner, other) = (Hostile::new(&dir), Hostile::new(&dir));
    let advertise = |client: &Hostile, pool_of| {
        let (key, type_name) = (TopicKey::new(0, TOPIC).unwrap(), "rgaps/Bytes".to_owned());
        let (made, fds) = client.ask(Body::Advertise { key, type_name, qos: PublisherQos::default(), pool_of }, &[]);
        made.map(|made| match made {
            Reply::Advertised(made) => (made, fds.len()),
            made => panic!("{made:?}"),
        })
    };
    let (own, fds) = advertise(&owner, None).unwrap();
    assert_eq!((own.pool.is_some(), fds), (true, 2));
    let (topic, slot) = (own.topic, own.slot);
    let why = |refused: Result<(Advertised, usize), Refusal>| refused.unwrap_err().to_string();
    let unsealed = why(advertise(&owner, Some((topic, slot))));
    assert!(unsealed.contains("is not ready yet"), "a writer could still map it: {unsealed}");
    owner.ask(Body::PoolMapped { topic, slot }, &[]).0.unwrap();
    let of_another = why(advertise(&other, Some((topic, slot))));
    assert!(of_another.contains("this client does not have"), "{of_another}");
    let of_nobody = PublisherSlot { index: slot.index, generation: slot.generation + 1 };
    assert!(why(advertise(&owner, Some((topic, of_nobody)))).contains("this client does not have"));
    let no_topic = TopicId([9; 16]);
    assert!(why(advertise(&owner, Some((no_topic, slot)))).contains("this client does not have"));

    let (shared, fds) = advertise(&owner, Some((topic, slot))).unwrap();
    assert_eq!((shared.pool, shared.pool_fds, fds), (None, 0, 1), "the segment alone");
    // Each of the refusals has left nothing behind.
    assert_eq!(node(&dir).topics().unwrap()[0].publishers, 2);
    // Whoever shares a pool keeps it.
    owner.ask(Body::Detach { topic, slot: slot.into() }, &[]).0.unwrap();
    assert!(matches!(other.ask(Body::Pool { topic, slot: shared.slot }, &[]).0, Ok(Reply::Pool(_))));
}

#[test]
fn a_client_may_detach_from_a_slot_that_it_has_handed_back_as_kept() {
    let _watchdog = Watchdog::new(Duration::from_secs(120));
    let dir = RuntimeDir::new("kept").unwrap();
    let mut first = manager(&dir, &[]);
    let before = Hostile(Hostile::stranger(&dir), None);
    let (lock, file) = lock_of(before.hello(Vec::new()));
    let _held = ProcessLock::take(file.expect("a new lock")).unwrap();
    before.ask(Body::Locked, &[]).0.unwrap();
    let (key, type_name) = (TopicKey::new(0, TOPIC).unwrap(), "rgaps/Bytes".to_owned());
    let body = Body::Subscribe { key: key.clone(), type_name: type_name.clone(), qos: SubscriberQos::default() };
    let (made, own) = before.ask(body, &[]);
    let Ok(Reply::Subscribed(made)) = made else { panic!("{made:?}") };
    first.kill().unwrap();
    let _next = manager(&dir, &[]);
    let client = Hostile(Hostile::stranger(&dir), None);
    assert_eq!(lock_of(client.hello(vec![lock])).0, lock);
    let (topic, slot) = (made.topic, EndpointSlot::from(made.slot));
    let slots = vec![HandedSlot { fds: 0, of: Handed::Kept { slot } }];
    let topics = vec![HandedTopic { key, topic, type_name, slots }];
    let (answer, _) = client.ask(Body::HandBack { topics }, &[own[0].as_fd()]);
    assert!(matches!(&answer, Ok(Reply::HandedBack { refused }) if refused.is_empty()), "{answer:?}");
    client.ask(Body::HandedAllBack, &[]).0.unwrap();
    assert!(client.observes(TOPIC), "its streams may still write there");
    client.ask(Body::Detach { topic, slot }, &[]).0.unwrap();
    assert!(!client.observes(TOPIC), "nobody has a slot of the topic any more");
}

#[test]
fn topics_that_are_handed_back_without_slots_are_refused() {
    let _watchdog = Watchdog::new(Duration::from_secs(120));
    let dir = RuntimeDir::new("nothing").unwrap();
    let _manager = manager(&dir, &[]);
    let node = node(&dir);
    let subscriber = node.subscriber::<Bytes>(TOPIC).unwrap();
    let hostile = Hostile::new(&dir);
    let key = TopicKey::new(0, TOPIC).unwrap();
    let (observed, segment) = hostile.ask(Body::Observe { key: key.clone() }, &[]);
    let Ok(Reply::Observed { topic, .. }) = observed else { panic!("{observed:?}") };
    let nothing = HandedTopic { key, topic, type_name: String::new(), slots: Vec::new() };
    // As many as a message holds; each would cost a look at everybody who is in the topic.
    for topics in [vec![nothing.clone(); 600], vec![nothing]] {
        let (answer, _) = hostile.ask(Body::HandBack { topics }, &[segment[0].as_fd()]);
        assert!(matches!(answer, Err(Refusal::Invalid(_))), "{answer:?}");
    }
    assert!(subscriber.take().unwrap().is_none(), "it is in its topic still");
}

#[test]
fn the_kernel_lets_a_subscriber_write_its_own_words_and_nothing_else() {
    let _watchdog = Watchdog::new(Duration::from_secs(120));
    let dir = RuntimeDir::new("rights").unwrap();
    let _manager = manager(&dir, &[]);
    let node = node(&dir);
    let publisher = node.publisher::<Bytes>(TOPIC).unwrap();
    let subscriber = Hostile::new(&dir);
    let key = TopicKey::new(0, TOPIC).unwrap();
    let body = Body::Subscribe { key: key.clone(), type_name: "rgaps/Bytes".to_owned(), qos: SubscriberQos::default() };
    let (subscribed, mut fds) = subscriber.ask(body, &[]);
    let Ok(Reply::Subscribed(_)) = subscribed else { panic!("{subscribed:?}") };
    let (own, segment) = (fds.pop().unwrap(), fds.pop().unwrap());
    assert!(fds.is_empty());
    let bytes = |fd: &OwnedFd| rgaps_os::memfd::bytes(fd).unwrap();
    let map = |fd: &OwnedFd, access| Mapping::map(fd, bytes(fd), access);
    for (fd, is_its_own) in [(&segment, false), (&own, true)] {
        assert!(map(fd, Access::ReadOnly).is_ok());
        assert_eq!(map(fd, Access::ReadWrite).is_ok(), is_its_own);
        assert!(rgaps_os::memfd::seal_future_write(fd).is_err(), "nor can it shut anybody out");
    }
    // A subscriber that writes garbage into its own words harms only itself.
    let words = map(&own, Access::ReadWrite).unwrap();
    for offset in (0..8192).step_by(8) {
        words.atomic_u64(offset).unwrap().store(0x5a5a_5a5a_5a5a_5a5a, std::sync::atomic::Ordering::Relaxed);
    }
    let other = node.subscriber::<Bytes>(TOPIC).unwrap();
    for _ in 0..50 {
        publisher.push(&Bytes::new(1000), &[7; 1000]).unwrap();
        let sample = other.wait(LONG).unwrap().unwrap();
        assert_eq!(sample.bytes(), [7; 1000]);
    }
}

#[test]
fn a_client_of_another_version_gets_an_error_with_both_versions() {
    let _watchdog = Watchdog::new(Duration::from_secs(120));
    let dir = RuntimeDir::new("versions").unwrap();
    let _manager = manager(&dir, &[]);
    let ask = |protocol, layout| {
        let pidfd = PidFd::own().unwrap();
        let client = Hostile(Hostile::stranger(&dir), None);
        client.ask(hello(protocol, layout, Vec::new()), &[pidfd.as_fd()]).0.unwrap_err().to_string()
    };
    let (newer, older) = (PROTOCOL_VERSION + 1, PROTOCOL_VERSION - 1);
    let said = |other| {
        format!("rgapsd speaks protocol {PROTOCOL_VERSION}, this program {other}; run one version of RGAPS on a host")
    };
    assert_eq!((ask(newer, LAYOUT_VERSION), ask(older, LAYOUT_VERSION)), (said(newer), said(older)));
    let layout = LAYOUT_VERSION + 1;
    let text = format!(
        "rgapsd makes topics of layout {LAYOUT_VERSION}, this program reads layout {layout}; run one version of RGAPS on a host"
    );
    assert_eq!(ask(PROTOCOL_VERSION, layout), text);
    // The hello of an earlier protocol.
    let pidfd = PidFd::own().unwrap();
    let old = Hostile::stranger(&dir);
    let text = r#"{"id":1,"body":{"hello":{"protocol":3,"program":"old"}}}"#;
    old.send(&serde_json::from_str::<serde_json::Value>(text).unwrap(), &[pidfd.as_fd()]).unwrap();
    let answer = old.receive::<serde_json::Value>(LONG).unwrap().unwrap().message;
    assert_eq!(
        answer["reply"]["reply"]["Err"]["protocol"],
        serde_json::json!({ "manager": PROTOCOL_VERSION, "client": 3 })
    );
}

#[test]
fn a_client_cannot_use_a_lock_that_another_process_holds() {
    let _watchdog = Watchdog::new(Duration::from_secs(120));
    let dir = RuntimeDir::new("locks").unwrap();
    let _manager = manager(&dir, &[]);
    let _other = another_client(&dir).expect("it starts");
    let names = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let locks: Vec<LockId> = names.filter_map(|name| name.strip_prefix("client-")?.parse().ok()).collect();
    assert_eq!(locks.len(), 1);
    let client = Hostile(Hostile::stranger(&dir), None);
    let pidfd = PidFd::own().unwrap();
    let hello = hello(PROTOCOL_VERSION, LAYOUT_VERSION, locks.clone());
    let (welcome, files) = client.ask(hello, &[pidfd.as_fd()]);
    let Ok(Reply::Welcome(welcome)) = welcome else { panic!("{welcome:?}") };
    assert_ne!(welcome.lock, locks[0]);
    assert_eq!(files.len(), 1, "it gets one of its own");
    let _lock = ProcessLock::take(files.into_iter().next().unwrap()).unwrap();
    client.ask(Body::Locked, &[]).0.unwrap();
    assert!(dir.path().join(format!("client-{}", locks[0])).exists(), "the other client's file stays");
}

/// A client by hand that has a lock and a slot, and another connection of the same client; `_1` of both is empty.
fn two_of_one_lock(dir: &RuntimeDir) -> (Hostile, Hostile, LockId, ProcessLock) {
    let one = Hostile(Hostile::stranger(dir), None);
    let (lock, file) = lock_of(one.hello(Vec::new()));
    let held = ProcessLock::take(file.expect("a new lock")).unwrap();
    one.ask(Body::Locked, &[]).0.unwrap();
    one.subscribe("hostile_one").unwrap();
    let two = Hostile(Hostile::stranger(dir), None);
    assert_eq!(lock_of(two.hello(vec![lock])).0, lock);
    (one, two, lock, held)
}

#[test]
fn a_client_that_gives_its_lock_up_on_one_of_two_connections_hangs_nobody_else_up() {
    let _watchdog = Watchdog::new(Duration::from_secs(120));
    let dir = RuntimeDir::new("twice").unwrap();
    let _manager = manager(&dir, &[]);
    let bystander = Hostile::new(&dir);
    for _ in 0..3 {
        let (one, two, lock, held) = two_of_one_lock(&dir);
        // The manager takes the client for ended, by the one connection, while it has the other.
        drop((held, one));
        while bystander.observes("hostile_one") {
            rgaps_testing::pause();
        }
        assert!(two.0.receive::<ToClient>(Duration::ZERO).is_ok(), "nor itself");
        assert!(dir.path().join(format!("client-{lock}")).exists(), "a connection of the same lock is there");
    }
    // What the manager does at one moment is done when it answers.
    assert!(bystander.asks("anything").is_some(), "a client that has done nothing is hung up");
}

#[test]
fn a_pipe_that_is_named_like_a_removed_lock_file_stops_no_manager() {
    let _watchdog = Watchdog::new(Duration::from_secs(120));
    let dir = RuntimeDir::new("pipe").unwrap();
    let mut first = manager(&dir, &[]);
    let (one, two, lock, held) = two_of_one_lock(&dir);
    two.subscribe("hostile_two").unwrap();
    std::fs::remove_file(dir.path().join(format!("client-{lock}"))).unwrap();
    let aside = dir.path().with_extension("pipes");
    std::fs::create_dir(&aside).unwrap();
    let pipe = aside.join(format!("client-{lock} (deleted)"));
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    let how = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::NONBLOCK;
    let pipe = rustix::fs::open(&pipe, how, rustix::fs::Mode::empty()).unwrap();
    // This one asks whether the client lives, and so does the next.
    drop((held, one));
    let bystander = Hostile::new(&dir);
    while bystander.observes("hostile_one") {
        rgaps_testing::pause();
    }
    first.kill().unwrap();
    let _next = manager(&dir, &[]);
    assert!(Hostile::new(&dir).asks("anything").is_some());
    drop((pipe, two));
    std::fs::remove_dir_all(&aside).unwrap();
}

#[test]
fn a_client_of_many_connections_keeps_nobody_out() {
    let _watchdog = Watchdog::new(Duration::from_secs(120));
    rgaps_os::fds::raise_limit().unwrap();
    for is_one_lock in [true, false] {
        let dir = RuntimeDir::new("connections").unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", "ulimit -n 512 && exec \"$0\""]).arg(programs::find("rgapsd"));
        command.env("RGAPS_DEVICE", "host").env("RGAPS_NETWORK", "local");
        let _manager = manager::start(&dir, command).unwrap();
        let (mut locks, mut connections, mut refusals) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..300 {
            let client = Hostile(Hostile::stranger(&dir), None);
            let held = if is_one_lock { locks.iter().map(|(lock, _)| *lock).collect() } else { Vec::new() };
            match client.hello(held) {
                (Err(refusal), _) => refusals.push(refusal.to_string()),
                welcome => {
                    if let (lock, Some(file)) = lock_of(welcome) {
                        locks.push((lock, ProcessLock::take(file).unwrap()));
                        client.ask(Body::Locked, &[]).0.unwrap();
                    }
                }
            }
            connections.push(client);
        }
        let other = refusals.iter().find(|refusal| !refusal.contains("spare_fds_percent"));
        assert_eq!(other, None, "another refusal");
        assert_eq!(refusals.is_empty(), is_one_lock, "a client of one lock has one connection");
        // Another process's client.
        assert!(another_client(&dir).is_some());
    }
}

#[test]
fn a_client_of_many_topics_that_ends_keeps_nobody_waiting_and_nothing_is_noted() {
    const TOPICS: usize = 200;
    let _watchdog = Watchdog::new(Duration::from_secs(120));
    let dir = RuntimeDir::new("shares").unwrap();
    let manager = manager(&dir, &[]);
    let (bystander, mut many) = (Hostile::new(&dir), Hostile::new(&dir));
    let topic = |number: usize| format!("many_{number}");
    (0..TOPICS).for_each(|number| many.subscribe(&topic(number)).unwrap());
    let notes = rustix::fs::inotify::init(rustix::fs::inotify::CreateFlags::NONBLOCK).unwrap();
    rustix::fs::inotify::add_watch(&notes, dir.path(), rustix::fs::inotify::WatchFlags::MOVED_TO).unwrap();
    manager.stop().unwrap();
    many.1 = None;
    // Not only closed: a program that another test starts at this moment has the socket, too, until its exec.
    many.0.shut_down();
    drop(many);
    // All of it is there when the manager goes on.
    const ASKED: usize = 60;
    for number in 0..ASKED {
        let key = TopicKey::new(0, &topic(if number % 2 == 0 { 0 } else { TOPICS - 1 })).unwrap();
        bystander.0.send(&Request { id: 1, body: Body::Observe { key } }, &[]).unwrap();
    }
    manager.go_on().unwrap();
    let is_there: Vec<bool> = (0..ASKED).map(|_| matches!(bystander.hear().0, Ok(Reply::Observed { .. }))).collect();
    let is_between = |pair: &[bool]| !pair[0] && pair[1];
    assert!(is_there.chunks(2).any(is_between), "it is answered while topics end: {is_there:?}");
    while bystander.observes(&topic(TOPICS - 1)) {
        rgaps_testing::pause();
    }
    let mut buffer = [std::mem::MaybeUninit::uninit(); 4096];
    let mut events = rustix::fs::inotify::Reader::new(notes, &mut buffer);
    let written = std::iter::from_fn(|| Some(events.next().ok()?.file_name()?.to_string_lossy().into_owned()));
    assert_eq!(written.filter(|name| name.starts_with("topic-")).count(), 0, "notes of topics that had ended");
}

/// A client in a process of its own, if it gets in.
fn another_client(dir: &RuntimeDir) -> Option<Child> {
    let mut other = Command::new(std::env::current_exe().unwrap());
    other.args(["--exact", "role_of_another_client", "--ignored", "--nocapture"]);
    other.env("RGAPS_TEST_OTHER_CLIENT", "1").env("RGAPS_RUNTIME_DIR", dir.path());
    other.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut other = Child::spawn(&mut other).unwrap();
    other.output_after("ready").map(|_| other)
}

#[test]
#[ignore = "the other client's program, started by a test of this file"]
fn role_of_another_client() {
    if std::env::var("RGAPS_TEST_OTHER_CLIENT").is_ok() {
        let _watchdog = Watchdog::new(Duration::from_secs(120));
        let _node = Node::builder().no_autostart().build().unwrap();
        println!("ready");
        std::thread::park();
    }
}
