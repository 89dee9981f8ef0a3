//! After a manager's death: its successor makes no topic anew that still lives, but waits a moment for its clients to hand segment, pools
//! and seats back. What nobody hands back in time belonged to the dead manager or to dead clients, and is buried.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rgaps_control::local::{HandedBack, Refusal, Reply, Role};
use rgaps_control::runtime::TopicNote;
use rgaps_control::{TopicId, TopicKey};
use rgaps_device::PoolDescription;
use rgaps_os::EventFd;
use rgaps_shm::Segment;
use rgaps_shm::janitor::Seat;

use crate::clients::{ClientId, Occupied};
use crate::manager::Manager;
use crate::requests::{Answer, shm_seat};
use crate::topics::{LocalPublisher, LocalSubscriber, Topic};

/// How long clients have for handing a topic back.
const GRACE: Duration = Duration::from_secs(3);

/// A topic that a predecessor noted and of which some client still lives.
#[derive(Clone, Debug)]
pub(crate) struct Expected {
    pub(crate) topic: TopicId,
    pub(crate) key: TopicKey,
    pub(crate) until: Instant,
}

/// Which of a predecessor's topics may still live.
pub(crate) fn expected(notes: Vec<TopicNote>, forget: impl Fn(TopicId)) -> Vec<Expected> {
    let until = Instant::now() + GRACE;
    let (living, dead): (Vec<TopicNote>, Vec<TopicNote>) =
        notes.into_iter().partition(|note| note.clients.iter().any(|client| client.is_alive()));
    dead.iter().for_each(|note| forget(note.topic));
    living.into_iter().map(|note| Expected { topic: note.topic, key: note.key, until }).collect()
}

impl Manager {
    /// Whether a topic must not be made anew yet.
    pub(crate) fn awaits_hand_back(&self, key: &TopicKey) -> bool {
        let here = self.topics.values().any(|topic| topic.key == *key);
        !here && self.expected.iter().any(|expected| expected.key == *key)
    }

    /// A client hands a seat back.
    pub(crate) fn hand_back(
        &mut self,
        client: ClientId,
        handed: &HandedBack,
        descriptors: Vec<OwnedFd>,
    ) -> Result<Answer, Refusal> {
        let mut descriptors = descriptors.into_iter();
        let Some(segment) = descriptors.next() else { return Err(Refusal::Invalid("no segment came".to_owned())) };
        self.adopt_topic(handed, segment)?;
        let memory = self.memory.clone();
        let Some(topic) = self.topics.get_mut(&handed.topic) else {
            return Err(Refusal::NotFound("the topic was not adopted".to_owned()));
        };
        let seat = shm_seat(handed.seat);
        let sits = match handed.role {
            Role::Publisher => topic.janitor.active_publishers().any(|active| active == seat),
            Role::Subscriber => topic.janitor.active_subscribers().any(|active| active == seat),
        };
        // A seat of this manager's own, an arrival's or a sender's, is nobody's to hand back.
        if !sits || topic.is_own(handed.role, seat) {
            return Err(Refusal::NotFound(format!("slot {} has no tenant of that generation", seat.slot)));
        }
        let occupied = Occupied { topic: handed.topic, role: handed.role, seat };
        let occupant = self.clients.occupant(client, &occupied);
        if occupant.is_none() && self.clients.is_occupied(&occupied) {
            return Err(Refusal::Invalid(format!("slot {} is another process's", seat.slot)));
        }
        match (handed.role, handed.publisher, handed.subscriber) {
            // The same manager: the client was cut off, and what it had is here.
            _ if occupant.is_some() => {}
            (Role::Publisher, Some(qos), _) => {
                let description: PoolDescription = handed
                    .pool
                    .clone()
                    .and_then(|pool| serde_json::from_value(pool).ok())
                    .ok_or_else(|| Refusal::Invalid("the pool's description cannot be read".to_owned()))?;
                let slabs = descriptors.collect();
                memory
                    .adopt(&topic.pools, seat, &description, slabs)
                    .map_err(|error| Refusal::Invalid(error.to_string()))?;
                topic.publishers.insert(seat, LocalPublisher { qos, pool_bytes: description.bytes });
            }
            (Role::Subscriber, _, Some(qos)) => {
                let event = descriptors.next().map(EventFd::checked).transpose();
                let event = event.map_err(|error| Refusal::Invalid(error.to_string()))?;
                topic.subscribers.insert(seat, LocalSubscriber { qos, event });
            }
            _ => return Err(Refusal::Invalid("a seat without its QoS".to_owned())),
        }
        if let Some(occupant) = occupant {
            self.clients.release(occupant, &occupied);
        }
        self.occupy(client, handed.topic, handed.role, seat);
        match handed.role {
            Role::Publisher => self.repeat_events(client, handed.topic),
            // Arrivals and publishers that come later ring it too.
            Role::Subscriber => self.spread_event(handed.topic, seat),
        }
        Ok(Answer { reply: Reply::Done, descriptors: Vec::new() })
    }

    /// The grace is over: what was not handed back is nobody's.
    pub(crate) fn end_adoption(&mut self, now: Instant) {
        for expected in self.expected.extract_if(.., |expected| expected.until <= now) {
            if !self.topics.contains_key(&expected.topic) {
                self.dir.forget_topic(expected.topic);
            }
        }
        let over: Vec<TopicId> = self
            .topics
            .values()
            .filter(|topic| topic.adoption_ends.is_some_and(|end| end <= now))
            .map(|topic| topic.id)
            .collect();
        for id in over {
            if let Some(topic) = self.topics.get_mut(&id) {
                topic.adoption_ends = None;
                bury_the_unclaimed(topic);
            }
            self.topic_changed(id);
        }
    }

    fn adopt_topic(&mut self, handed: &HandedBack, segment: OwnedFd) -> Result<(), Refusal> {
        if let Some(topic) = self.topics.get(&handed.topic) {
            return match topic.key == handed.key && topic.type_name == handed.type_name {
                true => Ok(()),
                false => Err(Refusal::Invalid("the topic has another name or type here".to_owned())),
            };
        }
        if self.topics.values().any(|topic| topic.key == handed.key) {
            return Err(Refusal::Invalid(format!("{} has been made anew; join it again", handed.key)));
        }
        let segment = Segment::attach(segment, handed.topic.0).map_err(|error| Refusal::Invalid(error.to_string()))?;
        let mut topic = Topic::of_segment(handed.key.clone(), &handed.type_name, handed.topic, Arc::new(segment));
        topic.adoption_ends = Some(Instant::now() + GRACE);
        tracing::info!(topic = %handed.key, "topic taken over from a manager that died");
        self.topics.insert(handed.topic, topic);
        Ok(())
    }
}

fn bury_the_unclaimed(topic: &Topic) {
    let publishers: Vec<Seat> = topic.janitor.active_publishers().collect();
    for seat in publishers
        .into_iter()
        .filter(|seat| !topic.publishers.contains_key(seat) && !topic.is_own(Role::Publisher, *seat))
    {
        tracing::info!(topic = %topic.key, slot = seat.slot, "a publisher slot that nobody handed back is buried");
        topic.bury(seat);
    }
    let subscribers: Vec<Seat> = topic.janitor.active_subscribers().collect();
    for seat in subscribers
        .into_iter()
        .filter(|seat| !topic.subscribers.contains_key(seat) && !topic.is_own(Role::Subscriber, *seat))
    {
        tracing::info!(topic = %topic.key, slot = seat.slot, "a subscriber slot that nobody handed back is freed");
        topic.janitor.dismiss_subscriber(seat.slot, seat.generation);
    }
}
