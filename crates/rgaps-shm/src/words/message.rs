//! Messages: who may read one, and who frees its block.
//!
//! ```text
//!   life word of an entry, written by its owner, and by the manager once the owner is dead:
//!
//!   FREE ──try_loan──▶ LOANED ──complete──▶ PUBLISHED | PENDING ──try_reclaim──▶ + RECLAIMING ──finish──▶ FREE, generation + 1
//!    ▲                   │                     PENDING ──poison──▶ POISONED          │
//!    └────give_back──────┘                                   ◀─a subscriber holds it─┘
//!
//!   hold word of subscriber s for the entry, written by s, and by its stream (RELEASED):
//!
//!   of an older life ──want, while history keeps the message──▶ WANTED ──acquire─▶ HELD ──release──▶ RELEASED
//!                    └───────────────────────acquire──────────────────────────────▲
//! ```
//!
//! Only a subscriber and its streams write its hold words. A message has no list of receivers. A subscriber needs each message at or after its
//! cursor that is not older than its depth, and its hold words say which messages it holds.
//!
//! Words       `life`: generation, owner, state, and whether history keeps the message. `ready`: READY is written by the producer's stream while
//!             PENDING, POISONED by `poison`. `hold[s]`: generation and state. `cursor`: written by the subscriber.
//! Invariants  M1 a word of an old generation changes nothing. M2 a block is freed once, by the process that set RECLAIMING. M3 a HELD message is
//!             not freed. M4 a message that a keep-all subscriber has not read is not freed.
//! Deaths      A subscriber: the manager frees its slot. Publishers read the words only of slots that are active in the generation that they know
//!             (subscribers.rs), so they stop reading the dead subscriber's. An owner: the manager finishes its messages (slot_table.rs).
//! Trusts      nothing: a compare-exchange compares whole words, and a word that does not decode is never changed.
//! Source      a reader that announces what it is about to read, then looks whether it is still there: Michael, "Hazard pointers: safe memory
//!             reclamation for lock-free objects", IEEE TPDS 15 (6), 2004. A word for each entry and subscriber, bound to one life, is ours.
//! Shown by    loom_message, loom_history, loom_death, loom_ready (M2 to M4), the tests below (M1); docs/proofs.md.
//!
//! M3 is the argument of Dekker's mutual exclusion (Dijkstra, "Cooperating sequential processes", EWD 123, 1965). A subscriber writes HELD, then reads `life`; the owner writes RECLAIMING, then reads the hold
//! words. Each side has a sequentially consistent fence between its write and its read, so at least one side sees the other's write. If both do,
//! the subscriber has lost the message, and the owner tries again later. This happens only to messages that the owner found unneeded, or drops on
//! purpose.

use crate::words::join::{JOINING, PublishFence};
use crate::words::sync::{AtomicU32, AtomicU64, Ordering, fence};

/// The number of a table entry's life. Freeing a published message begins the next life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Generation(pub u32);

impl Generation {
    /// The low 16 bits, which a queue slot stores.
    pub fn low(self) -> u16 {
        self.0 as u16
    }

    /// The next life.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0.wrapping_add(1))
    }

    /// The later of two generations, which wrap around.
    #[must_use]
    pub fn later(self, other: Self) -> Self {
        if other.0.wrapping_sub(self.0) as i32 > 0 { other } else { self }
    }
}

/// State of a table entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// No message.
    Free,
    /// Being filled by its owner.
    Loaned,
    /// Complete, with its bytes.
    Published,
    /// Complete except for its bytes, which a stream writes; `ready` says when they are there.
    Pending,
    /// Complete, but its bytes will never be there.
    Poisoned,
}

/// The `life` word, decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Life {
    /// The number of the life.
    pub generation: Generation,
    /// The owner's publisher slot.
    pub owner: u16,
    /// The state.
    pub state: State,
    /// History keeps it for late joiners.
    pub kept: bool,
    /// Its owner is about to free it.
    pub reclaiming: bool,
}

const KEPT: u64 = 1 << 6;
const RECLAIMING: u64 = 1 << 7;

impl Life {
    pub(crate) fn word(self) -> u64 {
        let state = match self.state {
            State::Free => 0,
            State::Loaned => 1,
            State::Published => 2,
            State::Pending => 3,
            State::Poisoned => 4,
        };
        let flags = if self.kept { KEPT } else { 0 } | if self.reclaiming { RECLAIMING } else { 0 };
        u64::from(self.generation.0) << 32 | u64::from(self.owner) << 8 | flags | state
    }

