//! Sudden death at every named step: kill -9 and SIGSTOP of publishers, subscribers, forked clients and managers, while survivors continue.
//!
//! RGAPS_TEST_DEATH_ROUNDS sets how many rounds the loop runs (default 160; `./dev test-deaths` runs 10,000).

#![allow(clippy::unwrap_used)] // helpers of tests, outside #[test] functions

mod survivors;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rgaps::types::Bytes;
use rgaps::{Durability, Node, NodeError, PublishError, Publisher, PublisherQos, Subscriber, TakeError};
use rgaps_standin_cuda::link_into;
use rgaps_testing::{Action, Child, CrashPoint, Ended, RuntimeDir, Watchdog, again_with, is_again, programs, until};
use rustix::process::{Pid, Signal, WaitOptions, set_child_subreaper, waitpid};

use survivors::{
    LONG, PAYLOAD_BYTES, PUBLISHER_STEPS, Random, SUBSCRIBER_STEPS, Survivors, TOPIC, TopicMemory, Witness, filled,
    holdings, kill_and_reap, pid_of, proven, publish, publisher_qos, signal, state_of,
};

/// How much a manager's own memory may grow in the last rounds, while its allocator and stacks settle: eight pages.
const SETTLING_BYTES: u64 = 8 * 4096;
/// So many rounds strike every role at every step in both ways: a forked publisher, at seven steps, has two rounds of ten.
const ALL_STEPS_ROUNDS: u32 = 70;
/// Steps of the manager that sends, and of the one that receives.
const SENDER_STEPS: [&str; 3] = ["link.begin", "link.chunk", "link.sent"];
const ARRIVAL_STEPS: [&str; 3] = ["arrival.begin", "arrival.chunk", "arrival.published"];

fn rounds() -> u32 {
    std::env::var("RGAPS_TEST_DEATH_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(160)
}

/// This test program in a new process, as a victim in a role.
fn victim(role: &str, dir: &RuntimeDir) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "role_of_a_victim", "--ignored", "--nocapture"]);
    command.env("RGAPS_TEST_DEATH_ROLE", role).env("RGAPS_RUNTIME_DIR", dir.path());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    command
}

#[test]
#[ignore = "the victims' program, started by the tests of this file"]
fn role_of_a_victim() {
    let Ok(role) = std::env::var("RGAPS_TEST_DEATH_ROLE") else { return };
    let _watchdog = Watchdog::new(Duration::from_secs(120));
    let node = Node::new("victim").unwrap();
    match role.trim_start_matches("forked ") {
        "publisher" => {
            let publisher = node.publisher_with::<Bytes>(TOPIC, publisher_qos()).unwrap();
            if role.starts_with("forked") {
                let loan = publisher.loan(Bytes::new(PAYLOAD_BYTES)).unwrap();
                fork_a_child_that(|| {
                    assert!(matches!(publisher.loan(Bytes::new(1)), Err(PublishError::Forked { .. })));
                    assert!(matches!(publisher.push(&Bytes::new(1), &[1]), Err(PublishError::Forked { .. })));
                    assert_eq!((loan.len(), publisher.subscriber_count()), (0, 0));
                    assert_eq!(publisher.statistics().pool_bytes, 0);
                    assert!(matches!(node.publisher::<Bytes>("other"), Err(NodeError::Forked)));
                    assert!(matches!(node.topics(), Err(NodeError::Forked)));
                });
                drop(loan);
            }
            println!("ready");
            for number in 1_000_000.. {
                let published = match number % 2 {
                    0 => publish(&publisher, number),
                    _ => publish_three(&publisher, number),
                };
                // The table may be full, because the survivor is keep-all.
                match published {
                    Ok(()) | Err(PublishError::NoSpace { .. }) => std::thread::yield_now(),
                    Err(error) => panic!("{error}"),
                }
            }
        }
        "subscriber" => {
            let subscriber = node.subscriber::<Bytes>(TOPIC).unwrap();
            if role.starts_with("forked") {
                fork_a_child_that(|| {
                    assert!(matches!(subscriber.take(), Err(TakeError::Forked { .. })));
                    assert!(matches!(subscriber.wait(LONG), Err(TakeError::Forked { .. })));
                    assert!(matches!(subscriber.event_fd(), Err(TakeError::Forked { .. })));
                    assert_eq!(subscriber.statistics().taken, 0);
                    assert!(matches!(node.subscriber::<Bytes>("other"), Err(NodeError::Forked)));
                    assert!(matches!(node.observe(TOPIC), Err(NodeError::Forked)));
                });
            }
            println!("ready");
            let mut held = Vec::new();
            loop {
                if let Some(sample) = subscriber.wait(LONG).unwrap() {
                    proven(&sample);
                    held.push(sample);
                }
                if held.len() > 3 {
                    held.remove(0);
                }
            }
        }
        other => panic!("no role {other}"),
    }
}

