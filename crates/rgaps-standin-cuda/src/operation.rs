//! What a stream runs: copies, values, events, functions of the program.
//!
//! Memory is looked up when the operation runs, as hardware does: what was unmapped or unregistered in between, or may not be
//! written, is an illegal address, and the context fails.

use std::cell::Cell;
use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use crate::abi::{CONTEXT_IS_DESTROYED, Code, ILLEGAL_ADDRESS, PROT_READWRITE, Status};
use crate::context::Context;
use crate::event::Record;
use crate::gate;
use crate::range::{Keep, Part, Refusal, Use};
use crate::state::driver;
use crate::stream::POLL;

/// One end of a copy.
#[derive(Clone, Copy, Debug)]
pub(crate) enum End {
    /// A device address, also of registered host memory.
    Device(u64),
    /// A host address in registered memory.
    Registered(u64),
    /// Any host address, of a caller that waits.
    Pageable(u64),
    /// A device address, reached by the device of this context and not by the stream's.
    Of { context: u64, address: u64 },
}

/// An operation in a queue.
#[derive(Debug)]
pub(crate) enum Operation {
    Copy {
        to: End,
        from: End,
        bytes: u64,
    },
    Record(Arc<Record>),
    Await(Arc<Record>),
    /// Waits until the word, seen as a number that goes round, is `value` or beyond.
    WaitValue {
        address: u64,
        value: u32,
    },
    WriteValue {
        address: u64,
        value: u32,
    },
    Call(HostCall),
    /// From now on the stream's device accesses memory that was allocated in its order.
    Allocate {
        address: u64,
        bytes: u64,
    },
    /// Takes it away.
    Free {
        address: u64,
    },
}

/// A function of the program with its argument.
#[derive(Debug)]
pub(crate) struct HostCall {
    pub function: unsafe extern "C" fn(*mut c_void),
    pub argument: *mut c_void,
}

// SAFETY: the program hands both over to be called in another thread: that is what cuLaunchHostFunc says.
unsafe impl Send for HostCall {}

thread_local! {
    static IN_HOST_FUNCTION: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread runs a function of the program for a stream.
pub(crate) fn in_host_function() -> bool {
    IN_HOST_FUNCTION.try_with(Cell::get).unwrap_or(false)
}

impl Operation {
    /// Runs it in a stream of this context; its error fails the context.
    pub(crate) fn run(&self, context: &Context) -> Status {
        context.check()?;
        let pass = gate::pass(context)?;
        match self {
            Self::Copy { to, from, bytes } => copy(context, *to, *from, *bytes),
            Self::Record(_) => Ok(()),
            Self::Allocate { address, bytes } => {
                driver()?.ranges.set_access(*address, *bytes, context.device, PROT_READWRITE)
            }
            Self::Free { address } => {
                driver()?.free_ordered(*address);
                Ok(())
            }
            Self::WriteValue { address, value } => with_word(context, *address, Use::Write, |word| {
                word.store(*value, Ordering::Release);
            }),
            // These may take any time, so that the gate does not count them.
            Self::Await(record) => {
                drop(pass);
                while !record.is_over_within(POLL) {
                    context.check()?;
                }
                Ok(())
            }
            Self::WaitValue { address, value } => {
                drop(pass);
                let holds = |word: &AtomicU32| is_reached(word.load(Ordering::Acquire), *value);
                while !with_word(context, *address, Use::Read, holds)? {
                    context.check()?;
                    thread::sleep(POLL);
                }
                Ok(())
            }
            Self::Call(call) => {
                drop(pass);
                IN_HOST_FUNCTION.set(true);
                // SAFETY: the program handed over a function that takes this argument in any thread.
                unsafe { (call.function)(call.argument) };
                IN_HOST_FUNCTION.set(false);
                Ok(())
            }
        }
    }
}

fn parts(context: &Context, end: End, bytes: u64, wanted: Use) -> Status<Vec<Part>> {
    let illegal = |_: Refusal| -> Code { ILLEGAL_ADDRESS };
    match end {
        End::Device(address) => driver()?.parts(address, bytes, context.device, wanted).map_err(illegal),
        End::Of { context, address } => {
            let driver = driver()?;
            let context = driver.context(context).ok_or(CONTEXT_IS_DESTROYED)?;
            context.check()?;
            driver.parts(address, bytes, context.device, wanted).map_err(illegal)
        }
        End::Registered(address) => Ok(vec![driver()?.registrations.part(address, bytes, wanted).map_err(illegal)?]),
        End::Pageable(address) => Ok(vec![Part { start: address as *mut u8, bytes, _keep: Keep::Caller }]),
    }
}

fn copy(context: &Context, to: End, from: End, bytes: u64) -> Status {
    let (to, from) = (parts(context, to, bytes, Use::Write)?, parts(context, from, bytes, Use::Read)?);
    let (mut to, mut from) = (to.into_iter(), from.into_iter());
    let (mut target, mut source) = (to.next(), from.next());
    while let (Some(into), Some(of)) = (&mut target, &mut source) {
        let step = into.bytes.min(of.bytes);
        // SAFETY: both parts are mapped for `step` bytes and kept so by `_keep`. Others may write them at the same time if the program does not order its work: memmove(3) is opaque to the compiler, the bytes are torn, no more.
        unsafe { libc::memmove(into.start.cast(), of.start.cast(), step as usize) };
        if !into.advance(step) {
            target = to.next();
        }
        if !of.advance(step) {
            source = from.next();
        }
    }
    Ok(())
}

/// `CU_STREAM_WAIT_VALUE_GEQ`: the difference counts, since numbers go round.
fn is_reached(word: u32, value: u32) -> bool {
    word.wrapping_sub(value) as i32 >= 0
}

/// Looks at the word at a device address.
fn with_word<T>(context: &Context, address: u64, wanted: Use, look: impl FnOnce(&AtomicU32) -> T) -> Status<T> {
    let parts = parts(context, End::Device(address), 4, wanted)?;
    let part = parts.first().filter(|part| part.bytes == 4 && part.start.cast::<u32>().is_aligned());
    let part = part.ok_or(ILLEGAL_ADDRESS)?;
    // SAFETY: mapped for 4 bytes while `part` lives, aligned, and touched by atomics or as the program orders its work.
    Ok(look(unsafe { AtomicU32::from_ptr(part.start.cast()) }))
}

impl Part {
    /// Moves its beginning on; whether something is left.
    fn advance(&mut self, bytes: u64) -> bool {
        // SAFETY: at most the part's length.
        self.start = unsafe { self.start.add(bytes as usize) };
        self.bytes -= bytes;
        self.bytes > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_that_goes_round_is_compared_by_the_difference() {
        assert!(is_reached(5, 5) && is_reached(3, u32::MAX));
        assert!(!is_reached(u32::MAX, 3) && !is_reached(4, 5));
    }
}
