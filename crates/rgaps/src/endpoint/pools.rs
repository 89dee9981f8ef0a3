//! A subscriber's requests to the manager: the pools of messages, and its eventfd.
//!
//! A subscriber maps a pool when it takes the pool's first message, and unmaps it when the publisher's slot is free or has another occupant. At most
//! one request for each is open. A call that may not wait for the answer (`Call::Polling`) is woken by it. If a call gives up waiting, the next call
//! uses the answer.
//!
//! Invariants  MP1 if a message's pool cannot be mapped now, the message is put back, and all waiters are woken after that: by the call that put it
//!             back, or by the manager's answer. MP2 the message is lost only if the pool can never be mapped again.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError, Weak};
use std::task::{Wake, Waker};

use rgaps_control::PublisherSlot;
use rgaps_control::local::Body;
use rgaps_device::{DeviceError, PoolMemory};
use rgaps_os::{EventFd, MapError};
use rgaps_shm::Held;
use rgaps_shm::layout::SlotState;
use rgaps_shm::notify::FutexWait;

use crate::endpoint::answer::Answer;
use crate::endpoint::error::NodeError;
use crate::endpoint::hello::SessionError;
use crate::endpoint::maintained::{Maintained, is_occupied};
use crate::endpoint::members::Endpoint;
use crate::endpoint::open_requests::{Call, RequestState, Subject};
use crate::endpoint::subscriber::SubscriberInner;
use crate::endpoint::take_error::TakeError;
use crate::endpoint::tasks::Tasks;

/// A message's pool and offset.
pub(crate) type Location = (Arc<dyn PoolMemory>, u64);

/// Wakes all waiters of a subscriber: threads, tasks and the eventfd's.
#[derive(Debug)]
struct WakeAll {
    tasks: Arc<Tasks>,
    maintained: Weak<Maintained>,
    waiter: FutexWait,
}

impl Wake for WakeAll {
    fn wake(self: Arc<Self>) {
        if let Some(event) = self.maintained.upgrade().and_then(|maintained| maintained.event.get().cloned()) {
            let _ = event.signal();
        }
        self.waiter.wake_own();
        self.tasks.clone().wake();
    }
}

impl SubscriberInner {
    pub(crate) fn waker_of_all(&self) -> Waker {
        let (tasks, maintained) = (self.tasks.clone(), Arc::downgrade(&self.maintained));
        Waker::from(Arc::new(WakeAll { tasks, maintained, waiter: self.waiter.another() }))
    }

    /// The pool of a held message, with the message's memory mapped, and the message's offset. The offset is read once, since another process may
    /// change it. `None` if a polling call must wait for the manager's answer.
    pub(crate) fn memory_of(&self, held: &Held, call: Call) -> Result<Option<Location>, TakeError> {
        let info = held.info();
        let (offset, bytes, pool) = (held.offset(), info.bytes, held.pool());
        let failed = |source| TakeError::Pool { topic: self.topic.clone(), slot: pool.index, source };
        let outside = |_| TakeError::OutOfBounds { topic: self.topic.clone(), sequence: info.sequence, offset, bytes };
        let Some(memory) = self.pool(pool, call).map_err(failed)? else { return Ok(None) };
        // The first answer may be older than the message, if an earlier call requested it and did not wait.
        let mut answers = 0..2;
        loop {
            let missing = memory.missing(offset, bytes).map_err(outside)?;
            let Some(slab) = missing.first() else { return Ok(Some((memory, offset))) };
            if answers.is_empty() {
                let (name, slab) = ("a pool".to_owned(), *slab as usize);
                return Err(failed(DeviceError::Absent { name, slab, offset, bytes }.into()));
            }
            let refresh = |answer: Answer| {
                let (description, fds) = answer.pool()?;
                Ok(memory.refresh(&description, fds)?)
            };
            match self.poll_request(Subject::Pool(pool), call, || false, refresh).map_err(failed)? {
                RequestState::Taken(()) => drop(answers.next()),
                RequestState::TakenByAnother => {}
                RequestState::Open => return Ok(None),
            }
        }
    }

