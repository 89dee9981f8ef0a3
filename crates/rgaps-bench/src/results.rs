//! What a bench found: rows, tables and figures.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::row::{Row, with_better};

/// Column titles, and the cells of each line.
pub(crate) type Cells = (Vec<String>, Vec<Vec<String>>);

/// A table beside the rows, such as one of the paper's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Table {
    /// Its number in the paper.
    pub(crate) number: Option<Cow<'static, str>>,
    pub(crate) title: String,
    /// Column titles; the first column has the lines' names.
    pub(crate) columns: Vec<String>,
    pub(crate) lines: Vec<(String, Vec<Cell>)>,
    /// Unit of the figures; empty if it is in the titles, or there is none.
    pub(crate) unit: Cow<'static, str>,
}

/// A cell of a table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum Cell {
    /// A figure.
    Figure(f64),
    /// A text, such as a range, or why there is no figure.
    Text(String),
}

impl From<f64> for Cell {
    fn from(value: f64) -> Self {
        Self::Figure(value)
    }
}

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl std::fmt::Display for Cell {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Figure(value) => f.write_str(&figure(*value)),
            Self::Text(text) => f.write_str(text),
        }
    }
}

/// Lines of figures.
pub(crate) fn of_figures(lines: Vec<(String, Vec<f64>)>) -> Vec<(String, Vec<Cell>)> {
    lines.into_iter().map(|(name, values)| (name, values.into_iter().map(Cell::from).collect())).collect()
}

/// Values of several series in the same groups.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Figure {
    /// Its number in the paper.
    pub(crate) number: Option<String>,
    pub(crate) title: String,
    /// What the groups stand for.
    pub(crate) axis: Cow<'static, str>,
    pub(crate) groups: Vec<String>,
    /// Named series, with a value for each group that has one.
    pub(crate) series: Vec<(String, Vec<Option<f64>>)>,
    pub(crate) unit: Cow<'static, str>,
    pub(crate) shape: Shape,
}

/// How a figure is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Shape {
    /// Bars from 0.
    Bars,
    /// Points on a logarithmic scale, for values of different orders of magnitude.
    Points,
}

/// The results of one bench, or of several.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Part {
    pub(crate) rows: Vec<Row>,
    pub(crate) tables: Vec<Table>,
    pub(crate) figures: Vec<Figure>,
    /// Cases left out for want of memory.
    pub(crate) left_out: Vec<String>,
}

impl From<Vec<Row>> for Part {
    fn from(rows: Vec<Row>) -> Self {
        Self { rows, ..Self::default() }
    }
}

impl Part {
    pub(crate) fn extend(&mut self, other: Self) {
        self.rows.extend(other.rows);
        self.tables.extend(other.tables);
        self.figures.extend(other.figures);
        self.left_out.extend(other.left_out);
    }

    /// Notes that a case is left out because it needs so many bytes of memory.
    pub(crate) fn leave_out(&mut self, case: &str, needed_bytes: u64) {
        self.left_out.push(format!("{case}: it needs {} MiB of free memory", needed_bytes >> 20));
    }
}

impl Table {
    /// With its number in the paper, the unit, and which values are better.
    pub(crate) fn heading(&self) -> String {
        let title = numbered("Table", self.number.as_deref(), &self.title);
        if self.unit.is_empty() { title } else { format!("{title} ({})", with_better(&self.unit)) }
    }

    pub(crate) fn cells(&self) -> Cells {
        let line = |(name, values): &(String, Vec<Cell>)| {
            [name.clone()].into_iter().chain(values.iter().map(Cell::to_string)).collect()
        };
        (self.columns.clone(), self.lines.iter().map(line).collect())
    }
}

impl Figure {
    /// One without values.
    pub(crate) fn new(title: String, axis: &'static str, unit: &'static str, shape: Shape) -> Self {
        let (groups, series) = (Vec::new(), Vec::new());
        Self { number: None, title, axis: axis.into(), groups, series, unit: unit.into(), shape }
    }

    /// Adds what a row found for ours and its reference. What a series has for a group already stays.
    pub(crate) fn add(&mut self, group: &str, row: &Row) {
        let Some(found) = row.medians else { return };
        self.set(group, "RGAPS", found.ours);
        self.set(group, &row.reference, found.theirs);
    }

    /// Sets a value of a series in a group, unless it has one.
    pub(crate) fn set(&mut self, group: &str, name: &str, value: f64) {
        let place = |all: &[String], name: &str| all.iter().position(|known| known == name);
        let at = place(&self.groups, group).unwrap_or_else(|| {
            self.groups.push(group.to_owned());
            self.groups.len() - 1
        });
        let index = self.series.iter().position(|(known, _)| known == name).unwrap_or_else(|| {
            self.series.push((name.to_owned(), Vec::new()));
            self.series.len() - 1
        });
        let values = &mut self.series[index].1;
        values.resize(values.len().max(at + 1), None);
        values[at].get_or_insert(value);
    }

    /// With its number in the paper.
    pub(crate) fn heading(&self) -> String {
        numbered("Figure", self.number.as_deref(), &self.title)
    }
}

fn numbered(what: &str, number: Option<&str>, title: &str) -> String {
    number.map_or_else(|| title.to_owned(), |number| format!("{what} {number}: {title}"))
}

/// A number with three significant digits, and no spurious ones after them.
pub(crate) fn figure(value: f64) -> String {
    match value.abs() {
        size if size < 1.0 => format!("{value:.3}"),
        size if size < 10.0 => format!("{value:.2}"),
        size if size < 100.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_takes_its_values_from_rows_and_leaves_gaps_where_there_are_none() {
        let mut figure = Figure::new("latency".to_owned(), "size", "us", Shape::Points);
        let row = |reference: &str, figures| Row::of(("local", "case".to_owned()), reference, "us", figures, None);
        figure.add("1 KiB", &row("floor", (1.0, 2.0)));
        figure.add("1 KiB", &row("iceoryx2", (7.0, 3.0)));
        figure.add("4 MiB", &Row::missing(("local", "case".to_owned()), "zenoh SHM", "us", "none"));
        figure.add("64 MiB", &row("iceoryx2", (4.0, 5.0)));
        assert_eq!(figure.groups, ["1 KiB", "64 MiB"]);
        let series = |name: &str, values: &[Option<f64>]| (name.to_owned(), values.to_vec());
        let (ours, floor) = (series("RGAPS", &[Some(1.0), Some(4.0)]), series("floor", &[Some(2.0)]));
        assert_eq!(figure.series, [ours, floor, series("iceoryx2", &[Some(3.0), Some(5.0)])]);
    }

    #[test]
    fn figures_have_three_digits() {
        assert_eq!([0.0123, 1.234, 56.78, 1234.5].map(figure), ["0.012", "1.23", "56.8", "1234"]);
    }
}