    fn from_word(word: u64) -> Option<Self> {
        let state = match word & 0x3f {
            0 => State::Free,
            1 => State::Loaned,
            2 => State::Published,
            3 => State::Pending,
            4 => State::Poisoned,
            _ => return None,
        };
        let life = Self {
            generation: Generation((word >> 32) as u32),
            owner: (word >> 8) as u16,
            state,
            kept: word & KEPT != 0,
            reclaiming: word & RECLAIMING != 0,
        };
        // Changes compare whole words, so a word with other bits could never be changed again.
        Some(life).filter(|life| life.word() == word)
    }

    /// Whether it is complete: in the queue, or about to be.
    pub fn is_complete(&self) -> bool {
        matches!(self.state, State::Published | State::Pending | State::Poisoned)
    }

    /// Whether a subscriber may begin to hold it.
    fn can_be_held(&self) -> bool {
        self.is_complete() && !self.reclaiming
    }
}

/// Whether a message's bytes are there. A GPU's stream waits for `word & 3 != 0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// The producer's stream has not written them yet.
    Pending,
    /// The bytes are there.
    Ready,
    /// The producer died or gave up before they were; they must not be used.
    Poisoned,
}

/// The value of the ready word that means READY in one life: the low 30 bits of the generation above two bits of state.
pub fn ready_word(generation: Generation) -> u32 {
    generation.0 << 2 | 1
}

fn poisoned_word(generation: Generation) -> u32 {
    generation.0 << 2 | 2
}

/// The value that a subscriber's stream writes into the hold word to release a message.
pub fn released_word(generation: Generation) -> u32 {
    hold_word(generation, Holding::Released)
}

/// What a hold word says about one life of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holding {
    /// Nothing: the subscriber has not reached the message.
    None,
    /// A late joiner will read it. A keep-last subscriber loses it if its space is needed, or once `depth` messages were published since it
    /// joined.
    Wanted,
    /// The subscriber is reading it.
    Held,
    /// The subscriber is done with it.
    Released,
}

fn hold_word(generation: Generation, holding: Holding) -> u32 {
    let state = match holding {
        Holding::None => 0,
        Holding::Wanted => 1,
        Holding::Held => 2,
        Holding::Released => 3,
    };
    generation.0 << 2 | state
}

/// A subscriber's hold word for a message.
#[derive(Clone, Copy, Debug)]
pub struct HoldWord<'a>(pub &'a AtomicU32);

impl HoldWord<'_> {
    /// What it says about this life.
    pub fn of(&self, generation: Generation) -> Holding {
        let word = self.0.load(Ordering::Acquire);
        if word >> 2 != generation.0 << 2 >> 2 {
            return Holding::None;
        }
        match word & 3 {
            0 => Holding::None,
            1 => Holding::Wanted,
            2 => Holding::Held,
            _ => Holding::Released,
        }
    }

    /// HELD → RELEASED, unless a stream has released it already. The holder calls this after its last read.
    pub fn release(&self, generation: Generation) {
        let held = hold_word(generation, Holding::Held);
        let _ = self.0.compare_exchange(held, released_word(generation), Ordering::Release, Ordering::Relaxed);
    }

    /// Any state but HELD → RELEASED: the subscriber will not read the message. Does nothing if the subscriber holds the entry's message, in this
    /// life or another one, or if the word is about a later life.
    pub fn pass(&self, generation: Generation) {
        let found = self.0.load(Ordering::Relaxed);
        let is_held = found & 3 == hold_word(Generation(0), Holding::Held);
        // The 30 bits of generation in a hold word wrap around.
        let is_later = (found & !3).wrapping_sub(generation.0 << 2) as i32 > 0;
        if !is_held && !is_later {
            let _ = self.0.compare_exchange(found, released_word(generation), Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// HELD or WANTED → RELEASED, by a subscriber that has read nothing of the message.
    pub fn withdraw(&self, generation: Generation) {
        self.0.store(released_word(generation), Ordering::Relaxed);
    }

    fn announce(&self, generation: Generation, holding: Holding) {
        self.0.store(hold_word(generation, holding), Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }
}

/// How much a subscriber still needs a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Need {
    /// Nothing.
    None,
    /// A keep-last subscriber has still to read it. It may be dropped when space is needed.
    Soft,
    /// It is held, or a keep-all subscriber has still to read it. It must not be freed.
    Hard,
}

/// One subscriber's words, as a process that wants to free a message reads them.
#[derive(Clone, Copy, Debug)]
pub struct ReaderWords<'a> {
    /// Next position that it will look at.
    pub cursor: &'a AtomicU64,
    /// Its hold word for the message.
    pub hold: HoldWord<'a>,
    /// First position that it gets from the queue.
    pub joined: u64,
    /// Keep-last depth; 0 is keep-all.
    pub depth: u64,
}

impl ReaderWords<'_> {
    /// How much it still needs the message at `position`, when the queue ends at `end`.
    pub fn need(&self, position: u64, generation: Generation, end: u64) -> Need {
        // Load the cursor before the hold word: the cursor moves past a message only after the message is held or given up.
        let cursor = self.cursor.load(Ordering::Acquire).max(self.joined);
        match self.hold.of(generation) {
            Holding::Held => Need::Hard,
            Holding::Released => Need::None,
            Holding::Wanted if self.depth == 0 => Need::Hard,
            Holding::Wanted if self.has_its_depth_without_history(end) => Need::None,
            Holding::Wanted => Need::Soft,
            Holding::None if cursor > position => Need::None,
            Holding::None if self.depth == 0 => Need::Hard,
            Holding::None if position.saturating_add(self.depth) >= end => Need::Soft,
            Holding::None => Need::None,
        }
    }

    /// Whether `depth` messages were published since it joined, so that it reads nothing older. False while it joins, since `joined` is not known
    /// yet.
    fn has_its_depth_without_history(&self, end: u64) -> bool {
        self.joined != JOINING && end >= self.joined.saturating_add(self.depth)
    }

    /// Whether it has not looked at all messages yet, when the queue ends at `end`.
    pub(crate) fn is_behind(&self, end: u64) -> bool {
        self.cursor.load(Ordering::Acquire).max(self.joined) < end
    }

    /// Whether it holds the message.
    pub(crate) fn is_holding(&self, generation: Generation) -> bool {
        self.hold.of(generation) == Holding::Held
    }
}

