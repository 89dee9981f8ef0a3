//! Publishing, taking and releasing in stream order, on the stand-in for libcuda. Each test has its own manager.
//!
//! The stand-in can hold its streams, so the tests show "the call does not wait" and "not before the bytes are written" without timing.

#![allow(clippy::unwrap_used)] // helpers of tests, outside #[test] functions

use std::cell::Cell;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd};
use std::process::{ChildStdin, Command, Stdio};
use std::time::Duration;

use rgaps::device::Stream;
use rgaps::types::Bytes;
use rgaps::{
    Exhaustion, Node, NodeError, Origin, PublishError, Readiness, Sample, Subscriber, SubscriberQos, TakeByHandleError,
    TakeError,
};
use rgaps_control::TopicKey;
use rgaps_control::local::{Body, Connection, PROTOCOL_VERSION, Request, ToClient};
use rgaps_os::{PidFd, ProcessLock};
use rgaps_shm::layout::LAYOUT_VERSION;
use rgaps_standin_cuda::Control;
use rgaps_testing::{Child, Watchdog, is_again};
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process};

mod another_gpu;
mod batches;
mod bench;
mod early_forks;
mod graphs;
mod refused;
mod shared_pools;
mod slabs;
mod take_over;

use another_gpu::beside;
use bench::{APART, Bench, KIB, LONG, MIB, Source, TOPIC, on_standin, until};

fn push_and_take_wait_for_nothing() {
    let bench = Bench::new(256 * MIB);
    let driver = ["cuMemcpyDtoDAsync_v2", "cuStreamWriteValue32_v2", "cuLaunchHostFunc", "cuEventRecord"];
    let mut counts = Vec::new();
    // With these settings a stream cannot wait for a word that a subscriber may only read, so the call itself waits.
    let waiting = ["RGAPS_TEST_STANDIN_NO_STREAM_MEM_OPS", "RGAPS_TEST_STANDIN_NO_READ_ONLY_REGISTER"];
    let waits = waiting.iter().any(|name| std::env::var_os(name).is_some());
    for bytes in [KIB, 40 * MIB] {
        let source = bench.source(bytes);
        // The first message allocates the pool's memory and registers the segment.
        bench.push(&source);
        drop(bench.subscriber.wait(LONG).unwrap().unwrap());
        bench.gpu.hold();
        bench.gpu.reset_calls();
        bench.push(&source);
        counts.push(driver.map(|call| bench.gpu.calls(call)));
        assert!(bench.subscriber.take().unwrap().is_none(), "its bytes are not there");
        let reader = bench.node.stream().unwrap();
        // This thread will wait for the device, so release it first.
        if waits {
            bench.gpu.go();
        }
        let sample = bench.subscriber.take_on(&reader).unwrap().unwrap();
        if !waits {
            assert_eq!(sample.readiness(), Readiness::Pending);
        }
        assert_ne!(sample.device_address().unwrap(), 0);
        bench.gpu.go();
        reader.synchronize(LONG).unwrap();
        assert_eq!(sample.readiness(), Readiness::Ready);
        assert!(sample.to_host().unwrap() == source.content, "{bytes} B arrived otherwise");
    }
    assert_eq!(counts[0], counts[1], "the same calls whatever the size");
    assert_eq!(counts[0].iter().sum::<u64>(), 3, "one copy, one word, one event: {counts:?}");
    assert_eq!(bench.subscriber.statistics().copied_bytes, KIB + 40 * MIB, "what was asked for as a copy, and no more");
}

#[test]
fn a_publisher_that_cannot_be_made_keeps_no_slot() {
    if !on_standin(&[]) {
        return;
    }
    let bench = Bench::new(MIB);
    bench.gpu.fail("cuMemAddressReserve", 1, 999);
    assert!(matches!(bench.node.publisher::<Bytes>("never"), Err(NodeError::Device(_))));
    bench.gpu.fail("cuMemAddressReserve", 1, 0);
    let topics = bench.node.topics().unwrap();
    let left = topics.iter().find(|topic| topic.key.name() == "/never");
    assert!(left.is_none_or(|topic| topic.publishers == 0), "{left:?}");
}

