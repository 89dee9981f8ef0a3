//! The running manager, for a client that wants to know whether it has the configuration that the client would have started it with.
//!
//! A manager reads its configuration when it starts and writes it to its runtime directory. A client that finds it running cannot change it:
//! keys that were given to the client with other values have no effect. `warning` says so.

use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::announcements::Counters;
use crate::config::{Config, ConfigError, Given};
use crate::local::{Connection, LocalError};
use crate::range::Range;
use crate::runtime::{CONFIG_FILE, NETWORK_FILE, SOCKET_FILE};
use crate::runtime_path::RuntimePath;
use crate::text::plain;

/// The manager of a runtime directory.
#[derive(Clone, Debug)]
pub struct Running {
    /// Its process id; 0 if it is not visible from here: outside of this container, or while the process takes no connections.
    pub pid: u32,
    /// Its configuration; `None` if it cannot be read.
    pub config: Option<Config>,
    /// What it has received from the network; `None` if that cannot be read, or if it has received nothing.
    pub network: Option<Counters>,
}

/// A key whose value was given to a client and differs from the manager's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The key.
    pub key: String,
    /// The client's value, as TOML.
    pub wanted: String,
    /// The origin of the client's value.
    pub origin: String,
    /// The manager's value, as TOML.
    pub actual: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, wanted, origin, actual } = self;
        write!(f, "{key} = {wanted} ({origin}; the manager has {actual})")
    }
}

impl fmt::Display for Running {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.pid {
            0 => f.write_str("a process that cannot be seen from here"),
            pid => write!(f, "process {pid}"),
        }
    }
}

impl Running {
    /// The manager of this process's runtime directory, if one listens there. Creates and starts nothing.
    pub fn find() -> Option<Self> {
        Self::find_in(&RuntimePath::of_environment().path)
    }

    fn find_in(dir: &Path) -> Option<Self> {
        // Ask the kernel which process listens: a file may be of a manager that was killed.
        match Connection::connect(&dir.join(SOCKET_FILE)) {
            Ok(connection) => Some(Self::new(dir, connection?.peer().ok()?.pid)),
            // It lives, and takes no connections: it is stopped, or slow.
            Err(LocalError::Stuck) => Some(Self::new(dir, 0)),
            Err(_) => None,
        }
    }

    /// The socket of this process's runtime directory, as device and inode number: it is another one once another manager serves.
    pub fn socket() -> Option<(u64, u64)> {
        let found = fs::metadata(RuntimePath::of_environment().path.join(SOCKET_FILE)).ok()?;
        Some((found.dev(), found.ino()))
    }

    /// The manager with process id `pid`, which is known to serve a directory.
    pub fn new(dir: &Path, pid: u32) -> Self {
        let config = fs::read_to_string(dir.join(CONFIG_FILE)).unwrap_or_default();
        let network = fs::read(dir.join(NETWORK_FILE)).unwrap_or_default();
        Self::from_texts(pid, &config, &network)
    }

    fn from_texts(pid: u32, config: &str, network: &[u8]) -> Self {
        let table = config.parse::<toml::Table>().ok().filter(|table| !table.is_empty());
        let config = table.and_then(|table| table.try_into().ok());
        Self { pid, config, network: serde_json::from_slice(network).ok() }
    }

    /// A warning to the client's user, if keys of this configuration have no effect because this manager already runs.
    pub fn warning(&self, given: Result<Given, ConfigError>) -> Option<String> {
        let given = match given {
            Ok(given) => given,
            Err(error) => {
                return Some(format!("the configuration is wrong; the running manager ignores it: {error}"));
            }
        };
        let differences: Vec<String> = self.differences(&given).iter().map(ToString::to_string).collect();
        let seconds = self.config.as_ref()?.idle_timeout_ms as f64 / 1e3;
        let kill = if self.pid == 0 { "there".to_owned() } else { format!("`kill {}`", self.pid) };
        let is_pool = differences.iter().any(|difference| difference.starts_with("pool_bytes"));
        let buffers = if is_pool { " (it has effect on this program's rosidl::Buffer messages)" } else { "" };
        (!differences.is_empty()).then(|| {
            format!(
                "without effect, since the manager already runs ({self}): {}{buffers}; give this program the manager's settings, or end the \
                             manager ({kill}, or end its clients and wait {seconds} s) and start again",
                differences.join(", ")
            )
        })
    }

    /// The given keys that this manager has with another value. Defaults do not count as given, except that of `network` if the manager is open:
    /// others can then read and write this program's topics.
    pub fn differences(&self, given: &Given) -> Vec<Difference> {
        let table = |config: &Config| toml::Table::try_from(config).unwrap_or_default();
        let Some(config) = &self.config else { return Vec::new() };
        let (actual, wanted) = (table(config), table(&given.config));
        let network = ("network".to_owned(), "the default".to_owned());
        let is_exposed = config.range() == Range::Open && !given.origins.contains_key(&network.0);
        let exposed = is_exposed.then_some((&network.0, &network.1));
        let differing = given.origins.iter().chain(exposed).filter_map(|(key, origin)| {
            let (wanted, actual) = (wanted.get(key)?, actual.get(key)?);
            (wanted != actual).then(|| Difference {
                key: key.clone(),
                wanted: wanted.to_string(),
                origin: origin.clone(),
                // TOML escapes control characters but not bidirectional ones, and the manager may be another user's.
                actual: plain(&actual.to_string()).into_owned(),
            })
        });
        differing.collect()
    }
}

