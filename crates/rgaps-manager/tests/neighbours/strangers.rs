//! Names that affect a terminal, sent over the network and over the local socket.

use std::os::fd::AsFd;

use rgaps_control::local::{Body, Connection, Notice, PROTOCOL_VERSION, Reply, Request, Role, ToClient, Welcome};
use rgaps_control::network::Network;
use rgaps_control::wire::{Endpoint, Integrity, RingRequest, WIRE_VERSION};
use rgaps_control::{Config, HostId, PublisherQos, SubscriberQos, TopicKey};
use rgaps_os::{PidFd, ProcessLock};

use crate::{Host, LIMIT, outcome, until};

/// Ends a line and forges another, sets the terminal's title, clears it, colours it (C0 and C1), and reverses the direction of later text.
const EVIL: &str = "arm\nFORGED\x1b]0;t\x07\x1b[2J\u{9b}31m\u{202e}\u{2066}\u{7f}\r\u{2028}x";

/// Checks that a text has no character that affects a terminal, and no forged line.
#[track_caller]
fn assert_tame(what: &str, text: &str) {
    let acts =
        |c: char| c != '\n' && (c.is_control() || matches!(c, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}'));
    assert!(!text.contains(acts), "{what}: {text:?}");
    assert!(!text.lines().any(|line| line.starts_with("FORGED")), "{what}: {text:?}");
}

/// A client made by hand.
pub(crate) struct Stranger {
    pub(crate) connection: Connection,
    welcome: Welcome,
    _lock: ProcessLock,
}

impl Stranger {
    pub(crate) fn connect(host: &Host) -> Self {
        let connection = Connection::connect(&host.path().join("rgapsd.sock")).unwrap().unwrap();
        let pidfd = PidFd::own().unwrap();
        let layout = rgaps_shm::layout::LAYOUT_VERSION;
        let hello = Body::Hello { protocol: PROTOCOL_VERSION, program: EVIL.to_owned(), layout, locks: Vec::new() };
        connection.send(&Request { id: 0, body: hello }, &[pidfd.as_fd()]).unwrap();
        let packet = connection.receive::<ToClient>(LIMIT).unwrap().unwrap();
        let ToClient::Reply { reply: Ok(Reply::Welcome(welcome)), .. } = packet.message else {
            panic!("{:?}", packet.message)
        };
        let lock = ProcessLock::take(packet.fds.into_iter().next().unwrap()).unwrap();
        let stranger = Self { connection, welcome, _lock: lock };
        stranger.ask(Body::Locked).unwrap();
        stranger
    }

    /// The reply to a request; a refusal as its text.
    fn ask(&self, body: Body) -> Result<Reply, String> {
        self.connection.send(&Request { id: 1, body }, &[]).unwrap();
        loop {
            let message = self.connection.receive::<ToClient>(LIMIT).unwrap().unwrap().message;
            if let ToClient::Reply { id: 1, reply } = message {
                return reply.map_err(|refusal| refusal.to_string());
            }
        }
    }

    /// The manager's first warning.
    fn warning(&self) -> String {
        until("a warning comes", || match self.connection.receive::<ToClient>(LIMIT).unwrap()?.message {
            ToClient::Notice(Notice::Warning { text, .. }) => Some(text),
            _ => None,
        })
    }
}

fn endpoint(topic: &str, type_name: &str) -> Endpoint {
    Endpoint {
        key: TopicKey::new(0, topic).unwrap(),
        role: Role::Publisher,
        type_name: type_name.to_owned(),
        offers: vec![PublisherQos::default()],
        requests: Vec::new(),
    }
}

/// Another host, with evil names.
fn evil_network(host: &Host) -> Network {
    let config = Config {
        network: "loopback".to_owned(),
        listen: "tcp/127.0.0.1:0".to_owned(),
        peers: vec![host.listen.clone()],
        ..Config::default()
    };
    let network = Network::open(&config, HostId([7; 16]), EVIL, |_| ()).unwrap();
    for (topic, type_name) in [("camera", "rgaps/Tensor"), ("other", EVIL), ("last", "rgaps/Tensor")] {
        let endpoint = endpoint(topic, type_name);
        network.announce(&endpoint.key.clone(), vec![endpoint]);
    }
    network
}

fn ring_request(type_name: &str) -> RingRequest {
    RingRequest {
        version: WIRE_VERSION,
        host: HostId([7; 16]),
        host_name: EVIL.to_owned(),
        endpoint: Endpoint { requests: vec![SubscriberQos::default()], ..endpoint("camera", type_name) },
        message_bytes_max: 1 << 20,
        flow_control: true,
        integrity: Integrity::Crc32c,
        rdma: Vec::new(),
        no_rdma: EVIL.to_owned(),
        published: Vec::new(),
    }
}

#[test]
fn names_that_act_on_terminals_are_shown_escaped_by_commands_and_logs() {
    let host = Host::new("strangers");
    let debug = "warn,rgaps=debug,rgaps_manager=debug,rgaps_control=debug";
    assert!(outcome(host.rgaps(&["topic", "list"]).env("RGAPS_LOG", debug)).0);
    let stranger = Stranger::connect(&host);
    let subscribe = |type_name: &str| {
        let (key, type_name) = (TopicKey::new(0, "camera").unwrap(), type_name.to_owned());
        stranger.ask(Body::Subscribe { key, type_name, qos: SubscriberQos::default() })
    };
    let refused = subscribe(EVIL).expect_err("that is no type's name");
    assert_tame("a refusal", &refused);
    subscribe("rgaps/Image").unwrap();
    let network = evil_network(&host);
    // The other host's topics arrive in any order.
    until("the other host is known", || {
        let (good, said, _) = outcome(&mut host.rgaps(&["topic", "list"]));
        (good && said.contains("/last")).then_some(())
    });
    let warning = stranger.warning();
    assert!(warning.contains(r"arm\nFORGED\u{1b}]0;t"), "the name is there, to be read: {warning}");
    assert_tame("a warning", &warning);
    for type_name in ["rgaps/Tensor", EVIL] {
        let asked = network.asker().request(stranger.welcome.host, &ring_request(type_name), LIMIT);
        assert_tame("an answer to another host", &asked.expect_err("nothing fits").to_string());
    }
    let commands: [&[&str]; 9] = [
        &["topic", "list"],
        &["topic", "info", "camera"],
        &["topic", "info", "last"],
        &["topic", "info", "other"],
        &["topic", "hz", "camera", "--reports", "1", "--interval", "0.05"],
        &["sub", "camera", "--timeout", "0.2"],
        &["sub", "camera", "--type", "image", "--timeout", "0.2"],
        &["doctor"],
        &["ready", "--timeout", "0"],
    ];
    let mut shown = String::new();
    for arguments in commands {
        for json in [&[][..], &["--json"]] {
            let (_, said, errors) = outcome(host.rgaps(&[json, arguments].concat()).env("RGAPS_LOG", "debug"));
            assert_tame(&format!("standard output of {arguments:?}"), &said);
            assert_tame(&format!("standard error of {arguments:?}"), &errors);
            shown += &said;
        }
    }
    assert!(shown.contains(r"arm\nFORGED\u{1b}]0;t"), "{shown}");
    drop((network, stranger));
    let log = || std::fs::read_to_string(host.path().join("rgapsd.log")).unwrap();
    until("the host's end is logged", || log().contains("a host is gone").then_some(()));
    assert!(log().contains("FORGED"), "{}", log());
    assert_tame("the log", &log());
}

#[test]
fn an_unreadable_message_is_logged_without_its_control_characters() {
    let host = Host::new("garbage");
    assert!(outcome(&mut host.rgaps(&["topic", "list"])).0);
    let connection = Connection::connect(&host.path().join("rgapsd.sock")).unwrap().unwrap();
    connection.send(&serde_json::json!({ "id": 1, "body": { EVIL: null } }), &[]).unwrap();
    let end = connection.receive::<ToClient>(LIMIT);
    assert!(end.is_err(), "{end:?}");
    let log = || std::fs::read_to_string(host.path().join("rgapsd.log")).unwrap();
    until("it is logged", || log().contains("could not be read").then_some(()));
    assert!(log().contains("FORGED"), "{}", log());
    assert_tame("the log", &log());
}
