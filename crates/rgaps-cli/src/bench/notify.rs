//! `bench notify`: how long after a wake-up the median and the last of N processes run, for each body, against a bare futex broadcast.
//!
//! Every body has N waiting processes of its own. A round writes its number into a shared page, wakes, and waits until all N have
//! written when they woke. Bodies and the bare futex take turns, round by round.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rgaps_os::{Access, EventFd, Mapping, clock, futex, memfd};
use rgaps_shm::notify::{Bells, EventWait, FutexWait, Wait, Wake};
use rgaps_shm::{Geometry, Janitor, Segment, SubscriberSpec};

use super::measure::{Pairs, median};
use super::{BenchError, Bound, Effort, Row};

const BENCH: &str = "notify";
const PAGE_BYTES: u64 = 4096;
/// The round that tells waiters to leave.
const LEAVE: u64 = u64::MAX;
/// A waiter or a round that takes longer than this has gone wrong.
const PATIENCE: Duration = Duration::from_secs(10);

// Offsets in the shared page: the round, the bare futex word, and per waiter the round it has seen and when it woke.
const ROUND: u64 = 0;
const WORD: u64 = 8;
const SEEN: u64 = 64;
const WOKE: u64 = SEEN + 64 * 8;

/// What wakes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Body {
    /// A futex word and nothing else: the physical limit.
    Bare,
    /// The segment's futex word, as blocking subscribers use it.
    Futex,
    /// An event descriptor each, as epoll waiters use it.
    Eventfd,
    /// iceoryx2's event service.
    #[cfg(feature = "iceoryx2")]
    Iceoryx2,
}

/// What a waiting process is told on its command line.
#[derive(Clone, Debug, clap::Args)]
pub struct WaiterArgs {
    /// Path of the shared page.
    #[arg(long)]
    page: String,
    /// Path of the segment.
    #[arg(long)]
    segment: String,
    /// Which waiter this is.
    #[arg(long)]
    slot: u8,
    /// The body to wait with.
    #[arg(long)]
    body: Body,
    /// Name of the iceoryx2 service.
    #[arg(long)]
    service: String,
}

/// N = 1 and 8, each body as ours / bare futex, for the median waiter.
pub fn run(effort: Effort) -> Result<Vec<Row>, BenchError> {
    let mut rows = Vec::new();
    for waiters in [1, 8] {
        let mut bare = Crowd::new(Body::Bare, waiters)?;
        for body in bodies() {
            let mut crowd = Crowd::new(body, waiters)?;
            let pairs = Pairs::run(effort.rounds(400), || crowd.round(), || bare.round())?;
            let medians = pairs.medians();
            rows.push(Row {
                bench: BENCH,
                case: format!("{} N={waiters}", name(body)),
                reference: "bare futex broadcast".to_owned(),
                unit: "us to the median waiter",
                ours: medians.ours,
                theirs: medians.theirs,
                ratio: medians.ratio,
                bound: (body == Body::Futex).then_some(Bound::AtMost(1.3)),
            });
        }
    }
    Ok(rows)
}

fn bodies() -> Vec<Body> {
    vec![
        Body::Futex,
        Body::Eventfd,
        #[cfg(feature = "iceoryx2")]
        Body::Iceoryx2,
    ]
}

fn name(body: Body) -> &'static str {
    match body {
        Body::Bare => "bare",
        Body::Futex => "futex",
        Body::Eventfd => "eventfd",
        #[cfg(feature = "iceoryx2")]
        Body::Iceoryx2 => "iceoryx2",
    }
}

/// N waiting processes and what wakes them.
struct Crowd {
    page: Mapping,
    wake: Box<dyn Wake>,
    children: Vec<Child>,
    round: u64,
}

