//! Wakes the baseline's subscribers for a message: iceoryx2's event service, or a futex if the bench is built without iceoryx2.

use rgaps_shm::notify::{Wait, Wake};

use crate::BenchError;
use crate::page::Page;

/// Its name for people.
pub(super) const BELL: &str = if cfg!(feature = "iceoryx2") { "iceoryx2" } else { "a futex (built without iceoryx2)" };

/// The notifying side.
#[cfg(feature = "iceoryx2")]
pub(super) fn waking(_: &Page, service: &str) -> Result<Box<dyn Wake>, BenchError> {
    Ok(Box::new(rgaps_shm::notify::iceoryx::IceoryxWake::new(service).map_err(failed)?))
}

/// The waiting side.
#[cfg(feature = "iceoryx2")]
pub(super) fn waiting(_: &Page, service: &str) -> Result<Box<dyn Wait>, BenchError> {
    Ok(Box::new(rgaps_shm::notify::iceoryx::IceoryxWait::new(service).map_err(failed)?))
}

#[cfg(feature = "iceoryx2")]
fn failed(cause: impl std::fmt::Display) -> BenchError {
    BenchError::failed("iceoryx2", cause)
}

/// The notifying side.
#[cfg(not(feature = "iceoryx2"))]
pub(super) fn waking(page: &Page, _: &str) -> Result<Box<dyn Wake>, BenchError> {
    Ok(Box::new(crate::notify::BareWake(page.again()?)))
}

/// The waiting side.
#[cfg(not(feature = "iceoryx2"))]
pub(super) fn waiting(page: &Page, _: &str) -> Result<Box<dyn Wait>, BenchError> {
    Ok(Box::new(crate::notify::BareWait { page: page.again()?, seen: 0 }))
}
