//! The operations of a stream: copies, memory operations on words, events, host functions.
//!
//! An operation looks its memory up when it runs, like hardware. Memory that was unmapped or unregistered since, or that it may not write,
//! is an illegal address, and the context fails.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use crate::abi::{CONTEXT_IS_DESTROYED, Code, ILLEGAL_ADDRESS, PROT_READWRITE, Status};
use crate::context::Context;
use crate::event::Record;
use crate::gate;
use crate::host_call::HostCall;
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
    /// Any host address; the caller waits for the copy.
    Pageable(u64),
    /// A device address, accessed by the device of this context instead of the stream's.
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
    /// Waits until the word, a wrapping counter, is at or past `value`.
    WaitValue {
        address: u64,
        value: u32,
    },
    WriteValue {
        address: u64,
        value: u32,
    },
    Call(HostCall),
    /// Gives the stream's device access to stream-ordered memory.
    Allocate {
        address: u64,
        bytes: u64,
    },
    /// Frees it.
    Free {
        address: u64,
    },
}

impl Operation {
    /// Runs it in a stream of this context; its error fails the context.
    pub(crate) fn run(&self, context: &Context) -> Status {
        context.check()?;
        let pass = gate::pass(|| context.check())?;
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
            // The rest may take any time, so the gate does not count them.
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
                call.run();
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
        // SAFETY: `_keep` keeps both parts mapped for `step` bytes. If the program does not order its work, other threads may write
        // them at the same time: memmove(3) is opaque to the compiler, so the bytes are only torn.
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

/// `CU_STREAM_WAIT_VALUE_GEQ`: compares the signed difference, since counters wrap.
fn is_reached(word: u32, value: u32) -> bool {
    word.wrapping_sub(value) as i32 >= 0
}

/// Accesses the word at a device address.
fn with_word<T>(context: &Context, address: u64, wanted: Use, look: impl FnOnce(&AtomicU32) -> T) -> Status<T> {
    let parts = parts(context, End::Device(address), 4, wanted)?;
    let part = parts.first().filter(|part| part.bytes == 4 && part.start.cast::<u32>().is_aligned());
    let part = part.ok_or(ILLEGAL_ADDRESS)?;
    // SAFETY: mapped for 4 bytes while `part` lives, aligned, and accessed by atomics or in the program's order.
    Ok(look(unsafe { AtomicU32::from_ptr(part.start.cast()) }))
}

impl Part {
    /// Advances its start; returns whether bytes are left.
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
    fn a_wrapping_word_is_compared_by_the_difference() {
        assert!(is_reached(5, 5) && is_reached(3, u32::MAX));
        assert!(!is_reached(u32::MAX, 3) && !is_reached(4, 5));
    }
}
