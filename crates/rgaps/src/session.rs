//! The connection to the manager: requests and answers, notices, and what to do when the manager dies.
//!
//! One thread a node reads the socket. Callers send a request and sleep on its answer, with a time-out. When the manager is gone, local
//! publish and take go on without it; the thread connects to its successor (starting one if nobody has) and hands back every slot, with
//! the segment and the pool, so that the successor makes nothing anew. A slot that it does not take back is cut off: its owner hears so at
//! the next call.
//!
//! Invariants  S1 a slot is a member before the hand-back looks at the members, or its maker begins anew (`add_member`).
//!             S2 a leave that was not acknowledged is said again to whoever is the manager then (`unsaid`).

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::task::Waker;
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use rgaps_control::local::{
    Body, Connection, LocalError, Notice, NoticedSubscriber, Refusal, Reply, Request, TOLD_SUBSCRIBERS_MAX, ToClient,
    Welcome,
};
use rgaps_control::spawn::{Autostart, Pauses};
use rgaps_control::{EndpointSlot, Given, Running, RuntimeDir, SubscriberSlot, TopicId};
use rgaps_os::EventFd;
use rgaps_shm::{SubscriberFile, SubscriberPages};
use rustix::event::{PollFd, PollFlags, poll};

use crate::attachment::{Attachment, GrantedSlot};
use crate::hand_back::{self, Owner};
use crate::hello::{self, Greeted, Hello, Locks, RECONNECT_INTERVAL, SessionError};
use crate::members::{Member, Members, Tended, tended};
use crate::node::{NodeError, READY_TICK};
use crate::noticed::Noticed;
use crate::publisher::PublisherInner;
use crate::question::Question;
use crate::tasks::{self, Sleepers};

mod requests;

use requests::Awaiting;

/// How long leaving may hold up a drop.
pub(crate) const DETACH_TIMEOUT: Duration = Duration::from_secs(2);
/// How many managers may die on who makes something.
const MAKE_ATTEMPTS: u32 = 20;
/// How many may die in a row on one request: that may be what they die of.
const DEATHS_MAX: u32 = 64;
/// How often who makes something may wait in vain for an answer while managers die.
const TIMED_OUT_MAX: u32 = 2;
/// How often the thread looks whether it should stop.
const TICK: Duration = Duration::from_millis(500);
/// Things that are said before the answers to them are read: far fewer than a socket holds.
const UNREAD_ANSWERS_MAX: usize = 32;

/// A reply and the descriptors beside it.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) reply: Reply,
    pub(crate) descriptors: std::vec::IntoIter<OwnedFd>,
    /// Which manager's it is, as `Session::epoch` counts them.
    pub(crate) epoch: u64,
}

impl Answer {
    /// The next descriptor.
    pub(crate) fn descriptor(&mut self) -> Result<OwnedFd, SessionError> {
        self.descriptors.next().ok_or(SessionError::Confused)
    }
}

type RawAnswer = Result<(Reply, Vec<OwnedFd>), SessionError>;

/// State shared by a node's callers and its thread.
#[derive(Debug)]
pub(crate) struct Session {
    dir: RuntimeDir,
    program: String,
    autostart: Autostart,
    connection: Mutex<Arc<Connection>>,
    /// Counts connections, so that a caller sees that a new one has come.
    epoch: AtomicU64,
    /// Whether there is no manager that knows what this node has: it is looked for.
    is_away: AtomicBool,
    /// Whether publishers have to ask for subscribers now.
    has_newcomers: AtomicBool,
    locks: Mutex<Locks>,
    /// Whether an answer was waited for in vain, and nothing has come since: who leaves does not wait for another.
    is_silent: AtomicBool,
    pending: Mutex<HashMap<u64, Awaiting>>,
    questions: Mutex<Vec<Weak<Question>>>,
    next_id: AtomicU64,
    members: Mutex<Members>,
    /// Slots that were given up without a manager that said it knows.
    unsaid: Mutex<Vec<Body>>,
    tended: Mutex<Vec<Tended>>,
    /// Words of subscribers that publishers of this node read, so that each is mapped once.
    mapped: Mutex<HashMap<(TopicId, u16), Weak<SubscriberPages>>>,
    /// What this node's subscribers write.
    file: Mutex<Weak<SubscriberFile>>,
    sleepers: Sleepers,
    stopping: AtomicBool,
    kick: EventFd,
    /// The thread, and the one that looks for a successor for it.
    runner: OnceLock<ThreadId>,
    finder: Mutex<Option<ThreadId>>,
}

