//! Requests that wait until other clients have handed a topic back to this manager, which succeeds one that died: how many wait, and for how long.

use std::time::{Duration, Instant};

use rgaps_control::local::{Body, Refusal};

use crate::clients::ClientId;

/// Requests that may wait.
const DEFERRED_MAX: usize = 1024;
/// How long a request waits before it is refused with the clients that it waits for: less than clients wait for a reply.
const DEFERRED_FOR: Duration = Duration::from_secs(5);

/// A request that waits.
#[derive(Debug)]
pub(crate) struct Deferred {
    pub(crate) client: ClientId,
    pub(crate) id: u64,
    pub(crate) body: Body,
    until: Instant,
}

impl Deferred {
    /// Whether the request has waited for as long as it may.
    pub(crate) fn is_over(&self) -> bool {
        self.until <= Instant::now()
    }
}

/// All requests that wait.
#[derive(Debug, Default)]
pub(crate) struct DeferredRequests(Vec<Deferred>);

impl DeferredRequests {
    /// Defers a request. An error if too many wait.
    pub(crate) fn add(&mut self, client: ClientId, id: u64, body: Body) -> Result<(), Refusal> {
        if self.0.len() >= DEFERRED_MAX {
            return Err(Refusal::Exhausted(format!(
                "{DEFERRED_MAX} requests wait already for topics to be handed back; try again"
            )));
        }
        self.0.push(Deferred { client, id, body, until: Instant::now() + DEFERRED_FOR });
        Ok(())
    }

    /// Defers a request again that was taken out.
    pub(crate) fn put_back(&mut self, deferred: Deferred) {
        self.0.push(deferred);
    }

    /// Takes all out, to try them again.
    pub(crate) fn take_all(&mut self) -> Vec<Deferred> {
        std::mem::take(&mut self.0)
    }

    /// Whether any request waits.
    pub(crate) fn has_any(&self) -> bool {
        !self.0.is_empty()
    }

    /// How many requests of this client wait.
    pub(crate) fn count_of(&self, client: ClientId) -> usize {
        self.0.iter().filter(|deferred| deferred.client == client).count()
    }
}
