//! A publisher and a subscriber that must not notice what becomes of others, and what the tests that stop and kill those have in common.

#![allow(clippy::unwrap_used)] // helpers of tests, outside #[test] functions

use std::cell::Cell;
use std::time::{Duration, Instant};

use rgaps::types::Bytes;
use rgaps::{Exhaustion, History, Node, Publisher, PublisherQos, Sample, Subscriber, SubscriberQos, TopicSummary};
use rgaps_testing::RuntimeDir;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

pub const TOPIC: &str = "deaths";
pub const PAYLOAD_BYTES: u64 = 20_000;
/// Positions after which every slot of a topic's queue has been used.
pub const QUEUE_SLOTS: u64 = 1 << 16;
/// Publishers and subscribers beside the survivors that a round may have at a time.
pub const OTHERS_AT_A_TIME: usize = 8;
pub const LONG: Duration = Duration::from_secs(20);
/// Steps of a publisher, in its order.
pub const PUBLISHER_STEPS: [&str; 7] = [
    "loan.entry",
    "loan.block",
    "publish.described",
    "publish.complete",
    "publish.reserved",
    "publish.woken",
    "reclaim.won",
];
/// Steps of a subscriber.
pub const SUBSCRIBER_STEPS: [&str; 2] = ["take.held", "release.done"];

pub fn publisher_qos() -> PublisherQos {
    PublisherQos { exhaustion: Exhaustion::DropOldest, pool_bytes: Some(1 << 20), ..PublisherQos::default() }
}

/// A payload that proves itself: its number, and bytes that follow from it.
pub fn publish(publisher: &Publisher<Bytes>, number: u64) -> Result<(), rgaps::PublishError> {
    let mut loan = publisher.loan(Bytes::new(PAYLOAD_BYTES))?;
    loan[..8].copy_from_slice(&number.to_le_bytes());
    let (head, body) = loan.split_at_mut(8);
    body.fill(head[0] ^ 0x5a);
    loan.publish().map(|_| ())
}

/// The number of a sample, after all of its bytes were checked.
pub fn proven(sample: &Sample<Bytes>) -> u64 {
    let (head, body) = sample.bytes().split_at(8);
    assert!(body.iter().all(|byte| *byte == head[0] ^ 0x5a), "a wrong sample: {:?}", sample.info());
    u64::from_le_bytes(head.try_into().unwrap())
}

pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + LONG;
    while !holds() {
        assert!(Instant::now() < deadline, "not within {} s: {what}", LONG.as_secs());
        std::thread::yield_now();
    }
}

/// A keep-all subscriber that checks that it gets every message since it joined.
pub struct Witness {
    pub subscriber: Subscriber<Bytes>,
    /// Positions of the first and of the last message that it got.
    seen: Cell<Option<(u64, u64)>>,
}

impl Witness {
    pub fn new(node: &Node) -> Self {
        let qos = SubscriberQos { history: History::KeepAll, ..SubscriberQos::default() };
        Self { subscriber: node.subscriber_with(TOPIC, qos).unwrap(), seen: Cell::default() }
    }

    /// The number of a sample, after it was checked.
    pub fn check(&self, sample: &Sample<Bytes>) -> u64 {
        let position = sample.info().position;
        let first = self.seen.get().map_or(position, |(first, _)| first);
        self.seen.set(Some((first, position)));
        proven(sample)
    }

    /// Takes all ready messages.
    pub fn drain(&self) {
        while let Some(sample) = self.subscriber.take().unwrap() {
            self.check(&sample);
        }
    }

    /// Everything from the first message to the last was taken, or was poisoned, which is counted as taken, too.
    pub fn has_missed_nothing(&self) {
        self.drain();
        let Some((first, last)) = self.seen.get() else { return };
        let statistics = self.subscriber.statistics();
        // Poisoned messages may lie before the first that was given out, and behind the last.
        let with_bytes = statistics.taken - statistics.poisoned;
        let expected = last - first + 1;
        assert!(
            (with_bytes..=statistics.taken).contains(&expected),
            "{statistics:?} of the positions {first} to {last}"
        );
        assert_eq!(statistics.lost, 0);
    }
}

/// A publisher and a subscriber that must not notice anybody's death.
pub struct Survivors {
    pub publisher: Publisher<Bytes>,
    pub witness: Witness,
    pub node: Node,
    pub number: u64,
}

impl Survivors {
    pub fn new(dir: &RuntimeDir) -> Self {
        let node = Node::builder().name("survivor").runtime_dir(dir.path()).build().unwrap();
        let qos = PublisherQos { exhaustion: Exhaustion::Refuse, ..publisher_qos() };
        let publisher = node.publisher_with::<Bytes>(TOPIC, qos).unwrap();
        // Not one message may be missing, whatever victims flood the topic with.
        Self { publisher, witness: Witness::new(&node), node, number: 0 }
    }

