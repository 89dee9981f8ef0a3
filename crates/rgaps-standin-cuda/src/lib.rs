//! A stand-in for NVIDIA's libcuda, so that the CUDA backend is tested on machines without a GPU. Its times say nothing about a GPU's.
//!
//! The shared library exports the functions of the driver that the backend calls, with the driver's names and signatures (`calls/`).
//! Device memory is a memfd, a device pointer is an address that faults when a CPU touches it, a stream is a thread that runs one
//! operation after the other, each after a delay: what a program forgets to wait for is not there yet. Tests make calls and operations
//! fail, and stop streams, by `control.rs` and by the environment:
//!
//!   RGAPS_TEST_STANDIN_DELAY_US=200          before each operation of a stream
//!   RGAPS_TEST_STANDIN_DEVICES=1             0 to 16; with 0, cuInit finds no device
//!   RGAPS_TEST_STANDIN_MEMORY=1073741824     bytes of each device, counted in each process by itself
//!   RGAPS_TEST_STANDIN_INTEGRATED=1          the devices share the host's memory (Jetson)
//!   RGAPS_TEST_STANDIN_NO_STREAM_MEM_OPS=1   streams neither write words nor wait for them
//!   RGAPS_TEST_STANDIN_NO_VMM=1              no memory that is mapped and shared piece by piece
//!   RGAPS_TEST_STANDIN_NO_PEER=1             no device reaches another's memory
//!   RGAPS_TEST_STANDIN_NO_MEMORY_POOLS=1     no memory that comes and goes in the order of a stream
//!   RGAPS_TEST_STANDIN_NO_READ_ONLY_REGISTER=1   no memory of the host is registered that may only be read
//!   RGAPS_TEST_STANDIN_FAIL=cuMemCreate#3=2  the third cuMemCreate returns 2; `#*` for each, several by commas
//!
//! It is stricter than the driver where the backend promises more: an asynchronous copy of host memory that is not registered is refused, and so is
//! any call of the driver in a function that a stream calls, or while a graph is captured (`capture.rs`). Memory that comes in the order of a stream cannot be touched before that stream has
//! got there, nor after it was given back.
//!
//! The Rust library has the same functions, for the tests of this crate, and `Control` and `library`, for tests of others.

pub mod abi;
pub mod calls;
mod capture;
mod config;
mod context;
pub mod control;
mod errors;
mod event;
mod faults;
mod gate;
mod guard;
mod host;
mod library;
mod memory;
mod operation;
mod range;
mod reservation;
mod state;
mod stream;

pub use library::{Control, DEVICE_NAME, library, link_into};
