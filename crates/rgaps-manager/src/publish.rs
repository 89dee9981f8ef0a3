//! The publish manager decides which hosts get what this host publishes. It runs one sender for each topic and subscribing host.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rgaps_control::directory::{Directory, Wanted};
use rgaps_control::wire::Endpoint;
use rgaps_control::{Budget, Config, Durability, HostId, OverBudget, PublisherQos};
use rgaps_device::Backend;
use rgaps_os::EventFd;
use rgaps_shm::last_received::LastReceived;
use rgaps_shm::{ReaderPort, SubscriberFiles, SubscriberSlot, SubscriberSpec};

use crate::budgets::Budgets;
use crate::event::Mailbox;
use crate::links::LinkPermit;
use crate::sender::{Ask, Sender, SenderSetup};
use crate::topics::Topic;
use crate::verbs::Verbs;

/// What the manager and a sender share.
#[derive(Debug)]
pub(crate) struct SenderControl {
    stop: AtomicBool,
    /// The directory says that the host does not want the topic. If the host itself confirms that, the sender ends.
    unwanted: AtomicBool,
    /// The host is back.
    hurry: AtomicBool,
    event: Arc<EventFd>,
    status: Mutex<String>,
    messages: AtomicU64,
    /// Corrupt credits.
    corrupt: AtomicU64,
    /// How many unsent messages the sender keeps for the host; 0 for all.
    depth: AtomicU32,
    /// How many of a publisher's last messages late joiners there get.
    kept_depth: AtomicU32,
    /// What is published, and the largest message, for the next hand-shake.
    endpoint: Mutex<(Endpoint, u64)>,
    /// Publishers that have left meanwhile, with their last messages, and whether there is one.
    left: Mutex<Vec<(u64, LastReceived)>>,
    has_left: AtomicBool,
    /// The other host does not know yet that the last messages of a publisher that has left were not sent.
    owes: AtomicBool,
}

