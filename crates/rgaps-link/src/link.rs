//! The two traits of a link. A link carries records one way, from one sender to one receiver; credit comes back.
//!
//! How the two transports map onto them:
//!
//! | here                     | `tcp`                                   | `rdma`                                                        |
//! |--------------------------|-----------------------------------------|---------------------------------------------------------------|
//! | `LinkSender::post`       | one gathered write for all records      | a chain of WRITE WITH IMM, two gather entries each, one signal |
//! | `Progress::reusable`     | everything posted: the kernel has it    | send completions                                              |
//! | `LinkSender::progress`   | credit frames, read without blocking    | completions, and the credit word that the peer writes         |
//! | `LinkSender::wait`       | poll the socket                         | arm the completion queue, then poll its channel               |
//! | `LinkReceiver::next`     | records that `SocketReader` has read          | receive completions; the immediate is checked                 |
//! | `LinkReceiver::release`  | head forward, credit frame when due     | receives reposted, head forward, then the credit by WRITE     |
//!
//! Both are object safe and neither is `Sync`: a link belongs to one worker on each side.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rgaps_os::Mapping;

use crate::counters::{ReceiverCounters, SenderCounters};
use crate::error::LinkError;
use crate::geometry::RingGeometry;
use crate::memory::RingMemory;
use crate::position::{Position, RingSpan};
use crate::record::{MessageId, Record, RecordHeader, RecordSequence};
use crate::ring::Placement;

/// The most descriptors that `LinkSender::wait` takes beside the link's own.
pub const WAIT_DESCRIPTORS_MAX: usize = 15;

/// How far a sender is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// What was placed into the ring.
    pub tail: Position,
    /// What the receiver has given back.
    pub delayed_head: Position,
    /// The bytes of all records before this one may be reused: the transport does not read them any more.
    pub reusable: RecordSequence,
}

/// What ended a wait. Nothing set: the time is over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wake {
    /// The link has something for `progress`.
    pub link: bool,
    /// Bit i: descriptor i of the others is readable or broken.
    pub others: u32,
}

/// The sending side of a link.
pub trait LinkSender: Send {
    /// The agreed shape of the ring.
    fn geometry(&self) -> &RingGeometry;

    /// Makes memory known that records will be sent from. A transport that reads it by itself does so once; others need not.
    fn register(&mut self, memory: &Arc<Mapping>) -> Result<(), LinkError> {
        let _ = memory;
        Ok(())
    }

    /// Whether a record with that payload could be posted now, as far as is known here: no system call.
    fn room_for(&self, payload_bytes: u32) -> bool;

