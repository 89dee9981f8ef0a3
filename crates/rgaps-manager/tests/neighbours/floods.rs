//! Connections that send nothing, hosts that announce more than their budget, and a client that sends requests without end.

use std::io::{ErrorKind, Read};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use rgaps_control::local::{Body, Connection, PROTOCOL_VERSION, Request, Role, ToClient};
use rgaps_control::network::Network;
use rgaps_control::wire::Endpoint;
use rgaps_control::{Config, HostId, SubscriberQos, TopicKey};
use rgaps_os::PidFd;
use rgaps_testing::{Child, manager, skipped};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Resource, getrlimit};

use crate::strangers::Stranger;
use crate::{Host, LIMIT, outcome, until};

/// Silent connections, each opened again as soon as it is closed. By default zenoh accepts 100 at a time, for 10 s each.
const SILENT: usize = 300;

fn silent(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect_timeout(&address, LIMIT).unwrap();
    stream.set_nonblocking(true).unwrap();
    stream
}

/// Keeps `SILENT` connections open until told to stop, and counts those that it opens.
fn say_nothing(address: SocketAddr, is_over: &AtomicBool, opened: &AtomicUsize) {
    let mut streams: Vec<TcpStream> = Vec::new();
    while !is_over.load(Ordering::Relaxed) {
        while streams.len() < SILENT {
            streams.push(silent(address));
            opened.fetch_add(1, Ordering::Relaxed);
        }
        let mut fds: Vec<PollFd<'_>> = streams.iter().map(|stream| PollFd::new(stream, PollFlags::IN)).collect();
        poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 50_000_000 })).unwrap();
        drop(fds);
        streams.retain_mut(
            |stream| matches!(stream.read(&mut [0; 64]), Err(error) if error.kind() == ErrorKind::WouldBlock),
        );
    }
}

/// Ends the flood when it is dropped, also when a check fails.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Another host, which looks for this one.
fn honest(host: &Host) -> Network {
    let config = Config {
        network: "loopback".to_owned(),
        listen: "tcp/127.0.0.1:0".to_owned(),
        peers: vec![host.listen.clone()],
        ..Config::default()
    };
    Network::open(&config, HostId([7; 16]), "honest", |_| ()).unwrap()
}

fn announce(network: &Network, topic: &str) {
    let key = TopicKey::new(0, topic).unwrap();
    let requests = vec![SubscriberQos::default()];
    let (role, type_name) = (Role::Subscriber, "rgaps/Bytes".to_owned());
    network.announce(&key.clone(), vec![Endpoint { key, role, type_name, offers: Vec::new(), requests }]);
}

fn is_listed(host: &Host, topic: &str) -> Option<()> {
    let (good, said, _) = outcome(&mut host.rgaps(&["topic", "list"]));
    (good && said.contains(topic)).then_some(())
}

#[test]
fn silent_connections_to_the_control_port_keep_no_honest_host_out() {
    if getrlimit(Resource::Nofile).maximum.is_some_and(|most| most < 8 * 2 * SILENT as u64) {
        return skipped("the limit on file descriptors is too low for so many connections");
    }
    let host = Host::new("silent");
    assert!(outcome(&mut host.rgaps(&["topic", "list"])).0);
    let address: SocketAddr = host.listen.strip_prefix("tcp/").unwrap().parse().unwrap();
    let (is_over, opened) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let _over = Over(&is_over);
        scope.spawn(|| say_nothing(address, &is_over, &opened));
        until("the connections are there", || (opened.load(Ordering::Relaxed) >= SILENT).then_some(()));
        let network = honest(&host);
        announce(&network, "honest");
        until("the honest host is known", || is_listed(&host, "/honest"));
    });
}

#[test]
fn programs_that_connect_and_hang_up_without_end_delay_no_client() {
    let host = Host::new("connects");
    assert!(outcome(&mut host.rgaps(&["topic", "list"])).0);
    let (socket, is_over) = (host.path().join("rgapsd.sock"), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let _over = Over(&is_over);
        for _ in 0..4 {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    drop(Connection::connect(&socket));
                }
            });
        }
        for _ in 0..20 {
            assert!(outcome(&mut host.rgaps(&["topic", "list"])).0);
        }
    });
}