#[test]
fn push_take_and_release_are_in_stream_order_and_wait_for_nothing() {
    if on_standin(&[]) {
        push_and_take_wait_for_nothing();
    }
}

#[test]
fn a_device_without_stream_memory_operations_publishes_without_waiting_too() {
    if on_standin(&[("RGAPS_TEST_STANDIN_NO_STREAM_MEM_OPS", "1")]) {
        push_and_take_wait_for_nothing();
    }
}

#[test]
fn a_device_that_cannot_read_read_only_memory_publishes_without_waiting_too() {
    if on_standin(&[("RGAPS_TEST_STANDIN_NO_READ_ONLY_REGISTER", "1")]) {
        push_and_take_wait_for_nothing();
    }
}

#[test]
fn an_integrated_device_is_read_in_place() {
    if on_standin(&[("RGAPS_TEST_STANDIN_INTEGRATED", "1")]) {
        let bench = Bench::new(8 * MIB);
        let mut loan = bench.publisher.loan(Bytes::new(1000)).unwrap();
        loan.fill(7);
        loan.publish_on(&bench.stream).unwrap();
        let sample = bench.subscriber.wait(LONG).unwrap().unwrap();
        assert_eq!(sample.bytes(), [7; 1000]);
    }
}

#[test]
fn a_wait_on_the_cpu_returns_a_message_once_its_bytes_are_written() {
    if !on_standin(&[]) {
        return;
    }
    let bench = Bench::new(8 * MIB);
    let source = bench.source(MIB);
    let epoll = |timeout| {
        let event_fd = bench.subscriber.event_fd().unwrap();
        let mut fds = [rustix::event::PollFd::new(&event_fd, rustix::event::PollFlags::IN)];
        rustix::event::poll(&mut fds, Some(&rustix::event::Timespec { tv_sec: timeout, tv_nsec: 0 })).unwrap() > 0
    };
    for by_event_fd in [false, true] {
        bench.gpu.hold();
        bench.push(&source);
        let sample = std::thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                if !by_event_fd {
                    return bench.subscriber.wait(LONG).unwrap().unwrap();
                }
                loop {
                    assert!(epoll(60), "the eventfd was not signalled");
                    if let Some(sample) = bench.subscriber.take().unwrap() {
                        return sample;
                    }
                }
            });
            // The subscriber has looked at the message and skipped it.
            until(|| bench.subscriber.statistics().held == 1);
            bench.gpu.go();
            waiting.join().unwrap()
        });
        assert!(sample.to_host().unwrap() == source.content);
    }
}

#[test]
fn awaited_bytes_behind_a_taken_message_signal_the_eventfd() {
    if !on_standin(&[]) {
        return;
    }
    let bench = Bench::new(8 * MIB);
    let source = bench.source(MIB);
    // Edge-triggered: the epoll reports each signal once.
    let epoll = epoll::create(CreateFlags::CLOEXEC).unwrap();
    let event_fd = bench.subscriber.event_fd().unwrap();
    epoll::add(&epoll, event_fd, EventData::new_u64(0), EventFlags::IN | EventFlags::ET).unwrap();
    let rung = |timeout: Option<&Timespec>| {
        let mut events = [Event { flags: EventFlags::empty(), data: EventData::new_u64(0) }; 1];
        epoll::wait(&epoll, &mut events[..], timeout).unwrap() > 0
    };
    for _ in 0..20 {
        bench.push(&source);
        bench.stream.synchronize(LONG).unwrap();
        bench.gpu.hold();
        bench.push(&source);
        assert_eq!(bench.subscriber.ready_count(10), 1);
        assert!(bench.subscriber.take().unwrap().is_some());
        while rung(Some(&Timespec::default())) {}
        bench.gpu.go();
        bench.stream.synchronize(LONG).unwrap();
        // The watchdog ends an endless wait.
        assert!(rung(None));
        assert_eq!(bench.subscriber.ready_count(10), 1);
        assert!(bench.subscriber.take().unwrap().is_some());
    }
}