impl SenderControl {
    pub(crate) fn should_stop(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    pub(crate) fn event(&self) -> &Arc<EventFd> {
        &self.event
    }

    pub(crate) fn set_status(&self, status: String) {
        *self.status.lock().unwrap_or_else(PoisonError::into_inner) = status;
    }

    pub(crate) fn status(&self) -> String {
        let status = self.status.lock().unwrap_or_else(PoisonError::into_inner);
        let (messages, corrupt) = (self.messages.load(Ordering::Relaxed), self.corrupt.load(Ordering::Relaxed));
        let corrupt = if corrupt == 0 { String::new() } else { format!(", {corrupt} credits corrupt") };
        format!("{status}, {messages} messages sent{corrupt}")
    }

    pub(crate) fn is_keep_all(&self) -> bool {
        self.depth.load(Ordering::Acquire) == 0
    }

    pub(crate) fn kept_depth(&self) -> u32 {
        self.kept_depth.load(Ordering::Acquire)
    }

    /// Notes that a publisher has left, and its last message.
    pub(crate) fn note_left(&self, publisher: u64, last: LastReceived) {
        self.left.lock().unwrap_or_else(PoisonError::into_inner).push((publisher, last));
        self.has_left.store(true, Ordering::Release);
        self.owes.store(true, Ordering::Release);
    }

    /// Notes that the other host knows of all publishers that have left, unless another has left since.
    pub(crate) fn note_settled(&self) {
        if !self.owes() {
            return;
        }
        let left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        self.owes.store(!left.is_empty(), Ordering::Release);
    }

    /// Whether the sender is needed though no publisher is left.
    pub(crate) fn owes(&self) -> bool {
        self.owes.load(Ordering::Acquire)
    }

    /// The publishers that have left since the last call. Takes a lock only if there is one.
    pub(crate) fn take_left(&self) -> Vec<(u64, LastReceived)> {
        match self.has_left.swap(false, Ordering::AcqRel) {
            true => std::mem::take(&mut *self.left.lock().unwrap_or_else(PoisonError::into_inner)),
            false => Vec::new(),
        }
    }

    /// Counts sent messages.
    pub(crate) fn count(&self, messages: u64) {
        self.messages.fetch_add(messages, Ordering::Relaxed);
    }

    /// Counts corrupt credits.
    pub(crate) fn count_corrupt(&self, credits: u64) {
        self.corrupt.fetch_add(credits, Ordering::Relaxed);
    }

    /// Whether the sender ends if the host answers that it does not want the topic.
    pub(crate) fn is_unwanted(&self) -> bool {
        self.unwanted.load(Ordering::Acquire)
    }

    /// Waits before another attempt. A stop request or the host's return ends the wait early; a published message does not.
    pub(crate) fn pause(&self, time: Duration) {
        let start = Instant::now();
        while !self.should_stop() && !self.hurry.swap(false, Ordering::AcqRel) {
            let Some(rest) = time.checked_sub(start.elapsed()).filter(|rest| !rest.is_zero()) else { return };
            let _ = rgaps_os::poll::readable(&self.event, rest);
            let _ = self.event.drain();
        }
    }

    /// What is published, and the largest message.
    pub(crate) fn endpoint(&self) -> (Endpoint, u64) {
        self.endpoint.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// A running sender.
#[derive(Debug)]
pub(crate) struct Outbound {
    pub(crate) slot: SubscriberSlot,
    pub(crate) control: Arc<SenderControl>,
    /// The host does not want the topic; until then the sender waits for it to come back.
    lingers_until: Option<Instant>,
    thread: Option<JoinHandle<()>>,
    _place: LinkPermit,
}

impl Outbound {
    /// Tells the sender to end. It posts `Event::SenderEnded` when it has.
    pub(crate) fn stop(&self) {
        self.control.stop.store(true, Ordering::Release);
        let _ = self.control.event.signal();
    }

    /// Whether its grace period is over.
    pub(crate) fn is_late(&self, now: Instant) -> bool {
        self.lingers_until.is_some_and(|until| until <= now) && !self.control.should_stop()
    }

    /// Starts the grace period: the host does not want the topic, or is gone. If it is back in time, it gets all messages that the slot still keeps.
    fn linger(&mut self, grace: Duration) {
        let until = *self.lingers_until.get_or_insert_with(|| Instant::now() + grace);
        if until <= Instant::now() {
            self.stop();
        }
    }

    /// Ends the grace period: the host wants the topic again.
    fn go_on(&mut self) {
        self.lingers_until = None;
        if self.control.unwanted.swap(false, Ordering::AcqRel) {
            self.control.hurry.store(true, Ordering::Release);
            let _ = self.control.event.signal();
        }
    }

    /// Joins the thread, after `SenderEnded`.
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
    asker: Arc<dyn Ask>,
    backend: Arc<dyn Backend>,
    mailbox: Mailbox,
    verbs: Arc<Verbs>,
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
        verbs: Arc<Verbs>,
        budgets: Budgets,
    ) -> Self {
        Self { config, host, host_name, asker, backend, mailbox, verbs, budgets, files: Mutex::default() }
    }

    /// Starts senders to hosts that want the topic, and stops those to hosts that no longer do. It stops them after a grace period, since a host
    /// whose
    /// manager died or whose cable was cut comes back under the same identity.
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
            outbound.control.unwanted.store(true, Ordering::Release);
            match &endpoint {
                None if !unsent && !outbound.control.owes() => outbound.stop(),
                None if directory.knows(*host) => outbound.lingers_until = None,
                _ => outbound.linger(grace),
            }
        }
        topic.without_sender.retain(|host, _| by_host.contains_key(host));
        let Some(endpoint) = endpoint else { return };
        for (host, wanted) in by_host {
            match topic.outbound.get(&host) {
                Some(outbound) => {
                    let description = (endpoint.clone(), topic.message_bytes_max());
                    *outbound.control.endpoint.lock().unwrap_or_else(PoisonError::into_inner) = description;
                    outbound.control.kept_depth.store(kept_depth(&endpoint.offers), Ordering::Release);
                    let depth = depth(&endpoint.offers, &wanted);
                    if outbound.control.depth.swap(depth, Ordering::AcqRel) != depth {
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
        // Late joiners on other hosts get history from their own manager, which gets it from this sender.
        let history = kept_depth(&endpoint.offers) > 0;
        let pages = topic.slot_table.pages(slot).ok_or(std::io::ErrorKind::NotFound)?;
        let reader = ReaderPort::new(topic.segment.clone(), pages, history);
        let reader = reader.map_err(std::io::Error::other)?;
        let control = Arc::new(SenderControl {
            stop: AtomicBool::new(false),
            unwanted: AtomicBool::new(false),
            hurry: AtomicBool::new(false),
            messages: AtomicU64::new(0),
            corrupt: AtomicU64::new(0),
            depth: AtomicU32::new(depth),
            kept_depth: AtomicU32::new(kept_depth(&endpoint.offers)),
            event: Arc::new(EventFd::new()?),
            status: Mutex::new(format!("to {name}: starting")),
            endpoint: Mutex::new((endpoint.clone(), topic.message_bytes_max())),
            left: Mutex::default(),
            has_left: AtomicBool::new(false),
            owes: AtomicBool::new(false),
        });
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
            verbs: self.verbs.clone(),
            control: control.clone(),
        };
        let thread = std::thread::Builder::new()
            .name("rgaps-sender".to_owned())
            .spawn(move || Sender::new(setup, reader).run())?;
        Ok(Outbound { slot, control, lingers_until: None, thread: Some(thread), _place: place })
    }
}

/// How many of a publisher's last messages are kept for late joiners.
fn kept_depth(offers: &[PublisherQos]) -> u32 {
    let latched = offers.iter().filter(|offer| offer.durability == Durability::TransientLocal);
    latched.map(|offer| offer.history_depth).max().unwrap_or(0)
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
