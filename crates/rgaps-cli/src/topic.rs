//! `rgaps topic`: shows topics and their traffic. It reads no payload and slows no process.

use std::time::{Duration, Instant};

use rgaps::{MessageInfo, Node, NodeError, Observer, SessionError, TopicSummary};
use rgaps_bench::measure::percentile;
use rgaps_command::output::{self, Format, table};
use rgaps_control::local::Refusal;
use serde::Serialize;

use crate::CommandError;
use crate::interrupt::Interrupt;
use crate::parsers::seconds;

/// How often a segment is read: at 1000 messages a second, a few wait in it.
const LOOK: Duration = Duration::from_millis(2);
/// The shortest time between reports.
const INTERVAL_MIN: Duration = Duration::from_millis(50);
/// How often to look for a topic that does not exist yet.
const FIND_INTERVAL: Duration = Duration::from_millis(200);
/// How long to look for it: a program started just before will have made its topic by then.
const FIND_TIMEOUT: Duration = Duration::from_secs(1);

/// `rgaps topic ...`.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum Command {
    /// List the topics that this host knows.
    List {
        /// Also those with a token that starts with '_', such as the topics of `rosidl::Buffer`.
        #[arg(long)]
        include_hidden_topics: bool,
    },
    /// Show a topic's publishers and subscribers, its links, and why endpoints do not match.
    Info {
        /// The topic.
        topic: String,
    },
    /// Show messages a second.
    Hz(Watch),
    /// Show bytes a second.
    Bw(Watch),
    /// Show the time between the stages of a message's way.
    Latency(Watch),
}

/// What to watch and for how long.
#[derive(Clone, Debug, clap::Args)]
pub struct Watch {
    /// The topic.
    topic: String,
    /// Seconds between reports, at least 0.05.
    #[arg(long, default_value = "1", value_parser = seconds)]
    interval: Duration,
    /// End after this many reports.
    #[arg(long)]
    reports: Option<u64>,
}

/// Runs `rgaps topic ...`.
pub fn run(command: &Command, format: Format) -> Result<(), CommandError> {
    let node = Node::new("rgaps topic")?;
    match command {
        Command::List { include_hidden_topics } => list(&node, *include_hidden_topics, format),
        Command::Info { topic } => info(&node, topic, format),
        Command::Hz(watch) => follow(&node, watch, |window| report_hz(window, format)),
        Command::Bw(watch) => follow(&node, watch, |window| report_bw(window, format)),
        Command::Latency(watch) => follow(&node, watch, |window| report_latency(window, format)),
    }
}

fn list(node: &Node, include_hidden: bool, format: Format) -> Result<(), CommandError> {
    let mut topics = node.topics()?;
    let all = topics.len();
    topics.retain(|topic| include_hidden || !topic.key.is_hidden());
    let hidden = all - topics.len();
    if format == Format::Json {
        output::json(&topics);
        return Ok(());
    }
    let mut table = table(["topic", "type", "publishers", "subscribers", "memory here"]);
    for topic in &topics {
        table.add_row([
            topic.key.to_string(),
            topic.type_name.clone(),
            hosts(topic.publishers, &topic.publishing_hosts),
            hosts(topic.subscribers, &topic.subscribing_hosts),
            output::bytes(topic.resident_bytes as f64),
        ]);
    }
    output::line(table);
    if hidden > 0 {
        output::line(format_args!("and {hidden} hidden, such as those of rosidl::Buffer (--include-hidden-topics)"));
    }
    Ok(())
}

fn hosts(here: u32, names: &[String]) -> String {
    format!("{here} here; hosts: {}", output::list(names))
}

fn info(node: &Node, name: &str, format: Format) -> Result<(), CommandError> {
    let name = rooted(name);
    let Some(topic) = summary(node, &name)? else {
        return Err(CommandError::Other(format!(
            "no host that is known here has {name}; see `rgaps topic list --include-hidden-topics`"
        )));
    };
    if format == Format::Json {
        output::json(&topic);
        return Ok(());
    }
    print_info(&topic);
    Ok(())
}

/// The fully qualified name of a topic that was typed with or without a leading slash.
pub fn rooted(name: &str) -> String {
    format!("/{}", name.trim_start_matches('/'))
}

/// The topic with this fully qualified name in the node's ROS domain, if a known host has it.
pub fn summary(node: &Node, name: &str) -> Result<Option<TopicSummary>, NodeError> {
    let topics = node.topics()?;
    Ok(topics.into_iter().find(|topic| topic.key.name() == name && topic.key.domain() == node.domain()))
}

