//! Parameters of a node, named as those of qos_overrides are: `rgaps.<topic>.publisher.pool_bytes`.
//!
//! | Parameter | Default | Meaning |
//! |---|---|---|
//! | `rgaps.<topic>.publisher.pool_bytes` | 0 | bytes of the publisher's pool; 0 takes `pool_bytes` of the configuration |
//! | `rgaps.<topic>.publisher.history_depth` | depth of the QoS | messages kept for late joiners, and sent again by a link that was cut |
//! | `rgaps.<topic>.publisher.exhaustion` | wait | what a full pool means: wait, drop_oldest or refuse |
//! | `rgaps.<topic>.publisher.exhaustion_timeout_ms` | 1000 | how long a full pool is waited for |
//! | `rgaps.<topic>.publisher.flow_control` | true | whether links between hosts wait for a slow receiver |
//! | `rgaps.<topic>.subscription.payload_timeout_ms` | 1000 | how long the sample of a descriptor is waited for |
//! | `rgaps.<topic>.subscription.slack` | 8 | messages that the core keeps beyond the depth of the QoS, for descriptors that come late |
//! | `rgaps.device` | | GPU by which the node works, such as cuda:0; empty takes the one that the host's pools lie on, or none |

use std::ops::RangeInclusive;
use std::time::Duration;

use rgaps::device::Choice;

use crate::Error;

const COUNT_MAX: i64 = i32::MAX as i64;
const MILLISECONDS_MAX: i64 = 3_600_000;

/// Declares parameters on a node, for reading only where its client can, and says what they are.
pub trait Parameters {
    /// A whole number.
    fn integer(
        &mut self,
        name: &str,
        default: i64,
        range: RangeInclusive<i64>,
        description: &str,
    ) -> Result<i64, Error>;
    /// A text.
    fn text(&mut self, name: &str, default: &str, description: &str) -> Result<String, Error>;
    /// Yes or no.
    fn flag(&mut self, name: &str, default: bool, description: &str) -> Result<bool, Error>;
}

/// Those of a node without parameters.
#[derive(Clone, Copy, Debug, Default)]
pub struct Defaults;

impl Parameters for Defaults {
    fn integer(&mut self, _: &str, default: i64, _: RangeInclusive<i64>, _: &str) -> Result<i64, Error> {
        Ok(default)
    }

    fn text(&mut self, _: &str, default: &str, _: &str) -> Result<String, Error> {
        Ok(default.to_owned())
    }

    fn flag(&mut self, _: &str, default: bool, _: &str) -> Result<bool, Error> {
        Ok(default)
    }
}

pub(crate) fn device(of: &mut dyn Parameters) -> Result<Choice, Error> {
    let name = "rgaps.device";
    let found = of.text(
        name,
        "",
        "GPU by which the node works, such as cuda:0; empty takes the one that the host's pools lie on, or none.",
    )?;
    if found.is_empty() {
        return Ok(Choice::Auto);
    }
    let allowed = "empty, auto, host, cuda, cuda:N or cuda:GPU-<uuid>";
    found.parse().map_err(|_| Error::Parameter { name: name.to_owned(), value: found, allowed })
}

pub(crate) struct OfPublisher {
    pub(crate) history_depth: u32,
    pub(crate) pool_bytes: u64,
    pub(crate) exhaustion: String,
    pub(crate) exhaustion_timeout_ms: u64,
    pub(crate) flow_control: bool,
}

