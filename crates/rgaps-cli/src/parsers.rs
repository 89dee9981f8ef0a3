//! Parsers of arguments, for clap.

use std::time::Duration;

/// The longest time that a command accepts: 31 years, which an `Instant` can hold.
const SECONDS_MAX: f64 = 1e9;

/// A time in seconds.
pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.0..=SECONDS_MAX).contains(seconds));
    seconds
        .map(Duration::from_secs_f64)
        .ok_or_else(|| format!("it must be a number of seconds from 0 to {SECONDS_MAX}"))
}

/// The time between two messages, from messages a second.
pub(crate) fn period(text: &str) -> Result<Duration, String> {
    let rate: Option<f64> = text.parse().ok().filter(|rate: &f64| rate.is_finite() && *rate >= 1.0 / SECONDS_MAX);
    rate.map(|rate| Duration::from_secs_f64(1.0 / rate))
        .ok_or_else(|| format!("it must be a number of messages a second, at least {}", 1.0 / SECONDS_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_that_are_no_times_are_refused() {
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        assert_eq!(seconds("1000000000"), Ok(Duration::from_secs(1_000_000_000)));
        assert_eq!(period("4"), Ok(Duration::from_millis(250)));
        assert_eq!(period("1e300"), Ok(Duration::ZERO));
        for wrong in ["-1", "nan", "inf", "1e10", "soon", ""] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
        for wrong in ["-1", "nan", "inf", "0", "1e-300", "often"] {
            assert!(period(wrong).is_err(), "{wrong}");
        }
    }
}
