//! The settings from environment variables, read once, at the first call.
//!
//! An invalid value panics, so that each call returns 999 and the terminal shows the reason: a test must not run with a mistyped setting.

use std::str::FromStr;
use std::sync::OnceLock;

/// The settings of this process.
#[derive(Debug)]
pub(crate) struct Config {
    pub delay_us: u64,
    pub devices: usize,
    /// Bytes of each device.
    pub memory: u64,
    pub integrated: bool,
    pub stream_memory_operations: bool,
    pub vmm: bool,
    pub peer: bool,
    pub memory_pools: bool,
    pub read_only_register: bool,
    /// Whether the devices have GPUDirect RDMA.
    pub gpu_direct: bool,
    /// Whether they then export memory.
    pub dma_buf: bool,
    /// `CUGPUDirectRDMAWritesOrdering`.
    pub rdma_ordering: i32,
}

/// Most devices; each mapping has an access right for each device.
const DEVICES_MAX: usize = 16;

/// The settings, read at the first call.
pub(crate) fn config() -> &'static Config {
    static CONFIG: OnceLock<Config> = OnceLock::new();
    CONFIG.get_or_init(|| {
        let devices = number("RGAPS_TEST_STANDIN_DEVICES", 1);
        assert!(devices <= DEVICES_MAX, "RGAPS_TEST_STANDIN_DEVICES={devices}: at most {DEVICES_MAX}");
        Config {
            delay_us: number("RGAPS_TEST_STANDIN_DELAY_US", 200),
            devices,
            memory: number("RGAPS_TEST_STANDIN_MEMORY", 1 << 30),
            integrated: is_set("RGAPS_TEST_STANDIN_INTEGRATED"),
            stream_memory_operations: !is_set("RGAPS_TEST_STANDIN_NO_STREAM_MEM_OPS"),
            vmm: !is_set("RGAPS_TEST_STANDIN_NO_VMM"),
            peer: !is_set("RGAPS_TEST_STANDIN_NO_PEER"),
            memory_pools: !is_set("RGAPS_TEST_STANDIN_NO_MEMORY_POOLS"),
            read_only_register: !is_set("RGAPS_TEST_STANDIN_NO_READ_ONLY_REGISTER"),
            gpu_direct: is_set("RGAPS_TEST_STANDIN_GPU_DIRECT"),
            dma_buf: !is_set("RGAPS_TEST_STANDIN_NO_DMA_BUF"),
            rdma_ordering: number("RGAPS_TEST_STANDIN_RDMA_ORDERING", 0),
        }
    })
}

fn number<T: FromStr>(name: &str, otherwise: T) -> T {
    let Ok(text) = std::env::var(name) else { return otherwise };
    match text.parse() {
        Ok(number) => number,
        Err(_) => panic!("{name}={text} is not a number in its range"),
    }
}

fn is_set(name: &str) -> bool {
    match std::env::var(name).as_deref() {
        Ok("1") => true,
        Ok("0" | "") | Err(_) => false,
        Ok(text) => panic!("{name}={text} is invalid: set it to 1 or 0, or unset it"),
    }
}
