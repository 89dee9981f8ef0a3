//! Long stops: clients are stopped for longer than any time-out while their manager dies, and perhaps its successor too. Survivors continue
//! meanwhile. A continued client still has its slots, and a killed one leaves nothing behind.
//!
//! RGAPS_TEST_LONG_STOPS sets the rounds (default 2; `./dev test-deaths` runs 200). In a round, a manager dies while all clients of a
//! host except the survivors are stopped. Up to ten hosts run rounds at a time; each is a runtime directory with its own processes.

#![allow(clippy::unwrap_used)] // helpers of tests, outside #[test] functions

mod survivors;

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::{Duration, Instant};

use rgaps::types::Bytes;
use rgaps::{
    Exhaustion, History, Node, NodeError, PublishError, Publisher, PublisherQos, Sample, Subscriber, SubscriberQos,
    TakeError, TopicSummary,
};
use rgaps_control::RuntimeDir as Dir;
use rgaps_control::local::Connection;
use rgaps_testing::{Action, Child, CrashPoint, Ended, RuntimeDir, Watchdog, again_with};
use rustix::process::{Resource, Rlimit, getpid, getrlimit, set_child_subreaper, setrlimit};

use survivors::{
    LONG, OTHERS_AT_A_TIME, PUBLISHER_STEPS, Random, SUBSCRIBER_STEPS, Survivors, TOPIC, TopicMemory, holdings,
    kill_and_reap, proven, publish, publisher_qos,
};

/// Longer than the longest time-outs: 10 s (a client's wait for an answer, an idle manager's stay) and 5 s (a join's wait for a stopped client, a
/// manager's wait for another host).
const STOP: Duration = Duration::from_secs(12);
/// In every fifth round of a host. Longer than the 30 s that a client waits for the manager it has started.
const LONGEST_STOP: Duration = Duration::from_secs(32);
const HOSTS_AT_A_TIME: u32 = 10;
/// How long survivors wait for others' messages between two of their own.
const PAUSE: Duration = Duration::from_millis(5);

/// A topic whose keep-all subscriber is stopped too: its publisher's loans are then refused, and published messages are kept.
const KEPT: &str = "kept";
/// The survivors' messages are numbered from 1, and clients answer them. Other publishers' numbers start here.
const OTHERS: u64 = 1_000_000;
/// The number of the survivors' last message.
const END: u64 = u64::MAX;

fn rounds() -> u32 {
    std::env::var("RGAPS_TEST_LONG_STOPS").ok().and_then(|text| text.parse().ok()).unwrap_or(2)
}

/// Whether this is a long run, not one of many tests.
fn is_long() -> bool {
    rounds() > 2
}

// ---- The clients -------------------------------------------------------------------------------------------------------------

/// Prints a line for the test.
fn say(words: impl std::fmt::Display) {
    println!("client: {words}");
}

