//! Translates a ROS QoS profile for the core. A policy that is left to the middleware (SYSTEM_DEFAULT, BEST_AVAILABLE, unknown) matches every peer: a
//! publisher offers the strongest level, a subscription requests the weakest.

use rgaps::{Durability, History, PublisherQos, Reliability, SubscriberQos};

/// The largest depth: counts in ROS are signed numbers of 32 bits.
pub const DEPTH_MAX: u32 = i32::MAX as u32;

/// A policy of a profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy<T> {
    /// This value.
    Set(T),
    /// Any value that matches: the policy is left to the middleware.
    Any,
}

impl<T> Policy<T> {
    fn or(self, any: T) -> T {
        match self {
            Self::Set(value) => value,
            Self::Any => any,
        }
    }
}

/// The policies of a ROS profile that the core also has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Profile {
    /// For matching: a reliable subscription does not match a best-effort publisher.
    pub reliability: Policy<Reliability>,
    /// Whether late joiners receive earlier messages.
    pub durability: Policy<Durability>,
    /// How many messages are kept; keep-last 0 leaves the depth to the middleware.
    pub history: History,
}

impl Default for Profile {
    /// ROS's default for topics.
    fn default() -> Self {
        Self {
            reliability: Policy::Set(Reliability::Reliable),
            durability: Policy::Set(Durability::Volatile),
            history: History::KeepLast(10),
        }
    }
}

/// A profile as numbers of rmw/types.h, which rclcpp's and rclpy's enumerations also have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RmwProfile {
    /// An rmw_qos_reliability_policy_t.
    pub reliability: u32,
    /// An rmw_qos_durability_policy_t.
    pub durability: u32,
    /// An rmw_qos_history_policy_t.
    pub history: u32,
    /// Messages that keep-last keeps; 0 leaves the depth to the middleware.
    pub depth: u64,
}

impl RmwProfile {
    /// RMW_QOS_POLICY_RELIABILITY_RELIABLE.
    pub const RELIABLE: u32 = 1;
    /// RMW_QOS_POLICY_RELIABILITY_BEST_EFFORT.
    pub const BEST_EFFORT: u32 = 2;
    /// RMW_QOS_POLICY_DURABILITY_TRANSIENT_LOCAL.
    pub const TRANSIENT_LOCAL: u32 = 1;
    /// RMW_QOS_POLICY_DURABILITY_VOLATILE.
    pub const VOLATILE: u32 = 2;
    /// RMW_QOS_POLICY_HISTORY_KEEP_ALL.
    pub const KEEP_ALL: u32 = 2;
}

impl From<RmwProfile> for Profile {
    fn from(profile: RmwProfile) -> Self {
        Self {
            reliability: match profile.reliability {
                RmwProfile::RELIABLE => Policy::Set(Reliability::Reliable),
                RmwProfile::BEST_EFFORT => Policy::Set(Reliability::BestEffort),
                _ => Policy::Any,
            },
            durability: match profile.durability {
                RmwProfile::TRANSIENT_LOCAL => Policy::Set(Durability::TransientLocal),
                RmwProfile::VOLATILE => Policy::Set(Durability::Volatile),
                _ => Policy::Any,
            },
            history: match profile.history {
                RmwProfile::KEEP_ALL => History::KeepAll,
                _ => History::KeepLast(u32::try_from(profile.depth).unwrap_or(u32::MAX)),
            },
        }
    }
}

impl Profile {
    /// What a publisher offers in the core, before its parameters are applied.
    ///
    /// ```
    /// use rgaps::{Durability, History, Reliability};
    /// use rgaps_ros_policy::qos::{Policy, Profile};
    ///
    /// // A profile that leaves the durability to the middleware, with a depth of 3.
    /// let profile = Profile { durability: Policy::Any, history: History::KeepLast(3), ..Profile::default() };
    /// let qos = profile.offered();
    /// assert_eq!((qos.reliability, qos.durability), (Reliability::Reliable, Durability::TransientLocal));
    /// assert_eq!(qos.history_depth, 3);
    /// ```
    pub fn offered(&self) -> PublisherQos {
        let default = PublisherQos::default();
        PublisherQos {
            reliability: self.reliability.or(Reliability::Reliable),
            durability: self.durability.or(Durability::TransientLocal),
            history_depth: match self.history {
                History::KeepLast(depth) if depth > 0 => depth.min(DEPTH_MAX),
                _ => default.history_depth,
            },
            ..default
        }
    }

