//! The publish manager: which hosts get what this host publishes. It keeps one sender for each topic and host that wants it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use rgaps_control::directory::{Directory, Wanted};
use rgaps_control::network::RingAsker;
use rgaps_control::wire::Endpoint;
use rgaps_control::{Config, Durability, HostId, PublisherQos};
use rgaps_device::Backend;
use rgaps_os::EventFd;
use rgaps_shm::janitor::Seat;
use rgaps_shm::{ReaderPort, SubscriberSpec};

use crate::event::Mailbox;
use crate::sender::{Sender, SenderSetup};
use crate::topics::Topic;

/// What the manager and a sender share.
#[derive(Debug)]
pub(crate) struct SenderControl {
    stop: AtomicBool,
    event: EventFd,
    status: Mutex<String>,
    /// What is published, as the next hand-shake tells the other host.
    endpoint: Mutex<(Endpoint, u64)>,
}

impl SenderControl {
    pub(crate) fn should_stop(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    pub(crate) fn event(&self) -> &EventFd {
        &self.event
    }

    pub(crate) fn set_status(&self, status: String) {
        *self.status.lock().unwrap_or_else(PoisonError::into_inner) = status;
    }

    pub(crate) fn status(&self) -> String {
        self.status.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What is published, and the largest message.
    pub(crate) fn endpoint(&self) -> (Endpoint, u64) {
        self.endpoint.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// A running sender.
#[derive(Debug)]
pub(crate) struct Outbound {
    pub(crate) seat: Seat,
    pub(crate) control: Arc<SenderControl>,
    thread: Option<JoinHandle<()>>,
}

impl Outbound {
    /// Tells it to end; it says when it has (`Event::SenderEnded`).
    pub(crate) fn stop(&self) {
        self.control.stop.store(true, Ordering::Release);
        let _ = self.control.event.signal();
    }

    /// After `SenderEnded`.
    pub(crate) fn join(&mut self) {
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// What all senders need.
#[derive(Debug)]
pub(crate) struct PublishManager {
    config: Arc<Config>,
    host: HostId,
    host_name: String,
    asker: RingAsker,
    backend: Arc<dyn Backend>,
    mailbox: Mailbox,
}

impl PublishManager {
    pub(crate) fn new(
        config: Arc<Config>,
        host: HostId,
        host_name: String,
        asker: RingAsker,
        backend: Arc<dyn Backend>,
        mailbox: Mailbox,
    ) -> Self {
        Self { config, host, host_name, asker, backend, mailbox }
    }

    /// Starts senders to hosts that want the topic, and stops those to hosts that no longer do.
    pub(crate) fn reconcile(&self, topic: &mut Topic, directory: &Directory) {
        let endpoint = topic.publisher_endpoint();
        let wanted = endpoint.as_ref().map(|endpoint| directory.wanted(endpoint)).unwrap_or_default();
        let by_host: HashMap<HostId, Wanted> = wanted.into_iter().map(|wanted| (wanted.host, wanted)).collect();
        for (host, outbound) in &topic.outbound {
            // What a publisher that has left published last is still on its way: a sender ends when nobody wants it.
            let unsent = topic.janitor.buried().next().is_some() && directory.knows(*host) && endpoint.is_none();
            if !by_host.contains_key(host) && !unsent {
                outbound.stop();
            }
        }
        let Some(endpoint) = endpoint else { return };
        for (host, wanted) in by_host {
            match topic.outbound.get(&host) {
                Some(outbound) => {
                    let description = (endpoint.clone(), topic.message_bytes_max());
                    *outbound.control.endpoint.lock().unwrap_or_else(PoisonError::into_inner) = description;
                }
                None => self.start(topic, &endpoint, &wanted, &directory.name(host)),
            }
        }
    }

    fn start(&self, topic: &mut Topic, endpoint: &Endpoint, wanted: &Wanted, name: &str) {
        match self.try_start(topic, endpoint, wanted, name) {
            Ok(outbound) => {
                tracing::info!(topic = %topic.key, host = name, "a host wants the topic");
                topic.outbound.insert(wanted.host, outbound);
            }
            Err(error) => tracing::error!(topic = %topic.key, host = name, %error, "no sender"),
        }
    }

    fn try_start(&self, topic: &Topic, endpoint: &Endpoint, wanted: &Wanted, name: &str) -> std::io::Result<Outbound> {
        let depth = depth(&endpoint.offers, wanted);
        let seat = topic
            .janitor
            .admit_subscriber(&SubscriberSpec { depth, pid: std::process::id(), remote: true })
            .map_err(std::io::Error::other)?;
        // Late joiners of other hosts get history from their own manager, which gets it from here.
        let history = endpoint.offers.iter().any(|offer| offer.durability == Durability::TransientLocal);
        let reader = ReaderPort::new(topic.segment.clone(), seat.slot, seat.generation, history);
        let reader = reader.map_err(std::io::Error::other)?;
        let control = Arc::new(SenderControl {
            stop: AtomicBool::new(false),
            event: EventFd::new()?,
            status: Mutex::new(format!("to {name}: starting")),
            endpoint: Mutex::new((endpoint.clone(), topic.message_bytes_max())),
        });
        topic.janitor.mark_descriptor(seat.slot, true);
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
            janitor: topic.janitor.clone(),
            seat,
            keep_all: depth == 0,
            flow_control: endpoint.offers.iter().all(|offer| offer.flow_control),
            history_depth: endpoint.offers.iter().map(|offer| offer.history_depth).max().unwrap_or(0),
            mailbox: self.mailbox.clone(),
            control: control.clone(),
        };
        let thread = std::thread::Builder::new()
            .name("rgaps-sender".to_owned())
            .spawn(move || Sender::new(setup, reader).run())?;
        Ok(Outbound { seat, control, thread: Some(thread) })
    }
}

/// How many unsent messages a sender keeps: all if some subscriber there wants all, else the most that anybody there asks for.
fn depth(offers: &[PublisherQos], wanted: &Wanted) -> u32 {
    let depths = wanted.requests.iter().map(rgaps_control::SubscriberQos::depth);
    if depths.clone().any(|depth| depth == 0) {
        return 0;
    }
    let history = offers.iter().map(|offer| offer.history_depth);
    depths.chain(history).max().unwrap_or(1).max(1)
}
