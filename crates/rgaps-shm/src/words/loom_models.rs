//! Loom models of the lock-free words: `RUSTFLAGS="--cfg loom" cargo test -p rgaps-shm --lib --release loom`.
//!
//! The models call the product's own functions, on words of their own. A message's block is a cell that loom watches: it fails a model in which
//! two threads access the block and nothing orders one access before the other. docs/proofs.md says what the models leave out.

use std::sync::Arc;
use std::sync::atomic::AtomicU64 as PlainAtomicU64;

use loom::cell::UnsafeCell;
use loom::thread;

use crate::words::join::{JOINING, PublishFence, join};
use crate::words::message::{
    Generation, HoldWord, Holding, Life, MessageWords, Need, ReaderWords, Readiness, State, ready_word, released_word,
};
use crate::words::queue::{MessageIndex, Named, Position, Queue, Slot};
use crate::words::sync::{AtomicU32, AtomicU64, Ordering, fence};
use crate::words::wake_up::{self, LastWakeUp};

/// Explores every interleaving, unless LOOM_MAX_PREEMPTIONS limits them.
fn model(check: impl Fn() + Send + Sync + 'static) {
    explore(None, check);
}

/// Explores every interleaving with at most `bound` preemptions.
fn bounded(preemptions: usize, check: impl Fn() + Send + Sync + 'static) {
    explore(Some(preemptions), check);
}

fn explore(preemptions: Option<usize>, check: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = preemptions.or(builder.preemption_bound);
    let bound = builder.preemption_bound;
    let explored = Arc::new(PlainAtomicU64::new(0));
    let counted = explored.clone();
    builder.check(move || {
        counted.fetch_add(1, Ordering::Relaxed);
        check();
    });
    let name = std::thread::current().name().unwrap_or_default().to_owned();
    let bound = bound.map_or("no bound".to_owned(), |bound| format!("{bound} preemptions"));
    println!("{name}: {} interleavings, {bound}", explored.load(Ordering::Relaxed));
}

struct Words {
    tail: AtomicU64,
    slots: Vec<AtomicU64>,
}

impl Words {
    fn new(slots: usize) -> Self {
        Self { tail: AtomicU64::new(0), slots: (0..slots).map(|_| AtomicU64::new(0)).collect() }
    }

    fn queue(&self) -> Queue<'_> {
        Queue::new(&self.tail, &self.slots)
    }
}

fn named(n: u16) -> Named {
    Named { message: MessageIndex(n), generation: 1 }
}