/// Publishes three payloads of a number with one wake-up.
fn publish_three(publisher: &Publisher<Bytes>, number: u64) -> Result<(), PublishError> {
    let loans: Result<Vec<_>, _> = (0..3).map(|_| filled(publisher, number)).collect();
    publisher.publish_all(loans?).map(drop).map_err(|error| *error.source)
}

/// Forks. The child runs `finds` with everything it inherited, prints its process id, and stays until it is killed or its input ends.
fn fork_a_child_that(finds: impl FnOnce()) {
    // SAFETY: this process has other threads, whose locks the child must not take: the calls in `finds` fail before they take a lock, glibc's
    // allocator works after a fork, and the child ends with _exit.
    if unsafe { libc::fork() } > 0 {
        return;
    }
    let found = std::panic::catch_unwind(std::panic::AssertUnwindSafe(finds));
    println!("{} {}", if found.is_ok() { "forked" } else { "wrong" }, std::process::id());
    let _ = std::io::stdin().read(&mut [0]);
    // SAFETY: ends the child without running its parent's destructors.
    unsafe { libc::_exit(0) };
}

/// The manager of a runtime directory.
fn manager_of(dir: &RuntimeDir) -> u32 {
    let deadline = Instant::now() + LONG;
    while Instant::now() < deadline {
        let managers = dir.users().unwrap().into_iter().filter(|pid| {
            // Not the intermediate process that starts it in a new session and exits.
            std::fs::read_to_string(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.contains("--detached"))
        });
        if let Some(pid) = managers.max() {
            return pid;
        }
        rgaps_testing::pause();
    }
    panic!("no manager in {}", dir.path().display());
}

/// Bytes of a process's private memory: heap, stacks and written data, without the memory that it shares with clients.
///
/// The allocator's own figures would be finer, but only the process itself can read them, and a manager should not have a request for tests only.
/// So this is the kernel's count, in pages. Many rounds distinguish a leak from an allocator that settles: malloc's smallest block is 32 bytes; one
/// lost in each of 750 rounds is six pages, two are twelve.
fn own_memory_bytes(pid: u32) -> u64 {
    let rollup = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
    let line = |name: &str| {
        let line = rollup.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
    };
    line("Anonymous:") + line("Swap:")
}

/// Reads a victim's output until it is ready and has forked `forks` times. Returns the process ids of its children.
fn wait_until_ready(child: &mut Child, forks: usize) -> Vec<u32> {
    let stdout = child.std().stdout.take().unwrap();
    let (mut forked, mut ready) = (Vec::new(), false);
    // The pipe ends if the victim dies before, as it does at early steps.
    for line in BufReader::new(stdout).lines().map_while(Result::ok) {
        assert!(!line.contains("wrong"), "a forked child was not told that it is one");
        forked.extend(line.split_once("forked ").and_then(|(_, pid)| pid.parse::<u32>().ok()));
        ready |= line.contains("ready");
        if ready && forked.len() == forks {
            break;
        }
    }
    forked
}

