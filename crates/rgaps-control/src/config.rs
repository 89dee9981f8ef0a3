//! Configuration: one TOML file, each key overridable by an environment variable and a flag, each with a default that works on one
//! machine.
//!
//! The order is default, file (`RGAPS_CONFIG`, else ~/.config/rgaps/config.toml if it exists), environment (`RGAPS_` and the key in
//! capitals), flags. An unknown key is an error that names the nearest one.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// All keys.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Config {
    /// Name of this host for people; empty takes the machine's.
    pub host_name: String,
    /// Bytes of a publisher's pool.
    pub pool_bytes: u64,
    /// Bytes of the pool for what arrives from one host on one topic; grown to what its publishers' largest message needs.
    pub arrival_pool_bytes: u64,
    /// Messages of a topic on this host, held ones included; at most 4096.
    pub message_count: u32,
    /// Bytes of a receive ring.
    pub ring_bytes: u64,
    /// Bytes of a chunk: what is copied while its neighbour is on the wire.
    pub chunk_bytes: u64,
    /// Credit is returned when 1/n of the ring has been read; 0 returns it at once.
    pub watermark_divisor: u64,
    /// Whether payload goes through staging: `auto` does so for device memory only, `always` also for host memory.
    pub staging: String,
    /// `auto`, `tcp` or `rdma`.
    pub transport: String,
    /// `auto`, `host`, `cuda` or `cuda:N`.
    pub device: String,
    /// Where other managers are, as zenoh locators: tcp/10.0.0.2:7447.
    pub peers: Vec<String>,
    /// Where this manager can be found, as a zenoh locator; empty lets zenoh choose a port.
    pub listen: String,
    /// Whether hosts of the LAN find each other by multicast.
    pub multicast: bool,
    /// Addresses that data links listen on, in order of preference; empty is every address of the host.
    pub data_address: Vec<String>,
    /// How long the manager stays after its last client has left.
    pub idle_timeout_ms: u64,
    /// How long a silent or unreachable peer is waited for.
    pub peer_timeout_ms: u64,
    /// How long a stalled keep-all subscriber may hold up what arrives before it is made keep-last.
    pub keep_all_timeout_ms: u64,
    /// A zenoh configuration file for TLS and access control; empty for none.
    pub zenoh_config: String,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            host_name: String::new(),
            pool_bytes: 128 << 20,
            arrival_pool_bytes: 128 << 20,
            message_count: 256,
            ring_bytes: 64 << 20,
            chunk_bytes: 1 << 20,
            watermark_divisor: 8,
            staging: "auto".to_owned(),
            transport: "auto".to_owned(),
            device: "auto".to_owned(),
            peers: Vec::new(),
            listen: String::new(),
            multicast: true,
            data_address: Vec::new(),
            idle_timeout_ms: 10_000,
            peer_timeout_ms: 5_000,
            keep_all_timeout_ms: 2_000,
            zenoh_config: String::new(),
        }
    }
}

/// The configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file is no TOML.
    #[error("{path}: {message}")]
    Syntax {
        /// The file.
        path: PathBuf,
        /// Where and why.
        message: String,
    },
    /// No such key.
    #[error("{origin}: there is no key {key}; did you mean {nearest}?")]
    Unknown {
        /// Where it was given.
        origin: String,
        /// The key.
        key: String,
        /// The nearest there is.
        nearest: String,
    },
    /// The value does not fit its key.
    #[error("{origin}: {key} = {value}: {rule}")]
    Value {
        /// Where it was given.
        origin: String,
        /// The key.
        key: String,
        /// The value.
        value: String,
        /// What it must be.
        rule: String,
    },
}

impl Config {
    /// The configuration of this process: file, environment, then `flags` (key to value as text).
    pub fn load(flags: &BTreeMap<String, String>) -> Result<Self, ConfigError> {
        let variables = std::env::vars().filter_map(|(name, value)| Some((variable_key(&name)?, value)));
        let mut variables: BTreeMap<String, String> = variables.collect();
        apply_ros_range(&mut variables, |name| std::env::var(name).ok());
        let file = match std::env::var_os("RGAPS_CONFIG") {
            Some(path) => Some(PathBuf::from(path)),
            None => default_file().filter(|path| path.exists()),
        };
        Self::from_sources(file.as_deref(), &variables, flags)
    }

