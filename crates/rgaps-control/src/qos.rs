//! Quality of service: what publishers offer, what subscribers request, and whether they are compatible.
//!
//! Source      the policies and the request/offered rule are those of DDS 1.4 §2.2.3 as ROS 2 uses them; exhaustion, pool size and
//!             flow control are ours.

pub use rgaps_shm::Exhaustion;
use serde::{Deserialize, Serialize};

/// For matching: a reliable subscriber does not match a best-effort publisher. Every link resends what its sender still has after an interruption.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reliability {
    /// The publisher promises, or the subscriber needs, no retransmission.
    BestEffort,
    /// The publisher promises, or the subscriber needs, it.
    #[default]
    Reliable,
}

/// Whether late joiners get messages that were published before they joined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Durability {
    /// No.
    #[default]
    Volatile,
    /// Yes, the publisher's last `history_depth` messages, until the publisher is dropped or its process ends. A full pool gives up the oldest of
    /// them: choose `pool_bytes` so that all fit.
    TransientLocal,
}

/// What a publisher offers.
///
/// ```
/// use rgaps_control::qos::{Durability, Exhaustion, PublisherQos};
///
/// // A map: the last one is kept for late joiners, and a publication waits for no slow subscriber.
/// let map = PublisherQos {
///     durability: Durability::TransientLocal,
///     history_depth: 1,
///     exhaustion: Exhaustion::DropOldest,
///     ..PublisherQos::default()
/// };
/// assert!(map.flow_control);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct PublisherQos {
    /// Whether messages must arrive.
    pub reliability: Reliability,
    /// Whether late joiners get old messages.
    pub durability: Durability,
    /// How many of the last messages are kept for late joiners and for resending.
    pub history_depth: u32,
    /// What the publisher does when its pool is full.
    pub exhaustion: Exhaustion,
    /// Bytes of the publisher's pool; `None` takes the configuration's.
    pub pool_bytes: Option<u64>,
    /// Whether links wait for credit. Without it, they overwrite a slow receiver's oldest messages and count them as lost.
    pub flow_control: bool,
}

impl Default for PublisherQos {
    /// Like ROS 2: reliable, volatile, depth 10. A full pool makes `loan` wait up to a second, since a dropped message is harder to find than a late
    /// one.
    fn default() -> Self {
        Self {
            reliability: Reliability::Reliable,
            durability: Durability::Volatile,
            history_depth: 10,
            exhaustion: Exhaustion::Wait { timeout_ms: 1000 },
            pool_bytes: None,
            flow_control: true,
        }
    }
}

/// How many unread messages a subscriber keeps.
///
/// ```
/// use rgaps_control::qos::{History, SubscriberQos};
///
/// let recorder = SubscriberQos { history: History::KeepAll, ..SubscriberQos::default() };
/// assert_eq!((recorder.depth(), SubscriberQos::default().depth()), (0, 10)); // as the segment stores them
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum History {
    /// The last n messages; older ones count as lost.
    KeepLast(u32),
    /// All: publishers wait for this subscriber, up to their time-out. If it takes messages by handle, it keeps only the newest of those that
    /// it skips, and counts the others as lost. Publishers wait for the skipped messages that it keeps, and for all after the last one that it took.
    KeepAll,
}

/// What a subscriber requests.
///
/// ```
/// use rgaps_control::qos::{History, Mismatch, PublisherQos, Reliability, SubscriberQos, compatible};
///
/// // A viewer: the newest message is enough.
/// let viewer = SubscriberQos { history: History::KeepLast(1), ..SubscriberQos::default() };
/// let camera = PublisherQos { reliability: Reliability::BestEffort, ..PublisherQos::default() };
/// assert_eq!(compatible(&camera, &viewer), Err(Mismatch::Reliability));
/// assert_eq!(compatible(&PublisherQos::default(), &viewer), Ok(()));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct SubscriberQos {
    /// Whether messages must arrive.
    pub reliability: Reliability,
    /// Whether it wants messages that were published before it joined.
    pub durability: Durability,
    /// How many unread messages are kept.
    pub history: History,
}

