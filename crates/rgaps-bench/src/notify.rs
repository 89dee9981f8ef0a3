//! `bench notify`: how soon after a wake-up the median and the last of N processes run, for each mechanism, against a bare futex broadcast.
//!
//! Every mechanism has its own N waiting processes. A round writes its number to a shared page, wakes the processes, and waits until all N have
//! written when they woke. Mechanisms and the bare futex take turns, round by round.

use std::os::fd::{AsFd, OwnedFd};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rgaps_os::{EventFd, clock, futex};
use rgaps_shm::notify::{EventWait, FutexWait, Wait, Wake};
use rgaps_shm::{Segment, SlotTable, SubscriberFile, SubscriberPages, SubscriberSlot, SubscriberSpec, Subscribers};

use crate::measure::Pairs;
use crate::page::{self, Children, MARK, PATIENCE, Page, open, path};
use crate::results::Part;
use crate::{BenchError, Bound, Options, Row};

const BENCH: &str = "notify";

/// The wake-up mechanism.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Mechanism {
    /// A bare futex word: the physical limit.
    Bare,
    /// The segment's futex word, as blocking subscribers use it.
    Futex,
    /// One eventfd for each process, as epoll users have.
    Eventfd,
    /// iceoryx2's event service.
    #[cfg(feature = "iceoryx2")]
    Iceoryx2,
}

/// Command line of a waiting process.
#[derive(Clone, Debug, clap::Args)]
pub struct WaiterArgs {
    /// Path of the shared page.
    #[arg(long)]
    page: String,
    /// Path of the segment.
    #[arg(long)]
    segment: String,
    /// Path of the file with the waiter's words.
    #[arg(long)]
    own: String,
    /// Offset of the words in that file.
    #[arg(long)]
    place: u32,
    /// The number of this waiter.
    #[arg(long)]
    slot: u16,
    /// Generation of its slot.
    #[arg(long)]
    generation: u32,
    /// The mechanism to wait with.
    #[arg(long)]
    mechanism: Mechanism,
    /// Name of the iceoryx2 service.
    #[arg(long)]
    service: String,
}

/// N = 1 and 8, each mechanism as ours / bare futex, for the median waiter.
pub(crate) fn run(options: &Options) -> Result<Part, BenchError> {
    let mut rows = Vec::new();
    for waiters in [1, 8] {
        let mut bare = Crowd::new(Mechanism::Bare, waiters)?;
        for mechanism in mechanisms() {
            let case = format!("{} N={waiters}", name(mechanism));
            if !options.wants(&case) {
                continue;
            }
            let mut crowd = Crowd::new(mechanism, waiters)?;
            let pairs = Pairs::run(options.effort.rounds(400), || crowd.round(), || bare.round())?;
            let bound = (mechanism == Mechanism::Futex).then_some(Bound::AtMost(1.3));
            rows.push(Row::of_pairs((BENCH, case), "bare futex broadcast", "us to the median waiter", &pairs, bound));
        }
    }
    Ok(rows.into())
}

fn mechanisms() -> Vec<Mechanism> {
    vec![
        Mechanism::Futex,
        Mechanism::Eventfd,
        #[cfg(feature = "iceoryx2")]
        Mechanism::Iceoryx2,
    ]
}

fn name(mechanism: Mechanism) -> &'static str {
    match mechanism {
        Mechanism::Bare => "bare",
        Mechanism::Futex => "futex",
        Mechanism::Eventfd => "eventfd",
        #[cfg(feature = "iceoryx2")]
        Mechanism::Iceoryx2 => "iceoryx2",
    }
}

/// N waiting processes, and the means to wake them.
pub(super) struct Crowd {
    page: Page,
    wake: Box<dyn Wake>,
    /// Opened by the waiters by its path.
    _file: Arc<SubscriberFile>,
    children: Children,
    round: u64,
}

impl Crowd {
    pub(super) fn new(mechanism: Mechanism, waiters: u8) -> Result<Self, BenchError> {
        let page = Page::new(BENCH)?;
        let segment = Segment::create([0; 16]).map_err(|e| BenchError::failed(BENCH, e))?;
        let segment = Arc::new(segment);
        let slot_table = SlotTable::new(segment.clone());
        let service = format!("rgaps/bench/{}", std::process::id());
        let mut subscribers = Subscribers::new(segment.clone());
        let file = SubscriberFile::create().map_err(|e| BenchError::failed(BENCH, e))?;
        let mut children = Children::default();
        for _ in 0..waiters {
            let slot = slot_table
                .admit_subscriber(&SubscriberSpec::default(), &file)
                .map_err(|e| BenchError::failed(BENCH, e))?;
            let event = EventFd::new().map_err(system("an eventfd"))?;
            let Some(pages) = slot_table.pages(slot) else {
                return Err(BenchError::failed(BENCH, "no words of a subscriber"));
            };
            let args = WaiterArgs {
                page: page.path(),
                segment: path(&segment.as_ref()),
                own: path(&file.as_fd()),
                slot: slot.index,
                place: pages.place(),
                generation: slot.generation,
                mechanism,
                service: service.clone(),
            };
            // An eventfd has no path, so it is passed as the child's standard input.
            let stdin = event.try_clone().map_err(system("an eventfd"))?;
            children.spawn(BENCH, args.command().stdin(OwnedFd::from(stdin)))?;
            let event = (mechanism == Mechanism::Eventfd).then(|| Arc::new(event));
            slot_table.mark_event_fd(slot, event.is_some());
            subscribers.add(pages, event);
        }
        page.wait_until_ready(children.count())?;
        let wake: Box<dyn Wake> = match mechanism {
            Mechanism::Bare => Box::new(BareWake(page.again()?)),
            Mechanism::Futex | Mechanism::Eventfd => Box::new(subscribers),
            #[cfg(feature = "iceoryx2")]
            Mechanism::Iceoryx2 => Box::new(
                rgaps_shm::notify::iceoryx::IceoryxWake::new(&service).map_err(system("an iceoryx2 notifier"))?,
            ),
        };
        Ok(Self { page, wake, _file: file, children, round: 0 })
    }

