//! `bench growth`: how latency, a manager's memory and its wake-ups grow with topics, subscribers and hosts.
//!
//! Each quantity is measured at several counts, and the exponent of a power law is fitted: 0 is no growth, 1 is growth with the count. A row compares
//! the fitted growth over the whole range with that of the bound: with the count for latency and memory, and none for the wake-ups of managers whose
//! topics are idle. Latency is until the median subscriber process has a message of 1 KiB.

use std::time::{Duration, Instant};

use rgaps::types::Bytes;
use rgaps::{Node, Publisher, PublisherQos, Subscriber};
use rgaps_os::clock;
use rgaps_testing::Hosts;

use crate::cpu;
use crate::host::{self, Host, Subscribers, free_ports, loopback};
use crate::measure::median;
use crate::page;
use crate::results::{Part, Table, of_figures};
use crate::{BenchError, Bound, Effort, Options, Row};

const BENCH: &str = "growth";
const TOPIC: &str = "bench/growth";
/// Bytes of a message.
const BYTES: u64 = 1 << 10;
/// Memory of an idle topic's publisher.
const IDLE_POOL_BYTES: u64 = 64 << 10;
const ROUNDS: usize = 200;
/// How long wake-ups are counted.
const IDLE: Duration = Duration::from_secs(5);
/// How long managers may take to settle: links are made, and memory that was needed for that is given back.
const SETTLE: Duration = Duration::from_secs(5);
/// Of wake-ups that do not grow, as counted in two intervals.
const SAME: f64 = 1.2;

/// What was measured at one count.
#[derive(Clone, Copy, Debug)]
struct Point {
    count: u64,
    latency_us: f64,
    /// Resident memory of a manager, on average.
    memory_mib: f64,
    /// Wake-ups a second of a manager while nothing is published, on average.
    wakeups: f64,
}

/// One of them.
type Of = fn(&Point) -> f64;

/// Topics, subscribers and hosts.
pub(crate) fn run(options: &Options) -> Result<Part, BenchError> {
    let _ = rgaps_os::fds::raise_limit();
    let mut part = Part::default();
    let few =
        |counts: &'static [u64]| if options.effort == Effort::Quick { &counts[..counts.len() - 1] } else { counts };
    if options.wants("topics: ") {
        part.extend(growth("topics", few(&[1, 10, 100, 1000]), |count| topics(options.effort, count))?);
    }
    if options.wants("subscribers: ") {
        part.extend(growth("subscribers", few(&[1, 2, 4, 8, 16, 32, 64]), |count| subscribers(options.effort, count))?);
    }
    if options.wants("hosts: ") {
        match Hosts::new(1) {
            Ok(_) => part.extend(growth("hosts", few(&[1, 2, 4, 8, 16]), |count| hosts(options.effort, count))?),
            Err(why) => part.left_out.push(format!("growth with hosts: {why}")),
        }
    }
    Ok(part)
}

/// Measures each count and fits the exponents.
fn growth(what: &str, counts: &[u64], measure: impl Fn(u64) -> Result<Point, BenchError>) -> Result<Part, BenchError> {
    let points = counts.iter().map(|count| measure(*count)).collect::<Result<Vec<_>, _>>()?;
    let (first, last) = (counts[0], counts[counts.len() - 1]);
    let range = last as f64 / first as f64;
    let mut lines: Vec<(String, Vec<f64>)> = points
        .iter()
        .map(|point| (point.count.to_string(), vec![point.latency_us, point.memory_mib, point.wakeups]))
        .collect();
    let mut exponents = Vec::new();
    let mut rows = Vec::new();
    let quantities: [(&str, Of); 3] = [
        ("latency", |point| point.latency_us),
        ("memory of a manager", |point| point.memory_mib),
        ("wake-ups of an idle manager", |point| point.wakeups),
    ];
    for (name, of) in quantities {
        let exponent = exponent(&points.iter().map(|point| (point.count as f64, of(point))).collect::<Vec<_>>());
        exponents.push(exponent);
        let case = format!("{what}: {name}, {first} to {last}");
        let (reference, most, bound) = match (what, name) {
            ("topics", "wake-ups of an idle manager") => ("no growth", 1.0, SAME),
            _ => ("growth with the count", range, 1.0),
        };
        let figures = (range.powf(exponent), most);
        rows.push(Row::of((BENCH, case), reference, "times", figures, Some(Bound::AtMost(bound))));
    }
    lines.push(("exponent".to_owned(), exponents));
    let columns = [what, "latency, us", "manager, MiB", "wake-ups/s, idle"].map(str::to_owned).to_vec();
    let title = format!("Growth with {what}");
    let lines = of_figures(lines);
    let table = Table { number: None, title, columns, lines, unit: "each column".into() };
    Ok(Part { rows, tables: vec![table], ..Part::default() })
}