impl Default for SubscriberQos {
    /// Like ROS 2: reliable, volatile, keep-last 10.
    fn default() -> Self {
        Self { reliability: Reliability::Reliable, durability: Durability::Volatile, history: History::KeepLast(10) }
    }
}

impl SubscriberQos {
    /// The depth as the segment stores it: 0 for keep-all. A keep-last depth of 0 counts as 1.
    pub fn depth(&self) -> u32 {
        match self.history {
            History::KeepAll => 0,
            History::KeepLast(depth) => depth.max(1),
        }
    }
}

/// Why a publisher and a subscriber of one topic are incompatible.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, thiserror::Error)]
pub enum Mismatch {
    /// They have different types.
    #[error("the publisher sends {offered}, the subscriber wants {requested}; use one type, or another topic")]
    Type {
        /// The publisher's.
        offered: String,
        /// The subscriber's.
        requested: String,
    },
    /// The publisher may lose messages, the subscriber wants all.
    #[error("reliability: the publisher offers best_effort, the subscriber requests reliable; make them agree")]
    Reliability,
    /// The publisher keeps no messages for late joiners, the subscriber wants them.
    #[error("durability: the publisher offers volatile, the subscriber requests transient_local; make them agree")]
    Durability,
}

/// Checks that the offer is at least the request. The error is the first policy in which it is less.
///
/// ```
/// use rgaps_control::qos::{PublisherQos, Reliability, SubscriberQos, compatible};
///
/// let viewer = SubscriberQos { reliability: Reliability::BestEffort, ..SubscriberQos::default() };
/// assert_eq!(compatible(&PublisherQos::default(), &viewer), Ok(())); // a reliable offer is more than the request
/// ```
pub fn compatible(offered: &PublisherQos, requested: &SubscriberQos) -> Result<(), Mismatch> {
    incompatible(offered, requested).next().map_or(Ok(()), Err)
}

/// Every policy in which the offer is less than the request.
///
/// ```
/// use rgaps_control::qos::{Durability, Mismatch, PublisherQos, Reliability, SubscriberQos, incompatible};
///
/// let camera = PublisherQos { reliability: Reliability::BestEffort, ..PublisherQos::default() };
/// let recorder = SubscriberQos { durability: Durability::TransientLocal, ..SubscriberQos::default() };
/// let reasons: Vec<Mismatch> = incompatible(&camera, &recorder).collect();
/// assert_eq!(reasons, [Mismatch::Reliability, Mismatch::Durability]);
/// ```
pub fn incompatible(offered: &PublisherQos, requested: &SubscriberQos) -> impl Iterator<Item = Mismatch> {
    let reliability = (offered.reliability < requested.reliability).then_some(Mismatch::Reliability);
    let durability = (offered.durability < requested.durability).then_some(Mismatch::Durability);
    reliability.into_iter().chain(durability)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_offer_is_compatible_with_a_request_for_no_more_than_it() {
        let offers = |reliability, durability| PublisherQos { reliability, durability, ..Default::default() };
        let wants = |reliability, durability| SubscriberQos { reliability, durability, ..Default::default() };
        use Durability::{TransientLocal, Volatile};
        use Reliability::{BestEffort, Reliable};
        assert_eq!(compatible(&offers(Reliable, TransientLocal), &wants(BestEffort, Volatile)), Ok(()));
        assert_eq!(compatible(&offers(Reliable, Volatile), &wants(Reliable, Volatile)), Ok(()));
        assert_eq!(compatible(&offers(BestEffort, Volatile), &wants(Reliable, Volatile)), Err(Mismatch::Reliability));
        assert_eq!(
            compatible(&offers(Reliable, Volatile), &wants(Reliable, TransientLocal)),
            Err(Mismatch::Durability)
        );
        let both: Vec<_> = incompatible(&offers(BestEffort, Volatile), &wants(Reliable, TransientLocal)).collect();
        assert_eq!(both, [Mismatch::Reliability, Mismatch::Durability]);
    }

    #[test]
    fn missing_keys_take_their_defaults() {
        assert_eq!(serde_json::from_str::<PublisherQos>("{}").unwrap(), PublisherQos::default());
        assert_eq!(serde_json::from_str::<SubscriberQos>("{}").unwrap(), SubscriberQos::default());
    }
}
