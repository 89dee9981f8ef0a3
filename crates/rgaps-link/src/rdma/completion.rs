//! The completion queue and its channel: a thread polls the queue, and arms it before it sleeps.
//!
//! No wake-up is lost if the caller arms, polls once more, and only then sleeps (ibv_req_notify_cq): a completion after the arming makes
//! the channel's file descriptor readable, and the poll finds earlier ones. Events are acknowledged before the queue is destroyed.
//!
//! Source      completions that make a file descriptor readable, so that one poll covers them and sockets: Alexopoulos, Extending an asynchronous
//!             messaging library using an RDMA-enabled interconnect, diploma thesis, 2017, section 3.3, "File Descriptor Event Simulation".
//!             It needs a thread and an eventfd; verbs has the channel.

use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use rustix::io::Errno;

use crate::rdma::domain::{Context, VerbsError, last_errno};
use crate::rdma::sys;

/// Most completions of one poll.
pub(super) const POLL_MAX: usize = 32;

/// Why a transfer failed: `enum ibv_wc_status`, with its meaning for the user.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TransferError {
    /// 1.
    #[error("a gather list does not fit the queue pair (LOC_LEN_ERR); this is a defect of RGAPS")]
    LocalLength,
    /// 2.
    #[error(
        "the queue pair or its port failed (LOC_QP_OP_ERR); the link is down or the device was reset, connect again"
    )]
    LocalQueuePair,
    /// 4.
    #[error("a send used memory that is not registered (LOC_PROT_ERR); this is a defect of RGAPS")]
    LocalProtection,
    /// 5.
    #[error("flushed because the queue pair had already failed (WR_FLUSH_ERR); connect again")]
    Flushed,
    /// 6.
    #[error("the device has bound no memory window (MW_BIND_ERR); set rdma_landing_bytes = 0 to do without")]
    WindowBinding,
    /// 7.
    #[error("the peer's response was invalid (BAD_RESP_ERR); restart the peer")]
    BadResponse,
    /// 8.
    #[error("local memory refused the access (LOC_ACCESS_ERR); this is a defect of RGAPS")]
    LocalAccess,
    /// 9.
    #[error(
        "the peer refused the request as invalid (REM_INV_REQ_ERR); its receives are too small or of another kind, restart the peer"
    )]
    RemoteRequest,
    /// 10.
    #[error(
        "the peer does not allow that write (REM_ACCESS_ERR); its ring is deregistered or smaller than it stated, connect again"
    )]
    RemoteAccess,
    /// 11.
    #[error("the peer failed during the request (REM_OP_ERR); restart the peer")]
    RemoteOperation,
    /// 12.
    #[error(
        "the peer acknowledged nothing and the retries are exhausted (RETRY_EXC_ERR); it died or the network is down"
    )]
    RetriesExceeded,
    /// 13.
    #[error(
        "the peer had no receive posted (RNR_RETRY_EXC_ERR); it violates the protocol or is stopped, restart the peer"
    )]
    ReceiverNotReady,
    /// 16.
    #[error("the peer aborted the operation (REM_ABORT_ERR); connect again")]
    RemoteAborted,
    /// 19.
    #[error("the device failed permanently (FATAL_ERR); see the kernel's log (dmesg)")]
    Fatal,
    /// 20.
    #[error("the device got no answer in time (RESP_TIMEOUT_ERR); the network is down, connect again")]
    ResponseTimeout,
    /// Any other status: of queue pair types that are not used here, or of a newer library.
    #[error("the transfer failed with status {0}; see enum ibv_wc_status")]
    Other(u32),
}

impl TransferError {
    fn from_status(status: u32) -> Option<Self> {
        Some(match status {
            0 => return None,
            1 => Self::LocalLength,
            2 => Self::LocalQueuePair,
            4 => Self::LocalProtection,
            5 => Self::Flushed,
            6 => Self::WindowBinding,
            7 => Self::BadResponse,
            8 => Self::LocalAccess,
            9 => Self::RemoteRequest,
            10 => Self::RemoteAccess,
            11 => Self::RemoteOperation,
            12 => Self::RetriesExceeded,
            13 => Self::ReceiverNotReady,
            16 => Self::RemoteAborted,
            19 => Self::Fatal,
            20 => Self::ResponseTimeout,
            other => Self::Other(other),
        })
    }
}

/// One completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Completion {
    /// The work request's id.
    pub(super) id: u64,
    /// For a receive: bytes that the peer wrote.
    pub(super) bytes: u32,
    /// For a receive: the immediate.
    pub(super) immediate: u32,
}

/// A completion queue with a channel.
pub(super) struct CompletionQueue {
    raw: NonNull<sys::CompletionQueue>,
    channel: NonNull<sys::CompletionChannel>,
    context: Arc<Context>,
}

// SAFETY: as `Context`.
unsafe impl Send for CompletionQueue {}
// SAFETY: as `Context`.
unsafe impl Sync for CompletionQueue {}

