//! Other middleware beside ours: processes of programs in the folder that `--peers` names. bench/peers builds them.
//!
//! ```text
//!   bench ─▶ publisher    publish COUNT      a line on standard input; its end ends the process
//!   publisher ─▶ bench    ready              on standard output
//!                         sent NUMBER NS     the last message, and the monotonic time just before the first one was published
//!   subscriber ─▶ bench   ready
//!                         got NUMBER NS      the last message of each `publish`, and when it was received, or read
//! ```
//!
//! A publisher with one message to publish fills it first, waits until subscribers sleep again, then takes the time, as `local` does with ours. If a
//! peer cannot be measured, its row says why, and the others are measured all the same.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use rgaps_testing::RuntimeDir;
use rustix::fs::{OFlags, fcntl_setfl};

use crate::measure::{Pairs, median};
use crate::network::Network;
use crate::page::PATIENCE;
use crate::row::Row;
use crate::{BenchError, cpu, host};

/// The longest time in which a message reaches subscribers that are connected; first attempts wait less.
const HELLO: Duration = Duration::from_secs(8);
/// Rounds beside a peer end after this time: some need seconds for a large message.
const LIMIT: Duration = Duration::from_secs(30);
/// How soon a process ends by itself when its standard input does.
const END: Duration = Duration::from_secs(2);
/// A program tells its versions within this time, in so many lines.
const VERSIONS: Duration = Duration::from_secs(3);
const VERSION_LINES_MAX: usize = 16;
/// The longest line.
const LINE_BYTES_MAX: usize = 4 << 10;

/// A middleware and its transport.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer {
    /// For people.
    pub(crate) name: &'static str,
    /// The program in the peers' folder, and its name for this system.
    program: &'static str,
    system: &'static str,
    /// What a process is told of where it is.
    address: fn(&Place<'_>) -> String,
}

/// Where a process of a peer is.
struct Place<'a> {
    /// A folder of the crowd.
    folder: &'a Path,
    publisher: Ipv4Addr,
    own: Ipv4Addr,
    other: Ipv4Addr,
    /// Free where the publisher is.
    port: u16,
}

const ZENOH_TCP: Peer = Peer {
    name: "zenoh TCP",
    program: "rgaps-peers",
    system: "zenoh-tcp",
    address: |place| format!("tcp/{}:{}", place.publisher, place.port),
};

/// Peers on one host.
pub(crate) const LOCAL: [Peer; 3] = [
    Peer { name: "zenoh SHM", system: "zenoh-shm", ..ZENOH_TCP },
    ZENOH_TCP,
    Peer {
        name: "ZeroMQ ipc",
        program: "rgaps-peers",
        system: "zeromq",
        address: |place| format!("ipc://{}/zeromq", place.folder.display()),
    },
];

/// Peers from host to host.
pub(crate) const HOST_TO_HOST: [Peer; 4] = [
    ZENOH_TCP,
    Peer {
        name: "ZeroMQ TCP",
        program: "rgaps-peers",
        system: "zeromq",
        address: |place| format!("tcp://{}:{}", place.publisher, place.port),
    },
    Peer { name: "Cyclone DDS", program: "rgaps-peers-cyclonedds", system: "cyclonedds", address: dds_domain },
    Peer { name: "Fast DDS", program: "rgaps-peers-fastdds", system: "fastdds", address: dds_domain },
];

/// The number of a domain that probably no other program of the host is in, and the addresses of both sides.
fn dds_domain(place: &Place<'_>) -> String {
    format!("{}/{}/{}", place.port % 200 + 1, place.own, place.other)
}

/// What a crowd of processes does.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) bytes: u64,
    /// Subscribers read the whole message.
    pub(crate) read: bool,
    /// Number of subscriber processes.
    pub(crate) count: u64,
    /// Messages that may be under way, for a middleware that asks for room in advance.
    pub(crate) depth: u64,
}

/// Why a pair of rounds has no figure.
pub(crate) enum Failed {
    /// Ours.
    Ours(BenchError),
    /// The peer's reason.
    Peer(String),
}

