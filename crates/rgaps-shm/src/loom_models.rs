//! Loom models of the lock-free words: `RUSTFLAGS="--cfg loom" cargo test -p rgaps-shm --lib loom_`.

use std::sync::Arc;

use loom::thread;

use crate::bell;
use crate::message::{Claim, MessageWords, Tenancy};
use crate::queue::{MessageIndex, Named, Position, Queue, Slot};
use crate::sync::{AtomicU32, AtomicU64, Ordering};

struct Words {
    tail: AtomicU64,
    slots: Vec<AtomicU64>,
}

impl Words {
    fn new(slots: usize) -> Arc<Self> {
        Arc::new(Self { tail: AtomicU64::new(0), slots: (0..slots).map(|_| AtomicU64::new(0)).collect() })
    }

    fn queue(&self) -> Queue<'_> {
        Queue::new(&self.tail, &self.slots)
    }
}

fn named(n: u16) -> Named {
    Named { message: MessageIndex(n), generation: 1 }
}

/// Explores every interleaving with at most three preemptions, which finds all known bugs of such words and ends in seconds. Both sides
/// are threads of their own: the model's main thread would run its part before the other begins.
fn model(check: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(check);
}

#[test]
fn loom_queue_two_writers_get_two_positions_without_a_gap() {
    model(|| {
        let words = Words::new(2);
        let writers: Vec<_> = (1..=2)
            .map(|n| {
                let words = words.clone();
                thread::spawn(move || words.queue().publish(named(n)).unwrap().0)
            })
            .collect();
        let mut positions: Vec<u64> = writers.into_iter().map(|writer| writer.join().unwrap()).collect();
        positions.sort_unstable();
        assert_eq!(positions, [0, 1]);
        assert_eq!(words.queue().end(), Position(2));
        for position in 0..2 {
            assert!(matches!(words.queue().read(Position(position)), Slot::Message(_)));
        }
    });
}

#[test]
fn loom_queue_a_reader_sees_positions_in_order() {
    model(|| {
        let words = Words::new(2);
        let writer = {
            let words = words.clone();
            thread::spawn(move || {
                words.queue().publish(named(1)).unwrap();
                words.queue().publish(named(2)).unwrap();
            })
        };
        let reader = thread::spawn(move || {
            let second = words.queue().read(Position(1));
            let first = words.queue().read(Position(0));
            if second != Slot::Empty {
                assert_eq!((first, second), (Slot::Message(named(1)), Slot::Message(named(2))));
            }
        });
        writer.join().unwrap();
        reader.join().unwrap();
    });
}

#[test]
fn loom_queue_a_lap_is_an_overrun_never_another_message() {
    model(|| {
        let words = Words::new(1);
        words.queue().publish(named(1)).unwrap();
        let writer = {
            let words = words.clone();
            thread::spawn(move || words.queue().publish(named(2)).unwrap())
        };
        let reader = thread::spawn(move || {
            let found = words.queue().read(Position(0));
            assert!(found == Slot::Message(named(1)) || found == Slot::Overrun);
        });
        writer.join().unwrap();
        reader.join().unwrap();
    });
}

struct Entry {
    life: AtomicU64,
    ready: AtomicU32,
    history: AtomicU64,
    holders: Vec<AtomicU64>,
}

const OWNER: u8 = 5;

impl Entry {
    /// Published to the first `readers` of two subscribers, and kept by history.
    fn published(readers: usize) -> (Arc<Self>, crate::message::Generation) {
        let entry = Arc::new(Self {
            life: AtomicU64::new(0),
            ready: AtomicU32::new(0),
            history: AtomicU64::new(0),
            holders: (0..2).map(|_| AtomicU64::new(0)).collect(),
        });
        let words = entry.words();
        let generation = words.try_loan(OWNER).unwrap();
        words.address_to(generation, |slot| (slot < readers).then(tenancy));
        words.make_ready(generation);
        assert!(words.complete(generation, OWNER));
        (entry, generation)
    }

    fn words(&self) -> MessageWords<'_> {
        MessageWords::new(&self.life, &self.ready, &self.history, &self.holders)
    }
}

fn tenancy() -> Tenancy {
    Tenancy::new(1)
}

#[test]
fn loom_message_is_freed_once_after_two_holders_let_go() {
    model(|| {
        let (entry, generation) = Entry::published(2);
        entry.words().leave_history(generation);
        let readers: Vec<_> = (0..2)
            .map(|slot| {
                let entry = entry.clone();
                thread::spawn(move || {
                    let words = entry.words();
                    assert_eq!(words.claim(slot, generation.low(), tenancy()), Claim::Held(generation));
                    assert!(words.release(slot, generation, tenancy()));
                })
            })
            .collect();
        let early = entry.words().try_reclaim(generation, OWNER, |_| Some(tenancy()));
        readers.into_iter().for_each(|reader| reader.join().unwrap());
        let late = entry.words().try_reclaim(generation, OWNER, |_| Some(tenancy()));
        assert!(early ^ late, "reclaimed {} times", u8::from(early) + u8::from(late));
    });
}

#[test]
fn loom_message_owner_and_janitor_do_not_both_reclaim() {
    model(|| {
        let (entry, generation) = Entry::published(0);
        entry.words().leave_history(generation);
        let other = {
            let entry = entry.clone();
            thread::spawn(move || entry.words().try_reclaim(generation, OWNER, |_| Some(tenancy())))
        };
        let here = entry.words().try_reclaim(generation, OWNER, |_| Some(tenancy()));
        assert!(here ^ other.join().unwrap());
    });
}

#[test]
fn loom_message_a_late_joiner_never_holds_what_is_reclaimed() {
    model(|| {
        let (entry, generation) = Entry::published(0);
        let joiner = {
            let entry = entry.clone();
            thread::spawn(move || entry.words().claim(0, generation.low(), tenancy()) == Claim::Held(generation))
        };
        entry.words().leave_history(generation);
        let reclaimed = entry.words().try_reclaim(generation, OWNER, |_| Some(tenancy()));
        let held = joiner.join().unwrap();
        assert!(!(held && reclaimed), "held and reclaimed");
    });
}

#[test]
fn loom_message_revoke_and_claim_have_one_winner() {
    model(|| {
        let (entry, generation) = Entry::published(1);
        let reader = {
            let entry = entry.clone();
            thread::spawn(move || entry.words().claim(0, generation.low(), tenancy()) == Claim::Held(generation))
        };
        let revoked = entry.words().revoke(0, generation, tenancy());
        assert!(revoked ^ reader.join().unwrap());
    });
}

#[test]
fn loom_bell_nobody_sleeps_through_a_publication() {
    model(|| {
        let count = Arc::new(AtomicU32::new(0));
        let sleepers = Arc::new(AtomicU64::new(0));
        let words = Words::new(2);
        let publisher = {
            let (count, sleepers, words) = (count.clone(), sleepers.clone(), words.clone());
            thread::spawn(move || {
                words.queue().publish(named(1)).unwrap();
                bell::is_heard(&count, &sleepers)
            })
        };
        let seen = bell::announce(&count, &sleepers, 3);
        let missed = words.queue().read(Position(0)) == Slot::Empty;
        let rang = publisher.join().unwrap();
        // It would sleep while the count is still what it saw; after the publication nobody may be left so.
        let asleep = missed && count.load(Ordering::Relaxed) == seen;
        assert!(!asleep || rang, "asleep and not rung");
        assert!(!asleep, "the count did not move for a sleeper");
    });
}