    /// Publishes as many small messages as the queue has slots.
    pub fn fill_the_queue(&self) {
        for number in 0..QUEUE_SLOTS {
            until("there is space for a small message", || {
                let loan = self.publisher.loan(Bytes::new(8)).inspect_err(|_| self.drain());
                loan.is_ok_and(|mut loan| {
                    loan.copy_from_slice(&number.to_le_bytes());
                    loan.publish().is_ok()
                })
            });
        }
        self.drain();
    }

    /// Uses every entry of the table, every slot of the queue, every block of the pool and every slot once, so that no page of the topic is new later.
    pub fn touch_everything(&self) {
        self.fill_the_queue();
        let loans: Vec<_> = std::iter::from_fn(|| self.publisher.loan(Bytes::new(PAYLOAD_BYTES)).ok())
            .map(|mut loan| {
                loan.fill(0);
                loan
            })
            .collect();
        assert!(loans.len() > 40, "the pool holds {} blocks", loans.len());
        drop(loans);
        let others = 0..OTHERS_AT_A_TIME;
        let publishers: Vec<_> =
            others.clone().map(|_| self.node.publisher_with::<Bytes>(TOPIC, publisher_qos()).unwrap()).collect();
        let subscribers: Vec<_> = others.map(|_| self.node.subscriber::<Bytes>(TOPIC).unwrap()).collect();
        for publisher in &publishers {
            publish(publisher, 0).unwrap();
            self.drain();
        }
        // In this order nothing of them is left to be read.
        drop(subscribers);
        drop(publishers);
        until("the others have left the topic", || self.are_alone());
    }

    /// Publishes some and takes them all; samples of victims come in between and must be whole too.
    pub fn go_on(&mut self) {
        for _ in 0..3 {
            self.number += 1;
            let wanted = self.number;
            until("there is space for the survivors' message", || {
                let published = publish(&self.publisher, wanted);
                // Full of victims' messages: take them, as a subscriber of its own process would.
                published.inspect_err(|_| self.drain()).is_ok()
            });
            loop {
                let sample = self.witness.subscriber.wait(LONG).unwrap().expect("the survivors' own message comes");
                if self.witness.check(&sample) == wanted {
                    break;
                }
            }
        }
    }

    /// Takes what victims left.
    pub fn drain(&self) {
        self.witness.drain();
    }

    /// What the manager says of the topic.
    pub fn topic(&self) -> TopicSummary {
        let topics = self.node.topics().unwrap();
        topics.into_iter().find(|topic| topic.key.name() == format!("/{TOPIC}")).unwrap()
    }

    /// Nobody else is in the topic and nothing of the dead is left in it.
    pub fn are_alone(&self) -> bool {
        self.drain();
        let topic = self.topic();
        topic.publishers == 1 && topic.subscribers == 1
    }
}

/// What is compared to the byte.
#[derive(Debug, PartialEq, Eq)]
pub struct TopicMemory {
    /// Of the survivors' pool, by its allocator.
    used_bytes: u64,
    /// Of the segment and all pools, by the kernel.
    resident_bytes: u64,
}

impl TopicMemory {
    pub fn of(survivors: &mut Survivors) -> Self {
        until("every block is free again", || {
            survivors.go_on();
            survivors.drain();
            survivors.publisher.statistics().outstanding == 0
        });
        let used_bytes = survivors.publisher.statistics().used_bytes;
        Self { used_bytes, resident_bytes: survivors.topic().resident_bytes }
    }
}

/// What a process holds open and mapped of ours: grows only if something leaks.
pub fn holdings(pid: u32) -> (usize, usize) {
    let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count);
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    (descriptors, maps.lines().filter(|line| line.contains("memfd:rgaps")).count())
}

/// The state of a process as proc(5) has it.
pub fn state_of(pid: u32) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

pub fn pid_of(pid: u32) -> Pid {
    Pid::from_raw(i32::try_from(pid).unwrap()).unwrap()
}

pub fn signal(pid: u32, signal: Signal) {
    kill_process(pid_of(pid), signal).unwrap();
}

/// kill -9 of a process that came to this one when its parent ended.
pub fn kill_and_reap(pid: u32) {
    signal(pid, Signal::KILL);
    until("the killed process can be reaped", || match waitpid(Some(pid_of(pid)), WaitOptions::NOHANG) {
        Ok(reaped) => reaped.is_some(),
        // Its parent has not ended yet, or has reaped it.
        Err(rustix::io::Errno::CHILD) => state_of(pid).is_none(),
        Err(error) => panic!("{error}"),
    });
}

/// Numbers that follow from a seed (xorshift, Marsaglia 2003).
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.max(1))
    }

    /// From RGAPS_TEST_SEED, or from a seed that is printed.
    pub fn seeded() -> Self {
        let seed = std::env::var("RGAPS_TEST_SEED").ok().and_then(|text| text.parse().ok());
        let random = Self::new(seed.unwrap_or_else(|| u64::from_le_bytes(rgaps_os::random().unwrap())));
        println!("RGAPS_TEST_SEED={}", random.0);
        random
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}
