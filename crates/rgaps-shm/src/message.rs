//! Messages: who may read one, and who frees its block.
//!
//! ```text
//!   FREE ──loan──▶ LOANED ──complete──▶ PUBLISHED ──every holder let go──▶ RECLAIMING(owner) ──▶ FREE, generation + 1
//!
//!   holder word of subscriber s, in one life of the message:
//!
//!   FREE ──writer, or a late joiner while history is set──▶ PENDING ──take──▶ HELD ──drop──▶ RELEASED
//!                                                            └───────revoke (keep-last)──────▶ RELEASED
//!   RELEASED ──the same subscriber, while history is set──▶ PENDING
//! ```
//!
//! Words       `life`: generation, owner, state; by the owner, or by the manager once the owner is dead. `ready`: by the producer,
//!             or POISONED by the manager. `history`: set at birth, let go once, by the owner or the manager. `holder[s]`: the whole
//!             word by compare-exchange, or by the holder's stream, which writes RELEASED (the low half is enough).
//! Invariants  M1 a word of an old generation changes nothing. M2 a block is freed once, by whoever won RECLAIMING.
//!             M3 HELD is never revoked. M4 a message that a subscriber claimed is not reclaimed under it.
//! Deaths      A dead subscriber's words count as released at once, because its slot's generation has moved on. A dead owner's
//!             messages are finished by the manager (janitor.rs).
//! Trusts      nothing: words are compared whole; what does not fit is left alone.
//! Shown by    loom_message (M2 to M4), the tests below (M1).
//!
//! M4 with a late joiner is Dekker's argument: the joiner writes PENDING, then reads `history`; the reclaimer clears `history`,
//! then reads the holder words. With a sequentially consistent fence between, at least one of them sees the other.

use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};

/// Subscribers of one topic on one host, and holder words of a message.
pub const SUBSCRIBERS_MAX: usize = 64;

/// One life of a table entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Generation(pub u32);

impl Generation {
    /// What a queue slot keeps of it.
    pub fn low(self) -> u16 {
        self.0 as u16
    }

    /// The next life.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0.wrapping_add(1))
    }
}

/// One occupation of a subscriber slot. Only the low 30 bits count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tenancy(u32);

impl Tenancy {
    /// Keeps the low 30 bits.
    pub fn new(generation: u32) -> Self {
        Self(generation & TENANCY_MASK)
    }

    /// The 30 bits.
    pub fn bits(self) -> u32 {
        self.0
    }

    /// The next occupation of the slot.
    #[must_use]
    pub fn next(self) -> Self {
        Self::new(self.0.wrapping_add(1))
    }
}

const TENANCY_MASK: u32 = (1 << 30) - 1;

/// State of a table entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Nobody's.
    Free,
    /// Being filled by its owner.
    Loaned,
    /// Complete.
    Published,
    /// Its block is being freed.
    Reclaiming,
}

/// The `life` word, taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Life {
    /// Which life.
    pub generation: Generation,
    /// The owner's publisher slot.
    pub owner: u8,
    /// The state.
    pub state: State,
}

impl Life {
    fn word(self) -> u64 {
        let state = match self.state {
            State::Free => 0,
            State::Loaned => 1,
            State::Published => 2,
            State::Reclaiming => 3,
        };
        u64::from(self.generation.0) << 32 | u64::from(self.owner) << 8 | state
    }

    fn from_word(word: u64) -> Option<Self> {
        let state = match word & 0xff {
            0 => State::Free,
            1 => State::Loaned,
            2 => State::Published,
            3 => State::Reclaiming,
            _ => return None,
        };
        Some(Self { generation: Generation((word >> 32) as u32), owner: (word >> 8) as u8, state })
    }
}

/// State of a holder word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holding {
    /// The message was not published to this subscriber.
    Free,
    /// It waits for this subscriber.
    Pending,
    /// The subscriber reads it.
    Held,
    /// The subscriber is done, or was too slow.
    Released,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Holder {
    generation: Generation,
    tenancy: Tenancy,
    state: Holding,
}

impl Holder {
    fn word(self) -> u64 {
        let state = match self.state {
            Holding::Free => 0,
            Holding::Pending => 1,
            Holding::Held => 2,
            Holding::Released => 3,
        };
        u64::from(self.generation.0) << 32 | u64::from(self.tenancy.0) << 2 | state
    }

