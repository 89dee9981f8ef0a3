//! Messages while other code in this process captures a CUDA graph, as PyTorch does.

use std::sync::Arc;

use rgaps::SubscriberQos;
use rgaps::device::{Stream, StreamWord};
use rgaps::dynamic::{DynamicSample, DynamicSubscriber, Kind};
use rgaps::types::Bytes;
use rgaps_os::{Access, Mapping, memfd};

use super::bench::{Bench, KIB, LONG, MIB, Source, TOPIC, on_standin, until};

/// A stream of the node whose raw handle other code has, too.
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
    // SAFETY: a stream of the node's device, which outlives all messages that are taken on it here.
    let theirs = unsafe { bench.node.device().as_cuda().unwrap().borrow_stream(handle) };
    let source = bench.source(KIB);
    bench.push(&source);
    let early = bench.subscriber.wait(LONG).unwrap().unwrap();
    bench.gpu.hold();
    bench.push(&source);
    bench.gpu.begin_capture(handle);

    // Polling of completions continues during the capture and finds no failure.
    bench.gpu.reset_calls();
    until(|| bench.gpu.calls("cuEventQuery") > 3);
    bench.gpu.go();
    let late = bench.subscriber.wait(LONG).unwrap().unwrap();
    assert!(late.to_host().unwrap() == source.content);
    assert_eq!(bench.subscriber.statistics().poisoned, 0);

    // Calls whose work would become part of the graph are refused.
    let outstanding = || bench.publisher.statistics().used_bytes;
    let before = outstanding();
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
    assert!(outstanding() > before, "a kernel of before may still fill what was not published");
    let handle_of_last = bench.publisher.push_on(&Bytes::new(KIB), &source.part, &bench.stream).unwrap();
    let refused = [
        bench.subscriber.take_on(&theirs).unwrap_err().to_string(),
        bench.subscriber.take_by_handle_on(&handle_of_last, LONG, &theirs).unwrap_err().to_string(),
    ];
    assert!(refused.iter().all(|refused| refused.contains("a stream is being captured")), "{refused:?}");
    let last = bench.subscriber.wait(LONG).unwrap().unwrap();
    assert!(last.to_host().unwrap() == source.content);
    drop(last);
    assert_eq!(
        bench.subscriber.statistics().held,
        2,
        "work from before the capture may still read what could not be released"
    );
    assert!(bench.gpu.end_capture(handle), "the graph is as it should be");
    until(|| bench.subscriber.statistics().held == 0);
    until(|| outstanding() == 0);
}

/// A message with two holders, taken on a stream.
fn of_two_holders(bench: &Bench, source: &Source, taken_on: &Stream) -> (DynamicSubscriber, [DynamicSample; 2]) {
    let subscriber = DynamicSubscriber::new(&bench.node, TOPIC, Kind::Bytes, SubscriberQos::default()).unwrap();
    bench.push(source);
    let message = subscriber.take_on(taken_on).unwrap().unwrap();
    (subscriber, [message.clone(), message])
}

#[test]
fn a_message_of_several_holders_waits_for_the_stream_captured_when_one_released_it() {
    if !on_standin(&[]) {
        return;
    }
    let bench = Bench::new(8 * MIB);
    let (captured, handle) = lent_out(&bench);
    let source = bench.source(KIB);
    for both in [false, true] {
        let (subscriber, [one, other]) = of_two_holders(&bench, &source, &captured);
        bench.gpu.begin_capture(handle);
        one.release_on(&captured).unwrap();
        match both {
            true => assert!(other.release_on(&captured).unwrap_err().to_string().contains("is being captured")),
            false => other.release_on(&bench.stream).unwrap(),
        }
        assert_eq!(subscriber.statistics().held, 1, "what the captured stream was given before may still read it");
        assert!(bench.gpu.end_capture(handle));
        until(|| subscriber.statistics().held == 0);
    }
}

#[test]
fn a_message_whose_last_holder_names_no_stream_waits_for_that_of_its_take() {
    if !on_standin(&[]) {
        return;
    }
    let bench = Bench::new(8 * MIB);
    let (captured, handle) = lent_out(&bench);
    let page = Arc::new(Mapping::map(memfd::create("gate", 4096).unwrap(), 4096, Access::ReadWrite).unwrap());
    let gate = bench.node.device().stream_memory(&page).unwrap();
    let gate = StreamWord { memory: gate.as_ref(), offset: 0 };
    let reader = bench.node.stream().unwrap();
    let source = bench.source(KIB);
    let (subscriber, [one, other]) = of_two_holders(&bench, &source, &reader);
    // Stands for a kernel that reads the message.
    gate.write(0).unwrap();
    reader.wait_value(&gate, 1, LONG).unwrap();
    bench.gpu.begin_capture(handle);
    one.release_on(&captured).unwrap();
    drop(other);
    assert!(bench.gpu.end_capture(handle));
    bench.gpu.reset_calls();
    until(|| bench.gpu.calls("cuEventQuery") > 1);
    assert_eq!(subscriber.statistics().held, 1, "the kernel still reads it");
    gate.write(1).unwrap();
    until(|| subscriber.statistics().held == 0);
    // If all holders release the message on another stream, the stream that it was taken on does not matter.
    let (subscriber, both) = of_two_holders(&bench, &source, &reader);
    gate.write(0).unwrap();
    reader.wait_value(&gate, 1, LONG).unwrap();
    both.into_iter().for_each(|holder| holder.release_on(&bench.stream).unwrap());
    until(|| subscriber.statistics().held == 0);
    assert!(!gate.has_reached(1).unwrap());
    gate.write(1).unwrap();
}
