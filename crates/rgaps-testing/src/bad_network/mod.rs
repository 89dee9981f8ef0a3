//! A bad network between two hosts: a thread carries frames from one TAP interface to the other; a `Line` for each direction decides how.
//!
//! ```text
//!   namespace of host 0                                       namespace of host 1
//!   ┌────────────────┐ read   ┌────────────────────┐  write   ┌────────────────┐
//!   │ eth0 (TAP)     │───────▶│ Line 0, seeded     │─────────▶│ eth0 (TAP)     │
//!   │                │◀───────│ Line 1, seeded     │◀─────────│                │
//!   └────────────────┘        └────────────────────┘          └────────────────┘
//! ```
//!
//! Not netem, since not every kernel has it. The frames are as the hosts' kernels would send them on a wire: segmented, with checksums.

mod damage;
mod line;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

pub use line::{ALWAYS_PPM, Conditions, Line, Passage};

/// Frames that are read, at most, before due ones are written.
const FRAMES_A_TURN: usize = 64;
/// More bytes than a frame of any MTU that is set here.
const FRAME_BYTES_MAX: usize = 64 << 10;

/// Carries frames until it is dropped.
#[derive(Debug)]
pub struct BadNetwork {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    /// Line n carries the frames of host n.
    lines: Mutex<([Line; 2], Conditions)>,
    stop: OwnedFd,
}

impl BadNetwork {
    pub(crate) fn new(taps: [OwnedFd; 2], seed: u64) -> io::Result<Self> {
        let lines = Mutex::new(([Line::new(seed), Line::new(seed.wrapping_add(1))], Conditions::default()));
        let shared = Arc::new(Shared { lines, stop: eventfd(0, EventfdFlags::CLOEXEC)? });
        let carried = shared.clone();
        let thread =
            std::thread::Builder::new().name("bad network".to_owned()).spawn(move || carry(&taps, &carried))?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Sets the conditions of both directions from now on.
    pub fn set(&self, conditions: Conditions) {
        let (lines, now) = &mut *lock(&self.shared);
        *now = conditions;
        lines.iter_mut().for_each(|line| line.set(conditions));
    }

    /// Passes nothing, until `restore`.
    pub fn cut(&self) {
        let now = lock(&self.shared).1;
        self.set(Conditions { is_cut: true, ..now });
    }

    /// Ends a cut.
    pub fn restore(&self) {
        let now = lock(&self.shared).1;
        self.set(Conditions { is_cut: false, ..now });
    }

    /// Counts of what has happened to the frames of each host.
    pub fn passage(&self) -> [Passage; 2] {
        lock(&self.shared).0.each_ref().map(Line::passage)
    }
}

impl Drop for BadNetwork {
    fn drop(&mut self) {
        let _ = rustix::io::write(&self.shared.stop, &1_u64.to_ne_bytes());
        self.thread.take().map(JoinHandle::join);
    }
}

fn lock(shared: &Shared) -> MutexGuard<'_, ([Line; 2], Conditions)> {
    shared.lines.lock().unwrap_or_else(PoisonError::into_inner)
}

fn carry(taps: &[OwnedFd; 2], shared: &Shared) {
    let mut bytes = vec![0; FRAME_BYTES_MAX];
    loop {
        let due = lock(shared).0.iter().filter_map(Line::due).min();
        let rest = due.map(|due| due.saturating_duration_since(Instant::now()));
        let rest = rest.and_then(|rest| Timespec::try_from(rest).ok());
        let mut fds = [&taps[0], &taps[1], &shared.stop].map(|fd| PollFd::new(fd, PollFlags::IN));
        // An interrupted wait just ends early.
        let _ = poll(&mut fds, rest.as_ref());
        if !fds[2].revents().is_empty() {
            return;
        }
        let mut out = Vec::new();
        {
            let lines = &mut lock(shared).0;
            for (line, (from, to)) in lines.iter_mut().zip([(0, 1), (1, 0)]) {
                for _ in 0..FRAMES_A_TURN {
                    let Ok(read) = rustix::io::read(&taps[from], &mut bytes) else { break };
                    line.handle(Instant::now(), bytes[..read].to_vec());
                }
                let now = Instant::now();
                out.extend(std::iter::from_fn(|| line.poll(now)).map(|frame| (to, frame)));
            }
        }
        for (to, frame) in out {
            // An interface that is down accepts no frame: the frame is lost, like on a disconnected cable.
            let _ = rustix::io::write(&taps[to], &frame);
        }
    }
}