/// The exponent of the power law that fits best: the slope of the least-squares line through the logarithms.
fn exponent(points: &[(f64, f64)]) -> f64 {
    // A quantity below the resolution of its count is no infinite improvement.
    let logs: Vec<(f64, f64)> = points.iter().map(|(x, y)| (x.ln(), y.max(0.1).ln())).collect();
    let count = logs.len() as f64;
    let mean = |of: fn(&(f64, f64)) -> f64| logs.iter().map(of).sum::<f64>() / count;
    let (mean_x, mean_y) = (mean(|point| point.0), mean(|point| point.1));
    let covariance: f64 = logs.iter().map(|(x, y)| (x - mean_x) * (y - mean_y)).sum();
    let variance: f64 = logs.iter().map(|(x, _)| (x - mean_x).powi(2)).sum();
    covariance / variance
}

/// Two hosts with so many topics between them, all but one idle.
fn topics(effort: Effort, count: u64) -> Result<Point, BenchError> {
    let ports = free_ports::<2>(BENCH)?;
    let start = |side| Host::start(BENCH, &loopback(side, ports));
    let hosts = [start(0)?, start(1)?];
    let nodes = [hosts[0].node()?, hosts[1].node()?];
    let idle = (1..count).map(|number| Idle::new(&nodes, number)).collect::<Result<Vec<_>, _>>()?;
    let flow = Flow::new(&nodes[0], vec![hosts[1].subscribers(TOPIC, 1, false)?], 1)?;
    for idle in &idle {
        host::wait_for_subscribers(BENCH, &idle.publisher, 1)?;
    }
    flow.measure(effort, count, &hosts)
}

/// A topic that nothing is published to.
struct Idle {
    publisher: Publisher<Bytes>,
    _subscriber: Subscriber<Bytes>,
}

impl Idle {
    fn new(nodes: &[Node; 2], number: u64) -> Result<Self, BenchError> {
        let failed = |error: &dyn std::fmt::Display| BenchError::failed(BENCH, error);
        let name = format!("bench/idle_{number}");
        let qos = PublisherQos { pool_bytes: Some(IDLE_POOL_BYTES), ..PublisherQos::default() };
        let publisher = nodes[0].publisher_with(&name, qos).map_err(|error| failed(&error))?;
        let subscriber = nodes[1].subscriber(&name).map_err(|error| failed(&error))?;
        Ok(Self { publisher, _subscriber: subscriber })
    }
}

/// One host with so many subscriber processes.
fn subscribers(effort: Effort, count: u64) -> Result<Point, BenchError> {
    let hosts = [Host::start(BENCH, &[("network", "local".to_owned())])?];
    let node = hosts[0].node()?;
    let flow = Flow::new(&node, vec![hosts[0].subscribers(TOPIC, count, false)?], count)?;
    flow.measure(effort, count, &hosts)
}

