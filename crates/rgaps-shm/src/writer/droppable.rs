//! Keep-last subscribers for which a publisher without space does not wait: all of them, or those that read nothing during a whole wait.

use crate::slot::SubscriberSlot;
use crate::writer::space::Exhaustion;
use crate::writer::subscribers::{Reader, Subscribers};

/// Keep-last subscribers that had something to read at one moment, and how many messages each had taken.
#[derive(Debug, Default)]
pub struct TakenCounts(Vec<(SubscriberSlot, u64)>);

impl TakenCounts {
    /// `end`: of the queue.
    pub(crate) fn of(subscribers: &Subscribers, end: u64) -> Self {
        let readers = subscribers.all().filter(|reader| reader.depth != 0 && reader.is_behind(end));
        Self(readers.map(|reader| (reader.slot, reader.taken)).collect())
    }

    /// Whether this subscriber is one of them and has taken nothing since.
    pub(crate) fn has_read_nothing(&self, reader: &Reader<'_>) -> bool {
        reader.depth != 0 && self.0.contains(&(reader.slot, reader.taken))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Which keep-last subscribers may lose unread messages for their space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Droppable {
    None,
    /// Those that read nothing during a whole wait.
    OfIdle,
    All,
}

impl Droppable {
    pub(crate) fn by(exhaustion: Exhaustion) -> Self {
        match exhaustion {
            Exhaustion::DropOldest => Self::All,
            Exhaustion::Wait { .. } => Self::OfIdle,
            Exhaustion::Refuse => Self::None,
        }
    }

    /// Whether this subscriber may lose unread messages.
    pub(crate) fn includes(self, idle: &TakenCounts, reader: &Reader<'_>) -> bool {
        match self {
            Self::None => false,
            Self::OfIdle => idle.has_read_nothing(reader),
            Self::All => true,
        }
    }
}
