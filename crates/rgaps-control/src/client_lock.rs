//! Which clients live: from its hello to its end, each client locks its own file in the runtime directory, `client-<id>`.
//!
//! The manager creates the file, since members of `socket_group` may not write into the directory. It sends a read-only file descriptor with its
//! welcome: a member with write access could fill the disk at the expense of the manager's user. The client locks that file descriptor and never
//! opens the file itself: a process loses the lock when it closes any file descriptor of the file (`rgaps_os::process_lock`, PL1). A manager that
//! finds a predecessor's notes asks the kernel, any number of times, which of the noted clients still hold their locks.
//!
//! Invariants  K1 a lock belongs to the file with the noted device and inode, even if that file is renamed or another one has its name.
//!             K2 only a regular file of this user with that identity is opened for reading: a process may have a pipe open, and opening a pipe
//!             can block for ever.
//!             K3 the file descriptors of a process are searched once for each lock: the file that was found stays open here. If forks count, those
//!             of all processes are searched for the removed file of a dead client, once for each lock, too.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use rgaps_os::{Found, Holder, Links, found, pidfd};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::names::LockId;
use crate::runtime::{RuntimeDir, RuntimeError, create_for_reading};

/// The start of the names of lock files.
pub(crate) const PREFIX: &str = "client-";

/// Identifies a file, whatever its name is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct FileId {
    /// The device of its file system.
    pub device: u64,
    /// Its inode number on that device.
    pub inode: u64,
}

impl From<(u64, u64)> for FileId {
    fn from((device, inode): (u64, u64)) -> Self {
        Self { device, inode }
    }
}

/// A client as a note names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct NotedClient {
    /// The lock that it holds while it lives.
    pub lock: LockId,
    /// Its process. If the lock's file is not at its path, it is searched among the open files of this process.
    pub pid: u32,
    /// The lock's file.
    pub file: FileId,
}

impl RuntimeDir {
    /// A new file for a client to lock, open for reading.
    pub fn new_client_lock(&self) -> Result<(LockId, File), RuntimeError> {
        let lock = LockId::random().map_err(|source| RuntimeError::Io { path: self.path().to_owned(), source })?;
        let path = self.client_path(lock);
        let file = create_for_reading(&path);
        file.map(|file| (lock, file)).map_err(|source| RuntimeError::Io { path, source })
    }

    /// Whether the lock file of a client is still at its path.
    pub fn has_client_file(&self, lock: LockId, file: FileId) -> bool {
        match Found::at(&self.client_path(lock), Links::Refuse) {
            Ok(found) => FileId::from(found.identity()) == file,
            Err(error) => !is_no_lock_file(&error),
        }
    }

    /// Removes the lock files that no client and no process forked from a client holds.
    pub fn forget_dead_clients(&self) {
        let entries = fs::read_dir(self.path()).into_iter().flatten().flatten();
        let locks = entries.filter_map(|entry| entry.file_name().to_str()?.strip_prefix(PREFIX)?.parse().ok());
        let is_nobodys = |lock: &LockId| {
            let opened = open_lock_file(&self.client_path(*lock), Links::Refuse);
            opened.and_then(|(file, _)| lives(&file, Lifetime::WithForks)).is_ok_and(|lives| !lives)
        };
        locks.filter(is_nobodys).for_each(|lock| self.remove_client_file(lock));
    }

    fn remove_client_file(&self, lock: LockId) {
        let _ = fs::remove_file(self.client_path(lock));
    }

    fn client_path(&self, lock: LockId) -> PathBuf {
        self.path().join(format!("{PREFIX}{lock}"))
    }
}

/// Until when a client counts as living.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lifetime {
    /// Until its process has ended.
    OfProcess,
    /// Until its process and every process forked from it have ended: a fork keeps the GPU open, so the client's streams may go on writing.
    WithForks,
}

/// The open lock files of clients. The kernel is asked through the open file, so it does not matter whether the file was renamed or removed.
#[derive(Debug)]
pub struct ClientLocks {
    lifetime: Lifetime,
    open: BTreeMap<LockId, (FileId, File)>,
    /// How often the file descriptors of a process were searched.
    #[cfg(test)]
    looks: usize,
}

impl ClientLocks {
    /// No files yet; `lifetime` says until when a client counts as living.
    pub fn new(lifetime: Lifetime) -> Self {
        Self {
            lifetime,
            open: BTreeMap::new(),
            #[cfg(test)]
            looks: 0,
        }
    }

