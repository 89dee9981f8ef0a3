//! Open hosts find each other without configured addresses.

use rgaps_testing::{Ended, RuntimeDir, manager};

use crate::world::{LIMIT, World, within_limit};

const MESSAGES: usize = 5;

/// Two open hosts without peers, and without the route for multicast that isolated networks often lack.
fn world() -> Option<World> {
    let mut world = World::new(2)?;
    for name in ["RGAPS_LISTEN", "RGAPS_PEERS", "RGAPS_MULTICAST"] {
        // Empty counts as not set.
        world.set(name, "");
    }
    (0..2).for_each(|host| ip(&world, host, &["route", "del", "224.0.0.0/4"]));
    Some(world)
}

fn ip(world: &World, host: usize, arguments: &[&str]) {
    assert!(world.hosts[host].command("ip").args(arguments).status().unwrap().success(), "ip {arguments:?}");
}

#[test]
fn open_hosts_without_peers_find_each_other_by_multicast() {
    let Some(world) = world() else { return };
    exchange(&world, || ());
}

#[test]
fn hosts_that_start_before_their_network_find_each_other_once_it_is_there() {
    let Some(world) = world() else { return };
    (0..2).for_each(|host| world.hosts[host].interface_down().unwrap());
    exchange(&world, || {
        for host in 0..2 {
            world.await_log(host, "no network interface is up");
            world.hosts[host].interface_up().unwrap();
        }
    });
}

#[test]
fn a_manager_ends_when_told_to_while_it_waits_for_a_network() {
    let Some(world) = world() else { return };
    world.hosts[0].interface_down().unwrap();
    let mut manager = world.manager(0, "rgapsd");
    let waits = within_limit(|| manager.errors().contains("no network interface is up").then_some(()));
    assert!(waits.is_some(), "{}", manager.errors());
    manager.child.terminate().unwrap();
    assert!(matches!(manager.child.wait_within(LIMIT).unwrap(), Ended::Exited(status) if status.success()));
}

#[test]
fn hosts_that_a_zenoh_file_links_need_no_multicast() {
    let Some(mut world) = world() else { return };
    for (host, text) in
        [r#"{listen: {endpoints: ["tcp/0.0.0.0:7447"]}}"#, r#"{connect: {endpoints: ["tcp/10.77.0.1:7447"]}}"#]
            .into_iter()
            .enumerate()
    {
        ip(&world, host, &["link", "set", "eth0", "multicast", "off"]);
        let file = world.folder("zenoh").join(format!("{host}.json5"));
        std::fs::write(&file, text).unwrap();
        world.set_on(host, "RGAPS_ZENOH_CONFIG", file.to_str().unwrap());
    }
    exchange(&world, || ());
}

#[test]
fn an_interface_that_comes_up_after_the_manager_is_named_in_its_log() {
    let Some(world) = world() else { return };
    let _manager = world.sub(0, "sub", &["any", "--type", "bytes"]);
    world.await_log(0, "hosts find each other by multicast interfaces=\"eth0 (10.77.0.1)\"");
    ip(&world, 0, &["link", "add", "late0", "type", "veth", "peer", "name", "late1"]);
    ip(&world, 0, &["address", "add", "10.88.0.1/24", "dev", "late0"]);
    ["late0", "late1"].iter().for_each(|name| ip(&world, 0, &["link", "set", name, "up"]));
    world.await_log(0, "came up later than rgapsd");
    assert!(world.log(0).contains("late0 (10.88.0.1)"), "{}", world.log(0));
}

#[test]
fn hosts_that_name_each_other_as_peers_need_no_address_to_listen_on() {
    let Some(mut world) = World::new(2) else { return };
    world.set("RGAPS_LISTEN", "");
    exchange(&world, || ());
}

#[test]
fn a_host_whose_port_is_taken_is_found_by_the_peer_that_it_names() {
    let Some(mut world) = World::new(2) else { return };
    let other = RuntimeDir::new("other").unwrap();
    let mut taker = world.command_of(1, "rgapsd");
    taker.env("RGAPS_LISTEN", "tcp/0.0.0.0:7447").env("RGAPS_PEERS", "");
    let _taker = manager::start(&other, taker).unwrap();
    world.set("RGAPS_LISTEN", "");
    exchange(&world, || ());
}

/// Messages from the first host to the second, whose programs run when `then` is called.
pub fn exchange(world: &World, then: impl FnOnce()) {
    let folder = world.series("saddle.pcd", MESSAGES);
    let count = MESSAGES.to_string();
    let mut subscriber = world.sub(1, "sub", &["cloud", "--type", "point_cloud", "--keep-all", "--count", &count]);
    let input = ["cloud", "--input", folder.to_str().unwrap(), "--rate", "100", "--wait-for", "1"];
    let mut publisher = world.publish(0, "pub", &input);
    then();
    assert_eq!(publisher.summary(world)["published"], MESSAGES);
    let received = subscriber.summary(world);
    assert_eq!((&received["taken"], &received["statistics"]["lost"]), (&MESSAGES.into(), &0.into()), "{received}");
}
