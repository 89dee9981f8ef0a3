//! A running sender, as the manager has it, and what the two share.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rgaps_control::wire::Endpoint;
use rgaps_os::EventFd;
use rgaps_shm::SubscriberSlot;
use rgaps_shm::manager::last_received::LastReceived;
use rgaps_shm::words::queue::Position;

use crate::links::LinkPermit;

/// Most departed publishers of which a sender must still tell the other host. It forgets those first that left longest ago.
pub(crate) const LEFT_MAX: usize = 4096;

/// What the manager and a sender share.
#[derive(Debug)]
pub(crate) struct SenderControl {
    stop: AtomicBool,
    /// The directory says that the host does not want the topic. If the host itself confirms that, the sender ends.
    unwanted: AtomicBool,
    /// The host is back.
    hurry: AtomicBool,
    /// Whether there is a link.
    connected: AtomicBool,
    event: Arc<EventFd>,
    status: Mutex<String>,
    messages: AtomicU64,
    /// Corrupt credits.
    corrupt: AtomicU64,
    /// How many unsent messages the sender keeps for the host; 0 for all.
    depth: AtomicU32,
    /// What is published, and the largest message, for the next hand-shake.
    endpoint: Mutex<(Endpoint, u64)>,
    /// Publishers that have left meanwhile, with their last messages, and whether there is one.
    left: Mutex<Vec<(u64, LastReceived)>>,
    has_left: AtomicBool,
    /// The other host does not know yet that the last messages of a publisher that has left were not sent.
    owes: AtomicBool,
}

impl SenderControl {
    /// For a sender that keeps `depth` unsent messages (0 for all).
    pub(crate) fn new(status: String, depth: u32, endpoint: (Endpoint, u64)) -> std::io::Result<Self> {
        Ok(Self {
            stop: AtomicBool::new(false),
            unwanted: AtomicBool::new(false),
            hurry: AtomicBool::new(false),
            connected: AtomicBool::new(false),
            messages: AtomicU64::new(0),
            corrupt: AtomicU64::new(0),
            depth: AtomicU32::new(depth),
            event: Arc::new(EventFd::new()?),
            status: Mutex::new(status),
            endpoint: Mutex::new(endpoint),
            left: Mutex::default(),
            has_left: AtomicBool::new(false),
            owes: AtomicBool::new(false),
        })
    }

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
        self.depth() == 0
    }

    /// How many unsent messages the sender keeps; 0 for all.
    pub(crate) fn depth(&self) -> u32 {
        self.depth.load(Ordering::Acquire)
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.connected.load(Ordering::Acquire)
    }

    pub(crate) fn set_connected(&self, is_connected: bool) {
        self.connected.store(is_connected, Ordering::Release);
    }

    /// Notes that a publisher has left, and its last message. While there is no link, it remembers `LEFT_MAX`.
    pub(crate) fn mark_left(&self, publisher: u64, last: LastReceived) {
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        if left.len() >= LEFT_MAX {
            left.remove(0);
        }
        left.push((publisher, last));
        drop(left);
        self.has_left.store(true, Ordering::Release);
        self.owes.store(true, Ordering::Release);
    }

    /// Notes that the other host knows of all publishers that have left, unless another has left since.
    pub(crate) fn mark_settled(&self) {
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

    /// Notes that the directory says that the host does not want the topic.
    pub(crate) fn note_unwanted(&self) {
        self.unwanted.store(true, Ordering::Release);
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

    /// Sets what is published, and the largest message.
    pub(crate) fn set_endpoint(&self, endpoint: (Endpoint, u64)) {
        *self.endpoint.lock().unwrap_or_else(PoisonError::into_inner) = endpoint;
    }

    /// Sets how many unsent messages the sender keeps; 0 for all. Returns whether that is a change.
    pub(crate) fn set_depth(&self, depth: u32) -> bool {
        self.depth.swap(depth, Ordering::AcqRel) != depth
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
    /// The queue's end at the manager's last look, and how many times more the sender is to look at what is there.
    looked_at: Option<Position>,
    looks: u8,
    _place: LinkPermit,
}

impl Outbound {
    pub(crate) fn new(
        slot: SubscriberSlot,
        control: Arc<SenderControl>,
        thread: JoinHandle<()>,
        place: LinkPermit,
    ) -> Self {
        let (lingers_until, looked_at, looks) = (None, None, 0);
        Self { slot, control, lingers_until, thread: Some(thread), looked_at, looks, _place: place }
    }

    /// Wakes the sender for what nobody may have told it: messages of a publisher that lacks its eventfd or was stopped before it signalled, an arrival
    /// that made its slot keep-last, or a signal that another process has taken from the eventfd. `end`: of the topic's queue. A message may be completed
    /// just after its place in the queue was seen, so the sender looks twice.
    pub(crate) fn wake_for_untold(&mut self, end: Position, is_keep_last: bool) {
        if self.looked_at.replace(end) != Some(end) {
            self.looks = 2;
        }
        if self.looks > 0 || is_keep_last && self.control.is_keep_all() || self.control.should_stop() {
            self.looks = self.looks.saturating_sub(1);
            let _ = self.control.event.signal();
        }
    }

    /// Tells the sender to end. It posts `Event::SenderEnded` when it has.
    pub(crate) fn stop(&self) {
        self.control.stop.store(true, Ordering::Release);
        let _ = self.control.event.signal();
    }

    /// Whether its grace period is over, or has to start: it was kept for its link, and has none any more.
    pub(crate) fn is_late(&self, now: Instant) -> bool {
        let is_over = match self.lingers_until {
            Some(until) => until <= now,
            None => self.control.is_unwanted() && !self.control.is_connected(),
        };
        is_over && !self.control.should_stop()
    }

    /// Waits as long as there is a link.
    pub(crate) fn keep(&mut self) {
        self.lingers_until = None;
    }

    /// Starts the grace period: the host does not want the topic, or is gone. If it is back in time, it gets all messages that the slot still keeps.
    pub(crate) fn linger(&mut self, grace: Duration) {
        let until = *self.lingers_until.get_or_insert_with(|| Instant::now() + grace);
        if until <= Instant::now() {
            self.stop();
        }
    }

    /// Ends the grace period: the host wants the topic again.
    pub(crate) fn go_on(&mut self) {
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
