//! A forked child may drop and call its parent's objects without harm, also while streams still have work for them. A client that has forked leaves
//! no slot behind when it ends in another way than by its death.

#![allow(clippy::unwrap_used)] // helpers of tests, outside #[test] functions

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::task::{Context, RawWaker, RawWakerVTable, Waker};
use std::time::Duration;

use rgaps::device::{DevicePart, PoolMemory, PoolPart, PoolSpec, Stream, StreamMemory, StreamWord, testing::contract};
use rgaps::types::Bytes;
use rgaps::{Exhaustion, Node, Publisher, Subscriber};
use rgaps_os::{Access, Mapping, memfd};
use rgaps_testing::{Child, RuntimeDir, Watchdog, again_with, programs, skipped, until};
use rustix::event::{PollFd, PollFlags, poll};

const LONG: Duration = Duration::from_secs(60);

struct Bench {
    publisher: Publisher<Bytes>,
    subscriber: Subscriber<Bytes>,
    stream: Stream,
    gate: Arc<dyn StreamMemory>,
    source: DevicePart,
    _pool: Arc<dyn PoolMemory>,
    _dir: RuntimeDir,
    _watchdog: Watchdog,
}

impl Bench {
    fn new() -> Option<Self> {
        let rgapsd = programs::find("rgapsd");
        let settings = [("RGAPSD", rgapsd.to_str().unwrap()), ("RGAPS_NETWORK", "local")];
        if !again_with(&settings, rgaps_standin_cuda::link_into) {
            return None;
        }
        let _watchdog = Watchdog::new(Duration::from_secs(100));
        let _dir = RuntimeDir::new("fork").unwrap();
        let node = Node::builder().runtime_dir(_dir.path()).build().unwrap();
        let (publisher, subscriber) = (node.publisher("a").unwrap(), node.subscriber("a").unwrap());
        let page = memfd::create("gate", 4096).unwrap();
        let page = Arc::new(Mapping::map(&page, 4096, Access::ReadWrite).unwrap());
        let gate = node.device().stream_memory(&page).unwrap();
        let stream = node.stream().unwrap();
        let bytes = 1024;
        let _pool = node.device().create_pool(&PoolSpec { name: "source".to_owned(), bytes }).unwrap();
        _pool.commit(&_pool.missing(0, bytes).unwrap()).unwrap();
        let place = PoolPart::of(_pool.as_ref(), 0);
        node.device().copy_in(&node.stream().unwrap(), &[7; 1024], place).unwrap().wait(LONG).unwrap();
        let source = contract::part_of(&_pool, 0, bytes).unwrap();
        Some(Self { publisher, subscriber, stream, gate, source, _pool, _dir, _watchdog })
    }

    fn gate(&self) -> StreamWord<'_> {
        StreamWord { memory: self.gate.as_ref(), offset: 0 }
    }

    fn hold(&self) {
        self.gate().write(0).unwrap();
        self.stream.wait_value(&self.gate(), 1, LONG).unwrap();
    }

    fn push(&self, stream: &Stream) {
        self.publisher.push_on(&Bytes::new(1024), &self.source, stream).unwrap();
    }

    /// The exit of a child that drops the subscriber.
    fn child_drops_the_subscriber(&mut self) -> i32 {
        // SAFETY: the child drops its copy of the parent's subscriber, like a program that returns from `main`, and ends with _exit.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            // SAFETY: the parent's value is moved out and dropped once, in the child alone, which then ends.
            drop(unsafe { std::ptr::read(&raw const self.subscriber) });
            // SAFETY: ends the child without running its parent's destructors.
            unsafe { libc::_exit(0) };
        }
        let mut status = 0;
        // SAFETY: waits for the child made above.
        assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
        self.gate().write(1).unwrap();
        status
    }
}

