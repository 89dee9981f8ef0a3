//! The connection to the manager: requests and answers, notices, and the hand-back when the manager dies.
//!
//! Each node has one thread that reads the socket. Callers send a request and wait for its answer, with a time-out. When the manager dies, local
//! publish and take continue without it. The thread connects to its successor (starting one if none runs) and hands back every slot with its segment
//! and pool, so that the successor recreates nothing. If the successor does not take a slot back, its publisher or subscriber is cut off and returns
//! an error at its next call.
//!
//! Invariants  S1 a new publisher or subscriber is a member before the hand-back reads the members, or is created again (`add_member`).
//!             S2 a detach that was not acknowledged is sent again, to the manager of that time (`unsent_detaches`).
//!             S3 memory that a manager gave is mapped before the hand-back exports its pool, or is requested again (`unless_handed_back`).

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::task::Waker;
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use rgaps_control::local::{
    Body, Connection, LocalError, Notice, NoticedSubscriber, Refusal, Reply, Request, SUBSCRIBERS_A_REPLY_MAX,
    ToClient, Welcome,
};
use rgaps_control::spawn::Autostart;
use rgaps_control::{EndpointSlot, Given, Running, RuntimeDir, SubscriberSlot, TopicId};
use rgaps_os::{EventFd, ForkGuard};
use rgaps_shm::{SubscriberFile, SubscriberFiles, SubscriberPages, WriterPort};

use crate::endpoint::async_request::AsyncRequest;
use crate::endpoint::attachment::Attachment;
use crate::endpoint::completions::READY_TICK;
use crate::endpoint::error::NodeError;
use crate::endpoint::hello::{Hello, Locks, SessionError, Welcomed};
use crate::endpoint::members::{Member, Members, Upkeep};
use crate::endpoint::noticed::Noticed;
use crate::endpoint::sleepers::{self, Sleepers};

mod granted;
mod requests;
mod successor;

use granted::GrantedSlot;
use requests::Awaiting;

/// How long dropping a publisher or subscriber may wait for the manager.
const DETACH_TIMEOUT: Duration = Duration::from_secs(2);
/// Attempts to create a publisher or subscriber while managers die.
const MAKE_ATTEMPTS: u32 = 20;
/// Managers that may die in a row during one request: the request may be what kills them.
const DEATHS_MAX: u32 = 64;
/// Time-outs that creating a publisher or subscriber tolerates while managers die.
const TIMED_OUT_MAX: u32 = 2;
/// How often the thread checks whether it should stop.
const TICK: Duration = Duration::from_millis(500);
/// Requests that are sent before their answers are read: far fewer than a socket holds.
const UNREAD_ANSWERS_MAX: usize = 32;

type RawAnswer = Result<(Reply, Vec<OwnedFd>), SessionError>;

/// State shared by a node's callers and its thread.
#[derive(Debug)]
pub(crate) struct Session {
    dir: RuntimeDir,
    program: String,
    autostart: Autostart,
    connection: Mutex<Arc<Connection>>,
    /// Counts connections, so that a caller notices a new one.
    epoch: AtomicU64,
    /// Whether the manager is gone and its successor does not have this node's slots yet.
    is_away: AtomicBool,
    /// Whether the manager has announced subscribers that this node's publishers must request.
    has_newcomers: AtomicBool,
    locks: Mutex<Locks>,
    /// Why the next manager refuses this program, if it is of another version.
    other_version: Mutex<Option<Refusal>>,
    /// Whether a request timed out and nothing was received since: a detach then does not wait for its answer.
    is_silent: AtomicBool,
    pending: Mutex<HashMap<u64, Awaiting>>,
    async_requests: Mutex<Vec<Weak<AsyncRequest>>>,
    next_id: AtomicU64,
    members: Mutex<Members>,
    /// Detach requests that no manager has acknowledged.
    unsent_detaches: Mutex<Vec<Body>>,
    upkeep: Mutex<Vec<Upkeep>>,
    /// Subscribers' own words that publishers of this node read, so that each is mapped once.
    mapped: Mutex<HashMap<(TopicId, u16), Weak<SubscriberPages>>>,
    /// The files that this node's subscribers write.
    files: Mutex<SubscriberFiles>,
    sleepers: Sleepers,
    stopping: AtomicBool,
    /// Whether the node is gone, and only slots are left that stuck streams keep.
    keeps_slots_only: AtomicBool,
    kick: EventFd,
    /// Who made it: a forked child must not end its parent's connection.
    fork: ForkGuard,
    /// The node's thread.
    runner: OnceLock<ThreadId>,
    /// The thread that looks for a manager's successor.
    finder: Mutex<Option<ThreadId>>,
}

