//! Two hosts with a bad network between them: it loses, delays, repeats and damages frames, is slow or narrow, is cut, and its interfaces go down. A
//! stream of messages goes on meanwhile. Each message is either taken once and intact, or counted as lost, and messages flow again afterwards. The
//! recovery times are printed; docs/faults.md has the figures.

use std::time::{Duration, Instant};

use rgaps_testing::{BadNetwork, Conditions};

use crate::world::{Program, World, example, within_limit};

/// Messages to wait for under each condition, and after each fault.
const MESSAGES: usize = 25;
/// Messages a second.
const RATE: &str = "20";
const PERCENT: u32 = 10_000;
/// How often the line is cut, or an interface goes down; RGAPS_TEST_CUTS overrides it.
const CUTS: usize = 3;
/// Limit of a test, including the one with 30 cuts.
const LIMIT: Duration = Duration::from_secs(600);

/// A stream of samples from the first host, with a subscriber on both.
struct Stream {
    world: World,
    publisher: Program,
    subscribers: [Program; 2],
}

impl Stream {
    fn over(world: World) -> Self {
        let file = example("ramp.npy");
        let input = file.to_str().unwrap();
        let take = ["array", "--type", "tensor", "--verbose", "--expect", input];
        let subscribers = [0, 1].map(|host| world.sub(host, "sub", &take));
        let arguments = ["array", "--input", input, "--rate", RATE, "--loop", "--wait-for", "2"];
        let publisher = world.publish(0, "pub", &[&arguments[..], &["--exhaustion", "drop_oldest"]].concat());
        let stream = Self { world, publisher, subscribers };
        stream.await_more(MESSAGES);
        stream
    }

    fn network(&self) -> &BadNetwork {
        self.world.hosts.bad_network().unwrap()
    }

    /// Messages received from the other host.
    fn came(&self) -> usize {
        self.subscribers[1].lines().len()
    }

    /// Waits for this many more messages on each host.
    fn await_more(&self, messages: usize) {
        let before = self.subscribers.each_ref().map(|subscriber| subscriber.lines().len());
        for (subscriber, before) in self.subscribers.iter().zip(before) {
            subscriber.await_lines(&self.world, before + messages);
        }
    }

    /// Waits for the next message from the other host; returns how long that took.
    fn await_next(&self) -> Duration {
        let (start, before) = (Instant::now(), self.came());
        let next = within_limit(|| (self.came() > before).then(|| start.elapsed()));
        next.unwrap_or_else(|| panic!("no further message arrived\n{}", self.world.logs()))
    }

    /// Each subscriber has taken every message once and intact, or counted it as lost.
    fn account(mut self) {
        let published = self.publisher.interrupt(&self.world);
        for (host, subscriber) in self.subscribers.iter_mut().enumerate() {
            let received = subscriber.interrupt_and_account_exactly(&self.world, &published);
            println!("host {host}: taken {}, lost {}", received["taken"], received["statistics"]["lost"]);
        }
    }
}

/// The seed in RGAPS_TEST_SEED, or a new one, which is printed.
fn seed() -> u64 {
    let given = std::env::var("RGAPS_TEST_SEED").ok().and_then(|text| text.parse().ok());
    let seed = given.unwrap_or_else(|| u64::from_le_bytes(rgaps_os::random().unwrap()));
    println!("RGAPS_TEST_SEED={seed}");
    seed
}

