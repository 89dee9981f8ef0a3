//! Starting a manager on demand: if no manager listens in the runtime directory, the first client starts `rgapsd` and waits for it.
//!
//! The client looks for `rgapsd` in RGAPSD, beside this program, one folder up (tests are in a sub-folder), beside the library that this code is
//! part of (as in a Python wheel) or in the bin folder next to it, and in PATH. The manager runs in its own session with a clean environment. It
//! reports on a pipe when it listens, or why it does not (`StartOutcome`). A lock file keeps clients that start at the same time from starting
//! several managers. RGAPS_AUTOSTART=0 turns all this off.

mod outcome;
mod pauses;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use self::outcome::{Heard, hear};
pub use self::outcome::{StartOutcome, fuzz_outcome};
pub use self::pauses::Pauses;
use crate::config::{ConfigError, Given, variable};
use crate::local::{Connection, LocalError};
use crate::range::Unset;
use crate::runtime::{RuntimeDir, RuntimeError, open_private};
use crate::runtime_path::NoManager;
use crate::text::plain;

/// How long a manager may take to listen.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// How long the started process may take to detach and exit.
const DETACH_TIMEOUT: Duration = Duration::from_secs(2);
/// Pause between two attempts of a waiting client to connect.
const LOOK_INTERVAL: Duration = Duration::from_millis(5);
/// How long a manager that has the directory may neither listen nor leave before the client tries another start.
const TAKEN_INTERVAL: Duration = Duration::from_millis(200);
/// How long other clients wait for the client that has begun to start a manager, which may be stopped. The manager's own lock excludes a second one.
const TURN_TIMEOUT: Duration = Duration::from_secs(2);
/// Variables that a manager inherits from the client that starts it.
const KEPT: [&str; 9] = [
    "PATH",
    "HOME",
    "LD_LIBRARY_PATH",
    "XDG_RUNTIME_DIR",
    "XDG_CONFIG_HOME",
    "RUST_LOG",
    "TMPDIR",
    "LANG",
    "RMW_IMPLEMENTATION",
];
/// It also inherits variables with these prefixes: manager and clients must see the same devices, through the same MPS server.
const KEPT_PREFIXES: [&str; 4] = ["RGAPS_", "ROS_", "CUDA_", "NVIDIA_"];
/// It does not inherit these, which debug the one client.
const NOT_KEPT: [&str; 3] = ["RGAPS_CRASH_POINT", "CUDA_INJECTION64_PATH", "CUDA_LAUNCH_BLOCKING"];

/// No manager runs, and none could be started.
#[derive(Debug, thiserror::Error)]
pub enum SpawnError {
    /// The runtime directory cannot be used.
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
    /// A manager's socket exists, but connecting to it failed.
    #[error(transparent)]
    Local(#[from] LocalError),
    /// The configuration is invalid. Checked before the start, since a manager would report it in its log only.
    #[error("no rgapsd runs, and the configuration is wrong: {0}")]
    Config(#[source] Box<ConfigError>),
    /// Starting is turned off.
    #[error(
        "{0}, and none is started (RGAPS_AUTOSTART=0, or the node's builder): start rgapsd or a node first, or set RGAPS_RUNTIME_DIR if they use another directory"
    )]
    Forbidden(Box<NoManager>),
    /// The directory and its manager are another user's.
    #[error(
        "{path} is of user {user}, whose rgapsd cannot be reached: {why}; that user must run it, with a group of yours as socket_group"
    )]
    Guest {
        /// The directory.
        path: PathBuf,
        /// The owner's user id.
        user: u32,
        /// Why it cannot be reached.
        why: String,
    },
    /// There is no program to start.
    #[error(
        "no rgapsd runs, and none was found beside this program or its librgaps, or in PATH; install it or set RGAPSD to its path"
    )]
    NotFound,
    /// RGAPSD names no file.
    #[error(
        "no rgapsd runs, and RGAPSD is {0}, which is not a file; correct it, or unset it to search the usual folders"
    )]
    Named(PathBuf),
    /// It could not be started.
    #[error("{program} could not be started: {source}")]
    Start {
        /// The program.
        program: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It started, failed, and said why.
    #[error("rgapsd did not start: {0}")]
    Failed(String),
    /// It started and ended without a report; its log may say why.
    #[error("{program} ended before it listened; its log, {log}, ends with: {last}")]
    Ended {
        /// The program.
        program: PathBuf,
        /// The log file.
        log: PathBuf,
        /// Its last line since we began.
        last: String,
    },
    /// It was started but does not listen.
    #[error("{program} did not listen within {seconds} s; its log, {log}, ends with: {last}")]
    Silent {
        /// The program.
        program: PathBuf,
        /// How long we waited.
        seconds: u64,
        /// The log file.
        log: PathBuf,
        /// Its last line since we began.
        last: String,
    },
}