impl Crowd {
    fn new(body: Body, waiters: u8) -> Result<Self, BenchError> {
        let fd = memfd::create("rgaps-bench", PAGE_BYTES).map_err(system("a shared page"))?;
        let page = Mapping::map(&fd, PAGE_BYTES, Access::ReadWrite).map_err(|e| BenchError::failed(BENCH, e))?;
        let segment = Segment::create([0; 16], Geometry::new(16)).map_err(|e| BenchError::failed(BENCH, e))?;
        let segment = Arc::new(segment);
        let janitor = Janitor::new(segment.clone());
        let service = format!("rgaps/bench/{}", std::process::id());
        let mut bells = Bells::new(segment.clone());
        let mut children = Vec::new();
        for slot in 0..waiters {
            let seat =
                janitor.admit_subscriber(&SubscriberSpec::default()).map_err(|e| BenchError::failed(BENCH, e))?;
            let event = EventFd::new().map_err(system("an eventfd"))?;
            let args =
                WaiterArgs { page: path(&fd), segment: path(&segment.as_ref()), slot, body, service: service.clone() };
            // An event descriptor has no path: it travels as the child's standard input.
            let stdin = event.try_clone().map_err(system("an eventfd"))?;
            let child = args.command().stdin(OwnedFd::from(stdin)).spawn();
            children.push(child.map_err(system("a waiting process"))?);
            if body == Body::Eventfd {
                janitor.mark_descriptor(seat.slot, true);
                bells.add(seat.slot, seat.tenancy(), event);
            }
        }
        for slot in 0..waiters {
            wait_until_ready(&page, slot)?;
        }
        let wake: Box<dyn Wake> = match body {
            Body::Bare => Box::new(BareWake(page_clone(&fd)?)),
            Body::Futex | Body::Eventfd => Box::new(bells),
            #[cfg(feature = "iceoryx2")]
            Body::Iceoryx2 => Box::new(
                rgaps_shm::notify::iceoryx::IceoryxWake::new(&service).map_err(system("an iceoryx2 notifier"))?,
            ),
        };
        Ok(Self { page, wake, children, round: 0 })
    }

