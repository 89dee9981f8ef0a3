//! The same contract on the stand-in for libcuda, which can hold its streams: so the tests show what waits for what without timing.

#![allow(clippy::unwrap_used)] // helpers of tests, outside #[test] functions

use std::io::Read;
use std::process::{Command, Stdio};
use std::time::Duration;

use rgaps::Node;
use rgaps_ros_policy::buffers::{Buffer, Buffers, Descriptor, Gid};
use rgaps_standin_cuda::{Control, link_into};
use rgaps_testing::{Child, RuntimeDir, Watchdog, again_with, is_again, programs, until};

const BYTES: u64 = 1 << 20;
const GID: Gid = Gid([1; 16]);
const OTHER: Gid = Gid([2; 16]);

/// Runs the test again in a new process in which the stand-in replaces libcuda, also for the manager.
fn on_standin(settings: &[(&str, &str)]) -> bool {
    let rgapsd = programs::find("rgapsd");
    let mut all = vec![("RGAPSD", rgapsd.to_str().unwrap()), ("RGAPS_NETWORK", "local"), ("RGAPS_DEVICE", "cuda")];
    all.extend_from_slice(settings);
    again_with(&all, link_into)
}

struct Bench {
    gpu: Control,
    camera: Buffers,
    viewer: Buffers,
    // Last: dropping it ends the manager.
    _dir: RuntimeDir,
    _watchdog: Watchdog,
}

impl Bench {
    /// After a first payload, which makes pools and registers memory.
    fn new() -> Self {
        let _watchdog = Watchdog::new(Duration::from_secs(120));
        let dir = RuntimeDir::new("gpu-buffers").unwrap();
        let process = || Buffers::new(Node::builder().runtime_dir(dir.path()).build().unwrap());
        let (camera, viewer) = (process(), process());
        viewer.subscription_created(GID, None).unwrap();
        assert!(camera.subscription_discovered(GID, &viewer.metadata(), &[]));
        let bench = Self { gpu: Control::load(), camera, viewer, _dir: dir, _watchdog };
        assert!(is_filled(&bench.send(&bench.filled(1)), 1));
        until("all is released", || bench.camera.used_bytes() == 0);
        bench
    }

    fn filled(&self, fill: u8) -> Buffer {
        let buffer = self.camera.allocate(BYTES).unwrap();
        buffer.copy_in(&[fill; BYTES as usize]).unwrap();
        buffer
    }

    fn send(&self, buffer: &Buffer) -> Buffer {
        self.viewer.receive(&self.camera.describe(buffer, GID).unwrap())
    }
}

fn is_filled(buffer: &Buffer, fill: u8) -> bool {
    buffer.to_vec().unwrap() == [fill; BYTES as usize]
}

#[test]
fn publishing_receiving_and_reading_wait_for_no_device() {
    if !on_standin(&[]) {
        return;
    }
    let bench = Bench::new();
    let stream = bench.viewer.node().stream().unwrap();
    bench.gpu.hold();
    let buffer = bench.filled(7);
    let received = bench.send(&buffer);
    drop(buffer);
    let memory = received.begin_read(Some(&stream)).unwrap();
    assert!(memory.address != 0 && memory.bytes == BYTES);
    memory.end(Some(&stream)).unwrap();
    drop(stream);
    assert!(bench.camera.used_bytes() >= BYTES, "a device fills it");
    bench.gpu.go();
    assert!(is_filled(&received, 7));
    drop(received);
    until("all is released", || bench.camera.used_bytes() == 0);
}

#[test]
fn a_buffer_that_is_dropped_while_a_device_fills_it_is_freed_afterwards() {
    if !on_standin(&[]) {
        return;
    }
    let bench = Bench::new();
    let stream = bench.camera.node().stream().unwrap();
    bench.gpu.hold();
    let buffer = bench.filled(1);
    let written = buffer.begin_write(Some(&stream)).unwrap();
    written.end(Some(&stream)).unwrap();
    drop(buffer);
    assert!(bench.camera.used_bytes() >= BYTES, "a device may still write it");
    bench.gpu.go();
    until("it is freed", || bench.camera.used_bytes() == 0);
}

