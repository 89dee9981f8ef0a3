//! Host memory registered with the driver.
//!
//! A registration for devices has a device address that differs from the host address on purpose: a program that confuses them fails.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::abi::{
    ALREADY_REGISTERED, INVALID_VALUE, NOT_REGISTERED, NOT_SUPPORTED, REGISTER_DEVICEMAP, REGISTER_READ_ONLY, Status,
};
use crate::config::config;
use crate::range::{Keep, Part, Refusal, Use};
use crate::reservation::{PAGE, Reservation};

/// A registration.
#[derive(Debug)]
pub(crate) struct Registration {
    pub bytes: u64,
    flags: u32,
    /// The context of its creation.
    pub context: u64,
    /// Addresses for devices, with the same offset in the page as the host address.
    mapped: Option<Reservation>,
    /// Cloned by each operation that uses the memory.
    token: Arc<()>,
}

/// All registrations, by host address.
#[derive(Debug, Default)]
pub(crate) struct Registrations(pub BTreeMap<u64, Registration>);

impl Registrations {
    /// Registers host memory, all of which must be mapped.
    pub(crate) fn register(&mut self, address: u64, bytes: u64, flags: u32, context: u64) -> Status {
        let end = address.checked_add(bytes).ok_or(INVALID_VALUE)?;
        // PORTABLE, DEVICEMAP and READ_ONLY.
        if address == 0 || bytes == 0 || flags & !0b1011 != 0 {
            return Err(INVALID_VALUE);
        }
        if flags & REGISTER_READ_ONLY != 0 && !config().read_only_register {
            return Err(NOT_SUPPORTED);
        }
        if self.0.range(..end).next_back().is_some_and(|(start, other)| start + other.bytes > address) {
            return Err(ALREADY_REGISTERED);
        }
        if !is_mapped(address, end, flags & REGISTER_READ_ONLY == 0) {
            return Err(INVALID_VALUE);
        }
        let for_devices = flags & REGISTER_DEVICEMAP != 0;
        let mapped = for_devices.then(|| Reservation::new(address % PAGE + bytes, PAGE)).transpose()?;
        self.0.insert(address, Registration { bytes, flags, context, mapped, token: Arc::new(()) });
        Ok(())
    }

    /// Removes a registration; `None` while an operation uses it.
    pub(crate) fn unregister(&mut self, address: u64) -> Status<Option<Registration>> {
        let registration = self.0.get(&address).ok_or(NOT_REGISTERED)?;
        if Arc::strong_count(&registration.token) > 1 {
            return Ok(None);
        }
        Ok(self.0.remove(&address))
    }

    /// The device address of registered memory.
    pub(crate) fn device_address(&self, address: u64) -> Status<u64> {
        let (start, registration) = self.at(address).ok_or(INVALID_VALUE)?;
        let mapped = registration.mapped.as_ref().ok_or(INVALID_VALUE)?;
        Ok(mapped.base + start % PAGE + (address - start))
    }

    /// The registration that contains a host address.
    pub(crate) fn at(&self, address: u64) -> Option<(u64, &Registration)> {
        let (start, registration) = self.0.range(..=address).next_back()?;
        (address < start + registration.bytes).then_some((*start, registration))
    }

    /// The host address of a device address.
    pub(crate) fn host_address(&self, device_address: u64) -> Option<u64> {
        self.0.iter().find_map(|(start, registration)| {
            let mapped = registration.mapped.as_ref()?;
            let first = mapped.base + start % PAGE;
            let offset = device_address.checked_sub(first)?;
            (offset < registration.bytes).then_some(start + offset)
        })
    }

    /// Checks that all of these bytes are registered. The driver would also copy others, synchronously; the backend promises never to do that.
    pub(crate) fn check(&self, address: u64, bytes: u64) -> Status {
        let (start, registration) = self.at(address).ok_or(INVALID_VALUE)?;
        let inside = address.checked_add(bytes).is_some_and(|end| end <= start + registration.bytes);
        if inside { Ok(()) } else { Err(INVALID_VALUE) }
    }

    /// Registered memory for an operation.
    pub(crate) fn part(&self, address: u64, bytes: u64, wanted: Use) -> Result<Part, Refusal> {
        let (start, registration) = self.at(address).ok_or(Refusal::NoAccess)?;
        if address.checked_add(bytes).is_none_or(|end| end > start + registration.bytes) {
            return Err(Refusal::NoAccess);
        }
        if wanted == Use::Write && registration.flags & REGISTER_READ_ONLY != 0 {
            return Err(Refusal::ReadOnly);
        }
        let keep = Keep::Registered { _token: registration.token.clone() };
        Ok(Part { start: address as *mut u8, bytes, _keep: keep })
    }
}

/// Whether all of these bytes are mapped, and writable if `to_write`.
pub(crate) fn is_mapped(address: u64, end: u64, to_write: bool) -> bool {
    let Ok(maps) = std::fs::read_to_string("/proc/self/maps") else { return false };
    let mut at = address;
    for line in maps.lines() {
        let Some((range, rest)) = line.split_once(' ') else { continue };
        let Some((start, stop)) = range.split_once('-') else { continue };
        let (Ok(start), Ok(stop)) = (u64::from_str_radix(start, 16), u64::from_str_radix(stop, 16)) else { continue };
        let allowed = rest.starts_with('r') && (!to_write || rest.starts_with("rw"));
        if start <= at && at < stop && allowed {
            at = stop;
        }
    }
    at >= end
}
