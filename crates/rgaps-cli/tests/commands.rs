//! Output and exit status of commands, each run as a user would run it, on its own host.

#![allow(clippy::unwrap_used)] // helpers of tests, outside #[test] functions

mod host;

use std::process::{Command, Stdio};

use host::{Host, outcome};
use rgaps::types::{Bytes, Header, Meta, MetaError};
use rgaps::{Durability, Node, PublisherQos};
use rgaps_shm::layout::META_BYTES_MAX;
use rgaps_testing::Child;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Arguments with which `rgaps` publishes a message, without a warning, and starts a manager if none runs.
fn publish_once() -> [&'static str; 6] {
    [
        "pub",
        "late",
        "--input",
        concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/data/ramp.npy"),
        "--latch",
        "--linger=0.01",
    ]
}

#[test]
fn settings_that_the_running_manager_lacks_are_reported_once_and_bad_ones_refused() {
    let host = Host::new("given");
    let (good, _, errors) = outcome(&mut host.rgaps(&publish_once()));
    assert!(good && errors.is_empty(), "{errors}");
    let (good, _, errors) = outcome(
        host.rgaps(&publish_once()).env("RGAPS_PEERS", "tcp/127.0.0.9:7447").env("RGAPS_RING_BYTES", "67108864"),
    );
    assert!(good, "{errors}");
    let said = "peers = [\"tcp/127.0.0.9:7447\"] (environment; the manager has [])";
    assert_eq!((errors.lines().count(), errors.matches(said).count()), (1, 1), "{errors}");
    assert!(!errors.contains("ring_bytes"), "{errors}");
    for arguments in [&["topic", "list"][..], &["sub", "a"], &["pub", "a", "--input", "nothing"], &["demo"]] {
        let (good, _, errors) = outcome(host.rgaps(arguments).env("RGAPS_PEERS", "junk"));
        assert!(
            !good
                && errors.starts_with(
                    "rgaps: environment: peers is junk; it must be a locator with protocol and port, as tcp/10.0.0.2:7447"
                ),
            "{errors}"
        );
    }
}

#[test]
fn the_network_range_is_reported_by_doctor_and_to_clients_with_another_one() {
    let host = Host::new("network");
    let closed = |arguments: &[&str]| {
        let mut command = host.rgaps(arguments);
        command.env_remove("RGAPS_NETWORK").env("RGAPS_CONFIG", "/dev/null");
        for name in ["ROS_AUTOMATIC_DISCOVERY_RANGE", "ROS_LOCALHOST_ONLY", "ROS_STATIC_PEERS"] {
            command.env_remove(name);
        }
        command
    };
    let network = |command: &mut Command| {
        let (_, said, errors) = outcome(command);
        let found: Vec<Value> = serde_json::from_str(&said).unwrap_or_else(|_| panic!("{said}{errors}"));
        found.into_iter().find(|finding| finding["what"] == "network").unwrap()
    };
    let found = network(&mut closed(&["--json", "doctor"]));
    let said = found["found"].as_str().unwrap();
    let wanted = "nothing is set: a manager that a ROS 2 node or a launch file starts will be open, any other local";
    assert_eq!((said, &found["verdict"]), (wanted, &"ok".into()));
    let found = network(closed(&["--json", "doctor"]).env("RGAPS_NETWORK", "open"));
    assert!(found["found"].as_str().unwrap().contains("unauthenticated"), "{found}");
    assert!(found["remedy"].as_str().unwrap().contains("can read and write every topic"), "{found}");
    let (good, _, errors) = outcome(&mut closed(&publish_once()));
    assert!(good && errors.is_empty(), "{errors}");
    // The running manager's network is local.
    let asked = [
        ("RGAPS_NETWORK", "open", "network = \"open\" (environment; the manager has \"local\")"),
        (
            "ROS_AUTOMATIC_DISCOVERY_RANGE",
            "SUBNET",
            "(ROS_AUTOMATIC_DISCOVERY_RANGE=SUBNET; the manager has \"local\")",
        ),
        ("ROS_STATIC_PEERS", "127.0.0.9", "peers = [\"tcp/127.0.0.9:7447\"] (ROS_STATIC_PEERS; the manager has [])"),
    ];
    for (name, value, said) in asked {
        let (good, _, errors) = outcome(closed(&publish_once()).env(name, value));
        assert!(good && errors.lines().count() == 1 && errors.contains(said), "{errors}");
    }
    let (good, _, errors) = outcome(closed(&publish_once()).env("ROS_AUTOMATIC_DISCOVERY_RANGE", "OFF"));
    assert!(good && errors.is_empty(), "it is so: {errors}");
    let found = network(closed(&["--json", "doctor"]).env("RGAPS_NETWORK", "open"));
    assert!(found["found"].as_str().unwrap().starts_with("local (process"), "{found}");
}