/// Fuzz entry: the text of config.toml, the byte 0xff, and that of network.json, as another user's manager may have written them. A client's
/// warning about them is safe to print.
pub fn fuzz_running(data: &[u8]) -> bool {
    let (config, network) = data.split_at(data.iter().position(|byte| *byte == 0xff).unwrap_or(data.len()));
    let Ok(config) = str::from_utf8(config) else { return false };
    let running = Running::from_texts(1, config, network.get(1..).unwrap_or_default());
    let keys = toml::Table::try_from(Config::default()).unwrap_or_default().into_iter();
    let origins = keys.map(|(key, _)| (key, "flags".to_owned())).collect();
    if let Some(warning) = running.warning(Ok(Given { origins, ..Given::default() })) {
        assert_eq!(plain(&warning), warning);
    }
    let Some(counters) = running.network else { return false };
    let again = serde_json::to_vec(&counters).map(|text| serde_json::from_slice(&text).ok());
    assert!(again.is_ok_and(|again| again == Some(counters)));
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::local::Listener;
    use crate::range::{RosVariables, Unset, settle};
    use crate::runtime::RuntimeDir;
    use std::collections::BTreeMap;

    fn given(variables: &[(&str, &str)]) -> Given {
        let map = variables.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        Given::from_sources(None, &map, &BTreeMap::new()).unwrap()
    }

    #[test]
    fn a_manager_is_found_with_its_configuration_until_it_has_left() {
        let path = std::env::temp_dir().join(format!("rgaps-running-{}", std::process::id()));
        assert!(Running::find_in(&path).is_none() && !path.exists(), "looking creates nothing");
        let dir = RuntimeDir::open(&path).unwrap();
        let lock = dir.lock().unwrap();
        let config = given(&[("listen", "tcp/127.0.0.1:0")]).config;
        dir.note_config(&config).unwrap();
        let listener = Listener::bind(&dir.socket()).unwrap();
        let running = Running::find_in(&path).unwrap();
        assert_eq!((running.pid, running.config), (std::process::id(), Some(config)));
        drop(listener);
        assert!(Running::find_in(&path).is_none());
        dir.remove_files(lock, false);
        assert!(!path.exists());
    }

    #[test]
    fn only_given_keys_with_another_value_are_differences() {
        let config = given(&[("peers", "tcp/10.0.0.1:7447"), ("ring_bytes", "16777216")]).config;
        let running = Running { pid: 1, config: Some(config), network: None };
        assert!(running.differences(&given(&[("network", "open")])).is_empty(), "defaults do not count");
        assert!(running.differences(&given(&[("network", "open"), ("ring_bytes", "16777216")])).is_empty());
        let said: Vec<String> = running
            .differences(&given(&[("peers", "tcp/10.0.0.2:7447"), ("multicast", "off")]))
            .iter()
            .map(Difference::to_string)
            .collect();
        assert_eq!(
            said,
            [
                "multicast = false (environment; the manager has true)",
                "peers = [\"tcp/10.0.0.2:7447\"] (environment; the manager has [\"tcp/10.0.0.1:7447\"])",
            ]
        );
        assert!(
            Running { pid: 1, config: None, network: None }.differences(&given(&[("multicast", "off")])).is_empty()
        );
    }

    #[test]
    fn a_program_without_settings_is_warned_that_its_manager_is_open() {
        let open = Running { pid: 12, config: Some(given(&[("network", "open")]).config), network: None };
        let said = open.warning(Ok(given(&[]))).unwrap();
        assert!(said.contains("network = \"local\" (the default; the manager has \"open\")"), "{said}");
        assert_eq!(open.warning(Ok(given(&[("network", "open")]))), None);
    }

    #[test]
    fn notes_of_another_users_manager_are_shown_escaped() {
        let noted = "idle_timeout_ms = 5\nlisten = \"tcp/a\\u202eb\\u001b:1\"\n";
        let running = Running::from_texts(7, noted, b"");
        let said = running.warning(Ok(given(&[("listen", "tcp/127.0.0.1:0")]))).unwrap();
        assert!(said.contains("has \"tcp/a\\u{202e}b"), "{said}");
        assert_eq!(plain(&said), said);
    }

    #[test]
    fn a_ros_2_node_without_settings_is_warned_that_its_manager_is_local() {
        let mut wanted = given(&[]);
        let ros = RosVariables::read(Unset::Subnet, |_| None);
        wanted.decision = settle(&mut wanted.config, &mut wanted.origins, &ros).unwrap();
        let running = Running { pid: 1, config: Some(Config::default()), network: None };
        let said = running.warning(Ok(wanted)).unwrap();
        for part in ["network = \"open\"", "which means SUBNET to ROS 2 nodes", "has \"local\""] {
            assert!(said.contains(part), "{said}");
        }
    }

    #[test]
    fn the_warning_has_the_key_both_values_and_what_to_do() {
        let running = Running { pid: 12, config: Some(Config::default()), network: None };
        assert_eq!(running.warning(Ok(given(&[]))), None);
        let said = running.warning(Ok(given(&[("listen", "tcp/0.0.0.0:7447")]))).unwrap();
        for part in ["listen = \"tcp/0.0.0.0:7447\"", "has \"\"", "`kill 12`", "wait 10 s"] {
            assert!(said.contains(part), "{said}");
        }
        let wrong =
            Given::from_sources(None, &BTreeMap::from([("peers".to_owned(), "junk".to_owned())]), &BTreeMap::new());
        let said = running.warning(wrong).unwrap();
        assert!(said.contains("environment: peers is junk"), "{said}");
    }
}
