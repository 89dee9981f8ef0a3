//! Takes segments, pools and slots back from the clients of a manager that died, as `adoption` decides.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rgaps_control::local::{HANDED_SLOTS_MAX, Handed, HandedSlot, HandedTopic, Refusal, RefusedSlot, Reply};
use rgaps_control::names::check_type;
use rgaps_control::{EndpointSlot, LockId, SubscriberSlot, TopicId};
use rgaps_device::PoolDescription;
use rgaps_os::{EventFd, Holder};
use rgaps_shm::{Segment, SubscriberFile, SubscriberPages};

use crate::adoption::Decision;
use crate::clients::{ClientId, Occupied};
use crate::device_memory::PoolError;
use crate::manager::Manager;
use crate::refusals::exhausted;
use crate::requests::Answer;
use crate::topics::{LocalPublisher, LocalSubscriber, Topic};

/// Words of subscribers looked for in files, at most: the files of a stopped client times its subscribers. It has a file, and one more for each manager
/// that died while it went on subscribing.
const LOOKS_FOR_WORDS: usize = 1 << 16;

/// Decisions carried out in one turn, before clients are served again.
const DECISIONS_A_TURN: usize = 64;

/// Whether handing back a topic or slot changed anything. Only a change causes work, so a client may hand the same slots back any number of times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Taken {
    /// The topic is new here, or the slot is new on this connection.
    Anew,
    /// Nothing changed.
    AsBefore,
}

/// Why a slot is not taken back.
#[derive(Clone, Debug)]
enum NotTaken {
    /// The slot is not this client's, or its segment, pool or words are not valid.
    Refused(String),
    /// This manager lacks file descriptors or memory for it: the client is to try again, fewer at once.
    OutOfResources(String),
}

impl NotTaken {
    /// Classifies an error of a system call: EMFILE, ENFILE and ENOMEM, as the standard library writes them, are `OutOfResources`.
    fn of_call(error: impl std::fmt::Display) -> Self {
        let text = error.to_string();
        let is_lack = ["(os error 24)", "(os error 23)", "(os error 12)"].iter().any(|part| text.contains(part));
        if is_lack { Self::OutOfResources(text) } else { Self::Refused(text) }
    }

    fn of_pool(error: PoolError) -> Self {
        if error.is_lack() { Self::OutOfResources(error.to_string()) } else { Self::of_call(error) }
    }

    fn why(&self) -> &str {
        let (Self::Refused(why) | Self::OutOfResources(why)) = self;
        why
    }
}

impl From<&str> for NotTaken {
    fn from(why: &str) -> Self {
        Self::Refused(why.to_owned())
    }
}

