//! The live table, and the totals of the processes' reports.

use std::collections::BTreeMap;

use indicatif::{ProgressBar, ProgressStyle};
use rgaps_command::output::Format;

use crate::demo::hosts::Side;
use crate::demo::report::{Report, Row, Summary, Wire, table};
use crate::demo::topics::TOPICS;

/// What the processes have reported so far.
pub(crate) struct Board {
    names: Vec<(String, Side)>,
    frames: u64,
    rows: BTreeMap<usize, Report>,
    published: Report,
    bar: Option<ProgressBar>,
}

impl Board {
    pub(crate) fn new(names: Vec<(String, Side)>, frames: u64, format: Format) -> Self {
        let style = ProgressStyle::with_template("{msg}\n{bar:40} {pos}/{len} frames, {eta} left");
        let bar = format.shows_progress().then(|| {
            let bar = ProgressBar::new(frames);
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
            bar
        });
        Self { names, frames, rows: BTreeMap::new(), published: Report::default(), bar }
    }

    /// Adds a report of a process (`None`: the publisher).
    pub(crate) fn take(&mut self, subscriber: Option<usize>, report: Report) {
        match subscriber {
            Some(index) => drop(self.rows.insert(index, report)),
            None => self.published = report,
        }
    }

    pub(crate) fn draw(&self) {
        let Some(bar) = &self.bar else { return };
        bar.set_position(self.published.frames.get(TOPICS[0]).copied().unwrap_or(0));
        bar.set_message(table(self.named()).to_string());
    }

    pub(crate) fn finish(self, received_bytes: Option<u64>, namespaces: bool) -> Summary {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
        let wanted = self.frames * TOPICS.len() as u64;
        let missing = |report: &Report| wanted.saturating_sub(report.frames.values().sum());
        let silent = self.names.len() - self.rows.len();
        let lost = self.rows.values().map(missing).sum::<u64>() + silent as u64 * wanted;
        let copied: u64 = self.rows.values().map(|report| report.copied_bytes).sum();
        let payload_bytes = self.published.bytes;
        let shared_read_only = self.is_shared(Side::A) && self.is_shared(Side::B);
        let rows = self.named().map(|(name, report)| Row { name: name.to_owned(), report: report.clone() }).collect();
        Summary {
            frames: self.frames,
            subscribers: self.names.len(),
            lost,
            mismatched: self.rows.values().map(|report| report.mismatched).sum(),
            copies_per_subscriber: copied.div_ceil((payload_bytes * self.names.len() as u64).max(1)),
            fetched_bytes: self.rows.values().map(|report| report.fetched_bytes).sum(),
            shared_read_only,
            namespaces,
            wire: received_bytes.map(|received_bytes| Wire {
                received_bytes,
                payload_bytes,
                times: received_bytes as f64 / payload_bytes.max(1) as f64,
            }),
            rows,
        }
    }

    /// Whether all subscribers on a host mapped the same memory, read-only.
    fn is_shared(&self, side: Side) -> bool {
        let of_side = self.rows.iter().filter(|(index, _)| self.names.get(**index).is_some_and(|(_, s)| *s == side));
        let mut maps = of_side.map(|(_, report)| &report.mapped);
        let Some(first) = maps.next() else { return true };
        first.iter().all(|(_, _, read_only)| *read_only) && maps.all(|mapped| mapped == first)
    }

    fn named(&self) -> impl Iterator<Item = (&str, &Report)> {
        self.rows.iter().filter_map(|(index, report)| Some((self.names.get(*index)?.0.as_str(), report)))
    }
}
