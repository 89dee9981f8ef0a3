//! Hands a node's slots back to a manager's successor, topic by topic. Each message has as many slots as its bytes and file descriptors allow.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rgaps_control::local::{
    Body, FDS_MAX, HANDED_SLOTS_MAX, Handed, HandedSlot, HandedTopic, MESSAGE_BYTES_MAX, Refusal, Reply,
};

use crate::endpoint::error::NodeError;
use crate::endpoint::hello::{SessionError, is_lack};
use crate::endpoint::members::{Member, Parts};

/// Bytes of a message besides its slots.
const ENVELOPE_BYTES: usize = 1 << 10;

/// Hands all these slots back to one manager, one request after the other. An error if that manager died too, is stopped, or if it or this process
/// has no file descriptors left. After an error no slot is lost: each may protect a sample that is being read.
pub(crate) fn hand_back(
    members: Vec<Member>,
    ask: &mut impl FnMut(Body, &[BorrowedFd<'_>]) -> Result<Reply, SessionError>,
) -> Result<(), SessionError> {
    let slots = members.len();
    let mut left = VecDeque::from(members);
    let mut slots_max = HANDED_SLOTS_MAX;
    while !left.is_empty() {
        let batch = fill(&mut left, slots_max)?;
        let Batch { topics, fds, members, .. } = batch;
        if members.is_empty() {
            continue;
        }
        let borrowed: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
        match ask(Body::HandBack { topics }, &borrowed) {
            Ok(Reply::HandedBack { refused }) => {
                for refusal in &refused {
                    let member = members.iter().find(|member| member.attachment.is(refusal));
                    member.into_iter().for_each(|member| cut_off(member, &refusal.why));
                }
            }
            Ok(_) => return Err(SessionError::Confused),
            // The manager may have file descriptors for fewer slots at once.
            Err(SessionError::Refused(Refusal::Exhausted(_))) if members.len() > 1 => {
                slots_max = members.len() / 2;
                members.into_iter().rev().for_each(|member| left.push_front(member));
            }
            Err(SessionError::Refused(refusal)) if !matches!(refusal, Refusal::Exhausted(_)) => {
                members.iter().for_each(|member| cut_off(member, &refusal.to_string()));
            }
            Err(error) => return Err(error),
        }
    }
    ask(Body::HandedAllBack, &[])?;
    tracing::info!(slots, "handed back to rgapsd");
    Ok(())
}

/// Moves members from the front of `left` into one message, as many as the message and this process's file descriptors allow. An error, to try again
/// later, if the first one cannot be exported.
fn fill(left: &mut VecDeque<Member>, slots_max: usize) -> Result<Batch, SessionError> {
    let mut batch = Batch::default();
    while batch.members.len() < slots_max
        && let Some(member) = left.pop_front()
    {
        let is_first = batch.members.is_empty();
        let (member, why) = match exported(&member) {
            Ok((of, fds)) => match batch.add(Item { of, fds, member }) {
                Ok(()) => continue,
                Err(not_added) => {
                    let (Item { member, .. }, why) = *not_added;
                    (member, why)
                }
            },
            Err(error) => (member, error),
        };
        left.push_front(member);
        if is_first {
            return Err(SessionError::Io(io::Error::other(why.to_string())));
        }
        break;
    }
    Ok(batch)
}

/// The description and file descriptors that the manager needs to take a slot back. A slot whose owner is gone is kept even if they cannot be
/// exported: a stream may still write there. So is a slot that an earlier manager did not take back: a sample or a stream may still use it.
fn exported(member: &Member) -> Result<(Handed, Vec<OwnedFd>), NodeError> {
    if member.attachment.is_cut_off() {
        return Ok((Handed::Kept { slot: member.attachment.slot }, Vec::new()));
    }
    match described(&member.parts) {
        Err(error) if member.is_gone() && !is_lack(&error) => {
            let slot = member.attachment.slot;
            tracing::warn!(topic = %member.attachment.key, %slot, %error, "only the slot is handed back to rgapsd");
            Ok((Handed::Kept { slot }, Vec::new()))
        }
        described => described,
    }
}

fn described(parts: &Parts) -> Result<(Handed, Vec<OwnedFd>), NodeError> {
    Ok(match parts {
        Parts::Publisher { slot, pool, qos, .. } => {
            let (description, slabs) = pool.export()?;
            let pool = serde_json::to_value(description).map_err(io::Error::other)?;
            (Handed::Publisher { slot: *slot, qos: *qos, pool }, slabs)
        }
        Parts::Subscriber { slot, pages, maintained, qos } => {
            let file = pages.file().ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
            let own = file.as_fd().try_clone_to_owned()?;
            let event = maintained.event.get().map(|event| event.try_clone()).transpose()?;
            let handed = Handed::Subscriber { slot: *slot, qos: *qos, place: pages.place() };
            (handed, [own].into_iter().chain(event.map(OwnedFd::from)).collect())
        }
    })
}

/// Cuts off the owner of a slot that was not taken back, and wakes the threads that wait on its topic.
fn cut_off(member: &Member, why: &str) {
    let attachment = &member.attachment;
    let (topic, slot) = (&attachment.key, attachment.slot);
    if attachment.is_cut_off() {
        return tracing::debug!(%topic, %slot, why, "rgapsd did not take a slot back that was lost before");
    }
    tracing::warn!(%topic, %slot, why, "rgapsd did not take a slot back: create its publisher or subscriber again");
    attachment.cut_off();
    member.endpoint.upgrade().into_iter().for_each(|endpoint| endpoint.wake_all());
}

/// A slot to be handed back.
#[derive(Debug)]
struct Item {
    of: Handed,
    fds: Vec<OwnedFd>,
    member: Member,
}

/// Slots that fit into one message.
#[derive(Debug)]
struct Batch {
    topics: Vec<HandedTopic>,
    fds: Vec<OwnedFd>,
    bytes: usize,
    members: Vec<Member>,
}

impl Default for Batch {
    fn default() -> Self {
        Self { topics: Vec::new(), fds: Vec::new(), bytes: ENVELOPE_BYTES, members: Vec::new() }
    }
}

impl Batch {
    /// Adds a slot, or returns it with the reason if it does not fit. Consecutive slots of one topic share one file descriptor of its segment.
    fn add(&mut self, item: Item) -> Result<(), Box<(Item, NodeError)>> {
        let Item { of, fds, member } = item;
        let attachment = &member.attachment;
        let is_new = self.topics.last().is_none_or(|last| last.topic != attachment.topic);
        let slot = HandedSlot { fds: fds.len() as u32, of };
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
            && self.fds.len() + usize::from(is_new) + fds.len() <= FDS_MAX
            && self.members.len() < HANDED_SLOTS_MAX;
        let segment = match fits {
            true if is_new => attachment.segment.as_fd().try_clone_to_owned().map(Some),
            true => Ok(None),
            false => Err(io::Error::other("no message is long enough for this slot")),
        };
        let segment = match segment {
            Ok(segment) => segment,
            Err(error) => return Err(Box::new((Item { of: slot.of, fds, member }, error.into()))),
        };
        self.bytes += bytes;
        self.fds.extend(segment);
        self.fds.extend(fds);
        if is_new {
            self.topics.push(topic);
        }
        if let Some(last) = self.topics.last_mut() {
            last.slots.push(slot);
        }
        self.members.push(member);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoint::attachment::Attachment;
    use crate::endpoint::members::Endpoint;
    use crate::endpoint::publisher::PublisherInner;
    use rgaps_control::local::{Connection, Packet, Request};
    use rgaps_control::{PublisherQos, PublisherSlot, TopicId, TopicKey};
    use rgaps_device::{Choice, PoolMemory, PoolSpec};
    use rgaps_shm::Segment;
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    use std::sync::{Arc, Weak};

    fn item(number: usize, fds: usize, pool: &Arc<dyn PoolMemory>) -> Item {
        let topic = TopicId((number as u128).to_be_bytes());
        let slot = PublisherSlot { index: 1, generation: u32::MAX };
        let attachment = Attachment {
            key: TopicKey::new(0, &format!("{}{number}", "a".repeat(240))).unwrap(),
            topic,
            type_name: "b".repeat(255),
            slot: slot.into(),
            segment: Arc::new(Segment::create(topic.0).unwrap()),
            cut_off: Arc::default(),
        };
        let file = || std::fs::File::open("/dev/null").unwrap().into();
        let fds = std::iter::repeat_with(file).take(fds).collect();
        let (pool, qos) = (pool.clone(), PublisherQos::default());
        let parts = Parts::Publisher { slot, port: Weak::new(), pool, qos };
        let endpoint: Weak<dyn Endpoint> = Weak::<PublisherInner>::new();
        Item { of: Handed::Kept { slot: slot.into() }, fds, member: Member { attachment, endpoint, parts } }
    }

    /// How many messages it takes to hand back so many topics, each of which is sent and read.
    fn messages(topics: usize, fds: usize) -> usize {
        let (one, two) = Connection::pair().unwrap();
        let (mut sent, mut slots) = (0, 0);
        let backend = rgaps_device::open(Choice::Host).unwrap().backend;
        let pool = backend.create_pool(&PoolSpec { name: "batch".to_owned(), bytes: 1 }).unwrap();
        let mut send = |batch: Batch| {
            let Batch { topics, fds, members, .. } = batch;
            let body = Body::HandBack { topics };
            let borrowed: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
            one.send(&Request { id: 0, body }, &borrowed).unwrap();
            let packet: Packet<Request> = two.receive(std::time::Duration::from_secs(20)).unwrap().unwrap();
            assert_eq!(packet.fds.len(), fds.len());
            sent += 1;
            slots += members.len();
        };
        let mut batch = Batch::default();
        for number in 0..topics {
            if let Err(left) = batch.add(item(number, fds, &pool)) {
                send(std::mem::take(&mut batch));
                assert!(batch.add(left.0).is_ok(), "one slot fits");
            }
        }
        send(batch);
        assert_eq!(slots, topics);
        sent
    }

    #[test]
    fn a_slot_is_handed_back_later_if_the_process_may_have_no_fds() {
        // In a process of its own: limits are the process's.
        if !rgaps_testing::again_with(&[], |_| Ok(())) {
            return;
        }
        let backend = rgaps_device::open(Choice::Host).unwrap().backend;
        let pool = backend.create_pool(&PoolSpec { name: "limit".to_owned(), bytes: 1 }).unwrap();
        let mut left = VecDeque::from([item(0, 0, &pool).member, item(1, 0, &pool).member]);
        let maximum = getrlimit(Resource::Nofile).maximum;
        setrlimit(Resource::Nofile, Rlimit { current: Some(0), maximum }).unwrap();
        let filled = fill(&mut left, HANDED_SLOTS_MAX);
        setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).unwrap();
        assert!(left.iter().all(|member| !member.attachment.is_cut_off()) && left.len() == 2, "{left:?}");
        assert!(filled.unwrap_err().is_lack());
        assert_eq!(fill(&mut left, HANDED_SLOTS_MAX).unwrap().members.len(), 2);
    }

    #[test]
    fn many_slots_are_handed_back_in_few_messages_that_keep_every_limit() {
        // By bytes, by file descriptors, and the largest pool alone.
        assert!(messages(300, 0) <= 300 / 50 + 1);
        assert_eq!(messages(100, 1), 100_usize.div_ceil(FDS_MAX / 2));
        assert_eq!(messages(3, FDS_MAX - 1), 3);
    }
}