impl Session {
    pub(crate) fn open(
        dir: RuntimeDir,
        program: String,
        autostart: Autostart,
    ) -> Result<(Arc<Self>, Welcome), SessionError> {
        let mut locks = Locks::default();
        let mut hello = Hello { dir: &dir, program: &program, locks: &mut locks };
        let Greeted { connection, welcome } = hello.say_until_answered(autostart)?;
        // Once a node, and not to those who leave the manager and its configuration to others.
        let running = Running::new(dir.path(), welcome.manager_pid);
        let warning = || running.warning(Given::load(&BTreeMap::new(), autostart.unset()));
        if let Some(warning) = (autostart != Autostart::Never).then(warning).flatten() {
            tracing::warn!("{warning}");
        }
        welcome.lacks.iter().for_each(|lack| tracing::warn!("{lack}"));
        let session = Self::new(dir, program, autostart, connection)?;
        *lock(&session.locks) = locks;
        Ok((Arc::new(session), welcome))
    }

    fn new(dir: RuntimeDir, program: String, autostart: Autostart, connection: Connection) -> io::Result<Self> {
        Ok(Self {
            dir,
            program,
            autostart,
            connection: Mutex::new(Arc::new(connection)),
            epoch: AtomicU64::new(0),
            is_away: AtomicBool::new(false),
            has_newcomers: AtomicBool::new(false),
            locks: Mutex::default(),
            is_silent: AtomicBool::new(false),
            pending: Mutex::default(),
            questions: Mutex::default(),
            next_id: AtomicU64::new(1),
            members: Mutex::default(),
            unsaid: Mutex::default(),
            tended: Mutex::default(),
            mapped: Mutex::default(),
            file: Mutex::default(),
            sleepers: Sleepers::default(),
            stopping: AtomicBool::new(false),
            kick: EventFd::new()?,
            runner: OnceLock::new(),
            finder: Mutex::default(),
        })
    }

    /// Gives up a slot. If its manager does not say that it knows, the node's thread tells it, or its successor.
    pub(crate) fn detach(&self, attachment: &Attachment<impl Copy + Into<EndpointSlot>>) {
        let (topic, slot) = (attachment.topic, attachment.slot.into());
        let body = Body::Detach { topic, slot };
        if self.is_runner() || self.would_wait_in_vain() {
            self.say_later(body);
        } else if let Err(error) = self.request_within(&body, &[], DETACH_TIMEOUT) {
            tracing::debug!(topic = %attachment.key, %error, "detaching was not acknowledged");
            if !matches!(error, SessionError::Refused(_)) {
                self.say_later(body);
            }
        }
        lock(&self.members).all.retain(|member| match member {
            Member::Publisher(publisher) => publisher.strong_count() > 0,
            Member::Subscriber(subscriber, _) => subscriber.strong_count() > 0,
        });
        // Under this lock the thread holds what it tends: it must not be the one who closes a subscriber's descriptor, later.
        lock(&self.tended).retain(|tended| tended.slot() != (topic, slot));
        lock(&self.mapped).retain(|_, pages| pages.strong_count() > 0);
    }

    /// Keeps a slot that nobody has any more, for a stream that may still write to it, until this process ends.
    pub(crate) fn keep(&self, attachment: &Attachment<impl Copy + Into<EndpointSlot>>) {
        lock(&self.members).kept.push(attachment.of_either());
    }

    /// Whether there is no manager, or one that does not answer: who leaves does not wait for it.
    pub(crate) fn would_wait_in_vain(&self) -> bool {
        self.is_away.load(Ordering::Acquire) || self.is_silent.load(Ordering::Acquire)
    }

