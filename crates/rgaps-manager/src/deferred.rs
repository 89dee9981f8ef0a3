//! Requests that wait for other clients to hand a topic back to this manager, which follows one that died: how many, how long, and what their
//! clients hear in the end.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rgaps_control::Budget;
use rgaps_control::local::{Body, Refusal, Request};

use crate::clients::ClientId;
use crate::manager::Manager;
use crate::requests::Outcome;

/// Requests that may wait.
const DEFERRED_MAX: usize = 1024;
/// How long one waits before its client hears for whom: less than clients wait for an answer.
const DEFERRED_FOR: Duration = Duration::from_secs(5);

/// A request that waits.
pub(crate) struct Deferred {
    client: ClientId,
    id: u64,
    body: Body,
    until: Instant,
}

impl Manager {
    /// Answers a request, or lets it wait.
    pub(crate) fn request(&mut self, client: ClientId, request: Request, descriptors: Vec<OwnedFd>) {
        let Request { id, body } = request;
        match self.handle(client, &body, descriptors) {
            Outcome::Answered(outcome) => self.answer(client, id, outcome),
            Outcome::Deferred(_) if self.deferred_of(client) >= self.budgets.limits.count(Budget::ClientRequests) => {
                let over = self.over(client, Budget::ClientRequests);
                self.answer(client, id, Err(over));
            }
            Outcome::Deferred(_) if self.deferred.len() < DEFERRED_MAX => {
                self.deferred.push(Deferred { client, id, body, until: Instant::now() + DEFERRED_FOR });
            }
            Outcome::Deferred(_) => {
                let full = Refusal::Exhausted("too many requests wait; try again".to_owned());
                self.answer(client, id, Err(full));
            }
        }
    }

    fn deferred_of(&self, client: ClientId) -> usize {
        self.deferred.iter().filter(|deferred| deferred.client == client).count()
    }

    /// Tries those that wait again.
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
