//! Counts links with other hosts: one per topic, host and direction. Each costs threads, a socket and, if messages arrive on it, a ring.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rgaps_control::{Budget, HostId, Limits, OverBudget, Refusals};

use crate::budgets::FileDescriptors;

/// The number of links, by host and in total.
#[derive(Debug)]
pub(crate) struct Links {
    limits: Limits,
    refusals: Arc<Refusals>,
    fds: Arc<FileDescriptors>,
    by_host: Mutex<HashMap<HostId, usize>>,
}

/// A permit for one link. Dropping it returns it.
#[derive(Debug)]
pub(crate) struct LinkPermit {
    of: Arc<Links>,
    host: HostId,
}

impl Links {
    pub(crate) fn new(limits: &Limits, refusals: Arc<Refusals>, fds: Arc<FileDescriptors>) -> Self {
        Self { limits: limits.clone(), refusals, fds, by_host: Mutex::default() }
    }

    /// A permit for another link with a host.
    pub(crate) fn take(self: &Arc<Self>, host: HostId) -> Result<LinkPermit, OverBudget> {
        let mut by_host = self.by_host();
        let of_host = by_host.get(&host).copied().unwrap_or_default();
        // System calls last: other hosts decide how often this is tried.
        let over = if of_host >= self.limits.count(Budget::LinksOfHost) {
            Some(Budget::LinksOfHost)
        } else if by_host.values().sum::<usize>() >= self.limits.count(Budget::Links) {
            Some(Budget::Links)
        } else {
            (!self.fds.has_room_for_links()).then_some(Budget::SpareFds)
        };
        if let Some(over) = over {
            let budget = self.limits.over(over);
            if self.refusals.count(over) {
                tracing::warn!(%host, "a host gets no more links ({budget}); rgaps doctor counts the refused ones");
            }
            return Err(budget);
        }
        by_host.insert(host, of_host + 1);
        Ok(LinkPermit { of: self.clone(), host })
    }

    fn by_host(&self) -> MutexGuard<'_, HashMap<HostId, usize>> {
        self.by_host.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for LinkPermit {
    fn drop(&mut self) {
        let mut by_host = self.of.by_host();
        if let Some(count) = by_host.get_mut(&self.host) {
            *count -= 1;
            if *count == 0 {
                by_host.remove(&self.host);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budgets::Budgets;

    #[test]
    fn links_are_bounded_by_host_and_in_total_and_are_returned() {
        let limits = Limits { links_max: 3, links_host_max: 2, ..Limits::default() };
        let links = Budgets::new(&limits).links;
        let (one, other) = (HostId([1; 16]), HostId([2; 16]));
        let first = links.take(one).unwrap();
        let _second = links.take(one).unwrap();
        assert_eq!(links.take(one).unwrap_err().to_string(), "links_host_max = 2");
        let _third = links.take(other).unwrap();
        assert_eq!(links.take(other).unwrap_err().to_string(), "links_max = 3");
        drop(first);
        assert!(links.take(other).is_ok() && links.by_host().len() == 2);
    }
}
