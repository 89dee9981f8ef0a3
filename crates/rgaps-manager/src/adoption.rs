//! How a successor decides which slots of a dead manager's clients stay taken: a state machine without clock, socket or thread.
//!
//!   noted ──its client lives──▶ AWAITED ──handed back──▶ the client's, as before
//!     │                            │ ├────kept──▶ KEPT (a stream may still write there)
//!     └──dead──▶ released ◀──its client died, detached from it, or says that it has handed everything back
//!
//! A manager notes which client has a slot before it tells the client (`note`). So a taken slot that is noted for no living client has no owner.
//! The successor releases it as soon as a client has brought the topic's segment. A client keeps its slots while it holds its lock, even if it is
//! stopped: there is no time-out.
//!
//! Invariants  AD1 a slot of a living client is released only after that client says that it has handed everything back.
//!             AD2 a slot of a dead client is released once its death and the segment are known.
//!             AD3 a topic is not created again while a client that is noted in it lives.
//!             AD4 only the noted segment of a topic is accepted, and only from a client that hands back a slot of its own there (`segment_of`).
//!             AD5 only the pool that a publisher was granted is accepted for its slot (`pool_of`).
//! Deaths      of this manager: its notes have the slots that are still awaited, too (`note`), so its successor decides the same.
//! Shown by `no_living_client_loses_a_slot_and_no_dead_one_keeps_any`.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use rgaps_control::client_lock::NotedClient;
use rgaps_control::local::{HandedSlot, HandedTopic};
use rgaps_control::runtime::{ClientNote, PoolNote, PublisherNote, TopicNote};
use rgaps_control::{EndpointSlot, LockId, TopicId, TopicKey};

use crate::clients::Occupied;

/// An action for the manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// Release this slot: no living client has it.
    Release(Occupied),
    /// Delete the note of this topic: no living client has a slot there, and its segment never came.
    Forget(TopicId),
    /// No slot of this topic is awaited any more.
    Settled(TopicId),
}

/// A slot with its client, as a note has them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NotedSlot {
    pub(crate) client: NotedClient,
    pub(crate) slot: EndpointSlot,
    /// The pool, if the slot is a publisher's.
    pub(crate) pool: Option<PoolNote>,
}

/// A slot that its client has not handed back yet.
#[derive(Clone, Copy, Debug)]
struct Awaited {
    client: NotedClient,
    pool: Option<PoolNote>,
    /// Its client has reported it as KEPT: a stream may still write there.
    is_kept: bool,
}

#[derive(Clone, Debug)]
struct AwaitedTopic {
    key: TopicKey,
    type_name: String,
    /// Device and inode of the segment that the predecessor noted.
    segment: (u64, u64),
    /// The device of its pools, as noted.
    device: String,
    /// Whether a client has brought the segment.
    is_here: bool,
    slots: BTreeMap<EndpointSlot, Awaited>,
}

/// All slots that clients have still to hand back.
#[derive(Clone, Debug, Default)]
pub(crate) struct Adoption {
    topics: BTreeMap<TopicId, AwaitedTopic>,
    decisions: VecDeque<Decision>,
}

impl Adoption {
    /// From a predecessor's notes; `lives` says whether a client is alive.
    pub(crate) fn new(notes: Vec<TopicNote>, lives: impl Fn(NotedClient) -> bool) -> Self {
        let mut adoption = Self::default();
        for note in notes {
            let mut slots = BTreeMap::new();
            for ClientNote { client, publishers, subscribers } in &note.clients {
                if !lives(*client) {
                    continue;
                }
                let awaited = |pool| Awaited { client: *client, pool, is_kept: false };
                slots.extend(publishers.iter().map(|noted| (EndpointSlot::from(noted.slot), awaited(noted.pool))));
                slots.extend(subscribers.iter().map(|slot| (EndpointSlot::from(*slot), awaited(None))));
            }
            if slots.is_empty() {
                adoption.decisions.push_back(Decision::Forget(note.topic));
            } else {
                let TopicNote { topic, key, type_name, segment, device, .. } = note;
                adoption.topics.insert(topic, AwaitedTopic { key, type_name, segment, device, is_here: false, slots });
            }
        }
        adoption
    }

