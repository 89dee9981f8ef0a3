//! Callers: connections to the ports for data that have not said yet what they are for. Each is heard in a thread of its own, so that somebody
//! who connects and says nothing keeps nobody waiting; and where there are too many, the one that has been silent longest makes way, so that nobody
//! who says nothing keeps anybody out.
//!
//! Bounds      `callers_max` in all, `callers_address_max` from one address: a flood from one address is at its own expense. A caller that
//!             makes way is hung up on, and its thread ends; `THREADS_OVER` more than `callers_max` may be about to.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rgaps_control::{Budget, Limits, Refusals};
use rgaps_link::tcp::{AcceptError, HangUp, Incoming, TcpRingListener};

use crate::budgets::{Budgets, Descriptors};

/// How often a listener looks whether it should stop.
const ACCEPT_TICK: Duration = Duration::from_millis(500);
/// Threads that were told to end and have not yet.
const THREADS_OVER: usize = 64;

/// Those of all ports.
#[derive(Debug)]
pub(crate) struct Callers {
    limits: Limits,
    refusals: Arc<Refusals>,
    descriptors: Arc<Descriptors>,
    silent: Mutex<Silent<HangUp>>,
    /// A thread has ended.
    ended: Condvar,
}

impl Callers {
    pub(crate) fn new(budgets: &Budgets) -> Self {
        let Budgets { limits, refusals, descriptors, .. } = budgets.clone();
        let silent = Silent::new(limits.count(Budget::Callers), limits.count(Budget::CallersOfAddress));
        Self { limits, refusals, descriptors, silent: Mutex::new(silent), ended: Condvar::new() }
    }

    /// Takes connections until told to stop; `let_in` gets those who have said hello, in their threads.
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
                    tracing::warn!(%peer, "a data connection is turned away, since few descriptors are left ({over})");
                }
                continue;
            }
            let Ok(hang_up) = caller.hang_up() else {
                tracing::warn!(%peer, "no descriptor is left for a data connection; it is turned away");
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
                    Err(error) if made_way => tracing::debug!(%error, "a data connection made way for others"),
                    Err(error) => tracing::warn!(%error, "a data connection was turned away"),
                }
            });
            if let Err(error) = spawned {
                self.silent().remove(number);
                self.thread_ended();
                tracing::error!(%error, "no thread for a data connection");
            }
        }
    }

    /// Another one; the oldest of its address, or of all, is hung up on if there are too many.
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
                tracing::warn!(%peer, "callers connect and say nothing ({over}); the oldest make way (rgaps doctor counts them)");
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

/// Who has said nothing yet, oldest first, and how many threads hear them.
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

    /// Its number, and who makes way for it.
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

    /// It has said something, or has gone; `None` if it made way.
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
    fn the_oldest_of_an_address_makes_way_and_then_the_oldest_of_all() {
        let mut silent = Silent::new(4, 2);
        let mut add = |of: u8, name: u8| silent.add(address(of), name).1;
        assert_eq!([add(1, 1), add(2, 2), add(1, 3)], [None; 3]);
        assert_eq!(add(1, 4), Some((Budget::CallersOfAddress, 1)), "at the expense of its own address");
        assert_eq!(add(3, 5), None);
        assert_eq!(add(4, 6), Some((Budget::Callers, 2)));
        assert_eq!((silent.remove(2), silent.remove(3)), (None, Some(3)));
        assert_eq!(silent.callers.len(), 3);
    }
}
