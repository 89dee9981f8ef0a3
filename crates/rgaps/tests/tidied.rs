//! One manager for each directory, also when a cleaner removes files from it.

#![allow(clippy::unwrap_used)] // helpers of tests, outside #[test] functions

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

use rgaps::types::Bytes;
use rgaps::{Node, Publisher, Subscriber};
use rgaps_testing::{Child, Ended, RuntimeDir, Watchdog, again_with, programs, skipped};

const LONG: Duration = Duration::from_secs(20);

/// Whether a published message arrives.
fn is_connected(publisher: &Publisher<Bytes>, subscriber: &Subscriber<Bytes>) {
    publisher.push(&Bytes::new(1), &[1]).unwrap();
    assert!(subscriber.wait(LONG).unwrap().is_some(), "nothing came");
}

#[test]
fn programs_of_one_directory_meet_after_a_tmp_cleaner_removed_its_files() {
    let rgapsd = programs::find("rgapsd");
    let settings = [("RGAPSD", rgapsd.to_str().unwrap()), ("RGAPS_NETWORK", "local"), ("RGAPS_DEVICE", "host")];
    if !again_with(&settings, |_| Ok(())) {
        return;
    }
    let _watchdog = Watchdog::new(Duration::from_secs(100));
    let dir = RuntimeDir::new("tidied").unwrap();
    let build = || Node::builder().runtime_dir(dir.path()).build();
    let old = build().unwrap();
    let publisher = old.publisher::<Bytes>("a").unwrap();
    let log = || std::fs::read_to_string(dir.path().join("rgapsd.log")).unwrap_or_default();
    for (round, whole) in [false, true, false].into_iter().enumerate() {
        // Like systemd-tmpfiles with files in /tmp that are older than ten days.
        let mut files: Vec<_> = std::fs::read_dir(dir.path()).unwrap().flatten().map(|entry| entry.path()).collect();
        // rgapsd may create some again while others are still being removed; the log is removed first.
        files.sort_by_key(|path| !path.ends_with("rgapsd.log"));
        files.iter().for_each(|path| drop(std::fs::remove_file(path)));
        if whole {
            let _ = std::fs::remove_dir(dir.path());
            // A manager without its directory has no lock. Another one that starts before the directory is back takes over.
            let deadline = Instant::now() + LONG;
            while !dir.path().join("rgapsd.sock").exists() {
                assert!(Instant::now() < deadline, "rgapsd is not back");
                std::thread::park_timeout(Duration::from_millis(10));
            }
        }
        let new = build().unwrap();
        is_connected(&publisher, &new.subscriber("a").unwrap());
        let deadline = Instant::now() + LONG;
        // The earlier clients are known by locks of existing files.
        let locks = || {
            let files = std::fs::read_dir(dir.path()).into_iter().flatten().flatten();
            files.filter(|file| file.file_name().to_string_lossy().starts_with("client-")).count()
        };
        while locks() < 2 || old.topics().map_or(0, |topics| topics.len()) != 1 {
            assert!(Instant::now() < deadline, "round {round}: {} clients have locks\n{}", locks(), log());
            std::thread::park_timeout(Duration::from_millis(10));
        }
        is_connected(&publisher, &new.subscriber("a").unwrap());
        // A repeated warning is logged later.
        assert!(round > 0 || log().contains("creates them again"), "{}", log());
    }
    assert_eq!(dir.users().unwrap().len(), 1, "one rgapsd");
}

#[test]
fn a_manager_without_clients_leaves_when_its_directory_is_removed() {
    let dir = RuntimeDir::new("unneeded").unwrap();
    let mut command = std::process::Command::new(programs::find("rgapsd"));
    command.env("RGAPS_DEVICE", "host").env("RGAPS_NETWORK", "local").env("RGAPS_IDLE_TIMEOUT_MS", "3600000");
    let mut manager = rgaps_testing::manager::start(&dir, command).unwrap();
    let node = Node::builder().runtime_dir(dir.path()).no_autostart().build().unwrap();
    drop(node);
    let deadline = Instant::now() + LONG;
    loop {
        // It creates them again while it has the client.
        let _ = std::fs::remove_dir_all(dir.path());
        match manager.wait_within(Duration::from_millis(50)).unwrap() {
            Ended::Exited(status) => break assert!(status.success(), "{status}"),
            _ => assert!(Instant::now() < deadline, "rgapsd is there still"),
        }
    }
    assert!(!dir.path().exists(), "and leaves nothing");
}

/// `rgapsd` that leaves only when it is told to.
fn lasting(dir: &RuntimeDir) -> Child {
    let mut command = std::process::Command::new(programs::find("rgapsd"));
    command.env("RGAPS_DEVICE", "host").env("RGAPS_NETWORK", "local").env("RGAPS_IDLE_TIMEOUT_MS", "3600000");
    rgaps_testing::manager::start(dir, command).unwrap()
}

fn node(dir: &RuntimeDir) -> Node {
    Node::builder().runtime_dir(dir.path()).no_autostart().build().unwrap()
}

