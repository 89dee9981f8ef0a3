//! Memory of a GPU for network cards: what is exported, when it is exported anew, when their writes are flushed, and why not.

use std::os::fd::AsFd;

use super::*;

const GPU_DIRECT: (&str, &str) = ("RGAPS_TEST_STANDIN_GPU_DIRECT", "1");
const ORDERING: &str = "RGAPS_TEST_STANDIN_RDMA_ORDERING";
const FLUSH: &str = "cuFlushGPUDirectRDMAWrites";

/// A pool of three slabs that all have memory.
fn pool() -> (CudaBackend, Arc<dyn PoolMemory>, u64) {
    let backend = CudaBackend::open(0).unwrap();
    let pool = backend.create_pool(&spec(40 * MIB)).unwrap();
    pool.commit(&[0, 1, 2]).unwrap();
    let slab = pool.first_slab_bytes().unwrap();
    (backend, pool, slab)
}

#[test]
fn a_slab_is_exported_once_and_what_a_card_writes_there_is_in_the_pool() {
    if again(&[GPU_DIRECT]) {
        let (gpu, _one, _watchdog) = standin();
        let (backend, pool, slab) = pool();
        let (memory, offset) = pool.dma_buf(slab + 4097, MIB).unwrap();
        assert_eq!((memory.bytes(), offset), (slab, 4097));
        assert_eq!(memory.address() + offset, pool.device_address(slab + 4097).unwrap());
        assert!(Arc::ptr_eq(&memory, &pool.dma_buf(slab, slab).unwrap().0), "all parts of a slab are one memory");
        assert!(!Arc::ptr_eq(&memory, &pool.dma_buf(0, 1).unwrap().0));
        let card = Mapping::map(memory.as_fd(), memory.bytes(), Access::ReadWrite).unwrap();
        card.copy_in(offset, b"from a card").unwrap();
        pool.flush_dma().unwrap();
        let mut found = [0; 11];
        let stream = backend.stream().unwrap();
        backend.copy_out(&stream, PoolPart::of(pool.as_ref(), slab + 4097), &mut found).unwrap();
        assert_eq!((&found, gpu.calls(FLUSH)), (b"from a card", 1));
    }
}

#[test]
fn a_slab_that_is_freed_retires_its_export_and_the_next_one_is_another() {
    if again(&[GPU_DIRECT]) {
        let (_gpu, _one, _watchdog) = standin();
        let (_backend, pool, slab) = pool();
        let [first, second] = [0, slab].map(|offset| pool.dma_buf(offset, MIB).unwrap().0);
        pool.release_unused(slab, slab).unwrap();
        assert!(second.is_retired() && !first.is_retired());
        assert!(matches!(pool.dma_buf(slab, MIB), Err(DeviceError::Absent { .. })));
        pool.commit(&[1]).unwrap();
        let anew = pool.dma_buf(slab, MIB).unwrap().0;
        assert!(!Arc::ptr_eq(&anew, &second) && !anew.is_retired() && anew.address() == second.address());
        drop(pool);
        assert!(first.is_retired() && anew.is_retired());
    }
}

#[test]
fn parts_that_cannot_be_exported_are_refused_by_name() {
    if again(&[GPU_DIRECT]) {
        let (_gpu, _one, _watchdog) = standin();
        let (_backend, pool, slab) = pool();
        // The driver exports memory of several handles at once, the stand-in does not.
        let across = pool.dma_buf(slab - 1, 2).unwrap_err().to_string();
        assert!(across.contains("cuMemGetHandleForAddressRange failed: CUDA_ERROR_NOT_SUPPORTED"), "{across}");
        for outside in [(40 * MIB, 1), (u64::MAX, 2)] {
            assert!(matches!(pool.dma_buf(outside.0, outside.1), Err(DeviceError::Range(_))), "{outside:?}");
        }
    }
}

#[test]
fn writes_of_cards_are_flushed_as_the_device_asks() {
    for (ordering, flushes) in [("0", 1), ("100", 1), ("200", 0)] {
        if !is_again() {
            again(&[GPU_DIRECT, (ORDERING, ordering)]);
        } else if std::env::var(ORDERING).as_deref() == Ok(ordering) {
            let (gpu, _one, _watchdog) = standin();
            let (_backend, pool, _) = pool();
            pool.flush_dma().unwrap();
            assert_eq!(gpu.calls(FLUSH), flushes, "ordering {ordering}");
        }
    }
}

#[test]
fn a_pool_that_cards_cannot_access_says_why() {
    let cases: [(&[(&str, &str)], &str); 3] = [
        (&[("RGAPS_TEST_STANDIN_GPU_DIRECT", "0")], "CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED"),
        (&[GPU_DIRECT, ("RGAPS_TEST_STANDIN_NO_DMA_BUF", "1")], "cuMemGetHandleForAddressRange failed"),
        (&[GPU_DIRECT, ("RGAPS_TEST_STANDIN_INTEGRATED", "1")], "memory of the host"),
    ];
    for (settings, reason) in cases {
        if !is_again() {
            again(settings);
        } else if settings.iter().all(|(name, value)| std::env::var(name).as_deref() == Ok(value)) {
            let (_gpu, _one, _watchdog) = standin();
            let backend = CudaBackend::open(0).unwrap();
            let pool = backend.create_pool(&spec(MIB)).unwrap();
            let refused = pool.dma_buf(0, MIB).unwrap_err().to_string();
            assert!(refused.contains(reason), "{refused}");
            pool.flush_dma().unwrap();
        }
    }
}
