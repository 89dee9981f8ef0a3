//! A call that waits ends with an error when its publisher or subscriber is cut off meanwhile.

#![allow(clippy::unwrap_used)] // helpers of tests, outside #[test] functions

use std::process::Command;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use rgaps::types::{Bytes, Meta};
use rgaps::{Exhaustion, History, MessageHandle, Node, PublisherQos, SubscriberQos};
use rgaps_testing::{Child, RuntimeDir, Watchdog, manager, programs};

const LONG: Duration = Duration::from_secs(20);
const ENDLESS: Duration = Duration::from_secs(3600);

fn rgapsd(dir: &RuntimeDir) -> Child {
    let mut command = Command::new(programs::find("rgapsd"));
    command.env("RGAPS_DEVICE", "host").env("RGAPS_NETWORK", "local");
    manager::start(dir, command).unwrap()
}

/// The error of a call that makes a node, says that it waits now, and waits. Meanwhile the manager dies, and its notes are removed, so that its
/// successor takes no slot back.
fn error_of(call: impl FnOnce(Node, Sender<()>) -> String + Send + 'static) -> String {
    let _watchdog = Watchdog::new(Duration::from_secs(60));
    let dir = RuntimeDir::new("cut-off-wait").unwrap();
    let mut manager = rgapsd(&dir);
    let node = Node::builder().runtime_dir(dir.path()).no_autostart().build().unwrap();
    let (waits, is_waiting) = channel();
    let (ended, end) = channel();
    std::thread::spawn(move || ended.send(call(node, waits)));
    is_waiting.recv_timeout(LONG).unwrap();
    manager.kill().unwrap();
    std::fs::remove_dir_all(dir.path()).unwrap();
    let _next = rgapsd(&dir);
    end.recv_timeout(LONG).expect("the call still waits")
}

#[test]
fn a_take_by_handle_that_waits_ends_when_its_subscriber_is_cut_off() {
    let error = error_of(|node, waits| {
        let subscriber = node.subscriber::<Bytes>("a").unwrap();
        // A message of another host, which may still arrive.
        let handle = MessageHandle {
            source_host: [9; 16],
            publisher: 7,
            sequence: 1,
            layout_version: MessageHandle::LAYOUT_VERSION,
            kind: Bytes::KIND,
            ..MessageHandle::default()
        };
        let is_over = || {
            let _ = waits.send(());
            false
        };
        subscriber.take_by_handle_unless(&handle, ENDLESS, None, is_over).map(drop).unwrap_err().to_string()
    });
    assert!(error.contains("cut off"), "{error}");
}

#[test]
fn a_loan_that_waits_ends_when_its_publisher_is_cut_off() {
    let error = error_of(|node, waits| {
        let qos = SubscriberQos { history: History::KeepAll, ..SubscriberQos::default() };
        let _subscriber = node.subscriber_with::<Bytes>("a", qos).unwrap();
        let exhaustion = Exhaustion::Wait { timeout_ms: ENDLESS.as_millis() as u64 };
        let qos = PublisherQos { exhaustion, pool_bytes: Some(1 << 16), ..PublisherQos::default() };
        let publisher = node.publisher_with::<Bytes>("a", qos).unwrap();
        let payload = [1; 16 << 10];
        let push = || publisher.push(&Bytes::new(payload.len() as u64), &payload);
        while publisher.statistics().used_bytes < 40 << 10 {
            push().unwrap();
        }
        waits.send(()).unwrap();
        (0..4).try_for_each(|_| push().map(drop)).unwrap_err().to_string()
    });
    assert!(error.contains("cut off"), "{error}");
}
