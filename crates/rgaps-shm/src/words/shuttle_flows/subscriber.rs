//! A subscriber's flow, like `ReaderPort`: want messages of history, take, hold, release, sleep, close.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use crate::words::history::MessageRef;
use crate::words::message::{Life, Readiness};
use crate::words::queue::{Position, Slot};
use crate::words::shuttle_flows::topic::{PUBLISHERS, Pages, Payload, SlotId, Topic, bits, named};
use crate::words::shuttle_flows::{one_in, pick};
use crate::words::sync::Ordering;
use crate::words::wake_up;

/// Most messages that a subscriber holds.
const HELD_MAX: usize = 3;

/// The kind of a subscriber.
#[derive(Clone, Copy, Debug)]
pub(super) struct SubscriberKind {
    /// Keep-last depth; 0 is keep-all.
    pub(super) depth: u64,
    /// It gets the messages that history keeps.
    pub(super) wants_history: bool,
    /// Takes after which it leaves; `None`: it stays until all publishers have left.
    pub(super) takes: Option<u64>,
}

pub(super) struct Subscriber {
    topic: Arc<Topic>,
    pages: Arc<Pages>,
    slot: SlotId,
    kind: SubscriberKind,
    joined: u64,
    cursor: u64,
    backlog: VecDeque<(u64, MessageRef)>,
    held: Vec<MessageRef>,
    taken: u64,
    lost: u64,
    /// Messages taken or lost that came from history.
    from_history: u64,
    /// The last message taken of each publisher: its number, and whether it was published after this subscriber joined.
    last: HashMap<SlotId, (u32, bool)>,
}

impl Subscriber {
    pub(super) fn new(topic: Arc<Topic>, pages: Arc<Pages>, slot: SlotId, kind: SubscriberKind) -> Self {
        let joined = topic.subscribers[slot.0].joined.load(Ordering::Acquire);
        Self {
            topic,
            pages,
            slot,
            kind,
            joined,
            cursor: joined,
            backlog: VecDeque::new(),
            held: Vec::new(),
            taken: 0,
            lost: 0,
            from_history: 0,
            last: HashMap::new(),
        }
    }

    pub(super) fn run(mut self) {
        if self.kind.wants_history {
            self.want_history();
        }
        while self.kind.takes.is_none_or(|takes| self.taken < takes) {
            if self.held.len() == HELD_MAX || one_in(3) {
                self.release_one();
            }
            if self.take() || self.is_released_first() {
                continue;
            }
            if self.topic.closed.load(Ordering::Acquire) == PUBLISHERS as u32 && !self.take() {
                self.check_counts();
                break;
            }
            self.sleep();
        }
        if one_in(4) {
            self.close();
        }
        while self.release_one() {}
    }

    /// A subscriber with nothing to take sometimes releases a message before it sleeps.
    fn is_released_first(&mut self) -> bool {
        one_in(2) && self.release_one()
    }

    /// Like `FutexWait` and the loop around it.
    fn sleep(&mut self) {
        let asleep = &self.pages.asleep;
        let announce = |announced| asleep.store(announced, Ordering::Relaxed);
        let seen = wake_up::announce_sleep(&self.topic.publications, announce);
        if !self.take() && self.topic.closed.load(Ordering::Acquire) < PUBLISHERS as u32 {
            self.topic.sleep(seen, self.cursor);
        }
        self.pages.asleep.store(0, Ordering::Relaxed);
    }

    fn check_counts(&self) {
        let end = self.topic.queue().end().0;
        assert_eq!(self.cursor, end, "it has looked at everything");
        let publication = self.from_history + (end - self.joined);
        assert_eq!(self.taken + self.lost, publication, "each message is taken or lost");
    }

    /// Like `past::want_history`.
    fn want_history(&mut self) {
        let topic = &self.topic;
        let mut kept: Vec<(u64, MessageRef)> = bits(&topic.publisher_mask)
            .flat_map(|slot| topic.used_entries(slot))
            .filter_map(|index| {
                let life = topic.words(index).life().filter(|life| life.kept)?;
                let message = MessageRef { index, generation: life.generation };
                let position = match topic.entry(index).position.load(Ordering::Acquire) {
                    u64::MAX => topic.find_in_queue(message),
                    noted => Some(noted),
                }?;
                (position < self.joined).then_some((position, message))
            })
            .collect();
        kept.sort_by_key(|(position, _)| *position);
        let skip = if self.kind.depth == 0 { 0 } else { kept.len().saturating_sub(self.kind.depth as usize) };
        let wanted =
            |message: &MessageRef| topic.words(message.index).want(self.pages.hold(message.index), message.generation);
        self.backlog = kept.into_iter().skip(skip).filter(|(_, message)| wanted(message)).collect();
        topic.truth().tally.wanted += self.backlog.len() as u64;
    }

