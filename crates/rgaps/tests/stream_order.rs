//! Publishing, taking and releasing in stream order, on the stand-in for libcuda, with a manager of its own for each test.
//!
//! The stand-in's streams can be held, so that "the call does not wait" and "not before the bytes are there" are seen, not timed.

#![allow(clippy::unwrap_used)] // helpers of tests, outside #[test] functions
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use rgaps::device::{Choice, DevicePart, PoolMemory, PoolPart, PoolSpec, Stream, contract};
use rgaps::types::Bytes;
use rgaps::{
    Exhaustion, Frame, Node, NodeError, Origin, PublishError, Publisher, PublisherQos, Readiness, Subscriber, TakeError,
};
use rgaps_standin_cuda::{Control, link_into};
use rgaps_testing::{Child, RuntimeDir, Watchdog, again_with, is_again, programs};

const TOPIC: &str = "stream/order";
const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
/// Two GPUs, of which none reaches the other's memory.
const APART: [(&str, &str); 2] = [("RGAPS_TEST_STANDIN_DEVICES", "2"), ("RGAPS_TEST_STANDIN_NO_PEER", "1")];
const LONG: Duration = Duration::from_secs(60);

/// A process of its own whose libcuda, and whose manager's, is the stand-in.
fn on_standin(settings: &[(&str, &str)]) -> bool {
    let rgapsd = programs::find("rgapsd");
    let mut all = vec![("RGAPSD", rgapsd.to_str().unwrap()), ("RGAPS_MULTICAST", "off")];
    all.extend_from_slice(settings);
    again_with(&all, link_into)
}

struct Bench {
    gpu: Control,
    node: Node,
    publisher: Publisher<Bytes>,
    subscriber: Subscriber<Bytes>,
    stream: Stream,
    // Last: it ends the manager.
    dir: RuntimeDir,
    _watchdog: Watchdog,
}

impl Bench {
    fn new(pool_bytes: u64) -> Self {
        Self::with(pool_bytes, Exhaustion::Wait { timeout_ms: 60_000 })
    }

    fn with(pool_bytes: u64, exhaustion: Exhaustion) -> Self {
        let _watchdog = Watchdog::new(Duration::from_secs(120));
        let dir = RuntimeDir::new("stream-order").unwrap();
        let gpu = Control::load();
        let node = Node::builder().runtime_dir(dir.path()).build().unwrap();
        let qos = PublisherQos { pool_bytes: Some(pool_bytes), exhaustion, ..PublisherQos::default() };
        let publisher = node.publisher_with(TOPIC, qos).unwrap();
        let subscriber = node.subscriber(TOPIC).unwrap();
        let stream = node.stream().unwrap();
        Self { gpu, node, publisher, subscriber, stream, dir, _watchdog }
    }

    fn source(&self, bytes: u64) -> Source {
        Source::new(&self.node, bytes)
    }

    fn push(&self, source: &Source) {
        self.publisher.push_on(&Bytes::new(source.part.bytes()), &source.part, &self.stream).unwrap();
    }
}

/// Device memory of the caller's, with something in it.
struct Source {
    part: DevicePart,
    content: Vec<u8>,
    pool: Arc<dyn PoolMemory>,
}

impl Source {
    fn new(node: &Node, bytes: u64) -> Self {
        // Where the device does not reach the pools, a pool is no memory that its streams push from.
        let own = node.device().scratch(bytes).unwrap();
        let make = || node.device().create_pool(&PoolSpec { name: "source".to_owned(), bytes }).unwrap();
        let pool = own.unwrap_or_else(make);
        let missing = pool.missing(0, bytes).unwrap();
        pool.commit(&missing, 0).unwrap();
        let content: Vec<u8> = (0..bytes).map(|n| (n * 7 % 253) as u8).collect();
        let copy =
            node.device().copy_in(&node.stream().unwrap(), &content, PoolPart { pool: pool.as_ref(), offset: 0 });
        copy.unwrap().wait(LONG).unwrap();
        Self { part: contract::part_of(pool.as_ref(), 0, bytes).unwrap(), content, pool }
    }
}

/// Until it is so; the watchdog ends a wait for ever.
fn until(what: impl Fn() -> bool) {
    while !what() {
        std::thread::yield_now();
    }
}

