//! One publisher, many subscribers, three hosts: in any order of their start, every message arrives, and crosses each cable once.

use crate::world::{Program, World};

const MESSAGES: usize = 24;
/// The points of examples/data/saddle.pcd.
const BYTES: u64 = 16384 * 16;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Step {
    Publisher,
    Subscribers,
    Managers,
}

/// Starts everything in the given order and checks the results.
fn every_frame_arrives(order: [Step; 3]) {
    let Some(world) = World::new(3) else { return };
    let folder = world.series("saddle.pcd", MESSAGES);
    let input = folder.to_str().unwrap();
    let count = MESSAGES.to_string();
    let take = ["cloud", "--type", "point_cloud", "--keep-all", "--count", &count];
    let mut publisher = Vec::new();
    let mut subscribers: Vec<Program> = Vec::new();
    let mut managers: Vec<Program> = Vec::new();
    for step in order {
        match step {
            // It waits for its own host's four subscribers and for the two other hosts.
            Step::Publisher => publisher.push(world.publish(
                0,
                "pub",
                &["cloud", "--input", input, "--rate", "100", "--wait-for", "6"],
            )),
            Step::Subscribers => {
                for (host, count) in [(1, 4), (2, 4), (0, 3)] {
                    subscribers.extend((0..count).map(|n| world.sub(host, &format!("sub{n}"), &take)));
                }
            }
            Step::Managers => managers.extend((0..3).map(|host| world.manager(host, "rgapsd"))),
        }
    }
    for (host, count) in [(1, 4), (2, 4), (0, 3)] {
        world.await_info(host, "cloud", "that all subscribers are there", |info| info["subscribers"] == count);
    }
    let before = [1, 2].map(|host| world.hosts[host].counters().unwrap());
    // The last subscriber opens the gate: now the publisher has all that it waits for.
    subscribers.push(world.sub(0, "sub3", &take));
    let published = publisher[0].summary(&world);
    assert_eq!((&published["published"], &published["refused"]), (&MESSAGES.into(), &0.into()), "{published}");
    for subscriber in &mut subscribers {
        let received = subscriber.summary(&world);
        assert_eq!(received["taken"], MESSAGES, "{received}");
        assert_eq!(received["bytes"], BYTES * MESSAGES as u64, "{received}");
        for counter in ["mismatched", "missing", "copies_per_subscriber"] {
            assert_eq!(received[counter], 0, "{counter}: {received}");
        }
        assert_eq!(received["statistics"]["lost"], 0, "{received}");
    }
    let payload = BYTES * MESSAGES as u64;
    for (host, before) in [1, 2].into_iter().zip(before) {
        let moved = world.hosts[host].counters().unwrap() - before;
        assert!(
            (payload..payload + payload * 15 / 100).contains(&moved.received_bytes),
            "host {host} received {moved:?} for a payload of {payload} bytes\n{}",
            world.logs()
        );
    }
}

#[test]
fn every_frame_arrives_with_publisher_subscribers_managers_in_this_order() {
    every_frame_arrives([Step::Publisher, Step::Subscribers, Step::Managers]);
}

#[test]
fn every_frame_arrives_with_publisher_managers_subscribers_in_this_order() {
    every_frame_arrives([Step::Publisher, Step::Managers, Step::Subscribers]);
}

#[test]
fn every_frame_arrives_with_subscribers_publisher_managers_in_this_order() {
    every_frame_arrives([Step::Subscribers, Step::Publisher, Step::Managers]);
}

#[test]
fn every_frame_arrives_with_subscribers_managers_publisher_in_this_order() {
    every_frame_arrives([Step::Subscribers, Step::Managers, Step::Publisher]);
}

#[test]
fn every_frame_arrives_with_managers_publisher_subscribers_in_this_order() {
    every_frame_arrives([Step::Managers, Step::Publisher, Step::Subscribers]);
}

#[test]
fn every_frame_arrives_with_managers_subscribers_publisher_in_this_order() {
    every_frame_arrives([Step::Managers, Step::Subscribers, Step::Publisher]);
}