impl Manager {
    /// Takes or refuses each slot that a client hands back, independently of the others.
    pub(crate) fn hand_back(
        &mut self,
        client: ClientId,
        topics: &[HandedTopic],
        fds: Vec<OwnedFd>,
    ) -> Result<Answer, Refusal> {
        let slots: usize = topics.iter().map(|topic| topic.slots.len()).sum();
        if slots > HANDED_SLOTS_MAX {
            return Err(Refusal::Invalid(format!("{slots} slots at once; {HANDED_SLOTS_MAX} are allowed")));
        }
        // A topic without slots is refused, so the limit on slots bounds the topics too.
        if let Some(topic) = topics.iter().find(|topic| topic.slots.is_empty()) {
            return Err(Refusal::Invalid(format!("{} is handed back without slots", topic.key)));
        }
        let mut fds = fds.into_iter();
        let (mut refused, mut lacking) = (Vec::new(), None);
        let mut changed: BTreeMap<TopicId, Vec<SubscriberSlot>> = BTreeMap::new();
        for handed in topics {
            let adopted = fds.next().ok_or_else(|| NotTaken::from("no segment came"));
            let adopted = adopted.and_then(|segment| self.adopt_topic(client, handed, segment));
            if matches!(adopted, Ok(Taken::Anew)) {
                changed.entry(handed.topic).or_default();
            }
            for slot in &handed.slots {
                let beside: Vec<OwnedFd> = fds.by_ref().take(slot.fds as usize).collect();
                let occupied = Occupied { topic: handed.topic, slot: slot.of.slot() };
                let done = adopted.clone().and_then(|_| self.take_back(client, &occupied, slot, beside));
                match done {
                    Ok(Taken::Anew) => {
                        let subscribers = changed.entry(handed.topic).or_default();
                        subscribers.extend(as_subscriber(&slot.of));
                    }
                    Ok(Taken::AsBefore) => {}
                    Err(NotTaken::OutOfResources(why)) => lacking = Some(why),
                    Err(not_taken) => {
                        let (topic, slot, why) = (handed.topic, slot.of.slot(), not_taken.why().to_owned());
                        tracing::warn!(topic = %handed.key, %slot, why, "a slot is not taken back");
                        // It may protect a sample that its client reads: it stays until the client detaches or ends.
                        if adopted.is_ok() && self.is_awaited(client, &occupied) {
                            self.adoption.handle_kept(&occupied);
                        }
                        refused.push(RefusedSlot { topic, slot, why });
                    }
                }
            }
        }
        for (id, subscribers) in changed {
            self.topic_changed(id);
            // A publisher that joined before this hand-back may not know the subscriber's words yet.
            subscribers.into_iter().for_each(|slot| self.spread_subscriber(id, slot));
        }
        // The client hands these slots back again, fewer at once or later; it loses none of them.
        match lacking {
            Some(why) => {
                tracing::warn!(why, "slots cannot be taken back now; their client tries again");
                Err(exhausted(&why))
            }
            None => Ok(Answer { reply: Reply::HandedBack { refused }, fds: Vec::new() }),
        }
    }

    /// A client says that it has handed everything back.
    pub(crate) fn handed_all_back(&mut self, client: ClientId) -> Result<Answer, Refusal> {
        if let Some(lock) = self.clients.lock_of(client) {
            self.adoption.handle_all_handed_back(lock);
            // Slots of its earlier connections to this manager that it has detached from since.
            self.departures.add(self.clients.take_slots_of_earlier(client, lock));
            self.decide();
        }
        Ok(Answer { reply: Reply::Done, fds: Vec::new() })
    }

    /// Finds the words of stopped clients' subscribers. A stopped client hands nothing back, and a publisher that does not know a subscriber's words
    /// keeps every message for it. So the manager opens the file with these words through `/proc/PID/fd` of the client, if the kernel permits that.
    fn find_words_of_the_stopped(&mut self) {
        if self.adoption.is_over() {
            return self.words_search.clear();
        }
        if !self.words_search.has_begun() {
            return;
        }
        for noted in self.adoption.awaited_clients() {
            let lock = noted.lock;
            let Ok(Holder::Process(pid)) = self.locks.holder(&self.host.dir, noted) else { continue };
            let is_lacking = |topic: &Topic, slot: &SubscriberSlot| {
                let occupied = Occupied { topic: topic.id, slot: (*slot).into() };
                self.adoption.awaits_from(lock, &occupied) && topic.slot_table.pages(*slot).is_none()
            };
            let of_topic = |topic: &Topic| {
                let lacking = topic.slot_table.active_subscribers().filter(|slot| is_lacking(topic, slot));
                lacking.map(|slot| (topic.id, slot)).collect::<Vec<_>>()
            };
            let mut lacking: Vec<(TopicId, SubscriberSlot)> = self.topics.values().flat_map(of_topic).collect();
            // A stopped process opens nothing new, so each of its subscribers is looked for once: reading /proc/PID/fd may take long.
            lacking.retain(|slot| !self.words_search.has(slot));
            if lacking.is_empty() {
                continue;
            }
            let (mut left, mut looks, mut found, mut has_files) = (lacking.clone(), LOOKS_FOR_WORDS, Vec::new(), false);
            SubscriberFile::each_of_process(pid, |file| {
                has_files = true;
                looks = looks.saturating_sub(left.len());
                left.retain(|(id, slot)| {
                    let topic = self.topics.get(id);
                    let find =
                        |topic: &Topic| SubscriberPages::find(&file, topic.slot_table.place_of(*slot), id.0, *slot);
                    let pages = topic.and_then(|topic| find(topic).ok());
                    let is_left = pages.is_none();
                    found.extend(pages.map(|pages| (*id, *slot, pages)));
                    is_left
                });
                if left.is_empty() || looks == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            });
            if has_files {
                self.words_search.add(&lacking);
            }
            for (id, slot, pages) in found {
                let Some(topic) = self.topics.get(&id) else { continue };
                topic.slot_table.adopt_pages(pages);
                self.spread_subscriber(id, slot);
            }
        }
    }

