//! The publish manager decides which hosts get what this host publishes. It runs one sender for each topic and subscribing host.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rgaps_control::directory::{Directory, Wanted};
use rgaps_control::wire::Endpoint;
use rgaps_control::{Budget, Config, HostId, OverBudget, PublisherQos};
use rgaps_device::Backend;
use rgaps_shm::{ReaderPort, SubscriberFiles, SubscriberSlot, SubscriberSpec};

use crate::budgets::Budgets;
use crate::event::Mailbox;
use crate::links::LinkPermit;
use crate::offered_ring::Ask;
use crate::outbound::{Outbound, SenderControl};
use crate::rdma_devices::RdmaDevices;
use crate::sender::{Sender, SenderSetup};
use crate::topics::Topic;

/// What all senders need.
#[derive(Debug)]
pub(crate) struct PublishManager {
    config: Arc<Config>,
    host: HostId,
    host_name: String,
    asker: Arc<dyn Ask>,
    backend: Arc<dyn Backend>,
    mailbox: Mailbox,
    rdma: Arc<RdmaDevices>,
    budgets: Budgets,
    /// The file of the words that the senders write as subscribers of this host.
    files: Mutex<SubscriberFiles>,
}

impl PublishManager {
    pub(crate) fn new(
        config: Arc<Config>,
        (host, host_name): (HostId, String),
        asker: Arc<dyn Ask>,
        backend: Arc<dyn Backend>,
        mailbox: Mailbox,
        rdma: Arc<RdmaDevices>,
        budgets: Budgets,
    ) -> Self {
        Self { config, host, host_name, asker, backend, mailbox, rdma, budgets, files: Mutex::default() }
    }

    /// Starts senders to hosts that want the topic, and stops those to hosts that no longer do. It stops them after a grace period, since a host
    /// whose manager died or whose cable was cut comes back under the same identity.
    pub(crate) fn reconcile(&self, topic: &mut Topic, directory: &Directory) {
        let endpoint = topic.publisher_endpoint();
        let wanted = endpoint.as_ref().map(|endpoint| directory.wanted(endpoint)).unwrap_or_default();
        let by_host: HashMap<HostId, Wanted> = wanted.into_iter().map(|wanted| (wanted.host, wanted)).collect();
        let grace = Duration::from_millis(self.config.peer_timeout_ms);
        // The last messages of a publisher that has left may be unsent: keep the senders until those are sent, or named as skipped.
        let unsent = topic.slot_table.draining().next().is_some();
        for (host, outbound) in &mut topic.outbound {
            if by_host.contains_key(host) {
                outbound.go_on();
                continue;
            }
            outbound.control.note_unwanted();
            match &endpoint {
                None if !unsent && !outbound.control.owes() => outbound.stop(),
                // It is sending. Without a link it tries for the time that a host may be away.
                None if outbound.control.is_connected() => outbound.keep(),
                // Its announcements fail to come, but its link lives.
                Some(_) if outbound.control.is_connected() && !directory.knows(*host) => outbound.keep(),
                _ => outbound.linger(grace),
            }
        }
        topic.without_sender.retain(|host, _| by_host.contains_key(host));
        let Some(endpoint) = endpoint else { return };
        for (host, wanted) in by_host {
            match topic.outbound.get(&host) {
                Some(outbound) => {
                    outbound.control.set_endpoint((endpoint.clone(), topic.message_bytes_max()));
                    let depth = depth(&endpoint.offers, &wanted);
                    if outbound.control.set_depth(depth) {
                        topic.slot_table.set_depth(outbound.slot, depth);
                    }
                }
                None => self.start(topic, &endpoint, &wanted, &directory.name(host)),
            }
        }
    }

