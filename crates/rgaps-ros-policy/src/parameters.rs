//! The parameters of publishers and subscriptions: one table of names, defaults, ranges and descriptions, and the check of their values.
//!
//! Parameters are named like qos_overrides, by the topic's name after remapping: `rgaps.<topic>.publisher.pool_bytes`, or with an id
//! `rgaps.<topic>.publisher_<id>.pool_bytes`. A client declares each parameter of `of_publisher` or `of_subscription`, read-only if its library can,
//! and passes the values back in the same order. Every endpoint also declares `rgaps.device`, which the whole node shares.

use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

use rgaps::device::Choice;
use rgaps::{Exhaustion, PublisherQos, SubscriberQos};

use crate::qos::{DEPTH_MAX, Profile};

const COUNTS: RangeInclusive<i64> = 0..=DEPTH_MAX as i64;
const BYTES: RangeInclusive<i64> = 0..=i64::MAX;
const MILLISECONDS: RangeInclusive<i64> = 0..=3_600_000;
const WORDS: &[&str] = &["wait", "drop_oldest", "refuse"];

/// How long to wait for the sample that a descriptor names, unless a parameter says otherwise.
const PAYLOAD_TIMEOUT_MS: i64 = 1000;
/// Messages that the core keeps beyond the depth of the QoS, unless a parameter says otherwise.
const SLACK: i64 = 8;

/// The value of a parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// A whole number.
    Integer(i64),
    /// A text.
    Text(String),
    /// Yes or no.
    Flag(bool),
    /// A value of another type, as text. No parameter accepts it.
    Other(String),
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Integer(value) => write!(f, "{value}"),
            Self::Text(value) => write!(f, "'{value}'"),
            Self::Flag(value) => write!(f, "{value}"),
            Self::Other(value) => write!(f, "{value}"),
        }
    }
}

/// The values that a parameter accepts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rule {
    /// A whole number.
    Integer(RangeInclusive<i64>),
    /// One of these words.
    Word(&'static [&'static str]),
    /// Yes or no.
    Flag,
    /// The name of a device, or an empty text.
    Device,
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Integer(range) => write!(f, "a whole number from {} to {}", range.start(), range.end()),
            Self::Word(words) => match words.split_last() {
                Some((last, others)) => write!(f, "{} or {last}", others.join(", ")),
                None => Ok(()),
            },
            Self::Flag => f.write_str("true or false"),
            Self::Device => f.write_str("empty, auto, host, cuda, cuda:N or cuda:GPU-<uuid>"),
        }
    }
}

/// A parameter to declare.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// Its name.
    pub name: String,
    /// Its value if none is set.
    pub default: Value,
    /// The values that it accepts.
    pub rule: Rule,
    /// What it means.
    pub description: &'static str,
}

/// A parameter has a value that it does not accept.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("parameter {name} is {value}; it must be {allowed}")]
pub struct ParameterError {
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: String,
    /// The values that it accepts.
    pub allowed: String,
}

/// The endpoint whose parameters these are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Names<'a> {
    /// The topic's fully qualified name, after remapping.
    pub topic: &'a str,
    /// Distinguishes endpoints of one node and topic; usually empty.
    pub id: &'a str,
}

impl Names<'_> {
    fn parameter(self, endpoint: &str, name: &str) -> String {
        let separator = if self.id.is_empty() { "" } else { "_" };
        format!("rgaps.{}.{endpoint}{separator}{}.{name}", self.topic, self.id)
    }
}

/// What a publisher offers, by its profile and parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// The QoS of the core publisher.
    pub qos: PublisherQos,
    /// The device that the node works on.
    pub device: Choice,
}

/// What a subscription requests, by its profile and parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The QoS of the core subscriber.
    pub qos: SubscriberQos,
    /// How long a take by handle waits.
    pub payload_timeout: Duration,
    /// The device that the node works on.
    pub device: Choice,
}

