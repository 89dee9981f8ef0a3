//! A pool's allocator: TLSF (two-level segregated fit) in its publisher's private memory. No lock is shared between processes, and nothing needs
//! repair after kill -9.
//!
//! Only the publisher allocates and frees in its pool. Subscribers hold and release a block through the message's words; the publisher reads them
//! and frees the block itself. A dead publisher's pool is released as a whole.
//!
//! Invariants  P1 blocks in use never overlap. P2 every granule is in one block or free, so freeing all blocks makes the pool whole again.
//! Source      Masmano, Ripoll, Crespo and Real, "TLSF: a new dynamic memory allocator for real-time systems", ECRTS 2004, pages 79 to 88, as
//!             implemented by rlsf. Jiang, master's thesis (RGAPS), 2026, sections 2.1 and 3.3, allocates with TLSF, too, with its records in
//!             shared memory (section 3.2); records in private memory and the shadow range (raw/shadow.rs) are ours.

use std::num::NonZeroU32;

use rgaps_os::{AllocationRight, MapError, OwnedRange};

use crate::raw::shadow::{CLASS_BITS, Shadow, carve};

/// Smallest unit of allocation: the alignment of CUDA's own allocations.
pub const GRANULE_BYTES_MIN: u64 = 256;
/// Most granules of a pool; a larger pool has larger granules. Limits the shadow range to 32 MiB of address space.
const GRANULES_MAX: u64 = 1 << 20;

/// A block of a pool, in use. Give it back with `PoolAllocator::free`.
#[derive(Debug)]
pub struct Block {
    range: OwnedRange,
}

/// Where a block lies in its pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Offset in the pool.
    pub offset: u64,
    /// Bytes of the block.
    pub bytes: u64,
}

impl Block {
    /// Where it lies.
    pub fn extent(&self) -> Extent {
        Extent { offset: self.offset(), bytes: self.bytes() }
    }

    /// Offset in the pool.
    pub fn offset(&self) -> u64 {
        self.range.offset()
    }

    /// Bytes of the block: the requested bytes, rounded up to a size class of granules.
    pub fn bytes(&self) -> u64 {
        self.range.bytes()
    }

    /// The right to read it, for `Mapping::owned_bytes`.
    pub fn range(&self) -> &OwnedRange {
        &self.range
    }

    /// The right to write it, for `Mapping::bytes_mut`.
    pub fn range_mut(&mut self) -> &mut OwnedRange {
        &mut self.range
    }
}

/// How a pool is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolStats {
    /// Bytes that can be allocated in all.
    pub capacity_bytes: u64,
    /// Bytes in blocks now; 0 once every block is free again.
    pub used_bytes: u64,
    /// Unit of allocation.
    pub granule_bytes: u64,
}

/// The pool has no free block of that size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no free piece has {wanted} B; {free} B of {capacity} B are free in all")]
pub struct PoolFull {
    /// Bytes requested.
    pub wanted: u64,
    /// Bytes free in all.
    pub free: u64,
    /// Bytes of the pool.
    pub capacity: u64,
}

/// Allocates the bytes of one pool.
pub struct PoolAllocator {
    shadow: Shadow,
    right: AllocationRight,
    /// Granules are a power of two, so that a request costs no division.
    granule_shift: u32,
    stats: PoolStats,
}

impl std::fmt::Debug for PoolAllocator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PoolAllocator").field("stats", &self.stats).finish_non_exhaustive()
    }
}

impl PoolAllocator {
    /// An allocator for the whole pool that `right` belongs to.
    pub fn new(right: AllocationRight) -> Result<Self, MapError> {
        let granule_bytes = right.bytes().div_ceil(GRANULES_MAX).next_power_of_two().max(GRANULE_BYTES_MIN);
        let granules = right.bytes() / granule_bytes;
        let shadow = Shadow::new(granules as usize)?;
        let stats = PoolStats { capacity_bytes: granules * granule_bytes, used_bytes: 0, granule_bytes };
        Ok(Self { shadow, right, granule_shift: granule_bytes.trailing_zeros(), stats })
    }

