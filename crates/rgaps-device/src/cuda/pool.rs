//! A pool on a GPU: an address range, and slabs of memory mapped in it. A slab is allocated when a message first needs it.
//!
//! ```text
//!   addresses  ├── slab 0 ──┼── slab 1 ──┼── slab 2 ──┼ … ┤       reserved once, at another address in each process
//!   memory        present      absent       present               mapped once a process; the manager passes the file descriptors on
//! ```
//!
//! The manager allocates slabs (`commit`); the writer and the readers map those that they lack (`missing`, `add_slabs`). A reader compares
//! the generation of a mapped slab with the header (pool_header.rs) to see whether the mapping is current.
//!
//! Invariants  C1 each slab index maps the memory of its generation, or nothing. C2 only the manager and the writer free a slab, and only
//!             when it contains no message; a reader unmaps it in `trim`, or replaces it in `add_slabs`. C3 no two memories of a pool have
//!             the same generation, whichever managers made them.
//!             C4 an export comprises memory of the present generations: an unmapped slab retires the exports that it is part of.
//! Deaths      of the manager: a slab that its writer never got may be mapped by readers all the same, and the successor knows nothing of it. So
//!             generations are random (`new_generation`). The successor's memory at that index has another one, and these readers map it anew.
//! Trusts      descriptions are checked (`PoolDescription::check`), then the header; the driver checks the file descriptors. A reader maps memory
//!             read-only: on a GPU that protects against mistakes, not against malice (docs/promises.md).

use std::collections::VecDeque;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use rgaps_os::{Access, AllocationRight, DmaBuf, OutOfRange, OwnedRange, SharedBytes, memfd};

use super::device::Device;
use super::gpu_direct::Visibility;
use super::memory::{AddressRange, DeviceAccess, Slab, granularity};
use super::pool_header::{Cut, PoolHeader, SLABS_MAX};
use crate::buffer::whole_pages;
use crate::error::{DescriptionError, DeviceError};
use crate::pool::{DeviceKind, PoolDescription, PoolMemory, PoolRole, PoolSpec, SlabDescription};
use crate::stream::{Completion, Stream};

/// The smallest slab: each slab costs every importer a file descriptor and driver calls.
const SLAB_BYTES_MIN: u64 = 16 << 20;

/// A pool in GPU memory.
#[derive(Debug)]
pub struct CudaPool {
    slabs: RwLock<Slabs>,
    header: PoolHeader,
    device: Arc<Device>,
    access: DeviceAccess,
    granularity: u64,
    name: String,
    right_given: AtomicBool,
    /// Whether to keep the file descriptors of imported slabs, for `export`.
    keeps_fds: bool,
    /// Copies from and to it, oldest first; some may be over.
    copies: Mutex<VecDeque<Completion>>,
    /// The stream of a device without peer access that copies messages from it (no_peer.rs).
    lane: OnceLock<Stream>,
}

/// The mapped slabs.
#[derive(Debug)]
struct Slabs {
    mapped: Vec<Option<Mapped>>,
    /// What network cards may have registered, by its slabs.
    exports: Vec<(Range<usize>, Arc<DmaBuf>)>,
    range: AddressRange,
    cut: Cut,
}

#[derive(Debug)]
struct Mapped {
    slab: Slab,
    generation: u64,
}

impl Drop for Slabs {
    fn drop(&mut self) {
        // Unmap them before the address range is freed.
        (0..self.mapped.len()).for_each(|index| self.unmap(index));
    }
}

impl Slabs {
    /// Maps a slab at its index, in place of the slab that was mapped there.
    fn map(&mut self, index: usize, mapped: Mapped, access: DeviceAccess) -> Result<(), DeviceError> {
        self.unmap(index);
        self.range.map(self.cut.offset(index), &mapped.slab, access)?;
        self.mapped[index] = Some(mapped);
        Ok(())
    }

    fn unmap(&mut self, index: usize) {
        if let Some(mapped) = self.mapped.get_mut(index).and_then(Option::take) {
            self.range.unmap(self.cut.offset(index), &mapped.slab);
        }
        for (_, memory) in self.exports.extract_if(.., |(slabs, _)| slabs.contains(&index)) {
            memory.retire();
        }
    }

