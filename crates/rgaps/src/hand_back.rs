//! What a client tells a manager's successor that it has: its seats, by topic, as many in one message as it and its descriptors have room for.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rgaps_control::local::{
    Body, DESCRIPTORS_MAX, HANDED_SEATS_MAX, Handed, HandedSeat, HandedTopic, MESSAGE_BYTES_MAX, Reply, Role,
};

use crate::hello::SessionError;
use crate::node::NodeError;
use crate::publisher::PublisherInner;
use crate::seated::Seated;
use crate::subscriber::SubscriberInner;

/// What of a message is not seats.
const ENVELOPE_BYTES: usize = 1 << 10;

/// Hands all of this back by questions to one manager, each with its answer. An error if that manager died too, or is stopped.
pub(crate) fn hand_back(
    owners: Vec<(Seated, Owner)>,
    ask: &mut impl FnMut(Body, &[BorrowedFd<'_>]) -> Result<Reply, SessionError>,
) -> Result<(), SessionError> {
    let mut batch = Batch::default();
    let seats = owners.len();
    for (seated, owner) in owners {
        let item = match owner.exported() {
            Ok((of, descriptors)) => Item { seated, of, descriptors, member: owner },
            Err(error) => {
                cut_off(&seated, &owner, &error.to_string());
                continue;
            }
        };
        if let Some(item) = batch.add(item) {
            hand_over(std::mem::take(&mut batch), ask)?;
            if let Some(item) = batch.add(item) {
                cut_off(&item.seated, &item.member, "no message holds it, or this process has no descriptors left");
            }
        }
    }
    hand_over(batch, ask)?;
    ask(Body::HandedAllBack, &[])?;
    tracing::info!(seats, "handed back to rgapsd");
    Ok(())
}

fn hand_over(
    batch: Batch<Owner>,
    ask: &mut impl FnMut(Body, &[BorrowedFd<'_>]) -> Result<Reply, SessionError>,
) -> Result<(), SessionError> {
    let Batch { topics, descriptors, members, .. } = batch;
    if members.is_empty() {
        return Ok(());
    }
    let borrowed: Vec<BorrowedFd<'_>> = descriptors.iter().map(AsFd::as_fd).collect();
    match ask(Body::HandBack { topics }, &borrowed) {
        Ok(Reply::HandedBack { refused }) => {
            for refusal in &refused {
                let owner = members.iter().find(|(seated, _)| seated.is(refusal));
                owner.into_iter().for_each(|(seated, owner)| cut_off(seated, owner, &refusal.why));
            }
            Ok(())
        }
        Ok(_) => Err(SessionError::Confused),
        Err(SessionError::Refused(refusal)) => {
            members.iter().for_each(|(seated, owner)| cut_off(seated, owner, &refusal.to_string()));
            Ok(())
        }
        Err(error) => Err(error),
    }
}

/// Who has a seat, for as long as it is handed back.
#[derive(Debug)]
pub(crate) enum Owner {
    Publisher(Arc<PublisherInner>),
    Subscriber(Arc<SubscriberInner>, rgaps_control::SubscriberQos),
    Kept(Role),
}

impl Owner {
    pub(crate) fn seated(&self) -> Seated {
        match self {
            Self::Publisher(publisher) => publisher.seated.clone(),
            Self::Subscriber(subscriber, _) => subscriber.seated.clone(),
            Self::Kept(_) => unreachable!("a kept seat has no owner to ask"),
        }
    }

    /// What the manager must have of it.
    fn exported(&self) -> Result<(Handed, Vec<OwnedFd>), NodeError> {
        Ok(match self {
            Self::Publisher(publisher) => {
                let (description, slabs) = publisher.pool.export()?;
                let pool = serde_json::to_value(description).map_err(io::Error::other)?;
                (Handed::Publisher { qos: publisher.qos, pool }, slabs)
            }
            Self::Subscriber(subscriber, qos) => {
                let file = subscriber.pages.file().ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
                let own = file.as_fd().try_clone_to_owned()?;
                let event = subscriber.tended.event.get().map(|event| event.try_clone()).transpose()?;
                let place = subscriber.pages.place();
                (Handed::Subscriber { qos: *qos, place }, [own].into_iter().chain(event.map(OwnedFd::from)).collect())
            }
            Self::Kept(role) => (Handed::Kept { role: *role }, Vec::new()),
        })
    }
}

/// A seat was not taken back; whoever waits for its messages is woken.
fn cut_off(seated: &Seated, owner: &Owner, why: &str) {
    tracing::warn!(topic = %seated.key, role = ?seated.role, why, "rgapsd did not take a slot back: make its publisher or subscriber anew");
    seated.cut_off();
    match owner {
        Owner::Subscriber(subscriber, _) => subscriber.ring(),
        Owner::Publisher(_) => seated.segment.wake_everybody(),
        Owner::Kept(_) => {}
    }
}

/// A seat to be handed back.
#[derive(Debug)]
struct Item<M> {
    seated: Seated,
    of: Handed,
    descriptors: Vec<OwnedFd>,
    /// Who has it.
    member: M,
}

/// Seats that fit into one message.
#[derive(Debug)]
struct Batch<M> {
    topics: Vec<HandedTopic>,
    descriptors: Vec<OwnedFd>,
    bytes: usize,
    members: Vec<(Seated, M)>,
}

impl<M> Default for Batch<M> {
    fn default() -> Self {
        Self { topics: Vec::new(), descriptors: Vec::new(), bytes: ENVELOPE_BYTES, members: Vec::new() }
    }
}

impl<M> Batch<M> {
    /// Adds a seat, or gives it back if it does not fit. Seats of one topic in a row share its segment.
    fn add(&mut self, item: Item<M>) -> Option<Item<M>> {
        let Item { seated, of, descriptors, member } = item;
        let is_new = self.topics.last().is_none_or(|last| last.topic != seated.topic);
        let seat = HandedSeat { seat: seated.seat, descriptors: descriptors.len() as u32, of };
        let topic = HandedTopic {
            key: seated.key.clone(),
            topic: seated.topic,
            type_name: seated.type_name.clone(),
            seats: Vec::new(),
        };
        let length = |text: Result<String, _>| text.map_or(MESSAGE_BYTES_MAX, |text: String| text.len() + 1);
        let mut bytes = length(serde_json::to_string(&seat));
        if is_new {
            bytes += length(serde_json::to_string(&topic));
        }
        let fits = self.bytes + bytes <= MESSAGE_BYTES_MAX
            && self.descriptors.len() + usize::from(is_new) + descriptors.len() <= DESCRIPTORS_MAX
            && self.members.len() < HANDED_SEATS_MAX;
        let segment = if is_new && fits { seated.segment.as_fd().try_clone_to_owned().ok() } else { None };
        if !fits || is_new && segment.is_none() {
            return Some(Item { seated, of: seat.of, descriptors, member });
        }
        self.bytes += bytes;
        self.descriptors.extend(segment);
        self.descriptors.extend(descriptors);
        if is_new {
            self.topics.push(topic);
        }
        if let Some(last) = self.topics.last_mut() {
            last.seats.push(seat);
        }
        self.members.push((seated, member));
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rgaps_control::local::{Connection, Packet, Request, Seat};
    use rgaps_control::{SubscriberQos, TopicId, TopicKey};
    use rgaps_shm::Segment;

    fn item(number: usize, descriptors: usize) -> Item<usize> {
        let topic = TopicId((number as u128).to_be_bytes());
        let seated = Seated {
            key: TopicKey::new(0, &format!("{}{number}", "a".repeat(240))).unwrap(),
            topic,
            type_name: "b".repeat(255),
            role: Role::Subscriber,
            seat: Seat { slot: 1, generation: u32::MAX },
            segment: Arc::new(Segment::create(topic.0).unwrap()),
            cut_off: Arc::default(),
        };
        let file = || std::fs::File::open("/dev/null").unwrap().into();
        let descriptors = std::iter::repeat_with(file).take(descriptors).collect();
        Item { seated, of: Handed::Subscriber { qos: SubscriberQos::default(), place: 0 }, descriptors, member: number }
    }

    /// How many messages it takes to hand back so many topics, each of which is sent and read.
    fn messages(topics: usize, descriptors: usize) -> usize {
        let (one, two) = Connection::pair().unwrap();
        let (mut sent, mut seats) = (0, 0);
        let mut send = |batch: Batch<usize>| {
            let Batch { topics, descriptors, members, .. } = batch;
            let body = Body::HandBack { topics };
            let borrowed: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
            one.send(&Request { id: 0, body }, &borrowed).unwrap();
            let packet: Packet<Request> = two.receive(std::time::Duration::from_secs(20)).unwrap().unwrap();
            assert_eq!(packet.descriptors.len(), descriptors.len());
            sent += 1;
            seats += members.len();
        };
        let mut batch = Batch::default();
        for number in 0..topics {
            if let Some(item) = batch.add(item(number, descriptors)) {
                send(std::mem::take(&mut batch));
                assert!(batch.add(item).is_none(), "one seat fits");
            }
        }
        send(batch);
        assert_eq!(seats, topics);
        sent
    }

    #[test]
    fn many_seats_are_handed_back_in_few_messages_that_keep_every_limit() {
        // By bytes, by descriptors, and the largest pool alone.
        assert!(messages(300, 0) <= 300 / 50 + 1);
        assert_eq!(messages(100, 1), 100_usize.div_ceil(DESCRIPTORS_MAX / 2));
        assert_eq!(messages(3, DESCRIPTORS_MAX - 1), 3);
    }
}
