//! Subscriptions of this process whose subscriber could not be made, or was cut off by the core. They are made when something hints that the manager
//! answers: middleware tells a backend of nothing that happens later.

use std::collections::HashSet;
use std::sync::Mutex;
use std::time::Instant;

use rgaps::NodeError;

use super::gid::{Gid, lock};
use super::shared::{has_timed_out, is_recent};

/// How many are remembered.
const MISSING_MAX: usize = 4096;

#[derive(Debug, Default)]
pub(super) struct Missing(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    all: HashSet<Gid>,
    /// When the manager last did not answer for one.
    failed: Option<Instant>,
    /// When all were last tried.
    tried: Option<Instant>,
    /// When cut-off ones were last looked for.
    searched: Option<Instant>,
}

impl Missing {
    /// Whether a subscriber is made later, since the manager has not answered a moment ago.
    pub(super) fn is_put_off(&self, gid: Gid) -> bool {
        let mut inner = lock(&self.0);
        let is_put_off = is_recent(inner.failed) && inner.all.len() < MISSING_MAX;
        if is_put_off {
            inner.all.insert(gid);
        }
        is_put_off
    }

    /// Notes whether one could be made.
    pub(super) fn note(&self, gid: Gid, error: Option<&NodeError>) {
        let mut inner = lock(&self.0);
        inner.failed = error.filter(|error| has_timed_out(error)).map(|_| Instant::now());
        match error {
            Some(_) if inner.all.len() < MISSING_MAX => drop(inner.all.insert(gid)),
            Some(_) => {}
            None => drop(inner.all.remove(&gid)),
        }
    }

    /// Calls `begin`, which has them made, if there are some and that was not tried a moment ago. Never waits.
    pub(super) fn make(&self, cut_off: impl FnOnce() -> Vec<Gid>, begin: impl FnOnce() -> bool) {
        let mut inner = lock(&self.0);
        if !is_recent(inner.searched) {
            inner.searched = Some(Instant::now());
            inner.all.extend(cut_off());
        }
        let is_due = !inner.all.is_empty() && !is_recent(inner.tried);
        if is_due && begin() {
            inner.tried = Some(Instant::now());
        }
    }

    /// Takes all, to make them now.
    pub(super) fn take(&self) -> Vec<Gid> {
        lock(&self.0).all.drain().collect()
    }

    /// Puts back those that were not made.
    pub(super) fn put_back(&self, left: impl IntoIterator<Item = Gid>) {
        let mut inner = lock(&self.0);
        inner.all.extend(left);
        inner.tried = Some(Instant::now());
    }
}
