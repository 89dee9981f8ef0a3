//! Restores the manager's files when another program, such as a cleaner of /tmp, removes them from the runtime directory.
//!
//! The manager watches the directory, the socket in it, and the files that a successor needs: lock files of clients, notes of topics, the epoch.
//! Many cleaners leave sockets alone and remove only these files. The manager creates a missing directory, socket, note or epoch again at once. It
//! cuts off a client whose lock file is missing; that client connects again and locks a new file. Other clients notice nothing. A manager without
//! clients exits as soon as any of these files is missing.
//!
//! Removing files does not release the manager's own lock, since it locks the directory itself. If the whole directory is removed, another manager
//! may create and lock it first; then this manager exits.
//!
//! An event of the watch only says which file to check: the watch also reports files that the manager removes itself, and it loses events when its
//! queue is full.

use std::collections::{BTreeMap, BTreeSet};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rgaps_control::local::Listener;
use rgaps_control::runtime::{ManagerLock, Noted, RuntimeError};
use rgaps_control::{RuntimeDir, TopicId};
use rustix::fs::inotify::{CreateFlags, ReadFlags, Reader, WatchFlags, add_watch, init};

use crate::adoption::Adoption;
use crate::clients::{Client, ClientId, Clients};
use crate::error::DaemonError;
use crate::topics::Topics;

/// How often the manager checks for missing files where it cannot watch them.
const UNWATCHED_LOOK: Duration = Duration::from_secs(1);
/// Attempts in one turn at creating files that another program keeps removing. Clients are served before the next turn.
const ATTEMPTS: usize = 8;

/// The manager's lock on the runtime directory, its socket, and the watch on both.
#[derive(Debug)]
pub(crate) struct RuntimeFiles {
    lock: ManagerLock,
    listener: Listener,
    group: Option<u32>,
    /// Whether the epoch was written.
    pub(crate) has_epoch: bool,
    /// Readable when the socket or the directory changes; `None` if they cannot be watched: then the manager checks every `UNWATCHED_LOOK`.
    watch: Option<OwnedFd>,
    /// When the files were last checked without an event of the watch.
    looked_at: Option<Instant>,
}

/// What a check of the files found.
#[derive(Debug)]
pub(crate) enum Checked {
    /// The directory is this manager's. `was_recreated`: the directory or the socket was missing, and the manager has created it again.
    Own { was_recreated: bool, missing: MissingFiles },
    /// Another manager has locked the directory.
    Taken,
    /// A file is missing, and the manager has no clients.
    Unneeded,
}

/// Files that are missing from the place where they were written.
#[derive(Debug, Default)]
pub(crate) struct MissingFiles {
    /// Clients whose lock files are missing.
    pub(crate) clients: BTreeSet<ClientId>,
    /// Topics whose notes are missing.
    pub(crate) topics: BTreeSet<TopicId>,
    /// Whether the epoch's file is missing.
    epoch: bool,
}

impl MissingFiles {
    pub(crate) fn is_empty(&self) -> bool {
        self.clients.is_empty() && self.topics.is_empty() && !self.epoch
    }

    fn extend(&mut self, more: Self) {
        self.clients.extend(more.clients);
        self.topics.extend(more.topics);
        self.epoch |= more.epoch;
    }
}

impl RuntimeFiles {
    /// Listens in a directory that is locked. `has_epoch`: the epoch was found or written there.
    pub(crate) fn new(
        dir: &RuntimeDir,
        lock: ManagerLock,
        group: Option<u32>,
        has_epoch: bool,
    ) -> Result<Self, DaemonError> {
        let listener = listen(dir, group)?;
        // The first turn starts the watch and checks all files.
        Ok(Self { watch: None, looked_at: None, has_epoch, lock, listener, group })
    }

    pub(crate) fn listener(&self) -> &Listener {
        &self.listener
    }

    pub(crate) fn watch(&self) -> Option<BorrowedFd<'_>> {
        self.watch.as_ref().map(AsFd::as_fd)
    }

    /// Closes watch and socket and returns the lock for an orderly exit; `None` if another manager has the directory now.
    pub(crate) fn leave(self) -> Option<ManagerLock> {
        let Self { lock, listener, watch, .. } = self;
        // The watch is closed first: the kernel needs milliseconds for that, and the lock should be released right after the socket.
        drop(watch);
        drop(listener);
        Some(lock).filter(ManagerLock::is_in_place)
    }

    pub(crate) fn check(
        &mut self,
        dir: &RuntimeDir,
        is_needed: bool,
        files: &Files<'_>,
    ) -> Result<Checked, DaemonError> {
        let (mut was_recreated, mut missing) = (false, MissingFiles::default());
        for _ in 0..ATTEMPTS {
            let was_watched = self.watch.is_some();
            if !was_watched {
                self.watch = watch(dir);
            }
            // A new watch reports only what happens from here on, so all files are checked once.
            match &self.watch {
                Some(watch) if was_watched => missing.extend(told_of(watch, files)),
                watch if watch.is_some() || self.looked_at.is_none_or(|at| at.elapsed() >= UNWATCHED_LOOK) => {
                    self.looked_at = Some(Instant::now());
                    missing.extend(files.missing());
                }
                _ => {}
            }
            let (is_locked, listens) = (self.lock.is_in_place(), self.listener.is_in_place());
            if !is_needed && (!missing.is_empty() || !is_locked || !listens) {
                return Ok(Checked::Unneeded);
            }
            if is_locked && listens {
                return Ok(Checked::Own { was_recreated, missing });
            }
            self.watch = None;
            if !is_locked {
                match dir.lock() {
                    Ok(lock) => self.lock = lock,
                    Err(RuntimeError::Locked { .. }) => return Ok(Checked::Taken),
                    Err(error) => return Err(error.into()),
                }
            }
            self.listener = listen(dir, self.group)?;
            (was_recreated, self.looked_at) = (true, None);
        }
        // If they were removed once more, the next turn finds that.
        Ok(Checked::Own { was_recreated, missing })
    }
}

