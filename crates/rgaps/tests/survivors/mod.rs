//! A publisher and a subscriber that must not be affected by other clients, and helpers of the tests that stop and kill those clients.

#![allow(clippy::unwrap_used)] // helpers of tests, outside #[test] functions

use std::cell::Cell;
use std::time::Duration;

use rgaps::types::Bytes;
use rgaps::{
    Exhaustion, History, Loan, Node, Publisher, PublisherQos, Sample, Subscriber, SubscriberQos, TopicSummary,
};
use rgaps_testing::{RuntimeDir, until};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

pub const TOPIC: &str = "deaths";
pub const PAYLOAD_BYTES: u64 = 20_000;
/// Number of slots in a topic's queue.
pub const QUEUE_SLOTS: u64 = 1 << 16;
/// Maximum number of publishers and of subscribers besides the survivors at a time.
pub const OTHERS_AT_A_TIME: usize = 8;
pub const LONG: Duration = Duration::from_secs(20);
/// The steps of a publisher, in order.
pub const PUBLISHER_STEPS: [&str; 7] = [
    "loan.entry",
    "loan.block",
    "publish.described",
    "publish.complete",
    "publish.reserved",
    "publish.woken",
    "reclaim.won",
];
/// The steps of a subscriber.
pub const SUBSCRIBER_STEPS: [&str; 2] = ["take.held", "release.done"];

pub fn publisher_qos() -> PublisherQos {
    PublisherQos { exhaustion: Exhaustion::DropOldest, pool_bytes: Some(1 << 20), ..PublisherQos::default() }
}

/// Publishes a payload that a reader can check: its number, and bytes derived from it.
pub fn publish(publisher: &Publisher<Bytes>, number: u64) -> Result<(), rgaps::PublishError> {
    filled(publisher, number)?.publish().map(|_| ())
}

/// A loan of such a payload.
pub fn filled(publisher: &Publisher<Bytes>, number: u64) -> Result<Loan<Bytes>, rgaps::PublishError> {
    let mut loan = publisher.loan(Bytes::new(PAYLOAD_BYTES))?;
    loan[..8].copy_from_slice(&number.to_le_bytes());
    let (head, body) = loan.split_at_mut(8);
    body.fill(head[0] ^ 0x5a);
    Ok(loan)
}

/// Checks all bytes of a sample and returns its number.
pub fn proven(sample: &Sample<Bytes>) -> u64 {
    let (head, body) = sample.bytes().split_at(8);
    assert!(body.iter().all(|byte| *byte == head[0] ^ 0x5a), "a wrong sample: {:?}", sample.info());
    u64::from_le_bytes(head.try_into().unwrap())
}

/// A keep-all subscriber that checks that it gets every message since it joined.
pub struct Witness {
    pub subscriber: Subscriber<Bytes>,
    /// Positions of the first and last messages taken.
    seen: Cell<Option<(u64, u64)>>,
}

impl Witness {
    pub fn new(node: &Node) -> Self {
        let qos = SubscriberQos { history: History::KeepAll, ..SubscriberQos::default() };
        Self { subscriber: node.subscriber_with(TOPIC, qos).unwrap(), seen: Cell::default() }
    }

    /// Checks a sample and returns its number.
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

    /// Checks that each message from the first to the last was taken or poisoned; `taken` counts poisoned messages, too.
    pub fn has_missed_nothing(&self) {
        self.drain();
        let Some((first, last)) = self.seen.get() else { return };
        let statistics = self.subscriber.statistics();
        // There may be poisoned messages before the first message taken and after the last.
        let with_bytes = statistics.taken - statistics.poisoned;
        let expected = last - first + 1;
        assert!(
            (with_bytes..=statistics.taken).contains(&expected),
            "{statistics:?} of the positions {first} to {last}"
        );
        assert_eq!(statistics.lost, 0);
    }
}

/// A publisher and a subscriber that no other client's death may affect.
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
        // Keep-all: no message may be missing, however many messages victims publish.
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

    /// Uses every entry, queue slot and block, and the slots of the others once, so that no page of the topic is touched for the first time later.
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
        // Subscribers first, so that no message of the publishers remains unread.
        drop(subscribers);
        drop(publishers);
        until("the others have left the topic", || self.are_alone());
    }

    /// Publishes some messages and takes them. Victims' samples among them must be whole, too.
    pub fn go_on(&mut self) {
        for _ in 0..3 {
            self.number += 1;
            let wanted = self.number;
            until("there is space for the survivors' message", || {
                let published = publish(&self.publisher, wanted);
                // The table or pool is full of unread messages: take them.
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

    /// Takes the victims' remaining messages.
    pub fn drain(&self) {
        self.witness.drain();
    }

    /// The manager's summary of the topic.
    pub fn topic(&self) -> TopicSummary {
        let topics = self.node.topics().unwrap();
        topics.into_iter().find(|topic| topic.key.name() == format!("/{TOPIC}")).unwrap()
    }

    /// Whether no other client is in the topic and nothing of dead ones remains.
    pub fn are_alone(&self) -> bool {
        self.drain();
        let topic = self.topic();
        topic.publishers == 1 && topic.subscribers == 1
    }
}

/// The topic's memory, compared to the byte.
#[derive(Debug, PartialEq, Eq)]
pub struct TopicMemory {
    /// Bytes in use in the survivors' pool, according to its allocator.
    used_bytes: u64,
    /// Resident bytes of the segment and all pools, according to the kernel.
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

/// The numbers of a process's open file descriptors and mappings of ours, which grow only with a leak.
pub fn holdings(pid: u32) -> (usize, usize) {
    let fds = std::fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count);
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    (fds, maps.lines().filter(|line| line.contains("memfd:rgaps")).count())
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

/// Kills a process that was reparented to this one.
pub fn kill_and_reap(pid: u32) {
    signal(pid, Signal::KILL);
    until("the killed process can be reaped", || match waitpid(Some(pid_of(pid)), WaitOptions::NOHANG) {
        Ok(reaped) => reaped.is_some(),
        // Its parent has not ended yet, or has reaped it.
        Err(rustix::io::Errno::CHILD) => state_of(pid).is_none(),
        Err(error) => panic!("{error}"),
    });
}

/// Pseudo-random numbers from a seed (xorshift, Marsaglia 2003).
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.max(1))
    }

    /// Seeded by RGAPS_TEST_SEED, or by a random seed, which is printed.
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
