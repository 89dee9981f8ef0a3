//! A reliable connected queue pair: creates it, connects it to its peer, posts requests, and ends it.
//!
//! Invariants  A request gathers from regions of the same domain, or is inline. A region is dropped after the queue pair, a window before it:
//!             their owner sees to that.
//! Time        The peer counts as dead after (retries + 1) × 4.096 µs × 2^timeout without an acknowledgement (InfiniBand Architecture
//!             Specification 9.7.6.1.3). Seven retries mean "for ever" on some devices, so at most six are used.

use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use crate::payload::Data;
use crate::rdma::completion::CompletionQueue;
use crate::rdma::domain::{Domain, VerbsError, last_errno};
use crate::rdma::port::{Candidate, Gid, LinkLayer, gid_index};
use crate::rdma::sys::{self, attribute};
use crate::rdma::window::{Window, WindowRegion};

/// Entries of a gather list: header with envelope, and data.
pub(super) const GATHER_MAX: usize = 2;
/// Most requests in one list.
pub(super) const LIST_MAX: usize = 64;
/// The shortest wait between retries: 4.096 µs × 2^14 = 67 ms. With less, a software device on a loaded machine fails.
const TIMEOUT_EXPONENT_MIN: u8 = 14;
const TIMEOUT_EXPONENT_MAX: u8 = 22;
const RETRIES_MIN: u8 = 2;
const RETRIES_MAX: u8 = 6;

/// The address of a queue pair, for the hand-shake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// The port's link layer.
    pub link_layer: LinkLayer,
    /// The port's GID.
    pub gid: Gid,
    /// The port's local identifier (LID), used on InfiniBand.
    pub lid: u16,
    /// The port's MTU.
    pub mtu_bytes: u32,
    /// Number of the queue pair, 24 bits.
    pub queue_pair: u32,
    /// First packet sequence number (PSN), 24 bits.
    pub packet: u32,
}

/// The capacity of a queue pair.
#[derive(Clone, Copy, Debug)]
pub(super) struct Capacity {
    pub(super) sends: u32,
    pub(super) receives: u32,
    pub(super) inline_bytes: u32,
}

/// A request to write into the peer's memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Write<'a> {
    pub(super) id: u64,
    /// Target address.
    pub(super) remote: u64,
    pub(super) remote_key: u32,
    /// The bytes to gather, each with the local key of its region. Inline requests ignore the keys.
    pub(super) parts: [(Data<'a>, u32); GATHER_MAX],
    /// Consumes a receive of the peer, which completes with this number.
    pub(super) immediate: Option<u32>,
    pub(super) signaled: bool,
    /// Wakes a peer that has armed its queue for solicited completions only.
    pub(super) solicited: bool,
    pub(super) inline: bool,
}

/// A write of nothing.
pub(super) const EMPTY: Write<'static> = Write {
    id: 0,
    remote: 0,
    remote_key: 0,
    parts: [(Data::EMPTY, 0); GATHER_MAX],
    immediate: None,
    signaled: false,
    solicited: false,
    inline: false,
};

pub(super) struct QueuePair {
    raw: NonNull<sys::QueuePair>,
    /// Keeps the completion queue alive.
    _completions: Arc<CompletionQueue>,
    domain: Arc<Domain>,
    inline_bytes: u32,
    packet: u32,
}

// SAFETY: as `Context`.
unsafe impl Send for QueuePair {}
// SAFETY: as `Context`.
unsafe impl Sync for QueuePair {}

