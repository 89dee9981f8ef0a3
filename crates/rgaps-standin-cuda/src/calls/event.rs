//! Events.

use std::sync::Arc;

use crate::abi::{INVALID_HANDLE, INVALID_VALUE, Out, Status};
use crate::current;
use crate::event::{Event, Record};
use crate::operation::Operation;
use crate::state::{ObjectKind, driver, new_handle};

/// CU_EVENT_BLOCKING_SYNC and CU_EVENT_DISABLE_TIMING.
const FLAGS: u32 = 1 | 2;

calls! {
    /// Creates an event of the current context.
    fn cuEventCreate(event: Out<u64>, flags: u32) {
        event.give(|| {
            let context = current::current()?;
            if flags & !FLAGS != 0 {
                return Err(INVALID_VALUE);
            }
            let id = new_handle(ObjectKind::Event);
            driver()?.events.insert(id, Event { context, newest: None });
            Ok(id)
        })
    }

    /// Destroys an event; waits for its record continue.
    fn cuEventDestroy_v2(event: u64) {
        let event = driver()?.events.remove(&event).ok_or(INVALID_HANDLE)?;
        event.context.check()
    }

    /// Records an event in a stream of the same context.
    fn cuEventRecord(event: u64, stream: u64) {
        let mut driver = driver()?;
        let context = super::stream::find(&driver, stream)?.context.clone();
        context.check()?;
        let recorded = driver.events.get_mut(&event).filter(|event| event.context.id == context.id).ok_or(INVALID_HANDLE)?;
        let record = Arc::new(Record::default());
        recorded.newest = Some(record.clone());
        super::stream::push(driver, stream, Operation::Record(record))
    }

    /// Whether the stream has reached the event's newest record.
    fn cuEventQuery(event: u64) {
        newest(event)?.map_or(Ok(()), |record| record.check())
    }

    /// Waits for the newest record.
    fn cuEventSynchronize(event: u64) {
        newest(event)?.map_or(Ok(()), |record| record.wait())
    }
}

/// The newest record; an error if the context has failed.
fn newest(event: u64) -> Status<Option<Arc<Record>>> {
    let driver = driver()?;
    let event = driver.events.get(&event).ok_or(INVALID_HANDLE)?;
    event.context.check()?;
    Ok(event.newest.clone())
}