#[test]
fn announcements_beyond_a_key_are_refused_by_name_in_log_and_doctor() {
    let host = Host::new("announcements");
    assert!(outcome(host.rgaps(&["topic", "list"]).env("RGAPS_ENDPOINTS_HOST_MAX", "20")).0);
    let network = honest(&host);
    // The announcements of a host whose name has not arrived yet are refused by its id.
    announce(&network, "t0");
    until("the honest host is known", || is_listed(&host, "/t0"));
    for number in 1..50 {
        announce(&network, &format!("t{number}"));
    }
    // Two counters, which the manager notes one after the other.
    until("the doctor counts them", || {
        let said = outcome(&mut host.rgaps(&["doctor", "--json"])).1;
        let has_both =
            said.contains("endpoints_host_max = 20 reached 30 times") && said.contains("30 announcements refused");
        has_both.then_some(())
    });
    let log = std::fs::read_to_string(host.path().join("rgapsd.log")).unwrap();
    assert!(log.contains("host honest announces more than one host may (endpoints_host_max = 20)"), "{log}");
}

#[test]
fn a_client_that_sends_only_a_hello_leaves_no_file_behind() {
    let host = Host::new("hellos");
    assert!(outcome(&mut host.rgaps(&["topic", "list"])).0);
    let hello = || {
        let connection = Connection::connect(&host.path().join("rgapsd.sock")).unwrap().unwrap();
        let layout = rgaps_shm::layout::LAYOUT_VERSION;
        let body = Body::Hello { protocol: PROTOCOL_VERSION, program: "hello".to_owned(), layout, locks: Vec::new() };
        connection.send(&Request { id: 0, body }, &[PidFd::own().unwrap().as_fd()]).unwrap();
        connection.receive::<ToClient>(LIMIT).unwrap().unwrap();
        connection
    };
    drop((0..100).map(|_| hello()).collect::<Vec<_>>());
    until("the files of gone clients are removed", || {
        let entries = std::fs::read_dir(host.path()).unwrap().flatten();
        let locks = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with("client-"));
        (locks.count() == 0).then_some(())
    });
}

#[test]
fn a_client_with_too_many_waiting_requests_is_refused_with_the_key() {
    let host = Host::new("waiting");
    let rgapsd = || {
        let mut command = host.program("rgapsd");
        command.env("RGAPS_CLIENT_REQUESTS_MAX", "2");
        manager::start(&host.dir, command).unwrap()
    };
    let mut first = rgapsd();
    let image = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/data/ramp.npy");
    let holder =
        Child::spawn(host.rgaps(&["pub", "array", "--input", image, "--rate", "10", "--loop"]).stdout(Stdio::null()));
    let holder = holder.unwrap();
    // The manager has noted a publisher's slot before it publishes.
    let (is_ok, _, errors) = outcome(&mut host.rgaps(&["sub", "array", "--type", "tensor", "--count", "1"]));
    assert!(is_ok, "{errors}");
    // A stopped client hands nothing back to the next manager, so requests for its topic wait.
    holder.stop().unwrap();
    first.kill().unwrap();
    let _second = rgapsd();
    let stranger = Stranger::connect(&host);
    let key = TopicKey::new(0, "array").unwrap();
    for id in 10..14 {
        stranger.connection.send(&Request { id, body: Body::Observe { key: key.clone() } }, &[]).unwrap();
    }
    for refused in [12, 13] {
        match stranger.connection.receive::<ToClient>(LIMIT).unwrap().unwrap().message {
            ToClient::Reply { id, reply: Err(refusal) } => {
                assert!(id == refused && refusal.to_string().contains("client_requests_max = 2"), "{id}: {refusal}");
            }
            other => panic!("{other:?}"),
        }
    }
    holder.go_on().unwrap();
}
