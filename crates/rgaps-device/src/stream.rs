//! Streams, events and completions: the order of work on a device. On the host backend every operation is done when its call returns,
//! so all three are trivial; the types exist so that callers are written once.

/// An ordered queue of work on a device.
#[derive(Clone, Debug, Default)]
pub struct Stream {
    _private: (),
}

impl Stream {
    /// The host backend's stream: work is done at once.
    pub(crate) fn immediate() -> Self {
        Self::default()
    }

    /// Marks a place in the stream.
    pub fn record(&self) -> Event {
        Event { _private: () }
    }

    /// Makes later work of this stream wait for an event of another.
    pub fn wait(&self, event: &Event) {
        let _ = event;
    }
}

/// A place in a stream.
#[derive(Clone, Debug)]
pub struct Event {
    _private: (),
}

impl Event {
    /// Whether the stream has got there.
    pub fn is_complete(&self) -> bool {
        true
    }
}

/// A copy that was started.
#[derive(Clone, Debug)]
#[must_use = "bytes may be used only once the copy is complete"]
pub struct Completion(Event);

impl Completion {
    pub(crate) fn of(stream: &Stream) -> Self {
        Self(stream.record())
    }

    /// Whether the bytes are there.
    pub fn is_complete(&self) -> bool {
        self.0.is_complete()
    }
}