    pub(crate) fn say_later(&self, body: Body) {
        lock(&self.unsaid).push(body);
        self.kick();
    }

    /// Whether this is the node's thread.
    pub(crate) fn is_runner(&self) -> bool {
        self.runner.get() == Some(&std::thread::current().id())
    }

    /// Whether this is the thread for whose end that one waits.
    pub(crate) fn is_finder(&self) -> bool {
        *lock(&self.finder) == Some(std::thread::current().id())
    }

    /// Whether a later manager was handed back everything.
    pub(crate) fn is_handed_back(&self, epoch: u64) -> bool {
        lock(&self.members).handed_back > epoch
    }

    /// Whether a manager has, or is about to have, a successor, which knows nothing of what was being made meanwhile.
    fn is_past(&self, epoch: u64) -> bool {
        self.epoch() != epoch || self.is_handed_back(epoch)
    }

    /// Which manager this is, counted from 0: a later one is a successor.
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    /// Makes something, again if the manager dies in the middle of it: it has a part of it then that its successor does not know.
    pub(crate) fn make<M>(&self, make: impl Fn() -> Result<Option<M>, NodeError>) -> Result<M, NodeError> {
        let (mut attempts, mut timed_out) = (1..MAKE_ATTEMPTS, 0);
        loop {
            let epoch = self.epoch();
            match make() {
                Ok(Some(made)) => return Ok(made),
                Ok(None) => {}
                Err(error @ NodeError::Session(SessionError::Died { .. })) => return Err(error),
                Err(error) if !self.is_past(epoch) || attempts.next().is_none() => return Err(error),
                Err(error @ NodeError::Session(SessionError::TimedOut(_))) if timed_out == TIMED_OUT_MAX => {
                    return Err(error);
                }
                Err(NodeError::Session(SessionError::TimedOut(_))) => timed_out += 1,
                Err(error) => tracing::debug!(%error, "rgapsd died meanwhile; once more"),
            }
        }
    }

