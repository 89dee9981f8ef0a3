//! The thread that learns of new messages. It sleeps on the eventfds of a context's GPU subscriptions, wakes the wait sets that wait for them, calls
//! their callbacks, and drains the inner topic.
//!
//! Eventfds are edge-triggered: each publication triggers once, even if no message is taken. The thread takes none. `entity` says which locks
//! are held while the inner RMW or a callback is called.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};

use crate::ffi::guard_callback;
use crate::lock::lock;

/// The key of the thread's own eventfd; no address is 0.
const OWN: u64 = 0;
/// Most events that one call of the kernel returns.
const EVENTS_MAX: usize = 32;

/// A subscription that the thread wakes.
pub(crate) trait Woken: Send + Sync {
    /// Names it; not 0.
    fn key(&self) -> usize;

    /// Messages may have arrived: wakes waiting threads and calls the callbacks.
    fn look_after(&self);
}

/// The thread's owner.
pub(crate) struct Notifier {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// State shared by the thread and its owner.
pub(crate) struct Shared {
    epoll: OwnedFd,
    own: OwnedFd,
    ending: AtomicBool,
    entities: Mutex<BTreeMap<u64, Arc<dyn Woken>>>,
}

impl Notifier {
    pub(crate) fn start() -> io::Result<Self> {
        let shared = Arc::new(Shared {
            epoll: epoll::create(CreateFlags::CLOEXEC)?,
            own: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            ending: AtomicBool::new(false),
            entities: Mutex::default(),
        });
        epoll::add(&shared.epoll, &shared.own, EventData::new_u64(OWN), EventFlags::IN)?;
        let thread = {
            let shared = shared.clone();
            std::thread::Builder::new().name("rgaps-rmw".to_owned()).spawn(move || shared.run())?
        };
        Ok(Self { shared, thread: Some(thread) })
    }

    /// The state that `kick` needs.
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Starts waking an entity.
    pub(crate) fn add(&self, entity: Arc<dyn Woken>, event_fd: BorrowedFd<'_>) -> io::Result<()> {
        let key = entity.key() as u64;
        // Before a wake-up can arrive.
        lock(&self.shared.entities).insert(key, entity.clone());
        let added = epoll::add(&self.shared.epoll, event_fd, EventData::new_u64(key), EventFlags::IN | EventFlags::ET);
        added.inspect_err(|_| self.remove(entity.as_ref(), None))?;
        Ok(())
    }

    /// Stops waking an entity; a wake-up that has begun may still be running.
    pub(crate) fn remove(&self, entity: &dyn Woken, event_fd: Option<BorrowedFd<'_>>) {
        let gone = lock(&self.shared.entities).remove(&(entity.key() as u64));
        drop(gone);
        if let Some(event_fd) = event_fd {
            // It was never added if making the subscription failed half-way.
            let _ = epoll::delete(&self.shared.epoll, event_fd);
        }
    }

    /// Ends the thread and waits for it, unless it is this thread, in a callback that destroyed its context's last GPU entity.
    pub(crate) fn stop(&mut self) {
        self.shared.ending.store(true, Ordering::Release);
        self.shared.kick();
        let is_own = |thread: &JoinHandle<()>| thread.thread().id() == std::thread::current().id();
        if let Some(thread) = self.thread.take().filter(|thread| !is_own(thread)) {
            let _ = thread.join();
        }
    }
}

impl Shared {
    /// Makes the thread check every entity.
    pub(crate) fn kick(&self) {
        // If the counter is full, it is readable already.
        let _ = rustix::io::write(&self.own, &1_u64.to_ne_bytes());
    }

    fn run(&self) {
        let mut events = [Event { flags: EventFlags::empty(), data: EventData::new_u64(OWN) }; EVENTS_MAX];
        let mut woken: Vec<Arc<dyn Woken>> = Vec::new();
        while !self.ending.load(Ordering::Acquire) {
            let count = match epoll::wait(&self.epoll, &mut events[..], None) {
                Ok(count) => count,
                Err(rustix::io::Errno::INTR) => continue,
                // Does not happen: the eventfds belong to this thread. Without them it cannot wait.
                Err(error) => {
                    return tracing::error!(%error, "GPU subscriptions of this context are no longer woken; restart the process");
                }
            };
            // Copied out of the kernel's packed structs.
            let keys = events[..count].iter().map(|event| { event.data }.u64());
            if keys.clone().any(|key| key == OWN) {
                // Read it before checking the entities, so that a later kick triggers again.
                let _ = rustix::io::read(&self.own, &mut [0_u8; 8]);
            }
            {
                let entities = lock(&self.entities);
                for key in keys {
                    match key {
                        OWN => woken.extend(entities.values().cloned()),
                        key => woken.extend(entities.get(&key).cloned()),
                    }
                }
            }
            for entity in woken.drain(..) {
                guard_callback("a wake-up", || entity.look_after());
            }
        }
    }
}
