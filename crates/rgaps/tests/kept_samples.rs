//! A held sample keeps its bytes when the manager or client lacks file descriptors during the hand-back, or when files of theirs were removed.

#![allow(clippy::unwrap_used)] // helpers of tests, outside #[test] functions

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rgaps::types::Bytes;
use rgaps::{Exhaustion, Node, Publisher, PublisherQos, Subscriber};
use rgaps_testing::{Child, Ended, RuntimeDir, Watchdog, exit_main_thread, manager, programs, until};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const LONG: Duration = Duration::from_secs(20);
const TOPICS: usize = 4;
const PAYLOAD_BYTES: u64 = 4096;

fn rgapsd(dir: &RuntimeDir, limit: u32) -> Child {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("ulimit -n {limit} && exec \"$0\"")]).arg(programs::find("rgapsd"));
    command.env("RGAPS_DEVICE", "host").env("RGAPS_NETWORK", "local");
    manager::start(dir, command).unwrap()
}

fn node(dir: &RuntimeDir) -> Node {
    Node::builder().runtime_dir(dir.path()).no_autostart().build().unwrap()
}

fn topics() -> impl Iterator<Item = String> {
    (0..TOPICS).map(|number| format!("t{number}"))
}

/// This test program in a new process, as a client that holds a sample of each topic.
struct Client {
    child: Child,
}

impl Client {
    /// `spare`: how many more file descriptors it may open while it holds its samples.
    fn start(dir: &RuntimeDir, spare: Option<usize>) -> Self {
        Self::of(dir, "role_of_a_client", spare)
    }

    fn of(dir: &RuntimeDir, role: &str, spare: Option<usize>) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", role, "--ignored", "--nocapture"]);
        command.env("RGAPS_TEST_KEPT_SAMPLES", spare.map_or(String::new(), |spare| spare.to_string()));
        dir.apply(&mut command);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut client = Self { child: Child::spawn(&mut command).unwrap() };
        client.hear("ready");
        client
    }

    /// The rest of the next output line that contains the word.
    fn hear(&mut self, word: &str) -> String {
        self.child.output_after(word).unwrap_or_else(|| panic!("the client ended without {word:?}"))
    }

    /// Makes the client go on, and returns what it reads then.
    fn reads(&mut self) -> String {
        writeln!(self.child.std().stdin.as_mut().unwrap(), "go on").unwrap();
        self.hear("read ")
    }
}

#[test]
#[ignore = "the client's program, started by the tests of this file"]
fn role_of_a_client() {
    let Ok(spare) = std::env::var("RGAPS_TEST_KEPT_SAMPLES") else { return };
    let _watchdog = Watchdog::new(Duration::from_secs(120));
    let node = Node::builder().no_autostart().build().unwrap();
    let subscribers: Vec<Subscriber<Bytes>> = topics().map(|topic| node.subscriber(&topic).unwrap()).collect();
    println!("ready");
    let samples: Vec<_> = subscribers.iter().map(|subscriber| subscriber.wait(LONG).unwrap().unwrap()).collect();
    let slices: Vec<&[u8]> = samples.iter().map(|sample| sample.bytes()).collect();
    let mut fillers = Vec::new();
    if let Ok(spare) = spare.parse::<usize>() {
        let maximum = getrlimit(Resource::Nofile).maximum;
        setrlimit(Resource::Nofile, Rlimit { current: Some(256), maximum }).unwrap();
        fillers.extend(std::iter::from_fn(|| std::fs::File::open("/dev/null").ok()));
        fillers.truncate(fillers.len() - spare);
    }
    if READS_ITS_FILES.load(Ordering::Relaxed) {
        let files = std::fs::read_dir(std::env::var_os("RGAPS_RUNTIME_DIR").unwrap()).unwrap();
        files.for_each(|file| drop(std::fs::read(file.unwrap().path())));
    }
    println!("holding");
    for line in std::io::stdin().lines() {
        line.unwrap();
        let bytes: Vec<u8> = std::hint::black_box(&slices).iter().map(|bytes| bytes[0]).collect();
        let cut_off = subscribers.iter().filter(|subscriber| subscriber.take().is_err()).count();
        fillers.clear();
        println!("read {bytes:?}, cut off from {cut_off}");
    }
}

#[test]
#[ignore = "the client's program without its main thread, started by the tests of this file"]
fn role_of_a_client_without_its_main_thread() {
    if std::env::var("RGAPS_TEST_KEPT_SAMPLES").is_ok() {
        exit_main_thread().unwrap();
        role_of_a_client();
        std::process::exit(0);
    }
}

/// Whether the client's program reads all files of the runtime directory.
static READS_ITS_FILES: AtomicBool = AtomicBool::new(false);

