//! Requests that wait until other clients have handed a topic back to this manager, which succeeds one that died: how many wait, for how long, and
//! which answer they get in the end.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rgaps_control::Budget;
use rgaps_control::local::{Body, Refusal, Request};

use crate::clients::ClientId;
use crate::manager::Manager;
use crate::requests::Outcome;

/// Requests that may wait.
const DEFERRED_MAX: usize = 1024;
/// How long a request waits before it is refused with the clients that it waits for: less than clients wait for a reply.
const DEFERRED_FOR: Duration = Duration::from_secs(5);

/// A request that waits.
pub(crate) struct Deferred {
    client: ClientId,
    id: u64,
    body: Body,
    until: Instant,
}

impl Manager {
    /// Answers a request, or defers it.
    pub(crate) fn request(&mut self, client: ClientId, request: Request, fds: Vec<OwnedFd>) {
        let Request { id, body } = request;
        match self.handle(client, &body, fds) {
            Outcome::Answered(outcome) => self.answer(client, id, outcome),
            Outcome::Deferred(_) if self.deferred_of(client) >= self.budgets.limits.count(Budget::ClientRequests) => {
                let over = self.over(client, Budget::ClientRequests);
                self.answer(client, id, Err(over));
            }
            Outcome::Deferred(_) if self.deferred.len() < DEFERRED_MAX => {
                self.deferred.push(Deferred { client, id, body, until: Instant::now() + DEFERRED_FOR });
            }
            Outcome::Deferred(_) => {
                let full = Refusal::Exhausted(format!(
                    "{DEFERRED_MAX} requests wait already for topics to be handed back; try again"
                ));
                self.answer(client, id, Err(full));
            }
        }
    }

    fn deferred_of(&self, client: ClientId) -> usize {
        self.deferred.iter().filter(|deferred| deferred.client == client).count()
    }

    /// Retries the deferred requests.
    pub(crate) fn retry_deferred(&mut self) {
        for Deferred { client, id, body, until } in std::mem::take(&mut self.deferred) {
            match self.handle(client, &body, Vec::new()) {
                Outcome::Answered(outcome) => self.answer(client, id, outcome),
                Outcome::Deferred(refusal) if until <= Instant::now() => self.answer(client, id, Err(refusal)),
                Outcome::Deferred(_) => self.deferred.push(Deferred { client, id, body, until }),
            }
        }
    }
}
