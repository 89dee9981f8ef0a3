//! Clients: which processes are connected, which slots they have, and which are dead. A client is dead when its pidfd is readable; a closed
//! connection proves nothing. Each client also holds a lock (`rgaps_control`'s `client_lock`), which tells a successor that the client lives, and
//! which client it is.
//!
//! With pools on a GPU, the streams of a dead process go on while a process that was forked from it has the driver's file descriptors open. The fork
//! has the client's socket open, too. So the slots of the dead process stay taken until that socket is closed everywhere, since its streams may
//! still write there. If the manager closes a connection itself, it keeps its own end until no process has the other end. If a process has so many
//! that an end must be closed before that (client_budgets.rs), the manager assumes that a fork has the other end for ever.
//!
//! The manager's thread never waits for a client: it cuts off a client whose socket is full. That client goes on publishing and taking on this host.
//! When it reads its socket again, it finds the connection closed, connects again and hands its slots back, as after a manager's death.

use std::collections::{BTreeSet, HashMap};
use std::os::fd::{BorrowedFd, OwnedFd};

use rgaps_control::client_lock::{FileId, NotedClient};
use rgaps_control::local::{Connection, FDS_MAX, LocalError, Notice, Refusal, Reply, Role, ToClient};
use rgaps_control::{EndpointSlot, LockId, TopicId};
use rgaps_os::PidFd;
use rgaps_shm::SubscriberFiles;

use crate::refusals::{exhausted, is_of_fds};

/// Connections of clients whose locks are not confirmed yet; the oldest is closed for one more.
const UNCONFIRMED_MAX: usize = 64;

/// Unread file descriptors at which the manager stops reading a client's requests: those of one answer.
const UNREAD_FDS_MAX: usize = FDS_MAX;

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
    /// `None` once it has hung up or is disconnected; its slots stay until it is dead.
    pub(crate) connection: Option<Connection>,
    /// Connections that the manager has disconnected. The client, or a process forked from it, may still have the other end.
    disconnected: Vec<Connection>,
    /// Some of these were closed, so it is unknown whether another process has the other end.
    has_unknown: bool,
    /// The pidfd of its process, once it has said hello.
    pub(crate) pidfd: Option<PidFd>,
    /// Its process id, for notes and log lines.
    pub(crate) pid: u32,
    /// The lock that it holds, or is about to take.
    pub(crate) lock: Option<LockId>,
    /// The file of that lock.
    pub(crate) lock_file: FileId,
    /// Other locks that it held when it said hello: notes may still name it by one of them.
    pub(crate) held_before: Vec<LockId>,
    /// Whether the kernel has confirmed that it holds `lock`. Only then it may request slots.
    pub(crate) is_locked: bool,
    pub(crate) program: String,
    pub(crate) slots: Vec<Occupied>,
    /// The files into which its subscribers write.
    pub(crate) files: SubscriberFiles,
    /// Its process has ended, but its streams may go on.
    pub(crate) has_ended: bool,
    /// File descriptors sent to it since it had last read everything.
    unread: usize,
}

