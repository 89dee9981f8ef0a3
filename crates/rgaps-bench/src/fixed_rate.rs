//! `bench fixed-rate`: at a fixed rate, the processor time of a subscriber, and how long messages take: percentiles and their distribution.
//!
//! The questions are those of RocketBufs (Hoang et al., 2020), Figures 6 and 7: what a subscriber costs at a rate that it could exceed, and how the
//! latencies of all messages are distributed. Our rates are lower, there is no broker, and a latency is one way.
//!
//! One publisher process publishes each message when it is due, and writes the time into it. A latency is from just before `publish`, or `write`,
//! until the subscriber has the message. If the publisher is late, its delay is not part of the latency. A bare socket on the same schedule is the
//! reference, in turns; several subscribers take turns with a single one.
//!
//! The processor time of the receiving host is that of its subscribers and, from host to host, of its manager: a socket's subscriber does itself what
//! the manager does once for all subscribers.

use crate::measure::{Pairs, median, percentile};
use crate::results::{Figure, Part, Shape, Table, of_figures};
use crate::traffic::{Hosts, PLACEMENTS, Placement, Plan, Traffic};
use crate::{BenchError, Effort, Options, Row};

const BENCH: &str = "fixed-rate";
const SOCKET: &str = "bare socket";
const SIZES: [(u64, &str); 2] = [(34, "34 B"), (8 << 10, "8 KiB")];
/// Messages a second.
const RATES: [u64; 2] = [1000, 10_000];
/// Subscribers that take turns with one.
const SEVERAL: u64 = 4;
const ROUNDS: usize = 10;
/// Rounds in a second.
const ROUNDS_A_SECOND: u64 = 2;
const ROUNDS_A_SECOND_QUICK: u64 = 5;
/// Percentiles of the table, and of the plot.
const PERCENTILES: [(&str, f64); 5] = [("p50", 50.0), ("p90", 90.0), ("p99", 99.0), ("p99.9", 99.9), ("max", 100.0)];
const DISTRIBUTION: [f64; 9] = [1.0, 10.0, 25.0, 50.0, 75.0, 90.0, 99.0, 99.9, 100.0];

/// Each size and rate, on one host and from host to host.
pub(crate) fn run(options: &Options) -> Result<Part, BenchError> {
    let mut part = Part::default();
    for placement in PLACEMENTS {
        let hosts = Hosts::new(BENCH, placement)?;
        let mut lines = Vec::new();
        for (bytes, size) in SIZES {
            for rate in RATES {
                let load = Load { placement, bytes, size, rate };
                if !options.wants(&format!("{load}, ")) {
                    continue;
                }
                let runs = load.measure(options, &hosts, &mut part.rows)?;
                lines.extend(runs.iter().map(|run| run.line(&load)));
                part.figures.push(load.distribution(&runs));
            }
        }
        part.tables.push(table(placement, lines));
    }
    Ok(part)
}

/// The messages of a case, and where they go.
struct Load {
    placement: Placement,
    bytes: u64,
    size: &'static str,
    /// Messages a second.
    rate: u64,
}

/// All rounds of one kind of traffic.
struct Run {
    name: String,
    rounds: Vec<Round>,
}

/// What a round found.
struct Round {
    /// us of processor time for each message, of each subscriber.
    cpu_us: f64,
    /// The same of all subscribers and the receiving manager.
    host_us: f64,
    /// us of each message.
    latencies: Vec<f64>,
}

impl Load {
    fn measure(&self, options: &Options, hosts: &Hosts, rows: &mut Vec<Row>) -> Result<[Run; 3], BenchError> {
        let a_second = if options.effort == Effort::Quick { ROUNDS_A_SECOND_QUICK } else { ROUNDS_A_SECOND };
        let plan = Plan {
            publishers: 1,
            subscribers: 1,
            slow: None,
            bytes: self.bytes,
            messages: self.rate / a_second,
            pause_ns: 1_000_000_000 / self.rate,
        };
        let topic = |count: u64| format!("bench/fixed_rate_{}_{}_{count}", self.bytes, self.rate);
        let mut traffics = [
            Traffic::ours(BENCH, hosts, &topic(1), plan)?,
            Traffic::ours(BENCH, hosts, &topic(SEVERAL), Plan { subscribers: SEVERAL, ..plan })?,
            Traffic::socket(BENCH, self.placement, plan)?,
        ];
        let names = ["RGAPS".to_owned(), format!("RGAPS, {SEVERAL} subscribers"), SOCKET.to_owned()];
        let mut runs = names.map(|name| Run { name, rounds: Vec::new() });
        for traffic in &mut traffics {
            traffic.round()?;
        }
        for round in 0..options.effort.rounds(ROUNDS) {
            // Each is the first as often as the others.
            for turn in 0..traffics.len() {
                let at = (round + turn) % traffics.len();
                runs[at].rounds.push(one_round(&mut traffics[at], plan.messages)?);
            }
        }
        let [one, several, socket] = &runs;
        let mut push = |what: &str, unit, ours: &Run, theirs: &Run, reference: &str, of: &dyn Fn(&Round) -> f64| {
            let all = |run: &Run| run.rounds.iter().map(of).collect();
            let pairs = Pairs::of(all(ours), all(theirs));
            rows.push(Row::of_pairs((BENCH, format!("{self}, {what}")), reference, unit, &pairs, None));
        };
        let cpu = |round: &Round| round.cpu_us;
        push("CPU of the subscriber", "us a message", one, socket, SOCKET, &cpu);
        if self.placement == Placement::TwoHosts {
            push("CPU of the receiving host", "us a message", one, socket, SOCKET, &|round| round.host_us);
        }
        push("the median message", "us", one, socket, SOCKET, &|round| median(round.latencies.clone()));
        push("the 99th percentile", "us", one, socket, SOCKET, &|round| percentile(&mut round.latencies.clone(), 99.0));
        push(&format!("CPU of each of {SEVERAL} subscribers"), "us a message", several, one, "1 subscriber", &cpu);
        Ok(runs)
    }

