//! The connection to the manager: requests and answers, notices, and what to do when the manager dies.
//!
//! One thread a node reads the socket. Callers send a request and sleep on its answer, with a time-out. When the manager is gone, local
//! publish and take go on without it; the thread connects to its successor (starting one if nobody has) and hands back every seat, with
//! the segment and the pool, so that the successor makes nothing anew. A seat that it does not take back is cut off: its owner hears so at
//! the next call.
//!
//! Invariants  S1 a seat is a member before the hand-back looks at the members, or its maker begins anew (`add_member`).
//!             S2 a leave that was not acknowledged is said again to whoever is the manager then (`unsaid`).

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::task::Waker;
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use rgaps_control::local::{
    Body, Connection, LocalError, Notice, NoticedSubscriber, Refusal, Reply, Request, Role, Seat, TOLD_SUBSCRIBERS_MAX,
    ToClient, Welcome,
};
use rgaps_control::spawn::{Autostart, Pauses};
use rgaps_control::{Given, LockId, Running, RuntimeDir, TopicId};
use rgaps_os::{EventFd, ProcessLock};
use rgaps_shm::{SubscriberFile, SubscriberPages};
use rustix::event::{PollFd, PollFlags, poll};

use crate::hand_back::{self, Owner};
use crate::hello::{self, ANSWER_TIMEOUT, Greeted, Hello, Patience, RECONNECT_INTERVAL, SessionError};
use crate::members::{Member, Members, Tended, tended};
use crate::node::{NodeError, READY_TICK};
use crate::noticed::Noticed;
use crate::publisher::PublisherInner;
use crate::seated::Seated;
use crate::tasks::Sleepers;

/// How long leaving may hold up a drop.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(2);
/// How many managers may die on who makes something.
const MAKE_ATTEMPTS: u32 = 20;
/// How often the thread looks whether it should stop.
const TICK: Duration = Duration::from_millis(500);
/// Things that are said before the answers to them are read: far fewer than a socket holds.
const UNREAD_ANSWERS_MAX: usize = 32;

/// A reply and the descriptors beside it.
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

/// See `Session::given`.
#[must_use]
pub(crate) struct GivenSeat<'a> {
    session: &'a Session,
    leave: Option<Body>,
}

impl GivenSeat<'_> {
    /// Somebody sits on it, who leaves by himself.
    pub(crate) fn taken(mut self) {
        self.leave = None;
    }
}

impl Drop for GivenSeat<'_> {
    fn drop(&mut self) {
        let Some(leave) = self.leave.take() else { return };
        if let Err(error) = self.session.request_within(&leave, &[], LEAVE_TIMEOUT) {
            tracing::debug!(%error, "a seat that nobody took could not be given back");
        }
    }
}

type Outcome = Result<(Reply, Vec<OwnedFd>), SessionError>;

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
    lock: Mutex<Option<(LockId, ProcessLock)>>,
    pending: Mutex<HashMap<u64, SyncSender<Outcome>>>,
    next_id: AtomicU64,
    members: Mutex<Members>,
    /// Seats that were given up without a manager that said it knows.
    unsaid: Mutex<Vec<Body>>,
    tended: Mutex<Vec<Tended>>,
    /// Words of subscribers that publishers of this node read, so that each is mapped once.
    mapped: Mutex<HashMap<(TopicId, u16), Weak<SubscriberPages>>>,
    /// What this node's subscribers write.
    file: Mutex<Weak<SubscriberFile>>,
    sleepers: Sleepers,
    stopping: AtomicBool,
    kick: EventFd,
    /// The thread.
    runner: OnceLock<ThreadId>,
}

