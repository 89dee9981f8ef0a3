//! Tasks that wait on one subscriber: each is woken, even if others are cancelled.

#![allow(clippy::unwrap_used)] // helpers of tests, outside #[test] functions

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Barrier, Condvar, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use rgaps::types::Bytes;
use rgaps::{History, Node, Publisher, Sample, Subscriber, SubscriberQos, TakeError};
use rgaps_testing::{RuntimeDir, Watchdog, again_with, programs};

const LONG: Duration = Duration::from_secs(60);

/// Runs the test again in a new process, whose nodes start their managers.
fn again() -> bool {
    let rgapsd = programs::find("rgapsd");
    again_with(
        &[("RGAPSD", rgapsd.to_str().unwrap()), ("RGAPS_NETWORK", "local"), ("RGAPS_DEVICE", "host")],
        |_| Ok(()),
    )
}

/// A topic with a keep-all subscriber.
struct Topic {
    publisher: Publisher<Bytes>,
    subscriber: Subscriber<Bytes>,
    node: Node,
    _dir: RuntimeDir,
}

impl Topic {
    fn new(name: &str) -> Self {
        let dir = RuntimeDir::new(name).unwrap();
        let node = Node::builder().runtime_dir(dir.path()).build().unwrap();
        let publisher = node.publisher::<Bytes>("a").unwrap();
        let keep_all = SubscriberQos { history: History::KeepAll, ..SubscriberQos::default() };
        let subscriber = node.subscriber_with::<Bytes>("a", keep_all).unwrap();
        Self { publisher, subscriber, node, _dir: dir }
    }

    fn publish(&self, byte: u8) {
        self.publisher.push(&Bytes::new(1), &[byte]).unwrap();
    }
}

/// Counts the wake-ups of a task.
#[derive(Default)]
struct Wakes(Mutex<u32>, Condvar);

impl Wakes {
    /// Waits for the next wake-up; the watchdog ends an endless wait.
    fn wait(&self) {
        let mut wakes = self.1.wait_while(self.0.lock().unwrap(), |wakes| *wakes == 0).unwrap();
        *wakes -= 1;
    }
}

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        *self.0.lock().unwrap() += 1;
        self.1.notify_all();
    }
}

type Next<'a> = Pin<Box<dyn Future<Output = Result<Sample<Bytes>, TakeError>> + 'a>>;

/// A task that waits on the subscriber.
struct Task<'a> {
    next: Next<'a>,
    wakes: Arc<Wakes>,
}

impl<'a> Task<'a> {
    fn waiting(subscriber: &'a Subscriber<Bytes>) -> Self {
        let mut task = Self { next: Box::pin(subscriber.next()), wakes: Arc::default() };
        assert_eq!(task.poll(), None, "nothing has been published");
        task
    }

