//! Attackers without a key, on the network or on this machine, who try to delay or block this host's programs.

#![allow(clippy::unwrap_used)] // helpers of tests, outside #[test] functions

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rgaps::types::Bytes;
use rgaps::{Node, Subscriber};
use rgaps_control::local::{Body, Connection, Request, Role, ToClient};
use rgaps_control::wire::{Endpoint, Integrity, RingOffer, RingRefusal, RingRequest, WIRE_VERSION};
use rgaps_control::{HostId, PublisherQos, TopicKey};
use rgaps_testing::{Child, RuntimeDir, Watchdog, manager, programs};
use zenoh::qos::CongestionControl;
use zenoh::query::ConsolidationMode;
use zenoh::{Session, Wait};

const LONG: Duration = Duration::from_secs(60);

struct Here {
    dir: RuntimeDir,
    address: SocketAddr,
    manager: Child,
    node: Node,
    host: HostId,
    _watchdog: Watchdog,
}

impl Here {
    fn new(name: &str, mut program: Command, change: impl FnOnce(&mut Command)) -> Self {
        let watchdog = Watchdog::new(Duration::from_secs(150));
        let dir = RuntimeDir::new(name).unwrap();
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, free));
        program.env("RGAPS_LISTEN", format!("tcp/{address}")).env("RGAPS_DEVICE", "host");
        change(&mut program);
        let manager = manager::start(&dir, program).unwrap();
        let node = Node::builder().runtime_dir(dir.path()).no_autostart().build().unwrap();
        let host = HostId(node.host());
        Self { dir, address, manager, node, host, _watchdog: watchdog }
    }
}

/// An attacker who speaks zenoh.
struct Stranger(Session);

impl Stranger {
    fn new(address: SocketAddr) -> Self {
        let mut config = zenoh::Config::default();
        let connect = format!("[\"tcp/{address}\"]");
        let settings = [
            ("mode", "\"client\""),
            ("scouting/multicast/enabled", "false"),
            ("connect/endpoints", &connect),
            ("connect/timeout_ms", "30000"),
        ];
        settings.into_iter().for_each(|(key, value)| config.insert_json5(key, value).unwrap());
        Self(zenoh::open(config).wait().unwrap())
    }

    /// Sends a query without waiting for its answer.
    fn ask(&self, of: HostId, payload: Vec<u8>, congestion: CongestionControl) {
        self.0
            .get(format!("rgaps/1/{of}/ring"))
            .payload(payload)
            .congestion_control(congestion)
            .consolidation(ConsolidationMode::None)
            .timeout(LONG)
            .callback(|_| ())
            .wait()
            .unwrap();
    }

    fn request(&self, of: HostId, request: &RingRequest) -> Result<RingOffer, RingRefusal> {
        let replies = self
            .0
            .get(format!("rgaps/1/{of}/ring"))
            .payload(serde_json::to_vec(request).unwrap())
            .timeout(LONG)
            .wait()
            .unwrap();
        let reply = replies.recv().unwrap().into_result().unwrap();
        serde_json::from_slice(&reply.payload().to_bytes()).unwrap()
    }
}

/// Forwards a connection; while the gate is held, it does not read the replies.
fn deaf(to: SocketAddr, gate: &Arc<Mutex<()>>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let gate = gate.clone();
    std::thread::spawn(move || {
        let (mut near, _) = listener.accept().unwrap();
        let mut far = TcpStream::connect(to).unwrap();
        let (mut near_in, mut far_out) = (near.try_clone().unwrap(), far.try_clone().unwrap());
        std::thread::spawn(move || {
            let _ = std::io::copy(&mut near_in, &mut far_out);
            let _ = far_out.shutdown(Shutdown::Both);
        });
        let mut bytes = [0; 4096];
        while let Ok(n @ 1..) = far.read(&mut bytes) {
            if near.write_all(&bytes[..n]).is_err() {
                return;
            }
            drop(gate.lock());
        }
    });
    address
}

fn request(topic: &str, host: HostId) -> RingRequest {
    RingRequest {
        version: WIRE_VERSION,
        host,
        host_name: "stranger".to_owned(),
        endpoint: Endpoint {
            key: TopicKey::new(0, topic).unwrap(),
            role: Role::Publisher,
            type_name: "rgaps/Bytes".to_owned(),
            offers: vec![PublisherQos::default()],
            requests: Vec::new(),
        },
        message_bytes_max: 1 << 20,
        flow_control: true,
        integrity: Integrity::Crc32c,
        rdma: Vec::new(),
        no_rdma: String::new(),
        published: Vec::new(),
    }
}

fn invented(number: u64) -> HostId {
    HostId((u128::from(number) + (1 << 64)).to_be_bytes())
}

