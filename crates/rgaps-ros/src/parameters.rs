//! Parameters of a node, named like qos_overrides: `rgaps.<topic>.publisher.pool_bytes`.
//!
//! | Parameter | Default | Meaning |
//! |---|---|---|
//! | `rgaps.<topic>.publisher.pool_bytes` | 0 | bytes of the publisher's pool; 0 uses the configured `pool_bytes` |
//! | `rgaps.<topic>.publisher.history_depth` | depth of the QoS | messages kept for late joiners, and sent again after a link was interrupted |
//! | `rgaps.<topic>.publisher.exhaustion` | wait | what to do when the pool is full: wait, drop_oldest or refuse |
//! | `rgaps.<topic>.publisher.exhaustion_timeout_ms` | 1000 | how long to wait for space in a full pool |
//! | `rgaps.<topic>.publisher.flow_control` | true | whether links between hosts wait for a slow receiver |
//! | `rgaps.<topic>.subscription.payload_timeout_ms` | 1000 | how long to wait for the sample that a descriptor names |
//! | `rgaps.<topic>.subscription.slack` | 8 | messages that the core keeps beyond the depth of the QoS, for descriptors that arrive late |
//! | `rgaps.device` | | GPU that the node works on, such as cuda:0; empty uses the GPU of the host's pools, if any |

use std::ops::RangeInclusive;
use std::time::Duration;

use rgaps::device::Choice;

use crate::Error;

const COUNT_MAX: i64 = i32::MAX as i64;
const MILLISECONDS_MAX: i64 = 3_600_000;

/// Declares parameters on a node, read-only if the client supports that, and returns their values.
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

/// The default values, for a node without parameters.
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
        "GPU that the node works on, such as cuda:0; empty uses the GPU of the host's pools, if any.",
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
        "Messages kept for late joiners, and sent again after a link between hosts was interrupted. Each keeps a block of the pool.",
    )?;
    let pool_bytes = of.integer(
        &name("pool_bytes"),
        0,
        0..=i64::MAX,
        "Bytes of the publisher's pool; 0 uses the configured pool_bytes.",
    )?;
    let exhaustion = of.text(
        &name("exhaustion"),
        "wait",
        "What to do when the pool is full: wait (at most exhaustion_timeout_ms), drop_oldest or refuse.",
    )?;
    let allowed = "wait, drop_oldest or refuse";
    if !["wait", "drop_oldest", "refuse"].contains(&exhaustion.as_str()) {
        return Err(Error::Parameter { name: name("exhaustion"), value: exhaustion, allowed });
    }
    let timeout = of.integer(
        &name("exhaustion_timeout_ms"),
        1000,
        0..=MILLISECONDS_MAX,
        "How many milliseconds to wait for space in a full pool.",
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
        "How many milliseconds to wait for the sample that a descriptor names.",
    )?;
    let slack = of.integer(
        &name("slack"),
        8,
        0..=COUNT_MAX,
        "Messages that the core keeps beyond the depth of the QoS, for descriptors that arrive late.",
    )?;
    let timeout = within(&name("payload_timeout_ms"), timeout, "a number of milliseconds")?;
    Ok(OfSubscription {
        payload_timeout: Duration::from_millis(timeout),
        slack: within(&name("slack"), slack, "0 to 2147483647")?,
    })
}

/// Checks the range, because clients without parameter ranges accept any number.
fn within<T: TryFrom<i64>>(name: &str, value: i64, allowed: &'static str) -> Result<T, Error> {
    let wrong = |_| Error::Parameter { name: name.to_owned(), value: value.to_string(), allowed };
    T::try_from(value).map_err(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A node whose numbers all have one value, and whose texts all have another.
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
    fn invalid_values_are_refused_with_the_parameters_name() {
        let refused = |odd: Odd| publisher("/a", &mut { odd }, 10).map(|_| ()).unwrap_err().to_string();
        assert_eq!(
            refused(Odd(5, "never")),
            "parameter rgaps./a.publisher.exhaustion is never; it must be wait, drop_oldest or refuse"
        );
        assert!(refused(Odd(-1, "wait")).starts_with("parameter rgaps./a.publisher.history_depth is -1"));
        assert!(subscription("/a", &mut Odd(-1, "")).is_err());
        assert_eq!(device(&mut Odd(0, "")).unwrap(), Choice::Auto);
        assert_eq!(device(&mut Odd(0, "cuda:1")).unwrap(), Choice::Cuda(1));
        let refused = device(&mut Odd(0, "gpu")).unwrap_err().to_string();
        assert_eq!(
            refused,
            "parameter rgaps.device is gpu; it must be empty, auto, host, cuda, cuda:N or cuda:GPU-<uuid>"
        );
    }
}
