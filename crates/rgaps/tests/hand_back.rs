//! Slots outlive the manager: its successor keeps the slots of living clients, and frees those of dead ones.

#![allow(clippy::unwrap_used)] // helpers of tests, outside #[test] functions

use std::ops::Range;
use std::pin::pin;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake};
use std::time::{Duration, Instant};

use rgaps::types::Bytes;
use rgaps::{Exhaustion, Node, Publisher, PublisherQos, Subscriber};
use rgaps_control::local::{Listener, PROTOCOL_VERSION, Refusal, Request, ToClient};
use rgaps_testing::{Child, RuntimeDir, Watchdog, again_with, programs, until};
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, setrlimit};

const TOPIC: &str = "hand_back";
const LONG: Duration = Duration::from_secs(20);

/// This test program in a new process, as a client.
struct Client {
    child: Child,
}

impl Client {
    fn start(role: &str, dir: &RuntimeDir) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "role_of_a_client", "--ignored", "--nocapture"]);
        command.env("RGAPS_TEST_HAND_BACK", role).env("RGAPS_RUNTIME_DIR", dir.path());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut client = Self { child: Child::spawn(&mut command).unwrap() };
        client.hear("ready");
        client
    }

    /// The rest of the next output line that contains the word.
    fn hear(&mut self, word: &str) -> String {
        self.child.output_after(word).unwrap_or_else(|| panic!("the client ended without {word:?}"))
    }
}

#[test]
#[ignore = "the clients' program, started by the tests of this file"]
fn role_of_a_client() {
    let Ok(role) = std::env::var("RGAPS_TEST_HAND_BACK") else { return };
    let _watchdog = Watchdog::new(Duration::from_secs(120));
    let node = Node::builder().no_autostart().build().unwrap();
    match role.as_str() {
        "subscriber" => {
            let subscriber = node.subscriber::<Bytes>(TOPIC).unwrap();
            println!("ready");
            match subscriber.wait(LONG) {
                Ok(sample) => println!("took {:?}", sample.map(|sample| sample.bytes()[0])),
                Err(error) => println!("took error: {error}"),
            }
        }
        "latest" => {
            let subscriber = node.subscriber::<Bytes>(TOPIC).unwrap();
            println!("ready");
            let mut taken = Vec::new();
            while taken.last() != Some(&200) {
                taken.push(subscriber.wait(LONG).unwrap().unwrap().bytes()[0]);
            }
            println!("took {} lost {}", taken.len(), subscriber.statistics().lost);
        }
        "publisher" => {
            let publisher = node.publisher::<Bytes>(TOPIC).unwrap();
            publish(&publisher, 5);
            println!("ready");
            std::thread::park();
        }
        "everything" => {
            let (waits, asleep) = (node.subscriber::<Bytes>(TOPIC).unwrap(), node.subscriber::<Bytes>(TOPIC).unwrap());
            let publisher = node.publisher::<Bytes>(TOPIC).unwrap();
            asleep.event_fd().unwrap();
            std::thread::spawn(move || println!("wait: {}", waits.wait(LONG).unwrap_err()));
            std::thread::spawn(move || println!("next: {}", block_on(asleep.next()).unwrap_err()));
            println!("ready");
            loop {
                match publisher.loan(Bytes::new(1)) {
                    Ok(_) => rgaps_testing::pause(),
                    Err(error) => break println!("loan: {error}"),
                }
            }
        }
        other => panic!("no role {other}"),
    }
    std::thread::park();
}

/// A minimal async runtime on one thread.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    struct Unpark(std::thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Arc::new(Unpark(std::thread::current())).into();
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(done) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return done;
        }
        std::thread::park();
    }
}

/// Whether this is a process whose clients start managers without a network.
fn is_isolated() -> bool {
    again_with(&[("RGAPS_NETWORK", "local"), ("RGAPS_DEVICE", "host")], |_| Ok(()))
}

