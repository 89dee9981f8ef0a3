//! A publisher's flow, like `WriterPort`: loan, publish, keep for late joiners, free, drop.

use std::collections::VecDeque;

use crate::words::history::{History, MessageRef};
use crate::words::join::PublishFence;
use crate::words::message::{Generation, Need, State, ready_word};
use crate::words::queue::MessageIndex;
use crate::words::shuttle_flows::topic::{Payload, Publication, RUN, Reader, SlotId, Subscribers, Topic, named};
use crate::words::shuttle_flows::{fates, one_in, pick};
use crate::words::sync::{Ordering, fence};

#[derive(Clone, Copy)]
struct Outstanding {
    message: MessageRef,
    position: u64,
    was_kept: bool,
}

pub(super) struct Publisher {
    slot: SlotId,
    subscribers: Subscribers,
    first_generation: Generation,
    free_entries: VecDeque<MessageIndex>,
    outstanding: VecDeque<Outstanding>,
    history: History,
    history_depth: u32,
    drops_oldest: bool,
    /// Messages that its stream has still to fill.
    pending: VecDeque<MessageRef>,
    sequence: u32,
}

impl Publisher {
    pub(super) fn new(subscribers: Subscribers, slot: SlotId, first_generation: Generation) -> Self {
        let first = slot.0 * RUN;
        let entries = RUN - pick(2) as usize;
        Self {
            slot,
            subscribers,
            first_generation,
            free_entries: (first..first + entries).map(|index| MessageIndex(index as u16)).collect(),
            outstanding: VecDeque::new(),
            history: History::default(),
            history_depth: pick(3) as u32,
            drops_oldest: one_in(2),
            pending: VecDeque::new(),
            sequence: 0,
        }
    }

    pub(super) fn run(mut self) {
        for _ in 0..3 + pick(5) {
            if one_in(2) {
                self.read_mail();
            }
            match self.loan() {
                Some(message) if one_in(10) => self.give_back(message),
                Some(message) => self.publish(message),
                None => shuttle::thread::yield_now(),
            }
            if one_in(2) {
                self.fill_one();
            }
            if one_in(4) {
                self.reclaim();
            }
        }
        while self.fill_one() {}
    }

    fn topic(&self) -> &Topic {
        &self.subscribers.topic
    }

    /// The manager's messages about new subscribers may arrive at any time.
    fn read_mail(&mut self) {
        let mail = std::mem::take(&mut *self.topic().mail[self.slot.0].lock().unwrap());
        mail.into_iter().for_each(|known| self.subscribers.add(known));
    }

    /// Like `WriterPort::try_loan`.
    fn loan(&mut self) -> Option<MessageRef> {
        if one_in(2) {
            self.reclaim();
        }
        if let Some(message) = self.loan_entry() {
            return Some(message);
        }
        self.reclaim();
        loop {
            if let Some(message) = self.loan_entry() {
                return Some(message);
            }
            if !self.give_up_history() && !(self.drops_oldest && self.drop_oldest()) {
                return None;
            }
        }
    }

    fn loan_entry(&mut self) -> Option<MessageRef> {
        let index = self.free_entries.pop_front()?;
        let used = u64::from(index.0) + 1 - (self.slot.0 * RUN) as u64;
        let used_entries = &self.topic().publishers[self.slot.0].used;
        if used_entries.load(Ordering::Relaxed) < used {
            used_entries.store(used, Ordering::Release);
        }
        let generation = self.topic().words(index).try_loan(self.slot.0 as u16, self.first_generation);
        let generation = generation.expect("an entry of the run is free, or outstanding");
        self.topic().truth().block(index).allocate();
        Some(MessageRef { index, generation })
    }

    fn give_back(&mut self, message: MessageRef) {
        assert!(self.topic().words(message.index).give_back(message.generation, self.slot.0 as u16));
        self.topic().truth().block(message.index).free();
        self.free_entries.push_back(message.index);
    }

    /// Like `WriterPort::publish_to`.
    fn publish(&mut self, message: MessageRef) {
        let state = if one_in(4) { State::Pending } else { State::Published };
        let entry = self.topic().entry(message.index);
        entry.position.store(u64::MAX, Ordering::Relaxed);
        fence(Ordering::Release);
        self.topic().truth().mean(message, Payload { publisher: self.slot, sequence: self.sequence });
        if state == State::Published {
            self.topic().truth().write(message);
        }
        let was_kept = self.history_depth > 0;
        let words = self.topic().words(message.index);
        assert!(words.complete(message.generation, self.slot.0 as u16, state, was_kept));
        let position = self.topic().queue().publish(named(message)).unwrap();
        self.topic().truth().tally.published += 1;
        entry.position.store(position.0, Ordering::Release);
        self.outstanding.push_back(Outstanding { message, position: position.0, was_kept });
        self.sequence += 1;
        if state == State::Pending {
            self.pending.push_back(message);
        }
        self.subscribers.wake();
        let mut truth = self.topic().truth();
        truth.announced = truth.announced.max(position.0 + 1);
        drop(truth);
        assert!(!fates::is_slept_through(position.0), "a subscriber sleeps that has not looked at {position:?}");
        let topic = &self.subscribers.topic;
        self.history.push(0, self.history_depth, message, |old| {
            topic.words(old.index).leave_history(old.generation);
        });
    }

    /// Its stream writes the bytes of a message.
    fn fill_one(&mut self) -> bool {
        let Some(message) = self.pending.pop_front() else { return false };
        self.topic().truth().write(message);
        self.topic().entry(message.index).ready.store(ready_word(message.generation), Ordering::Release);
        true
    }

    fn reclaim(&mut self) {
        if self.outstanding.is_empty() {
            return;
        }
        let pass = self.begin_pass();
        let mut at = 0;
        while at < self.outstanding.len() {
            if !self.try_free(at, pass, Need::None) {
                at += 1;
            }
        }
    }

    fn begin_pass(&self) -> (PublishFence, u64) {
        (PublishFence::pass(), self.topic().queue().end().0)
    }

    /// Like `WriterPort::try_free`.
    fn try_free(&mut self, at: usize, (fence_passed, end): (PublishFence, u64), spared: Need) -> bool {
        let Outstanding { message, position, was_kept } = self.outstanding[at];
        let publication = Publication { message, position: Some(position), was_kept };
        let words = self.topic().words(message.index);
        let owner = self.slot.0 as u16;
        let won = words.try_reclaim(
            (message.generation, owner),
            fence_passed,
            || self.subscribers.readers(publication).any(|reader: Reader<'_>| reader.need(end) > spared),
            || self.subscribers.readers(publication).any(|reader| reader.is_holding()),
        );
        if !won {
            return false;
        }
        self.topic().truth().block(message.index).free();
        assert!(words.finish(message.generation, owner));
        self.topic().truth().end(message);
        self.free_entries.push_back(message.index);
        self.outstanding.remove(at);
        true
    }

    fn drop_oldest(&mut self) -> bool {
        let pass = self.begin_pass();
        let dropped = (0..self.outstanding.len()).any(|at| self.try_free(at, pass, Need::Soft));
        self.topic().truth().tally.dropped += u64::from(dropped);
        dropped
    }

    fn give_up_history(&mut self) -> bool {
        let Some(oldest) = self.history.pop_oldest() else { return false };
        self.topic().words(oldest.index).leave_history(oldest.generation);
        self.reclaim();
        true
    }
}
