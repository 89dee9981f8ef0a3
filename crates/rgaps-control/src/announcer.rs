//! Announces this host's endpoints from its own thread: declaring a token takes the network a while, and the manager's thread has clients to serve.
//!
//! The thread joins the network itself; what is announced before that stays in the queue. A newer state of a topic replaces one that is still
//! in the queue. The thread declares the new tokens before it undeclares the old ones, so that
//! no other host sees a moment without either. Dropping the announcer announces the rest of the queue first.

use std::collections::{HashMap, VecDeque};
use std::fmt::Display;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::announcements::Scope;
use crate::names::TopicKey;
use crate::wire::Endpoint;

/// What the thread does with the network.
pub(crate) trait Declare: Send + 'static {
    /// Ends with `undeclare`.
    type Token: Send;
    /// An announcement was not made.
    type Error: Display;

    /// Announces an endpoint.
    fn declare(&self, endpoint: &Endpoint) -> Result<Self::Token, Self::Error>;

    /// Withdraws an announcement.
    fn undeclare(&self, token: Self::Token);

    /// Queries what other hosts announce. Does not wait for the answer.
    fn ask(&self, scope: Scope);
}

#[derive(Debug, Default)]
struct State {
    /// The endpoints to announce, for each topic in the queue.
    wanted: HashMap<TopicKey, Vec<Endpoint>>,
    queue: VecDeque<TopicKey>,
    ask: Option<Scope>,
    is_over: bool,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    woken: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The thread's handle.
#[derive(Debug)]
pub(crate) struct Announcer {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// Tells the thread that the announcer is dropped.
pub(crate) struct StopSignal<'a>(&'a Shared);

impl StopSignal<'_> {
    /// Waits for the end of the announcer, at most so long. True if it has ended.
    pub(crate) fn wait_for(&self, timeout: Duration) -> bool {
        let state = self.0.lock();
        let waited = self.0.woken.wait_timeout_while(state, timeout, |state| !state.is_over);
        waited.unwrap_or_else(PoisonError::into_inner).0.is_over
    }
}

enum Work {
    Announce(TopicKey, Vec<Endpoint>),
    Ask(Scope),
}

impl Announcer {
    /// The thread calls `join`, which may wait until there is a network. `join` returns None if the announcer is dropped before that.
    pub(crate) fn start<N: Declare>(
        join: impl FnOnce(&StopSignal) -> Option<N> + Send + 'static,
    ) -> std::io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let of_thread = shared.clone();
        let run = move || {
            if let Some(network) = join(&StopSignal(&of_thread)) {
                announce(&network, &of_thread);
            }
        };
        let thread = std::thread::Builder::new().name("rgaps-announce".to_owned()).spawn(run)?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Sets all endpoints of this host for a topic; an empty list withdraws them.
    pub(crate) fn announce(&self, key: &TopicKey, endpoints: Vec<Endpoint>) {
        let mut state = self.shared.lock();
        if state.wanted.insert(key.clone(), endpoints).is_none() {
            state.queue.push_back(key.clone());
        }
        self.shared.woken.notify_one();
    }

    /// Queries what other hosts announce.
    pub(crate) fn ask(&self, scope: Scope) {
        self.shared.lock().ask = Some(scope);
        self.shared.woken.notify_one();
    }
}