#[test]
fn a_take_by_handle_that_waits_for_bytes_gets_them_or_ends_when_it_is_over() {
    if !on_standin(&[]) {
        return;
    }
    let bench = Bench::new(8 * MIB);
    let source = bench.source(MIB);
    let push = || bench.publisher.push_on(&Bytes::new(MIB), &source.part, &bench.stream).unwrap();
    bench.gpu.hold();
    let (first, second) = (push(), push());
    let asked = Cell::new(0);
    let is_over = || asked.replace(asked.get() + 1) == 1;
    let ended = bench.subscriber.take_by_handle_unless(&first, LONG, None, is_over).unwrap_err();
    assert!(matches!(ended, TakeByHandleError::NotHere { .. }) && asked.get() == 2, "{ended}");
    let late = bench.subscriber.take_by_handle(&second, Duration::from_millis(1)).unwrap_err();
    assert!(matches!(late, TakeByHandleError::Take(_)), "{late}");
    let third = push();
    let go = || {
        bench.gpu.go();
        false
    };
    let sample = bench.subscriber.take_by_handle_unless(&third, LONG, None, go).unwrap();
    assert!(sample.to_host().unwrap() == source.content);
}

#[test]
fn a_block_is_used_again_only_after_the_streams_that_read_it() {
    if !on_standin(&[]) {
        return;
    }
    // The pool has room for one message.
    let bench = Bench::with(3 * MIB, Exhaustion::Refuse);
    let source = bench.source(2 * MIB);
    bench.push(&source);
    let reader = bench.node.stream().unwrap();
    let sample = bench.subscriber.take_on(&reader).unwrap().unwrap();
    bench.stream.synchronize(LONG).unwrap();
    bench.gpu.hold();
    sample.release_on(&reader).unwrap();
    let again = || bench.publisher.push_on(&Bytes::new(2 * MIB), &source.part, &bench.stream);
    assert!(matches!(again(), Err(PublishError::NoSpace { .. })), "the reader's stream has not got there");
    bench.gpu.go();
    until(|| again().is_ok());
    assert_eq!(bench.subscriber.wait(LONG).unwrap().unwrap().info().sequence, 2);
}

#[test]
fn a_device_that_fails_leaves_poisoned_and_never_a_wrong_sample() {
    if !on_standin(&[]) {
        return;
    }
    let bench = Bench::new(8 * MIB);
    let source = bench.source(MIB);
    bench.push(&source);
    bench.stream.synchronize(LONG).unwrap();
    drop(bench.subscriber.wait(LONG).unwrap().unwrap());
    bench.gpu.fail_later(1, 719);
    bench.push(&source);
    until(|| bench.subscriber.take().unwrap().is_none() && bench.subscriber.statistics().poisoned == 1);
    let error = bench.publisher.push_on(&Bytes::new(MIB), &source.part, &bench.stream).unwrap_err().to_string();
    assert!(error.contains("CUDA_ERROR_LAUNCH_FAILED (719)"), "{error}");
    assert!(bench.subscriber.take().unwrap().is_none());
}

#[test]
fn an_error_at_each_call_of_a_publication_leaves_the_publisher_whole() {
    if !on_standin(&[]) {
        return;
    }
    let bench = Bench::new(8 * MIB);
    let source = bench.source(MIB);
    let calls =
        ["cuMemHostRegister_v2", "cuMemcpyDtoDAsync_v2", "cuStreamWriteValue32_v2", "cuEventRecord", "cuEventCreate"];
    let mut published = 0;
    for call in calls {
        bench.gpu.fail(call, 1, 999);
        match bench.publisher.push_on(&Bytes::new(MIB), &source.part, &bench.stream) {
            Ok(_) => published += 1,
            Err(error) => assert!(error.to_string().contains(call), "{call}: {error}"),
        }
        bench.gpu.fail(call, 1, 0);
        bench.push(&source);
        published += 1;
        for _ in 0..published {
            let sample = bench.subscriber.wait(LONG).unwrap().unwrap();
            assert!(sample.to_host().unwrap() == source.content, "after an error of {call}");
        }
        published = 0;
    }
}

