//! Taking what names and describes a message, for whoever passes that on: the payload stays where it is, and is not even mapped.

use rgaps_os::clock;
use rgaps_shm::MessageInfo;

use crate::any::AnyMeta;
use crate::handle::Handle;
use crate::subscriber::{Subscriber, TakeError};
use crate::types::Meta;

/// A message's name and description. Whoever has one has no hold of the message.
#[derive(Clone, Copy, Debug)]
pub struct Described<T> {
    /// What names it.
    pub handle: Handle,
    /// The typed metadata.
    pub meta: T,
    /// Where it came from, the path that it took and when it passed each stage.
    pub info: MessageInfo,
    /// When it was taken, in ns since 1970 on this host's clock.
    pub taken_ns: u64,
}

impl<T: Into<AnyMeta>> Described<T> {
    pub(crate) fn into_any(self) -> Described<AnyMeta> {
        let Self { handle, meta, info, taken_ns } = self;
        Described { handle, meta: meta.into(), info, taken_ns }
    }
}

impl<T: Meta> Subscriber<T> {
    /// As `take`, of the message only what names and describes it: it is let go before the call returns, and its pool is not mapped. Who wants
    /// the payload claims it, by another subscriber.
    pub fn take_described(&self) -> Result<Option<Described<T>>, TakeError> {
        let Some(held) = self.next_held(false)? else { return Ok(None) };
        let (info, meta) = (*held.info(), self.meta_of(&held)?);
        let handle = Handle::new(self.inner().seated.topic.0, held.message(), &info);
        Ok(Some(Described { handle, meta, info, taken_ns: clock::realtime_ns() }))
    }
}
