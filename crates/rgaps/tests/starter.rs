//! A manager that a client starts on demand also serves other clients and outlives that one, so it inherits from it only what it needs.

#![allow(clippy::unwrap_used)] // helpers of tests, outside #[test] functions

use std::io::BufRead;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rgaps::Node;
use rgaps::types::Bytes;
use rgaps_testing::{Child, RuntimeDir, Watchdog, again_with, exit_main_thread, is_again, manager, programs};
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, setrlimit};

const LONG: Duration = Duration::from_secs(20);

/// Runs the test again in a new process, whose nodes start their managers.
fn again() -> bool {
    let rgapsd = programs::find("rgapsd");
    let settings = [("RGAPSD", rgapsd.to_str().unwrap()), ("RGAPS_NETWORK", "local"), ("RGAPS_DEVICE", "host")];
    again_with(&settings, |_| Ok(()))
}

#[test]
fn a_manager_started_on_demand_keeps_no_fd_of_the_client_that_started_it() {
    if !again() {
        return;
    }
    let _watchdog = Watchdog::new(Duration::from_secs(60));
    let dir = RuntimeDir::new("inherits").unwrap();
    // Without close-on-exec, like the socket(2), open(2) and pipe(2) of C programs.
    let (reading, writing) = rustix::pipe::pipe().unwrap();
    let _node = Node::builder().runtime_dir(dir.path()).build().unwrap();
    drop(writing);
    let has_ended = rgaps_os::poll::readable(reading.as_fd(), LONG).unwrap();
    assert!(has_ended, "rgapsd keeps this program's pipe open");
}

#[test]
fn a_manager_started_on_demand_ends_when_told_to_whatever_signals_its_client_blocks() {
    if is_again() {
        let node = Node::builder().build().unwrap();
        println!("ready");
        let _ = std::io::stdin().lock().read_line(&mut String::new());
        return drop(node);
    }
    let _watchdog = Watchdog::new(Duration::from_secs(60));
    let dir = RuntimeDir::new("blocked").unwrap();
    let mut command = Command::new("env");
    // Like a program that handles signals with sigwait(3) or signalfd(2).
    command.arg("--block-signal=TERM").arg(std::env::current_exe().unwrap());
    command.args(["--exact", std::thread::current().name().unwrap(), "--nocapture"]);
    command.env("AGAIN_IN_A_PROCESS_OF_ITS_OWN", "1").env("RGAPSD", programs::find("rgapsd"));
    command.env("RGAPS_RUNTIME_DIR", dir.path()).env("RGAPS_NETWORK", "local").env("RGAPS_DEVICE", "host");
    let mut client = Child::spawn(command.stdin(Stdio::piped()).stdout(Stdio::piped())).unwrap();
    client.output_after("ready").expect("it starts a manager");
    let manager = dir.users().unwrap().into_iter().find(|pid| *pid != client.id()).unwrap();
    kill_process(Pid::from_raw(manager as i32).unwrap(), Signal::TERM).unwrap();
    let deadline = Instant::now() + LONG;
    while std::path::Path::new(&format!("/proc/{manager}")).exists() {
        assert!(Instant::now() < deadline, "rgapsd has not ended after SIGTERM");
        std::thread::park_timeout(Duration::from_millis(10));
    }
}

#[test]
fn a_client_whose_main_thread_has_ended_starts_a_successor() {
    if is_again() {
        let _watchdog = Watchdog::new(Duration::from_secs(60));
        let node = Node::builder().build().unwrap();
        let _subscriber = node.subscriber::<Bytes>("a").unwrap();
        exit_main_thread().unwrap();
        println!("ready");
        let _ = std::io::stdin().lock().read_line(&mut String::new());
        println!("topics: {:?}", node.topics().map(|topics| topics.len()));
        std::process::exit(0);
    }
    let _watchdog = Watchdog::new(Duration::from_secs(60));
    let dir = RuntimeDir::new("no-main").unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", std::thread::current().name().unwrap(), "--nocapture"]);
    // Not by RGAPSD: the program is found beside this one, or in PATH.
    let folder = programs::find("rgapsd").parent().unwrap().to_owned();
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let paths = std::env::join_paths([folder].into_iter().chain(std::env::split_paths(&paths))).unwrap();
    command.env("AGAIN_IN_A_PROCESS_OF_ITS_OWN", "1").env_remove("RGAPSD").env("PATH", paths);
    command.env("RGAPS_RUNTIME_DIR", dir.path()).env("RGAPS_NETWORK", "local").env("RGAPS_DEVICE", "host");
    let mut client = Child::spawn(command.stdin(Stdio::piped()).stdout(Stdio::piped())).unwrap();
    client.output_after("ready").expect("it starts a manager");
    let manager = dir.users().unwrap().into_iter().find(|pid| *pid != client.id()).unwrap();
    let deadline = Instant::now() + LONG;
    while !client.has_no_main_thread() {
        assert!(Instant::now() < deadline, "the main thread has not ended");
        rgaps_testing::pause();
    }
    kill_process(Pid::from_raw(manager as i32).unwrap(), Signal::KILL).unwrap();
    drop(client.std().stdin.take());
    assert_eq!(client.output_after("topics: ").as_deref(), Some("Ok(1)"));
}

