//! The crate's only unsafe code: views of the mapped segment, and the allocator over its shadow range.

pub mod bare;
pub(crate) mod shadow;
pub(crate) mod view;