/// The manager of a runtime directory, started by a client.
fn manager_of(dir: &RuntimeDir, other_than: u32) -> u32 {
    let deadline = Instant::now() + LONG;
    while Instant::now() < deadline {
        let managers = dir.users().unwrap().into_iter().filter(|pid| {
            let line = std::fs::read_to_string(format!("/proc/{pid}/cmdline"));
            *pid != other_than && line.is_ok_and(|line| line.contains("--detached"))
        });
        if let Some(pid) = managers.max() {
            return pid;
        }
        rgaps_testing::pause();
    }
    panic!("no manager in {}", dir.path().display());
}

fn kill(pid: u32) {
    kill_process(Pid::from_raw(i32::try_from(pid).unwrap()).unwrap(), Signal::KILL).unwrap();
}

fn node(dir: &RuntimeDir) -> Node {
    Node::builder().runtime_dir(dir.path()).build().unwrap()
}

fn publish(publisher: &Publisher<Bytes>, byte: u8) {
    publisher.push(&Bytes::new(1), &[byte]).unwrap();
}

/// A publisher and a subscriber on each of many topics, with the smallest possible pools.
fn many(node: &Node, topics: usize) -> Vec<(Publisher<Bytes>, Subscriber<Bytes>)> {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum }).unwrap();
    let pair = |number: usize| {
        let (topic, qos) = (format!("many_{number}"), PublisherQos { pool_bytes: Some(1 << 16), ..Default::default() });
        (node.publisher_with(&topic, qos).unwrap(), node.subscriber(&topic).unwrap())
    };
    (0..topics).map(pair).collect()
}

#[test]
fn a_stopped_subscriber_keeps_its_slot_over_managers_and_a_dead_one_does_not() {
    if !is_isolated() {
        return;
    }
    let _watchdog = Watchdog::new(Duration::from_secs(100));
    let dir = RuntimeDir::new("stopped").unwrap();
    let node = node(&dir);
    let publisher = node.publisher::<Bytes>(TOPIC).unwrap();
    let mut stopped = Client::start("subscriber", &dir);
    let mut dead = Client::start("subscriber", &dir);
    assert_eq!(publisher.subscriber_count(), 2);
    stopped.child.stop().unwrap();
    kill(manager_of(&dir, 0));
    dead.child.kill().unwrap();
    until("the slot of the dead is free", || publisher.subscriber_count() < 2);
    // When the manager answers, its earlier decisions are carried out.
    assert_eq!(node.topics().unwrap().len(), 1);
    assert_eq!(publisher.subscriber_count(), 1, "the stopped one has its slot still");
    publish(&publisher, 7);
    stopped.child.go_on().unwrap();
    assert_eq!(stopped.hear("took "), "Some(7)");
}

#[test]
fn a_publisher_that_joins_a_successor_does_not_wait_for_a_stopped_subscriber() {
    if !is_isolated() {
        return;
    }
    let _watchdog = Watchdog::new(Duration::from_secs(100));
    let dir = RuntimeDir::new("stopped_words").unwrap();
    let node = node(&dir);
    let first = node.publisher::<Bytes>(TOPIC).unwrap();
    let mut stopped = Client::start("latest", &dir);
    stopped.child.stop().unwrap();
    let manager = manager_of(&dir, 0);
    kill(manager);
    manager_of(&dir, manager);
    // This publisher does not know the stopped subscriber's words; the first one does.
    let qos = PublisherQos { exhaustion: Exhaustion::DropOldest, pool_bytes: Some(1 << 16), ..Default::default() };
    let late = Node::builder().runtime_dir(dir.path()).build().unwrap().publisher_with::<Bytes>(TOPIC, qos).unwrap();
    assert_eq!(late.subscriber_count(), 1);
    for byte in 1..=200_u8 {
        let message = vec![byte; 4096];
        until("space is found", || late.push(&Bytes::new(4096), &message).is_ok());
    }
    stopped.child.go_on().unwrap();
    let said = stopped.hear("took ");
    let numbers: Vec<u64> = said.split(" lost ").map(|number| number.parse().unwrap()).collect();
    assert_eq!(numbers.iter().sum::<u64>(), 200, "{said}");
    drop(first);
}