    /// Keeps the file of a new lock open. Opens it again: a process does not see the locks of its own open file description.
    pub fn keep(&mut self, lock: LockId, file: &File) -> io::Result<FileId> {
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let (file, found) = open_lock_file(Path::new(&path), Links::Follow)?;
        self.open.insert(lock, (found, file));
        Ok(found)
    }

    /// Checks a lock that a client claims to hold: returns the lock's file if it is at its path and process `pid` holds the lock. After an error,
    /// nothing is known of the client.
    pub fn recognize(&mut self, dir: &RuntimeDir, lock: LockId, pid: u32) -> io::Result<Option<FileId>> {
        let (file, found) = match open_lock_file(&dir.client_path(lock), Links::Refuse) {
            Err(error) if is_no_lock_file(&error) => return Ok(None),
            opened => opened?,
        };
        if holder(&file)? != Holder::Process(pid) {
            return Ok(None);
        }
        self.open.insert(lock, (found, file));
        Ok(Some(found))
    }

    /// Which process holds a client's lock. After an error, nothing is known of the client: try again.
    pub fn holder(&mut self, dir: &RuntimeDir, client: NotedClient) -> io::Result<Holder> {
        self.find(dir, [client]).remove(&client).unwrap_or(Ok(()))?;
        self.file(client).map_or(Ok(Holder::Nobody), holder)
    }

    /// Whether a client lives. True if the kernel's answer fails. False if its process goes on without it: as another program, or after its node
    /// was dropped.
    pub fn may_live(&mut self, dir: &RuntimeDir, client: NotedClient) -> bool {
        !self.living(dir, [client]).is_empty()
    }

    /// Which of these clients live, as `may_live` says of each.
    pub fn living(
        &mut self,
        dir: &RuntimeDir,
        clients: impl IntoIterator<Item = NotedClient>,
    ) -> BTreeSet<NotedClient> {
        let found = self.find(dir, clients).into_iter();
        let lives = |client| {
            self.file(client)
                .map_or(Ok(false), |file| Ok(lives(file, self.lifetime)? || is_open_in_its_process(client)?))
        };
        let lives = |(client, found): (NotedClient, io::Result<()>)| {
            found.and_then(|()| lives(client)).unwrap_or(true).then_some(client)
        };
        found.filter_map(lives).collect()
    }

    /// Closes and removes the lock file of a client that has ended.
    pub fn forget(&mut self, dir: &RuntimeDir, lock: LockId) {
        self.open.remove(&lock);
        dir.remove_client_file(lock);
    }

    /// Opens the lock files of these clients that still exist. After an error, nothing is known of that client.
    fn find(
        &mut self,
        dir: &RuntimeDir,
        clients: impl IntoIterator<Item = NotedClient>,
    ) -> BTreeMap<NotedClient, io::Result<()>> {
        let mut answers = BTreeMap::new();
        // By process; under `None` those whose processes have ended, but perhaps not the processes forked from these.
        let mut elsewhere: BTreeMap<Option<u32>, Vec<NotedClient>> = BTreeMap::new();
        for client in clients {
            match self.open_at_its_place(dir, client) {
                Ok(true) => drop(answers.insert(client, Ok(()))),
                Ok(false) => {
                    let has_forks = self.lifetime == Lifetime::WithForks && pidfd::is_dead(client.pid).unwrap_or(false);
                    elsewhere.entry((!has_forks).then_some(client.pid)).or_default().push(client);
                }
                Err(error) => drop(answers.insert(client, Err(error))),
            }
        }
        for (pid, clients) in elsewhere {
            #[cfg(test)]
            {
                self.looks += 1;
            }
            let wanted = clients.iter().map(|client| client.file).collect();
            match pid.map_or_else(|| files_of_any(&wanted), |pid| files_of_process(pid, wanted.clone())) {
                // A living client has its file open, and so has a process forked from it, so a file that was not found belongs to a dead client.
                Ok(mut files) => answers.extend(clients.into_iter().map(|client| {
                    let file = files.remove(&client.file);
                    self.open.extend(file.map(|file| (client.lock, (client.file, file))));
                    (client, Ok(()))
                })),
                Err(error) => answers.extend(clients.into_iter().map(|client| (client, Err(again(&error))))),
            }
        }
        answers
    }