/// The victim's role, the step at which it is hit, and the signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Strike {
    role: &'static str,
    step: &'static str,
    stop: bool,
}

/// The strikes at victims of one role: at every step in turn, by kill -9 and by SIGSTOP, at different passages of the step.
struct Plan {
    role: &'static str,
    steps: &'static [&'static str],
    done: usize,
}

impl Plan {
    const fn new(role: &'static str, steps: &'static [&'static str]) -> Self {
        Self { role, steps, done: 0 }
    }

    fn next(&mut self) -> (Strike, u32) {
        let (n, steps) = (self.done, self.steps.len());
        self.done += 1;
        let strike = Strike { role: self.role, step: self.steps[n % steps], stop: n / steps % 2 == 1 };
        (strike, 1 + u32::try_from(n / (2 * steps) % 7).unwrap())
    }

    fn is_covered_by(&self, struck: &BTreeSet<Strike>) -> bool {
        let both = |step: &&'static str| {
            [false, true]
                .map(|stop| Strike { role: self.role, step, stop })
                .iter()
                .all(|strike| struck.contains(strike))
        };
        self.steps.iter().all(both)
    }
}

/// One round: at a named step, a victim is killed, or is stopped, continued and then killed.
fn round(dir: &RuntimeDir, survivors: &mut Survivors, strike: Strike, passage: u32) {
    let Strike { role, step, stop } = strike;
    let mut command = victim(role, dir);
    let action = if stop { Action::Stop } else { Action::Kill };
    // A forking publisher has a loan already, so its first passage of the loan's steps is over.
    let passage = passage + u32::from(role == "forked publisher");
    CrashPoint::new(step).at_passage(passage).doing(action).arm(&mut command);
    let mut child = Child::spawn(&mut command).unwrap();
    // Kept open: forked children stay until it ends.
    let _input = child.std().stdin.take();
    let mut forked = Vec::new();
    if role != "publisher" {
        forked = wait_until_ready(&mut child, usize::from(role.starts_with("forked")));
    }
    // A subscriber needs messages to get to its step.
    let deadline = Instant::now() + LONG;
    let ended = loop {
        survivors.go_on();
        match child.wait_end_or_stop_within(Duration::ZERO).unwrap() {
            Ended::StillRunning => assert!(Instant::now() < deadline, "{role} did not get to {step}"),
            ended => break ended,
        }
    };
    match (ended, action) {
        (Ended::Stopped, _) => {
            // A subscriber that joins while the victim is stopped misses no message.
            let joiner = Witness::new(&survivors.node);
            survivors.go_on();
            child.go_on().unwrap();
            survivors.go_on();
            joiner.drain();
            child.kill().unwrap();
            survivors.go_on();
            joiner.has_missed_nothing();
        }
        (Ended::Exited(status), Action::Kill) => assert!(status.code().is_none(), "{role} at {step}: {status}"),
        (ended, action) => panic!("{role} at {step}: {ended:?} after {action:?}"),
    }
    survivors.go_on();
    if role.starts_with("forked") {
        assert_eq!(forked.len(), 1, "{role} at {step} forked once");
        // The child still has the dead process's socket and memory, yet the slot is freed. With a GPU it is not, since the dead process's streams may
        // still write to the slot.
        if !is_again() {
            until("the dead have left the topic though a child of theirs lives", || survivors.are_alone());
        } else {
            assert!(!survivors.are_alone(), "the streams of the dead go on: their slot is taken");
        }
        assert!(matches!(state_of(forked[0]), Some('S' | 'R' | 'D')), "the child lives");
        kill_and_reap(forked[0]);
    }
}

