//! `bench rates`: messages a second from many publishers to one subscriber and from one publisher to many, and what a slow subscriber does to others.
//!
//! The questions are those of Spindle (Jha et al., 2022): how many messages of 1 B to 10 KB are delivered a second (Figure 4), and how many a
//! receiver finds at once (Figure 7). Publishers publish a round's messages as fast as they can, each with its wake-up. Each time a subscriber wakes,
//! it takes a batch: the message that `wait` returns, and all that `take_all` then finds. One publisher with one subscriber is measured in turns with
//! a bare socket; several publishers or subscribers are measured in turns with one. Publishers and subscribers are processes.
//!
//! A slow subscriber spends a millisecond on each message. If it keeps the last ten, it loses messages, and the others should get theirs as fast as
//! without it. If it keeps all, publishers wait for it, so the others get messages at its pace.

use crate::measure::Pairs;
use crate::results::{Cell, Figure, Part, Shape, Table};
use crate::traffic::{BUCKETS, Hosts, PLACEMENTS, Placement, Plan, Slow, Traffic, name_of_bucket};
use crate::{BenchError, Options, Row};

const BENCH: &str = "rates";
const UNIT: &str = "messages/s";
const SOCKET: &str = "bare socket";
/// Bytes, name, and messages of a round.
const SIZES: [(u64, &str, u64); 4] =
    [(1, "1 B", 8000), (100, "100 B", 8000), (1000, "1 KB", 8000), (10_000, "10 KB", 2000)];
/// Numbers of publishers, or of subscribers, beside one.
const COUNTS: [u64; 3] = [2, 4, 8];
const ROUNDS: usize = 10;
const WARM_UP: usize = 2;
/// The size whose batches are drawn.
const DRAWN: &str = "100 B";
/// Fast subscribers beside a slow one, which spends so long on a message.
const FAST: u64 = 3;
const SLOW_US: u64 = 1000;
const KEEP_LAST: u32 = 10;
/// Messages of a round at the pace of a slow subscriber: more than may be under way.
const SLOW_MESSAGES: u64 = 512;
const SLOW_ROUNDS: usize = 10;

/// Each size on one host and from host to host, then the slow subscribers.
pub(crate) fn run(options: &Options) -> Result<Part, BenchError> {
    let (mut part, mut batches) = (Part::default(), Vec::new());
    for placement in PLACEMENTS {
        let hosts = Hosts::new(BENCH, placement)?;
        let mut all = Rates { options, placement, hosts: &hosts, part: Part::default(), batches: Vec::new() };
        let title = |who: &str| format!("Messages a second, {who}, {placement}");
        let mut publishers = Figure::new(title("many publishers to one subscriber"), "publishers", UNIT, Shape::Points);
        let mut subscribers =
            Figure::new(title("one publisher to many subscribers"), "subscribers", UNIT, Shape::Points);
        for size in SIZES {
            all.size(size, [&mut publishers, &mut subscribers])?;
        }
        all.slow()?;
        part.extend(all.part);
        part.figures.extend([publishers, subscribers, drawn(placement, &all.batches)]);
        batches.extend(all.batches);
    }
    part.tables.push(table(&batches));
    Ok(part)
}

/// How many messages each batch had.
struct Batches {
    case: String,
    buckets: [u64; BUCKETS],
    messages: u64,
}

impl Batches {
    fn of(case: &str, traffic: &Traffic) -> Result<Self, BenchError> {
        let (buckets, messages) = traffic.batches()?;
        Ok(Self { case: case.to_owned(), buckets, messages })
    }

    fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    fn percents(&self) -> impl Iterator<Item = f64> {
        let all = self.count().max(1) as f64;
        self.buckets.iter().map(move |count| *count as f64 / all * 100.0)
    }
}

/// A plan with so many publishers, or subscribers.
type With = fn(Plan, u64) -> Plan;

/// What is measured in one placement.
struct Rates<'a> {
    options: &'a Options,
    placement: Placement,
    hosts: &'a Hosts,
    part: Part,
    batches: Vec<Batches>,
}

