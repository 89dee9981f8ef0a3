//! Contexts: the primary context of each device, and its sticky error.
//!
//!   retained ──failed operation──▶ failed (each later call returns its code) ──last release──▶ gone (709)
//!
//! Words       `failed` is set once, by the worker whose operation failed; `gone` once, by the last release.

use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use crate::abi::{CONTEXT_IS_DESTROYED, Code, Status};
use crate::gate;

/// A device's context, from its first retain to its last release.
#[derive(Debug)]
pub(crate) struct Context {
    pub id: u64,
    /// The device's ordinal.
    pub device: usize,
    failed: AtomicI32,
    gone: AtomicBool,
}

impl Context {
    pub(crate) fn new(id: u64, device: usize) -> Self {
        Self { id, device, failed: AtomicI32::new(0), gone: AtomicBool::new(false) }
    }

    /// The error that every call with this context returns, if there is one.
    pub(crate) fn check(&self) -> Status {
        if self.gone.load(Ordering::Acquire) {
            return Err(CONTEXT_IS_DESTROYED);
        }
        match self.failed.load(Ordering::Acquire) {
            0 => Ok(()),
            code => Err(code),
        }
    }

    /// Records a failed operation: the first error stays, and queued operations are dropped.
    pub(crate) fn fail(&self, code: Code) {
        let _ = self.failed.compare_exchange(0, code, Ordering::AcqRel, Ordering::Acquire);
        gate::wake();
    }

    /// Ends the context at its last release: no more operations run.
    pub(crate) fn end(&self) {
        self.gone.store(true, Ordering::Release);
        gate::wake();
    }
}