    /// Asks the kernel which of the clients with awaited slots live, and releases the slots of the dead ones.
    pub(crate) fn look_for_the_dead(&mut self) {
        let awaited = self.adoption.awaited_clients();
        let living = self.locks.living(&self.host.dir, awaited.iter().copied());
        awaited.difference(&living).for_each(|dead| self.forget_awaited(dead.lock));
        self.decide();
        self.find_words_of_the_stopped();
    }

    /// A client has ended: nothing is awaited from it any more.
    pub(crate) fn forget_awaited(&mut self, lock: LockId) {
        self.adoption.handle_death(lock);
        self.forget_lock_unless_used(lock);
    }

    /// Carries out decisions, `DECISIONS_A_TURN` at most: a client may have had thousands of slots.
    pub(crate) fn decide(&mut self) {
        for _ in 0..DECISIONS_A_TURN {
            let Some(decision) = self.adoption.poll_decision() else { return };
            match decision {
                Decision::Release(occupied) => {
                    if let Some(topic) = self.topics.get(&occupied.topic) {
                        let slot = occupied.slot;
                        tracing::info!(topic = %topic.key, %slot, "a slot that no living client has is released");
                    }
                    self.release_slot(occupied);
                }
                Decision::Forget(topic) => self.host.dir.forget_topic(topic),
                Decision::Settled(topic) => self.topic_changed(topic),
            }
        }
    }

    /// Whether a slot is one that the client may hand back.
    fn is_awaited(&self, client: ClientId, occupied: &Occupied) -> bool {
        self.clients.lock_of(client).is_some_and(|lock| self.adoption.awaits_from(lock, occupied))
    }

    fn take_back(
        &mut self,
        client: ClientId,
        occupied: &Occupied,
        handed: &HandedSlot,
        fds: Vec<OwnedFd>,
    ) -> Result<Taken, NotTaken> {
        let id = occupied.topic;
        let occupant = self.clients.occupant(client, occupied);
        let is_awaited = self.is_awaited(client, occupied);
        let memory = self.memory.clone();
        let Some(topic) = self.topics.get_mut(&id) else { return Err("the topic has ended".into()) };
        if occupant.is_none() && !is_awaited || !is_a_clients(topic, occupied.slot) {
            let why = format!("{} is not this client's: this client gave it up, or another one has it", occupied.slot);
            return Err(NotTaken::Refused(why));
        }
        if occupant == Some(client) {
            return Ok(Taken::AsBefore);
        }
        match &handed.of {
            Handed::Kept { .. } if is_awaited => {
                self.adoption.handle_kept(occupied);
                return Ok(Taken::AsBefore);
            }
            Handed::Kept { .. } => {}
            // An earlier connection of this client has the slot: the manager disconnected it, and still has pool and words.
            _ if occupant.is_some() => {}
            Handed::Publisher { slot, qos, pool } => {
                let description: PoolDescription = serde_json::from_value(pool.clone())
                    .map_err(|error| NotTaken::Refused(format!("the pool's description cannot be read: {error}")))?;
                let noted = self.adoption.pool_of(occupied);
                let adopted = memory.adopt(&topic.pools, *slot, noted, &description, fds);
                adopted.map_err(NotTaken::of_pool)?;
                topic.publishers.insert(*slot, LocalPublisher { qos: *qos, pool_bytes: description.bytes });
                // Senders may have messages that wait for the pool.
                topic.outbound.values().for_each(|outbound| {
                    let _ = outbound.control.event().signal();
                });
            }
            Handed::Subscriber { slot, qos, place } => {
                let mut fds = fds.into_iter();
                let own = fds.next().ok_or("its own words did not come")?;
                let client = self.clients.by_id.get_mut(&client).ok_or("it has gone")?;
                let file = client.files.adopt(own).map_err(NotTaken::of_call)?;
                // A file that is not this user's cannot be passed on to publishers, so it is refused here.
                let passed_on =
                    |error| NotTaken::of_call(format!("its own words cannot be passed on to publishers: {error}"));
                file.reading().map_err(passed_on)?;
                let own = SubscriberPages::attach(file, *place, id.0, *slot);
                let own = own.map_err(NotTaken::of_call)?;
                let event = match fds.next().map(EventFd::checked).transpose().map_err(NotTaken::of_call) {
                    // The subscriber keeps its slot, and is woken without the file descriptor.
                    Err(NotTaken::Refused(why)) => {
                        let slot = occupied.slot;
                        tracing::warn!(topic = %topic.key, %slot, why, "an eventfd cannot be used");
                        None
                    }
                    event => event?.map(Arc::new),
                };
                if let Some(event) = &event {
                    // A publisher may have published and left before it could know this subscriber.
                    let _ = event.signal();
                    // The dead manager may not have known the eventfd.
                    topic.slot_table.mark_event_fd(*slot, true);
                }
                topic.slot_table.adopt_pages(own);
                topic.subscribers.insert(*slot, LocalSubscriber { qos: *qos, event });
            }
        }
        match occupant {
            Some(occupant) => self.clients.hand_over(occupant, client, occupied),
            None => {
                self.clients.occupy(client, *occupied);
                self.adoption.handle_handed_back(occupied);
            }
        }
        Ok(Taken::Anew)
    }