    fn generation_of(&self, index: usize) -> u64 {
        self.mapped.get(index).and_then(Option::as_ref).map_or(0, |mapped| mapped.generation)
    }
}

impl CudaPool {
    pub(super) fn create(device: &Arc<Device>, spec: &PoolSpec) -> Result<Self, DeviceError> {
        let bytes = whole_pages(spec.bytes);
        let memory = device.home().memory_bytes;
        if bytes > memory {
            return Err(DeviceError::TooLarge { name: spec.name.clone(), bytes, memory });
        }
        let granularity = granularity(device)?;
        let slab_bytes = bytes.div_ceil(SLABS_MAX as u64).max(SLAB_BYTES_MIN).next_multiple_of(granularity);
        let header = PoolHeader::create(&spec.name, Cut { bytes, slab_bytes })?;
        let pool = Self::with_header(device, header, DeviceAccess::ReadWrite, granularity, &spec.name)?;
        // Fail now, not at the first message, if there is no memory for the first slab.
        pool.commit(&[0])?;
        Ok(pool)
    }

    pub(super) fn import(
        device: &Arc<Device>,
        description: &PoolDescription,
        fds: Vec<OwnedFd>,
        role: PoolRole,
    ) -> Result<Self, DeviceError> {
        let wanted = (DeviceKind::Cuda, device.home().id);
        description.check(wanted, SLABS_MAX, fds.len().saturating_sub(1))?;
        let granularity = granularity(device)?;
        let mut fds = fds.into_iter();
        let (Some(header), Some(first)) = (fds.next(), description.slabs.first()) else {
            return Err(DescriptionError::FileDescriptors { described: description.slabs.len(), came: 0 }.into());
        };
        let (host_access, access) = match role {
            PoolRole::Writer => (Access::ReadWrite, DeviceAccess::ReadWrite),
            PoolRole::Reader | PoolRole::Successor => (Access::ReadOnly, DeviceAccess::Read),
        };
        // The only slab of a pool is as long as the pool, not as the slab size; the first of several has the slab size.
        let slab_bytes = if description.slabs.len() == 1 {
            first.bytes.max(SLAB_BYTES_MIN).checked_next_multiple_of(granularity)
        } else {
            Some(first.bytes)
        };
        let cut =
            Cut { bytes: description.bytes, slab_bytes: slab_bytes.filter(|bytes| *bytes > 0).unwrap_or(u64::MAX) };
        let header = PoolHeader::import(header, cut, host_access)?;
        if let Some((place, slab)) =
            description.slabs.iter().enumerate().find(|(place, slab)| slab.bytes != cut.bytes_of(*place))
        {
            return Err(DescriptionError::Cut { slab: place, bytes: slab.bytes, cut: cut.bytes_of(place) }.into());
        }
        let mut pool = Self::with_header(device, header, access, granularity, "a pool")?;
        pool.keeps_fds = role != PoolRole::Reader;
        let present: Vec<SlabDescription> =
            description.slabs.iter().filter(|slab| slab.is_present()).copied().collect();
        pool.add_slabs(&present, fds.collect())?;
        Ok(pool)
    }

    fn with_header(
        device: &Arc<Device>,
        header: PoolHeader,
        access: DeviceAccess,
        granularity: u64,
        name: &str,
    ) -> Result<Self, DeviceError> {
        let cut = header.cut();
        let addresses = (cut.count() as u64).saturating_mul(cut.slab_bytes);
        let range = AddressRange::reserve(device, addresses)?;
        let mapped = (0..cut.count()).map(|_| None).collect();
        Ok(Self {
            slabs: RwLock::new(Slabs { mapped, exports: Vec::new(), range, cut }),
            header,
            device: device.clone(),
            access,
            granularity,
            name: name.to_owned(),
            right_given: AtomicBool::new(false),
            keeps_fds: false,
            copies: Mutex::default(),
            lane: OnceLock::new(),
        })
    }

    /// Bytes of a slab's memory: a multiple of the granularity, so the last slab may be longer than its part of the pool.
    fn memory_of(&self, slab: usize) -> u64 {
        self.header.cut().bytes_of(slab).next_multiple_of(self.granularity)
    }

