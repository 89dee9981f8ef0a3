//! What a bench is asked for: how long to measure, which row, and where the peers are.

use std::path::PathBuf;

/// How long to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// Few rounds, for a quick look.
    Quick,
    /// Enough rounds for stable medians on a noisy machine.
    Full,
}

/// What a bench is asked for.
#[derive(Clone, Debug)]
pub struct Options {
    /// How long to measure.
    pub effort: Effort,
    /// The name of the only row that is wanted.
    pub only: Option<String>,
    /// The folder of the peers' programs; `None`: no peer is measured.
    pub peers: Option<PathBuf>,
}

impl Effort {
    /// `full` rounds, or a tenth of them (at least 3).
    pub fn rounds(self, full: usize) -> usize {
        match self {
            Self::Quick => (full / 10).max(3),
            Self::Full => full,
        }
    }
}

impl Options {
    /// Whether a row is wanted whose name starts so. A bench asks before it measures, and may measure more: the runner drops the rows that are not
    /// wanted.
    pub fn wants(&self, start: &str) -> bool {
        self.only.as_ref().is_none_or(|only| only.starts_with(start))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_row_is_wanted_by_its_name_and_all_without_one() {
        let mut options = Options { effort: Effort::Quick, only: None, peers: None };
        assert!(options.wants("64 MiB"));
        options.only = Some("4 MiB read N=1 beside iceoryx2".to_owned());
        assert!(options.wants("4 MiB read N=1") && !options.wants("64 MiB") && !options.wants("4 MiB read N=8"));
        assert_eq!((options.effort.rounds(400), options.effort.rounds(7)), (40, 3));
    }
}
