//! zenoh's configuration: the file that `zenoh_config` names, overridden by our own keys.
//!
//! Trusts      nothing in the file. zenoh ignores settings of transports and authentication that are not compiled in. Users would rely on them in
//!             vain, so a file with such a setting is refused, with the key's name. Access control rules work in this build, except with subjects
//!             that are users or certificates.

use rgaps_os::fds;
use serde_json::Value;
use zenoh::Config as Zenoh;

use crate::config::Config;
use crate::network::NetworkError;
use crate::range::Range;

/// Shortest lease: zenoh sends four keep-alives in it, from threads that a busy machine may delay.
const LEASE_MS_MIN: u64 = 1000;
/// How long zenoh waits for the hand-shake of an incoming connection. An honest host needs a few round trips, and tries again.
const ACCEPT_TIMEOUT_MS: u64 = 2_000;
/// Incoming connections in zenoh's hand-shake at a time, at most; zenoh refuses more.
const ACCEPT_PENDING_MAX: u64 = 1024;
/// Pauses between attempts to connect to one of `peers`. zenoh's default, 1 s to 4 s, would delay a host whose network is back.
const RETRY: &str = "{period_init_ms: 250, period_max_ms: 500, period_increase_factor: 2}";
/// Longest attempt of zenoh to open a link: its default. The kernel repeats a lost SYN after growing pauses, so an attempt that began during a
/// network cut succeeds late or not at all.
const OPEN_TIMEOUT_MS_MAX: u64 = 10_000;
/// Sections that this build lacks, each with the reason; a file that sets any key below them is refused.
const SECTIONS_MISSING: [(&str, &str); 3] = [
    ("transport/link/tls", "TLS and QUIC links are not built in"),
    ("transport/auth/usrpwd", "users and passwords are not built in"),
    ("transport/auth/pubkey", "authentication by keys is not built in"),
];
/// Keys that zenoh leaves out when it shows their section, since they hold secrets.
const SECRETS: [&str; 5] = [
    "root_ca_certificate_base64",
    "listen_private_key_base64",
    "listen_certificate_base64",
    "connect_private_key_base64",
    "connect_certificate_base64",
];
/// Keys of access control subjects that this build lacks, each with the reason.
const SUBJECTS_MISSING: [(&str, &str); 2] = [
    ("usernames", "users and passwords are not built in, so no host would match"),
    ("cert_common_names", "TLS and QUIC links are not built in, so no host would match"),
];
/// How long a thread of zenoh waits for a host that does not read before it closes the connection, in ms. All hosts share two such threads. A host
/// behind a slow network reads one batch of zenoh's, 64 KiB, in this time even at 1 Mbit/s.
const BLOCKED_MS: u64 = 1000;
/// For each kind of zenoh node: no kinds of nodes.
const NOBODY: &str = r#"{"router":[],"peer":[],"client":[]}"#;
/// zenoh's port, on which a host listens if `peers` is set and `listen` is not, beside one that the kernel chooses.
const PORT: u16 = 7447;
/// Every address of this host, of IPv6 and IPv4.
const ANY: &str = "[::]";
const ONLY_TCP: &str = "only links over tcp are built in";

/// The configuration for zenoh; `None` if it shall not run.
pub(crate) fn zenoh_config(config: &Config) -> Result<Option<Zenoh>, NetworkError> {
    let zenoh = match config.zenoh_config.as_str() {
        "" => Zenoh::default(),
        path => {
            let zenoh = Zenoh::from_file(path).map_err(|error| failed(format!("{path}: {error}")))?;
            refuse_what_is_missing(&zenoh).map_err(|why| failed(format!("{path}: {why}")))?;
            zenoh
        }
    };
    with_ours(config, zenoh)
}