/// A message's words, borrowed from the segment or from a model.
#[derive(Clone, Copy, Debug)]
pub struct MessageWords<'a> {
    life: &'a AtomicU64,
    ready: &'a AtomicU32,
}

impl<'a> MessageWords<'a> {
    /// Borrows the words.
    pub fn new(life: &'a AtomicU64, ready: &'a AtomicU32) -> Self {
        Self { life, ready }
    }

    /// The life word; `None` if it does not decode.
    pub fn life(&self) -> Option<Life> {
        Life::from_word(self.life.load(Ordering::Acquire))
    }

    /// FREE → LOANED by `owner`. The ready word says PENDING, so a stream may be told to write READY from now on. An entry in life 0, whose
    /// memory may have been given back, begins in life `first`.
    pub fn try_loan(&self, owner: u16, first: Generation) -> Option<Generation> {
        let found = self.life()?;
        if found.state != State::Free {
            return None;
        }
        let generation = if found.generation == Generation(0) { first } else { found.generation };
        if !self.change(found, Life { generation, owner, state: State::Loaned, ..found }) {
            return None;
        }
        self.ready.store(generation.0 << 2, Ordering::Relaxed);
        Some(generation)
    }

    /// LOANED → PUBLISHED, or PENDING if a stream writes the bytes. The caller has written everything else about the message, and reserves a
    /// queue slot for it afterwards. False if the entry is no longer this owner's loan.
    #[must_use]
    pub fn complete(&self, generation: Generation, owner: u16, state: State, kept: bool) -> bool {
        let loaned = Life { generation, owner, state: State::Loaned, kept: false, reclaiming: false };
        self.change(loaned, Life { state, kept, ..loaned })
    }

    /// LOANED → FREE in the same life, since no other process has seen the loan. Its owner gives it back, or the manager after the owner's death.
    pub fn give_back(&self, generation: Generation, owner: u16) -> bool {
        self.update(generation, |life| {
            let is_ours = life.state == State::Loaned && life.owner == owner;
            is_ours.then_some(Life { generation, owner: 0, state: State::Free, kept: false, reclaiming: false })
        })
    }

    /// The life that a queue slot names by its low bits, if the entry is still in it. A position before the one at which the owner joined
    /// belonged to an earlier owner, even if the low bits match.
    pub fn life_at(&self, position: u64, named: u16, joined: impl FnOnce(u16) -> Option<u64>) -> Option<Life> {
        let life = self.life()?;
        let is_it = life.generation.low() == named && life.is_complete();
        (is_it && joined(life.owner)? <= position).then_some(life)
    }

    /// Writes HELD: a subscriber begins to hold a message. False if the message is freed, or about to be.
    pub fn acquire(&self, hold: HoldWord<'_>, generation: Generation) -> bool {
        self.announce(hold, generation, Holding::Held)
    }

