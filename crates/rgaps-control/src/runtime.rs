//! The runtime directory of a manager: its socket, its lock, the host's identity, and the notes for a successor.
//!
//! Each user has one on a machine, unless RGAPS_RUNTIME_DIR names another. Two directories are two managers, and so two hosts.
//!
//! Invariants  The directory belongs to the manager's user. No other user may enter it, except members of the group that `socket_group` names.
//!             They may pass through it to the socket, but neither list, lock nor write it. One manager holds its lock.
//!             Members may open the socket and `config.toml`. Every other file is this user's alone (0600), whatever the umask is: a user who
//!             cannot open a file can neither write nor lock it. A client gets its lock file as a file descriptor. A manager needs disk space for the
//!             name of its socket. Without space for its notes it goes on, and logs that.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::announcements::Counters;
use crate::client_lock::NotedClient;
use crate::config::Config;
use crate::host_identity::HostIdentitySource;
use crate::names::{HostId, LockId, TopicId, TopicKey};
use crate::runtime_path::{RuntimePath, Why};
use crate::{PublisherSlot, SubscriberSlot};

/// Longest path of a Unix socket (sun_path, less its terminating zero).
const SOCKET_PATH_MAX: usize = 107;

/// The manager's socket in its directory.
pub(crate) const SOCKET_FILE: &str = "rgapsd.sock";
/// The manager's configuration, in its directory.
pub(crate) const CONFIG_FILE: &str = "config.toml";
/// Counters of what the manager got from the network, in its directory.
pub(crate) const NETWORK_FILE: &str = "network.json";
/// The start of the names of topic notes.
const TOPIC_PREFIX: &str = "topic-";
/// The file with the time at which this host came to life.
const EPOCH_FILE: &str = "epoch";

/// Mode of files that are this user's alone.
const PRIVATE: u32 = 0o600;
/// Mode of a file that every user who may pass through the directory may read.
const READABLE: u32 = 0o644;

/// Attempts at creating a file that another program keeps removing.
const ATTEMPTS: u32 = 16;

/// Why the directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RuntimeError {
    /// It cannot be created or read.
    #[error("{path}: {source}{}", remedy(source))]
    Io {
        /// The path.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It belongs to another user, or other users may enter it.
    #[error(
        "{path} must be a directory of user {uid} with mode 0700 (or 0710, for socket_group), and {found}; remove it, or set \
         RGAPS_RUNTIME_DIR to a directory of your own"
    )]
    NotOurs {
        /// The path.
        path: PathBuf,
        /// The user of this process.
        uid: u32,
        /// What was found instead.
        found: String,
    },
    /// The socket's path would be too long.
    #[error("{path}/rgapsd.sock has more than {SOCKET_PATH_MAX} bytes; set RGAPS_RUNTIME_DIR to a shorter path")]
    TooLong {
        /// The path.
        path: PathBuf,
    },
    /// The group cannot be admitted.
    #[error(
        "{path} cannot be given to group {group}: {source}; run rgapsd as a member of it, or as root, or clear socket_group"
    )]
    Group {
        /// The path.
        path: PathBuf,
        /// The group's number.
        group: u32,
        /// Why.
        source: io::Error,
    },
    /// Another manager runs here.
    #[error("a manager already runs in {path}; use it, or set another RGAPS_RUNTIME_DIR")]
    Locked {
        /// The path.
        path: PathBuf,
    },
}

/// What to do about an error of a file in the directory. For a lack of file descriptors the caller names the limit.
fn remedy(source: &io::Error) -> &'static str {
    match Errno::from_io_error(source) {
        Some(Errno::MFILE | Errno::NFILE) => "",
        Some(Errno::ACCESS) => {
            "; this user must be able to write there (chmod u+rwx), or set RGAPS_RUNTIME_DIR to a directory of your own"
        }
        _ => "; set RGAPS_RUNTIME_DIR to a directory of your own",
    }
}

impl RuntimeError {
    /// Whether the file system is full, or the user's quota is used up.
    pub(crate) fn is_lack_of_room(&self) -> bool {
        let full = [io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded];
        matches!(self, Self::Io { source, .. } if full.contains(&source.kind()))
    }

