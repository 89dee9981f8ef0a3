//! Processes of a GPU bench, and the page that they report on.

use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering;

use crate::BenchError;
use crate::host::Host;
use crate::page::{self, Children, MARK, Page};

/// Processes, numbered in the order of their start; killed and reaped on drop.
pub(super) struct Crew {
    page: Page,
    children: Children,
    bench: &'static str,
    bytes_max: u64,
}

impl Crew {
    /// No processes yet. Messages will have at most `bytes_max`.
    pub(super) fn new(bench: &'static str, bytes_max: u64) -> Result<Self, BenchError> {
        Ok(Self { page: Page::new(bench)?, children: Children::default(), bench, bytes_max })
    }

    /// Starts a process in a role of `roles`, with further arguments and, for some roles, sockets as its input and output.
    pub(super) fn add(
        &mut self,
        role: &[&str],
        input: Option<OwnedFd>,
        output: Option<OwnedFd>,
    ) -> Result<(), BenchError> {
        let mut command = Command::new(page::program());
        command.args(["bench", "gpu-role", "--page", &self.page.path()]);
        command.args(["--slot", &self.children.count().to_string(), "--bytes-max", &self.bytes_max.to_string()]);
        command.args(role).env("RGAPS_AUTOSTART", "0");
        command.stdin(input.map_or_else(Stdio::null, Stdio::from));
        if let Some(output) = output {
            command.stdout(output);
        }
        self.children.spawn(self.bench, &mut command)
    }

    /// Starts `count` processes that take a topic's messages.
    pub(super) fn add_takers(&mut self, host: &Host, role: &[&str], topic: &str, count: u64) -> Result<(), BenchError> {
        let dir = host.dir().to_string_lossy();
        let role = [role, &["--runtime-dir", dir.as_ref(), "--topic", topic]].concat();
        (0..count).try_for_each(|_| self.add(&role, None, None))
    }

    /// Waits until all processes are waiting.
    pub(super) fn ready(self) -> Result<Self, BenchError> {
        self.page.wait_until_ready(self.children.count())?;
        Ok(self)
    }

    /// The page on which they report.
    pub(super) fn page(&self) -> &Page {
        &self.page
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        self.page.round().store(MARK, Ordering::SeqCst);
    }
}
