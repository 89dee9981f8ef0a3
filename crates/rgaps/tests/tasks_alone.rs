//! Tasks that wait for messages while no manager answers: it is gone or stopped, or the thread that reads its answers is busy.

#![allow(clippy::unwrap_used)] // helpers of tests, outside #[test] functions

use std::future::Future;
use std::pin::Pin;
use std::process::Command;
use std::sync::{Arc, Condvar, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use rgaps::types::Bytes;
use rgaps::{Node, Publisher, Sample, Subscriber, TakeError};
use rgaps_testing::{Child, RuntimeDir, Watchdog, manager, programs};

const LONG: Duration = Duration::from_secs(20);

type Next = Pin<Box<dyn Future<Output = Result<Sample<Bytes>, TakeError>> + Send>>;

/// A topic whose publisher and subscriber have different nodes.
struct Topic {
    manager: Child,
    node: Node,
    subscriber: Subscriber<Bytes>,
    publisher: Publisher<Bytes>,
    dir: RuntimeDir,
    _watchdog: Watchdog,
}

fn rgapsd(dir: &RuntimeDir) -> Child {
    let mut command = Command::new(programs::find("rgapsd"));
    command.env("RGAPS_DEVICE", "host").env("RGAPS_NETWORK", "local");
    manager::start(dir, command).unwrap()
}

impl Topic {
    fn new(name: &str) -> Self {
        let _watchdog = Watchdog::new(Duration::from_secs(100));
        let dir = RuntimeDir::new(name).unwrap();
        let manager = rgapsd(&dir);
        let node = || Node::builder().runtime_dir(dir.path()).no_autostart().build().unwrap();
        let (node, publisher) = (node(), node().publisher("a").unwrap());
        let subscriber = node.subscriber("a").unwrap();
        Self { manager, node, subscriber, publisher, dir, _watchdog }
    }

    fn push(&self, byte: u8) {
        self.publisher.push(&Bytes::new(1), &[byte]).unwrap();
    }

    /// Takes a message in a task, so that the pool is mapped and the eventfd exists.
    fn takes_one(&self, byte: u8) {
        let mut task = next(&self.subscriber);
        assert_eq!(poll(&mut task, Waker::noop()), None);
        self.push(byte);
        assert_eq!(finished(&mut task), Ok(byte));
    }
}

fn next(subscriber: &Subscriber<Bytes>) -> Next {
    let subscriber = subscriber.clone();
    Box::pin(async move { subscriber.next().await })
}

/// Counts the wake-ups of a task.
#[derive(Default)]
struct Wakes(Mutex<u32>, Condvar);

impl Wakes {
    fn within(&self, limit: Duration) -> bool {
        let (mut wakes, _) = self.1.wait_timeout_while(self.0.lock().unwrap(), limit, |wakes| *wakes == 0).unwrap();
        std::mem::take(&mut *wakes) > 0
    }
}

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        *self.0.lock().unwrap() += 1;
        self.1.notify_all();
    }
}

fn poll(task: &mut Next, waker: &Waker) -> Option<Result<u8, String>> {
    match task.as_mut().poll(&mut Context::from_waker(waker)) {
        Poll::Ready(taken) => Some(taken.map(|sample| sample.bytes()[0]).map_err(|error| error.to_string())),
        Poll::Pending => None,
    }
}

/// The result of a task that is polled only when it is woken.
fn finished(task: &mut Next) -> Result<u8, String> {
    let wakes = Arc::<Wakes>::default();
    let waker = Waker::from(wakes.clone());
    loop {
        if let Some(end) = poll(task, &waker) {
            return end;
        }
        assert!(wakes.within(LONG), "it is not woken");
    }
}

#[test]
fn tasks_are_woken_by_local_publications_while_there_is_no_manager() {
    let mut topic = Topic::new("away");
    // The second wake-up comes through the eventfd, which the publisher has by then.
    for _ in 0..2 {
        let mut task = next(&topic.subscriber);
        let wakes = Arc::<Wakes>::default();
        let waker = Waker::from(wakes.clone());
        assert_eq!(poll(&mut task, &waker), None);
        topic.push(1);
        assert!(wakes.within(LONG), "it is not woken");
        while poll(&mut task, &waker).is_none() {
            assert!(wakes.within(LONG), "it is not woken again");
        }
    }
    topic.manager.kill().unwrap();
    // This request fails; by then the node looks for a successor.
    topic.node.topics().unwrap_err();
    for byte in 2..5 {
        let mut task = next(&topic.subscriber);
        let wakes = Arc::<Wakes>::default();
        assert_eq!(poll(&mut task, &Waker::from(wakes.clone())), None);
        topic.push(byte);
        assert!(wakes.within(LONG), "message {byte} wakes no task");
        assert_eq!(poll(&mut task, Waker::noop()), Some(Ok(byte)));
    }
}

#[test]
fn a_task_gets_a_ready_message_while_the_manager_is_stopped() {
    let topic = Topic::new("stopped");
    topic.push(1);
    drop(topic.subscriber.wait(LONG).unwrap().unwrap());
    topic.push(2);
    topic.manager.stop().unwrap();
    let taken = poll(&mut next(&topic.subscriber), Waker::noop());
    topic.manager.go_on().unwrap();
    assert_eq!(taken, Some(Ok(2)));
}

