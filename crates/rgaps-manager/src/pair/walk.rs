//! Random walks of two hosts: whatever happens, a subscriber that was there from the beginning has taken or counted each message. A failure shows the
//! walk and its seed, and RGAPS_TEST_SEED repeats it.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener};

use rgaps_os::clock;

use super::unsent::Newcomer;
use super::*;

const STEPS: usize = 30;
const WALKS: u64 = 5;

pub(super) struct Random(pub(super) u64);

impl Random {
    /// xorshift64 (Marsaglia 2003).
    pub(super) fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % n
    }

    fn one_of(&mut self, of: [u64; 4]) -> u64 {
        of[self.below(4) as usize]
    }
}

/// What happens besides publishing, taking, joining and cuts between messages.
#[derive(Clone, Copy, Default)]
struct Also {
    latched: bool,
    /// The receiving manager dies.
    receivers: bool,
    /// The sending manager dies. No publisher leaves.
    senders: bool,
    /// Each connection ends after some bytes.
    bytes: bool,
    /// Pools are full, and ports end.
    room: bool,
}

/// Forwards one connection, and ends it after so many bytes in a direction.
fn cutting(to: SocketAddr, forward: usize, back: usize) -> SocketAddr {
    let pump = |mut from: TcpStream, mut to: TcpStream, mut left: usize| {
        let mut bytes = [0; 4096];
        while left > 0 {
            let most = left.min(bytes.len());
            let Ok(count @ 1..) = from.read(&mut bytes[..most]) else { break };
            if to.write_all(&bytes[..count]).is_err() {
                break;
            }
            left -= count;
        }
        let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
    };
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let Ok((near, _)) = listener.accept() else { return };
        let Ok(far) = TcpStream::connect(to) else { return };
        let (returning, to_near) = (far.try_clone().unwrap(), near.try_clone().unwrap());
        std::thread::spawn(move || pump(returning, to_near, back));
        pump(near, far, forward);
    });
    address
}

struct Walk {
    also: Also,
    random: Random,
    pair: Pair,
    subscriber: Subscriber,
    others: Vec<Newcomer>,
    joined: u64,
    published: u64,
    is_up: bool,
    taken: HashMap<(u64, u64), u32>,
    held: Vec<Held>,
    log: Vec<String>,
}

impl Walk {
    fn new(seed: u64, also: Also) -> Self {
        let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
        let depth = [1, 2, 5][random.below(3) as usize];
        let keep_all_timeout_ms = if also.room { 30 } else { 5000 };
        let config = Config { peer_timeout_ms: 60_000, keep_all_timeout_ms, ..Config::default() };
        let mut pair = Pair::configured(host(), host(), depth, config);
        if also.latched {
            pair.latch(3);
        }
        let subscriber = pair.subscriber();
        pair.announce(true);
        let log = vec![format!("seed {seed}: depth {depth}")];
        let (others, taken, held) = (Vec::new(), HashMap::new(), Vec::new());
        let mut walk =
            Self { also, random, pair, subscriber, others, joined: 0, published: 0, is_up: true, taken, held, log };
        walk.send(1, 100);
        walk.take_all_published();
        if also.senders {
            for other in 0..3 {
                walk.join();
                walk.send_of(other, 1);
                walk.take_all_published();
            }
        }
        if also.bytes {
            let random = Mutex::new(Random(seed.wrapping_mul(77) | 1));
            *walk.pair.peer.alter.lock().unwrap() = Some(Box::new(move |offer| {
                let mut random = random.lock().unwrap();
                let most = random.one_of([200, 1000, 5000, 40_000]);
                let (forward, back) = (64 + random.below(most) as usize, 64 + random.below(800) as usize);
                offer.addresses = vec![cutting(offer.addresses[0].parse().unwrap(), forward, back).to_string()];
            }));
            walk.pair.cut();
            walk.pair.mend();
        }
        walk
    }

    fn send(&mut self, count: u64, bytes: u64) {
        let sent = (0..count).filter(|_| self.pair.try_send(bytes).is_ok()).count() as u64;
        self.log.push(format!("{sent} of {count} messages of {bytes} B"));
        self.published += sent;
    }

    fn join(&mut self) {
        self.others.push(Newcomer::join(&self.pair, 100 + self.joined));
        self.joined += 1;
    }

    fn send_of(&mut self, other: usize, count: u64) {
        self.log.push(format!("{count} of publisher {other}"));
        self.others[other].send(&self.pair, count);
        self.published += count;
    }

    fn note(&mut self, held: &Held) {
        let info = held.info();
        *self.taken.entry((info.publisher, info.sequence)).or_default() += 1;
    }

    fn take(&mut self) {
        while let Some(held) = self.subscriber.reader.take().unwrap() {
            self.note(&held);
        }
    }

    fn take_all_published(&mut self) {
        until("the first messages", || {
            self.take();
            self.taken.len() as u64 == self.published
        });
    }