#[test]
#[ignore = "the clients' program, started by the tests of this file"]
fn role_of_a_client() {
    let Ok(role) = std::env::var("RGAPS_TEST_LONG_STOPS_ROLE") else { return };
    let _watchdog = Watchdog::new(Duration::from_secs(400));
    let node = Node::new("client").unwrap();
    match role.split_once(' ').map_or((role.as_str(), 0), |(role, count)| (role, count.parse().unwrap())) {
        ("publisher", _) => {
            let publisher = node.publisher_with::<Bytes>(TOPIC, publisher_qos()).unwrap();
            let mut ticks = Listener::new(&node, TOPIC, History::KeepLast(10));
            say("ready");
            while let Some(tick) = ticks.next_tick() {
                match publish(&publisher, OTHERS + tick) {
                    // The table may be full, because the survivor is keep-all.
                    Ok(()) | Err(PublishError::NoSpace { .. }) => {}
                    Err(error) => panic!("{error}"),
                }
            }
        }
        ("subscriber", _) => {
            let mut listener = Listener::new(&node, TOPIC, History::KeepLast(10));
            say("ready");
            let mut held: Vec<(u64, Sample<Bytes>)> = Vec::new();
            while let Some((number, sample)) = listener.next() {
                held.push((number, sample));
                held.iter().for_each(|(number, sample)| assert_eq!(proven(sample), *number, "a sample that is held"));
                if held.len() > 3 {
                    held.remove(0);
                }
            }
        }
        ("owner", topics) => {
            let own = own_topics(&node, topics);
            let mut kept = Listener::new(&node, KEPT, History::KeepAll);
            let mut ticks = Listener::new(&node, TOPIC, History::KeepLast(10));
            // Map the pools now, so that no later take needs the manager.
            own.iter().for_each(works);
            say("ready");
            while let Some(tick) = ticks.next_tick() {
                works(&own[tick as usize % own.len()]);
                kept.drain();
            }
            own.iter().for_each(works);
            while kept.next().is_some() {}
            assert_eq!(kept.subscriber.statistics().lost, 0, "a keep-all subscriber");
        }
        ("joiner", _) => {
            let mut ticks = Listener::new(&node, TOPIC, History::KeepLast(10));
            say("ready");
            while let Some(tick) = ticks.next_tick() {
                let topic = format!("joined_{}", tick % 3);
                match (node.publisher(&topic), node.subscriber(&topic)) {
                    (Ok(publisher), Ok(subscriber)) => works(&(publisher, subscriber)),
                    (Err(error), _) | (_, Err(error)) => say(format_args!("could not join: {error}")),
                }
            }
        }
        other => panic!("no role {other:?}"),
    }
}

type Pair = (Publisher<Bytes>, Subscriber<Bytes>);

/// A publisher and a subscriber on each of many topics of this client alone, with the smallest possible pools.
fn own_topics(node: &Node, topics: usize) -> Vec<Pair> {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum }).unwrap();
    let pair = |number: usize| {
        let topic = own_topic(std::process::id(), number);
        let qos = PublisherQos { pool_bytes: Some(1 << 16), ..PublisherQos::default() };
        (node.publisher_with(&topic, qos).unwrap(), node.subscriber(&topic).unwrap())
    };
    (0..topics).map(pair).collect()
}

fn own_topic(pid: u32, number: usize) -> String {
    format!("own_{pid}_{number}")
}

/// Checks that a published message is taken.
fn works((publisher, subscriber): &Pair) {
    publisher.push(&Bytes::new(1), &[7]).unwrap();
    assert_eq!(subscriber.take().unwrap().expect("it was published").bytes(), [7]);
}

/// A subscriber that checks each sample. Whenever it has caught up, it checks that each position since the first was taken or counted as lost.
struct Listener {
    subscriber: Subscriber<Bytes>,
    /// The first position at which it had caught up, and the messages counted before.
    first: Option<(u64, u64)>,
    /// Whether it had caught up at the last message.
    is_level: bool,
    has_ended: bool,
    errors: Vec<String>,
}

impl Listener {
    fn new(node: &Node, topic: &str, history: History) -> Self {
        let qos = SubscriberQos { history, ..SubscriberQos::default() };
        let subscriber = node.subscriber_with(topic, qos).unwrap();
        Self { subscriber, first: None, is_level: false, has_ended: false, errors: Vec::new() }
    }

    /// The next message; `None` after the last one.
    fn next(&mut self) -> Option<(u64, Sample<Bytes>)> {
        loop {
            // The wait may time out because the process was stopped.
            let taken = self.subscriber.wait(LONG);
            let checked = self.check(taken);
            if self.has_ended && self.is_level {
                self.account();
                return None;
            }
            if checked.is_some() && !self.has_ended {
                return checked;
            }
        }
    }

    /// The number of the survivors' next message.
    fn next_tick(&mut self) -> Option<u64> {
        loop {
            let (number, _) = self.next()?;
            if number < OTHERS {
                return Some(number);
            }
        }
    }

