//! Clients: who is connected, and who is dead. Death is a readable pidfd; a hang-up alone proves nothing while the process lives. A client
//! also holds a lock (`rgaps_control`'s `client_lock`), by which successors of this manager will know that it lives, and know it again.
//!
//! With pools on a GPU, the streams of a process go on while another that was forked from it has the driver's descriptors. It has the socket
//! too: until that is hung up the slots of the dead stay taken, since those streams may still write there. So of a connection that the manager
//! ends it keeps its own end, until nobody has the other one.
//!
//! The manager's one thread waits for no client: one whose socket is full does not read, and is cut off. What it publishes and takes on
//! this host goes on; when it reads again it finds the end, connects anew and hands its slots back, as after a manager's death.

use std::collections::{BTreeSet, HashMap};
use std::os::fd::{BorrowedFd, OwnedFd};

use rgaps_control::client_lock::{FileId, NotedClient};
use rgaps_control::local::{Connection, DESCRIPTORS_MAX, LocalError, Notice, Refusal, Reply, Role, ToClient};
use rgaps_control::{EndpointSlot, LockId, TopicId};
use rgaps_os::PidFd;
use rgaps_shm::SubscriberFiles;

use crate::refusals::{exhausted, is_of_descriptors};

/// Connections that have not said hello.
const STRANGERS_MAX: usize = 64;

/// Connections of a client that were cut off and are kept.
const CUT_MAX: usize = 4;

/// Descriptors that a client may leave unread before it is heard again: those of one answer.
const UNREAD_DESCRIPTORS_MAX: usize = DESCRIPTORS_MAX;

/// A client of this manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ClientId(pub(crate) u64);

/// A slot that a client occupies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Occupied {
    pub(crate) topic: TopicId,
    pub(crate) slot: EndpointSlot,
}

impl Occupied {
    pub(crate) fn role(&self) -> Role {
        match self.slot {
            EndpointSlot::Publisher(_) => Role::Publisher,
            EndpointSlot::Subscriber(_) => Role::Subscriber,
        }
    }
}

/// One process (or one node of it).
#[derive(Debug)]
pub(crate) struct Client {
    /// `None` once it has hung up or was cut off; its slots stay until it is dead.
    pub(crate) connection: Option<Connection>,
    /// Connections that were cut off, of which somebody may have the other end.
    cut: Vec<Connection>,
    /// Of the process, once it has said hello.
    pub(crate) pidfd: Option<PidFd>,
    /// Its process id, for people.
    pub(crate) pid: u32,
    /// The lock that it holds, or is about to take.
    pub(crate) lock: Option<LockId>,
    /// The file of that lock.
    pub(crate) lock_file: FileId,
    /// Other locks that it held when it said hello, by which it may have been known until now.
    pub(crate) held_before: Vec<LockId>,
    /// Whether it was seen to hold it: then it may ask for slots.
    pub(crate) is_locked: bool,
    pub(crate) program: String,
    pub(crate) slots: Vec<Occupied>,
    /// What its subscribers write.
    pub(crate) files: SubscriberFiles,
    /// Its process has ended, and its streams may go on.
    pub(crate) has_ended: bool,
    /// Descriptors that it was sent since it was last known to have read all.
    unread: usize,
}

impl Client {
    pub(crate) fn new(connection: Connection) -> Self {
        Self {
            connection: Some(connection),
            cut: Vec::new(),
            pidfd: None,
            pid: 0,
            lock: None,
            lock_file: FileId::default(),
            held_before: Vec::new(),
            is_locked: false,
            program: String::new(),
            slots: Vec::new(),
            files: SubscriberFiles::default(),
            has_ended: false,
            unread: 0,
        }
    }

    /// As notes have it.
    pub(crate) fn noted(&self) -> Option<NotedClient> {
        let lock = self.lock.filter(|_| self.is_locked)?;
        Some(NotedClient { lock, pid: self.pid, file: self.lock_file })
    }

