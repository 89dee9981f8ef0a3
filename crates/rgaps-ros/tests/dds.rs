//! Two nodes of ros2-client, on two hosts, exchange samples by descriptors over real DDS. They stand in for rclrs and r2r without an installed ROS:
//! publisher, payloads and messages are the same.
//!
//! Everything is on loopback: DDS on 127.0.0.1 alone, each host's manager on its own address.

#![allow(clippy::unwrap_used)] // helpers of tests, outside #[test] functions

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::Duration;

use futures::executor::block_on;

use rgaps::types::{Encoding, Image, Meta, Stamp};
use rgaps::{MessageHandle, Node};
use rgaps_ros::core::{Descriptors, Payloads, Publisher};
use rgaps_ros::parameters::{self, Defaults};
use rgaps_ros::{Descriptor, Error, GpuImage, Profile, Severity};
use rgaps_testing::{Child, RuntimeDir, Watchdog, programs};
use ros2_client::dds::rustdds::{DomainParticipantBuilder, Topic};
use ros2_client::dds::{Context, Node as RosNode, Publisher as RosPublisher, Subscription as RosSubscription};
use ros2_client::{DEFAULT_PUBLISHER_QOS, DEFAULT_SUBSCRIPTION_QOS, MessageTypeName, Name, NodeName, NodeOptions};

const LONG: Duration = Duration::from_secs(120);
const TOPIC: &str = "/camera/front";
const SAMPLES: usize = 20;

/// A host: a manager with its directory.
struct Host {
    node: Node,
    _manager: Child,
    _dir: RuntimeDir,
}

impl Host {
    fn new(name: &str, address: &str, peer: &str) -> Self {
        let dir = RuntimeDir::new(name).unwrap();
        // RGAPSD, because this package has another target folder than the workspace.
        let rgapsd = std::env::var_os("RGAPSD").map_or_else(|| programs::find("rgapsd"), PathBuf::from);
        let mut command = Command::new(rgapsd);
        dir.apply(&mut command);
        command.env("RGAPS_NETWORK", "loopback").env("RGAPS_DEVICE", "host").env("RGAPS_PEER_TIMEOUT_MS", "60000");
        command.env("RGAPS_DATA_ADDRESS", address).env("RGAPS_LISTEN", format!("tcp/{address}:7477"));
        command.env("RGAPS_PEERS", format!("tcp/{peer}:7477")).stderr(Stdio::null());
        let manager = Child::spawn(&mut command).unwrap();
        // Wait until the manager serves; the watchdog ends a wait that never does.
        let node = loop {
            match Node::builder().runtime_dir(dir.path()).no_autostart().build() {
                Ok(node) => break node,
                Err(_) => rgaps_testing::pause(),
            }
        };
        Self { node, _manager: manager, _dir: dir }
    }
}

/// A ROS node that spins in its own thread until the process ends.
fn ros_node(name: &str) -> (RosNode, Topic) {
    // A domain that is probably unused on this machine, the same for both nodes.
    let domain = 100 + (std::process::id() % 100) as u16;
    let participant = DomainParticipantBuilder::new(domain).with_only_networks([[127, 0, 0, 1]]).build().unwrap();
    let context = Context::from_domain_participant(participant).unwrap();
    let mut node = context.new_node(NodeName::new("/", name).unwrap(), NodeOptions::new()).unwrap();
    let (base, own) = TOPIC.rsplit_once('/').unwrap();
    let topic = node.create_topic(
        &Name::new(base, own).unwrap(),
        MessageTypeName::new("rgaps_msgs", "GpuImage"),
        &DEFAULT_PUBLISHER_QOS,
    );
    let spinner = node.spinner().unwrap();
    std::thread::spawn(move || block_on(spinner.spin()));
    (node, topic.unwrap())
}

/// The ROS half of the publisher.
struct ByDds {
    publisher: RosPublisher<GpuImage>,
    sent: Mutex<Vec<GpuImage>>,
}

impl Descriptors<Image> for ByDds {
    fn send(&self, message: &GpuImage) -> Result<(), Error> {
        self.sent.lock().unwrap().push(message.clone());
        self.publisher.publish(message.clone()).map_err(|error| Error::ros(TOPIC, format!("{error:?}")))
    }

