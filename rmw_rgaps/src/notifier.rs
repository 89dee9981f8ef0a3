//! The thread that knows when messages come: it sleeps on the descriptors of a context's GPU subscriptions, wakes the wait sets that wait
//! for them, calls their callbacks, and drains what came over the inner topic.
//!
//! Descriptors are edge-triggered: each publication rings once, whether or not anybody takes it. Nothing is taken here. What is locked while the
//! inner RMW or a callback is called, `subscription` has.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};

use crate::context::lock;
use crate::ffi::guard_callback;
use crate::subscription::Entity;

/// Stands for the thread's own eventfd; no address is 0.
const OWN: u64 = 0;
/// Events that one call of the kernel's may tell.
const EVENTS_MAX: usize = 32;

/// See the page's head.
pub(crate) struct Notifier {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// What the thread and others have in common.
pub(crate) struct Shared {
    epoll: OwnedFd,
    own: OwnedFd,
    ending: AtomicBool,
    entities: Mutex<BTreeMap<u64, Arc<Entity>>>,
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

    /// Whom to `kick`.
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// From now on the entity is woken.
    pub(crate) fn add(&self, entity: &Arc<Entity>, descriptor: BorrowedFd<'_>) -> io::Result<()> {
        let key = entity.key() as u64;
        // Before the first wake-up can come.
        lock(&self.shared.entities).insert(key, entity.clone());
        let added =
            epoll::add(&self.shared.epoll, descriptor, EventData::new_u64(key), EventFlags::IN | EventFlags::ET);
        added.inspect_err(|_| self.remove(entity, None))?;
        Ok(())
    }

    /// From now on it is not woken; a wake-up that has begun may still be under way.
    pub(crate) fn remove(&self, entity: &Entity, descriptor: Option<BorrowedFd<'_>>) {
        let gone = lock(&self.shared.entities).remove(&(entity.key() as u64));
        drop(gone);
        if let Some(descriptor) = descriptor {
            // It was not added if making the subscription failed half-way.
            let _ = epoll::delete(&self.shared.epoll, descriptor);
        }
    }

    /// Ends the thread and waits for it; unless it is this one, in a callback that has destroyed its context's last GPU entity.
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
    /// Has the thread look after every entity.
    pub(crate) fn kick(&self) {
        // A full counter is readable already.
        let _ = rustix::io::write(&self.own, &1_u64.to_ne_bytes());
    }

    fn run(&self) {
        let mut events = [Event { flags: EventFlags::empty(), data: EventData::new_u64(OWN) }; EVENTS_MAX];
        let mut woken: Vec<Arc<Entity>> = Vec::new();
        while !self.ending.load(Ordering::Acquire) {
            let count = match epoll::wait(&self.epoll, &mut events[..], None) {
                Ok(count) => count,
                Err(rustix::io::Errno::INTR) => continue,
                // Its descriptors are this thread's own: there is nothing to wait on any more.
                Err(error) => return tracing::error!(%error, "no message of a GPU topic wakes anybody any more"),
            };
            // Copied out of the kernel's packed structs.
            let keys = events[..count].iter().map(|event| { event.data }.u64());
            if keys.clone().any(|key| key == OWN) {
                // Before anything is looked at, so that a later kick comes again.
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