/// Stops the manager: local topics do not notice. After SIGCONT it answers, and the topic is unchanged.
fn stop_the_manager(manager: u32, survivors: &mut Survivors) {
    signal(manager, Signal::STOP);
    until("the manager is stopped", || state_of(manager) == Some('T'));
    for _ in 0..4 {
        survivors.go_on();
    }
    assert_eq!(state_of(manager), Some('T'), "no other process continued it");
    signal(manager, Signal::CONT);
    until("the manager answers, and the topic is as it was", || survivors.are_alone());
}

/// Kills the manager: local topics continue, and its successor takes them over.
fn kill_the_manager(manager: u32, dir: &RuntimeDir, survivors: &mut Survivors) -> u32 {
    kill_and_reap(manager);
    survivors.go_on();
    until("a successor", || manager_of(dir) != manager);
    let successor = manager_of(dir);
    until("the topic is handed back", || survivors.are_alone());
    successor
}

#[test]
fn survivors_go_on_whatever_dies_and_nothing_is_leaked() {
    survive(rounds());
}

#[test]
fn survivors_go_on_whatever_instruction_a_victim_dies_at() {
    let _watchdog = Watchdog::new(Duration::from_secs(1800));
    let dir = RuntimeDir::new("instructions").unwrap();
    isolate();
    set_child_subreaper(Some(rustix::process::getpid())).unwrap();
    let mut random = Random::seeded();
    let mut survivors = Survivors::new(&dir);
    survivors.touch_everything();
    let topic_at_start = TopicMemory::of(&mut survivors);
    for number in 0..rounds() / 4 {
        let role = ["publisher", "publisher", "subscriber"][number as usize % 3];
        die_at_an_instruction(&dir, &mut survivors, role, random.below(6), random.below(3000));
        until("the dead have left the topic", || survivors.are_alone());
    }
    survivors.witness.has_missed_nothing();
    until("the topic has the memory that it had", || TopicMemory::of(&mut survivors) == topic_at_start);
}

/// Runs a victim for `turns` turns of the survivors, stops it, single-steps it for `steps` instructions while the survivors continue, and kills it.
fn die_at_an_instruction(dir: &RuntimeDir, survivors: &mut Survivors, role: &'static str, turns: u64, steps: u64) {
    let mut child = Child::spawn(&mut victim(role, dir)).unwrap();
    let _input = child.std().stdin.take();
    wait_until_ready(&mut child, 0);
    (0..turns).for_each(|_| survivors.go_on());
    let victim = worker_of(child.id());
    trace(libc::PTRACE_SEIZE, victim);
    trace(libc::PTRACE_INTERRUPT, victim);
    for step in 0..steps {
        await_a_stop(victim, survivors);
        // The stopped victim must not disturb the survivors.
        if step % 500 == 0 {
            survivors.go_on();
        }
        trace(libc::PTRACE_SINGLESTEP, victim);
    }
    await_a_stop(victim, survivors);
    survivors.go_on();
    signal(child.id(), Signal::KILL);
    // A traced thread remains until its tracer has waited for it.
    until("the victim is dead", || match waitpid(Some(victim), WaitOptions::NOHANG) {
        Ok(status) => status.is_some_and(|(_, status)| status.signaled()),
        Err(rustix::io::Errno::CHILD) => true,
        Err(error) => panic!("{error}"),
    });
    child.kill().unwrap();
    survivors.go_on();
}

/// The thread of a victim in which its role runs.
fn worker_of(pid: u32) -> Pid {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    let mut workers = threads.filter(|thread| {
        let name = std::fs::read_to_string(thread.path().join("comm")).unwrap_or_default();
        name.starts_with("role_of_a_vict")
    });
    let worker = workers.next().map(|thread| thread.file_name().to_string_lossy().parse().unwrap());
    pid_of(worker.unwrap_or(pid))
}

fn trace(request: libc::c_uint, victim: Pid) {
    let none = std::ptr::null_mut::<libc::c_void>();
    // SAFETY: none of the requests used here reads or writes memory of this process.
    let outcome = unsafe { libc::ptrace(request, victim.as_raw_nonzero().get(), none, none) };
    assert_eq!(outcome, 0, "ptrace {request}: {}", std::io::Error::last_os_error());
}