    /// Whether the directory or file is missing.
    pub(crate) fn is_removed(&self) -> bool {
        matches!(self, Self::Io { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }
}

/// The directory, checked.
#[derive(Clone, Debug)]
pub struct RuntimeDir {
    path: PathBuf,
    /// Its user, if it is another user's: then this process can only be a client there.
    host_user: Option<u32>,
    /// Why this directory was chosen.
    why: Why,
}

/// The note of a topic for a successor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TopicNote {
    /// Its segment.
    pub topic: TopicId,
    /// Its key.
    pub key: TopicKey,
    /// Its type.
    pub type_name: String,
    /// Device and inode of its segment. A successor refuses any other file.
    pub segment: (u64, u64),
    /// The device of its pools, as `device` of the configuration names it. Empty in a note of an older version.
    #[serde(default)]
    pub device: String,
    /// The clients with slots in it.
    pub clients: Vec<ClientNote>,
}

/// A client in the note of a topic, with its slots there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientNote {
    /// The client.
    #[serde(flatten)]
    pub client: NotedClient,
    /// Its publishers.
    pub publishers: Vec<PublisherNote>,
    /// Its subscribers.
    pub subscribers: Vec<SubscriberSlot>,
}

/// A publisher in the note of a topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PublisherNote {
    /// Its slot.
    #[serde(flatten)]
    pub slot: PublisherSlot,
    /// The pool that it was granted; `None` if it has none that it could hand back.
    pub pool: Option<PoolNote>,
}

/// A pool in the note of a topic. A successor refuses any other pool from the publisher.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolNote {
    /// Its bytes.
    pub bytes: u64,
    /// Device and inode of its first file descriptor's file.
    pub file: (u64, u64),
}

/// A file of the directory that a successor reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Noted {
    /// The time at which this host came to life.
    Epoch,
    /// The lock file of a client.
    Client(LockId),
    /// The note of a topic.
    Topic(TopicId),
}

/// The lock of the one manager of a directory, released when dropped. It is an flock(2) of the directory itself: removing files does not release it,
/// and systemd-tmpfiles removes nothing from a locked directory (tmpfiles.d(5)).
#[derive(Debug)]
pub struct ManagerLock {
    locked: File,
    path: PathBuf,
}

impl ManagerLock {
    /// Whether the locked directory is still at its path. If it was removed, another manager may create and lock a new one.
    pub fn is_in_place(&self) -> bool {
        is_at(&self.locked, &self.path)
    }
}

/// Locks the file or directory at a path; `None` if another process has locked it.
fn lock_opened(path: &Path, open: impl Fn() -> Result<File, RuntimeError>) -> Result<Option<File>, RuntimeError> {
    let failed = |source: io::Error| RuntimeError::Io { path: path.to_owned(), source };
    for attempt in 1..=ATTEMPTS {
        let file = match open() {
            // A manager that exits in order removes the directory, too.
            Err(error) if error.is_removed() && attempt < ATTEMPTS => continue,
            opened => opened?,
        };
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Ok(None),
            Err(error) => return Err(failed(error.into())),
        }
        // The previous holder may have removed the file between our open and our lock: then our lock excludes no process.
        if is_at(&file, path) {
            return Ok(Some(file));
        }
    }
    Ok(None)
}

/// Whether an open file is the one at a path.
fn is_at(file: &File, path: &Path) -> bool {
    let own = file.metadata().map(|own| (own.dev(), own.ino()));
    let found = fs::symlink_metadata(path).map(|found| (found.dev(), found.ino()));
    matches!((own, found), (Ok(own), Ok(found)) if own == found)
}

/// The directory's path for the whole life of a program, which may change its working directory; a manager that it starts has another one.
fn absolute(path: &Path) -> Result<PathBuf, RuntimeError> {
    std::path::absolute(path).map_err(|source| RuntimeError::Io { path: path.to_owned(), source })
}

impl RuntimeDir {
    /// The directory that this process's environment names; created if it does not exist.
    pub fn from_environment() -> Result<Self, RuntimeError> {
        let RuntimePath { path, why } = RuntimePath::of_environment();
        Ok(Self { why, ..Self::open(&path)? })
    }