impl Rates<'_> {
    /// One to one beside a socket, then several publishers beside one publisher, and several subscribers beside one subscriber.
    fn size(&mut self, (bytes, name, messages): (u64, &str, u64), figures: [&mut Figure; 2]) -> Result<(), BenchError> {
        let start = format!("{name} {}, ", self.placement);
        if !self.options.wants(&start) {
            return Ok(());
        }
        let plan = Plan { publishers: 1, subscribers: 1, slow: None, bytes, messages, pause_ns: 0 };
        let mut one = self.traffic(name, plan)?;
        let case = format!("{start}1 to 1");
        if self.options.wants(&case) {
            let mut socket = Traffic::socket(BENCH, self.placement, plan)?;
            let found = self.beside(&mut one, &mut socket)?;
            self.push(case.clone(), SOCKET, &found);
            self.batches.push(Batches::of(&case, &one)?);
            self.batches.push(Batches::of(&format!("{case}, {SOCKET}"), &socket)?);
        }
        let kinds: [(&str, &str, With); 2] = [
            ("publishers", "1 publisher", |plan, count| Plan { publishers: count, ..plan }),
            ("subscribers", "1 subscriber", |plan, count| Plan { subscribers: count, ..plan }),
        ];
        for ((what, reference, plan_of), figure) in kinds.into_iter().zip(figures) {
            for count in COUNTS {
                let case = format!("{start}{count} {what}");
                if !self.options.wants(&case) {
                    continue;
                }
                let mut many = self.traffic(&format!("{name} {count} {what}"), plan_of(plan, count))?;
                let found = self.beside(&mut many, &mut one)?;
                let medians = found.medians();
                figure.set("1", name, medians.theirs);
                figure.set(&count.to_string(), name, medians.ours);
                self.push(case.clone(), reference, &found);
                self.batches.push(Batches::of(&case, &many)?);
            }
        }
        Ok(())
    }

    /// Fast subscribers beside a slow one.
    fn slow(&mut self) -> Result<(), BenchError> {
        let plan = Plan { publishers: 1, subscribers: FAST, slow: None, bytes: 1000, messages: 8000, pause_ns: 0 };
        let with = |keep_last| Plan { slow: Some(Slow { us: SLOW_US, keep_last }), ..plan };
        let case = format!("1 KB {}, {FAST} subscribers with a slow one (keep-last {KEEP_LAST})", self.placement);
        if self.options.wants(&case) {
            let mut alone = self.traffic("fast", plan)?;
            let mut beside_slow = self.traffic("fast and slow", with(Some(KEEP_LAST)))?;
            let found = self.beside(&mut beside_slow, &mut alone)?;
            self.push(case.clone(), "without the slow one", &found);
            let (taken, lost) = beside_slow.of_slow()?;
            let title = format!("{case}: messages of the slow one");
            let lines = vec![("messages".to_owned(), vec![Cell::from(taken as f64), Cell::from(lost as f64)])];
            let columns = ["", "taken", "lost"].map(str::to_owned).to_vec();
            self.part.tables.push(Table { number: None, title, columns, lines, unit: "".into() });
        }
        let case = format!("1 KB {}, {FAST} subscribers with a slow one (keep-all)", self.placement);
        // Not measured between hosts: the receiving host's pool buffers thousands of messages before the publisher blocks.
        if self.placement == Placement::SameHost && self.options.wants(&case) {
            let mut traffic = self.traffic("fast and keep all", Plan { messages: SLOW_MESSAGES, ..with(None) })?;
            for _ in 0..WARM_UP {
                traffic.rate()?;
            }
            let (mut others, mut slows) = (Vec::new(), Vec::new());
            for _ in 0..self.options.effort.rounds(SLOW_ROUNDS) {
                let (before, _) = traffic.of_slow()?;
                let took = traffic.round()?;
                let (after, _) = traffic.of_slow()?;
                others.push(SLOW_MESSAGES as f64 / took);
                slows.push((after - before) as f64 / took);
            }
            self.push(case, "the slow one", &Pairs::of(others, slows));
        }
        Ok(())
    }

    fn traffic(&self, name: &str, plan: Plan) -> Result<Traffic, BenchError> {
        Traffic::ours(BENCH, self.hosts, &format!("bench/rates_{}", name.replace(' ', "_")), plan)
    }

    fn beside(&self, ours: &mut Traffic, theirs: &mut Traffic) -> Result<Pairs, BenchError> {
        for _ in 0..WARM_UP {
            ours.rate()?;
            theirs.rate()?;
        }
        Pairs::run(self.options.effort.rounds(ROUNDS), || ours.rate(), || theirs.rate())
    }

    fn push(&mut self, case: String, reference: &str, pairs: &Pairs) {
        self.part.rows.push(Row::of_pairs((BENCH, case), reference, UNIT, pairs, None));
    }
}