#[test]
fn a_publisher_on_another_gpu_reads_its_bytes_before_and_after_publication() {
    if !on_standin(&[("RGAPS_TEST_STANDIN_DEVICES", "2"), ("RGAPS_TEST_STANDIN_NO_PEER", "1")]) {
        return;
    }
    let bench = Bench::new();
    let node = Node::builder().runtime_dir(bench._dir.path()).device("cuda:1".parse().unwrap()).build().unwrap();
    let camera = Buffers::new(node);
    assert!(camera.subscription_discovered(GID, &bench.viewer.metadata(), &[]));
    let buffer = camera.allocate(BYTES).unwrap();
    until("the viewer is reached", || camera.statistics().reached == 1);
    buffer.copy_in(&[5; BYTES as usize]).unwrap();
    let stream = camera.node().stream().unwrap();
    let before = buffer.begin_read(Some(&stream)).unwrap();
    let freed = || {
        camera.used_bytes(); // drops what is over
        bench.gpu.calls("cuMemFreeAsync")
    };
    let freed_before = freed();
    let received = bench.viewer.receive(&camera.describe(&buffer, GID).unwrap());
    assert!(is_filled(&received, 5) && is_filled(&buffer, 5));
    let after = buffer.begin_read(Some(&stream)).unwrap();
    assert_eq!((after.address, after.device.device_id), (before.address, 1), "memory that this GPU can read");
    drop(buffer);
    assert_eq!(freed(), freed_before, "reads go on");
    before.end(Some(&stream)).unwrap();
    after.end(Some(&stream)).unwrap();
    until("its memory is freed", || freed() > freed_before);
}

#[test]
fn copies_on_the_device_have_the_same_bytes() {
    if !on_standin(&[]) {
        return;
    }
    let bench = Bench::new();
    let buffer = bench.filled(1);
    let clone = buffer.duplicate().unwrap();
    let first = bench.send(&buffer);
    buffer.copy_in(&[2; BYTES as usize]).unwrap();
    assert!(is_filled(&first, 1) && is_filled(&clone, 1) && is_filled(&buffer, 2));
    assert_eq!(bench.camera.statistics().copied, 2);
    // What the viewer received, it publishes again.
    let last = Buffers::new(Node::builder().runtime_dir(bench._dir.path()).build().unwrap());
    last.subscription_created(OTHER, None).unwrap();
    assert!(bench.viewer.subscription_discovered(OTHER, &last.metadata(), &[]));
    assert!(is_filled(&last.receive(&bench.viewer.describe(&first, OTHER).unwrap()), 1));
    assert_eq!(bench.viewer.statistics().copied, 1);
}

#[test]
fn bytes_that_a_dead_publisher_never_completed_are_an_error_of_reads() {
    if !on_standin(&[]) {
        return;
    }
    let bench = Bench::new();
    bench.viewer.subscription_created(OTHER, None).unwrap();
    let mut camera = Command::new(std::env::current_exe().unwrap());
    camera.args(["--exact", "role_of_a_camera_whose_gpu_stands_still", "--ignored", "--nocapture"]);
    camera.env("RGAPS_RUNTIME_DIR", bench._dir.path()).env("RGAPS_TEST_VIEWER", bench.viewer.metadata());
    let mut camera = Child::spawn(camera.stdin(Stdio::piped()).stdout(Stdio::piped())).unwrap();
    let numbers = camera.output_after("described").unwrap();
    let numbers: Vec<u8> = numbers.split_whitespace().map(|number| number.parse().unwrap()).collect();
    let received = bench.viewer.receive(&Descriptor::from_bytes(numbers.first_chunk().unwrap()));
    let stream = bench.viewer.node().stream().unwrap();
    // Device work that waits for the bytes goes on when they never come; it cannot be told.
    let begun = received.begin_read(Some(&stream)).unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| received.to_vec().map_err(|error| error.to_string()));
        camera.kill().unwrap();
        let error = waiting.join().unwrap().unwrap_err();
        assert!(error.contains("was never completed"), "{error}");
    });
    begun.end(Some(&stream)).unwrap();
    assert!(received.begin_read(Some(&stream)).is_err() && received.begin_write(None).is_err());
}

#[test]
#[ignore = "run by bytes_that_a_dead_publisher_never_completed_are_an_error_of_reads"]
fn role_of_a_camera_whose_gpu_stands_still() {
    let Ok(metadata) = std::env::var("RGAPS_TEST_VIEWER") else { return };
    assert!(is_again());
    let _watchdog = Watchdog::new(Duration::from_secs(120));
    let gpu = Control::load();
    let camera = Buffers::new(Node::new("camera").unwrap());
    assert!(camera.subscription_discovered(OTHER, &metadata, &[]));
    let buffer = camera.allocate(BYTES).unwrap();
    until("the viewer is reached", || camera.statistics().reached == 1);
    gpu.hold();
    buffer.copy_in(&[1; BYTES as usize]).unwrap();
    let descriptor = camera.describe(&buffer, OTHER).unwrap();
    println!("described {}", descriptor.to_bytes().map(|byte| byte.to_string()).join(" "));
    // Until it is killed.
    let _ = std::io::stdin().read(&mut [0]);
}