/// Waits for the end of a single step. A step into a system call ends with the call: a subscriber waits for messages, so the survivors publish.
fn await_a_stop(victim: Pid, survivors: &mut Survivors) {
    let start = Instant::now();
    // A step takes microseconds, so this does not pause like `until`.
    loop {
        if let Some((_, status)) = waitpid(Some(victim), WaitOptions::NOHANG | WaitOptions::UNTRACED).unwrap() {
            return assert!(status.stopped(), "{status:?}");
        }
        survivors.go_on();
        assert!(start.elapsed() < LONG, "the victim has made no step for {} s", LONG.as_secs());
        std::thread::yield_now();
    }
}

#[test]
fn survivors_on_devices_go_on_whatever_dies() {
    // Every process uses the stand-in for libcuda, so a killed process leaves its streams in the middle of their work.
    let rgapsd = programs::find("rgapsd");
    let device = [("RGAPS_DEVICE", "cuda"), ("RGAPS_TEST_STANDIN_DELAY_US", "0"), ("RGAPS_NETWORK", "local")];
    if again_with(&[&device[..], &[("RGAPSD", rgapsd.to_str().unwrap())]].concat(), link_into) {
        survive(ALL_STEPS_ROUNDS);
    }
}

fn survive(rounds: u32) {
    let _watchdog = Watchdog::new(Duration::from_secs(1800));
    let dir = RuntimeDir::new("deaths").unwrap();
    isolate();
    // This process becomes the parent of orphans of victims and managers, and reaps them.
    set_child_subreaper(Some(rustix::process::getpid())).unwrap();
    let mut survivors = Survivors::new(&dir);
    survivors.touch_everything();
    let mut manager = manager_of(&dir);
    let mut start = None;
    let mut plans = [
        Plan::new("publisher", &PUBLISHER_STEPS),
        Plan::new("subscriber", &SUBSCRIBER_STEPS),
        Plan::new("forked publisher", &PUBLISHER_STEPS),
        Plan::new("forked subscriber", &SUBSCRIBER_STEPS),
    ];
    let mut struck = BTreeSet::new();
    let topic_at_start = TopicMemory::of(&mut survivors);
    let (settled_after, mut settled_bytes) = (rounds / 8 * 5, None);
    for number in 0..rounds {
        // Managers die in the first half only. The last one sees the whole second half, and soon has all the memory that it needs.
        let managers_die = number < rounds / 2;
        if number == settled_after {
            settled_bytes = Some(own_memory_bytes(manager));
        }
        match number % 10 {
            4 => stop_the_manager(manager, &mut survivors),
            9 if managers_die => {
                manager = kill_the_manager(manager, &dir, &mut survivors);
                start = None;
            }
            other => {
                let plan = &mut plans[[0, 1, 2, 0, 0, 1, 3, 0, 2, 1][other as usize]];
                let (strike, passage) = plan.next();
                round(&dir, &mut survivors, strike, passage);
                struck.insert(strike);
            }
        }
        until("the dead have left the topic", || survivors.are_alone());
        // A connection is closed a moment after its client has left the topic. A new manager first allocates what it needs.
        let (fds, maps) = *start.get_or_insert_with(|| holdings(manager));
        until("the manager holds no more than at its start", || {
            let now = holdings(manager);
            now.0 <= fds && now.1 <= maps
        });
    }
    survivors.witness.has_missed_nothing();
    until("the topic has the memory that it had", || TopicMemory::of(&mut survivors) == topic_at_start);
    if let Some(settled) = settled_bytes {
        let end = own_memory_bytes(manager);
        println!("{rounds} rounds: {topic_at_start:?}; the manager's own memory: {settled} B, {end} B at the end");
        let grown = end.saturating_sub(settled);
        assert!(grown <= SETTLING_BYTES, "it grew by {grown} B in {} rounds", rounds - settled_after);
    }
    let statistics = survivors.witness.subscriber.statistics();
    assert_eq!((statistics.held, statistics.lost), (0, 0));
    let missed: Vec<_> = plans.iter().filter(|plan| !plan.is_covered_by(&struck)).map(|plan| plan.role).collect();
    assert!(missed.is_empty() || rounds < ALL_STEPS_ROUNDS, "not struck at every step in both ways: {missed:?}");
}

