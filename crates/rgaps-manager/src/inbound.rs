//! The receiving side of one topic and host, as the manager has it: what outlives a connection, and what it shares with a running arrival.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rgaps_device::PoolMemory;
use rgaps_link::tcp::LinkToken;
use rgaps_os::EventFd;
use rgaps_shm::{PublisherSlot, SubscriberPages, WriterPort};

use crate::arrival_budget::Charge;
use crate::links::LinkPermit;
use crate::received::Received;

/// The receiving side of one topic and host.
#[derive(Debug)]
pub(crate) enum Inbound {
    /// Not connected; the port waits for the next connection.
    Idle(Box<ArrivalState>),
    /// A ring is offered, or its worker runs.
    Active(Arc<ArrivalControl>),
}

/// What the manager and an arrival share.
#[derive(Debug)]
pub(crate) struct ArrivalControl {
    stop: AtomicBool,
    /// Wakes the worker: it is to stop, its memory is evicted, or subscribers have joined.
    event: Arc<EventFd>,
    status: Mutex<String>,
    counts: [AtomicU64; 6],
    token: LinkToken,
    slot: PublisherSlot,
    /// Returned when the worker ends.
    _place: LinkPermit,
    /// Subscribers that have joined meanwhile, and whether there is one.
    newcomers: Mutex<Vec<Newcomer>>,
    has_newcomers: AtomicBool,
    /// Whether its host was ever known.
    was_known: AtomicBool,
}

/// What an arrival's port needs to know about a subscriber.
#[derive(Debug)]
pub(crate) struct Newcomer {
    pub(crate) pages: Arc<SubscriberPages>,
    pub(crate) event: Option<Arc<EventFd>>,
}

impl ArrivalControl {
    /// For a ring that is offered with this token.
    pub(crate) fn new(
        status: String,
        event: Arc<EventFd>,
        token: LinkToken,
        slot: PublisherSlot,
        place: LinkPermit,
    ) -> Self {
        Self {
            stop: AtomicBool::new(false),
            event,
            status: Mutex::new(status),
            counts: Default::default(),
            token,
            slot,
            _place: place,
            newcomers: Mutex::default(),
            has_newcomers: AtomicBool::new(false),
            was_known: AtomicBool::new(false),
        }
    }

    /// Notes whether its host is known now. Returns whether it was ever known.
    pub(crate) fn note_known(&self, is_known: bool) -> bool {
        self.was_known.fetch_or(is_known, Ordering::Relaxed) || is_known
    }

    /// The token that the connection has to present.
    pub(crate) fn token(&self) -> LinkToken {
        self.token
    }

    /// Whether subscribers were added since the last call. Takes no lock.
    pub(crate) fn take_newcomers_flag(&self) -> bool {
        self.has_newcomers.swap(false, Ordering::AcqRel)
    }

    /// The subscribers that `Inbound::add_subscriber` has added since the last call.
    pub(crate) fn take_newcomers(&self) -> Vec<Newcomer> {
        std::mem::take(&mut *self.newcomers.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.wake();
    }

    /// Makes the worker look.
    pub(crate) fn wake(&self) {
        let _ = self.event.signal();
    }

    pub(crate) fn event(&self) -> &Arc<EventFd> {
        &self.event
    }

    pub(crate) fn should_stop(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    pub(crate) fn set_status(&self, status: String) {
        *self.status.lock().unwrap_or_else(PoisonError::into_inner) = status;
    }

    /// Messages, those of which a part was copied from the ring, duplicates, dropped, torn, corrupt.
    pub(crate) fn show(&self, counts: [u64; 6]) {
        self.counts.iter().zip(counts).for_each(|(shown, count)| shown.store(count, Ordering::Relaxed));
    }

    pub(crate) fn status(&self) -> String {
        let status = self.status.lock().unwrap_or_else(PoisonError::into_inner);
        let [messages, copied, duplicates, dropped, torn, corrupt] =
            self.counts.each_ref().map(|count| count.load(Ordering::Relaxed));
        format!(
            "{status}, {messages} messages, {copied} copied from the ring, {duplicates} duplicates, {dropped} dropped, {torn} torn, {corrupt} corrupt"
        )
    }
}

impl Inbound {
    /// For people.
    pub(crate) fn status(&self) -> String {
        match self {
            Self::Idle(_) => "from a host that is not connected".to_owned(),
            Self::Active(control) => control.status(),
        }
    }

    /// Adds a subscriber to its port.
    pub(crate) fn add_subscriber(&mut self, newcomer: Newcomer) {
        match self {
            Self::Idle(state) => state.port.add_subscriber(newcomer.pages, newcomer.event),
            Self::Active(control) => {
                let mut newcomers = control.newcomers.lock().unwrap_or_else(PoisonError::into_inner);
                // One per slot, even if the slot is taken anew before the worker looks.
                newcomers.retain(|known| known.pages.slot() != newcomer.pages.slot());
                newcomers.push(newcomer);
                drop(newcomers);
                control.has_newcomers.store(true, Ordering::Release);
                control.wake();
            }
        }
    }

    /// The publisher slot of its port.
    pub(crate) fn slot(&self) -> Option<PublisherSlot> {
        match self {
            Self::Idle(state) => Some(state.slot()),
            Self::Active(control) => Some(control.slot),
        }
    }
}

/// The state that outlives a connection.
#[derive(Debug)]
pub(crate) struct ArrivalState {
    pub(crate) port: WriterPort,
    pub(crate) pool: Arc<dyn PoolMemory>,
    pub(crate) charge: Arc<Charge>,
    pub(crate) received: Received,
    pub(crate) message_bytes_max: u64,
    /// Corrupt records; each has ended a connection.
    pub(crate) corrupt: u64,
}

impl ArrivalState {
    pub(crate) fn new(
        port: WriterPort,
        (pool, charge): (Arc<dyn PoolMemory>, Arc<Charge>),
        received: Received,
        message_bytes_max: u64,
    ) -> Self {
        Self { port, pool, charge, received, message_bytes_max, corrupt: 0 }
    }

    /// When data last arrived.
    pub(crate) fn heard(&self) -> u64 {
        self.charge.heard()
    }

    /// Whether other ports need its memory.
    pub(crate) fn is_evicted(&self) -> bool {
        self.charge.is_evicted()
    }

    pub(crate) fn slot(&self) -> PublisherSlot {
        self.port.slot()
    }
}