    /// Takes the pidfd of a hello: it must be of the process that the kernel names as the socket's peer.
    pub(crate) fn identify(&mut self, descriptors: Vec<OwnedFd>, program: String) -> Result<(), Refusal> {
        let refuse = |text: String| Refusal::Invalid(text);
        let Some(connection) = &self.connection else { return Err(refuse("the connection is gone".to_owned())) };
        if self.pidfd.is_some() {
            return Err(refuse("hello was said before".to_owned()));
        }
        let peer = connection.peer().map_err(|error| refuse(error.to_string()))?;
        if peer.pid == 0 {
            let text = "the manager does not see this process, whose PID namespace is another, and could not know of its death; run rgapsd \
                        outside of containers, or in a PID namespace that has its clients' in it";
            return Err(refuse(text.to_owned()));
        }
        let Some(fd) = descriptors.into_iter().next() else { return Err(refuse("hello without a pidfd".to_owned())) };
        // The kernel's answer is a file of /proc, for which the manager may have no descriptor left.
        let unknown = |error: std::io::Error| {
            let text = error.to_string();
            if is_of_descriptors(&text) { exhausted(&error) } else { refuse(text) }
        };
        let pidfd = PidFd::from_fd(fd).map_err(unknown)?;
        let found = pidfd.pid().map_err(unknown)?;
        if found != peer.pid {
            return Err(refuse(format!("the pidfd is of process {found}, the socket of process {}", peer.pid)));
        }
        self.pid = peer.pid;
        self.pidfd = Some(pidfd);
        self.program = program;
        Ok(())
    }

    /// The connection ends, since the client has hung up.
    pub(crate) fn hang_up(&mut self) {
        self.connection.take().into_iter().for_each(Connection::close_elsewhere);
    }

    /// The connection ends, though the client has not hung up: it is to connect again.
    pub(crate) fn cut_off(&mut self) {
        if let Some(connection) = self.connection.take() {
            connection.end_sending();
            self.keep_cut([connection]);
        }
    }

    /// A process that was forked from the client's has the other ends of the connections of its time.
    fn keep_cut(&mut self, cut: impl IntoIterator<Item = Connection>) {
        self.cut.extend(cut);
        let over = self.cut.extract_if(.., |connection| connection.has_hung_up());
        over.for_each(Connection::close_elsewhere);
        let more = self.cut.len().saturating_sub(CUT_MAX);
        self.cut.drain(..more).for_each(Connection::close_elsewhere);
    }

    /// Answers a request; false if the answer does not reach the client.
    pub(crate) fn reply(&mut self, id: u64, reply: Result<Reply, Refusal>, descriptors: &[BorrowedFd<'_>]) -> bool {
        self.look_whether_it_reads();
        let Some(connection) = &self.connection else { return false };
        let sent = connection.send_now(&ToClient::Reply { id, reply }, descriptors);
        // No fault of the client's.
        let why = match sent {
            Err(LocalError::Oversized) => "the answer is longer than a message may be".to_owned(),
            Err(error @ LocalError::TooManyUnread { .. }) => error.to_string(),
            sent => {
                self.unread += descriptors.len();
                return self.is_told(sent);
            }
        };
        self.tell(&ToClient::Reply { id, reply: Err(Refusal::Exhausted(why)) });
        false
    }

    /// Speaks up; a client that does not read is cut off.
    pub(crate) fn notify(&mut self, notice: Notice) {
        self.tell(&ToClient::Notice(notice));
    }

    fn tell(&mut self, message: &ToClient) -> bool {
        let Some(connection) = self.connection.as_ref().filter(|_| !self.has_ended) else { return false };
        let sent = connection.send_now(message, &[]);
        self.is_told(sent)
    }

    /// Whether it has not read so many descriptors that nothing more is to be asked of it: the kernel bounds for each user how many are on their
    /// way (RLIMIT_NOFILE of the sender), and who does not read is to keep nobody else from getting any.
    pub(crate) fn is_behind(&mut self) -> bool {
        self.unread >= UNREAD_DESCRIPTORS_MAX && self.look_whether_it_reads() > 0
    }

    /// What it may not have read yet.
    fn look_whether_it_reads(&mut self) -> usize {
        if self.unread > 0 && self.connection.as_ref().is_none_or(Connection::is_all_read) {
            self.unread = 0;
        }
        self.unread
    }

    /// Cuts the client off if something did not reach it.
    fn is_told(&mut self, sent: Result<(), LocalError>) -> bool {
        match sent {
            Ok(()) => return true,
            // Its process will say so, or has ended in order.
            Err(LocalError::Closed) => {}
            // No fault of the client's.
            Err(error @ LocalError::Oversized) => {
                tracing::warn!(pid = self.pid, program = self.program, %error, "a client is not told something");
                return false;
            }
            Err(error) => {
                tracing::warn!(pid = self.pid, program = self.program, %error, "a client is cut off until it connects anew");
            }
        }
        self.cut_off();
        false
    }

    /// Whether a process that was forked from it has its descriptors.
    pub(crate) fn is_held_open(&self) -> bool {
        self.connection.iter().chain(&self.cut).any(|connection| !connection.has_hung_up())
    }

    fn is_in(&self, topic: TopicId) -> bool {
        self.slots.iter().any(|slot| slot.topic == topic)
    }

    fn publishes(&self, topic: TopicId) -> bool {
        self.slots.iter().any(|slot| slot.topic == topic && slot.role() == Role::Publisher)
    }

    /// Whether nothing is left of it to wait for.
    pub(crate) fn is_over(&self) -> bool {
        self.connection.is_none() && self.slots.is_empty()
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.hang_up();
        self.cut.drain(..).for_each(Connection::close_elsewhere);
    }
}

/// All clients.
#[derive(Debug, Default)]
pub(crate) struct Clients {
    pub(crate) by_id: HashMap<ClientId, Client>,
    next: u64,
}

impl Clients {
    /// The oldest of those who have not said hello, if there are so many that it makes way for the next.
    pub(crate) fn oldest_stranger(&self) -> Option<ClientId> {
        let strangers = self.by_id.iter().filter(|(_, client)| !client.is_locked).map(|(id, _)| *id);
        let count = strangers.clone().count();
        strangers.min().filter(|_| count >= STRANGERS_MAX)
    }