    /// The manager has granted a slot, which is given back unless something is attached to it.
    pub(crate) fn granted(&self, topic: TopicId, slot: EndpointSlot) -> GrantedSlot<'_> {
        GrantedSlot::new(self, Body::Detach { topic, slot })
    }

    /// The file that this node's subscribers write, of which the manager has sent a descriptor once more.
    pub(crate) fn file(&self, fd: OwnedFd) -> std::io::Result<Arc<SubscriberFile>> {
        SubscriberFile::adopt_unless_known(fd, &mut lock(&self.file)).map_err(std::io::Error::other)
    }

    /// `member` has the slot that was granted in an epoch. False if a later manager was handed back everything meanwhile, and so not this slot.
    #[must_use]
    pub(crate) fn add_member(&self, member: Member, epoch: u64) -> bool {
        lock(&self.tended).extend(tended(&member));
        let mut members = lock(&self.members);
        if members.handed_back > epoch {
            return false;
        }
        members.all.push(member);
        true
    }

    /// Asks for what a new publisher must have of the subscribers that are there. What cannot be had now is asked for again later.
    pub(crate) fn meet_subscribers(&self, publisher: &PublisherInner) {
        for slots in unknown(publisher).chunks(TOLD_SUBSCRIBERS_MAX) {
            let body = Body::Subscribers { topic: publisher.attachment.topic, slots: slots.to_vec() };
            let Ok(answer) = self.request(&body, &[]) else { return };
            if let Reply::Subscribers { topic, subscribers } = answer.reply {
                self.told(topic, subscribers, answer.descriptors, &[publisher]);
            }
        }
    }

    /// As `meet_subscribers`, without waiting for the answers: a few topics at a time, and of each a few subscribers, others in each turn.
    fn ask_for_subscribers(&self, connection: &Connection, turn: usize) {
        // An answer is for all publishers of its topic.
        let mut topics: HashMap<TopicId, Vec<SubscriberSlot>> = HashMap::new();
        for publisher in self.publishers() {
            let slots = unknown(&publisher);
            if !slots.is_empty() {
                topics.insert(publisher.attachment.topic, slots);
            }
        }
        // Each map has an order of its own, so that all topics have their turn.
        for (topic, slots) in topics.into_iter().take(UNREAD_ANSWERS_MAX) {
            let mut parts = slots.chunks(TOLD_SUBSCRIBERS_MAX);
            let part = turn % parts.len();
            if let Some(slots) = parts.nth(part) {
                self.tell(connection, Body::Subscribers { topic, slots: slots.to_vec() });
            }
        }
    }

    /// Wakes once a descriptor is readable; with no waker, nobody waits for it any more, and the thread releases it now.
    pub(crate) fn wake_when_readable(&self, event: &Arc<EventFd>, waker: Option<Waker>) {
        if self.sleepers.set(event, waker) {
            let _ = self.kick.signal();
        }
    }

    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        let _ = self.kick.signal();
    }

    /// The thread: reads the socket, wakes tasks, and reconnects. Ends at `stop`.
    pub(crate) fn run(&self) {
        let _ = self.runner.set(std::thread::current().id());
        let (mut asked, mut turn) = (Instant::now(), 0_usize);
        while !self.stopping.load(Ordering::Acquire) {
            let connection = lock(&self.connection).clone();
            let soon = self.tend(Some(&connection));
            self.ask_questions(&connection);
            if self.has_newcomers.swap(false, Ordering::AcqRel) || asked.elapsed() >= TICK {
                self.ask_for_subscribers(&connection, turn);
                (asked, turn) = (Instant::now(), turn.wrapping_add(1));
            }
            self.sleep(Some(&connection), if soon { READY_TICK } else { TICK });
            if let Err(error) = self.say_detached(&connection).and_then(|()| self.read(&connection)) {
                self.is_away.store(true, Ordering::Release);
                tracing::warn!(%error, "rgapsd is gone; local topics go on, looking for its successor");
                drop(std::mem::take(&mut *lock(&self.pending)));
                self.reconnect();
            }
        }
    }

    /// Says what was given up and not acknowledged.
    fn say_detached(&self, connection: &Connection) -> Result<(), LocalError> {
        loop {
            let mut unsaid = lock(&self.unsaid);
            let from = unsaid.len().saturating_sub(UNREAD_ANSWERS_MAX);
            let mut some = unsaid.split_off(from);
            drop(unsaid);
            if some.is_empty() {
                return Ok(());
            }
            while let Some(body) = some.pop() {
                let id = self.next_id.fetch_add(1, Ordering::Relaxed);
                if let Err(error) = connection.send_now(&Request { id, body: body.clone() }, &[]) {
                    some.push(body);
                    lock(&self.unsaid).append(&mut some);
                    // A manager that does not read is told when it does, or its successor is.
                    return if matches!(error, LocalError::Full) { Ok(()) } else { Err(error) };
                }
            }
            self.read(connection)?;
        }
    }

    /// Looks after publishers and subscribers, with a manager or without. True if that should be done again soon.
    fn tend(&self, connection: Option<&Connection>) -> bool {
        let mut soon = false;
        lock(&self.tended).retain_mut(|tended| match tended {
            Tended::Publisher { topic, slot, completions, idle } => {
                let Some(completions) = completions.upgrade() else { return false };
                completions.poll();
                if let Some(connection) = connection {
                    idle.look(|offset, bytes| {
                        self.tell(connection, Body::Trim { topic: *topic, slot: *slot, offset, bytes })
                    });
                }
                true
            }
            Tended::Subscriber { completions, tended, segment, .. } => {
                let (Some(completions), Some(tended)) = (completions.upgrade(), tended.upgrade()) else { return false };
                completions.poll();
                tended.trim(segment);
                soon |= tended.ring_while_bytes_are_awaited();
                true
            }
        });
        soon
    }

    /// Says something from the thread that would bring the answer, so that nobody waits for it.
    fn tell(&self, connection: &Connection, body: Body) {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        if let Err(error) = connection.send(&Request { id, body }, &[]) {
            tracing::debug!(%error, "rgapsd could not be told");
        }
    }

    /// The thread looks around now.
    pub(crate) fn kick(&self) {
        let _ = self.kick.signal();
    }

    /// Until the socket, the kick or a sleeping task's descriptor is readable.
    fn sleep(&self, connection: Option<&Connection>, tick: Duration) {
        let sleeping = self.sleepers.all();
        let mut fds: Vec<PollFd<'_>> = vec![PollFd::new(&self.kick, PollFlags::IN)];
        fds.extend(sleeping.iter().map(|(event, _)| PollFd::new(event.as_ref(), PollFlags::IN)));
        fds.extend(connection.map(|connection| PollFd::new(connection, PollFlags::IN)));
        let _ = poll(&mut fds, Some(&rgaps_os::poll::timespec(tick)));
        let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        let _ = self.kick.drain();
        for ((event, waker), _) in sleeping.into_iter().zip(&ready[1..]).filter(|(_, ready)| **ready) {
            self.sleepers.set(&event, None);
            tasks::wake(waker);
        }
    }

    fn read(&self, connection: &Connection) -> Result<(), LocalError> {
        while let Some(packet) = connection.receive::<ToClient>(Duration::ZERO)? {
            self.is_silent.store(false, Ordering::Release);
            let complete = packet.complete();
            match packet.message {
                ToClient::Reply { id, reply } => {
                    let awaiting = lock(&self.pending).remove(&id).filter(Awaiting::is_there);
                    // Not under the lock: who is woken may ask at once.
                    match (awaiting, complete) {
                        (Some(awaiting), Ok(())) => {
                            let outcome = reply.map(|reply| (reply, packet.descriptors));
                            awaiting.answer(outcome.map_err(SessionError::from), self.epoch());
                        }
                        (awaiting, complete) => {
                            self.unawaited(connection, reply, packet.descriptors);
                            if let (Some(awaiting), Err(error)) = (awaiting, complete) {
                                awaiting.answer(Err(error.into()), self.epoch());
                            }
                        }
                    }
                }
                ToClient::Notice(notice) => self.notice(notice),
            }
        }
        Ok(())
    }

    /// An answer for which no caller waits. Of subscribers, it was asked for by this thread. A slot is given back: one that nobody will ever
    /// leave would hold messages, and with keep-all its publishers.
    fn unawaited(&self, connection: &Connection, answer: Result<Reply, Refusal>, descriptors: Vec<OwnedFd>) {
        let (topic, slot) = match answer {
            Ok(Reply::Subscribed(of)) => (of.topic, of.slot.into()),
            Ok(Reply::Advertised(of)) => (of.topic, of.slot.into()),
            Ok(Reply::Subscribers { topic, subscribers }) => {
                return self.tell_publishers(topic, subscribers, descriptors);
            }
            _ => return,
        };
        self.tell(connection, Body::Detach { topic, slot });
    }

    fn notice(&self, notice: Notice) {
        match notice {
            Notice::Warning { text, .. } => tracing::warn!("{text}"),
            // They are asked for once all is read that the manager has sent, however many these are.
            Notice::Subscribers { .. } => self.has_newcomers.store(true, Ordering::Release),
        }
    }

    fn tell_publishers(&self, topic: TopicId, subscribers: Vec<NoticedSubscriber>, descriptors: Vec<OwnedFd>) {
        let publishers = self.publishers();
        let of_topic: Vec<&PublisherInner> =
            publishers.iter().filter(|publisher| publisher.attachment.topic == topic).map(Arc::as_ref).collect();
        self.told(topic, subscribers, descriptors.into_iter(), &of_topic);
    }

    /// Tells publishers of a topic what came of subscribers. What did not come whole is asked for again.
    fn told(
        &self,
        topic: TopicId,
        subscribers: Vec<NoticedSubscriber>,
        mut descriptors: impl Iterator<Item = OwnedFd>,
        publishers: &[&PublisherInner],
    ) {
        if publishers.is_empty() {
            return;
        }
        for noticed in subscribers {
            let key = (topic, noticed.slot.index);
            let mapped = lock(&self.mapped).get(&key).and_then(Weak::upgrade);
            match Noticed::new(topic, noticed, mapped, &mut descriptors) {
                Ok(known) => {
                    lock(&self.mapped).insert(key, Arc::downgrade(known.pages()));
                    publishers.iter().for_each(|publisher| known.tell(publisher));
                }
                Err(error) => tracing::debug!(%error, slot = noticed.slot.index, "a subscriber is not known yet"),
            }
        }
    }

    fn publishers(&self) -> Vec<Arc<PublisherInner>> {
        let members = lock(&self.members);
        members
            .all
            .iter()
            .filter_map(|member| match member {
                Member::Publisher(publisher) => publisher.upgrade(),
                Member::Subscriber(..) => None,
            })
            .collect()
    }

    /// Looks for a successor, in a thread of its own: one that has started may take its time to answer, and tasks are woken meanwhile.
    fn reconnect(&self) {
        let is_over = AtomicBool::new(false);
        let find = || {
            *lock(&self.finder) = Some(std::thread::current().id());
            self.find_successor();
            *lock(&self.finder) = None;
            is_over.store(true, Ordering::Release);
            self.kick();
        };
        std::thread::scope(|scope| {
            let finder = std::thread::Builder::new().name("rgaps-finder".to_owned()).spawn_scoped(scope, find);
            if let Err(error) = &finder {
                tracing::warn!(%error, "no thread can be had; tasks sleep until rgapsd has a successor");
                return find();
            }
            while !is_over.load(Ordering::Acquire) {
                let soon = self.tend(None);
                self.sleep(None, if soon { READY_TICK } else { TICK });
            }
        });
    }

    fn find_successor(&self) {
        let (mut pauses, mut has_warned) = (Pauses::default(), false);
        while !self.stopping.load(Ordering::Acquire) {
            let autostart = pauses.autostart(self.autostart, Instant::now());
            let mut locks = lock(&self.locks);
            let greeted = Hello { dir: &self.dir, program: &self.program, locks: &mut locks }.say(autostart);
            drop(locks);
            match greeted.and_then(|greeted| self.hand_back(greeted)) {
                Ok(connection) => {
                    *lock(&self.connection) = Arc::new(connection);
                    self.epoch.fetch_add(1, Ordering::AcqRel);
                    self.is_silent.store(false, Ordering::Release);
                    self.is_away.store(false, Ordering::Release);
                    tracing::info!("rgapsd has a successor, which knows what this node has");
                    // What was given up meanwhile is said now.
                    return self.kick();
                }
                Err(error) => {
                    tracing::debug!(%error, "no successor of rgapsd yet");
                    let is_lack = error.is_lack();
                    if is_lack && !std::mem::replace(&mut has_warned, true) {
                        tracing::warn!(%error, "rgapsd has a successor, which cannot take back what this node has; trying again");
                    }
                    if let SessionError::Spawn(error) = &error {
                        pauses.note(error, Instant::now());
                    }
                }
            }
            std::thread::sleep(RECONNECT_INTERVAL);
        }
    }

    /// Hands everything back that this node has. An error if this manager died too, or is stopped.
    fn hand_back(&self, greeted: Greeted) -> Result<Connection, SessionError> {
        let Greeted { connection, .. } = greeted;
        let notice = |notice| self.notice(notice);
        let mut ask = |body, descriptors: &[BorrowedFd<'_>]| Ok(hello::ask(&connection, body, descriptors, notice)?.0);
        hand_back::hand_back(self.owners(), &mut ask)?;
        Ok(connection)
    }

    /// Who has what, a topic's slots in a row. Who joins the manager that is gone from now on begins anew.
    fn owners(&self) -> Vec<(Attachment<EndpointSlot>, Owner)> {
        let mut members = lock(&self.members);
        members.handed_back = self.epoch() + 1;
        let owners = members.all.iter().filter_map(|member| match member {
            Member::Publisher(publisher) => publisher.upgrade().map(Owner::Publisher),
            Member::Subscriber(subscriber, qos) => subscriber.upgrade().map(|own| Owner::Subscriber(own, *qos)),
        });
        let kept = members.kept.iter().map(|kept| (kept.clone(), Owner::Kept));
        let mut owners: Vec<(Attachment<EndpointSlot>, Owner)> =
            owners.map(|owner| (owner.attachment(), owner)).chain(kept).collect();
        drop(members);
        // Not under the lock: the last of an owner may be its end, which comes back here.
        owners.retain(|(attachment, _)| !attachment.is_cut_off());
        owners.sort_by_key(|(attachment, _)| attachment.topic);
        owners
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // A stream may still write to a slot of this node: its process is to be waited for, not the node.
        if !lock(&self.members).kept.is_empty() {
            std::mem::forget(std::mem::take(&mut *lock(&self.locks)));
        }
    }
}