/// Whether a publisher can be created under a file-size limit below the length of a topic's segment.
fn publisher_under(limit: Rlimit) -> Result<(), String> {
    let dir = RuntimeDir::new("fsize").unwrap();
    setrlimit(Resource::Fsize, limit).unwrap();
    let node = Node::builder().runtime_dir(dir.path()).build().unwrap();
    node.publisher::<Bytes>("a").map(drop).map_err(|error| error.to_string())
}

#[test]
fn a_manager_started_on_demand_has_no_limit_of_the_client_that_started_it() {
    if again() {
        let _watchdog = Watchdog::new(Duration::from_secs(100));
        let maximum = getrlimit(Resource::Fsize).maximum;
        // ulimit -Sf 16384
        assert_eq!(publisher_under(Rlimit { current: Some(16 << 20), maximum }), Ok(()));
    }
}

#[test]
fn a_limit_that_rgapsd_cannot_raise_is_named_where_it_fails_for_it() {
    if again() {
        let _watchdog = Watchdog::new(Duration::from_secs(100));
        let limit = Some(16 << 20);
        let said = publisher_under(Rlimit { current: limit, maximum: limit }).unwrap_err();
        assert!(said.contains("rgapsd runs under RLIMIT_FSIZE 16777216 B"), "{said}");
    }
}

/// Makes a directory's parent the directory of this process. Returns the relative path.
fn beside(dir: &RuntimeDir) -> PathBuf {
    std::env::set_current_dir(dir.path().parent().unwrap()).unwrap();
    dir.path().file_name().unwrap().into()
}

#[test]
fn a_relative_runtime_directory_starts_the_manager_that_serves_it() {
    if !again() {
        return;
    }
    let _watchdog = Watchdog::new(Duration::from_secs(60));
    let dir = RuntimeDir::new("relative-start").unwrap();
    let node = Node::builder().runtime_dir(beside(&dir)).build().unwrap();
    let publisher = node.publisher::<Bytes>("a").unwrap();
    let other = Node::builder().runtime_dir(dir.path()).no_autostart().build().unwrap();
    let subscriber = other.subscriber::<Bytes>("a").unwrap();
    publisher.push(&Bytes::new(1), &[7]).unwrap();
    assert_eq!(subscriber.wait(LONG).unwrap().unwrap().bytes(), [7]);
}

#[test]
fn a_program_that_changes_its_directory_finds_the_next_manager() {
    if !again() {
        return;
    }
    let _watchdog = Watchdog::new(Duration::from_secs(60));
    let dir = RuntimeDir::new("relative").unwrap();
    let rgapsd = || manager::start(&dir, Command::new(programs::find("rgapsd"))).unwrap();
    let mut first = rgapsd();
    let node = Node::builder().runtime_dir(beside(&dir)).no_autostart().build().unwrap();
    let publisher = node.publisher::<Bytes>("a").unwrap();
    // As a daemon does.
    std::env::set_current_dir("/").unwrap();
    first.kill().unwrap();
    let _next = rgapsd();
    let other = Node::builder().runtime_dir(dir.path()).no_autostart().build().unwrap();
    let subscriber = other.subscriber::<Bytes>("a").unwrap();
    publisher.push(&Bytes::new(1), &[7]).unwrap();
    assert_eq!(subscriber.wait(LONG).unwrap().unwrap().bytes(), [7]);
}
