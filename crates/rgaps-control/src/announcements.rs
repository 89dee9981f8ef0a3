//! What other hosts announce, on its way from the network's callbacks to the manager: the latest state, and the topics that it concerns. No I/O, no
//! clock.
//!
//! ```text
//!   token declared or undeclared ──▶ Directory (the state) ──▶ a queue: the host's own, or the newcomers' ──poll_change──▶ manager
//! ```
//!
//! A queue is a set of pending changes. A token that is declared and undeclared a thousand times is therefore one change: the manager looks at its
//! topic once, if this host has the topic. Hosts that have been there for a while have a queue each. All others share one, so invented identities
//! gain nothing. The queues are served round-robin, each at a bounded rate.
//!
//! Invariants  AN1 the manager has seen the directory's state of a topic or host, or the topic or host is in a queue.
//!             AN2 queues hold topics of this host, and hosts that the manager or the directory knows: nothing grows with the number of events.
//!             AN3 what the directory refused for lack of room is queried again when there is room (`poll_ask`).

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::ops::Bound;
use std::time::{Duration, Instant};

use crate::directory::{Concerned, Directory, Overflow};
use crate::limits::{Budget, Limits};
use crate::names::{HostId, TopicKey};
use crate::wire::Endpoint;

/// How long a host counts as a newcomer.
const NEWCOMER_FOR: Duration = Duration::from_secs(10);
/// Changes of one host that are served without a pause: a host may announce as many endpoints.
const CHANGES_AT_ONCE: u32 = 4096;
/// Interval of one host's changes in the long run: 500 a second.
const CHANGE_EVERY: Duration = Duration::from_millis(2);
/// Interval of all newcomers' changes in the long run: 1000 a second.
const NEWCOMERS_CHANGE_EVERY: Duration = Duration::from_millis(1);
/// Pause between two queries for what was refused.
const ASK_EVERY: Duration = Duration::from_secs(1);
/// Tokens that may be undeclared while such a query runs; if there are more, it is repeated.
const WITHDRAWN_MAX: usize = 65_536;

/// An announcement, or its withdrawal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Announcement {
    /// A host has appeared, or has another name.
    HostUp {
        /// Its identity.
        host: HostId,
        /// Its name.
        name: String,
    },
    /// A host is gone, or no longer has that name.
    HostDown {
        /// Its identity.
        host: HostId,
        /// The name that it was announced under.
        name: String,
    },
    /// An endpoint has appeared.
    EndpointUp {
        /// Its host.
        host: HostId,
        /// The text of its token, which also announces its end.
        token: String,
        /// The endpoint.
        endpoint: Endpoint,
    },
    /// An endpoint is gone.
    EndpointDown {
        /// Its host.
        host: HostId,
        /// The text of its token.
        token: String,
    },
}

impl Announcement {
    /// The host that announces or withdraws.
    pub fn host(&self) -> HostId {
        match self {
            Self::HostUp { host, .. }
            | Self::HostDown { host, .. }
            | Self::EndpointUp { host, .. }
            | Self::EndpointDown { host, .. } => *host,
        }
    }

    /// What a withdrawal withdraws. A name gets a leading space, which no token has.
    fn withdrawal(&self) -> Option<(HostId, String)> {
        match self {
            Self::HostDown { host, name } => Some((*host, format!(" {name}"))),
            Self::EndpointDown { host, token } => Some((*host, token.clone())),
            _ => None,
        }
    }

    /// What `withdrawal` returns for the withdrawal of this announcement.
    fn withdrawal_if_up(&self) -> Option<(HostId, String)> {
        match self {
            Self::HostUp { host, name } => Some((*host, format!(" {name}"))),
            Self::EndpointUp { host, token, .. } => Some((*host, token.clone())),
            _ => None,
        }
    }
}

