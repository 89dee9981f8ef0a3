//! Whether a network card accesses this host's device memory itself (GPUDirect RDMA). It is tried once for each card, and given up when it fails.
//!
//! ```text
//!   accessed    pool ══ sender's card ══════════════════ receiver's card ══▶ granted block     large messages; small ones end in the ring
//!   not         pool ─path 1─▶ staging ══▶ … ══▶ ring ─path 3─▶ block
//! ```
//!
//! Each side decides for itself. The log and the status of a link have the reason, once.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use rgaps_device::{Backend, PoolSpec};
use rgaps_link::rdma::Domain;

/// Bytes of the pool with which a card is tried.
const TRIED_BYTES: u64 = 4096;
/// Links whose grants were of no use, in a row, after which nothing more is granted: a device may register memory and then refuse to access it.
const FRUITLESS_MAX: u32 = 2;

/// What is known about one card and this host's device.
#[derive(Debug, Default)]
pub(crate) struct DeviceAccess {
    refused: OnceLock<String>,
    /// A message has landed in device memory.
    has_landed: AtomicBool,
    fruitless: AtomicU32,
}

impl DeviceAccess {
    /// Tries it: exports memory of the device and registers it.
    pub(crate) fn tried(backend: &dyn Backend, domain: &Domain) -> Self {
        let access = Self::default();
        if let Err(why) = attempt(backend, domain) {
            tracing::info!(why, "messages of this host's device go through host memory");
            let _ = access.refused.set(why);
        }
        access
    }

    /// It is not tried.
    pub(crate) fn refused(why: &str) -> Self {
        Self { refused: OnceLock::from(why.to_owned()), ..Self::default() }
    }

    /// Why not.
    pub(crate) fn refusal(&self) -> Option<&str> {
        self.refused.get().map(String::as_str)
    }

    /// Gives it up: the card, or the device's driver, has failed with it.
    pub(crate) fn give_up(&self, why: String) {
        tracing::warn!(why, "messages of this host's device go through host memory from now on");
        let _ = self.refused.set(why);
    }

    /// A message has landed in device memory.
    pub(crate) fn note_landed(&self) {
        self.has_landed.store(true, Ordering::Relaxed);
    }

    /// A link has failed over which device memory was granted.
    pub(crate) fn note_failed_link(&self, why: &str) {
        let is_fruitless = !self.has_landed.load(Ordering::Relaxed);
        if is_fruitless && self.fruitless.fetch_add(1, Ordering::Relaxed) + 1 == FRUITLESS_MAX {
            self.give_up(format!(
                "{FRUITLESS_MAX} links failed before a message landed in device memory, the last so: {why}"
            ));
        }
    }
}

fn attempt(backend: &dyn Backend, domain: &Domain) -> Result<(), String> {
    let spec = PoolSpec { name: "rgaps-tried".to_owned(), bytes: TRIED_BYTES };
    let pool = backend.create_pool(&spec).map_err(|error| error.to_string())?;
    let (memory, _) = pool.dma_buf(0, TRIED_BYTES).map_err(|error| error.to_string())?;
    domain.try_device_memory(&memory).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_that_fails_twice_before_anything_has_landed_is_given_up() {
        let access = DeviceAccess::default();
        access.note_failed_link("one");
        assert_eq!(access.refusal(), None);
        access.note_failed_link("two");
        assert!(access.refusal().is_some_and(|why| why.ends_with(": two")), "{access:?}");
        access.give_up("three".to_owned());
        assert!(access.refusal().is_some_and(|why| why.ends_with(": two")), "the first reason stays");
    }

    #[test]
    fn a_card_that_has_written_device_memory_is_not_given_up_when_links_fail() {
        let access = DeviceAccess::default();
        access.note_failed_link("one");
        access.note_landed();
        (0..9).for_each(|_| access.note_failed_link("more"));
        assert_eq!(access.refusal(), None);
    }
}
