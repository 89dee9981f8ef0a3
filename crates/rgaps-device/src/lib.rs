//! Device memory behind one trait, with its backends chosen at run time.
//!
//! `backend` is what the manager and the API call, `choice` opens one, `pool` and `buffer` are the memory they get, `stream` orders
//! work on a device, `copy` moves a message chunk by chunk. `host` keeps pools in host memory: a real backend for machines without a
//! GPU, on which streams and events are trivial because every operation is done when its call returns. `cuda` keeps them on a GPU,
//! `idle` gives back what a GPU's pool does not use. `contract` is what every backend keeps. `view` is what a kernel is told of a
//! payload, `dlpack` what an array library is.

pub mod backend;
pub mod buffer;
pub mod choice;
pub mod contract;
pub mod copy;
pub mod cuda;
#[cfg(any(test, feature = "deferred"))]
pub mod deferred;
pub mod error;
pub mod host;
pub mod idle;
pub mod pool;
mod raw;
pub mod stream;
pub mod view;

pub use backend::{Backend, BufferPart, Mirror, Original, PayloadAccess, PoolPart};
pub use buffer::{BufferSpec, HostBuffer};
pub use choice::{Choice, Chosen, open, open_beside};
pub use copy::{Chunk, ChunkPlan, Lane, PoolingCopy, StagedChunk, StagingCopy, StagingSpec};
pub use error::{DescriptionError, DeviceError};
pub use idle::Idle;
pub use pool::{DeviceId, DeviceKind, PoolDescription, PoolMemory, PoolRole, PoolSpec, SlabDescription};
pub use raw::DevicePart;
#[cfg(feature = "deferred")]
pub use raw::allocations;
pub use raw::dlpack;
pub use stream::{Completion, Event, Stream, StreamMemory, StreamWord};
pub use view::{DeviceRange, FieldView, ImageView, PointCloudView, TensorView};