/// Whether a client may start a manager.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Autostart {
    /// It may, if none runs, unless RGAPS_AUTOSTART=0.
    #[default]
    OnDemand,
    /// Like `OnDemand`, for a ROS 2 node: if no setting decides about the network, the manager does what the node's RMW does.
    ForRos,
    /// It may not: another program starts the manager, perhaps with its own configuration.
    Never,
}

impl Autostart {
    /// The range if no setting decides about the network.
    pub fn unset(self) -> Unset {
        if self == Self::ForRos { Unset::Subnet } else { Unset::Local }
    }
}

/// Connects to the manager of a runtime directory; starts one if none listens and that is allowed.
pub fn connect(dir: &RuntimeDir, autostart: Autostart) -> Result<Connection, SpawnError> {
    if let Some(user) = dir.host_user() {
        let unreachable = |why: String| SpawnError::Guest { path: dir.path().to_owned(), user, why };
        let found = Connection::connect(&dir.socket()).map_err(|error| unreachable(error.to_string()))?;
        return found.ok_or_else(|| unreachable("no rgapsd runs there".to_owned()));
    }
    let no_manager = || dir.runtime_path().no_manager();
    // Another process may have created the directory again meanwhile: check it.
    let dir = &RuntimeDir::open(dir.path())?;
    if let Some(connection) = Connection::connect(&dir.socket())? {
        return Ok(connection);
    }
    if autostart == Autostart::Never || is_turned_off() {
        return Err(SpawnError::Forbidden(Box::new(no_manager())));
    }
    let no_manager = no_manager();
    if no_manager.elsewhere.is_some() {
        tracing::warn!("{no_manager}");
    }
    Given::load(&BTreeMap::new(), autostart.unset()).map_err(|error| SpawnError::Config(Box::new(error)))?;
    let deadline = Instant::now() + START_TIMEOUT;
    let log = Log::new(dir);
    let mut program = PathBuf::from("rgapsd");
    let mut turn = Instant::now() + TURN_TIMEOUT;
    let mut removed = None;
    while Instant::now() < deadline {
        // The client that gets the lock starts a manager; the others poll the socket.
        let lock = match RuntimeDir::open(dir.path()).and_then(|dir| dir.try_lock("start.lock")) {
            // A manager that exits in order removes the directory.
            Err(error) if error.is_removed() => {
                removed = Some(error);
                std::thread::sleep(LOOK_INTERVAL);
                continue;
            }
            // The disk has no room for the lock file. The manager's own lock still excludes a second one.
            Err(error) if error.is_lack_of_room() => StartLock::Unavailable,
            Err(error) => return Err(error.into()),
            Ok(None) => StartLock::HeldByOther,
            Ok(Some(lock)) => StartLock::Held { _lock: lock },
        };
        removed = None;
        if let Some(connection) = Connection::connect(&dir.socket())? {
            return Ok(connection);
        }
        if matches!(lock, StartLock::HeldByOther) && Instant::now() < turn {
            std::thread::sleep(LOOK_INTERVAL);
            continue;
        }
        turn = Instant::now() + TURN_TIMEOUT;
        let (started, heard) = start(dir, autostart, deadline)?;
        program = started;
        match heard {
            Heard::Said(StartOutcome::Failed(reason)) => return Err(SpawnError::Failed(reason)),
            Heard::Nothing => {
                // RGAPSD may be a script that does not pass on the manager's report.
                let found = wait_for_socket(dir, deadline.min(Instant::now() + DETACH_TIMEOUT))?;
                return found.ok_or_else(|| SpawnError::Ended { program, log: dir.log(), last: log.last_line() });
            }
            Heard::Said(StartOutcome::Taken) => {
                if let Some(connection) = wait_for_socket(dir, deadline.min(Instant::now() + TAKEN_INTERVAL))? {
                    return Ok(connection);
                }
            }
            Heard::Said(StartOutcome::Listens) | Heard::TooLate => {}
        }
    }
    // A manager may have begun to listen just now.
    let found = Connection::connect(&dir.socket())?;
    let seconds = START_TIMEOUT.as_secs();
    let silent = || SpawnError::Silent { program, seconds, log: dir.log(), last: log.last_line() };
    found.ok_or_else(|| removed.map_or_else(silent, SpawnError::from))
}

/// Which client may start a manager.
enum StartLock {
    HeldByOther,
    /// This one, for as long as it holds the lock.
    Held {
        _lock: File,
    },
    /// Any client: the lock file could not be made.
    Unavailable,
}

/// Whether RGAPS_AUTOSTART forbids clients to start a manager: by 0, false, no or off.
pub fn is_turned_off() -> bool {
    let text = std::env::var("RGAPS_AUTOSTART").unwrap_or_default();
    ["0", "false", "no", "off"].contains(&text.to_ascii_lowercase().as_str())
}

