//! Which clients live: each holds the lock of a file of its own in the runtime directory (`client-<id>`) from its hello to its end.
//!
//! The manager makes the file, since members of `socket_group` may not write into the directory, and sends a descriptor of it with its
//! welcome; the client locks it. It never opens the file itself, and nobody locks another's: a process loses such a lock when it closes any
//! descriptor of the file (`rgaps_os::process_lock`, L1). A manager that finds a predecessor's notes asks the kernel who of their clients
//! still holds a lock, as often as it likes. A file that is not there is a dead client's.

use std::fs::{self, File};
use std::io;
use std::path::PathBuf;

use rgaps_os::Holder;

use crate::names::LockId;
use crate::runtime::{RuntimeDir, RuntimeError, open_private};

/// Of the files' names.
pub(crate) const PREFIX: &str = "client-";

impl RuntimeDir {
    /// A new file for a client to lock.
    pub fn new_client_lock(&self) -> Result<(LockId, File), RuntimeError> {
        let lock = LockId::random().map_err(|source| RuntimeError::Io { path: self.path().to_owned(), source })?;
        let path = self.client_path(lock);
        let file = open_private(&path, File::options().read(true).write(true).create_new(true));
        file.map(|file| (lock, file)).map_err(|source| RuntimeError::Io { path, source })
    }

    /// Who holds a client's lock. An error says nothing of the client: ask again.
    pub fn client_lock_holder(&self, lock: LockId) -> io::Result<Holder> {
        match File::open(self.client_path(lock)) {
            Ok(file) => rgaps_os::process_lock::holder(&file),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Holder::Nobody),
            Err(error) => Err(error),
        }
    }

    /// Whether a client lives, or nobody can tell.
    pub fn client_lives(&self, lock: LockId) -> bool {
        self.client_lock_holder(lock).map_or(true, |holder| holder != Holder::Nobody)
    }

    /// Whether a client has ended, though its process may go on as another program: nobody holds its lock. False of one whose file somebody
    /// has removed: its lock cannot be asked for.
    pub fn has_given_up(&self, lock: LockId) -> bool {
        let file = File::open(self.client_path(lock));
        file.and_then(|file| rgaps_os::process_lock::holder(&file)).is_ok_and(|holder| holder == Holder::Nobody)
    }

    /// Whether somebody has removed the file of a client's lock.
    pub fn has_no_file(&self, lock: LockId) -> bool {
        self.client_path(lock).try_exists().is_ok_and(|exists| !exists)
    }

    /// A client is gone.
    pub fn forget_client_lock(&self, lock: LockId) {
        let _ = fs::remove_file(self.client_path(lock));
    }

    /// Removes what dead clients left.
    pub fn forget_dead_clients(&self) {
        let entries = fs::read_dir(self.path()).into_iter().flatten().flatten();
        let locks = entries.filter_map(|entry| entry.file_name().to_str()?.strip_prefix(PREFIX)?.parse().ok());
        locks.filter(|lock| !self.client_lives(*lock)).for_each(|lock| self.forget_client_lock(lock));
    }

    fn client_path(&self, lock: LockId) -> PathBuf {
        self.path().join(format!("{PREFIX}{lock}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_without_a_file_or_whose_file_nobody_locks_is_dead() {
        let path = std::env::temp_dir().join(format!("rgaps-client-lock-{}", std::process::id()));
        let dir = RuntimeDir::open(&path).unwrap();
        let (lock, _file) = dir.new_client_lock().unwrap();
        assert!(!dir.client_lives(lock) && !dir.client_lives(LockId([1; 16])));
        assert!(dir.client_path(lock).exists());
        assert!(dir.has_given_up(lock) && !dir.has_given_up(LockId([1; 16])));
        dir.forget_dead_clients();
        assert!(!dir.client_path(lock).exists());
        fs::remove_dir(&path).unwrap();
    }
}
