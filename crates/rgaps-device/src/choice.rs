//! Chooses a backend at run time, and states the reason in words.

use std::sync::Arc;

use crate::backend::Backend;
use crate::cuda::{CudaBackend, Device, parse_uuid, uuid_text};
use crate::error::DeviceError;
use crate::host::HostBackend;
use crate::pool::{DeviceId, DeviceKind};

/// The device that the configuration requests.
///
/// ```
/// use rgaps_device::Choice;
///
/// assert_eq!("cuda:1".parse::<Choice>()?, Choice::Cuda(1));
/// assert_eq!(Choice::default().to_string(), "auto");
/// assert!("gpu".parse::<Choice>().is_err());
/// # Ok::<(), rgaps_device::DeviceError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Choice {
    /// GPU 0 if it is usable, else host memory.
    #[default]
    Auto,
    /// Host memory.
    Host,
    /// The GPU with this number.
    Cuda(u32),
    /// The GPU with this UUID.
    Gpu(DeviceId),
}

/// The chosen backend, and why.
#[derive(Clone, Debug)]
pub struct Chosen {
    /// The backend.
    pub backend: Arc<dyn Backend>,
    /// The reason, for `rgaps doctor`, the logs, and the path of a message.
    pub reason: String,
    /// Why `Auto` fell back to host memory although a GPU driver is installed. `None` otherwise.
    pub fault: Option<String>,
}

/// Opens a backend.
///
/// ```
/// use rgaps_device::{Choice, open};
///
/// let chosen = open(Choice::Auto)?; // GPU 0 if it is usable, else host memory
/// println!("{}", chosen.reason);
/// match open("cuda:7".parse()?) {
///     Ok(chosen) => println!("{:?}", chosen.backend.device()),
///     Err(error) => println!("{error}"), // what is missing, and what to do
/// }
/// # Ok::<(), rgaps_device::DeviceError>(())
/// ```
pub fn open(choice: Choice) -> Result<Chosen, DeviceError> {
    match choice {
        Choice::Host => Ok(in_host_memory("host memory, as configured".to_owned(), None)),
        Choice::Auto => Ok(match CudaBackend::open(0) {
            Ok(backend) => on(backend),
            Err(error) => {
                let reason = match error {
                    DeviceError::Unavailable { reason, .. } => reason,
                    error => error.to_string(),
                };
                let text = format!("host memory: {reason}");
                in_host_memory(text, (!Device::has_no_driver()).then_some(reason))
            }
        }),
        Choice::Cuda(ordinal) => Ok(on(CudaBackend::open(ordinal)?)),
        Choice::Gpu(id) => {
            let missing = |reason| DeviceError::Unavailable { asked: choice.to_string(), reason };
            let ordinal = Device::with_id(id).map_err(missing)?;
            Ok(on(CudaBackend::open(ordinal)?))
        }
    }
}

/// Opens a backend for device `choice` whose pools are on device `pools`, which may be the same. It works in place, or on copies of messages
/// if `choice` has no peer access to `pools`.
pub fn open_beside(choice: Choice, pools: Choice) -> Result<Chosen, DeviceError> {
    let elsewhere = |reason| DeviceError::Elsewhere { asked: choice.to_string(), pools: pools.to_string(), reason };
    let number = |choice: Choice| match choice {
        Choice::Cuda(ordinal) => Device::properties_of(ordinal).map(|found| found.ordinal),
        Choice::Gpu(id) => Device::with_id(id),
        Choice::Auto | Choice::Host => Err("it is no GPU".to_owned()),
    };
    let at_home = || {
        open(pools).map_err(|error| match error {
            DeviceError::Unavailable { asked, reason } => DeviceError::Pools { pools: asked, reason },
            error => error,
        })
    };
    if choice == Choice::Auto || choice == pools {
        return at_home();
    }
    let (own, home) = (number(choice).map_err(elsewhere)?, number(pools).map_err(elsewhere)?);
    if own == home {
        return at_home();
    }
    let backend = CudaBackend::open_beside(own, home).map_err(elsewhere)?;
    let (home, reaches) = (backend.home().name.clone(), backend.reaches_pools());
    let chosen = on(backend);
    let how = if reaches { "on the memory of" } else { "on copies of messages, since it does not reach the memory of" };
    Ok(Chosen { reason: format!("{}, {how} {home}", chosen.reason), ..chosen })
}

