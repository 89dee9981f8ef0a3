//! A subscriber's port: takes messages that are ready, holds them, and releases them.
//!
//! ```text
//!   queue   ── older than the depth, or freed: lost ──▶ │ cursor ──▶ [ waits ][ given out by name ][ waits ] ... end
//!   backlog [ messages that history keeps from before it joined: WANTED ]
//! ```
//!
//! A reader walks the queue from the position at which it joined. It detects by itself which messages it is too late for, and counts them as
//! lost. It never frees a message, takes no lock in shared memory, writes only its own words, and reads the block in place.
//!
//! Invariants  R1 every position from `joined` on is taken (poisoned ones, too), counted as lost, or skipped: a message that is published again,
//!             for subscribers that joined later (`since`), or another host's history (`is_history`, `history_since`). R2 the cursor moves past a message only after the message is held or given up.
//! Deaths      at take.held or while messages are held: the manager frees the slot. From then on no publisher reads this reader's words, so it
//!             holds nothing.
//! Trusts      nothing: block offsets and lengths are checked here, or by the mapping of the payload.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::crash;
use crate::info::MessageInfo;
use crate::layout::{SlotState, SubscriberRecord, SubscriberWords};
use crate::notify::{FutexWait, wake_waiting_publishers};
use crate::pages::SubscriberPages;
use crate::reader::held::{Held, HeldCounts, read_info};
use crate::reader::past::{history, want_history, want_history_of_ports};
use crate::reader::peek::{read_life, walk};
use crate::reader::ready_count::{ReadyCount, SET_ASIDE_MAX};
use crate::reader::seen_publishers::SeenPublishers;
use crate::segment::{Segment, entries_of};
use crate::slot::SubscriberSlot;
use crate::words::history::MessageRef;
use crate::words::message::{Generation, Holding, Life, Readiness};
use crate::words::queue::{Named, Position, Slot};
use crate::writer::space::{CutOff, PortError};

/// A take was refused. No message was taken or lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TakeRefused {
    /// The port has lost its slot.
    #[error(transparent)]
    CutOff(#[from] CutOff),
    /// The reader holds half of one publisher's entries; more would leave too few for the other readers.
    #[error(
        "{held} messages of the publisher in slot {publisher} are held, which is half of all that it has; drop some before the next take"
    )]
    TooManyHeld {
        /// The publisher's slot.
        publisher: u16,
        /// How many.
        held: u32,
    },
}

/// The outcome of an attempt to hold a message. A poisoned one counts as taken, and is released at once.
#[derive(Debug)]
pub(crate) enum Attempt {
    Held(Held),
    Poisoned,
    Gone,
}

/// A subscriber's counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReaderCounters {
    /// Messages taken.
    pub taken: u64,
    /// Messages that it was too late for, including those ahead of its cursor, and messages lost on the way from another host.
    pub lost: u64,
    /// Messages taken and found poisoned.
    pub poisoned: u64,
    /// Messages taken and skipped because their description contradicts itself.
    pub malformed: u64,
    /// Messages held now.
    pub held: u64,
    /// Bytes copied for this subscriber alone.
    pub copied_bytes: u64,
}

/// A subscriber's port.
#[derive(Debug)]
pub struct ReaderPort {
    pub(crate) segment: Arc<Segment>,
    pub(crate) pages: Arc<SubscriberPages>,
    pub(crate) cursor: Position,
    pub(crate) joined: Position,
    /// How many ports of remote hosts had ended when it looked for history.
    ended_ports: u32,
    /// Messages that history keeps from before it joined, oldest first: WANTED, not held. A sender's are those before its cursor.
    pub(crate) backlog: VecDeque<(Position, MessageRef)>,
    /// Positions at or after the cursor that takes by name have given out or released.
    pub(crate) out_of_turn: BTreeSet<Position>,
    /// Messages held but not given out: their bytes were not there yet, or they were put back. In the order of their positions.
    pub(crate) set_aside: VecDeque<Held>,
    /// Messages that takes by name have seen.
    pub(crate) seen: SeenPublishers,
    pub(crate) wants_history: bool,
    /// It skips no message that history keeps.
    pub(crate) spares_history: bool,
    held: Arc<HeldCounts>,
    pub(crate) is_closed: bool,
    /// The wait for messages; `waiter` gives out further waiters of it.
    waiter: FutexWait,
}

