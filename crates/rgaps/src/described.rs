//! Taking what names and describes a message, for whoever passes that on: the payload stays where it is, and is not even mapped.

use std::sync::Arc;

use rgaps_os::clock;
use rgaps_shm::{Held, MessageInfo};

use crate::dynamic::DynamicMeta;
use crate::handle::Handle;
use crate::subscriber::{Subscriber, SubscriberInner, TakeError};
use crate::types::Meta;

/// A message's name and description. Dropping it releases the message.
#[derive(Debug)]
pub struct Described<T> {
    /// What names it.
    pub handle: Handle,
    /// The typed metadata.
    pub meta: T,
    /// Where it came from, the path that it took and when it passed each stage.
    pub info: MessageInfo,
    /// When it was taken, in ns since 1970 on this host's clock.
    pub taken_ns: u64,
    hold: Hold,
}

#[derive(Debug)]
struct Hold {
    held: Option<Held>,
    // Leaves after the message was released.
    subscriber: Arc<SubscriberInner>,
}

impl Drop for Hold {
    fn drop(&mut self) {
        if !self.subscriber.node.is_owner() {
            // In a forked child the segment is not mapped, and the message is the parent's to release.
            std::mem::forget(self.held.take());
        }
    }
}

impl<T: Into<DynamicMeta>> Described<T> {
    pub(crate) fn into_dynamic(self) -> Described<DynamicMeta> {
        let Self { handle, meta, info, taken_ns, hold } = self;
        Described { handle, meta: meta.into(), info, taken_ns, hold }
    }
}

impl<T: Meta> Subscriber<T> {
    /// As `take`, of the message only what names and describes it: its pool is not mapped. Who wants the payload takes it by its handle, by another
    /// subscriber. Leaves `descriptor` as it is, for whoever watches its edges.
    pub fn take_described(&self) -> Result<Option<Described<T>>, TakeError> {
        self.check_attached()?;
        self.take_next(|| self.inner().next_held(false), |held| self.described(held))
    }

    fn described(&self, held: Held) -> Result<Described<T>, TakeError> {
        let (info, meta) = (*held.info(), self.meta_of(&held)?);
        let handle = Handle::new(self.inner().attachment.topic.0, held.message(), &info);
        let hold = Hold { held: Some(held), subscriber: self.inner().clone() };
        Ok(Described { handle, meta, info, taken_ns: clock::realtime_ns(), hold })
    }
}