impl Session {
    pub(crate) fn open(
        dir: RuntimeDir,
        program: String,
        autostart: Autostart,
    ) -> Result<(Arc<Self>, Welcome), SessionError> {
        let mut locks = Locks::default();
        let is_over = &AtomicBool::new(false);
        let mut hello = Hello { dir: &dir, program: &program, locks: &mut locks, is_over };
        let Welcomed { connection, welcome } = hello.say_until_answered(autostart)?;
        // Warn once a node, and not if it never starts a manager: then its configuration is not this process's concern.
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
            other_version: Mutex::default(),
            is_silent: AtomicBool::new(false),
            pending: Mutex::default(),
            async_requests: Mutex::default(),
            next_id: AtomicU64::new(1),
            members: Mutex::default(),
            unsent_detaches: Mutex::default(),
            upkeep: Mutex::default(),
            mapped: Mutex::default(),
            files: Mutex::default(),
            sleepers: Sleepers::default(),
            stopping: AtomicBool::new(false),
            keeps_slots_only: AtomicBool::new(false),
            kick: EventFd::new()?,
            fork: ForkGuard::new()?,
            runner: OnceLock::new(),
            finder: Mutex::default(),
        })
    }

    /// Detaches from a slot. If the manager does not acknowledge it, the node's thread sends it again, to the manager or its successor.
    pub(crate) fn detach(&self, attachment: &Attachment<impl Copy + Into<EndpointSlot>>) {
        let (topic, slot) = (attachment.topic, attachment.slot.into());
        let is_it = |member: &mut Member| (member.attachment.topic, member.attachment.slot) == (topic, slot);
        // Not dropped under the lock: a member may have the last reference to a pool.
        let _left: Vec<Member> = lock(&self.members).all.extract_if(.., is_it).collect();
        let body = Body::Detach { topic, slot };
        if self.is_runner() || self.would_wait_in_vain() {
            self.send_later(body);
        } else if let Err(error) = self.request_within(&body, &[], DETACH_TIMEOUT) {
            tracing::debug!(topic = %attachment.key, %error, "detaching was not acknowledged");
            if !matches!(error, SessionError::Refused(_)) {
                self.send_later(body);
            }
        }
        // The node's thread upgrades these references under the same lock. Removing them here keeps it from dropping a subscriber's eventfd later.
        lock(&self.upkeep).retain(|upkeep| upkeep.slot() != (topic, slot));
        lock(&self.mapped).retain(|_, pages| pages.strong_count() > 0);
    }

    /// Whether there is no manager or it does not answer, so that a detach should not wait for it.
    pub(crate) fn would_wait_in_vain(&self) -> bool {
        self.is_away.load(Ordering::Acquire) || self.is_silent.load(Ordering::Acquire)
    }

    pub(crate) fn send_later(&self, body: Body) {
        lock(&self.unsent_detaches).push(body);
        self.kick();
    }

    /// Whether this is the node's thread.
    pub(crate) fn is_runner(&self) -> bool {
        self.runner.get() == Some(&std::thread::current().id())
    }

    /// Whether this is the thread that looks for a successor, which the node's thread joins.
    pub(crate) fn is_finder(&self) -> bool {
        *lock(&self.finder) == Some(std::thread::current().id())
    }

    /// Whether a later manager than that of `epoch` was handed this node's slots.
    pub(crate) fn is_handed_back(&self, epoch: u64) -> bool {
        lock(&self.members).handed_back > epoch
    }

    /// Calls `change`, before any hand-back to a later manager than that of `epoch` reads what `change` changes. `None` if one has begun.
    pub(crate) fn unless_handed_back<T>(&self, epoch: u64, change: impl FnOnce() -> T) -> Option<T> {
        let members = lock(&self.members);
        (members.handed_back <= epoch).then(change)
    }

    /// Whether the manager of `epoch` has, or is about to have, a successor, which does not know what is being created now.
    fn is_past(&self, epoch: u64) -> bool {
        self.epoch() != epoch || self.is_handed_back(epoch)
    }

    /// The number of the present manager, from 0. Each successor counts one more.
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    /// Creates a publisher or subscriber. If the manager dies meanwhile, it starts again, since the successor knows nothing of the first attempt.
    pub(crate) fn make<M>(&self, make: impl Fn() -> Result<Option<M>, NodeError>) -> Result<M, NodeError> {
        let (mut attempts, mut timed_out) = (1..MAKE_ATTEMPTS, 0);
        loop {
            let epoch = self.epoch();
            match make() {
                Ok(Some(made)) => return Ok(made),
                Ok(None) => {}
                Err(error @ NodeError::Session(SessionError::Died { .. })) => return Err(error),
                Err(error) if !self.is_past(epoch) || attempts.next().is_none() => return Err(error),
                Err(error @ NodeError::Session(SessionError::TimedOut { .. })) if timed_out == TIMED_OUT_MAX => {
                    return Err(error);
                }
                Err(NodeError::Session(SessionError::TimedOut { .. })) => timed_out += 1,
                Err(error) => tracing::debug!(%error, "rgapsd died meanwhile; trying again"),
            }
        }
    }

    /// Guards a slot that the manager has granted: it is given back unless it is attached.
    pub(crate) fn granted(&self, topic: TopicId, slot: EndpointSlot) -> GrantedSlot<'_> {
        GrantedSlot::new(self, Body::Detach { topic, slot })
    }

    /// A file that this node's subscribers write. `fd` is another file descriptor of it, or the first one.
    pub(crate) fn file(&self, fd: OwnedFd) -> std::io::Result<Arc<SubscriberFile>> {
        lock(&self.files).adopt(fd).map_err(std::io::Error::other)
    }

    /// Adds the member whose slot the manager of `epoch` granted. Returns false if a hand-back without this slot went to a later manager meanwhile.
    #[must_use]
    pub(crate) fn add_member(&self, member: Member, epoch: u64) -> bool {
        lock(&self.upkeep).extend(member.endpoint.upgrade().map(|endpoint| endpoint.upkeep()));
        let mut members = lock(&self.members);
        if members.handed_back > epoch {
            return false;
        }
        members.all.push(member);
        true
    }

    /// Requests the existing subscribers for a new publisher. The node's thread requests missing ones again later.
    pub(crate) fn meet_subscribers(&self, topic: TopicId, port: &Arc<Mutex<WriterPort>>) {
        for slots in unknown(port).chunks(SUBSCRIBERS_A_REPLY_MAX) {
            let body = Body::Subscribers { topic, slots: slots.to_vec() };
            let Ok(answer) = self.request(&body, &[]) else { return };
            if let Reply::Subscribers { topic, subscribers } = answer.reply {
                self.told(topic, subscribers, answer.fds, std::slice::from_ref(port));
            }
        }
    }

    /// Like `meet_subscribers`, without waiting for the answers. Each turn requests a few subscribers of a few topics.
    fn ask_for_subscribers(&self, connection: &Connection, turn: usize) {
        // One answer serves all publishers of its topic.
        let mut topics: HashMap<TopicId, Vec<SubscriberSlot>> = HashMap::new();
        for (topic, port) in self.ports() {
            let slots = unknown(&port);
            if !slots.is_empty() {
                topics.insert(topic, slots);
            }
        }
        // Each `HashMap` has a random order, so that all topics get their turn.
        for (topic, slots) in topics.into_iter().take(UNREAD_ANSWERS_MAX) {
            let mut parts = slots.chunks(SUBSCRIBERS_A_REPLY_MAX);
            let part = turn % parts.len();
            // The next turn asks again.
            if let Some(slots) = parts.nth(part)
                && !self.tell(connection, Body::Subscribers { topic, slots: slots.to_vec() })
            {
                return;
            }
        }
    }

    /// Wakes `waker` once when the eventfd is readable. Without a waker, the thread stops watching the eventfd and drops it.
    pub(crate) fn wake_when_readable(&self, event: &Arc<EventFd>, waker: Option<Waker>) {
        if self.sleepers.set(event, waker) {
            let _ = self.kick.signal();
        }
    }

    /// The node is gone. Ends its thread, and returns true. If streams are stuck that may still write to its slots, returns false: the thread goes on
    /// until the process ends, and hands these slots to each next manager, but starts none.
    pub(crate) fn stop(&self) -> bool {
        let keeps_slots = !lock(&self.members).all.is_empty();
        let over = if keeps_slots { &self.keeps_slots_only } else { &self.stopping };
        over.store(true, Ordering::Release);
        let _ = self.kick.signal();
        !keeps_slots
    }

    /// The node's thread: reads the socket, wakes tasks and reconnects. Returns after `stop`, unless it keeps slots.
    pub(crate) fn run(&self) {
        let _ = self.runner.set(std::thread::current().id());
        let (mut last_look, mut turn) = (Instant::now(), 0_usize);
        while !self.stopping.load(Ordering::Acquire) {
            let connection = lock(&self.connection).clone();
            let soon = self.tend(Some(&connection));
            self.ask_questions(&connection);
            if self.has_newcomers.swap(false, Ordering::AcqRel) || last_look.elapsed() >= TICK {
                self.ask_for_subscribers(&connection, turn);
                (last_look, turn) = (Instant::now(), turn.wrapping_add(1));
            }
            self.sleep(Some(&connection), if soon { READY_TICK } else { TICK });
            if let Err(error) = self.send_detaches(&connection).and_then(|()| self.read(&connection)) {
                self.is_away.store(true, Ordering::Release);
                tracing::warn!(%error, "rgapsd is gone; local topics continue, looking for its successor");
                drop(std::mem::take(&mut *lock(&self.pending)));
                self.reconnect();
            }
        }
        // A last attempt: a manager that does not read now learns of the end by the released lock.
        let connection = lock(&self.connection).clone();
        if let Err(error) = self.send_detaches(&connection) {
            tracing::debug!(%error, "detach requests could not be sent any more");
        }
    }

    /// Sends the detach requests that were not acknowledged.
    fn send_detaches(&self, connection: &Connection) -> Result<(), LocalError> {
        loop {
            let mut unsent_detaches = lock(&self.unsent_detaches);
            let from = unsent_detaches.len().saturating_sub(UNREAD_ANSWERS_MAX);
            let mut some = unsent_detaches.split_off(from);
            drop(unsent_detaches);
            if some.is_empty() {
                return Ok(());
            }
            while let Some(body) = some.pop() {
                let id = self.next_id.fetch_add(1, Ordering::Relaxed);
                if let Err(error) = connection.send_now(&Request { id, body: body.clone() }, &[]) {
                    some.push(body);
                    lock(&self.unsent_detaches).append(&mut some);
                    // If the manager does not read, they are sent when it does, or to its successor.
                    return if matches!(error, LocalError::Full) { Ok(()) } else { Err(error) };
                }
            }
            self.read(connection)?;
        }
    }

    /// Maintains publishers and subscribers, with or without a manager. Returns true if it should be called again soon.
    fn tend(&self, connection: Option<&Connection>) -> bool {
        let mut soon = false;
        lock(&self.upkeep).retain_mut(|upkeep| match upkeep {
            Upkeep::Publisher { topic, slot, completions, idle } => {
                let Some(completions) = completions.upgrade() else { return false };
                completions.poll();
                // The memory is freed only if the manager can be told: it must know before this publisher requests the memory again.
                if let Some(connection) = connection.filter(|connection| connection.is_writable()) {
                    idle.release_memory(|offset, bytes| {
                        self.tell_trimmed(connection, Body::Trim { topic: *topic, slot: *slot, offset, bytes });
                    });
                }
                true
            }
            Upkeep::Subscriber { completions, maintained, segment, .. } => {
                let (Some(completions), Some(maintained)) = (completions.upgrade(), maintained.upgrade()) else {
                    return false;
                };
                completions.poll();
                maintained.trim(segment);
                if connection.is_none() {
                    maintained.signal_while_there_is_no_manager();
                }
                soon |= maintained.signal_while_bytes_are_awaited();
                true
            }
        });
        soon
    }

    /// Wakes the node's thread.
    pub(crate) fn kick(&self) {
        let _ = self.kick.signal();
    }

    /// Sleeps until the socket, `kick` or the eventfd of a waiting task is readable, at most `tick`. Wakes the tasks.
    fn sleep(&self, connection: Option<&Connection>, tick: Duration) {
        let sleeping = self.sleepers.all();
        let mut fds: Vec<BorrowedFd<'_>> = vec![self.kick.as_fd()];
        fds.extend(sleeping.iter().map(|(event, _)| event.as_fd()));
        fds.extend(connection.map(|connection| connection.as_fd()));
        let ready = rgaps_os::poll::readable_among(&fds, tick).unwrap_or_else(|error| {
            // The kernel lacks memory, for example. A task that is woken for nothing looks and waits again.
            tracing::debug!(%error, "the node's thread cannot wait for file descriptors");
            std::thread::sleep(READY_TICK);
            vec![true; fds.len()]
        });
        let _ = self.kick.drain();
        for ((event, waker), _) in sleeping.into_iter().zip(&ready[1..]).filter(|(_, ready)| **ready) {
            self.sleepers.set(&event, None);
            sleepers::wake(waker);
        }
    }

    fn read(&self, connection: &Connection) -> Result<(), LocalError> {
        while let Some(packet) = connection.receive::<ToClient>(Duration::ZERO)? {
            self.is_silent.store(false, Ordering::Release);
            let complete = packet.complete();
            match packet.message {
                ToClient::Reply { id, reply } => {
                    let awaiting = lock(&self.pending).remove(&id).filter(Awaiting::is_there);
                    // Not under the lock: a woken task may send a request at once.
                    match (awaiting, complete) {
                        (Some(awaiting), Ok(())) => {
                            let outcome = reply.map(|reply| (reply, packet.fds));
                            awaiting.answer(outcome.map_err(SessionError::from), self.epoch());
                        }
                        (awaiting, complete) => {
                            self.unawaited(connection, reply, packet.fds);
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

    /// Handles an answer for which no caller waits. This thread requested the list of subscribers itself. A granted slot is given back: without an
    /// owner it would hold messages for ever, and with keep-all block its publishers.
    fn unawaited(&self, connection: &Connection, answer: Result<Reply, Refusal>, fds: Vec<OwnedFd>) {
        let (topic, slot) = match answer {
            Ok(Reply::Subscribed(of)) => (of.topic, of.slot.into()),
            Ok(Reply::Advertised(of)) => (of.topic, of.slot.into()),
            Ok(Reply::Subscribers { topic, subscribers }) => {
                return self.tell_publishers(topic, subscribers, fds);
            }
            _ => return,
        };
        if !self.tell(connection, Body::Detach { topic, slot }) {
            self.send_later(Body::Detach { topic, slot });
        }
    }

    fn notice(&self, notice: Notice) {
        match notice {
            Notice::Warning { text, .. } => tracing::warn!("{text}"),
            // One request covers all such notices that are read in this turn.
            Notice::Subscribers { .. } => self.has_newcomers.store(true, Ordering::Release),
        }
    }

    fn tell_publishers(&self, topic: TopicId, subscribers: Vec<NoticedSubscriber>, fds: Vec<OwnedFd>) {
        let of_topic = self.ports().into_iter().filter_map(|(of, port)| (of == topic).then_some(port));
        self.told(topic, subscribers, fds.into_iter(), &of_topic.collect::<Vec<_>>());
    }

    /// Adds the announced subscribers to the topic's publishers. Incomplete ones are requested again.
    fn told(
        &self,
        topic: TopicId,
        subscribers: Vec<NoticedSubscriber>,
        mut fds: impl Iterator<Item = OwnedFd>,
        ports: &[Arc<Mutex<WriterPort>>],
    ) {
        if ports.is_empty() {
            return;
        }
        for noticed in subscribers {
            let key = (topic, noticed.slot.index);
            let mapped = lock(&self.mapped).get(&key).and_then(Weak::upgrade);
            match Noticed::new(topic, noticed, mapped, &mut fds) {
                Ok(known) => {
                    lock(&self.mapped).insert(key, Arc::downgrade(known.pages()));
                    ports.iter().for_each(|port| known.tell(port));
                }
                Err(error) => {
                    tracing::debug!(%error, slot = noticed.slot.index, "a subscriber could not be mapped yet")
                }
            }
        }
    }

    /// The ports of this node's publishers, each with its topic.
    fn ports(&self) -> Vec<(TopicId, Arc<Mutex<WriterPort>>)> {
        lock(&self.members).all.iter().filter_map(Member::port).collect()
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let locks = std::mem::take(&mut *lock(&self.locks));
        // The node's thread has panicked. Keeping the locks makes managers wait for the end of the process, since a stream may still write to a slot.
        if !lock(&self.members).all.is_empty() {
            return std::mem::forget(locks);
        }
        drop(locks);
        // A forked child may have the socket open, which would keep the connection open. In the child itself the connection is its parent's.
        if self.fork.is_owner() {
            lock(&self.connection).shut_down();
        }
    }
}

/// Subscribers that a publisher does not know.
fn unknown(port: &Mutex<WriterPort>) -> Vec<SubscriberSlot> {
    lock(port).unknown_subscribers()
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
    fn a_manager_that_reads_nothing_makes_the_nodes_thread_wait_for_no_request() {
        // Half of what the requests would take with a wait of 5 s each.
        let _watchdog = rgaps_testing::Watchdog::new(Duration::from_secs(100));
        let (session, _manager) = session("full");
        let connection = lock(&session.connection).clone();
        let body = || Body::Topics { after: None };
        while session.tell(&connection, body()) {}
        for _ in 0..40 {
            assert!(!session.tell(&connection, body()));
        }
        let slot = SubscriberSlot { index: 3, generation: 1 };
        let subscribed = rgaps_control::local::Subscribed { topic: TopicId([1; 16]), slot, place: 0 };
        session.unawaited(&connection, Ok(Reply::Subscribed(subscribed)), Vec::new());
        assert_eq!(lock(&session.unsent_detaches).len(), 1, "it is sent when the manager reads again");
    }

    #[test]
    fn a_slot_that_is_not_used_is_given_back_later_if_the_socket_is_full() {
        let _watchdog = rgaps_testing::Watchdog::new(Duration::from_secs(100));
        let (session, _manager) = session("unused");
        let connection = lock(&session.connection).clone();
        while session.tell(&connection, Body::Topics { after: None }) {}
        let short = Some(Duration::from_millis(10));
        rustix::net::sockopt::set_socket_timeout(&connection, rustix::net::sockopt::Timeout::Send, short).unwrap();
        let slot = SubscriberSlot { index: 3, generation: 1 };
        drop(session.granted(TopicId([1; 16]), slot.into()));
        assert_eq!(lock(&session.unsent_detaches).len(), 1, "it is sent when the manager reads again");
    }

    #[test]
    fn a_slot_granted_after_the_request_timed_out_is_given_back() {
        let (session, manager) = session("late");
        let answer = session.request_within(&Body::Topics { after: None }, &[], Duration::ZERO);
        assert!(matches!(answer, Err(SessionError::TimedOut { waited_ms: 0, .. })));
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
    fn a_slot_that_a_successor_frees_during_creation_is_created_again() {
        let (session, _manager) = session("anew");
        let attempts = std::cell::Cell::new(0);
        let made = session.make(|| {
            attempts.set(attempts.get() + 1);
            if attempts.get() == 2 {
                return Ok(Some("made"));
            }
            // The successor got all slots but this one, and frees it.
            lock(&session.members).handed_back = session.epoch() + 1;
            Err(NodeError::from(io::Error::other("slot 0 is no more that of generation 1")))
        });
        assert_eq!((made.unwrap(), attempts.get()), ("made", 2));
        lock(&session.members).handed_back = session.epoch();
        let refused = session.make(|| Err::<Option<()>, _>(NodeError::from(io::Error::other("it is full"))));
        assert!(refused.unwrap_err().to_string().contains("it is full"));
    }

    #[test]
    fn memory_that_a_manager_gave_is_not_mapped_once_a_later_one_was_handed_the_pool() {
        let (session, _manager) = session("memory");
        assert_eq!(session.unless_handed_back(0, || "mapped"), Some("mapped"));
        session.to_hand_back();
        assert_eq!(session.unless_handed_back(0, || "mapped"), None);
        assert_eq!(session.unless_handed_back(1, || "mapped"), Some("mapped"));
    }

    #[test]
    fn a_request_that_kills_every_manager_ends_with_an_error_that_names_the_log() {
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
