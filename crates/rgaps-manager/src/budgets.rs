//! The budgets that the parts of a manager share, from the configuration's `Limits`.

use std::sync::Arc;

use rgaps_control::{Budget, Limits, Refusals};
use rgaps_os::{EventFd, fds};

use crate::arrival_budget::ArrivalBudget;
use crate::links::Links;

/// Shared by all parts.
#[derive(Clone, Debug)]
pub(crate) struct Budgets {
    pub(crate) limits: Limits,
    /// How often each budget was exceeded.
    pub(crate) refusals: Arc<Refusals>,
    /// Memory for arriving messages.
    pub(crate) arrived: Arc<ArrivalBudget>,
    pub(crate) links: Arc<Links>,
    pub(crate) fds: Arc<FileDescriptors>,
}

impl Budgets {
    pub(crate) fn new(limits: &Limits) -> Self {
        let refusals = Arc::<Refusals>::default();
        let arrived = Arc::new(ArrivalBudget::new(limits, refusals.clone()));
        let fds = Arc::new(FileDescriptors::new(limits));
        let links = Arc::new(Links::new(limits, refusals.clone(), fds.clone()));
        Self { limits: limits.clone(), refusals, arrived, links, fds }
    }
}

/// The file descriptors that this process may have open. The last ones are reserved for programs of this host.
#[derive(Debug)]
pub(crate) struct FileDescriptors {
    percent: u64,
    /// A file descriptor to duplicate: the duplicate gets the lowest free number, which shows how many are in use.
    any: Option<EventFd>,
}

impl FileDescriptors {
    fn new(limits: &Limits) -> Self {
        Self { percent: limits.of(Budget::SpareFds), any: EventFd::new().ok() }
    }

    /// Whether another link with a host leaves the spare file descriptors to programs of this host.
    pub(crate) fn has_room_for_links(&self) -> bool {
        self.has_room(self.percent)
    }

    /// Whether another incoming data connection may be accepted: half of the spare file descriptors are for links that are being set up.
    pub(crate) fn has_room_for_connections(&self) -> bool {
        self.has_room(self.percent / 2)
    }

    fn has_room(&self, percent: u64) -> bool {
        let limit = fds::limit();
        let spare = limit / 100 * percent;
        spare == 0 || self.any.as_ref().is_none_or(|any| fds::in_use(any) < limit - spare)
    }
}