/// A change that the manager looks at. The order is the order in a queue.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Change {
    /// A host has appeared, is gone, or has another name. Changes of its topics follow; the manager adds topics that only have links with it
    /// (`concern`).
    Host(HostId),
    /// Other hosts' endpoints of a topic of this host.
    Topic(TopicKey),
}

/// What to query again: the announcements of one host, or of all.
pub type Scope = Option<HostId>;

/// Hosts that people are told of by name.
const NAMES_SHOWN: usize = 256;

/// Figures for people, since the manager's start.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(default)]
pub struct Counters {
    /// Known hosts.
    pub hosts: usize,
    /// Names of known hosts, at most `NAMES_SHOWN`.
    pub names: Vec<String>,
    /// Stored endpoints.
    pub endpoints: usize,
    /// Announcements and withdrawals.
    pub announcements: u64,
    /// Changes that the manager looked at because of them.
    pub changes: u64,
    /// How often the changes of a host, or of the newcomers, waited for their rate.
    pub held_back: u64,
    /// Announcements that were refused because a bound was reached.
    pub refused: u64,
    /// Queries for announcements that had been refused.
    pub asked_again: u64,
    /// How often each budget was exceeded, by its key.
    pub budgets: BTreeMap<String, u64>,
}

/// A bounded rate with a burst of `CHANGES_AT_ONCE`. `due` is when the next change would be served without the burst.
#[derive(Clone, Copy, Debug)]
struct Rate {
    due: Instant,
    every: Duration,
}

impl Rate {
    fn new(now: Instant, every: Duration) -> Self {
        Self { due: now, every }
    }

    /// When the next change may be served.
    fn opens(&self) -> Option<Instant> {
        self.due.checked_sub(self.every * (CHANGES_AT_ONCE - 1))
    }

    fn is_open(&self, now: Instant) -> bool {
        self.opens().is_none_or(|opens| opens <= now)
    }

    fn serve(&mut self, now: Instant) {
        self.due = self.due.max(now) + self.every;
    }
}

/// Waiting changes, served in a circle, from the last served one on.
#[derive(Debug)]
struct ChangeQueue {
    waiting: BTreeSet<Change>,
    last: Option<Change>,
    rate: Rate,
    was_held: bool,
}

impl ChangeQueue {
    fn new(now: Instant, every: Duration) -> Self {
        Self { waiting: BTreeSet::new(), last: None, rate: Rate::new(now, every), was_held: false }
    }

    fn next(&mut self) -> Option<Change> {
        let behind = self.last.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
        let next = self.waiting.range((behind, Bound::Unbounded)).next().or_else(|| self.waiting.first()).cloned()?;
        self.waiting.remove(&next);
        self.last = Some(next.clone());
        Some(next)
    }
}

/// A known host.
#[derive(Debug)]
struct Known {
    since: Instant,
    /// Its queue, once it is not a newcomer any more.
    queue: Option<ChangeQueue>,
}

/// A running query of the network.
#[derive(Debug)]
struct Asking {
    scope: Scope,
    /// Hashes of what was withdrawn since the query began: an answer that contains it is older. Other hosts cannot predict them.
    withdrawn: HashSet<u64>,
    hasher: RandomState,
}

/// The announcements of other hosts.
#[derive(Debug)]
pub struct Announcements {
    directory: Directory,
    hosts_max: usize,
    /// Topics of this host.
    watched: HashSet<TopicKey>,
    known: BTreeMap<HostId, Known>,
    newcomers: ChangeQueue,
    /// The host that was served last; `None` for the newcomers.
    turn: Option<HostId>,
    /// Hosts that the manager knows, with the names that it knows.
    told: HashMap<HostId, String>,
    asking: Option<Asking>,
    ask_from: Instant,
    counters: Counters,
}

