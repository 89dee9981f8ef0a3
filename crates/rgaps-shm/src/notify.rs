//! Wake-ups: one trait for each side, three bodies (futex, eventfd, iceoryx2's event service).
//!
//! A waiter arms, looks for a message, and only then sleeps; a waker publishes, and then wakes. With a full fence in both, either the
//! waiter's look finds the message or the waker sees that somebody sleeps. So nobody pays a system call for waking nobody.
//!
//! A slot has one bit that says so, and several threads of its process may wait: the bit stays until the last of them has disarmed, because
//! one that leaves must not silence the wake-up of those that sleep.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rgaps_os::{EventFd, futex};

use crate::bell;
use crate::layout::WakeWords;
use crate::message::Tenancy;
use crate::segment::{Segment, bits, clear_bit};

#[cfg(feature = "iceoryx2")]
pub mod iceoryx;

/// The side that publishes.
pub trait Wake {
    /// Wakes every waiter.
    fn wake(&mut self) -> io::Result<()>;
}

/// The side that waits.
pub trait Wait {
    /// Before the look that decides whether to sleep.
    fn arm(&mut self) -> io::Result<()>;
    /// Sleeps until woken since `arm`, at most `timeout`. False if the time passed. May wake for nothing.
    fn wait(&mut self, timeout: Duration) -> io::Result<bool>;
}

/// Sleeps on a futex word of the segment: the default, one wake for all.
#[derive(Debug)]
pub struct FutexWait {
    segment: Arc<Segment>,
    words: Which,
    slot: u16,
    seen: u32,
    is_armed: bool,
    /// How many of the slot's waiters are armed. The bit of the slot changes under this lock only.
    armed: Arc<Mutex<u32>>,
}

#[derive(Clone, Copy, Debug)]
enum Which {
    Arrivals,
    Space,
}

impl Which {
    fn of(self, segment: &Segment) -> (&AtomicU32, &[AtomicU64]) {
        let header = segment.header();
        match self {
            Self::Arrivals => (&header.arrivals.0.count, &header.arrivals.0.sleepers),
            Self::Space => (&header.space.0.count, &header.space.0.sleepers),
        }
    }
}

impl FutexWait {
    /// Subscriber `slot` waits for messages.
    pub fn for_messages(segment: Arc<Segment>, slot: u16) -> Self {
        Self::new(segment, Which::Arrivals, slot)
    }

    /// Publisher `slot` waits for space.
    pub fn for_space(segment: Arc<Segment>, slot: u16) -> Self {
        Self::new(segment, Which::Space, slot)
    }

    fn new(segment: Arc<Segment>, words: Which, slot: u16) -> Self {
        Self { segment, words, slot, seen: 0, is_armed: false, armed: Arc::default() }
    }

    /// One more waiter of the same slot, for another thread.
    pub fn another(&self) -> Self {
        let mut another = Self::new(self.segment.clone(), self.words, self.slot);
        another.armed = self.armed.clone();
        another
    }

    /// After the wait, or when the look found something: nobody needs to wake us any more.
    pub fn disarm(&mut self) {
        if !std::mem::take(&mut self.is_armed) {
            return;
        }
        let mut armed = self.armed.lock().unwrap_or_else(PoisonError::into_inner);
        *armed -= 1;
        if *armed == 0 {
            clear_bit(self.words.of(&self.segment).1, self.slot);
        }
    }
}

impl Drop for FutexWait {
    fn drop(&mut self) {
        self.disarm();
    }
}

impl Wait for FutexWait {
    fn arm(&mut self) -> io::Result<()> {
        let (count, sleepers) = self.words.of(&self.segment);
        let mut armed = self.armed.lock().unwrap_or_else(PoisonError::into_inner);
        *armed += u32::from(!std::mem::replace(&mut self.is_armed, true));
        self.seen = bell::announce(count, sleepers, self.slot);
        Ok(())
    }

    fn wait(&mut self, timeout: Duration) -> io::Result<bool> {
        let woken = futex::wait(self.words.of(&self.segment).0, self.seen, timeout);
        self.disarm();
        Ok(woken != futex::Woken::TimedOut)
    }
}

/// Rings the futex word if somebody sleeps on it.
pub(crate) fn ring<M: AsRef<[AtomicU64]>>(words: &WakeWords<M>) {
    if bell::is_heard(&words.count, words.sleepers.as_ref()) {
        futex::wake_all(&words.count);
    }
}