    /// Like `ReaderPort::next`; whether it took something.
    fn take(&mut self) -> bool {
        self.trim_backlog();
        while let Some((position, message)) = self.backlog.front().copied() {
            let life = self.topic.life_at(position, named(message));
            let is_held = self.hold(position, message, life.filter(|life| life.generation == message.generation));
            self.backlog.pop_front();
            self.from_history += 1;
            if is_held {
                return true;
            }
            self.lose(1);
        }
        loop {
            let named = match self.topic.queue().read(Position(self.cursor)) {
                Slot::Empty => return false,
                Slot::Overrun => {
                    self.skip_what_is_too_old();
                    continue;
                }
                Slot::Message(named) => named,
            };
            let position = self.cursor;
            self.skip_what_is_too_old();
            if self.cursor != position {
                continue;
            }
            let life = self.topic.life_at(position, named);
            let is_held = life.is_some_and(|life| {
                let message = MessageRef { index: named.message, generation: life.generation };
                self.hold(position, message, Some(life))
            });
            self.move_to(position + 1);
            if is_held {
                return true;
            }
            self.lose(1);
            assert_ne!(self.kind.depth, 0, "a keep-all subscriber has lost position {position}");
        }
    }

    /// Like `ReaderPort::hold_life`.
    fn hold(&mut self, position: u64, message: MessageRef, life: Option<Life>) -> bool {
        let hold = self.pages.hold(message.index);
        if life.is_none() || !self.topic.words(message.index).acquire(hold, message.generation) {
            return false;
        }
        let payload = self.topic.truth().hold(self.slot, message);
        let noted = || self.topic.entry(message.index).position.load(Ordering::Relaxed) == position;
        if !(position < self.joined || self.topic.queue().is_within_lap(Position(position)) || noted()) {
            self.topic.truth().block(message.index).release(self.slot);
            hold.withdraw(message.generation);
            return false;
        }
        self.taken += 1;
        self.topic.truth().tally.taken += 1;
        self.check_order(payload, position >= self.joined);
        self.check_payload(message);
        self.held.push(message);
        true
    }

    fn check_order(&mut self, Payload { publisher, sequence }: Payload, is_new: bool) {
        if let Some((last, was_new)) = self.last.insert(publisher, (sequence, is_new)) {
            assert!(sequence > last, "{sequence} of publisher {publisher:?} comes after {last}");
            let is_next = sequence == last + 1;
            assert!(
                is_next || self.kind.depth > 0 || !was_new,
                "a keep-all subscriber misses messages before {sequence}"
            );
        }
    }

    fn check_payload(&self, message: MessageRef) -> Readiness {
        let readiness = self.topic.words(message.index).readiness(message.generation);
        if readiness == Readiness::Ready {
            self.topic.truth().check(message);
        }
        readiness
    }

    /// Releases one of the messages that it holds. Waits until the message is ready or poisoned.
    fn release_one(&mut self) -> bool {
        if self.held.is_empty() {
            return false;
        }
        let message = self.held.swap_remove(pick(self.held.len() as u64) as usize);
        loop {
            match self.check_payload(message) {
                Readiness::Pending => shuttle::thread::yield_now(),
                Readiness::Poisoned => break self.topic.truth().tally.poisoned += 1,
                Readiness::Ready => break,
            }
        }
        self.topic.truth().block(message.index).release(self.slot);
        self.pages.hold(message.index).release(message.generation);
        true
    }

    fn lose(&mut self, messages: u64) {
        self.lost += messages;
        self.topic.truth().tally.lost += messages;
    }

    fn move_to(&mut self, position: u64) {
        self.cursor = position;
        self.pages.cursor.store(position, Ordering::Release);
    }

    fn skip_what_is_too_old(&mut self) {
        let queue = self.topic.queue();
        let kept = if self.kind.depth == 0 { queue.capacity() } else { self.kind.depth.min(queue.capacity()) };
        let oldest = queue.end().0.saturating_sub(kept);
        if self.cursor < oldest {
            assert_ne!(self.kind.depth, 0, "a keep-all subscriber is overrun");
            self.lose(oldest - self.cursor);
            self.move_to(oldest);
        }
        self.trim_backlog();
    }

    fn trim_backlog(&mut self) {
        if self.kind.depth == 0 || self.backlog.is_empty() {
            return;
        }
        let since_joined = self.topic.queue().end().0.saturating_sub(self.joined);
        let kept = self.kind.depth.saturating_sub(since_joined) as usize;
        while self.backlog.len() > kept {
            if let Some((_, message)) = self.backlog.pop_front() {
                self.pages.hold(message.index).pass(message.generation);
            }
        }
    }

    fn close(&mut self) {
        for (_, message) in std::mem::take(&mut self.backlog) {
            self.pages.hold(message.index).pass(message.generation);
        }
        self.pages.cursor.store(u64::MAX, Ordering::Release);
    }
}
