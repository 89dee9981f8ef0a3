//! Where clients find the manager: its runtime directory, which it has locked, and the socket there. Somebody may remove them, as a cleaner of /tmp
//! does with what is old. The manager watches both and makes them anew at once, and so the files by which a successor knows who lives and has what:
//! many a cleaner leaves sockets alone. Who removes files takes nobody's lock away; only where the whole
//! directory is removed can another manager come first, and then this one leaves. So does one without clients, whatever is removed.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rgaps_control::local::Listener;
use rgaps_control::runtime::{ManagerLock, Noted, RuntimeError};
use rgaps_control::{RuntimeDir, TopicId};
use rustix::fs::inotify::{CreateFlags, ReadFlags, Reader, WatchFlags, add_watch, init};

use crate::adoption::Adoption;
use crate::clients::{Client, ClientId, Clients};
use crate::daemon::DaemonError;
use crate::log;
use crate::manager::Manager;
use crate::topics::Topics;

/// How often files are looked for where the kernel does not tell of their removal.
const UNWATCHED_LOOK: Duration = Duration::from_secs(1);

/// The lock and the socket.
#[derive(Debug)]
pub(crate) struct Premises {
    lock: ManagerLock,
    listener: Listener,
    group: Option<u32>,
    /// Readable when something happens to the socket or the directory; `None` where they cannot be watched, and each turn looks.
    watch: Option<OwnedFd>,
    /// When the files were looked for last, where they cannot be watched.
    looked_at: Option<Instant>,
}

/// What was found where the files should be.
#[derive(Debug)]
enum Found {
    All,
    /// Something was gone, and is there again.
    Anew,
    /// Another manager has the directory.
    Taken,
    /// Something is gone that nobody needs.
    Unneeded,
}

impl Premises {
    /// Listens in a directory that is locked.
    pub(crate) fn new(dir: &RuntimeDir, lock: ManagerLock, group: Option<u32>) -> Result<Self, DaemonError> {
        let listener = listen(dir, group)?;
        // The first turn begins the watch, and looks.
        Ok(Self { watch: None, looked_at: None, lock, listener, group })
    }

    pub(crate) fn listener(&self) -> &Listener {
        &self.listener
    }

    pub(crate) fn watch(&self) -> Option<BorrowedFd<'_>> {
        self.watch.as_ref().map(AsFd::as_fd)
    }

    /// The lock, for leaving; `None` if the directory is another manager's by now.
    pub(crate) fn leave(self) -> Option<ManagerLock> {
        let Self { lock, listener, watch, .. } = self;
        // The kernel takes milliseconds to close a watch; from the socket's end to the lock's there should be none.
        drop(watch);
        drop(listener);
        Some(lock).filter(ManagerLock::is_in_place)
    }

    fn look(&mut self, dir: &RuntimeDir, is_needed: bool, files: &Files<'_>) -> Result<Found, DaemonError> {
        let mut found = Found::All;
        loop {
            // Before the look: what happens after it is seen by the watch.
            let is_watched = self.watch.is_some();
            let is_removed = match &self.watch {
                Some(watch) => removed(watch, files),
                None => {
                    self.looked_at.is_none_or(|at| at.elapsed() >= UNWATCHED_LOOK) && {
                        self.looked_at = Some(Instant::now());
                        files.is_lacking()
                    }
                }
            };
            if is_removed {
                found = Found::Anew;
            }
            let (is_locked, listens) = (self.lock.is_in_place(), self.listener.is_in_place());
            if !is_needed && (is_removed || !is_locked || !listens) {
                return Ok(Found::Unneeded);
            }
            if is_locked && listens && is_watched {
                return Ok(found);
            }
            self.watch = None;
            if !is_locked {
                match dir.lock() {
                    Ok(lock) => self.lock = lock,
                    Err(RuntimeError::Locked { .. }) => return Ok(Found::Taken),
                    Err(error) => return Err(error.into()),
                }
            }
            if !is_locked || !listens {
                self.listener = listen(dir, self.group)?;
                found = Found::Anew;
            }
            self.watch = watch(dir);
            if self.watch.is_none() && self.lock.is_in_place() && self.listener.is_in_place() {
                return Ok(found);
            }
        }
    }
}

