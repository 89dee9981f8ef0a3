//! The GPU setup of both programs: cudarc's context, kernel and stream, and the same stream for RGAPS.

use std::error::Error;
use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaFunction, CudaStream, LaunchConfig};
use cudarc::nvrtc::Ptx;
use rgaps::Node;
use rgaps::device::{ImageView, Stream};

/// A kernel and its stream. It must outlive the publisher or subscriber whose messages are ordered on the stream.
pub struct Gpu {
    /// For `publish_on` and `take_on`. Dropped before the stream that it stands for.
    pub order: Stream,
    /// For the kernel's launch.
    pub stream: Arc<CudaStream>,
    /// The kernel.
    pub kernel: CudaFunction,
}

impl Gpu {
    /// Uses the device of the node's pools; an error if that is no GPU.
    pub fn of(node: &Node, kernel: &str) -> Result<Self, Box<dyn Error>> {
        let Some(cuda) = node.device().as_cuda() else {
            return Err("this example needs an NVIDIA GPU, but the pools of this host are in host memory; `rgaps doctor` says why".into());
        };
        // The device's primary context, which the node uses too, so that they share addresses and streams.
        let context = CudaContext::new(cuda.gpu().properties().ordinal as usize)?;
        let stream = context.new_stream()?;
        // SAFETY: a stream of the primary context, kept until its messages are gone (see `Gpu`).
        let order = unsafe { cuda.borrow_stream(stream.cu_stream() as u64) };
        // No compiler is needed: the driver takes PTX.
        let kernels = context.load_module(Ptx::from_src(include_str!("kernels.ptx")))?;
        Ok(Self { order, stream, kernel: kernels.load_function(kernel)? })
    }
}

/// One thread for each pixel.
pub fn each_pixel(image: &ImageView) -> LaunchConfig {
    let (block_dim, shared_mem_bytes) = ((32, 8, 1), 0);
    LaunchConfig { grid_dim: (image.width.div_ceil(32), image.height.div_ceil(8), 1), block_dim, shared_mem_bytes }
}
