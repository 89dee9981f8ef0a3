//! What tells the baseline's subscribers that there is a message: iceoryx2's event service, or a futex where that is not built in.

use rgaps_shm::notify::{Wait, Wake};

use super::super::page::Page;
use crate::bench::BenchError;

/// For people.
pub(super) const BELL: &str = if cfg!(feature = "iceoryx2") { "iceoryx2" } else { "a futex (built without iceoryx2)" };

/// The side that tells.
#[cfg(feature = "iceoryx2")]
pub(super) fn waking(_: &Page, service: &str) -> Result<Box<dyn Wake>, BenchError> {
    Ok(Box::new(rgaps_shm::notify::iceoryx::IceoryxWake::new(service).map_err(failed)?))
}

/// The side that is told.
#[cfg(feature = "iceoryx2")]
pub(super) fn waiting(_: &Page, service: &str) -> Result<Box<dyn Wait>, BenchError> {
    Ok(Box::new(rgaps_shm::notify::iceoryx::IceoryxWait::new(service).map_err(failed)?))
}

#[cfg(feature = "iceoryx2")]
fn failed(cause: impl std::fmt::Display) -> BenchError {
    BenchError::failed("iceoryx2", cause)
}

/// The side that tells.
#[cfg(not(feature = "iceoryx2"))]
pub(super) fn waking(page: &Page, _: &str) -> Result<Box<dyn Wake>, BenchError> {
    Ok(Box::new(super::super::notify::BareWake(page.again()?)))
}

/// The side that is told.
#[cfg(not(feature = "iceoryx2"))]
pub(super) fn waiting(page: &Page, _: &str) -> Result<Box<dyn Wait>, BenchError> {
    Ok(Box::new(super::super::notify::BareWait { page: page.again()?, seen: 0 }))
}
