//! Beside a CUDA graph that somebody captures in this process, as PyTorch does.

use rgaps::SubscriberQos;
use rgaps::any::{AnySubscriber, Kind};
use rgaps::device::Stream;
use rgaps::types::Bytes;

use super::bench::{Bench, KIB, LONG, MIB, TOPIC, on_standin, until};

/// A stream of the node's own whose handle somebody else has, too.
fn lent_out(bench: &Bench) -> (Stream, u64) {
    let stream = bench.node.stream().unwrap();
    let handle = bench.node.device().as_cuda().unwrap().raw_stream(&stream).unwrap();
    (stream, handle)
}

#[test]
fn a_graph_that_is_captured_meanwhile_neither_disturbs_messages_nor_is_disturbed() {
    if !on_standin(&[]) {
        return;
    }
    let bench = Bench::new(8 * MIB);
    let (_owner, handle) = lent_out(&bench);
    // SAFETY: a stream of the node's device, which outlives all that is taken on it here.
    let theirs = unsafe { bench.node.device().as_cuda().unwrap().borrow_stream(handle) };
    let source = bench.source(KIB);
    bench.push(&source);
    let early = bench.subscriber.wait(LONG).unwrap().unwrap();
    bench.gpu.hold();
    bench.push(&source);
    bench.gpu.begin_capture(handle);

    // Whoever looks whether work is over goes on looking, and finds nothing failed.
    bench.gpu.reset_calls();
    until(|| bench.gpu.calls("cuEventQuery") > 3);
    bench.gpu.go();
    let late = bench.subscriber.wait(LONG).unwrap().unwrap();
    assert!(late.to_host().unwrap() == source.content);
    assert_eq!(bench.subscriber.statistics().poisoned, 0);

    // What would become a part of the graph is refused.
    let refusals = [
        bench.publisher.push_on(&Bytes::new(KIB), &source.part, &theirs).unwrap_err().to_string(),
        bench.publisher.loan(Bytes::new(KIB)).unwrap().publish_on(&theirs).unwrap_err().to_string(),
        early.release_on(&theirs).unwrap_err().to_string(),
        late.release_on(&theirs).unwrap_err().to_string(),
    ];
    for refused in refusals {
        let is_named = refused.contains("CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED (900); a stream is being captured");
        assert!(is_named, "{refused}");
    }
    let outstanding = || bench.publisher.statistics().used_bytes;
    let with_refused = outstanding();
    let handle_of_last = bench.publisher.push_on(&Bytes::new(KIB), &source.part, &bench.stream).unwrap();
    let refused = [
        bench.subscriber.take_on(&theirs).unwrap_err().to_string(),
        bench.subscriber.claim_on(&handle_of_last, LONG, &theirs).unwrap_err().to_string(),
    ];
    assert!(refused.iter().all(|refused| refused.contains("a stream is being captured")), "{refused:?}");
    let last = bench.subscriber.wait(LONG).unwrap().unwrap();
    assert!(last.to_host().unwrap() == source.content);
    drop(last);
    assert_eq!(
        bench.subscriber.statistics().held,
        2,
        "work from before the capture may still read what could not be let go"
    );
    assert!(bench.gpu.end_capture(handle), "the graph is as it should be");
    until(|| bench.subscriber.statistics().held == 0);
    until(|| outstanding() == 0);
    assert!(with_refused > 0, "a kernel of before may still have filled what was not published");
}

#[test]
fn a_message_of_several_holders_waits_for_the_stream_that_was_captured_when_one_let_go() {
    if !on_standin(&[]) {
        return;
    }
    let bench = Bench::new(8 * MIB);
    let (captured, handle) = lent_out(&bench);
    let subscriber = AnySubscriber::new(&bench.node, TOPIC, Kind::Bytes, SubscriberQos::default()).unwrap();
    let source = bench.source(KIB);
    bench.push(&source);
    let message = subscriber.take_on(&captured).unwrap().unwrap();
    let other = message.clone();
    bench.gpu.begin_capture(handle);
    message.release_on(&captured).unwrap();
    other.release_on(&bench.stream).unwrap_err();
    assert_eq!(subscriber.statistics().held, 1, "what was given to the captured stream before may still read it");
    assert!(bench.gpu.end_capture(handle));
    until(|| subscriber.statistics().held == 0);
}
