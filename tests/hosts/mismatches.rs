//! Endpoints that do not match are reported by name on both hosts.

use crate::world::{World, example, within_limit};

#[test]
fn another_type_is_named_on_both_hosts() {
    let Some(world) = World::new(2) else { return };
    let _subscriber = world.sub(1, "sub", &["array", "--type", "point_cloud"]);
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

#[test]
fn a_second_subscriber_that_does_not_match_is_named_though_the_first_does() {
    let Some(world) = World::new(2) else { return };
    let file = example("ramp.npy");
    let input = file.to_str().unwrap();
    let _publisher = world.publish(0, "pub", &["array", "--input", input, "--loop", "--best-effort"]);
    let content = world.sub(1, "content", &["array", "--type", "tensor", "--best-effort", "--verbose"]);
    content.await_lines(&world, 1);
    let _demanding = world.sub(1, "demanding", &["array", "--type", "tensor"]);
    for (host, other) in [(0, "hostB"), (1, "hostA")] {
        world.await_info(host, "array", "that the reliability differs", |info| {
            let told = info["mismatches"].to_string();
            told.contains("reliab") && told.contains(other)
        });
    }
    // The matching pair goes on.
    content.await_lines(&world, content.lines().len() + 1);
}

#[test]
fn a_publisher_and_a_subscriber_of_one_host_that_do_not_match_are_both_told() {
    let Some(world) = World::new(1) else { return };
    let file = example("ramp.npy");
    let input = file.to_str().unwrap();
    let publisher = world.publish(0, "pub", &["array", "--input", input, "--loop", "--best-effort"]);
    let content = world.sub(0, "content", &["array", "--type", "tensor", "--best-effort", "--verbose"]);
    content.await_lines(&world, 1);
    let first = world.sub(0, "first", &["array", "--type", "tensor"]);
    world.await_info(0, "array", "that the reliability differs", |info| {
        let told = info["mismatches"].to_string();
        told.contains("on this host: reliability")
    });
    // A known mismatch is also reported to endpoints that join later.
    let second = world.sub(0, "second", &["array", "--type", "tensor"]);
    for (program, who) in [(&publisher, "publisher"), (&first, "first"), (&second, "second")] {
        let told = within_limit(|| program.errors().contains("on this host: reliability").then_some(()));
        assert!(told.is_some(), "the {who} was not told: {}\n{}", program.errors(), world.logs());
    }
}

#[test]
fn a_host_that_requires_rdma_and_has_none_warns_that_the_other_host_gets_nothing() {
    let Some(mut world) = World::new(2) else { return };
    world.set_on(0, "RGAPS_TRANSPORT", "rdma");
    world.set_on(1, "RGAPS_TRANSPORT", "tcp");
    let _subscriber = world.sub(1, "sub", &["array", "--type", "tensor"]);
    let file = example("ramp.npy");
    let _publisher = world.publish(0, "pub", &["array", "--input", file.to_str().unwrap(), "--loop"]);
    world.await_log(0, "the other host does not get the topic: there is no link");
}
