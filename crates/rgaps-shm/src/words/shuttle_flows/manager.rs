//! The manager's flow, like `SlotTable`: admits and releases occupants, and finishes the messages of dead publishers.

use std::sync::Arc;

use crate::words::history::MessageRef;
use crate::words::join::{JOINING, PublishFence, join};
use crate::words::message::{Generation, Need, Readiness, State};
use crate::words::queue::{MessageIndex, Position, Slot};
use crate::words::shuttle_flows::publisher::Publisher;
use crate::words::shuttle_flows::subscriber::{Subscriber, SubscriberKind};
use crate::words::shuttle_flows::topic::{
    ACTIVE, DRAINING, FREE, PUBLISHERS, Pages, Publication, RUN, SlotId, Subscribers, Topic, named, slot_state,
};
use crate::words::sync::Ordering;

pub(super) struct Manager(Subscribers);

impl Manager {
    pub(super) fn new(topic: Arc<Topic>) -> Self {
        Self(Subscribers::new(topic))
    }

    fn topic(&self) -> &Topic {
        &self.0.topic
    }

    /// Like `SlotTable::admit_subscriber`.
    pub(super) fn admit_subscriber(&mut self, index: usize, kind: SubscriberKind) -> (SlotId, Subscriber) {
        let topic = self.0.topic.clone();
        let words = &topic.subscribers[index];
        let slot = (index, (words.state.load(Ordering::Acquire) >> 2) + 1);
        let pages = Arc::new(Pages::default());
        self.0.add((slot, pages.clone()));
        words.depth.store(kind.depth, Ordering::Relaxed);
        words.joined.store(JOINING, Ordering::Relaxed);
        words.state.store(slot_state(slot.1, ACTIVE), Ordering::Release);
        let visible = || _ = topic.subscriber_mask.fetch_or(1 << index, Ordering::SeqCst);
        join(visible, &words.joined, topic.queue());
        for mail in &topic.mail {
            mail.lock().unwrap().push((slot, pages.clone()));
        }
        let subscriber = Subscriber::new(topic.clone(), pages, slot, kind);
        topic.truth().tally.occupants += 1;
        (slot, subscriber)
    }

    /// Like `SlotTable::release_subscriber`.
    pub(super) fn release_subscriber(&mut self, slot: SlotId) {
        let words = &self.topic().subscribers[slot.0];
        let (active, free) = (slot_state(slot.1, ACTIVE), slot_state(slot.1, FREE));
        assert!(words.state.compare_exchange(active, free, Ordering::AcqRel, Ordering::Relaxed).is_ok());
        // The state word has released all messages that it held.
        self.topic().truth().blocks.iter_mut().for_each(|block| block.release(slot));
        self.topic().subscriber_mask.fetch_and(!(1 << slot.0), Ordering::SeqCst);
        self.0.known[slot.0] = None;
    }

    /// Like `SlotTable::admit_publisher`, when all other slots are occupied.
    pub(super) fn admit_publisher(&mut self, index: usize) -> Option<(SlotId, Publisher)> {
        let topic = self.0.topic.clone();
        if self.free_dropping(index, Need::None) > 0 && self.free_dropping(index, Need::Soft) > 0 {
            return None;
        }
        let words = &topic.publishers[index];
        let slot = (index, (words.state.load(Ordering::Acquire) >> 2) + 1);
        words.used.store(0, Ordering::Relaxed);
        words.joined.store(topic.queue().end().0, Ordering::Relaxed);
        words.state.store(slot_state(slot.1, ACTIVE), Ordering::Release);
        topic.publisher_mask.fetch_or(1 << index, Ordering::SeqCst);
        let known = self.0.known.iter().enumerate();
        let known =
            known.filter_map(|(index, known)| known.clone().map(|(generation, pages)| ((index, generation), pages)));
        *topic.mail[index].lock().unwrap() = known.collect();
        let first_generation = Generation(topic.first_generation.load(Ordering::Acquire));
        Some((slot, Publisher::new(Subscribers::new(topic), slot, first_generation)))
    }

