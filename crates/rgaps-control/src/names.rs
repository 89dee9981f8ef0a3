//! Names and identities: topics by (domain, fully qualified name), hosts and segments by random numbers.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize};

/// Longest topic name in bytes.
pub const TOPIC_BYTES_MAX: usize = 255;

/// Longest type name in bytes.
pub const TYPE_BYTES_MAX: usize = 255;

/// What the names of the topics of shared pools begin with.
const POOL_TOPICS: &str = "/_rgaps/pool_";

/// A topic of a ROS domain.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "RawKey")]
pub struct TopicKey {
    domain: u32,
    name: String,
}

#[derive(Deserialize)]
struct RawKey {
    domain: u32,
    name: String,
}

impl TryFrom<RawKey> for TopicKey {
    type Error = NameError;

    fn try_from(raw: RawKey) -> Result<Self, NameError> {
        Self::new(raw.domain, &raw.name)
    }
}

/// An invalid name of a topic or type.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name:?} is not a {of} name: {rule}")]
pub struct NameError {
    /// `topic` or `type`.
    pub of: &'static str,
    /// The name.
    pub name: String,
    /// The rule that it breaks.
    pub rule: String,
}

impl TopicKey {
    /// A topic by the name that a user wrote; `camera/front` and `/camera/front` are the same topic.
    ///
    /// The rules are those of ROS 2 (design article "Topic and Service Names"): tokens of letters, digits and `_`, none of which
    /// starts with a digit, joined by `/`, without `__`.
    ///
    /// ```
    /// use rgaps_control::TopicKey;
    ///
    /// let key = TopicKey::new(0, "camera/front")?;
    /// assert_eq!(key.name(), "/camera/front");
    /// assert!(TopicKey::new(0, "camera//front").is_err());
    /// # Ok::<(), rgaps_control::names::NameError>(())
    /// ```
    pub fn new(domain: u32, name: &str) -> Result<Self, NameError> {
        let refuse = |rule: String| Err(NameError { of: "topic", name: name.chars().take(80).collect(), rule });
        let tokens = name.strip_prefix('/').unwrap_or(name);
        if tokens.len() >= TOPIC_BYTES_MAX {
            return refuse(format!("it has {} bytes, at most {TOPIC_BYTES_MAX} are allowed", name.len()));
        }
        for token in tokens.split('/') {
            match token.chars().next() {
                None => return refuse("a token between two '/' is empty".to_owned()),
                Some(first) if first.is_ascii_digit() => return refuse(format!("{token:?} starts with a digit")),
                Some(_) => {}
            }
            if let Some(bad) = token.chars().find(|c| !c.is_ascii_alphanumeric() && *c != '_') {
                return refuse(format!("{bad:?} is not a letter, a digit, '_' or '/'"));
            }
            if token.contains("__") {
                return refuse("'__' is reserved".to_owned());
            }
        }
        Ok(Self { domain, name: format!("/{tokens}") })
    }

    /// The topic of a shared pool: it carries no messages, and other hosts do not hear of it. `number` makes the name unique.
    pub fn of_pool(domain: u32, number: u64) -> Self {
        Self { domain, name: format!("{POOL_TOPICS}{number:x}") }
    }

    /// Whether it is the topic of a shared pool.
    pub fn is_pool(&self) -> bool {
        self.name.starts_with(POOL_TOPICS)
    }

    /// Whether a token starts with `_`. Tools list such a topic only if they are asked to, as those of ROS 2 do.
    pub fn is_hidden(&self) -> bool {
        self.name.split('/').any(|token| token.starts_with('_'))
    }

    /// The ROS domain id.
    pub fn domain(&self) -> u32 {
        self.domain
    }

    /// The fully qualified name, with its leading slash.
    pub fn name(&self) -> &str {
        &self.name
    }
}

/// Checks a type's name: 1 to 255 bytes of printable ASCII without spaces, like `sensor_msgs/msg/Image` or `robot::Pose<f32>`.
pub fn check_type(name: &str) -> Result<(), NameError> {
    let refuse = |rule: String| Err(NameError { of: "type", name: name.chars().take(80).collect(), rule });
    if name.is_empty() || name.len() > TYPE_BYTES_MAX {
        return refuse(format!("it has {} bytes, 1 to {TYPE_BYTES_MAX} are allowed", name.len()));
    }
    match name.chars().find(|c| !c.is_ascii_graphic() || *c == '\\') {
        Some(bad) => refuse(format!("{bad:?} is not printable ASCII without space and backslash")),
        None => Ok(()),
    }
}