#[test]
fn doctor_reports_a_manager_that_runs_and_answers_nobody() {
    let host = Host::new("stopped");
    let (good, _, errors) = outcome(&mut host.rgaps(&publish_once()));
    assert!(good, "{errors}");
    let [manager] = host.dir.users().unwrap()[..] else { panic!("one manager") };
    let manager = Pid::from_raw(manager as i32).unwrap();
    let of_manager = || {
        let (_, said, errors) = outcome(&mut host.rgaps(&["--json", "doctor"]));
        let found: Vec<Value> = serde_json::from_str(&said).unwrap_or_else(|_| panic!("{said}{errors}"));
        found.into_iter().find(|finding| finding["what"] == "manager").unwrap()
    };
    kill_process(manager, Signal::STOP).unwrap();
    let found = of_manager();
    kill_process(manager, Signal::CONT).unwrap();
    let text = found["found"].as_str().unwrap();
    assert!(text.contains("serves no client: rgapsd (process ") && text.contains("did not answer within"), "{found}");
    assert!(found["remedy"].as_str().unwrap().contains("kill -CONT"), "{found}");
    let found = of_manager();
    assert!(found["found"].as_str().unwrap().contains("runs, as configured"), "{found}");
}

#[test]
fn an_empty_variable_counts_as_not_set() {
    let host = Host::new("empty");
    let mut publish = host.rgaps(&publish_once());
    for name in ["RGAPS_DEVICE", "RGAPS_POOL_BYTES", "RGAPS_PEERS", "RGAPS_CONFIG", "RGAPS_LOG", "RGAPS_AUTOSTART"] {
        publish.env(name, "");
    }
    let (good, _, errors) = outcome(&mut publish);
    assert!(good && errors.is_empty(), "{errors}");
    // A manager's default log level.
    assert!(std::fs::read_to_string(host.dir.path().join("rgapsd.log")).unwrap().contains("rgapsd serves"));
}

#[test]
fn a_demo_of_one_frame_delivers_it_to_all_and_leaves_nothing_unread() {
    let host = Host::new("demo");
    let out = host.dir.path().join("out");
    let mut demo = host.rgaps(&["demo", "--frames", "1", "--local", "1", "--remote", "1", "--loopback", "--out"]);
    let (good, said, errors) = outcome(demo.arg(&out));
    // When it gives up, the publisher complains of unread messages.
    assert!(good && errors.is_empty(), "{said}{errors}");
    assert!(said.contains("frames 1 subscribers 2 lost 0 mismatched 0 copies/subscriber 0"), "{said}");
}

#[test]
fn a_demo_on_devices_of_the_stand_in_shows_every_frame_right() {
    // The stand-in for libcuda: streams of their own, device memory that the CPU cannot touch.
    let host = Host::new("demo-cuda");
    rgaps_standin_cuda::link_into(host.dir.path()).unwrap();
    let out = host.dir.path().join("out");
    let mut demo = host.rgaps(&["demo", "--device", "cuda", "--frames", "5", "--local", "1", "--remote", "2"]);
    demo.arg("--loopback").arg("--out").arg(&out).env("LD_LIBRARY_PATH", host.dir.path());
    let (good, said, errors) = outcome(&mut demo);
    assert!(good && errors.is_empty(), "{said}{errors}");
    assert!(said.contains("frames 5 subscribers 3 lost 0 mismatched 0 copies/subscriber 0"), "{said}");
    assert!(said.contains("from the device, to check them by the CPU"), "it ran on the host: {said}");
}

#[test]
fn a_missing_device_is_one_clear_error() {
    let host = Host::new("no-cuda");
    if let Ok(count) = rgaps::device::cuda::Device::count() {
        return rgaps_testing::skipped(format!("this machine has a driver and {count} devices"));
    }
    let (good, _, errors) = outcome(&mut host.rgaps(&["demo", "--device", "cuda"]));
    let said = "rgaps: device cuda:0 is not available: libcuda.so.1 is not there: no NVIDIA driver is installed, or not inside this \
                container; set RGAPS_DEVICE=host, or use --device host where there is that flag\n";
    assert!(!good && errors == said, "{errors}");
    let mut manager = Command::new(rgaps_testing::programs::find("rgapsd"));
    host.dir.apply(&mut manager);
    let (good, _, errors) = outcome(manager.args(["--device", "cuda"]).env("RGAPS_NETWORK", "local"));
    assert!(!good && errors.contains(&said.replace("rgaps: ", "rgapsd: ")), "{errors}");
    let (_, found, _) = outcome(&mut host.rgaps(&["doctor"]));
    assert!(found.contains("libcuda.so.1 is not there"), "{found}");
}

