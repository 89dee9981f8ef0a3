//! The trait that a kind of device memory implements, and the choice between kinds.

use std::fmt::Debug;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::buffer::{BufferSpec, HostBuffer};
use crate::error::DeviceError;
use crate::host::HostBackend;
use crate::pool::{DeviceId, DeviceKind, PoolDescription, PoolMemory, PoolRole, PoolSpec};
use crate::stream::{Completion, Stream};

/// Whether a link may read payload where it lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PayloadAccess {
    /// The pool is host memory: it is sent from directly.
    Direct,
    /// The pool is device memory: it is copied into staging first.
    Staged,
}

/// Part of a pool.
#[derive(Clone, Copy, Debug)]
pub struct PoolPart<'a> {
    /// The pool.
    pub pool: &'a dyn PoolMemory,
    /// First byte.
    pub offset: u64,
}

/// Part of a host buffer.
#[derive(Clone, Copy, Debug)]
pub struct BufferPart<'a> {
    /// The buffer.
    pub buffer: &'a HostBuffer,
    /// First byte.
    pub offset: u64,
}

/// A kind of device memory.
pub trait Backend: Debug + Send + Sync {
    /// Which kind.
    fn kind(&self) -> DeviceKind;

    /// Which device.
    fn device(&self) -> DeviceId;

    /// Whether links read payload directly.
    fn payload_access(&self) -> PayloadAccess;

    /// Makes a pool and maps it. The manager does.
    fn create_pool(&self, spec: &PoolSpec) -> Result<Arc<dyn PoolMemory>, DeviceError>;

    /// Maps a pool that another process made. Everything about it is checked before it is mapped.
    fn import_pool(
        &self,
        description: &PoolDescription,
        slabs: Vec<OwnedFd>,
        role: PoolRole,
    ) -> Result<Arc<dyn PoolMemory>, DeviceError>;

    /// Makes a host buffer that this device copies to and from.
    fn host_buffer(&self, spec: &BufferSpec) -> Result<HostBuffer, DeviceError>;

    /// A new stream.
    fn stream(&self) -> Result<Stream, DeviceError>;

    /// Starts a copy out of a pool.
    fn copy_to_host(
        &self,
        stream: &Stream,
        from: PoolPart<'_>,
        to: BufferPart<'_>,
        bytes: u64,
    ) -> Result<Completion, DeviceError>;

    /// Starts a copy into a pool.
    fn copy_to_device(
        &self,
        stream: &Stream,
        from: BufferPart<'_>,
        to: PoolPart<'_>,
        bytes: u64,
    ) -> Result<Completion, DeviceError>;
}

/// What the configuration asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Choice {
    /// The best that this machine has.
    #[default]
    Auto,
    /// Host memory.
    Host,
    /// The GPU with this number.
    Cuda(u32),
}

/// The backend that was chosen, and why no better one.
#[derive(Clone, Debug)]
pub struct Chosen {
    /// The backend.
    pub backend: Arc<dyn Backend>,
    /// For `rgaps doctor` and the logs.
    pub reason: String,
}

/// Opens a backend.
pub fn open(choice: Choice) -> Result<Chosen, DeviceError> {
    const NO_CUDA: &str = "this build has no cuda backend";
    let backend = Arc::new(HostBackend::new());
    match choice {
        Choice::Host => Ok(Chosen { backend, reason: "host memory, as configured".to_owned() }),
        Choice::Auto => Ok(Chosen { backend, reason: format!("host memory: {NO_CUDA}") }),
        Choice::Cuda(ordinal) => {
            Err(DeviceError::Unavailable { asked: format!("cuda:{ordinal}"), reason: NO_CUDA.to_owned() })
        }
    }
}

impl std::str::FromStr for Choice {
    type Err = DeviceError;

    fn from_str(text: &str) -> Result<Self, DeviceError> {
        let unknown = || DeviceError::Unavailable {
            asked: text.to_owned(),
            reason: "devices are named auto, host, cuda or cuda:N".to_owned(),
        };
        match text.split_once(':') {
            None if text == "auto" => Ok(Self::Auto),
            None if text == "host" => Ok(Self::Host),
            None if text == "cuda" => Ok(Self::Cuda(0)),
            Some(("cuda", ordinal)) => ordinal.parse().map(Self::Cuda).map_err(|_| unknown()),
            _ => Err(unknown()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_cuda_the_choice_says_what_is_missing() {
        let error = open("cuda:1".parse().unwrap()).unwrap_err().to_string();
        assert!(error.contains("cuda:1") && error.contains("--device host"), "{error}");
        assert_eq!(open(Choice::Auto).unwrap().backend.kind(), DeviceKind::Host);
        assert!("gpu".parse::<Choice>().is_err() && "cuda:x".parse::<Choice>().is_err());
    }
}