fn print_info(topic: &TopicSummary) {
    output::line(format_args!("{}  {}", topic.key, topic.type_name));
    output::line(format_args!("publishers   {}", hosts(topic.publishers, &topic.publishing_hosts)));
    output::line(format_args!("subscribers  {}", hosts(topic.subscribers, &topic.subscribing_hosts)));
    output::line(format_args!("memory here  {}", output::bytes(topic.resident_bytes as f64)));
    output::line(format_args!("lost here    {} messages, by the subscribers that are here now", topic.lost));
    for link in &topic.links {
        output::line(format_args!("link         {link}"));
    }
    for mismatch in &topic.mismatches {
        output::line(format_args!("MISMATCH     {mismatch}"));
    }
}

/// The messages seen between two reports.
struct Window {
    topic: String,
    seconds: f64,
    seen: Vec<MessageInfo>,
}

fn follow(node: &Node, watch: &Watch, report: impl Fn(&Window)) -> Result<(), CommandError> {
    let interrupt = Interrupt::install()?;
    let Some(mut observer) = await_topic(node, &watch.topic, &interrupt)? else { return Ok(()) };
    let mut reports = 0;
    let interval = watch.interval.max(INTERVAL_MIN);
    while !interrupt.is_set() && watch.reports.is_none_or(|wanted| reports < wanted) {
        let start = Instant::now();
        let mut seen = Vec::new();
        while start.elapsed() < interval && !interrupt.is_set() {
            while let Some(info) = observer.poll() {
                seen.push(info);
            }
            interrupt.sleep_until(Instant::now() + LOOK);
        }
        if seen.is_empty() {
            // A topic that ended and was made again has another segment.
            observer = find(node, &watch.topic)?.unwrap_or(observer);
        }
        report(&Window { topic: watch.topic.clone(), seconds: start.elapsed().as_secs_f64(), seen });
        reports += 1;
    }
    Ok(())
}

/// The topic, which may be created soon; `None` if interrupted.
fn await_topic(node: &Node, topic: &str, interrupt: &Interrupt) -> Result<Option<Observer>, CommandError> {
    let deadline = Instant::now() + FIND_TIMEOUT;
    while !interrupt.is_set() {
        match find(node, topic)? {
            Ok(observer) => return Ok(Some(observer)),
            Err(refusal) if Instant::now() >= deadline => {
                return Err(CommandError::Other(format!("{refusal}; `rgaps topic list` shows the known topics")));
            }
            Err(_) => interrupt.sleep_until(Instant::now() + FIND_INTERVAL),
        }
    }
    Ok(None)
}

/// The topic, or the manager's error text if it does not exist.
fn find(node: &Node, topic: &str) -> Result<Result<Observer, Refusal>, CommandError> {
    match node.observe(topic) {
        Ok((observer, _)) => Ok(Ok(observer)),
        Err(NodeError::Session(SessionError::Refused(refusal @ Refusal::NotFound(_)))) => Ok(Err(refusal)),
        Err(error) => Err(error.into()),
    }
}

/// Without a measurement, JSON has null and the table has `-`.
#[derive(Serialize)]
struct Hz {
    topic: String,
    messages: usize,
    hz: f64,
    min_ms: Option<f64>,
    max_ms: Option<f64>,
}

impl Hz {
    fn of(window: &Window) -> Self {
        let stamps: Vec<f64> = window.seen.iter().map(|info| info.stamps.published as f64 / 1e6).collect();
        let gaps = || stamps.windows(2).map(|pair| pair[1] - pair[0]);
        Self {
            topic: window.topic.clone(),
            messages: window.seen.len(),
            hz: window.seen.len() as f64 / window.seconds,
            min_ms: gaps().min_by(f64::total_cmp),
            max_ms: gaps().max_by(f64::total_cmp),
        }
    }
}

fn report_hz(window: &Window, format: Format) {
    let report = Hz::of(window);
    let gaps = match report.min_ms.zip(report.max_ms) {
        Some((min, max)) => format!("{min:.1} to {max:.1} ms"),
        None => "-".to_owned(),
    };
    match format {
        Format::Json => output::json(&report),
        Format::Human => output::line(format_args!("{}: {:.1} Hz, gaps {gaps}", report.topic, report.hz)),
    }
}