    /// The configuration from named sources, for `load` and for tests.
    pub fn from_sources(
        file: Option<&Path>,
        variables: &BTreeMap<String, String>,
        flags: &BTreeMap<String, String>,
    ) -> Result<Self, ConfigError> {
        let mut table = defaults();
        if let Some(path) = file {
            let text =
                std::fs::read_to_string(path).map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
            let given: toml::Table = text.parse().map_err(|error: toml::de::Error| ConfigError::Syntax {
                path: path.to_owned(),
                message: error.to_string(),
            })?;
            for (key, value) in given {
                set(&mut table, &path.display().to_string(), &key, value)?;
            }
        }
        for (origin, source) in [("environment", variables), ("flags", flags)] {
            for (key, text) in source {
                let value = parse(&table, origin, key, text)?;
                set(&mut table, origin, key, value)?;
            }
        }
        let config: Self = table.try_into().map_err(|error: toml::de::Error| ConfigError::Syntax {
            path: file.unwrap_or(Path::new("configuration")).to_owned(),
            message: error.to_string(),
        })?;
        config.check()
    }

    /// Bytes of credit that a receiver may keep back.
    pub fn watermark_bytes(&self) -> u64 {
        self.ring_bytes.checked_div(self.watermark_divisor).unwrap_or(0)
    }

    fn check(self) -> Result<Self, ConfigError> {
        let refuse = |key: &str, value: String, rule: &str| {
            Err(ConfigError::Value {
                origin: "configuration".to_owned(),
                key: key.to_owned(),
                value,
                rule: rule.to_owned(),
            })
        };
        if !(1..=4096).contains(&self.message_count) {
            return refuse("message_count", self.message_count.to_string(), "from 1 to 4096");
        }
        if self.ring_bytes < 1 << 16 || !self.ring_bytes.is_multiple_of(4096) || self.ring_bytes > 1 << 40 {
            return refuse("ring_bytes", self.ring_bytes.to_string(), "whole pages from 64 KiB to 1 TiB");
        }
        if ![0, 2, 4, 8].contains(&self.watermark_divisor) {
            return refuse("watermark_divisor", self.watermark_divisor.to_string(), "0, 2, 4 or 8");
        }
        let chunk_max = (self.ring_bytes - self.watermark_bytes()) / 2 - 64;
        if self.chunk_bytes < 4096 || self.chunk_bytes > chunk_max {
            let rule = format!("from 4096 to (ring_bytes - watermark) / 2 - 64 = {chunk_max}");
            return refuse("chunk_bytes", self.chunk_bytes.to_string(), &rule);
        }
        if !["auto", "always"].contains(&self.staging.as_str()) {
            return refuse("staging", self.staging, "auto or always");
        }
        match self.transport.as_str() {
            "auto" | "tcp" => {}
            "rdma" => return refuse("transport", self.transport, "auto or tcp; this build has no rdma link"),
            _ => return refuse("transport", self.transport, "auto, tcp or rdma"),
        }
        Ok(self)
    }
}

fn defaults() -> toml::Table {
    match toml::Table::try_from(Config::default()) {
        Ok(table) => table,
        Err(error) => unreachable!("the default configuration is TOML: {error}"),
    }
}

fn default_file() -> Option<PathBuf> {
    let home = std::env::var_os("XDG_CONFIG_HOME")
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".config")))?;
    Some(home.join("rgaps/config.toml"))
}

/// Variables that are about the process, not about a key of the configuration.
const NOT_KEYS: [&str; 7] = ["CONFIG", "RUNTIME_DIR", "AUTOSTART", "CRASH_POINT", "LOG", "SKIPPED_LIST", "INNER_RMW"];
/// Variables of the tests.
const TEST_PREFIX: &str = "TEST_";

fn variable_key(name: &str) -> Option<String> {
    let key = name.strip_prefix("RGAPS_")?;
    (!NOT_KEYS.contains(&key) && !key.starts_with(TEST_PREFIX)).then(|| key.to_ascii_lowercase())
}

/// ROS's own variables set what ours do not: LOCALHOST and OFF keep discovery on this machine, static peers are peers.
fn apply_ros_range(variables: &mut BTreeMap<String, String>, variable: impl Fn(&str) -> Option<String>) {
    let range = variable("ROS_AUTOMATIC_DISCOVERY_RANGE").unwrap_or_default();
    let local =
        ["LOCALHOST", "OFF"].contains(&range.as_str()) || variable("ROS_LOCALHOST_ONLY").as_deref() == Some("1");
    if local {
        variables.entry("multicast".to_owned()).or_insert_with(|| "false".to_owned());
        variables.entry("listen".to_owned()).or_insert_with(|| "tcp/127.0.0.1:0".to_owned());
    }
    if let Some(peers) = variable("ROS_STATIC_PEERS").filter(|peers| !peers.is_empty()) {
        let peers: Vec<String> = peers.split(';').map(|peer| format!("tcp/{peer}:7447")).collect();
        variables.entry("peers".to_owned()).or_insert_with(|| peers.join(","));
    }
}

