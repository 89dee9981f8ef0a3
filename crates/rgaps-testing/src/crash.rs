//! The parent's side of crash points: arms one in a child, and waits until the child has died or stopped there.
//!
//! A program with crash points reads `RGAPS_CRASH_POINT=name[:count][:kill|stop]`: when it passes the point `name` for the `count`-th time
//! (default 1), it sends itself SIGKILL (`kill`, the default) or SIGSTOP (`stop`). The points and their list are in rgaps-shm, `crash.rs`;
//! programs built without debug assertions have none.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::time::Duration;

use crate::child::{Child, Ended};

/// The variable that arms a crash point.
pub const VARIABLE: &str = "RGAPS_CRASH_POINT";

/// What the child does at its crash point.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Action {
    /// SIGKILL.
    #[default]
    Kill,
    /// SIGSTOP.
    Stop,
}

/// A crash point to arm in a child.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CrashPoint {
    name: String,
    count: u32,
    action: Action,
}

impl CrashPoint {
    /// Kills the child at its first passage.
    pub fn new(name: &str) -> Self {
        Self { name: name.to_owned(), count: 1, action: Action::Kill }
    }

    /// Acts at the `count`-th passage instead, counted from 1.
    pub fn at_passage(mut self, count: u32) -> Self {
        self.count = count;
        self
    }

    /// Stops or kills the child.
    pub fn doing(mut self, action: Action) -> Self {
        self.action = action;
        self
    }

    /// The value of the variable.
    pub fn value(&self) -> String {
        let action = match self.action {
            Action::Kill => "kill",
            Action::Stop => "stop",
        };
        format!("{}:{}:{action}", self.name, self.count)
    }

    /// Arms it in a command that is not started yet.
    pub fn arm(&self, command: &mut Command) {
        command.env(VARIABLE, self.value());
    }

    /// Waits until the child has died or stopped there. False if it ended otherwise or did not pass the point within `limit`.
    pub fn wait_for(&self, child: &mut Child, limit: Duration) -> io::Result<bool> {
        let ended = child.wait_end_or_stop_within(limit)?;
        Ok(match self.action {
            Action::Kill => matches!(ended, Ended::Exited(status) if status.signal() == Some(9)),
            Action::Stop => ended == Ended::Stopped,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(20);

    /// A shell that passes one point and obeys the variable as programs do.
    fn program() -> Command {
        let mut command = Command::new("sh");
        command.args([
            "-c",
            r#"case "$RGAPS_CRASH_POINT" in publish.reserved:1:kill) kill -KILL $$ ;; publish.reserved:1:stop) kill -STOP $$ ;; esac"#,
        ]);
        command
    }

    #[test]
    fn a_child_dies_stops_or_misses_its_point() {
        for action in [Action::Kill, Action::Stop] {
            let point = CrashPoint::new("publish.reserved").doing(action);
            let mut command = program();
            point.arm(&mut command);
            let mut child = Child::spawn(&mut command).unwrap();
            assert!(point.wait_for(&mut child, LIMIT).unwrap(), "{action:?}");
        }
        let missed = CrashPoint::new("publish.reserved").at_passage(2);
        assert_eq!(missed.value(), "publish.reserved:2:kill");
        let mut command = program();
        missed.arm(&mut command);
        let mut child = Child::spawn(&mut command).unwrap();
        assert!(!missed.wait_for(&mut child, LIMIT).unwrap());
    }
}
