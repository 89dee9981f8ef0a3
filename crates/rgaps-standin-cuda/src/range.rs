//! Ranges of device addresses, and the memory mapped in them.
//!
//! Invariants  Pieces of a range do not overlap and are inside it. No device may access a piece before cuMemSetAccess allows it.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::abi::{INVALID_VALUE, PROT_READWRITE, Status};
use crate::memory::Memory;
use crate::reservation::Reservation;

/// A range of device addresses.
#[derive(Debug)]
pub(crate) struct Range {
    pub reservation: Reservation,
    /// Pieces by address.
    pub pieces: BTreeMap<u64, Piece>,
}

/// Memory that is mapped in a range.
#[derive(Debug)]
pub(crate) struct Piece {
    pub bytes: u64,
    pub memory: Arc<Memory>,
    /// `CUmemAccess_flags` of each device.
    pub access: Vec<u32>,
}

/// How an operation accesses memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    Read,
    Write,
}

/// Why an operation cannot use device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// Nothing is mapped there, or the device has no access.
    NoAccess,
    /// The device may only read it.
    ReadOnly,
}

/// Contiguous bytes that an operation can access.
#[derive(Debug)]
pub(crate) struct Part {
    pub start: *mut u8,
    pub bytes: u64,
    /// Keeps them mapped.
    pub _keep: Keep,
}

/// Keeps memory mapped while an operation uses it.
#[derive(Clone, Debug)]
pub(crate) enum Keep {
    /// The last user frees device memory.
    Device { _memory: Arc<Memory> },
    /// A registration stays while this lives.
    Registered { _token: Arc<()> },
    /// The caller waits for the operation.
    Caller,
}

/// All ranges by their address.
#[derive(Debug, Default)]
pub(crate) struct Ranges(pub BTreeMap<u64, Range>);

impl Ranges {
    /// The range that contains an address.
    pub(crate) fn at(&self, address: u64) -> Option<&Range> {
        let (_, range) = self.0.range(..=address).next_back()?;
        range.reservation.contains(address, 1).then_some(range)
    }

    fn at_mut(&mut self, address: u64) -> Option<&mut Range> {
        let (_, range) = self.0.range_mut(..=address).next_back()?;
        range.reservation.contains(address, 1).then_some(range)
    }

    /// Maps memory from its start; no device may access it yet.
    pub(crate) fn map(&mut self, address: u64, piece: Piece) -> Status {
        let range = self.at_mut(address).ok_or(INVALID_VALUE)?;
        let fits = range.reservation.contains(address, piece.bytes) && piece.bytes <= piece.memory.bytes;
        let end = address + if fits { piece.bytes } else { 0 };
        let before = range.pieces.range(..end).next_back();
        if !fits || before.is_some_and(|(start, other)| start + other.bytes > address) {
            return Err(INVALID_VALUE);
        }
        range.pieces.insert(address, piece);
        Ok(())
    }

    /// Unmaps the pieces that make up these bytes.
    pub(crate) fn unmap(&mut self, address: u64, bytes: u64) -> Status<Vec<Piece>> {
        let range = self.at_mut(address).ok_or(INVALID_VALUE)?;
        let starts = range.tiles(address, bytes)?;
        Ok(starts.into_iter().filter_map(|start| range.pieces.remove(&start)).collect())
    }

    /// The pieces that start in these bytes.
    pub(crate) fn pieces_in(&self, address: u64, bytes: u64) -> impl Iterator<Item = &Piece> {
        let end = address.saturating_add(bytes);
        self.at(address).into_iter().flat_map(move |range| range.pieces.range(address..end)).map(|(_, piece)| piece)
    }

    /// Sets a device's access to the pieces that make up these bytes.
    pub(crate) fn set_access(&mut self, address: u64, bytes: u64, device: usize, flags: u32) -> Status {
        let range = self.at_mut(address).ok_or(INVALID_VALUE)?;
        for start in range.tiles(address, bytes)? {
            let access = range.pieces.get_mut(&start).and_then(|piece| piece.access.get_mut(device));
            *access.ok_or(INVALID_VALUE)? = flags;
        }
        Ok(())
    }

    /// The memory of `bytes` bytes at an address, for an operation of a device.
    pub(crate) fn parts(&self, address: u64, bytes: u64, device: usize, wanted: Use) -> Result<Vec<Part>, Refusal> {
        let range = self.at(address).filter(|range| range.reservation.contains(address, bytes));
        let range = range.ok_or(Refusal::NoAccess)?;
        let (mut parts, mut at, end) = (Vec::new(), address, address + bytes);
        while at < end {
            let piece = range.pieces.range(..=at).next_back().filter(|(start, piece)| at < *start + piece.bytes);
            let (start, piece) = piece.ok_or(Refusal::NoAccess)?;
            match piece.access.get(device) {
                Some(&PROT_READWRITE) => {}
                None | Some(0) => return Err(Refusal::NoAccess),
                Some(_) if wanted == Use::Write => return Err(Refusal::ReadOnly),
                Some(_) => {}
            }
            let (offset, bytes) = (at - start, (start + piece.bytes).min(end) - at);
            let keep = Keep::Device { _memory: piece.memory.clone() };
            parts.push(Part { start: piece.memory.at(offset), bytes, _keep: keep });
            at += bytes;
        }
        Ok(parts)
    }

    /// Mapped bytes.
    pub(crate) fn mapped_bytes(&self) -> u64 {
        self.0.values().flat_map(|range| range.pieces.values()).map(|piece| piece.bytes).sum()
    }
}

impl Range {
    /// The addresses of the pieces that make up these bytes; an error unless these are whole pieces without a gap.
    fn tiles(&self, address: u64, bytes: u64) -> Status<Vec<u64>> {
        if bytes == 0 || !self.reservation.contains(address, bytes) {
            return Err(INVALID_VALUE);
        }
        let (mut starts, mut at, end) = (Vec::new(), address, address + bytes);
        while at < end {
            starts.push(at);
            at += self.pieces.get(&at).ok_or(INVALID_VALUE)?.bytes;
        }
        if at == end { Ok(starts) } else { Err(INVALID_VALUE) }
    }
}
