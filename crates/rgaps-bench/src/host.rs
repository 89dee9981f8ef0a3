//! A host of a bench: a manager with its own runtime directory, and subscriber processes that report on a shared page.
//!
//! Everything ends with its guard: processes are killed and reaped, the manager is asked to exit and then killed, the directory removed. If the
//! bench itself is killed, its processes notice within a second, and the manager exits once it has had no clients for a while.

use std::fs::File;
use std::net::{Ipv4Addr, TcpListener};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rgaps::types::Bytes;
use rgaps::{Exhaustion, History, Node, Publisher, PublisherQos, Sample, SubscriberQos};
use rgaps_os::clock;
use rgaps_testing::{Child, Ended, RuntimeDir};

use crate::page::{self, Children, MARK, PATIENCE, Page, Proof};
use crate::{BenchError, cpu};

/// How often the bench checks whether a manager listens, or a subscriber is seen.
const LOOK: Duration = Duration::from_millis(5);
/// A subscriber process exits after this long without a message.
const SILENCE: Duration = Duration::from_secs(300);
/// How often it checks whether to exit.
const TICK: Duration = Duration::from_millis(500);

/// A manager. Its configuration is given in full: nothing comes from this process's environment or the user's file.
pub(super) struct Host {
    manager: Child,
    dir: RuntimeDir,
    bench: &'static str,
}

impl Host {
    /// Starts `rgapsd` with these configuration keys and waits until it listens.
    pub(super) fn start(bench: &'static str, settings: &[(&str, String)]) -> Result<Self, BenchError> {
        Self::start_by(bench, Command::new, settings)
    }

    /// The same by a command that `command` makes of the program.
    pub(super) fn start_by(
        bench: &'static str,
        command: impl FnOnce(PathBuf) -> Command,
        settings: &[(&str, String)],
    ) -> Result<Self, BenchError> {
        let system = |what| BenchError::system(bench, what);
        let program = manager(bench)?;
        let dir = RuntimeDir::new("bench").map_err(system("a runtime directory"))?;
        let log = dir.path().join("rgapsd.log");
        let mut command = command(program);
        configure(&mut command, &dir, settings);
        command.current_dir("/").stdin(Stdio::null()).stdout(Stdio::null());
        command.stderr(File::create(&log).map_err(system("the manager's log"))?);
        let manager = Child::spawn(&mut command).map_err(system("starting rgapsd"))?;
        let mut host = Self { manager, dir, bench };
        let deadline = Instant::now() + PATIENCE;
        while !host.dir.path().join("rgapsd.sock").exists() {
            let fate = match host.manager.wait_within(LOOK).map_err(system("waiting for rgapsd"))? {
                Ended::Exited(status) => format!("ended ({status})"),
                _ if Instant::now() > deadline => "does not listen".to_owned(),
                _ => continue,
            };
            let text = std::fs::read_to_string(&log).unwrap_or_default();
            let last = text.lines().last().unwrap_or("(nothing)");
            return Err(BenchError::failed(bench, format!("rgapsd {fate}; its log ends with: {last}")));
        }
        Ok(host)
    }

    /// A node of this process.
    pub(super) fn node(&self) -> Result<Node, BenchError> {
        let node = Node::builder().name("rgaps bench").runtime_dir(self.dir.path()).no_autostart().build();
        node.map_err(|error| BenchError::failed(self.bench, error))
    }

    /// Seconds of processor time that the manager's threads have used.
    pub(super) fn cpu_seconds(&self) -> Result<f64, BenchError> {
        cpu::of_process(self.manager.id()).map_err(BenchError::system(self.bench, "the manager's threads"))
    }

    /// The manager's process number.
    pub(super) fn id(&self) -> u32 {
        self.manager.id()
    }

    /// Its runtime directory, for processes of the bench.
    pub(super) fn dir(&self) -> &std::path::Path {
        self.dir.path()
    }

    /// Starts subscriber processes and waits until all of them wait for messages.
    pub(super) fn subscribers(&self, topic: &str, count: u64, check: bool) -> Result<Subscribers, BenchError> {
        let page = Page::new(self.bench)?;
        let mut children = Children::default();
        for slot in 0..count {
            let mut command = Command::new(page::program());
            command.args(["bench", "subscriber", "--page", &page.path(), "--topic", topic]);
            command.arg("--runtime-dir").arg(self.dir.path()).args(["--slot", &slot.to_string()]);
            command.args(check.then_some("--check")).env("RGAPS_AUTOSTART", "0");
            children.spawn(self.bench, &mut command)?;
        }
        page.wait_until_ready(count)?;
        Ok(Subscribers { page, children })
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.manager.terminate();
        let _ = self.manager.wait_within(PATIENCE);
    }
}