/// Applies our own keys to a configuration of zenoh.
fn with_ours(config: &Config, mut zenoh: Zenoh) -> Result<Option<Zenoh>, NetworkError> {
    let range = config.range();
    if range == Range::Local {
        return Ok(None);
    }
    let defaults = Zenoh::default();
    let ours = [
        // Each pending connection costs a file descriptor, and topics need most of those.
        ("transport/unicast/accept_pending", ACCEPT_PENDING_MAX.min(fds::limit() / 8).max(16).to_string()),
        ("transport/unicast/accept_timeout", ACCEPT_TIMEOUT_MS.to_string()),
        ("transport/unicast/max_sessions", config.limits.hosts_max.to_string()),
        (
            "transport/unicast/open_timeout",
            (config.peer_timeout_ms / 2).clamp(LEASE_MS_MIN, OPEN_TIMEOUT_MS_MAX).to_string(),
        ),
        ("connect/retry", RETRY.to_owned()),
        // By default zenoh waits half a second for scouted peers when it opens, and a manager's clients with it. Later peers are events.
        ("open/return_conditions/connect_scouted", "false".to_owned()),
        ("transport/link/tx/queue/congestion_control/block/wait_before_close", (BLOCKED_MS * 1000).to_string()),
    ];
    // A file's own values win.
    let ours: Vec<_> =
        ours.into_iter().filter(|(key, _)| zenoh.get_json(key).ok() == defaults.get_json(key).ok()).collect();
    let listens_by_default = zenoh.get_json("listen/endpoints").ok() == defaults.get_json("listen/endpoints").ok();
    let mut set =
        |key: &str, value: String| zenoh.insert_json5(key, &value).map_err(|error| failed(format!("{key}: {error}")));
    let list = |items: &[String]| serde_json::to_string(items).unwrap_or_else(|_| "[]".to_owned());
    set("mode", "\"peer\"".to_owned())?;
    for (key, value) in ours {
        set(key, value)?;
    }
    set("transport/link/tx/lease", config.peer_timeout_ms.max(LEASE_MS_MIN).to_string())?;
    set("scouting/multicast/enabled", config.scouts().to_string())?;
    if range == Range::Loopback {
        // Also against a file: a loopback peer may know hosts beyond loopback, and gossip would connect this host to them.
        set("scouting/gossip/autoconnect", NOBODY.to_owned())?;
        set("scouting/gossip/target", NOBODY.to_owned())?;
        set("connect/endpoints", list(&config.peers))?;
        let listen = match (config.listen.as_str(), config.is_static_peer) {
            ("", false) => vec!["tcp/127.0.0.1:0".to_owned()],
            // As below: managers of one machine that all name it need no `listen`.
            ("", true) => ["127.0.0.1:0".to_owned(), format!("127.0.0.1:{PORT}"), format!("[::1]:{PORT}")]
                .map(|address| format!("tcp/{address}"))
                .into(),
            (given, _) => vec![given.to_owned()],
        };
        set("listen/exit_on_failure", (listen.len() == 1).to_string())?;
        set("listen/endpoints", list(&listen))?;
        return Ok(Some(zenoh));
    }
    if !(config.peers.is_empty() && config.routers.is_empty()) {
        set("connect/endpoints", list(&[&config.peers[..], &config.routers].concat()))?;
    }
    if !config.routers.is_empty() {
        // Other programs use these routers, too: this host connects to none of them, nor do they connect to it.
        set("scouting/gossip/autoconnect", NOBODY.to_owned())?;
        set("scouting/gossip/target", NOBODY.to_owned())?;
    }
    let any = any_address();
    if !config.listen.is_empty() {
        set("listen/endpoints", list(std::slice::from_ref(&config.listen)))?;
    } else if !config.peers.is_empty() && config.routers.is_empty() && listens_by_default {
        // Hosts that name each other as peers need no `listen`. Where another process has the port, this host is reached over its own links only.
        set("listen/endpoints", list(&[format!("tcp/{any}:{PORT}"), format!("tcp/{any}:0")]))?;
        set("listen/exit_on_failure", "false".to_owned())?;
    } else if listens_by_default && any != ANY {
        set("listen/endpoints", list(&[format!("tcp/{any}:0")]))?;
    }
    Ok(Some(zenoh))
}

