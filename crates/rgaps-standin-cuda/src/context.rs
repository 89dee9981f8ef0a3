//! Contexts: the primary context of each device, each thread's current context, and a context's sticky error.
//!
//!   retained ──failed operation──▶ failed (each later call returns its code) ──last release──▶ gone (709)
//!
//! Words       `failed` is set once, by the worker whose operation failed; `gone` once, by the last release.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use crate::abi::{CONTEXT_IS_DESTROYED, Code, INVALID_CONTEXT, Status};
use crate::gate;
use crate::state::driver;

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

thread_local! {
    static CURRENT: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

/// Accesses this thread's context stack, with the current context last.
fn stack<T>(look: impl FnOnce(&mut Vec<u64>) -> T) -> Status<T> {
    CURRENT.try_with(|stack| look(&mut stack.borrow_mut())).map_err(|_| INVALID_CONTEXT)
}

/// The current context; an error if there is none or it has failed.
pub(crate) fn current() -> Status<Arc<Context>> {
    let context = current_even_failed()?;
    context.check()?;
    Ok(context)
}

/// The current context, even if it has failed; an error if there is none.
pub(crate) fn current_even_failed() -> Status<Arc<Context>> {
    let driver = driver()?;
    let id = stack(|stack| stack.last().copied())?.ok_or(INVALID_CONTEXT)?;
    driver.context(id).ok_or(CONTEXT_IS_DESTROYED)
}

/// The error of the current context, if there is one. For calls that need no context, but fail if the current one has failed.
pub(crate) fn check_current() -> Status {
    match current_even_failed() {
        Ok(context) => context.check(),
        Err(INVALID_CONTEXT) => Ok(()),
        Err(code) => Err(code),
    }
}

/// The current context's handle, null if there is none.
pub(crate) fn current_id() -> Status<u64> {
    Ok(stack(|stack| stack.last().copied())?.unwrap_or(0))
}

/// Pushes a context, which becomes current.
pub(crate) fn push(id: u64) -> Status {
    driver()?.context(id).ok_or(INVALID_CONTEXT)?;
    stack(|stack| stack.push(id))
}

/// Pops the current context.
pub(crate) fn pop() -> Status<u64> {
    drop(driver()?);
    stack(Vec::pop)?.ok_or(INVALID_CONTEXT)
}

/// Replaces the current context; null only pops it.
pub(crate) fn replace(id: u64) -> Status {
    if id != 0 {
        driver()?.context(id).ok_or(INVALID_CONTEXT)?;
    }
    stack(|stack| {
        stack.pop();
        if id != 0 {
            stack.push(id);
        }
    })
}
