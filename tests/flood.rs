//! A flood of announcements and withdrawals on the network: local clients go on, and the state afterwards is right.

#![allow(clippy::unwrap_used)] // helpers of tests, outside #[test] functions

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use rgaps::types::Bytes;
use rgaps::{Node, Publisher, PublisherQos, Subscriber, SubscriberQos};
use rgaps_control::local::Role;
use rgaps_control::wire::Endpoint;
use rgaps_control::{HostId, TopicKey};
use rgaps_testing::{Child, Hosts, HostsError, RuntimeDir, Watchdog, manager, programs, skipped};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use zenoh::liveliness::LivelinessToken;
use zenoh::{Session, Wait};

const LONG: Duration = Duration::from_secs(30);
/// Topics of the flooded host.
const TOPICS: usize = 300;
/// Requests that must be answered during the flood.
const ANSWERS: u64 = 20;
/// The least number of token changes in the flood.
const CHANGES: u64 = 5_000;
/// Most tokens of the flood that exist at the same time.
const AT_A_TIME: usize = 400;
/// Topics that a permanent host announces: the first half exists on the flooded host, too.
const KEPT: usize = 20;

/// Speaks to a manager as another manager would.
struct Stranger(Session);

impl Stranger {
    fn new(locator: &str) -> Self {
        let mut config = zenoh::Config::default();
        let connect = format!("[\"{locator}\"]");
        let settings = [
            ("mode", "\"peer\""),
            ("scouting/multicast/enabled", "false"),
            ("listen/endpoints", "[\"tcp/127.0.0.1:0\"]"),
            ("connect/endpoints", &connect),
        ];
        settings.into_iter().for_each(|(key, value)| config.insert_json5(key, value).unwrap());
        Self(zenoh::open(config).wait().unwrap())
    }

    fn token(&self, key: &str) -> LivelinessToken {
        self.0.liveliness().declare_token(key.to_owned()).wait().unwrap()
    }
}

fn host_key(host: HostId, name: &str) -> String {
    format!("rgaps/1/{host}/host/{}", hex(name.as_bytes()))
}

fn endpoint_key(host: HostId, endpoint: &Endpoint) -> String {
    format!("rgaps/1/{host}/endpoint/{}", hex(&serde_json::to_vec(endpoint).unwrap()))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn host(number: u64) -> HostId {
    HostId(u128::from(number + 1).to_be_bytes())
}

fn endpoint(topic: &str, role: Role, type_name: &str) -> Endpoint {
    Endpoint {
        key: TopicKey::new(0, topic).unwrap(),
        role,
        type_name: type_name.to_owned(),
        offers: vec![PublisherQos::default(); usize::from(role == Role::Publisher)],
        requests: vec![SubscriberQos::default(); usize::from(role == Role::Subscriber)],
    }
}

fn many(number: usize) -> String {
    format!("many_{number}")
}

/// What a test keeps open beside the manager.
fn take_all_fds() {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum }).unwrap();
}

/// A publisher and a subscriber for each topic.
fn pairs(node: &Node) -> Vec<(Publisher<Bytes>, Subscriber<Bytes>)> {
    let qos = PublisherQos { pool_bytes: Some(1 << 16), ..PublisherQos::default() };
    let pair = |n| (node.publisher_with::<Bytes>(&many(n), qos).unwrap(), node.subscriber::<Bytes>(&many(n)).unwrap());
    (0..TOPICS).map(pair).collect()
}

/// The permanent host's endpoint on a topic.
fn kept(number: usize) -> Endpoint {
    let topic = if number < KEPT / 2 { many(number) } else { format!("theirs_{number}") };
    endpoint(&topic, Role::Publisher, "rgaps/Bytes")
}

/// Announcement `number` of the flood: a few hosts that keep changing, and a new one each time.
fn announcement(number: u64) -> String {
    let of = if number.is_multiple_of(3) { host(1_000 + number) } else { host(number % 16) };
    let role = if number.is_multiple_of(2) { Role::Publisher } else { Role::Subscriber };
    let topic = match number % 5 {
        0 => format!("invented_{number}"),
        _ => many((number % TOPICS as u64) as usize),
    };
    match number % 7 {
        0 => host_key(of, &format!("stranger_{number}")),
        _ => endpoint_key(of, &endpoint(&topic, role, &format!("other/Type{}", number % 11))),
    }
}