#[test]
fn a_task_is_polled_without_waiting_for_a_manager_and_woken_by_its_answer() {
    let topic = Topic::new("answers");
    topic.manager.stop().unwrap();
    topic.push(1);
    // Neither the pool nor the eventfd is mapped. A poll that waited would return an error.
    let mut task = next(&topic.subscriber);
    assert_eq!(poll(&mut task, Waker::noop()), None);
    let mut other = next(&topic.subscriber);
    assert_eq!(poll(&mut other, Waker::noop()), None);
    assert_eq!((topic.subscriber.ready_count(10), topic.subscriber.statistics().taken), (1, 0));
    topic.manager.go_on().unwrap();
    assert_eq!(finished(&mut task), Ok(1));
    topic.push(2);
    assert_eq!(finished(&mut other), Ok(2));
}

#[test]
fn a_task_is_woken_by_the_answer_of_a_managers_successor() {
    let mut topic = Topic::new("successor");
    topic.manager.stop().unwrap();
    topic.push(1);
    let mut task = next(&topic.subscriber);
    assert_eq!(poll(&mut task, Waker::noop()), None);
    topic.manager.kill().unwrap();
    let _next = rgapsd(&topic.dir);
    // The publisher may not have reconnected yet.
    let deadline = Instant::now() + LONG;
    let mut end = finished(&mut task);
    while end.is_err() && Instant::now() < deadline {
        end = finished(&mut next(&topic.subscriber));
    }
    assert_eq!(end, Ok(1));
}

#[test]
fn a_waker_that_panics_does_not_stop_its_node() {
    /// Like a waker of an executor that has been dropped.
    #[derive(Default)]
    struct Panics(Wakes);
    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            *self.0.0.lock().unwrap() += 1;
            self.0.1.notify_all();
            panic!("the executor has gone");
        }
    }
    let topic = Topic::new("panics");
    topic.takes_one(0);
    let panics = Arc::<Panics>::default();
    // At least one of the wakers after it is woken later.
    let mut bad: Vec<Next> = (0..8).map(|_| next(&topic.subscriber)).collect();
    let mut good = next(&topic.subscriber);
    let wakes = Arc::<Wakes>::default();
    for bad in &mut bad {
        assert_eq!(poll(bad, &Waker::from(panics.clone())), None);
    }
    assert_eq!(poll(&mut good, &Waker::from(wakes.clone())), None);
    topic.push(1);
    assert!(panics.0.within(LONG) && wakes.within(LONG));
    assert_eq!(poll(&mut good, Waker::noop()), Some(Ok(1)));
    assert_eq!(topic.node.topics().unwrap().len(), 1, "the node asks its manager as before");
    topic.takes_one(2);
}

/// A waker that runs a function on the thread that wakes.
struct Inline<F: Fn(&mut Next, &Waker) -> Option<Result<u8, String>>> {
    polls: F,
    task: Mutex<Option<Next>>,
    end: Mutex<Option<Result<u8, String>>>,
    has_ended: Condvar,
}

impl<F: Fn(&mut Next, &Waker) -> Option<Result<u8, String>> + Send + Sync + 'static> Inline<F> {
    /// The result of the task that a message wakes.
    fn run(topic: &Topic, polls: F) -> Result<u8, String> {
        let (task, end, has_ended) = (Mutex::default(), Mutex::default(), Condvar::new());
        let inline = Arc::new(Self { polls, task, end, has_ended });
        let mut task = next(&topic.subscriber);
        let mut own = inline.task.lock().unwrap();
        assert_eq!(poll(&mut task, &Waker::from(inline.clone())), None);
        *own = Some(task);
        drop(own);
        topic.push(7);
        inline.has_ended.wait_while(inline.end.lock().unwrap(), |end| end.is_none()).unwrap().take().unwrap()
    }
}

impl<F: Fn(&mut Next, &Waker) -> Option<Result<u8, String>> + Send + Sync + 'static> Wake for Inline<F> {
    fn wake(self: Arc<Self>) {
        let mut own = self.task.lock().unwrap();
        let Some(mut task) = own.take() else { return };
        match (self.polls)(&mut task, &Waker::from(self.clone())) {
            Some(end) => {
                *self.end.lock().unwrap() = Some(end);
                self.has_ended.notify_all();
            }
            None => *own = Some(task),
        }
    }
}

#[test]
fn a_waker_may_poll_its_task_at_once_for_a_publishers_first_message() {
    let topic = Topic::new("inline");
    assert_eq!(Inline::run(&topic, poll), Ok(7));
}

#[test]
fn a_waker_may_ask_the_manager_on_the_thread_that_reads_its_answers() {
    let topic = Topic::new("asks");
    let (subscriber, node) = (topic.subscriber.clone(), topic.node.clone());
    let takes = move |task: &mut Next, waker: &Waker| {
        let sample = match subscriber.take() {
            Ok(Some(sample)) => sample,
            // The manager's answer wakes the task too if it arrives before the message; the task then waits again.
            Ok(None) => return poll(task, waker),
            Err(error) => return Some(Err(error.to_string())),
        };
        let topics = node.topics().map_err(|error| error.to_string());
        Some(topics.map(|topics| sample.bytes()[0] + topics.len() as u8 - 1))
    };
    assert_eq!(Inline::run(&topic, takes), Ok(7));
}
