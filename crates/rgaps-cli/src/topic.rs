//! `rgaps topic`: what there is, and how it flows. Looking on touches no payload and slows nobody.

use std::time::{Duration, Instant};

use rgaps::{MessageInfo, Node, NodeError, Observer, TopicSummary};
use serde::Serialize;

use crate::CommandError;
use crate::bench::measure::percentile;
use crate::interrupt::Interrupt;
use crate::output::{self, Format, table};

/// How often a segment is looked at: at 1 kHz of messages a few wait in it.
const LOOK: Duration = Duration::from_millis(2);
/// How often a topic that nobody has is looked for.
const FIND_INTERVAL: Duration = Duration::from_millis(200);

/// `rgaps topic ...`.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum Command {
    /// The topics that this host knows of.
    List,
    /// Who publishes and subscribes, over which links, and what keeps them apart.
    Info {
        /// The topic.
        topic: String,
    },
    /// Messages a second.
    Hz(Watch),
    /// Bytes a second.
    Bw(Watch),
    /// Time between the stages of a message's way.
    Latency(Watch),
}

/// What to watch and for how long.
#[derive(Clone, Debug, clap::Args)]
pub struct Watch {
    /// The topic.
    topic: String,
    /// Seconds between reports.
    #[arg(long, default_value_t = 1.0)]
    interval: f64,
    /// End after this many reports.
    #[arg(long)]
    reports: Option<u64>,
}

/// Runs `rgaps topic ...`.
pub fn run(command: &Command, format: Format) -> Result<(), CommandError> {
    let node = Node::new("rgaps topic")?;
    match command {
        Command::List => list(&node, format),
        Command::Info { topic } => info(&node, topic, format),
        Command::Hz(watch) => follow(&node, watch, |window| report_hz(window, format)),
        Command::Bw(watch) => follow(&node, watch, |window| report_bw(window, format)),
        Command::Latency(watch) => follow(&node, watch, |window| report_latency(window, format)),
    }
}

fn list(node: &Node, format: Format) -> Result<(), CommandError> {
    let topics = node.topics()?;
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
    Ok(())
}

fn hosts(here: u32, names: &[String]) -> String {
    format!("{here} here; hosts: {}", output::list(names))
}

fn info(node: &Node, name: &str, format: Format) -> Result<(), CommandError> {
    let wanted = format!("/{}", name.trim_start_matches('/'));
    let topics = node.topics()?;
    let Some(topic) = topics.iter().find(|topic| topic.key.name() == wanted) else {
        return Err(CommandError::Other(format!(
            "no host that is known here has {wanted}; `rgaps topic list` shows all"
        )));
    };
    if format == Format::Json {
        output::json(topic);
        return Ok(());
    }
    print_info(topic);
    Ok(())
}

fn print_info(topic: &TopicSummary) {
    output::line(format_args!("{}  {}", topic.key, topic.type_name));
    output::line(format_args!("publishers   {}", hosts(topic.publishers, &topic.publishing_hosts)));
    output::line(format_args!("subscribers  {}", hosts(topic.subscribers, &topic.subscribing_hosts)));
    output::line(format_args!("memory here  {}", output::bytes(topic.resident_bytes as f64)));
    for link in &topic.links {
        output::line(format_args!("link         {link}"));
    }
    for mismatch in &topic.mismatches {
        output::line(format_args!("MISMATCH     {mismatch}"));
    }
}

/// What was seen between two reports.
struct Window {
    topic: String,
    seconds: f64,
    seen: Vec<(Instant, MessageInfo)>,
}

fn follow(node: &Node, watch: &Watch, report: impl Fn(&Window)) -> Result<(), CommandError> {
    let interrupt = Interrupt::install()?;
    let mut observer = None;
    let mut reports = 0;
    let interval = Duration::from_secs_f64(watch.interval.clamp(0.05, 3600.0));
    while !interrupt.is_set() && watch.reports.is_none_or(|wanted| reports < wanted) {
        let start = Instant::now();
        let mut seen = Vec::new();
        while start.elapsed() < interval && !interrupt.is_set() {
            match &mut observer {
                None => observer = find(node, &watch.topic, &interrupt)?,
                Some(observer) => {
                    while let Some(info) = Observer::poll(observer) {
                        seen.push((Instant::now(), info));
                    }
                    interrupt.sleep_until(Instant::now() + LOOK);
                }
            }
        }
        if seen.is_empty() {
            // A topic that ended and was made anew has another segment.
            observer = find(node, &watch.topic, &interrupt)?.or(observer);
        }
        report(&Window { topic: watch.topic.clone(), seconds: start.elapsed().as_secs_f64(), seen });
        reports += 1;
    }
    Ok(())
}

