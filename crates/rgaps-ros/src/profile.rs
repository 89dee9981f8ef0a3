//! Translates a ROS QoS profile for the core.

use rgaps::{Durability, Exhaustion, History, PublisherQos, Reliability, SubscriberQos};

use crate::Error;
use crate::parameters::{self, Parameters};

/// A policy of a profile; `Unsaid` leaves it to the middleware (SYSTEM_DEFAULT, BEST_AVAILABLE).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked<T> {
    /// This value.
    Said(T),
    /// Any value that matches.
    Unsaid,
}

/// The policies of a ROS profile that the core also has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Profile {
    /// Whether lost messages are sent again.
    pub reliability: Asked<Reliability>,
    /// Whether late joiners receive earlier messages.
    pub durability: Asked<Durability>,
    /// How many messages are kept; keep-last 0 leaves the depth to the middleware.
    pub history: History,
}

impl Default for Profile {
    /// ROS's default for topics.
    fn default() -> Self {
        Self {
            reliability: Asked::Said(Reliability::Reliable),
            durability: Asked::Said(Durability::Volatile),
            history: History::KeepLast(10),
        }
    }
}

impl Profile {
    /// What a publisher offers in the core, with the node's parameters. An `Unsaid` policy offers the strongest level, which matches every
    /// subscription.
    pub fn publisher_qos(&self, topic: &str, of: &mut dyn Parameters) -> Result<PublisherQos, Error> {
        let default = PublisherQos::default();
        let depth = match self.history {
            History::KeepLast(depth) if depth > 0 => depth,
            _ => default.history_depth,
        };
        let offered = parameters::publisher(topic, of, depth)?;
        let exhaustion = match offered.exhaustion.as_str() {
            "drop_oldest" => Exhaustion::DropOldest,
            "refuse" => Exhaustion::Refuse,
            _ => Exhaustion::Wait { timeout_ms: offered.exhaustion_timeout_ms },
        };
        Ok(PublisherQos {
            reliability: match self.reliability {
                Asked::Said(reliability) => reliability,
                Asked::Unsaid => Reliability::Reliable,
            },
            durability: match self.durability {
                Asked::Said(durability) => durability,
                Asked::Unsaid => Durability::TransientLocal,
            },
            history_depth: offered.history_depth,
            exhaustion,
            pool_bytes: Some(offered.pool_bytes).filter(|bytes| *bytes > 0),
            flow_control: offered.flow_control,
        })
    }

    /// What a subscription requests in the core, with `slack` messages more than ROS keeps. An `Unsaid` policy requests the weakest level, which
    /// matches every publisher.
    pub fn subscriber_qos(&self, slack: u32) -> SubscriberQos {
        SubscriberQos {
            reliability: match self.reliability {
                Asked::Said(reliability) => reliability,
                Asked::Unsaid => Reliability::BestEffort,
            },
            durability: match self.durability {
                Asked::Said(durability) => durability,
                Asked::Unsaid => Durability::Volatile,
            },
            history: match self.history {
                History::KeepLast(depth) => History::KeepLast(depth.max(1).saturating_add(slack)),
                History::KeepAll => History::KeepAll,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parameters::Defaults;

    #[test]
    fn an_unsaid_policy_matches_every_peer() {
        let unsaid = Profile { reliability: Asked::Unsaid, durability: Asked::Unsaid, history: History::KeepLast(0) };
        let offered = unsaid.publisher_qos("/a", &mut Defaults).unwrap();
        assert_eq!((offered.reliability, offered.durability), (Reliability::Reliable, Durability::TransientLocal));
        assert_eq!(offered.history_depth, PublisherQos::default().history_depth);
        let requested = unsaid.subscriber_qos(8);
        assert_eq!((requested.reliability, requested.durability), (Reliability::BestEffort, Durability::Volatile));
        assert_eq!(requested.history, History::KeepLast(9));
    }

    #[test]
    fn a_core_subscriber_is_deeper_than_the_ros_queue_and_keep_all_stays_keep_all() {
        assert_eq!(Profile::default().subscriber_qos(8).history, History::KeepLast(18));
        let all = Profile { history: History::KeepAll, ..Profile::default() };
        assert_eq!(all.subscriber_qos(8).history, History::KeepAll);
        let most = Profile { history: History::KeepLast(u32::MAX), ..Profile::default() };
        assert_eq!(most.subscriber_qos(8).history, History::KeepLast(u32::MAX));
    }

    #[test]
    fn a_publisher_offers_its_profile_and_the_nodes_parameters() {
        let offered = Profile::default().publisher_qos("/a", &mut Defaults).unwrap();
        assert_eq!(offered, PublisherQos { history_depth: 10, ..PublisherQos::default() });
    }
}