#[test]
#[ignore = "the client's program that loses its lock, started by the tests of this file"]
fn role_of_a_client_that_reads_its_files() {
    if std::env::var("RGAPS_TEST_KEPT_SAMPLES").is_ok() {
        READS_ITS_FILES.store(true, Ordering::Relaxed);
        role_of_a_client();
    }
}

/// A publisher of each topic, and a client that holds a sample of each.
struct Held {
    publishers: Vec<Publisher<Bytes>>,
    own: Node,
    client: Client,
    manager: Child,
    dir: RuntimeDir,
    _watchdog: Watchdog,
}

impl Held {
    fn new(name: &str, spare: Option<usize>) -> Self {
        Self::by(name, |dir| Client::start(dir, spare))
    }

    fn by(name: &str, client: impl FnOnce(&RuntimeDir) -> Client) -> Self {
        let _watchdog = Watchdog::new(Duration::from_secs(100));
        let dir = RuntimeDir::new(name).unwrap();
        let (manager, own) = (rgapsd(&dir, 1024), node(&dir));
        let qos = PublisherQos { exhaustion: Exhaustion::DropOldest, pool_bytes: Some(1 << 16), ..Default::default() };
        let publishers = topics().map(|topic| own.publisher_with(&topic, qos).unwrap()).collect();
        let client = client(&dir);
        let mut held = Self { publishers, own, client, manager, dir, _watchdog };
        held.push(7);
        held.client.hear("holding");
        held
    }

    /// A publisher that does not know a subscriber's words yet treats all messages as needed, so a loan may be refused.
    fn push(&self, byte: u8) {
        for publisher in &self.publishers {
            let payload = [byte; PAYLOAD_BYTES as usize];
            until("a message is published", || publisher.push(&Bytes::new(PAYLOAD_BYTES), &payload).is_ok());
        }
    }

    fn files(&self, prefix: &str) -> Vec<PathBuf> {
        let files = std::fs::read_dir(self.dir.path()).into_iter().flatten().flatten();
        let files = files.filter(|file| file.path().is_file());
        let is_meant = |file: &std::fs::DirEntry| file.file_name().to_string_lossy().starts_with(prefix);
        files.filter(is_meant).map(|file| file.path()).collect()
    }

    /// Waits until both clients have reconnected after their files were removed: each note names existing locks.
    fn is_noted_again(&self) {
        let is_noted = |path: &PathBuf| {
            let note: serde_json::Value = serde_json::from_slice(&std::fs::read(path).ok()?).ok()?;
            let clients = note["clients"].as_array()?;
            let is_there = |client: &serde_json::Value| {
                client["lock"].as_str().is_some_and(|lock| self.dir.path().join(format!("client-{lock}")).exists())
            };
            Some(clients.len() == 2 && clients.iter().all(is_there))
        };
        until("all topics are noted again", || {
            let notes = self.files("topic-");
            notes.len() == TOPICS && notes.iter().all(|note| is_noted(note) == Some(true))
        });
    }

    /// Replaces the manager by a successor, and lets publishers use every block that they may.
    fn followed(&mut self) -> Child {
        self.manager.kill().unwrap();
        let next = rgapsd(&self.dir, 1024);
        until("all topics are handed back", || {
            self.own.topics().is_ok_and(|topics| topics.len() == TOPICS && topics.iter().all(|t| t.publishers == 1))
        });
        (0..100).for_each(|_| self.push(9));
        next
    }

    /// The manager has looked at what no file descriptor tells: what it could not write it has written now.
    fn ticks(&self) {
        let note = self.files("topic-").remove(0);
        let new = note.with_extension("new");
        std::fs::create_dir(&new).unwrap();
        std::fs::remove_file(&note).unwrap();
        // It has seen that when it answers for the second time.
        (0..2).for_each(|_| drop(self.own.topics().unwrap()));
        std::fs::remove_dir(&new).unwrap();
        until("the note is there again", || note.exists());
    }

    /// Checks that the client has reconnected with all slots, and reads the same bytes.
    fn is_whole(&mut self) {
        until("the client's slots are handed back", || {
            self.own.topics().is_ok_and(|topics| topics.iter().all(|topic| topic.subscribers == 1))
        });
        (0..100).for_each(|_| self.push(9));
        assert_eq!(self.client.reads(), "[7, 7, 7, 7], cut off from 0");
    }
}

#[test]
fn samples_stay_though_their_reader_hands_back_one_slot_at_a_time() {
    // One for the connection, two for the file descriptors of a slot.
    let mut held = Held::new("few", Some(3));
    let _next = held.followed();
    held.is_whole();
}

#[test]
fn samples_stay_though_their_reader_has_no_file_descriptors_when_its_manager_dies() {
    let mut held = Held::new("none", Some(2));
    let _next = held.followed();
    // From now on it may open some.
    assert_eq!(held.client.reads(), "[7, 7, 7, 7], cut off from 0");
    held.is_whole();
}