fn parse(table: &toml::Table, origin: &str, key: &str, text: &str) -> Result<toml::Value, ConfigError> {
    let Some(default) = table.get(key) else { return Err(unknown(table, origin, key)) };
    let wrong = |rule: &str| ConfigError::Value {
        origin: origin.to_owned(),
        key: key.to_owned(),
        value: text.to_owned(),
        rule: rule.to_owned(),
    };
    match default {
        toml::Value::String(_) => Ok(toml::Value::String(text.to_owned())),
        toml::Value::Integer(_) => text.trim().parse().map(toml::Value::Integer).map_err(|_| wrong("a whole number")),
        toml::Value::Boolean(_) => match text.trim() {
            "true" | "1" | "on" => Ok(toml::Value::Boolean(true)),
            "false" | "0" | "off" => Ok(toml::Value::Boolean(false)),
            _ => Err(wrong("true or false")),
        },
        _ => Ok(text
            .split(',')
            .map(str::trim)
            .filter(|item| !item.is_empty())
            .map(toml::Value::from)
            .collect::<Vec<_>>()
            .into()),
    }
}

fn set(table: &mut toml::Table, origin: &str, key: &str, value: toml::Value) -> Result<(), ConfigError> {
    let Some(place) = table.get_mut(key) else { return Err(unknown(table, origin, key)) };
    let negative = value.as_integer().is_some_and(|number| number < 0);
    if !place.same_type(&value) || negative {
        return Err(ConfigError::Value {
            origin: origin.to_owned(),
            key: key.to_owned(),
            value: value.to_string(),
            rule: if negative { "not negative".to_owned() } else { format!("of type {}", place.type_str()) },
        });
    }
    *place = value;
    Ok(())
}

fn unknown(table: &toml::Table, origin: &str, key: &str) -> ConfigError {
    let nearest = table.keys().min_by_key(|known| distance(known, key)).cloned().unwrap_or_default();
    ConfigError::Unknown { origin: origin.to_owned(), key: key.to_owned(), nearest }
}

/// Edit distance (Levenshtein 1966), for the nearest key.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, a) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, b) in b.iter().enumerate() {
            let substituted = diagonal + usize::from(a != *b);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    fn from(variables: &[(&str, &str)], flags: &[(&str, &str)]) -> Result<Config, ConfigError> {
        Config::from_sources(None, &map(variables), &map(flags))
    }

    #[test]
    fn flags_win_over_the_environment_and_that_over_defaults() {
        assert_eq!(from(&[], &[]).unwrap(), Config::default());
        let config = from(&[("pool_bytes", "8192"), ("multicast", "off")], &[("pool_bytes", "4096")]).unwrap();
        assert_eq!((config.pool_bytes, config.multicast), (4096, false));
        let config = from(&[("peers", "tcp/10.0.0.1:7447, tcp/10.0.0.2:7447")], &[]).unwrap();
        assert_eq!(config.peers, ["tcp/10.0.0.1:7447", "tcp/10.0.0.2:7447"]);
    }

    #[test]
    fn mistakes_name_the_key_and_what_it_should_be() {
        let text = |result: Result<Config, ConfigError>| result.unwrap_err().to_string();
        assert!(text(from(&[("pool_byte", "1")], &[])).contains("did you mean pool_bytes"));
        assert!(text(from(&[("pool_bytes", "many")], &[])).contains("a whole number"));
        assert!(text(from(&[("pool_bytes", "-1")], &[])).contains("not negative"));
        assert!(text(from(&[], &[("message_count", "5000")])).contains("from 1 to 4096"));
        assert!(text(from(&[], &[("chunk_bytes", "999999999")])).contains("(ring_bytes - watermark) / 2"));
        assert!(text(from(&[], &[("transport", "rdma")])).contains("no rdma link"));
    }

    #[test]
    fn ros_variables_set_the_discovery_range() {
        let mut variables = BTreeMap::new();
        apply_ros_range(&mut variables, |name| {
            (name == "ROS_AUTOMATIC_DISCOVERY_RANGE").then(|| "LOCALHOST".to_owned())
        });
        assert_eq!(variables["multicast"], "false");
        let mut variables = map(&[("peers", "tcp/1.2.3.4:1")]);
        apply_ros_range(&mut variables, |name| (name == "ROS_STATIC_PEERS").then(|| "5.6.7.8".to_owned()));
        assert_eq!(variables["peers"], "tcp/1.2.3.4:1");
    }

    #[test]
    fn every_key_can_be_written_to_a_file_and_read_back() {
        let text = toml::Table::try_from(Config::default()).unwrap().len();
        assert_eq!(text, defaults().len());
    }
}