impl Announcements {
    /// An empty state, bounded by `limits`.
    pub fn new(now: Instant, limits: &Limits) -> Self {
        Self {
            directory: Directory::new(limits),
            hosts_max: limits.count(Budget::Hosts),
            watched: HashSet::new(),
            known: BTreeMap::new(),
            newcomers: ChangeQueue::new(now, NEWCOMERS_CHANGE_EVERY),
            turn: None,
            told: HashMap::new(),
            asking: None,
            ask_from: now,
            counters: Counters::default(),
        }
    }

    /// The state.
    pub fn directory(&self) -> &Directory {
        &self.directory
    }

    /// This host has the topic from now on. The manager looks once at what other hosts already have of it.
    pub fn watch(&mut self, key: &TopicKey) {
        self.watched.insert(key.clone());
    }

    /// This host no longer has the topic.
    pub fn unwatch(&mut self, key: &TopicKey) {
        self.watched.remove(key);
        let change = Change::Topic(key.clone());
        self.newcomers.waiting.remove(&change);
        self.known.values_mut().filter_map(|known| known.queue.as_mut()).for_each(|queue| {
            queue.waiting.remove(&change);
        });
    }

    /// Takes an announcement or withdrawal. True if a new change waits. An announcement that is not stored is an error, reported once per host.
    pub fn handle(&mut self, now: Instant, announcement: &Announcement) -> Result<bool, Overflow> {
        self.counters.announcements += 1;
        if let (Some(asking), Some(withdrawn)) = (&mut self.asking, announcement.withdrawal())
            && asking.scope.is_none_or(|scope| scope == withdrawn.0)
            && asking.withdrawn.len() <= WITHDRAWN_MAX
        {
            asking.withdrawn.insert(asking.hasher.hash_one(withdrawn));
        }
        self.keep(now, announcement)
    }

    /// Takes an announcement that a query found.
    pub fn handle_answer(&mut self, now: Instant, announcement: &Announcement) -> Result<bool, Overflow> {
        let is_withdrawn = |asking: &Asking| {
            announcement.withdrawal_if_up().is_none_or(|what| asking.withdrawn.contains(&asking.hasher.hash_one(what)))
        };
        match &self.asking {
            Some(asking) if asking.withdrawn.len() <= WITHDRAWN_MAX && !is_withdrawn(asking) => {
                self.keep(now, announcement)
            }
            _ => Ok(false),
        }
    }

    /// The query has found everything.
    pub fn handle_answered(&mut self, now: Instant) {
        self.ask_from = now + ASK_EVERY;
        if let Some(asking) = self.asking.take().filter(|asking| asking.withdrawn.len() > WITHDRAWN_MAX) {
            self.directory.refuse(asking.scope, None);
        }
    }

    /// What to query again, since it was refused and there is room now.
    pub fn poll_ask(&mut self, now: Instant) -> Option<Scope> {
        if self.asking.is_some() || now < self.ask_from {
            return None;
        }
        let scope = self.directory.poll_missed()?;
        self.asking = Some(Asking { scope, withdrawn: HashSet::new(), hasher: RandomState::new() });
        self.counters.asked_again += 1;
        Some(scope)
    }

    /// The next change that the manager should look at.
    pub fn poll_change(&mut self, now: Instant) -> Option<Change> {
        loop {
            let change = self.next(now)?;
            match &change {
                Change::Host(host) if !self.told.contains_key(host) && !self.directory.knows(*host) => {}
                Change::Host(host) => {
                    let topics: Vec<TopicKey> =
                        self.directory.topics_of(*host).filter(|key| self.watched.contains(*key)).cloned().collect();
                    self.concern(now, *host, topics);
                    return Some(change);
                }
                Change::Topic(_) => return Some(change),
            }
        }
    }

    /// Adds topics of this host that a change of `host` concerns, whether `host` has announced them or not.
    pub fn concern(&mut self, now: Instant, host: HostId, topics: impl IntoIterator<Item = TopicKey>) {
        for key in topics {
            self.wait(now, host, Change::Topic(key));
        }
    }