    /// Takes all ready messages.
    fn drain(&mut self) {
        while self.subscriber.ready_count(1) > 0 {
            let taken = self.subscriber.take();
            self.check(taken);
        }
    }

    fn check(&mut self, taken: Result<Option<Sample<Bytes>>, TakeError>) -> Option<(u64, Sample<Bytes>)> {
        let sample = match taken {
            Ok(sample) => sample?,
            Err(error @ TakeError::Pool { .. }) => {
                // Until its publisher continues and hands the pool back, the message stays the next one. A publisher that is refused panics.
                let text = error.to_string();
                if !text.contains("has not handed this pool back") {
                    self.errors.push(text);
                }
                return None;
            }
            Err(error) => panic!("{error}"),
        };
        let (number, position, statistics) = (proven(&sample), sample.info().position, self.subscriber.statistics());
        self.has_ended |= number == END;
        // Losses after the taken message are counted at once; without unread messages there are none.
        self.is_level = self.subscriber.ready_count(1) == 0;
        if self.is_level {
            let counted = statistics.taken + statistics.lost;
            let (first, before) = *self.first.get_or_insert((position, counted - 1));
            assert_eq!(counted - before, position - first + 1, "{statistics:?} from {first} to {position}");
        }
        Some((number, sample))
    }

    fn account(&self) {
        let statistics = self.subscriber.statistics();
        say(format_args!("took {} lost {}", statistics.taken, statistics.lost));
        self.errors.iter().for_each(|error| say(format_args!("could not take: {error}")));
    }
}

// ---- The test's side of them ---------------------------------------------------------------------------------------------------

/// This test program in a new process, as a client.
struct Client {
    role: &'static str,
    child: Child,
    lines: Receiver<String>,
    /// The step at which it stops itself.
    step: Option<&'static str>,
    is_ready: bool,
}

impl Client {
    fn start(role: &'static str, dir: &RuntimeDir, step: Option<(&'static str, u32)>) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "role_of_a_client", "--ignored", "--nocapture"]);
        command.env("RGAPS_TEST_LONG_STOPS_ROLE", role).env("RGAPS_RUNTIME_DIR", dir.path());
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        if let Some((step, passage)) = step {
            CrashPoint::new(step).at_passage(passage).doing(Action::Stop).arm(&mut command);
        }
        let mut child = Child::spawn(&mut command).unwrap();
        let stdout = BufReader::new(child.std().stdout.take().unwrap());
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            let said =
                stdout.lines().map_while(Result::ok).filter_map(|line| Some(line.split_once("client: ")?.1.to_owned()));
            said.map_while(|line| sender.send(line).ok()).for_each(drop);
        });
        Self { role, child, lines, step: step.map(|(step, _)| step), is_ready: false }
    }

    /// Whether it has printed this word by now. Its other output goes to the notes.
    fn has_said(&self, word: &str, notes: &mut Notes) -> bool {
        loop {
            match self.lines.try_recv() {
                Ok(line) if line.starts_with(word) => return true,
                Ok(line) => notes.add(self.role, &line),
                Err(TryRecvError::Empty) => return false,
                Err(TryRecvError::Disconnected) => panic!("the {} has ended and did not say {word:?}", self.role),
            }
        }
    }

    fn is_stopped(&mut self) -> bool {
        match self.child.wait_end_or_stop_within(Duration::ZERO).unwrap() {
            Ended::Stopped => true,
            Ended::StillRunning => false,
            Ended::Exited(status) => panic!("the {} has ended: {status}", self.role),
        }
    }
}

/// What the test observed.
#[derive(Debug, Default)]
struct Notes {
    rounds: u32,
    stops: u32,
    manager_deaths: u32,
    client_deaths: u32,
    /// Counted by clients that ended in order.
    taken: u64,
    lost: u64,
    /// The longest time in which the survivors exchanged three messages.
    slowest: Duration,
    /// Messages of publishers that died with their manager, whose pools could no longer be mapped.
    unmapped: usize,
    /// Such messages of this round.
    errors: Vec<String>,
}