    fn check(&self, offset: u64, bytes: u64) -> Result<(), OutOfRange> {
        let mapped = self.bytes();
        match offset.checked_add(bytes) {
            Some(end) if end <= mapped => Ok(()),
            _ => Err(OutOfRange { offset, bytes, mapped }),
        }
    }

    fn slabs(&self) -> RwLockReadGuard<'_, Slabs> {
        self.slabs.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn slabs_mut(&self) -> RwLockWriteGuard<'_, Slabs> {
        self.slabs.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn describe(&self, slabs: &Slabs, index: usize) -> SlabDescription {
        let (place, bytes) = (index as u32, self.header.cut().bytes_of(index));
        SlabDescription { index: place, generation: slabs.generation_of(index), bytes }
    }

    /// Notes a copy from or to the pool. No slab is freed until it is over, even if a client requests that.
    pub(super) fn note_copy(&self, copy: &Completion) {
        let mut copies = self.copies.lock().unwrap_or_else(PoisonError::into_inner);
        while copies.front().is_some_and(Completion::is_over) {
            copies.pop_front();
        }
        copies.push_back(copy.clone());
    }

    /// The stream that copies messages from it; the first call makes it.
    pub(super) fn lane(&self, make: impl FnOnce() -> Result<Stream, DeviceError>) -> Result<Stream, DeviceError> {
        if let Some(lane) = self.lane.get() {
            return Ok(lane.clone());
        }
        let made = make()?;
        Ok(self.lane.get_or_init(|| made).clone())
    }

    fn is_busy(&self) -> bool {
        let mut copies = self.copies.lock().unwrap_or_else(PoisonError::into_inner);
        copies.retain(|copy| !copy.is_over());
        !copies.is_empty()
    }

    /// The address of a part, for a copy from or to it; an error if a slab of it is not mapped.
    pub(super) fn address_for(&self, offset: u64, bytes: u64, access: DeviceAccess) -> Result<u64, DeviceError> {
        self.check(offset, bytes)?;
        if access == DeviceAccess::ReadWrite && self.access == DeviceAccess::Read {
            return Err(OutOfRange { offset, bytes, mapped: 0 }.into());
        }
        let slabs = self.slabs();
        let absent = self.header.cut().touched(offset, bytes).find(|index| slabs.generation_of(*index) == 0);
        match absent {
            Some(slab) => Err(DeviceError::Absent { name: self.name.clone(), slab, offset, bytes }),
            None => Ok(slabs.range.start() + offset),
        }
    }
}

impl PoolMemory for CudaPool {
    fn kind(&self) -> DeviceKind {
        DeviceKind::Cuda
    }

    fn bytes(&self) -> u64 {
        self.header.cut().bytes
    }

    fn export(&self) -> Result<(PoolDescription, Vec<OwnedFd>), DeviceError> {
        let slabs = self.slabs();
        let clone = |source| DeviceError::Create { name: self.name.clone(), bytes: self.bytes(), source };
        let mut fds = vec![self.header.fd().try_clone().map_err(clone)?];
        for mapped in slabs.mapped.iter().flatten() {
            fds.push(mapped.slab.export()?);
        }
        let described = (0..slabs.mapped.len()).map(|index| self.describe(&slabs, index)).collect();
        let device = self.device.home().id;
        Ok((PoolDescription { kind: DeviceKind::Cuda, device, bytes: self.bytes(), slabs: described }, fds))
    }

    fn dma_buf(&self, offset: u64, bytes: u64) -> Result<(Arc<DmaBuf>, u64), DeviceError> {
        self.device.home().gpu_direct.map_err(DeviceError::NoGpuDirect)?;
        let start = self.address_for(offset, bytes, DeviceAccess::Read)?;
        let mut slabs = self.slabs_mut();
        let cut = slabs.cut;
        let touched = cut.touched(offset, bytes);
        let (first, last) = (touched.start, touched.end.max(touched.start + 1) - 1);
        let first_address = slabs.range.start() + cut.offset(first);
        let known = slabs.exports.iter().find(|(of, _)| *of == (first..last + 1)).map(|(_, memory)| memory.clone());
        let memory = match known {
            Some(memory) => memory,
            None => {
                let length = cut.offset(last) - cut.offset(first) + self.memory_of(last);
                let _entered = self.device.enter()?;
                let fd = self.device.driver().export_dma_buf(first_address, length)?;
                let memory = Arc::new(DmaBuf::new(fd, first_address, length));
                slabs.exports.push((first..last + 1, memory.clone()));
                memory
            }
        };
        Ok((memory, start - first_address))
    }