impl QueuePair {
    /// Creates a queue pair on a port. Sends and receives complete in the same queue.
    pub(super) fn new(
        domain: &Arc<Domain>,
        completions: &Arc<CompletionQueue>,
        candidate: &Candidate,
        capacity: Capacity,
    ) -> Result<Self, VerbsError> {
        let context = domain.context();
        let mut init = sys::QueuePairInit {
            qp_context: std::ptr::null_mut(),
            send_cq: completions.raw(),
            recv_cq: completions.raw(),
            srq: std::ptr::null_mut(),
            cap: sys::QueuePairCapacity {
                max_send_wr: capacity.sends,
                max_recv_wr: capacity.receives,
                max_send_sge: GATHER_MAX as u32,
                max_recv_sge: 1,
                max_inline_data: capacity.inline_bytes,
            },
            qp_type: sys::QPT_RC,
            sq_sig_all: 0,
        };
        // SAFETY: a live domain and queue; `init` is read, and its capacities are written.
        let raw = unsafe { (context.library().ibv_create_qp)(domain.raw(), &mut init) };
        let raw = NonNull::new(raw).ok_or_else(|| context.failed("ibv_create_qp", last_errno()))?;
        let packet = rgaps_os::random::<4>().map_or(1, u32::from_le_bytes) & 0x00ff_ffff;
        let pair = Self {
            raw,
            _completions: completions.clone(),
            domain: domain.clone(),
            inline_bytes: init.cap.max_inline_data,
            packet,
        };
        let mut attributes = sys::QueuePairAttributes {
            qp_state: sys::QPS_INIT,
            port_num: candidate.port,
            qp_access_flags: sys::ACCESS_REMOTE_WRITE as u32,
            ..Default::default()
        };
        let mask = attribute::STATE | attribute::PKEY_INDEX | attribute::PORT | attribute::ACCESS_FLAGS;
        pair.modify(&mut attributes, mask)?;
        Ok(pair)
    }

    /// Its address, for the peer.
    pub(super) fn address(&self, candidate: &Candidate) -> Address {
        // SAFETY: the pair lives as long as `self`.
        let queue_pair = unsafe { self.raw.as_ref() }.qp_num;
        Address {
            link_layer: candidate.link_layer,
            gid: candidate.gid,
            lid: candidate.lid,
            mtu_bytes: candidate.mtu_bytes,
            queue_pair,
            packet: self.packet,
        }
    }

    /// Bytes that a request may send inline, without registration.
    pub(super) fn inline_bytes(&self) -> u32 {
        self.inline_bytes
    }

    /// Connects it to its peer: ready to receive (RTR), then ready to send (RTS).
    pub(super) fn connect(
        &self,
        candidate: &Candidate,
        peer: &Address,
        dead_peer_timeout: Duration,
    ) -> Result<(), VerbsError> {
        let context = self.domain.context();
        let sgid_index = gid_index(context, candidate.port, candidate.gid)?.ok_or_else(|| {
            context.failed("finding its GID (the address was removed)", rustix::io::Errno::ADDRNOTAVAIL)
        })?;
        let mut attributes = sys::QueuePairAttributes {
            qp_state: sys::QPS_RTR,
            path_mtu: mtu_code(candidate.mtu_bytes.min(peer.mtu_bytes)),
            dest_qp_num: peer.queue_pair,
            rq_psn: peer.packet,
            max_dest_rd_atomic: 1,
            // 0.64 ms: a peer without a posted receive violates the protocol, so waiting does not help.
            min_rnr_timer: 12,
            ah_attr: sys::AddressVector {
                grh: sys::GlobalRoute { dgid: sys::Gid(peer.gid.0), sgid_index, hop_limit: 64, ..Default::default() },
                dlid: peer.lid,
                is_global: u8::from(peer.link_layer == LinkLayer::Ethernet),
                port_num: candidate.port,
                ..Default::default()
            },
            ..Default::default()
        };
        self.modify(
            &mut attributes,
            attribute::STATE
                | attribute::AV
                | attribute::PATH_MTU
                | attribute::DEST_QPN
                | attribute::RQ_PSN
                | attribute::MAX_DEST_RD_ATOMIC
                | attribute::MIN_RNR_TIMER,
        )?;
        let (timeout, retry_cnt) = retries(dead_peer_timeout);
        let mut attributes = sys::QueuePairAttributes {
            qp_state: sys::QPS_RTS,
            timeout,
            retry_cnt,
            rnr_retry: 6,
            sq_psn: self.packet,
            max_rd_atomic: 1,
            ..Default::default()
        };
        self.modify(
            &mut attributes,
            attribute::STATE
                | attribute::TIMEOUT
                | attribute::RETRY_CNT
                | attribute::RNR_RETRY
                | attribute::SQ_PSN
                | attribute::MAX_QP_RD_ATOMIC,
        )
    }

    /// Ends it: posted requests complete as flushed, and the device accesses no memory for it any more.
    pub(super) fn fail(&self) {
        let mut attributes = sys::QueuePairAttributes { qp_state: sys::QPS_ERR, ..Default::default() };
        if let Err(error) = self.modify(&mut attributes, attribute::STATE) {
            tracing::debug!(%error, "queue pair could not be ended");
        }
    }