fn push_and_take_wait_for_nothing() {
    let bench = Bench::new(256 * MIB);
    let driver = ["cuMemcpyDtoDAsync_v2", "cuStreamWriteValue32_v2", "cuLaunchHostFunc", "cuEventRecord"];
    let mut counts = Vec::new();
    for bytes in [KIB, 40 * MIB] {
        let source = bench.source(bytes);
        // Its memory comes with the first message, and the segment is made known once.
        bench.push(&source);
        drop(bench.subscriber.wait(LONG).unwrap().unwrap());
        bench.gpu.hold();
        bench.gpu.reset_calls();
        bench.push(&source);
        counts.push(driver.map(|call| bench.gpu.calls(call)));
        assert!(bench.subscriber.take().unwrap().is_none(), "its bytes are not there");
        let reader = bench.node.stream().unwrap();
        // The device without stream memory operations waits here, and nobody lets go of it.
        if bench.gpu.calls("cuLaunchHostFunc") > 0 {
            bench.gpu.go();
        }
        let frame = bench.subscriber.take_on(&reader).unwrap().unwrap();
        if bench.gpu.calls("cuLaunchHostFunc") == 0 {
            assert_eq!(frame.status(), Readiness::Pending);
        }
        assert_ne!(frame.device_address().unwrap(), 0);
        bench.gpu.go();
        reader.synchronize(LONG).unwrap();
        assert_eq!(frame.status(), Readiness::Ready);
        assert!(frame.to_host().unwrap() == source.content, "{bytes} B arrived otherwise");
    }
    assert_eq!(counts[0], counts[1], "the same calls whatever the size");
    assert_eq!(counts[0].iter().sum::<u64>(), 3, "one copy, one word, one event: {counts:?}");
    assert_eq!(bench.subscriber.statistics().copied_bytes, KIB + 40 * MIB, "what was asked for as a copy, and no more");
}

#[test]
fn a_publisher_that_cannot_be_made_keeps_no_seat() {
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
fn an_integrated_device_is_read_in_place() {
    if on_standin(&[("RGAPS_TEST_STANDIN_INTEGRATED", "1")]) {
        let bench = Bench::new(8 * MIB);
        let mut loan = bench.publisher.loan(Bytes::new(1000)).unwrap();
        loan.fill(7);
        loan.publish_on(&bench.stream).unwrap();
        let frame = bench.subscriber.wait(LONG).unwrap().unwrap();
        assert_eq!(frame.bytes(), [7; 1000]);
    }
}

#[test]
fn who_waits_by_the_cpu_gets_the_message_once_its_bytes_are_there() {
    if !on_standin(&[]) {
        return;
    }
    let bench = Bench::new(8 * MIB);
    let source = bench.source(MIB);
    let epoll = |timeout| {
        let descriptor = bench.subscriber.descriptor().unwrap();
        let mut fds = [rustix::event::PollFd::new(&descriptor, rustix::event::PollFlags::IN)];
        rustix::event::poll(&mut fds, Some(&rustix::event::Timespec { tv_sec: timeout, tv_nsec: 0 })).unwrap() > 0
    };
    for by_descriptor in [false, true] {
        bench.gpu.hold();
        bench.push(&source);
        let frame = std::thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                if !by_descriptor {
                    return bench.subscriber.wait(LONG).unwrap().unwrap();
                }
                loop {
                    assert!(epoll(60), "nobody rang");
                    if let Some(frame) = bench.subscriber.take().unwrap() {
                        return frame;
                    }
                }
            });
            // It has been looked at and passed by.
            until(|| bench.subscriber.statistics().held == 1);
            bench.gpu.go();
            waiting.join().unwrap()
        });
        assert!(frame.to_host().unwrap() == source.content);
    }
}

