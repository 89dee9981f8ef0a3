//! Configuration: one TOML file. An environment variable or a flag overrides each key, and each key has a default that works on one machine.
//!
//! The order is default, file (`RGAPS_CONFIG`, else ~/.config/rgaps/config.toml if it exists), environment (`RGAPS_` and the key in capitals),
//! flags. An empty variable counts as not set, so that a script or a container's file can name one without a value. Numbers of bytes may have a
//! unit (see `size`); in a file they are text then: "64MiB". An unknown key is an error that names the nearest one. Clients, the command and the
//! manager check every value when they read it. The error names the origin, the value and the rule.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::limits::{Limits, is_bytes};
use crate::locator::is_locator;
use crate::range::{Decision, Range, RosVariables, Unset, settle};
use crate::reach::Network;
use crate::size;
use crate::text::plain;
use crate::wire::{ADDRESSES_MAX, Integrity, SIZE_MAX};

/// Bytes of the smallest pool: a page.
const POOL_BYTES_MIN: u64 = 4096;
/// Bytes of the largest chunk; a chunk's length on the wire has 32 bits.
const CHUNK_BYTES_MAX: u64 = 1 << 30;
/// Longest time-out: a day.
const TIMEOUT_MS_MAX: u64 = 86_400_000;
/// With a shorter time-out, a busy machine would count as dead.
const PEER_TIMEOUT_MS_MIN: u64 = 100;
/// Characters in a host's name, at most.
const HOST_NAME_MAX: usize = 64;