    /// A host's name as the manager knows it, and its name now; the manager then knows the latter.
    pub fn tell(&mut self, host: HostId) -> (Option<String>, Option<String>) {
        let is = self.directory.knows(host).then(|| self.directory.name(host));
        let was = match &is {
            Some(name) => self.told.insert(host, name.clone()),
            None => self.told.remove(&host),
        };
        (was, is)
    }

    /// When `poll_change` may next have a change.
    pub fn due(&self) -> Option<Instant> {
        let queues = self.known.values().filter_map(|known| known.queue.as_ref()).chain([&self.newcomers]);
        queues.filter(|queue| !queue.waiting.is_empty()).map(|queue| queue.rate.opens().unwrap_or(queue.rate.due)).min()
    }

    /// Figures for people.
    pub fn counters(&self) -> Counters {
        let (hosts, endpoints) = self.directory.counts();
        let refused_for = self.directory.refused_for().iter();
        let budgets = refused_for.map(|(budget, count)| (budget.key().to_owned(), *count)).collect();
        let names = BTreeSet::from_iter(self.directory.names()).into_iter().take(NAMES_SHOWN).collect();
        Counters { hosts, names, endpoints, refused: self.directory.refused(), budgets, ..self.counters.clone() }
    }

    fn keep(&mut self, now: Instant, announcement: &Announcement) -> Result<bool, Overflow> {
        let host = announcement.host();
        let kept = match announcement {
            Announcement::HostUp { name, .. } => self.directory.host_up(host, name),
            Announcement::HostDown { name, .. } => Ok(self.directory.host_down(host, name)),
            Announcement::EndpointUp { token, endpoint, .. } => {
                self.directory.endpoint_up(host, token, endpoint.clone())
            }
            Announcement::EndpointDown { token, .. } => Ok(self.directory.endpoint_down(host, token)),
        };
        match kept? {
            Concerned::Nothing => Ok(false),
            Concerned::Topic(key) if !self.watched.contains(&key) => Ok(false),
            Concerned::Topic(key) => Ok(self.wait(now, host, Change::Topic(key))),
            Concerned::Host => Ok(self.host_changed(now, host)),
        }
    }

    fn host_changed(&mut self, now: Instant, host: HostId) -> bool {
        let is_there = self.directory.knows(host);
        if is_there && self.known.len() < self.hosts_max {
            self.known.entry(host).or_insert(Known { since: now, queue: None });
        }
        if !is_there && let Some(queue) = self.known.remove(&host).and_then(|known| known.queue) {
            self.newcomers.waiting.extend(queue.waiting);
        }
        if !is_there && !self.told.contains_key(&host) {
            // The manager does not know the host and need not; but it may have looked at the host's topics meanwhile.
            self.newcomers.waiting.remove(&Change::Host(host));
            let before = self.newcomers.waiting.len();
            let topics = self.directory.topics_of(host).filter(|key| self.watched.contains(*key));
            self.newcomers.waiting.extend(topics.cloned().map(Change::Topic));
            return self.newcomers.waiting.len() > before;
        }
        self.wait(now, host, Change::Host(host))
    }

    fn wait(&mut self, now: Instant, host: HostId, change: Change) -> bool {
        let queue = match self.known.get_mut(&host) {
            Some(known) if now.duration_since(known.since) >= NEWCOMER_FOR => {
                known.queue.get_or_insert_with(|| ChangeQueue::new(now, CHANGE_EVERY))
            }
            _ => &mut self.newcomers,
        };
        queue.waiting.insert(change)
    }

