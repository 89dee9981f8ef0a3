//! Waiters at an eventfd, and tasks, are woken for every message that they can take, whatever happened to file descriptors and managers before.

#![allow(clippy::unwrap_used)] // helpers of tests, outside #[test] functions

use std::collections::BTreeSet;
use std::fs::File;
use std::future::Future;
use std::io::{BufRead, Write};
use std::os::fd::BorrowedFd;
use std::pin::Pin;
use std::process::{Command, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use rgaps::types::Bytes;
use rgaps::{History, Node, Publisher, Sample, Subscriber, SubscriberQos, TakeError};
use rgaps_testing::{Child, RuntimeDir, Watchdog, manager, programs, until};
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit, setrlimit};

const TOPIC: &str = "waking";
const LONG: Duration = Duration::from_secs(20);

type Next = Pin<Box<dyn Future<Output = Result<Sample<Bytes>, TakeError>> + Send>>;

fn rgapsd(dir: &RuntimeDir) -> Child {
    let mut command = Command::new(programs::find("rgapsd"));
    command.env("RGAPS_DEVICE", "host").env("RGAPS_NETWORK", "local");
    manager::start(dir, command).unwrap()
}

/// The manager of a host whose only peer is at another port of this machine.
fn networked(dir: &RuntimeDir, own: u16, peer: u16) -> Child {
    let mut command = Command::new(programs::find("rgapsd"));
    command.env("RGAPS_DEVICE", "host").env("RGAPS_MULTICAST", "off");
    command.env("RGAPS_LISTEN", format!("tcp/127.0.0.1:{own}")).env("RGAPS_PEERS", format!("tcp/127.0.0.1:{peer}"));
    manager::start(dir, command).unwrap()
}

fn node(dir: &RuntimeDir) -> Node {
    Node::builder().runtime_dir(dir.path()).no_autostart().build().unwrap()
}

fn push(publisher: &Publisher<Bytes>, byte: u8) {
    publisher.push(&Bytes::new(1), &[byte]).unwrap();
}

fn take(subscriber: &Subscriber<Bytes>) -> Option<u8> {
    subscriber.take().unwrap().map(|sample| sample.bytes()[0])
}

/// Takes at the eventfd until this message comes.
fn take_at(event: BorrowedFd<'_>, subscriber: &Subscriber<Bytes>, byte: u8) {
    loop {
        assert!(rgaps_os::poll::readable(event, LONG).unwrap(), "the eventfd is not readable for message {byte}");
        while let Some(taken) = take(subscriber) {
            if taken == byte {
                return;
            }
        }
    }
}

/// The publishers of a node have been told of all subscribers once its thread has read later answers.
fn has_heard(node: &Node) {
    (0..50).for_each(|_| drop(node.topics().unwrap()));
}

/// A task that takes one message, and how often it was woken.
struct Task {
    next: Next,
    wakes: Arc<Wakes>,
}

#[derive(Default)]
struct Wakes(Mutex<u32>, Condvar);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        *self.0.lock().unwrap() += 1;
        self.1.notify_all();
    }
}

impl Task {
    fn new(subscriber: &Subscriber<Bytes>) -> Self {
        let subscriber = subscriber.clone();
        Self { next: Box::pin(async move { subscriber.next().await }), wakes: Arc::default() }
    }

    fn poll(&mut self) -> Option<u8> {
        match self.next.as_mut().poll(&mut Context::from_waker(&Waker::from(self.wakes.clone()))) {
            Poll::Ready(taken) => Some(taken.unwrap().bytes()[0]),
            Poll::Pending => None,
        }
    }

    fn is_woken(&self) -> bool {
        let count = self.wakes.0.lock().unwrap();
        let (mut count, _) = self.wakes.1.wait_timeout_while(count, LONG, |count| *count == 0).unwrap();
        std::mem::take(&mut *count) > 0
    }

    /// Polls the task for the wake-ups that it has had, none of which is for a message.
    fn settle(&mut self) {
        while std::mem::take(&mut *self.wakes.0.lock().unwrap()) > 0 {
            assert_eq!(self.poll(), None);
        }
    }

    /// Polls the task whenever it is woken, until it has a message.
    fn finish(&mut self) -> u8 {
        loop {
            assert!(self.is_woken(), "it is not woken");
            if let Some(taken) = self.poll() {
                return taken;
            }
        }
    }
}

