//! The cuda backend on a real GPU: what every backend keeps. `./dev test-gpu` runs it where there is one.

#![allow(clippy::unwrap_used)] // helpers of tests, outside #[test] functions

use std::time::Duration;

use rgaps_device::cuda::{CudaBackend, Device};
use rgaps_device::{Backend, DeviceKind, contract};
use rgaps_testing::{Watchdog, skipped};

/// Set where a GPU must be there.
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