    fn from_word(word: u64) -> Self {
        let state = match word & 3 {
            0 => Holding::Free,
            1 => Holding::Pending,
            2 => Holding::Held,
            _ => Holding::Released,
        };
        Self { generation: Generation((word >> 32) as u32), tenancy: Tenancy::new((word >> 2) as u32), state }
    }
}

/// Whether a message's bytes are there. A GPU's stream waits for `word & 3 != 0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// The producer's stream has not got there yet.
    Pending,
    /// The bytes are there.
    Ready,
    /// The producer died before they were; they must not be used.
    Poisoned,
}

/// The value of the readiness word that means READY in one life: the low 30 bits of the generation above two bits of state.
pub fn ready_word(generation: Generation) -> u32 {
    generation.0 << 2 | 1
}

/// What a stream writes over the low half of a held message's holder word to let it go.
pub fn released_word(tenancy: Tenancy) -> u32 {
    tenancy.0 << 2 | 3
}

/// How a claim ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// The caller holds the message, in this life.
    Held(Generation),
    /// It was revoked, released before, or never meant for the caller.
    NotYours,
}

/// A message's words, borrowed from whoever lays them out.
#[derive(Clone, Copy, Debug)]
pub struct MessageWords<'a> {
    life: &'a AtomicU64,
    ready: &'a AtomicU32,
    history: &'a AtomicU64,
    holders: &'a [AtomicU64],
}

impl<'a> MessageWords<'a> {
    /// Borrows the words; `holders` has one a subscriber slot.
    pub fn new(life: &'a AtomicU64, ready: &'a AtomicU32, history: &'a AtomicU64, holders: &'a [AtomicU64]) -> Self {
        Self { life, ready, history, holders }
    }

    /// The life word; `None` if it holds no state.
    pub fn life(&self) -> Option<Life> {
        Life::from_word(self.life.load(Ordering::Acquire))
    }

    /// FREE → LOANED by `owner`, its bytes not there: from now on a stream may be told to write that they are.
    pub fn try_loan(&self, owner: u8) -> Option<Generation> {
        let found = self.life()?;
        if found.state != State::Free {
            return None;
        }
        let loaned = Life { owner, state: State::Loaned, ..found };
        if !self.change_life(found, loaned) {
            return None;
        }
        self.ready.store(found.generation.0 << 2, Ordering::Relaxed);
        Some(found.generation)
    }

    /// Lays out the holder words of a loaned message: PENDING for each listed subscriber, FREE for the others; sets history.
    pub fn address_to(&self, generation: Generation, tenants: impl Fn(usize) -> Option<Tenancy>) {
        for (slot, word) in self.holders.iter().enumerate() {
            let holder = match tenants(slot) {
                Some(tenancy) => Holder { generation, tenancy, state: Holding::Pending },
                None => Holder { generation, tenancy: Tenancy::new(0), state: Holding::Free },
            };
            word.store(holder.word(), Ordering::Relaxed);
        }
        self.history.store(history_word(generation, true), Ordering::Relaxed);
    }

    /// LOANED → PUBLISHED: everything about the message is written. Comes before its queue slot is claimed.
    pub fn complete(&self, generation: Generation, owner: u8) -> bool {
        let loaned = Life { generation, owner, state: State::Loaned };
        self.change_life(loaned, Life { state: State::Published, ..loaned })
    }

    /// LOANED → FREE, a loan given back or found with a dead owner.
    pub fn give_back(&self, generation: Generation, owner: u8) -> bool {
        let loaned = Life { generation, owner, state: State::Loaned };
        self.change_life(loaned, Life { generation: generation.next(), owner: 0, state: State::Free })
    }