impl CompletionQueue {
    pub(super) fn new(context: &Arc<Context>, entries: u32) -> Result<Self, VerbsError> {
        let library = context.library();
        // SAFETY: an open context.
        let channel = unsafe { (library.ibv_create_comp_channel)(context.raw()) };
        let channel = NonNull::new(channel).ok_or_else(|| context.failed("ibv_create_comp_channel", last_errno()))?;
        let entries = i32::try_from(entries).unwrap_or(i32::MAX);
        // SAFETY: an open context and its channel; completion vector 0 always exists.
        let raw = unsafe { (library.ibv_create_cq)(context.raw(), entries, std::ptr::null_mut(), channel.as_ptr(), 0) };
        let Some(raw) = NonNull::new(raw) else {
            let error = context.failed("ibv_create_cq", last_errno());
            // SAFETY: the channel from above, which is not in use.
            unsafe { (library.ibv_destroy_comp_channel)(channel.as_ptr()) };
            return Err(error);
        };
        let queue = Self { raw, channel, context: context.clone() };
        let flags = rustix::fs::fcntl_getfl(queue.fd()).map_err(|e| context.failed("fcntl", e))?;
        rustix::fs::fcntl_setfl(queue.fd(), flags | rustix::fs::OFlags::NONBLOCK)
            .map_err(|e| context.failed("fcntl", e))?;
        Ok(queue)
    }

    pub(super) fn raw(&self) -> *mut sys::CompletionQueue {
        self.raw.as_ptr()
    }

    /// Passes at most `POLL_MAX` completions to `take`; returns how many.
    pub(super) fn poll(
        &self,
        mut take: impl FnMut(Result<Completion, (u64, TransferError)>),
    ) -> Result<usize, VerbsError> {
        let mut entries = [sys::WorkCompletion::default(); POLL_MAX];
        let Some(poll_cq) = self.context.ops().poll_cq else {
            return Err(self.context.failed("ibv_poll_cq", Errno::NOSYS));
        };
        // SAFETY: a live queue, and room for as many entries as requested.
        let count = unsafe { poll_cq(self.raw(), POLL_MAX as i32, entries.as_mut_ptr()) };
        let count = usize::try_from(count).map_err(|_| self.context.failed("ibv_poll_cq", Errno::IO))?;
        for entry in entries.iter().take(count) {
            take(match TransferError::from_status(entry.status) {
                None => {
                    Ok(Completion { id: entry.wr_id, bytes: entry.byte_len, immediate: u32::from_be(entry.imm_data) })
                }
                Some(error) => Err((entry.wr_id, error)),
            });
        }
        Ok(count)
    }

    /// Requests an event at the next completion; with `solicited_only` at the next solicited or failed one.
    pub(super) fn arm(&self, solicited_only: bool) -> Result<(), VerbsError> {
        let Some(req_notify_cq) = self.context.ops().req_notify_cq else {
            return Err(self.context.failed("ibv_req_notify_cq", Errno::NOSYS));
        };
        // SAFETY: a live queue.
        let status = unsafe { req_notify_cq(self.raw(), i32::from(solicited_only)) };
        self.context.check("ibv_req_notify_cq", status)
    }

    /// Removes and acknowledges the channel's events, without waiting.
    pub(super) fn drain_events(&self) -> Result<(), VerbsError> {
        let library = self.context.library();
        let (mut queue, mut user) = (std::ptr::null_mut(), std::ptr::null_mut());
        loop {
            // SAFETY: a live channel that does not block, and room for the answers.
            let status = unsafe { (library.ibv_get_cq_event)(self.channel.as_ptr(), &mut queue, &mut user) };
            if status != 0 {
                return match last_errno() {
                    Errno::AGAIN | Errno::INTR => Ok(()),
                    errno => Err(self.context.failed("ibv_get_cq_event", errno)),
                };
            }
            // SAFETY: the queue of the event just read: the only one on this channel.
            unsafe { (library.ibv_ack_cq_events)(self.raw(), 1) };
        }
    }

    /// Readable after an event.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel lives as long as `self`.
        let fd = unsafe { self.channel.as_ref() }.fd;
        // SAFETY: the channel's file descriptor is open as long as the channel.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }
}

impl AsFd for CompletionQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd()
    }
}

impl std::fmt::Debug for CompletionQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CompletionQueue of {}", self.context.name())
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        let library = self.context.library();
        // SAFETY: its queue pairs hold it, so they are dropped; every event read is acknowledged.
        let queue = unsafe { (library.ibv_destroy_cq)(self.raw()) };
        // SAFETY: its only queue is destroyed.
        let channel = unsafe { (library.ibv_destroy_comp_channel)(self.channel.as_ptr()) };
        if queue != 0 || channel != 0 {
            tracing::error!(queue, channel, "a completion queue could not be destroyed");
        }
    }
}
