//! Quality of service between two hosts: links without flow control, best effort, keep-all that stalls, late joiners.

use serde_json::Value;

use crate::world::{Program, World, example, within_limit};

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no number"))
}

/// An endless stream of arrays (or clouds) from the first host.
fn stream(world: &World, file: &str, rate: &str, more: &[&str]) -> Program {
    let file = example(file);
    let arguments =
        ["topic", "--input", file.to_str().unwrap(), "--rate", rate, "--loop", "--exhaustion", "drop_oldest"];
    world.publish(0, "pub", &[&arguments[..], more].concat())
}

/// How many torn messages the second host's link has discarded.
fn torn(info: &Value) -> u64 {
    let links = info["links"].to_string();
    let (before, _) = links.split_once(" torn").unwrap_or(("0", ""));
    before.rsplit(' ').next().and_then(|count| count.parse().ok()).unwrap_or(0)
}

#[test]
fn without_flow_control_a_publisher_waits_for_no_host_and_losses_are_counted() {
    let Some(mut world) = World::new(2) else { return };
    // Each message is four times the ring.
    world.set("RGAPS_RING_BYTES", "65536");
    world.set("RGAPS_CHUNK_BYTES", "4096");
    let mut subscriber = world.sub(1, "sub", &["topic", "--type", "point_cloud", "--verbose"]);
    let mut publisher = stream(&world, "saddle.pcd", "400", &["--no-flow-control", "--wait-for", "1"]);
    subscriber.await_lines(&world, 100);
    let published = publisher.interrupt(&world);
    assert_eq!(published["refused"], 0, "the sender does not wait: {published}");
    subscriber.interrupt_and_account(&world);
}

#[test]
fn with_flow_control_the_same_ring_tears_nothing() {
    let Some(mut world) = World::new(2) else { return };
    world.set("RGAPS_RING_BYTES", "65536");
    world.set("RGAPS_CHUNK_BYTES", "4096");
    let mut subscriber = world.sub(1, "sub", &["topic", "--type", "point_cloud", "--verbose"]);
    let mut publisher = stream(&world, "saddle.pcd", "400", &["--wait-for", "1"]);
    subscriber.await_lines(&world, 100);
    assert_eq!(torn(&world.info(1, "topic").unwrap()), 0);
    publisher.interrupt(&world);
    subscriber.interrupt_and_account(&world);
}

#[test]
fn best_effort_streams_reach_best_effort_subscribers_on_both_hosts() {
    let Some(world) = World::new(2) else { return };
    let take = ["topic", "--type", "tensor", "--best-effort", "--verbose"];
    let mut subscribers = [0, 1].map(|host| world.sub(host, "sub", &take));
    let mut publisher = stream(&world, "ramp.npy", "200", &["--best-effort", "--wait-for", "2"]);
    subscribers.iter().for_each(|subscriber| subscriber.await_lines(&world, 50));
    let published = publisher.interrupt(&world);
    for subscriber in &mut subscribers {
        subscriber.interrupt_and_account_exactly(&world, &published);
    }
}

#[test]
fn a_stalled_remote_keep_all_subscriber_becomes_keep_last_with_a_warning() {
    let Some(mut world) = World::new(2) else { return };
    world.set("RGAPS_KEEP_ALL_TIMEOUT_MS", "300");
    let stalled = world.sub(1, "stalled", &["topic", "--type", "tensor", "--keep-all", "--verbose"]);
    let mut other = world.sub(1, "other", &["topic", "--type", "tensor", "--verbose"]);
    let mut publisher = stream(&world, "ramp.npy", "400", &["--wait-for", "1"]);
    for subscriber in [&stalled, &other] {
        subscriber.await_lines(&world, 20);
    }
    stalled.child.stop().unwrap();
    // Reported on the subscriber's host to all clients in the topic.
    let said = within_limit(|| other.errors().contains("it is keep-last from now on").then_some(()));
    assert!(said.is_some(), "no subscriber was made keep-last\n{}", world.logs());
    other.await_lines(&world, other.lines().len() + 100);
    stalled.child.go_on().unwrap();
    stalled.await_lines(&world, stalled.lines().len() + 50);
    publisher.interrupt(&world);
    let mut stalled = stalled;
    let received = stalled.interrupt_and_account(&world);
    assert!(number(&received["statistics"]["lost"]) > 0, "what it missed is counted: {received}");
    other.interrupt_and_account(&world);
}

#[test]
fn a_late_joiner_on_another_host_gets_the_last_k() {
    let Some(world) = World::new(2) else { return };
    let folder = world.series("ramp.npy", 12);
    let input = folder.to_str().unwrap();
    // The subscriber that joined first shows when all messages are published.
    let mut early = world.sub(1, "early", &["topic", "--type", "tensor", "--count", "12", "--verbose"]);
    let arguments = ["--rate", "100", "--latch", "--depth", "5", "--wait-for", "1", "--linger", "120"];
    let mut publisher = world.publish(0, "pub", &[&["topic", "--input", input][..], &arguments].concat());
    early.await_lines(&world, 12);
    early.summary(&world);
    for host in [1, 0] {
        let late = ["topic", "--type", "tensor", "--latch", "--count", "5", "--verbose"];
        let mut late = world.sub(host, "late", &late);
        late.summary(&world);
        let sequences: Vec<u64> = late.lines().iter().filter_map(|line| line["sequence"].as_u64()).collect();
        assert_eq!(sequences, [8, 9, 10, 11, 12]);
    }
    publisher.interrupt(&world);
}