    /// The directory of a client: `path` if it is given, else that of `from_environment`. A directory that was named, here or by RGAPS_RUNTIME_DIR,
    /// may belong to another user who admits our group. The default one may not, since any user could have created it there.
    pub fn for_client(path: Option<&Path>) -> Result<Self, RuntimeError> {
        let named = path.map(|path| RuntimePath { path: path.to_owned(), why: Why::Named });
        let RuntimePath { path, why } = named.unwrap_or_else(RuntimePath::of_environment);
        let path = absolute(&path)?;
        let own = || Ok(Self { why: why.clone(), ..Self::open(&path)? });
        let found = fs::symlink_metadata(&path).ok().filter(fs::Metadata::is_dir);
        let Some(found) = found.filter(|_| matches!(why, Why::Named | Why::Variable)) else { return own() };
        let user = rustix::process::geteuid();
        let (mode, owner) = (found.permissions().mode(), found.uid());
        let lets_groups_in = mode & 0o010 != 0;
        if owner == user.as_raw() || mode & 0o027 != 0 || !(lets_groups_in || user.is_root()) {
            return own();
        }
        Ok(Self { path, host_user: Some(owner), why })
    }

    /// Whether it is this user's.
    pub fn is_own(&self) -> bool {
        self.host_user.is_none()
    }

    /// The user of the directory, if it is another user's.
    pub(crate) fn host_user(&self) -> Option<u32> {
        self.host_user
    }