fn report_bw(window: &Window, format: Format) {
    let bytes = window.seen.iter().map(|info| info.bytes).sum::<u64>() as f64;
    let rate = bytes / window.seconds;
    let mean = (!window.seen.is_empty()).then(|| bytes / window.seen.len() as f64);
    match format {
        Format::Json => output::json(&serde_json::json!({
            "topic": window.topic, "messages": window.seen.len(), "bytes_per_second": rate, "mean_bytes": mean,
        })),
        Format::Human => {
            let mean = mean.map_or_else(|| "-".to_owned(), output::bytes);
            output::line(format_args!("{}: {}/s, {mean} a message", window.topic, output::bytes(rate)));
        }
    }
}

/// A stage of a message's way. A message that skipped the stage (a local one uses no link) does not count.
#[derive(Debug, PartialEq, Serialize)]
struct Stage {
    stage: &'static str,
    p50_us: Option<f64>,
    p99_us: Option<f64>,
}

fn stages(seen: &[MessageInfo]) -> Vec<Stage> {
    type Pick = fn(&rgaps::Stamps) -> (u64, u64);
    let picks: [(&str, Pick); 5] = [
        ("publish to staged", |s| (s.published, s.staged)),
        ("staged to sent", |s| (s.staged, s.sent)),
        ("sent to landed", |s| (s.sent, s.landed)),
        ("landed to in pool", |s| (s.landed, s.pooled)),
        ("publish to in pool", |s| (s.published, s.pooled)),
    ];
    let span = |(from, to): (u64, u64)| (from > 0 && to >= from).then(|| (to - from) as f64 / 1e3);
    let stages = picks.into_iter().map(|(stage, pick)| {
        let mut values: Vec<f64> = seen.iter().filter_map(|info| span(pick(&info.stamps))).collect();
        let mut at = |percent| (!values.is_empty()).then(|| percentile(&mut values, percent));
        Stage { stage, p50_us: at(50.0), p99_us: at(99.0) }
    });
    stages.collect()
}

fn report_latency(window: &Window, format: Format) {
    let stages = stages(&window.seen);
    if format == Format::Json {
        return output::json(
            &serde_json::json!({"topic": window.topic, "messages": window.seen.len(), "stages": stages}),
        );
    }
    let text: Vec<String> = stages
        .iter()
        .map(|stage| match stage.p50_us.zip(stage.p99_us) {
            Some((p50, p99)) => format!("{} {} (p99 {})", stage.stage, output::micros(p50), output::micros(p99)),
            None => format!("{} -", stage.stage),
        })
        .collect();
    let route = window.seen.last().map_or("-", |info| info.route.name());
    output::line(format_args!("{}: {} messages, {route}: {}", window.topic, window.seen.len(), text.join(", ")));
}

#[cfg(test)]
mod tests {
    use super::*;
    use rgaps::Stamps;

    fn window(published: &[u64]) -> Window {
        let info =
            |published| MessageInfo { stamps: Stamps { published, ..Stamps::default() }, ..MessageInfo::default() };
        Window { topic: "topic".to_owned(), seconds: 2.0, seen: published.iter().copied().map(info).collect() }
    }

    #[test]
    fn gaps_are_between_messages_and_nothing_where_there_are_none() {
        for published in [&[][..], &[1_000_000]] {
            let json = serde_json::to_value(Hz::of(&window(published))).unwrap();
            assert!(json["min_ms"].is_null() && json["max_ms"].is_null(), "{json}");
        }
        let report = Hz::of(&window(&[1_000_000, 3_000_000, 8_000_000]));
        assert_eq!((report.hz, report.min_ms, report.max_ms), (1.5, Some(2.0), Some(5.0)));
    }

    #[test]
    fn a_stage_that_no_message_passed_has_no_time() {
        let here = stages(&window(&[1000, 2000]).seen);
        assert_eq!(here.len(), 5);
        assert!(here.iter().all(|stage| stage.p50_us.is_none() && stage.p99_us.is_none()), "{here:?}");
        let stamps = Stamps { published: 1000, staged: 3000, sent: 3000, landed: 8000, pooled: 9000 };
        let there = stages(&[MessageInfo { stamps, ..MessageInfo::default() }]);
        let times: Vec<_> = there.iter().filter_map(|stage| stage.p50_us).collect();
        assert_eq!(times, [2.0, 0.0, 5.0, 1.0, 8.0]);
    }
}