    fn step(&mut self) {
        self.pair.topic.finish_draining();
        let Also { latched, receivers, senders, bytes, room } = self.also;
        match self.random.below(9) {
            0 | 1 => {
                let sizes = if room { [1, 9000, 30_000, 120_000] } else { [1, 100, 9000, 30_000] };
                let (count, size) = (1 + self.random.below(4), self.random.one_of(sizes));
                self.send(count, size);
            }
            2 if senders => {
                self.log.push("the sending manager dies".to_owned());
                self.pair.restart_sender();
                self.others.iter_mut().for_each(|other| other.mark_known(&self.pair));
            }
            2 if self.others.len() < 4 => {
                self.log.push("a publisher joins".to_owned());
                self.join();
            }
            3 | 4 if !self.others.is_empty() => {
                let other = self.random.below(self.others.len() as u64) as usize;
                let count = 1 + self.random.below(5);
                self.send_of(other, count);
            }
            5 if !self.others.is_empty() && !senders && (!receivers || latched) => {
                let other = self.random.below(self.others.len() as u64) as usize;
                self.log.push(format!("publisher {other} leaves"));
                self.others.remove(other).leave(&self.pair);
            }
            6 if self.is_up => {
                self.log.push("cut".to_owned());
                self.pair.cut();
                self.is_up = false;
                if room && self.random.below(3) == 0 {
                    self.log.push("the port ends".to_owned());
                    let mut to = self.pair.to();
                    let Subscribing { manager, topic, .. } = &mut *to;
                    manager.end(topic, FROM);
                }
                if room && self.random.below(3) == 0 {
                    self.log.push("the host is gone".to_owned());
                    self.pair.announce(false);
                }
                if receivers && self.random.below(2) == 0 {
                    self.log.push("the receiving manager dies".to_owned());
                    self.pair.to().restart();
                }
            }
            7 if !self.is_up => {
                self.log.push("mend".to_owned());
                self.mend();
                if !bytes && self.random.below(2) == 0 {
                    until("the link", || self.pair.status().contains("connected over"));
                }
            }
            8 if room && self.random.below(2) == 0 => self.held.clear(),
            8 if room => {
                while let Some(held) = (self.held.len() < 40).then(|| self.subscriber.reader.take().unwrap()).flatten()
                {
                    self.note(&held);
                    self.held.push(held);
                }
            }
            _ => self.take(),
        }
    }

    fn mend(&mut self) {
        if self.also.room {
            self.pair.announce(true);
        }
        self.pair.mend();
        self.is_up = true;
    }

    /// Links the hosts for good. Each message of the walk is then taken, or counted, once.
    fn end(mut self) {
        self.held.clear();
        if self.also.bytes {
            self.pair.cut();
            *self.pair.peer.alter.lock().unwrap() = None;
        }
        self.mend();
        if !self.also.receivers && !self.also.senders {
            self.others.drain(..).for_each(|other| other.leave(&self.pair));
        }
        until("the link", || self.pair.status().contains("connected over"));
        until("space", || self.pair.try_send(1).is_ok());
        self.published += 1;
        (0..self.others.len()).for_each(|other| self.send_of(other, 1));
        let start = Instant::now();
        let mut total = 0;
        while total < self.published && start.elapsed() < LIMIT {
            self.take();
            total = self.taken.values().map(|times| u64::from(*times)).sum::<u64>() + self.subscriber.lost();
            rgaps_testing::pause();
        }
        let twice: Vec<_> = self.taken.iter().filter(|(_, times)| **times > 1).collect();
        let log = format!("{}; {}", self.log.join(", "), self.pair.status());
        assert!(twice.is_empty(), "{twice:?} was taken twice: {log}");
        assert!(total >= self.published, "{total} of {} were taken or counted: {log}", self.published);
        // Counted again is what a receiver had counted and not acknowledged when it died, or what its sender has forgotten (docs/faults.md).
        assert!(total == self.published || self.also.receivers, "{total} of {}: {log}", self.published);
    }
}

fn walks(also: Also) {
    let given = std::env::var("RGAPS_TEST_SEED").ok().and_then(|text| text.parse().ok());
    let seeds = given.unwrap_or_else(clock::realtime_ns);
    for seed in (0..WALKS).map(|walk| seeds.wrapping_add(walk)) {
        let mut walk = Walk::new(seed, also);
        (0..STEPS).for_each(|_| walk.step());
        walk.end();
    }
}

#[test]
fn each_message_counts_once_over_cuts() {
    walks(Also::default());
    walks(Also { latched: true, ..Also::default() });
}

#[test]
fn each_message_counts_once_over_cuts_at_any_byte() {
    walks(Also { bytes: true, ..Also::default() });
    walks(Also { bytes: true, latched: true, ..Also::default() });
}

#[test]
fn each_message_counts_at_least_once_over_deaths_of_receiving_managers() {
    walks(Also { receivers: true, ..Also::default() });
    walks(Also { receivers: true, latched: true, ..Also::default() });
    walks(Also { receivers: true, bytes: true, ..Also::default() });
}

#[test]
fn each_message_counts_once_over_deaths_of_sending_managers() {
    walks(Also { senders: true, ..Also::default() });
    walks(Also { senders: true, bytes: true, ..Also::default() });
}

#[test]
fn each_message_counts_at_least_once_over_deaths_of_both_managers() {
    walks(Also { senders: true, receivers: true, ..Also::default() });
    walks(Also { senders: true, receivers: true, bytes: true, ..Also::default() });
}

#[test]
fn each_message_counts_once_though_pools_are_full_and_ports_end() {
    walks(Also { room: true, ..Also::default() });
    walks(Also { room: true, latched: true, ..Also::default() });
}