    fn flush_dma(&self) -> Result<(), DeviceError> {
        if self.device.home().gpu_direct != Ok(Visibility::AfterFlush) {
            return Ok(());
        }
        let _entered = self.device.enter()?;
        Ok(self.device.driver().flush_writes()?)
    }

    fn missing(&self, offset: u64, bytes: u64) -> Result<Vec<u32>, OutOfRange> {
        self.check(offset, bytes)?;
        let slabs = self.slabs();
        let lacks = |index: &usize| {
            let here = slabs.generation_of(*index);
            // The writer stores the generations itself, so its mappings are current. A reader compares its own with the header.
            here == 0 || !self.header.is_writable() && here != self.header.generation(*index)
        };
        Ok(self.header.cut().touched(offset, bytes).filter(lacks).map(|index| index as u32).collect())
    }

    fn commit(&self, wanted: &[u32]) -> Result<(Vec<SlabDescription>, Vec<OwnedFd>), DeviceError> {
        if wanted.len() > SLABS_MAX {
            return Err(DescriptionError::Slabs { described: wanted.len(), most: SLABS_MAX }.into());
        }
        let mut slabs = self.slabs_mut();
        let (mut described, mut fds) = (Vec::new(), Vec::new());
        for &index in wanted {
            let index = index as usize;
            if index >= slabs.mapped.len() {
                return Err(DescriptionError::Order { place: slabs.mapped.len(), index: index as u32 }.into());
            }
            if slabs.generation_of(index) == 0 {
                let slab =
                    Slab::create(&self.device, self.memory_of(index)).map_err(|error| self.no_memory(index, error))?;
                let generation = self.new_generation()?;
                slabs.map(index, Mapped { slab, generation }, self.access)?;
                self.header.set_generation(index, generation);
            }
            if let Some(mapped) = slabs.mapped[index].as_ref() {
                fds.push(mapped.slab.export()?);
            }
            described.push(self.describe(&slabs, index));
        }
        Ok((described, fds))
    }

    fn add_slabs(&self, described: &[SlabDescription], fds: Vec<OwnedFd>) -> Result<(), DeviceError> {
        if described.len() != fds.len() {
            return Err(DescriptionError::FileDescriptors { described: described.len(), came: fds.len() }.into());
        }
        let mut slabs = self.slabs_mut();
        for (slab, fd) in described.iter().zip(fds) {
            let index = slab.index as usize;
            if index >= slabs.mapped.len() {
                return Err(DescriptionError::Order { place: slabs.mapped.len(), index: slab.index }.into());
            }
            if slab.generation == 0 || slabs.generation_of(index) == slab.generation {
                continue;
            }
            let memory = self.memory_of(index);
            let imported = Slab::import(&self.device, fd, memory, self.keeps_fds)?;
            slabs.map(index, Mapped { slab: imported, generation: slab.generation }, self.access)?;
            self.header.set_generation(index, slab.generation);
        }
        Ok(())
    }

    fn refresh(&self, description: &PoolDescription, fds: Vec<OwnedFd>) -> Result<(), DeviceError> {
        let here = (DeviceKind::Cuda, self.device.home().id);
        description.check(here, SLABS_MAX, fds.len().saturating_sub(1))?;
        // The first file descriptor is the header's, which is mapped already. Skip slabs that the header no longer lists.
        let present = description.slabs.iter().filter(|slab| slab.is_present()).zip(fds.into_iter().skip(1));
        let wanted = present.filter(|(slab, _)| self.header.generation(slab.index as usize) == slab.generation);
        let (slabs, fds): (Vec<SlabDescription>, Vec<OwnedFd>) = wanted.map(|(slab, fd)| (*slab, fd)).unzip();
        self.add_slabs(&slabs, fds)
    }