/// Network conditions by name.
fn conditions() -> [(&'static str, Conditions); 10] {
    let good = Conditions::default();
    let delay = Duration::from_millis(50);
    let late_by = Duration::from_millis(20);
    let (bytes_per_second, queue_bytes) = (10_000_000 / 8, 128 << 10);
    [
        ("1 % lost", Conditions { lost_ppm: PERCENT, ..good }),
        ("5 % lost", Conditions { lost_ppm: 5 * PERCENT, ..good }),
        ("50 ms under way", Conditions { delay, ..good }),
        ("5 % late by up to 20 ms", Conditions { late_ppm: 5 * PERCENT, late_by, ..good }),
        ("5 % twice", Conditions { twice_ppm: 5 * PERCENT, ..good }),
        ("a bit turned in 1 %", Conditions { flipped_ppm: PERCENT, ..good }),
        ("words swapped in 0.5 %", Conditions { swapped_ppm: PERCENT / 2, ..good }),
        ("MTU 1280", Conditions { mtu_bytes: 1280, ..good }),
        ("10 Mbit/s", Conditions { bytes_per_second, queue_bytes, ..good }),
        (
            "1 % lost, late, twice and damaged, 5 ms, 10 Mbit/s",
            Conditions {
                lost_ppm: PERCENT,
                late_ppm: PERCENT,
                late_by,
                twice_ppm: PERCENT,
                flipped_ppm: PERCENT,
                delay: delay / 10,
                bytes_per_second,
                queue_bytes,
                ..good
            },
        ),
    ]
}

#[test]
fn a_bad_network_damages_no_message_and_each_missing_one_is_counted() {
    let Some(world) = World::over_bad_network(seed(), LIMIT) else { return };
    let stream = Stream::over(world);
    for (name, conditions) in conditions() {
        let mtu = if conditions.mtu_bytes > 0 { conditions.mtu_bytes } else { 1500 };
        stream.world.hosts.all().iter().for_each(|host| host.set_mtu(mtu).unwrap());
        let start = Instant::now();
        stream.network().set(conditions);
        stream.await_more(MESSAGES);
        println!("{name}: {MESSAGES} messages in {} ms; {:?}", start.elapsed().as_millis(), stream.network().passage());
    }
    stream.network().set(Conditions::default());
    stream.await_more(MESSAGES);
    stream.account();
}

/// A temporary fault of the network.
#[derive(Clone, Copy, Debug)]
enum Fault {
    Cut,
    InterfaceDown { host: usize },
}

impl Fault {
    fn begin(self, world: &World) {
        match self {
            Self::Cut => world.hosts.pull_cable(1).unwrap(),
            Self::InterfaceDown { host } => world.hosts[host].interface_down().unwrap(),
        }
    }

    fn end(self, world: &World) {
        match self {
            Self::Cut => world.hosts.put_cable_back(1).unwrap(),
            Self::InterfaceDown { host } => world.hosts[host].interface_up().unwrap(),
        }
    }
}

/// Cuts and interfaces down in turns: shorter than every time-out, about as long, and longer.
fn survive_cuts(stream: &Stream) {
    let given = std::env::var("RGAPS_TEST_CUTS").ok().and_then(|text| text.parse().ok());
    let faults = [Fault::Cut, Fault::InterfaceDown { host: 0 }, Fault::Cut, Fault::InterfaceDown { host: 1 }];
    let lengths = [1000, 3300, 7000, 500, 4600, 5500, 9300, 2000, 12_000, 3900].map(Duration::from_millis);
    let mut longest = Duration::ZERO;
    for (fault, length) in faults.into_iter().cycle().zip(lengths.into_iter().cycle()).take(given.unwrap_or(CUTS)) {
        fault.begin(&stream.world);
        std::thread::sleep(length);
        fault.end(&stream.world);
        let recovery = stream.await_next();
        println!("{fault:?} for {} ms: a message after {} ms", length.as_millis(), recovery.as_millis());
        longest = longest.max(recovery);
        stream.await_more(MESSAGES);
    }
    println!("longest: {} ms", longest.as_millis());
}

#[test]
fn messages_flow_again_after_cuts_where_hosts_name_each_other_as_peers() {
    let Some(world) = World::over_bad_network(seed(), LIMIT) else { return };
    let stream = Stream::over(world);
    survive_cuts(&stream);
    stream.account();
}

#[test]
fn messages_flow_again_after_cuts_where_one_host_names_the_other_as_peer() {
    let Some(mut world) = World::over_bad_network(seed(), LIMIT) else { return };
    world.set_on(0, "RGAPS_PEERS", "");
    let stream = Stream::over(world);
    survive_cuts(&stream);
    stream.account();
}

#[test]
fn messages_flow_again_after_cuts_where_hosts_find_each_other_by_multicast() {
    let Some(mut world) = World::over_bad_network(seed(), LIMIT) else { return };
    for name in ["RGAPS_LISTEN", "RGAPS_PEERS", "RGAPS_MULTICAST"] {
        // Empty counts as not set.
        world.set(name, "");
    }
    let stream = Stream::over(world);
    survive_cuts(&stream);
    stream.account();
}
