//! How much one client may use: publishers and subscribers, descriptors, deferred requests.

use rgaps_control::Budget;
use rgaps_control::local::Refusal;

use crate::clients::{Client, ClientId};
use crate::manager::Manager;

/// A process with fewer publishers and subscribers, or connections, than this part of the spare descriptors has few.
const FEW_OF_SPARE: u64 = 4;

impl Manager {
    /// Checks whether a client may have another publisher or subscriber.
    pub(crate) fn check_budgets(&self, client: ClientId) -> Result<(), Refusal> {
        let slots = self.clients.by_id.get(&client).map_or(0, |client| client.slots.len());
        if slots >= self.budgets.limits.count(Budget::ClientEndpoints) {
            return Err(self.over(client, Budget::ClientEndpoints));
        }
        self.check_descriptors(client)
    }

    /// Reserves the last descriptors of this process for clients with few publishers and subscribers.
    pub(crate) fn check_descriptors(&self, client: ClientId) -> Result<(), Refusal> {
        self.check_spare(client, |client| client.slots.len())
    }

    /// The same of processes that have few connections.
    pub(crate) fn check_connections(&self, client: ClientId) -> Result<(), Refusal> {
        self.check_spare(client, |client| usize::from(client.pidfd.is_some()))
    }

    fn check_spare(&self, client: ClientId, has: impl Fn(&Client) -> usize) -> Result<(), Refusal> {
        let limit = rgaps_os::descriptors::limit();
        let spare = limit / 100 * self.budgets.limits.of(Budget::SpareDescriptors);
        if spare == 0 || rgaps_os::descriptors::in_use(self.wake.as_ref()) < limit - spare {
            return Ok(());
        }
        let pid = self.pid_of(client);
        let of_process = self.clients.by_id.values().filter(|client| client.pid == pid).map(has);
        if (of_process.sum::<usize>() as u64) < spare / FEW_OF_SPARE {
            return Ok(());
        }
        self.budgets.refusals.count(Budget::SpareDescriptors);
        Err(Refusal::Exhausted(format!(
            "rgapsd may have {limit} descriptors open, and keeps the last {spare} for programs with few nodes, publishers and subscribers \
             (spare_descriptors_percent): raise its limit (LimitNOFILE=, ulimit -Hn), or use fewer topics on this host"
        )))
    }

    /// The refusal of a client that has used up a budget.
    pub(crate) fn over(&self, client: ClientId, budget: Budget) -> Refusal {
        let over = self.budgets.limits.over(budget);
        if self.budgets.refusals.count(budget)
            && let Some(client) = self.clients.by_id.get(&client)
        {
            tracing::warn!(pid = client.pid, program = client.program, "a client has reached a limit: {over}");
        }
        Refusal::Exhausted(match budget {
            Budget::ClientRequests => format!("too many requests of this client wait ({over}); try again"),
            _ => format!(
                "this client has as many publishers and subscribers as a client may have ({over}): drop some, raise that limit, or use a second node"
            ),
        })
    }
}
