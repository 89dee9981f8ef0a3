//! A publisher's counters at any time.

use std::time::Duration;

use rgaps::device::DeviceKind;
use rgaps::types::Bytes;
use rgaps::{Node, Readiness};
use rgaps_testing::{RuntimeDir, Watchdog, skipped};

const LONG: Duration = Duration::from_secs(20);

#[test]
fn a_host_stream_publishes_and_releases_at_once() {
    let _watchdog = Watchdog::new(Duration::from_secs(100));
    let dir = RuntimeDir::new("streams").unwrap();
    let node = Node::builder().runtime_dir(dir.path()).build().unwrap();
    if node.device().kind() != DeviceKind::Host {
        return skipped("pools lie on a GPU");
    }
    let (subscriber, publisher) =
        (node.subscriber::<Bytes>("host/streams").unwrap(), node.publisher::<Bytes>("host/streams").unwrap());
    let stream = node.stream().unwrap();
    for fill in 1..=3 {
        let mut loan = publisher.loan(Bytes::new(5000)).unwrap();
        loan.fill(fill);
        loan.publish_on(&stream).unwrap();
        let sample = subscriber.take_on(&stream).unwrap().unwrap();
        assert_eq!((sample.readiness(), sample.bytes()), (Readiness::Ready, &[fill; 5000][..]));
        sample.release_on(&stream).unwrap();
        assert_eq!(publisher.statistics().outstanding, 0);
    }
    assert_eq!(subscriber.statistics().poisoned, 0);
}

#[test]
fn a_message_that_all_have_released_is_no_longer_outstanding() {
    let _watchdog = Watchdog::new(Duration::from_secs(100));
    let dir = RuntimeDir::new("statistics").unwrap();
    let node = Node::builder().runtime_dir(dir.path()).build().unwrap();
    let subscriber = node.subscriber::<Bytes>("topic").unwrap();
    let publisher = node.publisher::<Bytes>("topic").unwrap();
    let at_start = publisher.statistics().used_bytes;
    publisher.push(&Bytes::new(5000), &[7; 5000]).unwrap();
    let sample = subscriber.wait(LONG).unwrap().unwrap();
    let held = publisher.statistics();
    assert_eq!(held.outstanding, 1);
    assert!(held.used_bytes >= at_start + 5000, "{held:?}");
    drop(sample);
    let after = publisher.statistics();
    assert_eq!((after.outstanding, after.used_bytes), (0, at_start));
}