fn find(node: &Node, topic: &str, interrupt: &Interrupt) -> Result<Option<Observer>, CommandError> {
    match node.observe(topic) {
        Ok((observer, _)) => Ok(Some(observer)),
        Err(NodeError::Session(rgaps::SessionError::Refused(_))) => {
            interrupt.sleep_until(Instant::now() + FIND_INTERVAL);
            Ok(None)
        }
        Err(error) => Err(error.into()),
    }
}

#[derive(Serialize)]
struct Hz {
    topic: String,
    messages: usize,
    hz: f64,
    min_ms: f64,
    max_ms: f64,
}

fn report_hz(window: &Window, format: Format) {
    let stamps = window.seen.iter().map(|(_, info)| info.stamps.published as f64 / 1e6);
    let stamps: Vec<f64> = stamps.collect();
    let gaps: Vec<f64> = stamps.windows(2).map(|pair| pair[1] - pair[0]).collect();
    let report = Hz {
        topic: window.topic.clone(),
        messages: window.seen.len(),
        hz: window.seen.len() as f64 / window.seconds,
        min_ms: gaps.iter().copied().fold(f64::INFINITY, f64::min).min(f64::MAX),
        max_ms: gaps.iter().copied().fold(0.0, f64::max),
    };
    match format {
        Format::Json => output::json(&report),
        Format::Human if gaps.is_empty() => output::line(format_args!("{}: {:.1} Hz", report.topic, report.hz)),
        Format::Human => output::line(format_args!(
            "{}: {:.1} Hz, gaps {:.1} to {:.1} ms",
            report.topic, report.hz, report.min_ms, report.max_ms
        )),
    }
}

fn report_bw(window: &Window, format: Format) {
    let bytes: u64 = window.seen.iter().map(|(_, info)| info.bytes).sum();
    let rate = bytes as f64 / window.seconds;
    let mean = bytes as f64 / window.seen.len().max(1) as f64;
    match format {
        Format::Json => output::json(&serde_json::json!({
            "topic": window.topic, "messages": window.seen.len(), "bytes_per_second": rate, "mean_bytes": mean,
        })),
        Format::Human => {
            output::line(format_args!("{}: {}/s, {} a message", window.topic, output::bytes(rate), output::bytes(mean)))
        }
    }
}

fn report_latency(window: &Window, format: Format) {
    let mut stages: Vec<(&str, f64, f64)> = Vec::new();
    let span = |from: u64, to: u64| (from > 0 && to >= from).then(|| (to - from) as f64 / 1e3);
    type Pick = fn(&rgaps::Stamps) -> (u64, u64);
    let picks: [(&str, Pick); 5] = [
        ("publish to staged", |s| (s.published, s.staged)),
        ("staged to sent", |s| (s.staged, s.sent)),
        ("sent to landed", |s| (s.sent, s.landed)),
        ("landed to in pool", |s| (s.landed, s.pooled)),
        ("publish to in pool", |s| (s.published, if s.pooled == 0 { s.published } else { s.pooled })),
    ];
    for (name, pick) in picks {
        let mut values: Vec<f64> = window
            .seen
            .iter()
            .filter_map(|(_, info)| {
                let (from, to) = pick(&info.stamps);
                span(from, to)
            })
            .collect();
        if !values.is_empty() {
            stages.push((name, percentile(&mut values, 50.0), percentile(&mut values, 99.0)));
        }
    }
    if format == Format::Json {
        let stages: Vec<_> = stages
            .iter()
            .map(|(stage, p50, p99)| serde_json::json!({"stage": stage, "p50_us": p50, "p99_us": p99}))
            .collect();
        return output::json(
            &serde_json::json!({"topic": window.topic, "messages": window.seen.len(), "stages": stages}),
        );
    }
    let text: Vec<String> = stages
        .iter()
        .map(|(stage, p50, p99)| format!("{stage} {} (p99 {})", output::micros(*p50), output::micros(*p99)))
        .collect();
    let route = window.seen.last().map_or("-", |(_, info)| info.route.name());
    output::line(format_args!("{}: {} messages, {route}: {}", window.topic, window.seen.len(), text.join(", ")));
}
