//! A subscriber that sleeps on its eventfd is woken by messages from another host, even if it requested the eventfd late.

use std::process::Stdio;
use std::time::Duration;

use rgaps::Node;
use rgaps::types::Tensor;
use rgaps_testing::{Child, Ended, kill_9};

use crate::world::{LIMIT, World, example, within_limit};

const ASKED: &str = "READINESS_PROGRAM";
const RUNG: &str = "READINESS_RUNG_PROGRAM";

/// Program: takes one message, so that the link is up, and only then sleeps on the eventfd.
#[test]
fn as_a_program_sleeps_on_the_eventfd() {
    if std::env::var_os(ASKED).is_none() {
        return;
    }
    let subscriber = Node::new("late sleeper").unwrap().subscriber::<Tensor>("array").unwrap();
    assert!(subscriber.wait(LIMIT).unwrap().is_some());
    for _ in 0..10 {
        let readable = rgaps_os::poll::readable(subscriber.event_fd().unwrap(), LIMIT / 4);
        assert!(readable.unwrap(), "messages arrived, but no wake-up");
        while subscriber.take().unwrap().is_some() {}
    }
}

/// Program: sleeps on the eventfd while its input is open, and reports each wake-up.
#[test]
fn as_a_program_that_is_woken_until_told() {
    if std::env::var_os(RUNG).is_none() {
        return;
    }
    let subscriber = Node::new("sleeper").unwrap().subscriber::<Tensor>("array").unwrap();
    for rung in 0.. {
        let readable = rgaps_os::poll::readable(subscriber.event_fd().unwrap(), LIMIT / 4);
        assert!(readable.unwrap(), "woken {rung} times, then no more");
        while subscriber.take().unwrap().is_some() {}
        println!("\n{{\"rung\":{rung}}}");
        if rgaps_os::poll::readable(std::io::stdin(), Duration::ZERO).unwrap() {
            return;
        }
    }
}

#[test]
fn an_eventfd_wakes_after_the_manager_that_gave_it_was_killed() {
    let Some(world) = World::new(2) else { return };
    let mut command = world.command(1, &std::env::current_exe().unwrap());
    command.args(["--exact", "--nocapture", "readiness::as_a_program_that_is_woken_until_told"]).env(RUNG, "1");
    let mut sleeper = world.spawn(1, "sleeper", command.stdin(Stdio::piped()));
    let file = example("ramp.npy");
    let _publisher = world.publish(0, "pub", &["array", "--input", file.to_str().unwrap(), "--rate", "50", "--loop"]);
    sleeper.await_lines(&world, 10);
    let victim = world.manager_pid(1);
    kill_9(victim).unwrap();
    let successor = within_limit(|| Some(world.manager_pid(1)).filter(|pid| *pid != victim));
    assert!(successor.is_some(), "{}", world.logs());
    // More messages than the first manager had left in the segment.
    sleeper.await_lines(&world, sleeper.lines().len() + 100);
    drop(sleeper.child.std().stdin.take());
    let ended = sleeper.child.wait_within(LIMIT).unwrap();
    assert!(matches!(ended, Ended::Exited(status) if status.success()), "{ended:?}\n{}", world.logs());
}

#[test]
fn an_eventfd_requested_after_the_link_was_up_wakes() {
    let Some(world) = World::new(2) else { return };
    let own = std::env::current_exe().unwrap();
    let mut command = world.command(1, &own);
    command.args(["--exact", "--nocapture", "readiness::as_a_program_sleeps_on_the_eventfd"]).env(ASKED, "1");
    let mut sleeper = Child::spawn(command.stdout(Stdio::null())).unwrap();
    let file = example("ramp.npy");
    let _publisher = world.publish(0, "pub", &["array", "--input", file.to_str().unwrap(), "--rate", "50", "--loop"]);
    let ended = sleeper.wait_within(LIMIT).unwrap();
    assert!(matches!(ended, Ended::Exited(status) if status.success()), "{ended:?}\n{}", world.logs());
}
