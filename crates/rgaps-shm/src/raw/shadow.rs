//! TLSF over a shadow range. rlsf keeps its headers inside the memory that it manages, which a CPU cannot do in GPU memory. So it manages a
//! private range in which 32 bytes stand for one granule of the pool, and only the positions of its blocks are used.
//!
//! Source      TLSF: Masmano et al., ECRTS 2004 (full title in writer/pool.rs). The shadow range is ours.

use std::alloc::Layout;
use std::num::NonZeroU32;
use std::ptr::NonNull;

use rgaps_os::{AllocationRight, MapError, Mapping, OwnedRange};
use rlsf::Tlsf;

const _: () = assert!(usize::BITS == 64);

/// Shadow bytes that stand for one granule: rlsf's own granularity on 64-bit machines.
pub(crate) const SHADOW_BYTES: usize = 32;
/// rlsf's header of a used block, in the first half of its first granule.
const BLOCK_HEADER_BYTES: usize = 16;

/// First-level classes: blocks up to 2^24 × 32 B of shadow. Second level: 32 classes each, so a block is at most about 3 % too large.
pub(crate) type Engine = Tlsf<'static, u32, u32, 24, { 1 << CLASS_BITS }>;
/// Binary logarithm of the second-level classes.
pub(crate) const CLASS_BITS: u32 = 5;

pub(crate) struct Shadow {
    engine: Engine,
    base: NonNull<u8>,
    /// Keeps the range mapped, since the engine points into it.
    _memory: Mapping,
}

// SAFETY: the engine's pointers lead into `_memory`, which moves with it and only the engine touches it.
unsafe impl Send for Shadow {}

impl Shadow {
    /// Creates a range of `count` granules, all free.
    pub(crate) fn new(count: usize) -> Result<Self, MapError> {
        // rlsf puts the sentinel that ends the range into one more granule.
        let bytes = (count + 1) * SHADOW_BYTES;
        let memory = Mapping::anonymous((bytes as u64).next_multiple_of(4096))?;
        let Some(base) = NonNull::new(memory.address() as *mut u8) else { unreachable!("a mapping is never at 0") };
        let mut engine = Engine::new();
        // SAFETY: the range is private, zeroed, writable, 4096-aligned, and lives as long as the engine, which is dropped before it.
        let used = unsafe { engine.insert_free_block_ptr(NonNull::slice_from_raw_parts(base, bytes)) };
        debug_assert_eq!(used.map(|n| n.get()), Some(bytes));
        Ok(Self { engine, base, _memory: memory })
    }

    /// Allocates `count` adjacent granules, and returns the first.
    #[inline]
    pub(crate) fn allocate(&mut self, count: NonZeroU32) -> Option<usize> {
        let bytes = count.get() as usize * SHADOW_BYTES - BLOCK_HEADER_BYTES;
        // SAFETY: the alignment is a power of two, and 2^32 granules of 32 B are far below isize::MAX of 64 bits.
        let layout = unsafe { Layout::from_size_align_unchecked(bytes, BLOCK_HEADER_BYTES) };
        let payload = self.engine.allocate(layout)?;
        let start = payload.as_ptr() as usize - BLOCK_HEADER_BYTES - self.base.as_ptr() as usize;
        debug_assert_eq!(start % SHADOW_BYTES, 0);
        Some(start / SHADOW_BYTES)
    }

    /// Frees the granules from `first` on, whose range is given up.
    #[inline]
    pub(crate) fn free(&mut self, first: usize, _given_up: OwnedRange) {
        let start = first * SHADOW_BYTES + BLOCK_HEADER_BYTES;
        // SAFETY: `start` was computed from an address inside the range by `allocate`.
        let payload = unsafe { self.base.add(start) };
        // SAFETY: the caller has checked that the range is of this pool. Such a range is made for what `allocate` returned only, and given up
        // here, so the block is in use and is freed once.
        unsafe { self.engine.deallocate(payload, BLOCK_HEADER_BYTES) };
    }
}

/// The right to the pool's bytes behind granules that were just allocated.
#[inline]
pub(crate) fn carve(right: &AllocationRight, offset: u64, bytes: u64) -> OwnedRange {
    // SAFETY: called once for what each `allocate` of the one allocator that owns `right` returned, and those never overlap.
    unsafe { right.carve(offset, bytes) }
}