impl Manager {
    /// Puts right what somebody has done to the runtime directory. False if it is another manager's by now, or if nobody needs this one.
    #[must_use]
    pub(crate) fn look_at_premises(&mut self) -> bool {
        let is_needed = !self.clients.by_id.is_empty() || !self.adoption.is_over();
        let files = Files { dir: &self.dir, clients: &self.clients, topics: &self.topics, adoption: &self.adoption };
        match self.premises.look(&self.dir, is_needed, &files) {
            Ok(Found::All) => return true,
            Ok(Found::Anew) => {}
            Ok(Found::Taken) => {
                tracing::error!(dir = %self.dir.path().display(), "somebody has removed this rgapsd's files, and another one serves here now; leaving");
                return false;
            }
            Ok(Found::Unneeded) => {
                tracing::info!("somebody has removed this rgapsd's files, and it has no clients; leaving");
                return false;
            }
            Err(error) => {
                tracing::warn!(%error, "somebody has removed this rgapsd's files, and they cannot be made anew yet");
                return true;
            }
        }
        log::come_back();
        tracing::warn!(
            dir = %self.dir.path().display(),
            "somebody has removed this rgapsd's files; they are made anew, and clients connect again (XDG_RUNTIME_DIR is not cleaned)"
        );
        let _ = self.dir.epoch(self.epoch);
        if let Err(error) = self.dir.note_config(&self.config) {
            tracing::warn!(%error, "clients are not told what rgapsd runs with");
        }
        // They come back with the locks of new files; what they have stays theirs.
        self.clients.by_id.values_mut().for_each(|client| client.hang_up());
        let topics: Vec<_> = self.topics.values().map(|topic| topic.id).collect();
        for id in topics {
            if let Some(topic) = self.topics.get_mut(&id) {
                topic.noted = None;
            }
            self.note(id);
        }
        self.adoption.only_noted().collect::<Vec<_>>().into_iter().for_each(|id| self.note_again(id));
        true
    }

    /// A client holds the lock that it was given, and held others before. What earlier connections of it have and what is awaited of it is its own
    /// by that lock from now on, also to a successor; then it may give up the others.
    pub(crate) fn know_again(&mut self, id: ClientId) {
        let Some(client) = self.clients.by_id.get_mut(&id).filter(|client| client.is_locked) else { return };
        let (pid, Some(now), before) = (client.pid, client.lock, std::mem::take(&mut client.held_before)) else {
            return;
        };
        for lock in before {
            let mut topics = self.clients.rename(pid, lock, now);
            topics.extend(self.adoption.rename(pid, lock, now));
            for id in topics {
                self.note(id);
                self.note_again(id);
            }
            let is_anothers = self.clients.by_id.values().any(|other| other.lock == Some(lock));
            if !is_anothers && !self.adoption.names(lock) {
                self.dir.forget_client_lock(lock);
            }
        }
    }

    /// Notes a topic of which there is only a predecessor's note.
    fn note_again(&self, id: TopicId) {
        let written = self.adoption.only_note(id).map_or(Ok(()), |note| self.dir.note_topic(&note));
        if let Err(error) = written {
            tracing::warn!(%error, "a successor of this rgapsd will not know who is in a topic");
        }
    }
}

/// The files by which a successor knows who lives and has what.
struct Files<'a> {
    dir: &'a RuntimeDir,
    clients: &'a Clients,
    topics: &'a Topics,
    adoption: &'a Adoption,
}

impl Files<'_> {
    /// Whether a successor needs the file of this name.
    fn has(&self, name: &str) -> bool {
        match self.dir.meaning(name) {
            Some(Noted::Epoch) => true,
            Some(Noted::Client(lock)) => {
                self.adoption.names(lock) || self.clients.by_id.values().any(|client| client.lock == Some(lock))
            }
            Some(Noted::Topic(topic)) => self.topics.get(&topic).is_some() || self.adoption.only_note(topic).is_some(),
            None => false,
        }
    }

    /// Whether one is not there that was written and that whoever is connected needs.
    fn is_lacking(&self) -> bool {
        let is_connected = |client: &&Client| client.connection.is_some() && client.is_locked;
        let mut locks = self.clients.by_id.values().filter(is_connected).filter_map(|client| client.lock);
        let mut noted = self.topics.values().filter(|topic| topic.noted.is_some());
        locks.any(|lock| !self.dir.has_client_file(lock)) || noted.any(|topic| !self.dir.has_note(topic.id))
    }
}

fn listen(dir: &RuntimeDir, group: Option<u32>) -> Result<Listener, DaemonError> {
    let mut listener = Listener::bind(&dir.socket())?;
    dir.admit(group)?;
    listener.admit_group(group.is_some());
    Ok(listener)
}

fn watch(dir: &RuntimeDir) -> Option<OwnedFd> {
    let watch = init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).ok()?;
    // Who removes a file that is open changes the count of its links. A directory that is removed was empty, so the socket has gone first.
    let gone = WatchFlags::ATTRIB | WatchFlags::MOVE_SELF | WatchFlags::DELETE_SELF;
    for (path, events) in
        [(dir.path().to_owned(), gone | WatchFlags::DELETE | WatchFlags::MOVED_FROM), (dir.socket(), gone)]
    {
        add_watch(&watch, path, events).ok()?;
    }
    Some(watch)
}

/// Reads all that a watch has to tell: whether a file of these was removed or renamed.
fn removed(watch: &OwnedFd, files: &Files<'_>) -> bool {
    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut events = Reader::new(watch, &mut buffer);
    let mut is_gone = false;
    loop {
        match events.next() {
            Ok(event) if event.events().contains(ReadFlags::QUEUE_OVERFLOW) => is_gone = true,
            Ok(event) if event.events().intersects(ReadFlags::DELETE | ReadFlags::MOVED_FROM) => {
                is_gone |= event.file_name().and_then(|name| name.to_str().ok()).is_some_and(|name| files.has(name));
            }
            Ok(_) => {}
            Err(_) => return is_gone,
        }
    }
}
