//! Counters of publishers and subscribers, read from the segment.

use std::sync::atomic::Ordering;

use rgaps_shm::reader::ReaderCounters;
use rgaps_shm::{ReaderPort, WriterPort};
use serde::Serialize;

/// A publisher's counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PublisherStatistics {
    /// Messages published.
    pub published: u64,
    /// Their bytes.
    pub published_bytes: u64,
    /// Loans that were refused or timed out.
    pub refused: u64,
    /// Bytes of the pool.
    pub pool_bytes: u64,
    /// Bytes of it in use.
    pub used_bytes: u64,
    /// Messages that are still read or kept.
    pub outstanding: u64,
}

impl PublisherStatistics {
    pub(crate) fn of(port: &WriterPort) -> Self {
        let pool = port.pool();
        let counters = port.segment().publisher(port.slot().index);
        let load = |word: fn(&rgaps_shm::layout::PublisherRecord) -> &std::sync::atomic::AtomicU64| {
            counters.map_or(0, |slot| word(slot).load(Ordering::Relaxed))
        };
        Self {
            published: load(|slot| &slot.published),
            published_bytes: load(|slot| &slot.published_bytes),
            refused: load(|slot| &slot.refused),
            pool_bytes: pool.capacity_bytes,
            used_bytes: pool.used_bytes,
            outstanding: port.outstanding() as u64,
        }
    }
}

/// A subscriber's counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SubscriberStatistics {
    /// Messages taken.
    pub taken: u64,
    /// Messages that this subscriber came too late for, because they were older than the depth or their publisher needed their space, or that
    /// were lost on the way from another host.
    pub lost: u64,
    /// Messages whose producer died before their bytes were there.
    pub poisoned: u64,
    /// Messages that were passed by because what they say of themselves contradicts itself: metadata that does not fit its payload, or bytes
    /// outside their pool. The log names the first.
    pub malformed: u64,
    /// Messages held now.
    pub held: u64,
    /// Bytes that were copied for this subscriber: 0, since the publisher's block is read in place, unless it asked for a copy of device
    /// memory (`Sample::to_host`), or the node's device does not reach that memory. Then each message is copied to the device once a node, and
    /// counted for the subscriber of the node that took it first.
    pub copied_bytes: u64,
}

impl SubscriberStatistics {
    pub(crate) fn of(reader: &ReaderPort) -> Self {
        let ReaderCounters { taken, lost, poisoned, malformed, held, copied_bytes } = reader.counters();
        Self { taken, lost, poisoned, malformed, held, copied_bytes }
    }
}