#[test]
fn a_word_that_a_stream_refuses_to_write_is_not_awaited() {
    if !on_standin(&[]) {
        return;
    }
    let bench = Bench::new(8 * MIB);
    let source = bench.source(KIB);
    bench.push(&source);
    drop(bench.subscriber.wait(LONG).unwrap().unwrap());
    bench.gpu.fail("cuStreamWriteValue32_v2", 1, 999);
    bench.publisher.push_on(&Bytes::new(KIB), &source.part, &bench.stream).unwrap_err();
    let reader = bench.node.stream().unwrap();
    assert!(bench.subscriber.take_on(&reader).unwrap().is_none(), "a stream would wait for it");
    bench.push(&source);
    let sample = bench.subscriber.take_on(&reader).unwrap().unwrap();
    assert_eq!(sample.info().sequence, 2, "and no number is missing");
}

#[test]
fn a_publisher_that_dies_before_its_bytes_are_written_leaves_poisoned() {
    if on_standin(&[]) {
        let bench = Bench::new(8 * MIB);
        let (subscriber, stream) = (&bench.subscriber, &bench.stream);
        a_producer_dies_under_way(&bench, subscriber, stream);
    }
}

#[test]
fn a_publisher_that_dies_before_its_message_is_copied_leaves_poisoned() {
    if on_standin(&APART) {
        let bench = Bench::new(8 * MIB);
        let other = beside(&bench).unwrap();
        a_producer_dies_under_way(&bench, &other.subscriber(TOPIC).unwrap(), &other.stream().unwrap());
    }
}

/// A process that has pushed a message while its device is held.
fn a_producer(bench: &Bench, how: &str) -> Child {
    let mut child = process(bench, "role_of_the_producer", ("RGAPS_TEST_PRODUCER", how));
    child.output_after("pushed").expect("it pushes");
    child
}

/// This test program in another process, as one of its ignored tests; the variable says how.
fn process(bench: &Bench, role: &str, how: (&str, &str)) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", role, "--ignored", "--nocapture"]);
    command.env("RGAPS_RUNTIME_DIR", bench.dir.path()).env(how.0, how.1);
    Child::spawn(command.stdin(Stdio::piped()).stdout(Stdio::piped())).unwrap()
}

/// A producer with a forked child that keeps its GPU, and the pending sample of its message.
struct ForkedProducer {
    child: Child,
    /// The forked child ends when this is dropped.
    input: Option<ChildStdin>,
    sample: Sample<Bytes>,
}

impl ForkedProducer {
    fn of(bench: &Bench) -> Self {
        Self::that(bench, "forks")
    }

    fn that(bench: &Bench, how: &str) -> Self {
        let mut child = a_producer(bench, how);
        let input = child.std().stdin.take();
        Self { child, input, sample: bench.subscriber.take_on(&bench.stream).unwrap().unwrap() }
    }

    /// Waits until the producer has handed everything back to a new manager.
    fn is_back(&mut self, bench: &Bench, managers: usize) {
        until(|| log(bench).matches("rgapsd serves").count() == managers);
        writeln!(self.input.as_mut().unwrap(), "go on").unwrap();
        self.child.output_after("back").expect("it makes a publisher");
    }

    fn dies(&mut self, bench: &Bench) {
        self.child.kill().unwrap();
        until(|| log(bench).contains("a process forked from it still has its GPU open"));
    }