impl ReaderPort {
    /// Opens the port of the subscriber whose words are in `pages`; the segment may be mapped read only. With `history` it first gets the
    /// messages that publishers keep for late joiners.
    pub fn new(segment: Arc<Segment>, pages: Arc<SubscriberPages>, history: bool) -> Result<Self, PortError> {
        let SubscriberSlot { index, generation } = pages.slot();
        let cut_off = CutOff(pages.slot().into());
        let subscriber = segment.subscriber(index).ok_or(cut_off)?;
        if subscriber.state.load(Ordering::Acquire) != SlotState::Active.word(generation) {
            return Err(cut_off.into());
        }
        // The manager set `joined` after this slot became visible to publishers, so no message from there on is missed (join.rs).
        let joined = Position(subscriber.joined.load(Ordering::Acquire));
        let depth = subscriber.depth.load(Ordering::Relaxed);
        let (backlog, ended_ports) = match history {
            true => want_history_of_ports(&segment, &pages, joined, depth),
            false => (VecDeque::new(), segment.header().ended_ports.load(Ordering::Acquire)),
        };
        let waiter = FutexWait::for_messages(segment.clone(), pages.clone());
        Ok(Self {
            segment,
            pages,
            cursor: joined,
            joined,
            ended_ports,
            backlog,
            out_of_turn: BTreeSet::new(),
            set_aside: VecDeque::new(),
            seen: SeenPublishers::default(),
            wants_history: history,
            spares_history: false,
            held: Arc::new(HeldCounts::new()),
            is_closed: false,
            waiter,
        })
    }

    /// Opens the port of a sender, which passes history on to late joiners of another host. It gets each message that history keeps, also those that
    /// are older than its depth.
    pub fn for_sender(segment: Arc<Segment>, pages: Arc<SubscriberPages>) -> Result<Self, PortError> {
        let mut port = Self::new(segment, pages, false)?;
        port.backlog = want_history(&port.segment, &port.pages, port.joined, 0);
        (port.wants_history, port.spares_history) = (true, true);
        Ok(port)
    }

    /// Takes the next message whose bytes are there. A message whose bytes are not there delays later messages of its publisher, and no others until
    /// the reader has set aside `SET_ASIDE_MAX` messages, or half of that publisher's entries: then it looks no further before one of them is ready.
    pub fn take(&mut self) -> Result<Option<Held>, TakeRefused> {
        self.check()?;
        self.drop_outdated_put_back();
        if let Some(held) = self.take_ready_now()? {
            return Ok(Some(held));
        }
        // Messages that were put back do not count: they are given out in turn, after the messages before them.
        while self.set_aside.iter().filter(|held| !held.is_put_back).count() < SET_ASIDE_MAX {
            let held = match self.next() {
                Ok(Some(held)) => held,
                // Messages of the backlog may have been freed meanwhile, so that one that was put back is now first.
                Ok(None) => return self.take_ready_now(),
                // The port itself holds messages whose bytes are not there yet, so the caller cannot release any.
                Err(TakeRefused::TooManyHeld { publisher, .. })
                    if self.set_aside.iter().any(|held| held.owner == publisher && !held.is_put_back) =>
                {
                    return Ok(None);
                }
                Err(error) => return Err(error),
            };
            let publisher = held.info.publisher;
            let in_turn = self
                .set_aside
                .iter()
                .all(|other| other.info.publisher != publisher || other.info.position > held.info.position);
            if in_turn && held.readiness() == Readiness::Ready {
                return Ok(Some(self.given_again(held)));
            }
            self.keep(held);
            if self.set_aside.iter().any(|held| held.is_put_back)
                && let Some(held) = self.take_ready_now()?
            {
                return Ok(Some(held));
            }
        }
        Ok(None)
    }

    /// Takes the next message, whether or not its bytes are there: for a stream that waits for them.
    pub fn take_pending(&mut self) -> Result<Option<Held>, TakeRefused> {
        self.check()?;
        self.drop_outdated_put_back();
        loop {
            while let Some(held) = self.set_aside.front() {
                if held.readiness() == Readiness::Poisoned {
                    self.drop_poisoned(0);
                } else if self.has_turn(held) {
                    self.check_given(held)?;
                    return Ok(self.set_aside.pop_front().map(|held| self.given_again(held)));
                } else {
                    break;
                }
            }
            let next = self.next()?;
            // Messages before the first one set aside may have been freed meanwhile.
            if !self.set_aside.front().is_some_and(|held| self.has_turn(held)) {
                return Ok(next.map(|held| self.given_again(held)));
            }
            next.into_iter().for_each(|held| self.keep(held));
        }
    }