    /// Lets the members of a group connect to the socket with this file. Without a group, only this user may connect.
    pub fn admit(&self, socket: &Path, group: Option<u32>) -> Result<(), RuntimeError> {
        let (dir_mode, socket_mode) = if group.is_some() { (0o710, 0o660) } else { (0o700, 0o600) };
        for (path, mode) in [(socket.to_owned(), socket_mode), (self.path.clone(), dir_mode)] {
            if let Some(group) = group {
                let refused = |source| RuntimeError::Group { path: path.clone(), group, source };
                std::os::unix::fs::chown(&path, None, Some(group)).map_err(refused)?;
            }
            let failed = |source| RuntimeError::Io { path: path.clone(), source };
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).map_err(failed)?;
        }
        Ok(())
    }

    /// The absolute path of a directory, if it leaves room for the socket's name.
    pub fn check_path(path: &Path) -> Result<PathBuf, RuntimeError> {
        let path = absolute(path)?;
        match path.as_os_str().len() + "/rgapsd.sock".len() {
            0..=SOCKET_PATH_MAX => Ok(path),
            _ => Err(RuntimeError::TooLong { path }),
        }
    }

    /// The directory at a path; created if it does not exist.
    pub fn open(path: &Path) -> Result<Self, RuntimeError> {
        let path = Self::check_path(path)?;
        let path = path.as_path();
        let failed = |source| RuntimeError::Io { path: path.to_owned(), source };
        if let Some(parent) = path.parent() {
            fs::DirBuilder::new().mode(0o700).recursive(true).create(parent).map_err(failed)?;
        }
        match fs::DirBuilder::new().mode(0o700).create(path) {
            // The umask may have left us without rights of our own.
            Ok(()) => fs::set_permissions(path, fs::Permissions::from_mode(0o700)).map_err(failed)?,
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(failed(error)),
            Err(_) => {}
        }
        // A symbolic link is refused: a user who could replace it would own our socket.
        let found = fs::symlink_metadata(path).map_err(failed)?;
        let uid = rustix::process::geteuid().as_raw();
        match not_ours(&found, uid) {
            Some(found) => Err(RuntimeError::NotOurs { path: path.to_owned(), uid, found }),
            None => Ok(Self { path: path.to_owned(), host_user: None, why: Why::Named }),
        }
    }

    /// Its path, and why it was chosen.
    pub fn runtime_path(&self) -> RuntimePath {
        RuntimePath { path: self.path.clone(), why: self.why.clone() }
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The manager's socket.
    pub fn socket(&self) -> PathBuf {
        self.path.join(SOCKET_FILE)
    }

    /// Where a manager that was started on demand writes its log.
    pub fn log(&self) -> PathBuf {
        self.path.join("rgapsd.log")
    }

    /// Makes this process the directory's manager.
    pub fn lock(&self) -> Result<ManagerLock, RuntimeError> {
        // A manager that exits in order removes the directory.
        let failed = |source| RuntimeError::Io { path: self.path.clone(), source };
        let open = || Self::open(&self.path).and_then(|_| File::open(&self.path).map_err(failed));
        let locked = lock_opened(&self.path, open)?;
        let locked = locked.ok_or_else(|| RuntimeError::Locked { path: self.path.clone() })?;
        self.restrict_to_user();
        Ok(ManagerLock { locked, path: self.path.clone() })
    }

    /// Locks a file of the directory; `None` if another process has locked it.
    pub(crate) fn try_lock(&self, name: &str) -> Result<Option<File>, RuntimeError> {
        let path = self.path.join(name);
        let failed = |source| RuntimeError::Io { path: path.clone(), source };
        lock_opened(&path, || open_private(&path, File::options().write(true)).map_err(failed))
    }

    /// This host's identity. It is the same for each manager of this directory until the machine restarts, so other hosts recognise it. Another
    /// directory, network namespace, user or machine has another identity. If the kernel does not tell one of these, the identity is random and kept
    /// in the directory.
    pub fn host(&self) -> Result<HostId, RuntimeError> {
        match self.identity_source() {
            Ok(source) => Ok(HostId(source.identity())),
            Err(error) => {
                tracing::debug!(%error, "the host's identity is random");
                self.random_host()
            }
        }
    }

    /// When this host came to life, in ns since 1970: `now`, unless the directory has the time of a predecessor whose clients go on. Also returns why
    /// the time could not be written, if so.
    pub fn epoch(&self, now: u64) -> (u64, Option<RuntimeError>) {
        let path = self.path.join(EPOCH_FILE);
        let noted = fs::read_to_string(&path).ok().and_then(|text| text.trim().parse().ok());
        if let Some(noted) = noted {
            return (noted, None);
        }
        let written = replace(&path, now.to_string().as_bytes(), PRIVATE);
        (now, written.map_err(|source| RuntimeError::Io { path, source }).err())
    }

    /// Whether the epoch's file exists.
    pub fn has_epoch(&self) -> bool {
        self.path.join(EPOCH_FILE).try_exists().unwrap_or(true)
    }

    /// Restricts to this user the files that a predecessor, perhaps of an earlier version, left open to other users.
    fn restrict_to_user(&self) {
        let others = |name: &std::ffi::OsStr| name != SOCKET_FILE && name != CONFIG_FILE;
        for entry in fs::read_dir(&self.path).into_iter().flatten().flatten().filter(|entry| others(&entry.file_name()))
        {
            let found = entry.metadata().ok().filter(|found| found.is_file() && found.mode() & 0o7777 != PRIVATE);
            // An error is ignored: no other user may write into the directory, so no file of another user is read there.
            let _ = found.map(|_| fs::set_permissions(entry.path(), fs::Permissions::from_mode(PRIVATE)));
        }
    }

    fn identity_source(&self) -> io::Result<HostIdentitySource> {
        let path = fs::canonicalize(&self.path)?;
        // The directory itself is created again after an orderly exit, so its parent tells one container's /tmp from another's.
        let parent = fs::metadata(path.parent().unwrap_or(&path))?;
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
        let uid = rustix::process::geteuid().as_raw();
        let network = fs::metadata("/proc/self/ns/net")?.ino();
        Ok(HostIdentitySource { boot, uid, network, parent: (parent.dev(), parent.ino()), path })
    }

    fn random_host(&self) -> Result<HostId, RuntimeError> {
        let path = self.path.join("host");
        let failed = |source| RuntimeError::Io { path: path.clone(), source };
        if let Some(host) = fs::read_to_string(&path).ok().and_then(|text| text.trim().parse().ok()) {
            return Ok(host);
        }
        let host = HostId::random().map_err(failed)?;
        if let Err(error) = replace(&path, host.to_string().as_bytes(), PRIVATE) {
            tracing::warn!(path = %path.display(), %error, "the host's identity cannot be written: to other hosts, a successor will be a new host");
        }
        Ok(host)
    }

    /// Writes the manager's configuration, with which clients compare their own (see `running`).
    pub fn note_config(&self, config: &Config) -> Result<(), RuntimeError> {
        let path = self.path.join(CONFIG_FILE);
        let failed = |source| RuntimeError::Io { path: path.clone(), source };
        let text = toml::to_string(config).map_err(|error| failed(io::Error::other(error)))?;
        replace(&path, text.as_bytes(), READABLE).map_err(|source| {
            // No configuration is better than a predecessor's.
            let _ = fs::remove_file(&path);
            failed(source)
        })
    }

    /// Writes the network's counters, which `rgaps doctor` shows.
    pub fn note_network(&self, counters: &Counters) -> Result<(), RuntimeError> {
        let path = self.path.join(NETWORK_FILE);
        let failed = |source| RuntimeError::Io { path: path.clone(), source };
        let text = serde_json::to_vec(counters).map_err(|error| failed(error.into()))?;
        replace(&path, &text, PRIVATE).map_err(failed)
    }

    /// Writes or replaces the note of a topic.
    pub fn note_topic(&self, note: &TopicNote) -> Result<(), RuntimeError> {
        let path = self.topic_path(note.topic);
        let text =
            serde_json::to_vec(note).map_err(|error| RuntimeError::Io { path: path.clone(), source: error.into() })?;
        replace(&path, &text, PRIVATE).map_err(|source| RuntimeError::Io { path, source })
    }

    /// Which of the files for a successor has this name; `None` if it is none of them.
    pub fn noted_by(&self, name: &str) -> Option<Noted> {
        if name == EPOCH_FILE {
            return Some(Noted::Epoch);
        }
        let client = name.strip_prefix(crate::client_lock::PREFIX).map(|lock| Some(Noted::Client(lock.parse().ok()?)));
        client.or_else(|| Some(Some(Noted::Topic(name.strip_prefix(TOPIC_PREFIX)?.parse().ok()?))))?
    }

    /// Whether the note of a topic exists.
    pub fn has_note(&self, topic: TopicId) -> bool {
        self.topic_path(topic).try_exists().unwrap_or(true)
    }

    /// Removes the note of a topic that has ended.
    pub fn forget_topic(&self, topic: TopicId) {
        let _ = fs::remove_file(self.topic_path(topic));
    }

    /// Reads the notes of a predecessor, and removes files that are no notes. An error if a note cannot be read, for example for lack of file
    /// descriptors: a manager without that note would release slots of living clients.
    pub fn topics(&self) -> Result<Vec<TopicNote>, RuntimeError> {
        let failed = |path: &Path, source| RuntimeError::Io { path: path.to_owned(), source };
        let mut notes = Vec::new();
        for entry in fs::read_dir(&self.path).map_err(|error| failed(&self.path, error))? {
            let entry = entry.map_err(|error| failed(&self.path, error))?;
            if !entry.file_name().to_string_lossy().starts_with(TOPIC_PREFIX) {
                continue;
            }
            let path = entry.path();
            // A file with an extension is an incomplete note: its writer died before it renamed the file.
            if path.extension().is_some() {
                let _ = fs::remove_file(&path);
                continue;
            }
            match fs::read(&path).map(|text| crate::text::from_json(&text)) {
                Ok(Ok(note)) => notes.push(note),
                Ok(Err(_)) => drop(fs::remove_file(&path)),
                Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::IsADirectory) => {}
                Err(error) => return Err(failed(&path, error)),
            }
        }
        Ok(notes)
    }

    /// Removes the files that are useless after an orderly exit, and the directory if it is empty then. If clients go on, identity and epoch of the
    /// host stay for the next manager.
    pub fn remove_files(&self, lock: ManagerLock, clients_go_on: bool) {
        let of_host = [EPOCH_FILE, "host"].into_iter().filter(|_| !clients_go_on);
        for name in [SOCKET_FILE, "rgapsd.log", "rgapsd.log.1", CONFIG_FILE, NETWORK_FILE, "start.lock"]
            .into_iter()
            .chain(of_host)
        {
            let _ = fs::remove_file(self.path.join(name));
        }
        if !clients_go_on {
            self.forget_dead_clients();
        }
        // Before the lock is released: after that, the directory may be another manager's.
        let _ = fs::remove_dir(&self.path);
        drop(lock);
    }

    fn topic_path(&self, topic: TopicId) -> PathBuf {
        self.path.join(format!("{TOPIC_PREFIX}{topic}"))
    }
}