#[test]
fn a_forked_child_may_drop_a_subscriber_whose_stream_still_has_to_release() {
    let Some(mut bench) = Bench::new() else { return };
    bench.push(&bench.stream);
    let sample = bench.subscriber.wait(LONG).unwrap().unwrap();
    bench.hold();
    sample.release_on(&bench.stream).unwrap();
    assert_eq!(bench.child_drops_the_subscriber(), 0, "status of the child; 11 is SIGSEGV, 139 with a core");
}

#[test]
fn a_forked_child_may_drop_a_subscriber_that_awaits_the_bytes_of_a_message() {
    let Some(mut bench) = Bench::new() else { return };
    bench.push(&bench.stream);
    drop(bench.subscriber.wait(LONG).unwrap().unwrap());
    bench.hold();
    bench.push(&bench.stream);
    assert!(bench.subscriber.take().unwrap().is_none(), "its bytes are not there");
    assert_eq!(bench.child_drops_the_subscriber(), 0, "status of the child; 11 is SIGSEGV, 139 with a core");
}

/// Where the memory of this process's segments, pools and words is mapped.
fn shared_memory() -> Vec<(usize, usize)> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let of_line = |line: &str| {
        let (from, to) = line.split_once(' ')?.0.split_once('-')?;
        Some((usize::from_str_radix(from, 16).ok()?, usize::from_str_radix(to, 16).ok()?))
    };
    maps.lines().filter(|line| line.contains("/memfd:rgaps")).filter_map(of_line).collect()
}

/// Whether memory of this process's own could be mapped here, as an allocator may.
fn take_addresses((from, to): (usize, usize)) -> bool {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE | libc::MAP_NORESERVE;
    // SAFETY: a mapping that replaces none.
    let at = unsafe { libc::mmap(from as *mut libc::c_void, to - from, libc::PROT_READ, flags, -1, 0) };
    at as usize == from
}

fn is_mapped((from, _): (usize, usize)) -> bool {
    let mut page = 0_u8;
    // SAFETY: asks about one page and writes one byte.
    unsafe { libc::mincore(from as *mut libc::c_void, 4096, &raw mut page) == 0 }
}

#[test]
#[ignore = "the first process of a PID namespace, started by the test below"]
fn role_of_a_first_process() {
    let Ok(dir) = std::env::var("RGAPS_TEST_FIRST") else { return };
    let node = Node::builder().runtime_dir(std::path::Path::new(&dir)).no_autostart().build().unwrap();
    let (publisher, subscriber) = (node.publisher::<Bytes>("a").unwrap(), node.subscriber::<Bytes>("a").unwrap());
    publisher.push(&Bytes::new(4), &[7; 4]).unwrap();
    let sample = subscriber.wait(LONG).unwrap().unwrap();
    let pool = node.pool(1 << 20, Exhaustion::Refuse).unwrap();
    let (sharing, buffer, frozen) =
        (pool.publisher::<Bytes>("b").unwrap(), pool.allocate(4), pool.allocate(4).unwrap().freeze());
    sharing.publish_buffer(&Bytes::new(4), frozen.as_ref().unwrap()).unwrap();
    let of_parent = shared_memory();
    // SAFETY: the next child is the first process of another namespace, and so has this one's number.
    assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWPID) }, 0);
    let own_id = std::process::id();
    // SAFETY: the child drops what it has of its parent's, and ends with _exit.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let taken: Vec<_> = of_parent.into_iter().filter(|range| take_addresses(*range)).collect();
        drop((sample, subscriber, publisher, node));
        drop((buffer, frozen, sharing, pool));
        let is_harmed = taken.is_empty() || std::process::id() != own_id || !taken.into_iter().all(is_mapped);
        // SAFETY: ends the child without running its parent's destructors.
        unsafe { libc::_exit(i32::from(is_harmed)) };
    }
    let mut status = 0;
    // SAFETY: waits for the child made above.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    assert_eq!(status, 0, "status of the child; 256 if memory of its own is gone");
}

