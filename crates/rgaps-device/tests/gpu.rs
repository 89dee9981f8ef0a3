//! Runs the backend contract on a real GPU. `./dev test-gpu` runs it on a machine that has one.

#![allow(clippy::unwrap_used)] // helpers of tests, outside #[test] functions

use std::time::Duration;

use rgaps_device::cuda::{CudaBackend, Device};
use rgaps_device::{Backend, DeviceKind, testing::contract};
use rgaps_testing::{Watchdog, skipped};

/// Set on machines that must have a GPU.
const REQUIRED: &str = "RGAPS_TEST_GPU";

#[test]
fn the_cuda_backend_keeps_the_contract_on_a_gpu() {
    let _watchdog = Watchdog::new(Duration::from_secs(300));
    if std::env::var_os(REQUIRED).is_none() {
        let why = match Device::count() {
            Ok(count) => format!("there are {count} GPUs; ./dev test-gpu runs it"),
            Err(why) => why,
        };
        return skipped(why);
    }
    let backend = CudaBackend::open(0).unwrap();
    let found = backend.gpu().properties();
    assert_ne!(found.name, rgaps_standin_cuda::DEVICE_NAME, "this is to be a real GPU");
    eprintln!("{found:?}");
    assert_eq!(backend.kind(), DeviceKind::Cuda);
    contract::check(&backend);
}
