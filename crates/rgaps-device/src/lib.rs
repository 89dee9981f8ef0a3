//! Device memory behind one trait, with its backends chosen at run time.
//!
//! `backend` is what the manager and the API call, `pool` and `buffer` are the memory they get, `stream` orders work on a device,
//! `copy` moves a message chunk by chunk. `host` keeps pools in host memory: a real backend for machines without a GPU, on which
//! streams and events are trivial because every operation is done when its call returns.

pub mod backend;
pub mod buffer;
pub mod contract;
pub mod copy;
pub mod error;
pub mod host;
pub mod pool;
pub mod stream;

pub use backend::{Backend, Choice, Chosen, PayloadAccess, open};
pub use buffer::{BufferSpec, HostBuffer};
pub use copy::{ChunkPlan, Direction};
pub use error::DeviceError;
pub use pool::{DeviceId, DeviceKind, PoolDescription, PoolMemory, PoolRole, PoolSpec, SlabDescription};
pub use stream::{Completion, Event, Stream};
