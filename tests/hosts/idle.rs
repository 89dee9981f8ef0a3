//! The cost of an idle topic for each host's manager: resident memory, and wake-ups.

use std::collections::BTreeMap;
use std::thread;
use std::time::Duration;

use crate::client::Client;
use crate::world::{World, name, within_limit};

const TOPICS: usize = 16;
const LIMIT_BYTES: u64 = 1 << 20;
/// Longer than any thread of a link waits before it looks for something to do.
const WHILE: Duration = Duration::from_millis(2500);

/// Resident bytes of a process, including shared memory that any process has touched.
fn resident_bytes(pid: u32) -> u64 {
    let rollup = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
    let line = rollup.lines().find_map(|line| line.strip_prefix("Rss:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

struct Idle {
    world: World,
    clients: [Client; 2],
    managers: [u32; 2],
}

impl Idle {
    /// Two hosts with one topic between them, so that one-time allocations are made.
    fn new() -> Option<Self> {
        let world = World::new(2)?;
        let mut clients = [0, 1].map(|host| Client::new(&world, host));
        connect(&world, &mut clients, "warm", 1);
        clients[0].publish(&world, 8, 4096);
        clients.iter_mut().for_each(|client| client.take(&world, 8));
        let managers = [0, 1].map(|host| world.manager_pid(host));
        Some(Self { world, clients, managers })
    }

    fn resident(&self) -> [u64; 2] {
        self.managers.map(resident_bytes)
    }

    /// Waits until each manager has grown by at most this much for each topic.
    fn await_cost_below(&self, limit: u64, before: [u64; 2], when: &str) {
        for host in [0, 1] {
            let cost = || self.resident()[host].saturating_sub(before[host]) / TOPICS as u64;
            let within = within_limit(|| (cost() < limit).then(cost));
            let Some(cost) = within else {
                panic!("{}: {} B a topic {when}\n{}", name(host), cost(), self.world.logs())
            };
            println!("{}: {cost} B a topic {when}", name(host));
        }
    }
}

/// Topics with a publisher on the first host and a subscriber on both, linked.
fn connect(world: &World, clients: &mut [Client; 2], topic: &str, count: usize) {
    clients[0].publishers(world, topic, count, 4 << 20);
    clients.iter_mut().for_each(|client| client.subscribers(world, topic, count));
    clients[0].await_subscribers(world, 2);
    for n in 0..count {
        world.await_info(0, &format!("{topic}{n}"), "that the link is there", |info| {
            info["links"].to_string().contains("connected over")
        });
    }
}

#[test]
fn an_idle_topic_with_a_link_costs_each_manager_less_than_a_mebibyte() {
    let Some(mut idle) = Idle::new() else { return };
    let before = idle.resident();
    connect(&idle.world, &mut idle.clients, "idle", TOPICS);
    idle.await_cost_below(LIMIT_BYTES, before, "that never had a message");
    let Idle { world, clients, .. } = &mut idle;
    // In total more than a ring's size for each topic: 40 rounds of messages of 64 KiB.
    for _ in 0..10 {
        clients[0].publish(world, 4, 64 << 10);
        clients.iter_mut().for_each(|client| client.take(world, 4));
    }
    idle.await_cost_below(LIMIT_BYTES, before, "after its traffic has stopped");
}

/// How long each thread of a process that serves a link has run, in ns.
fn run_times_of_links(pid: u32) -> BTreeMap<String, String> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    let of_links = tasks.filter_map(|task| {
        let read = |name: &str| std::fs::read_to_string(task.path().join(name)).ok();
        let is_of_link = ["rgaps-sender", "rgaps-arrival"].contains(&read("comm")?.trim());
        let run_time = read("schedstat")?.split(' ').next()?.to_owned();
        is_of_link.then(|| (task.file_name().to_string_lossy().into_owned(), run_time))
    });
    of_links.collect()
}

#[test]
fn a_link_of_an_idle_topic_wakes_no_thread_and_its_next_message_arrives() {
    let Some(Idle { world, mut clients, managers }) = Idle::new() else { return };
    connect(&world, &mut clients, "idle", TOPICS);
    let run_times = || managers.map(run_times_of_links);
    // One more: the topic with which everything was used once.
    assert_eq!(run_times().map(|links| links.len()), [TOPICS + 1; 2]);
    let is_quiet = within_limit(|| {
        let before = run_times();
        thread::sleep(WHILE);
        (before == run_times()).then_some(())
    });
    assert!(is_quiet.is_some(), "threads of links still run");
    // As many again.
    clients[1].subscribers(&world, "idle", TOPICS);
    clients[0].publish(&world, 1, 4096);
    clients[1].take(&world, 1);
    // The links end with their subscribers, which are told to stop while they sleep.
    let [publishing, subscribing] = clients;
    drop(subscribing);
    let have_ended = within_limit(|| run_times().iter().all(BTreeMap::is_empty).then_some(()));
    assert!(have_ended.is_some(), "links without subscribers stay\n{}", world.logs());
    drop(publishing);
}