/// All keys.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Config {
    /// Name of this host as people see it; if empty, the machine's name.
    pub host_name: String,
    /// Bytes of a publisher's pool.
    pub pool_bytes: u64,
    /// Bytes of the pool for messages that arrive from one host on one topic; it grows until a message as large as the largest pool of that host's
    /// publishers fits, at most to `arrival_pool_bytes_max`.
    pub arrival_pool_bytes: u64,
    /// Messages that each publisher can have at a time, held and unread ones included; its history for late joiners comes on top. At most 4096, and
    /// 65536 for all publishers of a topic.
    pub message_count: u32,
    /// Bytes of a receive ring.
    pub ring_bytes: u64,
    /// Bytes of a chunk: one chunk is copied while the next is on the wire.
    pub chunk_bytes: u64,
    /// The receiver returns credit when it has read 1/n of the ring; 0 returns it at once.
    pub watermark_divisor: u64,
    /// Whether payload is copied to staging memory before it is sent: `auto` for device memory that the network card cannot read, `always` for all memory.
    pub staging: String,
    /// Transport of payload between hosts: `tcp`, `rdma`, or `auto` for RDMA if both hosts have RDMA devices with a route between them, else TCP.
    pub transport: String,
    /// Checksum of payload over TCP: `crc32c` or `none`. A link has no checksum only if both hosts say `none`. RDMA packets always have a CRC.
    pub integrity: String,
    /// RDMA device to use, or device and port: `mlx5_0`, `mlx5_0/1`; empty for any that reaches the other host.
    pub rdma_device: String,
    /// Address (GID) of that port to use: `10.0.0.2`, `fe80::1`; empty for any.
    pub rdma_gid: String,
    /// How long an RDMA link waits for a peer that acknowledges nothing.
    pub rdma_timeout_ms: u64,
    /// How long an RDMA link polls for completions before it sleeps, in microseconds; 0 sleeps at once and costs the least CPU time.
    pub rdma_spin_us: u64,
    /// Messages of at least this many bytes are written straight into the subscribers' pool over RDMA, without the ring; 0: none.
    pub rdma_landing_bytes: u64,
    /// Whether network cards read and write GPU memory themselves over RDMA (GPUDirect), where they can. Not yet run on hardware, so off by default.
    pub gpu_direct: bool,
    /// Memory of pools: `host`, `cuda`, `cuda:N` or `cuda:GPU-<uuid>` for one GPU, or `auto` for a GPU if this build can use one, else host memory.
    pub device: String,
    /// How far the network reaches: `local` opens no IP socket, `loopback` reaches managers of this machine only, `open` accepts every host that can
    /// connect, unauthenticated. If the key is not given, `peers`, `routers` and `listen` open the network.
    pub network: String,
    /// Addresses of other managers, as zenoh locators: tcp/10.0.0.2:7447. If no host answers within `peer_timeout_ms`, the log says so.
    pub peers: Vec<String>,
    /// Addresses of zenoh routers through which hosts find each other, instead of multicast: tcp/10.0.0.9:7447. Payload goes from host to host.
    /// Under rmw_zenoh_cpp the default is tcp/localhost:7447, where its nodes look for their router, if the network is open and none of `peers`,
    /// `listen`, `multicast` and `zenoh_config` is given.
    pub routers: Vec<String>,
    /// Address that this manager listens on, as a zenoh locator; if empty, zenoh chooses a port, on every address if the network is open, and with
    /// `peers`, but no `routers`, it also listens on port 7447, if that is free.
    pub listen: String,
    /// Whether hosts of the LAN find each other by multicast, if the network is open and there are no `routers`.
    pub multicast: bool,
    /// Addresses that data links listen on, in order of preference; empty is every address that `network` allows.
    pub data_address: Vec<String>,
    /// IPv4 networks that data links may connect to, beside the address that a host is seen at: `10.0.1.0/24`, `10.0.2.7`. Needed if hosts have data
    /// addresses that `peers` or multicast do not find.
    pub data_networks: Vec<String>,
    /// Group, by name or number, whose members may use this host's topics as this user may; empty for none.
    pub socket_group: String,
    /// How long the manager stays after its last client has disconnected.
    pub idle_timeout_ms: u64,
    /// How long the manager waits for a silent or unreachable host. A host that announces nothing for this long, and for at least a second, counts as
    /// gone; links with it stay while they live.
    pub peer_timeout_ms: u64,
    /// How long a stalled keep-all subscriber may delay arriving messages, or a stalled keep-all host this host's publishers, before the manager
    /// makes it keep-last.
    pub keep_all_timeout_ms: u64,
    /// A zenoh configuration file, for example with access control rules; empty for none. A file that needs what this build lacks (TLS, QUIC,
    /// passwords, keys) is refused.
    pub zenoh_config: String,
    /// Bytes of `rgapsd.log`, if a client started the manager. A full log replaces `rgapsd.log.1`, and a new one begins.
    pub log_bytes: u64,
    #[serde(flatten)]
    /// Budgets. Each is a key of its own in the file.
    pub limits: Limits,
    /// No key: whether `peers` are those of ROS_STATIC_PEERS, which name every host, this one too.
    #[serde(skip)]
    pub is_static_peer: bool,
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
            integrity: "crc32c".to_owned(),
            rdma_device: String::new(),
            rdma_gid: String::new(),
            rdma_timeout_ms: 2_000,
            rdma_spin_us: 0,
            rdma_landing_bytes: 128 << 10,
            gpu_direct: false,
            device: "auto".to_owned(),
            network: Range::Local.name().to_owned(),
            peers: Vec::new(),
            routers: Vec::new(),
            listen: String::new(),
            is_static_peer: false,
            multicast: true,
            data_address: Vec::new(),
            data_networks: Vec::new(),
            socket_group: String::new(),
            idle_timeout_ms: 10_000,
            peer_timeout_ms: 5_000,
            keep_all_timeout_ms: 2_000,
            zenoh_config: String::new(),
            log_bytes: 4 << 20,
            limits: Limits::default(),
        }
    }
}

/// A configuration, and the origin of each key that is not a default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Given {
    /// The configuration.
    pub config: Config,
    /// The origin of each given key: a file's path, `environment`, `flags` or a variable of ROS.
    pub origins: BTreeMap<String, String>,
    /// Which setting decided how far the network reaches.
    pub decision: Decision,
}

