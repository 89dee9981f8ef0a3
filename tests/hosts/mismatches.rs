//! Who does not fit is told so, by name, on both hosts.

use crate::world::{World, example};

#[test]
fn another_type_is_named_on_both_hosts() {
    let Some(world) = World::new(2) else { return };
    let _subscriber = world.sub(1, "sub", &["array", "--type", "cloud"]);
    let file = example("ramp.npy");
    let _publisher = world.publish(0, "pub", &["array", "--input", file.to_str().unwrap(), "--loop"]);
    for (host, other) in [(0, "hostB"), (1, "hostA")] {
        world.await_info(host, "array", "that the types differ", |info| {
            let told = info["mismatches"].to_string();
            told.contains("rgaps/Tensor") && told.contains("rgaps/PointCloud") && told.contains(other)
        });
    }
}

#[test]
fn best_effort_for_a_subscriber_that_wants_reliable_is_named_on_both_hosts() {
    let Some(world) = World::new(2) else { return };
    let _subscriber = world.sub(1, "sub", &["array", "--type", "tensor"]);
    let file = example("ramp.npy");
    let input = file.to_str().unwrap();
    let _publisher = world.publish(0, "pub", &["array", "--input", input, "--loop", "--best-effort"]);
    for (host, other) in [(0, "hostB"), (1, "hostA")] {
        world.await_info(host, "array", "that the reliability differs", |info| {
            let told = info["mismatches"].to_string();
            told.contains("reliab") && told.contains(other)
        });
    }
}