/// The histograms of all cases.
fn table(all: &[Batches]) -> Table {
    let line = |batches: &Batches| {
        let mean = batches.messages as f64 / batches.count().max(1) as f64;
        (batches.case.clone(), [mean].into_iter().chain(batches.percents()).map(Cell::from).collect())
    };
    let sizes = (0..BUCKETS).map(name_of_bucket);
    Table {
        number: None,
        title: "Messages of a batch (`wait` and `take_all`, or one `read`): their mean, and in % of batches".to_owned(),
        columns: ["case", "mean"].map(str::to_owned).into_iter().chain(sizes).collect(),
        lines: all.iter().map(line).collect(),
        unit: "".into(),
    }
}

/// The histograms of one size.
fn drawn(placement: Placement, all: &[Batches]) -> Figure {
    let title = format!("Messages of a batch, {DRAWN} {placement}");
    let mut figure = Figure::new(title, "messages of a batch", "% of batches", Shape::Bars);
    let start = format!("{DRAWN} {placement}, ");
    for batches in all {
        let Some(name) = batches.case.strip_prefix(&start).filter(|name| !name.starts_with(['2', '4'])) else {
            continue;
        };
        for (bucket, percent) in batches.percents().enumerate() {
            figure.set(&name_of_bucket(bucket), name, percent);
        }
    }
    figure
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batches(case: &str, buckets: &[u64], messages: u64) -> Batches {
        let mut all = [0; BUCKETS];
        all[..buckets.len()].copy_from_slice(buckets);
        Batches { case: case.to_owned(), buckets: all, messages }
    }

    #[test]
    fn a_histogram_has_the_mean_and_the_part_of_batches_of_each_size() {
        let table = table(&[batches("100 B on one host, 1 to 1", &[6, 2], 10), batches("nothing", &[], 0)]);
        let cells: Vec<String> = table.lines[0].1.iter().map(Cell::to_string).collect();
        assert_eq!(cells[..4], ["1.25", "75.0", "25.0", "0.000"]);
        assert_eq!((table.columns.len(), table.lines[1].1[0].clone()), (2 + BUCKETS, Cell::from(0.0)));
    }

    #[test]
    fn the_histogram_of_one_size_and_placement_is_drawn_for_the_fewest_and_the_most() {
        let cases = ["100 B on one host, 1 to 1", "100 B on one host, 4 publishers", "100 B on one host, 8 publishers"];
        let others = ["1 KB on one host, 1 to 1", "100 B from host to host, 1 to 1"];
        let all: Vec<Batches> = cases.iter().chain(&others).map(|case| batches(case, &[1], 1)).collect();
        let figure = drawn(Placement::SameHost, &all);
        let names: Vec<&str> = figure.series.iter().map(|(name, _)| &**name).collect();
        assert_eq!(names, ["1 to 1", "8 publishers"]);
        assert_eq!(figure.series[0].1[0], Some(100.0));
    }

    #[test]
    fn a_round_is_divided_among_any_number_of_publishers() {
        let counts = COUNTS.into_iter().chain([1]);
        for count in counts {
            assert!(SIZES.iter().all(|(.., messages)| messages.is_multiple_of(count)), "{count}");
        }
    }
}
