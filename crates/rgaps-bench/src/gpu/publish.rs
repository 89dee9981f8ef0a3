//! `bench publish`: the publisher's CPU time for an asynchronous publication, which must not depend on the size.
//!
//! The time is the calling thread's CPU time (CLOCK_THREAD_CPUTIME_ID) for one call: `push_on` of other device memory, with its copy on the device,
//! and `publish_on` of a loaned block. Sizes take turns. A subscriber process gets every message and checks it.

use rgaps::Publisher;
use rgaps::device::{PoolPart, Stream};
use rgaps::types::Bytes;

use super::content::Content;
use super::copies::Block;
use super::crew::Crew;
use super::{Setup, WARM_UP, publisher, row, size};
use crate::results::Part;
use crate::{BenchError, Bound, Row, cpu, host};

const BENCH: &str = "publish";
const TOPIC: &str = "bench/publish";
/// Bound of the CPU time of a call, in µs.
const LIMIT: f64 = 20.0;
/// Bound of the ratio of the largest size to the smallest: equal, up to measurement noise.
const SAME: f64 = 1.2;

/// The call that is measured.
#[derive(Clone, Copy, Debug)]
enum Call {
    PushOn,
    PublishOn,
}

/// Each call and size against the bound, and the largest size against the smallest.
pub(super) fn run(setup: &Setup) -> Result<Part, BenchError> {
    let host = setup.host(BENCH, &[("listen", "tcp/127.0.0.1:0".to_owned())])?;
    let node = host.node()?;
    let mut subscriber = Crew::new(BENCH, setup.largest())?;
    subscriber.add_takers(&host, &["subscriber"], TOPIC, 1)?;
    let publisher = publisher(BENCH, &node, TOPIC, setup.largest())?;
    host::wait_for_subscribers(BENCH, &publisher, 1)?;
    let (block, stream) =
        (Block::new(setup.backend.as_ref(), setup.largest()).map_err(failed)?, node.stream().map_err(failed)?);
    let caller = Caller { setup, publisher, block, stream, subscriber: subscriber.ready()? };
    let sizes = [setup.sizes.first(), setup.sizes.last()].map(|bytes| bytes.copied().unwrap_or(0));
    let mut part = Part::default();
    for call in [Call::PushOn, Call::PublishOn] {
        let mut took = [Vec::new(), Vec::new()];
        for round in 0..setup.rounds(0) + WARM_UP {
            for (bytes, took) in sizes.into_iter().zip(&mut took) {
                let us = caller.round(call, bytes)?;
                if round >= WARM_UP {
                    took.push(us);
                }
            }
        }
        part.rows.extend(rows(call, sizes, took));
    }
    Ok(part)
}

fn rows(call: Call, sizes: [u64; 2], [small, large]: [Vec<f64>; 2]) -> Vec<Row> {
    let name = match call {
        Call::PushOn => "push_on",
        Call::PublishOn => "publish_on",
    };
    let unit = "us of the CPU";
    let alone = |bytes: u64, took: &Vec<f64>| {
        let limit = vec![LIMIT; took.len()];
        let bound = Some(Bound::AtMost(1.0));
        row(BENCH, format!("{name} {}", size(bytes)), "the limit", unit, (took.clone(), limit), bound)
    };
    let mut rows = vec![alone(sizes[0], &small)];
    if sizes[0] == sizes[1] {
        return rows;
    }
    rows.push(alone(sizes[1], &large));
    let (case, reference) = (format!("{name} {}", size(sizes[1])), size(sizes[0]));
    rows.push(row(BENCH, case, &reference, unit, (large, small), Some(Bound::AtMost(SAME))));
    rows
}

struct Caller<'a> {
    setup: &'a Setup,
    publisher: Publisher<Bytes>,
    block: Block,
    stream: Stream,
    subscriber: Crew,
}

impl Caller<'_> {
    /// CPU time of one call in µs.
    fn round(&self, call: Call, bytes: u64) -> Result<f64, BenchError> {
        let content = Content { sequence: self.publisher.statistics().published + 1, bytes };
        let meta = Bytes::new(bytes);
        let fill = |part: PoolPart<'_>| {
            content.write_on_device(self.setup.backend.as_ref(), &self.stream, part).map_err(failed)
        };
        let (took, receipt) = match call {
            Call::PushOn => {
                fill(self.block.part())?;
                let from = self.block.device_part(bytes).map_err(failed)?;
                on_the_cpu(|| self.publisher.push_on(&meta, &from, &self.stream))
            }
            Call::PublishOn => {
                let mut loan = self.publisher.loan(meta).map_err(failed)?;
                fill(loan.part().map_err(failed)?)?;
                on_the_cpu(|| loan.publish_on(&self.stream))
            }
        };
        self.subscriber.page().latency(1, receipt.map_err(failed)?.sequence, 0)?;
        Ok(took)
    }
}

/// CPU time of this thread in µs.
fn on_the_cpu<T>(work: impl FnOnce() -> T) -> (f64, T) {
    let start = cpu::of_this_thread();
    let outcome = work();
    ((cpu::of_this_thread() - start) * 1e6, outcome)
}

fn failed(cause: impl std::fmt::Display) -> BenchError {
    BenchError::failed(BENCH, cause)
}