/// Makes managers that this process starts use no network.
fn isolate() {
    // SAFETY: no other thread of this test program reads or writes the environment now: other tests start managers with commands that set their own
    // environment.
    unsafe { std::env::set_var("RGAPS_NETWORK", "local") };
}

/// Two managers on loopback addresses.
struct TwoHosts {
    dirs: [RuntimeDir; 2],
    ports: [u16; 2],
}

impl TwoHosts {
    fn new(name: &str) -> Self {
        let dirs = [RuntimeDir::new(&format!("{name}a")).unwrap(), RuntimeDir::new(&format!("{name}b")).unwrap()];
        let port = || TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        Self { dirs, ports: [port(), port()] }
    }

    fn manager(&self, host: usize) -> Command {
        let program = rgaps_testing::programs::find("rgapsd");
        let mut command = Command::new(program);
        self.dirs[host].apply(&mut command);
        command
            .env("RGAPS_HOST_NAME", format!("host{host}"))
            .env("RGAPS_NETWORK", "loopback")
            .env("RGAPS_LISTEN", format!("tcp/127.0.0.1:{}", self.ports[host]))
            .env("RGAPS_PEERS", format!("tcp/127.0.0.1:{}", self.ports[1 - host]))
            .env("RGAPS_DATA_ADDRESS", format!("127.0.0.{}", host + 1))
            .env("RGAPS_CHUNK_BYTES", "4096")
            .stdin(Stdio::null())
            .stderr(Stdio::null());
        command
    }

    fn node(&self, host: usize) -> Node {
        until("the manager listens", || self.dirs[host].path().join("rgapsd.sock").exists());
        // The test starts the successor, which knows the other host; a node's own would not.
        Node::builder().runtime_dir(self.dirs[host].path()).no_autostart().build().unwrap()
    }
}

/// Samples from host 0 to host 1.
struct Stream {
    publisher: Publisher<Bytes>,
    subscriber: Subscriber<Bytes>,
    number: u64,
    newest: u64,
}

impl Stream {
    fn new(hosts: &TwoHosts) -> Self {
        let (sending, receiving) = (hosts.node(0), hosts.node(1));
        // Room for more than the 64 messages that a sender may keep for a silent host.
        let qos =
            PublisherQos { durability: Durability::Volatile, pool_bytes: Some(128 * PAYLOAD_BYTES), ..publisher_qos() };
        let publisher = sending.publisher_with::<Bytes>(TOPIC, qos).unwrap();
        let subscriber = receiving.subscriber::<Bytes>(TOPIC).unwrap();
        Self { publisher, subscriber, number: 0, newest: 0 }
    }

    /// Publishes one message and takes all that have arrived. Returns the newest numbers published and taken.
    fn exchange(&mut self) -> (u64, u64) {
        self.number += 1;
        publish(&self.publisher, self.number).unwrap();
        loop {
            let sample = match self.subscriber.wait(Duration::from_millis(2)) {
                Ok(Some(sample)) => sample,
                Ok(None) => break,
                // Messages that a dead manager received are lost if no subscriber has mapped its pool; the take returns an error and releases them.
                Err(TakeError::Pool { .. }) => continue,
                Err(error) => panic!("{error}"),
            };
            let found = proven(&sample);
            assert!(found > self.newest, "sample {found} after {}: a duplicate, or out of order", self.newest);
            self.newest = found;
        }
        (self.number, self.newest)
    }
}