#[test]
fn samples_stay_though_a_cleaner_removes_files_and_leaves_the_socket() {
    let aside = |held: &Held| held.dir.path().with_extension("aside");
    let remove = |path: &Path| std::fs::remove_file(path);
    let rename = |held: &Held, path: &Path| std::fs::rename(path, aside(held));
    for (prefix, is_renamed) in [("", false), ("client-", false), ("topic-", false), ("client-", true)] {
        let mut held = Held::new("cleaned", None);
        // Like `find -type f -mtime +10 -delete`, and `mv`.
        for file in held.files(prefix) {
            let _ = if is_renamed { rename(&held, &file) } else { remove(&file) };
        }
        held.is_noted_again();
        let _next = held.followed();
        held.is_whole();
        let _ = std::fs::remove_file(aside(&held));
    }
}

#[test]
fn samples_stay_though_files_are_removed_time_and_again_before_the_manager_dies() {
    let mut held = Held::new("often", None);
    for _ in 0..10 {
        for file in held.files("client-") {
            let _ = std::fs::remove_file(file);
        }
    }
    held.is_noted_again();
    let _next = held.followed();
    held.is_whole();
}

#[test]
fn samples_stay_though_a_stopped_readers_lock_file_is_removed_first() {
    let mut held = Held::new("stopped", None);
    held.client.child.stop().unwrap();
    for file in held.files("client-") {
        let _ = std::fs::remove_file(file);
    }
    let _next = held.followed();
    held.client.child.go_on().unwrap();
    held.is_whole();
}

#[test]
fn samples_stay_though_the_lock_file_of_a_stopped_reader_is_renamed_or_replaced() {
    for (how, is_followed) in [("mv", false), ("mv", true), ("mv all", false), ("mv all", true), ("cp; mv", true)] {
        let mut held = Held::new("renamed", None);
        held.client.child.stop().unwrap();
        let (aside, before) = (held.dir.path().with_extension("aside"), held.files("client-"));
        match how {
            "mv all" => std::fs::rename(held.dir.path(), &aside).unwrap(),
            _ => std::fs::create_dir(&aside).unwrap(),
        }
        for file in held.files("client-") {
            let other = aside.join(file.file_name().unwrap());
            match how {
                "mv" => std::fs::rename(&file, &other).unwrap(),
                _ => replaced(&file, &other),
            }
        }
        until("the publishers' client is back", || {
            held.files("client-").iter().any(|file| !before.contains(file)) && held.own.topics().is_ok()
        });
        let next = if is_followed { Some(held.followed()) } else { None };
        (0..100).for_each(|_| held.push(9));
        // A manager asks who lives before it answers, and whenever it looks at what no file descriptor tells.
        held.ticks();
        (0..100).for_each(|_| held.push(9));
        held.client.child.go_on().unwrap();
        held.is_whole();
        // Who leaves tells its manager.
        drop(held);
        drop(next);
        std::fs::remove_dir_all(&aside).unwrap();
    }
}

#[test]
fn samples_stay_though_a_stopped_reader_without_main_thread_lost_its_lock_file() {
    for is_renamed in [false, true] {
        let start = |dir: &RuntimeDir| Client::of(dir, "role_of_a_client_without_its_main_thread", None);
        let mut held = Held::by("threads", start);
        until("the main thread has ended", || held.client.child.has_no_main_thread());
        held.client.child.stop().unwrap();
        let aside = held.dir.path().with_extension("aside");
        std::fs::create_dir(&aside).unwrap();
        if is_renamed {
            let files = held.files("client-");
            files.iter().for_each(|file| std::fs::rename(file, aside.join(file.file_name().unwrap())).unwrap());
            until("the publishers' client is back", || held.files("client-").len() == 1 && held.own.topics().is_ok());
        }
        let _next = held.followed();
        // Publishers that join now read what the client says of itself, and need not keep everything for it.
        let qos = PublisherQos { exhaustion: Exhaustion::DropOldest, pool_bytes: Some(1 << 16), ..Default::default() };
        let new: Vec<Publisher<Bytes>> = topics().map(|topic| held.own.publisher_with(&topic, qos).unwrap()).collect();
        for publisher in &new {
            let push = || publisher.push(&Bytes::new(PAYLOAD_BYTES), &[5; PAYLOAD_BYTES as usize]).is_ok();
            (0..100).for_each(|_| until("a new publisher publishes", push));
        }
        held.client.child.go_on().unwrap();
        held.is_whole();
        std::fs::remove_dir_all(&aside).unwrap();
    }
}

#[test]
fn samples_stay_though_their_reader_lost_its_lock_by_reading_the_lock_file() {
    let start = |dir: &RuntimeDir| Client::of(dir, "role_of_a_client_that_reads_its_files", None);
    let mut held = Held::by("reads", start);
    held.ticks();
    (0..100).for_each(|_| held.push(9));
    let _next = held.followed();
    held.ticks();
    held.is_whole();
}

