//! Decides which refusals are logged: each once for each publisher and reason, so that playing a bag does not fill the log.
//!
//! Bounds      The last 64 refusals are remembered. Once there are 64, only one new refusal a second is logged: each forged descriptor may name
//!             another publisher.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Refusals remembered.
pub const REMEMBERED_MAX: usize = 64;
/// Time between two logged refusals once so many are remembered.
pub const PAUSE: Duration = Duration::from_secs(1);

/// The refusals that were logged. `R` is a reason.
#[derive(Debug)]
pub struct Refusals<R> {
    /// The latest is first.
    told: VecDeque<(u64, R)>,
    last: Option<Instant>,
}

impl<R> Default for Refusals<R> {
    fn default() -> Self {
        Self { told: VecDeque::new(), last: None }
    }
}

impl<R: PartialEq> Refusals<R> {
    /// Whether to log a refusal, which is then remembered.
    ///
    /// ```
    /// use std::time::Instant;
    ///
    /// use rgaps_ros_policy::refusals::Refusals;
    ///
    /// let (mut refusals, now) = (Refusals::default(), Instant::now());
    /// assert!(refusals.is_news(now, 7, "stale")); // logged
    /// assert!(!refusals.is_news(now, 7, "stale"));
    /// assert!(refusals.is_news(now, 8, "stale")); // another publisher
    /// ```
    pub fn is_news(&mut self, now: Instant, publisher: u64, reason: R) -> bool {
        let refusal = (publisher, reason);
        if self.told.contains(&refusal) {
            return false;
        }
        let is_soon = self.last.is_some_and(|last| now.saturating_duration_since(last) < PAUSE);
        if self.told.len() >= REMEMBERED_MAX && is_soon {
            return false;
        }
        self.last = Some(now);
        self.told.push_front(refusal);
        self.told.truncate(REMEMBERED_MAX);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_publisher_and_reason_is_news_once() {
        let (mut refusals, now) = (Refusals::default(), Instant::now());
        assert!(refusals.is_news(now, 1, "stale"));
        assert!(!refusals.is_news(now + PAUSE * 100, 1, "stale"));
        assert!(refusals.is_news(now, 1, "early") && refusals.is_news(now, 2, "stale"));
    }

    #[test]
    fn of_more_publishers_than_are_remembered_one_a_second_is_news() {
        let (mut refusals, now) = (Refusals::default(), Instant::now());
        let forged = 0..100_000;
        let told = forged.clone().filter(|publisher| refusals.is_news(now, *publisher, ())).count();
        assert_eq!(told, REMEMBERED_MAX);
        let mut later = now;
        for publisher in forged.start + 1_000_000..1_000_010 {
            assert!(!refusals.is_news(later + PAUSE - Duration::from_nanos(1), publisher, ()));
            later += PAUSE;
            assert!(refusals.is_news(later, publisher, ()), "what was not logged is not remembered");
        }
    }

    #[test]
    fn the_oldest_refusal_is_forgotten_first() {
        let (mut refusals, mut now) = (Refusals::default(), Instant::now());
        for publisher in 0..=REMEMBERED_MAX as u64 {
            now += PAUSE;
            assert!(refusals.is_news(now, publisher, ()));
        }
        now += PAUSE;
        assert!(!refusals.is_news(now, 1, ()) && refusals.is_news(now, 0, ()));
    }
}