/// The manager's program.
pub(super) fn manager(bench: &'static str) -> Result<PathBuf, BenchError> {
    rgaps_control::spawn::find_program()
        .ok_or_else(|| BenchError::failed(bench, "no rgapsd beside this program or in PATH; set RGAPSD to its path"))
}

/// Gives a program that is not started yet a runtime directory and the whole configuration: nothing else is taken from this process's environment.
pub(super) fn configure(command: &mut Command, dir: &RuntimeDir, settings: &[(&str, String)]) {
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy();
        if name.starts_with("RGAPS_") || name.starts_with("ROS_") {
            command.env_remove(&*name);
        }
    }
    dir.apply(command);
    command.env("RGAPS_CONFIG", "/dev/null");
    for (key, value) in settings {
        command.env(format!("RGAPS_{}", key.to_ascii_uppercase()), value);
    }
}

/// Subscriber processes of one topic.
pub(super) struct Subscribers {
    page: Page,
    children: Children,
}

impl Subscribers {
    /// µs from `start` until the median process had the message.
    pub(super) fn latency(&self, sequence: u64, start: u64) -> Result<f64, BenchError> {
        self.page.latency(self.children.count(), sequence, start)
    }

    /// Seconds of processor time that all processes have used.
    pub(super) fn cpu_seconds(&self) -> Result<f64, BenchError> {
        let used: std::io::Result<f64> = self.children.ids().map(cpu::of_process).sum();
        used.map_err(BenchError::system("subscriber", "the threads of subscribers"))
    }

    /// The mapping that each process reported.
    pub(super) fn proofs(&self) -> Vec<Proof> {
        (0..self.children.count()).map(|slot| self.page.proof(slot)).collect()
    }
}

impl Drop for Subscribers {
    fn drop(&mut self) {
        self.page.round().store(MARK, Ordering::SeqCst);
    }
}

/// A publisher whose pool holds two and a half messages, so that the next block is free while subscribers still read the last one.
pub(super) fn publisher(
    bench: &'static str,
    node: &Node,
    topic: &str,
    bytes: u64,
) -> Result<Publisher<Bytes>, BenchError> {
    publisher_of(bench, node, topic, bytes / 2 * 5)
}

/// A publisher with a pool of so many bytes.
pub(super) fn publisher_of(
    bench: &'static str,
    node: &Node,
    topic: &str,
    pool_bytes: u64,
) -> Result<Publisher<Bytes>, BenchError> {
    let qos = PublisherQos {
        pool_bytes: Some(pool_bytes.next_multiple_of(4096)),
        exhaustion: Exhaustion::Wait { timeout_ms: PATIENCE.as_millis() as u64 },
        ..PublisherQos::default()
    };
    node.publisher_with(topic, qos).map_err(|error| BenchError::failed(bench, error))
}

/// Waits until the publisher sees `count` subscribers; another host counts as one.
pub(super) fn wait_for_subscribers(
    bench: &'static str,
    publisher: &Publisher<Bytes>,
    count: usize,
) -> Result<(), BenchError> {
    let deadline = Instant::now() + 2 * PATIENCE;
    while publisher.subscriber_count() < count {
        if Instant::now() > deadline {
            let found = publisher.subscriber_count();
            return Err(BenchError::failed(bench, format!("{found} of {count} subscribers after {:?}", 2 * PATIENCE)));
        }
        std::thread::sleep(LOOK);
    }
    Ok(())
}

/// Writes the message's number to both ends of the block, for `--check`.
pub(super) fn mark(block: &mut [u8], number: u64) {
    let number = number.to_le_bytes();
    block[..8].copy_from_slice(&number);
    let last = block.len() - 8;
    block[last..].copy_from_slice(&number);
}

/// Settings of the two hosts of a bench, linked over loopback: each host's number, and the ports on which they listen.
pub(super) fn loopback(own: usize, ports: [u16; 2]) -> Vec<(&'static str, String)> {
    vec![
        ("host_name", format!("bench-{own}")),
        ("listen", format!("tcp/127.0.0.1:{}", ports[own])),
        ("peers", format!("tcp/127.0.0.1:{}", ports[1 - own])),
        ("data_address", format!("127.0.0.{}", own + 1)),
        ("transport", "tcp".to_owned()),
    ]
}

/// Ports that are free on loopback now, all different.
pub(super) fn free_ports<const N: usize>(bench: &'static str) -> Result<[u16; N], BenchError> {
    let mut ports = [0; N];
    let mut listeners = Vec::with_capacity(N);
    for port in &mut ports {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(BenchError::system(bench, "a free port"))?;
        *port = listener.local_addr().map_err(BenchError::system(bench, "a free port"))?.port();
        listeners.push(listener);
    }
    Ok(ports)
}