impl Notes {
    fn add(&mut self, role: &str, line: &str) {
        if let Some((taken, lost)) = line.strip_prefix("took ").and_then(|rest| rest.split_once(" lost ")) {
            self.taken += taken.parse::<u64>().unwrap();
            self.lost += lost.parse::<u64>().unwrap();
        } else if line.starts_with("could not take") {
            self.errors.push(format!("{role}: {line}"));
        } else {
            assert_eq!(line, "ready", "of the {role}");
        }
    }

    fn sum(self, other: Self) -> Self {
        Self {
            rounds: self.rounds + other.rounds,
            stops: self.stops + other.stops,
            manager_deaths: self.manager_deaths + other.manager_deaths,
            client_deaths: self.client_deaths + other.client_deaths,
            taken: self.taken + other.taken,
            lost: self.lost + other.lost,
            slowest: self.slowest.max(other.slowest),
            unmapped: self.unmapped + other.unmapped,
            errors: Vec::new(),
        }
    }

    fn print(&self) {
        let Self { rounds, stops, manager_deaths, client_deaths, taken, lost, slowest, unmapped, .. } = self;
        println!(
            "{rounds} rounds: {stops} stops, {manager_deaths} managers and {client_deaths} clients killed; {taken} messages taken and {lost} lost by \
             clients that were stopped, {unmapped} of publishers that died with their manager not to be had; three of the survivors' own took \
             {slowest:?} at most"
        );
    }
}

/// A runtime directory, its manager, and the survivors there.
struct Host {
    dir: RuntimeDir,
    survivors: Survivors,
    /// A subscriber that joins while the other clients are stopped.
    late: Option<Listener>,
    kept: Publisher<Bytes>,
    random: Random,
    notes: Notes,
    /// Whether a publisher died in this round.
    publisher_died: bool,
    memory_at_start: TopicMemory,
    /// The holdings of the first manager that saw a whole round.
    held_at_start: Option<(usize, usize)>,
}

impl Host {
    fn new(name: &str, random: Random) -> Self {
        let dir = RuntimeDir::new(name).unwrap();
        let mut survivors = Survivors::new(&dir);
        survivors.touch_everything();
        let qos = PublisherQos { exhaustion: Exhaustion::Refuse, ..publisher_qos() };
        let kept = survivors.node.publisher_with(KEPT, qos).unwrap();
        let memory_at_start = TopicMemory::of(&mut survivors);
        let notes = Notes::default();
        Self {
            dir,
            survivors,
            late: None,
            kept,
            random,
            notes,
            publisher_died: false,
            memory_at_start,
            held_at_start: None,
        }
    }

    /// Lets the survivors publish and take.
    fn go_on(&mut self) {
        let began = Instant::now();
        self.survivors.go_on();
        self.notes.slowest = self.notes.slowest.max(began.elapsed());
        self.publish_kept(self.survivors.number);
        let came = self.survivors.witness.subscriber.wait(PAUSE).unwrap();
        came.iter().for_each(|sample| {
            self.survivors.witness.check(sample);
        });
        self.late.iter_mut().for_each(Listener::drain);
    }