/// A publisher process and its subscriber processes.
pub(crate) struct Crowd {
    publisher: Process,
    subscribers: Vec<Process>,
    // Dropped after the processes.
    _folder: RuntimeDir,
}

/// Whether a reference is a peer.
pub(crate) fn is_one(reference: &str) -> bool {
    LOCAL.iter().chain(&HOST_TO_HOST).any(|peer| peer.name == reference)
}

/// The versions that the programs in a folder have built in.
pub(crate) fn versions(folder: &Path) -> Vec<(String, String)> {
    let mut programs: Vec<&str> = LOCAL.iter().chain(&HOST_TO_HOST).map(|peer| peer.program).collect();
    programs.dedup();
    let split = |line: String| line.rsplit_once(' ').map(|(name, version)| (name.to_owned(), version.to_owned()));
    programs.into_iter().flat_map(|name| version_lines(&folder.join(name))).filter_map(split).collect()
}

/// What a program says of its versions, within a time and a number of lines; nothing if it cannot be started.
fn version_lines(program: &Path) -> Vec<String> {
    let mut command = Command::new(program);
    command.arg("versions").stdin(Stdio::null()).stderr(Stdio::null());
    let Ok(mut process) = Process::spawn(&mut command, program.display().to_string(), Path::new("/dev/null")) else {
        return Vec::new();
    };
    let until = Instant::now() + VERSIONS;
    std::iter::from_fn(|| process.line(until).ok().flatten()).take(VERSION_LINES_MAX).collect()
}

/// Pairs of rounds, ours and a peer's.
pub(crate) fn pairs(
    rounds: usize,
    mut ours: impl FnMut() -> Result<f64, BenchError>,
    mut theirs: impl FnMut() -> Result<f64, String>,
) -> Result<Pairs, Failed> {
    Pairs::run_within(LIMIT, rounds, || ours().map_err(Failed::Ours), || theirs().map_err(Failed::Peer))
}

