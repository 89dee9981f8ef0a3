//! Device memory behind one trait, with its backends chosen at run time.
//!
//! The manager and the API call the trait in `backend`; `choice` opens one. `pool` and `buffer` are the memory, `stream` orders work on a
//! device, `copy` moves a message chunk by chunk. `host` keeps pools in host memory: a real backend for machines without a GPU, whose
//! operations are done when the call returns. `cuda` keeps pools on a GPU; `idle` frees the memory of an idle GPU pool. `testing` has
//! the test suite that every backend passes. `view` describes a payload to a kernel, `dlpack` to an array library.

pub mod backend;
pub mod buffer;
pub mod choice;
pub mod copy;
pub mod cuda;
pub mod error;
pub mod host;
pub mod idle;
pub mod pool;
mod raw;
pub mod stream;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod view;

pub use backend::{Backend, BufferPart, Mirror, Original, PayloadAccess, PoolPart};
pub use buffer::{BufferSpec, HostBuffer};
pub use choice::{Choice, Chosen, open, open_beside};
pub use copy::{Chunk, ChunkPlan, Lane, PoolingCopy, StagedChunk, StagingCopy, StagingSpec};
pub use error::{DescriptionError, DeviceError};
pub use idle::Idle;
pub use pool::{DeviceId, DeviceKind, PoolDescription, PoolMemory, PoolRole, PoolSpec, SlabDescription};
pub use raw::DevicePart;
#[cfg(feature = "testing")]
pub use raw::allocations;
pub use raw::dlpack;
pub use stream::{Completion, Event, Stream, StreamMemory, StreamWord};
pub use view::{DeviceRange, FieldView, ImageView, PointCloudView, TensorView};
