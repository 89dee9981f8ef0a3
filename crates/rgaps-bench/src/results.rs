//! What a bench found: rows, tables and figures.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::row::Row;

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
    pub(crate) lines: Vec<(String, Vec<f64>)>,
    pub(crate) unit: Cow<'static, str>,
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
    /// Named series, one value a group; fewer values if the last groups have none.
    pub(crate) series: Vec<(String, Vec<f64>)>,
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
    /// With its number in the paper and the unit.
    pub(crate) fn heading(&self) -> String {
        format!("{} ({})", numbered("Table", self.number.as_deref(), &self.title), self.unit)
    }

    pub(crate) fn cells(&self) -> Cells {
        let line = |(name, values): &(String, Vec<f64>)| {
            [name.clone()].into_iter().chain(values.iter().map(|value| figure(*value))).collect()
        };
        (self.columns.clone(), self.lines.iter().map(line).collect())
    }
}

impl Figure {
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
