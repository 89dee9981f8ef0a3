//! The status of a publisher or subscription on /diagnostics: the names of its counters, and the warning when one that tells of a fault has grown.

use rgaps::{PublisherStatistics, SubscriberStatistics};

/// Most counters of a status.
pub const COUNTERS_MAX: usize = 8;

/// The status of one endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// The node, the endpoint and the topic.
    pub name: String,
    /// Counters by their names, in the same order each time.
    pub counters: Vec<(&'static str, u64)>,
    /// "ok", or what went wrong since the last status, and what to do.
    pub message: String,
    /// Whether the level is WARN rather than OK.
    pub is_warning: bool,
}

/// What it means if a counter grows: its name, the event, the advice.
type Fault = (&'static str, &'static str, &'static str);

const OF_PUBLISHER: &[Fault] =
    &[("refused", "the pool was full", "release samples earlier, or raise the parameter pool_bytes")];

const OF_SUBSCRIPTION: &[Fault] = &[
    ("lost", "messages were lost", "the callback is too slow for the depth of the subscription"),
    ("refused", "descriptors were refused", "the log has the first of each publisher and reason"),
    ("poisoned", "messages were poisoned", "their publisher died, or its device failed"),
    ("malformed", "messages contradicted themselves", "their publisher is faulty"),
];

impl Status {
    /// The status of a publisher. `before` has the values of its last status; none at first.
    ///
    /// ```
    /// use rgaps::PublisherStatistics;
    /// use rgaps_ros_policy::status::Status;
    ///
    /// let mut now = PublisherStatistics { published: 10, ..PublisherStatistics::default() };
    /// let first = Status::of_publisher("camera", "/front", &now, 1, &[]);
    /// assert_eq!((first.message.as_str(), first.is_warning), ("ok", false));
    /// now.refused = 2;
    /// let next = Status::of_publisher("camera", "/front", &now, 1, &first.values());
    /// assert!(next.is_warning);
    /// println!("{}", next.message); // what went wrong since, and what to do
    /// ```
    pub fn of_publisher(node: &str, topic: &str, now: &PublisherStatistics, subscribers: u64, before: &[u64]) -> Self {
        let counters = vec![
            ("published", now.published),
            ("published_bytes", now.published_bytes),
            ("refused", now.refused),
            ("pool_bytes", now.pool_bytes),
            ("used_bytes", now.used_bytes),
            ("outstanding", now.outstanding),
            ("subscribers", subscribers),
        ];
        Self::new(format!("{node}: publisher of {topic}"), counters, before, OF_PUBLISHER)
    }

    /// The status of a subscription. `descriptors` are those refused and those early.
    pub fn of_subscription(
        node: &str,
        topic: &str,
        now: &SubscriberStatistics,
        descriptors: crate::payloads::Counts,
        before: &[u64],
    ) -> Self {
        let counters = vec![
            ("taken", now.taken),
            ("lost", now.lost),
            ("poisoned", now.poisoned),
            ("malformed", now.malformed),
            ("held", now.held),
            ("copied_bytes", now.copied_bytes),
            ("refused", descriptors.refused),
            ("early", descriptors.early),
        ];
        Self::new(format!("{node}: subscription to {topic}"), counters, before, OF_SUBSCRIPTION)
    }

    fn new(name: String, counters: Vec<(&'static str, u64)>, before: &[u64], faults: &[Fault]) -> Self {
        let grown = |name: &str| {
            let place = counters.iter().position(|(other, _)| *other == name)?;
            let more = counters.get(place)?.1.saturating_sub(before.get(place).copied().unwrap_or(0));
            (more > 0).then_some(more)
        };
        let warnings: Vec<String> = faults
            .iter()
            .filter_map(|(name, event, advice)| grown(name).map(|more| format!("{event} ({more}): {advice}")))
            .collect();
        let is_warning = !warnings.is_empty();
        let message = if is_warning { warnings.join("; ") } else { "ok".to_owned() };
        Self { name, counters, message, is_warning }
    }

    /// The counters' values, for the next status.
    pub fn values(&self) -> Vec<u64> {
        self.counters.iter().map(|(_, value)| *value).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::payloads::Counts;

    #[test]
    fn a_status_warns_with_number_and_advice_for_as_long_as_a_fault_grows() {
        let statistics = SubscriberStatistics { taken: 9, lost: 2, ..SubscriberStatistics::default() };
        let descriptors = Counts { refused: 1, early: 5 };
        let first = Status::of_subscription("/robot/eye", "/camera", &statistics, descriptors, &[]);
        assert_eq!(first.name, "/robot/eye: subscription to /camera");
        assert_eq!(
            first.message,
            "messages were lost (2): the callback is too slow for the depth of the subscription; \
             descriptors were refused (1): the log has the first of each publisher and reason"
        );
        let next = Status::of_subscription("/robot/eye", "/camera", &statistics, descriptors, &first.values());
        assert_eq!((next.message.as_str(), next.is_warning, first.is_warning), ("ok", false, true));
        assert_eq!(next.counters, first.counters);
        let poisoned = SubscriberStatistics { poisoned: 1, malformed: 3, ..statistics };
        let last = Status::of_subscription("/robot/eye", "/camera", &poisoned, descriptors, &next.values());
        assert!(last.message.starts_with("messages were poisoned (1)") && last.message.contains("themselves (3)"));
    }

    #[test]
    fn a_publisher_whose_pool_was_full_is_told_what_to_raise() {
        let statistics = PublisherStatistics { refused: 4, published: 7, ..PublisherStatistics::default() };
        let status = Status::of_publisher("/n", "/t", &statistics, 3, &[7, 0, 3]);
        assert_eq!(status.name, "/n: publisher of /t");
        assert_eq!(status.message, "the pool was full (1): release samples earlier, or raise the parameter pool_bytes");
        assert_eq!(status.counters.last(), Some(&("subscribers", 3)));
    }

    #[test]
    fn each_fault_is_a_counter_and_each_status_fits() {
        let publisher = Status::of_publisher("", "", &PublisherStatistics::default(), 0, &[]);
        let subscription = Status::of_subscription("", "", &SubscriberStatistics::default(), Counts::default(), &[]);
        for (status, faults) in [(publisher, OF_PUBLISHER), (subscription, OF_SUBSCRIPTION)] {
            assert!(status.counters.len() <= COUNTERS_MAX && !status.is_warning);
            for (name, ..) in faults {
                assert!(status.counters.iter().any(|(counter, _)| counter == name), "{name}");
            }
        }
    }
}
