//! Descriptors that are lent to the user, from a publisher or a subscription, until they come back.

use std::ffi::c_void;
use std::sync::Mutex;

use crate::context::lock;
use crate::descriptor::Descriptor;

/// What is lent. It goes with its publisher or subscription.
#[derive(Default)]
#[allow(clippy::vec_box)] // Each is lent by its address, which must stay.
pub(crate) struct Loans(Mutex<Vec<Box<Descriptor>>>);

impl Loans {
    /// Lends one.
    pub(crate) fn lend(&self, descriptor: Descriptor) -> *mut c_void {
        let mut descriptor = Box::new(descriptor);
        let address = descriptor.as_mut_ptr();
        lock(&self.0).push(descriptor);
        address
    }

    /// Whether it is one of these.
    pub(crate) fn has(&self, message: *const c_void) -> bool {
        lock(&self.0).iter().any(|descriptor| std::ptr::eq(descriptor.as_ptr(), message))
    }

    /// Takes one back; false if it was not lent here, or came back before.
    pub(crate) fn take_back(&self, message: *const c_void) -> bool {
        let mut lent = lock(&self.0);
        let place = lent.iter().position(|descriptor| std::ptr::eq(descriptor.as_ptr(), message));
        place.map(|place| lent.swap_remove(place)).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_lent_comes_back_once() {
        let loans = Loans::default();
        let (one, other) = (loans.lend(Descriptor::zeroed()), loans.lend(Descriptor::zeroed()));
        assert!(loans.has(one) && loans.take_back(one));
        assert!(!loans.has(one) && !loans.take_back(one) && !loans.take_back(std::ptr::null()));
        assert!(loans.take_back(other));
    }
}