#[test]
fn a_client_of_many_topics_hands_all_of_them_to_the_next_manager() {
    if !is_isolated() {
        return;
    }
    let _watchdog = Watchdog::new(Duration::from_secs(200));
    let dir = RuntimeDir::new("many").unwrap();
    let node = node(&dir);
    let pairs = many(&node, 300);
    let manager = manager_of(&dir, 0);
    kill(manager);
    manager_of(&dir, manager);
    // The manager answers once everything is handed back.
    let is_whole = |topic: &rgaps::TopicSummary| (topic.publishers, topic.subscribers) == (1, 1);
    until("all topics are handed back", || {
        let listed = node.topics();
        listed.is_ok_and(|listed| listed.len() == pairs.len() && listed.iter().all(is_whole))
    });
    let lost = pairs.iter().filter(|(publisher, _)| publisher.subscriber_count() == 0).count();
    assert_eq!(lost, 0, "subscribers that lost their slot, of {}", pairs.len());
    for (publisher, subscriber) in &pairs {
        publish(publisher, 1);
        assert_eq!(subscriber.take().unwrap().expect("it was published").bytes(), [1]);
    }
}

#[test]
fn a_third_manager_needs_no_more_file_descriptors_for_a_client_than_the_second() {
    const MANY: usize = 50;
    if !is_isolated() {
        return;
    }
    let _watchdog = Watchdog::new(Duration::from_secs(200));
    let dir = RuntimeDir::new("third").unwrap();
    let node = node(&dir);
    let subscribe = |topics: Range<usize>| -> Vec<Subscriber<Bytes>> {
        topics.map(|number| node.subscriber(&format!("many_{number}")).unwrap()).collect()
    };
    let open = |manager: u32| std::fs::read_dir(format!("/proc/{manager}/fd")).unwrap().count();
    let until_all_are_back = |subscribers: &[Subscriber<Bytes>]| {
        until("all topics are handed back", || {
            let listed = node.topics();
            listed.is_ok_and(|listed| listed.len() == subscribers.len() && listed.iter().all(|t| t.subscribers == 1))
        });
    };
    let mut subscribers = subscribe(0..MANY);
    let first = manager_of(&dir, 0);
    kill(first);
    let second = manager_of(&dir, first);
    until_all_are_back(&subscribers);
    // These are in another file than those that the first manager admitted.
    subscribers.extend(subscribe(MANY..2 * MANY));
    let of_second = open(second);
    kill(second);
    let third = manager_of(&dir, second);
    until_all_are_back(&subscribers);
    let of_third = open(third);
    assert!(of_third < of_second + MANY / 4, "{of_third} file descriptors, not {of_second}");
}

#[test]
fn a_client_that_detaches_during_its_hand_back_stays_detached() {
    if !is_isolated() {
        return;
    }
    let _watchdog = Watchdog::new(Duration::from_secs(200));
    let dir = RuntimeDir::new("leaving").unwrap();
    let node = node(&dir);
    let pairs = many(&node, 300);
    let manager = manager_of(&dir, 0);
    kill(manager);
    let log = || std::fs::read_to_string(dir.path().join("rgapsd.log")).unwrap_or_default();
    until("the first topic is handed back", || log().contains("taken over"));
    drop(pairs);
    let mut left = usize::MAX;
    let deadline = Instant::now() + LONG;
    while left > 0 && Instant::now() < deadline {
        left = node.topics().map_or(usize::MAX, |topics| topics.len());
    }
    assert_eq!(left, 0, "topics that are listed still");
}