    fn adopt_topic(&mut self, client: ClientId, handed: &HandedTopic, segment: OwnedFd) -> Result<Taken, NotTaken> {
        if let Some(topic) = self.topics.get(&handed.topic) {
            return match topic.key == handed.key && topic.type_name == handed.type_name {
                true => Ok(Taken::AsBefore),
                false => Err("this rgapsd has the topic under another name or type".into()),
            };
        }
        if self.topics.id_of(&handed.key).is_some() {
            return Err(NotTaken::Refused(format!("{} was created again meanwhile, with a new segment", handed.key)));
        }
        check_type(&handed.type_name).map_err(|error| NotTaken::Refused(error.to_string()))?;
        let lock = self.clients.lock_of(client);
        let Some(noted) = lock.and_then(|lock| self.adoption.segment_of(lock, handed)) else {
            return Err("no note gives this client one of these slots in a topic of this name and type".into());
        };
        let segment = Segment::take_over(segment, handed.topic.0, noted).map_err(NotTaken::of_call)?;
        let topic =
            Topic::of_segment(handed.key.clone(), &handed.type_name, handed.topic, Arc::new(segment), self.host.id);
        topic.slot_table.finish_departures();
        tracing::info!(topic = %handed.key, "topic taken over from an earlier manager");
        let publishers = topic.slot_table.active_publishers().map(EndpointSlot::from);
        let taken: Vec<_> = publishers.chain(topic.slot_table.active_subscribers().map(EndpointSlot::from)).collect();
        self.add_topic(topic);
        self.adoption.handle_segment(handed.topic, taken.into_iter());
        self.decide();
        Ok(Taken::Anew)
    }
}

/// The slot, if it is a subscriber's and comes with its words.
fn as_subscriber(handed: &Handed) -> Option<SubscriberSlot> {
    match handed {
        Handed::Subscriber { slot, .. } => Some(*slot),
        Handed::Publisher { .. } | Handed::Kept { .. } => None,
    }
}

/// Whether a client occupies a slot. Arrivals and senders occupy slots of this manager, which no client can hand back.
fn is_a_clients(topic: &Topic, slot: EndpointSlot) -> bool {
    let is_occupied = match slot {
        EndpointSlot::Publisher(slot) => topic.slot_table.active_publishers().any(|active| active == slot),
        EndpointSlot::Subscriber(slot) => topic.slot_table.active_subscribers().any(|active| active == slot),
    };
    is_occupied && !topic.is_own(slot)
}
