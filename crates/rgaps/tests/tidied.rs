//! One manager for each directory, also when a cleaner removes files from it.

#![allow(clippy::unwrap_used)] // helpers of tests, outside #[test] functions

use std::time::{Duration, Instant};

use rgaps::types::Bytes;
use rgaps::{Node, Publisher, Subscriber};
use rgaps_testing::{Ended, RuntimeDir, Watchdog, again_with, programs};

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
        assert!(round > 0 || log().contains("made anew"), "{}", log());
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