    fn pool(&self, pool: PublisherSlot, call: Call) -> Result<Option<Arc<dyn PoolMemory>>, NodeError> {
        let pools = || self.maintained.pools.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let known = pools().get(&pool).cloned();
            if known.is_some() {
                return Ok(known);
            }
            let import = |answer: Answer| {
                let (description, fds) = answer.pool()?;
                let memory = self.node.import_pool(&description, fds)?;
                pools().insert(pool, memory.clone());
                Ok(memory)
            };
            match self.poll_request(Subject::Pool(pool), call, || pools().contains_key(&pool), import)? {
                RequestState::Taken(memory) => return Ok(Some(memory)),
                RequestState::TakenByAnother => {}
                RequestState::Open => return Ok(None),
            }
        }
    }

    /// The eventfd, which is readable while a message may be ready. The subscriber makes it, once. It is used only when the manager knows it: from
    /// then on, each publisher signals it, or the manager does so for publishers that left without knowing it.
    pub(crate) fn event(&self, call: Call) -> Result<Option<&Arc<EventFd>>, NodeError> {
        let event = match self.maintained.event.get() {
            Some(event) => event,
            None => {
                let made = Arc::new(EventFd::new()?);
                self.maintained.event.get_or_init(|| made)
            }
        };
        let is_registered = || self.maintained.is_event_registered.load(Ordering::Acquire);
        while !is_registered() {
            let note = |_: Answer| {
                self.maintained.is_event_registered.store(true, Ordering::Release);
                Ok(())
            };
            if let RequestState::Open = self.poll_request(Subject::Event, call, is_registered, note)? {
                return Ok(None);
            }
        }
        Ok(Some(event))
    }

    /// Requests `subject` from the manager, unless a request is open, and passes the answer to `with`. One call uses the answer; other calls find its
    /// result by `is_here`.
    fn poll_request<R>(
        &self,
        subject: Subject,
        call: Call,
        is_here: impl Fn() -> bool,
        with: impl FnOnce(Answer) -> Result<R, NodeError>,
    ) -> Result<RequestState<R>, NodeError> {
        let open_requests = || self.open_requests.0.lock().unwrap_or_else(PoisonError::into_inner);
        let request = {
            let mut open_requests = open_requests();
            if !open_requests.contains_key(&subject) {
                // Under the same lock under which answers are used.
                if is_here() {
                    return Ok(RequestState::TakenByAnother);
                }
                let segment = &self.attachment.segment;
                open_requests.retain(|known, _| !matches!(known, Subject::Pool(pool) if !is_occupied(segment, *pool)));
            }
            let beside = || self.maintained.event.get().filter(|_| subject == Subject::Event).cloned();
            let ask = || self.node.request_async(self.body_of(subject), beside(), self.waker_of_all());
            open_requests.entry(subject).or_insert_with(ask).clone()
        };
        if call == Call::Blocking {
            self.node.wait_for_answer(&request)?;
        } else if request.is_open() {
            return Ok(RequestState::Open);
        }
        let mut open_requests = open_requests();
        let Some(answer) = request.take_answer() else { return Ok(RequestState::TakenByAnother) };
        open_requests.remove(&subject);
        with(answer?).map(RequestState::Taken)
    }

    fn body_of(&self, subject: Subject) -> Body {
        let topic = self.attachment.topic;
        match subject {
            Subject::Event => Body::EventFd { topic, slot: self.attachment.slot },
            Subject::Pool(slot) => Body::Pool { topic, slot },
        }
    }

    /// Puts back a message whose pool has been requested from the manager.
    pub(crate) fn put_back_until_answered(&self, held: Held) {
        let subject = Subject::Pool(held.pool());
        self.reader().put_back(held);
        let open_requests = self.open_requests.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_open = open_requests.get(&subject).is_some_and(|request| request.is_open());
        drop(open_requests);
        if !is_open {
            // The answer came and woke the others while the message was held, so that they found nothing.
            self.wake_all();
        }
    }

    /// Handles a message that could not be opened. It is put back as the next one, or counted as lost if its pool can never be mapped again. A
    /// malformed message is counted, and the first one logged.
    pub(crate) fn not_opened(&self, held: Held, error: TakeError) -> TakeError {
        match &error {
            TakeError::Pool { source, .. } if self.is_lasting(held.pool(), source) => self.reader().lose(held),
            TakeError::Pool { .. } => {
                self.reader().put_back(held);
                // Other takes found nothing meanwhile.
                self.wake_all();
            }
            _ => self.blame(&error),
        }
        error
    }

    /// Whether the next attempt would fail the same way.
    fn is_lasting(&self, pool: PublisherSlot, error: &NodeError) -> bool {
        match error {
            // A living publisher may not have handed its slot back to the manager's successor yet.
            NodeError::Session(SessionError::Refused(_)) => {
                let slot = self.attachment.segment.publisher(pool.index);
                let state = slot.map_or(0, |slot| slot.state.load(Ordering::Acquire));
                state != SlotState::Active.word(pool.generation)
            }
            NodeError::Session(SessionError::Confused) => true,
            NodeError::Session(_) | NodeError::Io(_) => false,
            NodeError::Device(error) => !matches!(
                error,
                DeviceError::Create { .. }
                    | DeviceError::Driver(_)
                    | DeviceError::OutOfMemory { .. }
                    | DeviceError::Pages { .. }
                    | DeviceError::Seal { .. }
                    | DeviceError::Map { source: MapError::Os { .. }, .. }
            ),
            _ => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::process::Command;
    use std::sync::mpsc::{Sender, channel};
    use std::task::{Context, Poll};
    use std::time::Duration;

    use rgaps_testing::{RuntimeDir, Watchdog, manager, programs};

    use super::*;
    use crate::Node;
    use crate::types::Bytes;

    struct Woken(Sender<()>);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            let _ = self.0.send(());
        }
    }

    #[test]
    fn a_message_put_back_after_the_answer_wakes_a_task_that_looked_before() {
        let _watchdog = Watchdog::new(Duration::from_secs(60));
        let dir = RuntimeDir::new("answered").unwrap();
        let mut command = Command::new(programs::find("rgapsd"));
        command.env("RGAPS_DEVICE", "host").env("RGAPS_NETWORK", "local");
        let manager = manager::start(&dir, command).unwrap();
        let node = || Node::builder().runtime_dir(dir.path()).no_autostart().build().unwrap();
        let (publisher, node) = (node().publisher::<Bytes>("a").unwrap(), node());
        let subscriber = node.subscriber::<Bytes>("a").unwrap();
        subscriber.event_fd().unwrap();
        publisher.push(&Bytes::new(1), &[7]).unwrap();
        manager.stop().unwrap();

        // A first task takes the message, and finds that the manager has to answer for its pool.
        let held = subscriber.taker.inner().next_held(false).unwrap().expect("it was published");
        assert!(subscriber.taker.inner().memory_of(&held, Call::Polling).unwrap().is_none());
        let (woken, wakes) = channel();
        let waker = Waker::from(Arc::new(Woken(woken)));
        let (mut second, mut context) = (pin!(subscriber.next()), Context::from_waker(&waker));
        assert!(second.as_mut().poll(&mut context).is_pending(), "the first one has the message");
        manager.go_on().unwrap();
        // The answer wakes the second task, which finds nothing.
        wakes.recv().unwrap();
        assert!(second.as_mut().poll(&mut context).is_pending(), "the first one has it still");

        // The first task puts the message back, and is never polled again.
        subscriber.taker.inner().put_back_until_answered(held);
        loop {
            wakes.recv().unwrap();
            if let Poll::Ready(sample) = second.as_mut().poll(&mut context) {
                return assert_eq!(sample.unwrap().bytes(), [7]);
            }
        }
    }
}