    /// Writes WANTED: a late joiner will read a message that history keeps. False if the message is freed, about to be, or no longer kept.
    pub fn want(&self, hold: HoldWord<'_>, generation: Generation) -> bool {
        let kept = |life: Option<Life>| life.is_some_and(|life| life.generation == generation && life.kept);
        if !kept(self.life()) || !self.announce(hold, generation, Holding::Wanted) {
            return false;
        }
        // A message that left history before its owner could see the announcement may be about to be freed.
        let stays = kept(self.life());
        if !stays {
            hold.withdraw(generation);
        }
        stays
    }

    fn announce(&self, hold: HoldWord<'_>, generation: Generation, holding: Holding) -> bool {
        let is_there =
            |life: Option<Life>| life.is_some_and(|life| life.generation == generation && life.can_be_held());
        if !is_there(self.life()) {
            return false;
        }
        hold.announce(generation, holding);
        let stays = is_there(self.life());
        if !stays {
            hold.withdraw(generation);
        }
        stays
    }

    /// Takes the message out of history: from now on no late joiner gets it. True if this call did so.
    pub fn leave_history(&self, generation: Generation) -> bool {
        self.update(generation, |life| life.kept.then_some(Life { kept: false, ..life }))
    }

    /// PENDING → POISONED: the stream will never write the bytes. True if this call did so.
    pub fn poison(&self, generation: Generation) -> bool {
        if self.ready.load(Ordering::Relaxed) == ready_word(generation) {
            return false;
        }
        let poisoned = self.update(generation, |life| {
            (life.state == State::Pending).then_some(Life { state: State::Poisoned, ..life })
        });
        // Ends the wait of streams, also if a manager poisoned the life word and died before it wrote this one. A stream that writes READY later
        // changes nothing: the life word decides.
        if self.readiness(generation) == Readiness::Poisoned {
            let pending = generation.0 << 2;
            let to = poisoned_word(generation);
            let _ = self.ready.compare_exchange(pending, to, Ordering::Relaxed, Ordering::Relaxed);
        }
        poisoned
    }

    /// For the manager, on a dead owner's message: takes it out of history, and poisons it if its bytes are not there.
    pub fn abandon(&self, generation: Generation) {
        self.leave_history(generation);
        self.poison(generation);
    }

    /// Whether history keeps this life of the message.
    pub fn in_history(&self, generation: Generation) -> bool {
        self.life().is_some_and(|life| life.generation == generation && life.kept)
    }

    /// Sets RECLAIMING, if history does not keep the message, no stream may still write its bytes, and no subscriber needs it. On true the caller
    /// frees the block and calls `finish`.
    ///
    /// `needs` says whether a subscriber needs the message. `is_held` is called after RECLAIMING is set, and says whether a subscriber has begun
    /// to hold it meanwhile.
    pub fn try_reclaim(
        &self,
        (generation, owner): (Generation, u16),
        _: PublishFence,
        needs: impl FnOnce() -> bool,
        is_held: impl FnOnce() -> bool,
    ) -> bool {
        let Some(found) = self.life() else { return false };
        let is_ours = found.generation == generation && found.owner == owner && found.can_be_held();
        if !is_ours || found.kept || self.readiness(generation) == Readiness::Pending {
            return false;
        }
        if needs() {
            return false;
        }
        let reclaiming = Life { reclaiming: true, ..found };
        if !self.change(found, reclaiming) {
            return false;
        }
        fence(Ordering::SeqCst);
        if is_held() {
            self.change(reclaiming, found);
            return false;
        }
        true
    }

    /// RECLAIMING → FREE in the next life.
    pub fn finish(&self, generation: Generation, owner: u16) -> bool {
        self.update(generation, |life| {
            (life.reclaiming && life.owner == owner).then_some(Life {
                generation: generation.next(),
                owner: 0,
                state: State::Free,
                kept: false,
                reclaiming: false,
            })
        })
    }

    /// Clears RECLAIMING: for the manager, after an owner died between setting it and `finish`.
    pub fn cancel_reclaim(&self, generation: Generation) {
        self.update(generation, |life| life.reclaiming.then_some(Life { reclaiming: false, ..life }));
    }

    /// Whether the bytes are there. `Pending` if the entry is in another life.
    pub fn readiness(&self, generation: Generation) -> Readiness {
        let life = self.life().filter(|life| life.generation == generation);
        match life.map(|life| life.state) {
            Some(State::Published) => Readiness::Ready,
            Some(State::Poisoned) => Readiness::Poisoned,
            Some(State::Pending) => match self.ready.load(Ordering::Acquire) {
                word if word == ready_word(generation) => Readiness::Ready,
                word if word == poisoned_word(generation) => Readiness::Poisoned,
                _ => Readiness::Pending,
            },
            Some(State::Free | State::Loaned) | None => Readiness::Pending,
        }
    }

