//! What a process's publishers and subscribers share: the connection to the host's manager, and the device.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Waker;
use std::thread::JoinHandle;

use rgaps_control::local::{Body, Reply};
use rgaps_control::{EndpointSlot, PublisherSlot};
use rgaps_device::{Backend, DeviceError, PoolDescription, PoolMemory, PoolRole, SlabDescription, Stream};
use rgaps_os::{EventFd, ForkGuard};

use crate::endpoint::async_request::AsyncRequest;
use crate::endpoint::attachment::Attachment;
use crate::endpoint::error::NodeError;
use crate::endpoint::hello::SessionError;
use crate::endpoint::session::Session;

/// A node without its types.
#[derive(Debug)]
pub(crate) struct NodeInner {
    pub(crate) session: Arc<Session>,
    pub(crate) domain: u32,
    pub(crate) host: [u8; 16],
    pub(crate) host_epoch: u64,
    pub(crate) backend: Arc<dyn Backend>,
    /// For copies that a caller waits for; created on first use.
    pub(crate) own_stream: Mutex<Option<Stream>>,
    pub(crate) fork: ForkGuard,
    pub(crate) thread: Mutex<Option<JoinHandle<()>>>,
}

impl NodeInner {
    pub(crate) fn host(&self) -> [u8; 16] {
        self.host
    }

    pub(crate) fn host_epoch(&self) -> u64 {
        self.host_epoch
    }

    pub(crate) fn is_owner(&self) -> bool {
        self.fork.is_owner()
    }

    pub(crate) fn detach(&self, attachment: &Attachment<impl Copy + Into<EndpointSlot>>) {
        if self.is_owner() {
            self.session.detach(attachment);
        }
    }

    pub(crate) fn import_pool(
        &self,
        description: &PoolDescription,
        fds: Vec<OwnedFd>,
    ) -> Result<Arc<dyn PoolMemory>, NodeError> {
        Ok(self.backend.import_pool(description, fds, PoolRole::Reader)?)
    }

    /// Sends a request, with a file descriptor beside it, to the manager from the node's thread; `waker` is woken by the answer.
    pub(crate) fn request_async(&self, body: Body, beside: Option<Arc<EventFd>>, waker: Waker) -> Arc<AsyncRequest> {
        self.session.request_async(body, beside, waker)
    }

    pub(crate) fn wait_for_answer(&self, request: &AsyncRequest) -> Result<(), NodeError> {
        Ok(self.session.wait_for_answer(request)?)
    }

    /// Requests memory for slabs of one of this node's own pools. If the manager dies before its answer is used, the memory is its successor's: it
    /// was handed the pool without these slabs, and gives readers only what it has itself.
    pub(crate) fn add_memory(
        &self,
        attachment: &Attachment<PublisherSlot>,
        pool: &dyn PoolMemory,
        slabs: Vec<u32>,
    ) -> Result<(), NodeError> {
        let body = Body::Commit { topic: attachment.topic, slot: attachment.slot, slabs };
        loop {
            let answer = self.session.request(&body, &[])?;
            let Reply::Slabs(slabs) = answer.reply else { return Err(SessionError::Confused.into()) };
            let slabs: Vec<SlabDescription> = serde_json::from_value(slabs)
                .map_err(|error| DeviceError::Description(format!("slabs cannot be parsed: {error}")))?;
            let add = || pool.add_slabs(&slabs, answer.fds.collect());
            if let Some(added) = self.session.unless_handed_back(answer.epoch, add) {
                return Ok(added?);
            }
        }
    }

    pub(crate) fn backend(&self) -> &Arc<dyn Backend> {
        &self.backend
    }

    pub(crate) fn own_stream(&self) -> Result<Stream, DeviceError> {
        let mut own = self.own_stream.lock().unwrap_or_else(PoisonError::into_inner);
        match own.as_ref() {
            Some(stream) => Ok(stream.clone()),
            None => Ok(own.insert(self.backend.stream()?).clone()),
        }
    }

    /// Makes the node's thread check its publishers and subscribers now.
    pub(crate) fn look_again(&self) {
        self.session.kick();
    }

    pub(crate) fn wake_when_readable(&self, event: &Arc<EventFd>, waker: Option<Waker>) {
        self.session.wake_when_readable(event, waker);
    }

    pub(crate) fn check_owner(&self) -> Result<(), NodeError> {
        if self.is_owner() { Ok(()) } else { Err(NodeError::Forked) }
    }
}

impl Drop for NodeInner {
    fn drop(&mut self) {
        let thread = self.thread.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if !self.fork.is_owner() {
            // The thread exists in the parent only; joining it here would block forever.
            return std::mem::forget(thread);
        }
        let ends = self.session.stop();
        // The node's thread cannot join itself, and the finder cannot join a thread that waits for the finder.
        let is_own = self.session.is_runner() || self.session.is_finder();
        if let Some(thread) = thread.filter(|_| ends && !is_own) {
            let _ = thread.join();
        }
    }
}
