//! Medians over pairs: ours and the reference alternate, so that disturbances of the machine affect both.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// The fewest rounds that have an interval.
const ROUNDS_MIN: usize = 8;

/// The figures of pairs of runs.
#[derive(Clone, Debug)]
pub struct Pairs {
    ours: Vec<f64>,
    theirs: Vec<f64>,
}

/// The medians of the pairs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Medians {
    /// Median of ours.
    pub ours: f64,
    /// Median of the reference.
    pub theirs: f64,
    /// Median of ours divided by the reference, pair by pair.
    pub ratio: f64,
    /// The interval in which the median ratio of all possible rounds is, with a probability of 95 %; `None` for what is not measured in pairs.
    pub interval: Option<[f64; 2]>,
    /// The first and third quartiles of ours, and of the reference; `None` for single figures.
    pub quartiles: Option<[[f64; 2]; 2]>,
}

impl Pairs {
    /// Runs both `rounds` times in alternation, swapping the order; each returns its figure.
    pub fn run<E>(
        rounds: usize,
        ours: impl FnMut() -> Result<f64, E>,
        theirs: impl FnMut() -> Result<f64, E>,
    ) -> Result<Self, E> {
        Self::run_within(Duration::MAX, rounds, ours, theirs)
    }

    /// The same, with fewer rounds if they take longer than that, but enough for an interval.
    pub fn run_within<E>(
        limit: Duration,
        rounds: usize,
        mut ours: impl FnMut() -> Result<f64, E>,
        mut theirs: impl FnMut() -> Result<f64, E>,
    ) -> Result<Self, E> {
        let mut pairs = Self { ours: Vec::with_capacity(rounds), theirs: Vec::with_capacity(rounds) };
        let start = Instant::now();
        for round in 0..rounds {
            if round >= ROUNDS_MIN && start.elapsed() > limit {
                break;
            }
            if round % 2 == 0 {
                pairs.ours.push(ours()?);
                pairs.theirs.push(theirs()?);
            } else {
                pairs.theirs.push(theirs()?);
                pairs.ours.push(ours()?);
            }
        }
        Ok(pairs)
    }

    /// Rounds that were run.
    pub fn rounds(&self) -> usize {
        self.ours.len()
    }

    /// Pairs from figures measured in alternation: the n-th of ours with the n-th of the reference.
    pub fn of(ours: Vec<f64>, theirs: Vec<f64>) -> Self {
        Self { ours, theirs }
    }

    /// The same pairs with each figure converted.
    pub fn map(self, convert: impl Fn(f64) -> f64) -> Self {
        let all = |values: Vec<f64>| values.into_iter().map(&convert).collect();
        Self { ours: all(self.ours), theirs: all(self.theirs) }
    }

    /// The medians.
    pub fn medians(&self) -> Medians {
        let ratios: Vec<f64> = self.ours.iter().zip(&self.theirs).map(|(ours, theirs)| ours / theirs).collect();
        let interval = interval(ratios.clone());
        let quartiles = |values: &Vec<f64>| [25.0, 75.0].map(|percent| percentile(&mut values.clone(), percent));
        Medians {
            ours: median(self.ours.clone()),
            theirs: median(self.theirs.clone()),
            ratio: median(ratios),
            interval,
            quartiles: Some([quartiles(&self.ours), quartiles(&self.theirs)]),
        }
    }
}

/// The middle value; 0 if there is none.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => 0.0,
        n if n % 2 == 1 => values[n / 2],
        n => (values[n / 2 - 1] + values[n / 2]) / 2.0,
    }
}

/// The 95 % interval of a median, between two of the values in their order; `None` for too few values.
///
/// Source      the sign test: the number of values below the median is binomial, here by its normal approximation. J.-Y. Le Boudec, Performance
///             Evaluation of Computer and Communication Systems, EPFL Press, 2010, section 2.2.2.
pub fn interval(mut values: Vec<f64>) -> Option<[f64; 2]> {
    values.sort_by(f64::total_cmp);
    let count = values.len() as f64;
    let first = (count / 2.0 - 0.98 * count.sqrt()).floor();
    let last = (count / 2.0 + 1.0 + 0.98 * count.sqrt()).ceil();
    // Counted from 1.
    let place = |number: f64| (number >= 1.0).then(|| values.get(number as usize - 1).copied()).flatten();
    Some([place(first)?, place(last)?])
}

/// The value that `percent` of the values are at most; 0 if there is none.
pub fn percentile(values: &mut [f64], percent: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let last = values.len().saturating_sub(1);
    values.get((percent / 100.0 * last as f64).round() as usize).copied().unwrap_or(0.0)
}

/// Seconds that `work` takes.
pub fn seconds(work: impl FnOnce()) -> f64 {
    let start = Instant::now();
    work();
    start.elapsed().as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ratio_is_the_median_of_ratios_and_order_alternates() {
        let order = std::cell::RefCell::new(String::new());
        let mut values = [1.0, 8.0, 3.0].into_iter();
        let pairs = Pairs::run(
            3,
            || {
                order.borrow_mut().push('o');
                Ok::<_, ()>(values.next().unwrap())
            },
            || {
                order.borrow_mut().push('t');
                Ok(2.0)
            },
        )
        .unwrap();
        assert_eq!(order.into_inner(), "ottoot");
        let medians = pairs.medians();
        assert_eq!((medians.ours, medians.theirs, medians.ratio), (3.0, 2.0, 1.5));
        assert_eq!(medians.quartiles, Some([[3.0, 8.0], [2.0, 2.0]]));
    }

    #[test]
    fn rounds_end_when_their_time_is_over_but_not_before_there_is_an_interval() {
        let one = || Ok::<_, ()>(1.0);
        let pairs = Pairs::run_within(Duration::ZERO, 100, one, one).unwrap();
        assert!(pairs.rounds() == ROUNDS_MIN && pairs.medians().interval.is_some());
        assert_eq!(Pairs::run_within(Duration::ZERO, 3, one, one).unwrap().rounds(), 3);
    }

    #[test]
    fn the_interval_of_a_median_is_where_tables_have_it() {
        // n = 100: from the 40th to the 61st value in their order (Le Boudec, table A.1, has 40 and 61).
        assert_eq!(interval((1..=100).rev().map(f64::from).collect()), Some([40.0, 61.0]));
        assert!(interval(vec![1.0; ROUNDS_MIN]).is_some() && interval(vec![1.0; ROUNDS_MIN - 1]).is_none());
    }

    #[test]
    fn percentiles_of_a_hundred_values_are_where_one_expects_them() {
        let mut values: Vec<f64> = (0..=100).map(f64::from).collect();
        assert_eq!(percentile(&mut values, 50.0), 50.0);
        assert_eq!(percentile(&mut values, 99.0), 99.0);
        assert_eq!(percentile(&mut [], 99.0), 0.0);
    }
}
