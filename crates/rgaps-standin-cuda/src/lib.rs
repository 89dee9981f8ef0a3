//! A stand-in for NVIDIA's libcuda, to test the CUDA backend on machines without a GPU. Never use it to measure time.
//!
//! The shared library exports the driver functions that the backend calls, with the driver's names and signatures (`calls/`). Device memory
//! is a memfd; a device pointer is an address that faults when a CPU touches it. A stream is a thread that runs one operation after the
//! other, each after a delay, so a result is missing if the program forgets to wait for it. Tests make calls and operations fail, and stop
//! streams, by `control.rs` and by environment variables:
//!
//!   RGAPS_TEST_STANDIN_DELAY_US=200          before each operation of a stream
//!   RGAPS_TEST_STANDIN_DEVICES=1             0 to 16; with 0, cuInit finds no device
//!   RGAPS_TEST_STANDIN_MEMORY=1073741824     bytes of each device; each process counts its own use
//!   RGAPS_TEST_STANDIN_INTEGRATED=1          the devices share the host's memory (Jetson)
//!   RGAPS_TEST_STANDIN_NO_STREAM_MEM_OPS=1   streams neither write words nor wait for them
//!   RGAPS_TEST_STANDIN_NO_VMM=1              no virtual memory management (cuMemCreate, cuMemMap)
//!   RGAPS_TEST_STANDIN_NO_PEER=1             no device has peer access to another
//!   RGAPS_TEST_STANDIN_NO_MEMORY_POOLS=1     no stream-ordered memory (cuMemAllocAsync)
//!   RGAPS_TEST_STANDIN_NO_READ_ONLY_REGISTER=1   read-only host memory cannot be registered
//!   RGAPS_TEST_STANDIN_GPU_DIRECT=1          GPUDirect RDMA: network cards access device memory
//!   RGAPS_TEST_STANDIN_NO_DMA_BUF=1          its attributes say so, but no memory can be exported for them
//!   RGAPS_TEST_STANDIN_RDMA_ORDERING=0       who sees their writes without a flush: 0 nobody, 100 the device, 200 all devices
//!   RGAPS_TEST_STANDIN_FAIL=cuMemCreate#3=2  the third cuMemCreate returns 2; `#*` for every call, several by commas
//!
//! It is stricter than the driver where the backend promises more. It refuses an asynchronous copy of unregistered host memory, and any
//! driver call in a host function or while a graph is captured (`capture.rs`). Stream-ordered memory is inaccessible before its stream has
//! allocated it, and after its stream has freed it.
//!
//! The Rust library has the same functions for this crate's tests, and `Control` and `library` for tests of other crates.

pub mod abi;
pub mod calls;
mod capture;
mod config;
mod context;
pub mod control;
mod current;
mod errors;
mod event;
mod faults;
mod gate;
mod guard;
mod host;
mod host_call;
mod library;
mod lock;
mod memory;
mod operation;
mod range;
mod reservation;
mod state;
mod stream;

pub use library::{Control, DEVICE_NAME, library, link_into};