/// The parameters of a publisher.
pub fn of_publisher(names: Names<'_>, profile: &Profile) -> [Parameter; 6] {
    let PublisherQos { history_depth, pool_bytes, exhaustion, flow_control, .. } = profile.offered();
    let timeout_ms = if let Exhaustion::Wait { timeout_ms } = exhaustion { timeout_ms } else { 0 };
    let parameter = |name, default, rule, description| {
        let name = names.parameter("publisher", name);
        Parameter { name, default, rule, description }
    };
    [
        parameter(
            "history_depth",
            Value::Integer(history_depth.into()),
            Rule::Integer(COUNTS),
            "Messages kept for late joiners, and sent again after a link between hosts was interrupted. Each keeps a block of the pool.",
        ),
        parameter(
            "pool_bytes",
            Value::Integer(pool_bytes.map_or(0, signed)),
            Rule::Integer(BYTES),
            "Bytes of the publisher's pool; 0 uses the configured pool_bytes.",
        ),
        parameter(
            "exhaustion",
            Value::Text(word_of(exhaustion).to_owned()),
            Rule::Word(WORDS),
            "What to do when the pool is full: wait (at most exhaustion_timeout_ms), drop_oldest or refuse.",
        ),
        parameter(
            "exhaustion_timeout_ms",
            Value::Integer(signed(timeout_ms)),
            Rule::Integer(MILLISECONDS),
            "How many milliseconds to wait for space in a full pool.",
        ),
        parameter(
            "flow_control",
            Value::Flag(flow_control),
            Rule::Flag,
            "Whether links between hosts wait for a slow receiver; if not, its oldest messages are overwritten and counted.",
        ),
        of_node(),
    ]
}

/// The parameters of a subscription.
pub fn of_subscription(names: Names<'_>) -> [Parameter; 3] {
    let parameter = |name, default, rule, description| {
        let name = names.parameter("subscription", name);
        Parameter { name, default: Value::Integer(default), rule: Rule::Integer(rule), description }
    };
    [
        parameter(
            "payload_timeout_ms",
            PAYLOAD_TIMEOUT_MS,
            MILLISECONDS,
            "How many milliseconds to wait for the sample that a descriptor names, if it is in transit from another host. The executor's thread \
             waits.",
        ),
        parameter(
            "slack",
            SLACK,
            COUNTS,
            "Messages that the core keeps beyond the depth of the QoS, for descriptors that arrive late.",
        ),
        of_node(),
    ]
}

fn of_node() -> Parameter {
    Parameter {
        name: "rgaps.device".to_owned(),
        default: Value::Text(String::new()),
        rule: Rule::Device,
        description: "GPU that the node works on, such as cuda:0; empty uses the GPU of the host's pools, if any.",
    }
}

/// Checks the values of a publisher's parameters, in the order of `of_publisher`.
///
/// ```
/// use rgaps::Exhaustion;
/// use rgaps_ros_policy::parameters::{Names, Value, of_publisher, offer};
/// use rgaps_ros_policy::qos::Profile;
///
/// let (names, profile) = (Names { topic: "/camera/front", id: "" }, Profile::default());
/// let declared = of_publisher(names, &profile);
/// let mut values = declared.map(|parameter| parameter.default); // as the node's file of parameters sets them
/// values[2] = Value::Text("drop_oldest".to_owned());
/// assert_eq!(offer(names, &profile, &values)?.qos.exhaustion, Exhaustion::DropOldest);
/// values[2] = Value::Text("drop".to_owned());
/// println!("{}", offer(names, &profile, &values).unwrap_err()); // the parameter, its value, and the words that it accepts
/// # Ok::<(), rgaps_ros_policy::parameters::ParameterError>(())
/// ```
pub fn offer(names: Names<'_>, profile: &Profile, values: &[Value; 6]) -> Result<Offer, ParameterError> {
    let [depth, pool_bytes, exhaustion, timeout_ms, flow_control, device] = of_publisher(names, profile);
    let timeout_ms = timeout_ms.unsigned(&values[3])?;
    let qos = PublisherQos {
        history_depth: depth.count(&values[0])?,
        pool_bytes: Some(pool_bytes.unsigned(&values[1])?).filter(|bytes| *bytes > 0),
        exhaustion: match exhaustion.word(&values[2])? {
            "drop_oldest" => Exhaustion::DropOldest,
            "refuse" => Exhaustion::Refuse,
            _ => Exhaustion::Wait { timeout_ms },
        },
        flow_control: flow_control.flag(&values[4])?,
        ..profile.offered()
    };
    Ok(Offer { qos, device: device.device(&values[5])? })
}