#[test]
fn a_block_is_used_again_only_after_the_streams_that_read_it() {
    if !on_standin(&[]) {
        return;
    }
    // Room for one message.
    let bench = Bench::with(3 * MIB, Exhaustion::Refuse);
    let source = bench.source(2 * MIB);
    bench.push(&source);
    let reader = bench.node.stream().unwrap();
    let frame = bench.subscriber.take_on(&reader).unwrap().unwrap();
    bench.stream.synchronize(LONG).unwrap();
    bench.gpu.hold();
    frame.release_on(&reader).unwrap();
    let again = || bench.publisher.push_on(&Bytes::new(2 * MIB), &source.part, &bench.stream);
    assert!(matches!(again(), Err(PublishError::NoSpace { .. })), "the reader's stream has not got there");
    bench.gpu.go();
    until(|| again().is_ok());
    assert_eq!(bench.subscriber.wait(LONG).unwrap().unwrap().info().sequence, 2);
}

#[test]
fn a_device_that_fails_leaves_poisoned_and_never_a_wrong_frame() {
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
            let frame = bench.subscriber.wait(LONG).unwrap().unwrap();
            assert!(frame.to_host().unwrap() == source.content, "after an error of {call}");
        }
        published = 0;
    }
}

#[test]
fn a_producer_that_dies_under_way_leaves_poisoned() {
    if on_standin(&[]) {
        let bench = Bench::new(8 * MIB);
        let (subscriber, stream) = (&bench.subscriber, &bench.stream);
        a_producer_dies_under_way(&bench, subscriber, stream);
    }
}

#[test]
fn a_producer_that_dies_before_its_message_is_copied_leaves_poisoned() {
    if on_standin(&APART) {
        let bench = Bench::new(8 * MIB);
        let other = beside(&bench).unwrap();
        a_producer_dies_under_way(&bench, &other.subscriber(TOPIC).unwrap(), &other.stream().unwrap());
    }
}

fn a_producer_dies_under_way(bench: &Bench, subscriber: &Subscriber<Bytes>, stream: &Stream) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "role_of_the_producer", "--ignored", "--nocapture"]);
    command.env("RGAPS_RUNTIME_DIR", bench.dir.path()).env("RGAPS_TEST_PRODUCER", "1");
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = Child::spawn(&mut command).unwrap();
    let output = BufReader::new(child.std().stdout.take().unwrap());
    output.lines().map_while(Result::ok).find(|line| line.ends_with("pushed")).expect("it pushes");
    let frame = subscriber.take_on(stream).unwrap().unwrap();
    assert_eq!(frame.status(), Readiness::Pending);
    child.kill().unwrap();
    // The stream that waits for it goes on.
    stream.synchronize(LONG).unwrap();
    assert_eq!(frame.status(), Readiness::Poisoned);
    assert!(matches!(frame.to_host(), Err(TakeError::Poisoned { sequence: 1, .. })));
}

#[test]
#[ignore = "run by a_producer_that_dies_under_way_leaves_poisoned"]
fn role_of_the_producer() {
    if std::env::var_os("RGAPS_TEST_PRODUCER").is_none() {
        return;
    }
    assert!(is_again());
    let _watchdog = Watchdog::new(LONG);
    let gpu = Control::load();
    let node = Node::new("producer").unwrap();
    let publisher = node.publisher::<Bytes>(TOPIC).unwrap();
    let (source, stream) = (Source::new(&node, MIB), node.stream().unwrap());
    gpu.hold();
    publisher.push_on(&Bytes::new(MIB), &source.part, &stream).unwrap();
    println!("pushed");
    loop {
        std::thread::park();
    }
}

/// A node on the second GPU, where the pools lie on the first.
fn beside(bench: &Bench) -> Result<Node, NodeError> {
    Node::builder().runtime_dir(bench.dir.path()).device(Choice::Cuda(1)).build()
}

#[test]
fn a_node_on_another_gpu_that_reaches_the_pools_works_on_them_in_place() {
    if !on_standin(&[("RGAPS_TEST_STANDIN_DEVICES", "2")]) {
        return;
    }
    let bench = Bench::new(64 * MIB);
    let other = beside(&bench).unwrap();
    let (subscriber, publisher) = (other.subscriber::<Bytes>(TOPIC).unwrap(), other.publisher::<Bytes>(TOPIC).unwrap());
    let (stream, source) = (other.stream().unwrap(), bench.source(20 * MIB));
    bench.push(&source);
    let frame = subscriber.take_on(&stream).unwrap().unwrap();
    stream.synchronize(LONG).unwrap();
    assert!(frame.to_host().unwrap() == source.content);
    let own = Source::new(&other, 20 * MIB);
    publisher.push_on(&Bytes::new(20 * MIB), &own.part, &stream).unwrap();
    for _ in 0..2 {
        assert!(bench.subscriber.wait(LONG).unwrap().unwrap().to_host().unwrap() == source.content);
    }
    let error =
        bench.node.device().copy_within(&stream, &source.part, PoolPart { pool: source.pool.as_ref(), offset: 0 });
    assert!(error.unwrap_err().to_string().contains("not one of this device"));
}

