//! `bench fanout`: the cost of one more subscriber on the host, against a bare futex wake-up of as many processes.
//!
//! A block is loaned and published without touching its bytes; the time ends when the median subscriber process has the message. The promised bound
//! is on the slope between N = 1 and N = 8. The subscribers' mappings prove that nothing is copied: one inode, one offset, and a mode in which the
//! kernel allows no writes.

use std::collections::BTreeSet;

use rgaps::types::Bytes;
use rgaps::{Node, Publisher};
use rgaps_os::clock;

use crate::host::{self, Host, READ_SHARED, Subscribers};
use crate::measure::{Pairs, median};
use crate::notify::{Crowd, Mechanism};
use crate::results::Part;
use crate::{BenchError, Bound, Options, Row, page};

const BENCH: &str = "fanout";
const REFERENCE: &str = "bare futex broadcast";
/// Numbers of subscribers on the host; the slope is between the first and the last.
const COUNTS: [u8; 4] = [1, 2, 4, 8];
const SIZES: [(u64, &str); 2] = [(4 << 20, "4 MiB"), (1 << 30, "1 GiB")];

/// For each size: a line for each count, the slope, and the mappings.
pub(crate) fn run(options: &Options) -> Result<Part, BenchError> {
    let settings = [("listen", "tcp/127.0.0.1:0".to_owned())];
    let host = Host::start(BENCH, &settings)?;
    let node = host.node()?;
    let mut rows = Vec::new();
    for (bytes, name) in SIZES {
        if options.wants(name) {
            rows.extend(size(&host, &node, options.effort.rounds(400), bytes, name)?);
        }
    }
    Ok(rows.into())
}

fn size(host: &Host, node: &Node, rounds: usize, bytes: u64, name: &str) -> Result<Vec<Row>, BenchError> {
    let mut fans =
        COUNTS.iter().map(|count| Fan::new(host, node, *count, bytes, name)).collect::<Result<Vec<_>, _>>()?;
    let mut crowds = COUNTS.iter().map(|count| Crowd::new(Mechanism::Bare, *count)).collect::<Result<Vec<_>, _>>()?;
    let mut samples = COUNTS.map(|_| Samples::default());
    // All counts take turns, so that the figures of a slope are from the same time.
    for round in 0..rounds {
        for ((fan, crowd), (ours, theirs)) in fans.iter_mut().zip(&mut crowds).zip(&mut samples) {
            if round % 2 == 0 {
                ours.push(fan.round()?);
                theirs.push(crowd.round()?);
            } else {
                theirs.push(crowd.round()?);
                ours.push(fan.round()?);
            }
        }
    }
    let mut rows: Vec<Row> = COUNTS.iter().zip(&samples).map(|(count, samples)| level(name, *count, samples)).collect();
    rows.push(slope(name, &samples));
    for fan in &fans {
        rows.push(fan.mapped(name)?);
    }
    Ok(rows)
}

/// µs of ours and of the bare broadcast, by round.
type Samples = (Vec<f64>, Vec<f64>);

/// The line of a single count.
fn level(name: &str, count: u8, (ours, theirs): &Samples) -> Row {
    let pairs = Pairs::of(ours.clone(), theirs.clone());
    Row::of_pairs((BENCH, format!("{name} N={count}")), REFERENCE, "us to the median subscriber", &pairs, None)
}

/// The slope from the fewest to the most.
fn slope(name: &str, samples: &[Samples; COUNTS.len()]) -> Row {
    let [fewest, .., most] = samples;
    let more = f64::from(COUNTS[COUNTS.len() - 1] - COUNTS[0]);
    let ours = (median(most.0.clone()) - median(fewest.0.clone())) / more;
    let theirs = (median(most.1.clone()) - median(fewest.1.clone())) / more;
    let case = format!("{name}, each subscriber more");
    Row::of((BENCH, case), REFERENCE, "us", (ours, theirs), Some(Bound::AtMost(1.3)))
}

/// A topic with a publisher in this process and N subscriber processes.
struct Fan {
    publisher: Publisher<Bytes>,
    subscribers: Subscribers,
    count: u8,
    bytes: u64,
}

impl Fan {
    fn new(host: &Host, node: &Node, count: u8, bytes: u64, name: &str) -> Result<Self, BenchError> {
        let topic = format!("bench/fanout_{}_{count}", name.replace(' ', "_"));
        let publisher = host::publisher(BENCH, node, &topic, bytes)?;
        let subscribers = host.subscribers(&topic, count.into(), false)?;
        host::wait_for_subscribers(BENCH, &publisher, count.into())?;
        let fan = Self { publisher, subscribers, count, bytes };
        // Untimed: the first message carries its number, and makes every subscriber map the pool.
        fan.publish(|block| host::mark(block, 1))?;
        Ok(fan)
    }

    fn round(&mut self) -> Result<f64, BenchError> {
        page::pace();
        self.publish(|_| {})
    }

    /// µs from the publication of a block to the median subscriber.
    fn publish(&self, prepare: impl FnOnce(&mut [u8])) -> Result<f64, BenchError> {
        let failed = |error: rgaps::PublishError| BenchError::failed(BENCH, error);
        let mut loan = self.publisher.loan(Bytes::new(self.bytes)).map_err(failed)?;
        prepare(&mut loan);
        let start = clock::monotonic_ns();
        let receipt = loan.publish().map_err(failed)?;
        self.subscribers.latency(receipt.sequence, start)
    }

    /// How many places in memory the subscribers had the first message at: one, mapped read-only.
    fn mapped(&self, name: &str) -> Result<Row, BenchError> {
        let proofs = self.subscribers.proofs();
        if let Some([_, inode, _, mode]) = proofs.iter().find(|[.., mode]| *mode != READ_SHARED) {
            let mode = host::mode_text(*mode);
            return Err(BenchError::failed(BENCH, format!("a subscriber has inode {inode} mapped {mode}, not r--s")));
        }
        let places = proofs.iter().map(|[device, inode, offset, _]| (device, inode, offset)).collect::<BTreeSet<_>>();
        let places = places.len() as f64;
        let case = format!("{name} N={}: places in memory, each r--s", self.count);
        let bound = Some(Bound::AtMost(1.0));
        Ok(Row::of((BENCH, case), "one block, read in place", "places", (places, 1.0), bound))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slope_is_between_the_medians_of_the_fewest_and_the_most() {
        let flat = || (vec![0.0; 3], vec![0.0; 3]);
        let samples = [(vec![5.0, 1.0, 2.0], vec![1.0, 1.0, 9.0]), flat(), flat(), (vec![16.0; 3], vec![8.0; 3])];
        let row = slope("1 B", &samples);
        let found = row.medians.unwrap();
        assert_eq!((found.ours, found.theirs, found.ratio), (2.0, 1.0, 2.0));
        assert!(!row.holds());
    }
}
