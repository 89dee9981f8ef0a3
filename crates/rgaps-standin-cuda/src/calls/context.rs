//! Primary contexts, and each thread's current context.

use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::abi::{INVALID_CONTEXT, Out, Status};
use crate::config::config;
use crate::context::Context;
use crate::current;
use crate::state::{Driver, ObjectKind, Primary, driver, new_handle};
use crate::stream::{QueuePosition, Stream};

calls! {
    /// Retains the device's primary context; the first retain creates it.
    fn cuDevicePrimaryCtxRetain(context: Out<u64>, device: c_int) {
        context.give(|| {
            let mut driver = driver()?;
            let (index, device) = driver.device(device)?;
            if let Some(primary) = &mut device.primary {
                primary.retained += 1;
                return Ok(primary.context.id);
            }
            let context = Arc::new(Context::new(new_handle(ObjectKind::Context), index));
            let id = context.id;
            let null_stream = Stream::start(new_handle(ObjectKind::Stream), context.clone(), true)?;
            device.primary = Some(Primary { context, retained: 1, null_stream });
            Ok(id)
        })
    }

    /// Releases it; the last release ends the context with all its objects.
    fn cuDevicePrimaryCtxRelease_v2(device: c_int) {
        let mut driver = driver()?;
        let (_, device) = driver.device(device)?;
        let primary = device.primary.as_mut().ok_or(INVALID_CONTEXT)?;
        primary.retained -= 1;
        if primary.retained > 0 {
            return Ok(());
        }
        let context = primary.context.clone();
        let under_way = end(&mut driver, &context);
        if let Ok((_, device)) = driver.device(context.device as c_int) {
            device.primary = None;
        }
        drop(driver);
        under_way.iter().for_each(QueuePosition::drain);
        Ok(())
    }

    /// Pushes a context, which becomes current in this thread.
    fn cuCtxPushCurrent_v2(context: u64) {
        current::push(context)
    }

    /// Pops the current context; `context` may be null.
    fn cuCtxPopCurrent_v2(context: Out<u64>) {
        let popped = current::pop()?;
        if context.check().is_ok() { context.set(popped) } else { Ok(()) }
    }

    /// This thread's current context, null if there is none.
    fn cuCtxGetCurrent(context: Out<u64>) {
        drop(driver()?);
        context.set(current::current_id()?)
    }

    /// Replaces this thread's current context.
    fn cuCtxSetCurrent(context: u64) {
        current::replace(context)
    }

    /// Waits for all streams of the current context.
    fn cuCtxSynchronize() {
        let context = current::current()?;
        let streams = driver()?.streams_of(context.id);
        let ends: Vec<QueuePosition> = streams.iter().map(Stream::end).collect();
        ends.iter().try_for_each(QueuePosition::wait)
    }

    /// Free and total bytes of the device.
    fn cuMemGetInfo_v2(free: Out<usize>, total: Out<usize>) {
        let (free_bytes, total_bytes) = memory_info()?;
        free.set(free_bytes)?;
        total.set(total_bytes)
    }
}

/// Ends a context. Returns the ends of its streams, for which the caller waits once it has unlocked the tables.
fn end(driver: &mut Driver, context: &Context) -> Vec<QueuePosition> {
    context.end();
    let mut streams = driver.streams_of(context.id);
    streams.extend(driver.closing.extract_if(.., |stream| stream.context.id == context.id));
    let before = driver.streams.len() + driver.events.len() + driver.registrations.0.len();
    driver.streams.retain(|_, stream| stream.context.id != context.id);
    driver.events.retain(|_, event| event.context.id != context.id);
    driver.registrations.0.retain(|_, registration| registration.context != context.id);
    let after = driver.streams.len() + driver.events.len() + driver.registrations.0.len();
    let ordered: Vec<(u64, bool)> =
        driver.ordered.iter().filter(|(_, of)| of.context == context.id).map(|(at, of)| (*at, of.is_freed)).collect();
    ordered.iter().for_each(|(address, _)| driver.free_ordered(*address));
    let kept = ordered.iter().filter(|(_, is_freed)| !is_freed).count();
    driver.orphans += (before - after + kept) as u64;
    streams.iter().for_each(|stream| stream.close());
    streams.iter().map(Stream::end).collect()
}

fn memory_info() -> Status<(usize, usize)> {
    let context = current::current()?;
    let mut driver = driver()?;
    let (_, device) = driver.device(context.device as c_int)?;
    let (used, total) = (device.used.load(Ordering::Relaxed), config().memory);
    Ok((total.saturating_sub(used) as usize, total as usize))
}
