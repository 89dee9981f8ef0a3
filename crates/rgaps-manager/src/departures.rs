//! How clients end: by hanging up, by the death of their process, by giving their lock up. What they had is released in shares.

use rgaps_control::LockId;
use rgaps_control::local::LocalError;
use rgaps_device::DeviceKind;

use crate::clients::{Client, ClientId};
use crate::manager::Manager;

/// Slots of clients that have ended before clients have their turn again.
const RELEASED_A_TURN: usize = 32;

impl Manager {
    pub(crate) fn hung_up(&mut self, id: ClientId, error: &LocalError) {
        let Some(client) = self.clients.by_id.get_mut(&id) else { return };
        if !matches!(error, LocalError::Closed) {
            tracing::warn!(pid = client.pid, %error, "a client is cut off");
        }
        client.hang_up();
        // Slots stay until the process is dead (its pidfd says so) or has given its lock up: a fork may keep it alive, or a driver may still copy.
        if client.is_over() {
            self.remove(id);
        } else {
            self.end_if_given_up(id);
        }
    }

    /// A process that becomes another program (execve) closes what its clients had: socket and lock, one after the other. So does a node that ends
    /// while its process goes on. The pidfd tells nothing of that. Where nobody has the socket any more, no fork has its streams.
    pub(crate) fn end_if_given_up(&mut self, id: ClientId) {
        let Some(client) = self.clients.by_id.get(&id).filter(|client| client.connection.is_none()) else { return };
        let is_over = client.has_ended || client.noted().is_some_and(|noted| !self.locks.lives(&self.dir, noted));
        if is_over && !self.has_streams(id) {
            self.client_ended(id);
        }
    }

    /// Whether streams of a client may go on when its process ends: one that was forked from it has its GPU.
    fn has_streams(&self, id: ClientId) -> bool {
        let has = |client: &Client| !client.slots.is_empty() && client.is_held_open();
        self.memory.backend().kind() == DeviceKind::Cuda && self.clients.by_id.get(&id).is_some_and(has)
    }

    pub(crate) fn client_died(&mut self, id: ClientId) {
        if !self.has_streams(id) {
            return self.client_ended(id);
        }
        let Some(client) = self.clients.by_id.get_mut(&id) else { return };
        tracing::warn!(
            pid = client.pid,
            program = client.program,
            "a client's process has ended, and one that was forked from it has its GPU still: its slots stay taken until that ends too"
        );
        client.has_ended = true;
    }

    /// Nothing is to be heard of a client any more.
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
        self.departing.extend(std::mem::take(&mut client.slots));
    }

    /// A share of the slots that nobody has any more: a client may have had thousands.
    pub(crate) fn release_departing(&mut self) {
        let share = self.departing.len().min(RELEASED_A_TURN);
        for occupied in self.departing.drain(..share).collect::<Vec<_>>() {
            self.release_slot(occupied);
        }
    }

    /// A client has left: nobody asks for its lock any more.
    pub(crate) fn remove(&mut self, id: ClientId) {
        if let Some(lock) = self.clients.by_id.remove(&id).and_then(|client| client.lock) {
            self.forget_lock_unless_used(lock);
        }
    }

    /// Nobody asks for a lock any more, unless there is another connection of the same client, or something is awaited of it.
    pub(crate) fn forget_lock_unless_used(&mut self, lock: LockId) {
        let is_used = self.clients.by_id.values().any(|client| client.lock == Some(lock)) || self.adoption.names(lock);
        if !is_used {
            self.locks.forget(&self.dir, lock);
        }
    }
}