    /// Like `SlotTable::drain_publisher`.
    pub(super) fn drain_publisher(&mut self, (slot, generation): SlotId) {
        let words = &self.topic().publishers[slot];
        let (active, draining) = (slot_state(generation, ACTIVE), slot_state(generation, DRAINING));
        assert!(words.state.compare_exchange(active, draining, Ordering::AcqRel, Ordering::Relaxed).is_ok());
        self.topic().publisher_mask.fetch_and(!(1 << slot), Ordering::SeqCst);
        self.free_dropping(slot, Need::None);
        self.topic().wake_all();
    }

    /// Like `SlotTable::free_dropping`: how many messages of a draining publisher are left.
    pub(super) fn free_dropping(&self, slot: usize, spared: Need) -> usize {
        let topic = self.topic();
        let words = &topic.publishers[slot];
        let state = words.state.load(Ordering::Acquire);
        if state & 3 != DRAINING {
            return 0;
        }
        let left = topic.used_entries(slot).filter(|index| !self.finish_message(*index, slot as u16, spared)).count();
        if left == 0 {
            self.give_entries_back(slot);
            words.state.store(slot_state(state >> 2, FREE), Ordering::Release);
        }
        left
    }

    /// Like `SlotTable::finish_message`.
    fn finish_message(&self, index: MessageIndex, owner: u16, spared: Need) -> bool {
        let topic = self.topic();
        let words = topic.words(index);
        let Some(life) = words.life().filter(|life| life.owner == owner) else { return true };
        let message = MessageRef { index, generation: life.generation };
        match life.state {
            State::Free => true,
            State::Loaned => words.give_back(message.generation, owner),
            State::Published | State::Pending | State::Poisoned => {
                words.abandon(message.generation);
                words.cancel_reclaim(message.generation);
                assert_ne!(words.readiness(message.generation), Readiness::Pending);
                let noted = topic.entry(index).position.load(Ordering::Acquire);
                let is_noted =
                    noted != u64::MAX && topic.queue().read(Position(noted)) == Slot::Message(named(message));
                let position = if is_noted { Some(noted) } else { topic.find_in_queue(message) };
                let fence_passed = PublishFence::pass();
                let end = topic.queue().end().0;
                let publication = Publication { message, position, was_kept: true };
                let is_finished = words.try_reclaim(
                    (message.generation, owner),
                    fence_passed,
                    || self.0.readers(publication).any(|reader| reader.need(end) > spared),
                    || self.0.readers(publication).any(|reader| reader.is_holding()),
                ) && words.finish(message.generation, owner);
                if is_finished {
                    topic.truth().end(message);
                    topic.truth().block(index).forget();
                }
                is_finished
            }
        }
    }

    /// Like `SlotTable::give_entries_back`; also unmaps the pool.
    fn give_entries_back(&self, slot: usize) {
        let topic = self.topic();
        let lives = topic.used_entries(slot).filter_map(|index| topic.words(index).life());
        let first = Generation(topic.first_generation.load(Ordering::Acquire));
        let last = lives.fold(first, |last, life| {
            assert_eq!(life.state, State::Free);
            last.later(life.generation.next())
        });
        topic.first_generation.store(last.0, Ordering::Release);
        topic.publishers[slot].used.store(0, Ordering::Release);
        for index in slot * RUN..slot * RUN + RUN {
            let entry = &topic.entries[index];
            entry.life.store(0, Ordering::Relaxed);
            entry.ready.store(0, Ordering::Relaxed);
            entry.position.store(0, Ordering::Relaxed);
            topic.truth().blocks[index].wipe();
        }
    }

    /// Checks that no message is left after all publishers and subscribers have left.
    pub(super) fn check_nothing_is_left(&self) {
        for slot in 0..PUBLISHERS {
            assert_eq!(self.free_dropping(slot, Need::None), 0, "messages of publisher slot {slot} are pinned");
            assert_eq!(self.topic().publishers[slot].state.load(Ordering::Acquire) & 3, FREE);
        }
    }
}
