//! A block that its owner fills: in place, or in memory beside it that is copied into the block at the end.

use std::sync::{Arc, OnceLock};

use rgaps_device::{PoolMemory, Stream};
use rgaps_shm::Block;

use crate::endpoint::publish_error::PublishError;
use crate::endpoint::publisher::PublisherInner;

/// The memory beside a block. The methods' `publisher` is the one whose pool has the block.
#[derive(Debug, Default)]
pub(crate) struct Filling {
    /// Device memory that kernels fill instead of the block, if the node's device has no peer access to it.
    beside: OnceLock<Arc<dyn PoolMemory>>,
    /// Host memory that the CPU fills instead of a block that it cannot map.
    scratch: OnceLock<Vec<u8>>,
    /// Whether the CPU may have written to `scratch`, so that it is copied into the block.
    is_scratch_written: bool,
}

impl Filling {
    /// Copies what was filled beside the block into it: in stream order if there is a stream.
    pub(crate) fn complete(
        &self,
        publisher: &PublisherInner,
        block: &mut Block,
        bytes: u64,
        stream: Option<&Stream>,
    ) -> Result<(), PublishError> {
        // In this order: the CPU's bytes win over the kernel's.
        if let Some(beside) = self.beside.get() {
            publisher.fill_from(block.offset(), beside.as_ref(), bytes, stream)?;
        }
        match self.written_scratch() {
            Some(scratch) => publisher.fill(block, scratch, stream),
            None => Ok(()),
        }
    }

    /// Whether the block itself was filled, so that `complete` copied nothing.
    pub(crate) fn is_in_place(&self) -> bool {
        self.beside.get().is_none() && self.written_scratch().is_none()
    }

    fn written_scratch(&self) -> Option<&Vec<u8>> {
        self.scratch.get().filter(|_| self.is_scratch_written)
    }

    /// Whether the CPU may have written what the memory beside the block does not have.
    pub(crate) fn is_scratch_newer(&self) -> bool {
        self.written_scratch().is_some()
    }

    /// The memory beside the block, if any was needed so far.
    pub(crate) fn beside(&self) -> Option<&Arc<dyn PoolMemory>> {
        self.beside.get()
    }

    /// The memory that kernels and copies fill, the block or memory of the node's device, and the offset in it.
    pub(crate) fn place<'a>(
        &'a self,
        publisher: &'a PublisherInner,
        offset: u64,
        bytes: u64,
    ) -> Result<(&'a dyn PoolMemory, u64), PublishError> {
        publisher.check_attached()?;
        if let Some(beside) = self.beside.get() {
            return Ok((beside.as_ref(), 0));
        }
        let scratch = publisher.node.backend().scratch(bytes);
        if let Some(made) = scratch.map_err(|source| publisher.device(source))? {
            return Ok((self.beside.get_or_init(|| made).as_ref(), 0));
        }
        Ok((publisher.pool.as_ref(), offset))
    }

    /// The block for the CPU, read-only.
    pub(crate) fn bytes<'a>(&'a self, publisher: &'a PublisherInner, block: &'a Block, bytes: u64) -> &'a [u8] {
        match publisher.pool.block(block.range()) {
            Ok(block) => &block[..bytes as usize],
            Err(_) => self.scratch.get_or_init(|| vec![0; bytes as usize]),
        }
    }

    /// The block for the CPU.
    pub(crate) fn bytes_mut<'a>(
        &'a mut self,
        publisher: &'a PublisherInner,
        block: &'a mut Block,
        bytes: u64,
    ) -> &'a mut [u8] {
        match publisher.pool.block_mut(block.range_mut()) {
            Ok(block) => &mut block[..bytes as usize],
            Err(_) => {
                self.is_scratch_written = true;
                self.scratch.get_or_init(|| vec![0; bytes as usize]);
                self.scratch.get_mut().map_or(&mut [], Vec::as_mut_slice)
            }
        }
    }
}
