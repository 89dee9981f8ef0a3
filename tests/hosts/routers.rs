//! Hosts find each other through routers of zenoh, as nodes of rmw_zenoh_cpp do.

use std::process::Stdio;
use std::time::{Duration, Instant};

use rgaps_testing::Child;
use zenoh::Wait;

use crate::range::exchange;
use crate::world::{World, example, within_limit};

/// Variable that makes this program a router: its configuration, as keys and values in turn, separated by semicolons.
const CONFIGURATION: &str = "TEST_ZENOH_ROUTER";

/// A router, until its process is ended.
#[test]
#[ignore = "started by the other tests"]
fn a_process_of_its_own_is_a_router() {
    let Ok(configuration) = std::env::var(CONFIGURATION) else { return };
    let mut config = zenoh::Config::default();
    let given: Vec<&str> = configuration.split(';').collect();
    let always = ["mode", "\"router\"", "scouting/multicast/enabled", "false"];
    for pair in always.chunks(2).chain(given.chunks(2)) {
        config.insert_json5(pair[0], pair[1]).unwrap();
    }
    let _session = zenoh::open(config).wait().unwrap();
    eprintln!("router serves");
    loop {
        std::thread::park();
    }
}

/// A router on a host, which listens where those of rmw_zenoh_cpp do, and connects to that of the first host.
fn router(world: &World, host: usize) -> Child {
    let peer = if host == 0 { "[]".to_owned() } else { format!("[\"tcp/{}:7447\"]", world.hosts[0].address()) };
    let log = world.folder("routers").join(format!("{host}"));
    let mut command = world.hosts[host].command(std::env::current_exe().unwrap());
    command
        .args(["--ignored", "--exact", "--nocapture", "routers::a_process_of_its_own_is_a_router"])
        .env(CONFIGURATION, format!("listen/endpoints;[\"tcp/[::]:7447\"];connect/endpoints;{peer}"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(std::fs::File::create(&log).unwrap());
    let child = Child::spawn(&mut command).unwrap();
    let said = || std::fs::read_to_string(&log).unwrap_or_default();
    let serves = within_limit(|| said().contains("router serves").then_some(()));
    assert!(serves.is_some(), "{}", said());
    child
}

/// Two hosts under rmw_zenoh_cpp, which nothing else than their routers introduces to each other.
fn world() -> Option<World> {
    let mut world = World::new(2)?;
    for name in ["RGAPS_LISTEN", "RGAPS_PEERS", "RGAPS_MULTICAST"] {
        world.set(name, "");
    }
    world.set("RMW_IMPLEMENTATION", "rmw_zenoh_cpp");
    for host in 0..2 {
        let arguments = ["link", "set", "eth0", "multicast", "off"];
        assert!(world.hosts[host].command("ip").args(arguments).status().unwrap().success());
    }
    Some(world)
}

#[test]
fn hosts_find_each_other_through_the_routers_of_their_ros_nodes() {
    let Some(world) = world() else { return };
    let _routers = [router(&world, 0), router(&world, 1)];
    exchange(&world, || ());
}

#[test]
fn hosts_that_start_before_their_routers_find_each_other_once_these_serve() {
    let Some(world) = world() else { return };
    let mut routers = Vec::new();
    exchange(&world, || {
        (0..2).for_each(|host| world.await_log(host, "through routers of zenoh routers=\"tcp/localhost:7447\""));
        routers = vec![router(&world, 0), router(&world, 1)];
        (0..2).for_each(|host| world.await_log(host, "connected to a router"));
    });
}

#[test]
fn hosts_whose_routers_are_gone_stay_linked_and_find_each_other_again() {
    let Some(world) = world() else { return };
    let linked = |info: &serde_json::Value| info["links"].to_string().contains("connected over");
    let routers = [router(&world, 0), router(&world, 1)];
    let subscriber = world.sub(1, "sub", &["cloud", "--type", "point_cloud", "--verbose"]);
    let input = example("saddle.pcd");
    let _publisher = world.publish(0, "pub", &["cloud", "--loop", "--input", input.to_str().unwrap()]);
    world.await_info(0, "cloud", "that it is linked", linked);
    drop(routers);
    (0..2).for_each(|host| world.await_log(host, "a host is gone"));
    // For longer than a host may be away without a link (`peer_timeout_ms`).
    let over = Instant::now() + Duration::from_secs(6);
    while Instant::now() < over {
        let info = world.info(0, "cloud");
        assert!(info.as_ref().is_some_and(linked), "{info:?}\n{}", world.logs());
        subscriber.await_lines(&world, subscriber.lines().len() + 1);
    }
    world.await_log(0, "the connection to a router ended");
    let _again = [router(&world, 0), router(&world, 1)];
    let again = within_limit(|| (world.log(0).matches("a host has appeared").count() >= 2).then_some(()));
    assert!(again.is_some(), "{}", world.logs());
    world.await_info(0, "cloud", "that it is still linked", linked);
}