    fn change(&self, from: Life, to: Life) -> bool {
        // Release is enough: `from` is this thread's own word, or was loaded by `life`, which acquires.
        self.life.compare_exchange(from.word(), to.word(), Ordering::Release, Ordering::Relaxed).is_ok()
    }

    /// Changes the word if it is in this life, and tries again if another thread changed it meanwhile: one of the owner's, or the manager. Each
    /// of them makes few changes in one life, so a few attempts are enough.
    fn update(&self, generation: Generation, to: impl Fn(Life) -> Option<Life>) -> bool {
        for _ in 0..8 {
            let Some(found) = self.life().filter(|life| life.generation == generation) else { return false };
            let Some(to) = to(found) else { return false };
            if self.change(found, to) {
                return true;
            }
        }
        false
    }
}

#[cfg(test)]
#[cfg(not(any(loom, shuttle)))]
mod tests {
    use super::*;

    struct Entry {
        life: AtomicU64,
        ready: AtomicU32,
        hold: AtomicU32,
        cursor: AtomicU64,
    }

    const KEEP_ALL: u64 = 0;

    impl Entry {
        fn new() -> Self {
            Self {
                life: AtomicU64::new(0),
                ready: AtomicU32::new(0),
                hold: AtomicU32::new(0),
                cursor: AtomicU64::new(0),
            }
        }

        fn words(&self) -> MessageWords<'_> {
            MessageWords::new(&self.life, &self.ready)
        }

