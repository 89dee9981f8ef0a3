//! A cable is pulled while messages flow, and plugged in again.

use crate::world::{World, example};

#[test]
fn a_subscriber_goes_on_after_a_cut_and_lost_messages_are_counted() {
    let Some(mut world) = World::new(2) else { return };
    world.set("RGAPS_PEER_TIMEOUT_MS", "1000");
    let file = example("ramp.npy");
    let mut subscriber = world.sub(1, "sub", &["array", "--type", "tensor", "--verbose"]);
    let input = file.to_str().unwrap();
    let arguments =
        ["array", "--input", input, "--rate", "100", "--loop", "--wait-for", "1", "--exhaustion", "drop_oldest"];
    let mut publisher = world.publish(0, "pub", &arguments);
    subscriber.await_lines(&world, 50);
    world.hosts.pull_cable(1).unwrap();
    // The sender has noticed: acknowledgements have stopped.
    world.await_info(0, "array", "that the link is down", |info| !info["links"].to_string().contains("connected over"));
    let cut = subscriber.lines().len();
    world.hosts.put_cable_back(1).unwrap();
    subscriber.await_lines(&world, cut + 50);
    let published = publisher.interrupt(&world);
    subscriber.interrupt_and_account_exactly(&world, &published);
}