    /// Where the queue ended when this reader joined.
    pub fn joined(&self) -> Position {
        self.joined
    }

    /// Every message before this position was taken, or is lost for this reader.
    pub fn passed(&self) -> Position {
        self.backlog.front().map_or(self.cursor, |(first, _)| *first)
    }

    /// Keep-last depth; 0 is keep-all.
    pub fn depth(&self) -> u64 {
        self.record().depth.load(Ordering::Relaxed)
    }

    /// Gives up a message that this reader will not read, and wakes publishers that wait for space.
    pub(crate) fn give_up(&self, message: MessageRef) {
        self.pages.hold(message.index).pass(message.generation);
        wake_waiting_publishers(&self.segment.header().space.0);
    }

    /// The life in which a message waits for this reader; `None` if it does not.
    pub(crate) fn waiting(&self, position: Position, named: Named) -> Option<Generation> {
        let life = self.segment.life_at(position, named)?;
        if life.reclaiming || self.out_of_turn.contains(&position) || !self.is_for_us(position, named) {
            return None;
        }
        match self.pages.hold(named.message).of(life.generation) {
            Holding::None | Holding::Wanted => Some(life.generation),
            Holding::Held | Holding::Released => None,
        }
    }

    /// Whether a message is for subscribers that joined when this reader did. True also for a message that is gone.
    pub(crate) fn is_for_us(&self, position: Position, named: Named) -> bool {
        let entry = self.segment.message(named.message);
        let (since, ports) = (entry.since.load(Ordering::Relaxed), entry.since_ports.load(Ordering::Relaxed));
        let is_it = since <= self.joined.0
            && ports <= self.ended_ports
            && (self.wants_history || entry.is_history.load(Ordering::Relaxed) == 0);
        position < self.joined || is_it || read_life(&self.segment, entry, position, named).is_none()
    }

    /// Whether `take` has set messages aside. The caller must then call it again by itself: no wake-up says that their bytes are there.
    pub fn awaits_bytes(&self) -> bool {
        !self.set_aside.is_empty()
    }

    /// Counts the messages that repeated calls of `take` would return now, if the caller dropped each before the next call. Takes none. Stops at
    /// `limit`, and where too many messages of a publisher are held.
    pub fn ready_count(&self, limit: usize) -> ReadyCount {
        let mut count = ReadyCount::new(limit);
        for held in self.set_aside.iter().filter(|held| !self.is_over(held)) {
            if self.check_given(held).is_err() {
                return count;
            }
            count.note(held.info.publisher, held.readiness());
        }
        let oldest = self.oldest_in_depth();
        let too_old = self.backlog.len() - self.backlog_within_depth();
        let mut passed = 0;
        if !count.is_full() && !self.is_closed {
            walk(&self.segment, self.cursor.max(oldest), &self.backlog, |position, named| {
                passed += 1;
                if passed > too_old
                    && let Some(generation) = self.waiting(position, named)
                {
                    let words = self.segment.words(named.message);
                    // `take` gives out nothing behind it either.
                    if words
                        .life()
                        .is_some_and(|life| self.check_held(life.owner, self.waiting_again(life.owner)).is_err())
                    {
                        return false;
                    }
                    let publisher = self.segment.message(named.message).publisher.load(Ordering::Relaxed);
                    count.note(publisher, words.readiness(generation));
                }
                !count.is_full()
            });
        }
        count
    }

    /// Drops a poisoned message that was set aside. It counts as taken, also if it was put back.
    pub(crate) fn drop_poisoned(&mut self, place: usize) {
        if let Some(held) = self.set_aside.remove(place) {
            drop(self.given_again(held));
            self.count_poisoned();
        }
    }

    fn count_poisoned(&self) {
        self.words().poisoned.fetch_add(1, Ordering::Relaxed);
    }