    /// A connection that has said nothing yet.
    pub(crate) fn add(&mut self, connection: Connection) -> ClientId {
        self.next += 1;
        let id = ClientId(self.next);
        self.by_id.insert(id, Client::new(connection));
        id
    }

    /// Clients that occupy a slot in a topic.
    pub(crate) fn of_topic(&self, topic: TopicId) -> impl Iterator<Item = &Client> {
        self.by_id.values().filter(move |client| client.is_in(topic))
    }

    /// Whether a client publishes to a topic.
    pub(crate) fn publishes(&self, client: ClientId, topic: TopicId) -> bool {
        self.by_id.get(&client).is_some_and(|client| client.publishes(topic))
    }

    /// Those who publish to a topic, for speaking to them.
    pub(crate) fn publishers_of_mut(&mut self, topic: TopicId) -> impl Iterator<Item = &mut Client> {
        self.by_id.values_mut().filter(move |client| client.publishes(topic))
    }

    /// Those who are in a topic, for speaking to them.
    pub(crate) fn of_topic_mut(&mut self, topic: TopicId) -> impl Iterator<Item = &mut Client> {
        self.by_id.values_mut().filter(move |client| client.is_in(topic))
    }

    /// By which lock a client is known.
    pub(crate) fn lock_of(&self, client: ClientId) -> Option<LockId> {
        self.by_id.get(&client)?.noted().map(|noted| noted.lock)
    }

    /// Who occupies a slot: this connection, or an earlier one of the same client.
    pub(crate) fn occupant(&self, client: ClientId, occupied: &Occupied) -> Option<ClientId> {
        if self.by_id.get(&client)?.slots.contains(occupied) {
            return Some(client);
        }
        let lock = self.lock_of(client)?;
        let mut earlier = self.by_id.iter().filter(|(_, other)| other.lock == Some(lock) && other.is_locked);
        earlier.find(|(_, other)| other.slots.contains(occupied)).map(|(id, _)| *id)
    }

    /// A client holds another lock than before: earlier connections of it are known by the new one. Returns the topics that they are in.
    pub(crate) fn rename(&mut self, before: LockId, now: NotedClient) -> BTreeSet<TopicId> {
        let earlier = self.by_id.values_mut().filter(|other| other.pid == now.pid && other.lock == Some(before));
        let renamed = earlier.flat_map(|other| {
            (other.lock, other.lock_file) = (Some(now.lock), now.file);
            other.slots.iter().map(|slot| slot.topic)
        });
        renamed.collect()
    }

    /// A hello is refused: nothing is kept of it.
    pub(crate) fn forget_process(&mut self, client: ClientId) {
        if let Some(client) = self.by_id.get_mut(&client) {
            client.pidfd = None;
        }
    }

    /// Whether a process is known by a lock.
    pub(crate) fn has_lock(&self, pid: u32, lock: LockId) -> bool {
        self.by_id.values().any(|client| client.pid == pid && client.lock == Some(lock))
    }

    /// Whether a client is in a topic, by whatever connection.
    pub(crate) fn has_in(&self, lock: LockId, topic: TopicId) -> bool {
        self.of_topic(topic).any(|client| client.lock == Some(lock))
    }

