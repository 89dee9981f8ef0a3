//! A runtime directory, and so a manager, for one test or one host of the demo. Nothing in it outlives its guard.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::process::{Pid, Signal, getpid, kill_process};

/// The variable by which programs find the directory.
pub const VARIABLE: &str = "RGAPS_RUNTIME_DIR";

/// A runtime directory. Dropping it kills every process that has a file in it open (a manager that a client started), and removes it.
#[derive(Debug)]
pub struct RuntimeDir(PathBuf);

impl RuntimeDir {
    /// Makes one under the system's directory for temporary files. `name` is for people.
    pub fn new(name: &str) -> io::Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        // Short: a socket's path has at most 107 bytes.
        let path = std::env::temp_dir().join(format!("rgaps-{}-{count}-{name}", std::process::id()));
        DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Self(path))
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Makes a program that is not started yet use it.
    pub fn apply(&self, command: &mut Command) {
        command.env(VARIABLE, &self.0);
    }

    /// Processes other than this one that have a file in the directory open, or are bound to a socket in it.
    pub fn users(&self) -> io::Result<Vec<u32>> {
        let own = std::process::id();
        let mut users = Vec::new();
        for entry in fs::read_dir("/proc")? {
            let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
            if pid != own && self.is_used_by(pid) {
                users.push(pid);
            }
        }
        Ok(users)
    }

    fn is_used_by(&self, pid: u32) -> bool {
        // Processes start and end meanwhile, and some belong to other users: skip those that cannot be read.
        let Ok(fds) = fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
        fds.flatten().any(|fd| fs::read_link(fd.path()).is_ok_and(|file| file.starts_with(&self.0)))
    }
}

impl Drop for RuntimeDir {
    fn drop(&mut self) {
        for pid in self.users().unwrap_or_default() {
            if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw).filter(|pid| *pid != getpid()) {
                let _ = kill_process(pid, Signal::KILL);
            }
        }
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::child::{Child, Ended};
    use std::io::{BufRead, BufReader};
    use std::process::Stdio;
    use std::time::Duration;

    #[test]
    fn dropping_the_guard_removes_the_directory_and_kills_its_manager() {
        let dir = RuntimeDir::new("guard").unwrap();
        let path = dir.path().to_owned();
        let mut command = Command::new("sh");
        command.args(["-c", r#"exec 9>"$RGAPS_RUNTIME_DIR/rgapsd.log"; echo ready; exec cat"#]);
        dir.apply(command.stdin(Stdio::piped()).stdout(Stdio::piped()));
        let mut manager = Child::spawn(&mut command).unwrap();
        let mut line = String::new();
        BufReader::new(manager.std().stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        assert_eq!(dir.users().unwrap(), [manager.id()]);
        drop(dir);
        assert!(!path.exists());
        assert!(matches!(manager.wait_within(Duration::from_secs(20)).unwrap(), Ended::Exited(_)));
    }
}