    fn modify(&self, attributes: &mut sys::QueuePairAttributes, mask: i32) -> Result<(), VerbsError> {
        let context = self.domain.context();
        // SAFETY: a live pair, and attributes that the call reads where the mask says so.
        let status = unsafe { (context.library().ibv_modify_qp)(self.raw.as_ptr(), attributes, mask) };
        context.check("ibv_modify_qp", status)
    }

    /// Posts at most `LIST_MAX` writes as one list. After an error the queue pair is unusable.
    pub(super) fn write(&self, writes: &[Write<'_>]) -> Result<(), VerbsError> {
        debug_assert!(writes.len() <= LIST_MAX, "the caller cuts its list");
        let mut parts = [[sys::GatherEntry::default(); GATHER_MAX]; LIST_MAX];
        let mut requests = [EMPTY_REQUEST; LIST_MAX];
        for ((write, parts), request) in writes.iter().zip(&mut parts).zip(&mut requests) {
            let mut used = 0;
            for (bytes, key) in write.parts {
                if !bytes.is_empty() {
                    let (addr, length) = (bytes.address(), bytes.len() as u32);
                    parts[used] = sys::GatherEntry { addr, length, lkey: key };
                    used += 1;
                }
            }
            let flag = |set: bool, flag: u32| if set { flag } else { 0 };
            *request = sys::SendRequest {
                wr_id: write.id,
                sg_list: parts.as_mut_ptr(),
                num_sge: used as i32,
                opcode: if write.immediate.is_some() { sys::WR_RDMA_WRITE_WITH_IMM } else { sys::WR_RDMA_WRITE },
                send_flags: flag(write.signaled, sys::SEND_SIGNALED)
                    | flag(write.solicited, sys::SEND_SOLICITED)
                    | flag(write.inline, sys::SEND_INLINE),
                imm_data: write.immediate.unwrap_or(0).to_be(),
                remote_addr: write.remote,
                rkey: write.remote_key,
                ..EMPTY_REQUEST
            };
        }
        self.post(&mut requests[..writes.len().min(LIST_MAX)])
    }

    /// Posts the binding of a window to a part of its region, which gives the window its next key. Later requests find it bound.
    pub(super) fn bind(&self, window: &mut Window, region: &WindowRegion, part: (u64, u64)) -> Result<(), VerbsError> {
        let (addr, length) = part;
        let rkey = window.next_key();
        let bind_mw = sys::BindWindow {
            mw: window.raw(),
            rkey,
            mr: region.raw(),
            addr,
            length,
            mw_access_flags: sys::ACCESS_REMOTE_WRITE as u32,
        };
        self.post(&mut [sys::SendRequest { opcode: sys::WR_BIND_MW, bind_mw, ..EMPTY_REQUEST }])?;
        window.set_key(rkey);
        Ok(())
    }

    /// Posts the invalidation of a window's key. When it has completed, as `id`, the device refuses writes with that key.
    pub(super) fn invalidate(&self, id: u64, key: u32) -> Result<(), VerbsError> {
        let (opcode, send_flags) = (sys::WR_LOCAL_INV, sys::SEND_SIGNALED);
        self.post(&mut [sys::SendRequest { wr_id: id, opcode, send_flags, imm_data: key, ..EMPTY_REQUEST }])
    }

    /// Posts requests as one list. What they refer to is alive until they have completed.
    fn post(&self, requests: &mut [sys::SendRequest]) -> Result<(), VerbsError> {
        link(requests, |request, next| request.next = next);
        let Some(first) = requests.first_mut() else { return Ok(()) };
        let (context, mut bad) = (self.domain.context(), std::ptr::null_mut());
        let Some(post_send) = context.ops().post_send else {
            return Err(context.failed("ibv_post_send", rustix::io::Errno::NOSYS));
        };
        // SAFETY: a live pair and a terminated list, which the call copies; it reads inline bytes, windows and regions before it returns. Other bytes
        // are in regions that outlive the pair (the invariant of this module).
        let status = unsafe { post_send(self.raw.as_ptr(), first, &mut bad) };
        context.check("ibv_post_send", status)
    }

    /// Posts `count` receives. They have no memory: the peer writes into the ring, and only the immediate is received.
    pub(super) fn receive(&self, mut count: u32) -> Result<(), VerbsError> {
        let context = self.domain.context();
        let Some(post_recv) = context.ops().post_recv else {
            return Err(context.failed("ibv_post_recv", rustix::io::Errno::NOSYS));
        };
        while count > 0 {
            let mut requests = [EMPTY_RECEIVE; LIST_MAX];
            let requests = &mut requests[..(count as usize).min(LIST_MAX)];
            count -= requests.len() as u32;
            link(requests, |request, next| request.next = next);
            let mut bad = std::ptr::null_mut();
            // SAFETY: a live pair and a terminated list without gather entries.
            let status = unsafe { post_recv(self.raw.as_ptr(), requests.as_mut_ptr(), &mut bad) };
            context.check("ibv_post_recv", status)?;
        }
        Ok(())
    }
}

impl std::fmt::Debug for QueuePair {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "QueuePair of {}", self.domain.context().name())
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        let context = self.domain.context();
        // SAFETY: only `drop` destroys it, and no caller can post to it any more.
        let status = unsafe { (context.library().ibv_destroy_qp)(self.raw.as_ptr()) };
        if status != 0 {
            tracing::error!(device = context.name(), status, "a queue pair could not be destroyed");
        }
    }
}