    fn start(&self, topic: &mut Topic, endpoint: &Endpoint, wanted: &Wanted, name: &str) {
        let place = self.place(topic, wanted.host);
        let started = place.map_err(|over| format!("{over}; raise that limit here, or use fewer hosts or topics"));
        let started = started
            .and_then(|place| self.try_start(topic, endpoint, wanted, name, place).map_err(|error| error.to_string()));
        match started {
            Ok(outbound) => {
                tracing::info!(topic = %topic.key, host = name, "a host wants the topic");
                topic.without_sender.remove(&wanted.host);
                topic.outbound.insert(wanted.host, outbound);
            }
            Err(why) => {
                // Logged once per topic; `rgaps topic info` shows the other hosts.
                let status = format!("to {name}: it does not get the topic: {why}");
                if topic.without_sender.is_empty() {
                    tracing::error!(topic = %topic.key, "{status}");
                }
                topic.without_sender.insert(wanted.host, status);
            }
        }
    }

    /// Takes a link permit, and checks that senders may have another subscriber slot of the topic.
    fn place(&self, topic: &Topic, host: HostId) -> Result<LinkPermit, OverBudget> {
        let limits = &self.budgets.limits;
        if topic.outbound.len() >= limits.count(Budget::RemoteSubscribers) {
            self.budgets.refusals.count(Budget::RemoteSubscribers);
            return Err(limits.over(Budget::RemoteSubscribers));
        }
        self.budgets.links.take(host)
    }

    fn try_start(
        &self,
        topic: &Topic,
        endpoint: &Endpoint,
        wanted: &Wanted,
        name: &str,
        place: LinkPermit,
    ) -> std::io::Result<Outbound> {
        let depth = depth(&endpoint.offers, wanted);
        let file = self.files.lock().unwrap_or_else(PoisonError::into_inner).with_place();
        let file = file.map_err(std::io::Error::other)?;
        let slot = topic
            .slot_table
            .admit_subscriber(&SubscriberSpec { depth, pid: std::process::id(), remote: true }, &file)
            .map_err(std::io::Error::other)?;
        let started = self.start_sender(topic, endpoint, wanted, name, (slot, depth, place));
        started.inspect_err(|_| {
            topic.slot_table.release_subscriber(slot);
        })
    }

    fn start_sender(
        &self,
        topic: &Topic,
        endpoint: &Endpoint,
        wanted: &Wanted,
        name: &str,
        (slot, depth, place): (SubscriberSlot, u32, LinkPermit),
    ) -> std::io::Result<Outbound> {
        let pages = topic.slot_table.pages(slot).ok_or(std::io::ErrorKind::NotFound)?;
        // Late joiners on other hosts get history from their own manager, which gets it from this sender.
        let reader = ReaderPort::for_sender(topic.segment.clone(), pages);
        let reader = reader.map_err(std::io::Error::other)?;
        let description = (endpoint.clone(), topic.message_bytes_max());
        let status = format!("to {name}: starting");
        let control = Arc::new(SenderControl::new(status, depth, description)?);
        topic.slot_table.mark_event_fd(slot, true);
        let setup = SenderSetup {
            config: self.config.clone(),
            own_host: self.host,
            own_name: self.host_name.clone(),
            host: wanted.host,
            host_name: name.to_owned(),
            topic: topic.id,
            key: topic.key.clone(),
            asker: self.asker.clone(),
            backend: self.backend.clone(),
            pools: topic.pools.clone(),
            slot_table: topic.slot_table.clone(),
            slot,
            flow_control: endpoint.offers.iter().all(|offer| offer.flow_control),
            history_depth: endpoint.offers.iter().map(|offer| offer.history_depth).max().unwrap_or(0),
            mailbox: self.mailbox.clone(),
            rdma: self.rdma.clone(),
            control: control.clone(),
        };
        let thread = std::thread::Builder::new()
            .name("rgaps-sender".to_owned())
            .spawn(move || Sender::new(setup, reader).run())?;
        Ok(Outbound::new(slot, control, thread, place))
    }
}

/// How many unsent messages a sender keeps: all if any subscriber there is keep-all, else the largest depth there.
fn depth(offers: &[PublisherQos], wanted: &Wanted) -> u32 {
    let depths = wanted.requests.iter().map(rgaps_control::SubscriberQos::depth);
    if depths.clone().any(|depth| depth == 0) {
        return 0;
    }
    let history = offers.iter().map(|offer| offer.history_depth);
    depths.chain(history).max().unwrap_or(1).max(1)
}