    /// Publishes to the keep-all subscriber. The loan may be refused while that one takes nothing.
    fn publish_kept(&self, number: u64) {
        match publish(&self.kept, number) {
            Ok(()) | Err(PublishError::NoSpace { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }

    fn turns(&mut self, below: u64) {
        (0..self.random.below(below)).for_each(|_| self.go_on());
    }

    fn until(&mut self, what: &str, mut holds: impl FnMut(&mut Self) -> bool) {
        let deadline = Instant::now() + LONG;
        while !holds(self) {
            assert!(Instant::now() < deadline, "not within {} s: {what}", LONG.as_secs());
            self.go_on();
        }
    }

    /// The process that listens on the socket, according to the kernel.
    fn manager(&self) -> Option<u32> {
        let socket = Dir::open(self.dir.path()).unwrap().socket();
        Some(Connection::connect(&socket).ok()??.peer().unwrap().pid)
    }

    fn kill_the_manager(&mut self) {
        self.until("there is a manager", |host| host.manager().is_some());
        let Some(manager) = self.manager() else { unreachable!("only this test kills it") };
        kill_and_reap(manager);
        self.notes.manager_deaths += 1;
    }

    fn await_a_successor(&mut self) {
        self.until("a successor listens", |host| host.manager().is_some());
        assert!(self.survivors.node.topics().is_ok(), "it answers");
    }

    /// Starts clients in every role; some will stop at a named step.
    fn clients(&mut self) -> Vec<Client> {
        let roles: [(&'static str, &[&'static str]); 4] =
            [("publisher", &PUBLISHER_STEPS), ("subscriber", &SUBSCRIBER_STEPS), ("owner 10", &[]), ("joiner", &[])];
        let mut clients = Vec::new();
        for (role, steps) in roles {
            let at_a_step = !steps.is_empty() && self.random.below(2) == 0;
            let step = at_a_step.then(|| {
                let step = steps[self.random.below(steps.len() as u64) as usize];
                (step, 1 + self.random.below(40) as u32)
            });
            clients.push(Client::start(role, &self.dir, step));
        }
        // Some are stopped before they are ready.
        for client in &mut clients {
            if client.step.is_some() || self.random.below(6) > 0 {
                self.until("the client is ready", |host| client.has_said("ready", &mut host.notes));
                client.is_ready = true;
            }
        }
        clients
    }

    fn stop(&mut self, clients: &mut [Client]) {
        for client in clients.iter_mut().filter(|client| client.step.is_none()) {
            self.turns(4);
            client.child.stop().unwrap();
        }
        for client in clients {
            self.until(&format!("the {} stops", client.role), |_| client.is_stopped());
            self.notes.stops += 1;
        }
    }

    fn round(&mut self, stop: Duration) {
        let mut clients = self.clients();
        self.turns(30);
        // Some are stopped during their hand-back.
        if self.random.below(3) == 0 {
            self.kill_the_manager();
        }
        self.stop(&mut clients);
        let stopped = Instant::now();
        self.kill_the_manager();
        self.turns(5);
        if self.random.below(3) == 0 {
            self.kill_the_manager();
        }
        self.await_a_successor();
        // Sometimes a whole lap of the queue.
        if self.random.below(8) == 0 {
            self.survivors.fill_the_queue();
        }
        self.late = Some(Listener::new(&self.survivors.node, TOPIC, History::KeepAll));
        let owner = clients.iter().find(|client| client.role.starts_with("owner") && client.is_ready);
        let owner = owner.map(|owner| owner.child.id());
        let refused = owner.map(|owner| join_topic_of(owner, &self.dir));
        while stopped.elapsed() < stop {
            self.go_on();
        }
        refused.into_iter().zip(owner).for_each(|(refused, owner)| check_refusal(refused.join().unwrap(), owner));
        clients
            .iter_mut()
            .for_each(|client| assert!(client.is_stopped(), "another process continued the {}", client.role));

        let living = self.resume(clients);
        if let Some(late) = self.late.take() {
            let (lost, has_caught_up) = (late.subscriber.statistics().lost, late.first.is_some());
            assert_eq!((lost, has_caught_up), (0, true), "who has joined meanwhile");
            late.errors.iter().for_each(|error| self.notes.add("late", &format!("could not take: {error}")));
        }
        self.end(living);
        self.notes.rounds += 1;
        let unmapped = std::mem::take(&mut self.notes.errors);
        assert!(unmapped.is_empty() || self.publisher_died, "of a publisher that lives: {unmapped:?}");
        self.notes.unmapped += unmapped.len();
    }

    /// Continues the clients in random order. Some are killed while stopped, and perhaps one after it continues. Returns the living ones.
    fn resume(&mut self, mut stopped: Vec<Client>) -> Vec<Client> {
        let mut living = Vec::new();
        self.publisher_died = false;
        while !stopped.is_empty() {
            let client = stopped.swap_remove(self.random.below(stopped.len() as u64) as usize);
            if self.random.below(4) == 0 {
                self.kill(client);
            } else {
                client.child.go_on().unwrap();
                living.push(client);
            }
            self.turns(10);
        }
        self.turns(30);
        if self.random.below(3) == 0 {
            living.pop().into_iter().for_each(|client| self.kill(client));
        }
        living
    }

    fn kill(&mut self, mut client: Client) {
        client.child.kill().unwrap();
        self.publisher_died |= client.role == "publisher";
        self.notes.client_deaths += 1;
        client.lines.iter().for_each(|line| self.notes.add(client.role, &line));
    }

    /// Checks that each living client gets the last message, finds everything in order and detaches. Then the topic must be as at the start.
    fn end(&mut self, mut living: Vec<Client>) {
        self.until("the clients end", |host| {
            if host.kept.subscriber_count() > 0 {
                host.publish_kept(END);
            }
            living.retain_mut(|client| match client.child.wait_within(Duration::ZERO).unwrap() {
                Ended::StillRunning | Ended::Stopped => true,
                Ended::Exited(status) => {
                    assert!(status.success(), "the {} (step {:?}): {status}", client.role, client.step);
                    client.lines.iter().for_each(|line| host.notes.add(client.role, &line));
                    false
                }
            });
            if !living.is_empty() {
                let _ = publish(&host.survivors.publisher, END);
            }
            living.is_empty()
        });
        self.until("the others have left the topic", |host| host.survivors.are_alone());
        self.until("no topic is left but the survivors'", |host| host.survivors.node.topics().unwrap().len() == 2);
        self.clear_runs();
        self.until("they have left it, too", |host| host.survivors.are_alone());
        let begin = Instant::now();
        loop {
            let memory = TopicMemory::of(&mut self.survivors);
            if memory == self.memory_at_start {
                break;
            }
            self.go_on();
            assert!(begin.elapsed() < LONG, "{memory:?}, and at the start {:?}", self.memory_at_start);
        }
        let notes = |dir: &RuntimeDir, prefix: &str| {
            let entries = std::fs::read_dir(dir.path()).unwrap().flatten();
            entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix)).count()
        };
        self.until("only the survivors' files are there", |host| {
            (notes(&host.dir, "client-"), notes(&host.dir, "topic-")) == (1, 2)
        });
        let Some(manager) = self.manager() else { panic!("the last manager is gone") };
        let (fds, maps) = *self.held_at_start.get_or_insert_with(|| holdings(manager));
        self.until("the manager holds no more than one before", |_| {
            let now = holdings(manager);
            now.0 <= fds && now.1 <= maps
        });
    }

