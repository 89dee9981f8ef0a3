//! What a publisher's counters say, asked at any time.

use std::time::Duration;

use rgaps::Node;
use rgaps::types::Bytes;
use rgaps_testing::{RuntimeDir, Watchdog};

const LONG: Duration = Duration::from_secs(20);

#[test]
fn what_everybody_has_let_go_is_no_longer_outstanding_though_nothing_is_published_after_it() {
    let _watchdog = Watchdog::new(Duration::from_secs(100));
    let dir = RuntimeDir::new("statistics").unwrap();
    let node = Node::builder().runtime_dir(dir.path()).build().unwrap();
    let subscriber = node.subscriber::<Bytes>("topic").unwrap();
    let publisher = node.publisher::<Bytes>("topic").unwrap();
    let at_start = publisher.statistics().used_bytes;
    publisher.push(&Bytes::new(5000), &[7; 5000]).unwrap();
    let frame = subscriber.wait(LONG).unwrap().unwrap();
    let held = publisher.statistics();
    assert_eq!(held.outstanding, 1);
    assert!(held.used_bytes >= at_start + 5000, "{held:?}");
    drop(frame);
    let after = publisher.statistics();
    assert_eq!((after.outstanding, after.used_bytes), (0, at_start));
}