/// Whether this host and others can only find each other by multicast, on the interfaces that zenoh finds when it opens.
pub(crate) fn is_found_by_multicast_only(config: &Config) -> Result<bool, NetworkError> {
    let Some(zenoh) = zenoh_config(config)?.filter(|_| config.scouts() && config.listen.is_empty()) else {
        return Ok(false);
    };
    // What `with_ours` sets without `peers` and `listen`, and what a file may set.
    let listen = zenoh.get_json("listen/endpoints").unwrap_or_default();
    let is_default = |key: &str| zenoh.get_json(key).ok() == Zenoh::default().get_json(key).ok();
    let keys = ["connect/endpoints", "scouting/multicast/address", "scouting/multicast/interface"];
    Ok((is_default("listen/endpoints") || listen == r#"["tcp/0.0.0.0:0"]"#) && keys.into_iter().all(is_default))
}

/// The configuration of a session that introduces hosts to this one: it neither scouts nor listens. `None` if scouting is off.
pub(crate) fn introducer(config: &Config) -> Result<Option<Zenoh>, NetworkError> {
    let Some(mut zenoh) = zenoh_config(config)?.filter(|_| config.scouts()) else { return Ok(None) };
    for (key, value) in [("scouting/multicast/enabled", "false"), ("listen/endpoints", "[]")] {
        zenoh.insert_json5(key, value).map_err(|error| failed(format!("{key}: {error}")))?;
    }
    Ok(Some(zenoh))
}

/// Every address of this host: of IPv4 only, if its kernel has no IPv6, or keeps both apart.
fn any_address() -> &'static str {
    let is_apart = std::fs::read_to_string("/proc/sys/net/ipv6/bindv6only").is_ok_and(|text| text.trim() == "1");
    if !is_apart && std::net::TcpListener::bind("[::]:0").is_ok() { ANY } else { "0.0.0.0" }
}

fn failed(message: String) -> NetworkError {
    NetworkError::new("configuration", message)
}

fn refuse_what_is_missing(zenoh: &Zenoh) -> Result<(), String> {
    for (section, why) in SECTIONS_MISSING {
        if let Some(key) = first_set(&value(zenoh, section)?, section) {
            return Err(format!("{key}: {why}"));
        }
    }
    let secrets = SECRETS.map(|key| format!("transport/link/tls/{key}"));
    if let Some(key) = secrets.iter().find(|key| zenoh.get_json(key).is_ok_and(|value| value != "null")) {
        return Err(format!("{key}: {}", SECTIONS_MISSING[0].1));
    }
    for key in ["listen/endpoints", "connect/endpoints"] {
        let endpoints = value(zenoh, key)?;
        if let Some(other) = texts(&endpoints).into_iter().find(|text| text.contains('/') && !text.starts_with("tcp/"))
        {
            return Err(format!("{key} has {other}: {ONLY_TCP}"));
        }
    }
    let protocols = value(zenoh, "transport/link/protocols")?;
    if let Some(other) = texts(&protocols).into_iter().find(|text| *text != "tcp") {
        return Err(format!("transport/link/protocols has {other}: {ONLY_TCP}"));
    }
    let subjects = value(zenoh, "access_control/subjects")?;
    for subject in subjects.as_array().into_iter().flatten() {
        if let Some((key, why)) = SUBJECTS_MISSING.into_iter().find(|(key, _)| subject.get(key).is_some_and(is_set)) {
            return Err(format!("access_control/subjects has {key}: {why}"));
        }
    }
    Ok(())
}

fn value(zenoh: &Zenoh, key: &str) -> Result<Value, String> {
    let text = zenoh.get_json(key).map_err(|error| format!("{key}: {error}"))?;
    serde_json::from_str(&text).map_err(|error| format!("{key}: {error}"))
}

fn is_set(value: &Value) -> bool {
    !value.is_null()
}

/// The path of the first leaf that is set.
fn first_set(value: &Value, key: &str) -> Option<String> {
    match value {
        Value::Object(fields) => fields.iter().find_map(|(name, value)| first_set(value, &format!("{key}/{name}"))),
        value => is_set(value).then(|| key.to_owned()),
    }
}

/// All texts in a value, at any depth: a setting may have one list per mode of zenoh.
fn texts(value: &Value) -> Vec<&str> {
    match value {
        Value::String(text) => vec![text],
        Value::Array(items) => items.iter().flat_map(texts).collect(),
        Value::Object(fields) => fields.values().flat_map(texts).collect(),
        _ => Vec::new(),
    }
}

/// Fuzz entry: any text as zenoh's file. An accepted file needs nothing that this build lacks, and opens nothing beyond loopback on a loopback
/// network.
pub fn fuzz_zenoh_config(data: &[u8]) -> bool {
    let Ok(zenoh) = str::from_utf8(data).map_err(drop).and_then(|text| Zenoh::from_json5(text).map_err(drop)) else {
        return false;
    };
    if refuse_what_is_missing(&zenoh).is_err() {
        return false;
    }
    for (range, router) in [(Range::Loopback, None), (Range::Open, None), (Range::Open, Some("tcp/10.0.0.9:7447"))] {
        let routers = router.map(str::to_owned).into_iter().collect();
        let config = Config { network: range.name().to_owned(), routers, ..Config::default() };
        let Ok(Some(zenoh)) = with_ours(&config, zenoh.clone()) else { continue };
        assert!(refuse_what_is_missing(&zenoh).is_ok(), "our own keys set what this build lacks");
        assert_eq!(zenoh.get_json("mode").ok().as_deref(), Some("\"peer\""));
        if range == Range::Loopback {
            let endpoints =
                ["connect/endpoints", "listen/endpoints"].map(|key| zenoh.get_json(key).unwrap_or_default());
            assert_eq!(endpoints, ["[]", "[\"tcp/127.0.0.1:0\"]"]);
        }
        if range == Range::Loopback || router.is_some() {
            assert_eq!(zenoh.get_json("scouting/multicast/enabled").ok().as_deref(), Some("false"));
            assert_eq!(zenoh.get_json("scouting/gossip/autoconnect").ok().as_deref(), Some(NOBODY));
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The result for a configuration with this file.
    fn read(config: Config, text: &str) -> Result<Option<Zenoh>, String> {
        static COUNT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let count = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("rgaps-zenoh-{}-{count}.json5", std::process::id()));
        std::fs::write(&path, text).unwrap();
        let read = zenoh_config(&Config { zenoh_config: path.display().to_string(), ..config });
        std::fs::remove_file(&path).unwrap();
        read.map_err(|error| error.to_string())
    }

    fn of(network: &str) -> Config {
        Config { network: network.to_owned(), ..Config::default() }
    }

    #[test]
    fn a_zenoh_file_that_needs_what_this_build_lacks_is_refused_with_the_key() {
        let user =
            r#"access_control: {enabled: true, default_permission: "deny", subjects: [{id: "a", usernames: ["ann"]}]}"#;
        let name = user.replace("usernames", "cert_common_names");
        let asked = [
            (r#"transport: {link: {tls: {enable_mtls: true}}}"#, "transport/link/tls/enable_mtls"),
            (r#"transport: {link: {tls: {root_ca_certificate: "/ca.pem"}}}"#, "transport/link/tls/root_ca_certificate"),
            (
                r#"transport: {link: {tls: {listen_private_key_base64: "AAAA"}}}"#,
                "transport/link/tls/listen_private_key_base64",
            ),
            (r#"transport: {auth: {usrpwd: {user: "ann", password: "x"}}}"#, "transport/auth/usrpwd/password"),
            (r#"transport: {auth: {usrpwd: {dictionary_file: "/users"}}}"#, "transport/auth/usrpwd/dictionary_file"),
            (r#"transport: {auth: {pubkey: {known_keys_file: "/keys"}}}"#, "transport/auth/pubkey/known_keys_file"),
            (r#"listen: {endpoints: ["tls/0.0.0.0:7447"]}"#, "listen/endpoints has tls/0.0.0.0:7447"),
            (r#"listen: {endpoints: {peer: ["quic/0.0.0.0:1"]}}"#, "listen/endpoints has quic/0.0.0.0:1"),
            (r#"connect: {endpoints: ["tcp/10.0.0.2:1", "tls/10.0.0.2:1"]}"#, "connect/endpoints has tls/10.0.0.2:1"),
            (r#"transport: {link: {protocols: ["tls", "tcp"]}}"#, "transport/link/protocols has tls"),
            (user, "access_control/subjects has usernames"),
            (&name, "access_control/subjects has cert_common_names"),
        ];
        for (text, named) in asked {
            // Also if zenoh would not run: the user relies on it.
            for network in ["open", "local"] {
                let said = read(of(network), &format!("{{{text}}}")).unwrap_err();
                assert!(said.contains(named) && said.contains("built in"), "{text}: {said}");
            }
        }
        for text in ["{}", r#"{access_control: {enabled: false}}"#, r#"{listen: {endpoints: ["tcp/10.0.0.1:7447"]}}"#] {
            assert!(read(of("open"), text).unwrap().is_some());
        }
    }

    #[test]
    fn a_zenoh_file_opens_nothing_beyond_a_loopback_network() {
        let far = r#"{listen: {endpoints: ["tcp/0.0.0.0:7447"]}, connect: {endpoints: ["tcp/10.0.0.2:1"]},
                      scouting: {multicast: {enabled: true}}}"#;
        let zenoh = read(of("loopback"), far).unwrap().unwrap();
        let said = |key: &str| zenoh.get_json(key).unwrap();
        assert_eq!(
            (said("listen/endpoints"), said("connect/endpoints")),
            (r#"["tcp/127.0.0.1:0"]"#.to_owned(), "[]".to_owned())
        );
        assert_eq!(said("scouting/multicast/enabled"), "false");
        for gossip in ["autoconnect", "target"] {
            assert_eq!(said(&format!("scouting/gossip/{gossip}")), NOBODY);
        }
        assert!(read(of("local"), far).unwrap().is_none());
    }

    #[test]
    fn a_host_with_routers_leaves_them_their_port_and_their_other_programs() {
        let routers = ["tcp/10.0.0.9:7447".to_owned()];
        for peers in [&[][..], &["tcp/10.0.0.2:7447".to_owned()]] {
            let config = Config { peers: peers.to_vec(), routers: routers.to_vec(), ..of("open") };
            let zenoh = zenoh_config(&config).unwrap().unwrap();
            assert_eq!(value(&zenoh, "connect/endpoints").unwrap(), serde_json::json!([peers, &routers[..]].concat()));
            for gossip in ["autoconnect", "target"] {
                assert_eq!(zenoh.get_json(&format!("scouting/gossip/{gossip}")).unwrap(), NOBODY);
            }
            let listens = value(&zenoh, "listen/endpoints").unwrap();
            assert_eq!(listens, value(&Zenoh::default(), "listen/endpoints").unwrap(), "zenoh's own choice");
        }
    }

    #[test]
    fn silent_connections_time_out_soon_unless_a_file_says_otherwise() {
        let said = |text: &str| {
            let zenoh = read(of("open"), text).unwrap().unwrap();
            ["accept_timeout", "accept_pending", "max_sessions"]
                .map(|key| zenoh.get_json(&format!("transport/unicast/{key}")).unwrap().parse::<u64>().unwrap())
        };
        let pending = ACCEPT_PENDING_MAX.min(fds::limit() / 8).max(16);
        assert_eq!(said("{}"), [ACCEPT_TIMEOUT_MS, pending, 1024]);
        assert_eq!(said("{transport: {unicast: {accept_pending: 7}}}"), [ACCEPT_TIMEOUT_MS, 7, 1024]);
    }

    #[test]
    fn connecting_to_peers_is_retried_soon_unless_a_file_says_otherwise() {
        let said = |zenoh: &Zenoh, key: &str| value(zenoh, key).unwrap();
        let zenoh = zenoh_config(&of("open")).unwrap().unwrap();
        let retry = said(&zenoh, "connect/retry");
        assert_eq!((&retry["period_init_ms"], &retry["period_max_ms"]), (&250.into(), &500.into()));
        assert_eq!(said(&zenoh, "transport/unicast/open_timeout"), 2500);
        assert_eq!(said(&zenoh, "open/return_conditions/connect_scouted"), false);
        let block = "transport/link/tx/queue/congestion_control/block/wait_before_close";
        assert_eq!(said(&zenoh, block), 1_000_000);
        let file = "{connect: {retry: {period_max_ms: 9000}}, transport: {unicast: {open_timeout: 7000}}}";
        let zenoh = read(of("open"), file).unwrap().unwrap();
        assert_eq!(said(&zenoh, "connect/retry")["period_max_ms"], 9000);
        assert_eq!(said(&zenoh, "transport/unicast/open_timeout"), 7000);
    }

    #[test]
    fn a_silent_host_is_gone_after_the_peer_timeout_and_a_second_at_least() {
        let lease = |peer_timeout_ms| {
            let config = Config { peer_timeout_ms, ..of("open") };
            zenoh_config(&config).unwrap().unwrap().get_json("transport/link/tx/lease").unwrap()
        };
        assert_eq!((lease(5000), lease(100)), ("5000".to_owned(), "1000".to_owned()));
    }
}