    fn poll(&mut self) -> Option<u8> {
        let waker = Waker::from(self.wakes.clone());
        match self.next.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(sample) => Some(sample.unwrap().bytes()[0]),
            Poll::Pending => None,
        }
    }

    /// The message that it takes after enough wake-ups.
    fn finish(mut self) -> u8 {
        loop {
            self.wakes.wait();
            if let Some(byte) = self.poll() {
                return byte;
            }
        }
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Waits for the next message, and cancels and restarts the wait `cancels` times.
fn next(subscriber: &Subscriber<Bytes>, mut cancels: u32) -> u8 {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    loop {
        let mut next = pin!(subscriber.next());
        loop {
            if let Poll::Ready(sample) = next.as_mut().poll(&mut Context::from_waker(&waker)) {
                return sample.unwrap().bytes()[0];
            }
            thread::park();
            if cancels > 0 {
                cancels -= 1;
                break;
            }
        }
    }
}

#[test]
fn each_task_that_waits_on_one_subscriber_is_woken() {
    if !again() {
        return;
    }
    let _watchdog = Watchdog::new(LONG);
    let topic = Topic::new("each");
    let tasks: Vec<Task<'_>> = (0..5).map(|_| Task::waiting(&topic.subscriber)).collect();
    (1..=5).for_each(|byte| topic.publish(byte));
    let mut taken: Vec<u8> = tasks.into_iter().map(Task::finish).collect();
    taken.sort_unstable();
    assert_eq!(taken, [1, 2, 3, 4, 5]);
}

#[test]
fn a_task_that_is_woken_and_dropped_leaves_its_message_to_another() {
    if !again() {
        return;
    }
    let _watchdog = Watchdog::new(LONG);
    let topic = Topic::new("dropped");
    for dropped in 0..3 {
        let mut tasks: Vec<Task<'_>> = (0..3).map(|_| Task::waiting(&topic.subscriber)).collect();
        topic.publish(7);
        let woken = tasks.remove(dropped);
        woken.wakes.wait();
        drop(woken);
        // Nor does a task that is dropped before it is woken lose another's wake-up.
        drop(tasks.pop());
        assert_eq!(tasks.remove(0).finish(), 7);
    }
}

#[test]
fn a_task_that_is_cancelled_leaves_nothing_behind() {
    if !again() {
        return;
    }
    let _watchdog = Watchdog::new(LONG);
    let topic = Topic::new("nothing");
    let fds = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    // Once a publication has woken a task, the eventfd exists and the publisher knows the subscriber.
    let first = Task::waiting(&topic.subscriber);
    topic.publish(1);
    assert_eq!(first.finish(), 1);
    let before = fds();
    for _ in 0..1000 {
        let task = Task::waiting(&topic.subscriber);
        let wakes = task.wakes.clone();
        drop(task);
        assert_eq!(Arc::strong_count(&wakes), 1, "the waker of a cancelled task is released");
    }
    // The publisher may have received the eventfd only now; leaks of a thousand tasks would be more. File descriptors that other tests of this
    // process have open meanwhile are closed again.
    while fds() > before + 1 {
        rgaps_testing::pause();
    }
    let before = fds();
    let Topic { publisher, subscriber, node, _dir: dir } = topic;
    drop(subscriber);
    // The node's thread does not watch the eventfd of a subscriber that is gone.
    while fds() >= before {
        rgaps_testing::pause();
    }
    drop((publisher, node, dir));
}

#[test]
fn tasks_that_take_one_message_each_leave_none_behind() {
    if !again() {
        return;
    }
    let _watchdog = Watchdog::new(LONG);
    let topic = Topic::new("one");
    const TASKS: u8 = 4;
    const ROUNDS: u32 = 1000;
    let (start, end) = (Barrier::new(usize::from(TASKS) + 1), Barrier::new(usize::from(TASKS) + 1));
    let sum = AtomicU32::new(0);
    thread::scope(|scope| {
        for task in 0..TASKS {
            let (subscriber, start, end, sum) = (&topic.subscriber, &start, &end, &sum);
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    start.wait();
                    // A task does not take again after its message, so remaining messages must wake other tasks.
                    let byte = next(subscriber, (round + u32::from(task)) % 3);
                    sum.fetch_add(u32::from(byte), Ordering::Relaxed);
                    end.wait();
                }
            });
        }
        for _ in 0..ROUNDS {
            start.wait();
            (1..=TASKS).for_each(|byte| topic.publish(byte));
            end.wait();
        }
    });
    assert_eq!(sum.load(Ordering::Relaxed), ROUNDS * (1..=u32::from(TASKS)).sum::<u32>());
}

#[test]
fn more_messages_than_tasks_are_all_taken_though_tasks_are_cancelled() {
    if !again() {
        return;
    }
    let _watchdog = Watchdog::new(LONG);
    let topic = Topic::new("more");
    const TASKS: u32 = 4;
    const MESSAGES: u32 = 5000;
    let taken = AtomicU32::new(0);
    thread::scope(|scope| {
        for _ in 0..TASKS {
            let (subscriber, taken) = (&topic.subscriber, &taken);
            scope.spawn(move || {
                for round in 0.. {
                    match next(subscriber, round % 3) {
                        0 => return,
                        _ => taken.fetch_add(1, Ordering::Relaxed),
                    };
                }
            });
        }
        (0..MESSAGES).for_each(|_| topic.publish(1));
        (0..TASKS).for_each(|_| topic.publish(0));
    });
    assert_eq!(taken.load(Ordering::Relaxed), MESSAGES);
}

#[test]
fn concurrent_requests_get_the_one_eventfd_that_publishers_signal() {
    if !again() {
        return;
    }
    let _watchdog = Watchdog::new(LONG);
    let topic = Topic::new("asked");
    const THREADS: usize = 4;
    // The answer arrives while all threads look for it.
    const POLLS: usize = 300;
    for round in 0..1000 {
        let subscriber = topic.node.subscriber::<Bytes>("a").unwrap();
        let start = Barrier::new(THREADS);
        thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    start.wait();
                    let mut task = Task::waiting(&subscriber);
                    (0..POLLS).for_each(|_| assert_eq!(task.poll(), None));
                });
            }
        });
        topic.publish(1);
        let rung = rgaps_os::poll::readable(subscriber.event_fd().unwrap(), Duration::from_secs(10)).unwrap();
        assert!(rung, "round {round}: publishers ring another one");
        assert!(topic.subscriber.take().unwrap().is_some());
    }
}