/// The rows that were measured beside a peer; or for each case, with its unit, the row that says why there is none.
pub(crate) fn rows(
    bench: &'static str,
    cases: &[(String, &'static str)],
    peer: &Peer,
    found: Result<Vec<Row>, Failed>,
) -> Result<Vec<Row>, BenchError> {
    let missing = |why: &str| {
        let row = |(case, unit): &(String, &'static str)| Row::missing((bench, case.clone()), peer.name, unit, why);
        cases.iter().map(row).collect()
    };
    match found {
        Ok(rows) => Ok(rows),
        Err(Failed::Ours(error)) => Err(error),
        Err(Failed::Peer(why)) => Ok(missing(&why)),
    }
}

impl Crowd {
    /// Starts the processes, and returns when a message has reached every subscriber.
    pub(crate) fn new(folder: &Path, peer: &Peer, network: &Network, load: Load) -> Result<Self, String> {
        let program = folder.join(peer.program);
        if !program.is_file() {
            return Err(format!("there is no program {} in {}", peer.program, folder.display()));
        }
        let own = RuntimeDir::new("peer").map_err(|error| format!("a folder: {error}"))?;
        let [port] = host::free_ports("peers").map_err(|error| error.to_string())?;
        let start = |role: &str, number: u64, arguments: &[&str]| {
            let side = usize::from(role == "subscriber");
            let [publisher, here, other] = [0, side, 1 - side].map(|side| network.address(side));
            let place = Place { folder: own.path(), publisher, own: here, other, port };
            let mut command = network.command(side, &program);
            command.args([role, peer.system, &(peer.address)(&place)]).args(arguments);
            Process::start(
                &mut command,
                format!("{role} of {}", peer.name),
                &own.path().join(format!("{role}-{number}.log")),
            )
        };
        let publisher =
            start("publisher", 0, &["--bytes", &load.bytes.to_string(), "--depth", &load.depth.to_string()])?;
        let read = if load.read { &["--read"][..] } else { &[] };
        let subscribers = (0..load.count).map(|number| start("subscriber", number, read));
        let subscribers = subscribers.collect::<Result<Vec<_>, _>>()?;
        let mut crowd = Self { publisher, subscribers, _folder: own };
        crowd.connect()?;
        Ok(crowd)
    }

    /// Publishes until a message has reached every subscriber: each middleware finds its peers in its own way and time.
    fn connect(&mut self) -> Result<(), String> {
        let deadline = Instant::now() + PATIENCE;
        let mut patience = Duration::from_millis(50);
        while Instant::now() < deadline {
            let (number, _) = self.publish(1)?;
            let until = Instant::now() + patience;
            let mut reached = 0;
            for subscriber in &mut self.subscribers {
                reached += u64::from(subscriber.got(number, until)?.is_some());
            }
            if reached == self.subscribers.len() as u64 {
                return Ok(());
            }
            patience = (patience * 2).min(HELLO);
        }
        Err(format!("no message reached all {} subscribers within {PATIENCE:?}", self.subscribers.len()))
    }

    /// µs until the median process has the last of `count` messages, and has read it if it should: from the publication of one that goes alone, or
    /// from the filling of the first.
    pub(crate) fn round(&mut self, count: u64) -> Result<f64, String> {
        let (number, start) = self.publish(count)?;
        let until = Instant::now() + PATIENCE;
        let mut latencies = Vec::with_capacity(self.subscribers.len());
        for subscriber in &mut self.subscribers {
            match subscriber.got(number, until)? {
                Some(had) => latencies.push(had.saturating_sub(start) as f64 / 1e3),
                None => return Err(format!("message {number} did not arrive within {PATIENCE:?}")),
            }
        }
        Ok(median(latencies))
    }

    /// Seconds of processor time that all processes have used.
    pub(crate) fn cpu_seconds(&self) -> Result<f64, String> {
        let used =
            [&self.publisher].into_iter().chain(&self.subscribers).map(|process| cpu::of_process(process.child.id()));
        used.sum::<std::io::Result<f64>>().map_err(|error| format!("its processor time: {error}"))
    }

    /// The number of the last message, and when the first was published.
    fn publish(&mut self, count: u64) -> Result<(u64, u64), String> {
        self.publisher.tell(&format!("publish {count}\n"))?;
        let deadline = Instant::now() + PATIENCE;
        let line =
            self.publisher.line(deadline)?.ok_or_else(|| format!("nothing was published within {PATIENCE:?}"))?;
        numbers(&line, "sent").ok_or_else(|| format!("its publisher said {line:?}"))
    }
}

/// The two numbers after the word.
fn numbers(line: &str, word: &str) -> Option<(u64, u64)> {
    let (first, second) = line.strip_prefix(word)?.strip_prefix(' ')?.split_once(' ')?;
    Some((first.parse().ok()?, second.parse().ok()?))
}

/// A process of a peer. On drop its standard input ends, then it is killed.
struct Process {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: ChildStdout,
    /// What has been read and is not yet a whole line.
    read: Vec<u8>,
    name: String,
    log: std::path::PathBuf,
}

impl Process {
    /// Starts it, and waits until it is ready.
    fn start(command: &mut Command, name: String, log: &Path) -> Result<Self, String> {
        let failed = |error: std::io::Error| format!("{name}: {error}");
        command.stdin(Stdio::piped()).stderr(File::create(log).map_err(failed)?);
        let mut process = Self::spawn(command, name, log)?;
        match process.line(Instant::now() + PATIENCE)?.as_deref() {
            Some("ready") => Ok(process),
            said => Err(format!("the {} said {said:?} and not ready", process.name)),
        }
    }

    /// Starts it with an output that can be read with a deadline.
    fn spawn(command: &mut Command, name: String, log: &Path) -> Result<Self, String> {
        let failed = |error: std::io::Error| format!("{name}: {error}");
        let mut child = command.stdout(Stdio::piped()).spawn().map_err(failed)?;
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        let Some(stdout) = stdout else { return Err(format!("{name}: no standard output")) };
        fcntl_setfl(&stdout, OFlags::NONBLOCK).map_err(|error| failed(error.into()))?;
        Ok(Self { child, stdin, stdout, read: Vec::new(), name, log: log.to_owned() })
    }

    fn tell(&mut self, line: &str) -> Result<(), String> {
        let Some(stdin) = &mut self.stdin else { return Err(self.ended()) };
        stdin.write_all(line.as_bytes()).map_err(|_| self.ended())
    }

    /// When it had the message; `None` if it has not until then. Reports of earlier messages are skipped.
    fn got(&mut self, number: u64, until: Instant) -> Result<Option<u64>, String> {
        // Each message is reported at most once.
        for _ in 0..number {
            let Some(line) = self.line(until)? else { return Ok(None) };
            match numbers(&line, "got") {
                Some((found, when)) if found == number => return Ok(Some(when)),
                Some(_) => {}
                None => return Err(format!("the {} said {line:?}", self.name)),
            }
        }
        Err(format!("the {} reported more messages than the {number} that were published", self.name))
    }

    /// Its next line; `None` if there is none until then.
    fn line(&mut self, until: Instant) -> Result<Option<String>, String> {
        let mut is_late = false;
        loop {
            if let Some(end) = self.read.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.read.drain(..=end).collect();
                return Ok(Some(String::from_utf8_lossy(&line[..end]).into_owned()));
            }
            if self.read.len() > LINE_BYTES_MAX {
                return Err(format!("the {} wrote more than {LINE_BYTES_MAX} B without an end of line", self.name));
            }
            if is_late {
                return Ok(None);
            }
            // What has come before the deadline is read even if it has passed.
            is_late = Instant::now() > until;
            let mut piece = [0; 256];
            match self.stdout.read(&mut piece) {
                Ok(0) => return Err(self.ended()),
                Ok(n) => self.read.extend_from_slice(&piece[..n]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    let left = until.saturating_duration_since(Instant::now());
                    rgaps_os::poll::readable(&self.stdout, left).map_err(|error| error.to_string())?;
                }
                Err(error) => return Err(format!("the {}: {error}", self.name)),
            }
        }
    }

    /// How it ended, with the end of its log.
    fn ended(&mut self) -> String {
        self.stdin = None;
        let status = match self.wait() {
            Some(status) => status.to_string(),
            None => "its output ended, but it runs".to_owned(),
        };
        let log = std::fs::read(&self.log).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let last = log.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("(nothing)");
        format!("the {} ended ({status}); its log ends with: {last}", self.name)
    }

    fn wait(&mut self) -> Option<std::process::ExitStatus> {
        let deadline = Instant::now() + END;
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) => return Some(status),
                Ok(None) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(2)),
                _ => return None,
            }
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.stdin = None;
        if self.wait().is_none() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOAD: Load = Load { bytes: 64, read: true, count: 2, depth: 256 };

    /// A folder with a program in the peers' place: what each role runs in a shell.
    fn program(publisher: &str, subscriber: &str) -> RuntimeDir {
        script_of(&format!(
            "#!/bin/sh\ncase $1 in publisher) {publisher};; subscriber) {subscriber};; versions) echo zenoh 1.2.3;; esac\n"
        ))
    }

    fn script_of(text: &str) -> RuntimeDir {
        let folder = RuntimeDir::new("peers").unwrap();
        // Written by another process, which no fork of this one can keep open: the kernel runs no file that is open for writing.
        let write = ["-c", "printf %s \"$1\" >\"$0\" && chmod 755 \"$0\""];
        let path = folder.path().join("rgaps-peers");
        assert!(Command::new("sh").args(write).arg(path).arg(text).status().unwrap().success());
        folder
    }

    const PUBLISHER: &str = "echo ready; n=0; while read word count; do n=$((n + count)); echo sent $n 1000; done";
    const SUBSCRIBER: &str = "echo ready; for n in $(seq 60); do echo got $n 5000; done; cat";

    /// What was measured beside zenoh SHM, by a program in the folder.
    fn measured(folder: &Path) -> Vec<Row> {
        let found =
            Crowd::new(folder, &LOCAL[0], &Network::Loopback, LOAD).map_err(Failed::Peer).and_then(|mut crowd| {
                let pairs = pairs(8, || Ok(2.0), || crowd.round(3))?;
                Ok(vec![Row::of_pairs(("local", "64 B".to_owned()), LOCAL[0].name, "us", &pairs, None)])
            });
        rows("local", &[("64 B".to_owned(), "us")], &LOCAL[0], found).unwrap()
    }

    #[test]
    fn a_peers_times_are_read_from_its_lines() {
        let folder = program(PUBLISHER, SUBSCRIBER);
        let rows = measured(folder.path());
        let found = rows[0].medians.unwrap();
        assert_eq!((found.ours, found.theirs, found.ratio), (2.0, 4.0, 0.5));
        assert_eq!(versions(folder.path()), [("zenoh".to_owned(), "1.2.3".to_owned())]);
    }

    #[test]
    fn a_missing_peer_is_named_with_the_reason() {
        let empty = RuntimeDir::new("peers").unwrap();
        let rows = measured(empty.path());
        let why = rows[0].missing.as_ref().unwrap();
        assert_eq!((rows[0].name().as_str(), rows[0].medians), ("64 B beside zenoh SHM", None));
        assert!(
            why.contains("no program rgaps-peers in ") && why.contains(&empty.path().display().to_string()),
            "{why}"
        );
        assert!(rows[0].holds() && versions(empty.path()).is_empty());
    }

    #[test]
    fn a_peer_that_ends_is_named_with_its_last_words() {
        for (publisher, subscriber, who) in [
            ("echo built without zenoh-shm >&2; exit 1", SUBSCRIBER, "publisher"),
            (PUBLISHER, "echo ready; echo built without zenoh-shm >&2; exit 1", "subscriber"),
        ] {
            let rows = measured(program(publisher, subscriber).path());
            let why = rows[0].missing.as_ref().unwrap();
            let expected =
                format!("the {who} of zenoh SHM ended (exit status: 1); its log ends with: built without zenoh-shm");
            assert_eq!(why, &expected);
        }
    }

    #[test]
    fn a_publisher_is_told_how_many_messages_may_be_under_way() {
        let rows = measured(program("echo \"$@\" >&2; exit 1", SUBSCRIBER).path());
        let why = rows[0].missing.as_ref().unwrap();
        assert!(why.ends_with(" --bytes 64 --depth 256"), "{why}");
    }

    /// Runs it in a thread; `None` if it has not returned within the time. The test then fails, and the thread is left to the process's end.
    fn within<T: Send + 'static>(limit: Duration, work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        let (sender, receiver) = std::sync::mpsc::channel();
        std::thread::spawn(move || sender.send(work()));
        receiver.recv_timeout(limit).ok()
    }

    #[test]
    fn a_peer_that_never_ends_its_line_is_given_up() {
        for (output, expected) in [
            ("exec tr '\\0' x </dev/zero", "without an end of line"),
            ("exec yes got 0 5000", "reported more messages than the 1 that were"),
        ] {
            let folder = program(PUBLISHER, &format!("echo ready; {output}"));
            let found = within(PATIENCE / 2, move || measured(folder.path()));
            let why = found.unwrap()[0].missing.clone().unwrap();
            assert!(why.contains(expected), "{why}");
        }
    }

    #[test]
    fn a_program_that_does_not_tell_its_version_does_not_stop_the_bench() {
        for script in ["exec sleep 60", "exec cat", "exec yes"] {
            let folder = script_of(&format!("#!/bin/sh\n{script}\n"));
            assert!(within(PATIENCE / 4, move || versions(folder.path())).is_some(), "{script}");
        }
    }

    #[test]
    fn a_failure_of_ours_is_not_blamed_on_the_peer() {
        let ours = || Err(BenchError::failed("local", "no pool"));
        let found = pairs(8, ours, || Ok(1.0)).map(|_| Vec::new());
        let error = rows("local", &[("64 B".to_owned(), "us")], &LOCAL[0], found).unwrap_err();
        assert_eq!(error.to_string(), "bench local: no pool");
    }
}
