//! Hands a node's slots back to a manager's successor, topic by topic. Each message has as many slots as its bytes and descriptors allow.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rgaps_control::EndpointSlot;
use rgaps_control::local::{
    Body, DESCRIPTORS_MAX, HANDED_SLOTS_MAX, Handed, HandedSlot, HandedTopic, MESSAGE_BYTES_MAX, Refusal, Reply,
};

use crate::attachment::Attachment;
use crate::hello::{SessionError, is_lack};
use crate::node::NodeError;
use crate::publisher::PublisherInner;
use crate::subscriber::SubscriberInner;

/// Bytes of a message besides its slots.
const ENVELOPE_BYTES: usize = 1 << 10;

/// Hands all these slots back to one manager, one request after the other. An error if that manager died too, is stopped, or if it or this process
/// has no descriptors left. After an error no slot is lost: each may protect a sample that is being read.
pub(crate) fn hand_back(
    owners: Vec<(Attachment<EndpointSlot>, Owner)>,
    ask: &mut impl FnMut(Body, &[BorrowedFd<'_>]) -> Result<Reply, SessionError>,
) -> Result<(), SessionError> {
    let slots = owners.len();
    let mut owners = VecDeque::from(owners);
    let mut slots_max = HANDED_SLOTS_MAX;
    while !owners.is_empty() {
        let batch = fill(&mut owners, slots_max)?;
        let Batch { topics, descriptors, members, .. } = batch;
        if members.is_empty() {
            continue;
        }
        let borrowed: Vec<BorrowedFd<'_>> = descriptors.iter().map(AsFd::as_fd).collect();
        match ask(Body::HandBack { topics }, &borrowed) {
            Ok(Reply::HandedBack { refused }) => {
                for refusal in &refused {
                    let owner = members.iter().find(|(attachment, _)| attachment.is(refusal));
                    owner.into_iter().for_each(|(attachment, owner)| cut_off(attachment, owner, &refusal.why));
                }
            }
            Ok(_) => return Err(SessionError::Confused),
            // The manager may have descriptors for fewer slots at once.
            Err(SessionError::Refused(Refusal::Exhausted(_))) if members.len() > 1 => {
                slots_max = members.len() / 2;
                members.into_iter().rev().for_each(|member| owners.push_front(member));
            }
            Err(SessionError::Refused(refusal)) if !matches!(refusal, Refusal::Exhausted(_)) => {
                members.iter().for_each(|(attachment, owner)| cut_off(attachment, owner, &refusal.to_string()));
            }
            Err(error) => return Err(error),
        }
    }
    ask(Body::HandedAllBack, &[])?;
    tracing::info!(slots, "handed back to rgapsd");
    Ok(())
}

/// Moves slots from the front of `owners` into one message, as many as the message and this process's descriptors allow. An error if this process
/// has no descriptors for the first one.
fn fill(
    owners: &mut VecDeque<(Attachment<EndpointSlot>, Owner)>,
    slots_max: usize,
) -> Result<Batch<Owner>, SessionError> {
    let mut batch = Batch::default();
    while batch.members.len() < slots_max
        && let Some((attachment, owner)) = owners.pop_front()
    {
        let is_first = batch.members.is_empty();
        let (attachment, owner, why) = match owner.exported(attachment.slot) {
            Ok((of, descriptors)) => match batch.add(Item { attachment, of, descriptors, member: owner }) {
                Ok(()) => continue,
                Err(left) => {
                    let (Item { attachment, member, .. }, why) = *left;
                    (attachment, member, why)
                }
            },
            Err(error) => (attachment, owner, error),
        };
        if !is_first {
            owners.push_front((attachment, owner));
            break;
        }
        if is_lack(&why) {
            owners.push_front((attachment, owner));
            return Err(SessionError::Io(io::Error::other(why.to_string())));
        }
        cut_off(&attachment, &owner, &why.to_string());
    }
    Ok(batch)
}

/// The owner of a slot, while the slot is handed back.
#[derive(Debug)]
pub(crate) enum Owner {
    Publisher(Arc<PublisherInner>),
    Subscriber(Arc<SubscriberInner>, rgaps_control::SubscriberQos),
    Kept,
}

impl Owner {
    pub(crate) fn attachment(&self) -> Attachment<EndpointSlot> {
        match self {
            Self::Publisher(publisher) => publisher.attachment.of_either(),
            Self::Subscriber(subscriber, _) => subscriber.attachment.of_either(),
            Self::Kept => unreachable!("a kept slot has no owner to ask"),
        }
    }

    /// The description and descriptors that the manager needs to take this slot back.
    fn exported(&self, slot: EndpointSlot) -> Result<(Handed, Vec<OwnedFd>), NodeError> {
        Ok(match self {
            Self::Publisher(publisher) => {
                let (description, slabs) = publisher.pool.export()?;
                let pool = serde_json::to_value(description).map_err(io::Error::other)?;
                (Handed::Publisher { slot: publisher.attachment.slot, qos: publisher.qos, pool }, slabs)
            }
            Self::Subscriber(subscriber, qos) => {
                let file = subscriber.pages.file().ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
                let own = file.as_fd().try_clone_to_owned()?;
                let event = subscriber.tended.event.get().map(|event| event.try_clone()).transpose()?;
                let place = subscriber.pages.place();
                let slot = subscriber.attachment.slot;
                (
                    Handed::Subscriber { slot, qos: *qos, place },
                    [own].into_iter().chain(event.map(OwnedFd::from)).collect(),
                )
            }
            Self::Kept => (Handed::Kept { slot }, Vec::new()),
        })
    }
}

/// Cuts off the owner of a slot that was not taken back, and wakes the threads that wait on its topic.
fn cut_off(attachment: &Attachment<EndpointSlot>, owner: &Owner, why: &str) {
    let (topic, slot) = (&attachment.key, attachment.slot);
    tracing::warn!(%topic, %slot, why, "rgapsd did not take a slot back: create its publisher or subscriber again");
    attachment.cut_off();
    match owner {
        Owner::Subscriber(subscriber, _) => subscriber.ring(),
        Owner::Publisher(_) => attachment.segment.wake_everybody(),
        Owner::Kept => {}
    }
}

/// A slot to be handed back.
#[derive(Debug)]
struct Item<M> {
    attachment: Attachment<EndpointSlot>,
    of: Handed,
    descriptors: Vec<OwnedFd>,
    /// Its owner.
    member: M,
}

/// Slots that fit into one message.
#[derive(Debug)]
struct Batch<M> {
    topics: Vec<HandedTopic>,
    descriptors: Vec<OwnedFd>,
    bytes: usize,
    members: Vec<(Attachment<EndpointSlot>, M)>,
}

impl<M> Default for Batch<M> {
    fn default() -> Self {
        Self { topics: Vec::new(), descriptors: Vec::new(), bytes: ENVELOPE_BYTES, members: Vec::new() }
    }
}

impl<M> Batch<M> {
    /// Adds a slot, or returns it with the reason if it does not fit. Consecutive slots of one topic share one descriptor of its segment.
    fn add(&mut self, item: Item<M>) -> Result<(), Box<(Item<M>, NodeError)>> {
        let Item { attachment, of, descriptors, member } = item;
        let is_new = self.topics.last().is_none_or(|last| last.topic != attachment.topic);
        let slot = HandedSlot { descriptors: descriptors.len() as u32, of };
        let topic = HandedTopic {
            key: attachment.key.clone(),
            topic: attachment.topic,
            type_name: attachment.type_name.clone(),
            slots: Vec::new(),
        };
        let length = |text: Result<String, _>| text.map_or(MESSAGE_BYTES_MAX, |text: String| text.len() + 1);
        let mut bytes = length(serde_json::to_string(&slot));
        if is_new {
            bytes += length(serde_json::to_string(&topic));
        }
        let fits = self.bytes + bytes <= MESSAGE_BYTES_MAX
            && self.descriptors.len() + usize::from(is_new) + descriptors.len() <= DESCRIPTORS_MAX
            && self.members.len() < HANDED_SLOTS_MAX;
        let segment = match fits {
            true if is_new => attachment.segment.as_fd().try_clone_to_owned().map(Some),
            true => Ok(None),
            false => Err(io::Error::other("no message is long enough for this slot")),
        };
        let segment = match segment {
            Ok(segment) => segment,
            Err(error) => return Err(Box::new((Item { attachment, of: slot.of, descriptors, member }, error.into()))),
        };
        self.bytes += bytes;
        self.descriptors.extend(segment);
        self.descriptors.extend(descriptors);
        if is_new {
            self.topics.push(topic);
        }
        if let Some(last) = self.topics.last_mut() {
            last.slots.push(slot);
        }
        self.members.push((attachment, member));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rgaps_control::local::{Connection, Packet, Request};
    use rgaps_control::{SubscriberQos, SubscriberSlot, TopicId, TopicKey};
    use rgaps_shm::Segment;

    fn item(number: usize, descriptors: usize) -> Item<usize> {
        let topic = TopicId((number as u128).to_be_bytes());
        let slot = SubscriberSlot { index: 1, generation: u32::MAX };
        let attachment = Attachment {
            key: TopicKey::new(0, &format!("{}{number}", "a".repeat(240))).unwrap(),
            topic,
            type_name: "b".repeat(255),
            slot: slot.into(),
            segment: Arc::new(Segment::create(topic.0).unwrap()),
            cut_off: Arc::default(),
        };
        let file = || std::fs::File::open("/dev/null").unwrap().into();
        let descriptors = std::iter::repeat_with(file).take(descriptors).collect();
        Item {
            attachment,
            of: Handed::Subscriber { slot, qos: SubscriberQos::default(), place: 0 },
            descriptors,
            member: number,
        }
    }

    /// How many messages it takes to hand back so many topics, each of which is sent and read.
    fn messages(topics: usize, descriptors: usize) -> usize {
        let (one, two) = Connection::pair().unwrap();
        let (mut sent, mut slots) = (0, 0);
        let mut send = |batch: Batch<usize>| {
            let Batch { topics, descriptors, members, .. } = batch;
            let body = Body::HandBack { topics };
            let borrowed: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
            one.send(&Request { id: 0, body }, &borrowed).unwrap();
            let packet: Packet<Request> = two.receive(std::time::Duration::from_secs(20)).unwrap().unwrap();
            assert_eq!(packet.descriptors.len(), descriptors.len());
            sent += 1;
            slots += members.len();
        };
        let mut batch = Batch::default();
        for number in 0..topics {
            if let Err(left) = batch.add(item(number, descriptors)) {
                send(std::mem::take(&mut batch));
                assert!(batch.add(left.0).is_ok(), "one slot fits");
            }
        }
        send(batch);
        assert_eq!(slots, topics);
        sent
    }

    #[test]
    fn many_slots_are_handed_back_in_few_messages_that_keep_every_limit() {
        // By bytes, by descriptors, and the largest pool alone.
        assert!(messages(300, 0) <= 300 / 50 + 1);
        assert_eq!(messages(100, 1), 100_usize.div_ceil(DESCRIPTORS_MAX / 2));
        assert_eq!(messages(3, DESCRIPTORS_MAX - 1), 3);
    }
}