/// Why a directory does not belong to this user alone; `None` if it does.
fn not_ours(found: &fs::Metadata, uid: u32) -> Option<String> {
    let mode = found.mode() & 0o7777;
    if found.is_symlink() {
        Some("is a symbolic link".to_owned())
    } else if !found.is_dir() {
        Some("is no directory".to_owned())
    } else if found.uid() != uid {
        Some(format!("is of user {}", found.uid()))
    } else if mode & 0o027 != 0 {
        Some(format!("has mode {mode:04o}"))
    } else {
        None
    }
}

/// Opens or creates a file that only this user may read and write, whatever the umask is. Corrects the mode of an existing file.
pub fn open_private(path: &Path, how: &mut fs::OpenOptions) -> io::Result<File> {
    open_with(path, how, PRIVATE)
}

fn open_with(path: &Path, how: &mut fs::OpenOptions, mode: u32) -> io::Result<File> {
    with_mode(how.create(true).mode(mode).open(path)?, mode)
}

/// Creates a new file that only this user may read and write, and opens it for reading.
pub(crate) fn create_for_reading(path: &Path) -> io::Result<File> {
    // The standard library cannot create a file and open it only for reading.
    let flags = OFlags::RDONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    with_mode(rustix::fs::open(path, flags, Mode::from_raw_mode(PRIVATE))?.into(), PRIVATE)
}