/// The configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("the configuration file {path} cannot be read: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file is not TOML.
    #[error("{path}: {message}")]
    Syntax {
        /// The file.
        path: PathBuf,
        /// Where and why.
        message: String,
    },
    /// No such key.
    #[error("{origin}: there is no key {key}; {}", meant(nearest.as_deref()))]
    Unknown {
        /// Where it was given.
        origin: String,
        /// The key.
        key: String,
        /// The key that was probably meant.
        nearest: Option<String>,
    },
    /// The value does not fit its key.
    #[error("{origin}: {key} is {value}; it must be {rule}")]
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
    /// One setting closes the network, and another one needs it.
    #[error(
        "{opens} needs a network that {closes} closes: remove one of the two (`network` overrides ROS's variables)"
    )]
    Contradiction {
        /// The setting that needs it.
        opens: String,
        /// The setting that closes it.
        closes: String,
    },
}

impl Given {
    /// Reads file, environment, then `flags` (key to value as text). `unset` says what applies if no setting decides about the network.
    pub fn load(flags: &BTreeMap<String, String>, unset: Unset) -> Result<Self, ConfigError> {
        // Our variables are UTF-8; a variable that is not cannot be one of them.
        let texts =
            std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
        let variables = keys_of(texts);
        let ros = RosVariables::read(unset, |name| std::env::var(name).ok());
        let file = match variable("RGAPS_CONFIG") {
            Some(path) => Some(PathBuf::from(path)),
            None => default_file().filter(|path| path.exists()),
        };
        Self::from_all(file.as_deref(), &variables, &ros, flags)
    }

    /// Reads the given sources only, for tests: the variables of ROS count as unset.
    pub fn from_sources(
        file: Option<&Path>,
        variables: &BTreeMap<String, String>,
        flags: &BTreeMap<String, String>,
    ) -> Result<Self, ConfigError> {
        Self::from_all(file, variables, &RosVariables::default(), flags)
    }

    fn from_all(
        file: Option<&Path>,
        variables: &BTreeMap<String, String>,
        ros: &RosVariables,
        flags: &BTreeMap<String, String>,
    ) -> Result<Self, ConfigError> {
        let read = |path: &Path| {
            std::fs::read_to_string(path).map_err(|source| ConfigError::Read { path: path.to_owned(), source })
        };
        let text = file.map(read).transpose()?;
        Self::from_texts(file.zip(text.as_deref()), variables, ros, flags)
    }

    fn from_texts(
        file: Option<(&Path, &str)>,
        variables: &BTreeMap<String, String>,
        ros: &RosVariables,
        flags: &BTreeMap<String, String>,
    ) -> Result<Self, ConfigError> {
        let mut table = defaults();
        let mut origins = BTreeMap::new();
        if let Some((path, text)) = file {
            let given: toml::Table = text.parse().map_err(|error: toml::de::Error| ConfigError::Syntax {
                path: path.to_owned(),
                message: error.to_string(),
            })?;
            for (key, value) in given {
                let value = match value {
                    toml::Value::String(text) if is_bytes(&key) => {
                        parse(&table, &path.display().to_string(), &key, &text)?
                    }
                    value => value,
                };
                set(&mut table, &path.display().to_string(), &key, value)?;
                origins.insert(key, path.display().to_string());
            }
        }
        for (origin, source) in [("environment", variables), ("flags", flags)] {
            for (key, text) in source {
                let value = parse(&table, origin, key, text)?;
                set(&mut table, origin, key, value)?;
                origins.insert(key.clone(), origin.to_owned());
            }
        }
        // Checked before the rest is read: the number may not even fit its type.
        check_message_count(&table, &origins)?;
        let mut config: Config = table.try_into().map_err(|error: toml::de::Error| ConfigError::Syntax {
            path: file.map_or(Path::new("configuration"), |(path, _)| path).to_owned(),
            message: error.to_string(),
        })?;
        config.check().map_err(|fault| fault.named(&origins))?;
        let decision = settle(&mut config, &mut origins, ros)?;
        // Again: `settle` has added the addresses of ROS_STATIC_PEERS.
        config.check_addresses().map_err(|fault| fault.named(&origins))?;
        Ok(Self { config, origins, decision })
    }
}

impl Config {
    /// The configuration of this process: file, environment, then `flags` (key to value as text).
    pub fn load(flags: &BTreeMap<String, String>) -> Result<Self, ConfigError> {
        Ok(Given::load(flags, Unset::Local)?.config)
    }