    fn first_slab_bytes(&self) -> Option<u64> {
        Some(self.header.cut().bytes_of(0))
    }

    fn trim(&self) {
        let mut slabs = self.slabs_mut();
        for index in 0..slabs.mapped.len() {
            let here = slabs.generation_of(index);
            if here != 0 && !self.header.is_writable() && here != self.header.generation(index) {
                slabs.unmap(index);
            }
        }
    }

    fn seal(&self) -> Result<(), DeviceError> {
        let failed = |source| DeviceError::Seal { name: self.name.clone(), source };
        memfd::seal_future_write(self.header.fd()).map_err(failed)
    }

    fn allocation_right(&self) -> Option<AllocationRight> {
        if self.access == DeviceAccess::Read || self.right_given.swap(true, Ordering::Relaxed) {
            return None;
        }
        Some(AllocationRight::elsewhere(self.bytes()))
    }

    fn block_mut<'a>(&'a self, block: &'a mut OwnedRange) -> Result<&'a mut [u8], OutOfRange> {
        Err(OutOfRange { offset: block.offset(), bytes: block.bytes(), mapped: 0 })
    }

    fn block<'a>(&'a self, block: &'a OwnedRange) -> Result<&'a [u8], OutOfRange> {
        Err(OutOfRange { offset: block.offset(), bytes: block.bytes(), mapped: 0 })
    }

    fn shared(&self, offset: u64, bytes: u64) -> Result<SharedBytes<'_>, OutOfRange> {
        Err(OutOfRange { offset, bytes, mapped: 0 })
    }

    fn device_address(&self, offset: u64) -> Result<u64, OutOfRange> {
        self.check(offset, 1)?;
        Ok(self.slabs().range.start() + offset)
    }

    fn advise_huge_pages(&self) -> Result<(), DeviceError> {
        // The driver already uses the largest pages that a slab allows.
        Ok(())
    }

    fn populate(&self, offset: u64, bytes: u64) -> Result<(), DeviceError> {
        self.check(offset, bytes)?;
        let touched: Vec<u32> = self.header.cut().touched(offset, bytes).map(|index| index as u32).collect();
        self.commit(&touched).map(|_| ())
    }

    fn release_unused(&self, offset: u64, bytes: u64) -> Result<(), DeviceError> {
        self.check(offset, bytes)?;
        let cut = self.header.cut();
        let mut slabs = self.slabs_mut();
        if self.is_busy() {
            return Err(DeviceError::Busy { name: self.name.clone() });
        }
        for index in cut.touched(offset, bytes) {
            let (start, length) = (cut.offset(index), cut.bytes_of(index));
            // Keep a slab that is only partly in the range.
            if start >= offset && start + length <= offset + bytes {
                self.header.set_generation(index, 0);
                slabs.unmap(index);
            }
        }
        Ok(())
    }

    fn identity(&self) -> (u64, u64) {
        memfd::identity(self.header.fd()).unwrap_or_default()
    }

    fn resident_bytes(&self) -> u64 {
        self.slabs().mapped.iter().flatten().map(|mapped| mapped.slab.bytes()).sum()
    }

    fn as_host(&self) -> Option<&crate::host::HostPool> {
        None
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}

impl CudaPool {
    /// A generation that no memory of the pool has had. It is random, since a manager cannot learn which ones its predecessors gave: neither the
    /// writer nor the header has those of slabs that the writer never got or has freed.
    fn new_generation(&self) -> Result<u64, DeviceError> {
        let failed = |source| DeviceError::Create { name: self.name.clone(), bytes: self.bytes(), source };
        Ok(u64::from_le_bytes(rgaps_os::random().map_err(failed)?).max(1))
    }

    fn no_memory(&self, index: usize, error: super::driver::DriverError) -> DeviceError {
        let bytes = self.memory_of(index);
        match self.device.memory() {
            Ok((free, total)) if error.is_out_of_memory() => {
                DeviceError::OutOfMemory { name: self.name.clone(), bytes, free, total }
            }
            _ => error.into(),
        }
    }
}
