//! A forked child may drop and call its parent's objects without harm, also while streams still have work for them.

#![allow(clippy::unwrap_used)] // helpers of tests, outside #[test] functions

use std::sync::Arc;
use std::time::Duration;

use rgaps::device::{DevicePart, PoolMemory, PoolPart, PoolSpec, Stream, StreamMemory, StreamWord, contract};
use rgaps::types::Bytes;
use rgaps::{Node, Publisher, Subscriber};
use rgaps_os::{Access, Mapping, memfd};
use rgaps_testing::{RuntimeDir, Watchdog, again_with, programs};

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
        _pool.commit(&_pool.missing(0, bytes).unwrap(), 0).unwrap();
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