    /// Opens the lock file of a client if it is at its path. True if the file is open here.
    fn open_at_its_place(&mut self, dir: &RuntimeDir, client: NotedClient) -> io::Result<bool> {
        if self.open.get(&client.lock).is_some_and(|(file, _)| *file == client.file) {
            return Ok(true);
        }
        match open_lock_file(&dir.client_path(client.lock), Links::Refuse) {
            Ok((file, found)) if found == client.file => {
                self.open.insert(client.lock, (found, file));
                Ok(true)
            }
            Ok(_) => Ok(false),
            Err(error) if is_no_lock_file(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn file(&self, client: NotedClient) -> Option<&File> {
        self.open.get(&client.lock).filter(|(file, _)| *file == client.file).map(|(_, file)| file)
    }
}

fn holder(file: &File) -> io::Result<Holder> {
    rgaps_os::process_lock::holder(file)
}

fn lives(file: &File, lifetime: Lifetime) -> io::Result<bool> {
    let is_held = match holder(file)? {
        Holder::Nobody => false,
        // A process that shares the dead one's table of file descriptors (clone(2), CLONE_FILES) keeps the lock held.
        Holder::Process(pid) => !pidfd::is_dead(pid)?,
        Holder::OutOfSight => true,
    };
    Ok(is_held || lifetime == Lifetime::WithForks && rgaps_os::process_lock::is_open_in_a_fork(file)?)
}

/// Whether a client's process has its lock file open. Then the client lives, although its lock may be free: a process loses its record locks when
/// any code in it opens and closes the file (fcntl(2)), for example to copy the runtime directory.
fn is_open_in_its_process(client: NotedClient) -> io::Result<bool> {
    // A manager has the files of all clients open.
    Ok(client.pid != std::process::id() && !files_of_process(client.pid, BTreeSet::from([client.file]))?.is_empty())
}

fn again(error: &io::Error) -> io::Error {
    error.raw_os_error().map_or_else(|| error.kind().into(), io::Error::from_raw_os_error)
}

/// Whether an error says that no lock file is at the path.
fn is_no_lock_file(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory | io::ErrorKind::InvalidInput)
}

/// Opens a lock file to ask the kernel for its holder. Anything but a regular file of this user is InvalidInput and is not opened.
fn open_lock_file(path: &Path, links: Links) -> io::Result<(File, FileId)> {
    let found = Found::at(path, links)?;
    if !found.is_own_file() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    Ok((found.open()?, found.identity().into()))
}

/// Finds these files among the open files of all processes that this one may look into.
fn files_of_any(wanted: &BTreeSet<FileId>) -> io::Result<BTreeMap<FileId, File>> {
    let mut files = BTreeMap::new();
    for pid in fs::read_dir("/proc")?.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()) {
        let left: BTreeSet<FileId> = wanted.iter().filter(|file| !files.contains_key(*file)).copied().collect();
        if left.is_empty() {
            break;
        }
        match files_of_process(pid, left) {
            Ok(found) => files.extend(found),
            Err(error) if matches!(Errno::from_io_error(&error), Some(Errno::MFILE | Errno::NFILE | Errno::NOMEM)) => {
                return Err(error);
            }
            // It has just ended, or does not show its files: the kernel's own do not, and those of other users.
            Err(_) => {}
        }
    }
    Ok(files)
}

/// Finds these files among the open files of a process (proc_pid_fd(5)), whatever their names are. Finds none if the process has ended. An error if
/// the kernel does not show its open files.
fn files_of_process(pid: u32, mut wanted: BTreeSet<FileId>) -> io::Result<BTreeMap<FileId, File>> {
    let mut files = BTreeMap::new();
    if pidfd::is_dead(pid)? {
        return Ok(files);
    }
    let is_one = |wanted: &BTreeSet<FileId>, path: &Path| {
        found::identity_at(path).is_ok_and(|found| wanted.contains(&found.into()))
    };
    for path in pidfd::open_files(pid)? {
        if wanted.is_empty() {
            break;
        }
        // The process may close file descriptors or end meanwhile: such a path is skipped.
        if !is_one(&wanted, &path) {
            continue;
        }
        match open_lock_file(&path, Links::Follow) {
            // The path leads to another file now, or to none.
            Ok((_, found)) if !wanted.contains(&found) => {}
            Err(error) if is_no_lock_file(&error) => {}
            Ok((file, found)) => {
                wanted.remove(&found);
                files.insert(found, file);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn the_file_of_a_lock_can_be_locked_and_not_written_by_whoever_gets_it() {
        let path = std::env::temp_dir().join(format!("rgaps-lock-file-{}", std::process::id()));
        let dir = RuntimeDir::open(&path).unwrap();
        let (lock, mut file) = dir.new_client_lock().unwrap();
        assert!(file.write(&[1]).is_err());
        assert_eq!(fs::metadata(dir.client_path(lock)).unwrap().len(), 0);
        drop(rgaps_os::ProcessLock::take(file.into()).unwrap());
        dir.remove_client_file(lock);
        fs::remove_dir(&path).unwrap();
    }

    fn scratch(name: &str) -> RuntimeDir {
        let path = std::env::temp_dir().join(format!("rgaps-client-lock-{}-{name}", std::process::id()));
        RuntimeDir::open(&path).unwrap()
    }

    fn noted(lock: LockId, file: &File, pid: u32) -> NotedClient {
        NotedClient { lock, pid, file: rgaps_os::memfd::identity(file).unwrap().into() }
    }

    #[test]
    fn a_client_without_a_file_or_whose_file_nobody_locks_is_dead() {
        let dir = scratch("dead");
        let (lock, file) = dir.new_client_lock().unwrap();
        let pid = std::process::id();
        let client = noted(lock, &file, pid);
        let mut locks = ClientLocks::new(Lifetime::OfProcess);
        assert!(
            !locks.may_live(&dir, client) && !locks.may_live(&dir, NotedClient { lock: LockId([1; 16]), ..client })
        );
        assert!(dir.has_client_file(lock, client.file));
        dir.forget_dead_clients();
        assert!(!dir.has_client_file(lock, client.file));
        // The file is removed, but this process has it open. No process has locked it.
        assert!(!ClientLocks::new(Lifetime::OfProcess).may_live(&dir, client));
        assert!(files_of_process(pid, BTreeSet::from([client.file])).unwrap().contains_key(&client.file));
        let other = FileId { inode: client.file.inode + 1_000_000, ..client.file };
        assert!(files_of_process(pid, BTreeSet::from([other])).unwrap().is_empty());
        fs::remove_dir(dir.path()).unwrap();
    }

    #[test]
    fn a_lock_that_was_given_out_shows_whether_a_fork_has_its_file() {
        let dir = scratch("given-out");
        let (lock, file) = dir.new_client_lock().unwrap();
        let client = noted(lock, &file, std::process::id());
        let mut locks = ClientLocks::new(Lifetime::WithForks);
        assert_eq!(locks.keep(lock, &file).unwrap(), client.file);
        assert!(!locks.may_live(&dir, client));
        // A process does not see its own lock, but sees who has the file, as a fork would.
        let taken = rgaps_os::ProcessLock::take(file.into()).unwrap();
        assert!(locks.may_live(&dir, client));
        drop(taken);
        assert!(!locks.may_live(&dir, client));
        locks.forget(&dir, lock);
        fs::remove_dir(dir.path()).unwrap();
    }

    #[test]
    fn a_lock_file_is_another_once_something_else_has_its_name() {
        let dir = scratch("other");
        let (lock, file) = dir.new_client_lock().unwrap();
        let client = noted(lock, &file, std::process::id());
        let path = dir.client_path(lock);
        let aside = path.with_extension("aside");
        fs::copy(&path, &aside).unwrap();
        fs::rename(&aside, &path).unwrap();
        assert!(!dir.has_client_file(lock, client.file));
        assert!(!ClientLocks::new(Lifetime::OfProcess).open_at_its_place(&dir, client).unwrap());
        fs::remove_dir_all(dir.path()).unwrap();
    }

    #[test]
    fn what_is_no_regular_file_is_not_opened() {
        let dir = scratch("pipe");
        let path = dir.path().join("pipe");
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        // The open of a pipe for reading waits for a writer.
        let error = open_lock_file(&path, Links::Refuse).unwrap_err();
        assert!(is_no_lock_file(&error), "{error}");
        fs::remove_dir_all(dir.path()).unwrap();
    }

    #[test]
    fn a_process_is_looked_into_once_for_all_its_locks_and_not_again() {
        let dir = scratch("once");
        let made: Vec<(LockId, File)> = (0..3).map(|_| dir.new_client_lock().unwrap()).collect();
        let clients: Vec<_> = made.iter().map(|(lock, file)| noted(*lock, file, std::process::id())).collect();
        made.iter().for_each(|(lock, _)| dir.remove_client_file(*lock));
        let mut locks = ClientLocks::new(Lifetime::OfProcess);
        for _ in 0..4 {
            // This process has all of them open, and sees no lock of its own.
            assert!(locks.living(&dir, clients.clone()).is_empty());
        }
        assert_eq!((locks.looks, locks.open.len()), (1, clients.len()));
        fs::remove_dir(dir.path()).unwrap();
    }
}