#[test]
fn an_eventfd_made_after_its_publisher_left_is_readable() {
    let _watchdog = Watchdog::new(Duration::from_secs(60));
    let dir = RuntimeDir::new("waking-late").unwrap();
    let _manager = rgapsd(&dir);
    let (publishing, subscribing) = (node(&dir), node(&dir));
    for byte in 0..20 {
        let subscriber = subscribing.subscriber::<Bytes>(TOPIC).unwrap();
        let publisher = publishing.publisher::<Bytes>(TOPIC).unwrap();
        push(&publisher, byte);
        drop(publisher);
        until("the publisher has left", || publishing.topics().unwrap()[0].publishers == 0);
        take_at(subscriber.event_fd().unwrap(), &subscriber, byte);
    }
}

#[test]
#[ignore = "the programs of other processes, started by the tests below"]
fn role_of_another_process() {
    let Ok(role) = std::env::var("RGAPS_TEST_WAKING") else { return };
    let _watchdog = Watchdog::new(Duration::from_secs(60));
    let node = Node::builder().no_autostart().build().unwrap();
    match role.as_str() {
        "publisher" => publish_on_demand(&node),
        _ => lack_fds(&node),
    }
}

fn publish_on_demand(node: &Node) {
    let publisher = node.publisher::<Bytes>(TOPIC).unwrap();
    println!("ready");
    for (byte, line) in std::io::stdin().lines().enumerate() {
        line.unwrap();
        push(&publisher, byte as u8);
        println!("pushed");
    }
}

fn lack_fds(node: &Node) {
    let subscriber = node.subscriber::<Bytes>(TOPIC).unwrap();
    let before = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(200), maximum: before.maximum }).unwrap();
    let taken: Vec<File> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
    subscriber.event_fd().map(drop).unwrap_err();
    drop(taken);
    println!("ready");
    std::io::stdin().lock().lines().next();
    let event = subscriber.event_fd().unwrap();
    println!("waits");
    take_at(event, &subscriber, 7);
    println!("taken");
}

fn start(role: &str, dir: &RuntimeDir) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "role_of_another_process", "--ignored", "--nocapture"]);
    command.env("RGAPS_TEST_WAKING", role).env("RGAPS_RUNTIME_DIR", dir.path());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
    let mut child = Child::spawn(&mut command).unwrap();
    child.output_after("ready").unwrap();
    child
}

fn go_on(child: &mut Child) {
    child.std().stdin.as_mut().unwrap().write_all(b"go\n").unwrap();
}

#[test]
fn an_eventfd_requested_again_after_a_lack_of_file_descriptors_is_signalled() {
    let _watchdog = Watchdog::new(Duration::from_secs(90));
    let dir = RuntimeDir::new("waking-lack").unwrap();
    let _manager = rgapsd(&dir);
    let node = node(&dir);
    let publisher = node.publisher::<Bytes>(TOPIC).unwrap();
    let mut child = start("subscriber", &dir);
    has_heard(&node);
    go_on(&mut child);
    child.output_after("waits").unwrap();
    has_heard(&node);
    push(&publisher, 7);
    child.output_after("taken").expect("it is woken");
}

#[test]
fn an_eventfd_that_publishers_could_not_learn_is_signalled_without_a_manager() {
    let _watchdog = Watchdog::new(Duration::from_secs(60));
    let dir = RuntimeDir::new("waking-away").unwrap();
    let manager = rgapsd(&dir);
    let node = node(&dir);
    let subscriber = node.subscriber::<Bytes>(TOPIC).unwrap();
    let mut child = start("publisher", &dir);
    // The pool is mapped.
    go_on(&mut child);
    assert!(subscriber.wait(LONG).unwrap().is_some());
    child.stop().unwrap();
    let event = subscriber.event_fd().unwrap();
    drop(manager);
    child.go_on().unwrap();
    go_on(&mut child);
    take_at(event, &subscriber, 1);
}