#[test]
fn a_cut_off_client_gets_an_error_in_its_wait_or_at_its_next_call() {
    if !is_isolated() {
        return;
    }
    let _watchdog = Watchdog::new(Duration::from_secs(100));
    let dir = RuntimeDir::new("cut").unwrap();
    let first = node(&dir);
    let mut client = Client::start("everything", &dir);
    client.child.stop().unwrap();
    drop(first);
    kill(manager_of(&dir, 0));
    // Without notes the next manager does not know the topic, and creates it again.
    for entry in std::fs::read_dir(dir.path()).unwrap().flatten() {
        if entry.file_name().to_string_lossy().starts_with("topic-") {
            std::fs::remove_file(entry.path()).unwrap();
        }
    }
    let next = node(&dir);
    let _publisher = next.publisher::<Bytes>(TOPIC).unwrap();
    client.child.go_on().unwrap();
    let mut said: Vec<String> = (0..3).map(|_| client.hear(&format!(": /{TOPIC}: "))).collect();
    said.sort();
    let cut_off = |who: &str| format!("the {who} was cut off from its topic; create it again");
    assert_eq!(said, [cut_off("publisher"), cut_off("subscriber"), cut_off("subscriber")]);
    let topics = next.topics().unwrap();
    assert_eq!((topics.len(), topics[0].publishers, topics[0].subscribers), (1, 1, 0));
}

#[test]
fn joins_and_leaves_take_effect_even_while_managers_die() {
    if !is_isolated() {
        return;
    }
    let _watchdog = Watchdog::new(Duration::from_secs(200));
    let dir = RuntimeDir::new("joining").unwrap();
    let node = node(&dir);
    let is_over = AtomicBool::new(false);
    let mut pairs = std::thread::scope(|scope| {
        let joins = scope.spawn(|| {
            let mut pairs: Vec<(Publisher<Bytes>, Subscriber<Bytes>)> = Vec::new();
            for number in 0_usize.. {
                let topic = format!("t{}", number % 7);
                pairs.push((node.publisher(&topic).unwrap(), node.subscriber(&topic).unwrap()));
                // Some are dropped at once, some later.
                if number % 3 == 0 || pairs.len() > 12 {
                    pairs.remove(number % pairs.len());
                }
                if is_over.load(Ordering::Relaxed) {
                    return pairs;
                }
            }
            unreachable!("it ends when it is told to")
        });
        let mut manager = 0;
        for _ in 0..12 {
            manager = manager_of(&dir, manager);
            let log = || std::fs::read_to_string(dir.path().join("rgapsd.log")).unwrap_or_default();
            let made = log().matches("topic made").count();
            until("topics are made", || log().matches("topic made").count() > made || joins.is_finished());
            kill(manager);
        }
        is_over.store(true, Ordering::Relaxed);
        joins.join().unwrap()
    });
    // Each is in its topic, and no others are.
    for (publisher, subscriber) in &pairs {
        while subscriber.take().unwrap().is_some() {}
        publish(publisher, 3);
        assert_eq!(subscriber.wait(LONG).unwrap().expect("it was published").bytes(), [3]);
    }
    let listed: u32 = node.topics().unwrap().iter().map(|topic| topic.publishers + topic.subscribers).sum();
    assert_eq!(listed as usize, 2 * pairs.len());
    pairs.clear();
    assert_eq!(node.topics().unwrap(), []);
}

#[test]
fn a_stopped_clients_topic_is_not_recreated_and_a_joiner_learns_whom_it_awaits() {
    if !is_isolated() {
        return;
    }
    let _watchdog = Watchdog::new(Duration::from_secs(100));
    let dir = RuntimeDir::new("held").unwrap();
    let first = node(&dir);
    let mut client = Client::start("subscriber", &dir);
    client.child.stop().unwrap();
    drop(first);
    kill(manager_of(&dir, 0));
    let next = node(&dir);
    let said = next.publisher::<Bytes>(TOPIC).unwrap_err().to_string();
    assert!(said.contains(&format!("process {} has slots in /{TOPIC}", client.child.id())), "{said}");
    client.child.go_on().unwrap();
    let publisher = next.publisher::<Bytes>(TOPIC).unwrap();
    until("the client is in the same topic", || publisher.subscriber_count() == 1);
    publish(&publisher, 9);
    assert_eq!(client.hear("took "), "Some(9)");
}