    /// How the latencies of all rounds are distributed.
    fn distribution(&self, runs: &[Run]) -> Figure {
        let title = format!("Distribution of latency, {self}");
        let mut figure = Figure::new(title, "% of messages that took at most", "us", Shape::Points);
        for run in runs {
            let mut all = run.latencies();
            for percent in DISTRIBUTION {
                figure.set(&percent.to_string(), &run.name, percentile(&mut all, percent));
            }
        }
        figure
    }
}

impl std::fmt::Display for Load {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} at {}/s {}", self.size, self.rate, self.placement)
    }
}

fn one_round(traffic: &mut Traffic, messages: u64) -> Result<Round, BenchError> {
    let before = traffic.cpu_seconds()?;
    traffic.round()?;
    let after = traffic.cpu_seconds()?;
    let [cpu_us, host_us] = [after.0 - before.0, after.1 - before.1].map(|used| used * 1e6 / messages as f64);
    Ok(Round { cpu_us, host_us, latencies: traffic.latencies()? })
}

impl Run {
    fn latencies(&self) -> Vec<f64> {
        self.rounds.iter().flat_map(|round| &round.latencies).copied().collect()
    }

    /// Its percentiles, and the parts of a core that a subscriber and the receiving host use.
    fn line(&self, load: &Load) -> (String, Vec<f64>) {
        let mut all = self.latencies();
        let of_core = |of: fn(&Round) -> f64| median(self.rounds.iter().map(of).collect()) * load.rate as f64 / 1e4;
        let percentiles = PERCENTILES.map(|(_, percent)| percentile(&mut all, percent));
        let line =
            percentiles.into_iter().chain([of_core(|round| round.cpu_us), of_core(|round| round.host_us)]).collect();
        (format!("{} at {}/s, {}", load.size, load.rate, self.name), line)
    }
}

fn table(placement: Placement, lines: Vec<(String, Vec<f64>)>) -> Table {
    let percentiles = PERCENTILES.map(|(name, _)| format!("{name}, us"));
    Table {
        number: None,
        title: format!("Latency and processor time at a fixed rate, {placement}"),
        columns: ["load".to_owned()]
            .into_iter()
            .chain(percentiles)
            .chain(["CPU of a subscriber, % of a core", "of the receiving host"].map(str::to_owned))
            .collect(),
        lines: of_figures(lines),
        unit: "each column".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOAD: Load = Load { placement: Placement::SameHost, bytes: 34, size: "34 B", rate: 10_000 };

    fn run() -> Run {
        let round = |cpu_us, latencies: &[f64]| Round { cpu_us, host_us: cpu_us + 1.0, latencies: latencies.to_vec() };
        Run { name: "RGAPS".to_owned(), rounds: vec![round(1.0, &[1.0, 2.0, 3.0]), round(3.0, &[4.0, 500.0])] }
    }

    #[test]
    fn percentiles_are_of_all_messages_and_a_part_of_a_core_is_of_the_rate() {
        let (name, line) = run().line(&LOAD);
        assert_eq!(name, "34 B at 10000/s, RGAPS");
        // 2 us for each of 10,000 messages are 2 % of a second.
        assert_eq!((line[0], line[4], line[5], line[6]), (3.0, 500.0, 2.0, 3.0));
        assert_eq!(table(Placement::SameHost, vec![(name, line)]).columns.len(), 1 + PERCENTILES.len() + 2);
    }

    #[test]
    fn a_distribution_has_a_point_for_each_percentile_and_never_falls() {
        let figure = LOAD.distribution(&[run()]);
        let (name, points) = &figure.series[0];
        assert_eq!((&**name, points.len()), ("RGAPS", DISTRIBUTION.len()));
        assert!(points.is_sorted() && points.last() == Some(&Some(500.0)), "{points:?}");
    }
}