#[test]
fn samples_stay_though_managers_cannot_read_the_notes_for_lack_of_file_descriptors() {
    let mut held = Held::new("unread", None);
    held.manager.kill().unwrap();
    let socket = held.dir.path().join("rgapsd.sock");
    for limit in 8..24 {
        std::fs::remove_file(&socket).unwrap_or_default();
        let mut command = Command::new("sh");
        command.args(["-c", &format!("ulimit -n {limit} && exec \"$0\"")]).arg(programs::find("rgapsd"));
        command.env("RGAPS_DEVICE", "host").env("RGAPS_NETWORK", "local");
        held.dir.apply(&mut command);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut few = Child::spawn(&mut command).unwrap();
        until("it listens or has ended", || {
            socket.exists() || few.wait_within(Duration::ZERO).unwrap() != Ended::StillRunning
        });
        few.kill().unwrap();
        assert_eq!(held.files("topic-").len(), TOPICS, "notes are left by a manager of {limit} file descriptors");
    }
    let _next = held.followed();
    held.is_whole();
}

/// As `sed -i` does, or who restores a copy. By another process: this one would lose its own lock by opening the file.
fn replaced(file: &Path, copy: &Path) {
    assert!(Command::new("cp").args([file, copy]).status().unwrap().success());
    std::fs::rename(copy, file).unwrap();
}

#[test]
fn samples_stay_though_their_readers_lock_file_was_replaced_first() {
    let mut held = Held::new("replaced", None);
    let copy = held.dir.path().with_extension("copy");
    let before = held.files("client-");
    for file in &before {
        replaced(file, &copy);
    }
    until("both have locks of other files", || {
        let now = held.files("client-");
        now.len() == 2 && now.iter().all(|file| !before.contains(file))
    });
    held.is_noted_again();
    let _next = held.followed();
    held.is_whole();
}

#[test]
fn samples_stay_though_nothing_could_be_noted_when_lock_files_were_removed() {
    let mut held = Held::new("unwritable", None);
    let new: Vec<PathBuf> = held.files("topic-").iter().map(|note| note.with_extension("new")).collect();
    // As where the disk is full.
    new.iter().for_each(|new| std::fs::create_dir(new).unwrap());
    held.files("client-").iter().for_each(|file| std::fs::remove_file(file).unwrap());
    until("both get new locks", || held.files("client-").len() == 2);
    // Answered once the client has got in, or given up.
    let _ = held.own.topics();
    held.manager.kill().unwrap();
    new.iter().for_each(|new| std::fs::remove_dir(new).unwrap());
    let _next = held.followed();
    held.is_whole();
}

#[test]
fn a_node_that_ends_after_its_lock_file_was_removed_leaves_no_slot() {
    let held = Held::new("ended", None);
    for _ in 0..10 {
        let node = node(&held.dir);
        let subscribers: Vec<Subscriber<Bytes>> = topics().map(|topic| node.subscriber(&topic).unwrap()).collect();
        for file in held.files("client-") {
            let _ = std::fs::remove_file(file);
        }
        drop((subscribers, node));
        until("its slots are free", || {
            held.own.topics().is_ok_and(|topics| topics.iter().all(|topic| topic.subscribers == 1))
        });
    }
}

#[test]
fn a_manager_without_clients_leaves_when_a_file_of_its_own_is_removed() {
    let _watchdog = Watchdog::new(Duration::from_secs(100));
    let dir = RuntimeDir::new("unneeded").unwrap();
    let mut manager = rgapsd(&dir, 1024);
    std::fs::remove_file(dir.path().join("epoch")).unwrap();
    assert!(matches!(manager.wait_within(LONG).unwrap(), Ended::Exited(_)), "it is there still");
}

#[test]
fn a_manager_that_may_have_few_file_descriptors_takes_back_as_many_slots_as_it_gave() {
    let _watchdog = Watchdog::new(Duration::from_secs(100));
    let dir = RuntimeDir::new("manager").unwrap();
    let mut manager = rgapsd(&dir, 128);
    let own = node(&dir);
    // One message carries far more file descriptors than it may have.
    let subscribers: Vec<Subscriber<Bytes>> =
        (0..60).map(|number| own.subscriber(&format!("t{number}")).unwrap()).collect();
    manager.kill().unwrap();
    let _next = rgapsd(&dir, 128);
    until("all topics are handed back", || {
        own.topics().is_ok_and(|topics| topics.len() == 60 && topics.iter().all(|topic| topic.subscribers == 1))
    });
    let cut_off = subscribers.iter().filter(|subscriber| subscriber.take().is_err()).count();
    assert_eq!(cut_off, 0);
}