impl Client {
    pub(crate) fn new(connection: Connection) -> Self {
        Self {
            connection: Some(connection),
            disconnected: Vec::new(),
            has_unknown: false,
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

    /// The client as notes name it; `None` until its lock is confirmed.
    pub(crate) fn noted(&self) -> Option<NotedClient> {
        let lock = self.lock.filter(|_| self.is_locked)?;
        Some(NotedClient { lock, pid: self.pid, file: self.lock_file })
    }

    /// Takes the pidfd of a hello: it must be of the process that the kernel names as the socket's peer.
    pub(crate) fn identify(&mut self, fds: Vec<OwnedFd>, program: String) -> Result<(), Refusal> {
        let refuse = |text: String| Refusal::Invalid(text);
        let Some(connection) = &self.connection else { return Err(refuse("the connection is gone".to_owned())) };
        if self.pidfd.is_some() {
            return Err(refuse("this connection has said hello already".to_owned()));
        }
        let peer = connection.peer().map_err(|error| refuse(error.to_string()))?;
        if peer.pid == 0 {
            let text = "the manager does not see this process, whose PID namespace is another, and could not know of its death; run rgapsd \
                        outside of containers, or in a PID namespace that has its clients' in it";
            return Err(refuse(text.to_owned()));
        }
        let Some(fd) = fds.into_iter().next() else { return Err(refuse("the hello has no pidfd".to_owned())) };
        // The pidfd's process is read from a file in /proc, for which the manager may have no file descriptor left.
        let unknown = |error: std::io::Error| {
            let text = error.to_string();
            if is_of_fds(&text) { exhausted(&error) } else { refuse(text) }
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

    /// Closes the connection after the client has hung up.
    pub(crate) fn hang_up(&mut self) {
        self.connection.take().into_iter().for_each(Connection::close_elsewhere);
    }

    /// Closes the connection of a client that has not hung up. The client finds it closed and connects again.
    pub(crate) fn disconnect(&mut self) {
        if let Some(connection) = self.connection.take() {
            connection.end_sending();
            self.keep_disconnected([connection]);
        }
    }

    /// Keeps disconnected connections while another process may have the other end: a fork has those that were open when it was forked.
    fn keep_disconnected(&mut self, connections: impl IntoIterator<Item = Connection>) {
        self.disconnected.extend(connections);
        let over = self.disconnected.extract_if(.., |connection| connection.has_hung_up());
        over.for_each(Connection::close_elsewhere);
    }

    /// Closes the oldest disconnected connections but `max`. Returns how many are left.
    fn bound_disconnected(&mut self, max: usize) -> usize {
        self.keep_disconnected([]);
        let more = self.disconnected.len().saturating_sub(max);
        if more > 0 {
            tracing::warn!(
                pid = self.pid,
                program = self.program,
                "a client has connected again too often while other processes have its earlier connections: after its end its slots stay taken \
                 as long as this manager runs, if its pools are on a GPU"
            );
            self.has_unknown = true;
        }
        self.disconnected.drain(..more).for_each(Connection::close_elsewhere);
        self.disconnected.len()
    }

    /// Answers a request; false if the answer does not reach the client.
    pub(crate) fn reply(&mut self, id: u64, reply: Result<Reply, Refusal>, fds: &[BorrowedFd<'_>]) -> bool {
        self.update_unread();
        let Some(connection) = &self.connection else { return false };
        let sent = connection.send_now(&ToClient::Reply { id, reply }, fds);
        // The manager could not send this answer, through no fault of the client: the client gets a refusal instead.
        let why = match sent {
            Err(LocalError::Oversized) => "the answer is longer than a message may be".to_owned(),
            Err(error @ LocalError::TooManyUnread { .. }) => error.to_string(),
            sent => {
                self.unread += fds.len();
                return self.is_sent(sent);
            }
        };
        self.send(&ToClient::Reply { id, reply: Err(Refusal::Exhausted(why)) });
        false
    }

    /// Sends a notice; disconnects the client if its socket is full.
    pub(crate) fn notify(&mut self, notice: Notice) {
        self.send(&ToClient::Notice(notice));
    }

    fn send(&mut self, message: &ToClient) -> bool {
        let Some(connection) = self.connection.as_ref().filter(|_| !self.has_ended) else { return false };
        let sent = connection.send_now(message, &[]);
        self.is_sent(sent)
    }

    /// Whether it has left so many file descriptors unread that the manager reads no more of its requests. The kernel bounds the file descriptors in
    /// flight for each user (RLIMIT_NOFILE of the sender), so a client that does not read would keep other clients from getting any.
    pub(crate) fn is_behind(&mut self) -> bool {
        self.unread >= UNREAD_FDS_MAX && self.update_unread() > 0
    }

    /// How many file descriptors it may not have read yet.
    fn update_unread(&mut self) -> usize {
        if self.unread > 0 && self.connection.as_ref().is_none_or(Connection::is_all_read) {
            self.unread = 0;
        }
        self.unread
    }

    /// Whether a message was sent. If it was not, disconnects the client, except for a message that is too long.
    fn is_sent(&mut self, sent: Result<(), LocalError>) -> bool {
        match sent {
            Ok(()) => return true,
            // The client has hung up: its pidfd and its lock show whether it has ended.
            Err(LocalError::Closed) => {}
            // The message is the manager's: the client stays connected.
            Err(error @ LocalError::Oversized) => {
                tracing::warn!(pid = self.pid, program = self.program, %error, "a message is too long to be sent to a client");
                return false;
            }
            Err(error) => {
                tracing::warn!(pid = self.pid, program = self.program, %error, "a client is disconnected until it connects again");
            }
        }
        self.disconnect();
        false
    }

    /// Whether any process has, or may have, an end of its connections open; after the client's death, that is a process forked from it.
    pub(crate) fn is_held_open(&self) -> bool {
        self.has_unknown || self.connection.iter().chain(&self.disconnected).any(|connection| !connection.has_hung_up())
    }

    fn is_in(&self, topic: TopicId) -> bool {
        self.slots.iter().any(|slot| slot.topic == topic)
    }

    fn publishes(&self, topic: TopicId) -> bool {
        self.slots.iter().any(|slot| slot.topic == topic && slot.role() == Role::Publisher)
    }

    /// Whether it has neither a connection nor slots, and no other process has an end of a disconnected connection: the client's next connection
    /// takes that over.
    pub(crate) fn is_over(&self) -> bool {
        self.connection.is_none() && self.slots.is_empty() && !self.is_held_open()
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.hang_up();
        self.disconnected.drain(..).for_each(Connection::close_elsewhere);
    }
}

/// All clients.
#[derive(Debug, Default)]
pub(crate) struct Clients {
    pub(crate) by_id: HashMap<ClientId, Client>,
    next: u64,
}

impl Clients {
    /// The oldest connection whose client's lock is not confirmed, if there are so many that it must be closed for the next.
    pub(crate) fn oldest_unconfirmed(&self) -> Option<ClientId> {
        let unconfirmed = self.by_id.iter().filter(|(_, client)| !client.is_locked).map(|(id, _)| *id);
        let count = unconfirmed.clone().count();
        unconfirmed.min().filter(|_| count >= UNCONFIRMED_MAX)
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

    /// Clients that publish to a topic, for notices.
    pub(crate) fn publishers_of_mut(&mut self, topic: TopicId) -> impl Iterator<Item = &mut Client> {
        self.by_id.values_mut().filter(move |client| client.publishes(topic))
    }

    /// Clients that occupy a slot in a topic, for notices.
    pub(crate) fn of_topic_mut(&mut self, topic: TopicId) -> impl Iterator<Item = &mut Client> {
        self.by_id.values_mut().filter(move |client| client.is_in(topic))
    }

    /// The lock that a client is confirmed to hold.
    pub(crate) fn lock_of(&self, client: ClientId) -> Option<LockId> {
        self.by_id.get(&client)?.noted().map(|noted| noted.lock)
    }

    /// The connection that occupies a slot: this one, or an earlier one of the same client.
    pub(crate) fn occupant(&self, client: ClientId, occupied: &Occupied) -> Option<ClientId> {
        if self.by_id.get(&client)?.slots.contains(occupied) {
            return Some(client);
        }
        let lock = self.lock_of(client)?;
        let mut earlier = self.by_id.iter().filter(|(_, other)| other.lock == Some(lock) && other.is_locked);
        earlier.find(|(_, other)| other.slots.contains(occupied)).map(|(id, _)| *id)
    }

    /// A client holds a new lock: its earlier connections are recorded under it. Returns the topics in which they occupy slots.
    pub(crate) fn move_to_lock(&mut self, before: LockId, now: NotedClient) -> BTreeSet<TopicId> {
        let earlier = self.by_id.values_mut().filter(|other| other.pid == now.pid && other.lock == Some(before));
        let renamed = earlier.flat_map(|other| {
            (other.lock, other.lock_file) = (Some(now.lock), now.file);
            other.slots.iter().map(|slot| slot.topic)
        });
        renamed.collect()
    }

    /// A hello is refused: its pidfd is dropped.
    pub(crate) fn forget_process(&mut self, client: ClientId) {
        if let Some(client) = self.by_id.get_mut(&client) {
            client.pidfd = None;
        }
    }

    /// Whether a connection of this process has this lock.
    pub(crate) fn has_lock(&self, pid: u32, lock: LockId) -> bool {
        self.by_id.values().any(|client| client.pid == pid && client.lock == Some(lock))
    }

    /// A client, and, if its process is dead, the other clients of that process: each of its nodes is one. If another process had the same id and is
    /// dead, too, its clients are among them.
    pub(crate) fn of_dead_process(&self, client: ClientId) -> Vec<ClientId> {
        let is_dead = |client: &Client| client.pidfd.as_ref().is_some_and(|pidfd| pidfd.is_dead().unwrap_or(false));
        let Some(own) = self.by_id.get(&client).filter(|own| is_dead(own)) else { return vec![client] };
        let others = self.by_id.iter().filter(|(_, other)| other.pid == own.pid && is_dead(other));
        others.map(|(id, _)| *id).collect()
    }

    /// Whether a client occupies a slot in a topic on any of its connections.
    pub(crate) fn has_in(&self, lock: LockId, topic: TopicId) -> bool {
        self.of_topic(topic).any(|client| client.lock == Some(lock))
    }

    /// Takes the slots away from the earlier connections of a client, and returns them.
    pub(crate) fn take_slots_of_earlier(&mut self, client: ClientId, lock: LockId) -> Vec<Occupied> {
        let earlier = self.by_id.iter_mut().filter(|(id, other)| **id != client && other.lock == Some(lock));
        earlier.flat_map(|(_, other)| std::mem::take(&mut other.slots)).collect()
    }

    /// Records that a client occupies a slot.
    pub(crate) fn occupy(&mut self, client: ClientId, occupied: Occupied) {
        if let Some(client) = self.by_id.get_mut(&client) {
            client.slots.push(occupied);
        }
    }

    /// Moves a slot, and the disconnected connections, from one connection of a client to another.
    pub(crate) fn hand_over(&mut self, from: ClientId, to: ClientId, occupied: &Occupied) {
        self.hand_over_disconnected(from, to);
        self.release(from, occupied);
        self.occupy(to, *occupied);
    }

    /// Moves the disconnected connections from one connection of a client to another.
    pub(crate) fn hand_over_disconnected(&mut self, from: ClientId, to: ClientId) {
        let Some(from) = self.by_id.get_mut(&from).filter(|_| from != to) else { return };
        let (disconnected, has_unknown) =
            (std::mem::take(&mut from.disconnected), std::mem::take(&mut from.has_unknown));
        if let Some(to) = self.by_id.get_mut(&to) {
            to.has_unknown |= has_unknown;
            to.keep_disconnected(disconnected);
        }
    }

    /// Closes disconnected connections of a process that has more than `max` of them.
    pub(crate) fn bound_disconnected(&mut self, pid: u32, max: usize) {
        let of_process = self.by_id.values_mut().filter(|client| client.pid == pid);
        of_process.fold(max, |left, client| left - client.bound_disconnected(left));
    }

    /// Records that a client no longer occupies a slot.
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
        assert!(!stuck.reply(1, Ok(Reply::Done), &[]), "the client is disconnected");
        assert!(other.reply(1, Ok(Reply::Done), &[]));
        let read = (0..).map_while(|_| number(&stuck_end).ok()).collect::<Vec<u64>>();
        assert_eq!(read, (0..sent - 1).collect::<Vec<u64>>());
        assert!(sent > MODEST, "{sent} notices are too few for a client that is stopped for a moment");
    }

    #[test]
    fn a_fork_is_assumed_where_a_disconnected_connection_had_to_be_closed() {
        let path = std::env::temp_dir().join(format!("rgaps-disconnected-{}", std::process::id()));
        let listener = rgaps_control::local::Listener::bind(&path).unwrap();
        let (mut clients, mut far_ends) = (Clients::default(), Vec::new());
        let mut connect = |clients: &mut Clients| {
            let (mut client, far) = client(&listener, &path);
            client.pid = 7;
            far_ends.push(far);
            clients.next += 1;
            clients.by_id.insert(ClientId(clients.next), client);
            ClientId(clients.next)
        };
        let mut id = connect(&mut clients);
        for max in [6; 6].into_iter().chain([5]) {
            let next = connect(&mut clients);
            clients.by_id.get_mut(&id).unwrap().disconnect();
            clients.hand_over_disconnected(id, next);
            clients.by_id.remove(&id);
            clients.bound_disconnected(7, max);
            id = next;
        }
        let client = clients.by_id.get_mut(&id).unwrap();
        assert_eq!((client.disconnected.len(), client.has_unknown), (5, true));
        client.hang_up();
        far_ends.clear();
        client.keep_disconnected([]);
        assert!(client.disconnected.is_empty() && client.is_held_open(), "nobody knows of those that were closed");
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
    fn a_client_that_has_not_read_the_fds_of_an_answer_is_behind_until_it_does() {
        let path = std::env::temp_dir().join(format!("rgaps-behind-{}", std::process::id()));
        let listener = rgaps_control::local::Listener::bind(&path).unwrap();
        let (mut client, far) = client(&listener, &path);
        let file = rgaps_os::memfd::create("beside", 4096).unwrap();
        let beside = [std::os::fd::AsFd::as_fd(&file); UNREAD_FDS_MAX / 2];
        for sent in 1..=4 {
            assert!(client.reply(sent, Ok(Reply::Done), &beside));
            assert_eq!(client.is_behind(), sent % 2 == 0);
            let read = |_| far.receive::<ToClient>(Duration::ZERO).unwrap().unwrap();
            (0..if sent == 2 { 2 } else { 0 }).map(read).for_each(drop);
        }
        assert!(client.is_behind());
        drop(far);
        assert!(!client.is_behind(), "a client that has hung up is not behind");
    }
}