    /// Bytes of credit that a receiver may withhold.
    pub fn watermark_bytes(&self) -> u64 {
        self.ring_bytes.checked_div(self.watermark_divisor).unwrap_or(0)
    }

    /// The value of `integrity`.
    pub fn integrity(&self) -> Integrity {
        if self.integrity == "none" { Integrity::None } else { Integrity::Crc32c }
    }

    /// The number of `socket_group`.
    pub fn socket_gid(&self) -> Option<u32> {
        match self.socket_group.as_str() {
            "" => None,
            group => gid_of(group, &std::fs::read_to_string("/etc/group").unwrap_or_default()),
        }
    }

    fn check(&self) -> Result<(), Fault> {
        self.check_sizes()?;
        self.check_times()?;
        self.check_names()?;
        let limits = self.limits.check();
        limits.map_err(|(key, value, rule)| Fault { key, value: value.to_string(), rule: rule.to_owned() })?;
        self.check_addresses()
    }

    fn check_sizes(&self) -> Result<(), Fault> {
        let pools = POOL_BYTES_MIN..=SIZE_MAX;
        for (key, bytes) in [("pool_bytes", self.pool_bytes), ("arrival_pool_bytes", self.arrival_pool_bytes)] {
            require(pools.contains(&bytes), key, bytes, "from 4096 to 2^40 bytes; the default is 134217728 (128 MiB)")?;
        }
        let log = self.log_bytes;
        require((1 << 16..=1 << 30).contains(&log), "log_bytes", log, "from 64 KiB to 1 GiB; the default is 4 MiB")?;
        let ring = self.ring_bytes;
        let page = rgaps_os::page_bytes();
        let whole = ring.is_multiple_of(page) && (1 << 16..=SIZE_MAX).contains(&ring);
        require(whole, "ring_bytes", ring, &format!("whole pages of {page} bytes from 64 KiB to 1 TiB"))?;
        let divisor = self.watermark_divisor;
        require([0, 2, 4, 8].contains(&divisor), "watermark_divisor", divisor, "0, 2, 4 or 8")?;
        let most = ((ring - self.watermark_bytes()) / 2).min(CHUNK_BYTES_MAX);
        let rule = format!("from 4096 to (ring_bytes - watermark) / 2, here {most}; lower it or raise ring_bytes");
        require((4096..=most).contains(&self.chunk_bytes), "chunk_bytes", self.chunk_bytes, &rule)
    }

    fn check_times(&self) -> Result<(), Fault> {
        let day = "a day (86400000) at most, in milliseconds";
        require(self.idle_timeout_ms <= TIMEOUT_MS_MAX, "idle_timeout_ms", self.idle_timeout_ms, day)?;
        require(self.keep_all_timeout_ms <= TIMEOUT_MS_MAX, "keep_all_timeout_ms", self.keep_all_timeout_ms, day)?;
        let rule = "from 200 to 86400000 milliseconds; the default is 2000";
        let rdma = self.rdma_timeout_ms;
        require((200..=TIMEOUT_MS_MAX).contains(&rdma), "rdma_timeout_ms", rdma, rule)?;
        let rule = "from 0 (sleeps at once) to 1000000 microseconds";
        require(self.rdma_spin_us <= 1_000_000, "rdma_spin_us", self.rdma_spin_us, rule)?;
        let peer = self.peer_timeout_ms;
        let rule = "from 100 to 86400000 milliseconds; the default is 5000";
        require((PEER_TIMEOUT_MS_MIN..=TIMEOUT_MS_MAX).contains(&peer), "peer_timeout_ms", peer, rule)
    }

