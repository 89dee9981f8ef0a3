//! Publishers, subscribers and programs that are gone leave no pools, slots or file descriptors behind.

#![allow(clippy::unwrap_used)] // helpers of tests, outside #[test] functions

use std::io::{BufRead, Write};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rgaps::types::Bytes;
use rgaps::{History, Node, PublisherQos, SubscriberQos};
use rgaps_testing::{Child, RuntimeDir, Watchdog, kill_9, manager, programs};

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
    let mut child = program(&dir, "role_of_the_program_that_calls_exec");
    child.output_after("ready").expect("it starts");
    let subscribers = || node.topics().unwrap().iter().map(|topic| topic.subscribers).sum::<u32>();
    child.stop().unwrap();
    assert_eq!(subscribers(), 1, "a stopped program keeps what it has");
    child.go_on().unwrap();
    child.std().stdin.as_mut().unwrap().write_all(b"go\n").unwrap();
    child.output_after("replaced").expect("it becomes another program");
    assert!(soon(|| subscribers() == 0), "{} subscribers of a program that is `cat` by now", subscribers());
}

/// Starts a program of this file.
fn program(dir: &RuntimeDir, role: &str) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", role, "--ignored", "--nocapture"]);
    command.env("RGAPS_TEST_GONE", "1").env("RGAPS_RUNTIME_DIR", dir.path());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    Child::spawn(&mut command).unwrap()
}

#[test]
#[ignore = "the program with many nodes, started by the test below"]
fn role_of_the_program_with_many_nodes() {
    if std::env::var("RGAPS_TEST_GONE").is_err() {
        return;
    }
    let _watchdog = Watchdog::new(Duration::from_secs(120));
    let nodes: Vec<Node> = (0..40).map(|_| Node::builder().no_autostart().build().unwrap()).collect();
    let _subscribers: Vec<_> = nodes.iter().map(|node| node.subscriber::<Bytes>(TOPIC).unwrap()).collect();
    println!("ready");
    std::thread::park();
}

#[test]
fn clients_that_die_with_their_manager_leave_no_file_descriptor_in_the_next() {
    let _watchdog = Watchdog::new(Duration::from_secs(100));
    let dir = RuntimeDir::new("dead").unwrap();
    let mut manager = rgapsd(&dir);
    let node = node(&dir);
    let _publisher = node.publisher::<Bytes>(TOPIC).unwrap();
    let mut child = program(&dir, "role_of_the_program_with_many_nodes");
    child.output_after("ready").expect("it starts");
    manager.kill().unwrap();
    child.kill().unwrap();
    let next = rgapsd(&dir);
    let is_back = |topics: Vec<rgaps::TopicSummary>| matches!(&topics[..], [topic] if topic.publishers == 1 && topic.subscribers == 0);
    assert!(soon(|| node.topics().is_ok_and(is_back)));
    let open = std::fs::read_dir(format!("/proc/{}/fd", next.id())).unwrap().flatten();
    let open = open.filter_map(|fd| std::fs::read_link(fd.path()).ok());
    let of_clients = open.filter(|to| to.file_name().is_some_and(|name| name.to_string_lossy().starts_with("client-")));
    assert_eq!(of_clients.count(), 1, "lock files that it has open");
}

#[test]
#[ignore = "the program whose file descriptors another shares, started by the test below"]
fn role_of_the_program_whose_file_descriptors_another_shares() {
    if std::env::var("RGAPS_TEST_GONE").is_err() {
        return;
    }
    let _watchdog = Watchdog::new(Duration::from_secs(120));
    let node = Node::builder().no_autostart().build().unwrap();
    let _subscriber = node.subscriber::<Bytes>(TOPIC).unwrap();
    // SAFETY: as fork(2), but that the table of file descriptors is shared (clone(2), CLONE_FILES); the child makes system calls only.
    let other = unsafe { libc::syscall(libc::SYS_clone, libc::CLONE_FILES | libc::SIGCHLD, 0, 0, 0, 0) };
    if other == 0 {
        loop {
            // SAFETY: waits for a signal; no arguments.
            unsafe { libc::pause() };
        }
    }
    println!("ready {other}");
    std::thread::park();
}

#[test]
fn a_dead_client_keeps_no_slot_though_another_process_shares_its_file_descriptors() {
    let _watchdog = Watchdog::new(Duration::from_secs(100));
    for is_followed in [false, true] {
        let dir = RuntimeDir::new("shared").unwrap();
        let mut manager = rgapsd(&dir);
        let node = node(&dir);
        let _publisher = node.publisher::<Bytes>(TOPIC).unwrap();
        let mut child = program(&dir, "role_of_the_program_whose_file_descriptors_another_shares");
        let other = child.output_after("ready ").expect("it starts").parse().unwrap();
        let mut next = None;
        if is_followed {
            child.stop().unwrap();
            manager.kill().unwrap();
            next = Some(rgapsd(&dir));
            assert!(soon(|| node.topics().is_ok_and(|topics| topics.len() == 1 && topics[0].publishers == 1)));
        }
        child.kill().unwrap();
        let locks = || {
            let files = std::fs::read_dir(dir.path()).unwrap().flatten();
            files.filter(|file| file.file_name().to_string_lossy().starts_with("client-")).count()
        };
        // A subscriber that has handed nothing back is not listed; its client's lock file goes with the slots.
        let is_free = soon(|| locks() == 1 && node.topics().is_ok_and(|topics| topics[0].subscribers == 0));
        kill_9(other).unwrap();
        assert!(is_free, "the slot of the dead is taken still; its manager has died: {is_followed}");
        drop(next);
    }
}

#[test]
fn a_publisher_keeps_no_file_descriptor_of_subscribers_that_have_gone() {
    // In its own process, so that no other test's file descriptors count.
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
    assert!(subscribers.iter().all(|subscriber| subscriber.event_fd().is_ok()));
    drop(subscribers);
    let are_gone = soon(|| {
        publisher.push(&Bytes::new(1), &[1]).unwrap();
        assert_eq!(publisher.subscriber_count(), 0);
        held() == before
    });
    assert!(
        are_gone,
        "{:?} file descriptors, and mappings of words, after 200 subscribers have gone; {before:?} before",
        held()
    );
}