    /// Wakes once; µs from just before that until the median waiter runs.
    pub(super) fn round(&mut self) -> Result<f64, BenchError> {
        self.round += 1;
        page::pace();
        let start = clock::monotonic_ns();
        self.page.round().store(self.round, Ordering::SeqCst);
        self.wake.wake().map_err(system("a wake-up"))?;
        self.page.latency(self.children.count(), self.round, start)
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        self.page.round().store(MARK, Ordering::SeqCst);
        let _ = self.wake.wake();
    }
}

pub(super) struct BareWake(pub(super) Page);

impl Wake for BareWake {
    fn wake(&mut self) -> std::io::Result<()> {
        let word = self.0.futex();
        word.fetch_add(1, Ordering::SeqCst);
        futex::wake_all(word);
        Ok(())
    }
}

pub(super) struct BareWait {
    pub(super) page: Page,
    pub(super) seen: u32,
}

impl Wait for BareWait {
    fn arm(&mut self) -> std::io::Result<()> {
        self.seen = self.page.futex().load(Ordering::SeqCst);
        Ok(())
    }

    fn wait(&mut self, timeout: Duration) -> std::io::Result<bool> {
        Ok(futex::wait(self.page.futex(), self.seen, timeout) != futex::Woken::TimedOut)
    }
}

impl WaiterArgs {
    fn command(&self) -> Command {
        let mut command = Command::new(page::program());
        command.args(["bench", "notify-waiter", "--page", &self.page, "--segment", &self.segment]).args([
            "--slot",
            &self.slot.to_string(),
            "--own",
            &self.own,
            "--place",
            &self.place.to_string(),
            "--generation",
            &self.generation.to_string(),
            "--mechanism",
            name(self.mechanism),
            "--service",
            &self.service,
        ]);
        command
    }
}

/// The waiting process: `rgaps bench notify-waiter`, started only by `run`.
pub fn wait(args: &WaiterArgs) -> Result<(), BenchError> {
    let page = Page::open(BENCH, &args.page)?;
    let mut wait: Box<dyn Wait> = match args.mechanism {
        Mechanism::Bare => Box::new(BareWait { page: page.again()?, seen: 0 }),
        Mechanism::Futex => {
            let fd = open(BENCH, &args.segment)?;
            let segment = Segment::observe(fd, [0; 16]).map_err(|e| BenchError::failed(BENCH, e))?;
            let file = SubscriberFile::adopt(open(BENCH, &args.own)?);
            let pages = SubscriberPages::attach(
                file,
                args.place,
                [0; 16],
                SubscriberSlot { index: args.slot, generation: args.generation },
            );
            let pages = pages.map_err(|e| BenchError::failed(BENCH, e))?;
            Box::new(FutexWait::for_messages(Arc::new(segment), Arc::new(pages)))
        }
        Mechanism::Eventfd => {
            let event = std::io::stdin().as_fd().try_clone_to_owned().map_err(system("the eventfd"))?;
            Box::new(EventWait::new(EventFd::from_fd(event)))
        }
        #[cfg(feature = "iceoryx2")]
        Mechanism::Iceoryx2 => Box::new(
            rgaps_shm::notify::iceoryx::IceoryxWait::new(&args.service).map_err(system("an iceoryx2 listener"))?,
        ),
    };
    let slot = u64::from(args.slot);
    let mut last = 0;
    page.ready(slot);
    let mut idle_since = Instant::now();
    while idle_since.elapsed() < PATIENCE {
        wait.arm().map_err(system("arming"))?;
        let round = page.round().load(Ordering::SeqCst);
        if round == MARK {
            return Ok(());
        }
        if round == last {
            wait.wait(Duration::from_millis(500)).map_err(system("waiting"))?;
            continue;
        }
        page.woke(slot, round, clock::monotonic_ns());
        last = round;
        idle_since = Instant::now();
    }
    Err(BenchError::failed(BENCH, format!("no round within {PATIENCE:?}: the bench has ended")))
}

fn system(what: &'static str) -> impl Fn(std::io::Error) -> BenchError {
    BenchError::system(BENCH, what)
}