    fn check_names(&self) -> Result<(), Fault> {
        let name = &self.host_name;
        let shown = name.chars().count() <= HOST_NAME_MAX && plain(name) == *name;
        require(shown, "host_name", plain(name), "64 characters at most, all of them printable")?;
        require(["auto", "always"].contains(&self.staging.as_str()), "staging", &self.staging, "auto or always")?;
        let transport = self.transport.as_str();
        require(["auto", "tcp", "rdma"].contains(&transport), "transport", transport, "auto, tcp or rdma")?;
        require(["crc32c", "none"].contains(&self.integrity.as_str()), "integrity", &self.integrity, "crc32c or none")?;
        let gid = &self.rdma_gid;
        let rule = "an address of the RDMA port, as 10.0.0.2 or fe80::1, or empty";
        require(gid.is_empty() || gid.parse::<std::net::IpAddr>().is_ok(), "rdma_gid", gid, rule)?;
        let device = self.device.as_str();
        let one = device.strip_prefix("cuda:").is_some_and(|gpu| gpu.parse::<u32>().is_ok() || is_uuid(gpu));
        let known = ["auto", "host", "cuda"].contains(&device) || one;
        let rule = "auto, host, cuda, cuda:N or cuda:GPU-<uuid> with the 32 hex digits that nvidia-smi -L lists";
        require(known, "device", device, rule)?;
        let group = &self.socket_group;
        let rule = "the name of a group in /etc/group, or a group's number; `groupadd` makes one";
        require(group.is_empty() || self.socket_gid().is_some(), "socket_group", group, rule)?;
        let zenoh = &self.zenoh_config;
        let readable = zenoh.is_empty() || Path::new(zenoh).is_file();
        require(readable, "zenoh_config", zenoh, "the path of a file that exists, or empty")
    }

    fn check_addresses(&self) -> Result<(), Fault> {
        let network = &self.network;
        require(Range::named(network).is_some(), "network", network, "local, loopback or open")?;
        let addresses = &self.data_address;
        require(addresses.len() <= ADDRESSES_MAX, "data_address", addresses.len(), "64 addresses at most")?;
        for address in addresses {
            let rule = "IPv4 addresses of this host without ports, as 10.0.0.2,192.168.1.2";
            require(address.parse::<Ipv4Addr>().is_ok(), "data_address", address, rule)?;
        }
        for network in &self.data_networks {
            let rule = "networks or addresses of IPv4, as 10.0.1.0/24,10.0.2.7";
            require(network.parse::<Network>().is_ok(), "data_networks", network, rule)?;
        }
        let rule =
            "a locator with protocol and port, as tcp/10.0.0.2:7447; this build reaches other hosts over tcp only";
        for (key, locators) in [("peers", &self.peers), ("routers", &self.routers)] {
            for locator in locators {
                require(is_locator(locator), key, locator, rule)?;
            }
        }
        require(self.listen.is_empty() || is_locator(&self.listen), "listen", &self.listen, rule)
    }
}

/// A value that does not fit its key.
struct Fault {
    key: &'static str,
    value: String,
    rule: String,
}

impl Fault {
    fn named(self, origins: &BTreeMap<String, String>) -> ConfigError {
        let origin = origins.get(self.key).map_or("default", String::as_str).to_owned();
        ConfigError::Value { origin, key: self.key.to_owned(), value: self.value, rule: self.rule }
    }
}

fn require(holds: bool, key: &'static str, value: impl ToString, rule: &str) -> Result<(), Fault> {
    if holds { Ok(()) } else { Err(Fault { key, value: value.to_string(), rule: rule.to_owned() }) }
}

fn check_message_count(table: &toml::Table, origins: &BTreeMap<String, String>) -> Result<(), ConfigError> {
    let count = table.get("message_count").and_then(toml::Value::as_integer).unwrap_or_default();
    let rule = "from 1 to 4096";
    require((1..=4096).contains(&count), "message_count", count, rule).map_err(|fault| fault.named(origins))
}

/// A group's number, by its name in the text of /etc/group or as it is.
fn gid_of(group: &str, file: &str) -> Option<u32> {
    let named = file.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next() == Some(group)).then(|| fields.nth(1)?.parse().ok())?
    });
    named.or_else(|| group.parse().ok().filter(|gid| *gid != u32::MAX))
}

/// Whether this is a GPU's identity as nvidia-smi writes it, with or without dashes. rgaps-device reads it by the same rule.
fn is_uuid(text: &str) -> bool {
    let digits = text.strip_prefix("GPU-").map(|digits| digits.replace('-', ""));
    digits.is_some_and(|digits| digits.len() == 32 && digits.chars().all(|digit| digit.is_ascii_hexdigit()))
}

