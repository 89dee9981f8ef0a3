//! `rgaps two-hosts`: keeps two hosts on one machine for other processes while its standard input is open.
//!
//! One line of JSON says how to run a process on either host: a prefix for its command, and environment variables. When a signal arrives, it gives the
//! processes of the hosts time to end as the launch has told them. Then, or at once when the input ends, it asks the remaining processes to end, kills
//! those that do not, says what crossed the network, and removes what it made. A launch file's end, even by kill -9, closes the input of its processes,
//! so nothing is left behind. What a killed `two-hosts` leaves behind, the next one removes.

use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use rgaps::device::Choice;
use rgaps_command::{device, output};
use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, Signal, getppid, kill_process};
use serde::Serialize;

use crate::CommandError;
use crate::demo::hosts::{self, DemoHosts, Side};
use crate::interrupt::Interrupt;

/// How long processes of the hosts may take to end after they were asked to.
const DETACH_TIMEOUT: Duration = Duration::from_secs(3);
/// How long a launch that ends in order may take to end the processes that it has started: `ros2 launch` needs 10 s for nodes that do not end, and a
/// launch within a launch as long again.
const LAUNCH_TIMEOUT: Duration = Duration::from_secs(25);
const LOOK: Duration = Duration::from_millis(20);
/// A file in each host's directory, locked while a `two-hosts` process uses it.
const LOCK: &str = "two-hosts.lock";
const VARIABLE: &str = rgaps_testing::runtime_dir::VARIABLE;

/// Arguments of `rgaps two-hosts`.
#[derive(Clone, Debug, clap::Args)]
pub struct Arguments {
    /// Transport between the hosts: auto, tcp or rdma; default: as configured.
    #[arg(long, value_parser = hosts::TRANSPORTS)]
    transport: Option<String>,
    /// Device of the hosts: auto, host, cuda, cuda:N or cuda:GPU-UUID; default: as configured.
    #[arg(long)]
    device: Option<Choice>,
    /// Use two loopback addresses even if network namespaces are available.
    #[arg(long)]
    loopback: bool,
}

/// Its output.
#[derive(Debug, Serialize)]
struct Said {
    about: String,
    hosts: Vec<Host>,
}

#[derive(Debug, Serialize)]
struct Host {
    /// Prefix of a process's command.
    prefix: Vec<String>,
    /// Variables of a process's environment.
    environment: Vec<(String, String)>,
}

/// Runs `rgaps two-hosts`.
pub fn run(arguments: &Arguments) -> Result<(), CommandError> {
    let interrupt = Interrupt::install()?;
    let launch = getppid();
    remove_left_behind(&std::env::temp_dir());
    device::opened(arguments.device)?;
    let demo = DemoHosts::new(arguments.loopback, arguments.transport.as_deref(), arguments.device)?;
    let dirs = [Side::A, Side::B].map(|side| demo.dir(side).to_owned());
    let _locks = dirs.iter().map(|dir| stand_by(dir)).collect::<io::Result<Vec<_>>>()?;
    let hosts =
        [Side::A, Side::B].map(|side| Host { prefix: demo.prefix(side), environment: demo.environment(side) }).into();
    output::json(&Said { about: demo.describe(), hosts });
    let (sender, ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        // Input is ignored; an error counts as the end.
        let _ = io::copy(&mut io::stdin().lock(), &mut io::sink());
        let _ = sender.send(());
    });
    while !interrupt.is_set() && ended.recv_timeout(interrupt.patience()).is_err() {}
    // The launch that is being ended has asked its other processes to end, too. A daemon of ros2cli, or what a user has started on a host, is none of
    // these. If the launch is killed meanwhile, the input ends.
    let deadline = Instant::now() + LAUNCH_TIMEOUT;
    let is_used = || dirs.iter().any(|dir| processes(dir).iter().any(|pid| is_of_launch(*pid, launch)));
    while interrupt.is_set() && is_used() && Instant::now() < deadline {
        if ended.recv_timeout(interrupt.patience()) != Err(RecvTimeoutError::Timeout) {
            break;
        }
    }
    dirs.iter().for_each(|dir| end_processes(dir));
    if let Some(bytes) = demo.received_bytes()? {
        eprintln!("the second host's interface has received {bytes} B");
    }
    drop(demo);
    Ok(())
}

/// Asks the processes of a host to end, and kills those that do not.
fn end_processes(dir: &Path) {
    let deadline = Instant::now() + DETACH_TIMEOUT;
    signal(&processes(dir), Signal::TERM);
    while !processes(dir).is_empty() {
        if Instant::now() >= deadline {
            return signal(&processes(dir), Signal::KILL);
        }
        std::thread::sleep(LOOK);
    }
}

fn signal(processes: &[Pid], signal: Signal) {
    for pid in processes {
        // It may have ended meanwhile.
        let _ = kill_process(*pid, signal);
    }
}

/// The processes that were started with this runtime directory. Directory names are unique.
fn processes(dir: &Path) -> Vec<Pid> {
    let wanted = [VARIABLE.as_bytes(), b"=", dir.as_os_str().as_bytes()].concat();
    let own = std::process::id();
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let ids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let with_variable = ids.filter(|pid| {
        // Processes of other users, and ended ones, cannot be read.
        let Ok(environment) = fs::read(format!("/proc/{pid}/environ")) else { return false };
        environment.split(|byte| *byte == 0).any(|variable| variable == wanted)
    });
    with_variable.filter(|pid| u32::try_from(*pid).is_ok_and(|pid| pid != own)).filter_map(Pid::from_raw).collect()
}

/// Whether a process descends from the launch.
fn is_of_launch(mut pid: Pid, launch: Option<Pid>) -> bool {
    while Some(pid) != launch {
        let parent = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok().and_then(|stat| {
            // Its name, in parentheses, may hold anything.
            stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok().and_then(Pid::from_raw)
        });
        let Some(parent) = parent else { return false };
        pid = parent;
    }
    true
}

/// Takes the lock of a host's directory. The file gets its name only once it is locked, so that no other process finds it unlocked.
fn stand_by(dir: &Path) -> io::Result<File> {
    let nameless = dir.join("new.lock");
    let file = File::create(&nameless)?;
    flock(&file, FlockOperation::LockExclusive)?;
    fs::rename(nameless, dir.join(LOCK))?;
    Ok(file)
}

/// Removes directories whose `two-hosts` was killed, and ends the processes that use them. (`Hosts` removes its namespaces.)
fn remove_left_behind(folder: &Path) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    let dirs = entries.flatten().map(|entry| entry.path()).filter(|path| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| name.starts_with("rgaps-")) && path.join(LOCK).is_file()
    });
    for dir in dirs.collect::<Vec<PathBuf>>() {
        let Ok(lock) = File::open(dir.join(LOCK)) else { continue };
        if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok() {
            end_processes(&dir);
            // Fails for directories of other users, which stay.
            let _ = fs::remove_dir_all(&dir);
        }
    }
}