impl Drop for Announcer {
    fn drop(&mut self) {
        self.shared.lock().is_over = true;
        self.shared.woken.notify_one();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The next piece of work; `None` when the announcer is dropped and everything is done.
fn next(shared: &Shared) -> Option<Work> {
    let mut state = shared.lock();
    loop {
        if let Some(key) = state.queue.pop_front() {
            let endpoints = state.wanted.remove(&key).unwrap_or_default();
            return Some(Work::Announce(key, endpoints));
        }
        if state.is_over {
            return None;
        }
        if let Some(scope) = state.ask.take() {
            return Some(Work::Ask(scope));
        }
        state = shared.woken.wait(state).unwrap_or_else(PoisonError::into_inner);
    }
}

fn announce<N: Declare>(network: &N, shared: &Shared) {
    let mut declared: HashMap<TopicKey, Vec<(Endpoint, N::Token)>> = HashMap::new();
    while let Some(work) = next(shared) {
        let (key, endpoints) = match work {
            Work::Announce(key, endpoints) => (key, endpoints),
            Work::Ask(scope) => {
                network.ask(scope);
                continue;
            }
        };
        let before = declared.remove(&key).unwrap_or_default();
        let (mut now, old): (Vec<_>, Vec<_>) = before.into_iter().partition(|(known, _)| endpoints.contains(known));
        for endpoint in endpoints {
            if now.iter().any(|(known, _)| *known == endpoint) {
                continue;
            }
            match network.declare(&endpoint) {
                Ok(token) => now.push((endpoint, token)),
                Err(error) => tracing::error!(topic = %key, %error, "a topic could not be announced to other hosts"),
            }
        }
        old.into_iter().for_each(|(_, token)| network.undeclare(token));
        if !now.is_empty() {
            declared.insert(key, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::local::Role;
    use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};

    /// A network in which each declaration reports itself and waits for a permit.
    struct Slow {
        says: Sender<String>,
        goes_on: Mutex<Receiver<()>>,
    }

    impl Slow {
        fn say(&self, text: String) {
            self.says.send(text).unwrap();
            let _ = self.goes_on.lock().unwrap().recv();
        }
    }

    impl Declare for Slow {
        type Token = String;
        type Error = &'static str;

        fn declare(&self, endpoint: &Endpoint) -> Result<String, &'static str> {
            self.say(format!("+{}", endpoint.type_name));
            Ok(endpoint.type_name.clone())
        }

        fn undeclare(&self, token: String) {
            self.say(format!("-{token}"));
        }

        fn ask(&self, _: Scope) {
            self.say("?".to_owned());
        }
    }

    fn slow() -> (Announcer, Receiver<String>, SyncSender<()>) {
        let (says, said) = channel();
        let (go_on, goes_on) = sync_channel(1000);
        let network = Slow { says, goes_on: Mutex::new(goes_on) };
        (Announcer::start(|_| Some(network)).unwrap(), said, go_on)
    }

    fn endpoint(type_name: &str) -> Endpoint {
        let key = TopicKey::new(0, "a").unwrap();
        let (role, type_name) = (Role::Publisher, type_name.to_owned());
        Endpoint { key, role, type_name, offers: Vec::new(), requests: Vec::new() }
    }

    #[test]
    fn the_latest_state_is_announced_before_the_old_is_withdrawn() {
        let (announcer, said, go_on) = slow();
        let key = endpoint("one").key;
        announcer.announce(&key, vec![endpoint("one"), endpoint("stays")]);
        assert_eq!(said.recv().unwrap(), "+one");
        // The thread is in the middle of the first declaration.
        for between in 0..100 {
            announcer.announce(&key, vec![endpoint(&format!("between{between}")), endpoint("stays")]);
        }
        announcer.announce(&key, vec![endpoint("two"), endpoint("stays")]);
        announcer.ask(None);
        (0..1000).for_each(|_| go_on.send(()).unwrap());
        // Dropping it does the rest.
        drop(announcer);
        let rest: Vec<String> = said.iter().filter(|text| text != "?").collect();
        assert_eq!(rest, ["+stays", "+two", "-one"]);
    }

    #[test]
    fn endpoints_that_are_withdrawn_before_their_announcement_are_never_announced() {
        let (announcer, said, go_on) = slow();
        announcer.announce(&TopicKey::new(0, "first").unwrap(), vec![endpoint("first")]);
        assert_eq!(said.recv().unwrap(), "+first");
        announcer.announce(&endpoint("one").key, vec![endpoint("one")]);
        announcer.announce(&endpoint("one").key, Vec::new());
        go_on.send(()).unwrap();
        drop(go_on);
        drop(announcer);
        assert_eq!(said.iter().count(), 0);
    }

    #[test]
    fn what_is_announced_before_there_is_a_network_is_announced_once_there_is() {
        let (says, said) = channel();
        let (go_on, goes_on) = sync_channel(1000);
        let (there_is, waits) = channel::<()>();
        let join = move |_: &StopSignal| waits.recv().ok().map(|()| Slow { says, goes_on: Mutex::new(goes_on) });
        let announcer = Announcer::start(join).unwrap();
        announcer.announce(&endpoint("one").key, vec![endpoint("one")]);
        announcer.announce(&endpoint("one").key, vec![endpoint("two")]);
        (0..1000).for_each(|_| go_on.send(()).unwrap());
        there_is.send(()).unwrap();
        drop(announcer);
        assert_eq!(said.iter().collect::<Vec<_>>(), ["+two"]);
    }

    #[test]
    fn an_announcer_ends_while_it_waits_for_a_network() {
        let announcer = Announcer::start(|stop| {
            while !stop.wait_for(Duration::from_secs(3600)) {}
            None::<Slow>
        });
        drop(announcer.unwrap());
    }
}