/// Subscribers that a publisher does not know.
fn unknown(publisher: &PublisherInner) -> Vec<SubscriberSlot> {
    publisher.port().unknown_subscribers()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A session, and the manager's end of its connection.
    fn session(name: &str) -> (Session, Connection) {
        let path = std::env::temp_dir().join(format!("rgaps-session-{name}-{}", std::process::id()));
        let dir = RuntimeDir::open(&path).unwrap();
        std::fs::remove_dir_all(&path).unwrap();
        let (own, manager) = Connection::pair().unwrap();
        (Session::new(dir, "test".to_owned(), Autostart::Never, own).unwrap(), manager)
    }

    #[test]
    fn a_slot_that_comes_after_its_caller_has_gone_is_given_back() {
        let (session, manager) = session("late");
        let asked = session.request_within(&Body::Topics { after: None }, &[], Duration::ZERO);
        assert!(matches!(asked, Err(SessionError::TimedOut(0))));
        let id = manager.receive::<Request>(TICK).unwrap().unwrap().message.id;
        let (topic, slot) = (TopicId([1; 16]), SubscriberSlot { index: 3, generation: 1 });
        let reply = Ok(Reply::Subscribed(rgaps_control::local::Subscribed { topic, slot, place: 0 }));
        manager.send(&ToClient::Reply { id, reply }, &[]).unwrap();
        session.read(&lock(&session.connection).clone()).unwrap();
        let said = manager.receive::<Request>(TICK).unwrap().unwrap().message.body;
        let Body::Detach { topic: of, slot: left } = said else { panic!("{said:?}") };
        assert_eq!((of, left), (topic, slot.into()));
    }

    #[test]
    fn what_a_successor_takes_away_while_it_is_made_is_made_anew() {
        let (session, _manager) = session("anew");
        let attempts = std::cell::Cell::new(0);
        let made = session.make(|| {
            attempts.set(attempts.get() + 1);
            if attempts.get() == 2 {
                return Ok(Some("made"));
            }
            // Its successor was told of everything but this, and frees the slot.
            lock(&session.members).handed_back = session.epoch() + 1;
            Err(NodeError::from(io::Error::other("slot 0 is no more that of generation 1")))
        });
        assert_eq!((made.unwrap(), attempts.get()), ("made", 2));
        lock(&session.members).handed_back = session.epoch();
        let refused = session.make(|| Err::<Option<()>, _>(NodeError::from(io::Error::other("it is full"))));
        assert!(refused.unwrap_err().to_string().contains("it is full"));
    }

    #[test]
    fn a_request_of_which_one_manager_after_the_other_dies_ends_with_where_to_look() {
        let (session, manager) = session("died");
        drop(manager);
        let died = std::thread::scope(|scope| {
            let asks = scope.spawn(|| session.request(&Body::Topics { after: None }, &[]).map(drop));
            // Each successor is gone, too.
            while !asks.is_finished() {
                session.epoch.fetch_add(1, Ordering::AcqRel);
                std::thread::yield_now();
            }
            asks.join().unwrap().unwrap_err()
        });
        assert!(matches!(died, SessionError::Died { deaths: DEATHS_MAX, .. }), "{died}");
        assert!(died.to_string().contains("rgapsd.log"), "{died}");
    }
}
