//! Where clients find the manager: its runtime directory, which it has locked, and the socket there. Somebody may remove them, as a cleaner of /tmp
//! does with what is old. The manager watches both and makes them anew at once, and so the files by which a successor knows who lives and has what:
//! many a cleaner leaves sockets alone. Who removes files takes nobody's lock away; only where the whole
//! directory is removed can another manager come first, and then this one leaves. So does one without clients, whatever is removed.
//!
//! The watch says where to look, and is not believed: it tells of this manager's own removals too, and may lose what it has to tell. A client
//! whose lock file is not in its place is hung up, and comes back with the lock of a new file; the others are left alone.

use std::collections::{BTreeMap, BTreeSet};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rgaps_control::local::{Listener, Refusal};
use rgaps_control::runtime::{ManagerLock, Noted, RuntimeError};
use rgaps_control::{RuntimeDir, TopicId};
use rustix::fs::inotify::{CreateFlags, ReadFlags, Reader, WatchFlags, add_watch, init};

use crate::adoption::Adoption;
use crate::clients::{Client, ClientId, Clients};
use crate::daemon::DaemonError;
use crate::log;
use crate::manager::Manager;
use crate::refusals::exhausted;
use crate::topics::Topics;

/// How often files are looked for where the kernel does not tell of their removal.
const UNWATCHED_LOOK: Duration = Duration::from_secs(1);
/// How often in one turn the files are made that somebody removes as often. Clients are served before the next turn.
const ATTEMPTS: usize = 8;

/// The lock and the socket.
#[derive(Debug)]
pub(crate) struct Premises {
    lock: ManagerLock,
    listener: Listener,
    group: Option<u32>,
    /// Whether the epoch was noted.
    has_epoch: bool,
    /// Readable when something happens to the socket or the directory; `None` where they cannot be watched, and each turn looks.
    watch: Option<OwnedFd>,
    /// When the files were looked for last, where they cannot be watched.
    looked_at: Option<Instant>,
}

/// What was found where the files should be.
#[derive(Debug)]
enum Found {
    /// The directory is this manager's. `is_anew`: it or the socket was gone, and is there again.
    Own { is_anew: bool, lacking: Lacking },
    /// Another manager has the directory.
    Taken,
    /// Something is gone that nobody needs.
    Unneeded,
}

/// What is not where it was written.
#[derive(Debug, Default)]
struct Lacking {
    /// Whose lock files.
    clients: BTreeSet<ClientId>,
    /// Whose notes.
    topics: BTreeSet<TopicId>,
    epoch: bool,
}

impl Lacking {
    fn is_empty(&self) -> bool {
        self.clients.is_empty() && self.topics.is_empty() && !self.epoch
    }

    fn extend(&mut self, more: Self) {
        self.clients.extend(more.clients);
        self.topics.extend(more.topics);
        self.epoch |= more.epoch;
    }
}

impl Premises {
    /// Listens in a directory that is locked.
    pub(crate) fn new(dir: &RuntimeDir, lock: ManagerLock, group: Option<u32>) -> Result<Self, DaemonError> {
        let listener = listen(dir, group)?;
        // The first turn begins the watch, and looks.
        Ok(Self { watch: None, looked_at: None, has_epoch: dir.has_epoch(), lock, listener, group })
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
        let (mut is_anew, mut lacking) = (false, Lacking::default());
        for _ in 0..ATTEMPTS {
            let was_watched = self.watch.is_some();
            if !was_watched {
                self.watch = watch(dir);
            }
            // From here on, and not before, a new watch tells what happens.
            match &self.watch {
                Some(watch) if was_watched => lacking.extend(told_of(watch, files)),
                watch if watch.is_some() || self.looked_at.is_none_or(|at| at.elapsed() >= UNWATCHED_LOOK) => {
                    self.looked_at = Some(Instant::now());
                    lacking.extend(files.lacking());
                }
                _ => {}
            }
            let (is_locked, listens) = (self.lock.is_in_place(), self.listener.is_in_place());
            if !is_needed && (!lacking.is_empty() || !is_locked || !listens) {
                return Ok(Found::Unneeded);
            }
            if is_locked && listens {
                return Ok(Found::Own { is_anew, lacking });
            }
            self.watch = None;
            if !is_locked {
                match dir.lock() {
                    Ok(lock) => self.lock = lock,
                    Err(RuntimeError::Locked { .. }) => return Ok(Found::Taken),
                    Err(error) => return Err(error.into()),
                }
            }
            self.listener = listen(dir, self.group)?;
            (is_anew, self.looked_at) = (true, None);
        }
        Ok(Found::Own { is_anew, lacking })
    }
}

