//! The life of `rgapsd`: one manager a runtime directory, from its lock to its orderly end.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;

use rgaps_control::client_lock::{ClientLocks, Lifetime, NotedClient};
use rgaps_control::network::Network;
use rgaps_control::range::{Range, Unset};
use rgaps_control::runtime::{RuntimeError, TopicNote};
use rgaps_control::text::plain;
use rgaps_control::{Given, RuntimeDir};
use rgaps_device::{Choice, Chosen, DeviceKind};
use rgaps_os::{clock, inherited};

use crate::adoption::Adoption;
use crate::budgets::Budgets;
use crate::device_memory::DeviceMemoryManager;
pub use crate::error::DaemonError;
use crate::event::Mailbox;
use crate::log;
use crate::manager::{Manager, Parts};
use crate::network_inbox::NetworkInbox;
use crate::publish::PublishManager;
use crate::rdma_devices::RdmaDevices;
use crate::runtime_files::RuntimeFiles;
use crate::state::ThisHost;
use crate::subscribe::SubscribeManager;

/// How to run.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Where; default: this user's runtime directory.
    pub runtime_dir: Option<PathBuf>,
    /// Keys of the configuration, by flag.
    pub flags: BTreeMap<String, String>,
    /// How far the network reaches if no setting decides it.
    pub unset: Unset,
}

/// Runs a manager until SIGINT, SIGTERM or idleness. Calls `listens` once clients can connect.
pub fn run(options: &Options, listens: impl FnOnce()) -> Result<(), DaemonError> {
    let given = Given::load(&options.flags, options.unset)?;
    // Two a topic; rgapsd is a program of its own and uses no select(2).
    if let Err(error) = rgaps_os::fds::raise_limit() {
        tracing::debug!(%error, "the limit on file descriptors stays as it is");
    }
    inherited::ignore_long_files();
    for limit in inherited::limits() {
        tracing::warn!(
            "rgapsd runs under {limit}, and fails where it needs more: raise it (ulimit -H, systemd's Limit...=)"
        );
    }
    let dir = match &options.runtime_dir {
        Some(path) => RuntimeDir::open(path)?,
        None => RuntimeDir::from_environment()?,
    };
    let lock = dir.lock()?;
    log::bound(&dir.log(), given.config.log_bytes);
    say_range(&given);
    let config = Arc::new(given.config);
    let mut lacks = Lacks(Vec::new());
    let stop = stop_fd()?;
    let notes = dir.topics()?;
    let chosen = open_device(config.device.parse::<Choice>()?, &dir, &notes)?;
    match &chosen.fault {
        None => tracing::info!(device = chosen.reason, "pools"),
        Some(fault) => tracing::warn!(
            "pools lie in host memory although there is a driver for GPUs: {fault}; if that is meant, device = host says so"
        ),
    }
    let memory = DeviceMemoryManager::new(chosen.backend.clone());
    let host = dir.host()?;
    let (epoch, unwritten) = dir.epoch(clock::realtime_ns());
    let has_epoch = unwritten.is_none();
    lacks.add(unwritten, "a successor will refuse handles of messages that are published now");
    let host_name = if config.host_name.is_empty() { machine_name() } else { config.host_name.clone() };
    let (mailbox, events, wake) = Mailbox::new()?;
    let budgets = Budgets::new(&config.limits);
    let network_inbox = Arc::new(NetworkInbox::new(wake.clone(), &budgets)?);
    let network = {
        let network_inbox = network_inbox.clone();
        Network::open(&config, host, &host_name, move |event| network_inbox.handle(event))?
    };
    let lifetime = lifetime(chosen.backend.kind());
    let (noted, mut locks) = (noted_clients(&notes), ClientLocks::new(lifetime));
    // Each client is asked once, however many topics it is in.
    let living = locks.living(&dir, noted.iter().copied());
    noted.difference(&living).for_each(|dead| locks.forget(&dir, dead.lock));
    let adoption = Adoption::new(notes, |client| living.contains(&client));
    dir.forget_dead_clients();
    let rdma = Arc::new(RdmaDevices::new(&config));
    let subscribe =
        SubscribeManager::new(config.clone(), memory.clone(), mailbox.clone(), rdma.clone(), budgets.clone())?;
    let publish = PublishManager::new(
        config.clone(),
        (host, host_name.clone()),
        Arc::new(network.asker()),
        chosen.backend.clone(),
        mailbox,
        rdma,
        budgets.clone(),
    );
    // Before anybody can connect: a client compares it with what it was given.
    lacks.add(dir.note_config(&config).err(), "clients and a successor are not told what it runs with");
    let runtime_files = RuntimeFiles::new(&dir, lock, config.socket_gid(), has_epoch)?;
    tracing::info!(%host, host_name, dir = %dir.path().display(), "rgapsd serves");
    listens();
    let parts = Parts {
        config,
        host: ThisHost {
            dir: dir.clone(),
            id: host,
            epoch,
            name: host_name,
            device: chosen.as_choice().to_string(),
            lacks: lacks.0,
        },
        memory,
        publish,
        subscribe,
        network,
        locks,
        adoption,
        runtime_files,
        events,
        network_inbox,
        budgets,
        wake,
        stop,
    };
    let mut manager = Manager::new(parts);
    manager.run();
    let clients_go_on = manager.has_clients();
    if let Some(lock) = manager.end().leave() {
        dir.remove_files(lock, clients_go_on);
    }
    Ok(())
}