/// Announces and withdraws until told to stop: different hosts and topics each time, some with names, some on existing topics. In between it
/// announces the permanent endpoints one by one; returns those.
fn flood(stranger: &Stranger, is_over: &AtomicBool, changes: &AtomicU64) -> Vec<LivelinessToken> {
    let staying = host(u64::MAX / 2);
    let mut stays = vec![stranger.token(&host_key(staying, "staying"))];
    let mut passing: VecDeque<LivelinessToken> = VecDeque::new();
    for number in 0_u64.. {
        if is_over.load(Ordering::Relaxed) && stays.len() == KEPT + 1 {
            break;
        }
        passing.push_back(stranger.token(&announcement(number)));
        changes.fetch_add(1, Ordering::Relaxed);
        if passing.len() > AT_A_TIME {
            passing.pop_front().unwrap().undeclare().wait().unwrap();
            changes.fetch_add(1, Ordering::Relaxed);
        }
        if number % 101 == 100 && stays.len() <= KEPT {
            stays.push(stranger.token(&endpoint_key(staying, &kept(stays.len() - 1))));
        }
    }
    passing.into_iter().for_each(|token| token.undeclare().wait().unwrap());
    stays
}

/// Publishes and takes messages until told to stop, and checks that none is lost. Returns how many.
fn flow((publisher, subscriber): &(Publisher<Bytes>, Subscriber<Bytes>), goes_on: impl Fn() -> bool) -> u64 {
    let mut messages = 0_u64;
    while goes_on() {
        messages += 1;
        publisher.push(&Bytes::new(8), &messages.to_le_bytes()).unwrap();
        let message = subscriber.wait(LONG).unwrap().expect("it was published");
        assert_eq!(message.bytes(), messages.to_le_bytes(), "a message was lost");
    }
    assert_eq!(subscriber.statistics().lost, 0);
    messages
}

/// Ends the flood and the traffic beside it, even if a request fails.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Topics that have other hosts, with the hosts' names.
fn of_others(node: &Node) -> Vec<(String, Vec<String>)> {
    let topics = node.topics().unwrap();
    let others = |hosts: &[String]| -> Vec<String> {
        hosts.iter().filter(|host| !host.ends_with("(this host)")).cloned().collect()
    };
    let found = topics.iter().map(|topic| {
        let hosts = [others(&topic.publishing_hosts), others(&topic.subscribing_hosts)].concat();
        (topic.key.name().to_owned(), hosts)
    });
    found.filter(|(_, hosts)| !hosts.is_empty()).collect()
}

/// Repeats a request until the answer is as expected; the test's watchdog ends a wait that never does.
fn until_others_are(node: &Node, wanted: &[(String, Vec<String>)], what: &str) {
    let mut asked = 0_u64;
    while of_others(node) != wanted {
        asked += 1;
        if asked.is_multiple_of(500) {
            eprintln!("{what}: still {} topics of others after {asked} looks", of_others(node).len());
        }
    }
}

#[test]
fn a_flood_of_announcements_delays_no_local_client_and_leaves_no_trace() {
    let _watchdog = Watchdog::new(Duration::from_secs(240));
    take_all_fds();
    let dir = RuntimeDir::new("flood").unwrap();
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let locator = format!("tcp/127.0.0.1:{free}");
    let mut command = Command::new(programs::find("rgapsd"));
    command.env("RGAPS_LISTEN", &locator).env("RGAPS_DEVICE", "host").env("RGAPS_HOST_NAME", "flooded");
    let _manager = manager::start(&dir, command).unwrap();
    let node = Node::builder().runtime_dir(dir.path()).no_autostart().build().unwrap();
    let pairs = pairs(&node);
    let stranger = Stranger::new(&locator);
    let (is_over, changes) = (AtomicBool::new(false), AtomicU64::new(0));
    let (mut answers, mut longest) = (0, Duration::ZERO);
    let (stays, messages) = std::thread::scope(|scope| {
        let over = Over(&is_over);
        let flooding = scope.spawn(|| flood(&stranger, &is_over, &changes));
        let flowing = scope.spawn(|| flow(&pairs[TOPICS - 1], || !is_over.load(Ordering::Relaxed)));
        while answers < ANSWERS || changes.load(Ordering::Relaxed) < CHANGES {
            let before = changes.load(Ordering::Relaxed);
            let asked = Instant::now();
            let listed = node.topics().unwrap();
            // A local publisher that comes and goes changes announcements and notes.
            let comes = node.subscriber::<Bytes>(&format!("late_{}", answers % 3)).unwrap();
            longest = longest.max(asked.elapsed());
            drop(comes);
            assert!(listed.iter().filter(|topic| topic.publishers == 1).count() == TOPICS);
            answers += 1;
            if answers <= ANSWERS {
                eprintln!("answer {answers} after {:?}; {before} tokens had changed", asked.elapsed());
            }
            assert!(!flooding.is_finished(), "the flood goes on");
        }
        drop(over);
        (flooding.join().unwrap(), flowing.join().unwrap())
    });
    let changed = changes.load(Ordering::Relaxed);
    println!(
        "{changed} changes of tokens; {answers} answers, the longest after {longest:?}; {messages} messages, none lost"
    );
    let mut wanted: Vec<(String, Vec<String>)> =
        (0..KEPT).map(|number| (kept(number).key.name().to_owned(), vec!["staying".to_owned()])).collect();
    wanted.sort();
    until_others_are(&node, &wanted, "what stays");
    drop(stays);
    until_others_are(&node, &[], "nothing stays");
    // The counters that users see are noted a moment later.
    let noted = || rgaps_control::Running::new(dir.path(), 0).network.unwrap_or_default();
    while (noted().hosts, noted().endpoints) != (0, 0) || noted().announcements == 0 {
        rgaps_testing::pause();
    }
    println!("{:?}", noted());
    for (publisher, subscriber) in &pairs[..TOPICS - 1] {
        publisher.push(&Bytes::new(1), &[1]).unwrap();
        assert_eq!(subscriber.take().unwrap().expect("it was published").bytes(), [1]);
    }
}