    /// The next change of the queues in turn: the hosts in their order, then the newcomers.
    fn next(&mut self, now: Instant) -> Option<Change> {
        let behind = self.turn.map_or(Bound::Unbounded, Bound::Excluded);
        let waits = |known: &Known| known.queue.as_ref().is_some_and(|queue| !queue.waiting.is_empty());
        let later =
            self.known.range((behind, Bound::Unbounded)).filter(|(_, known)| waits(known)).map(|(id, _)| Some(*id));
        let earlier = self.known.range(..).filter(|(_, known)| waits(known)).map(|(id, _)| Some(*id));
        let turns: Vec<Option<HostId>> = later.chain([None]).chain(earlier).collect();
        for turn in turns {
            let queue = match turn {
                None => &mut self.newcomers,
                Some(host) => match self.known.get_mut(&host).and_then(|known| known.queue.as_mut()) {
                    Some(queue) => queue,
                    None => continue,
                },
            };
            if !queue.rate.is_open(now) {
                let was_held = std::mem::replace(&mut queue.was_held, !queue.waiting.is_empty());
                self.counters.held_back += u64::from(queue.was_held && !was_held);
                continue;
            }
            if let Some(change) = queue.next() {
                queue.was_held = false;
                queue.rate.serve(now);
                self.turn = turn;
                self.counters.changes += 1;
                return Some(change);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::local::Role;
    use crate::qos::{PublisherQos, SubscriberQos};
    use proptest::prelude::*;

    fn host(n: u64) -> HostId {
        HostId(u128::from(n).to_be_bytes())
    }

    fn key(name: &str) -> TopicKey {
        TopicKey::new(0, name).unwrap()
    }

    fn host_up(of: u64) -> Announcement {
        Announcement::HostUp { host: host(of), name: format!("n{of}") }
    }

    fn host_down(of: u64) -> Announcement {
        Announcement::HostDown { host: host(of), name: format!("n{of}") }
    }

    fn up(of: u64, topic: &str) -> Announcement {
        let endpoint = Endpoint {
            key: key(topic),
            role: Role::Publisher,
            type_name: "x".to_owned(),
            offers: vec![PublisherQos::default()],
            requests: vec![SubscriberQos::default()],
        };
        Announcement::EndpointUp { host: host(of), token: topic.to_owned(), endpoint }
    }

    fn down(of: u64, topic: &str) -> Announcement {
        Announcement::EndpointDown { host: host(of), token: topic.to_owned() }
    }

    fn waiting(of: &Announcements) -> usize {
        let queues = of.known.values().filter_map(|known| known.queue.as_ref()).chain([&of.newcomers]);
        queues.map(|queue| queue.waiting.len()).sum()
    }

    fn all(of: &mut Announcements, now: Instant) -> Vec<Change> {
        std::iter::from_fn(|| of.poll_change(now)).collect()
    }

    #[test]
    fn a_token_that_is_declared_and_undeclared_a_thousand_times_is_one_change() {
        let now = Instant::now();
        let mut here = Announcements::new(now, &Limits::default());
        here.watch(&key("a"));
        here.handle(now, &host_up(1)).unwrap();
        for _ in 0..1000 {
            here.handle(now, &up(1, "a")).unwrap();
            here.handle(now, &down(1, "a")).unwrap();
        }
        assert_eq!(all(&mut here, now), [Change::Host(host(1)), Change::Topic(key("a"))]);
        assert_eq!(here.tell(host(1)), (None, Some("n1".to_owned())));
        assert_eq!((here.counters().announcements, here.counters().changes), (2001, 2));
    }

    #[test]
    fn topics_that_this_host_lacks_and_hosts_that_left_unseen_cause_no_changes() {
        let now = Instant::now();
        let mut here = Announcements::new(now, &Limits::default());
        here.watch(&key("a"));
        for n in 0..5000 {
            here.handle(now, &host_up(n)).unwrap();
            here.handle(now, &up(n, &format!("t{n}"))).unwrap();
            here.handle(now, &up(n, "a")).unwrap();
            here.handle(now, &down(n, "a")).unwrap();
            here.handle(now, &down(n, &format!("t{n}"))).unwrap();
            here.handle(now, &host_down(n)).unwrap();
        }
        assert_eq!(waiting(&here), 1, "one change of the topic that this host has");
        assert_eq!(all(&mut here, now), [Change::Topic(key("a"))]);
    }

    #[test]
    fn a_host_that_never_stops_changing_is_served_at_its_rate_and_delays_no_other() {
        let start = Instant::now();
        let mut here = Announcements::new(start, &Limits::default());
        let topics: Vec<String> = (0..8).map(|n| format!("t{n}")).collect();
        topics.iter().for_each(|topic| here.watch(&key(topic)));
        [1, 2].iter().for_each(|of| drop(here.handle(start, &host_up(*of))));
        all(&mut here, start);
        let now = start + NEWCOMER_FOR;
        let flip = |here: &mut Announcements| {
            for topic in &topics {
                here.handle(now, &up(1, topic)).unwrap();
                here.handle(now, &down(1, topic)).unwrap();
            }
        };
        let mut served = 0;
        while served < CHANGES_AT_ONCE {
            flip(&mut here);
            served += all(&mut here, now).len() as u32;
        }
        assert_eq!(served, CHANGES_AT_ONCE);
        flip(&mut here);
        assert_eq!(all(&mut here, now), []);
        assert_eq!(here.counters().held_back, 1);
        here.handle(now, &up(2, "t0")).unwrap();
        assert_eq!(all(&mut here, now), [Change::Topic(key("t0"))], "the other host's");
        // Nor does an invented host.
        here.handle(now, &host_up(3)).unwrap();
        assert_eq!(all(&mut here, now), [Change::Host(host(3))]);
        assert!(here.due().is_some_and(|due| due > now && due <= now + CHANGE_EVERY));
        assert_eq!(all(&mut here, now + CHANGE_EVERY * 3).len(), 3, "at its rate");
    }

    #[test]
    fn hosts_are_served_round_robin() {
        let start = Instant::now();
        let mut here = Announcements::new(start, &Limits::default());
        ["a", "b", "c"].iter().for_each(|topic| here.watch(&key(topic)));
        [1, 2].iter().for_each(|of| drop(here.handle(start, &host_up(*of))));
        all(&mut here, start);
        let now = start + NEWCOMER_FOR;
        for topic in ["a", "b", "c"] {
            [1, 2, 3].iter().for_each(|of| drop(here.handle(now, &up(*of, topic))));
        }
        here.handle(now, &host_up(3)).unwrap();
        let changes = all(&mut here, now);
        let hosts_topics: Vec<&Change> = changes.iter().filter(|change| matches!(change, Change::Topic(_))).collect();
        let names = hosts_topics.iter().map(|change| match change {
            Change::Topic(key) => key.name(),
            Change::Host(_) => "",
        });
        let names: Vec<&str> = names.take(4).collect();
        assert_eq!(names[..2], ["/a", "/a"], "the first of each host: {changes:?}");
    }

    #[test]
    fn refused_announcements_are_queried_again_and_withdrawn_ones_stay_gone() {
        let now = Instant::now();
        let mut here = Announcements::new(now, &Limits::default());
        for n in 0..Limits::default().hosts_max {
            here.handle(now, &host_up(n)).unwrap();
        }
        assert!(here.handle(now, &host_up(2000)).is_err());
        assert_eq!((here.handle(now, &host_up(2001)), here.poll_ask(now)), (Ok(false), None));
        here.handle(now, &host_down(7)).unwrap();
        here.handle(now, &host_down(8)).unwrap();
        assert_eq!((here.poll_ask(now), here.poll_ask(now)), (Some(None), None), "one query at a time");
        here.handle(now, &host_down(2000)).unwrap();
        for answer in [2000, 2001] {
            here.handle_answer(now, &host_up(answer)).unwrap();
        }
        here.handle_answered(now);
        assert!(!here.directory().knows(host(2000)) && here.directory().knows(host(2001)));
        assert_eq!(here.counters().asked_again, 1);
        here.handle_answer(now, &host_up(2002)).unwrap();
        assert!(!here.directory().knows(host(2002)), "no query is running");
    }

    #[test]
    fn topics_of_a_host_that_left_before_the_manager_saw_it_are_looked_at_again() {
        let now = Instant::now();
        let mut here = Announcements::new(now, &Limits::default());
        here.watch(&key("a"));
        [up(1, "a"), host_up(1)].iter().for_each(|said| drop(here.handle(now, said)));
        assert_eq!(all(&mut here, now).len(), 2);
        here.tell(host(1));
        here.handle(now, &host_down(1)).unwrap();
        assert_eq!(here.poll_change(now), Some(Change::Host(host(1))));
        here.tell(host(1));
        here.handle(now, &host_up(1)).unwrap();
        assert_eq!(here.poll_change(now), Some(Change::Topic(key("a"))), "the manager has not seen the host yet");
        here.handle(now, &host_down(1)).unwrap();
        assert_eq!(all(&mut here, now), [Change::Topic(key("a"))]);
    }

    #[derive(Clone, Debug)]
    enum Word {
        Says(Announcement),
        Served(usize),
        Later(u64),
    }

    fn word() -> impl Strategy<Value = Word> {
        let of = 0_u64..4;
        let topic = (0_u8..3).prop_map(|n| format!("t{n}"));
        prop_oneof![
            of.clone().prop_map(|of| Word::Says(host_up(of))),
            of.clone().prop_map(|of| Word::Says(host_down(of))),
            (of.clone(), topic.clone()).prop_map(|(of, topic)| Word::Says(up(of, &topic))),
            (of, topic).prop_map(|(of, topic)| Word::Says(down(of, &topic))),
            (0_usize..4).prop_map(Word::Served),
            (0_u64..12).prop_map(Word::Later),
        ]
    }

    proptest! {
        /// AN1: a manager that looks at each change knows in the end what the directory says about each topic of this host.
        #[test]
        fn a_manager_that_looks_at_each_change_knows_the_state(words in proptest::collection::vec(word(), 0..120)) {
            let mut now = Instant::now();
            let mut here = Announcements::new(now, &Limits::default());
            let topics = [key("t0"), key("t1")];
            topics.iter().for_each(|topic| here.watch(topic));
            let mut seen: BTreeMap<TopicKey, Vec<String>> = BTreeMap::new();
            let mut hosts: BTreeMap<HostId, String> = BTreeMap::new();
            let mut look = |here: &mut Announcements, now: Instant, most: usize| {
                for _ in 0..most {
                    match here.poll_change(now) {
                        None => return (seen.clone(), hosts.clone()),
                        Some(Change::Topic(key)) => {
                            seen.insert(key.clone(), here.directory().hosts_with(&key, Role::Publisher));
                        }
                        Some(Change::Host(host)) => {
                            let (was, is) = here.tell(host);
                            assert_eq!(was, hosts.get(&host).cloned());
                            hosts.remove(&host);
                            hosts.extend(is.map(|name| (host, name)));
                        }
                    }
                }
                (seen.clone(), hosts.clone())
            };
            for word in words {
                match word {
                    Word::Says(announcement) => drop(here.handle(now, &announcement)),
                    Word::Served(most) => drop(look(&mut here, now, most)),
                    Word::Later(seconds) => now += Duration::from_secs(seconds),
                }
                // AN2.
                prop_assert!(waiting(&here) <= 5 * (topics.len() + 4));
            }
            let (seen, hosts) = look(&mut here, now, usize::MAX);
            for topic in &topics {
                let told = seen.get(topic).cloned().unwrap_or_default();
                prop_assert_eq!(told, here.directory().hosts_with(topic, Role::Publisher));
            }
            for of in (0..4).map(host) {
                let is = here.directory().knows(of).then(|| here.directory().name(of));
                prop_assert_eq!(hosts.get(&of).cloned(), is);
            }
        }
    }
}