#[test]
fn a_stopped_publishers_message_is_read_after_it_continues_under_a_successor() {
    if !is_isolated() {
        return;
    }
    let _watchdog = Watchdog::new(Duration::from_secs(100));
    let dir = RuntimeDir::new("unmapped").unwrap();
    let node = node(&dir);
    let subscriber = node.subscriber::<Bytes>(TOPIC).unwrap();
    let client = Client::start("publisher", &dir);
    client.child.stop().unwrap();
    let manager = manager_of(&dir, 0);
    kill(manager);
    manager_of(&dir, manager);
    assert_eq!(node.topics().unwrap().len(), 1);
    // The pool is not mapped, and the successor does not have it yet.
    std::thread::scope(|scope| {
        let taken = scope.spawn(|| subscriber.take().unwrap().expect("it was published").bytes()[0]);
        client.child.go_on().unwrap();
        assert_eq!(taken.join().unwrap(), 5);
    });
}

#[test]
fn a_client_stopped_while_starting_a_manager_does_not_block_another_start() {
    if !is_isolated() {
        return;
    }
    let _watchdog = Watchdog::new(Duration::from_secs(100));
    let dir = RuntimeDir::new("starter").unwrap();
    // Hold the lock as the stopped client does.
    let lock = std::fs::File::create(dir.path().join("start.lock")).unwrap();
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).unwrap();
    assert_eq!(node(&dir).topics().unwrap(), []);
}

#[test]
fn a_node_is_built_though_a_manager_dies_while_it_says_hello() {
    let _watchdog = Watchdog::new(Duration::from_secs(100));
    let dir = RuntimeDir::new("hello").unwrap();
    let socket = rgaps_control::RuntimeDir::open(dir.path()).unwrap().socket();
    let listener = Listener::bind(&socket).unwrap();
    let dying = std::thread::spawn(move || {
        let connection = std::iter::repeat_with(|| listener.accept().unwrap()).flatten().next().unwrap();
        assert!(connection.receive::<Request>(LONG).unwrap().is_some(), "hello");
    });
    let mut command = Command::new(programs::find("rgapsd"));
    dir.apply(&mut command);
    command.env("RGAPS_NETWORK", "local").env("RGAPS_DEVICE", "host").stdin(Stdio::null()).stderr(Stdio::null());
    let next = std::thread::spawn(move || {
        dying.join().unwrap();
        Child::spawn(&mut command).unwrap()
    });
    let built = Node::builder().runtime_dir(dir.path()).no_autostart().build();
    let _manager = next.join().unwrap();
    assert_eq!(built.unwrap().topics().unwrap(), []);
}

#[test]
fn a_program_says_that_the_next_manager_is_of_another_version() {
    let _watchdog = Watchdog::new(Duration::from_secs(100));
    let dir = RuntimeDir::new("version").unwrap();
    let mut command = Command::new(programs::find("rgapsd"));
    command.env("RGAPS_DEVICE", "host").env("RGAPS_NETWORK", "local");
    let mut manager = rgaps_testing::manager::start(&dir, command).unwrap();
    let node = Node::builder().runtime_dir(dir.path()).no_autostart().build().unwrap();
    let _subscriber = node.subscriber::<Bytes>("a").unwrap();
    manager.kill().unwrap();
    let (listener, is_over) = (Listener::bind(&dir.path().join("rgapsd.sock")).unwrap(), AtomicBool::new(false));
    let answer = || {
        while !is_over.load(Ordering::Acquire) {
            let Some(connection) = listener.accept().unwrap() else {
                rgaps_testing::pause();
                continue;
            };
            if let Ok(Some(packet)) = connection.receive::<Request>(Duration::from_secs(20)) {
                let reply = Err(Refusal::Protocol { manager: PROTOCOL_VERSION + 1, client: PROTOCOL_VERSION });
                let _ = connection.send(&ToClient::Reply { id: packet.message.id, reply }, &[]);
            }
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(answer);
        let refused = node.topics().unwrap_err().to_string();
        is_over.store(true, Ordering::Release);
        assert!(refused.contains("run one version of RGAPS on a host"), "{refused}");
    });
}