    fn next(&mut self) -> Result<Option<Held>, TakeRefused> {
        if self.is_closed {
            return Ok(None);
        }
        // At most one lap of the queue, and another after an overrun.
        for _ in 0..=2 * self.segment.queue().capacity() {
            if let Some(held) = self.next_in_backlog()? {
                return Ok(Some(held));
            }
            let named = match self.segment.queue().read(self.cursor) {
                Slot::Empty => return Ok(None),
                Slot::Overrun => {
                    self.skip_overrun();
                    continue;
                }
                Slot::Message(named) => named,
            };
            let position = self.cursor;
            self.skip_what_is_too_old();
            if self.cursor != position {
                continue;
            }
            if self.out_of_turn.contains(&position) || !self.is_for_us(position, named) {
                let place = self.set_aside.iter().position(|held| held.info.position == position.0);
                place.and_then(|place| self.set_aside.get(place)).map_or(Ok(()), |held| self.check_given(held))?;
                self.move_to(position.next());
                match place {
                    Some(place) => return Ok(self.set_aside.remove(place)),
                    None => continue,
                }
            }
            let life = self.segment.life_at(position, named);
            let attempt = self.hold_life(position, named, life, |owner| self.waiting_again(owner))?;
            self.move_to(position.next());
            match attempt {
                Attempt::Held(held) => return Ok(Some(held)),
                Attempt::Poisoned => {}
                Attempt::Gone => self.count_lost(1),
            }
        }
        Ok(None)
    }

    fn next_in_backlog(&mut self) -> Result<Option<Held>, TakeRefused> {
        if !self.backlog.is_empty() {
            self.trim_backlog();
        }
        while let Some((position, message)) = self.backlog.front().copied() {
            let named = Named { message: message.index, generation: message.generation.low() };
            // Only in the life that was WANTED: a later life may have the same low 16 bits.
            let life = self.segment.life_at(position, named).filter(|life| life.generation == message.generation);
            let attempt = self.hold_life(position, named, life, |owner| self.waiting_again(owner))?;
            self.backlog.pop_front();
            match attempt {
                Attempt::Held(held) => return Ok(Some(held)),
                Attempt::Poisoned => {}
                // The publisher needed its space.
                Attempt::Gone => self.count_lost(1),
            }
        }
        Ok(None)
    }

    /// How many messages of the backlog are within the depth, counting the messages since it joined.
    fn backlog_within_depth(&self) -> usize {
        if self.backlog.is_empty() {
            return 0;
        }
        let since_joined = self.segment.queue().end().0.saturating_sub(self.joined.0);
        match self.depth() {
            0 => self.backlog.len(),
            _ if self.spares_history => self.backlog.len(),
            depth => (depth.saturating_sub(since_joined) as usize).min(self.backlog.len()),
        }
    }

    /// Gives up messages of the backlog that newer messages have pushed beyond the depth. They were offered, so they are not lost.
    pub(crate) fn trim_backlog(&mut self) {
        let kept = self.backlog_within_depth();
        while self.backlog.len() > kept {
            if let Some((_, message)) = self.backlog.pop_front() {
                self.give_up(message);
            }
        }
    }

    /// Takes again messages that history keeps and this reader has released, oldest first: for a sender that resends lost messages. `is_wanted`
    /// selects.
    pub fn take_history_again(&mut self, is_wanted: impl Fn(&MessageInfo) -> bool) -> Vec<Held> {
        let kept = history(&self.segment, self.cursor).into_iter().filter(|(position, message)| {
            // WANTED messages are given out from the backlog.
            let holding = self.pages.hold(message.index).of(message.generation);
            !matches!(holding, Holding::Held | Holding::Wanted)
                && is_wanted(&read_info(self.segment.message(message.index), *position))
        });
        kept.filter_map(|(position, message)| {
            let named = Named { message: message.index, generation: message.generation.low() };
            // Without a limit: history keeps these messages in any case.
            match self.hold_life(position, named, self.segment.life_at(position, named), |_| u32::MAX) {
                Ok(Attempt::Held(held)) if held.message == message => Some(held),
                _ => None,
            }
        })
        .collect()
    }

    /// Leaves the topic. Messages that were given out stay held. Unread messages are released, and no publisher waits for this reader any more.
    /// The slot stays occupied until the manager frees it.
    pub fn close(&mut self) {
        self.is_closed = true;
        self.set_aside.clear();
        for (_, message) in std::mem::take(&mut self.backlog) {
            self.give_up(message);
        }
        self.words().cursor.store(u64::MAX, Ordering::Release);
        wake_waiting_publishers(&self.segment.header().space.0);
    }

    /// A waiter for messages. Each thread that waits needs its own.
    pub fn waiter(&self) -> FutexWait {
        self.waiter.another()
    }

    /// This subscriber's counters.
    pub fn counters(&self) -> ReaderCounters {
        let words = self.words();
        let load = |word: &AtomicU64| word.load(Ordering::Relaxed);
        ReaderCounters {
            taken: load(&words.taken),
            lost: self
                .losses_so_far()
                .saturating_add(self.losses_not_yet_counted())
                .saturating_sub(load(&words.forgiven)),
            poisoned: self.poisoned(),
            malformed: load(&words.malformed),
            held: load(&words.held),
            copied_bytes: load(&words.copied_bytes),
        }
    }