    /// Allocates a block of at least `bytes` bytes, aligned to the granule. O(1).
    ///
    /// A block is up to 1/32 longer than requested (`whole_class`), so a message nearly as large as the pool may not fit even while the pool is
    /// empty. `pool_bytes_for` says how large a pool must be for a message.
    ///
    /// ```
    /// use rgaps_os::Mapping;
    /// use rgaps_shm::PoolAllocator;
    ///
    /// let memory = Mapping::anonymous(1 << 20)?;
    /// let mut pool = PoolAllocator::new(memory.allocation_right().ok_or("it is taken")?)?;
    /// let block = pool.allocate(1000)?;
    /// assert_eq!((block.offset() % 256, block.bytes()), (0, 1024));
    /// assert!(pool.allocate(2 << 20).is_err());
    /// pool.free(block);
    /// assert_eq!(pool.stats().used_bytes, 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn allocate(&mut self, bytes: u64) -> Result<Block, PoolFull> {
        if bytes > self.stats.capacity_bytes {
            return Err(self.full(bytes));
        }
        let count = self.granules_for(bytes);
        // A pool has at most `GRANULES_MAX` granules, and the class of what fits is at most 1/32 more.
        let granules = NonZeroU32::new(count as u32).unwrap_or(NonZeroU32::MIN);
        let Some(first) = self.shadow.allocate(granules) else { return Err(self.full(bytes)) };
        let offset = (first as u64) << self.granule_shift;
        let bytes = count << self.granule_shift;
        self.stats.used_bytes += bytes;
        Ok(Block { range: carve(&self.right, offset, bytes) })
    }

    /// Frees a block of this pool. O(1).
    ///
    /// # Panics
    /// If the block belongs to another pool: freed here, its bytes would be given out twice.
    #[inline]
    pub fn free(&mut self, block: Block) {
        assert!(block.range.is_of(&self.right), "a block of another pool is freed in this one");
        self.stats.used_bytes -= block.bytes();
        self.shadow.free((block.offset() >> self.granule_shift) as usize, block.range);
    }

    /// Whether the empty pool has a block for a message of `bytes` bytes: the message's size class must fit, too.
    pub fn can_hold(&self, bytes: u64) -> bool {
        let capacity = self.stats.capacity_bytes;
        bytes <= capacity && self.granules_for(bytes) <= capacity >> self.granule_shift
    }

    /// Whether a block of this pool is large enough for a message of `bytes` bytes.
    pub fn is_enough(&self, block: Extent, bytes: u64) -> bool {
        self.can_hold(bytes) && self.granules_for(bytes) << self.granule_shift <= block.bytes
    }

    /// Whether `allocate` finds a block for a message of `bytes` bytes while these blocks are in use and no others. Sorts them.
    pub fn can_hold_beside(&self, bytes: u64, in_use: &mut [Extent]) -> bool {
        if !self.can_hold(bytes) {
            return false;
        }
        // Free neighbours are one free block, and one of a whole size class is found wherever it lies.
        let wanted = self.granules_for(bytes) << self.granule_shift;
        in_use.sort_unstable_by_key(|block| block.offset);
        let mut from = 0;
        for block in in_use {
            if block.offset.saturating_sub(from) >= wanted {
                return true;
            }
            from = from.max(block.offset + block.bytes);
        }
        self.stats.capacity_bytes.saturating_sub(from) >= wanted
    }

    fn granules_for(&self, bytes: u64) -> u64 {
        whole_class(((bytes + self.stats.granule_bytes - 1) >> self.granule_shift).max(1))
    }

    /// How the pool is used.
    pub fn stats(&self) -> PoolStats {
        self.stats
    }

    #[cold]
    fn full(&self, wanted: u64) -> PoolFull {
        let capacity = self.stats.capacity_bytes;
        PoolFull { wanted, free: capacity - self.stats.used_bytes, capacity }
    }
}

/// Rounds granules up to a size class of the engine, at most 1/32 more. TLSF rounds a search up and a block down, so by itself it may not find a
/// freed block for a message of the same size. With whole classes it does.
fn whole_class(granules: u64) -> u64 {
    let below = (1 << granules.ilog2().saturating_sub(CLASS_BITS)) - 1;
    (granules + below) & !below
}

/// Length of a message's block in a pool whose granules have `GRANULE_BYTES_MIN`.
pub fn block_bytes(message_bytes: u64) -> u64 {
    whole_class(message_bytes.div_ceil(GRANULE_BYTES_MIN).max(1)) * GRANULE_BYTES_MIN
}

