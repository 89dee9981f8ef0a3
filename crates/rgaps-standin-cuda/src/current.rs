//! Each thread's current context.

use std::cell::RefCell;
use std::sync::Arc;

use crate::abi::{CONTEXT_IS_DESTROYED, INVALID_CONTEXT, Status};
use crate::context::Context;
use crate::state::driver;

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
