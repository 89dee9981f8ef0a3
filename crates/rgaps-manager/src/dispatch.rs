//! Answers clients' requests: at once, or when other clients have handed a topic back.

use std::os::fd::OwnedFd;

use rgaps_control::Budget;
use rgaps_control::local::Request;

use crate::clients::ClientId;
use crate::manager::Manager;
use crate::requests::Outcome;

impl Manager {
    /// Answers a request, or defers it.
    pub(crate) fn request(&mut self, client: ClientId, request: Request, fds: Vec<OwnedFd>) {
        let Request { id, body } = request;
        match self.handle(client, &body, fds) {
            Outcome::Answered(outcome) => self.answer(client, id, outcome),
            Outcome::Deferred(_)
                if self.deferred.count_of(client) >= self.budgets.limits.count(Budget::ClientRequests) =>
            {
                let over = self.over(client, Budget::ClientRequests);
                self.answer(client, id, Err(over));
            }
            Outcome::Deferred(_) => {
                if let Err(full) = self.deferred.add(client, id, body) {
                    self.answer(client, id, Err(full));
                }
            }
        }
    }

    /// Retries the deferred requests.
    pub(crate) fn retry_deferred(&mut self) {
        for deferred in self.deferred.take_all() {
            match self.handle(deferred.client, &deferred.body, Vec::new()) {
                Outcome::Answered(outcome) => self.answer(deferred.client, deferred.id, outcome),
                Outcome::Deferred(refusal) if deferred.is_over() => {
                    self.answer(deferred.client, deferred.id, Err(refusal));
                }
                Outcome::Deferred(_) => self.deferred.put_back(deferred),
            }
        }
    }
}