/// A file of examples/data.
fn example(file: &str) -> String {
    format!("{}/../../examples/data/{file}", env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn a_message_larger_than_the_pool_fails_and_a_missing_subscriber_is_reported() {
    let host = Host::new("pub");
    let ramp = example("ramp.npy");
    let publish = |more: &[&str]| outcome(&mut host.rgaps(&[&["pub", "late", "--input", &ramp], more].concat()));
    let (good, said, errors) = publish(&["--pool-bytes", "4KiB", "--loop"]);
    assert!(!good && said.is_empty() && errors.contains("larger than the pool"), "{said}{errors}");
    let (good, _, errors) = publish(&["--pool-bytes", "4 bytes"]);
    assert!(!good && errors.contains("powers of two"), "{errors}");
    let (good, said, errors) = publish(&[]);
    assert!(good && said.contains("published 1 messages") && said.trim_end().ends_with("refused 0, -"), "{said}");
    assert!(errors.contains("/late has no subscriber yet") && errors.contains("--wait-for 1"), "{errors}");
    let (good, _, errors) = publish(&["--latch", "--linger", "0.01"]);
    assert!(good && errors.is_empty(), "late subscribers would get it: {errors}");
}

#[test]
fn too_few_messages_within_the_time_out_are_a_failure_even_on_an_unknown_topic() {
    let host = Host::new("sub");
    let (good, said, errors) = outcome(&mut host.rgaps(&["sub", "late/one", "--timeout", "0.2"]));
    assert!(!good && said.is_empty() && errors.contains("no host has /late/one after 0.2 s"), "{said}{errors}");
    let subscribe = |more: &[&str]| {
        let arguments = ["sub", "none", "--type", "tensor", "--timeout", "0.2"];
        outcome(&mut host.rgaps(&[&arguments, more].concat()))
    };
    let (good, said, errors) = subscribe(&[]);
    assert!(!good && errors.contains("no message came on /none within 0.2 s"), "{errors}");
    assert!(said.trim_end().ends_with("-, path -"), "{said}");
    let (good, _, errors) = subscribe(&["--count", "2"]);
    assert!(!good && errors.contains("0 of 2 messages came on /none, then none for 0.2 s"), "{errors}");
}

#[test]
fn an_invalid_topic_name_fails_without_waiting() {
    let host = Host::new("name");
    let (good, _, errors) = outcome(&mut host.rgaps(&["sub", "bad name", "--count", "1"]));
    let said = "rgaps: \"bad name\" is not a topic name: ' ' is not a letter, a digit, '_' or '/'\n";
    assert_eq!((good, errors.as_str()), (false, said));
}

#[test]
fn a_time_out_after_enough_messages_is_no_failure() {
    let host = Host::new("enough");
    let ramp = example("ramp.npy");
    let subscribe = ["sub", "array", "--type", "tensor", "--latch", "--timeout", "0.2"];
    // Publishes until the guard ends it, so that the first message is there.
    let mut publish = host.rgaps(&["pub", "array", "--input", &ramp, "--latch", "--linger", "1000"]);
    let _publisher = Child::spawn(publish.stdout(Stdio::null())).unwrap();
    // Latched, so that the message arrives whenever the publisher starts; only the test's limit bounds that.
    let mut first = host.rgaps(&["sub", "array", "--type", "tensor", "--latch", "--count", "1"]);
    let (good, _, errors) = outcome(&mut first);
    assert!(good, "{errors}");
    let (good, said, errors) = outcome(&mut host.rgaps(&subscribe));
    assert!(
        good && said.contains("took 1 messages") && said.contains("-, path in place (loaned) x 1"),
        "{said}{errors}"
    );
    let (good, _, errors) = outcome(host.rgaps(&subscribe).args(["--count", "2"]));
    assert!(!good && errors.contains("1 of 2 messages came on /array"), "{errors}");
}

#[test]
fn watching_an_unknown_topic_is_an_error_and_skipped_stages_have_no_time() {
    let host = Host::new("topic");
    let (good, _, errors) = outcome(&mut host.rgaps(&publish_once()));
    assert!(good, "{errors}");
    for what in ["hz", "bw", "latency"] {
        let (good, said, errors) = outcome(&mut host.rgaps(&["topic", what, "nope", "--reports", "1"]));
        assert!(!good && said.is_empty(), "{said}");
        assert!(errors.contains("nobody on this host publishes or subscribes to /nope"), "{errors}");
    }
    let ramp = example("ramp.npy");
    let mut publish = host.rgaps(&["pub", "array", "--input", &ramp, "--rate", "100", "--loop", "--wait-for", "1"]);
    let _publisher = Child::spawn(publish.stdout(Stdio::null())).unwrap();
    // Once this has ended, the topic and its first message exist.
    let (good, _, errors) = outcome(&mut host.rgaps(&["sub", "array", "--type", "tensor", "--count", "1"]));
    assert!(good, "{errors}");
    let (good, said, errors) = outcome(&mut host.rgaps(&["topic", "latency", "array", "--reports", "1"]));
    assert!(good && said.trim_end().ends_with("landed to in pool -, publish to in pool -"), "{said}{errors}");
    let (good, said, errors) = outcome(&mut host.rgaps(&["--json", "topic", "bw", "array", "--reports", "1"]));
    assert!(good && said.contains("\"bytes_per_second\""), "{said}{errors}");
}

#[test]
fn a_topic_of_another_ros_domain_is_not_mistaken_for_ones_own() {
    let host = Host::new("domain");
    let ramp = example("ramp.npy");
    let in_domain = |domain: &str, arguments: &[&str]| {
        let mut command = host.rgaps(arguments);
        command.env("ROS_DOMAIN_ID", domain);
        command
    };
    let mut publish = in_domain("7", &["pub", "array", "--input", &ramp, "--latch", "--linger", "1000"]);
    let _publisher = Child::spawn(publish.stdout(Stdio::null())).unwrap();
    let (good, said, errors) = outcome(&mut in_domain("7", &["sub", "array", "--latch", "--count", "1"]));
    assert!(good && said.starts_with("/array: took 1 messages"), "{said}{errors}");
    let (good, said, errors) = outcome(&mut in_domain("8", &["sub", "array", "--timeout", "0.2"]));
    assert!(!good && said.is_empty() && errors.contains("no host has /array after 0.2 s"), "{said}{errors}");
    let (good, said, errors) = outcome(&mut in_domain("8", &["topic", "info", "array"]));
    assert!(!good && said.is_empty() && errors.contains("no host that is known here has /array"), "{said}{errors}");
    let (good, said, errors) = outcome(&mut in_domain("7", &["topic", "info", "array"]));
    assert!(good && said.starts_with("/array (domain 7)"), "{said}{errors}");
}

/// Poses as raw bytes, and describes one byte more than the payload has.
#[derive(Clone, Debug, PartialEq)]
struct Lie(Bytes);

impl Meta for Lie {
    const KIND: u32 = Bytes::KIND;
    const TYPE_NAME: &'static str = Bytes::TYPE_NAME;
    const ENCODED_BYTES: usize = Bytes::ENCODED_BYTES;

    fn encode(&self, to: &mut [u8; META_BYTES_MAX]) -> usize {
        self.0.encode(to)
    }

    fn decode(bytes: &[u8]) -> Result<Self, MetaError> {
        Bytes::decode(bytes).map(Self)
    }

    fn payload_bytes(&self) -> u64 {
        self.0.payload_bytes() - 1
    }

    fn check_shape(&self) -> Result<(), MetaError> {
        Ok(())
    }

    fn header(&self) -> &Header {
        self.0.header()
    }

    fn header_mut(&mut self) -> &mut Header {
        self.0.header_mut()
    }
}

#[test]
fn a_message_that_contradicts_itself_does_not_end_sub_and_is_counted_and_named() {
    let host = Host::new("malformed");
    let (good, _, errors) = outcome(&mut host.rgaps(&publish_once()));
    assert!(good, "{errors}");
    let node = Node::builder().runtime_dir(host.dir.path()).no_autostart().build().unwrap();
    let latched = PublisherQos { durability: Durability::TransientLocal, history_depth: 3, ..PublisherQos::default() };
    let publisher = node.publisher_with::<Bytes>("bytes", latched).unwrap();
    let liar = node.publisher_with::<Lie>("bytes", latched).unwrap();
    let bytes = || Bytes::new(100);
    publisher.loan(bytes()).unwrap().publish().unwrap();
    liar.loan(Lie(bytes())).unwrap().publish().unwrap();
    publisher.loan(bytes()).unwrap().publish().unwrap();
    let follow = ["sub", "bytes", "--latch", "--count", "2", "--timeout", "20"];
    let (good, said, errors) = outcome(&mut host.rgaps(&follow));
    assert!(good && said.contains("took 2 messages") && said.contains("malformed 1,"), "{said}{errors}");
    assert!(errors.contains("describes 100 B, but the payload has 99 B"), "{errors}");
    let (good, said, errors) = outcome(host.rgaps(&follow).arg("--json"));
    let said: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert!(good, "{errors}");
    assert_eq!((&said["taken"], &said["statistics"]["malformed"]), (&2.into(), &1.into()), "{said}");
}