/// What a stream of the node finds in a frame.
fn seen(node: &Node, frame: &Frame<Bytes>, stream: &Stream) -> Vec<u8> {
    let mut found = vec![0; frame.info().bytes as usize];
    node.device().copy_out(stream, frame.part().unwrap(), &mut found).unwrap();
    found
}

#[test]
fn a_node_on_another_gpu_that_does_not_reach_the_pools_gets_one_copy_of_each_message() {
    if on_standin(&APART) {
        messages_are_copied_once_a_node();
    }
}

#[test]
fn a_node_on_such_a_gpu_without_stream_memory_operations_gets_one_copy_too() {
    if on_standin(&[APART[0], APART[1], ("RGAPS_TEST_STANDIN_NO_STREAM_MEM_OPS", "1")]) {
        messages_are_copied_once_a_node();
    }
}

fn messages_are_copied_once_a_node() {
    let bench = Bench::new(256 * MIB);
    let other = beside(&bench).unwrap();
    let (first, second) = (other.subscriber::<Bytes>(TOPIC).unwrap(), other.subscriber::<Bytes>(TOPIC).unwrap());
    let (stream, elsewhere) = (other.stream().unwrap(), other.stream().unwrap());
    let copied = || [&first, &second, &bench.subscriber].map(|subscriber| subscriber.statistics().copied_bytes);
    let mut calls = Vec::new();
    let mut expected = 0;
    for bytes in [0, 1, KIB, 40 * MIB] {
        let source = bench.source(bytes);
        let [earlier, _, _] = copied();
        bench.push(&source);
        bench.gpu.reset_calls();
        let frame = first.take_on(&stream).unwrap().unwrap();
        let counted = ["cuMemcpyPeerAsync", "cuMemAllocAsync", "cuStreamWaitEvent"];
        calls.push(counted.map(|call| bench.gpu.calls(call)));
        let shared = second.take_on(&elsewhere).unwrap().unwrap();
        let waited = second.wait(Duration::ZERO).unwrap();
        assert!(waited.is_none());
        assert_eq!(frame.mapped_from(), shared.mapped_from(), "one copy a node");
        assert!(seen(&other, &frame, &stream) == source.content, "{bytes} B arrived otherwise");
        assert!(seen(&other, &shared, &elsewhere) == source.content, "{bytes} B arrived otherwise");
        assert_eq!((frame.status(), shared.status()), (Readiness::Ready, Readiness::Ready));
        expected += bytes;
        assert_eq!(copied(), [earlier + bytes, 0, 0], "counted, once");
        drop(bench.subscriber.wait(LONG).unwrap().unwrap());
        // To the CPU it comes by its device, as anywhere.
        drop(shared);
        assert!(frame.to_host().unwrap() == source.content);
        assert_eq!(copied(), [earlier + 2 * bytes, 0, 0]);
    }
    assert_eq!(calls, [[0, 1, 1], [1, 1, 1], [1, 1, 1], [1, 1, 1]], "whatever the size");
    assert_eq!(first.statistics().copied_bytes, 2 * expected);
    // Who waits has the bytes, and holds nothing of the publisher's.
    let source = bench.source(MIB);
    bench.push(&source);
    let frames = [&second, &first].map(|subscriber| subscriber.wait(LONG).unwrap().unwrap());
    assert_eq!((first.statistics().held, second.statistics().held), (0, 0));
    assert_eq!(frames[0].mapped_from(), frames[1].mapped_from());
    for frame in &frames {
        assert_eq!(frame.status(), Readiness::Ready);
        assert!(frame.bytes() == source.content);
    }
}

