//! A program may lower its limit of file descriptors (RLIMIT_NOFILE) below the number that it has open, as sandboxes do: what it has stays usable. poll(2)
//! then refuses more file descriptors than the limit.

#![allow(clippy::unwrap_used)] // helpers of tests, outside #[test] functions

use std::future::Future;
use std::io::Write;
use std::pin::Pin;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use rgaps::types::Bytes;
use rgaps::{Node, Publisher, Sample, Subscriber, TakeError};
use rgaps_testing::{Child, RuntimeDir, Watchdog, again_with, manager, programs, until};
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit, setrlimit};

const LONG: Duration = Duration::from_secs(20);
const MANY: usize = 60;

fn rgapsd(dir: &RuntimeDir) -> Child {
    let mut command = Command::new(programs::find("rgapsd"));
    command.env("RGAPS_DEVICE", "host").env("RGAPS_NETWORK", "local");
    manager::start(dir, command).unwrap()
}

fn node(dir: &RuntimeDir) -> Node {
    Node::builder().runtime_dir(dir.path()).no_autostart().build().unwrap()
}

fn limit(fds: u64) -> Rlimit {
    Rlimit { current: Some(fds), maximum: getrlimit(Resource::Nofile).maximum }
}

fn push(publisher: &Publisher<Bytes>, byte: u8) {
    publisher.push(&Bytes::new(1), &[byte]).unwrap();
}

#[test]
#[ignore = "the publisher's program, started by a test of this file"]
fn role_of_a_publisher() {
    if std::env::var("RGAPS_TEST_LOWERED_LIMITS").is_err() {
        return;
    }
    let _watchdog = Watchdog::new(Duration::from_secs(100));
    let publisher = Node::builder().no_autostart().build().unwrap().publisher::<Bytes>("a").unwrap();
    println!("ready");
    for (number, _) in std::io::stdin().lines().enumerate() {
        push(&publisher, number as u8);
    }
}

#[test]
fn a_publisher_that_may_open_no_fd_wakes_its_subscribers() {
    let _watchdog = Watchdog::new(Duration::from_secs(60));
    let dir = RuntimeDir::new("limit-publisher").unwrap();
    let _manager = rgapsd(&dir);
    let node = node(&dir);
    let subscriber = node.subscriber::<Bytes>("a").unwrap();
    let event = subscriber.event_fd().unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "role_of_a_publisher", "--ignored", "--nocapture"]);
    command.env("RGAPS_TEST_LOWERED_LIMITS", "1").stdin(Stdio::piped()).stdout(Stdio::piped());
    dir.apply(&mut command);
    let mut child = Child::spawn(&mut command).unwrap();
    child.output_after("ready").unwrap();
    for byte in 0..2 {
        writeln!(child.std().stdin.as_mut().unwrap()).unwrap();
        let sample = loop {
            assert!(rgaps_os::poll::readable(event, LONG).unwrap(), "message {byte} wakes nobody");
            // It may be readable for what happened before.
            if let Some(sample) = subscriber.take().unwrap() {
                break sample;
            }
        };
        assert_eq!(sample.bytes(), [byte]);
        prlimit(Pid::from_raw(child.id() as i32), Resource::Nofile, limit(0)).unwrap();
    }
}

struct Woken(Sender<usize>, usize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        let _ = self.0.send(self.1);
    }
}

type Next<'a> = Pin<Box<dyn Future<Output = Result<Sample<Bytes>, TakeError>> + 'a>>;

#[test]
fn tasks_are_woken_though_their_program_has_lowered_its_limit_of_fds() {
    // In a process of its own: limits are the process's.
    if !again_with(&[], |_| Ok(())) {
        return;
    }
    let _watchdog = Watchdog::new(Duration::from_secs(100));
    let dir = RuntimeDir::new("limit-tasks").unwrap();
    let _manager = rgapsd(&dir);
    let (publishing, subscribing) = (node(&dir), node(&dir));
    let publisher = publishing.publisher::<Bytes>("a").unwrap();
    let subscribers: Vec<Subscriber<Bytes>> = (0..MANY).map(|_| subscribing.subscriber("a").unwrap()).collect();
    // Each maps the pool, and has its eventfd.
    push(&publisher, 0);
    for subscriber in &subscribers {
        subscriber.event_fd().unwrap();
        assert!(subscriber.wait(LONG).unwrap().is_some());
    }
    for fds in [1024, 32, 0] {
        setrlimit(Resource::Nofile, limit(fds)).unwrap();
        // The first wait may have begun with the former limit.
        for byte in 1..4 {
            let (woken, wakes) = channel();
            let mut tasks: Vec<Next<'_>> =
                subscribers.iter().map(|subscriber| Box::pin(subscriber.next()) as _).collect();
            let poll = |tasks: &mut [Next<'_>], number: usize| {
                let waker = Waker::from(Arc::new(Woken(woken.clone(), number)));
                tasks[number].as_mut().poll(&mut Context::from_waker(&waker))
            };
            (0..MANY).for_each(|number| assert!(poll(&mut tasks, number).is_pending()));
            push(&publisher, byte);
            let mut taken = 0;
            while taken < MANY {
                let number = wakes.recv_timeout(LONG);
                let number = number.unwrap_or_else(|_| panic!("{taken} of {MANY} are woken, limit {fds}"));
                if let Poll::Ready(sample) = poll(&mut tasks, number) {
                    assert_eq!(sample.unwrap().bytes(), [byte]);
                    taken += 1;
                }
            }
        }
    }
}

#[test]
fn a_manager_that_may_have_fewer_fds_than_it_has_open_answers_and_notices_deaths() {
    let _watchdog = Watchdog::new(Duration::from_secs(100));
    let dir = RuntimeDir::new("manager-limit").unwrap();
    let manager = rgapsd(&dir);
    let (staying, leaving) = (node(&dir), node(&dir));
    let _subscriber = staying.subscriber::<Bytes>("a").unwrap();
    let subscriber = leaving.subscriber::<Bytes>("a").unwrap();
    prlimit(Pid::from_raw(manager.id() as i32), Resource::Nofile, limit(4)).unwrap();
    // The manager's present sleep began with the former limit.
    (0..3).for_each(|_| assert_eq!(staying.topics().unwrap()[0].subscribers, 2));
    drop((subscriber, leaving));
    until("the subscriber has left", || staying.topics().unwrap()[0].subscribers == 1);
}
