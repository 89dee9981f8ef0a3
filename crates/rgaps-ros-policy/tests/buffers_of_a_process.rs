//! The buffers of a process whose middleware loads the backend, and managers that come and go.

use std::time::Duration;

use rgaps_ros_policy::buffers::{Gid, ProcessBuffers};
use rgaps_testing::{RuntimeDir, Watchdog, again_with, programs};

const GID: Gid = Gid([1; 16]);

/// Runs the test again in a new process with a host of its own and further settings.
fn on_a_host(name: &str, more: &[(&str, &str)]) -> bool {
    let dir = RuntimeDir::new(name).expect("a folder");
    let rgapsd = programs::find("rgapsd");
    let mut settings = vec![
        ("RGAPSD", rgapsd.to_str().expect("a path")),
        ("RGAPS_RUNTIME_DIR", dir.path().to_str().expect("a path")),
        ("RGAPS_NETWORK", "local"),
        ("RGAPS_DEVICE", "host"),
    ];
    settings.extend_from_slice(more);
    again_with(&settings, |_| Ok(()))
}

#[test]
fn nothing_starts_a_manager_before_it_is_needed_and_one_that_died_is_replaced() {
    if !on_a_host("process", &[]) {
        return;
    }
    let _watchdog = Watchdog::new(Duration::from_secs(100));
    let dir = std::env::var("RGAPS_RUNTIME_DIR").expect("it is set");
    let serves = || std::fs::exists(format!("{dir}/rgapsd.sock")).expect("the folder can be read");
    let idle = ProcessBuffers::new();
    assert_eq!(idle.metadata(), "1:-:-:");
    idle.subscription_created(GID, None).expect("it is remembered");
    assert!(idle.subscription_discovered(GID, "1:-:-:", &[]) && idle.made().is_none() && !serves());

    let mut command = std::process::Command::new(programs::find("rgapsd"));
    command.env("RGAPS_RUNTIME_DIR", &dir);
    let mut first = rgaps_testing::Child::spawn(&mut command).expect("a manager");
    rgaps_testing::until("it serves", serves);
    let process = ProcessBuffers::new();
    assert!(process.metadata().len() > 30, "a manager runs");
    first.kill().expect("it is killed");
    // What was made without starting a manager starts a successor.
    let buffer = process.get().expect("it is made").allocate(10).expect("a successor is started");
    buffer.copy_in(b"0123456789").expect("it fits");
    assert_eq!(buffer.to_vec().expect("it is there"), b"0123456789");
}

#[test]
fn a_manager_that_does_not_answer_delays_discovery_once() {
    if !on_a_host("silent", &[]) {
        return;
    }
    let _watchdog = Watchdog::new(Duration::from_secs(100));
    let manager =
        rgaps_testing::Child::spawn(&mut std::process::Command::new(programs::find("rgapsd"))).expect("a manager");
    let dir = std::env::var("RGAPS_RUNTIME_DIR").expect("it is set");
    rgaps_testing::until("it serves", || {
        std::fs::exists(format!("{dir}/rgapsd.sock")).expect("the folder can be read")
    });
    let process = ProcessBuffers::new();
    manager.stop().expect("it stops");
    // Each that waits costs 10 s.
    for _ in 0..20 {
        assert_eq!(process.metadata(), "1:-:-:");
        assert!(!process.publisher_discovered("1:-:-:").expect("it did not wait"));
    }
    manager.go_on().expect("it goes on");
    rgaps_testing::until("a later discovery reaches it", || {
        process.publisher_discovered("1:-:-:").is_ok_and(|may| may)
    });
}

#[test]
fn the_environment_of_a_process_sets_the_size_of_its_pool_though_a_manager_runs() {
    if !on_a_host("pool", &[("RGAPS_POOL_BYTES", "1MiB")]) {
        return;
    }
    let _watchdog = Watchdog::new(Duration::from_secs(100));
    let mut command = std::process::Command::new(programs::find("rgapsd"));
    let _manager = rgaps_testing::Child::spawn(command.env_remove("RGAPS_POOL_BYTES")).expect("a manager");
    let buffers = ProcessBuffers::new().get().expect("they are made");
    assert!(buffers.allocate(1 << 20).is_ok());
    let error = buffers.allocate((1 << 20) + 1).expect_err("the manager's pools have more").to_string();
    assert!(error.contains("RGAPS_POOL_BYTES in its environment"), "{error}");
}
