//! How much one client may use: publishers and subscribers, file descriptors, deferred requests.

use rgaps_control::Budget;
use rgaps_control::local::Refusal;

use crate::clients::{Client, ClientId};
use crate::manager::Manager;

/// A process has few publishers and subscribers, or few connections, if it has fewer of them than the spare file descriptors divided by this.
const FEW_OF_SPARE: u64 = 4;
/// File descriptors that the manager has open for one connection: the socket, the client's pidfd, its lock file.
const FDS_OF_CONNECTION: u64 = 3;

impl Manager {
    /// Checks whether a client may have another publisher or subscriber.
    pub(crate) fn check_budgets(&self, client: ClientId) -> Result<(), Refusal> {
        let slots = self.clients.by_id.get(&client).map_or(0, |client| client.slots.len());
        if slots >= self.budgets.limits.count(Budget::ClientEndpoints) {
            return Err(self.over(client, Budget::ClientEndpoints));
        }
        self.check_fds(client)
    }

    /// Reserves the last file descriptors of this process for clients with few publishers and subscribers.
    pub(crate) fn check_fds(&self, client: ClientId) -> Result<(), Refusal> {
        let (_, others) = self.spare_and_others();
        let has = self.of_process(client, |client| client.slots.len());
        self.check_spare(has, rgaps_os::fds::in_use(self.wake.as_ref()) >= others)
    }

    /// Reserves the last file descriptors of this process for clients with few connections. All connections of one client process together may use
    /// half of the other file descriptors: `in_use` is the lowest free file descriptor, which counts too few after a lower one was closed.
    pub(crate) fn check_connections(&self, client: ClientId) -> Result<(), Refusal> {
        let (_, others) = self.spare_and_others();
        let has = self.of_process(client, |client| usize::from(client.pidfd.is_some()));
        let is_full = rgaps_os::fds::in_use(self.wake.as_ref()) >= others;
        self.check_spare(has, is_full || has * FDS_OF_CONNECTION >= others / 2)
    }

    /// Bounds the disconnected connections of a client's process: they may use a quarter of the file descriptors that are not spare. A client
    /// connects again before it can be disconnected again, so it is enough to call this at each hello.
    pub(crate) fn bound_disconnected(&mut self, client: ClientId) {
        let (_, others) = self.spare_and_others();
        let pid = self.pid_of(client);
        self.clients.bound_disconnected(pid, usize::try_from(others / 4).unwrap_or(usize::MAX));
    }

    /// How many file descriptors of this process's limit are spare, and how many are not.
    fn spare_and_others(&self) -> (u64, u64) {
        let limit = rgaps_os::fds::limit();
        let spare = limit / 100 * self.budgets.limits.of(Budget::SpareFds);
        (spare, limit - spare)
    }

    /// The sum of `has` over all clients of the process of a client: each of its nodes is a client.
    fn of_process(&self, client: ClientId, has: impl Fn(&Client) -> usize) -> u64 {
        let pid = self.pid_of(client);
        self.clients.by_id.values().filter(|client| client.pid == pid).map(has).sum::<usize>() as u64
    }

    /// Refuses a process that has many of these already, if only spare file descriptors are left.
    fn check_spare(&self, has: u64, is_full: bool) -> Result<(), Refusal> {
        let (spare, others) = self.spare_and_others();
        if spare == 0 || !is_full || has < spare / FEW_OF_SPARE {
            return Ok(());
        }
        let limit = spare + others;
        self.budgets.refusals.count(Budget::SpareFds);
        Err(Refusal::Exhausted(format!(
            "rgapsd may have {limit} file descriptors open, and keeps the last {spare} for programs with few nodes, publishers and subscribers \
             (spare_fds_percent): raise its limit (LimitNOFILE=, ulimit -Hn), or use fewer topics on this host"
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
