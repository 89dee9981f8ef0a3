//! How clients end: they hang up, their process dies, or they release their lock. The manager releases their slots in batches.

use rgaps_control::LockId;
use rgaps_control::local::LocalError;

use crate::clients::{Client, ClientId};
use crate::manager::Manager;

/// Slots of ended clients that are released in one turn, before the manager serves clients again.
const RELEASED_A_TURN: usize = 32;

/// Connected clients whose locks the kernel is asked for in one tick; each costs a few system calls.
const CONNECTED_A_TICK: usize = 256;

impl Manager {
    pub(crate) fn hung_up(&mut self, id: ClientId, error: &LocalError) {
        let Some(client) = self.clients.by_id.get_mut(&id) else { return };
        if !matches!(error, LocalError::Closed) {
            tracing::warn!(pid = client.pid, %error, "a client is disconnected");
        }
        client.hang_up();
        // Slots stay taken until the pidfd shows that the process is dead, or until it has released its lock: a driver may still copy.
        if client.is_over() {
            self.remove(id);
        } else {
            self.end_if_lock_released(id);
        }
    }

    /// Ends a client that has released its lock, although its process lives: by execve, or because its node ended. The pidfd does not show that,
    /// and neither does the connection while a forked child has the socket open.
    pub(crate) fn end_if_lock_released(&mut self, id: ClientId) {
        let Some(client) = self.clients.by_id.get(&id) else { return };
        let is_over =
            client.has_ended || client.noted().is_some_and(|noted| !self.locks.may_live(&self.host.dir, noted));
        if is_over && !self.may_still_stream(id) {
            self.client_ended(id);
        }
    }

    /// Ends clients that have released their locks: all that have hung up, and each time some of those with slots whose connection is still open.
    pub(crate) fn end_those_without_lock(&mut self) {
        let by_id = &self.clients.by_id;
        let mut asked: Vec<ClientId> =
            by_id.iter().filter(|(_, client)| client.connection.is_none()).map(|(id, _)| *id).collect();
        let is_connected = |client: &Client| client.connection.is_some() && !client.slots.is_empty();
        let mut connected: Vec<ClientId> =
            by_id.iter().filter(|(_, client)| is_connected(client)).map(|(id, _)| *id).collect();
        connected.sort_unstable();
        asked.append(&mut self.departures.next_to_ask(connected, CONNECTED_A_TICK));
        asked.into_iter().for_each(|id| self.end_if_lock_released(id));
    }

    /// Whether a client's streams may go on after its process has ended, because a forked child still has its GPU open.
    /// Such a child has the client's present socket, or the socket of an earlier manager and the client's lock file. Streams belong to a process: a
    /// child that was forked before a client was made has the socket and the lock file of an earlier client of the same process.
    fn may_still_stream(&mut self, id: ClientId) -> bool {
        if !self.memory.backend().kind().work_outlives_process() {
            return false;
        }
        let ids = self.clients.of_dead_process(id);
        let clients: Vec<&Client> = ids.iter().filter_map(|id| self.clients.by_id.get(id)).collect();
        // Slots that it keeps for its streams are awaited.
        let is_awaited = |client: &Client| client.lock.is_some_and(|lock| self.adoption.awaits_client(lock));
        if !clients.iter().any(|client| !client.slots.is_empty() || is_awaited(client)) {
            return false;
        }
        let is_held_open = clients.iter().any(|client| client.is_held_open());
        let noted: Vec<_> = clients.iter().filter_map(|client| client.noted()).collect();
        is_held_open || !self.locks.living(&self.host.dir, noted).is_empty()
    }

    pub(crate) fn client_died(&mut self, id: ClientId) {
        if !self.may_still_stream(id) {
            return self.client_ended(id);
        }
        let Some(client) = self.clients.by_id.get_mut(&id) else { return };
        tracing::warn!(
            pid = client.pid,
            program = client.program,
            "a client's process has ended, but a process forked from it still has its GPU open: its slots stay taken until that process ends too"
        );
        client.has_ended = true;
    }

    /// Ends a client whose process and streams have ended: its slots are released in the next turns.
    fn client_ended(&mut self, id: ClientId) {
        let Some(mut client) = self.clients.by_id.remove(&id) else { return };
        if let Some(lock) = client.lock {
            self.forget_awaited(lock);
            self.decide();
        }
        tracing::debug!(
            pid = client.pid,
            program = client.program,
            slots = client.slots.len(),
            "a client's process has ended"
        );
        self.departures.add(std::mem::take(&mut client.slots));
    }

    /// Releases a batch of the slots of ended clients: a client may have had thousands.
    pub(crate) fn release_departing(&mut self) {
        for occupied in self.departures.take(RELEASED_A_TURN) {
            self.release_slot(occupied);
        }
    }

    /// Removes a client, and forgets its lock unless that is still used.
    pub(crate) fn remove(&mut self, id: ClientId) {
        if let Some(lock) = self.clients.by_id.remove(&id).and_then(|client| client.lock) {
            self.forget_lock_unless_used(lock);
        }
    }

    /// Forgets a lock, unless the same client has another connection, or this manager awaits something of it.
    pub(crate) fn forget_lock_unless_used(&mut self, lock: LockId) {
        let is_used =
            self.clients.by_id.values().any(|client| client.lock == Some(lock)) || self.adoption.awaits_client(lock);
        if !is_used {
            self.locks.forget(&self.host.dir, lock);
        }
    }
}
