//! Managers and publishers die in mid-stream; the surviving processes go on.

use rgaps_testing::kill_9;

use crate::world::{Program, World, example, within_limit};

/// A stream from host 0 to a subscriber on each host, with further options.
fn stream(world: &World, wish: &[&str]) -> (Program, [Program; 2]) {
    let take = [&["array", "--type", "tensor", "--verbose"], wish].concat();
    let subscribers = [0, 1].map(|host| world.sub(host, "sub", &take));
    let file = example("ramp.npy");
    let arguments = ["array", "--input", file.to_str().unwrap(), "--rate", "100", "--loop", "--wait-for", "2"];
    let publisher = world.publish(0, "pub", &[&arguments[..], &["--exhaustion", "drop_oldest"]].concat());
    subscribers.iter().for_each(|subscriber| subscriber.await_lines(world, 50));
    (publisher, subscribers)
}

/// Waits for fifty more messages on each subscriber.
fn goes_on(world: &World, subscribers: &[Program]) {
    for subscriber in subscribers {
        subscriber.await_lines(world, subscriber.lines().len() + 50);
    }
}

/// Kills the manager of `host`; all clients go on with its successor.
fn survive_the_manager_of(host: usize) {
    let Some(world) = World::new(2) else { return };
    let (mut publisher, mut subscribers) = stream(&world, &[]);
    let victim = world.manager_pid(host);
    kill_9(victim).unwrap();
    let successor = within_limit(|| Some(world.manager_pid(host)).filter(|pid| *pid != victim));
    assert!(successor.is_some(), "no successor\n{}", world.logs());
    let both = |info: &serde_json::Value| {
        let hosts = |key: &str| info[key].as_array().map_or(0, Vec::len);
        (hosts("publishing_hosts"), hosts("subscribing_hosts")) == (1, 2)
            && info["links"].to_string().contains("connected over")
    };
    world.await_info(0, "array", "that the link is back", both);
    goes_on(&world, &subscribers);
    let published = publisher.interrupt(&world);
    for subscriber in &mut subscribers {
        subscriber.interrupt_and_account_exactly(&world, &published);
    }
}

#[test]
fn subscribers_go_on_after_the_receiving_manager_was_killed() {
    survive_the_manager_of(1);
}

#[test]
fn subscribers_go_on_after_the_sending_manager_was_killed() {
    survive_the_manager_of(0);
}

#[test]
fn subscribers_go_on_with_a_second_publisher_after_the_first_was_killed() {
    let Some(mut world) = World::new(2) else { return };
    world.set("RGAPS_IDLE_TIMEOUT_MS", "300");
    let (mut victim, mut subscribers) = stream(&world, &["--keep-all"]);
    let resident = |info: &serde_json::Value| info["resident_bytes"].as_u64().unwrap();
    // By now the whole message table is in memory.
    subscribers[0].await_lines(&world, 300);
    let before = resident(&world.info(0, "array").unwrap());
    victim.child.kill().unwrap();
    world.await_info(0, "array", "that the killed publisher's pool is given back", |info| {
        info["publishers"] == 0 && resident(info) < before
    });
    let file = example("ramp.npy");
    let arguments = ["array", "--input", file.to_str().unwrap(), "--rate", "100", "--loop", "--wait-for", "2"];
    let mut second = world.publish(0, "pub2", &arguments);
    goes_on(&world, &subscribers);
    assert_eq!(second.interrupt(&world)["refused"], 0);
    for subscriber in &mut subscribers {
        let received = subscriber.interrupt(&world);
        assert_eq!(received["mismatched"], 0, "{received}");
    }
    for host in [0, 1] {
        let dir = world.dir(host);
        let gone = within_limit(|| dir.users().unwrap().is_empty().then_some(()));
        assert!(gone.is_some(), "processes stay: {:?}\n{}", dir.users(), world.logs());
        let files = || -> Vec<_> {
            std::fs::read_dir(dir.path()).into_iter().flatten().flatten().map(|f| f.file_name()).collect()
        };
        let empty = within_limit(|| files().is_empty().then_some(()));
        assert!(empty.is_some(), "files stay: {:?}", files());
    }
}