    /// The next action for the manager.
    pub(crate) fn poll_decision(&mut self) -> Option<Decision> {
        self.decisions.pop_front()
    }

    /// A client has brought a topic's segment, in which the slots `taken` are taken. False if no living client is noted in the topic.
    pub(crate) fn handle_segment(&mut self, id: TopicId, taken: impl Iterator<Item = EndpointSlot>) -> bool {
        let Some(topic) = self.topics.get_mut(&id) else { return false };
        topic.is_here = true;
        let nobodys = taken.filter(|slot| !topic.slots.contains_key(slot));
        let released = nobodys.map(|slot| Decision::Release(Occupied { topic: id, slot }));
        self.decisions.extend(released);
        true
    }

    /// Whether this client may hand a slot back.
    pub(crate) fn awaits_from(&self, lock: LockId, occupied: &Occupied) -> bool {
        let awaited = self.topics.get(&occupied.topic).and_then(|topic| topic.slots.get(&occupied.slot));
        awaited.is_some_and(|awaited| awaited.client.lock == lock)
    }

    /// The process of the living client that has still to hand this slot back.
    pub(crate) fn awaited(&self, topic: TopicId, slot: EndpointSlot) -> Option<u32> {
        let awaited = self.topics.get(&topic)?.slots.get(&slot)?;
        Some(awaited.client.pid)
    }

    /// Device and inode of the segment that this client may bring for a topic. `None` unless identity, name and type are as noted, and one of the
    /// slots that it hands back is noted for it. So a client cannot replace the segment of a topic in which only other clients have slots.
    pub(crate) fn segment_of(&self, lock: LockId, handed: &HandedTopic) -> Option<(u64, u64)> {
        let topic = self.topics.get(&handed.topic)?;
        let is_its =
            |slot: &HandedSlot| topic.slots.get(&slot.of.slot()).is_some_and(|awaited| awaited.client.lock == lock);
        let is_it = topic.key == handed.key && topic.type_name == handed.type_name;
        (is_it && handed.slots.iter().any(is_its)).then_some(topic.segment)
    }

    /// The pool that the publisher of an awaited slot may bring.
    pub(crate) fn pool_of(&self, occupied: &Occupied) -> Option<PoolNote> {
        self.topics.get(&occupied.topic)?.slots.get(&occupied.slot)?.pool
    }

    /// A client has handed back a slot.
    pub(crate) fn handle_handed_back(&mut self, occupied: &Occupied) {
        if let Some(topic) = self.topics.get_mut(&occupied.topic) {
            topic.slots.remove(&occupied.slot);
            self.settle(occupied.topic);
        }
    }

    /// A client keeps an awaited slot only because its streams may still write there, or the slot could not be taken back.
    pub(crate) fn handle_kept(&mut self, occupied: &Occupied) {
        let topic = self.topics.get_mut(&occupied.topic);
        if let Some(awaited) = topic.and_then(|topic| topic.slots.get_mut(&occupied.slot)) {
            awaited.is_kept = true;
        }
    }

    /// A client has detached from an awaited slot: nothing uses it any more.
    pub(crate) fn handle_detached(&mut self, occupied: &Occupied) {
        let Some(topic) = self.topics.get_mut(&occupied.topic) else { return };
        if topic.slots.remove(&occupied.slot).is_some() {
            // Without its segment it cannot be released: `handle_segment` releases it when the segment comes.
            self.decisions.extend(topic.is_here.then_some(Decision::Release(*occupied)));
            self.settle(occupied.topic);
        }
    }

    /// A client has handed back everything that it has.
    pub(crate) fn handle_all_handed_back(&mut self, lock: LockId) {
        self.end(|awaited| awaited.client.lock == lock && !awaited.is_kept);
    }

    /// A client's process has ended.
    pub(crate) fn handle_death(&mut self, lock: LockId) {
        self.end(|awaited| awaited.client.lock == lock);
    }