#[test]
fn a_forked_child_keeps_its_own_memory_though_its_process_id_is_its_parents() {
    let _watchdog = Watchdog::new(Duration::from_secs(100));
    let unshare = || {
        let mut command = std::process::Command::new("unshare");
        command.args(["--pid", "--fork"]);
        command
    };
    if !unshare().arg("true").output().is_ok_and(|output| output.status.success()) {
        return skipped("no PID namespace can be made here");
    }
    let dir = RuntimeDir::new("first").unwrap();
    let mut rgapsd = std::process::Command::new(programs::find("rgapsd"));
    rgapsd.env("RGAPS_DEVICE", "host").env("RGAPS_NETWORK", "local");
    let _manager = rgaps_testing::manager::start(&dir, rgapsd).unwrap();
    let mut first = unshare();
    first.arg(std::env::current_exe().unwrap());
    first.args(["--exact", "role_of_a_first_process", "--ignored", "--nocapture"]).env("RGAPS_TEST_FIRST", dir.path());
    let output = first.output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&said));
}

#[test]
fn a_forked_child_may_use_an_observer_of_its_parent() {
    let _watchdog = Watchdog::new(Duration::from_secs(100));
    let dir = RuntimeDir::new("observer").unwrap();
    let mut command = std::process::Command::new(programs::find("rgapsd"));
    command.env("RGAPS_DEVICE", "host").env("RGAPS_NETWORK", "local");
    let _manager = rgaps_testing::manager::start(&dir, command).unwrap();
    let node = Node::builder().runtime_dir(dir.path()).no_autostart().build().unwrap();
    let publisher = node.publisher::<Bytes>("a").unwrap();
    let (mut observer, _) = node.observe("a").unwrap();
    publisher.push(&Bytes::new(1), &[1]).unwrap();
    assert_eq!(observer.poll().map(|info| info.sequence), Some(1));
    // SAFETY: the child reads words that its parent mapped, if the library lets it, and leaves by _exit.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let found = observer.poll().is_some();
        // SAFETY: ends the child without running its parent's destructors.
        unsafe { libc::_exit(i32::from(found)) };
    }
    let mut status = 0;
    // SAFETY: waits for the child made above.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    assert_eq!(status, 0, "status of the child that asked whether there is a message; 11 is SIGSEGV");
}

/// Subscribers of a node that is dropped: far more than detach requests that a socket holds.
const MANY: usize = 900;

#[test]
#[ignore = "a client that forks, started by the tests below"]
fn role_of_a_client_that_forks() {
    let Ok(how) = std::env::var("RGAPS_TEST_FORKS") else { return };
    let node = Node::builder().no_autostart().build().unwrap();
    let count = if how == "drops" { MANY } else { 1 };
    let subscribers: Vec<Subscriber<Bytes>> = (0..count).map(|_| node.subscriber("a").unwrap()).collect();
    // SAFETY: the child waits for the end of the input, which the test keeps, and leaves by _exit.
    if unsafe { libc::fork() } == 0 {
        let _ = poll(&mut [PollFd::new(&std::io::stdin(), PollFlags::empty())], None);
        // SAFETY: as above.
        unsafe { libc::_exit(0) };
    }
    println!("forked");
    let mut lines = std::io::stdin().lines();
    lines.next().unwrap().unwrap();
    if how == "becomes another program" {
        panic!("{}", Command::new("sleep").arg("1000").exec());
    }
    drop((subscribers, node));
    println!("dropped");
    drop(lines.next());
}

/// A manager, an observing node, and a client that has forked and has `subscribers`.
struct Forked {
    client: Child,
    node: Node,
    _publisher: Publisher<Bytes>,
    manager: Child,
    _dir: RuntimeDir,
    _watchdog: Watchdog,
}

