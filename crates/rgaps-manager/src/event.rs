//! What workers tell the manager: a channel, and a descriptor that wakes it. Nothing of it is dropped; a worker posts a few events in its life,
//! so that their number is bounded by that of the workers. What the network tells has an inbox of its own.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use rgaps_control::{HostId, TopicId};
use rgaps_os::EventFd;

use crate::arrival::ArrivalState;

/// Something that the manager should decide about.
#[derive(Debug)]
pub(crate) enum Event {
    /// A sender has ended, as it was told to; its slot may be given up.
    SenderEnded { topic: TopicId, host: HostId },
    /// A connection has come for an arrival that was offered; its worker runs.
    ArrivalBegan { topic: TopicId, host: HostId },
    /// An arrival has ended; its port comes back, for the next connection.
    ArrivalEnded { topic: TopicId, host: HostId, state: Box<ArrivalState>, why: String },
    /// The memory of a port is needed for others.
    Evicted { topic: TopicId, host: HostId },
    /// Something that people should know of a topic.
    Warning { topic: TopicId, text: String },
}

/// The workers' end.
#[derive(Clone, Debug)]
pub(crate) struct Mailbox {
    sender: Sender<Event>,
    wake: Arc<EventFd>,
}

impl Mailbox {
    /// A mailbox, its reading end, and what wakes the reader.
    pub(crate) fn new() -> std::io::Result<(Self, Receiver<Event>, Arc<EventFd>)> {
        let (sender, receiver) = channel();
        let wake = Arc::new(EventFd::new()?);
        Ok((Self { sender, wake: wake.clone() }, receiver, wake))
    }

    /// Tells the manager. If it is gone, nobody needs to know.
    pub(crate) fn post(&self, event: Event) {
        if self.sender.send(event).is_ok() {
            let _ = self.wake.signal();
        }
    }
}
