//! Handles announcements and ring requests of other hosts: links, rings, warnings, log lines.
//!
//! Each turn of the manager takes a bounded share of the network inbox. When another host changes, the manager checks the topics of
//! this host that the change concerns. It writes no note and announces nothing, since no client of this host has come or gone.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use rgaps_control::announcements::Change;
use rgaps_control::local::Notice;
use rgaps_control::wire::{RingOffer, RingRefusal, RingRequest};
use rgaps_control::{HostId, SubscriberSlot, TopicId, TopicKey};

use crate::inbound::Inbound;
use crate::manager::Manager;
use crate::topics::Topic;

/// Changes of other hosts in one turn.
const CHANGES_A_TURN: usize = 16;
/// How long a turn handles changes. A change that has begun is finished.
const CHANGES_FOR: Duration = Duration::from_millis(5);
/// Ring requests answered in one turn: each makes a ring and a pool.
const RINGS_A_TURN: usize = 4;

impl Manager {
    /// Handles a share of the network's events. True if more may wait.
    pub(crate) fn look_at_network(&mut self) -> bool {
        self.network_inbox.begin_turn();
        let began = Instant::now();
        for _ in 0..CHANGES_A_TURN {
            if began.elapsed() >= CHANGES_FOR {
                break;
            }
            let change = self.network_inbox.announcements().poll_change(Instant::now());
            match change {
                Some(Change::Host(host)) => self.host_changed(host),
                Some(Change::Topic(key)) => {
                    if let Some(id) = self.topics.id_of(&key) {
                        self.relink(id);
                        self.end_if_over(id);
                    }
                }
                None => break,
            }
        }
        for _ in 0..RINGS_A_TURN {
            let Some((request, responder)) = self.network_inbox.poll_ring() else { break };
            let answer = self.offer_ring(&request);
            self.network_inbox.answer(responder, answer);
        }
        let now = Instant::now();
        self.network_inbox.has_rings() || self.network_inbox.announcements().due().is_some_and(|due| due <= now)
    }

    /// Queries refused announcements again, and writes the counters to the runtime directory.
    pub(crate) fn tend_network(&mut self, now: Instant) {
        let scope = self.network_inbox.announcements().poll_ask(now);
        if let Some(scope) = scope {
            tracing::debug!(?scope, "refused announcements are queried again");
            self.network.ask(scope);
        }
        if self.network_reports.is_note_due(now)
            && let Some(counters) = self.network_reports.note(now, self.network_inbox.counters())
            && let Err(error) = self.host.dir.note_network(&counters)
        {
            tracing::debug!(%error, "the network's counters cannot be noted");
        }
    }

    fn host_changed(&mut self, host: HostId) {
        let now = Instant::now();
        let (was, is) = self.network_inbox.announcements().tell(host);
        if was != is
            && let Some(more) = self.network_reports.may_log_host(now)
        {
            match (&was, &is) {
                (None, Some(name)) => tracing::info!(%host, name, "a host has appeared{more}"),
                (Some(_), Some(name)) => tracing::info!(%host, name, "a host has another name{more}"),
                (name, None) => tracing::info!(%host, name, "a host is gone{more}"),
            }
        }
        if is.is_some() {
            self.network_reports.note_host();
        }
        // Besides the topics that the host announces, its coming or going concerns all links with it.
        let linked = |topic: &&Topic| topic.outbound.contains_key(&host) || topic.inbound.contains_key(&host);
        let linked: Vec<TopicKey> = self.topics.values().filter(linked).map(|topic| topic.key.clone()).collect();
        self.network_inbox.announcements().concern(now, host, linked);
    }

    /// Notes whether the host of an arrival is known when it begins.
    pub(crate) fn arrival_began(&mut self, topic: TopicId, host: HostId) {
        tracing::debug!(%topic, %host, "an arrival runs");
        let is_known = self.network_inbox.announcements().directory().knows(host);
        let inbound = self.topics.get_mut(&topic).and_then(|topic| topic.inbound.get(&host));
        if let Some(Inbound::Active(control)) = inbound {
            control.note_known(is_known);
        }
    }

    /// Starts and ends links of a topic, by the endpoints here and on other hosts.
    pub(crate) fn relink(&mut self, id: TopicId) {
        let Some(topic) = self.topics.get_mut(&id) else { return };
        let before: Vec<SubscriberSlot> = topic.outbound.values().map(|outbound| outbound.slot).collect();
        let announcements = self.network_inbox.announcements();
        let directory = announcements.directory();
        self.publish.reconcile(topic, directory);
        let unwanted: Vec<HostId> = topic
            .inbound
            .iter()
            .filter(|(host, inbound)| {
                // The last messages of a publisher that has left may be in flight: its host closes the connection after the last one. And a host
                // whose announcements have come, and fail to come now, is not gone while its link lives.
                let is_linked =
                    matches!(inbound, Inbound::Active(control) if control.note_known(directory.knows(**host)));
                topic.subscribers.is_empty() || !(directory.publishes(**host, &topic.key) || is_linked)
            })
            .map(|(host, _)| *host)
            .collect();
        drop(announcements);
        unwanted.into_iter().for_each(|host| self.subscribe.end(topic, host));
        let new: Vec<SubscriberSlot> =
            topic.outbound.values().map(|outbound| outbound.slot).filter(|slot| !before.contains(slot)).collect();
        new.into_iter().for_each(|slot| self.spread_subscriber(id, slot));
        self.look_for_draining(id);
        self.report_mismatches(id);
    }

    fn report_mismatches(&mut self, id: TopicId) {
        let Some(topic) = self.topics.get(&id) else { return };
        let own = topic.publisher_endpoint().into_iter().chain(topic.subscriber_endpoint());
        let texts: BTreeSet<String> =
            own.flat_map(|endpoint| self.mismatches(topic, &endpoint).collect::<Vec<_>>()).collect();
        let Some(topic) = self.topics.get_mut(&id) else { return };
        let new: Vec<String> = texts.difference(&topic.reported).cloned().collect();
        topic.reported = texts;
        let now = Instant::now();
        for text in new {
            let may_log = self.topics.get_mut(&id).and_then(|topic| topic.mismatches_logged.may_log(now));
            if let Some(more) = may_log {
                self.warn(id, text + more);
            }
        }
    }

    pub(crate) fn warn(&mut self, topic: TopicId, text: String) {
        tracing::warn!("{text}");
        for client in self.clients.of_topic_mut(topic) {
            client.notify(Notice::Warning { topic, text: text.clone() });
        }
    }

    fn offer_ring(&mut self, request: &RingRequest) -> Result<RingOffer, RingRefusal> {
        request.check_host(self.host.id)?;
        let key = &request.endpoint.key;
        let adopting = |topic: &Topic| self.adoption.awaits(topic.id) && topic.subscribers.is_empty();
        let topic = self.topics.id_of(key).and_then(|id| self.topics.get_mut(&id));
        if topic.as_deref().is_some_and(adopting) || topic.is_none() && self.adoption.segment_owner(key).is_some() {
            return Err(RingRefusal::Failed("its clients are still handing it back; this resolves itself".to_owned()));
        }
        let Some(topic) = topic else { return Err(RingRefusal::NoSubscribers(key.to_string())) };
        let id = topic.id;
        let offered = self.subscribe.offer(topic, request);
        self.look_for_draining(id);
        offered.inspect_err(|refusal| tracing::debug!(%refusal, "a ring was refused"))
    }
}