#[test]
fn a_peer_that_reads_no_answers_delays_no_local_client() {
    let file = std::env::temp_dir().join(format!("rgaps-attack-{}.json5", std::process::id()));
    // zenoh's own time-out is 5 s.
    let waits = "{transport: {link: {tx: {queue: {congestion_control: {block: {wait_before_close: 600000000}}}}}}}";
    std::fs::write(&file, waits).unwrap();
    let here = Here::new("deaf", Command::new(programs::find("rgapsd")), |command| {
        command.env("RGAPS_PEER_TIMEOUT_MS", "60000").env("RGAPS_ZENOH_CONFIG", &file);
    });
    std::fs::remove_file(&file).unwrap();
    let gate = Arc::new(Mutex::new(()));
    let stranger = Stranger::new(deaf(here.address, &gate));
    let refused = stranger.request(here.host, &request("nobody_has_it", invented(1)));
    assert!(matches!(refused, Err(RingRefusal::NoSubscribers(_))), "{refused:?}");
    let closed = gate.lock().unwrap();
    // The answers fill all buffers on the way back; then the writer waits for room.
    let name = format!("t{}", "x".repeat(250));
    for number in 0..40_000 {
        let asked = serde_json::to_vec(&request(&name, invented(number))).unwrap();
        let congestion = if number < 30_000 { CongestionControl::Drop } else { CongestionControl::Block };
        stranger.ask(here.host, asked, congestion);
        if number % 1000 == 0 {
            assert_eq!(here.node.topics().unwrap(), []);
        }
    }
    let is_met = || {
        let network = rgaps_control::Running::new(here.dir.path(), 0).network.unwrap_or_default();
        network.budgets.contains_key("ring_requests_host_max")
    };
    // By now everything that can block does: no query is answered any more.
    while !is_met() {
        assert_eq!(here.node.topics().unwrap(), []);
    }
    drop(closed);
}

#[test]
fn long_names_in_ring_requests_hide_no_topic_and_disconnect_no_client() {
    let here = Here::new("long", Command::new(programs::find("rgapsd")), |_| ());
    let _subscriber: Subscriber<Bytes> = here.node.subscriber("camera").unwrap();
    let stranger = Stranger::new(here.address);
    for number in 0..30 {
        // Each character is printed as eight.
        let name = "\u{202e}".repeat(20_000);
        let long = RingRequest { host_name: name, ..request("camera", invented(number)) };
        stranger.request(here.host, &long).unwrap();
    }
    let listed = here.node.topics().unwrap();
    assert_eq!(listed.len(), 1);
    assert!(listed[0].links.iter().any(|link| link.contains(r"from \u{202e}")), "{:?}", listed[0].links);
}

#[test]
fn links_of_other_hosts_leave_file_descriptors_to_programs_of_this_host() {
    const TOPICS: usize = 16;
    let mut limited = Command::new("prlimit");
    limited.arg("--nofile=400:400").arg(programs::find("rgapsd"));
    let here = Here::new("fds", limited, |_| ());
    let _subscribers: Vec<Subscriber<Bytes>> =
        (0..TOPICS).map(|n| here.node.subscriber(&format!("t{n}")).unwrap()).collect();
    let stranger = Stranger::new(here.address);
    let asked = (0..40).flat_map(|host| (0..TOPICS).map(move |topic| (host, topic)));
    let refused: Vec<RingRefusal> = asked
        .filter_map(|(host, topic)| stranger.request(here.host, &request(&format!("t{topic}"), invented(host))).err())
        .collect();
    let is_named = |refusal: &&RingRefusal| refusal.to_string().contains("spare_fds_percent = 25");
    assert_eq!(refused.iter().find(|refusal| !is_named(refusal)), None);
    assert!(!refused.is_empty());
    let node = Node::builder().runtime_dir(here.dir.path()).no_autostart().build().unwrap();
    let one: Subscriber<Bytes> = node.subscriber("mine").unwrap();
    drop(one);
}

/// A connection with unread bytes, whose close waits for them.
fn lingering() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (far, _) = listener.accept().unwrap();
    near.set_nonblocking(true).unwrap();
    let filled = std::iter::repeat_with(|| near.write(&[0; 65536])).find_map(Result::err).unwrap();
    assert_eq!(filled.kind(), ErrorKind::WouldBlock);
    rustix::net::sockopt::set_socket_linger(&near, Some(Duration::from_secs(600))).unwrap();
    (near, far)
}

#[test]
fn a_file_descriptor_whose_close_blocks_delays_no_other_client() {
    let here = Here::new("linger", Command::new(programs::find("rgapsd")), |_| ());
    let (near, _far) = lingering();
    let connection = Connection::connect(&here.dir.path().join("rgapsd.sock")).unwrap().unwrap();
    connection.send(&Request { id: 1, body: Body::Topics { after: None } }, &[near.as_fd()]).unwrap();
    drop(near);
    assert_eq!(here.node.topics().unwrap(), []);
}

#[test]
fn a_file_descriptor_left_unread_by_its_client_delays_no_other_client() {
    let here = Here::new("unread", Command::new(programs::find("rgapsd")), |_| ());
    let (near, _far) = lingering();
    let connection = Connection::connect(&here.dir.path().join("rgapsd.sock")).unwrap().unwrap();
    here.manager.stop().unwrap();
    // The first file descriptor ends the connection; the other is closed with it.
    connection.send(&serde_json::json!({ "garbage": 1 }), &[]).unwrap();
    connection.send(&Request { id: 1, body: Body::Topics { after: None } }, &[near.as_fd()]).unwrap();
    drop(near);
    here.manager.go_on().unwrap();
    assert!(connection.receive::<ToClient>(LONG).is_err());
    assert_eq!(here.node.topics().unwrap(), []);
}
