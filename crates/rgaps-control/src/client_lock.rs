//! Which clients live: each holds the lock of a file of its own in the runtime directory (`client-<id>`) from its hello to its end.
//!
//! The manager makes the file, since members of `socket_group` may not write into the directory, and sends a descriptor of it with its
//! welcome, for reading: a member who could write there would fill the disk at the cost of the manager's user. The client locks it. It never
//! opens the file itself, and nobody locks another's: a process loses such a lock when it closes any descriptor of the file
//! (`rgaps_os::process_lock`, L1). A manager that finds a predecessor's notes asks the kernel who of their clients still holds a lock, as
//! often as it likes. Where somebody has removed the file, the one that the client's process has open tells it.

use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rgaps_os::{Holder, PidFd};

use crate::names::LockId;
use crate::runtime::{RuntimeDir, RuntimeError, create_for_reading};

/// No such process (errno(3)).
const ESRCH: i32 = 3;
/// Of the files' names.
pub(crate) const PREFIX: &str = "client-";

impl RuntimeDir {
    /// A new file for a client to lock, open for reading.
    pub fn new_client_lock(&self) -> Result<(LockId, File), RuntimeError> {
        let lock = LockId::random().map_err(|source| RuntimeError::Io { path: self.path().to_owned(), source })?;
        let path = self.client_path(lock);
        let file = create_for_reading(&path);
        file.map(|file| (lock, file)).map_err(|source| RuntimeError::Io { path, source })
    }

    /// Who holds a client's lock, if it is `pid`, the client's process, or if its file is there. An error says nothing of the client: ask again.
    pub fn client_lock_holder(&self, lock: LockId, pid: u32) -> io::Result<Holder> {
        let file = match File::open(self.client_path(lock)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => file_of_process(lock, pid)?,
            opened => Some(opened?),
        };
        file.map_or(Ok(Holder::Nobody), |file| rgaps_os::process_lock::holder(&file))
    }

    /// Whether a client lives, or nobody can tell. Its process may go on without it, as another program or after the end of its node.
    pub fn client_lives(&self, lock: LockId, pid: u32) -> bool {
        self.client_lock_holder(lock, pid).map_or(true, |holder| holder != Holder::Nobody)
    }

    /// Whether the file of a client's lock is where it was made.
    pub fn has_client_file(&self, lock: LockId) -> bool {
        self.client_path(lock).try_exists().unwrap_or(true)
    }

    /// A client is gone.
    pub fn forget_client_lock(&self, lock: LockId) {
        let _ = fs::remove_file(self.client_path(lock));
    }

    /// Removes what dead clients left.
    pub fn forget_dead_clients(&self) {
        let entries = fs::read_dir(self.path()).into_iter().flatten().flatten();
        let locks = entries.filter_map(|entry| entry.file_name().to_str()?.strip_prefix(PREFIX)?.parse().ok());
        let is_nobodys = |lock: &LockId| {
            let file = File::open(self.client_path(*lock));
            file.and_then(|file| rgaps_os::process_lock::holder(&file)).is_ok_and(|holder| holder == Holder::Nobody)
        };
        locks.filter(is_nobodys).for_each(|lock| self.forget_client_lock(lock));
    }

    fn client_path(&self, lock: LockId) -> PathBuf {
        self.path().join(format!("{PREFIX}{lock}"))
    }
}

/// The file of a client's lock as its process has it open (proc_pid_fd(5)), whether or not it has a name still. `None` if it has none; an error if
/// that cannot be seen, but for a process that has ended.
fn file_of_process(lock: LockId, pid: u32) -> io::Result<Option<File>> {
    let name = format!("/{PREFIX}{lock} (deleted)");
    let is_dead = match PidFd::open(pid) {
        Err(error) if error.raw_os_error() == Some(ESRCH) => true,
        process => process?.is_dead()?,
    };
    if is_dead {
        return Ok(None);
    }
    for entry in fs::read_dir(Path::new("/proc").join(pid.to_string()).join("fd"))? {
        // Descriptors come and go meanwhile, and so may the process.
        let Ok(entry) = entry else { continue };
        let is_it = |target: PathBuf| target.as_os_str().as_bytes().ends_with(name.as_bytes());
        if fs::read_link(entry.path()).is_ok_and(is_it) {
            return File::open(entry.path()).map(Some);
        }
    }
    Ok(None)
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
        dir.forget_client_lock(lock);
        fs::remove_dir(&path).unwrap();
    }

    #[test]
    fn a_client_without_a_file_or_whose_file_nobody_locks_is_dead() {
        let path = std::env::temp_dir().join(format!("rgaps-client-lock-{}", std::process::id()));
        let dir = RuntimeDir::open(&path).unwrap();
        let (lock, _file) = dir.new_client_lock().unwrap();
        let pid = std::process::id();
        assert!(!dir.client_lives(lock, pid) && !dir.client_lives(LockId([1; 16]), pid));
        assert!(dir.has_client_file(lock));
        dir.forget_dead_clients();
        assert!(!dir.has_client_file(lock));
        // The one that is open is asked, and nobody has locked it.
        assert!(file_of_process(lock, pid).unwrap().is_some() && !dir.client_lives(lock, pid));
        assert!(file_of_process(LockId([1; 16]), pid).unwrap().is_none());
        fs::remove_dir(&path).unwrap();
    }
}
