//! Wake-ups: a trait for waiters and one for wakers, with three implementations (futex, eventfd, iceoryx2's event service).
//!
//! A waiter arms, looks for a message, and only then sleeps. A publisher publishes, and then wakes. With a full fence on both sides (wake_up.rs),
//! either the waiter finds the message or the publisher sees the sleeper. So a publisher makes the system call only if a subscriber may sleep.
//!
//! A subscriber that releases a message may not write the word that publishers sleep on. So it can miss a publisher that is about to sleep; that
//! publisher looks again after 2 ms (space.rs).
//!
//! A publisher that has woken a subscriber does not repeat the call until the subscriber announces another sleep: of many subscribers some do not run
//! for long, and each message would cost a call for them.
//!
//! A subscriber announces its sleep in its own words (`asleep`), a publisher in its bit of the segment (`sleepers`). Several threads may wait for
//! one publisher or subscriber: the word or bit stays set until the last of them has disarmed.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rgaps_os::{EventFd, futex};

use crate::layout::WakeWords;
use crate::pages::SubscriberPages;
use crate::segment::{Segment, clear_bit, set_bit};
use crate::words::wake_up;

#[cfg(feature = "iceoryx2")]
pub mod iceoryx;

/// The side that wakes.
pub trait Wake {
    /// Wakes every waiter. After an error with one of them, the others are woken all the same.
    fn wake(&mut self) -> io::Result<()>;
}

/// The side that waits.
pub trait Wait {
    /// Call it before the look that decides whether to sleep.
    fn arm(&mut self) -> io::Result<()>;
    /// Sleeps until woken since `arm`, at most `timeout`. False if the time passed. May wake spuriously.
    fn wait(&mut self, timeout: Duration) -> io::Result<bool>;
}

/// Sleeps on a futex word of the segment: the default. One wake-up reaches all sleepers.
#[derive(Debug)]
pub struct FutexWait {
    segment: Arc<Segment>,
    sleeper: Sleeper,
    seen: u32,
    is_armed: bool,
    /// Calls of `wake_own` when `arm` was called.
    calls: u64,
    own: Arc<Mutex<Own>>,
}

#[derive(Clone, Debug)]
enum Sleeper {
    Subscriber(Arc<SubscriberPages>),
    Publisher(u16),
}

/// The waiters of one publisher or subscriber. Its word or bit in shared memory is written under this lock.
#[derive(Debug, Default)]
struct Own {
    armed: u32,
    /// Calls of `wake_own`.
    calls: u64,
    /// Waiters that sleep, with no call since they armed.
    asleep: u32,
    /// Waiters that `wake_own` has called since they armed, and that have not returned yet.
    called: u32,
}

/// How long `wake_own` repeats the wake-up. A thread that does not run for so long sleeps until its time-out.
const CALL_FOR: Duration = Duration::from_secs(2);

impl FutexWait {
    /// A subscriber waits for messages.
    pub fn for_messages(segment: Arc<Segment>, pages: Arc<SubscriberPages>) -> Self {
        Self::new(segment, Sleeper::Subscriber(pages))
    }

    /// Publisher `slot` waits for space.
    pub fn for_space(segment: Arc<Segment>, slot: u16) -> Self {
        Self::new(segment, Sleeper::Publisher(slot))
    }

    fn new(segment: Arc<Segment>, sleeper: Sleeper) -> Self {
        Self { segment, sleeper, seen: 0, is_armed: false, calls: 0, own: Arc::default() }
    }

    /// One more waiter of the same publisher or subscriber, for another thread.
    pub fn another(&self) -> Self {
        let mut another = Self::new(self.segment.clone(), self.sleeper.clone());
        another.own = self.own.clone();
        another
    }

    /// Ends the announcement: after the wait, or when the look found something.
    pub fn disarm(&mut self) {
        if !std::mem::take(&mut self.is_armed) {
            return;
        }
        let mut own = self.lock();
        own.armed -= 1;
        if own.armed == 0 {
            match &self.sleeper {
                Sleeper::Subscriber(pages) => pages.words().asleep.store(0, Ordering::Relaxed),
                Sleeper::Publisher(slot) => clear_bit(&self.segment.header().space.0.sleepers, *slot),
            }
        }
    }

    /// Wakes the other waiters of the same publisher or subscriber. A waiter that has armed looks again instead of sleeping. A subscriber may not
    /// write the word that it sleeps on, so this repeats the wake-up until all of them have returned.
    pub fn wake_own(&self) {
        let mut own = self.lock();
        own.calls += 1;
        own.called += std::mem::take(&mut own.asleep);
        let since = Instant::now();
        while own.called > 0 && since.elapsed() < CALL_FOR {
            drop(own);
            futex::wake_all(self.count());
            std::thread::yield_now();
            own = self.lock();
        }
    }