pub(crate) fn publisher(topic: &str, of: &mut dyn Parameters, depth: u32) -> Result<OfPublisher, Error> {
    let name = |parameter: &str| format!("rgaps.{topic}.publisher.{parameter}");
    let depth = of.integer(
        &name("history_depth"),
        depth.into(),
        0..=COUNT_MAX,
        "Messages kept for late joiners, and sent again by a link between hosts that was cut. Each keeps a block of the pool.",
    )?;
    let pool_bytes = of.integer(
        &name("pool_bytes"),
        0,
        0..=i64::MAX,
        "Bytes of the publisher's pool; 0 takes pool_bytes of the configuration.",
    )?;
    let exhaustion = of.text(
        &name("exhaustion"),
        "wait",
        "What a full pool means: wait (at most exhaustion_timeout_ms), drop_oldest or refuse.",
    )?;
    let allowed = "wait, drop_oldest or refuse";
    if !["wait", "drop_oldest", "refuse"].contains(&exhaustion.as_str()) {
        return Err(Error::Parameter { name: name("exhaustion"), value: exhaustion, allowed });
    }
    let timeout = of.integer(
        &name("exhaustion_timeout_ms"),
        1000,
        0..=MILLISECONDS_MAX,
        "Milliseconds that a full pool is waited for.",
    )?;
    let flow_control = of.flag(
        &name("flow_control"),
        true,
        "Whether links between hosts wait for a slow receiver; if not, its oldest messages are overwritten and counted.",
    )?;
    Ok(OfPublisher {
        history_depth: within(&name("history_depth"), depth, "0 to 2147483647")?,
        pool_bytes: within(&name("pool_bytes"), pool_bytes, "0 or a number of bytes")?,
        exhaustion,
        exhaustion_timeout_ms: within(&name("exhaustion_timeout_ms"), timeout, "a number of milliseconds")?,
        flow_control,
    })
}

pub(crate) struct OfSubscription {
    pub(crate) payload_timeout: Duration,
    pub(crate) slack: u32,
}

pub(crate) fn subscription(topic: &str, of: &mut dyn Parameters) -> Result<OfSubscription, Error> {
    let name = |parameter: &str| format!("rgaps.{topic}.subscription.{parameter}");
    let timeout = of.integer(
        &name("payload_timeout_ms"),
        1000,
        0..=MILLISECONDS_MAX,
        "Milliseconds that the sample of a descriptor is waited for.",
    )?;
    let slack = of.integer(
        &name("slack"),
        8,
        0..=COUNT_MAX,
        "Messages that the core keeps beyond the depth of the QoS, for descriptors that come late.",
    )?;
    let timeout = within(&name("payload_timeout_ms"), timeout, "a number of milliseconds")?;
    Ok(OfSubscription {
        payload_timeout: Duration::from_millis(timeout),
        slack: within(&name("slack"), slack, "0 to 2147483647")?,
    })
}

/// Clients that know no ranges let any number through.
fn within<T: TryFrom<i64>>(name: &str, value: i64, allowed: &'static str) -> Result<T, Error> {
    let wrong = |_| Error::Parameter { name: name.to_owned(), value: value.to_string(), allowed };
    T::try_from(value).map_err(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A node where every number and text is these.
    struct Odd(i64, &'static str);

    impl Parameters for Odd {
        fn integer(&mut self, _: &str, _: i64, _: RangeInclusive<i64>, _: &str) -> Result<i64, Error> {
            Ok(self.0)
        }

        fn text(&mut self, _: &str, _: &str, _: &str) -> Result<String, Error> {
            Ok(self.1.to_owned())
        }

        fn flag(&mut self, _: &str, default: bool, _: &str) -> Result<bool, Error> {
            Ok(default)
        }
    }

    #[test]
    fn values_that_mean_nothing_are_refused_with_the_parameters_name() {
        let refused = |odd: Odd| publisher("/a", &mut { odd }, 10).map(|_| ()).unwrap_err().to_string();
        assert_eq!(
            refused(Odd(5, "never")),
            "parameter rgaps./a.publisher.exhaustion is never; it may be wait, drop_oldest or refuse"
        );
        assert!(refused(Odd(-1, "wait")).starts_with("parameter rgaps./a.publisher.history_depth is -1"));
        assert!(subscription("/a", &mut Odd(-1, "")).is_err());
        assert_eq!(device(&mut Odd(0, "")).unwrap(), Choice::Auto);
        assert_eq!(device(&mut Odd(0, "cuda:1")).unwrap(), Choice::Cuda(1));
        let refused = device(&mut Odd(0, "gpu")).unwrap_err().to_string();
        assert_eq!(
            refused,
            "parameter rgaps.device is gpu; it may be empty, auto, host, cuda, cuda:N or cuda:GPU-<uuid>"
        );
    }
}
