//! The buffers of a process whose middleware loads the backend. Middleware loads every backend that is installed, in every process; most of them
//! never use a buffer. So nothing is made before it is needed: the program allocates a buffer, or a subscription that takes buffers discovers a
//! publisher that may send some. Until then endpoints are only remembered, unless a manager runs anyway: then subscriptions join at once, so that their
//! first payload is not late.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, OnceLock};
use std::time::Instant;

use rgaps::device::Choice;
use rgaps::{Node, NodeError};

use super::exchange::{Buffers, VERSION, is_of_this_version};
use super::gid::{Gid, lock};
use super::shared::{has_timed_out, is_recent};

/// How many subscriptions are remembered by a process that has not used buffers: of its own, and of those discovered. The oldest are forgotten.
const REMEMBERED_MAX: usize = 4096;

/// How many others are remembered for each of these.
const OTHERS_MAX: usize = 16;

/// Names the device that works on the process's buffers, like a node's device: `cuda:1`. Unset or empty: that of the host's pools.
const DEVICE: &str = "RGAPS_BUFFERS_DEVICE";

/// The buffers of a process. Make one for each process.
#[derive(Debug)]
pub struct ProcessBuffers {
    made: OnceLock<Buffers>,
    /// Locked while they are made, which waits for a manager.
    making: Mutex<Failures>,
    /// What happened before they were made.
    remembered: Mutex<Remembered>,
}

/// When no manager was found last, and when none could be started or none answered.
#[derive(Clone, Copy, Debug)]
struct Failures {
    search: Option<Instant>,
    start: Option<Instant>,
}

impl Failures {
    /// Whether a try would fail again, most probably.
    fn are_recent(&self, may_start: bool) -> bool {
        is_recent(if may_start { self.start } else { self.search })
    }
}

#[derive(Debug)]
struct Remembered {
    created: VecDeque<(Gid, Option<u32>)>,
    discovered: VecDeque<(Gid, String, Vec<Gid>)>,
}

impl Default for ProcessBuffers {
    fn default() -> Self {
        Self::new()
    }
}

impl ProcessBuffers {
    /// Nothing is made yet.
    pub const fn new() -> Self {
        let remembered = Remembered { created: VecDeque::new(), discovered: VecDeque::new() };
        Self {
            made: OnceLock::new(),
            making: Mutex::new(Failures { search: None, start: None }),
            remembered: Mutex::new(remembered),
        }
    }

    /// The text that announces an endpoint of this process. Host and device are '-' if no manager runs yet.
    pub fn metadata(&self) -> String {
        self.make_unless_failed(false)
            .ok()
            .flatten()
            .map_or_else(|| format!("{VERSION}:-:-:"), |buffers| buffers.metadata())
    }

    /// See `Buffers::subscription_created`.
    pub fn subscription_created(&self, gid: Gid, depth: Option<u32>) -> Result<(), NodeError> {
        let mut remembered = lock(&self.remembered);
        if let Some(buffers) = self.made.get() {
            drop(remembered);
            return buffers.subscription_created(gid, depth);
        }
        remember(&mut remembered.created, (gid, depth));
        Ok(())
    }

    /// See `Buffers::subscription_discovered`.
    pub fn subscription_discovered(&self, gid: Gid, metadata: &str, others: &[Gid]) -> bool {
        let mut remembered = lock(&self.remembered);
        if let Some(buffers) = self.made.get() {
            drop(remembered);
            return buffers.subscription_discovered(gid, metadata, others);
        }
        if !is_of_this_version(metadata) {
            return false;
        }
        // Mostly, these are in a group with each other.
        let few: Vec<_> = others.first().into_iter().chain(others.last()).copied().collect();
        match remembered.discovered.iter_mut().find(|(known, ..)| *known == gid) {
            Some((_, _, others)) if others.len() < OTHERS_MAX => others.extend(few),
            Some(_) => {}
            None => remember(&mut remembered.discovered, (gid, metadata.to_owned(), few)),
        }
        true
    }

    /// To be called when a subscription that takes buffers discovers a publisher that may send some. Starts a manager if none runs. Waits for the manager at
    /// most 10 s, after at most as long for another thread that does the same. False if the publisher sends bytes: it is of another version, or this process
    /// could not reach a manager a moment ago. After that or an error, the next discovery tries again.
    pub fn publisher_discovered(&self, metadata: &str) -> Result<bool, NodeError> {
        if !is_of_this_version(metadata) {
            return Ok(false);
        }
        let made = self.make_unless_failed(true)?;
        made.iter().for_each(Buffers::take_missing);
        Ok(made.is_some())
    }

    /// The buffers. Starts a manager if none runs, and waits for it at most 10 s.
    pub fn get(&self) -> Result<Buffers, NodeError> {
        match self.made() {
            Some(buffers) => Ok(buffers),
            None => self.make(lock(&self.making), true),
        }
    }

    /// The buffers if they are made. Never waits.
    pub fn made(&self) -> Option<Buffers> {
        self.made.get().cloned()
    }

    /// As `make`; `None` if that has failed a moment ago, since middleware calls for each endpoint.
    fn make_unless_failed(&self, may_start: bool) -> Result<Option<Buffers>, NodeError> {
        if let Some(buffers) = self.made() {
            return Ok(Some(buffers));
        }
        let making = lock(&self.making);
        match self.made.get().is_none() && making.are_recent(may_start) {
            true => Ok(None),
            false => self.make(making, may_start).map(Some),
        }
    }

    fn make(&self, mut making: MutexGuard<'_, Failures>, may_start: bool) -> Result<Buffers, NodeError> {
        if let Some(buffers) = self.made() {
            return Ok(buffers);
        }
        let made = node(may_start).inspect_err(|error| {
            making.search = Some(Instant::now());
            // A manager that runs and does not answer is not started either.
            if may_start || has_timed_out(error) {
                making.start = making.search;
            }
        });
        let buffers = Buffers::new(made?);
        loop {
            let mut remembered = lock(&self.remembered);
            let (created, discovered) =
                (std::mem::take(&mut remembered.created), std::mem::take(&mut remembered.discovered));
            if created.is_empty() && discovered.is_empty() {
                return Ok(self.made.get_or_init(|| buffers).clone());
            }
            drop(remembered);
            for (gid, depth) in created {
                // If it cannot be made now, it gets bytes until it is.
                let _ = buffers.subscription_created(gid, depth);
            }
            for (gid, metadata, others) in discovered {
                buffers.subscription_discovered(gid, &metadata, &others);
            }
        }
    }
}

/// A node for a process. Unless it may start a manager, one must run already. A later successor may be started in any case.
fn node(may_start: bool) -> Result<Node, NodeError> {
    let device = match std::env::var(DEVICE) {
        Ok(text) if !text.is_empty() => text.parse()?,
        _ => Choice::Auto,
    };
    let builder = || Node::builder().name("rosidl::Buffer").ros_node().device(device);
    if !may_start {
        builder().no_autostart().build()?;
    }
    builder().build()
}

fn remember<T>(all: &mut VecDeque<T>, one: T) {
    if all.len() == REMEMBERED_MAX {
        all.pop_front();
    }
    all.push_back(one);
}
