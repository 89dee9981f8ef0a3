//! A manager's successor neither frees what streams still use nor gives readers other memory than the writer's.

use rgaps::Node;
use rgaps::types::Bytes;
use rustix::process::{Signal, kill_process};

use crate::bench::{Bench, LONG, MIB, TOPIC, on_standin, until};
use crate::the_manager;

fn publishers_and_subscribers(bench: &Bench) -> Option<(u32, u32)> {
    let topics = bench.node.topics().ok()?;
    topics
        .iter()
        .find(|topic| topic.key.name() == format!("/{TOPIC}"))
        .map(|topic| (topic.publishers, topic.subscribers))
}

#[test]
fn a_slab_that_its_publisher_never_got_is_mapped_anew_after_a_take_over() {
    if !on_standin(&[]) {
        return;
    }
    // Slabs of 16 MiB.
    let bench = Bench::new(64 * MIB);
    let manager = the_manager(&bench);
    let (small, large) = (bench.source(MIB), bench.source(20 * MIB));
    let other = Node::builder().runtime_dir(bench.dir.path()).build().unwrap();
    let reads = other.subscriber::<Bytes>(TOPIC).unwrap();
    bench.push(&small);
    bench.stream.synchronize(LONG).unwrap();
    // The manager has the second slab, and its publisher has not.
    bench.gpu.fail("cuMemImportFromShareableHandle", 1, 2);
    bench.publisher.push_on(&Bytes::new(20 * MIB), &large.part, &bench.stream).unwrap_err();
    // The reader maps the pool as the first manager has it.
    assert!(reads.take().unwrap().unwrap().to_host().unwrap() == small.content);
    kill_process(manager, Signal::KILL).unwrap();
    until(|| publishers_and_subscribers(&bench) == Some((1, 2)));
    bench.push(&large);
    bench.stream.synchronize(LONG).unwrap();
    assert!(reads.take().unwrap().unwrap().to_host().unwrap() == large.content, "it reads memory that nobody wrote");
}
