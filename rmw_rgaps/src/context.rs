//! State shared by the GPU entities of one rmw context: a node of the core, the thread that wakes waiters, and the guard conditions they wait on.
//!
//! It is made for a context's first GPU entity and dropped with the last.

use std::sync::{Arc, Mutex, Weak};

use rgaps::Node;

use crate::entity::Entity;
use crate::lock::lock;
use crate::log;
use crate::notifier::Notifier;
use crate::sys::rmw_node_t;
use crate::waiters::Waiters;

/// The contexts that have GPU entities, by the address of their rmw context.
static CONTEXTS: Mutex<Vec<(usize, Weak<Context>)>> = Mutex::new(Vec::new());

/// The core's half of an rmw context.
pub(crate) struct Context {
    // First, so that it is stopped before the fields that it uses are dropped.
    pub(crate) notifier: Notifier,
    pub(crate) waiters: Arc<Waiters<Entity>>,
    pub(crate) node: Node,
}

impl Context {
    /// The context of a node; made if there is none.
    // SAFETY: a node that the inner RMW has made and not destroyed, and accepted for an entity.
    pub(crate) unsafe fn of(node: *const rmw_node_t) -> Result<Arc<Self>, String> {
        // SAFETY: as the caller says.
        let rmw_context = unsafe { (*node).context };
        let mut contexts = lock(&CONTEXTS);
        let address = rmw_context as usize;
        contexts.retain(|(_, context)| context.strong_count() > 0);
        let mut known =
            contexts.iter().filter(|(known, _)| *known == address).filter_map(|(_, context)| context.upgrade());
        // A forked child may reuse the address of a context of its parent; that one is skipped.
        if let Some(context) = known.find(|context| context.node.is_owner()) {
            return Ok(context);
        }
        drop(known);
        // SAFETY: a node's context outlives it, and is initialised.
        let domain = unsafe { (*rmw_context).actual_domain_id };
        let domain = u32::try_from(domain).map_err(|_| format!("ROS domain id {domain} is too large"))?;
        log::start();
        let node = Node::builder().domain(domain).ros_node().build().map_err(|error| {
            format!(
                "the core cannot be reached: {error}; is rgapsd installed, or running (RGAPSD, RGAPS_AUTOSTART), for this \
                 runtime directory (RGAPS_RUNTIME_DIR)?"
            )
        })?;
        let notifier = Notifier::start().map_err(|error| format!("no thread to wait for messages: {error}"))?;
        let waiters = Arc::new(Waiters::new(rmw_context));
        let context = Arc::new(Self { notifier, waiters, node });
        contexts.push((address, Arc::downgrade(&context)));
        Ok(context)
    }

    /// Its key: the address of the rmw context.
    pub(crate) fn address(&self) -> usize {
        self.waiters.address()
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        self.notifier.stop();
        self.waiters.destroy();
    }
}
