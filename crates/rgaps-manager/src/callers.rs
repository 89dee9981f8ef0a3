//! Callers: data connections that have not identified themselves yet. Each has its own thread, so that a silent one delays no other. If there are
//! too many, the oldest is closed, so that silent connections keep no honest host out.
//!
//! Bounds      `callers_max` in total, `callers_address_max` from one address, so that a flood from one address closes only its own connections.
//!             The manager closes the connection of an old caller, whose thread then ends; up to `THREADS_OVER` such threads may be still ending.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rgaps_control::{Budget, Limits, Refusals};
use rgaps_link::tcp::{AcceptError, HangUp, Incoming, TcpRingListener};

use crate::budgets::{Budgets, Descriptors};

/// How often a listener checks whether it should stop.
const ACCEPT_TICK: Duration = Duration::from_millis(500);
/// Threads of closed connections that may still be ending.
const THREADS_OVER: usize = 64;

/// The callers of all ports.
#[derive(Debug)]
pub(crate) struct Callers {
    limits: Limits,
    refusals: Arc<Refusals>,
    descriptors: Arc<Descriptors>,
    silent: Mutex<Silent<HangUp>>,
    /// Signalled when a caller's thread has ended.
    ended: Condvar,
}

impl Callers {
    pub(crate) fn new(budgets: &Budgets) -> Self {
        let Budgets { limits, refusals, descriptors, .. } = budgets.clone();
        let silent = Silent::new(limits.count(Budget::Callers), limits.count(Budget::CallersOfAddress));
        Self { limits, refusals, descriptors, silent: Mutex::new(silent), ended: Condvar::new() }
    }

    /// Accepts connections until told to stop. `let_in` gets the identified ones, in their threads.
    pub(crate) fn accept(
        self: &Arc<Self>,
        listener: &TcpRingListener,
        stop: &AtomicBool,
        let_in: impl Fn(Incoming) + Clone + Send + 'static,
    ) {
        while !stop.load(Ordering::Acquire) {
            let caller = match listener.caller(ACCEPT_TICK) {
                Ok(caller) => caller,
                Err(AcceptError::TimedOut { .. }) => continue,
                Err(error) => {
                    tracing::error!(%error, "data connections are no longer accepted");
                    return;
                }
            };
            let peer = caller.peer();
            if !self.descriptors.has_room_for_callers() {
                if self.refusals.count(Budget::SpareDescriptors) {
                    let over = self.limits.over(Budget::SpareDescriptors);
                    tracing::warn!(%peer, "a data connection is refused, since few descriptors are left ({over}); raise LimitNOFILE= or ulimit -Hn");
                }
                continue;
            }
            let Ok(hang_up) = caller.hang_up() else {
                tracing::warn!(%peer, "a data connection is refused, since no descriptor is left; raise LimitNOFILE= or ulimit -Hn");
                continue;
            };
            let number = self.add(peer, hang_up);
            let (callers, let_in) = (self.clone(), let_in.clone());
            let spawned = std::thread::Builder::new().name("rgaps-hello".to_owned()).spawn(move || {
                let incoming = caller.hear();
                let made_way = callers.silent().remove(number).is_none();
                callers.thread_ended();
                match incoming {
                    Ok(incoming) => let_in(incoming),
                    Err(error) if made_way => {
                        tracing::debug!(%error, "a data connection was closed to make room for others")
                    }
                    Err(error) => tracing::warn!(%error, "a data connection was refused"),
                }
            });
            if let Err(error) = spawned {
                self.silent().remove(number);
                self.thread_ended();
                tracing::error!(%error, "a thread for a data connection could not be started");
            }
        }
    }

    /// Adds a caller. If there are too many, closes the oldest of its address, or of all.
    fn add(&self, peer: SocketAddr, hang_up: HangUp) -> u64 {
        let mut silent = self.silent();
        while silent.threads >= silent.most + THREADS_OVER {
            silent = self.ended.wait(silent).unwrap_or_else(PoisonError::into_inner);
        }
        let (number, made_way) = silent.add(peer.ip(), hang_up);
        drop(silent);
        if let Some((budget, hang_up)) = made_way {
            hang_up.hang_up();
            if self.refusals.count(budget) {
                let over = self.limits.over(budget);
                tracing::warn!(%peer, "data connections do not identify themselves ({over}); the oldest are closed (rgaps doctor counts them)");
            }
        }
        number
    }

    fn thread_ended(&self) {
        self.silent().threads -= 1;
        self.ended.notify_all();
    }

    fn silent(&self) -> MutexGuard<'_, Silent<HangUp>> {
        self.silent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Silent callers, oldest first, and the number of their threads.
#[derive(Debug)]
struct Silent<T> {
    most: usize,
    of_address: usize,
    callers: Vec<(u64, IpAddr, T)>,
    next: u64,
    threads: usize,
}

impl<T> Silent<T> {
    fn new(most: usize, of_address: usize) -> Self {
        Self { most, of_address, callers: Vec::new(), next: 0, threads: 0 }
    }

    /// Adds a caller. Returns its number, and the caller to close for it.
    fn add(&mut self, address: IpAddr, caller: T) -> (u64, Option<(Budget, T)>) {
        let of_address = self.callers.iter().filter(|(_, of, _)| *of == address).count();
        let made_way = if of_address >= self.of_address {
            let oldest = self.callers.iter().position(|(_, of, _)| *of == address);
            oldest.map(|oldest| (Budget::CallersOfAddress, self.callers.remove(oldest).2))
        } else {
            (self.callers.len() >= self.most).then(|| (Budget::Callers, self.callers.remove(0).2))
        };
        self.next += 1;
        self.threads += 1;
        self.callers.push((self.next, address, caller));
        (self.next, made_way)
    }

    /// Removes a caller that has identified itself or left. `None` if it was closed to make room.
    fn remove(&mut self, number: u64) -> Option<T> {
        let place = self.callers.iter().position(|(of, ..)| *of == number)?;
        Some(self.callers.remove(place).2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    #[test]
    fn the_oldest_caller_of_an_address_is_closed_and_then_the_oldest_of_all() {
        let mut silent = Silent::new(4, 2);
        let mut add = |of: u8, name: u8| silent.add(address(of), name).1;
        assert_eq!([add(1, 1), add(2, 2), add(1, 3)], [None; 3]);
        assert_eq!(add(1, 4), Some((Budget::CallersOfAddress, 1)), "one of its own address is closed");
        assert_eq!(add(3, 5), None);
        assert_eq!(add(4, 6), Some((Budget::Callers, 2)));
        assert_eq!((silent.remove(2), silent.remove(3)), (None, Some(3)));
        assert_eq!(silent.callers.len(), 3);
    }
}