    /// One wake-up; µs from just before it to the median waiter running.
    fn round(&mut self) -> Result<f64, BenchError> {
        self.round += 1;
        // Let every waiter fall asleep again: on an idle core a waiter sleeps within microseconds, so this only paces the rounds.
        std::thread::sleep(Duration::from_micros(300));
        let start = clock::monotonic_ns();
        word(&self.page, ROUND).store(self.round, Ordering::SeqCst);
        self.wake.wake().map_err(system("a wake-up"))?;
        let deadline = Instant::now() + PATIENCE;
        let mut latencies = Vec::with_capacity(self.children.len());
        for slot in 0..self.children.len() as u64 {
            while word(&self.page, SEEN + slot * 8).load(Ordering::Acquire) != self.round {
                if Instant::now() > deadline {
                    return Err(BenchError::failed(BENCH, "a waiter did not wake within 10 s"));
                }
                std::thread::sleep(Duration::from_micros(20));
            }
            let woke = word(&self.page, WOKE + slot * 8).load(Ordering::Acquire);
            latencies.push(woke.saturating_sub(start) as f64 / 1e3);
        }
        Ok(median(latencies))
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        word(&self.page, ROUND).store(LEAVE, Ordering::SeqCst);
        let _ = self.wake.wake();
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

struct BareWake(Mapping);

impl Wake for BareWake {
    fn wake(&mut self) -> std::io::Result<()> {
        let word = bare_word(&self.0);
        word.fetch_add(1, Ordering::SeqCst);
        futex::wake_all(word);
        Ok(())
    }
}

struct BareWait {
    page: Mapping,
    seen: u32,
}

impl Wait for BareWait {
    fn arm(&mut self) -> std::io::Result<()> {
        self.seen = bare_word(&self.page).load(Ordering::SeqCst);
        Ok(())
    }

    fn wait(&mut self, timeout: Duration) -> std::io::Result<bool> {
        Ok(futex::wait(bare_word(&self.page), self.seen, timeout) != futex::Woken::TimedOut)
    }
}

impl WaiterArgs {
    fn command(&self) -> Command {
        let program = std::env::current_exe().unwrap_or_else(|_| "rgaps".into());
        let mut command = Command::new(program);
        command.args(["bench", "notify-waiter", "--page", &self.page, "--segment", &self.segment]).args([
            "--slot",
            &self.slot.to_string(),
            "--body",
            name(self.body),
            "--service",
            &self.service,
        ]);
        command
    }
}

/// The waiting process: `rgaps bench notify-waiter`, started by `run` only.
pub fn wait(args: &WaiterArgs) -> Result<(), BenchError> {
    let page = open_page(&args.page)?;
    let mut wait: Box<dyn Wait> = match args.body {
        Body::Bare => Box::new(BareWait { page: open_page(&args.page)?, seen: 0 }),
        Body::Futex => {
            let fd = open(&args.segment)?;
            let segment = Segment::attach(fd, [0; 16]).map_err(|e| BenchError::failed(BENCH, e))?;
            Box::new(FutexWait::for_messages(Arc::new(segment), args.slot))
        }
        Body::Eventfd => {
            let event = std::io::stdin().as_fd().try_clone_to_owned().map_err(system("the eventfd"))?;
            Box::new(EventWait::new(EventFd::from_fd(event)))
        }
        #[cfg(feature = "iceoryx2")]
        Body::Iceoryx2 => Box::new(
            rgaps_shm::notify::iceoryx::IceoryxWait::new(&args.service).map_err(system("an iceoryx2 listener"))?,
        ),
    };
    let slot = u64::from(args.slot);
    let mut last = 0;
    word(&page, SEEN + slot * 8).store(LEAVE, Ordering::Release);
    let mut idle_since = Instant::now();
    while idle_since.elapsed() < PATIENCE {
        wait.arm().map_err(system("arming"))?;
        let round = word(&page, ROUND).load(Ordering::SeqCst);
        if round == LEAVE {
            return Ok(());
        }
        if round == last {
            wait.wait(Duration::from_millis(500)).map_err(system("waiting"))?;
            continue;
        }
        word(&page, WOKE + slot * 8).store(clock::monotonic_ns(), Ordering::Release);
        word(&page, SEEN + slot * 8).store(round, Ordering::Release);
        last = round;
        idle_since = Instant::now();
    }
    Err(BenchError::failed(BENCH, "no round within 10 s: the bench has ended"))
}

fn wait_until_ready(page: &Mapping, slot: u8) -> Result<(), BenchError> {
    let deadline = Instant::now() + PATIENCE;
    while word(page, SEEN + u64::from(slot) * 8).load(Ordering::Acquire) != LEAVE {
        if Instant::now() > deadline {
            return Err(BenchError::failed(BENCH, "a waiting process did not start within 10 s"));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

fn word(page: &Mapping, offset: u64) -> &AtomicU64 {
    match page.atomic_u64(offset) {
        Ok(word) => word,
        Err(error) => unreachable!("offsets of the page are constants: {error}"),
    }
}

fn bare_word(page: &Mapping) -> &AtomicU32 {
    match page.atomic_u32(WORD) {
        Ok(word) => word,
        Err(error) => unreachable!("offsets of the page are constants: {error}"),
    }
}

fn page_clone(fd: &OwnedFd) -> Result<Mapping, BenchError> {
    Mapping::map(fd, PAGE_BYTES, Access::ReadWrite).map_err(|e| BenchError::failed(BENCH, e))
}

fn path(fd: &impl AsFd) -> String {
    format!("/proc/{}/fd/{}", std::process::id(), fd.as_fd().as_raw_fd())
}

fn open(path: &str) -> Result<OwnedFd, BenchError> {
    let file = std::fs::File::options().read(true).write(true).open(path).map_err(system("opening a descriptor"))?;
    Ok(file.into())
}

fn open_page(path: &str) -> Result<Mapping, BenchError> {
    page_clone(&open(path)?)
}

fn system(what: &'static str) -> impl Fn(std::io::Error) -> BenchError {
    move |source| BenchError::System { bench: BENCH, what, source }
}