/// A publishing host, and so many others with a subscriber each, in network namespaces on a switch.
fn hosts(effort: Effort, count: u64) -> Result<Point, BenchError> {
    let network = Hosts::new(count as usize + 1).map_err(|error| BenchError::failed(BENCH, error))?;
    let port = free_ports::<1>(BENCH)?[0];
    let first = network.all()[0].address();
    let start = |index: usize| {
        let address = network.all()[index].address();
        let settings = [
            ("host_name", format!("bench-{index}")),
            ("listen", format!("tcp/{address}:{port}")),
            ("peers", if index == 0 { String::new() } else { format!("tcp/{first}:{port}") }),
            ("data_address", address.to_string()),
            ("transport", "tcp".to_owned()),
        ];
        Host::start_by(BENCH, |program| network.all()[index].command(program), &settings)
    };
    let hosts = (0..=count as usize).map(start).collect::<Result<Vec<_>, _>>()?;
    let crowds = hosts[1..].iter().map(|host| host.subscribers(TOPIC, 1, false)).collect::<Result<Vec<_>, _>>()?;
    let node = hosts[0].node()?;
    let flow = Flow::new(&node, crowds, count)?;
    flow.measure(effort, count, &hosts)
}

/// A publisher and its subscriber processes.
struct Flow {
    publisher: Publisher<Bytes>,
    crowds: Vec<Subscribers>,
}

impl Flow {
    /// Waits until the publisher sees `seen` subscribers and each has its first message.
    fn new(node: &Node, crowds: Vec<Subscribers>, seen: u64) -> Result<Self, BenchError> {
        let publisher = host::publisher(BENCH, node, TOPIC, BYTES)?;
        host::wait_for_subscribers(BENCH, &publisher, seen as usize)?;
        let flow = Self { publisher, crowds };
        flow.round()?;
        Ok(flow)
    }

    /// µs from the publication of a message to the median subscriber; if they are on several hosts, on the median host.
    fn round(&self) -> Result<f64, BenchError> {
        let failed = |error: rgaps::PublishError| BenchError::failed(BENCH, error);
        page::pace();
        let mut loan = self.publisher.loan(Bytes::new(BYTES)).map_err(failed)?;
        host::mark(&mut loan, self.publisher.statistics().published + 1);
        let start = clock::monotonic_ns();
        let sequence = loan.publish().map_err(failed)?.sequence;
        let crowds = self.crowds.iter().map(|crowd| crowd.latency(sequence, start));
        Ok(median(crowds.collect::<Result<Vec<_>, _>>()?))
    }

    fn measure(&self, effort: Effort, count: u64, hosts: &[Host]) -> Result<Point, BenchError> {
        let rounds = (0..effort.rounds(ROUNDS)).map(|_| self.round()).collect::<Result<Vec<_>, _>>()?;
        std::thread::sleep(SETTLE);
        let all = |of: fn(u32) -> std::io::Result<u64>| {
            let sum: std::io::Result<u64> = hosts.iter().map(|host| of(host.id())).sum();
            sum.map_err(BenchError::system(BENCH, "a manager's counters"))
        };
        let (start, before) = (Instant::now(), all(cpu::wakeups)?);
        std::thread::sleep(IDLE);
        let average = |sum: u64| sum as f64 / hosts.len() as f64;
        let wakeups = average(all(cpu::wakeups)? - before) / start.elapsed().as_secs_f64();
        let memory_mib = average(all(cpu::resident_bytes)?) / f64::from(1 << 20);
        Ok(Point { count, latency_us: median(rounds), memory_mib, wakeups })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exponents_are_those_of_the_power_law() {
        let law = |exponent: f64| [1.0, 10.0, 100.0].map(|x: f64| (x, 30.0 * x.powf(exponent)));
        for expected in [0.0, 0.5, 1.0, 2.0, -1.0] {
            assert!((exponent(&law(expected)) - expected).abs() < 1e-9);
        }
    }

    #[test]
    fn growth_beyond_the_count_misses_its_bound() {
        let point = |count: u64, power: i32| {
            let value = (count as f64).powi(power);
            Ok(Point { count, latency_us: value, memory_mib: value, wakeups: value })
        };
        let holds = |power| {
            let part = growth("hosts", &[1, 2, 4], |count| point(count, power)).unwrap();
            part.rows.iter().map(Row::holds).collect::<Vec<_>>()
        };
        assert_eq!((holds(1), holds(2)), (vec![true; 3], vec![false; 3]));
        let of_topics = growth("topics", &[1, 2, 4], |count| point(count, 1)).unwrap();
        assert_eq!(of_topics.rows.iter().map(Row::holds).collect::<Vec<_>>(), [true, true, false]);
    }
}