/// Opens the device of the pools. While a predecessor's clients live, that is the device of their pools, whatever the configuration says: a manager
/// on another device could take back no slot, and each of these clients would be cut off.
fn open_device(choice: Choice, dir: &RuntimeDir, notes: &[TopicNote]) -> Result<Chosen, DaemonError> {
    let devices: BTreeSet<&str> =
        notes.iter().map(|note| note.device.as_str()).filter(|device| !device.is_empty()).collect();
    for device in devices {
        let noted: Choice = device.parse()?;
        let of_device = noted_clients(notes.iter().filter(|note| note.device == device));
        let kind = if noted == Choice::Host { DeviceKind::Host } else { DeviceKind::Cuda };
        let living = ClientLocks::new(lifetime(kind)).living(dir, of_device);
        if living.is_empty() {
            continue;
        }
        let programs = living.iter().map(|client| client.pid).collect::<BTreeSet<_>>();
        let chosen = rgaps_device::open(noted).map_err(|source| DaemonError::NotedDevice {
            device: device.to_owned(),
            source,
            programs: programs.iter().map(u32::to_string).collect::<Vec<_>>().join(", "),
        })?;
        let may_be_it = matches!((choice, noted), (Choice::Auto | Choice::Cuda(_), Choice::Gpu(_)));
        if choice != noted && !may_be_it {
            tracing::warn!(
                "pools stay on {device}, where clients of an earlier rgapsd have theirs; device = {choice} counts once these have ended"
            );
        }
        return Ok(chosen);
    }
    Ok(rgaps_device::open(choice)?)
}

/// The clients that notes name.
fn noted_clients<'a>(notes: impl IntoIterator<Item = &'a TopicNote>) -> BTreeSet<NotedClient> {
    notes.into_iter().flat_map(|note| note.clients.iter().map(|noted| noted.client)).collect()
}

fn lifetime(device: DeviceKind) -> Lifetime {
    if device.work_outlives_process() { Lifetime::WithForks } else { Lifetime::OfProcess }
}

/// What a manager could not write, and goes on without.
struct Lacks(Vec<String>);

impl Lacks {
    /// Says it in the log; clients are told when they say hello.
    fn add(&mut self, error: Option<RuntimeError>, consequence: &str) {
        if let Some(error) = error {
            let text = format!("rgapsd goes on without what it could not write: {error}; {consequence}");
            tracing::warn!("{text}");
            self.0.push(text);
        }
    }
}

/// How far the network goes, who has decided so, and what that leaves without effect.
fn say_range(given: &Given) {
    let (range, decision) = (given.config.range(), &given.decision);
    match range {
        Range::Open => tracing::warn!(network = %range, by = decision.by, "{}", range.meaning()),
        Range::Local | Range::Loopback => tracing::info!(network = %range, by = decision.by, "{}", range.meaning()),
    }
    if !decision.unused.is_empty() {
        tracing::warn!(network = %range, "without effect, since the network is not open: {}", decision.unused.join(", "));
    }
}

/// Starts this program again in a session of its own and lets its caller go on: the client that started us must not take us along when it
/// is interrupted. The new process keeps standard output, to report the outcome, and inherits no other file descriptor.
pub fn detach(arguments: &[String]) -> Result<(), DaemonError> {
    inherited::keep_fds()?;
    let program = std::env::current_exe()?;
    Command::new(program).args(arguments).stdin(Stdio::null()).spawn()?;
    Ok(())
}

/// Leaves the session of the process that started this one, and undoes what was inherited from it: blocked and ignored signals, and soft limits. Call
/// it before any thread starts.
pub fn leave_starter() {
    let _ = rustix::process::setsid();
    inherited::reset_signals();
    inherited::raise_limits();
}

/// Readable once SIGINT, SIGTERM or SIGHUP has come.
fn stop_fd() -> std::io::Result<OwnedFd> {
    let (read, write) = std::os::unix::net::UnixStream::pair()?;
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP] {
        signal_hook::low_level::pipe::register(signal, write.try_clone()?)?;
    }
    Ok(read.into())
}

fn machine_name() -> String {
    plain(&rustix::system::uname().nodename().to_string_lossy()).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_configuration_takes_as_a_device_is_one_and_nothing_else() {
        let uuid = "5a010203-0405-0607-0809-0a0b0c0d0eff";
        let (gpu, bare) = (format!("cuda:GPU-{uuid}"), format!("cuda:GPU-{}", uuid.replace('-', "")));
        let short = gpu[..gpu.len() - 1].to_owned();
        let texts = ["auto", "host", "cuda", "cuda:0", "cuda:4294967295", &gpu, &bare];
        let wrong = [
            "",
            "gpu",
            "cuda:",
            "cuda:x",
            "cuda:-1",
            "cuda:4294967296",
            "host:0",
            "cuda:GPU-",
            "cuda:GPU-uuid",
            &short,
        ];
        for (text, is_one) in texts.map(|text| (text, true)).into_iter().chain(wrong.map(|text| (text, false))) {
            let flags = BTreeMap::from([("device".to_owned(), text.to_owned())]);
            let taken = rgaps_control::Given::from_sources(None, &BTreeMap::new(), &flags).is_ok();
            assert_eq!((taken, text.parse::<Choice>().is_ok()), (is_one, is_one), "{text:?}");
        }
    }
}
