//! Pauses between starts of a manager that fails: each costs two processes, and perhaps the driver of a GPU.

use std::time::{Duration, Instant};

use super::{Autostart, SpawnError};

/// The pause after the first failure; each further failure doubles it.
const FIRST: Duration = Duration::from_millis(250);
/// The longest pause.
const LONGEST: Duration = Duration::from_secs(10);

/// When a client that has lost its manager may start the next one. It may look for a manager that another client has started at any time.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pauses {
    next: Option<(Instant, Duration)>,
}

impl Pauses {
    /// What a client may do now, if it is allowed `wanted`.
    pub fn autostart(&self, wanted: Autostart, now: Instant) -> Autostart {
        if self.next.is_some_and(|(next, _)| now < next) { Autostart::Never } else { wanted }
    }

    /// Notes a failed attempt. If a manager was started and failed, the next start must wait.
    pub fn note(&mut self, error: &SpawnError, now: Instant) {
        if matches!(error, SpawnError::Failed(_) | SpawnError::Ended { .. }) {
            let pause = self.next.map_or(FIRST, |(_, pause)| LONGEST.min(2 * pause));
            self.next = Some((now + pause, pause));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime_path::RuntimePath;

    #[test]
    fn failing_starts_become_rare_but_looking_does_not() {
        let no_manager = RuntimePath::of_environment().no_manager();
        let begin = Instant::now();
        let mut pauses = Pauses::default();
        let (mut starts, mut looks) = (0, 0);
        for step in 0..60_000_u64 {
            let now = begin + Duration::from_millis(step);
            match pauses.autostart(Autostart::OnDemand, now) {
                Autostart::OnDemand | Autostart::ForRos => {
                    starts += 1;
                    pauses.note(&SpawnError::Failed("no GPU".to_owned()), now);
                }
                Autostart::Never => {
                    looks += 1;
                    pauses.note(&SpawnError::Forbidden(Box::new(no_manager.clone())), now);
                }
            }
        }
        // At 0, 0.25, 0.75, 1.75, 3.75, 7.75, 15.75, 25.75, 35.75, 45.75 and 55.75 s.
        assert_eq!((starts, starts + looks), (11, 60_000));
        let never = Pauses::default().autostart(Autostart::Never, begin);
        assert_eq!(never, Autostart::Never);
    }
}
