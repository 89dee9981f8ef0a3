//! A subscriber that sleeps on a descriptor is woken by what comes from another host, also if it asked for the descriptor late.

use std::process::Stdio;

use rgaps::Node;
use rgaps::types::Tensor;
use rgaps_testing::{Child, Ended};

use crate::world::{LIMIT, World, example};

const ASKED: &str = "READINESS_PROGRAM";

/// Program: takes one message, so that the link is up, and only then sleeps on the descriptor.
#[test]
fn as_a_program_sleeps_on_the_descriptor() {
    if std::env::var_os(ASKED).is_none() {
        return;
    }
    let subscriber = Node::new("late sleeper").unwrap().subscriber::<Tensor>("array").unwrap();
    assert!(subscriber.wait(LIMIT).unwrap().is_some());
    for _ in 0..10 {
        let readable = rgaps_os::poll::readable(subscriber.descriptor().unwrap(), LIMIT / 4);
        assert!(readable.unwrap(), "messages come and nobody rings");
        while subscriber.take().unwrap().is_some() {}
    }
}

#[test]
fn a_descriptor_that_was_asked_for_after_the_link_was_up_is_rung() {
    let Some(world) = World::new(2) else { return };
    let own = std::env::current_exe().unwrap();
    let mut command = world.command(1, &own);
    command.args(["--exact", "--nocapture", "readiness::as_a_program_sleeps_on_the_descriptor"]).env(ASKED, "1");
    let mut sleeper = Child::spawn(command.stdout(Stdio::null())).unwrap();
    let file = example("ramp.npy");
    let _publisher = world.publish(0, "pub", &["array", "--input", file.to_str().unwrap(), "--rate", "50", "--loop"]);
    let ended = sleeper.wait_within(LIMIT).unwrap();
    assert!(matches!(ended, Ended::Exited(status) if status.success()), "{ended:?}\n{}", world.logs());
}
