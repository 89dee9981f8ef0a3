//! A publisher's counters at any time.

use std::time::Duration;

use rgaps::device::DeviceKind;
use rgaps::types::Bytes;
use rgaps::{History, Node, Readiness, SubscriberQos};
use rgaps_testing::{RuntimeDir, Watchdog, skipped, until};

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

#[test]
fn a_topics_summary_counts_what_its_subscribers_have_lost_until_they_leave() {
    let _watchdog = Watchdog::new(Duration::from_secs(100));
    let dir = RuntimeDir::new("lost").unwrap();
    let node = Node::builder().runtime_dir(dir.path()).build().unwrap();
    let keep_last = |depth| {
        let qos = SubscriberQos { history: History::KeepLast(depth), ..SubscriberQos::default() };
        node.subscriber_with::<Bytes>("lossy", qos).unwrap()
    };
    let (shallow, deep) = (keep_last(2), keep_last(100));
    let publisher = node.publisher::<Bytes>("lossy").unwrap();
    for fill in 1..=5 {
        publisher.push(&Bytes::new(10), &[fill; 10]).unwrap();
    }
    while shallow.take().unwrap().is_some() {}
    while deep.take().unwrap().is_some() {}
    let lost = || node.topics().unwrap()[0].lost;
    assert_eq!((shallow.statistics().lost, deep.statistics().lost), (3, 0));
    assert_eq!(lost(), 3);
    drop(shallow);
    until("the subscriber has left", || node.topics().unwrap()[0].subscribers == 1);
    assert_eq!(lost(), 0);
}
