//! The circumstances of a run: when, on what, and which versions.

use std::collections::BTreeMap;
use std::ffi::OsString;

use jiff::Timestamp;
use rgaps_command::output;
use serde::{Deserialize, Serialize};

use crate::quoted;

/// The circumstances of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Circumstances {
    pub(crate) date: String,
    pub(crate) machine: Machine,
    /// The GPU of GPU benches.
    pub(crate) gpu: Option<Gpu>,
    /// `git describe` of what was built.
    pub(crate) commit: String,
    /// Versions by name: RGAPS, and what it was measured beside.
    pub(crate) versions: BTreeMap<String, String>,
    pub(crate) command: String,
}

/// A machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Machine {
    pub(crate) processor: String,
    pub(crate) cores: usize,
    pub(crate) memory_bytes: u64,
    pub(crate) kernel: String,
}

/// A GPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Gpu {
    /// Name, memory, capability, UUID.
    pub(crate) device: String,
    pub(crate) driver: String,
}

impl Circumstances {
    pub(crate) fn now(commit: &str, gpu: Option<Gpu>) -> Self {
        let ours = [("rgaps".to_owned(), env!("CARGO_PKG_VERSION").to_owned())];
        #[cfg(feature = "iceoryx2")]
        let ours = ours.into_iter().chain([("iceoryx2".to_owned(), locked("iceoryx2"))]);
        Self {
            date: date(rgaps_os::clock::realtime_ns() / 1_000_000_000),
            machine: Machine::this(),
            gpu,
            commit: commit.to_owned(),
            versions: ours.into_iter().collect(),
            command: command(std::env::args_os().skip(1)),
        }
    }

    /// What was measured on: the GPU or the processor.
    pub(crate) fn subject(&self) -> &str {
        match &self.gpu {
            Some(gpu) => gpu.device.split(',').next().unwrap_or(&gpu.device),
            None => &self.machine.processor,
        }
    }

    /// Names and values, for people.
    pub(crate) fn notes(&self) -> Vec<(&'static str, String)> {
        let Machine { processor, cores, memory_bytes, kernel } = &self.machine;
        let memory = output::bytes(*memory_bytes as f64);
        let mut notes = vec![
            ("date", self.date.clone()),
            ("machine", format!("{processor}, {cores} cores, {memory} of memory, Linux {kernel}")),
        ];
        if let Some(Gpu { device, driver }) = &self.gpu {
            notes.extend([("device", device.clone()), ("driver", driver.clone())]);
        }
        let versions: Vec<String> = self.versions.iter().map(|(name, version)| format!("{name} {version}")).collect();
        notes.extend([
            ("commit", self.commit.clone()),
            ("versions", versions.join(", ")),
            ("command", self.command.clone()),
        ]);
        notes
    }
}

/// The command of a run, for a shell; what is not Unicode in an argument is shown as U+FFFD.
fn command(arguments: impl Iterator<Item = OsString>) -> String {
    arguments.fold("rgaps".to_owned(), |all, argument| format!("{all} {}", quoted(&argument.to_string_lossy())))
}

impl Machine {
    fn this() -> Self {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let (cpuinfo, meminfo) = (read("/proc/cpuinfo"), read("/proc/meminfo"));
        let processor = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split(": ").nth(1));
        let memory = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"));
        let kib = memory.and_then(|rest| rest.split_whitespace().next()).and_then(|number| number.parse::<u64>().ok());
        Self {
            processor: processor.unwrap_or("an unknown processor").to_owned(),
            cores: std::thread::available_parallelism().map_or(0, usize::from),
            memory_bytes: kib.unwrap_or(0) << 10,
            kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
        }
    }
}

/// The version of a crate that the build used, by its lock file.
#[cfg(feature = "iceoryx2")]
fn locked(name: &str) -> String {
    let lock = include_str!("../../../../Cargo.lock");
    let found = lock.split("\n\n").find_map(|package| package.split_once(&format!("name = \"{name}\"\nversion = \"")));
    found.and_then(|(_, rest)| rest.split('"').next()).unwrap_or("unknown").to_owned()
}

/// The UTC date of a time in seconds since 1970.
pub(super) fn date(seconds: u64) -> String {
    let time = i64::try_from(seconds).ok().and_then(|seconds| Timestamp::from_second(seconds).ok());
    time.map_or_else(|| seconds.to_string(), |time| time.strftime("%Y-%m-%d").to_string())
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt;

    use super::*;

    #[test]
    fn the_command_of_a_run_can_be_pasted_into_a_shell() {
        let arguments = [&b"bench"[..], b"--only", b"64 B beside iceoryx2", b"--report", b"caf\xe9"];
        let arguments = arguments.map(|argument| OsString::from_vec(argument.to_vec()));
        let expected = "rgaps bench --only '64 B beside iceoryx2' --report 'caf\u{fffd}'";
        assert_eq!(command(arguments.into_iter()), expected);
    }
}
