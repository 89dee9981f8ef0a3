//! Keep-last subscribers for which a publisher without space no longer waits: those that read nothing during a whole wait.

use crate::slot::SubscriberSlot;
use crate::subscribers::{Reader, Subscribers};

/// Keep-last subscribers, and how many messages each had taken, at one moment.
#[derive(Debug, Default)]
pub struct IdleReaders(Vec<(SubscriberSlot, u64)>);

impl IdleReaders {
    pub(crate) fn of(subscribers: &Subscribers) -> Self {
        let readers = subscribers.all().filter(|reader| reader.depth != 0);
        Self(readers.map(|reader| (reader.slot, reader.taken)).collect())
    }

    /// Whether this subscriber is one of them and has taken nothing since.
    pub(crate) fn has_idle(&self, reader: &Reader<'_>) -> bool {
        reader.depth != 0 && self.0.contains(&(reader.slot, reader.taken))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