    fn stays_pending_until_the_fork_ends(self, bench: &Bench) {
        assert_eq!(self.sample.readiness(), Readiness::Pending);
        drop(self.input);
        bench.stream.synchronize(LONG).unwrap();
        assert_eq!(self.sample.readiness(), Readiness::Poisoned);
    }
}

/// The manager that the bench's node started, while no other process uses the directory.
fn the_manager(bench: &Bench) -> Pid {
    let [manager] = bench.dir.users().unwrap()[..] else { panic!("one manager, and no other process yet") };
    Pid::from_raw(manager as i32).unwrap()
}

/// Its successor, which the node of some process started.
fn the_second_manager(bench: &Bench) -> Pid {
    let is_it = |pid: &u32| std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name == "rgapsd\n");
    let manager = bench.dir.users().unwrap().into_iter().find(is_it).unwrap();
    Pid::from_raw(manager as i32).unwrap()
}

fn log(bench: &Bench) -> String {
    std::fs::read_to_string(bench.dir.path().join("rgapsd.log")).unwrap()
}

#[test]
fn a_dead_publishers_messages_stay_pending_while_a_fork_keeps_its_gpu() {
    if !on_standin(&[]) {
        return;
    }
    let bench = Bench::new(8 * MIB);
    let mut producer = ForkedProducer::of(&bench);
    producer.dies(&bench);
    producer.stays_pending_until_the_fork_ends(&bench);
}

#[test]
fn a_file_that_is_removed_frees_no_slot_of_the_dead_whose_fork_keeps_its_gpu() {
    if !on_standin(&[]) {
        return;
    }
    let bench = Bench::new(8 * MIB);
    let mut producer = ForkedProducer::of(&bench);
    producer.dies(&bench);
    // As a cleaner of /tmp does.
    let files: Vec<_> = std::fs::read_dir(bench.dir.path()).unwrap().flatten().map(|file| file.path()).collect();
    let named =
        |prefix| files.iter().filter(move |path| path.file_name().unwrap().to_string_lossy().starts_with(prefix));
    let note = named("topic-").next().unwrap();
    named("client-").chain([note]).for_each(|path| std::fs::remove_file(path).unwrap());
    // Clients are hung up before notes are made anew.
    until(|| note.exists());
    ticked(&bench);
    producer.stays_pending_until_the_fork_ends(&bench);
}

/// Waits until the manager has looked twice at what no file descriptor tells: that a client which has hung up has given its lock up.
fn ticked(bench: &Bench) {
    for _ in 0..2 {
        let connection = Connection::connect(&bench.dir.path().join("rgapsd.sock")).unwrap().unwrap();
        let ask = |body: Body, beside: &[BorrowedFd<'_>]| {
            connection.send(&Request { id: 1, body }, beside).unwrap();
            let packet = connection.receive::<ToClient>(LONG).unwrap().expect("an answer");
            let ToClient::Reply { reply, .. } = packet.message else { panic!("{:?}", packet.message) };
            reply.unwrap();
            packet.fds
        };
        let (program, pidfd) = ("ticked".to_owned(), PidFd::own().unwrap());
        let hello = Body::Hello { protocol: PROTOCOL_VERSION, program, layout: LAYOUT_VERSION, locks: Vec::new() };
        let lock = ProcessLock::take(ask(hello, &[pidfd.as_fd()]).remove(0)).unwrap();
        ask(Body::Locked, &[]);
        let (key, type_name) = (TopicKey::new(0, "ticked").unwrap(), "rgaps/Bytes".to_owned());
        ask(Body::Subscribe { key: key.clone(), type_name, qos: SubscriberQos::default() }, &[]);
        drop(connection);
        let is_there = || bench.node.topics().unwrap().iter().any(|topic| topic.key == key);
        // It has seen the end of the connection when it answers for the second time.
        assert!(is_there() && is_there());
        drop(lock);
        until(|| !is_there());
    }
}

