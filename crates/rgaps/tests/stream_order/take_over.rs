//! A successor that lacks something for a moment, or is configured for another device, takes every publisher's slot back.

use std::process::Command;

use rgaps::types::Bytes;
use rgaps::{Node, PublishError, Publisher, PublisherQos};
use rgaps_testing::{Child, RuntimeDir, Watchdog, manager, programs, until};

use super::bench::{LONG, MIB, on_standin};

/// File descriptors that a manager has without any topic, or fewer.
const FEW: std::ops::Range<u32> = 28..100;

/// How a manager is started.
#[derive(Clone, Copy)]
struct Start<'a> {
    device: &'a str,
    fds: u32,
    /// Driver calls that fail, as the stand-in is told.
    fails: &'a str,
}

const PLAIN: Start<'_> = Start { device: "cuda", fds: 1024, fails: "" };

fn rgapsd(dir: &RuntimeDir, start: Start<'_>) -> std::io::Result<Child> {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("ulimit -n {} && exec \"$0\" 2>>\"$1\"", start.fds)]);
    command.arg(programs::find("rgapsd")).arg(dir.path().join("rgapsd.log"));
    command.env("RGAPS_NETWORK", "local").env("RGAPS_DEVICE", start.device);
    command.env("RGAPS_TEST_STANDIN_FAIL", start.fails);
    manager::start(dir, command)
}

/// Publishers whose manager was killed.
struct Left {
    dir: RuntimeDir,
    node: Node,
    publishers: Vec<Publisher<Bytes>>,
}

impl Left {
    fn by(first: Start<'_>, count: usize) -> Self {
        let dir = RuntimeDir::new("take-over").unwrap();
        let mut manager = rgapsd(&dir, first).unwrap();
        let node = Node::builder().runtime_dir(dir.path()).no_autostart().build().unwrap();
        let qos = PublisherQos { pool_bytes: Some(MIB), ..Default::default() };
        let publishers: Vec<_> = (0..count).map(|n| node.publisher_with(&format!("t{n}"), qos).unwrap()).collect();
        let left = Self { dir, node, publishers };
        assert_eq!(left.cut_off(), 0);
        manager.kill().unwrap();
        left
    }

    fn cut_off(&self) -> usize {
        let push = |publisher: &Publisher<Bytes>| publisher.push(&Bytes::new(1000), &[1; 1000]);
        let is_cut = |publisher: &&Publisher<Bytes>| matches!(push(publisher), Err(PublishError::CutOff { .. }));
        self.publishers.iter().filter(is_cut).count()
    }

    /// Whether the manager that serves has the slots back.
    fn are_back(&self) -> bool {
        let of = |topics: Vec<rgaps::TopicSummary>| topics.iter().map(|topic| topic.publishers as usize).sum::<usize>();
        self.node.topics().is_ok_and(|topics| of(topics) == self.publishers.len())
    }

    /// How many are cut off once a manager has them back.
    fn come_back(&self) -> usize {
        until("slots are back, or lost", || self.are_back() || self.cut_off() > 0);
        self.cut_off()
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("rgapsd.log")).unwrap()
    }
}

#[test]
fn a_successor_short_of_file_descriptors_cuts_off_no_publisher_on_a_gpu() {
    if !on_standin(&[]) {
        return;
    }
    let _watchdog = Watchdog::new(LONG);
    let mut served = 0;
    for fds in FEW.step_by(8) {
        let left = Left::by(PLAIN, 8);
        // With too few it does not even listen.
        let Ok(mut few) = rgapsd(&left.dir, Start { fds, ..PLAIN }) else { continue };
        served += 1;
        let lacks = || left.log().contains("slots cannot be taken back now");
        let has_all = || left.log().matches("topic taken over").count() == left.publishers.len();
        until("it takes topics over, or lacks file descriptors", || lacks() || left.cut_off() > 0 || has_all());
        few.kill().unwrap();
        let _next = rgapsd(&left.dir, PLAIN).unwrap();
        assert_eq!(left.come_back(), 0, "with {fds} file descriptors:\n{}", left.log());
    }
    assert!(served > 0, "no manager served");
}

#[test]
fn a_successor_that_lacks_device_memory_once_cuts_off_no_publisher() {
    if !on_standin(&[]) {
        return;
    }
    let _watchdog = Watchdog::new(LONG);
    let calls = ["cuMemImportFromShareableHandle", "cuMemAddressReserve", "cuMemMap", "cuMemSetAccess"];
    for call in calls {
        let left = Left::by(PLAIN, 2);
        // CUDA_ERROR_OUT_OF_MEMORY.
        let _next = rgapsd(&left.dir, Start { fails: &format!("{call}#1=2"), ..PLAIN }).unwrap();
        assert_eq!(left.come_back(), 0, "{call}:\n{}", left.log());
    }
}

#[test]
fn a_successor_that_cannot_open_the_gpu_ends_and_cuts_off_no_publisher() {
    if !on_standin(&[]) {
        return;
    }
    let _watchdog = Watchdog::new(LONG);
    let auto = Start { device: "auto", ..PLAIN };
    for call in ["cuInit", "cuDevicePrimaryCtxRetain"] {
        let left = Left::by(auto, 2);
        assert!(rgapsd(&left.dir, Start { fails: &format!("{call}#1=2"), ..auto }).is_err(), "{call}");
        let _next = rgapsd(&left.dir, auto).unwrap();
        assert_eq!(left.come_back(), 0, "{call}:\n{}", left.log());
    }
}

#[test]
fn a_successor_configured_for_another_device_serves_on_that_of_the_pools() {
    if !on_standin(&[]) {
        return;
    }
    let _watchdog = Watchdog::new(LONG);
    for (device, other) in [("host", "auto"), ("host", "cuda"), ("cuda", "host")] {
        let left = Left::by(Start { device, ..PLAIN }, 2);
        let _next = rgapsd(&left.dir, Start { device: other, ..PLAIN }).unwrap();
        assert_eq!(left.come_back(), 0, "{device}, then {other}:\n{}", left.log());
    }
}