        fn hold(&self) -> HoldWord<'_> {
            HoldWord(&self.hold)
        }

        fn reader(&self, depth: u64) -> ReaderWords<'_> {
            ReaderWords { cursor: &self.cursor, hold: self.hold(), joined: 0, depth }
        }

        fn published(&self, kept: bool) -> Generation {
            let generation = self.words().try_loan(3, Generation(0)).unwrap();
            assert!(self.words().complete(generation, 3, State::Published, kept));
            generation
        }

        /// Tries to reclaim position 0 of a queue that ends at `end` and has one reader.
        fn reclaim(&self, generation: Generation, depth: u64, end: u64, spared: Need) -> bool {
            let reader = self.reader(depth);
            self.words().try_reclaim(
                (generation, 3),
                PublishFence::pass(),
                || reader.need(0, generation, end) > spared,
                || reader.is_holding(generation),
            )
        }
    }

    #[test]
    fn a_message_is_freed_once_and_only_when_nobody_needs_it() {
        let entry = Entry::new();
        let generation = entry.published(true);
        assert!(!entry.reclaim(generation, KEEP_ALL, 1, Need::None), "history keeps it");
        assert!(entry.words().leave_history(generation) && !entry.words().leave_history(generation));
        assert!(!entry.reclaim(generation, KEEP_ALL, 100, Need::Soft), "a keep-all subscriber has not read it");
        assert!(!entry.reclaim(generation, 10, 10, Need::None), "it is among the last ten");
        assert!(entry.words().acquire(entry.hold(), generation));
        entry.cursor.store(1, Ordering::Release);
        assert!(!entry.reclaim(generation, 10, 100, Need::Soft), "it is held");
        entry.hold().release(generation);
        assert!(entry.reclaim(generation, KEEP_ALL, 1, Need::None));
        assert!(!entry.reclaim(generation, KEEP_ALL, 1, Need::None), "it is being freed");
        assert!(entry.words().finish(generation, 3) && !entry.words().finish(generation, 3));
    }

    #[test]
    fn unread_messages_older_than_the_depth_or_dropped_are_freed() {
        for (end, spared) in [(11, Need::None), (10, Need::Soft)] {
            let entry = Entry::new();
            let generation = entry.published(false);
            assert!(entry.reclaim(generation, 10, end, spared));
            assert!(!entry.words().acquire(entry.hold(), generation), "it is being freed");
            assert!(entry.words().finish(generation, 3));
            assert!(!entry.words().acquire(entry.hold(), generation));
        }
    }

    #[test]
    fn words_of_an_old_life_change_nothing() {
        let entry = Entry::new();
        let old = entry.published(false);
        assert!(entry.words().acquire(entry.hold(), old));
        entry.hold().release(old);
        assert!(entry.reclaim(old, KEEP_ALL, 1, Need::None) && entry.words().finish(old, 3));
        let new = entry.published(true);
        assert!(entry.words().acquire(entry.hold(), new));
        entry.hold().release(old);
        assert_eq!(entry.hold().of(new), Holding::Held);
        assert!(!entry.words().leave_history(old) && !entry.words().poison(old) && !entry.words().finish(old, 3));
        assert!(!entry.words().give_back(old, 3) && !entry.words().complete(old, 3, State::Published, false));
        assert!(!entry.words().want(entry.hold(), old));
        assert!(!entry.words().acquire(entry.hold(), old));
    }

    #[test]
    fn a_stream_that_writes_a_hold_word_releases() {
        let entry = Entry::new();
        let generation = entry.published(false);
        assert!(entry.words().acquire(entry.hold(), generation));
        entry.hold.store(released_word(generation), Ordering::Release);
        assert_eq!(entry.hold().of(generation), Holding::Released);
        assert!(entry.reclaim(generation, KEEP_ALL, 1, Need::None));
    }

    #[test]
    fn a_late_joiner_gets_a_message_only_while_history_keeps_it() {
        let entry = Entry::new();
        let generation = entry.published(true);
        assert!(entry.words().want(entry.hold(), generation));
        entry.words().leave_history(generation);
        entry.cursor.store(1, Ordering::Release);
        assert!(!entry.reclaim(generation, 10, 1, Need::None), "it is wanted");
        assert!(entry.reclaim(generation, 10, 1, Need::Soft), "unless its space is needed");
        let late = |joined, depth| ReaderWords { joined, ..entry.reader(depth) };
        assert!(entry.hold().of(generation) == Holding::Wanted);
        assert_eq!(late(1, KEEP_ALL).need(0, generation, 100), Need::Hard, "a keep-all subscriber gets it in any case");
        assert_eq!(late(1, 10).need(0, generation, 10), Need::Soft);
        assert_eq!(late(1, 10).need(0, generation, 11), Need::None, "ten were published since");
        assert_eq!(late(JOINING, 10).need(0, generation, 100), Need::Soft, "when it joined is not known yet");
        let other = Entry::new();
        let generation = other.published(false);
        assert!(!other.words().want(other.hold(), generation));
        assert_eq!(other.hold().of(generation), Holding::None);
    }

    #[test]
    fn a_message_whose_bytes_never_came_is_poisoned_and_then_reclaimable() {
        let entry = Entry::new();
        let words = entry.words();
        let generation = words.try_loan(3, Generation(0)).unwrap();
        assert!(words.complete(generation, 3, State::Pending, false));
        entry.cursor.store(1, Ordering::Release);
        assert_eq!(words.readiness(generation), Readiness::Pending);
        assert!(!entry.reclaim(generation, 10, 1, Need::Soft), "a stream may still write into its block");
        assert!(words.poison(generation) && !words.poison(generation));
        entry.ready.store(ready_word(generation), Ordering::Release);
        assert_eq!(words.readiness(generation), Readiness::Poisoned, "a stream that gets there later changes nothing");
        assert!(entry.reclaim(generation, 10, 1, Need::None));
    }

    #[test]
    fn a_loan_that_is_given_back_begins_no_new_life() {
        let entry = Entry::new();
        let generation = entry.words().try_loan(3, Generation(0)).unwrap();
        assert!(!entry.words().give_back(generation, 4), "another's");
        assert!(entry.words().give_back(generation, 3));
        assert_eq!(entry.words().try_loan(9, Generation(0)), Some(generation));
    }

    #[test]
    fn a_queue_slot_names_a_complete_life_of_the_owner_at_that_position() {
        let entry = Entry::new();
        let words = entry.words();
        let generation = words.try_loan(3, Generation(0x1_0007)).unwrap();
        let at = |position, named| words.life_at(position, named, |owner| (owner == 3).then_some(5)).is_some();
        assert!(!at(5, 7), "it is not complete");
        assert!(words.complete(generation, 3, State::Published, false));
        assert!(at(5, 7) && at(6, 7));
        assert!(!at(5, 8), "another life");
        assert!(!at(4, 7), "its owner joined later");
        assert_eq!(words.life_at(5, 7, |_| None), None);
    }

    #[test]
    fn giving_up_a_message_changes_no_held_word_and_no_later_one() {
        let entry = Entry::new();
        let (hold, word) = (entry.hold(), |generation, holding| hold_word(Generation(generation), holding));
        let after = |found: u32, passed: u32| {
            entry.hold.store(found, Ordering::Relaxed);
            hold.pass(Generation(passed));
            entry.hold.load(Ordering::Relaxed)
        };
        assert_eq!(after(0, 5), word(5, Holding::Released));
        assert_eq!(after(word(5, Holding::Wanted), 5), word(5, Holding::Released));
        assert_eq!(after(word(4, Holding::Released), 5), word(5, Holding::Released));
        assert_eq!(after(word(u32::MAX, Holding::Released), 0), word(0, Holding::Released));
        for kept in [word(5, Holding::Held), word(4, Holding::Held), word(6, Holding::Held), word(6, Holding::Released)]
        {
            assert_eq!(after(kept, 5), kept);
        }
        hold.withdraw(Generation(5));
        assert_eq!(hold.of(Generation(5)), Holding::Released);
    }

    #[test]
    fn a_message_that_cannot_be_held_is_not_announced() {
        let entry = Entry::new();
        let generation = entry.words().try_loan(3, Generation(0)).unwrap();
        let is_refused = || !entry.words().acquire(entry.hold(), generation) && entry.hold.load(Ordering::Relaxed) == 0;
        assert!(is_refused(), "it is a loan");
        assert!(entry.words().complete(generation, 3, State::Published, false));
        assert!(!entry.words().acquire(entry.hold(), generation.next()) && entry.hold.load(Ordering::Relaxed) == 0);
        assert!(!entry.words().want(entry.hold(), generation) && entry.hold.load(Ordering::Relaxed) == 0);
        assert!(entry.reclaim(generation, 10, 1, Need::Soft));
        assert!(is_refused(), "it is being freed");
    }

    #[test]
    fn only_its_owner_frees_a_message_and_only_after_marking_it() {
        let entry = Entry::new();
        let words = entry.words();
        let generation = entry.published(true);
        let life = words.life();
        let reclaim =
            |(generation, owner)| words.try_reclaim((generation, owner), PublishFence::pass(), || false, || false);
        assert!(words.in_history(generation) && !words.in_history(generation.next()));
        assert!(!reclaim((generation, 3)), "history keeps it");
        assert!(words.leave_history(generation) && !words.in_history(generation));
        assert!(!reclaim((generation, 4)) && !reclaim((generation.next(), 3)), "another's, or of another life");
        assert!(!words.give_back(generation, 3) && !words.finish(generation, 3), "it is no loan, and not marked");
        assert_eq!(words.try_loan(3, Generation(0)), None, "it is not free");
        assert!(reclaim((generation, 3)) && !reclaim((generation, 3)));
        assert!(!words.finish(generation, 4), "another's");
        words.cancel_reclaim(generation);
        assert_eq!(words.life(), life.map(|life| Life { kept: false, ..life }));
        words.cancel_reclaim(generation);
        assert!(!words.finish(generation, 3), "it is as it was before");
        assert!(!reclaim((generation, 4)));
        let free = Entry::new();
        assert!(!free.words().try_reclaim((Generation(0), 0), PublishFence::pass(), || false, || false));
    }

    #[test]
    fn only_messages_whose_bytes_are_pending_are_poisoned() {
        let entry = Entry::new();
        let words = entry.words();
        let generation = entry.published(true);
        assert!(!words.poison(generation) && words.readiness(generation) == Readiness::Ready);
        assert_eq!(words.readiness(generation.next()), Readiness::Pending);
        words.abandon(generation);
        assert_eq!((words.readiness(generation), words.in_history(generation)), (Readiness::Ready, false));
        assert_eq!(entry.ready.load(Ordering::Relaxed), generation.0 << 2, "no stream writes or waits for its word");
        let other = Entry::new();
        let words = other.words();
        let generation = words.try_loan(3, Generation(4)).unwrap();
        assert!(words.complete(generation, 3, State::Pending, false));
        assert_eq!(words.readiness(generation.next()), Readiness::Pending);
        // The ready word may be seen before the life word.
        other.ready.store(poisoned_word(generation), Ordering::Relaxed);
        assert_eq!(words.readiness(generation), Readiness::Poisoned);
        // Written late by a stream of an earlier life.
        other.ready.store(ready_word(Generation(3)), Ordering::Relaxed);
        assert_eq!(words.readiness(generation), Readiness::Pending);
        other.ready.store(ready_word(generation), Ordering::Relaxed);
        assert!(!words.poison(generation) && words.readiness(generation) == Readiness::Ready);
        words.abandon(generation);
        assert_eq!(words.readiness(generation), Readiness::Ready);
        let again = Entry::new();
        again.ready.store(ready_word(Generation(4)), Ordering::Relaxed);
        let words = again.words();
        let generation = words.try_loan(3, Generation(5)).unwrap();
        assert!(words.complete(generation, 3, State::Pending, false) && words.poison(generation));
        assert_eq!(again.ready.load(Ordering::Relaxed), poisoned_word(generation), "streams that wait go on");
        again.ready.store(generation.0 << 2, Ordering::Relaxed);
        words.abandon(generation);
        assert_eq!(words.readiness(generation), Readiness::Poisoned);
        assert_eq!(again.ready.load(Ordering::Relaxed), poisoned_word(generation), "a manager died in between");
    }

    #[test]
    fn a_subscriber_needs_nothing_from_before_it_joined_unless_it_wants_it() {
        let entry = Entry::new();
        let reader = ReaderWords { joined: 5, ..entry.reader(KEEP_ALL) };
        assert_eq!(reader.need(4, Generation(1), 10), Need::None);
        assert_eq!(reader.need(5, Generation(1), 10), Need::Hard);
        entry.hold.store(hold_word(Generation(1), Holding::Wanted), Ordering::Relaxed);
        assert_eq!(reader.need(4, Generation(1), 10), Need::Hard);
        assert_eq!(ReaderWords { depth: 6, ..reader }.need(4, Generation(1), 10), Need::Soft);
        assert_eq!(reader.need(4, Generation(2), 10), Need::None, "another life");
        entry.hold.store(hold_word(Generation(1), Holding::Held), Ordering::Relaxed);
        assert_eq!(reader.need(4, Generation(1), 10), Need::Hard);
    }

    /// A block that is not atomic, so that Miri sees races on it.
    struct Block(std::cell::UnsafeCell<u64>);

    // SAFETY: a thread touches the block while it holds its message, or owns the message while no reader holds it.
    unsafe impl Sync for Block {}

    fn until<T>(mut look: impl FnMut() -> Option<T>) -> T {
        let found = (0..1 << 24).find_map(|_| {
            look().or_else(|| {
                std::thread::yield_now();
                None
            })
        });
        found.expect("another thread went on")
    }

    #[test]
    fn two_readers_and_an_owner_share_one_entry_through_many_lives() {
        let lives = if cfg!(miri) { 6 } else { 2000 };
        let entries = [Entry::new(), Entry::new()];
        let (life, ready) = (&entries[0].life, &entries[0].ready);
        let words = MessageWords::new(life, ready);
        let (tail, slots) = (AtomicU64::new(0), [AtomicU64::new(0), AtomicU64::new(0)]);
        let queue = crate::words::queue::Queue::new(&tail, &slots);
        let block = Block(std::cell::UnsafeCell::new(0));
        let block = &block;
        let readers = || entries.iter().map(|entry| entry.reader(KEEP_ALL));
        std::thread::scope(|scope| {
            for entry in &entries {
                scope.spawn(move || {
                    for position in 0..lives {
                        let named = until(|| match queue.read(crate::words::queue::Position(position)) {
                            crate::words::queue::Slot::Message(named) => Some(named),
                            _ => None,
                        });
                        let found = words.life_at(position, named.generation, |_| Some(0)).unwrap();
                        assert!(words.acquire(entry.hold(), found.generation));
                        // SAFETY: the message is held.
                        assert_eq!(unsafe { *block.0.get() }, position);
                        entry.hold().release(found.generation);
                        entry.cursor.store(position + 1, Ordering::Release);
                    }
                });
            }
            for number in 0..lives {
                let generation = words.try_loan(3, Generation(0)).unwrap();
                // SAFETY: the entry is a loan.
                unsafe { *block.0.get() = number };
                assert!(words.complete(generation, 3, State::Published, false));
                let named = crate::words::queue::Named {
                    message: crate::words::queue::MessageIndex(0),
                    generation: generation.low(),
                };
                queue.publish(named).unwrap();
                let needs = || readers().any(|reader| reader.need(number, generation, number + 1) > Need::None);
                let is_held = || readers().any(|reader| reader.is_holding(generation));
                until(|| words.try_reclaim((generation, 3), PublishFence::pass(), needs, is_held).then_some(()));
                // SAFETY: no reader holds the message, and none can begin to.
                unsafe { *block.0.get() = u64::MAX };
                assert!(words.finish(generation, 3));
            }
        });
    }

    #[test]
    fn an_entry_whose_memory_was_given_back_begins_after_all_its_lives() {
        let entry = Entry::new();
        assert_eq!(entry.words().try_loan(3, Generation(7)), Some(Generation(7)));
        assert!(entry.words().give_back(Generation(7), 3));
        assert_eq!(entry.words().try_loan(3, Generation(6)), Some(Generation(7)));
        assert_eq!(Generation(u32::MAX).later(Generation(1)), Generation(1));
        let old = Entry::new();
        let life =
            Life { generation: Generation(1 << 31 | 1), owner: 0, state: State::Free, kept: false, reclaiming: false };
        old.life.store(life.word(), Ordering::Relaxed);
        assert_eq!(old.words().try_loan(3, Generation(0)), Some(life.generation), "after half of all lives");
    }
}
