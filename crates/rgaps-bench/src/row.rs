//! One line of a bench: ours and a reference, measured in alternation, with the bound that the project promises and the command that repeats it.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::measure::{Medians, Pairs};

/// How far the ratios of two runs that agree may be apart, as a part of them.
const AGREEMENT: f64 = 0.1;

/// One line of a bench.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The bench.
    pub bench: Cow<'static, str>,
    /// The case: size, subscribers, fill level.
    pub case: String,
    /// What the reference is.
    pub reference: String,
    /// Unit of the two figures.
    pub unit: Cow<'static, str>,
    /// The figures; `None` for what could not be measured.
    #[serde(flatten)]
    pub medians: Option<Medians>,
    /// Why it could not be measured.
    pub missing: Option<String>,
    /// The ratio of the run before, of the same commit and into the same folder.
    #[serde(default)]
    pub before: Option<f64>,
    /// The bound that the project promises, if any.
    pub bound: Option<Bound>,
    /// The command that measures this row alone; empty until the bench has ended.
    pub command: String,
}

/// A promised bound of a ratio.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    /// The ratio is at most this.
    AtMost(f64),
    /// The ratio is at least this.
    AtLeast(f64),
}

impl Row {
    /// A row of figures that were measured in alternation.
    pub(crate) fn of_pairs(
        named: (&'static str, String),
        reference: &str,
        unit: &'static str,
        pairs: &Pairs,
        bound: Option<Bound>,
    ) -> Self {
        Self::new(named, reference, unit, Ok(pairs.medians()), bound)
    }

    /// A row of two figures.
    pub(crate) fn of(
        named: (&'static str, String),
        reference: &str,
        unit: &'static str,
        (ours, theirs): (f64, f64),
        bound: Option<Bound>,
    ) -> Self {
        let medians = Medians { ours, theirs, ratio: ours / theirs, interval: None, quartiles: None };
        Self::new(named, reference, unit, Ok(medians), bound)
    }

    /// A row whose reference could not be measured.
    pub(crate) fn missing(
        named: (&'static str, String),
        reference: &str,
        unit: &'static str,
        why: impl std::fmt::Display,
    ) -> Self {
        Self::new(named, reference, unit, Err(why.to_string()), None)
    }

    fn new(
        (bench, case): (&'static str, String),
        reference: &str,
        unit: &'static str,
        found: Result<Medians, String>,
        bound: Option<Bound>,
    ) -> Self {
        let is_figure = |figure: f64| figure.is_finite() && figure > 0.0;
        let (medians, missing) = match found {
            Ok(Medians { ours, theirs, ratio, .. }) if ![ours, theirs, ratio].into_iter().all(is_figure) => {
                (None, Some(format!("{ours} and {theirs} {unit} are no figures above 0")))
            }
            Ok(medians) => (Some(medians), None),
            Err(why) => (None, Some(why)),
        };
        let (bench, unit, reference) = (bench.into(), unit.into(), reference.to_owned());
        Self { bench, case, reference, unit, medians, missing, before: None, bound, command: String::new() }
    }

    /// Its name, by which `--only` chooses it.
    pub fn name(&self) -> String {
        format!("{} beside {}", self.case, self.reference)
    }

    /// The ratio of the run before, and whether this one agrees with it; if not, this machine cannot tell such ratios apart.
    pub(crate) fn agreement(&self) -> Option<(f64, bool)> {
        let (before, now) = (self.before?, self.medians?.ratio);
        Some((before, (now / before - 1.0).abs() <= AGREEMENT))
    }

    /// Which of its figures are better.
    pub(crate) fn better(&self) -> &'static str {
        better(&self.unit)
    }

    /// Whether the ratio meets its bound; true if there is none, or no ratio.
    pub fn holds(&self) -> bool {
        match (self.medians, self.bound) {
            (None, _) | (_, None) => true,
            (Some(Medians { ratio, .. }), Some(Bound::AtMost(bound))) => ratio <= bound,
            (Some(Medians { ratio, .. }), Some(Bound::AtLeast(bound))) => ratio >= bound,
        }
    }
}

/// Which figures in a unit are better: of rates the higher ones, of times and costs the lower ones.
pub(crate) fn better(unit: &str) -> &'static str {
    if unit.ends_with("/s") { "higher" } else { "lower" }
}

/// The unit, and whether higher or lower figures are better. Parts of a whole have no better direction.
pub(crate) fn with_better(unit: &str) -> String {
    if unit.starts_with("% of ") { unit.to_owned() } else { format!("{unit}, {} is better", better(unit)) }
}

impl std::fmt::Display for Bound {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::AtMost(bound) => write!(f, "at most {bound}"),
            Self::AtLeast(bound) => write!(f, "at least {bound}"),
        }
    }
}