    /// A client holds a new lock: its awaited slots are recorded under that lock. Returns the topics of these slots.
    pub(crate) fn move_to_lock(&mut self, before: LockId, now: NotedClient) -> BTreeSet<TopicId> {
        let mut renamed = BTreeSet::new();
        for (id, topic) in &mut self.topics {
            let is_its = |awaited: &&mut Awaited| awaited.client.lock == before && awaited.client.pid == now.pid;
            for awaited in topic.slots.values_mut().filter(is_its) {
                awaited.client = now;
                renamed.insert(*id);
            }
        }
        renamed
    }

    /// Topics whose segment has not come.
    pub(crate) fn only_noted(&self) -> impl Iterator<Item = TopicId> {
        self.topics.iter().filter(|(_, topic)| !topic.is_here).map(|(id, _)| *id)
    }

    /// The note of a topic whose segment has not come.
    pub(crate) fn only_note(&self, id: TopicId) -> Option<TopicNote> {
        let topic = self.topics.get(&id).filter(|topic| !topic.is_here)?;
        let AwaitedTopic { key, type_name, segment, device, .. } = topic.clone();
        Some(TopicNote { topic: id, key, type_name, segment, device, clients: self.note(id, std::iter::empty()) })
    }

    /// Clients that have still to hand slots back.
    pub(crate) fn awaited_clients(&self) -> BTreeSet<NotedClient> {
        self.topics.values().flat_map(|topic| topic.slots.values().map(|awaited| awaited.client)).collect()
    }

    /// Whether a client has still to hand slots back.
    pub(crate) fn awaits_client(&self, lock: LockId) -> bool {
        self.topics.values().any(|topic| topic.slots.values().any(|awaited| awaited.client.lock == lock))
    }

    /// Whether a client has still to hand back slots of a topic.
    pub(crate) fn awaits_client_in(&self, lock: LockId, topic: TopicId) -> bool {
        self.topics.get(&topic).is_some_and(|topic| topic.slots.values().any(|awaited| awaited.client.lock == lock))
    }

    /// The process of a client that has the segment of a topic of this name. The topic must not be created again while this is `Some`.
    pub(crate) fn segment_owner(&self, key: &TopicKey) -> Option<u32> {
        let topic = self.topics.values().find(|topic| !topic.is_here && topic.key == *key)?;
        topic.slots.values().map(|awaited| awaited.client.pid).next()
    }

    /// Whether slots of a topic are awaited, or a decision about the topic has not been carried out yet.
    pub(crate) fn awaits(&self, topic: TopicId) -> bool {
        let is_next = |decision: &Decision| match decision {
            Decision::Release(occupied) => occupied.topic == topic,
            Decision::Forget(id) | Decision::Settled(id) => *id == topic,
        };
        self.topics.contains_key(&topic) || self.decisions.iter().any(is_next)
    }

    /// Whether a decision has not been carried out yet.
    pub(crate) fn has_decisions(&self) -> bool {
        !self.decisions.is_empty()
    }

    /// Whether nothing is awaited.
    pub(crate) fn is_over(&self) -> bool {
        self.topics.is_empty() && self.decisions.is_empty()
    }

    /// Which client has which slots of a topic, for the note: the slots of connected clients (`here`) and the awaited ones.
    pub(crate) fn note(&self, topic: TopicId, here: impl Iterator<Item = NotedSlot>) -> Vec<ClientNote> {
        let awaited = self.topics.get(&topic).into_iter().flat_map(|topic| &topic.slots);
        let awaited =
            awaited.map(|(slot, awaited)| NotedSlot { client: awaited.client, slot: *slot, pool: awaited.pool });
        let mut notes: BTreeMap<LockId, ClientNote> = BTreeMap::new();
        for NotedSlot { client, slot, pool } in here.chain(awaited) {
            let empty = ClientNote { client, publishers: Vec::new(), subscribers: Vec::new() };
            let note = notes.entry(client.lock).or_insert(empty);
            match slot {
                EndpointSlot::Publisher(slot) => note.publishers.push(PublisherNote { slot, pool }),
                EndpointSlot::Subscriber(slot) => note.subscribers.push(slot),
            }
        }
        notes.into_values().collect()
    }