    /// FREE → PENDING by the writer, for a subscriber that it saw only after the claim of the queue slot.
    pub fn offer(&self, slot: usize, generation: Generation, tenancy: Tenancy) -> bool {
        let Some(word) = self.holders.get(slot) else { return false };
        let found = word.load(Ordering::Acquire);
        let holder = Holder::from_word(found);
        if holder.generation != generation || !is_open_to(holder, tenancy) {
            return false;
        }
        let pending = Holder { generation, tenancy, state: Holding::Pending }.word();
        word.compare_exchange(found, pending, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// PENDING → HELD by the subscriber, for the message that a queue slot names.
    pub fn claim(&self, slot: usize, named: u16, tenancy: Tenancy) -> Claim {
        let Some(word) = self.holders.get(slot) else { return Claim::NotYours };
        let found = word.load(Ordering::Acquire);
        let holder = Holder::from_word(found);
        if holder.generation.low() != named {
            return Claim::NotYours;
        }
        let generation = holder.generation;
        if holder.tenancy == tenancy && holder.state == Holding::Pending {
            return self.hold(word, generation, tenancy);
        }
        // The writer died, or stopped, before it had seen us: claim it ourselves, as a late joiner does.
        if is_open_to(holder, tenancy) && self.join_late(slot, generation, tenancy) {
            return self.hold(word, generation, tenancy);
        }
        Claim::NotYours
    }

    /// FREE → PENDING by a late joiner, which lasts only if history still keeps the message.
    pub fn join_late(&self, slot: usize, generation: Generation, tenancy: Tenancy) -> bool {
        self.offer(slot, generation, tenancy) && self.is_still_kept(slot, generation, tenancy)
    }

    /// RELEASED → PENDING by a subscriber that wants a message of history once more. Lasts as long as for a late joiner.
    pub fn join_again(&self, slot: usize, generation: Generation, tenancy: Tenancy) -> bool {
        let Some(word) = self.holders.get(slot) else { return false };
        let released = Holder { generation, tenancy, state: Holding::Released };
        let pending = Holder { state: Holding::Pending, ..released };
        let joined = word.compare_exchange(released.word(), pending.word(), Ordering::AcqRel, Ordering::Relaxed);
        joined.is_ok() && self.is_still_kept(slot, generation, tenancy)
    }

    /// M4's second half: what was written PENDING stays so only if history still keeps the message.
    fn is_still_kept(&self, slot: usize, generation: Generation, tenancy: Tenancy) -> bool {
        fence(Ordering::SeqCst);
        let kept = self.history.load(Ordering::Acquire) == history_word(generation, true)
            && self.life().is_some_and(|life| life.generation == generation && life.state == State::Published);
        if !kept {
            self.revoke(slot, generation, tenancy);
        }
        kept
    }

    /// PENDING → RELEASED: the subscriber was too slow, or is leaving. True if this call did it.
    pub fn revoke(&self, slot: usize, generation: Generation, tenancy: Tenancy) -> bool {
        self.let_go(slot, generation, tenancy, Holding::Pending)
    }

    /// HELD → RELEASED by the holder. True if this call did it.
    pub fn release(&self, slot: usize, generation: Generation, tenancy: Tenancy) -> bool {
        self.let_go(slot, generation, tenancy, Holding::Held)
    }

    /// What a holder word says of this life and tenancy.
    pub fn holding(&self, slot: usize, generation: Generation, tenancy: Tenancy) -> Holding {
        let Some(word) = self.holders.get(slot) else { return Holding::Free };
        let holder = Holder::from_word(word.load(Ordering::Acquire));
        if holder.generation == generation && holder.tenancy == tenancy { holder.state } else { Holding::Free }
    }

    /// History lets the message go; from now on no late joiner gets it. True if this call did it.
    pub fn leave_history(&self, generation: Generation) -> bool {
        let kept = history_word(generation, true);
        let gone = history_word(generation, false);
        self.history.compare_exchange(kept, gone, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// By the manager, for a dead owner's message: history lets it go, and if its bytes are not there they never will be, whatever the
    /// owner left in these words.
    pub fn abandon(&self, generation: Generation) {
        self.history.store(history_word(generation, false), Ordering::Release);
        if self.readiness(generation) == Readiness::Pending {
            self.ready.store(generation.0 << 2 | 2, Ordering::Release);
        }
    }

    /// Whether history keeps this life of the message.
    pub fn in_history(&self, generation: Generation) -> bool {
        self.history.load(Ordering::Acquire) == history_word(generation, true)
    }

    /// PUBLISHED → RECLAIMING, if every holder has let go. The caller then frees the block and calls `finish`.
    pub fn try_reclaim(&self, generation: Generation, owner: u8, tenant: impl Fn(usize) -> Option<Tenancy>) -> bool {
        if self.history.load(Ordering::Acquire) != history_word(generation, false) {
            return false;
        }
        if self.readiness(generation) == Readiness::Pending {
            return false;
        }
        fence(Ordering::SeqCst);
        for (slot, word) in self.holders.iter().enumerate() {
            let holder = Holder::from_word(word.load(Ordering::Acquire));
            let busy = matches!(holder.state, Holding::Pending | Holding::Held) && holder.generation == generation;
            if busy && tenant(slot) == Some(holder.tenancy) {
                return false;
            }
        }
        let published = Life { generation, owner, state: State::Published };
        self.change_life(published, Life { state: State::Reclaiming, ..published })
    }

    /// RECLAIMING → FREE, in the next life.
    pub fn finish(&self, generation: Generation, owner: u8) -> bool {
        let reclaiming = Life { generation, owner, state: State::Reclaiming };
        self.change_life(reclaiming, Life { generation: generation.next(), owner: 0, state: State::Free })
    }

    /// Whether the bytes are there. A word of another life reads as pending.
    pub fn readiness(&self, generation: Generation) -> Readiness {
        let word = self.ready.load(Ordering::Acquire);
        match (word >> 2 == generation.0 << 2 >> 2, word & 3) {
            (true, 1) => Readiness::Ready,
            (true, 0) | (false, _) => Readiness::Pending,
            (true, _) => Readiness::Poisoned,
        }
    }

    /// The producer says that the bytes are there.
    pub fn make_ready(&self, generation: Generation) {
        self.ready.store(ready_word(generation), Ordering::Release);
    }

    /// The manager says that they never will be. True if this call did it.
    pub fn poison(&self, generation: Generation) -> bool {
        let pending = generation.0 << 2;
        self.ready.compare_exchange(pending, pending | 2, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    fn hold(&self, word: &AtomicU64, generation: Generation, tenancy: Tenancy) -> Claim {
        let pending = Holder { generation, tenancy, state: Holding::Pending };
        let held = Holder { state: Holding::Held, ..pending };
        match word.compare_exchange(pending.word(), held.word(), Ordering::AcqRel, Ordering::Relaxed) {
            Ok(_) => Claim::Held(generation),
            Err(_) => Claim::NotYours,
        }
    }

    fn let_go(&self, slot: usize, generation: Generation, tenancy: Tenancy, from: Holding) -> bool {
        let Some(word) = self.holders.get(slot) else { return false };
        let found = Holder { generation, tenancy, state: from };
        let released = Holder { state: Holding::Released, ..found };
        word.compare_exchange(found.word(), released.word(), Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    fn change_life(&self, from: Life, to: Life) -> bool {
        self.life.compare_exchange(from.word(), to.word(), Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
}

/// Open to a subscriber: never addressed to anyone in this slot, or to a former tenant of it.
fn is_open_to(holder: Holder, tenancy: Tenancy) -> bool {
    holder.state == Holding::Free || holder.tenancy != tenancy
}

fn history_word(generation: Generation, kept: bool) -> u64 {
    u64::from(generation.0) << 32 | u64::from(kept)
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    struct Entry {
        life: AtomicU64,
        ready: AtomicU32,
        history: AtomicU64,
        holders: Vec<AtomicU64>,
    }

    impl Entry {
        fn new() -> Self {
            Self {
                life: AtomicU64::new(0),
                ready: AtomicU32::new(0),
                history: AtomicU64::new(0),
                holders: (0..SUBSCRIBERS_MAX).map(|_| AtomicU64::new(0)).collect(),
            }
        }

        fn words(&self) -> MessageWords<'_> {
            MessageWords::new(&self.life, &self.ready, &self.history, &self.holders)
        }

        fn published_to(&self, owner: u8, slots: &[usize]) -> Generation {
            let words = self.words();
            let generation = words.try_loan(owner).unwrap();
            words.address_to(generation, |slot| slots.contains(&slot).then_some(Tenancy::new(1)));
            words.make_ready(generation);
            assert!(words.complete(generation, owner));
            generation
        }
    }

    fn tenant(_: usize) -> Option<Tenancy> {
        Some(Tenancy::new(1))
    }

    #[test]
    fn a_block_is_freed_once_when_two_holders_let_go() {
        let entry = Entry::new();
        let words = entry.words();
        let generation = entry.published_to(3, &[0, 5]);
        words.leave_history(generation);
        assert_eq!(words.claim(0, generation.low(), Tenancy::new(1)), Claim::Held(generation));
        assert_eq!(words.claim(5, generation.low(), Tenancy::new(1)), Claim::Held(generation));
        assert!(words.release(0, generation, Tenancy::new(1)));
        assert!(!words.try_reclaim(generation, 3, tenant));
        assert!(words.release(5, generation, Tenancy::new(1)));
        assert!(words.try_reclaim(generation, 3, tenant));
        assert!(!words.try_reclaim(generation, 3, tenant));
        assert!(words.finish(generation, 3));
        assert!(!words.finish(generation, 3));
    }

    #[test]
    fn held_is_never_revoked_and_pending_is() {
        let entry = Entry::new();
        let words = entry.words();
        let generation = entry.published_to(0, &[1, 2]);
        words.claim(1, generation.low(), Tenancy::new(1));
        assert!(!words.revoke(1, generation, Tenancy::new(1)));
        assert!(words.revoke(2, generation, Tenancy::new(1)));
        assert_eq!(words.claim(2, generation.low(), Tenancy::new(1)), Claim::NotYours);
    }

    #[test]
    fn words_of_an_old_life_change_nothing() {
        let entry = Entry::new();
        let words = entry.words();
        let old = entry.published_to(0, &[1]);
        words.leave_history(old);
        words.claim(1, old.low(), Tenancy::new(1));
        words.release(1, old, Tenancy::new(1));
        assert!(words.try_reclaim(old, 0, tenant) && words.finish(old, 0));
        let new = entry.published_to(0, &[1]);
        assert!(!words.revoke(1, old, Tenancy::new(1)));
        assert!(!words.release(1, old, Tenancy::new(1)));
        assert!(!words.leave_history(old));
        assert!(!words.poison(old));
        assert_eq!(words.claim(1, old.low(), Tenancy::new(1)), Claim::NotYours);
        assert_eq!(words.claim(1, new.low(), Tenancy::new(1)), Claim::Held(new));
    }

    #[test]
    fn a_dead_subscribers_words_count_as_released() {
        let entry = Entry::new();
        let words = entry.words();
        let generation = entry.published_to(0, &[1]);
        words.leave_history(generation);
        words.claim(1, generation.low(), Tenancy::new(1));
        assert!(!words.try_reclaim(generation, 0, tenant));
        assert!(words.try_reclaim(generation, 0, |_| Some(Tenancy::new(2))));
    }

    #[test]
    fn a_stream_that_writes_the_low_half_of_a_holder_word_releases() {
        let entry = Entry::new();
        let words = entry.words();
        let generation = entry.published_to(0, &[2]);
        words.leave_history(generation);
        words.claim(2, generation.low(), Tenancy::new(1));
        let low = u64::from(released_word(Tenancy::new(1)));
        words.holders[2].store(u64::from(generation.0) << 32 | low, Ordering::Release);
        assert_eq!(words.holding(2, generation, Tenancy::new(1)), Holding::Released);
        assert!(!words.release(2, generation, Tenancy::new(1)), "it is released already");
        assert!(words.try_reclaim(generation, 0, tenant));
    }

    #[test]
    fn a_late_joiner_gets_a_message_only_while_history_keeps_it() {
        let entry = Entry::new();
        let words = entry.words();
        let generation = entry.published_to(0, &[]);
        assert!(words.join_late(4, generation, Tenancy::new(9)));
        words.leave_history(generation);
        assert!(!words.join_late(5, generation, Tenancy::new(9)));
        assert_eq!(words.holding(5, generation, Tenancy::new(9)), Holding::Released);
        assert!(!words.try_reclaim(generation, 0, |_| Some(Tenancy::new(9))));
    }

    #[test]
    fn what_was_released_is_had_again_only_while_history_keeps_it() {
        let entry = Entry::new();
        let words = entry.words();
        let generation = entry.published_to(0, &[4, 5]);
        assert!(!words.join_again(4, generation, Tenancy::new(1)), "it is pending");
        for slot in [4, 5] {
            assert!(words.revoke(slot, generation, Tenancy::new(1)));
        }
        assert!(!words.join_again(4, generation, Tenancy::new(2)), "another's");
        assert!(words.join_again(4, generation, Tenancy::new(1)));
        words.leave_history(generation);
        assert!(!words.join_again(5, generation, Tenancy::new(1)));
        assert!(!words.try_reclaim(generation, 0, tenant));
        assert_eq!(words.claim(4, generation.low(), Tenancy::new(1)), Claim::Held(generation));
        assert!(words.release(4, generation, Tenancy::new(1)));
        assert!(words.try_reclaim(generation, 0, tenant));
    }

    #[test]
    fn a_message_whose_bytes_never_came_is_poisoned_and_then_reclaimable() {
        let entry = Entry::new();
        let words = entry.words();
        let generation = words.try_loan(2).unwrap();
        words.address_to(generation, |_| None);
        words.complete(generation, 2);
        words.leave_history(generation);
        assert!(!words.try_reclaim(generation, 2, tenant));
        assert!(words.poison(generation));
        assert_eq!(words.readiness(generation), Readiness::Poisoned);
        assert!(words.try_reclaim(generation, 2, tenant));
    }
}
