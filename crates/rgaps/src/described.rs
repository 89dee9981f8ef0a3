//! Taking only the name and description of a message, for programs that forward them. The payload's pool is not even mapped.

use std::sync::Arc;

use rgaps_os::clock;
use rgaps_shm::{Held, MessageInfo};

use crate::endpoint::subscriber::SubscriberInner;
use crate::endpoint::take_error::TakeError;
use crate::handle::MessageHandle;
use crate::subscriber::Subscriber;
use crate::types::Meta;

/// A taken message's name and description, without its payload ([`Subscriber::take_described`] has an example). Dropping it releases the message.
#[derive(Debug)]
pub struct Described<T> {
    /// The message's handle.
    pub handle: MessageHandle,
    /// The typed metadata.
    pub meta: T,
    /// The message's origin, its route and the time of each stage.
    pub info: MessageInfo,
    /// When it was taken, in ns since 1970 on this host's clock.
    pub taken_ns: u64,
    _hold: Hold,
}

#[derive(Debug)]
struct Hold {
    held: Option<Held>,
    // Declared after `held`: the subscriber detaches after the message is released.
    subscriber: Arc<SubscriberInner>,
}

impl Drop for Hold {
    fn drop(&mut self) {
        if !self.subscriber.node.is_owner() {
            // In a forked child the segment is not mapped, and only the parent may release the message.
            std::mem::forget(self.held.take());
        }
    }
}

impl<T> Described<T> {
    pub(crate) fn new((meta, held): (T, Held), subscriber: &Arc<SubscriberInner>) -> Self {
        let info = *held.info();
        let handle = MessageHandle::new(subscriber.attachment.topic.0, held.message(), &info);
        let hold = Hold { held: Some(held), subscriber: subscriber.clone() };
        Self { handle, meta, info, taken_ns: clock::realtime_ns(), _hold: hold }
    }
}

impl<T: Meta> Subscriber<T> {
    /// Like `take`, but returns only the message's name and description and does not map its pool. To get the payload, take the handle with another
    /// subscriber. Does not reset `event_fd`, for programs that watch it edge-triggered.
    ///
    /// ```
    /// # use rgaps::{MessageHandle, Node, types::Bytes};
    /// # let _host = rgaps_testing::example_host();
    /// # let node = Node::new("relay")?;
    /// # let (publisher, subscriber) = (node.publisher::<Bytes>("raw")?, node.subscriber::<Bytes>("raw")?);
    /// # let handle = publisher.push(&Bytes::new(5), b"hello")?;
    /// # let mut sent: Vec<[u8; MessageHandle::BYTES]> = Vec::new();
    /// while let Some(described) = subscriber.take_described()? {
    ///     sent.push(described.handle.to_bytes()); // to a program that takes the message by its handle
    /// }
    /// assert_eq!(sent, [handle.to_bytes()]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn take_described(&self) -> Result<Option<Described<T>>, TakeError> {
        Ok(self.taker.take_described()?.map(|described| Described::new(described, self.taker.inner())))
    }
}