fn defaults() -> toml::Table {
    match toml::Table::try_from(Config::default()) {
        Ok(table) => table,
        Err(error) => unreachable!("the default configuration is TOML: {error}"),
    }
}

fn default_file() -> Option<PathBuf> {
    let home = variable("XDG_CONFIG_HOME")
        .map(PathBuf::from)
        .or_else(|| variable("HOME").map(|home| PathBuf::from(home).join(".config")))?;
    Some(home.join("rgaps/config.toml"))
}

/// Variables that configure the process and are not keys of the configuration.
const NOT_KEYS: [&str; 7] = ["CONFIG", "RUNTIME_DIR", "AUTOSTART", "CRASH_POINT", "LOG", "SKIPPED_LIST", "INNER_RMW"];
/// Variables of the tests.
const TEST_PREFIX: &str = "TEST_";

/// An environment variable that has a value.
pub fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

/// The keys that environment variables set.
fn keys_of(variables: impl Iterator<Item = (String, String)>) -> BTreeMap<String, String> {
    let set = variables.filter(|(_, value)| !value.is_empty());
    set.filter_map(|(name, value)| Some((variable_key(&name)?, value))).collect()
}

fn variable_key(name: &str) -> Option<String> {
    let key = name.strip_prefix("RGAPS_")?;
    (!NOT_KEYS.contains(&key) && !key.starts_with(TEST_PREFIX)).then(|| key.to_ascii_lowercase())
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
        toml::Value::Integer(_) if is_bytes(key) && !text.trim_start().starts_with('-') => {
            let bytes = size::parse(text).and_then(|bytes| i64::try_from(bytes).ok());
            bytes.map(toml::Value::Integer).ok_or_else(|| wrong(size::RULE))
        }
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
            rule: if negative {
                "a number that is not negative".to_owned()
            } else {
                format!("of type {}", place.type_str())
            },
        });
    }
    *place = value;
    Ok(())
}

fn unknown(table: &toml::Table, origin: &str, key: &str) -> ConfigError {
    let nearest = table.keys().min_by_key(|known| distance(known, key));
    let nearest = nearest.filter(|nearest| distance(nearest, key) <= key.len().div_ceil(3)).cloned();
    ConfigError::Unknown { origin: origin.to_owned(), key: key.to_owned(), nearest }
}