    /// Posts records, from the first on, as many as there is room for, as one batch; returns how many. Pass everything that is ready.
    ///
    /// Nothing is copied. The bytes must stay as they are until `Progress::reusable` has passed their record; with tcp that is so
    /// on return. A record that is not valid is `LinkError::Unsendable` and then none of this call was sent.
    fn post(&mut self, records: &[Record<'_>]) -> Result<usize, LinkError>;

    /// Takes in what the peer and the transport have reported, without blocking.
    fn progress(&mut self) -> Result<Progress, LinkError>;

    /// The next message that the receiver has consumed to its end; each once. Fed by `progress`. Never with flow control off.
    fn next_acknowledged(&mut self) -> Option<MessageId>;

    /// Messages sent whole and not acknowledged, as far as is known here. With flow control off always 0.
    fn unacknowledged(&self) -> usize;

    /// Waits until the link has something for `progress`, another descriptor is readable, or the time is over.
    fn wait(&mut self, timeout: Duration, others: &[BorrowedFd<'_>]) -> Result<Wake, LinkError>;

    /// What it has done.
    fn counters(&self) -> SenderCounters;

    /// Ends the stream after what was posted. The receiver sees `Closed` behind the last record. Idempotent.
    ///
    /// `drain` first if everything must have arrived before the sender is dropped: a connection that is dropped while credit is
    /// still coming in may be reset.
    fn close(&mut self);

    /// Waits until there is room for a record, or fails with `LinkError::NoCredit`, after which the link is still usable.
    fn wait_for_room(&mut self, payload_bytes: u32, timeout: Duration) -> Result<(), LinkError> {
        let start = Instant::now();
        while !self.room_for(payload_bytes) {
            let progress = self.progress()?;
            if self.room_for(payload_bytes) {
                break;
            }
            let waited = start.elapsed();
            let Some(rest) = timeout.checked_sub(waited).filter(|rest| !rest.is_zero()) else {
                let Progress { tail, delayed_head, .. } = progress;
                return Err(LinkError::NoCredit { wanted: payload_bytes, waited, delayed_head, tail });
            };
            self.wait(rest, &[])?;
        }
        Ok(())
    }

    /// Waits until every message that was posted whole is consumed (flow control on) or out of this side's hands (off).
    fn drain(&mut self, timeout: Duration) -> Result<(), LinkError> {
        let start = Instant::now();
        loop {
            let Progress { tail, delayed_head, reusable } = self.progress()?;
            let posted = reusable.0 >= self.counters().records;
            if posted && self.unacknowledged() == 0 {
                return Ok(());
            }
            let waited = start.elapsed();
            let Some(rest) = timeout.checked_sub(waited).filter(|rest| !rest.is_zero()) else {
                return Err(LinkError::NotDrained { waited, delayed_head, tail });
            };
            self.wait(rest, &[])?;
        }
    }
}

/// What every sender's `post` does: a mistake of the caller's is found before anything is sent; then group after group is posted, until one
/// does not go whole.
pub(crate) fn post_in_groups<'a>(
    records: &[Record<'a>],
    geometry: &RingGeometry,
    most: usize,
    mut post: impl FnMut(&[Record<'a>]) -> Result<usize, LinkError>,
) -> Result<usize, LinkError> {
    for record in records {
        record.header(RecordSequence(0), geometry).map_err(LinkError::Unsendable)?;
    }
    let mut posted = 0;
    for group in records.chunks(most) {
        let went = post(group)?;
        posted += went;
        if went < group.len() {
            break;
        }
    }
    Ok(posted)
}

/// A record that lies in the ring. It is held until it is released; not to be cloned, so it is released once.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "an arrival that is not released occupies the ring for good"]
pub struct Arrival {
    pub(crate) header: RecordHeader,
    pub(crate) placement: Placement,
    pub(crate) payload: RingSpan,
}

impl Arrival {
    /// Its header, checked.
    pub fn header(&self) -> &RecordHeader {
        &self.header
    }

    /// Where its payload lies in the ring: envelope, then data.
    pub fn payload(&self) -> RingSpan {
        self.payload
    }

    /// Where the record lies in the stream.
    pub fn placement(&self) -> Placement {
        self.placement
    }
}

/// What became of an arrival until it was released. Only now is it known whether what was copied from it is to be believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "what was copied from a torn arrival must be thrown away"]
pub enum Release {
    /// It was whole all the time. Always so with flow control on.
    Intact,
    /// The sender overwrote it, perhaps while it was copied: throw the copy away and abort its message. Counted by the link.
    Torn,
}

/// The receiving side of a link, as its consumer sees it: take an arrival, copy what it holds, release it, look at the verdict.
pub trait LinkReceiver: Send {
    /// The agreed shape of the ring.
    fn geometry(&self) -> &RingGeometry;

    /// The ring's memory.
    fn memory(&self) -> &Arc<RingMemory>;

    /// The next record, in order, or `None` when the time is over. Several may be held at a time, for copies that are under way.
    /// Records that arrived before the link ended still come; then its error does, again and again.
    fn next(&mut self, timeout: Duration) -> Result<Option<Arrival>, LinkError>;

    /// Copies a part of the payload, from `at` in it on. Where somebody can write it meanwhile (flow control off), the verdict of `release` says
    /// whether the copy is whole.
    fn copy_out(&self, arrival: &Arrival, at: u64, to: &mut [u8]) -> Result<(), LinkError> {
        Ok(self.memory().copy_out(arrival.payload, at, to)?)
    }

    /// Gives a record's bytes back, in the order of `next`; returns credit when it is due. Says whether the record was whole to the
    /// end. Also works after the link has ended.
    fn release(&mut self, arrival: Arrival) -> Result<Release, LinkError>;

    /// What it has done.
    fn counters(&self) -> ReceiverCounters;

    /// Ends the link; the peer's next call fails. Idempotent.
    fn close(&mut self);
}