    /// Messages that were never completed.
    pub fn poisoned(&self) -> u64 {
        self.words().poisoned.load(Ordering::Relaxed)
    }

    /// Counts a message that was taken and is skipped. Returns how many were counted before it.
    pub fn count_malformed(&self) -> u64 {
        self.words().malformed.fetch_add(1, Ordering::Relaxed)
    }

    /// Counts bytes copied for this subscriber alone.
    pub fn count_copied(&self, bytes: u64) {
        self.words().copied_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// The subscriber's slot.
    pub fn slot(&self) -> SubscriberSlot {
        self.pages.slot()
    }

    /// This subscriber's own words.
    pub fn pages(&self) -> &Arc<SubscriberPages> {
        &self.pages
    }

    /// The segment.
    pub fn segment(&self) -> &Arc<Segment> {
        &self.segment
    }

    pub(crate) fn check(&self) -> Result<(), CutOff> {
        let slot = self.slot();
        if self.record().state.load(Ordering::Acquire) == SlotState::Active.word(slot.generation) {
            return Ok(());
        }
        Err(CutOff(slot.into()))
    }

    pub(crate) fn move_to(&mut self, position: Position) {
        self.cursor = position;
        if !self.out_of_turn.is_empty() {
            self.out_of_turn = self.out_of_turn.split_off(&position);
        }
        self.words().cursor.store(position.0, Ordering::Release);
    }

    pub(crate) fn hold(&self, position: Position, named: Named) -> Result<Attempt, TakeRefused> {
        self.hold_life(position, named, self.segment.life_at(position, named), |_| 0)
    }

    /// `spared`: how many held messages of the publisher do not count.
    fn hold_life(
        &self,
        position: Position,
        named: Named,
        life: Option<Life>,
        spared: impl Fn(u16) -> u32,
    ) -> Result<Attempt, TakeRefused> {
        let words = self.segment.words(named.message);
        let Some(life) = life else { return Ok(Attempt::Gone) };
        let hold = self.pages.hold(named.message);
        let Some(count) = self.held.of(life.owner) else { return Ok(Attempt::Gone) };
        self.check_held(life.owner, spared(life.owner))?;
        let generation = life.generation;
        if !words.acquire(hold, generation) {
            return Ok(Attempt::Gone);
        }
        // Within the lap, or noted by the entry, the position shows that the slot meant this life (queue.rs).
        let noted = || self.segment.message(named.message).position.load(Ordering::Relaxed) == position.0;
        if !(position < self.joined || self.segment.queue().is_within_lap(position) || noted()) {
            hold.withdraw(generation);
            return Ok(Attempt::Gone);
        }
        crash::point("take.held");
        count.fetch_add(1, Ordering::Relaxed);
        let own = self.words();
        own.taken.fetch_add(1, Ordering::Relaxed);
        own.held.fetch_add(1, Ordering::Relaxed);
        let held = Held {
            segment: self.segment.clone(),
            pages: self.pages.clone(),
            message: MessageRef { index: named.message, generation },
            owner: life.owner,
            info: read_info(self.segment.message(named.message), position),
            counts: self.held.clone(),
            is_put_back: false,
        };
        if held.readiness() == Readiness::Poisoned {
            self.count_poisoned();
            return Ok(Attempt::Poisoned);
        }
        Ok(Attempt::Held(held))
    }

    /// An error if this reader holds the most messages that it may of a publisher, not counting `spared` ones.
    pub(crate) fn check_held(&self, publisher: u16, spared: u32) -> Result<(), TakeRefused> {
        let held = self.held.of(publisher).map_or(0, |count| count.load(Ordering::Relaxed)).saturating_sub(spared);
        let entries = self.segment.publisher(publisher).map_or(0, |publisher| entries_of(publisher).1);
        if held < (entries / 2).max(1) { Ok(()) } else { Err(TakeRefused::TooManyHeld { publisher, held }) }
    }

    pub(crate) fn words(&self) -> &SubscriberWords {
        self.pages.words()
    }

    pub(crate) fn record(&self) -> &SubscriberRecord {
        match self.segment.subscriber(self.slot().index) {
            Some(record) => record,
            None => unreachable!("the slot was checked by `new`"),
        }
    }
}