impl Forked {
    fn new(how: &str) -> Self {
        let _watchdog = Watchdog::new(Duration::from_secs(100));
        let _dir = RuntimeDir::new("forked").unwrap();
        let mut command = Command::new(programs::find("rgapsd"));
        command.env("RGAPS_DEVICE", "host").env("RGAPS_NETWORK", "local");
        let manager = rgaps_testing::manager::start(&_dir, command).unwrap();
        let node = Node::builder().runtime_dir(_dir.path()).no_autostart().build().unwrap();
        let _publisher = node.publisher("a").unwrap();
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "role_of_a_client_that_forks", "--ignored", "--nocapture"]);
        command.env("RGAPS_TEST_FORKS", how).stdin(Stdio::piped()).stdout(Stdio::piped());
        _dir.apply(&mut command);
        let mut client = Child::spawn(&mut command).unwrap();
        client.output_after("forked").expect("it forks");
        Self { client, node, _publisher, manager, _dir, _watchdog }
    }

    fn go_on(&mut self) {
        writeln!(self.client.std().stdin.as_mut().unwrap(), "go on").unwrap();
    }

    fn subscribers(&self) -> u32 {
        self.node.topics().unwrap()[0].subscribers
    }
}

#[test]
fn a_client_that_has_forked_and_becomes_another_program_leaves_no_slot() {
    let mut forked = Forked::new("becomes another program");
    assert_eq!(forked.subscribers(), 1);
    forked.go_on();
    until("no slot is left", || forked.subscribers() == 0);
    let name = std::fs::read_to_string(format!("/proc/{}/comm", forked.client.id())).unwrap();
    assert_eq!(name.trim(), "sleep", "the process goes on");
}

#[test]
fn a_node_dropped_while_its_manager_is_stopped_leaves_no_slot_though_it_has_forked() {
    let mut forked = Forked::new("drops");
    assert_eq!(forked.subscribers(), MANY as u32);
    forked.manager.stop().unwrap();
    forked.go_on();
    forked.client.output_after("dropped").expect("it does not wait for each");
    forked.manager.go_on().unwrap();
    until("no slot is left", || forked.subscribers() == 0);
}

/// A waker whose clones are made only after another thread has been told and has answered.
struct SlowToClone(Sender<()>, Receiver<()>);

impl SlowToClone {
    const FUNCTIONS: RawWakerVTable = RawWakerVTable::new(
        |waker| {
            // SAFETY: `wake_by` keeps the value while there is a waker of it, and only one thread has one.
            let Self(begun, done) = unsafe { &*waker.cast::<Self>() };
            begun.send(()).unwrap();
            done.recv_timeout(LONG).unwrap();
            // SAFETY: the functions of a waker that does nothing accept any data.
            RawWaker::new(std::ptr::null(), Waker::noop().vtable())
        },
        |_| {},
        |_| {},
        |_| {},
    );

    fn waker(&self) -> Waker {
        // SAFETY: the functions above read the value only, which outlives the waker: see the only caller.
        unsafe { Waker::from_raw(RawWaker::new(std::ptr::from_ref(self).cast(), &Self::FUNCTIONS)) }
    }
}

#[test]
fn a_forked_child_may_drop_a_future_while_another_thread_enlisted_a_task() {
    let Some(bench) = Bench::new() else { return };
    let mut waiting = Box::pin(bench.subscriber.next());
    assert!(waiting.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    let (begun, has_begun) = channel();
    let (finish, done) = channel();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let slow = SlowToClone(begun, done);
            let waker = slow.waker();
            let mut next = Box::pin(bench.subscriber.next());
            assert!(next.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        });
        has_begun.recv_timeout(LONG).unwrap();
        // SAFETY: the child drops its copy of a future, like a program that returns from `main`, and ends with _exit.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            // SAFETY: ends the child by a signal if it hangs.
            unsafe { libc::alarm(20) };
            drop(waiting);
            // SAFETY: ends the child without running its parent's destructors.
            unsafe { libc::_exit(0) };
        }
        finish.send(()).unwrap();
        let mut status = 0;
        // SAFETY: waits for the child made above.
        assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
        assert_eq!(status, 0, "status of the child; 14 is SIGALRM");
    });
}