/// The id of every receive, which distinguishes it from sends in the shared completion queue.
pub(super) const RECEIVE_ID: u64 = u64::MAX;

const EMPTY_REQUEST: sys::SendRequest = sys::SendRequest {
    wr_id: 0,
    next: std::ptr::null_mut(),
    sg_list: std::ptr::null_mut(),
    num_sge: 0,
    opcode: 0,
    send_flags: 0,
    imm_data: 0,
    remote_addr: 0,
    rkey: 0,
    rest_of_wr: [0; 2],
    xrc_remote_srqn: 0,
    bind_mw: sys::BindWindow {
        mw: std::ptr::null_mut(),
        rkey: 0,
        mr: std::ptr::null_mut(),
        addr: 0,
        length: 0,
        mw_access_flags: 0,
    },
};

const EMPTY_RECEIVE: sys::ReceiveRequest =
    sys::ReceiveRequest { wr_id: RECEIVE_ID, next: std::ptr::null_mut(), sg_list: std::ptr::null_mut(), num_sge: 0 };

/// Links an array into a list.
fn link<T>(requests: &mut [T], set: impl Fn(&mut T, *mut T)) {
    let mut next = std::ptr::null_mut();
    for request in requests.iter_mut().rev() {
        set(request, next);
        next = request;
    }
}

/// `enum ibv_mtu`.
fn mtu_code(bytes: u32) -> u32 {
    match bytes {
        4096.. => 5,
        2048.. => 4,
        1024.. => 3,
        512.. => 2,
        _ => 1,
    }
}

/// The time-out exponent and retries with the longest total wait within `limit`. Prefers more retries to longer time-outs, so that a lost
/// packet costs little. Never below the minimum of both.
fn retries(limit: Duration) -> (u8, u8) {
    let wait = |exponent: u8, retries: u8| Duration::from_nanos(4096 << exponent) * (u32::from(retries) + 1);
    let all =
        (TIMEOUT_EXPONENT_MIN..=TIMEOUT_EXPONENT_MAX).flat_map(|e| (RETRIES_MIN..=RETRIES_MAX).map(move |r| (e, r)));
    let within = all.filter(|(exponent, retries)| wait(*exponent, *retries) <= limit);
    within
        .max_by_key(|(exponent, retries)| (wait(*exponent, *retries), *retries))
        .unwrap_or((TIMEOUT_EXPONENT_MIN, RETRIES_MIN))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dead_peer_is_detected_within_the_limit_and_not_much_earlier() {
        for millis in [300, 1000, 2000, 5000, 30_000] {
            let (exponent, retries) = retries(Duration::from_millis(millis));
            let wait = (4.096e-3 * f64::from(1_u32 << exponent)) * f64::from(retries + 1);
            assert!(
                wait <= millis as f64 && wait > 0.6 * millis as f64,
                "{millis} ms: {exponent}, {retries}: {wait} ms"
            );
            assert!(retries <= 6, "seven may mean for ever");
        }
        assert_eq!(retries(Duration::ZERO), (14, 2));
    }

    #[test]
    fn a_linked_list_of_requests_ends() {
        let mut requests = [EMPTY_RECEIVE; 3];
        link(&mut requests, |request, next| request.next = next);
        assert!(requests[2].next.is_null());
        let second = &raw mut requests[1];
        assert_eq!(requests[0].next, second);
    }
}