/// The files that tell a successor which clients live and which slots they have.
pub(crate) struct Files<'a> {
    pub(crate) dir: &'a RuntimeDir,
    pub(crate) has_epoch: bool,
    pub(crate) unnoted: &'a BTreeMap<TopicId, String>,
    pub(crate) clients: &'a Clients,
    pub(crate) topics: &'a Topics,
    pub(crate) adoption: &'a Adoption,
}

impl Files<'_> {
    /// Whether the file with this name is missing.
    fn missing_of(&self, name: &str) -> MissingFiles {
        let mut missing = MissingFiles::default();
        match self.dir.noted_by(name) {
            Some(Noted::Epoch) => missing.epoch = self.lacks_epoch(),
            Some(Noted::Client(lock)) => {
                let its = self.clients.by_id.iter().filter(|(_, client)| client.lock == Some(lock));
                missing.clients.extend(its.filter(|(_, client)| self.lacks_its_file(client)).map(|(id, _)| *id));
            }
            Some(Noted::Topic(topic)) if self.lacks_its_note(topic) => drop(missing.topics.insert(topic)),
            Some(Noted::Topic(_)) | None => {}
        }
        missing
    }

    /// Every file that is missing. The lock file of a client that is not connected is not missed: only a connected client can lock a new one.
    fn missing(&self) -> MissingFiles {
        let clients = self.clients.by_id.iter().filter(|(_, client)| self.lacks_its_file(client)).map(|(id, _)| *id);
        let topics = self.topics.values().map(|topic| topic.id).chain(self.adoption.only_noted());
        MissingFiles {
            clients: clients.collect(),
            topics: topics.filter(|topic| self.lacks_its_note(*topic)).collect(),
            epoch: self.lacks_epoch(),
        }
    }

    fn lacks_epoch(&self) -> bool {
        self.has_epoch && !self.dir.has_epoch()
    }

    fn lacks_its_file(&self, client: &Client) -> bool {
        let is_heard = client.connection.is_some() && !client.has_ended;
        is_heard && client.lock.is_some_and(|lock| !self.dir.has_client_file(lock, client.lock_file))
    }

    /// Whether a note was written and is missing now.
    fn lacks_its_note(&self, id: TopicId) -> bool {
        let was_written = match self.topics.get(&id) {
            Some(topic) => topic.noted.is_some(),
            None => self.adoption.only_note(id).is_some() && !self.unnoted.contains_key(&id),
        };
        was_written && !self.dir.has_note(id)
    }
}

fn listen(dir: &RuntimeDir, group: Option<u32>) -> Result<Listener, DaemonError> {
    // Members are admitted before they can see the socket: one that connected in between would be refused.
    let mut listener = Listener::bind_after(&dir.socket(), |new| Ok::<_, DaemonError>(dir.admit(new, group)?))?;
    listener.admit_group(group.is_some());
    Ok(listener)
}

fn watch(dir: &RuntimeDir) -> Option<OwnedFd> {
    let watch = init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).ok()?;
    // Removing an open file changes its link count (ATTRIB). Only an empty directory can be removed, so the socket is removed first.
    let gone = WatchFlags::ATTRIB | WatchFlags::MOVE_SELF | WatchFlags::DELETE_SELF;
    for (path, events) in [(dir.path().to_owned(), gone | WatchFlags::DELETE | WatchFlags::MOVE), (dir.socket(), gone)]
    {
        add_watch(&watch, path, events).ok()?;
    }
    Some(watch)
}

/// Reads all events of a watch and returns which of the files that they name are missing.
fn told_of(watch: &OwnedFd, files: &Files<'_>) -> MissingFiles {
    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut events = Reader::new(watch, &mut buffer);
    let (mut missing, mut has_lost_some) = (MissingFiles::default(), false);
    loop {
        match events.next() {
            Ok(event) if event.events().contains(ReadFlags::QUEUE_OVERFLOW) => has_lost_some = true,
            Ok(event) if event.events().intersects(ReadFlags::DELETE | ReadFlags::MOVED_FROM | ReadFlags::MOVED_TO) => {
                let name = event.file_name().and_then(|name| name.to_str().ok());
                name.into_iter().for_each(|name| missing.extend(files.missing_of(name)));
            }
            Ok(_) => {}
            Err(_) if has_lost_some => return files.missing(),
            Err(_) => return missing,
        }
    }
}