/// Finds the program `rgapsd`.
pub fn find_program() -> Option<PathBuf> {
    if let Some(path) = variable("RGAPSD") {
        return Some(PathBuf::from(path)).filter(|path| path.is_file());
    }
    // Unknown in a process whose main thread has ended.
    let own = std::env::current_exe().ok();
    let beside = own.iter().flat_map(|own| own.ancestors().skip(1).take(2)).map(|folder| folder.join("rgapsd"));
    let library = own_library().into_iter().flat_map(|library| {
        let above = library.parent().and_then(Path::parent).map(|folder| folder.join("bin/rgapsd"));
        [library.with_file_name("rgapsd")].into_iter().chain(above)
    });
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let in_path = std::env::split_paths(&paths).map(|folder| folder.join("rgapsd")).collect::<Vec<_>>();
    beside.chain(library).chain(in_path).find(|path| path.is_file())
}

/// The error that no program was found, with the value of RGAPSD.
fn not_found(named: Option<OsString>) -> SpawnError {
    named.map_or(SpawnError::NotFound, |path| SpawnError::Named(path.into()))
}

/// The file that this code was loaded from: the program itself, or a shared library of it.
fn own_library() -> Option<PathBuf> {
    let address = own_library as fn() -> Option<PathBuf> as usize;
    // start-end mode offset device inode path
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    maps.lines().find_map(|line| {
        let (start, rest) = line.split_once('-')?;
        let (end, _) = rest.split_once(' ')?;
        let hex = |text| usize::from_str_radix(text, 16).ok();
        let is_here = (hex(start)?..hex(end)?).contains(&address);
        line.find('/').filter(|_| is_here).map(|path| PathBuf::from(&line[path..]))
    })
}

/// Starts a manager and waits for its report.
fn start(dir: &RuntimeDir, autostart: Autostart, deadline: Instant) -> Result<(PathBuf, Heard), SpawnError> {
    let program = find_program().ok_or_else(|| not_found(variable("RGAPSD")))?;
    let failed = |source| SpawnError::Start { program: program.clone(), source };
    // A manager without a log is better than none.
    let log = open_private(&dir.log(), File::options().append(true));
    let log = log.or_else(|_| File::options().write(true).open("/dev/null")).map_err(failed)?;
    let kept = std::env::vars_os().filter(|(name, _)| {
        let name = name.to_string_lossy();
        let is_kept = KEPT.contains(&name.as_ref()) || KEPT_PREFIXES.iter().any(|prefix| name.starts_with(prefix));
        is_kept && !NOT_KEPT.contains(&name.as_ref())
    });
    let mut command = Command::new(&program);
    command.env_clear().envs(kept).env("RGAPS_RUNTIME_DIR", dir.path());
    command
        .arg("--on-demand")
        .args((autostart == Autostart::ForRos).then_some("--ros"))
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log);
    let mut child = command.spawn().map_err(failed)?;
    let heard = match child.stdout.take() {
        Some(pipe) => hear(&File::from(OwnedFd::from(pipe)), deadline).map_err(failed)?,
        None => Heard::Nothing,
    };
    // The child exits at once, since rgapsd --on-demand starts itself again in its own session. If another program does not exit, leave it running.
    let deadline = Instant::now() + DETACH_TIMEOUT;
    // An error means that other code of this process has reaped the child: it has exited too.
    while Instant::now() < deadline && matches!(child.try_wait(), Ok(None)) {
        std::thread::sleep(LOOK_INTERVAL);
    }
    Ok((program, heard))
}

fn wait_for_socket(dir: &RuntimeDir, deadline: Instant) -> Result<Option<Connection>, SpawnError> {
    while Instant::now() < deadline {
        if let Some(connection) = Connection::connect(&dir.socket())? {
            return Ok(Some(connection));
        }
        std::thread::sleep(LOOK_INTERVAL);
    }
    Ok(None)
}

/// The part of the log that a new manager writes: earlier lines are of earlier managers.
struct Log {
    path: PathBuf,
    from: u64,
}

impl Log {
    fn new(dir: &RuntimeDir) -> Self {
        let path = dir.log();
        let from = fs::metadata(&path).map_or(0, |log| log.len());
        Self { path, from }
    }

    fn last_line(&self) -> String {
        let bytes = fs::read(&self.path).unwrap_or_default();
        // If the file is shorter, an exiting manager has removed the log, and this is a new one.
        let from = usize::try_from(self.from).ok().filter(|from| *from <= bytes.len()).unwrap_or(0);
        let text = String::from_utf8_lossy(&bytes[from..]).into_owned();
        plain(text.lines().last().unwrap_or("(nothing)")).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_that_code_was_loaded_from_is_found() {
        assert_eq!(own_library(), std::env::current_exe().ok());
    }

    #[test]
    fn an_rgapsd_variable_that_names_no_file_is_reported_with_its_path() {
        assert!(not_found(Some("/nowhere/rgapsd".into())).to_string().contains("RGAPSD is /nowhere/rgapsd"));
        assert!(not_found(None).to_string().contains("set RGAPSD"));
    }
}
