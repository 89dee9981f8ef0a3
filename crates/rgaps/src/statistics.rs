//! Counters of publishers and subscribers, read from the segment.

use std::sync::atomic::Ordering;

use rgaps_shm::reader::port::ReaderCounters;
use rgaps_shm::{ReaderPort, WriterPort};
use serde::Serialize;

/// A publisher's counters.
///
/// ```
/// # use rgaps::{Node, types::Bytes};
/// # let _host = rgaps_testing::example_host();
/// # let publisher = Node::new("logger")?.publisher::<Bytes>("raw")?;
/// let loan = publisher.loan(Bytes::new(1000))?;
/// let statistics = publisher.statistics();
/// println!("{} of {} B in use", statistics.used_bytes, statistics.pool_bytes);
/// assert!((1000..2000).contains(&statistics.used_bytes)); // blocks are a little longer than messages
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PublisherStatistics {
    /// Messages published.
    pub published: u64,
    /// Payload bytes published.
    pub published_bytes: u64,
    /// Loans that were refused or timed out.
    pub refused: u64,
    /// Capacity of the pool in bytes.
    pub pool_bytes: u64,
    /// Bytes of the pool in use.
    pub used_bytes: u64,
    /// Messages that subscribers still need or history keeps.
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
///
/// ```
/// # use rgaps::{History, Node, SubscriberQos, types::Bytes};
/// # let _host = rgaps_testing::example_host();
/// # let node = Node::new("logger")?;
/// # let publisher = node.publisher::<Bytes>("raw")?;
/// let newest = SubscriberQos { history: History::KeepLast(1), ..SubscriberQos::default() };
/// let subscriber = node.subscriber_with::<Bytes>("raw", newest)?;
/// for _ in 0..5 {
///     publisher.push(&Bytes::new(5), b"hello")?;
/// }
/// drop(subscriber.take()?);
/// let statistics = subscriber.statistics();
/// assert_eq!((statistics.taken, statistics.lost), (1, 4));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SubscriberStatistics {
    /// Messages taken.
    pub taken: u64,
    /// Messages that this subscriber never got: they exceeded its depth, their publisher needed their space, or they were lost between hosts.
    pub lost: u64,
    /// Messages whose publisher died, or whose device failed, before their bytes were complete.
    pub poisoned: u64,
    /// Messages that were skipped as malformed: their metadata does not fit their payload, or their bytes are outside their pool. The log
    /// names the first.
    pub malformed: u64,
    /// Messages held now.
    pub held: u64,
    /// Bytes that were copied for this subscriber. Usually 0, since a sample is read in place. Two things are counted: device memory copied to the
    /// host (`Sample::to_host`), and messages copied to a device that has no peer access to their pool. A node makes that copy once a message; it
    /// counts for the node's subscriber that took the message first.
    pub copied_bytes: u64,
}

impl SubscriberStatistics {
    pub(crate) fn of(reader: &ReaderPort) -> Self {
        let ReaderCounters { taken, lost, poisoned, malformed, held, copied_bytes } = reader.counters();
        Self { taken, lost, poisoned, malformed, held, copied_bytes }
    }
}