impl Session {
    pub(crate) fn open(
        dir: RuntimeDir,
        program: String,
        autostart: Autostart,
    ) -> Result<(Arc<Self>, Welcome), SessionError> {
        let hello = Hello { dir: &dir, program: &program, held: None };
        let Greeted { connection, welcome, lock } = hello.say_until_answered(autostart)?;
        // Once a node, and not to those who leave the manager and its configuration to others.
        let running = Running::new(dir.path(), welcome.manager_pid);
        let warning = || running.warning(Given::load(&BTreeMap::new(), autostart.unset()));
        if let Some(warning) = (autostart != Autostart::Never).then(warning).flatten() {
            tracing::warn!("{warning}");
        }
        welcome.lacks.iter().for_each(|lack| tracing::warn!("{lack}"));
        let session = Self::new(dir, program, autostart, connection)?;
        session.holds(welcome.lock, lock);
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
            lock: Mutex::default(),
            pending: Mutex::default(),
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
        })
    }

    /// Asks the manager. A request that was cut off by the manager's death is sent to its successor.
    pub(crate) fn request(&self, body: &Body, descriptors: &[BorrowedFd<'_>]) -> Result<Answer, SessionError> {
        self.request_within(body, descriptors, ANSWER_TIMEOUT)
    }

    /// Gives up a seat. If its manager does not say that it knows, the node's thread tells it, or its successor.
    pub(crate) fn leave(&self, seated: &Seated) {
        let body = Body::Leave { topic: seated.topic, role: seated.role, seat: seated.seat };
        let is_runner = self.runner.get() == Some(&std::thread::current().id());
        if is_runner || self.is_away.load(Ordering::Acquire) {
            self.say_later(body);
        } else if let Err(error) = self.request_within(&body, &[], LEAVE_TIMEOUT) {
            tracing::debug!(topic = %seated.key, %error, "leaving was not acknowledged");
            if !matches!(error, SessionError::Refused(_)) {
                self.say_later(body);
            }
        }
        lock(&self.members).all.retain(|member| match member {
            Member::Publisher(publisher) => publisher.strong_count() > 0,
            Member::Subscriber(subscriber, _) => subscriber.strong_count() > 0,
        });
        // Under this lock the thread holds what it tends: it must not be the one who closes a subscriber's descriptor, later.
        lock(&self.tended).retain(|tended| tended.seat() != (seated.role, seated.topic, seated.seat));
        lock(&self.mapped).retain(|_, pages| pages.strong_count() > 0);
    }

    /// Keeps a seat that nobody has any more, for a stream that may still write to it, until this process ends.
    pub(crate) fn keep(&self, seated: &Seated) {
        lock(&self.members).kept.push(seated.clone());
    }

    fn say_later(&self, body: Body) {
        lock(&self.unsaid).push(body);
        self.kick();
    }

    /// Which manager this is, counted from 0: a later one is a successor.
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    /// Makes something, again if the manager dies in the middle of it: it has a part of it then that its successor does not know.
    pub(crate) fn make<M>(&self, make: impl Fn() -> Result<Option<M>, NodeError>) -> Result<M, NodeError> {
        let mut attempts = 1..MAKE_ATTEMPTS;
        loop {
            let epoch = self.epoch();
            match make() {
                Ok(Some(made)) => return Ok(made),
                Ok(None) => {}
                Err(error) if self.epoch() == epoch || attempts.next().is_none() => return Err(error),
                Err(error) => tracing::debug!(%error, "rgapsd died meanwhile; once more"),
            }
        }
    }

    /// The manager has given a seat, which is given back unless somebody sits on it.
    pub(crate) fn given(&self, topic: TopicId, role: Role, seat: Seat) -> GivenSeat<'_> {
        GivenSeat { session: self, leave: Some(Body::Leave { topic, role, seat }) }
    }

    /// The file that this node's subscribers write, of which the manager has sent a descriptor once more.
    pub(crate) fn file(&self, fd: OwnedFd) -> std::io::Result<Arc<SubscriberFile>> {
        SubscriberFile::adopt_unless_known(fd, &mut lock(&self.file))
    }

    /// Whose seat was given in an epoch. False if a later manager was handed back everything meanwhile, and so not this seat.
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
        for seats in unknown(publisher).chunks(TOLD_SUBSCRIBERS_MAX) {
            let body = Body::Subscribers { topic: publisher.seated.topic, seats: seats.to_vec() };
            let Ok(answer) = self.request(&body, &[]) else { return };
            if let Reply::Subscribers { topic, subscribers } = answer.reply {
                self.told(topic, subscribers, answer.descriptors, &[publisher]);
            }
        }
    }

    /// As `meet_subscribers`, without waiting for the answers: a few topics at a time, and of each a few subscribers, others in each turn.
    fn ask_for_subscribers(&self, connection: &Connection, turn: usize) {
        // An answer is for all publishers of its topic.
        let mut topics: HashMap<TopicId, Vec<Seat>> = HashMap::new();
        for publisher in self.publishers() {
            let seats = unknown(&publisher);
            if !seats.is_empty() {
                topics.insert(publisher.seated.topic, seats);
            }
        }
        // Each map has an order of its own, so that all topics have their turn.
        for (topic, seats) in topics.into_iter().take(UNREAD_ANSWERS_MAX) {
            let mut parts = seats.chunks(TOLD_SUBSCRIBERS_MAX);
            let part = turn % parts.len();
            if let Some(seats) = parts.nth(part) {
                self.tell(connection, Body::Subscribers { topic, seats: seats.to_vec() });
            }
        }
    }

    /// Wakes once a descriptor is readable; with no waker, nobody waits for it any more, and the thread lets go of it now.
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
            if asked.elapsed() >= TICK {
                self.ask_for_subscribers(&connection, turn);
                (asked, turn) = (Instant::now(), turn.wrapping_add(1));
            }
            self.sleep(&connection, if soon { READY_TICK } else { TICK });
            if let Err(error) = self.say_leaves(&connection).and_then(|()| self.read(&connection)) {
                self.is_away.store(true, Ordering::Release);
                tracing::warn!(%error, "rgapsd is gone; local topics go on, looking for its successor");
                lock(&self.pending).clear();
                self.reconnect();
            }
        }
    }

    /// Says what was given up and not acknowledged.
    fn say_leaves(&self, connection: &Connection) -> Result<(), LocalError> {
        loop {
            let mut unsaid = lock(&self.unsaid);
            let from = unsaid.len().saturating_sub(UNREAD_ANSWERS_MAX);
            let some = unsaid.split_off(from);
            drop(unsaid);
            if some.is_empty() {
                return Ok(());
            }
            for body in some {
                let id = self.next_id.fetch_add(1, Ordering::Relaxed);
                if let Err(error) = connection.send(&Request { id, body: body.clone() }, &[]) {
                    lock(&self.unsaid).push(body);
                    return Err(error);
                }
            }
            self.read(connection)?;
        }
    }

    fn request_within(
        &self,
        body: &Body,
        descriptors: &[BorrowedFd<'_>],
        timeout: Duration,
    ) -> Result<Answer, SessionError> {
        let mut patience = Patience::new(timeout);
        loop {
            let epoch = self.epoch.load(Ordering::Acquire);
            let id = self.next_id.fetch_add(1, Ordering::Relaxed);
            let (sender, receiver) = sync_channel(1);
            lock(&self.pending).insert(id, sender);
            let connection = lock(&self.connection).clone();
            let sent = connection.send(&Request { id, body: body.clone() }, descriptors);
            let answered = sent.map(|()| {
                loop {
                    match patience.wait(|slice| receiver.recv_timeout(slice)) {
                        Err(RecvTimeoutError::Timeout) if !patience.is_over() => {}
                        answered => return answered,
                    }
                }
            });
            match answered {
                Ok(Ok(outcome)) => return answer(outcome, epoch),
                Ok(Err(RecvTimeoutError::Timeout)) => {
                    if lock(&self.pending).remove(&id).is_none()
                        && let Ok(outcome) = receiver.recv()
                    {
                        // The thread had it in hand.
                        return answer(outcome, epoch);
                    }
                    return Err(SessionError::TimedOut(timeout.as_millis()));
                }
                Ok(Err(RecvTimeoutError::Disconnected)) | Err(LocalError::Closed) => {
                    self.await_successor(epoch, &mut patience, timeout)?;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn await_successor(&self, epoch: u64, patience: &mut Patience, timeout: Duration) -> Result<(), SessionError> {
        while self.epoch.load(Ordering::Acquire) == epoch {
            if patience.is_over() || self.stopping.load(Ordering::Acquire) {
                return Err(SessionError::TimedOut(timeout.as_millis()));
            }
            patience.wait(std::thread::sleep);
        }
        Ok(())
    }

    /// Looks after publishers and subscribers, with a manager or without. True if that should be done again soon.
    fn tend(&self, connection: Option<&Connection>) -> bool {
        let mut soon = false;
        lock(&self.tended).retain_mut(|tended| match tended {
            Tended::Publisher { topic, seat, order, idle } => {
                let Some(order) = order.upgrade() else { return false };
                order.settle();
                if let Some(connection) = connection {
                    idle.look(|offset, bytes| {
                        self.tell(connection, Body::Trim { topic: *topic, seat: *seat, offset, bytes })
                    });
                }
                true
            }
            Tended::Subscriber { order, tended, .. } => {
                let (Some(order), Some(tended)) = (order.upgrade(), tended.upgrade()) else { return false };
                order.settle();
                tended.trim();
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
    fn sleep(&self, connection: &Connection, tick: Duration) {
        let sleeping = self.sleepers.all();
        let mut fds = vec![PollFd::new(connection, PollFlags::IN), PollFd::new(&self.kick, PollFlags::IN)];
        fds.extend(sleeping.iter().map(|(event, _)| PollFd::new(event.as_ref(), PollFlags::IN)));
        let _ = poll(&mut fds, Some(&rgaps_os::poll::timespec(tick)));
        let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        let _ = self.kick.drain();
        for ((event, waker), _) in sleeping.into_iter().zip(&ready[2..]).filter(|(_, ready)| **ready) {
            self.sleepers.set(&event, None);
            waker.wake();
        }
    }

    fn read(&self, connection: &Connection) -> Result<(), LocalError> {
        while let Some(packet) = connection.receive::<ToClient>(Duration::ZERO)? {
            let complete = packet.complete();
            match packet.message {
                ToClient::Reply { id, reply } => match (lock(&self.pending).remove(&id), complete) {
                    (Some(waiting), Ok(())) => {
                        let outcome = reply.map(|reply| (reply, packet.descriptors));
                        drop(waiting.try_send(outcome.map_err(SessionError::from)));
                    }
                    (waiting, complete) => {
                        self.unawaited(connection, reply, packet.descriptors);
                        if let (Some(waiting), Err(error)) = (waiting, complete) {
                            drop(waiting.try_send(Err(error.into())));
                        }
                    }
                },
                ToClient::Notice(notice) => self.notice(notice, packet.descriptors),
            }
        }
        Ok(())
    }

    /// An answer for which no caller waits. Of subscribers, it was asked for by this thread. A seat is given back: one that nobody will ever
    /// leave would hold messages, and with keep-all its publishers.
    fn unawaited(&self, connection: &Connection, answer: Result<Reply, Refusal>, descriptors: Vec<OwnedFd>) {
        let (topic, role, seat) = match answer {
            Ok(Reply::Subscribed(of)) => (of.topic, Role::Subscriber, of.seat),
            Ok(Reply::Advertised(of)) => (of.topic, Role::Publisher, of.seat),
            Ok(Reply::Subscribers { topic, subscribers }) => {
                return self.tell_publishers(topic, subscribers, descriptors);
            }
            _ => return,
        };
        self.tell(connection, Body::Leave { topic, role, seat });
    }

    fn notice(&self, notice: Notice, descriptors: Vec<OwnedFd>) {
        match notice {
            Notice::Warning { text, .. } => tracing::warn!("{text}"),
            Notice::Subscribers { topic, subscribers } => self.tell_publishers(topic, subscribers, descriptors),
        }
    }

    fn tell_publishers(&self, topic: TopicId, subscribers: Vec<NoticedSubscriber>, descriptors: Vec<OwnedFd>) {
        let publishers = self.publishers();
        let of_topic: Vec<&PublisherInner> =
            publishers.iter().filter(|publisher| publisher.seated.topic == topic).map(Arc::as_ref).collect();
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
            let key = (topic, noticed.seat.slot);
            let mapped = lock(&self.mapped).get(&key).and_then(Weak::upgrade);
            match Noticed::new(topic, noticed, mapped, &mut descriptors) {
                Ok(known) => {
                    lock(&self.mapped).insert(key, Arc::downgrade(known.pages()));
                    publishers.iter().for_each(|publisher| known.tell(publisher));
                }
                Err(error) => tracing::debug!(%error, slot = noticed.seat.slot, "a subscriber is not known yet"),
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

    fn reconnect(&self) {
        let mut pauses = Pauses::default();
        while !self.stopping.load(Ordering::Acquire) {
            let autostart = pauses.autostart(self.autostart, Instant::now());
            let held = lock(&self.lock).as_ref().map(|(id, _)| *id);
            let greeted = Hello { dir: &self.dir, program: &self.program, held }.say(autostart);
            match greeted.and_then(|greeted| self.hand_back(greeted)) {
                Ok(connection) => {
                    *lock(&self.connection) = Arc::new(connection);
                    self.epoch.fetch_add(1, Ordering::AcqRel);
                    self.is_away.store(false, Ordering::Release);
                    tracing::info!("rgapsd has a successor, which knows what this node has");
                    // What was given up meanwhile is said now.
                    return self.kick();
                }
                Err(error) => {
                    tracing::debug!(%error, "no successor of rgapsd yet");
                    if let SessionError::Spawn(error) = &error {
                        pauses.note(error, Instant::now());
                    }
                }
            }
            let next = Instant::now() + RECONNECT_INTERVAL;
            while let Some(left) = next.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
                std::thread::sleep(if self.tend(None) { left.min(READY_TICK) } else { left });
            }
        }
    }

    /// By which lock this node is known to live, from now on.
    fn holds(&self, id: LockId, new: Option<ProcessLock>) {
        if let Some(new) = new {
            *lock(&self.lock) = Some((id, new));
        }
    }

    /// Hands everything back that this node has. An error if this manager died too, or is stopped.
    fn hand_back(&self, greeted: Greeted) -> Result<Connection, SessionError> {
        let Greeted { connection, welcome, lock: new } = greeted;
        self.holds(welcome.lock, new);
        let notice = |notice, descriptors| self.notice(notice, descriptors);
        let mut ask = |body, descriptors: &[BorrowedFd<'_>]| Ok(hello::ask(&connection, body, descriptors, notice)?.0);
        hand_back::hand_back(self.owners(), &mut ask)?;
        Ok(connection)
    }

    /// Who has what, a topic's seats in a row. Who joins the manager that is gone from now on begins anew.
    fn owners(&self) -> Vec<(Seated, Owner)> {
        let mut members = lock(&self.members);
        members.handed_back = self.epoch() + 1;
        let owners = members.all.iter().filter_map(|member| match member {
            Member::Publisher(publisher) => publisher.upgrade().map(Owner::Publisher),
            Member::Subscriber(subscriber, qos) => subscriber.upgrade().map(|own| Owner::Subscriber(own, *qos)),
        });
        let kept = members.kept.iter().map(|seated| (seated.clone(), Owner::Kept(seated.role)));
        let mut owners: Vec<(Seated, Owner)> = owners.map(|owner| (owner.seated(), owner)).chain(kept).collect();
        drop(members);
        // Not under the lock: the last of an owner may be its end, which comes back here.
        owners.retain(|(seated, _)| !seated.is_cut_off());
        owners.sort_by_key(|(seated, _)| seated.topic);
        owners
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // A stream may still write to a seat of this node: its process is to be waited for, not the node.
        if !lock(&self.members).kept.is_empty() {
            std::mem::forget(lock(&self.lock).take());
        }
    }
}

fn answer(outcome: Outcome, epoch: u64) -> Result<Answer, SessionError> {
    let (reply, descriptors) = outcome?;
    Ok(Answer { reply, descriptors: descriptors.into_iter(), epoch })
}

/// Subscribers that a publisher does not know.
fn unknown(publisher: &PublisherInner) -> Vec<Seat> {
    let unknown = publisher.port().unknown_subscribers();
    unknown.into_iter().map(|(slot, tenancy)| Seat { slot, generation: tenancy.bits() }).collect()
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
    fn a_seat_that_comes_after_its_caller_has_gone_is_given_back() {
        let (session, manager) = session("late");
        let asked = session.request_within(&Body::Topics { after: None }, &[], Duration::ZERO);
        assert!(matches!(asked, Err(SessionError::TimedOut(0))));
        let id = manager.receive::<Request>(TICK).unwrap().unwrap().message.id;
        let (topic, seat) = (TopicId([1; 16]), Seat { slot: 3, generation: 1 });
        let reply = Ok(Reply::Subscribed(rgaps_control::local::Subscribed { topic, seat, place: 0 }));
        manager.send(&ToClient::Reply { id, reply }, &[]).unwrap();
        session.read(&lock(&session.connection).clone()).unwrap();
        let said = manager.receive::<Request>(TICK).unwrap().unwrap().message.body;
        let Body::Leave { topic: of, role: Role::Subscriber, seat: left } = said else { panic!("{said:?}") };
        assert_eq!((of, left), (topic, seat));
    }
}