fn meant(nearest: Option<&str>) -> String {
    match nearest {
        Some(nearest) => format!("did you mean {nearest}?"),
        None => "docs/configuration.md has them all".to_owned(),
    }
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

/// Fuzz entry: a file's text, the byte 0xff, and an environment of lines NAME=VALUE. An accepted configuration passes its own check, and reads
/// back equal from a manager's note of it.
pub fn fuzz_config(data: &[u8]) -> bool {
    let (file, rest) = data.split_at(data.iter().position(|byte| *byte == 0xff).unwrap_or(data.len()));
    let (Ok(file), Ok(lines)) = (str::from_utf8(file), str::from_utf8(rest.get(1..).unwrap_or_default())) else {
        return false;
    };
    let variables = || lines.lines().filter_map(|line| line.split_once('=')).map(|(a, b)| (a.to_owned(), b.to_owned()));
    let take = |file: &str, variables: &BTreeMap<String, String>, ros: &RosVariables| {
        Given::from_texts(Some((Path::new(file), file)), variables, ros, &BTreeMap::new()).map(|given| given.config)
    };
    let mut is_accepted = false;
    for unset in [Unset::Local, Unset::Subnet] {
        let ros =
            RosVariables::read(unset, |name| variables().find(|(known, _)| known == name).map(|(_, value)| value));
        let Ok(config) = take(file, &keys_of(variables()), &ros) else { continue };
        is_accepted = true;
        assert!(config.check().is_ok(), "{config:?}");
        let config = Config { is_static_peer: false, ..config };
        let noted = toml::to_string(&config).unwrap_or_default();
        let again = take(&noted, &BTreeMap::new(), &RosVariables::default());
        assert!(again.as_ref().is_ok_and(|again| *again == config), "{config:?} is noted as {again:?}");
    }
    let group = lines.lines().next().unwrap_or_default();
    assert_ne!(gid_of(group, file), Some(u32::MAX), "no group has that number");
    is_accepted
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    fn from(variables: &[(&str, &str)], flags: &[(&str, &str)]) -> Result<Config, ConfigError> {
        Ok(Given::from_sources(None, &map(variables), &map(flags))?.config)
    }

    #[test]
    fn flags_win_over_the_environment_and_that_over_defaults() {
        assert_eq!(from(&[], &[]).unwrap(), Config::default());
        let config = from(&[("pool_bytes", "8192"), ("multicast", "off")], &[("pool_bytes", "4096")]).unwrap();
        assert_eq!((config.pool_bytes, config.multicast), (4096, false));
        let config = from(&[("ring_bytes", "16MiB")], &[("pool_bytes", "2 GB")]).unwrap();
        assert_eq!((config.ring_bytes, config.pool_bytes), (16 << 20, 2_000_000_000));
        let config = from(&[("peers", "tcp/10.0.0.1:7447, tcp/10.0.0.2:7447")], &[]).unwrap();
        assert_eq!(config.peers, ["tcp/10.0.0.1:7447", "tcp/10.0.0.2:7447"]);
    }

    #[test]
    fn mistakes_name_the_key_and_what_it_should_be() {
        let text = |result: Result<Config, ConfigError>| result.unwrap_err().to_string();
        assert!(text(from(&[("pool_byte", "1")], &[])).contains("did you mean pool_bytes"));
        assert!(!text(from(&[("foo", "1")], &[])).contains("did you mean"));
        assert!(text(from(&[("pool_bytes", "many")], &[])).contains("a whole number"));
        assert!(text(from(&[("pool_bytes", "-1")], &[])).contains("not negative"));
        assert!(text(from(&[], &[("message_count", "5000")])).contains("from 1 to 4096"));
        assert!(text(from(&[], &[("chunk_bytes", "999999999")])).contains("(ring_bytes - watermark) / 2"));
        assert!(text(from(&[], &[("transport", "udp")])).contains("auto, tcp or rdma"));
    }

    #[test]
    fn every_value_that_cannot_work_is_refused_with_its_key_and_a_rule() {
        let long_name = "x".repeat(65);
        let crowd = vec!["10.0.0.1"; 65].join(",");
        let bad = [
            ("pool_bytes", "0", "from 4096"),
            ("pool_bytes", "2199023255552", "2^40"),
            ("arrival_pool_bytes", "0", "from 4096"),
            ("message_count", "0", "from 1 to 4096"),
            ("message_count", "99999999999", "from 1 to 4096"),
            ("ring_bytes", "70000", "whole pages"),
            ("watermark_divisor", "3", "0, 2, 4 or 8"),
            ("chunk_bytes", "0", "from 4096"),
            ("chunk_bytes", "29360129", "here 29360128"),
            ("peer_timeout_ms", "0", "the default is 5000"),
            ("peer_timeout_ms", "9999999999999", "86400000"),
            ("idle_timeout_ms", "9999999999999", "a day"),
            ("keep_all_timeout_ms", "9999999999999", "a day"),
            ("data_address", "10.0.0.256", "IPv4"),
            ("data_address", "10.0.0.1:80", "without ports"),
            ("data_address", &crowd, "64 addresses"),
            ("data_networks", "10.0.1.0/33", "10.0.1.0/24"),
            ("device", "gpu", "cuda:N"),
            ("device", "cuda:x", "cuda:N"),
            ("device", "cuda:GPU-uuid", "32 hex digits"),
            ("device", "cuda:GPU-5a010203-0405-0607-0809-0a0b0c0d0ef", "32 hex digits"),
            ("device", "cuda:GPU-5a010203-0405-0607-0809-0a0b0c0d0egg", "32 hex digits"),
            ("peers", "10.0.0.2:7447", "tcp/10.0.0.2:7447"),
            ("peers", "udp/10.0.0.2:7447", "tcp only"),
            ("peers", "tcp/10.0.0.2", "tcp/10.0.0.2:7447"),
            ("network", "closed", "local, loopback or open"),
            ("listen", "tcp/10.0.0.2:99999", "tcp/10.0.0.2:7447"),
            ("listen", "tcp/fe80::1:7447", "tcp/10.0.0.2:7447"),
            ("socket_group", "no such group", "/etc/group"),
            ("staging", "never", "auto or always"),
            ("transport", "udp", "auto, tcp or rdma"),
            ("integrity", "md5", "crc32c or none"),
            ("rdma_timeout_ms", "0", "the default is 2000"),
            ("rdma_spin_us", "9999999", "1000000"),
            ("rdma_gid", "mlx5_0", "10.0.0.2"),
            ("host_name", &long_name, "64 characters"),
            ("zenoh_config", "/nowhere/zenoh.json5", "a file that exists"),
            ("links_max", "0", "from 1 to 1048576"),
            ("remote_publishers_max", "256", "from 1 to 255"),
            ("announced_bytes_max", "1K", "64 KiB"),
            ("spare_fds_percent", "100", "from 0 to 90"),
        ];
        for (key, value, rule) in bad {
            let said = from(&[(key, value)], &[]).unwrap_err().to_string();
            assert!(said.starts_with(&format!("environment: {key} is ")) && said.contains(rule), "{said}");
        }
        let said = from(&[("ring_bytes", "65536")], &[]).unwrap_err().to_string();
        assert!(said.starts_with("default: chunk_bytes is 1048576") && said.contains("raise ring_bytes"), "{said}");
        let good = [
            ("chunk_bytes", "29360128"),
            ("peers", "tcp/[fe80::1]:7447,tcp/robot.local:7447?rel=1#iface=eth0"),
            ("device", "cuda:3"),
            ("data_address", "10.0.0.1,10.0.1.1"),
            ("data_networks", "10.0.0.0/8,10.0.1.1"),
            ("network", "open"),
            ("idle_timeout_ms", "0"),
        ];
        assert!(from(&good, &[]).is_ok());
    }

    #[test]
    fn an_empty_variable_counts_as_not_set_and_an_empty_flag_empties() {
        let pairs = [("RGAPS_DEVICE", ""), ("RGAPS_PEERS", ""), ("RGAPS_RING_BYTES", ""), ("RGAPS_LISTEN", "tcp/a:1")];
        let variables = keys_of(pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).into_iter());
        assert_eq!(variables, map(&[("listen", "tcp/a:1")]));
        let config = from(&[("peers", "tcp/10.0.0.1:7447")], &[("peers", "")]).unwrap();
        assert!(config.peers.is_empty());
    }

    #[test]
    fn groups_are_found_by_name_and_by_number() {
        let file = "root:x:0:\nvideo:x:44:ann,bob\n7:x:9:\n";
        assert_eq!(
            ["video", "7", "12", "vid", "-1"].map(|group| gid_of(group, file)),
            [Some(44), Some(9), Some(12), None, None]
        );
        assert_eq!(from(&[("socket_group", "1234")], &[]).unwrap().socket_gid(), Some(1234));
        assert_eq!(Config::default().socket_gid(), None);
    }

    #[test]
    fn a_file_may_have_units_for_keys_of_bytes_only() {
        let path = std::env::temp_dir().join(format!("rgaps-config-{}.toml", std::process::id()));
        let read = |text: &str| {
            std::fs::write(&path, text).unwrap();
            Given::from_sources(Some(&path), &BTreeMap::new(), &BTreeMap::new())
        };
        let config = read("ring_bytes = \"16MiB\"\npool_bytes = 8192").unwrap().config;
        assert_eq!((config.ring_bytes, config.pool_bytes), (16 << 20, 8192));
        for (text, rule) in [("ring_bytes = \"much\"", "powers of two"), ("message_count = \"1K\"", "of type integer")]
        {
            let said = read(text).unwrap_err().to_string();
            assert!(said.starts_with(&path.display().to_string()) && said.contains(rule), "{said}");
        }
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn every_key_can_be_written_to_a_file_and_read_back() {
        let text = toml::Table::try_from(Config::default()).unwrap().len();
        assert_eq!(text, defaults().len());
    }
}
