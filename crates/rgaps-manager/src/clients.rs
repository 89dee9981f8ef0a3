//! Clients: who is connected, and who is dead. Death is a readable pidfd; a hang-up alone proves nothing while the process lives.

use std::collections::HashMap;
use std::os::fd::{BorrowedFd, OwnedFd};

use rgaps_control::TopicId;
use rgaps_control::local::{Connection, LocalError, Notice, Refusal, Reply, Role, ToClient};
use rgaps_control::runtime::ClientNote;
use rgaps_os::PidFd;
use rgaps_shm::janitor::Seat;

/// A client of this manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ClientId(pub(crate) u64);

/// A seat that a client occupies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Occupied {
    pub(crate) topic: TopicId,
    pub(crate) role: Role,
    pub(crate) seat: Seat,
}

/// One process (or one node of it).
#[derive(Debug)]
pub(crate) struct Client {
    /// `None` once it has hung up; its seats stay until it is dead.
    pub(crate) connection: Option<Connection>,
    /// Of the process, once it has said hello.
    pub(crate) pidfd: Option<PidFd>,
    pub(crate) note: Option<ClientNote>,
    pub(crate) program: String,
    pub(crate) seats: Vec<Occupied>,
}

impl Client {
    pub(crate) fn new(connection: Connection) -> Self {
        Self { connection: Some(connection), pidfd: None, note: None, program: String::new(), seats: Vec::new() }
    }

    /// The client's process id, for people.
    pub(crate) fn pid(&self) -> u32 {
        self.note.map_or(0, |note| note.pid)
    }

    /// Takes the pidfd of a hello: it must be of the process that the kernel names as the socket's peer.
    pub(crate) fn identify(&mut self, descriptors: Vec<OwnedFd>, program: String) -> Result<(), Refusal> {
        let refuse = |text: String| Refusal::Invalid(text);
        let Some(connection) = &self.connection else { return Err(refuse("the connection is gone".to_owned())) };
        let peer = connection.peer().map_err(|error| refuse(error.to_string()))?;
        let Some(fd) = descriptors.into_iter().next() else { return Err(refuse("hello without a pidfd".to_owned())) };
        let pidfd = PidFd::from_fd(fd).map_err(|error| refuse(error.to_string()))?;
        let found = pidfd.pid().map_err(|error| refuse(error.to_string()))?;
        if found != peer.pid {
            return Err(refuse(format!("the pidfd is of process {found}, the socket of process {}", peer.pid)));
        }
        self.note = ClientNote::of(peer.pid);
        self.pidfd = Some(pidfd);
        self.program = program;
        Ok(())
    }

    /// Answers a request.
    pub(crate) fn reply(
        &self,
        id: u64,
        reply: Result<Reply, Refusal>,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(), LocalError> {
        match &self.connection {
            Some(connection) => connection.send(&ToClient::Reply { id, reply }, descriptors),
            None => Err(LocalError::Closed),
        }
    }

    /// Speaks up.
    pub(crate) fn notify(&self, notice: Notice, descriptors: &[BorrowedFd<'_>]) {
        if let Some(connection) = &self.connection {
            let _ = connection.send(&ToClient::Notice(notice), descriptors);
        }
    }

    /// Whether nothing is left of it to wait for.
    pub(crate) fn is_over(&self) -> bool {
        self.connection.is_none() && self.seats.is_empty()
    }
}

/// All clients.
#[derive(Debug, Default)]
pub(crate) struct Clients {
    pub(crate) by_id: HashMap<ClientId, Client>,
    next: u64,
}

impl Clients {
    pub(crate) fn add(&mut self, connection: Connection) -> ClientId {
        self.next += 1;
        let id = ClientId(self.next);
        self.by_id.insert(id, Client::new(connection));
        id
    }

    /// Clients that occupy a seat in a topic.
    pub(crate) fn of_topic(&self, topic: TopicId) -> impl Iterator<Item = &Client> {
        self.by_id.values().filter(move |client| client.seats.iter().any(|seat| seat.topic == topic))
    }
}