impl Manager {
    /// Puts right what somebody has done to the runtime directory. False if it is another manager's by now, or if nobody needs this one.
    #[must_use]
    pub(crate) fn look_at_premises(&mut self) -> bool {
        let is_needed = !self.clients.by_id.is_empty() || !self.adoption.is_over();
        let (dir, unnoted, has_epoch) = (&self.dir, &self.unnoted, self.premises.has_epoch);
        let files =
            Files { dir, has_epoch, unnoted, clients: &self.clients, topics: &self.topics, adoption: &self.adoption };
        let lacking = match self.premises.look(&self.dir, is_needed, &files) {
            Ok(Found::Own { is_anew: false, lacking }) if lacking.is_empty() => return true,
            Ok(Found::Own { lacking, .. }) => lacking,
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
        };
        log::come_back();
        tracing::warn!(
            dir = %self.dir.path().display(),
            "somebody has removed this rgapsd's files; they are made anew, and clients connect again (XDG_RUNTIME_DIR is not cleaned)"
        );
        self.premises.has_epoch = self.dir.epoch(self.epoch).1.is_none();
        if let Err(error) = self.dir.note_config(&self.config) {
            tracing::warn!(%error, "clients are not told what rgapsd runs with");
        }
        for id in lacking.clients {
            // It comes back with the lock of a new file; what it has stays its own. The dead do not come back: their slots wait for their streams.
            if let Some(client) = self.clients.by_id.get_mut(&id).filter(|client| !client.has_ended) {
                client.cut_off();
            }
        }
        for id in lacking.topics {
            if let Some(topic) = self.topics.get_mut(&id) {
                topic.noted = None;
            }
            self.note(id);
        }
        true
    }

    /// A client holds the lock that it was given, and held others before. What earlier connections of it have and what is awaited of it is its own
    /// by that lock from now on, also to a successor; then it may give up the others. Until that is noted it is refused, and keeps them all.
    pub(crate) fn know_again(&mut self, id: ClientId) -> Result<(), Refusal> {
        let Some(client) = self.clients.by_id.get_mut(&id) else { return Ok(()) };
        let (Some(now), before) = (client.noted(), client.held_before.clone()) else { return Ok(()) };
        let mut topics = BTreeSet::new();
        for lock in &before {
            topics.extend(self.clients.rename(*lock, now));
            topics.extend(self.adoption.rename(*lock, now));
        }
        topics.into_iter().for_each(|id| self.note(id));
        // Of an earlier attempt too.
        let is_its =
            |topic: &TopicId| self.adoption.names_here(now.lock, *topic) || self.clients.has_in(now.lock, *topic);
        let unnoted = self.unnoted.iter().find(|(topic, _)| is_its(topic)).map(|(_, why)| why.clone());
        let Some(client) = self.clients.by_id.get_mut(&id) else { return Ok(()) };
        if let Some(why) = unnoted.filter(|_| !before.is_empty()) {
            client.is_locked = false;
            return Err(exhausted(&format!("it cannot be noted by which lock this client is known now: {why}")));
        }
        client.held_before.clear();
        self.make_way(id, now.lock);
        before.into_iter().for_each(|lock| self.forget_lock_unless_used(lock));
        Ok(())
    }
}

/// The files by which a successor knows who lives and has what.
struct Files<'a> {
    dir: &'a RuntimeDir,
    has_epoch: bool,
    unnoted: &'a BTreeMap<TopicId, String>,
    clients: &'a Clients,
    topics: &'a Topics,
    adoption: &'a Adoption,
}

impl Files<'_> {
    /// What is lacking, of the file of this name.
    fn lacking_of(&self, name: &str) -> Lacking {
        let mut lacking = Lacking::default();
        match self.dir.meaning(name) {
            Some(Noted::Epoch) => lacking.epoch = self.lacks_epoch(),
            Some(Noted::Client(lock)) => {
                let its = self.clients.by_id.iter().filter(|(_, client)| client.lock == Some(lock));
                lacking.clients.extend(its.filter(|(_, client)| self.lacks_its_file(client)).map(|(id, _)| *id));
            }
            Some(Noted::Topic(topic)) if self.lacks_its_note(topic) => drop(lacking.topics.insert(topic)),
            Some(Noted::Topic(_)) | None => {}
        }
        lacking
    }

    /// All that is lacking. Of a client that is not connected there is nothing to be made anew.
    fn lacking(&self) -> Lacking {
        let clients = self.clients.by_id.iter().filter(|(_, client)| self.lacks_its_file(client)).map(|(id, _)| *id);
        let topics = self.topics.values().map(|topic| topic.id).chain(self.adoption.only_noted());
        Lacking {
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

    /// Whether a note is not there that was written.
    fn lacks_its_note(&self, id: TopicId) -> bool {
        let was_written = match self.topics.get(&id) {
            Some(topic) => topic.noted.is_some(),
            None => self.adoption.only_note(id).is_some() && !self.unnoted.contains_key(&id),
        };
        was_written && !self.dir.has_note(id)
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
    for (path, events) in [(dir.path().to_owned(), gone | WatchFlags::DELETE | WatchFlags::MOVE), (dir.socket(), gone)]
    {
        add_watch(&watch, path, events).ok()?;
    }
    Some(watch)
}

/// Reads all that a watch has to tell: what is lacking of the files that were removed, renamed or replaced.
fn told_of(watch: &OwnedFd, files: &Files<'_>) -> Lacking {
    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut events = Reader::new(watch, &mut buffer);
    let (mut lacking, mut has_lost_some) = (Lacking::default(), false);
    loop {
        match events.next() {
            Ok(event) if event.events().contains(ReadFlags::QUEUE_OVERFLOW) => has_lost_some = true,
            Ok(event) if event.events().intersects(ReadFlags::DELETE | ReadFlags::MOVED_FROM | ReadFlags::MOVED_TO) => {
                let name = event.file_name().and_then(|name| name.to_str().ok());
                name.into_iter().for_each(|name| lacking.extend(files.lacking_of(name)));
            }
            Ok(_) => {}
            Err(_) if has_lost_some => return files.lacking(),
            Err(_) => return lacking,
        }
    }
}
