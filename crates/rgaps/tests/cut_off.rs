//! A client that does not read its socket (stopped or busy) blocks no other client: the manager closes its connection, and it reconnects.

#![allow(clippy::unwrap_used)] // helpers of tests, outside #[test] functions

use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rgaps::types::Bytes;
use rgaps::{Node, Publisher};
use rgaps_testing::{Child, RuntimeDir, Watchdog, is_again, manager, programs, skipped};

const TOPIC: &str = "cut_off";
/// Each subscriber causes one notice: far more than a socket holds.
const SUBSCRIBERS_MAX: u32 = 20_000;
const LONG: Duration = Duration::from_secs(20);

fn publish(publisher: &Publisher<Bytes>, byte: u8) {
    let mut loan = publisher.loan(Bytes::new(16)).unwrap();
    loan.fill(byte);
    loan.publish().unwrap();
}

#[test]
#[ignore = "the stopped client's program, started by the tests of this file"]
fn role_of_the_stopped() {
    if std::env::var("RGAPS_TEST_CUT_OFF").is_err() {
        return;
    }
    let _watchdog = Watchdog::new(Duration::from_secs(120));
    let node = Node::new("stopped").unwrap();
    let publisher = node.publisher::<Bytes>(TOPIC).unwrap();
    println!("ready");
    loop {
        publish(&publisher, 1);
        std::thread::park_timeout(Duration::from_millis(20));
    }
}

/// A publishing client, stopped.
fn stopped_client(dir: &RuntimeDir) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "role_of_the_stopped", "--ignored", "--nocapture"]);
    command.env("RGAPS_TEST_CUT_OFF", "1").env("RGAPS_RUNTIME_DIR", dir.path());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = Child::spawn(&mut command).unwrap();
    child.output_after("ready").expect("it starts");
    child.stop().unwrap();
    child
}

#[test]
fn a_stopped_client_blocks_no_other_client_and_keeps_its_slot() {
    let _watchdog = Watchdog::new(Duration::from_secs(100));
    let dir = RuntimeDir::new("cut-off").unwrap();
    let node = Node::builder().runtime_dir(dir.path()).build().unwrap();
    let child = stopped_client(&dir);

    let log = || std::fs::read_to_string(dir.path().join("rgapsd.log")).unwrap_or_default();
    let mut made = 0;
    while !log().contains("a client is disconnected") {
        assert!(made < SUBSCRIBERS_MAX, "{made} notices went to a client that reads none\n{}", log());
        for _ in 0..16 {
            let subscriber = node.subscriber::<Bytes>(TOPIC).unwrap();
            subscriber.event_fd().unwrap();
            made += 1;
        }
    }
    assert!(log().contains("stopped"), "it is named\n{}", log());
    // Other clients of the topic continue.
    let own = node.publisher::<Bytes>(TOPIC).unwrap();
    let subscriber = node.subscriber::<Bytes>(TOPIC).unwrap();
    let event = subscriber.event_fd().unwrap().try_clone_to_owned().unwrap();
    publish(&own, 2);
    assert!(rgaps_os::poll::readable(&event, LONG).unwrap());
    assert_eq!(subscriber.take().unwrap().expect("it was published").bytes()[0], 2);
    drop(own);

    // After it reconnects, it learns of a subscriber whose notice it missed, and signals that subscriber's eventfd.
    child.go_on().unwrap();
    let deadline = Instant::now() + LONG;
    let came = std::iter::from_fn(|| (Instant::now() < deadline).then_some(())).any(|()| {
        let rung = rgaps_os::poll::readable(&event, LONG).unwrap();
        rung && subscriber.take().unwrap().is_some_and(|sample| sample.bytes()[0] == 1)
    });
    assert!(came, "{}", log());
}

#[test]
fn a_stopped_publisher_does_not_use_up_the_file_descriptors_of_others() {
    if !is_again() {
        if !rustix::process::geteuid().is_root() {
            return skipped("not root: it becomes another user, whom the kernel does not spare");
        }
        // The kernel limits file descriptors in flight per user, except for root.
        let name = std::thread::current().name().unwrap().to_owned();
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", &name, "--nocapture"]).env("AGAIN_IN_A_PROCESS_OF_ITS_OWN", "1");
        let output = command.env("HOME", "/").uid(65534).gid(65534).output().unwrap();
        let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert!(output.status.success(), "{text}");
        return;
    }
    let _watchdog = Watchdog::new(Duration::from_secs(100));
    let dir = RuntimeDir::new("on-their-way").unwrap();
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -n 256 && exec \"$0\""]).arg(programs::find("rgapsd"));
    command.env("RGAPS_DEVICE", "host").env("RGAPS_NETWORK", "local");
    let _manager = manager::start(&dir, command).unwrap();
    let _stopped = stopped_client(&dir);
    let node = Node::builder().runtime_dir(dir.path()).no_autostart().build().unwrap();
    for number in 0..400 {
        // One at a time: each is dropped before the next.
        let made = node.subscriber::<Bytes>(TOPIC);
        assert!(made.is_ok(), "subscriber {number}: {}", made.unwrap_err());
    }
}