    /// Creates and drops publishers in all slots. A run of the message table is given back to the kernel when its occupant leaves, but reading its
    /// entries later, on a walk of the queue, makes the kernel map pages again. The next occupant's end gives these back.
    fn clear_runs(&self) {
        let come = || self.survivors.node.publisher_with::<Bytes>(TOPIC, publisher_qos()).unwrap();
        drop((0..OTHERS_AT_A_TIME).map(|_| come()).collect::<Vec<_>>());
    }
}

/// Tries to join a topic that only a stopped client has.
fn join_topic_of(owner: u32, dir: &RuntimeDir) -> std::thread::JoinHandle<Result<(), NodeError>> {
    let path = dir.path().to_owned();
    std::thread::spawn(move || {
        let node = Node::builder().name("late").runtime_dir(&path).build()?;
        node.subscriber::<Bytes>(&own_topic(owner, 3)).map(drop)
    })
}

fn check_refusal(refused: Result<(), NodeError>, owner: u32) {
    let said = refused.expect_err("a living client's topic is not recreated").to_string();
    assert!(said.contains(&format!("process {owner} has slots in /{}", own_topic(owner, 3))), "{said}");
}

/// Whether this is a process whose clients start managers without a network, and which reaps orphans.
fn is_isolated() -> bool {
    let is_isolated = again_with(&[("RGAPS_NETWORK", "local"), ("RGAPS_DEVICE", "host")], |_| Ok(()));
    if is_isolated {
        set_child_subreaper(Some(getpid())).unwrap();
    }
    is_isolated
}