/// Rings whether somebody is known to sleep or not; after a death.
pub(crate) fn ring_always<M>(words: &WakeWords<M>) {
    words.count.fetch_add(1, Ordering::AcqRel);
    futex::wake_all(&words.count);
}

/// Waits on an event descriptor, as epoll and RMW wait sets do.
#[derive(Debug)]
pub struct EventWait(EventFd);

impl EventWait {
    /// A waiter on `event`, of which the publishers have clones.
    pub fn new(event: EventFd) -> Self {
        Self(event)
    }
}

impl AsFd for EventWait {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Wait for EventWait {
    fn arm(&mut self) -> io::Result<()> {
        self.0.drain().map(|_| ())
    }

    fn wait(&mut self, timeout: Duration) -> io::Result<bool> {
        rgaps_os::poll::readable(&self.0, timeout)
    }
}

/// A publisher's wakers: the futex word, and the descriptors of the subscribers that asked for one.
#[derive(Debug)]
pub struct Bells {
    segment: Arc<Segment>,
    events: HashMap<u16, (Tenancy, EventFd)>,
}

impl Bells {
    /// No descriptors yet.
    pub fn new(segment: Arc<Segment>) -> Self {
        Self { segment, events: HashMap::new() }
    }

    /// Adds the descriptor of a subscriber, as handed over by the manager, and rings it once: it may have missed a message.
    pub fn add(&mut self, slot: u16, tenancy: Tenancy, event: EventFd) {
        let _ = event.signal();
        self.events.insert(slot, (tenancy, event));
    }
}

impl Wake for Bells {
    fn wake(&mut self) -> io::Result<()> {
        let header = self.segment.header();
        ring(&header.arrivals.0);
        for slot in bits(&header.descriptors.0) {
            let Some((tenancy, event)) = self.events.get(&slot) else { continue };
            if Some(*tenancy) == self.segment.tenant(slot) {
                event.signal()?;
            } else {
                // The slot has another tenant now; its descriptor comes from the manager.
                self.events.remove(&slot);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    /// The contract of a pair of halves: a wake after `arm` ends the next `wait`; without one the time passes.
    pub(super) fn wakes(wait: &mut dyn Wait, wake: &mut dyn Wake) {
        wait.arm().unwrap();
        wake.wake().unwrap();
        assert!(wait.wait(LONG).unwrap());
        wait.arm().unwrap();
        assert!(!wait.wait(Duration::from_millis(1)).unwrap());
    }

    fn segment() -> Arc<Segment> {
        Arc::new(Segment::create([1; 16]).unwrap())
    }

    #[test]
    fn a_futex_waiter_is_woken() {
        let segment = segment();
        wakes(&mut FutexWait::for_messages(segment.clone(), 3), &mut Bells::new(segment));
    }

    #[test]
    fn a_waiter_that_leaves_does_not_silence_another_of_its_slot() {
        let segment = segment();
        let mut long = FutexWait::for_messages(segment.clone(), 3);
        let mut brief = long.another();
        long.arm().unwrap();
        brief.arm().unwrap();
        brief.arm().unwrap();
        brief.disarm();
        Bells::new(segment.clone()).wake().unwrap();
        assert!(long.wait(LONG).unwrap(), "the bit was there still");
        assert_eq!(bits(&segment.header().arrivals.0.sleepers).count(), 0);
        long.arm().unwrap();
        drop(long);
        assert_eq!(bits(&segment.header().arrivals.0.sleepers).count(), 0, "gone with its waiter");
    }

    #[test]
    fn an_event_descriptor_is_signalled_while_its_tenant_stays() {
        let segment = segment();
        let janitor = crate::Janitor::new(segment.clone());
        let seat = janitor.admit_subscriber(&crate::SubscriberSpec::default()).unwrap();
        janitor.mark_descriptor(seat.slot, true);
        let event = EventFd::new().unwrap();
        let mut bells = Bells::new(segment.clone());
        bells.add(seat.slot, seat.tenancy(), event.try_clone().unwrap());
        let mut wait = EventWait::new(event);
        wakes(&mut wait, &mut bells);
        janitor.dismiss_subscriber(seat.slot, seat.generation);
        wait.arm().unwrap();
        bells.wake().unwrap();
        assert!(!wait.wait(Duration::from_millis(1)).unwrap());
    }

    #[test]
    fn nobody_asleep_costs_no_system_call() {
        let segment = segment();
        Bells::new(segment.clone()).wake().unwrap();
        assert_eq!(segment.header().arrivals.0.count.load(Ordering::Relaxed), 0);
    }
}
