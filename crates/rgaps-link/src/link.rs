//! The two traits of a link. A link carries records from one sender to one receiver, and credit back.
//!
//! How the two transports implement them:
//!
//! | here                     | `tcp`                                   | `rdma`                                                        |
//! |--------------------------|-----------------------------------------|---------------------------------------------------------------|
//! | `LinkSender::post`       | one gathered write for all records      | a chain of WRITE WITH IMM, two gather entries each, one signal |
//! | `Progress::reusable`     | everything posted: the kernel copied it | send completions                                              |
//! | `LinkSender::progress`   | credit frames, read without blocking    | completions, and the credit word that the peer writes         |
//! | `LinkSender::wait`       | poll the socket                         | arm the completion queue, then poll its channel               |
//! | `LinkReceiver::next`     | reads the socket                        | receive completions; the immediate is checked                 |
//! | `LinkReceiver::next_into`| data straight to the consumer's memory  | as `next`: the data are in the ring, or where `grant` said     |
//! | `LinkReceiver::grant`    | none                                    | a memory window, which is invalid before the last record is returned |
//! | `LinkReceiver::release`  | advance the head, credit frame when due | repost receives, advance the head, then the credit by WRITE   |
//!
//! Both are object safe and neither is `Sync`: a link belongs to one worker on each side.
//!
//! Source      one interface over TCP and RDMA: Hoang et al., RocketBufs, DEBS 2020, section 3.5 (full title in lib.rs).

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rgaps_os::EventFd;

use crate::counters::{ReceiverCounters, SenderCounters};
use crate::error::LinkError;
use crate::geometry::RingGeometry;
use crate::memory::RingMemory;
use crate::payload::PayloadMemory;
use crate::position::{Position, RingSpan};
use crate::record::{GrantNumber, MessageId, Record, RecordHeader, RecordSequence};
use crate::ring::Placement;

/// Most file descriptors that `LinkSender::wait` accepts beside the link's own.
pub const WAIT_FDS_MAX: usize = 15;

/// How far a sender and its receiver have got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The end of the last record placed in the ring.
    pub tail: Position,
    /// The receiver has released everything before this position.
    pub delayed_head: Position,
    /// The transport no longer reads the bytes of records before this one, so they may be reused.
    pub reusable: RecordSequence,
}

/// What ended a wait. Nothing set: the wait timed out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wake {
    /// The link has something for `progress`.
    pub link: bool,
    /// Bit i: file descriptor i of `others` is readable or broken.
    pub others: u32,
}

/// The sending side of a link.
pub trait LinkSender: Send {
    /// The agreed shape of the ring.
    fn geometry(&self) -> &RingGeometry;

    /// Registers memory from which records will be sent. Only a transport that reads it by DMA needs that, and only such a one sends from memory of a
    /// device.
    fn register(&mut self, memory: &PayloadMemory) -> Result<(), LinkError> {
        let _ = memory;
        Ok(())
    }

    /// Whether a record with that payload fits, according to the last known credit. Makes no system call.
    fn room_for(&self, payload_bytes: u32) -> bool;

