//! The connection to the manager: requests and answers, notices, and what to do when the manager dies.
//!
//! One thread a node reads the socket. Callers send a request and sleep on its answer, with a time-out. When the manager is gone, local
//! publish and take go on without it; the thread connects to its successor (starting one if nobody has) and hands back every seat, with
//! the segment and the pool, so that the successor makes nothing anew.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::task::Waker;
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use rgaps_control::local::{
    Body, Connection, HandedBack, LocalError, Notice, PROTOCOL_VERSION, Refusal, Reply, Request, Role, Seat, ToClient,
    Welcome,
};
use rgaps_control::spawn::{self, Autostart, Pauses, SpawnError};
use rgaps_control::{Given, Running, RuntimeDir, TopicId, TopicKey};
use rgaps_os::{EventFd, PidFd};
use rgaps_shm::Segment;
use rustix::event::{PollFd, PollFlags, poll};

use crate::idle::IdlePool;
use crate::node::READY_TICK;
use crate::order::{Filling, Order, Releasing};
use crate::publisher::PublisherInner;
use crate::subscriber::{self, SubscriberInner};
use crate::tasks::Sleepers;

/// How long a manager may take to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// How long leaving may hold up a drop.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(2);
/// How often the thread looks whether it should stop.
const TICK: Duration = Duration::from_millis(500);
/// Between attempts to reach a successor.
const RECONNECT_INTERVAL: Duration = Duration::from_millis(50);

