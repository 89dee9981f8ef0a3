//! What publishers receive about subscribers: the subscribers' own words and eventfds.
//!
//! The manager notifies publishers at once of a new subscriber, without file descriptors. Publishers request the file descriptors of each subscriber
//! that they do not know: new ones, earlier ones, and ones that they missed, for example for lack of file descriptors. So only clients that read get
//! file descriptors.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rgaps_control::local::{Notice, NoticedSubscriber, Refusal, Reply, SUBSCRIBERS_A_REPLY_MAX};
use rgaps_control::{SubscriberSlot, TopicId};
use rgaps_os::{EventFd, SealError};

use crate::clients::{ClientId, Occupied};
use crate::inbound::Newcomer;
use crate::manager::Manager;
use crate::refusals::exhausted;
use crate::requests::{Answer, no_topic};
use crate::topics::Topic;

impl Manager {
    /// Notifies every publisher of a topic of a subscriber. The arrivals get its words, and its eventfd if it has one.
    pub(crate) fn spread_subscriber(&mut self, id: TopicId, slot: SubscriberSlot) {
        let Some(topic) = self.topics.get_mut(&id) else { return };
        let Some(pages) = topic.slot_table.pages(slot) else { return };
        // Subscribers of this host, and the senders to other hosts: a woken sender skips messages that came from other hosts.
        let event = topic.event_of(slot).cloned();
        for inbound in topic.inbound.values_mut() {
            inbound.add_subscriber(Newcomer { pages: pages.clone(), event: event.clone() });
        }
        self.clients.publishers_of_mut(id).for_each(|client| client.notify(Notice::Subscribers { topic: id }));
    }

    /// Registers the eventfd of a subscriber. A client that asks again, because it missed the answer, brings the same one.
    pub(crate) fn event_fd(
        &mut self,
        client: ClientId,
        id: TopicId,
        slot: SubscriberSlot,
        fds: Vec<OwnedFd>,
    ) -> Result<Answer, Refusal> {
        self.check_occupied(client, Occupied { topic: id, slot: slot.into() })?;
        self.check_fds(client)?;
        let Some(topic) = self.topics.get_mut(&id) else { return Err(no_topic()) };
        let Some(subscriber) = topic.subscribers.get_mut(&slot) else { return Err(no_topic()) };
        if subscriber.event.is_some() {
            return Ok(Answer::bare(Reply::Done));
        }
        let event = fds.into_iter().next();
        let event = event.ok_or_else(|| Refusal::Invalid("no eventfd came beside the request".to_owned()))?;
        let event = EventFd::checked(event).map_err(|error| match error.kind() {
            io::ErrorKind::InvalidInput => Refusal::Invalid(format!("an eventfd is wanted: {error}")),
            _ => exhausted(&error),
        })?;
        // A publisher may have published and left before there was an eventfd to signal.
        let _ = event.signal();
        subscriber.event = Some(Arc::new(event));
        topic.slot_table.mark_event_fd(slot, true);
        self.spread_subscriber(id, slot);
        Ok(Answer::bare(Reply::Done))
    }

    /// Answers a publisher's request for subscribers that it does not know.
    pub(crate) fn subscribers(
        &mut self,
        client: ClientId,
        id: TopicId,
        slots: &[SubscriberSlot],
    ) -> Result<Answer, Refusal> {
        if slots.len() > SUBSCRIBERS_A_REPLY_MAX {
            let said = format!("{} subscribers at once; at most {SUBSCRIBERS_A_REPLY_MAX} are allowed", slots.len());
            return Err(Refusal::Invalid(said));
        }
        if !self.clients.publishes(client, id) {
            return Err(Refusal::NotFound("none of that topic's publishers is yours".to_owned()));
        }
        let Some(topic) = self.topics.get(&id) else {
            return Err(Refusal::NotFound("the topic has ended".to_owned()));
        };
        let (mut subscribers, mut fds) = (Vec::new(), Vec::new());
        for slot in slots {
            match what_is_told(topic, *slot) {
                Ok(Some((subscriber, of_it))) => {
                    subscribers.push(subscriber);
                    fds.extend(of_it);
                }
                Ok(None) => {}
                // An error with one subscriber does not affect the others.
                Err(error) => tracing::warn!(topic = %topic.key, %error, "a publisher gets a subscriber only later"),
            }
        }
        Ok(Answer { reply: Reply::Subscribers { topic: id, subscribers }, fds })
    }
}

/// What publishers need to serve a subscriber, if its words are known here.
fn what_is_told(topic: &Topic, slot: SubscriberSlot) -> Result<Option<(NoticedSubscriber, Vec<OwnedFd>)>, SealError> {
    let Some(pages) = topic.slot_table.pages(slot) else { return Ok(None) };
    let Some(file) = pages.file() else { return Ok(None) };
    let event = topic.event_of(slot).map(|event| event.try_clone()).transpose()?;
    let told = NoticedSubscriber { slot, place: pages.place(), has_event: event.is_some() };
    let own = file.reading()?.try_clone_to_owned()?;
    Ok(Some((told, [own].into_iter().chain(event.map(OwnedFd::from)).collect())))
}
