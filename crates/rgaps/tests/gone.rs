//! Publishers, subscribers and programs that are gone leave no pools, slots or descriptors behind.

#![allow(clippy::unwrap_used)] // helpers of tests, outside #[test] functions

use std::io::{BufRead, Write};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rgaps::types::Bytes;
use rgaps::{History, Node, PublisherQos, SubscriberQos};
use rgaps_testing::{Child, RuntimeDir, Watchdog, manager, programs};

const TOPIC: &str = "gone";
const LONG: Duration = Duration::from_secs(20);

fn rgapsd(dir: &RuntimeDir) -> Child {
    let mut command = Command::new(programs::find("rgapsd"));
    command.env("RGAPS_DEVICE", "host").env("RGAPS_NETWORK", "local");
    manager::start(dir, command).unwrap()
}

fn node(dir: &RuntimeDir) -> Node {
    Node::builder().runtime_dir(dir.path()).no_autostart().build().unwrap()
}

/// Whether a condition becomes true in time.
fn soon(mut is_true: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + LONG;
    while !is_true() {
        if Instant::now() > deadline {
            return false;
        }
        std::thread::park_timeout(Duration::from_millis(10));
    }
    true
}

#[test]
fn rgapsd_releases_the_pools_of_replaced_publishers() {
    let _watchdog = Watchdog::new(Duration::from_secs(150));
    let dir = RuntimeDir::new("made-way").unwrap();
    let mut manager = rgapsd(&dir);
    let rgapsd = manager.std().id();
    let node = node(&dir);
    let deep = SubscriberQos { history: History::KeepLast(30_000), ..SubscriberQos::default() };
    // Never reads, so that dropped publishers keep their slots until these are needed: there are 256.
    let idle = node.subscriber_with::<Bytes>(TOPIC, deep).unwrap();
    let other = node.subscriber::<Bytes>(TOPIC).unwrap();
    let pools = || {
        let open = std::fs::read_dir(format!("/proc/{rgapsd}/fd")).unwrap().flatten();
        let links = open.filter_map(|fd| std::fs::read_link(fd.path()).ok());
        links.filter(|to| to.to_string_lossy().contains("rgaps-pool")).count()
    };
    let qos = PublisherQos { pool_bytes: Some(1 << 16), ..PublisherQos::default() };
    for _ in 0..400 {
        let publisher = node.publisher_with::<Bytes>(TOPIC, qos).unwrap();
        publisher.push(&Bytes::new(1), &[7]).unwrap();
    }
    assert!(pools() <= 256, "{} pools of 256 places", pools());
    drop(idle);
    let are_gone = soon(|| {
        while other.take().unwrap().is_some() {}
        pools() == 0
    });
    assert!(are_gone, "{} pools of 400 publishers that have all gone; {:?}", pools(), node.topics());
}

#[test]
#[ignore = "the program that is replaced, started by the test below"]
fn role_of_the_program_that_calls_exec() {
    if std::env::var("RGAPS_TEST_GONE").is_err() {
        return;
    }
    let _watchdog = Watchdog::new(Duration::from_secs(120));
    let node = Node::builder().no_autostart().build().unwrap();
    let keep_all = SubscriberQos { history: History::KeepAll, ..SubscriberQos::default() };
    let _subscriber = node.subscriber_with::<Bytes>(TOPIC, keep_all).unwrap();
    println!("ready");
    std::io::stdin().lock().read_line(&mut String::new()).unwrap();
    let error = Command::new("sh").args(["-c", "echo replaced; exec cat"]).exec();
    panic!("{error}");
}

#[test]
fn slots_of_a_program_that_called_exec_are_freed() {
    let _watchdog = Watchdog::new(Duration::from_secs(100));
    let dir = RuntimeDir::new("exec").unwrap();
    let _manager = rgapsd(&dir);
    let node = node(&dir);
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "role_of_the_program_that_calls_exec", "--ignored", "--nocapture"]);
    command.env("RGAPS_TEST_GONE", "1").env("RGAPS_RUNTIME_DIR", dir.path());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = Child::spawn(&mut command).unwrap();
    child.output_after("ready").expect("it starts");
    let subscribers = || node.topics().unwrap().iter().map(|topic| topic.subscribers).sum::<u32>();
    child.stop().unwrap();
    assert_eq!(subscribers(), 1, "a stopped program keeps what it has");
    child.go_on().unwrap();
    child.std().stdin.as_mut().unwrap().write_all(b"go\n").unwrap();
    child.output_after("replaced").expect("it becomes another program");
    assert!(soon(|| subscribers() == 0), "{} subscribers of a program that is `cat` by now", subscribers());
}

#[test]
fn a_publisher_keeps_no_descriptor_of_subscribers_that_have_gone() {
    // In its own process, so that no other test's descriptors count.
    if !rgaps_testing::again_with(&[], |_| Ok(())) {
        return;
    }
    let _watchdog = Watchdog::new(Duration::from_secs(100));
    let dir = RuntimeDir::new("events").unwrap();
    let _manager = rgapsd(&dir);
    let (publishing, subscribing) = (node(&dir), node(&dir));
    let publisher = publishing.publisher::<Bytes>(TOPIC).unwrap();
    let held = || {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let mapped = maps.lines().filter(|line| line.contains("rgaps-subscribers")).count();
        (std::fs::read_dir("/proc/self/fd").unwrap().count(), mapped)
    };
    let before = held();
    let subscribers: Vec<_> = (0..200).map(|_| subscribing.subscriber::<Bytes>(TOPIC).unwrap()).collect();
    assert!(subscribers.iter().all(|subscriber| subscriber.descriptor().is_ok()));
    drop(subscribers);
    let are_gone = soon(|| {
        publisher.push(&Bytes::new(1), &[1]).unwrap();
        assert_eq!(publisher.subscriber_count(), 0);
        held() == before
    });
    assert!(
        are_gone,
        "{:?} descriptors, and mappings of words, after 200 subscribers have gone; {before:?} before",
        held()
    );
}