/// Command line of a subscriber process.
#[derive(Clone, Debug, clap::Args)]
pub struct SubscriberArgs {
    /// Path of the shared page.
    #[arg(long)]
    page: String,
    /// The manager's directory.
    #[arg(long)]
    runtime_dir: PathBuf,
    /// The topic.
    #[arg(long)]
    topic: String,
    /// The number of this subscriber.
    #[arg(long)]
    slot: u64,
    /// Check the number in every message, not only in the first.
    #[arg(long)]
    check: bool,
}

/// The subscriber process: `rgaps bench subscriber`, started only by other benches.
pub fn subscribe(args: &SubscriberArgs) -> Result<(), BenchError> {
    const BENCH: &str = "subscriber";
    let failed = |error: &dyn std::fmt::Display| BenchError::failed(BENCH, error);
    let page = Page::open(BENCH, &args.page)?;
    let node = Node::builder().name("rgaps bench subscriber").runtime_dir(&args.runtime_dir).no_autostart().build();
    let node = node.map_err(|error| failed(&error))?;
    let qos = SubscriberQos { history: History::KeepAll, ..SubscriberQos::default() };
    let subscriber = node.subscriber_with::<Bytes>(&args.topic, qos).map_err(|error| failed(&error))?;
    let bench = std::os::unix::process::parent_id();
    page.ready(args.slot);
    let mut last = Instant::now();
    while last.elapsed() < SILENCE && page.round().load(Ordering::SeqCst) != MARK {
        // A killed bench cannot end its processes, so this process exits by itself, and then the manager does.
        if std::os::unix::process::parent_id() != bench {
            break;
        }
        let Some(frame) = subscriber.wait(TICK).map_err(|error| failed(&error))? else { continue };
        let now = clock::monotonic_ns();
        let sequence = frame.info().sequence;
        if args.check || sequence == 1 {
            check(&frame).map_err(|why| BenchError::failed(BENCH, why))?;
        }
        // Only once: to read /proc/self/maps costs processor time, which `e2e` counts as ours.
        if sequence == 1 {
            page.prove(args.slot, proof(&frame));
        }
        page.woke(args.slot, sequence, now);
        last = Instant::now();
    }
    Ok(())
}

/// Whether both ends of the message carry its number.
fn check(frame: &Sample<Bytes>) -> Result<(), String> {
    let (bytes, sequence) = (frame.bytes(), frame.info().sequence);
    let number = sequence.to_le_bytes();
    if bytes.starts_with(&number) && bytes.ends_with(&number) {
        return Ok(());
    }
    Err(format!("message {sequence} of {} B does not carry its number at both ends", bytes.len()))
}

/// The mapping of the message's memory: where it is, and the access that the kernel allows.
fn proof(frame: &Sample<Bytes>) -> Proof {
    let ((device, inode), offset) = frame.mapped_from();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let mut modes = maps.lines().filter_map(|line| {
        let mut fields = line.split_whitespace();
        let mode = fields.nth(1)?;
        (fields.nth(2)? == inode.to_string()).then(|| encode_mode(mode))
    });
    // If there are several mappings, report one that differs.
    let first = modes.next().unwrap_or(0);
    let mode = modes.find(|mode| *mode != READ_SHARED).unwrap_or(first);
    [device, inode, offset, mode]
}

/// Read-only and shared, as in /proc/PID/maps.
pub(super) const READ_SHARED: u64 = encode_mode("r--s");

/// The four letters of a mapping's mode as one word of the page.
const fn encode_mode(mode: &str) -> u64 {
    match mode.as_bytes() {
        [a, b, c, d] => u32::from_le_bytes([*a, *b, *c, *d]) as u64,
        _ => 0,
    }
}

/// The reverse of `encode_mode`, for people.
pub(super) fn mode_text(mode: u64) -> String {
    String::from_utf8_lossy(&(mode as u32).to_le_bytes()).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_survive_their_word_and_others_are_told_apart() {
        assert_eq!(mode_text(READ_SHARED), "r--s");
        assert_ne!(encode_mode("rw-s"), READ_SHARED);
        assert_eq!(encode_mode("longer"), 0);
    }

    #[test]
    fn free_ports_are_different() {
        let [a, b] = free_ports("test").unwrap();
        assert_ne!(a, b);
    }

    #[test]
    fn a_message_is_marked_at_both_ends() {
        let mut block = [0; 24];
        mark(&mut block, 0x0102);
        assert_eq!((block[0], block[1], block[8], block[16], block[17]), (2, 1, 0, 2, 1));
    }
}