    /// What earlier connections of a client occupy, which give it up.
    pub(crate) fn take_slots_of_earlier(&mut self, client: ClientId, lock: LockId) -> Vec<Occupied> {
        let earlier = self.by_id.iter_mut().filter(|(id, other)| **id != client && other.lock == Some(lock));
        earlier.flat_map(|(_, other)| std::mem::take(&mut other.slots)).collect()
    }

    /// A client has a slot.
    pub(crate) fn occupy(&mut self, client: ClientId, occupied: Occupied) {
        if let Some(client) = self.by_id.get_mut(&client) {
            client.slots.push(occupied);
        }
    }

    /// A slot goes from one connection of a client to another.
    pub(crate) fn hand_over(&mut self, from: ClientId, to: ClientId, occupied: &Occupied) {
        let cut = self.by_id.get_mut(&from).filter(|_| from != to).map(|from| std::mem::take(&mut from.cut));
        if let Some(to) = self.by_id.get_mut(&to) {
            to.keep_cut(cut.into_iter().flatten());
        }
        self.release(from, occupied);
        self.occupy(to, *occupied);
    }

    /// A slot is given up.
    pub(crate) fn release(&mut self, occupant: ClientId, occupied: &Occupied) {
        if let Some(client) = self.by_id.get_mut(&occupant) {
            client.slots.retain(|slot| slot != occupied);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// Notices that a client may leave unread while it is stopped, at the least.
    const MODEST: u64 = 128;

    fn client(listener: &rgaps_control::local::Listener, path: &std::path::Path) -> (Client, Connection) {
        let far = Connection::connect(path).unwrap().unwrap();
        (Client::new(listener.accept().unwrap().unwrap()), far)
    }

    fn warning(number: u64) -> Notice {
        Notice::Warning { topic: TopicId([1; 16]), text: number.to_string() }
    }

    fn number(connection: &Connection) -> Result<u64, LocalError> {
        match connection.receive::<ToClient>(Duration::ZERO)?.expect("it is there").message {
            ToClient::Notice(Notice::Warning { text, .. }) => Ok(text.parse().unwrap()),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_client_that_does_not_read_is_cut_off_at_once_and_loses_nothing_that_was_sent() {
        let path = std::env::temp_dir().join(format!("rgaps-clients-{}", std::process::id()));
        let listener = rgaps_control::local::Listener::bind(&path).unwrap();
        let (mut stuck, stuck_end) = client(&listener, &path);
        let (mut other, other_end) = client(&listener, &path);
        let mut sent = 0;
        while stuck.connection.is_some() {
            stuck.notify(warning(sent));
            other.notify(warning(sent));
            assert_eq!(number(&other_end).unwrap(), sent, "the others get all");
            sent += 1;
        }
        assert!(!stuck.reply(1, Ok(Reply::Done), &[]), "it is cut off");
        assert!(other.reply(1, Ok(Reply::Done), &[]));
        let read = (0..).map_while(|_| number(&stuck_end).ok()).collect::<Vec<u64>>();
        assert_eq!(read, (0..sent - 1).collect::<Vec<u64>>());
        assert!(sent > MODEST, "{sent} notices are too few for a client that is stopped for a moment");
    }

    #[test]
    fn what_is_too_long_for_a_message_cuts_no_client_off() {
        let path = std::env::temp_dir().join(format!("rgaps-long-{}", std::process::id()));
        let listener = rgaps_control::local::Listener::bind(&path).unwrap();
        let (mut client, far) = client(&listener, &path);
        client.notify(Notice::Warning { topic: TopicId([1; 16]), text: "x".repeat(100_000) });
        client.notify(warning(7));
        assert_eq!(number(&far).unwrap(), 7);
    }

    #[test]
    fn a_client_that_has_not_read_the_descriptors_of_an_answer_is_behind_until_it_does() {
        let path = std::env::temp_dir().join(format!("rgaps-behind-{}", std::process::id()));
        let listener = rgaps_control::local::Listener::bind(&path).unwrap();
        let (mut client, far) = client(&listener, &path);
        let file = rgaps_os::memfd::create("beside", 4096).unwrap();
        let beside = [std::os::fd::AsFd::as_fd(&file); UNREAD_DESCRIPTORS_MAX / 2];
        for sent in 1..=4 {
            assert!(client.reply(sent, Ok(Reply::Done), &beside));
            assert_eq!(client.is_behind(), sent % 2 == 0);
            let read = |_| far.receive::<ToClient>(Duration::ZERO).unwrap().unwrap();
            (0..if sent == 2 { 2 } else { 0 }).map(read).for_each(drop);
        }
        assert!(client.is_behind());
        drop(far);
        assert!(!client.is_behind(), "who has hung up is heard");
    }
}