#[test]
fn a_task_that_is_polled_only_after_its_managers_death_is_woken() {
    let _watchdog = Watchdog::new(Duration::from_secs(60));
    let dir = RuntimeDir::new("waking-task").unwrap();
    let first = rgapsd(&dir);
    let (publishing, subscribing) = (node(&dir), node(&dir));
    let publisher = publishing.publisher::<Bytes>(TOPIC).unwrap();
    let subscriber = subscribing.subscriber::<Bytes>(TOPIC).unwrap();
    // The pool is mapped, so that nothing else is requested.
    push(&publisher, 0);
    assert!(subscriber.wait(LONG).unwrap().is_some());
    let mut task = Task::new(&subscriber);
    assert_eq!(task.poll(), None);
    assert!(task.is_woken(), "the manager's answer wakes it");
    has_heard(&publishing);
    drop(first);
    let _second = rgapsd(&dir);
    until("both are back", || {
        let topics = publishing.topics().unwrap_or_default();
        topics.first().is_some_and(|topic| (topic.publishers, topic.subscribers) == (1, 1))
    });
    assert_eq!(task.poll(), None);
    has_heard(&subscribing);
    has_heard(&publishing);
    // A wake-up by the manager's answer must not pass for one by the message.
    task.settle();
    push(&publisher, 7);
    assert_eq!(task.finish(), 7);
}

#[test]
fn a_task_is_woken_for_messages_after_one_whose_pool_the_manager_owes() {
    let _watchdog = Watchdog::new(Duration::from_secs(60));
    let dir = RuntimeDir::new("waking-depth").unwrap();
    let manager = rgapsd(&dir);
    let (publishing, subscribing) = (node(&dir), node(&dir));
    let (one, two) = (publishing.publisher::<Bytes>(TOPIC).unwrap(), publishing.publisher::<Bytes>(TOPIC).unwrap());
    let qos = SubscriberQos { history: History::KeepLast(2), ..SubscriberQos::default() };
    let subscriber = subscribing.subscriber_with::<Bytes>(TOPIC, qos).unwrap();
    let mut task = Task::new(&subscriber);
    assert_eq!(task.poll(), None);
    // Its pool is mapped, and both publishers know the eventfd.
    push(&two, 0);
    assert_eq!(task.finish(), 0);
    has_heard(&publishing);
    manager.stop().unwrap();
    let mut task = Task::new(&subscriber);
    assert_eq!(task.poll(), None);
    push(&one, 1);
    // The pool of its publisher is not mapped.
    assert!(task.is_woken() && task.poll().is_none());
    (2..6).for_each(|byte| push(&two, byte));
    let taken = task.finish();
    manager.go_on().unwrap();
    assert_eq!(taken, 4, "the depth is 2");
}

#[test]
fn an_arrival_signals_an_eventfd_that_came_while_the_manager_lacked_fds() {
    let _watchdog = Watchdog::new(Duration::from_secs(120));
    let (here, there) = (RuntimeDir::new("waking-here").unwrap(), RuntimeDir::new("waking-there").unwrap());
    let free_port = || std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let (one, two) = (free_port(), free_port());
    let receiving = networked(&here, one, two);
    let _sending = networked(&there, two, one);
    let (own, other) = (node(&here), node(&there));
    let publisher = other.publisher::<Bytes>(TOPIC).unwrap();
    for free in 0..6 {
        let subscriber = own.subscriber::<Bytes>(TOPIC).unwrap();
        until("the hosts have found each other", || {
            push(&publisher, 0);
            subscriber.wait(Duration::from_millis(100)).unwrap().is_some()
        });
        let before = leave_few(receiving.id(), free);
        let _ = subscriber.event_fd();
        prlimit(Pid::from_raw(receiving.id() as i32), Resource::Nofile, before).unwrap();
        let event = subscriber.event_fd().unwrap();
        while take(&subscriber).is_some() {}
        push(&publisher, 7);
        take_at(event, &subscriber, 7);
    }
}

/// Leaves a process `free` file descriptors, and returns its former limit.
fn leave_few(pid: u32, free: usize) -> Rlimit {
    let fds = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let open: BTreeSet<u64> = fds.map(|fd| fd.unwrap().file_name().to_str().unwrap().parse().unwrap()).collect();
    let limit = (0..).filter(|number| !open.contains(number)).nth(free).unwrap();
    let maximum = getrlimit(Resource::Nofile).maximum;
    prlimit(Pid::from_raw(pid as i32), Resource::Nofile, Rlimit { current: Some(limit), maximum }).unwrap()
}