/// A manager dies at a named step of a link. The other host gets whole samples only, and after the restart the newest ones.
fn a_manager_dies_at(step: &str, mortal: usize) {
    let hosts = TwoHosts::new("l");
    let mut managers = BTreeMap::new();
    for host in 0..2 {
        let mut command = hosts.manager(host);
        if host == mortal {
            CrashPoint::new(step).at_passage(5).arm(&mut command);
        }
        managers.insert(host, Child::spawn(&mut command).unwrap());
    }
    let mut stream = Stream::new(&hosts);
    let mut dead = managers.remove(&mortal).unwrap();
    // `exchange` may wait for an answer when the manager dies, and gets it from the next one. So another thread starts the next one, as a service
    // manager would: with the same command, but without the crash point.
    let successor = std::thread::scope(|scope| {
        let successor = scope.spawn(|| {
            let ended = dead.wait_within(Duration::from_secs(60)).unwrap();
            assert_ne!(ended, Ended::StillRunning, "the manager did not die at {step}");
            Child::spawn(&mut hosts.manager(mortal)).unwrap()
        });
        until(&format!("the manager dies at {step}"), || {
            stream.exchange();
            successor.is_finished()
        });
        successor.join().unwrap()
    });
    managers.insert(mortal, successor);
    let (at_restart, _) = stream.exchange();
    until("samples published after the restart arrive", || stream.exchange().1 > at_restart);
}

/// Well after the burst at the start of a link: by then the subscriber has mapped its manager's pool, which a stopped manager cannot provide.
const STOP_PASSAGE: u32 = 1000;

/// A manager is stopped at a named step of a link and continued. Publications meanwhile do no harm, and samples arrive again.
fn a_manager_is_stopped_at(step: &str, stopped: usize) {
    let hosts = TwoHosts::new("s");
    let mut managers: Vec<Child> = (0..2)
        .map(|host| {
            let mut command = hosts.manager(host);
            if host == stopped {
                CrashPoint::new(step).at_passage(STOP_PASSAGE).doing(Action::Stop).arm(&mut command);
            }
            Child::spawn(&mut command).unwrap()
        })
        .collect();
    let mut stream = Stream::new(&hosts);
    until(&format!("the manager stops at {step}"), || {
        stream.exchange();
        managers[stopped].wait_end_or_stop_within(Duration::ZERO).unwrap() == Ended::Stopped
    });
    // More messages than the pool and the outbox hold.
    for _ in 0..200 {
        stream.exchange();
    }
    managers[stopped].go_on().unwrap();
    let (at_continuation, _) = stream.exchange();
    until("samples published after SIGCONT arrive", || stream.exchange().1 > at_continuation);
    for manager in &mut managers {
        assert_eq!(manager.wait_within(Duration::ZERO).unwrap(), Ended::StillRunning);
    }
}

#[test]
fn a_sending_manager_may_die_at_every_step() {
    let _watchdog = Watchdog::new(Duration::from_secs(300));
    SENDER_STEPS.iter().for_each(|step| a_manager_dies_at(step, 0));
}

#[test]
fn a_receiving_manager_may_die_at_every_step() {
    let _watchdog = Watchdog::new(Duration::from_secs(300));
    ARRIVAL_STEPS.iter().for_each(|step| a_manager_dies_at(step, 1));
}

#[test]
fn a_sending_manager_may_be_stopped_at_every_step() {
    let _watchdog = Watchdog::new(Duration::from_secs(300));
    SENDER_STEPS.iter().for_each(|step| a_manager_is_stopped_at(step, 0));
}

#[test]
fn a_receiving_manager_may_be_stopped_at_every_step() {
    let _watchdog = Watchdog::new(Duration::from_secs(300));
    ARRIVAL_STEPS.iter().for_each(|step| a_manager_is_stopped_at(step, 1));
}
