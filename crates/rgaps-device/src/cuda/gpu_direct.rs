//! GPUDirect RDMA: whether network cards can read and write a GPU's memory themselves, and when the GPUs of this host see what they wrote.
//!
//! A card writes to the GPU over the bus. That a later write to host memory, such as a completion, has arrived says nothing about it, unless the device
//! says so (`CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING`). Otherwise the driver flushes. The manager cannot know which GPU reads a message, so it
//! flushes for all of them unless the device does that by itself.
//!
//! Source      CUDA driver API, cuFlushGPUDirectRDMAWrites, cuMemGetHandleForAddressRange, and the attributes of devices.

/// What the device and its driver say.
#[derive(Clone, Copy, Debug)]
pub(super) struct Says {
    pub(super) is_integrated: bool,
    pub(super) has_rdma: bool,
    pub(super) has_rdma_for_slabs: bool,
    pub(super) has_dma_buf: bool,
    pub(super) has_calls: bool,
    pub(super) flush_options: i32,
    pub(super) ordering: i32,
}

/// When all GPUs of this host see what a network card has written to a GPU's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Visibility {
    /// When this host's processor sees that it was written.
    AtOnce,
    /// After a flush.
    AfterFlush,
}

/// CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST: the processor can flush.
const FLUSH_BY_HOST: i32 = 1;
/// CU_GPU_DIRECT_RDMA_WRITES_ORDERING_ALL_DEVICES.
const ORDERED_FOR_ALL: i32 = 200;

/// Whether network cards can access memory of the device, or why not.
pub(super) fn judge(says: Says) -> Result<Visibility, &'static str> {
    let needs_flush = says.ordering < ORDERED_FOR_ALL;
    if says.is_integrated {
        return Err("its pools are memory of the host, which network cards access without GPUDirect");
    }
    if !says.has_rdma {
        return Err("the GPU or its driver has no GPUDirect RDMA (CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED)");
    }
    if !says.has_rdma_for_slabs {
        return Err(
            "the GPU has GPUDirect RDMA, but not for slabs of memory (CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED)",
        );
    }
    if !says.has_dma_buf || !says.has_calls {
        return Err(
            "the driver exports no dma-buf (CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED): it takes NVIDIA's open kernel modules, CUDA 11.7 and Linux 5.12",
        );
    }
    if needs_flush && says.flush_options & FLUSH_BY_HOST == 0 {
        return Err(
            "what a network card writes needs a flush that the driver does not offer (CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS)",
        );
    }
    Ok(if needs_flush { Visibility::AfterFlush } else { Visibility::AtOnce })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ABLE: Says = Says {
        is_integrated: false,
        has_rdma: true,
        has_rdma_for_slabs: true,
        has_dma_buf: true,
        has_calls: true,
        flush_options: 1,
        ordering: 0,
    };

    #[test]
    fn each_lack_of_a_gpu_has_a_reason_of_its_own() {
        let lacks = [
            (Says { is_integrated: true, ..ABLE }, "memory of the host"),
            (Says { has_rdma: false, ..ABLE }, "GPU_DIRECT_RDMA_SUPPORTED"),
            (Says { has_rdma_for_slabs: false, ..ABLE }, "VMM_SUPPORTED"),
            (Says { has_dma_buf: false, ..ABLE }, "DMA_BUF_SUPPORTED"),
            (Says { has_calls: false, ..ABLE }, "CUDA 11.7"),
            (Says { flush_options: 2, ..ABLE }, "FLUSH_WRITES_OPTIONS"),
            (Says { flush_options: 0, ordering: 100, ..ABLE }, "FLUSH_WRITES_OPTIONS"),
        ];
        for (says, reason) in lacks {
            assert!(judge(says).unwrap_err().contains(reason), "{says:?}");
        }
    }

    #[test]
    fn writes_are_flushed_unless_every_device_sees_them_at_once() {
        for (ordering, visibility) in
            [(0, Visibility::AfterFlush), (100, Visibility::AfterFlush), (200, Visibility::AtOnce)]
        {
            assert_eq!(judge(Says { ordering, ..ABLE }), Ok(visibility));
        }
        assert_eq!(judge(Says { ordering: 200, flush_options: 0, ..ABLE }), Ok(Visibility::AtOnce));
    }
}
