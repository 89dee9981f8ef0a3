//! rlsf alone over real memory, behind a safe interface: the baseline of `rgaps bench alloc`.

use std::alloc::Layout;
use std::ptr::NonNull;

use rgaps_os::{MapError, Mapping};

use super::shadow::Engine;

/// Plain rlsf, with its headers inside the memory that it manages.
pub struct BareTlsf {
    engine: Engine,
    _memory: Mapping,
}

/// A block of a `BareTlsf`.
#[derive(Debug)]
pub struct BareBlock(NonNull<u8>);

const ALIGN: usize = 16;

impl BareTlsf {
    /// Bytes of a block that rlsf uses for its header.
    pub const HEADER_BYTES: u64 = 16;

    /// An allocator over `bytes` of private memory.
    pub fn new(bytes: u64) -> Result<Self, MapError> {
        let memory = Mapping::anonymous(bytes)?;
        let Some(base) = NonNull::new(memory.address() as *mut u8) else { unreachable!("a mapping is never at 0") };
        let mut engine = Engine::new();
        // SAFETY: the range is private, writable, 4096-aligned, and lives as long as the engine, which is dropped before it.
        unsafe { engine.insert_free_block_ptr(NonNull::slice_from_raw_parts(base, bytes as usize)) };
        Ok(Self { engine, _memory: memory })
    }

    /// Allocates a block of at least `bytes`.
    #[inline]
    pub fn allocate(&mut self, bytes: u64) -> Option<BareBlock> {
        let layout = Layout::from_size_align(bytes as usize, ALIGN).ok()?;
        self.engine.allocate(layout).map(BareBlock)
    }

    /// Frees a block of this allocator.
    #[inline]
    pub fn free(&mut self, block: BareBlock) {
        // SAFETY: tokens are made by `allocate` only and consumed here; a bench uses one allocator.
        unsafe { self.engine.deallocate(block.0, ALIGN) };
    }
}