    /// Posts as many records as there is room for, in order and as one batch; returns how many. Pass all records that are ready.
    ///
    /// Nothing is copied. The bytes must stay unchanged until `Progress::reusable` has passed their record; with tcp that is so on return. An
    /// invalid record is `LinkError::Unsendable`; then this call sends no record.
    fn post(&mut self, records: &[Record<'_>]) -> Result<usize, LinkError>;

    /// Processes credit and completions that have arrived, without blocking.
    fn progress(&mut self) -> Result<Progress, LinkError>;

    /// The next message that the receiver has consumed whole, as `progress` learned. Returns each message once; always `None` with flow
    /// control off.
    fn next_acknowledged(&mut self) -> Option<MessageId>;

    /// Messages that were sent whole and are not acknowledged yet; 0 with flow control off.
    fn unacknowledged(&self) -> usize;

    /// Waits until the link has something for `progress`, another file descriptor is readable, or `timeout` has passed. While credit is due, only
    /// credit need end the wait.
    fn wait(&mut self, timeout: Duration, others: &[BorrowedFd<'_>]) -> Result<Wake, LinkError>;

    /// Like `wait`, for a caller that needs the memory of posted records again: `Progress::reusable` ends the wait, too.
    fn wait_for_reuse(&mut self, timeout: Duration, others: &[BorrowedFd<'_>]) -> Result<Wake, LinkError> {
        self.wait(timeout, others)
    }

    /// Its counters.
    fn counters(&self) -> SenderCounters;

    /// Ends the stream after the posted records. The receiver gets `Closed` after the last record. Idempotent.
    ///
    /// Call `drain` first if all records must arrive before the sender is dropped: the kernel may reset a connection that is dropped with
    /// unread credit.
    fn close(&mut self);

    /// Waits until there is room for a record. After `timeout` it returns `LinkError::NoCredit`; the link stays usable.
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

    /// Waits until the receiver has consumed every message that was posted whole (flow control on), or the transport has sent it (off).
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

/// The common part of `post`: checks all records before it sends any, then posts group after group until one is not posted whole.
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

/// A record in the ring. The caller holds it until `release`. It cannot be cloned, so it is released once.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a record that is not released occupies the ring for ever"]
pub struct RingRecord {
    pub(crate) header: RecordHeader,
    pub(crate) placement: Placement,
    pub(crate) payload: RingSpan,
    pub(crate) has_landed: bool,
    pub(crate) grant: Option<GrantNumber>,
}

impl RingRecord {
    /// A record that a link has received. `grant`: the grant in whose memory its data are. `None`: they are in the ring.
    pub fn new(
        header: RecordHeader,
        placement: Placement,
        geometry: &RingGeometry,
        grant: Option<GrantNumber>,
    ) -> Self {
        let payload = placement.payload(geometry, header.payload_bytes);
        Self { header, placement, payload, has_landed: grant.is_some(), grant }
    }

    /// Its checked header.
    pub fn header(&self) -> &RecordHeader {
        &self.header
    }

    /// Its payload in the ring: envelope, then data. If the record has landed elsewhere, these bytes are not its own.
    pub fn payload(&self) -> RingSpan {
        self.payload
    }

    /// Its data are where `Landing::place` said, or in the memory of its grant.
    pub fn has_landed(&self) -> bool {
        self.has_landed
    }

    /// The grant that its message uses, if this record's data are in granted memory.
    pub fn grant(&self) -> Option<GrantNumber> {
        self.grant
    }

    /// The record's place in the stream.
    pub fn placement(&self) -> Placement {
        self.placement
    }
}

/// Whether a record was whole until its release. Use bytes copied from it only after `Intact`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "bytes copied from a torn record must be discarded"]
pub enum Release {
    /// It was whole. Always so with flow control on.
    Intact,
    /// The sender overwrote it, perhaps during the copy: discard the copy and abort the message. The link counts it.
    Torn,
}

/// Memory of a consumer for the data of a record.
#[derive(Clone, Debug)]
pub struct LandingPlace {
    /// The memory, which must be writable. Data that no device brings go to memory of this host only.
    pub memory: PayloadMemory,
    /// Where the record's first byte of data goes.
    pub offset: u64,
}

impl LandingPlace {
    /// Whether `bytes` can be written there.
    pub(crate) fn has_room(&self, bytes: u64) -> bool {
        self.memory.has_room(self.offset, bytes)
    }
}

/// A consumer that knows where the data of a message stay, so that they need not go through the ring.
pub trait Landing {
    /// Returns the place for the data of a record, or `None` for the ring. Called once for each record of `next_into`, in order, when its header and
    /// envelope have arrived. The header is checked, but what follows may be damaged or never arrive: the record is complete when `next_into`
    /// returns it. Until then the link may write to the place, unless it is dropped. `payload`: where its payload would be in the ring.
    fn place(&mut self, header: &RecordHeader, payload: RingSpan, envelope: &[u8]) -> Option<LandingPlace>;
}

/// The receiving side of a link. Its consumer takes a record, copies its payload, releases it, and checks the result of the release.
pub trait LinkReceiver: Send {
    /// The agreed shape of the ring.
    fn geometry(&self) -> &RingGeometry;

    /// The ring's memory.
    fn memory(&self) -> &Arc<RingMemory>;

    /// The next record, in order, or `None` after `timeout`. The caller may hold several, for copies under way. After the link has ended it
    /// returns the records that had arrived, then the error in every call.
    fn next(&mut self, timeout: Duration) -> Result<Option<RingRecord>, LinkError>;

    /// From now on `next` and `next_into` return `None` early when `event` is readable, so that a consumer can wait long.
    fn wake_by(&mut self, event: Arc<EventFd>);

    /// As `next`, but the data of records go where `landing` says, if the transport can bring them there and the link has flow control. Of a record
    /// that has landed (`RingRecord::has_landed`) nothing is in the ring. It is released as any other.
    fn next_into(&mut self, timeout: Duration, landing: &mut dyn Landing) -> Result<Option<RingRecord>, LinkError> {
        let _ = landing;
        self.next(timeout)
    }

    /// How many grants the peer may have at a time; 0 if it cannot write to memory other than the ring.
    fn grants_max(&self) -> usize {
        0
    }

    /// Grants the peer `bytes` from that place for one message: it writes the message's data there, each at its offset in the message. `None`: no more
    /// grants now. From here until the link is dropped, the peer may write there, unless
    ///
    /// * the last record of a message that names this grant, or the record that aborts it, has been returned, or
    /// * `next_returned` has returned its number: the peer did not use it.
    ///
    /// A peer that has used all its grants may wait until a message that used one is acknowledged. So give the next grant before you release that
    /// message's last record.
    fn grant(&mut self, place: &LandingPlace, bytes: u64) -> Result<Option<GrantNumber>, LinkError> {
        let _ = (place, bytes);
        Ok(None)
    }

    /// Asks the peer to return the grants that it does not use. They come as `next_returned`.
    fn revoke_grants(&mut self) {}

    /// The next grant that the peer has returned. Never waits.
    fn next_returned(&mut self) -> Option<GrantNumber> {
        None
    }

    /// Moves what has arrived into the ring, without waiting, as far as there is room. For a consumer that is busy for long: the peer's sends stall
    /// while nobody reads. Only a transport that is not served by hardware needs that.
    fn read_ahead(&mut self) {}

    /// Copies a part of the payload, starting at `at`. With flow control off the sender may overwrite it during the copy; `release` then returns
    /// `Torn`.
    fn copy_out(&self, record: &RingRecord, at: u64, to: &mut [u8]) -> Result<(), LinkError> {
        Ok(self.memory().copy_out(record.payload, at, to)?)
    }

    /// Releases a record's bytes, in the order of `next`, sends credit when due, and returns whether the record was whole until now. Also
    /// works after the link has ended.
    fn release(&mut self, record: RingRecord) -> Result<Release, LinkError>;

    /// Sends credit for all released records, also if none is due: for a consumer that will wait, or releases slowly.
    fn flush_credit(&mut self);

    /// Its counters.
    fn counters(&self) -> ReceiverCounters;

    /// Ends the link; the peer's next call returns an error. Idempotent.
    fn close(&mut self);
}