/// The manager did not do what was asked.
#[derive(thiserror::Error)]
pub enum SessionError {
    /// There is none, and none could be started.
    #[error(transparent)]
    Spawn(#[from] SpawnError),
    /// The connection failed.
    #[error(transparent)]
    Local(#[from] LocalError),
    /// It refused.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// It did not answer.
    #[error("rgapsd did not answer within {0} ms; is it stopped? its log is in the runtime directory")]
    TimedOut(u128),
    /// It answered something else.
    #[error("rgapsd gave an answer that does not belong to the question")]
    Confused,
    /// The kernel refused.
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// A reply and the descriptors beside it.
pub(crate) struct Answer {
    pub(crate) reply: Reply,
    pub(crate) descriptors: std::vec::IntoIter<OwnedFd>,
}

impl Answer {
    /// The next descriptor.
    pub(crate) fn descriptor(&mut self) -> Result<OwnedFd, SessionError> {
        self.descriptors.next().ok_or(SessionError::Confused)
    }
}

/// A seat in a topic, and what a successor must be told of it.
#[derive(Clone, Debug)]
pub(crate) struct Seated {
    pub(crate) key: TopicKey,
    pub(crate) topic: TopicId,
    pub(crate) type_name: String,
    pub(crate) role: Role,
    pub(crate) seat: Seat,
    pub(crate) segment: Arc<Segment>,
}

/// Who must be handed back, and who wants event descriptors.
#[derive(Debug)]
pub(crate) enum Member {
    Publisher(Weak<PublisherInner>),
    Subscriber(Weak<SubscriberInner>, rgaps_control::SubscriberQos),
}

/// What is looked after for each: nothing whose drop would ask the manager, and so wait for the thread that holds it.
#[derive(Debug)]
enum Tended {
    Publisher { topic: TopicId, seat: Seat, order: Weak<Order<Filling>>, idle: IdlePool },
    Subscriber { topic: TopicId, seat: Seat, order: Weak<Order<Releasing>>, tended: Weak<subscriber::Tended> },
}

impl Tended {
    fn seat(&self) -> (Role, TopicId, Seat) {
        match *self {
            Self::Publisher { topic, seat, .. } => (Role::Publisher, topic, seat),
            Self::Subscriber { topic, seat, .. } => (Role::Subscriber, topic, seat),
        }
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

/// See `Session::joining`.
#[must_use]
#[derive(Debug)]
pub(crate) struct Joining<'a>(&'a AtomicUsize);

impl Drop for Joining<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

type Outcome = Result<(Reply, Vec<OwnedFd>), Refusal>;

/// State shared by a node's callers and its thread.
#[derive(Debug)]
pub(crate) struct Session {
    dir: RuntimeDir,
    program: String,
    autostart: Autostart,
    connection: Mutex<Arc<Connection>>,
    /// Counts connections, so that a caller sees that a new one has come.
    epoch: AtomicU64,
    pending: Mutex<HashMap<u64, SyncSender<Outcome>>>,
    next_id: AtomicU64,
    members: Mutex<Vec<Member>>,
    tended: Mutex<Vec<Tended>>,
    /// Event descriptors of topics that this node is in. The manager may send one before the answer that makes us a publisher is read.
    events: Mutex<HashMap<(TopicId, u8), (Seat, EventFd)>>,
    /// Publishers that have asked for their seat and are no members yet: what came for them meanwhile must stay in `events`.
    joining: AtomicUsize,
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
        let (connection, welcome) = greet(&dir, &program, autostart)?;
        // Once a node, and not to those who leave the manager and its configuration to others.
        let running = Running::new(dir.path(), welcome.manager_pid);
        let warning = || running.warning(Given::load(&BTreeMap::new()));
        if let Some(warning) = (autostart == Autostart::OnDemand).then(warning).flatten() {
            tracing::warn!("{warning}");
        }
        Ok((Arc::new(Self::new(dir, program, autostart, connection)?), welcome))
    }

    fn new(dir: RuntimeDir, program: String, autostart: Autostart, connection: Connection) -> io::Result<Self> {
        Ok(Self {
            dir,
            program,
            autostart,
            connection: Mutex::new(Arc::new(connection)),
            epoch: AtomicU64::new(0),
            pending: Mutex::default(),
            next_id: AtomicU64::new(1),
            members: Mutex::default(),
            tended: Mutex::default(),
            events: Mutex::default(),
            joining: AtomicUsize::new(0),
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

    /// Gives up a seat; if that fails, the manager learns of it from this process's end.
    pub(crate) fn leave(&self, seated: &Seated) {
        let body = Body::Leave { topic: seated.topic, role: seated.role, seat: seated.seat };
        if self.runner.get() == Some(&std::thread::current().id()) {
            let connection = lock(&self.connection).clone();
            self.tell(&connection, body);
        } else if let Err(error) = self.request_within(&body, &[], LEAVE_TIMEOUT) {
            tracing::debug!(topic = %seated.key, %error, "leaving was not acknowledged");
        }
        lock(&self.members).retain(|member| match member {
            Member::Publisher(publisher) => publisher.strong_count() > 0,
            Member::Subscriber(subscriber, _) => subscriber.strong_count() > 0,
        });
        // Under this lock the thread holds what it tends: it must not be the one who closes a subscriber's descriptor, later.
        lock(&self.tended).retain(|tended| tended.seat() != (seated.role, seated.topic, seated.seat));
        self.prune_events();
    }

    /// The manager has given a seat, which is given back unless somebody sits on it.
    pub(crate) fn given(&self, topic: TopicId, role: Role, seat: Seat) -> GivenSeat<'_> {
        GivenSeat { session: self, leave: Some(Body::Leave { topic, role, seat }) }
    }

    /// A publisher is about to ask for its seat. The guard lives until it is a member, or has failed.
    pub(crate) fn joining(&self) -> Joining<'_> {
        self.joining.fetch_add(1, Ordering::AcqRel);
        Joining(&self.joining)
    }

    /// Lets go of event descriptors that no publisher of this node rings.
    fn prune_events(&self) {
        let mut events = lock(&self.events);
        // Under the lock: whoever begins to join after this look gets its notices, and so its entries, after the lock is given up.
        if self.joining.load(Ordering::Acquire) > 0 {
            return;
        }
        let publishers = self.publishers();
        events.retain(|(topic, _), _| publishers.iter().any(|publisher| publisher.seated.topic == *topic));
        // The last of these may be the publisher's end, which comes back here: not under the lock.
        drop(events);
    }

    pub(crate) fn add_member(&self, member: Member) {
        let publisher = match &member {
            Member::Publisher(publisher) => publisher.upgrade(),
            Member::Subscriber(..) => None,
        };
        lock(&self.tended).extend(tended(&member));
        // First a member, then a look at what came before: `notice` does it the other way round, so that none is lost between them.
        lock(&self.members).push(member);
        let Some(publisher) = publisher else { return };
        for ((topic, _), (seat, event)) in lock(&self.events).iter() {
            if *topic == publisher.seated.topic {
                add_event(&publisher, *seat, event);
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
        while !self.stopping.load(Ordering::Acquire) {
            let connection = lock(&self.connection).clone();
            let soon = self.tend(Some(&connection));
            self.sleep(&connection, if soon { READY_TICK } else { TICK });
            if let Err(error) = self.read(&connection) {
                tracing::warn!(%error, "rgapsd is gone; local topics go on, looking for its successor");
                lock(&self.pending).clear();
                self.reconnect();
            }
        }
    }

    fn request_within(
        &self,
        body: &Body,
        descriptors: &[BorrowedFd<'_>],
        timeout: Duration,
    ) -> Result<Answer, SessionError> {
        let deadline = Instant::now() + timeout;
        loop {
            let epoch = self.epoch.load(Ordering::Acquire);
            let id = self.next_id.fetch_add(1, Ordering::Relaxed);
            let (sender, receiver) = sync_channel(1);
            lock(&self.pending).insert(id, sender);
            let connection = lock(&self.connection).clone();
            let sent = connection.send(&Request { id, body: body.clone() }, descriptors);
            let left = deadline.saturating_duration_since(Instant::now());
            match sent.map(|()| receiver.recv_timeout(left)) {
                Ok(Ok(outcome)) => return answer(outcome),
                Ok(Err(RecvTimeoutError::Timeout)) => {
                    if lock(&self.pending).remove(&id).is_none()
                        && let Ok(outcome) = receiver.recv()
                    {
                        // The thread had it in hand.
                        return answer(outcome);
                    }
                    return Err(SessionError::TimedOut(timeout.as_millis()));
                }
                Ok(Err(RecvTimeoutError::Disconnected)) | Err(LocalError::Closed) => {
                    self.await_successor(epoch, deadline, timeout)?;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn await_successor(&self, epoch: u64, deadline: Instant, timeout: Duration) -> Result<(), SessionError> {
        while self.epoch.load(Ordering::Acquire) == epoch {
            if Instant::now() >= deadline || self.stopping.load(Ordering::Acquire) {
                return Err(SessionError::TimedOut(timeout.as_millis()));
            }
            std::thread::sleep(RECONNECT_INTERVAL);
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
            match packet.message {
                ToClient::Reply { id, reply } => {
                    let waiting = lock(&self.pending).remove(&id);
                    match waiting {
                        Some(waiting) => drop(waiting.try_send(reply.map(|reply| (reply, packet.descriptors)))),
                        None => self.give_back(connection, reply),
                    }
                }
                ToClient::Notice(notice) => self.notice(notice, packet.descriptors),
            }
        }
        Ok(())
    }

    /// An answer came after its caller had gone: a seat that nobody will ever leave would hold messages, and with keep-all its publishers.
    fn give_back(&self, connection: &Connection, late: Result<Reply, Refusal>) {
        let (topic, role, seat) = match late {
            Ok(Reply::Subscribed(of)) => (of.topic, Role::Subscriber, of.seat),
            Ok(Reply::Advertised(of)) => (of.topic, Role::Publisher, of.seat),
            _ => return,
        };
        self.tell(connection, Body::Leave { topic, role, seat });
    }

    fn notice(&self, notice: Notice, descriptors: Vec<OwnedFd>) {
        match notice {
            Notice::Warning { text, .. } => tracing::warn!("{text}"),
            Notice::EventDescriptor { topic, seat } => {
                let Some(event) = descriptors.into_iter().next().map(EventFd::from_fd) else { return };
                if let Ok(event) = event.try_clone() {
                    lock(&self.events).insert((topic, seat.slot), (seat, event));
                }
                for publisher in self.publishers().iter().filter(|publisher| publisher.seated.topic == topic) {
                    add_event(publisher, seat, &event);
                }
            }
        }
    }

    fn publishers(&self) -> Vec<Arc<PublisherInner>> {
        let members = lock(&self.members);
        members
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
            match greet(&self.dir, &self.program, autostart) {
                Ok((connection, _)) => {
                    self.hand_back(&connection);
                    *lock(&self.connection) = Arc::new(connection);
                    self.epoch.fetch_add(1, Ordering::AcqRel);
                    return;
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

    fn hand_back(&self, connection: &Connection) {
        let mut publishers = Vec::new();
        let mut subscribers = Vec::new();
        for member in lock(&self.members).iter() {
            match member {
                Member::Publisher(publisher) => publishers.extend(publisher.upgrade()),
                Member::Subscriber(subscriber, qos) => subscribers.extend(subscriber.upgrade().map(|s| (s, *qos))),
            }
        }
        for publisher in publishers {
            let Ok((description, slabs)) = publisher.pool.export() else { continue };
            let handed = HandedBack {
                publisher: Some(publisher.qos),
                publisher_id: publisher.publisher,
                pool: serde_json::to_value(description).ok(),
                ..seat_of(&publisher.seated)
            };
            self.hand_over(connection, handed, &publisher.seated.segment, &slabs);
        }
        for (subscriber, qos) in subscribers {
            let handed = HandedBack { subscriber: Some(qos), ..seat_of(&subscriber.seated) };
            let event = subscriber.tended.event.get().and_then(|event| event.try_clone().ok()).map(OwnedFd::from);
            self.hand_over(connection, handed, &subscriber.seated.segment, event.as_slice());
        }
    }

    fn hand_over(&self, connection: &Connection, handed: HandedBack, segment: &Segment, slabs: &[OwnedFd]) {
        let topic = handed.key.clone();
        let descriptors: Vec<BorrowedFd<'_>> =
            std::iter::once(segment.as_fd()).chain(slabs.iter().map(AsFd::as_fd)).collect();
        let notice = |notice, descriptors| self.notice(notice, descriptors);
        match ask(connection, Body::HandBack(handed), &descriptors, notice) {
            Ok(_) => tracing::info!(%topic, "handed back to rgapsd"),
            Err(error) => {
                tracing::warn!(%topic, %error, "rgapsd did not take the topic back; make the publisher or subscriber anew")
            }
        }
    }
}

fn answer(outcome: Outcome) -> Result<Answer, SessionError> {
    let (reply, descriptors) = outcome?;
    Ok(Answer { reply, descriptors: descriptors.into_iter() })
}

fn tended(member: &Member) -> Option<Tended> {
    match member {
        Member::Publisher(publisher) => {
            let publisher = publisher.upgrade()?;
            Some(Tended::Publisher {
                topic: publisher.seated.topic,
                seat: publisher.seated.seat,
                order: Arc::downgrade(&publisher.order),
                idle: IdlePool::new(&publisher.port, &publisher.pool),
            })
        }
        Member::Subscriber(subscriber, _) => {
            let subscriber = subscriber.upgrade()?;
            Some(Tended::Subscriber {
                topic: subscriber.seated.topic,
                seat: subscriber.seated.seat,
                order: Arc::downgrade(&subscriber.order),
                tended: Arc::downgrade(&subscriber.tended),
            })
        }
    }
}

fn add_event(publisher: &PublisherInner, seat: Seat, event: &EventFd) {
    if let Ok(event) = event.try_clone() {
        let tenancy = rgaps_shm::message::Tenancy::new(seat.generation);
        publisher.port().add_event(seat.slot, tenancy, event);
    }
}

fn seat_of(seated: &Seated) -> HandedBack {
    HandedBack {
        key: seated.key.clone(),
        topic: seated.topic,
        type_name: seated.type_name.clone(),
        role: seated.role,
        seat: seated.seat,
        publisher: None,
        publisher_id: 0,
        subscriber: None,
        pool: None,
    }
}

/// Connects and says hello.
fn greet(dir: &RuntimeDir, program: &str, autostart: Autostart) -> Result<(Connection, Welcome), SessionError> {
    let connection = spawn::connect(dir, autostart)?;
    let pidfd = PidFd::own()?;
    let hello = Body::Hello { protocol: PROTOCOL_VERSION, program: program.to_owned() };
    match ask(&connection, hello, &[pidfd.as_fd()], |_, _| ())? {
        Reply::Welcome(welcome) => Ok((connection, welcome)),
        _ => Err(SessionError::Confused),
    }
}

/// One question and its answer on a connection that nobody else reads. Notices that come between them go to `notice`.
fn ask(
    connection: &Connection,
    body: Body,
    descriptors: &[BorrowedFd<'_>],
    mut notice: impl FnMut(Notice, Vec<OwnedFd>),
) -> Result<Reply, SessionError> {
    connection.send(&Request { id: 0, body }, descriptors)?;
    let deadline = Instant::now() + ANSWER_TIMEOUT;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let packet = connection.receive::<ToClient>(left)?;
        match packet.map(|packet| (packet.message, packet.descriptors)) {
            Some((ToClient::Reply { id: 0, reply }, _)) => return Ok(reply?),
            Some((ToClient::Reply { .. }, _)) => {}
            Some((ToClient::Notice(came), descriptors)) => notice(came, descriptors),
            None if Instant::now() >= deadline => return Err(SessionError::TimedOut(ANSWER_TIMEOUT.as_millis())),
            None => {}
        }
    }
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
    fn a_descriptor_that_comes_before_its_publisher_is_a_member_survives_the_end_of_another() {
        let (session, _manager) = session("events");
        let notice = || Notice::EventDescriptor { topic: TopicId([1; 16]), seat: Seat { slot: 3, generation: 1 } };
        let descriptor = || vec![rustix::event::eventfd(0, rustix::event::EventfdFlags::empty()).unwrap()];
        let joining = session.joining();
        session.notice(notice(), descriptor());
        session.prune_events();
        assert_eq!(lock(&session.events).len(), 1, "a publisher that joins will look for it");
        drop(joining);
        session.prune_events();
        assert!(lock(&session.events).is_empty(), "nobody rings it");
    }

    #[test]
    fn a_seat_that_comes_after_its_caller_has_gone_is_given_back() {
        let (session, manager) = session("late");
        let asked = session.request_within(&Body::Topics { after: None }, &[], Duration::ZERO);
        assert!(matches!(asked, Err(SessionError::TimedOut(0))));
        let id = manager.receive::<Request>(TICK).unwrap().unwrap().message.id;
        let (topic, seat) = (TopicId([1; 16]), Seat { slot: 3, generation: 1 });
        let reply = Ok(Reply::Subscribed(rgaps_control::local::Subscribed { topic, seat }));
        manager.send(&ToClient::Reply { id, reply }, &[]).unwrap();
        session.read(&lock(&session.connection).clone()).unwrap();
        let said = manager.receive::<Request>(TICK).unwrap().unwrap().message.body;
        let Body::Leave { topic: of, role: Role::Subscriber, seat: left } = said else { panic!("{said:?}") };
        assert_eq!((of, left), (topic, seat));
    }
}
