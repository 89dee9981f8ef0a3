//! A message of 1 GiB passes a ring of 64 MiB intact.

use rgaps_testing::skipped;

use crate::client::{Client, available_bytes};
use crate::world::World;

const MESSAGE_BYTES: u64 = 1 << 30;
/// Each host has one copy of the message beside the ring; the rest is a margin for other programs.
const NEEDED_BYTES: u64 = 6 << 30;

#[test]
fn a_message_of_a_gibibyte_passes_a_ring_of_64_mebibytes() {
    if available_bytes() < NEEDED_BYTES {
        return skipped(format_args!("{} B of memory are available, {NEEDED_BYTES} are needed", available_bytes()));
    }
    let Some(mut world) = World::new(2) else { return };
    world.set("RGAPS_RING_BYTES", "67108864");
    let mut publisher = Client::new(&world, 0);
    // The allocator needs slightly more than the message.
    publisher.publishers(&world, "large", 1, MESSAGE_BYTES + MESSAGE_BYTES / 4);
    let mut subscriber = Client::new(&world, 1);
    subscriber.subscribers(&world, "large", 1);
    publisher.await_subscribers(&world, 1);
    let before = world.hosts[1].counters().unwrap();
    publisher.publish(&world, 1, MESSAGE_BYTES);
    subscriber.take(&world, 1);
    let moved = (world.hosts[1].counters().unwrap() - before).received_bytes;
    assert!((MESSAGE_BYTES..MESSAGE_BYTES / 10 * 11).contains(&moved), "{moved} B crossed the cable");
}