    fn count(&self) -> &AtomicU32 {
        let header = self.segment.header();
        match self.sleeper {
            Sleeper::Subscriber(_) => &header.publications.0,
            Sleeper::Publisher(_) => &header.space.0.count,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Own> {
        self.own.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for FutexWait {
    fn drop(&mut self) {
        self.disarm();
    }
}

impl Wait for FutexWait {
    fn arm(&mut self) -> io::Result<()> {
        let is_new = !std::mem::replace(&mut self.is_armed, true);
        let mut own = self.lock();
        own.armed += u32::from(is_new);
        let calls = own.calls;
        let seen = wake_up::announce_sleep(self.count(), |announced| match &self.sleeper {
            Sleeper::Subscriber(pages) => pages.words().asleep.store(announced, Ordering::Relaxed),
            Sleeper::Publisher(slot) => set_bit(&self.segment.header().space.0.sleepers, *slot),
        });
        drop(own);
        (self.calls, self.seen) = (calls, seen);
        Ok(())
    }

    fn wait(&mut self, timeout: Duration) -> io::Result<bool> {
        let mut own = self.lock();
        let is_called = own.calls != self.calls;
        own.asleep += u32::from(!is_called);
        drop(own);
        let mut is_woken = true;
        if !is_called {
            is_woken = futex::wait(self.count(), self.seen, timeout) != futex::Woken::TimedOut;
            let mut own = self.lock();
            if own.calls == self.calls { own.asleep -= 1 } else { own.called -= 1 }
        }
        self.disarm();
        Ok(is_woken)
    }
}

/// For subscribers, after a release: wakes publishers that sleep until there is space. A subscriber may not write the count, so a publisher that
/// is about to sleep may miss this; it looks again soon (space.rs).
pub(crate) fn wake_waiting_publishers(words: &WakeWords) {
    if wake_up::has_sleepers(|| words.sleepers.iter().any(|word| word.load(Ordering::Relaxed) != 0)) {
        futex::wake_all(&words.count);
    }
}

/// Wakes all sleepers, whether or not they have announced themselves: after a death.
pub(crate) fn wake_all(count: &AtomicU32) {
    count.fetch_add(1, Ordering::AcqRel);
    futex::wake_all(count);
}

/// Waits on an eventfd, like epoll and RMW wait sets.
#[derive(Debug)]
pub struct EventWait(EventFd);

impl EventWait {
    /// A waiter on `event`, whose clones the publishers have.
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

#[cfg(test)]
mod tests {
    use rgaps_testing::system_calls::makes_no_system_call;

    use super::*;
    use crate::manager::slot_table::SlotTable;
    use crate::slot::SubscriberSlot;
    use crate::writer::subscribers::Subscribers;

    const LONG: Duration = Duration::from_secs(60);

    /// The contract of a waiter and its waker: a wake-up after `arm` ends the next `wait`; without one the time passes.
    pub(super) fn wakes(wait: &mut dyn Wait, wake: &mut dyn Wake) {
        wait.arm().unwrap();
        wake.wake().unwrap();
        assert!(wait.wait(LONG).unwrap());
        wait.arm().unwrap();
        assert!(!wait.wait(Duration::from_millis(1)).unwrap());
    }

    struct Topic {
        segment: Arc<Segment>,
        slot_table: SlotTable,
        slot: SubscriberSlot,
        subscribers: Subscribers,
    }

    impl Topic {
        fn new() -> Self {
            let segment = Arc::new(Segment::create([1; 16]).unwrap());
            let slot_table = SlotTable::new(segment.clone());
            let slot = slot_table
                .admit_subscriber(&crate::SubscriberSpec::default(), &crate::SubscriberFile::create().unwrap())
                .unwrap();
            let mut subscribers = Subscribers::new(segment.clone());
            subscribers.add(slot_table.pages(slot).unwrap(), None);
            Self { segment, slot_table, slot, subscribers }
        }

        fn pages(&self) -> Arc<SubscriberPages> {
            self.slot_table.pages(self.slot).unwrap()
        }

        fn waiter(&self) -> FutexWait {
            FutexWait::for_messages(self.segment.clone(), self.pages())
        }
    }

    #[test]
    fn a_futex_waiter_is_woken() {
        let mut topic = Topic::new();
        wakes(&mut topic.waiter(), &mut topic.subscribers);
    }

    #[test]
    fn a_subscriber_whose_words_are_not_known_is_woken_too() {
        let topic = Topic::new();
        let mut wait = topic.waiter();
        wait.arm().unwrap();
        Subscribers::new(topic.segment.clone()).wake().unwrap();
        assert!(wait.wait(LONG).unwrap());
    }

    #[test]
    fn a_waiter_that_leaves_does_not_silence_another_of_its_slot() {
        let mut topic = Topic::new();
        let asleep = |topic: &Topic| topic.pages().words().asleep.load(Ordering::Relaxed);
        let mut long = topic.waiter();
        let mut brief = long.another();
        long.arm().unwrap();
        brief.arm().unwrap();
        brief.arm().unwrap();
        brief.disarm();
        topic.subscribers.wake().unwrap();
        assert!(long.wait(LONG).unwrap(), "it was known to sleep");
        assert_eq!(asleep(&topic), 0);
        long.arm().unwrap();
        drop(long);
        assert_eq!(asleep(&topic), 0, "gone with its waiter");
    }

    #[test]
    fn wake_own_reaches_waiters_that_sleep_or_are_about_to() {
        let topic = Topic::new();
        let mut wait = topic.waiter();
        wait.arm().unwrap();
        topic.waiter().wake_own();
        let other = wait.another();
        assert!(!wait.wait(Duration::from_millis(1)).unwrap(), "a call by the waiter of another `Own` does not count");
        wait.arm().unwrap();
        other.wake_own();
        assert!(wait.wait(LONG).unwrap(), "it had armed before the call");
        std::thread::scope(|scope| {
            let sleeper = scope.spawn(|| {
                wait.arm().unwrap();
                wait.wait(LONG).unwrap()
            });
            while other.lock().asleep == 0 {
                std::thread::yield_now();
            }
            other.wake_own();
            assert!(sleeper.join().unwrap());
        });
        let own = other.lock();
        assert_eq!((own.asleep, own.called, own.armed), (0, 0, 0));
    }

    #[test]
    fn an_eventfd_is_signalled_while_its_subscriber_stays() {
        let mut topic = Topic::new();
        let slot = topic.slot;
        topic.slot_table.mark_event_fd(slot, true);
        let event = EventFd::new().unwrap();
        topic.subscribers.add(topic.pages(), Some(Arc::new(event.try_clone().unwrap())));
        let mut wait = EventWait::new(event);
        wakes(&mut wait, &mut topic.subscribers);
        // Adding its words again without the eventfd keeps the eventfd.
        topic.subscribers.add(topic.pages(), None);
        wakes(&mut wait, &mut topic.subscribers);
        topic.slot_table.release_subscriber(slot);
        wait.arm().unwrap();
        topic.subscribers.wake().unwrap();
        assert!(!wait.wait(Duration::from_millis(1)).unwrap());
    }

    #[test]
    fn an_eventfd_that_cannot_be_signalled_silences_no_other() {
        let mut topic = Topic::new();
        let file = crate::SubscriberFile::create().unwrap();
        let other = topic.slot_table.admit_subscriber(&crate::SubscriberSpec::default(), &file).unwrap();
        let event = EventFd::new().unwrap();
        let broken = EventFd::from_fd(std::fs::File::open("/dev/null").unwrap().into());
        for (slot, event) in [(topic.slot, broken), (other, event.try_clone().unwrap())] {
            topic.slot_table.mark_event_fd(slot, true);
            topic.subscribers.add(topic.slot_table.pages(slot).unwrap(), Some(Arc::new(event)));
        }
        let mut wait = EventWait::new(event);
        wait.arm().unwrap();
        assert!(topic.subscribers.wake().is_err());
        assert!(wait.wait(LONG).unwrap());
    }

    #[test]
    fn nobody_asleep_costs_no_system_call() {
        let mut topic = Topic::new();
        assert!(makes_no_system_call(move || topic.subscribers.wake().unwrap()));
        let mut topic = Topic::new();
        let mut waiter = topic.waiter();
        waiter.arm().unwrap();
        // A subscriber that sleeps is woken by one.
        assert!(!makes_no_system_call(move || topic.subscribers.wake().unwrap()));
    }

    #[test]
    fn a_waiter_is_woken_though_another_of_its_subscriber_was_and_has_not_run_yet() {
        let mut topic = Topic::new();
        let mut first = topic.waiter();
        let mut second = first.another();
        // Twice, since a count of 0 is announced as 1.
        for _ in 0..2 {
            first.arm().unwrap();
            topic.subscribers.wake().unwrap();
        }
        second.arm().unwrap();
        topic.subscribers.wake().unwrap();
        assert!(second.wait(LONG).unwrap(), "it does not sleep");
    }

    #[test]
    fn one_that_was_woken_and_has_not_run_yet_costs_no_other_system_call() {
        let armed_and_woken = || {
            let mut topic = Topic::new();
            let mut waiter = topic.waiter();
            // Twice, since a count of 0 is announced as 1.
            for _ in 0..2 {
                waiter.arm().unwrap();
                topic.subscribers.wake().unwrap();
            }
            (topic, waiter)
        };
        let (mut topic, _waiter) = armed_and_woken();
        assert!(makes_no_system_call(move || topic.subscribers.wake().unwrap()));
        let (mut topic, mut waiter) = armed_and_woken();
        assert!(waiter.wait(LONG).unwrap(), "it does not sleep");
        waiter.arm().unwrap();
        assert!(!makes_no_system_call(move || topic.subscribers.wake().unwrap()));
    }
}
