//! Copies an array with any strides into a block.

use rgaps::types::NDIM_MAX;

/// The copy would leave the block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OutOfBlock;

/// A copy of items: the same shape on both sides, strides in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Gather {
    /// Number of items in each dimension.
    pub(crate) shape: Vec<i64>,
    /// Strides of the source, in bytes.
    pub(crate) from_strides: Vec<i64>,
    /// Strides in the block, in bytes.
    pub(crate) to_strides: Vec<i64>,
    /// Offset of the first byte in the block.
    pub(crate) to_offset: u64,
    /// Bytes of an item.
    pub(crate) item_bytes: u64,
}

impl Gather {
    /// Whether both sides are `bytes` contiguous bytes, starting at the block's first byte.
    pub(crate) fn is_one_run(&self, bytes: u64) -> bool {
        let (run, rest) = self.run();
        self.to_offset == 0 && rest == 0 && run == bytes
    }

    /// Copies items from the source at address `from`.
    ///
    /// # Safety
    /// Every item of the source, at `from` plus its steps, is memory of this process that may be read during the call.
    pub(crate) unsafe fn copy(&self, from: u64, block: &mut [u8]) -> Result<(), OutOfBlock> {
        self.check(block.len() as u64)?;
        if self.shape.contains(&0) {
            return Ok(());
        }
        let (run, outer) = self.run();
        let mut index = [0_i64; NDIM_MAX];
        loop {
            let step = |strides: &[i64]| -> i64 { (0..outer).map(|axis| index[axis] * strides[axis]).sum() };
            let source = (from as *const u8).wrapping_offset(step(&self.from_strides) as isize);
            let place = (self.to_offset as i64 + step(&self.to_strides)) as usize;
            let Some(to) = block.get_mut(place..place + run as usize) else { return Err(OutOfBlock) };
            // SAFETY: the source by the caller's promise; `to` is a slice of the block, which no array of Python's is a part of.
            unsafe { std::ptr::copy_nonoverlapping(source, to.as_mut_ptr(), to.len()) };
            let Some(axis) = (0..outer).rev().find(|axis| index[*axis] + 1 < self.shape[*axis]) else { return Ok(()) };
            index[axis] += 1;
            index[axis + 1..outer].fill(0);
        }
    }

    /// Bytes that are contiguous on both sides, and how many outer dimensions remain around them.
    fn run(&self) -> (u64, usize) {
        let mut run = self.item_bytes;
        let mut outer = self.shape.len();
        while let Some(axis) = outer.checked_sub(1) {
            let is_run = |strides: &[i64]| strides[axis] == run as i64 || self.shape[axis] == 1;
            if !is_run(&self.from_strides) || !is_run(&self.to_strides) {
                break;
            }
            run = run.saturating_mul(self.shape[axis].unsigned_abs());
            outer = axis;
        }
        (run, outer)
    }

    /// Checks that the copy stays inside a block of `block` bytes.
    pub(crate) fn check(&self, block: u64) -> Result<(), OutOfBlock> {
        let ndim = self.shape.len();
        if ndim > NDIM_MAX || self.from_strides.len() != ndim || self.to_strides.len() != ndim {
            return Err(OutOfBlock);
        }
        if self.shape.contains(&0) {
            return Ok(());
        }
        let mut end = i128::from(self.to_offset) + i128::from(self.item_bytes);
        for (&items, &step) in self.shape.iter().zip(&self.to_strides) {
            if items < 0 || step < 0 {
                return Err(OutOfBlock);
            }
            end += i128::from(items - 1) * i128::from(step);
        }
        if end <= i128::from(block) { Ok(()) } else { Err(OutOfBlock) }
    }
}