/// Sets the mode of a file if the umask or an earlier version left another one.
fn with_mode(file: File, mode: u32) -> io::Result<File> {
    if file.metadata()?.mode() & 0o7777 != mode {
        file.set_permissions(fs::Permissions::from_mode(mode))?;
    }
    Ok(file)
}

/// Writes a file so that a reader sees the old or the new content, never a part.
fn replace(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    let new = path.with_extension("new");
    let write = || {
        open_with(&new, File::options().write(true).truncate(true), mode)?.write_all(content)?;
        fs::rename(&new, path)
    };
    let is_removed =
        |written: &io::Result<()>| matches!(written, Err(error) if error.kind() == io::ErrorKind::NotFound);
    let mut written = write();
    // A cleaner of /tmp may have removed the new file before it was renamed.
    for _ in 1..ATTEMPTS {
        if !is_removed(&written) {
            break;
        }
        written = write();
    }
    written.inspect_err(|_| {
        let _ = fs::remove_file(&new);
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client_lock::FileId;

    #[test]
    fn a_file_is_written_though_somebody_removes_what_is_not_at_its_place_yet() {
        let path = scratch("replaced").with_extension("file");
        let new = path.with_extension("new");
        std::thread::scope(|scope| {
            let cleaner = scope.spawn(|| {
                let removals = std::iter::repeat_with(|| fs::remove_file(&new)).filter(Result::is_ok);
                removals.take(ATTEMPTS as usize - 1).count()
            });
            let mut failed = None;
            while !cleaner.is_finished() {
                failed = failed.or(replace(&path, b"content", PRIVATE).err());
            }
            assert!(failed.is_none(), "{failed:?}");
        });
        fs::remove_file(&path).unwrap();
    }

    fn scratch(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("rgaps-runtime-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        path
    }

    #[test]
    fn one_manager_a_directory_and_nothing_left_after_it() {
        let path = scratch("lock");
        let dir = RuntimeDir::open(&path).unwrap();
        let lock = dir.lock().unwrap();
        assert!(matches!(dir.lock(), Err(RuntimeError::Locked { .. })));
        dir.remove_files(lock, false);
        assert!(!path.exists());
    }

    #[test]
    fn a_host_is_the_same_after_an_orderly_exit_and_never_that_of_another_place() {
        let (path, other) = (scratch("host"), scratch("other_host"));
        let host_of = |path: &Path| {
            let dir = RuntimeDir::open(path).unwrap();
            let lock = dir.lock().unwrap();
            let host = dir.host().unwrap();
            dir.remove_files(lock, false);
            assert!(!path.exists());
            host
        };
        let host = host_of(&path);
        assert_eq!(host_of(&path), host);
        assert_ne!(host_of(&other), host);
        let dir = RuntimeDir::open(&path).unwrap();
        let source = dir.identity_source().unwrap();
        assert_eq!(HostId(source.identity()), host);
        let others = [
            HostIdentitySource { boot: "another".to_owned(), ..source.clone() },
            HostIdentitySource { uid: source.uid + 1, ..source.clone() },
            HostIdentitySource { network: source.network + 1, ..source.clone() },
            HostIdentitySource { parent: (source.parent.0 + 1, source.parent.1), ..source.clone() },
        ];
        assert!(others.iter().all(|other| HostId(other.identity()) != host));
        let random = dir.random_host().unwrap();
        assert!(random != host && dir.random_host().unwrap() == random, "where the kernel tells nothing");
        fs::remove_dir_all(&path).unwrap();
    }

    #[test]
    fn an_epoch_ends_only_with_a_manager_that_leaves_no_clients_behind() {
        let path = scratch("epoch");
        let dir = RuntimeDir::open(&path).unwrap();
        let lock = dir.lock().unwrap();
        let epoch = |dir: &RuntimeDir, now| match dir.epoch(now) {
            (epoch, None) => epoch,
            (_, Some(error)) => panic!("{error}"),
        };
        assert_eq!((epoch(&dir, 7), epoch(&dir, 8)), (7, 7));
        dir.remove_files(lock, true);
        let lock = dir.lock().unwrap();
        assert_eq!(epoch(&dir, 8), 7);
        dir.remove_files(lock, false);
        let dir = RuntimeDir::open(&path).unwrap();
        assert_eq!(epoch(&dir, 9), 9);
        fs::write(path.join(EPOCH_FILE), "nonsense").unwrap();
        assert_eq!(epoch(&dir, 10), 10);
        fs::remove_dir_all(&path).unwrap();
    }

    #[test]
    fn a_directory_that_others_may_enter_is_refused() {
        let path = scratch("open");
        fs::create_dir(&path).unwrap();
        let refused = |what: &str| match RuntimeDir::open(&path) {
            Err(RuntimeError::NotOurs { found, .. }) => assert_eq!(found, what),
            other => panic!("{other:?}, not {what}"),
        };
        for (mode, what) in [(0o755, "has mode 0755"), (0o720, "has mode 0720"), (0o1777, "has mode 1777")] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            refused(what);
        }
        fs::remove_dir(&path).unwrap();
        std::os::unix::fs::symlink("/tmp", &path).unwrap();
        refused("is a symbolic link");
        fs::remove_file(&path).unwrap();
        fs::write(&path, "").unwrap();
        refused("is no directory");
        fs::remove_file(&path).unwrap();
        if rustix::process::geteuid().is_root() {
            // As /tmp/rgaps-UID may be, where somebody was there first.
            fs::create_dir(&path).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
            std::os::unix::fs::chown(&path, Some(54_000), None).unwrap();
            refused("is of user 54000");
            fs::remove_dir(&path).unwrap();
        }
        assert!(matches!(
            RuntimeDir::open(Path::new(&format!("/tmp/{}", "x".repeat(120)))),
            Err(RuntimeError::TooLong { .. })
        ));
    }

    /// What another user finds, from a thread that is that user's for good.
    fn as_user<T: Send + 'static>(id: u32, groups: &[u32], act: impl FnOnce() -> T + Send + 'static) -> T {
        let groups: Vec<_> = groups.iter().map(|group| rustix::fs::Gid::from_raw(*group)).collect();
        let acting = std::thread::spawn(move || {
            let (user, group) = (rustix::fs::Uid::from_raw(id), rustix::fs::Gid::from_raw(id));
            rustix::thread::set_thread_groups(&groups).unwrap();
            rustix::thread::set_thread_res_gid(group, group, group).unwrap();
            rustix::thread::set_thread_res_uid(user, user, user).unwrap();
            act()
        });
        acting.join().unwrap()
    }

    #[test]
    fn members_of_the_named_group_are_admitted_and_nobody_else() {
        use crate::local::{Connection, Listener};
        const GROUP: u32 = 54_321;
        if !rustix::process::geteuid().is_root() {
            return rgaps_testing::skipped("needs root, to be other users");
        }
        let path = scratch("group");
        let dir = RuntimeDir::open(&path).unwrap();
        let mut listener = Listener::bind(&dir.socket()).unwrap();
        dir.admit(&dir.socket(), Some(GROUP)).unwrap();
        listener.admit_group(true);
        let connect = |groups: &[u32]| {
            let path = path.clone();
            as_user(54_000, groups, move || {
                let dir = RuntimeDir::for_client(Some(&path)).map_err(|error| error.to_string())?;
                crate::spawn::connect(&dir, crate::spawn::Autostart::OnDemand).map_err(|error| error.to_string())
            })
        };
        let member = connect(&[GROUP]).unwrap();
        let accepted = listener.accept().unwrap().expect("a member is admitted");
        assert_eq!(accepted.peer().unwrap().uid, 54_000);
        drop((member, accepted));
        let said = connect(&[GROUP + 1]).unwrap_err();
        assert!(said.contains("socket_group") && said.contains("user 0"), "{said}");
        assert!(RuntimeDir::open(&path).is_ok(), "a client of the manager's own user goes in as ever");

        dir.admit(&dir.socket(), None).unwrap();
        listener.admit_group(false);
        assert!(connect(&[GROUP]).unwrap_err().contains("must be a directory of user 54000"));
        // The kernel keeps them out; should the modes be changed by hand, the manager does.
        for (path, mode) in [(&path, 0o755), (&dir.socket(), 0o666)] {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        }
        let socket = dir.socket();
        let stranger = as_user(54_000, &[], move || Connection::connect(&socket).unwrap());
        assert!(stranger.is_some() && listener.accept().unwrap().is_none(), "turned away");
        drop(listener);
        fs::remove_dir_all(&path).unwrap();
    }

    #[test]
    fn members_of_the_group_can_neither_lock_nor_write_nor_list_what_is_not_theirs() {
        const GROUP: u32 = 54_321;
        if !rustix::process::geteuid().is_root() {
            return rgaps_testing::skipped("needs root, to be other users");
        }
        let path = scratch("members");
        let dir = RuntimeDir::open(&path).unwrap();
        // As a manager under umask 000 may have left it, before there were modes.
        fs::write(path.join(EPOCH_FILE), "7").unwrap();
        fs::set_permissions(path.join(EPOCH_FILE), fs::Permissions::from_mode(0o666)).unwrap();
        let _lock = dir.lock().unwrap();
        let _turn = dir.try_lock("start.lock").unwrap().unwrap();
        assert_eq!(dir.epoch(8).0, 7);
        dir.note_config(&Config::default()).unwrap();
        let (of_client, _file) = dir.new_client_lock().unwrap();
        let _listener = crate::local::Listener::bind(&dir.socket()).unwrap();
        dir.admit(&dir.socket(), Some(GROUP)).unwrap();
        let of_client = format!("client-{of_client}");
        let names = [".", "start.lock", EPOCH_FILE, &of_client].map(str::to_owned);
        let config = path.join(CONFIG_FILE);
        let (opened, read, listed) = as_user(54_000, &[GROUP], move || {
            let opens =
                |name: &String, write: bool| File::options().read(!write).write(write).open(path.join(name)).is_ok();
            let opened: Vec<String> =
                names.into_iter().filter(|name| opens(name, false) || opens(name, true)).collect();
            (
                opened,
                fs::read_to_string(&config).is_ok() && File::options().write(true).open(&config).is_err(),
                fs::read_dir(&path).is_ok(),
            )
        });
        assert!(opened.is_empty() && read && !listed, "{opened:?} can be opened, {read} {listed}");
        fs::remove_dir_all(dir.path()).unwrap();
    }

    #[test]
    fn topic_notes_are_read_back_and_garbage_is_removed() {
        let path = scratch("topics");
        let dir = RuntimeDir::open(&path).unwrap();
        let note = TopicNote {
            topic: TopicId::random().unwrap(),
            key: TopicKey::new(0, "camera").unwrap(),
            type_name: "rgaps/Image".to_owned(),
            segment: (1, u64::MAX),
            device: "host".to_owned(),
            clients: vec![ClientNote {
                client: NotedClient { lock: LockId([7; 16]), pid: 1, file: FileId { device: 2, inode: u64::MAX } },
                publishers: vec![PublisherNote {
                    slot: PublisherSlot { index: 3, generation: 9 },
                    pool: Some(PoolNote { bytes: 4096, file: (u64::MAX, 1) }),
                }],
                subscribers: Vec::new(),
            }],
        };
        dir.note_topic(&note).unwrap();
        fs::write(path.join("topic-garbage"), b"{").unwrap();
        assert_eq!(dir.topics().unwrap(), std::slice::from_ref(&note));
        // One that cannot be read, for whatever reason, is left for a manager that can.
        let unread = path.join(format!("{TOPIC_PREFIX}{}", TopicId([1; 16])));
        std::os::unix::fs::symlink(&unread, &unread).unwrap();
        assert!(matches!(dir.topics(), Err(RuntimeError::Io { path, .. }) if path == unread));
        assert!(fs::symlink_metadata(&unread).is_ok());
        fs::remove_file(unread).unwrap();
        dir.forget_topic(note.topic);
        assert!(dir.topics().unwrap().is_empty());
        fs::remove_dir_all(&path).unwrap();
    }
}