/// Deserializes and checks a type's name in a message of another host.
pub(crate) fn type_name<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    let name = String::deserialize(from)?;
    check_type(&name).map_err(serde::de::Error::custom)?;
    Ok(name)
}

impl fmt::Display for TopicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.domain {
            0 => f.write_str(&self.name),
            domain => write!(f, "{} (domain {domain})", self.name),
        }
    }
}

/// Sixteen random bytes, written as 32 hexadecimal digits.
macro_rules! identity {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(pub [u8; 16]);

        impl $name {
            /// A new one.
            pub fn random() -> std::io::Result<Self> {
                rgaps_os::random().map(Self)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:032x}", u128::from_be_bytes(self.0))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }

        impl FromStr for $name {
            type Err = IdentityError;

            fn from_str(text: &str) -> Result<Self, IdentityError> {
                parse_identity(text).map(Self)
            }
        }

        impl TryFrom<String> for $name {
            type Error = IdentityError;

            fn try_from(text: String) -> Result<Self, IdentityError> {
                text.parse()
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> String {
                id.to_string()
            }
        }
    };
}

identity!(
    /// A manager's host: two managers on one machine are two hosts.
    HostId
);
identity!(
    /// The lock by which a manager and its successors know that a client lives (`client_lock`).
    LockId
);
identity!(
    /// A topic's segment on one host, from its creation to its end.
    TopicId
);

/// Not 32 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an identity has 32 hexadecimal digits")]
pub struct IdentityError;

fn parse_identity(text: &str) -> Result<[u8; 16], IdentityError> {
    let digits = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let value = if digits { u128::from_str_radix(text, 16).ok() } else { None };
    value.map(u128::to_be_bytes).ok_or(IdentityError)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_topic_with_a_token_that_starts_with_an_underscore_is_hidden() {
        let hidden = ["/_rgaps/pool_1", "/a/_b", "/_a"].map(|name| TopicKey::new(0, name).unwrap().is_hidden());
        let shown = ["/a_b", "/a_/b"].map(|name| TopicKey::new(0, name).unwrap().is_hidden());
        assert_eq!((hidden, shown), ([true; 3], [false; 2]));
    }

    #[test]
    fn names_with_and_without_the_leading_slash_are_the_same_topic() {
        assert_eq!(TopicKey::new(0, "camera/front").unwrap(), TopicKey::new(0, "/camera/front").unwrap());
        assert_ne!(TopicKey::new(0, "a").unwrap(), TopicKey::new(1, "a").unwrap());
    }

    #[test]
    fn each_broken_rule_is_named() {
        let rules = [
            ("", "empty"),
            ("a//b", "empty"),
            ("a/", "empty"),
            ("/2d", "digit"),
            ("a b", "' '"),
            ("a__b", "'__'"),
            ("ä", "'ä'"),
        ];
        for (name, rule) in rules {
            let error = TopicKey::new(0, name).unwrap_err().to_string();
            assert!(error.contains(rule), "{name}: {error}");
        }
        assert!(TopicKey::new(0, &"a".repeat(255)).is_err());
        assert!(TopicKey::new(0, &"a".repeat(254)).is_ok());
    }

    #[test]
    fn a_types_name_is_printable_ascii_without_spaces_and_the_broken_rule_is_named() {
        for name in ["rgaps/Image", "sensor_msgs/msg/Image", "robot::Pose<f32,3>", &"a".repeat(255)] {
            assert_eq!(check_type(name), Ok(()), "{name}");
        }
        for (name, rule) in [
            ("", "0 bytes"),
            ("a b", "' '"),
            ("a\x1b[2J", r"\u{1b}"),
            ("a\n", r"'\n'"),
            (r"a\n", r"'\\'"),
            ("ä", "'ä'"),
        ] {
            let error = check_type(name).unwrap_err().to_string();
            assert!(error.contains(rule) && error.contains("not a type name"), "{name:?}: {error}");
        }
        assert!(check_type(&"a".repeat(256)).is_err());
    }

    #[test]
    fn a_name_from_the_wire_is_checked() {
        assert!(serde_json::from_str::<TopicKey>(r#"{"domain":0,"name":"a b"}"#).is_err());
        let key = TopicKey::new(3, "a/b").unwrap();
        assert_eq!(serde_json::from_str::<TopicKey>(&serde_json::to_string(&key).unwrap()).unwrap(), key);
    }

    #[test]
    fn identities_survive_their_text() {
        let id = HostId::random().unwrap();
        assert_eq!(id.to_string().parse::<HostId>().unwrap(), id);
        for bad in ["", "+123", &"g".repeat(32), &"0".repeat(33)] {
            assert!(bad.parse::<HostId>().is_err());
        }
    }
}
