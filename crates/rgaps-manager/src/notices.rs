//! What publishers are told of subscribers: their own words and event descriptors.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rgaps_control::TopicId;
use rgaps_control::local::{Notice, NoticedSubscriber};
use rgaps_os::EventFd;
use rgaps_shm::janitor::Seat;

use crate::clients::{Client, ClientId};
use crate::manager::Manager;
use crate::requests::wire_seat;
use crate::subscribe::Newcomer;
use crate::topics::Topic;

/// Subscribers in one notice: two descriptors of each are no more than a message may have beside it.
const SUBSCRIBERS_A_NOTICE: usize = 64;

impl Manager {
    /// Gives every publisher of a topic, the arrivals included, a subscriber's words, and its event descriptor if it has one.
    pub(crate) fn spread_subscriber(&mut self, id: TopicId, seat: Seat) {
        let Some(topic) = self.topics.get_mut(&id) else { return };
        let Some(pages) = topic.janitor.pages(seat) else { return };
        let event = topic.event_of(seat).map(EventFd::try_clone).transpose();
        let told = event.and_then(|event| {
            for inbound in topic.inbound.values_mut() {
                let event = event.as_ref().map(EventFd::try_clone).transpose()?;
                inbound.add_subscriber(Newcomer { pages: pages.clone(), event });
            }
            let clients = self.clients.publishers_of_mut(id).map(|client| (client, [seat]));
            clients.into_iter().try_for_each(|(client, seats)| tell_of_subscribers(client, topic, &seats))
        });
        if let Err(error) = told {
            tracing::error!(topic = %topic.key, %error, "publishers are not told of a subscriber: they keep every message for it, and wake it always");
        }
    }

    /// Tells a client that has come as a publisher, or was away, of every subscriber of a topic.
    pub(crate) fn repeat_subscribers(&mut self, client: ClientId, id: TopicId) {
        let (Some(topic), Some(client)) = (self.topics.get(&id), self.clients.by_id.get_mut(&client)) else { return };
        let all: Vec<Seat> = topic.janitor.active_subscribers().collect();
        let told = all.chunks(SUBSCRIBERS_A_NOTICE).try_for_each(|some| tell_of_subscribers(client, topic, some));
        if let Err(error) = told {
            tracing::error!(topic = %topic.key, %error, "a publisher is not told of all subscribers: it keeps every message for the others");
        }
    }
}

/// Tells a client that publishes of these subscribers, as far as their words are known: `SUBSCRIBERS_A_NOTICE` at most.
fn tell_of_subscribers(client: &mut Client, topic: &Topic, seats: &[Seat]) -> io::Result<()> {
    let mut subscribers = Vec::new();
    let mut descriptors = Vec::new();
    for seat in seats {
        let Some(pages) = topic.janitor.pages(*seat) else { continue };
        let Some(file) = pages.file() else { continue };
        let event = topic.event_of(*seat);
        descriptors.push(file.read_only()?);
        descriptors.extend(event.map(EventFd::try_clone).transpose()?.map(OwnedFd::from));
        subscribers.push(NoticedSubscriber {
            seat: wire_seat(*seat),
            place: pages.place(),
            has_event: event.is_some(),
        });
    }
    if subscribers.is_empty() {
        return Ok(());
    }
    let borrowed: Vec<BorrowedFd<'_>> = descriptors.iter().map(AsFd::as_fd).collect();
    client.notify(Notice::Subscribers { topic: topic.id, subscribers }, &borrowed);
    Ok(())
}