#[test]
fn a_producer_that_is_cut_off_and_dies_keeps_its_slot_while_a_fork_keeps_its_gpu() {
    if !on_standin(&[]) {
        return;
    }
    let bench = Bench::new(8 * MIB);
    let mut producer = ForkedProducer::of(&bench);
    producer.child.stop().unwrap();
    until(|| {
        // Each makes a notice that the producer does not read.
        bench.node.subscriber::<Bytes>(TOPIC).unwrap().event_fd().unwrap();
        log(&bench).contains("a client is disconnected")
    });
    producer.dies(&bench);
    producer.stays_pending_until_the_fork_ends(&bench);
}

#[test]
fn a_successor_frees_no_slot_of_the_dead_whose_fork_keeps_its_gpu() {
    if !on_standin(&[]) {
        return;
    }
    let bench = Bench::new(8 * MIB);
    let manager = the_manager(&bench);
    let mut producer = ForkedProducer::of(&bench);
    producer.child.stop().unwrap();
    kill_process(manager, Signal::KILL).unwrap();
    // It knows the producer by the notes of its predecessor alone.
    until(|| log(&bench).matches("rgapsd serves").count() == 2);
    producer.child.kill().unwrap();
    ticked(&bench);
    producer.stays_pending_until_the_fork_ends(&bench);
}

#[test]
fn a_successor_that_took_slots_back_frees_none_while_a_fork_keeps_the_gpu() {
    if !on_standin(&[]) {
        return;
    }
    let bench = Bench::new(8 * MIB);
    let manager = the_manager(&bench);
    // The fork has the first manager's socket, and no other.
    let mut producer = ForkedProducer::of(&bench);
    kill_process(manager, Signal::KILL).unwrap();
    until(|| bench.node.topics().is_ok_and(|topics| topics.iter().any(|topic| topic.publishers == 2)));
    producer.dies(&bench);
    ticked(&bench);
    producer.stays_pending_until_the_fork_ends(&bench);
}

#[test]
fn a_slot_kept_for_a_stream_outlives_managers_and_ends_with_its_process() {
    if !on_standin(&[]) {
        return;
    }
    let bench = Bench::new(8 * MIB);
    let manager = the_manager(&bench);
    let mut producer = ForkedProducer::that(&bench, "drops");
    kill_process(manager, Signal::KILL).unwrap();
    producer.is_back(&bench, 2);
    ticked(&bench);
    assert_eq!(producer.sample.readiness(), Readiness::Pending);
    producer.child.kill().unwrap();
    bench.stream.synchronize(LONG).unwrap();
    assert_eq!(producer.sample.readiness(), Readiness::Poisoned);
}

#[test]
fn a_slot_kept_for_a_stream_stays_while_a_fork_keeps_the_gpu_of_the_dead() {
    if !on_standin(&[]) {
        return;
    }
    let bench = Bench::new(8 * MIB);
    let manager = the_manager(&bench);
    // The fork has the second manager's socket.
    let mut producer = ForkedProducer::that(&bench, "drops and later forks");
    kill_process(manager, Signal::KILL).unwrap();
    producer.is_back(&bench, 2);
    producer.dies(&bench);
    ticked(&bench);
    producer.stays_pending_until_the_fork_ends(&bench);
}

#[test]
fn a_third_manager_keeps_a_kept_slot_of_the_dead_while_a_fork_keeps_the_gpu() {
    if !on_standin(&[]) {
        return;
    }
    let bench = Bench::new(8 * MIB);
    let manager = the_manager(&bench);
    let mut producer = ForkedProducer::that(&bench, "drops and forks");
    kill_process(manager, Signal::KILL).unwrap();
    producer.is_back(&bench, 2);
    producer.child.kill().unwrap();
    ticked(&bench);
    kill_process(the_second_manager(&bench), Signal::KILL).unwrap();
    until(|| log(&bench).matches("rgapsd serves").count() == 3);
    ticked(&bench);
    producer.stays_pending_until_the_fork_ends(&bench);
}

