//! The examples, run as a user would run them.

#![allow(clippy::unwrap_used)] // helpers of tests, outside #[test] functions

use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};
use std::time::Duration;

use rgaps::device::cuda::Device;
use rgaps_testing::{Child, Ended, RuntimeDir, Watchdog, programs, skipped};

fn example(name: &str, argument: &str, dir: &RuntimeDir) -> Command {
    let mut command = Command::new(programs::find(name));
    command.arg(argument).env("RGAPS_RUNTIME_DIR", dir.path()).env("RGAPS_NETWORK", "local");
    command.env("RGAPSD", programs::find("rgapsd")).stdout(Stdio::piped());
    command
}

#[test]
fn an_example_that_cannot_start_says_why_in_words() {
    let _watchdog = Watchdog::new(Duration::from_secs(120));
    let dir = RuntimeDir::new("words").unwrap();
    let output = example("camera", "1", &dir).env("RGAPS_AUTOSTART", "0").output().unwrap();
    let path = dir.path().display();
    let said = format!(
        "Error: no rgapsd runs in {path} (from RGAPS_RUNTIME_DIR), and none is started (RGAPS_AUTOSTART=0, or the node's builder): start rgapsd or a node first, or set RGAPS_RUNTIME_DIR if they use another directory\n"
    );
    assert_eq!((output.status.success(), String::from_utf8(output.stderr).unwrap()), (false, said));
}

#[test]
fn the_camera_is_seen_by_the_brightness_meter() {
    let _watchdog = Watchdog::new(Duration::from_secs(120));
    let dir = RuntimeDir::new("examples").unwrap();
    let mut meter = Child::spawn(&mut example("brightness", "5", &dir)).unwrap();
    let mut lines = BufReader::new(meter.std().stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "ready");
    let mut camera = Child::spawn(&mut example("camera", "8", &dir)).unwrap();
    let text: Vec<String> = lines.map(Result::unwrap).collect();
    assert_eq!(text.len(), 5, "{text:?}");
    assert_eq!(text[0], "picture 1: 0.0 (in place)");
    assert_eq!(text[4], "picture 5: 4.0 (in place)");
    for child in [&mut meter, &mut camera] {
        let ended = child.wait_within(Duration::from_secs(20)).unwrap();
        assert!(matches!(ended, Ended::Exited(status) if status.success()), "{ended:?}");
    }
    let mut said = String::new();
    camera.std().stdout.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(said.contains("published message 8"));
}

#[test]
fn a_kernels_example_without_a_gpu_says_what_it_needs() {
    let _watchdog = Watchdog::new(Duration::from_secs(120));
    let dir = RuntimeDir::new("kernel-host").unwrap();
    for name in ["ramp", "invert"] {
        let output = example(name, "1", &dir).env("RGAPS_DEVICE", "host").output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && said.contains("this example needs an NVIDIA GPU"), "{name}: {said}");
    }
}

#[test]
fn a_second_kernel_inverts_the_pictures_of_a_first_in_place() {
    match Device::count() {
        Ok(1..) => {}
        Ok(0) => return skipped("no GPU is visible"),
        Err(reason) => return skipped(reason),
    }
    let _watchdog = Watchdog::new(Duration::from_secs(120));
    let dir = RuntimeDir::new("kernel").unwrap();
    let mut invert = Child::spawn(&mut example("invert", "5", &dir)).unwrap();
    let mut lines = BufReader::new(invert.std().stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "ready");
    let mut ramp = Child::spawn(&mut example("ramp", "8", &dir)).unwrap();
    let text: Vec<String> = lines.map(Result::unwrap).collect();
    assert_eq!(text.len(), 5, "{text:?}");
    assert!(text.iter().all(|line| line.contains("307200 pixels inverted (in place)")), "{text:?}");
    for child in [&mut invert, &mut ramp] {
        let ended = child.wait_within(Duration::from_secs(20)).unwrap();
        assert!(matches!(ended, Ended::Exited(status) if status.success()), "{ended:?}");
    }
}