    /// What a subscription requests in the core, with `slack` messages more than ROS keeps.
    ///
    /// ```
    /// use rgaps::{History, Reliability};
    /// use rgaps_ros_policy::qos::{Profile, RmwProfile};
    ///
    /// // SYSTEM_DEFAULT reliability, volatile, keep-last 10, as numbers of rmw/types.h.
    /// let profile = Profile::from(RmwProfile { reliability: 0, durability: 2, history: 1, depth: 10 });
    /// let qos = profile.requested(8);
    /// assert_eq!((qos.reliability, qos.history), (Reliability::BestEffort, History::KeepLast(18)));
    /// ```
    pub fn requested(&self, slack: u32) -> SubscriberQos {
        SubscriberQos {
            reliability: self.reliability.or(Reliability::BestEffort),
            durability: self.durability.or(Durability::Volatile),
            history: match self.history {
                History::KeepLast(depth) => History::KeepLast(depth.max(1).saturating_add(slack).min(DEPTH_MAX)),
                History::KeepAll => History::KeepAll,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers of rmw/types.h for: system default, unknown, best available.
    const LEFT: [u32; 3] = [0, 3, 4];

    #[test]
    fn a_policy_left_to_the_middleware_matches_every_peer() {
        for left in LEFT {
            let free = Profile::from(RmwProfile { reliability: left, durability: left, history: 0, depth: 0 });
            let (offered, requested) = (free.offered(), free.requested(8));
            assert_eq!((offered.reliability, offered.durability), (Reliability::Reliable, Durability::TransientLocal));
            assert_eq!((requested.reliability, requested.durability), (Reliability::BestEffort, Durability::Volatile));
            assert_eq!(offered.history_depth, PublisherQos::default().history_depth);
            assert_eq!(requested.history, History::KeepLast(9));
        }
    }

    #[test]
    fn a_policy_that_is_said_is_kept_on_both_sides() {
        for (number, reliability) in [(1, Reliability::Reliable), (2, Reliability::BestEffort)] {
            for (other, durability) in [(1, Durability::TransientLocal), (2, Durability::Volatile)] {
                let numbers = RmwProfile { reliability: number, durability: other, history: 1, depth: 7 };
                let profile = Profile::from(numbers);
                let (offered, requested) = (profile.offered(), profile.requested(0));
                assert_eq!((offered.reliability, offered.durability), (reliability, durability));
                assert_eq!((requested.reliability, requested.durability), (reliability, durability));
                assert_eq!((offered.history_depth, requested.history), (7, History::KeepLast(7)));
            }
        }
    }

    #[test]
    fn a_core_subscriber_is_deeper_than_the_ros_queue_and_keep_all_stays_keep_all() {
        let of = |history, depth| Profile::from(RmwProfile { reliability: 1, durability: 2, history, depth });
        assert_eq!(of(1, 10).requested(8).history, History::KeepLast(18));
        assert_eq!(of(2, 10).requested(8).history, History::KeepAll);
        assert_eq!(of(2, 3).offered().history_depth, PublisherQos::default().history_depth);
    }

    #[test]
    fn any_depth_and_slack_stay_within_a_count_of_ros() {
        for depth in [u64::MAX, u64::from(u32::MAX), u64::from(DEPTH_MAX)] {
            let deep = Profile::from(RmwProfile { reliability: 1, durability: 2, history: 1, depth });
            assert_eq!(deep.requested(u32::MAX).history, History::KeepLast(DEPTH_MAX));
            assert_eq!(deep.offered().history_depth, DEPTH_MAX);
        }
    }

    #[test]
    fn the_default_profile_is_that_of_ros_topics() {
        let numbers = RmwProfile { reliability: 1, durability: 2, history: 1, depth: 10 };
        assert_eq!(Profile::default(), Profile::from(numbers));
        assert_eq!(Profile::default().offered(), PublisherQos { history_depth: 10, ..PublisherQos::default() });
    }
}