    fn now(&self) -> Option<Stamp> {
        Some(Stamp::from_ns(7_000_000_007))
    }
}

fn received(descriptors: &RosSubscription<GpuImage>) -> GpuImage {
    block_on(descriptors.async_take()).unwrap().0
}

fn picture(number: usize, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|place| ((place + number * 13) % 251) as u8).collect()
}

#[test]
fn ros_nodes_on_two_hosts_exchange_samples_over_dds_and_refuse_a_replay() {
    let _watchdog = Watchdog::new(LONG);
    let (here, there) =
        (Host::new("dds-a", "127.0.0.71", "127.0.0.72"), Host::new("dds-b", "127.0.0.72", "127.0.0.71"));

    let (mut listener, topic) = ros_node("listener");
    let profile = Profile::default();
    let request = parameters::request(TOPIC, &profile, &mut Defaults).unwrap();
    let payloads: Payloads<Image> = Payloads::with(&there.node, TOPIC, &request).unwrap();
    let descriptors: RosSubscription<GpuImage> =
        listener.create_subscription(&topic, Some(DEFAULT_SUBSCRIPTION_QOS)).unwrap();

    let (mut talker, topic) = ros_node("talker");
    let by_dds = ByDds { publisher: talker.create_publisher(&topic, None).unwrap(), sent: Mutex::default() };
    let offer = parameters::offer(TOPIC, &profile, &mut Defaults).unwrap();
    let publisher = Publisher::of(&here.node, TOPIC, offer.qos, by_dds).unwrap();

    // Both directions of ROS discovery, and the link between the hosts.
    block_on(publisher.descriptors().publisher.wait_for_subscription(&talker));
    block_on(descriptors.wait_for_publisher(&listener));
    while publisher.core().subscriber_count() == 0 {
        rgaps_testing::pause();
    }

    let meta = Image::new(640, 480, Encoding::Rgb8).unwrap().in_frame("camera").unwrap();
    for number in 0..SAMPLES {
        let content = picture(number, meta.payload_bytes() as usize);
        let handle = if number % 2 == 0 {
            let mut loan = publisher.loan(meta).unwrap();
            loan.copy_from_slice(&content);
            loan.publish().unwrap()
        } else {
            publisher.push(meta, &content).unwrap()
        };
        let message = received(&descriptors);
        assert_eq!((message.handle(), message.meta().unwrap().header().frame_id.as_str()), (handle, "camera"));
        let sample = payloads.take(&message, |_, text| panic!("{text}")).unwrap();
        assert_eq!(sample.bytes(), content, "sample {number}");
        assert_eq!(sample.meta().header().stamp, Stamp { sec: 7, nanosec: 7 }, "the node's time, where none was given");
        assert!(sample.is_in_place());
    }
    assert_eq!((payloads.statistics().copied_bytes, payloads.statistics().lost, payloads.counts().refused), (0, 0, 0));

    // The descriptors again, as from a bag: their messages are freed. And one of an earlier run.
    let sent = publisher.descriptors().sent.lock().unwrap().clone();
    let earlier = sent[0].handle();
    let earlier = MessageHandle { host_epoch: earlier.host_epoch - 1, publisher: earlier.publisher ^ 1, ..earlier };
    let of_earlier_run = GpuImage::new(&earlier, &sent[0].meta().unwrap());
    let told = Mutex::new(Vec::new());
    for message in [&sent[0], &sent[SAMPLES - 1], &of_earlier_run, &of_earlier_run] {
        publisher.descriptors().publisher.publish(message.clone()).unwrap();
        let message = received(&descriptors);
        let refused = payloads.take(&message, |severity, text| {
            assert_eq!(severity, Severity::Warning);
            told.lock().unwrap().push(text.to_owned());
        });
        assert!(refused.is_none());
    }
    let told = told.into_inner().unwrap();
    assert_eq!((payloads.counts().refused, told.len()), (4, 2), "{told:?}");
    assert!(told[0].contains("was taken already") && told[1].contains("earlier run"), "{told:?}");

    // The next message still arrives.
    let content = picture(99, meta.payload_bytes() as usize);
    publisher.push(meta, &content).unwrap();
    let message = received(&descriptors);
    assert_eq!(payloads.take(&message, |_, text| panic!("{text}")).unwrap().bytes(), content);
}