    fn end(&mut self, is_over: impl Fn(&Awaited) -> bool) {
        let topics: Vec<TopicId> = self.topics.keys().copied().collect();
        for id in topics {
            let Some(topic) = self.topics.get_mut(&id) else { continue };
            let over = topic.slots.iter().filter(|(_, awaited)| is_over(awaited));
            let over: Vec<_> = over.map(|(slot, _)| *slot).collect();
            if over.is_empty() {
                continue;
            }
            topic.slots.retain(|_, awaited| !is_over(awaited));
            // Without its segment no slot can be released: `handle_segment` releases these slots when the segment comes.
            let is_here = topic.is_here;
            let released =
                over.into_iter().filter(|_| is_here).map(|slot| Decision::Release(Occupied { topic: id, slot }));
            self.decisions.extend(released);
            self.settle(id);
        }
    }

    fn settle(&mut self, id: TopicId) {
        if let Some(topic) = self.topics.get(&id).filter(|topic| topic.slots.is_empty()) {
            let decision = if topic.is_here { Decision::Settled(id) } else { Decision::Forget(id) };
            self.decisions.push_back(decision);
            self.topics.remove(&id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rgaps_control::client_lock::FileId;
    use rgaps_control::local::{Handed, Role};
    use rgaps_control::{PublisherSlot, SubscriberSlot};

    const CLIENTS: usize = 3;
    const TOPICS: u8 = 2;

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum State {
        Runs,
        Stopped,
        Dead,
    }

    /// A process, and the slots that it believes to have.
    #[derive(Clone, Debug)]
    struct Process {
        state: State,
        has: BTreeSet<(TopicId, Role, u32)>,
        kept: BTreeSet<(TopicId, Role, u32)>,
        /// Slots that it has still to hand to this manager; `None` after it has said that it has handed everything back.
        to_hand: Option<Vec<(TopicId, Role, u32)>>,
    }

    /// A step of the model.
    #[derive(Clone, Copy, Debug)]
    enum Step {
        /// A client asks for a slot; whether it reads the answer before the manager dies.
        Join(usize, u8, Role, bool),
        Leave(usize),
        Keep(usize),
        /// The streams of a kept slot have ended.
        EndKept(usize),
        HandOneBack(usize),
        Stop(usize),
        GoOn(usize),
        Die(usize),
        ManagerDies,
        /// The manager asks the kernel.
        Look,
    }

    /// Processes, segments and notes, around the machine that is tested.
    struct World {
        adoption: Adoption,
        processes: Vec<Process>,
        /// Taken slots of each segment, each with the client that took it. A generation is never used twice.
        segments: BTreeMap<TopicId, BTreeMap<(Role, u32), usize>>,
        generation: u32,
        /// Topics that this manager has mapped, and which client has which slot there.
        here: BTreeMap<TopicId, BTreeMap<(Role, u32), usize>>,
        notes: BTreeMap<TopicId, Vec<ClientNote>>,
    }

    fn lock(client: usize) -> LockId {
        LockId([client as u8 + 1; 16])
    }

    fn topic(number: u8) -> TopicId {
        TopicId([number + 1; 16])
    }

    fn key(topic: TopicId) -> TopicKey {
        TopicKey::new(0, &format!("t{}", topic.0[0])).unwrap()
    }

    fn slot_of(role: Role, generation: u32) -> EndpointSlot {
        match role {
            Role::Publisher => PublisherSlot { index: 0, generation }.into(),
            Role::Subscriber => SubscriberSlot { index: 0, generation }.into(),
        }
    }

    fn pool_of(role: Role, generation: u32) -> Option<PoolNote> {
        (role == Role::Publisher).then(|| PoolNote { bytes: 4096, file: (1, generation.into()) })
    }

    fn segment_of(topic: TopicId) -> (u64, u64) {
        (1, topic.0[0].into())
    }

    fn handed(topic: TopicId, slot: EndpointSlot) -> HandedTopic {
        let slots = vec![HandedSlot { fds: 0, of: Handed::Kept { slot } }];
        HandedTopic { key: key(topic), topic, type_name: String::new(), slots }
    }

    fn occupied((topic, role, generation): (TopicId, Role, u32)) -> Occupied {
        Occupied { topic, slot: slot_of(role, generation) }
    }

    impl World {
        fn new() -> Self {
            let process = Process { state: State::Runs, has: BTreeSet::new(), kept: BTreeSet::new(), to_hand: None };
            Self {
                adoption: Adoption::default(),
                processes: vec![process; CLIENTS],
                segments: BTreeMap::new(),
                generation: 0,
                here: BTreeMap::new(),
                notes: BTreeMap::new(),
            }
        }

        fn lives(&self, client: usize) -> bool {
            self.processes[client].state != State::Dead
        }

        fn is_mine(&self, client: usize, slot: (TopicId, Role, u32)) -> bool {
            let process = &self.processes[client];
            self.lives(client) && (process.has.contains(&slot) || process.kept.contains(&slot))
        }

        fn note(&mut self, id: TopicId) {
            let here = self.here.get(&id).into_iter().flatten().map(|((role, generation), client)| {
                let client = NotedClient { lock: lock(*client), pid: *client as u32, file: FileId::default() };
                NotedSlot { client, slot: slot_of(*role, *generation), pool: pool_of(*role, *generation) }
            });
            let note = self.adoption.note(id, here);
            self.notes.insert(id, note);
        }

        /// Carries out decisions as the manager does: releases slots, deletes notes, ends topics without slots, and notes the others.
        fn decide(&mut self) {
            while let Some(decision) = self.adoption.poll_decision() {
                match decision {
                    Decision::Release(Occupied { topic, slot }) => {
                        let slot = match slot {
                            EndpointSlot::Publisher(slot) => (topic, Role::Publisher, slot.generation),
                            EndpointSlot::Subscriber(slot) => (topic, Role::Subscriber, slot.generation),
                        };
                        let robbed = (0..CLIENTS).find(|client| self.is_mine(*client, slot));
                        assert_eq!(robbed, None, "AD1: {slot:?} is a living client's");
                        self.release_slot(slot);
                    }
                    Decision::Forget(topic) => {
                        let holds = |client| {
                            let process: &Process = &self.processes[client];
                            let mut slots = process.has.iter().chain(&process.kept);
                            self.lives(client) && slots.any(|(of, ..)| *of == topic)
                        };
                        assert!(!(0..CLIENTS).any(holds), "AD3: a living client has the segment of {topic:?}");
                        self.notes.remove(&topic);
                        self.segments.remove(&topic);
                    }
                    Decision::Settled(topic) => self.changed(topic),
                }
            }
        }

        fn release_slot(&mut self, (topic, role, generation): (TopicId, Role, u32)) {
            for slots in [self.segments.get_mut(&topic), self.here.get_mut(&topic)].into_iter().flatten() {
                slots.remove(&(role, generation));
            }
            self.changed(topic);
        }

        fn changed(&mut self, topic: TopicId) {
            if !self.here.contains_key(&topic) {
                return;
            }
            self.note(topic);
            if self.here[&topic].is_empty() && !self.adoption.awaits(topic) {
                assert!(
                    self.segments[&topic].is_empty(),
                    "AD2: a topic ended with slots of {:?}",
                    self.segments[&topic]
                );
                self.here.remove(&topic);
                self.notes.remove(&topic);
                self.segments.remove(&topic);
            }
        }

        fn hand_back(&mut self, client: usize) {
            let Some(to_hand) = &mut self.processes[client].to_hand else { return };
            let Some(slot) = to_hand.pop() else {
                self.processes[client].to_hand = None;
                self.adoption.handle_all_handed_back(lock(client));
                return self.decide();
            };
            let (id, role, generation) = slot;
            if !self.here.contains_key(&id) {
                let handed = handed(id, slot_of(role, generation));
                let segment = self.adoption.segment_of(lock(client), &handed);
                assert_eq!(segment, Some(segment_of(id)), "{client} is noted in {id:?}");
                let strangers = lock(CLIENTS);
                assert_eq!(self.adoption.segment_of(strangers, &handed), None);
                let lie = HandedTopic { type_name: "another".to_owned(), ..handed };
                assert_eq!(self.adoption.segment_of(lock(client), &lie), None);
                let taken: Vec<_> = self.segments[&id].keys().copied().collect();
                self.here.insert(id, BTreeMap::new());
                let taken = taken.into_iter().map(|(role, generation)| slot_of(role, generation));
                self.adoption.handle_segment(id, taken);
                self.decide();
            }
            assert!(self.adoption.awaits_from(lock(client), &occupied(slot)), "{client} may hand {slot:?} back");
            assert_eq!(self.adoption.pool_of(&occupied(slot)), pool_of(role, generation), "AD5: the pool of {slot:?}");
            if self.processes[client].kept.contains(&slot) {
                self.adoption.handle_kept(&occupied(slot));
            } else {
                self.here.get_mut(&id).unwrap().insert((role, generation), client);
                self.adoption.handle_handed_back(&occupied(slot));
            }
            self.note(id);
            self.decide();
        }

        fn join(&mut self, client: usize, id: TopicId, role: Role, is_read: bool) {
            if self.processes[client].to_hand.is_some() || self.adoption.segment_owner(&key(id)).is_some() {
                return;
            }
            let is_made = self.here.contains_key(&id) || !self.segments.contains_key(&id);
            assert!(is_made, "AD3: a topic is created again though a living client has its segment");
            self.generation += 1;
            let place = (role, self.generation);
            self.segments.entry(id).or_default().insert(place, client);
            self.here.entry(id).or_default().insert(place, client);
            self.note(id);
            if is_read {
                self.processes[client].has.insert((id, role, self.generation));
            } else {
                self.manager_dies();
            }
        }

        fn leave(&mut self, client: usize) {
            let Some(slot) = self.processes[client].has.pop_first() else { return };
            match &mut self.processes[client].to_hand {
                None => self.release_slot(slot),
                // The client does not hand back a slot that it has given up; if it has just handed it back, it detaches after that.
                Some(to_hand) => {
                    to_hand.retain(|other| *other != slot);
                    let is_here = self.here.get(&slot.0).is_some_and(|slots| slots.contains_key(&(slot.1, slot.2)));
                    if is_here {
                        self.release_slot(slot);
                    }
                }
            }
        }

        fn end_kept(&mut self, client: usize) {
            let Some(slot) = self.processes[client].kept.pop_first() else { return };
            // It detaches from what it has handed back, and from what it had when it began to hand back.
            if self.here.get(&slot.0).is_some_and(|slots| slots.contains_key(&(slot.1, slot.2))) {
                self.release_slot(slot);
            } else if self.adoption.awaits_from(lock(client), &occupied(slot)) {
                self.adoption.handle_detached(&occupied(slot));
                self.decide();
                if self.here.contains_key(&slot.0) {
                    self.note(slot.0);
                }
            }
            if let Some(to_hand) = &mut self.processes[client].to_hand {
                to_hand.retain(|other| *other != slot);
            }
        }

        fn manager_dies(&mut self) {
            let name = |(id, clients): (&TopicId, &Vec<ClientNote>)| TopicNote {
                topic: *id,
                key: key(*id),
                type_name: String::new(),
                segment: segment_of(*id),
                device: String::new(),
                clients: clients.clone(),
            };
            let notes = self.notes.iter().map(name).collect();
            let living: Vec<LockId> = (0..CLIENTS).filter(|client| self.lives(*client)).map(lock).collect();
            self.adoption = Adoption::new(notes, |client| living.contains(&client.lock));
            self.here.clear();
            for process in &mut self.processes {
                process.to_hand = Some(process.has.iter().chain(&process.kept).copied().collect());
            }
            self.decide();
        }

        fn look(&mut self) {
            for dead in (0..CLIENTS).filter(|client| !self.lives(*client)).collect::<Vec<_>>() {
                self.adoption.handle_death(lock(dead));
                let left = self.here.iter().flat_map(|(id, slots)| slots.iter().map(move |slot| (*id, slot)));
                let left: Vec<_> = left.filter(|(_, (_, client))| **client == dead).collect();
                let left: Vec<_> = left.into_iter().map(|(id, ((role, slot), _))| (id, *role, *slot)).collect();
                left.into_iter().for_each(|slot| self.release_slot(slot));
            }
            self.decide();
            for id in self.here.keys() {
                let of_dead = self.segments[id].iter().find(|(_, client)| !self.lives(**client));
                assert_eq!(of_dead, None, "AD2: a dead client has a slot of {id:?}");
            }
        }

        fn step(&mut self, step: Step) {
            let runs = |client: usize| self.processes[client].state == State::Runs;
            match step {
                Step::Join(client, number, role, is_read) if runs(client) => {
                    self.join(client, topic(number), role, is_read);
                }
                Step::Leave(client) if runs(client) => self.leave(client),
                Step::Keep(client) if runs(client) => {
                    if let Some(slot) = self.processes[client].has.pop_first() {
                        self.processes[client].kept.insert(slot);
                    }
                }
                Step::EndKept(client) if runs(client) => self.end_kept(client),
                Step::HandOneBack(client) if runs(client) => self.hand_back(client),
                Step::Stop(client) if self.lives(client) => self.processes[client].state = State::Stopped,
                Step::GoOn(client) if self.lives(client) => self.processes[client].state = State::Runs,
                Step::Die(client) => self.processes[client].state = State::Dead,
                Step::ManagerDies => self.manager_dies(),
                Step::Look => self.look(),
                _ => {}
            }
            // After every step, each slot of a living client is still taken in its segment.
            for client in (0..CLIENTS).filter(|client| self.lives(*client)) {
                let process = &self.processes[client];
                for (id, role, generation) in process.has.iter().chain(&process.kept) {
                    assert_eq!(self.segments[id].get(&(*role, *generation)), Some(&client), "after {step:?}");
                }
            }
        }

        /// Every living client continues and hands back its slots; then the taken slots are exactly those of living clients.
        fn settle(&mut self) {
            for client in (0..CLIENTS).filter(|client| self.lives(*client)).collect::<Vec<_>>() {
                self.step(Step::GoOn(client));
                while self.processes[client].to_hand.is_some() {
                    self.step(Step::HandOneBack(client));
                }
            }
            self.step(Step::Look);
            let taken = self.segments.iter().flat_map(|(id, slots)| slots.keys().map(|slot| (*id, slot.0, slot.1)));
            let taken: BTreeSet<_> = taken.collect();
            let living = self.processes.iter().filter(|process| process.state != State::Dead);
            let had: BTreeSet<_> =
                living.flat_map(|process| process.has.iter().chain(&process.kept)).copied().collect();
            assert_eq!(taken, had);
        }
    }

    fn steps() -> impl Strategy<Value = Step> {
        let client = 0..CLIENTS;
        let role = prop_oneof![Just(Role::Publisher), Just(Role::Subscriber)];
        prop_oneof![
            6 => (client.clone(), 0..TOPICS, role, prop::bool::weighted(0.9))
                .prop_map(|(client, topic, role, is_read)| Step::Join(client, topic, role, is_read)),
            2 => client.clone().prop_map(Step::Leave),
            1 => client.clone().prop_map(Step::Keep),
            1 => client.clone().prop_map(Step::EndKept),
            8 => client.clone().prop_map(Step::HandOneBack),
            1 => client.clone().prop_map(Step::Stop),
            2 => client.clone().prop_map(Step::GoOn),
            1 => client.prop_map(Step::Die),
            2 => Just(Step::ManagerDies),
            2 => Just(Step::Look),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 4000, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn no_living_client_loses_a_slot_and_no_dead_one_keeps_any(steps in prop::collection::vec(steps(), 1..60)) {
            let mut world = World::new();
            for step in steps {
                world.step(step);
            }
            world.settle();
        }
    }

    #[test]
    fn a_dead_clients_slot_is_released_though_another_of_the_topic_is_stopped_for_ever() {
        let mut world = World::new();
        for client in 0..2 {
            world.step(Step::Join(client, 0, Role::Subscriber, true));
        }
        world.step(Step::Join(2, 0, Role::Publisher, true));
        world.step(Step::Stop(0));
        world.step(Step::ManagerDies);
        world.step(Step::HandOneBack(2));
        assert_eq!(world.segments[&topic(0)].len(), 3, "all three may live");
        world.step(Step::Die(1));
        world.step(Step::Look);
        let left: Vec<usize> = world.segments[&topic(0)].values().copied().collect();
        assert_eq!(left, [2, 0]);
        world.settle();
    }
}