#[test]
fn a_node_on_another_gpu_that_does_not_reach_the_pools_publishes_by_one_copy() {
    if !on_standin(&APART) {
        return;
    }
    let bench = Bench::new(128 * MIB);
    let other = beside(&bench).unwrap();
    let (publisher, stream) = (other.publisher::<Bytes>(TOPIC).unwrap(), other.stream().unwrap());
    let next = |content: &[u8], origin| {
        let frame = bench.subscriber.wait(LONG).unwrap().unwrap();
        assert!(frame.to_host().unwrap() == content, "{} B arrived otherwise", content.len());
        assert_eq!(frame.info().origin, origin);
    };
    for bytes in [1, 20 * MIB] {
        let (own, meta) = (Source::new(&other, bytes), Bytes::new(bytes));
        bench.gpu.reset_calls();
        publisher.push_on(&meta, &own.part, &stream).unwrap();
        assert_eq!(bench.gpu.calls("cuMemcpyPeerAsync"), 1);
        next(&own.content, Origin::Pushed);
        publisher.push(&meta, &own.content).unwrap();
        next(&own.content, Origin::Pushed);
        for in_order in [true, false] {
            let loan = publisher.loan(Bytes::new(bytes)).unwrap();
            let copy = other.device().copy_in(&stream, &own.content, loan.part().unwrap()).unwrap();
            assert_eq!(loan.device_address().unwrap(), loan.view().unwrap().data);
            if in_order {
                loan.publish_on(&stream).unwrap();
            } else {
                copy.wait(LONG).unwrap();
                loan.publish().unwrap();
            }
            next(&own.content, Origin::Pushed);
        }
        // The CPU's part of a loan comes behind the device's.
        let mut loan = publisher.loan(Bytes::new(bytes)).unwrap();
        loan.device_address().unwrap();
        loan.copy_from_slice(&own.content);
        loan.publish_on(&stream).unwrap();
        next(&own.content, Origin::Pushed);
    }
    stream.synchronize(LONG).unwrap();
    let error = bench.node.device().scratch(1).unwrap();
    assert!(error.is_none(), "who reaches the pools fills blocks in place");
}

#[test]
fn a_message_is_copied_to_another_gpu_in_stream_order_and_let_go_when_it_is() {
    if !on_standin(&APART) {
        return;
    }
    // Room for one message.
    let bench = Bench::with(3 * MIB, Exhaustion::Refuse);
    let other = beside(&bench).unwrap();
    let (subscriber, stream) = (other.subscriber::<Bytes>(TOPIC).unwrap(), other.stream().unwrap());
    let source = bench.source(2 * MIB);
    let again = || bench.publisher.push_on(&Bytes::new(2 * MIB), &source.part, &bench.stream);
    let pass = || drop(bench.subscriber.wait(LONG).unwrap().unwrap());
    bench.push(&source);
    drop(subscriber.wait(LONG).unwrap().unwrap());
    pass();
    until(|| again().is_ok());
    bench.stream.synchronize(LONG).unwrap();
    pass();
    drop(subscriber.wait(LONG).unwrap().unwrap());
    bench.gpu.hold();
    until(|| again().is_ok());
    assert!(subscriber.take().unwrap().is_none(), "its bytes are not there");
    let frame = subscriber.take_on(&stream).unwrap().unwrap();
    assert_eq!(frame.status(), Readiness::Pending);
    drop(frame);
    assert!(matches!(again(), Err(PublishError::NoSpace { .. })), "it has still to be copied");
    bench.gpu.go();
    pass();
    until(|| again().is_ok());
    // What a stream has still to do with a copy that is made keeps no message.
    bench.stream.synchronize(LONG).unwrap();
    pass();
    let frame = subscriber.take_on(&stream).unwrap().unwrap();
    stream.synchronize(LONG).unwrap();
    bench.gpu.hold();
    frame.release_on(&stream).unwrap();
    until(|| again().is_ok());
    bench.gpu.go();
}