#[test]
fn loom_queue_two_writers_get_two_positions_without_a_gap() {
    model(|| {
        let words = Arc::new(Words::new(2));
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
fn loom_queue_writers_that_overtake_each_other_by_a_lap_find_no_corruption() {
    model(|| {
        let words = Arc::new(Words::new(1));
        let first = {
            let words = words.clone();
            thread::spawn(move || {
                words.queue().publish(named(1)).unwrap();
                words.queue().publish(named(2)).unwrap();
            })
        };
        let second = {
            let words = words.clone();
            thread::spawn(move || words.queue().publish(named(3)).unwrap())
        };
        first.join().unwrap();
        second.join().unwrap();
        assert_eq!(words.queue().end(), Position(3));
    });
}

#[test]
fn loom_queue_a_reader_sees_positions_in_order() {
    model(|| {
        let words = Arc::new(Words::new(2));
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
fn loom_queue_every_position_before_the_end_can_be_read() {
    bounded(3, || {
        let words = Arc::new(Words::new(2));
        let writers: Vec<_> = (1..=2)
            .map(|n| {
                let words = words.clone();
                thread::spawn(move || words.queue().publish(named(n)).unwrap())
            })
            .collect();
        let reader = thread::spawn(move || {
            for position in words.queue().positions() {
                assert!(matches!(words.queue().read(Position(position)), Slot::Message(_)));
            }
        });
        writers.into_iter().for_each(|writer| _ = writer.join().unwrap());
        reader.join().unwrap();
    });
}

#[test]
fn loom_queue_a_lap_is_an_overrun_never_another_message() {
    model(|| {
        let words = Arc::new(Words::new(1));
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

/// A subscriber's words.
struct Subscriber {
    joined: AtomicU64,
    cursor: AtomicU64,
    hold: AtomicU32,
}

/// A topic with one entry, an owner and its successor, and two subscriber slots.
struct Topic {
    words: Words,
    life: AtomicU64,
    ready: AtomicU32,
    /// The position in the entry.
    noted: AtomicU64,
    /// The position at which each owner joined.
    owners: [AtomicU64; 2],
    block: UnsafeCell<u64>,
    mask: AtomicU64,
    subscribers: [Subscriber; 2],
}

// SAFETY: loom fails a model in which two threads access the block unordered; everything else is atomic.
unsafe impl Send for Topic {}
// SAFETY: as above.
unsafe impl Sync for Topic {}

const OWNER: u16 = 0;
const SUCCESSOR: u16 = 1;
const KEEP_ALL: u64 = 0;
/// The first life after life 0 with the same low bits.
const ALIKE: Generation = Generation(1 << 16);
/// The content of a freed block.
const FREED: u64 = 99;

/// A published message: life and position.
type Published = (Generation, Position);

impl Topic {
    /// A topic with one subscriber that joined at position 0.
    fn new() -> Arc<Self> {
        Self::of(2, 1, 0)
    }

    fn of(slots: usize, mask: u64, joined: u64) -> Arc<Self> {
        let subscriber =
            || Subscriber { joined: AtomicU64::new(joined), cursor: AtomicU64::new(0), hold: AtomicU32::new(0) };
        Arc::new(Self {
            words: Words::new(slots),
            life: AtomicU64::new(0),
            ready: AtomicU32::new(0),
            noted: AtomicU64::new(u64::MAX),
            owners: [AtomicU64::new(0), AtomicU64::new(0)],
            block: UnsafeCell::new(0),
            mask: AtomicU64::new(mask),
            subscribers: [subscriber(), subscriber()],
        })
    }

    fn words(&self) -> MessageWords<'_> {
        MessageWords::new(&self.life, &self.ready)
    }

    fn queue(&self) -> Queue<'_> {
        self.words.queue()
    }

    fn hold(&self, slot: usize) -> HoldWord<'_> {
        HoldWord(&self.subscribers[slot].hold)
    }

    /// Like `Subscribers::readers`.
    fn readers(&self, depth: u64) -> impl Iterator<Item = ReaderWords<'_>> {
        let mask = self.mask.load(Ordering::Acquire);
        (0..2).filter(move |slot| mask >> slot & 1 == 1).map(move |slot| self.reader(slot, depth))
    }

    fn reader(&self, slot: usize, depth: u64) -> ReaderWords<'_> {
        let Subscriber { joined, cursor, .. } = &self.subscribers[slot];
        ReaderWords { cursor, hold: self.hold(slot), joined: joined.load(Ordering::Acquire), depth }
    }

    fn is_held(&self, depth: u64, generation: Generation) -> bool {
        self.readers(depth).any(|reader| reader.is_holding(generation))
    }

    fn write(&self, number: u64) {
        // SAFETY: loom has checked that no other thread touches the block.
        self.block.with_mut(|block| unsafe { *block = number });
    }

    fn read(&self) -> u64 {
        // SAFETY: loom has checked that no other thread writes the block.
        self.block.with(|block| unsafe { *block })
    }

    fn publish(&self, number: u64, kept: bool) -> Option<Published> {
        self.publish_as(OWNER, number, kept)
    }

    /// Like `WriterPort::loan` and `publish`.
    fn publish_as(&self, owner: u16, number: u64, kept: bool) -> Option<Published> {
        let generation = self.words().try_loan(owner, Generation(0))?;
        self.noted.store(u64::MAX, Ordering::Relaxed);
        fence(Ordering::Release);
        self.write(number);
        assert!(self.words().complete(generation, owner, State::Published, kept));
        let named = Named { message: MessageIndex(0), generation: generation.low() };
        let position = self.queue().publish(named).unwrap();
        self.noted.store(position.0, Ordering::Release);
        Some((generation, position))
    }

    /// Like `WriterPort::try_free`.
    fn free(&self, (generation, position): Published, depth: u64, spared: Need) -> bool {
        let (fence_passed, end) = (PublishFence::pass(), self.queue().end().0);
        let won = self.words().try_reclaim(
            (generation, OWNER),
            fence_passed,
            || self.readers(depth).any(|reader| reader.need(position.0, generation, end) > spared),
            || self.is_held(depth, generation),
        );
        if won {
            self.write(FREED);
            assert!(self.words().finish(generation, OWNER));
        }
        won
    }

    /// Like `SlotTable::finish_message`, for an owner that is dead.
    fn finish_for_the_dead(&self, published: Published, depth: u64, spared: Need) -> bool {
        self.words().abandon(published.0);
        self.words().cancel_reclaim(published.0);
        self.free(published, depth, spared)
    }

    /// Skips all lives between life 0 and the one with the same low bits.
    fn pass_lives(&self) {
        let free = Life { generation: ALIKE, owner: 0, state: State::Free, kept: false, reclaiming: false };
        self.life.store(free.word(), Ordering::Release);
    }

    /// Like `ReaderPort::hold`.
    fn acquire(&self, slot: usize, position: Position, named: Named) -> Option<Generation> {
        let joined = |owner| Some(self.owners[usize::from(owner)].load(Ordering::Relaxed));
        let generation = self.words().life_at(position.0, named.generation, joined)?.generation;
        if !self.words().acquire(self.hold(slot), generation) {
            return None;
        }
        let noted = || self.noted.load(Ordering::Relaxed) == position.0;
        if !(self.queue().is_within_lap(position) || noted()) {
            self.hold(slot).withdraw(generation);
            return None;
        }
        Some(generation)
    }

    /// Like `ReaderPort::next`: holds the message that the slot at a position names, and reads it. `None` if the slot names none.
    fn take(&self, slot: usize, position: Position) -> Option<Option<(Generation, u64)>> {
        let Slot::Message(named) = self.queue().read(position) else { return None };
        let read = self.acquire(slot, position, named).map(|generation| (generation, self.read()));
        self.subscribers[slot].cursor.store(position.next().0, Ordering::Release);
        Some(read)
    }

    /// Takes and releases a message. Returns what it read, or 0 if the message was gone.
    fn take_and_release(&self, slot: usize, position: Position) -> Option<u64> {
        let taken = self.take(slot, position)?;
        if let Some((generation, _)) = taken {
            self.hold(slot).release(generation);
        }
        Some(taken.map_or(0, |(_, read)| read))
    }
}

fn spawn<T: 'static>(topic: &Arc<Topic>, part: impl FnOnce(&Topic) -> T + 'static) -> thread::JoinHandle<T> {
    let topic = topic.clone();
    thread::spawn(move || part(&topic))
}

#[test]
fn loom_message_two_readers_read_whole_what_a_slot_names() {
    model(|| {
        let topic = Topic::of(2, 0b11, 0);
        let readers = [0, 1].map(|slot| spawn(&topic, move |topic| topic.take_and_release(slot, Position(0))));
        topic.publish(1, false).unwrap();
        for reader in readers {
            assert!(
                matches!(reader.join().unwrap(), None | Some(1)),
                "a message that is named and not freed can be held"
            );
        }
    });
}

/// A message is read and released. Its block is reused in the entry's next life, which is read, too.
fn taken_and_used_again(depth: u64, spared: Need) {
    model(move || {
        let topic = Topic::new();
        let first = topic.publish(1, false).unwrap();
        let reader = spawn(&topic, move |topic| {
            let read = topic.take_and_release(0, Position(0)).unwrap();
            assert!(read == 1 || spared == Need::Soft && read == 0, "lost, or another message: {read}");
            let next = topic.take_and_release(0, Position(1));
            assert!(matches!(next, None | Some(2)), "{next:?}");
        });
        let writer = spawn(&topic, move |topic| topic.free(first, depth, spared) && topic.publish(2, false).is_some());
        reader.join().unwrap();
        if !writer.join().unwrap() {
            assert!(topic.free(first, depth, spared), "a released message can be freed");
        }
    });
}

#[test]
fn loom_message_a_block_is_reused_only_after_a_keep_all_reader_released_it() {
    taken_and_used_again(KEEP_ALL, Need::None);
}

#[test]
fn loom_message_a_block_is_reused_only_after_a_keep_last_reader_released_it() {
    taken_and_used_again(1, Need::None);
}

#[test]
fn loom_message_a_reader_whose_message_was_dropped_holds_no_other() {
    taken_and_used_again(1, Need::Soft);
}

/// Two readers of depth 1: the second message pushes the first one out of their depth.
#[test]
fn loom_message_two_readers_hold_what_they_took_while_their_depth_moves_on() {
    bounded(3, || {
        let topic = Topic::of(2, 0b11, 0);
        let first = topic.publish(1, false).unwrap();
        // A message of another entry.
        topic.queue().publish(named(7)).unwrap();
        let readers = [0, 1].map(|slot| {
            spawn(&topic, move |topic| {
                let read = topic.take_and_release(slot, Position(0)).unwrap();
                assert!(read <= 1, "another message: {read}");
            })
        });
        let freed = topic.free(first, 1, Need::None);
        readers.into_iter().for_each(|reader| reader.join().unwrap());
        assert!(freed || topic.free(first, 1, Need::None));
    });
}

#[test]
fn loom_message_a_reader_past_a_message_is_seen_to_hold_it() {
    model(|| {
        let topic = Topic::new();
        let (generation, position) = topic.publish(1, false).unwrap();
        let reader = spawn(&topic, move |topic| topic.take(0, position).unwrap().unwrap());
        for depth in [KEEP_ALL, 1] {
            assert_ne!(topic.reader(0, depth).need(position.0, generation, 1), Need::None);
        }
        reader.join().unwrap();
    });
}

#[test]
fn loom_message_a_stream_releases_a_message() {
    model(|| {
        let topic = Topic::new();
        let first = topic.publish(1, false).unwrap();
        let (generation, _) = topic.take(0, Position(0)).unwrap().unwrap();
        let stream = spawn(&topic, move |topic| {
            assert_eq!(topic.read(), 1);
            // A stream's write is ordered after its reads, system-wide.
            topic.subscribers[0].hold.store(released_word(generation), Ordering::Release);
        });
        let host = spawn(&topic, move |topic| {
            // The CPU releases it, too, once the stream's work is complete.
            if topic.hold(0).of(generation) == Holding::Released {
                topic.hold(0).release(generation);
            }
        });
        topic.free(first, KEEP_ALL, Need::None);
        stream.join().unwrap();
        host.join().unwrap();
        assert_eq!(topic.hold(0).of(generation), Holding::Released);
    });
}

#[test]
fn loom_message_two_threads_that_free_a_message_free_it_once() {
    model(|| {
        let topic = Topic::of(2, 0, 0);
        let first = topic.publish(1, false).unwrap();
        let free = move |topic: &Topic| {
            let is_held = || topic.is_held(1, first.0);
            let won = topic.words().try_reclaim((first.0, OWNER), PublishFence::pass(), || false, is_held);
            won && topic.words().finish(first.0, OWNER)
        };
        let others = [spawn(&topic, free), spawn(&topic, free)];
        let won = others.into_iter().map(|other| other.join().unwrap()).filter(|won| *won);
        assert_eq!(won.count(), 1, "freed once");
    });
}

#[test]
fn loom_message_a_lagging_reader_never_takes_the_next_life_that_its_slot_fits() {
    model(|| {
        // One slot, so that a lap is one message: the next life with the same low bits cannot begin earlier.
        let topic = Topic::of(1, 1, 0);
        let first = topic.publish(1, false).unwrap();
        let reader = spawn(&topic, move |topic| {
            let read = topic.take_and_release(0, Position(0));
            assert!(matches!(read, None | Some(0 | 1)), "a message of another lap: {read:?}");
        });
        if topic.free(first, 1, Need::Soft) {
            topic.pass_lives();
            topic.publish(2, false).unwrap();
        }
        reader.join().unwrap();
    });
}

#[test]
fn loom_message_an_entry_is_not_taken_for_the_one_that_another_owner_had() {
    model(|| {
        let topic = Topic::new();
        let first = topic.publish(1, false).unwrap();
        let reader = spawn(&topic, move |topic| {
            let read = topic.take_and_release(0, Position(0));
            assert!(matches!(read, Some(0 | 1)), "a message of another owner: {read:?}");
            let read = topic.take_and_release(0, Position(1));
            assert!(matches!(read, None | Some(2)), "{read:?}");
        });
        if topic.finish_for_the_dead(first, 1, Need::Soft) {
            topic.owners[usize::from(SUCCESSOR)].store(topic.queue().end().0, Ordering::Relaxed);
            topic.pass_lives();
            topic.publish_as(SUCCESSOR, 2, false).unwrap();
        }
        reader.join().unwrap();
    });
}

#[test]
fn loom_message_giving_up_an_old_life_changes_no_later_hold_word() {
    model(|| {
        let topic = Topic::new();
        let old = topic.publish(1, false).unwrap();
        assert!(topic.free(old, 1, Need::Soft));
        let new = topic.publish(2, false).unwrap();
        let reader = spawn(&topic, move |topic| {
            let (generation, _) = topic.take(0, new.1).unwrap().unwrap();
            // It gives up the message of the entry's last life that it wanted, for newer messages.
            topic.hold(0).pass(old.0);
            assert_eq!(topic.read(), 2);
            topic.hold(0).release(generation);
        });
        topic.free(new, KEEP_ALL, Need::None);
        reader.join().unwrap();
    });
}

#[test]
fn loom_join_everything_from_joined_on_is_kept() {
    model(|| {
        let topic = Topic::of(2, 0, JOINING);
        let joiner = spawn(&topic, move |topic| {
            let visible = || _ = topic.mask.fetch_or(1, Ordering::SeqCst);
            join(visible, &topic.subscribers[0].joined, topic.queue());
            let joined = topic.subscribers[0].joined.load(Ordering::Relaxed);
            // Reads everything from there on, as a keep-all reader.
            if let Some(read) = topic.take_and_release(0, Position(joined)) {
                assert_eq!(read, joined + 1, "missed by a subscriber that joined before it");
            }
        });
        let first = topic.publish(1, false).unwrap();
        if topic.free(first, KEEP_ALL, Need::None) {
            topic.publish(2, false);
        }
        joiner.join().unwrap();
    });
}

#[test]
fn loom_history_a_late_joiner_reads_what_it_wanted() {
    model(|| {
        let topic = Topic::of(2, 1, 1);
        let first = topic.publish(1, true).unwrap();
        let joiner = spawn(&topic, move |topic| {
            if topic.words().want(topic.hold(0), first.0) {
                assert_eq!(topic.take_and_release(0, Position(0)), Some(1), "a wanted message stays");
            } else {
                assert_ne!(topic.hold(0).of(first.0), Holding::Wanted, "no subscriber waits for it");
            }
        });
        assert!(topic.words().leave_history(first.0));
        if topic.free(first, 10, Need::None) {
            topic.publish(2, true);
        }
        joiner.join().unwrap();
    });
}

#[test]
fn loom_history_a_message_dropped_for_its_space_is_not_read() {
    model(|| {
        let topic = Topic::of(2, 1, 1);
        let first = topic.publish(1, true).unwrap();
        let joiner = spawn(&topic, move |topic| {
            if topic.words().want(topic.hold(0), first.0) {
                assert!(matches!(topic.take_and_release(0, Position(0)), Some(0 | 1)));
            }
        });
        assert!(topic.words().leave_history(first.0));
        if topic.free(first, 10, Need::Soft) {
            topic.publish(2, false);
        }
        joiner.join().unwrap();
    });
}

/// A late joiner finds messages in the table, not in the queue.
#[test]
fn loom_history_a_message_found_in_the_table_is_read_whole() {
    model(|| {
        let topic = Topic::of(2, 1, 1);
        let joiner = spawn(&topic, move |topic| {
            let found = topic.words().life().filter(|life| life.kept);
            let Some(generation) = found.map(|life| life.generation) else { return };
            if topic.words().want(topic.hold(0), generation) && topic.words().acquire(topic.hold(0), generation) {
                assert_eq!(topic.read(), 1);
                topic.hold(0).release(generation);
            }
        });
        let first = topic.publish(1, true).unwrap();
        topic.words().leave_history(first.0);
        topic.free(first, 10, Need::Soft);
        joiner.join().unwrap();
    });
}

/// An owner dies after `steps` steps of freeing a message. Then the slot table finishes the message, and the entry gets its next owner.
fn dead_after(steps: usize) {
    bounded(3, move || {
        let topic = Topic::new();
        let first = topic.publish(1, true).unwrap();
        let reader = spawn(&topic, move |topic| {
            let read = topic.take_and_release(0, Position(0));
            assert!(matches!(read, Some(0 | 1)), "{read:?}");
            let read = topic.take_and_release(0, Position(1));
            assert!(matches!(read, None | Some(2)), "{read:?}");
        });
        let reclaim = |topic: &Topic| match steps {
            0 => false,
            // The owner died before it read the hold words.
            1 => topic.words().try_reclaim((first.0, OWNER), PublishFence::pass(), || false, || false),
            // The owner died before it finished the message.
            _ => {
                let is_held = || topic.is_held(1, first.0);
                topic.words().try_reclaim((first.0, OWNER), PublishFence::pass(), || false, is_held)
            }
        };
        if steps > 0 {
            topic.words().leave_history(first.0);
        }
        reclaim(&topic);
        let is_free = topic.finish_for_the_dead(first, 1, Need::Soft);
        if is_free {
            topic.owners[usize::from(SUCCESSOR)].store(topic.queue().end().0, Ordering::Relaxed);
            topic.publish_as(SUCCESSOR, 2, false).unwrap();
        }
        reader.join().unwrap();
        assert!(is_free || topic.finish_for_the_dead(first, 1, Need::None), "no message of the dead owner is left");
    });
}

#[test]
fn loom_death_a_held_message_survives_an_owner_that_freed_nothing() {
    dead_after(0);
}

#[test]
fn loom_death_a_held_message_survives_an_owner_that_had_not_looked() {
    dead_after(1);
}

#[test]
fn loom_death_a_held_message_survives_an_owner_that_had_not_finished() {
    dead_after(2);
}

#[test]
fn loom_ready_bytes_are_there_when_the_word_says_so_and_never_once_it_is_poisoned() {
    model(|| {
        let topic = Topic::new();
        let generation = topic.words().try_loan(OWNER, Generation(0)).unwrap();
        assert!(topic.words().complete(generation, OWNER, State::Pending, false));
        let stream = spawn(&topic, move |topic| {
            topic.write(1);
            topic.ready.store(ready_word(generation), Ordering::Release);
        });
        let manager = spawn(&topic, move |topic| topic.words().poison(generation));
        if topic.words().readiness(generation) == Readiness::Ready {
            assert_eq!(topic.read(), 1);
        }
        stream.join().unwrap();
        let poisoned = manager.join().unwrap();
        let expected = if poisoned { Readiness::Poisoned } else { Readiness::Ready };
        assert_eq!(topic.words().readiness(generation), expected);
    });
}

#[test]
fn loom_ready_a_block_is_not_used_again_while_a_stream_fills_it() {
    model(|| {
        let topic = Topic::of(2, 0, 0);
        let generation = topic.words().try_loan(OWNER, Generation(0)).unwrap();
        assert!(topic.words().complete(generation, OWNER, State::Pending, false));
        let stream = spawn(&topic, move |topic| {
            topic.write(1);
            topic.ready.store(ready_word(generation), Ordering::Release);
        });
        topic.free((generation, Position(0)), 1, Need::Soft);
        stream.join().unwrap();
    });
}

#[test]
fn loom_ready_poisoning_and_leaving_history_at_once_both_succeed() {
    model(|| {
        let topic = Topic::of(2, 0, 0);
        let generation = topic.words().try_loan(OWNER, Generation(0)).unwrap();
        assert!(topic.words().complete(generation, OWNER, State::Pending, true));
        let manager = spawn(&topic, move |topic| assert!(topic.words().poison(generation)));
        assert!(topic.words().leave_history(generation));
        manager.join().unwrap();
        let life = topic.words().life().unwrap();
        assert!(life.state == State::Poisoned && !life.kept);
    });
}

#[test]
fn loom_wake_up_no_subscriber_sleeps_through_a_publication() {
    model(|| sleeps_through_no_batch_of(1));
}

#[test]
fn loom_wake_up_no_subscriber_sleeps_through_a_batch_that_wakes_once() {
    model(|| sleeps_through_no_batch_of(2));
}

/// A publisher wakes after its last message. A subscriber sleeps if it has not seen that message.
fn sleeps_through_no_batch_of(messages: u64) {
    let words = Arc::new((AtomicU32::new(0), AtomicU32::new(0), Words::new(2)));
    let publisher = {
        let words = words.clone();
        thread::spawn(move || {
            (1..=messages).for_each(|message| assert!(words.2.queue().publish(named(message as u16)).is_ok()));
            let sleeps = |last: &LastWakeUp| last.must_be_repeated_for(words.1.load(Ordering::Relaxed));
            wake_up::must_wake(&words.0, &mut LastWakeUp::default(), messages, sleeps)
        })
    };
    let sleeper = {
        let words = words.clone();
        thread::spawn(move || {
            let seen = wake_up::announce_sleep(&words.0, |announced| words.1.store(announced, Ordering::Relaxed));
            (words.2.queue().read(Position(messages - 1)) == Slot::Empty, seen)
        })
    };
    let rang = publisher.join().unwrap();
    let (missed, seen) = sleeper.join().unwrap();
    // The subscriber sleeps while the count has the value that it saw. After the publication it must not.
    let asleep = missed && words.0.load(Ordering::Relaxed) == seen;
    assert!(!asleep, "asleep; woken: {rang}");
}

#[test]
fn loom_wake_up_no_subscriber_sleeps_through_the_message_after_a_wake_up() {
    model(|| {
        let words = Arc::new((AtomicU32::new(0), AtomicU32::new(0), Words::new(2)));
        let publisher = {
            let words = words.clone();
            thread::spawn(move || {
                let mut last = LastWakeUp::default();
                for message in 1..=2_u16 {
                    assert!(words.2.queue().publish(named(message)).is_ok());
                    let sleeps = |last: &LastWakeUp| last.must_be_repeated_for(words.1.load(Ordering::Relaxed));
                    wake_up::must_wake(&words.0, &mut last, message.into(), sleeps);
                }
            })
        };
        let sleeper = {
            let words = words.clone();
            thread::spawn(move || {
                let mut looked = (false, 0);
                for _ in 0..2 {
                    let say = |announced| words.1.store(announced, Ordering::Relaxed);
                    let seen = wake_up::announce_sleep(&words.0, say);
                    looked = (words.2.queue().read(Position(1)) == Slot::Empty, seen);
                    // It sleeps, if the count is what it saw: until the publisher wakes it, or for ever.
                    if !looked.0 || words.0.load(Ordering::Relaxed) == seen {
                        break;
                    }
                    words.1.store(0, Ordering::Relaxed);
                }
                looked
            })
        };
        publisher.join().unwrap();
        let (missed, seen) = sleeper.join().unwrap();
        assert!(!missed || words.0.load(Ordering::Relaxed) != seen, "asleep, and the second message is there");
    });
}