fn in_host_memory(reason: String, fault: Option<String>) -> Chosen {
    Chosen { backend: Arc::new(HostBackend::new()), reason, fault }
}

fn on(backend: CudaBackend) -> Chosen {
    let found = backend.gpu().properties();
    let reason = format!("{} (cuda:{}, {})", found.name, found.ordinal, uuid_text(found.id));
    Chosen { backend: Arc::new(backend), reason, fault: None }
}

impl Chosen {
    /// The choice that selects the same device in another process of this host, even if that process numbers devices differently
    /// (CUDA_VISIBLE_DEVICES).
    pub fn as_choice(&self) -> Choice {
        match self.backend.kind() {
            DeviceKind::Host => Choice::Host,
            DeviceKind::Cuda => Choice::Gpu(self.backend.device()),
        }
    }
}

impl std::fmt::Display for Choice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Host => f.write_str("host"),
            Self::Cuda(ordinal) => write!(f, "cuda:{ordinal}"),
            Self::Gpu(id) => write!(f, "cuda:{}", uuid_text(*id)),
        }
    }
}

impl std::str::FromStr for Choice {
    type Err = DeviceError;

    fn from_str(text: &str) -> Result<Self, DeviceError> {
        let unknown = || DeviceError::Unnamed { asked: text.to_owned() };
        match text.split_once(':') {
            None if text == "auto" => Ok(Self::Auto),
            None if text == "host" => Ok(Self::Host),
            None if text == "cuda" => Ok(Self::Cuda(0)),
            Some(("cuda", uuid)) if uuid.starts_with("GPU-") => parse_uuid(uuid).map(Self::Gpu).ok_or_else(unknown),
            Some(("cuda", ordinal)) => ordinal.parse().map(Self::Cuda).map_err(|_| unknown()),
            _ => Err(unknown()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[test]
    fn without_a_gpu_the_choice_says_what_is_missing() {
        if let Ok(count @ 1..) = Device::count() {
            eprintln!("skipped: this machine has {count} GPUs");
            return;
        }
        let error = open("cuda:1".parse().unwrap()).unwrap_err().to_string();
        assert!(error.contains("cuda:1") && error.contains("RGAPS_DEVICE=host"), "{error}");
        let chosen = open(Choice::Auto).unwrap();
        assert_eq!(chosen.fault.is_some(), !Device::has_no_driver(), "{}", chosen.reason);
        assert_eq!(chosen.backend.kind(), DeviceKind::Host);
        assert!(chosen.reason.starts_with("host memory: ") && chosen.reason.len() > 20, "{}", chosen.reason);
        let pools = open_beside(Choice::Auto, Choice::Cuda(1)).unwrap_err().to_string();
        assert!(pools.contains("cuda:1, the device of the rgapsd that runs"), "{pools}");
        let gpu = open("cuda:GPU-5a010203-0405-0607-0809-0a0b0c0d0eff".parse().unwrap()).unwrap_err().to_string();
        assert!(gpu.contains("GPU-5a010203"), "{gpu}");
    }

    #[test]
    fn a_choice_is_written_as_it_is_read() {
        for text in ["auto", "host", "cuda:0", "cuda:3", "cuda:GPU-5a010203-0405-0607-0809-0a0b0c0d0eff"] {
            assert_eq!(text.parse::<Choice>().unwrap().to_string(), text);
        }
        assert_eq!("cuda".parse::<Choice>().unwrap(), Choice::Cuda(0));
        assert_eq!(open(Choice::Host).unwrap().as_choice(), Choice::Host);
    }

    #[test]
    fn unknown_devices_are_refused_by_name() {
        for text in ["gpu", "cuda:x", "cuda:", "cuda:-1", "", "host:0", "cuda:99999999999", "cuda:GPU-12"] {
            let error = text.parse::<Choice>().unwrap_err().to_string();
            assert!(error.contains(&format!("{text:?}")) && error.contains("cuda:N"), "{error}");
        }
    }
}