#[test]
fn survivors_go_on_while_others_are_stopped_for_long_and_managers_die() {
    if !is_isolated() {
        return;
    }
    let _watchdog = Watchdog::new(Duration::from_secs(3600));
    let (mut seeds, rounds) = (Random::seeded(), rounds());
    let hosts = rounds.min(HOSTS_AT_A_TIME);
    let notes = std::thread::scope(|scope| {
        let run = |number: u32, random: Random| {
            let mut host = Host::new(&format!("stop{number}"), random);
            for round in 0..rounds / hosts + u32::from(number < rounds % hosts) {
                host.round(if round % 5 == 4 { LONGEST_STOP } else { STOP });
            }
            host.survivors.witness.has_missed_nothing();
            host.notes
        };
        let hosts: Vec<_> = (0..hosts)
            .map(|number| {
                let random = Random::new(seeds.below(u64::MAX));
                scope.spawn(move || run(number, random))
            })
            .collect();
        hosts.into_iter().map(|host| host.join().unwrap()).fold(Notes::default(), Notes::sum)
    });
    notes.print();
    assert_eq!(notes.rounds, rounds);
}

#[test]
fn a_client_of_many_topics_keeps_them_while_it_is_stopped_and_managers_die() {
    if !is_isolated() {
        return;
    }
    let _watchdog = Watchdog::new(Duration::from_secs(400));
    let (role, topics) = if is_long() { ("owner 1000", 1000) } else { ("owner 200", 200) };
    let mut host = Host::new("many", Random::seeded());
    let mut client = Client::start(role, &host.dir, None);
    while !client.has_said("ready", &mut host.notes) {
        host.go_on();
    }
    let first = host.random.below(2) == 0;
    for hands_back in if is_long() { vec![first, !first] } else { vec![first] } {
        if hands_back {
            let log = host.dir.path().join("rgapsd.log");
            let taken_over = || std::fs::read_to_string(&log).unwrap().matches("taken over").count();
            let before = taken_over();
            host.kill_the_manager();
            host.until("some of the client's topics are handed back", |_| taken_over() > before + topics / 10);
        }
        client.child.stop().unwrap();
        host.until("the client stops", |_| client.is_stopped());
        let stopped = Instant::now();
        host.kill_the_manager();
        host.await_a_successor();
        let refused = join_topic_of(client.child.id(), &host.dir);
        while stopped.elapsed() < STOP {
            host.go_on();
        }
        check_refusal(refused.join().unwrap(), client.child.id());
        client.child.go_on().unwrap();
        // Two topics are the survivors'.
        while host.survivors.node.topics().unwrap().len() < topics + 2 {
            host.go_on();
        }
    }
    let is_whole = |topic: &TopicSummary| {
        let is_own = topic.key.name().starts_with("/own_");
        !is_own || (topic.publishers, topic.subscribers) == (1, 1)
    };
    assert!(host.survivors.node.topics().unwrap().iter().all(is_whole));
    host.end(vec![client]);
    println!("{topics} topics: the survivors' messages took {:?} at most", host.notes.slowest);
}