/// More happens in a directory than a watch keeps (inotify(7)), while its manager is stopped.
fn overflow(dir: &RuntimeDir, manager: &Child) {
    let deadline = Instant::now() + LONG;
    while !open_files(manager).iter().any(|target| target.ends_with("anon_inode:inotify")) {
        assert!(Instant::now() < deadline, "it watches nothing");
        rgaps_testing::pause();
    }
    let most = std::fs::read_to_string("/proc/sys/fs/inotify/max_queued_events").unwrap();
    manager.stop().unwrap();
    for number in 0..=most.trim().parse::<u32>().unwrap() {
        let file = dir.path().join(format!("somebodys-{}", number % 2));
        std::fs::write(&file, "").unwrap();
        std::fs::remove_file(&file).unwrap();
    }
    manager.go_on().unwrap();
}

#[test]
fn a_manager_whose_watch_overflows_takes_nothing_for_removed_that_is_there() {
    let _watchdog = Watchdog::new(Duration::from_secs(100));
    let dir = RuntimeDir::new("overflow").unwrap();
    let manager = lasting(&dir);
    let locks = || {
        let files = std::fs::read_dir(dir.path()).unwrap().flatten().map(|file| file.file_name());
        files.filter(|name| name.to_string_lossy().starts_with("client-")).collect::<Vec<_>>()
    };
    // Without clients, it would leave.
    overflow(&dir, &manager);
    let bystander = node(&dir);
    let subscriber = bystander.subscriber::<Bytes>("a").unwrap();
    let had = locks();
    // By their numbers: its own, and that of the client's connection.
    let sockets = || {
        let open = open_files(&manager).into_iter();
        open.filter(|target| target.to_string_lossy().starts_with("socket:")).collect::<Vec<_>>()
    };
    let connected = sockets();
    overflow(&dir, &manager);
    // It has read what the watch had to tell when it answers for the second time.
    (0..2).for_each(|_| assert_eq!(bystander.topics().unwrap().len(), 1));
    assert_eq!(sockets(), connected, "the client was hung up");
    // What is gone it finds all the same.
    manager.stop().unwrap();
    had.iter().for_each(|lock| std::fs::remove_file(dir.path().join(lock)).unwrap());
    overflow(&dir, &manager);
    let deadline = Instant::now() + LONG;
    while locks().is_empty() || locks() == had {
        assert!(Instant::now() < deadline, "the client has no new lock");
        std::thread::park_timeout(Duration::from_millis(10));
    }
    assert!(subscriber.take().unwrap().is_none());
}

/// What a manager has open.
fn open_files(manager: &Child) -> BTreeSet<PathBuf> {
    let open = std::fs::read_dir(format!("/proc/{}/fd", manager.id())).unwrap().flatten();
    open.filter_map(|entry| std::fs::read_link(entry.path()).ok()).collect()
}

#[test]
fn what_is_removed_is_made_anew_though_nothing_can_be_watched() {
    let _watchdog = Watchdog::new(Duration::from_secs(100));
    let dir = RuntimeDir::new("unwatched").unwrap();
    // In a user namespace of its own rgapsd may have no watch, and everybody else as many as ever.
    let unwatched = || {
        let mut command = std::process::Command::new("unshare");
        command.args(["--user", "--map-root-user", "sh", "-c"]);
        command.arg("echo 0 > /proc/sys/user/max_inotify_instances && exec \"$0\" \"$@\"");
        command
    };
    if !unwatched().arg("true").output().is_ok_and(|output| output.status.success()) {
        return skipped("no user namespace, or none without watches, can be made here");
    }
    let start = || {
        let mut command = unwatched();
        command.arg(programs::find("rgapsd"));
        command.env("RGAPS_DEVICE", "host").env("RGAPS_NETWORK", "local");
        rgaps_testing::manager::start(&dir, command).unwrap()
    };
    let mut first = start();
    // A client that is stopped: of its topic the next manager has a note and nothing else.
    let stopped = Stopped::start(&dir);
    first.kill().unwrap();
    let _next = start();
    let files = || {
        let names = std::fs::read_dir(dir.path()).unwrap().flatten().map(|file| file.path());
        let is_meant = |path: &PathBuf| {
            let name = path.file_name().unwrap().to_string_lossy();
            name == "epoch" || name.starts_with("topic-") && !name.ends_with(".new")
        };
        names.filter(is_meant).collect::<Vec<_>>()
    };
    let all = files();
    assert_eq!(all.len(), 2, "{all:?}");
    for file in &all {
        std::fs::remove_file(file).unwrap();
        let deadline = Instant::now() + LONG;
        while !file.exists() {
            assert!(Instant::now() < deadline, "{} is not made anew", file.display());
            std::thread::park_timeout(Duration::from_millis(10));
        }
    }
    drop(stopped);
}

/// A client in a process of its own, which is stopped.
struct Stopped(#[expect(dead_code, reason = "it ends with this")] Child);

impl Stopped {
    fn start(dir: &RuntimeDir) -> Self {
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "role_of_the_stopped", "--ignored", "--nocapture"]);
        command.env("RGAPS_TEST_TIDIED", "1");
        dir.apply(&mut command);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = Child::spawn(&mut command).unwrap();
        child.output_after("ready").expect("it starts");
        child.stop().unwrap();
        Self(child)
    }
}

#[test]
#[ignore = "the stopped client's program, started by a test of this file"]
fn role_of_the_stopped() {
    if std::env::var("RGAPS_TEST_TIDIED").is_ok() {
        let _watchdog = Watchdog::new(Duration::from_secs(120));
        let node = Node::builder().no_autostart().build().unwrap();
        let _subscriber = node.subscriber::<Bytes>("stopped").unwrap();
        println!("ready");
        std::thread::park();
    }
}
