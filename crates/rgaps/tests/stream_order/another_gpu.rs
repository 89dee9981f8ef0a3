//! Nodes on a GPU other than the pools'.

use std::time::Duration;

use rgaps::device::{Choice, PoolPart, Stream};
use rgaps::types::Bytes;
use rgaps::{Exhaustion, Node, NodeError, Origin, PublishError, Readiness, Sample, Subscriber};

use crate::bench::{APART, Bench, KIB, LONG, MIB, Source, TOPIC, on_standin, until};

/// A node on the second GPU, with the pools on the first.
pub fn beside(bench: &Bench) -> Result<Node, NodeError> {
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
    let sample = subscriber.take_on(&stream).unwrap().unwrap();
    stream.synchronize(LONG).unwrap();
    assert!(sample.to_host().unwrap() == source.content);
    let own = Source::new(&other, 20 * MIB);
    publisher.push_on(&Bytes::new(20 * MIB), &own.part, &stream).unwrap();
    for _ in 0..2 {
        assert!(bench.subscriber.wait(LONG).unwrap().unwrap().to_host().unwrap() == source.content);
    }
    let error = bench.node.device().copy_within(&stream, &source.part, PoolPart::of(source.pool.as_ref(), 0));
    assert!(error.unwrap_err().to_string().contains("not one of this device"));
}

/// The bytes that a stream of the node reads from a sample.
fn seen(node: &Node, sample: &Sample<Bytes>, stream: &Stream) -> Vec<u8> {
    let mut found = vec![0; sample.info().bytes as usize];
    node.device().copy_out(stream, sample.part().unwrap(), &mut found).unwrap();
    found
}

#[test]
fn a_node_on_a_gpu_without_access_to_the_pools_gets_one_copy_of_each_message() {
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

#[test]
fn a_node_on_such_a_gpu_that_reads_no_read_only_memory_gets_one_copy_too() {
    if on_standin(&[APART[0], APART[1], ("RGAPS_TEST_STANDIN_NO_READ_ONLY_REGISTER", "1")]) {
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
        let sample = first.take_on(&stream).unwrap().unwrap();
        let counted = ["cuMemcpyPeerAsync", "cuMemAllocAsync", "cuStreamWaitEvent"];
        calls.push(counted.map(|call| bench.gpu.calls(call)));
        let shared = second.take_on(&elsewhere).unwrap().unwrap();
        let waited = second.wait(Duration::ZERO).unwrap();
        assert!(waited.is_none());
        assert_eq!(sample.mapped_from(), shared.mapped_from(), "one copy a node");
        assert!(seen(&other, &sample, &stream) == source.content, "{bytes} B arrived otherwise");
        assert!(seen(&other, &shared, &elsewhere) == source.content, "{bytes} B arrived otherwise");
        assert_eq!((sample.readiness(), shared.readiness()), (Readiness::Ready, Readiness::Ready));
        expected += bytes;
        assert_eq!(copied(), [earlier + bytes, 0, 0], "counted, once");
        drop(bench.subscriber.wait(LONG).unwrap().unwrap());
        // The copy to the host starts from the node's device.
        drop(shared);
        assert!(sample.to_host().unwrap() == source.content);
        assert_eq!(copied(), [earlier + 2 * bytes, 0, 0]);
    }
    assert_eq!(calls, [[0, 1, 1], [1, 1, 1], [1, 1, 1], [1, 1, 1]], "whatever the size");
    assert_eq!(first.statistics().copied_bytes, 2 * expected);
    // After a wait on the CPU, the sample is a copy, and the publisher's message is released.
    let source = bench.source(MIB);
    bench.push(&source);
    let samples = [&second, &first].map(|subscriber| subscriber.wait(LONG).unwrap().unwrap());
    assert_eq!((first.statistics().held, second.statistics().held), (0, 0));
    assert_eq!(samples[0].mapped_from(), samples[1].mapped_from());
    for sample in &samples {
        assert_eq!(sample.readiness(), Readiness::Ready);
        assert!(sample.bytes() == source.content);
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
        let sample = bench.subscriber.wait(LONG).unwrap().unwrap();
        assert!(sample.to_host().unwrap() == content, "{} B arrived otherwise", content.len());
        assert_eq!(sample.info().origin, origin);
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
            let mut loan = publisher.loan(Bytes::new(bytes)).unwrap();
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
        // The CPU's bytes of a loan are copied after the device's.
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
fn a_message_is_copied_to_another_gpu_in_stream_order_and_released_then() {
    if !on_standin(&APART) {
        return;
    }
    // The pool has room for one message.
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
    let sample = subscriber.take_on(&stream).unwrap().unwrap();
    assert_eq!(sample.readiness(), Readiness::Pending);
    drop(sample);
    assert!(matches!(again(), Err(PublishError::NoSpace { .. })), "it has still to be copied");
    bench.gpu.go();
    pass();
    until(|| again().is_ok());
    // Once the copy is complete, a stream's pending work on it holds no message.
    bench.stream.synchronize(LONG).unwrap();
    pass();
    let sample = subscriber.take_on(&stream).unwrap().unwrap();
    stream.synchronize(LONG).unwrap();
    bench.gpu.hold();
    sample.release_on(&stream).unwrap();
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
        let sample = subscriber.wait(LONG).unwrap().unwrap();
        assert!(sample.to_host().unwrap() == source.content, "{what}");
    };
    let settled = || (bench.gpu.live("allocated_bytes"), bench.gpu.live("ranges"));
    bench.push(&source);
    next(&subscriber, "before");
    next(&bench.subscriber, "before");
    stream.synchronize(LONG).unwrap();
    // The last copy's memory may still exist: it is freed in the order of its own stream.
    let before = settled();
    let no_more = || settled().0 <= before.0 && settled().1 <= before.1;
    for call in ["cuMemAllocAsync", "cuMemcpyPeerAsync", "cuEventRecord", "cuStreamWaitEvent"] {
        bench.push(&source);
        next(&bench.subscriber, call);
        bench.gpu.fail(call, 1, 999);
        let error = subscriber.take_on(&stream).unwrap_err().to_string();
        bench.gpu.fail(call, 1, 0);
        assert!(error.contains(&format!("{call} failed: CUDA_ERROR_UNKNOWN (999)")), "{call}: {error}");
        assert_eq!(subscriber.statistics().held, 0, "{call}");
        until(no_more);
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
        until(no_more);
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
fn a_node_on_another_gpu_with_no_way_to_the_pools_gets_an_error() {
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
