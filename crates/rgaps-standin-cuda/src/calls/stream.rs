//! Streams and their operations.

use std::ffi::c_void;
use std::sync::{Arc, MutexGuard};

use crate::abi::{
    HostFn, INVALID_CONTEXT, INVALID_HANDLE, INVALID_VALUE, NOT_SUPPORTED, Out, STREAM_LEGACY, STREAM_NON_BLOCKING,
    Status,
};
use crate::capture;
use crate::config::config;
use crate::current;
use crate::host::is_mapped;
use crate::host_call::HostCall;
use crate::operation::{End, Operation};
use crate::state::{Driver, ObjectKind, driver, new_handle};
use crate::stream::{QueuePosition, Stream};

calls! {
    /// Creates a stream of the current context.
    fn cuStreamCreate(stream: Out<u64>, flags: u32) {
        stream.give(|| {
            let context = current::current()?;
            if flags & !STREAM_NON_BLOCKING != 0 {
                return Err(INVALID_VALUE);
            }
            let stream = Stream::start(new_handle(ObjectKind::Stream), context, flags & STREAM_NON_BLOCKING == 0)?;
            driver()?.streams.insert(stream.id, stream.clone());
            Ok(stream.id)
        })
    }

    /// Destroys a stream; its queued operations still run.
    fn cuStreamDestroy_v2(stream: u64) {
        let mut driver = driver()?;
        let stream = driver.streams.remove(&stream).ok_or(INVALID_HANDLE)?;
        driver.closing.retain(|stream| !stream.end().is_passed());
        driver.closing.push(stream.clone());
        drop(driver);
        stream.close();
        stream.context.check()
    }

    /// Waits for all queued operations.
    fn cuStreamSynchronize(stream: u64) {
        let end = find(&*driver()?, stream)?.end();
        end.wait()
    }

    /// Whether all queued operations are done.
    fn cuStreamQuery(stream: u64) {
        let stream = find(&*driver()?, stream)?;
        stream.check()
    }

    /// Makes later operations wait for the event's newest record.
    fn cuStreamWaitEvent(stream: u64, event: u64, flags: u32) {
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        let driver = driver()?;
        let newest = driver.events.get(&event).ok_or(INVALID_HANDLE)?.newest.clone();
        match newest {
            Some(record) => push(driver, stream, Operation::Await(record)),
            None => find(&driver, stream)?.context.check(),
        }
    }

    /// Calls a host function.
    fn cuLaunchHostFunc(stream: u64, function: HostFn, argument: *mut c_void) {
        let function = function.ok_or(INVALID_VALUE)?;
        push(driver()?, stream, Operation::Call(HostCall { function, argument }))
    }

    /// Writes a word, after all queued operations.
    fn cuStreamWriteValue32_v2(stream: u64, address: u64, value: u32, flags: u32) {
        check_word(address, flags)?;
        push(driver()?, stream, Operation::WriteValue { address, value })
    }

    /// Makes later operations wait until the word, a wrapping counter, is at or past `value`: flags 0, which is GEQ.
    fn cuStreamWaitValue32_v2(stream: u64, address: u64, value: u32, flags: u32) {
        check_word(address, flags)?;
        push(driver()?, stream, Operation::WaitValue { address, value })
    }

    /// Device to host.
    fn cuMemcpyDtoHAsync_v2(to: u64, from: u64, bytes: usize, stream: u64) {
        copy(End::Registered(to), End::Device(from), bytes, stream)
    }

    /// Host to device.
    fn cuMemcpyHtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: u64) {
        copy(End::Device(to), End::Registered(from), bytes, stream)
    }

    /// Device to any host memory, in the null stream; waits for the copy.
    fn cuMemcpyDtoH_v2(to: u64, from: u64, bytes: usize) {
        copy_and_wait(End::Pageable(to), End::Device(from), to, bytes)
    }

    /// Any host memory to device, in the null stream; waits for the copy.
    fn cuMemcpyHtoD_v2(to: u64, from: u64, bytes: usize) {
        copy_and_wait(End::Device(to), End::Pageable(from), from, bytes)
    }

    /// Device to device.
    fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: u64) {
        copy(End::Device(to), End::Device(from), bytes, stream)
    }

    /// Device to device; each end is accessed by the device of its context.
    fn cuMemcpyPeerAsync(to: u64, to_context: u64, from: u64, from_context: u64, bytes: usize, stream: u64) {
        let (to, from) = (End::Of { context: to_context, address: to }, End::Of { context: from_context, address: from });
        copy(to, from, bytes, stream)
    }
}

/// The stream with this handle, or the null stream of the current context.
pub(super) fn find(driver: &Driver, stream: u64) -> Status<Arc<Stream>> {
    if stream > STREAM_LEGACY {
        return driver.streams.get(&stream).cloned().ok_or(INVALID_HANDLE);
    }
    let id = current::current_id()?;
    driver.primary(id).map(|primary| primary.null_stream.clone()).ok_or(INVALID_CONTEXT)
}

/// Queues an operation. The null stream keeps order with all streams that are not non-blocking.
pub(super) fn push(driver: MutexGuard<'_, Driver>, stream: u64, operation: Operation) -> Status {
    let stream = find(&driver, stream)?;
    stream.context.check()?;
    capture::check_work(stream.id)?;
    let others = driver.streams_of(stream.context.id);
    let is_null = others.first().is_some_and(|null| null.id == stream.id);
    let ordered = others.iter().enumerate().filter(|(index, other)| {
        other.id != stream.id && if is_null { other.blocking } else { stream.blocking && *index == 0 }
    });
    let after: Vec<QueuePosition> = ordered.map(|(_, other)| other.end()).filter(|place| !place.is_passed()).collect();
    stream.push(operation, after);
    Ok(())
}

fn copy(to: End, from: End, bytes: usize, stream: u64) -> Status {
    let driver = driver()?;
    for end in [to, from] {
        match end {
            End::Registered(address) => driver.registrations.check(address, bytes as u64)?,
            // The copy checks device addresses when it runs.
            End::Device(_) | End::Pageable(_) => {}
            End::Of { context, .. } => driver.context(context).ok_or(INVALID_CONTEXT)?.check()?,
        }
    }
    if bytes == 0 {
        return find(&driver, stream)?.context.check();
    }
    push(driver, stream, Operation::Copy { to, from, bytes: bytes as u64 })
}

/// Copies host memory in the null stream, and waits, since the memory must stay until the copy is over.
fn copy_and_wait(to: End, from: End, host: u64, bytes: usize) -> Status {
    let end = host.checked_add(bytes as u64).ok_or(INVALID_VALUE)?;
    if !is_mapped(host, end, matches!(to, End::Pageable(_))) {
        return Err(INVALID_VALUE);
    }
    copy(to, from, bytes, 0)?;
    let end = find(&*driver()?, 0)?.end();
    end.wait()
}

fn check_word(address: u64, flags: u32) -> Status {
    if !config().stream_memory_operations {
        return Err(NOT_SUPPORTED);
    }
    if flags == 0 && address != 0 && address.is_multiple_of(4) { Ok(()) } else { Err(INVALID_VALUE) }
}