#[test]
fn an_error_at_each_call_of_a_copy_to_another_gpu_is_named_and_leaks_nothing() {
    if !on_standin(&APART) {
        return;
    }
    let bench = Bench::new(8 * MIB);
    let other = beside(&bench).unwrap();
    let (subscriber, stream) = (other.subscriber::<Bytes>(TOPIC).unwrap(), other.stream().unwrap());
    let (publisher, source, own) =
        (other.publisher::<Bytes>(TOPIC).unwrap(), bench.source(MIB), Source::new(&other, MIB));
    let meta = Bytes::new(MIB);
    let next = |subscriber: &Subscriber<Bytes>, what: &str| {
        let frame = subscriber.wait(LONG).unwrap().unwrap();
        assert!(frame.to_host().unwrap() == source.content, "{what}");
    };
    let settled = || (bench.gpu.live("allocated_bytes"), bench.gpu.live("ranges"));
    bench.push(&source);
    next(&subscriber, "before");
    next(&bench.subscriber, "before");
    stream.synchronize(LONG).unwrap();
    let before = settled();
    for call in ["cuMemAllocAsync", "cuMemcpyPeerAsync", "cuEventRecord", "cuStreamWaitEvent"] {
        bench.push(&source);
        next(&bench.subscriber, call);
        bench.gpu.fail(call, 1, 999);
        let error = subscriber.take_on(&stream).unwrap_err().to_string();
        bench.gpu.fail(call, 1, 0);
        assert!(error.contains(&format!("{call} failed: CUDA_ERROR_UNKNOWN (999)")), "{call}: {error}");
        assert_eq!(subscriber.statistics().held, 0, "{call}");
        until(|| settled() == before);
        bench.push(&source);
        next(&subscriber, call);
        next(&bench.subscriber, call);
    }
    for call in ["cuMemAllocAsync", "cuMemcpyPeerAsync"] {
        bench.gpu.fail(call, 1, 999);
        let loan = publisher.loan(meta).unwrap();
        let published = loan.device_address().and_then(|_| loan.publish_on(&stream)).map(drop);
        bench.gpu.fail(call, 1, 0);
        assert!(published.unwrap_err().to_string().contains(call), "{call}");
        until(|| settled() == before);
    }
    bench.gpu.fail("cuMemcpyPeerAsync", 1, 999);
    let error = publisher.push_on(&meta, &own.part, &stream).unwrap_err().to_string();
    bench.gpu.fail("cuMemcpyPeerAsync", 1, 0);
    assert!(error.contains("cuMemcpyPeerAsync failed"), "{error}");
    assert_eq!(publisher.statistics().outstanding, 0);
    publisher.push_on(&meta, &own.part, &stream).unwrap();
    next(&bench.subscriber, "after");
    next(&subscriber, "after");
}

#[test]
fn a_node_on_another_gpu_that_has_no_way_to_the_pools_is_told_so() {
    if !on_standin(&[APART[0], APART[1], ("RGAPS_TEST_STANDIN_NO_MEMORY_POOLS", "1")]) {
        return;
    }
    let bench = Bench::new(8 * MIB);
    let error = beside(&bench).unwrap_err().to_string();
    assert!(error.starts_with("cuda:1 cannot work on the pools of this host, which lie on cuda:GPU-"), "{error}");
    assert!(error.contains("does not reach the memory of") && error.contains("--device"), "{error}");
    let on_host = Node::builder().runtime_dir(bench.dir.path()).device(Choice::Host).build().unwrap_err().to_string();
    assert!(on_host.contains("it is no GPU"), "{on_host}");
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
            let frame = subscriber.wait(LONG).unwrap().unwrap();
            assert!(frame.to_host().unwrap() == content, "{bytes} B");
        }
    }
    // A program that knows nothing of devices: its loan is a slice, and so is its frame.
    for stream in [None, Some(&bench.stream)] {
        let mut loan = bench.publisher.loan(Bytes::new(5000)).unwrap();
        assert_eq!(loan.len(), 5000);
        loan.fill(9);
        match stream {
            None => loan.publish().unwrap(),
            Some(stream) => loan.publish_on(stream).unwrap(),
        };
        let frame = bench.subscriber.wait(LONG).unwrap().unwrap();
        assert_eq!((frame.bytes(), frame.info().origin), ([9; 5000].as_slice(), Origin::Pushed));
    }
}