/// Checks the values of a subscription's parameters, in the order of `of_subscription`.
pub fn request(names: Names<'_>, profile: &Profile, values: &[Value; 3]) -> Result<Request, ParameterError> {
    let [timeout_ms, slack, device] = of_subscription(names);
    Ok(Request {
        payload_timeout: Duration::from_millis(timeout_ms.unsigned(&values[0])?),
        qos: profile.requested(slack.count(&values[1])?),
        device: device.device(&values[2])?,
    })
}

impl Parameter {
    fn refuse(&self, value: &Value) -> ParameterError {
        ParameterError { name: self.name.clone(), value: value.to_string(), allowed: self.rule.to_string() }
    }

    fn unsigned(&self, value: &Value) -> Result<u64, ParameterError> {
        match (&self.rule, value) {
            (Rule::Integer(range), Value::Integer(number)) if range.contains(number) => Some(*number),
            _ => None,
        }
        .and_then(|number| u64::try_from(number).ok())
        .ok_or_else(|| self.refuse(value))
    }

    fn count(&self, value: &Value) -> Result<u32, ParameterError> {
        u32::try_from(self.unsigned(value)?).map_err(|_| self.refuse(value))
    }

    fn word<'a>(&self, value: &'a Value) -> Result<&'a str, ParameterError> {
        match (&self.rule, value) {
            (Rule::Word(words), Value::Text(word)) if words.contains(&word.as_str()) => Ok(word),
            _ => Err(self.refuse(value)),
        }
    }

    fn flag(&self, value: &Value) -> Result<bool, ParameterError> {
        if let Value::Flag(flag) = value { Ok(*flag) } else { Err(self.refuse(value)) }
    }

    fn device(&self, value: &Value) -> Result<Choice, ParameterError> {
        match value {
            Value::Text(name) if name.is_empty() => Ok(Choice::Auto),
            Value::Text(name) => name.parse().map_err(|_| self.refuse(value)),
            _ => Err(self.refuse(value)),
        }
    }
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn word_of(exhaustion: Exhaustion) -> &'static str {
    match exhaustion {
        Exhaustion::Wait { .. } => "wait",
        Exhaustion::DropOldest => "drop_oldest",
        Exhaustion::Refuse => "refuse",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rgaps::History;

    const NAMES: Names<'_> = Names { topic: "/a", id: "" };

    fn defaults<const N: usize>(parameters: [Parameter; N]) -> [Value; N] {
        parameters.map(|parameter| parameter.default)
    }

    /// The error of a publisher whose value at this place is another one.
    fn offer_with(place: usize, value: Value) -> Result<Offer, String> {
        let mut values = defaults(of_publisher(NAMES, &Profile::default()));
        values[place] = value;
        offer(NAMES, &Profile::default(), &values).map_err(|error| error.to_string())
    }

    fn request_with(place: usize, value: Value) -> Result<Request, String> {
        let mut values = defaults(of_subscription(NAMES));
        values[place] = value;
        request(NAMES, &Profile::default(), &values).map_err(|error| error.to_string())
    }

    #[test]
    fn the_defaults_are_the_cores_and_the_profiles() {
        let profile = Profile { history: History::KeepLast(3), ..Profile::default() };
        let offered = offer(NAMES, &profile, &defaults(of_publisher(NAMES, &profile))).unwrap();
        assert_eq!(offered.qos, PublisherQos { history_depth: 3, ..PublisherQos::default() });
        assert_eq!(offered.device, Choice::Auto);
        let requested = request(NAMES, &profile, &defaults(of_subscription(NAMES))).unwrap();
        assert_eq!((requested.qos.history, requested.payload_timeout), (History::KeepLast(11), Duration::from_secs(1)));
    }

    #[test]
    fn values_become_the_qos() {
        let values = [
            Value::Integer(4),
            Value::Integer(1 << 20),
            Value::Text("drop_oldest".to_owned()),
            Value::Integer(5),
            Value::Flag(false),
            Value::Text("cuda:1".to_owned()),
        ];
        let Offer { qos, device } = offer(NAMES, &Profile::default(), &values).unwrap();
        assert_eq!((qos.history_depth, qos.pool_bytes, qos.flow_control), (4, Some(1 << 20), false));
        assert_eq!((qos.exhaustion, device), (Exhaustion::DropOldest, Choice::Cuda(1)));
        assert_eq!(offer_with(3, Value::Integer(70)).unwrap().qos.exhaustion, Exhaustion::Wait { timeout_ms: 70 });
        assert_eq!(offer_with(2, Value::Text("refuse".to_owned())).unwrap().qos.exhaustion, Exhaustion::Refuse);
        assert_eq!(request_with(1, Value::Integer(0)).unwrap().qos.history, History::KeepLast(10));
        assert_eq!(request_with(0, Value::Integer(50)).unwrap().payload_timeout, Duration::from_millis(50));
    }

    #[test]
    fn a_value_out_of_range_or_of_another_type_is_refused_with_name_and_rule() {
        let refused = |place, value| offer_with(place, value).unwrap_err();
        assert_eq!(
            refused(2, Value::Text("never".to_owned())),
            "parameter rgaps./a.publisher.exhaustion is 'never'; it must be wait, drop_oldest or refuse"
        );
        assert_eq!(
            refused(0, Value::Integer(-1)),
            "parameter rgaps./a.publisher.history_depth is -1; it must be a whole number from 0 to 2147483647"
        );
        assert_eq!(
            refused(5, Value::Text("gpu".to_owned())),
            "parameter rgaps.device is 'gpu'; it must be empty, auto, host, cuda, cuda:N or cuda:GPU-<uuid>"
        );
        assert_eq!(
            refused(4, Value::Integer(3)),
            "parameter rgaps./a.publisher.flow_control is 3; it must be true or false"
        );
        assert_eq!(
            request_with(0, Value::Integer(3_600_001)).unwrap_err(),
            "parameter rgaps./a.subscription.payload_timeout_ms is 3600001; it must be a whole number from 0 to 3600000"
        );
        for place in 0..6 {
            for value in [Value::Other("[1, 2]".to_owned()), Value::Integer(-1), Value::Text("many".to_owned())] {
                assert!(refused(place, value).starts_with("parameter rgaps."), "{place}");
            }
        }
        for place in 0..3 {
            assert!(
                request_with(place, Value::Flag(true)).is_err() && request_with(place, Value::Integer(-5)).is_err()
            );
        }
        assert!(request_with(1, Value::Integer(i64::from(DEPTH_MAX) + 1)).is_err());
    }

    #[test]
    fn names_have_the_topic_the_endpoint_and_its_id() {
        let names = Names { topic: "/robot/eye", id: "left" };
        let name = |parameters: &[Parameter], place: usize| parameters[place].name.clone();
        assert_eq!(name(&of_publisher(names, &Profile::default()), 1), "rgaps./robot/eye.publisher_left.pool_bytes");
        assert_eq!(name(&of_subscription(names), 1), "rgaps./robot/eye.subscription_left.slack");
        assert_eq!(name(&of_subscription(names), 2), "rgaps.device");
        assert_eq!(name(&of_subscription(NAMES), 0), "rgaps./a.subscription.payload_timeout_ms");
    }

    #[test]
    fn the_users_pages_have_every_parameter_with_its_default() {
        let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
        let names = Names { topic: "<topic>", id: "" };
        let all = of_publisher(names, &Profile::default()).into_iter().chain(of_subscription(names));
        for page in ["rgaps_ros/README.md", "crates/rgaps-py/python/rgaps/ros/__init__.py"] {
            let text = std::fs::read_to_string(format!("{root}/{page}")).unwrap();
            for parameter in all.clone() {
                let row = text.lines().find(|line| line.starts_with(&format!("| `{}` |", parameter.name)));
                let row = row.unwrap_or_else(|| panic!("{page} has no row for {}", parameter.name)).replace('`', "");
                let shown = row.split('|').nth(2).unwrap().trim().to_owned();
                let default = match &parameter.default {
                    _ if parameter.name.ends_with("history_depth") => "depth of the QoS".to_owned(),
                    Value::Text(text) if text.is_empty() => "empty".to_owned(),
                    Value::Text(text) => text.clone(),
                    other => other.to_string(),
                };
                assert_eq!(shown, default, "{page}: {}", parameter.name);
            }
        }
    }
}
