//! A limit of log lines per minute.

use std::time::{Duration, Instant};

/// Log lines of one kind per minute, at most.
const LINES_A_MINUTE: u32 = 64;

/// Limits log lines per minute, for lines whose number other hosts control.
#[derive(Debug, Default)]
pub struct LogRateLimit {
    since: Option<Instant>,
    said: u32,
}

impl LogRateLimit {
    /// Whether one more line may be logged. Returns a suffix for it, which announces the silence after the last line.
    pub fn may_log(&mut self, now: Instant) -> Option<&'static str> {
        if self.since.is_none_or(|since| now.duration_since(since) >= Duration::from_secs(60)) {
            *self = Self { since: Some(now), said: 0 };
        }
        self.said += 1;
        match self.said.cmp(&LINES_A_MINUTE) {
            std::cmp::Ordering::Less => Some(""),
            std::cmp::Ordering::Equal => {
                Some("; further lines of this kind are not logged for a minute (see rgaps doctor, rgaps topic info)")
            }
            std::cmp::Ordering::Greater => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_lines_that_other_hosts_cause_are_limited_per_minute() {
        let start = Instant::now();
        let mut few = LogRateLimit::default();
        let said: Vec<&str> = (0..1000).filter_map(|_| few.may_log(start)).collect();
        assert_eq!(said.len(), LINES_A_MINUTE as usize);
        assert!(
            said.last().unwrap().contains("not logged") && said[..said.len() - 1].iter().all(|more| more.is_empty())
        );
        assert_eq!(few.may_log(start + Duration::from_secs(60)), Some(""));
    }
}
