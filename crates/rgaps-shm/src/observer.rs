//! An observer: reads a topic from a read-only mapping for `rgaps topic hz`, `bw` and `latency`. It reads no payload and delays no publisher or
//! subscriber.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::info::MessageInfo;
use crate::layout::SlotState;
use crate::reader::peek::read_life;
use crate::segment::Segment;
use crate::words::message::Generation;
use crate::words::queue::{MessageIndex, Named, Position, Slot};

/// What a topic's segment says about one of its publishers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObservedPublisher {
    /// Its process id, in its own PID namespace.
    pub pid: u64,
    /// Messages published.
    pub published: u64,
    /// Whether it is the manager, on behalf of another host.
    pub remote: bool,
}

/// Follows a topic's messages without being a subscriber. In a forked child it sees nothing, because the segment is not mapped there.
#[derive(Debug)]
pub struct Observer {
    segment: Arc<Segment>,
    cursor: Position,
}

impl Observer {
    /// Starts at the newest message.
    pub fn new(segment: Arc<Segment>) -> Self {
        let cursor = segment.queue().end();
        Self { segment, cursor }
    }

    /// The next message's description. Skips messages that were published and freed between two calls.
    pub fn poll(&mut self) -> Option<MessageInfo> {
        self.here()?;
        for _ in 0..=2 * self.segment.queue().capacity() {
            match self.segment.queue().read(self.cursor) {
                Slot::Empty => return None,
                Slot::Overrun => {
                    self.cursor = self.segment.queue().begin().max(self.cursor.next());
                }
                Slot::Message(named) => {
                    let position = self.cursor;
                    self.cursor = position.next();
                    let entry = self.segment.message(named.message);
                    if let Some((_, info)) = read_life(&self.segment, entry, position, named) {
                        return Some(info);
                    }
                }
            }
        }
        None
    }

    /// The description of the message in an entry of the table, if the entry is still in that life.
    pub fn message(&self, slot: u32, generation: u32) -> Option<MessageInfo> {
        let index = MessageIndex(u16::try_from(slot).ok()?);
        self.here()?;
        let entry = self.segment.message(index);
        let position = Position(entry.position.load(Ordering::Relaxed));
        let named = Named { message: index, generation: Generation(generation).low() };
        let (life, info) = read_life(&self.segment, entry, position, named)?;
        (life.0 == generation).then_some(info)
    }

    /// The publisher with this identity, if it has a slot of this topic.
    pub fn publisher(&self, publisher: u64) -> Option<ObservedPublisher> {
        self.here()?;
        let taken = self.segment.publishers().filter(|(_, state)| *state != Some(SlotState::Free));
        let mut taken = taken.filter_map(|(slot, _)| self.segment.publisher(slot.index));
        let found = taken.find(|record| record.publisher.load(Ordering::Relaxed) == publisher)?;
        Some(ObservedPublisher {
            pid: found.pid.load(Ordering::Relaxed),
            published: found.published.load(Ordering::Relaxed),
            remote: found.remote.load(Ordering::Relaxed) != 0,
        })
    }

    /// The topic's identity.
    pub fn topic(&self) -> [u8; 16] {
        self.segment.topic()
    }

    /// The segment, for its counters. Do not read it in a forked child (`Segment::is_here`).
    pub fn segment(&self) -> &Arc<Segment> {
        &self.segment
    }

    fn here(&self) -> Option<()> {
        self.segment.is_here().then_some(())
    }
}
