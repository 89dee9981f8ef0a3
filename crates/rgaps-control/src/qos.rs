//! Quality of service: what publishers offer, what subscribers request, and whether that fits together.
//!
//! Source      the policies and the request/offered rule are those of DDS 1.4 §2.2.3 as ROS 2 uses them; exhaustion, pool size and
//!             flow control are ours.

use serde::{Deserialize, Serialize};

/// Whether what was published must arrive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reliability {
    /// A link that is cut loses what was on its way.
    BestEffort,
    /// A link that is cut resends what history still has.
    #[default]
    Reliable,
}

/// Whether late joiners get what was published before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Durability {
    /// No.
    #[default]
    Volatile,
    /// Yes, the publisher's last `history_depth` messages.
    TransientLocal,
}

/// What a publisher does when its pool is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Exhaustion {
    /// Wait until subscribers release messages; then `TimedOut`. A keep-last subscriber that reads nothing for the whole time is not waited for again until
    /// it does: its oldest unread messages are taken instead.
    Wait {
        /// At most so long.
        timeout_ms: u64,
    },
    /// Take the oldest unread messages from keep-last subscribers.
    DropOldest,
    /// Say so.
    Refuse,
}

/// What a publisher offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct PublisherQos {
    /// Whether messages must arrive.
    pub reliability: Reliability,
    /// Whether late joiners get old ones.
    pub durability: Durability,
    /// How many last messages are kept for late joiners, and resent by a link that was cut.
    pub history_depth: u32,
    /// What happens when the pool is full.
    pub exhaustion: Exhaustion,
    /// Bytes of the publisher's pool; `None` takes the configuration's.
    pub pool_bytes: Option<u64>,
    /// Whether links wait for credit. Without, a slow receiver's oldest messages are overwritten and counted.
    pub flow_control: bool,
}

impl Default for PublisherQos {
    /// As ROS 2: reliable, volatile, depth 10. A full pool waits a second, since a dropped sample is harder to find than a late one.
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum History {
    /// The last n; older ones are revoked and counted as lost.
    KeepLast(u32),
    /// All: publishers wait for this subscriber, up to their time-out.
    KeepAll,
}

/// What a subscriber requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct SubscriberQos {
    /// Whether messages must arrive.
    pub reliability: Reliability,
    /// Whether it wants what was published before it joined.
    pub durability: Durability,
    /// How many unread messages are kept.
    pub history: History,
}

impl Default for SubscriberQos {
    /// As ROS 2: reliable, volatile, keep-last 10.
    fn default() -> Self {
        Self { reliability: Reliability::Reliable, durability: Durability::Volatile, history: History::KeepLast(10) }
    }
}

impl SubscriberQos {
    /// Keep-last depth as the segment has it: 0 is keep-all; a depth of 0 is taken as 1.
    pub fn depth(&self) -> u32 {
        match self.history {
            History::KeepAll => 0,
            History::KeepLast(depth) => depth.max(1),
        }
    }
}

/// A publisher and a subscriber of one topic do not fit together.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, thiserror::Error)]
pub enum Mismatch {
    /// They speak of different types.
    #[error("the publisher sends {offered}, the subscriber wants {requested}")]
    Type {
        /// The publisher's.
        offered: String,
        /// The subscriber's.
        requested: String,
    },
    /// The publisher may lose messages, the subscriber must not.
    #[error("reliability: the publisher offers best_effort, the subscriber requests reliable; make them agree")]
    Reliability,
    /// The publisher keeps nothing for late joiners, the subscriber wants it.
    #[error("durability: the publisher offers volatile, the subscriber requests transient_local; make them agree")]
    Durability,
}

/// Whether what is offered is at least what is requested; if not, the first policy that is not.
pub fn compatible(offered: &PublisherQos, requested: &SubscriberQos) -> Result<(), Mismatch> {
    incompatible(offered, requested).next().map_or(Ok(()), Err)
}

/// Every policy in which less is offered than is requested.
pub fn incompatible(offered: &PublisherQos, requested: &SubscriberQos) -> impl Iterator<Item = Mismatch> {
    let reliability = (offered.reliability < requested.reliability).then_some(Mismatch::Reliability);
    let durability = (offered.durability < requested.durability).then_some(Mismatch::Durability);
    reliability.into_iter().chain(durability)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_offer_fits_a_request_that_asks_for_no_more() {
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
    fn missing_keys_are_defaults_so_that_versions_can_talk() {
        assert_eq!(serde_json::from_str::<PublisherQos>("{}").unwrap(), PublisherQos::default());
        assert_eq!(serde_json::from_str::<SubscriberQos>("{}").unwrap(), SubscriberQos::default());
    }
}