/// Bytes of a pool that has a block for a message of `message_bytes` whenever it is empty.
///
/// ```
/// use rgaps_shm::writer::pool::{block_bytes, pool_bytes_for};
///
/// let image = 1920 * 1080 * 3;
/// assert!((image..image + image / 32).contains(&block_bytes(image)));
/// assert!(pool_bytes_for(image) > block_bytes(image));
/// ```
pub fn pool_bytes_for(message_bytes: u64) -> u64 {
    (message_bytes + message_bytes / 16 + 4096).next_multiple_of(4096)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rgaps_os::Mapping;

    fn pool(bytes: u64) -> (Mapping, PoolAllocator) {
        let memory = Mapping::anonymous(bytes).unwrap();
        let allocator = PoolAllocator::new(memory.allocation_right().unwrap()).unwrap();
        (memory, allocator)
    }

    #[derive(Clone, Debug)]
    enum Step {
        Allocate(u64),
        Free(usize),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let allocate = prop_oneof![0_u64..3000, 0_u64..200_000, Just(1 << 20), Just(u64::MAX)];
        let step = prop_oneof![allocate.prop_map(Step::Allocate), any::<usize>().prop_map(Step::Free)];
        proptest::collection::vec(step, 0..200)
    }

    proptest! {
        #[test]
        fn blocks_never_overlap_nothing_is_lost_and_free_runs_are_found(steps in steps(), pages in 1_u64..300) {
            let (memory, mut allocator) = pool(pages * 4096);
            let mut blocks: Vec<Block> = Vec::new();
            for step in steps {
                match step {
                    Step::Allocate(bytes) => {
                        let mut in_use: Vec<Extent> = blocks.iter().map(Block::extent).collect();
                        let is_expected = allocator.can_hold_beside(bytes, &mut in_use);
                        let allocated = allocator.allocate(bytes);
                        prop_assert_eq!(allocated.is_ok(), is_expected, "{} B beside {:?}", bytes, in_use);
                        let Ok(block) = allocated else { continue };
                        prop_assert!(allocator.is_enough(block.extent(), bytes));
                        prop_assert!(block.bytes() >= bytes && block.offset() + block.bytes() <= memory.bytes());
                        prop_assert!(block.offset() % GRANULE_BYTES_MIN == 0);
                        for other in &blocks {
                            let apart = block.offset() + block.bytes() <= other.offset()
                                || other.offset() + other.bytes() <= block.offset();
                            prop_assert!(apart, "{:?} and {:?}", block, other);
                        }
                        blocks.push(block);
                    }
                    Step::Free(n) if !blocks.is_empty() => {
                        let n = n % blocks.len();
                        allocator.free(blocks.swap_remove(n));
                    }
                    Step::Free(_) => {}
                }
                let used: u64 = blocks.iter().map(Block::bytes).sum();
                prop_assert_eq!(allocator.stats().used_bytes, used);
            }
            for block in blocks {
                allocator.free(block);
            }
            prop_assert_eq!(allocator.stats().used_bytes, 0);
            // Whole again: the pool gives the largest block that an empty pool of this size can give.
            let (_, mut fresh) = pool(pages * 4096);
            let largest = (1..=pages * 16).rev().find(|n| fresh.allocate(n * 256).is_ok()).unwrap() * 256;
            prop_assert!(allocator.allocate(largest).is_ok());
        }
    }

    proptest! {
        #[test]
        fn can_hold_agrees_with_what_an_empty_pool_allocates(pages in 1_u64..300, less in 0_u64..60_000) {
            let (_memory, mut allocator) = pool(pages * 4096);
            let bytes = (pages * 4096 + 300).saturating_sub(less);
            prop_assert_eq!(allocator.can_hold(bytes), allocator.allocate(bytes).is_ok(), "{} B of {} pages", bytes, pages);
        }
    }

    #[test]
    #[should_panic(expected = "a block of another pool")]
    fn a_block_is_not_freed_in_another_pool() {
        let (_one, mut left) = pool(1 << 20);
        let (_other, mut right) = pool(1 << 20);
        let foreign = left.allocate(4096).unwrap();
        right.free(foreign);
    }

    #[test]
    #[cfg_attr(miri, ignore = "pools of a GiB take Miri hours")]
    fn a_message_fits_into_the_pool_made_for_it() {
        for bytes in [1, 4096, 6_220_800, 64 << 20, (64 << 20) + 1, 1 << 30] {
            let (_memory, mut allocator) = pool(pool_bytes_for(bytes));
            allocator.allocate(bytes).unwrap();
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "pools of 64 MiB take Miri minutes")]
    fn a_full_pool_serves_the_same_size_again_after_each_free() {
        let (_memory, mut allocator) = pool(64 << 20);
        let mut blocks: Vec<Block> = std::iter::from_fn(|| allocator.allocate(6_220_800).ok()).collect();
        assert_eq!(blocks.len(), 10);
        for n in [3, 0, 9, 5] {
            allocator.free(blocks.swap_remove(n));
            blocks.push(allocator.allocate(6_220_800).unwrap());
        }
    }

    #[test]
    fn a_full_pool_says_what_was_wanted_and_what_is_free() {
        let (_memory, mut allocator) = pool(8192);
        let error = allocator.allocate(10_000).unwrap_err();
        assert_eq!(error, PoolFull { wanted: 10_000, free: 8192, capacity: 8192 });
    }
}
