//! Descriptors that a publisher or subscription has loaned to the user and that are not returned yet.

use std::ffi::c_void;
use std::sync::Mutex;

use crate::descriptor::Descriptor;
use crate::ffi::refuse;
use crate::lock::lock;
use crate::rcutils::{self, Severity};
use crate::sys::{RMW_RET_ERROR, rmw_ret_t};

/// Most descriptors that one publisher or subscription loans at once: more than a topic can have messages.
const LENT_MAX: usize = 4096;

/// The loaned descriptors. Those not returned when the publisher or subscription is destroyed are leaked, since the user may still write to them.
#[derive(Default)]
#[allow(clippy::vec_box)] // Each is loaned by its address, which must not change.
pub(crate) struct Loans(Mutex<Vec<Box<Descriptor>>>);

impl Loans {
    /// Loans one; None if too many are loaned already.
    pub(crate) fn lend(&self, descriptor: Descriptor) -> Option<*mut c_void> {
        let mut lent = lock(&self.0);
        if lent.len() == LENT_MAX {
            return None;
        }
        let mut descriptor = Box::new(descriptor);
        let address = descriptor.as_mut_ptr();
        lent.push(descriptor);
        Some(address)
    }

    /// Whether the limit is reached.
    pub(crate) fn is_full(&self) -> bool {
        lock(&self.0).len() == LENT_MAX
    }

    /// Fails a call because the limit is reached.
    pub(crate) fn refuse(&self, topic: &str) -> rmw_ret_t {
        refuse(RMW_RET_ERROR, format_args!("{topic}: {LENT_MAX} messages are lent already; return some of them"))
    }

    /// Whether the message is one of these.
    pub(crate) fn has(&self, message: *const c_void) -> bool {
        lock(&self.0).iter().any(|descriptor| std::ptr::eq(descriptor.as_ptr(), message))
    }

    /// Takes one back; false if it was not loaned here, or already returned.
    pub(crate) fn take_back(&self, message: *const c_void) -> bool {
        let mut lent = lock(&self.0);
        let place = lent.iter().position(|descriptor| std::ptr::eq(descriptor.as_ptr(), message));
        place.map(|place| lent.swap_remove(place)).is_some()
    }
}

impl Drop for Loans {
    fn drop(&mut self) {
        let lent = std::mem::take(&mut *lock(&self.0));
        if !lent.is_empty() {
            let next = "return loans before the publisher or subscription is destroyed";
            rcutils::log(
                Severity::Warn,
                format_args!("{} lent messages never came back, and stay; {next}", lent.len()),
            );
        }
        lent.into_iter().for_each(std::mem::forget);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loan_is_returned_once() {
        let loans = Loans::default();
        let lend = || loans.lend(Descriptor::zeroed());
        let (one, other) = (lend().unwrap(), lend().unwrap());
        assert!(loans.has(one) && loans.take_back(one));
        assert!(!loans.has(one) && !loans.take_back(one) && !loans.take_back(std::ptr::null()));
        assert!(loans.take_back(other));
        let all: Vec<*mut c_void> = std::iter::from_fn(lend).collect();
        assert!(all.len() == LENT_MAX && loans.is_full() && lend().is_none(), "what never comes back is bounded");
        assert!(loans.take_back(all[0]) && !loans.is_full() && lend().is_some());
    }
}
