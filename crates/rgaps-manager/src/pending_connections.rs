//! Pending connections: data connections that have not identified themselves yet. Each has its own thread, so that a silent one delays no other.
//! If there are too many, the oldest is closed, so that silent connections keep no honest host out.
//!
//! Bounds      `pending_connections_max` in total, `pending_connections_address_max` from one address, so that a flood from one address closes
//!             only its own connections. The manager closes an old connection, whose thread then ends; up to `THREADS_OVER` such threads may be
//!             still ending.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rgaps_control::{Budget, Limits, Refusals};
use rgaps_link::tcp::{AcceptError, HangUp, Incoming, TcpRingListener};

use crate::budgets::{Budgets, FileDescriptors};

/// How often a listener checks whether it should stop.
const ACCEPT_TICK: Duration = Duration::from_millis(500);
/// Threads of closed connections that may still be ending.
const THREADS_OVER: usize = 64;

/// The pending connections of all ports.
#[derive(Debug)]
pub(crate) struct PendingConnections {
    limits: Limits,
    refusals: Arc<Refusals>,
    fds: Arc<FileDescriptors>,
    waiting: Mutex<Waiting<HangUp>>,
    /// Signalled when a connection's thread has ended.
    ended: Condvar,
}

impl PendingConnections {
    pub(crate) fn new(budgets: &Budgets) -> Self {
        let Budgets { limits, refusals, fds, .. } = budgets.clone();
        let waiting =
            Waiting::new(limits.count(Budget::PendingConnections), limits.count(Budget::PendingConnectionsOfAddress));
        Self { limits, refusals, fds, waiting: Mutex::new(waiting), ended: Condvar::new() }
    }

    /// Accepts connections until told to stop. `on_identified` gets the identified ones, in their threads.
    pub(crate) fn accept(
        self: &Arc<Self>,
        listener: &TcpRingListener,
        stop: &AtomicBool,
        on_identified: impl Fn(Incoming) + Clone + Send + 'static,
    ) {
        while !stop.load(Ordering::Acquire) {
            let connection = match listener.accept_pending(ACCEPT_TICK) {
                Ok(connection) => connection,
                Err(AcceptError::TimedOut { .. }) => continue,
                Err(error) => {
                    tracing::error!(%error, "data connections are no longer accepted");
                    return;
                }
            };
            let peer = connection.peer();
            if !self.fds.has_room_for_connections() {
                if self.refusals.count(Budget::SpareFds) {
                    let over = self.limits.over(Budget::SpareFds);
                    tracing::warn!(%peer, "a data connection is refused, since few file descriptors are left ({over}); raise LimitNOFILE= or ulimit -Hn");
                }
                continue;
            }
            let Ok(hang_up) = connection.hang_up() else {
                tracing::warn!(%peer, "a data connection is refused, since no file descriptor is left; raise LimitNOFILE= or ulimit -Hn");
                continue;
            };
            let number = self.add(peer, hang_up);
            let (connections, on_identified) = (self.clone(), on_identified.clone());
            let spawned = std::thread::Builder::new().name("rgaps-hello".to_owned()).spawn(move || {
                let incoming = connection.read_hello();
                let was_closed = connections.waiting().remove(number).is_none();
                connections.thread_ended();
                match incoming {
                    Ok(incoming) => on_identified(incoming),
                    Err(error) if was_closed => {
                        tracing::debug!(%error, "a data connection was closed to make room for others")
                    }
                    Err(error) => tracing::warn!(%error, "a data connection was refused"),
                }
            });
            if let Err(error) = spawned {
                self.waiting().remove(number);
                self.thread_ended();
                tracing::error!(%error, "a thread for a data connection could not be started");
            }
        }
    }

    /// Adds a connection. If there are too many, closes the oldest of its address, or of all.
    fn add(&self, peer: SocketAddr, hang_up: HangUp) -> u64 {
        let mut waiting = self.waiting();
        while waiting.threads >= waiting.most + THREADS_OVER {
            waiting = self.ended.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
        let (number, was_closed) = waiting.add(peer.ip(), hang_up);
        drop(waiting);
        if let Some((budget, hang_up)) = was_closed {
            hang_up.hang_up();
            if self.refusals.count(budget) {
                let over = self.limits.over(budget);
                tracing::warn!(%peer, "data connections do not identify themselves ({over}); the oldest are closed (rgaps doctor counts them)");
            }
        }
        number
    }

    fn thread_ended(&self) {
        self.waiting().threads -= 1;
        self.ended.notify_all();
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting<HangUp>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The connections, oldest first, and the number of their threads.
#[derive(Debug)]
struct Waiting<T> {
    most: usize,
    of_address: usize,
    connections: Vec<(u64, IpAddr, T)>,
    next: u64,
    threads: usize,
}

impl<T> Waiting<T> {
    fn new(most: usize, of_address: usize) -> Self {
        Self { most, of_address, connections: Vec::new(), next: 0, threads: 0 }
    }

    /// Adds a connection. Returns its number, and the connection to close for it.
    fn add(&mut self, address: IpAddr, connection: T) -> (u64, Option<(Budget, T)>) {
        let of_address = self.connections.iter().filter(|(_, of, _)| *of == address).count();
        let was_closed = if of_address >= self.of_address {
            let oldest = self.connections.iter().position(|(_, of, _)| *of == address);
            oldest.map(|oldest| (Budget::PendingConnectionsOfAddress, self.connections.remove(oldest).2))
        } else {
            (self.connections.len() >= self.most).then(|| (Budget::PendingConnections, self.connections.remove(0).2))
        };
        self.next += 1;
        self.threads += 1;
        self.connections.push((self.next, address, connection));
        (self.next, was_closed)
    }

    /// Removes a connection that has identified itself or left. `None` if it was closed to make room.
    fn remove(&mut self, number: u64) -> Option<T> {
        let place = self.connections.iter().position(|(of, ..)| *of == number)?;
        Some(self.connections.remove(place).2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    #[test]
    fn the_oldest_connection_of_an_address_is_closed_and_then_the_oldest_of_all() {
        let mut waiting = Waiting::new(4, 2);
        let mut add = |of: u8, name: u8| waiting.add(address(of), name).1;
        assert_eq!([add(1, 1), add(2, 2), add(1, 3)], [None; 3]);
        assert_eq!(add(1, 4), Some((Budget::PendingConnectionsOfAddress, 1)), "one of its own address is closed");
        assert_eq!(add(3, 5), None);
        assert_eq!(add(4, 6), Some((Budget::PendingConnections, 2)));
        assert_eq!((waiting.remove(2), waiting.remove(3)), (None, Some(3)));
        assert_eq!(waiting.connections.len(), 3);
    }
}
