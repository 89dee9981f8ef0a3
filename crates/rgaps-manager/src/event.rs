//! Events of workers for the manager: a channel, and a file descriptor that wakes the manager. No event is dropped. A worker posts a few events in
//! its life, so the number of workers bounds the number of events. Events of the network go through `network_inbox`.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use rgaps_control::{HostId, TopicId};
use rgaps_os::EventFd;

use crate::inbound::ArrivalState;

/// An event that the manager handles.
#[derive(Debug)]
pub(crate) enum Event {
    /// A sender has ended, as requested; its slot may be released.
    SenderEnded { topic: TopicId, host: HostId },
    /// The other host has connected to an offered ring; the arrival's worker runs.
    ArrivalBegan { topic: TopicId, host: HostId },
    /// An arrival has ended, and returns its port for the next connection.
    ArrivalEnded { topic: TopicId, host: HostId, state: Box<ArrivalState>, why: String },
    /// A port is evicted: others need its memory.
    Evicted { topic: TopicId, host: HostId },
    /// Something that people should know about a topic.
    Warning { topic: TopicId, text: String },
}

/// The workers' end.
#[derive(Clone, Debug)]
pub(crate) struct Mailbox {
    sender: Sender<Event>,
    wake: Arc<EventFd>,
}

impl Mailbox {
    /// A mailbox, its reading end, and the file descriptor that wakes the reader.
    pub(crate) fn new() -> std::io::Result<(Self, Receiver<Event>, Arc<EventFd>)> {
        let (sender, receiver) = channel();
        let wake = Arc::new(EventFd::new()?);
        Ok((Self { sender, wake: wake.clone() }, receiver, wake))
    }

    /// Posts an event. If the manager is gone, the event is dropped.
    pub(crate) fn post(&self, event: Event) {
        if self.sender.send(event).is_ok() {
            let _ = self.wake.signal();
        }
    }
}