fn a_producer_dies_under_way(bench: &Bench, subscriber: &Subscriber<Bytes>, stream: &Stream) {
    let mut child = a_producer(bench, "alone");
    let sample = subscriber.take_on(stream).unwrap().unwrap();
    assert_eq!(sample.readiness(), Readiness::Pending);
    child.kill().unwrap();
    // The waiting stream continues.
    stream.synchronize(LONG).unwrap();
    assert_eq!(sample.readiness(), Readiness::Poisoned);
    assert!(matches!(sample.to_host(), Err(TakeError::Poisoned { sequence: 1, .. })));
}

#[test]
#[ignore = "run by a_publisher_that_dies_before_its_bytes_are_written_leaves_poisoned"]
fn role_of_the_producer() {
    let Some(how) = std::env::var_os("RGAPS_TEST_PRODUCER") else { return };
    assert!(is_again());
    let _watchdog = Watchdog::new(LONG);
    let gpu = Control::load();
    let node = Node::new("producer").unwrap();
    let how = how.to_str().unwrap();
    let drops_node = how.contains("node");
    let publisher = node.publisher::<Bytes>(if drops_node { "alone" } else { TOPIC }).unwrap();
    let (source, stream) = (Source::new(&node, MIB), node.stream().unwrap());
    gpu.hold();
    publisher.push_on(&Bytes::new(MIB), &source.part, &stream).unwrap();
    // The stream is held, so the slot is kept.
    let _publisher = (!how.contains("drops")).then_some(publisher);
    let node = (!drops_node).then_some(node);
    let is_late = how.contains("later");
    if how.contains("forks") && !is_late {
        fork_that_keeps_the_gpu();
    }
    println!("pushed");
    for (number, line) in std::io::stdin().lines().enumerate() {
        line.unwrap();
        // It has no slot afterwards but the kept one.
        drop(node.as_ref().unwrap().publisher::<Bytes>(&format!("back{number}")).unwrap());
        if is_late {
            fork_that_keeps_the_gpu();
        }
        println!("back");
    }
    loop {
        std::thread::park();
    }
}

/// Forks a child that ends at the end of the input, which its parent reads. Returns its process id.
fn fork_that_keeps_the_gpu() -> i32 {
    // SAFETY: the child has one thread, waits and ends with _exit, so that no destructor of its parent runs.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let _ = poll(&mut [PollFd::new(&std::io::stdin(), PollFlags::empty())], None);
        // SAFETY: as above.
        unsafe { libc::_exit(0) };
    }
    child
}

#[test]
fn bytes_of_the_cpu_are_pushed_and_fetched_whatever_their_size() {
    if !on_standin(&[("RGAPS_TEST_STANDIN_DELAY_US", "20")]) {
        return;
    }
    let bench = Bench::new(128 * MIB);
    let other = Node::builder().runtime_dir(bench.dir.path()).build().unwrap();
    let late = other.subscriber::<Bytes>(TOPIC).unwrap();
    for bytes in [0, 1, 4096, 5 * MIB + 3, 60 * MIB] {
        let content: Vec<u8> = (0..bytes).map(|n| (n * 31 % 255) as u8).collect();
        bench.publisher.push(&Bytes::new(bytes), &content).unwrap();
        for subscriber in [&bench.subscriber, &late] {
            let sample = subscriber.wait(LONG).unwrap().unwrap();
            assert!(sample.to_host().unwrap() == content, "{bytes} B");
        }
    }
    // A program without device code uses its loan and its sample as slices.
    for stream in [None, Some(&bench.stream)] {
        let mut loan = bench.publisher.loan(Bytes::new(5000)).unwrap();
        assert_eq!(loan.len(), 5000);
        loan.fill(9);
        match stream {
            None => loan.publish().unwrap(),
            Some(stream) => loan.publish_on(stream).unwrap(),
        };
        let sample = bench.subscriber.wait(LONG).unwrap().unwrap();
        assert_eq!((sample.bytes(), sample.info().origin), ([9; 5000].as_slice(), Origin::Pushed));
    }
}