/// Prints how long `rgaps topic list` takes during the flood.
#[test]
fn a_flood_from_pypi_zenoh_on_another_host_loses_no_local_sample() {
    const SECONDS: &str = "5";
    let _watchdog = Watchdog::new(Duration::from_secs(120));
    let Some(python) = std::env::var_os("TEST_ZENOH_PYTHON") else {
        return skipped("no TEST_ZENOH_PYTHON, a Python with eclipse-zenoh");
    };
    let hosts = match Hosts::new(2) {
        Err(HostsError::Unavailable(why)) => return skipped(why),
        hosts => hosts.unwrap(),
    };
    take_all_fds();
    let dir = RuntimeDir::new("pypi").unwrap();
    let locator = format!("tcp/{}:7447", hosts[0].address());
    let mut command = hosts[0].command(programs::find("rgapsd"));
    command.env("RGAPS_LISTEN", &locator).env("RGAPS_MULTICAST", "false").env("RGAPS_DEVICE", "host");
    let _manager = manager::start(&dir, command).unwrap();
    let node = Node::builder().runtime_dir(dir.path()).no_autostart().build().unwrap();
    let pairs = pairs(&node);
    let script = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("flood/stranger.py");
    let mut stranger = hosts[1].command(python);
    stranger.arg(script).args([&locator, SECONDS, &AT_A_TIME.to_string()]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut stranger = Child::spawn(&mut stranger).unwrap();
    let keys: Vec<String> = (0..20_000).map(announcement).collect();
    stranger.std().stdin.take().unwrap().write_all(keys.join("\n").as_bytes()).unwrap();
    let mut said = BufReader::new(stranger.std().stdout.take().unwrap());
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    assert_eq!(line, "flooding\n");
    let (over, is_over) = std::sync::mpsc::channel::<()>();
    let is_listed = AtomicBool::new(false);
    let (messages, lists, changes) = std::thread::scope(|scope| {
        let pair = &pairs[TOPICS - 1];
        // 30 Hz.
        let goes_on = move || is_over.recv_timeout(Duration::from_micros(33_333)) == Err(RecvTimeoutError::Timeout);
        let flowing = scope.spawn(move || flow(pair, goes_on));
        let listing = scope.spawn(|| {
            let mut took = Vec::new();
            while !is_listed.load(Ordering::Relaxed) {
                let mut list = Command::new(programs::find("rgaps"));
                dir.apply(&mut list);
                let asked = Instant::now();
                let listed = list.args(["topic", "list"]).output().unwrap();
                took.push(asked.elapsed());
                assert!(listed.status.success(), "{}", String::from_utf8_lossy(&listed.stderr));
                let here = String::from_utf8_lossy(&listed.stdout).matches("many_").count();
                assert!(here >= TOPICS, "{here} topics");
            }
            took
        });
        // Once its connection has ended, its zenoh may wait for ever when it closes.
        let (ending, ended) = std::sync::mpsc::channel();
        scope.spawn(move || {
            if ended.recv_timeout(LONG) == Err(RecvTimeoutError::Timeout) {
                stranger.kill().unwrap();
            }
        });
        let mut changes = String::new();
        said.read_to_string(&mut changes).unwrap();
        ending.send(()).unwrap_or_default();
        is_listed.store(true, Ordering::Relaxed);
        drop(over);
        let lists = listing.join().unwrap();
        (flowing.join().unwrap(), lists, changes.lines().last().unwrap().parse::<u64>().unwrap())
    });
    let (mut sorted, count) = (lists.clone(), lists.len());
    sorted.sort();
    println!(
        "{changes} changes in {SECONDS} s; {count} times `rgaps topic list`: median {:?}, longest {:?}; {messages} messages at 30 Hz, none lost",
        sorted[count / 2],
        sorted[count - 1]
    );
    assert!(changes > 1000 && messages > 30, "{changes} changes, {messages} messages");
}
