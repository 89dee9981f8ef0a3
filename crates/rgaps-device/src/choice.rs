//! The choice between backends at run time, with the reason for it in words.

use std::path::Path;
use std::sync::Arc;

use crate::backend::Backend;
use crate::error::DeviceError;
use crate::host::HostBackend;

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
    /// For `rgaps doctor`, the logs, and the reason of a message's path.
    pub reason: String,
}

/// Opens a backend.
pub fn open(choice: Choice) -> Result<Chosen, DeviceError> {
    let backend = Arc::new(HostBackend::new());
    match choice {
        Choice::Host => Ok(Chosen { backend, reason: "host memory, as configured".to_owned() }),
        Choice::Auto => Ok(Chosen { backend, reason: format!("host memory: {}", no_cuda()) }),
        Choice::Cuda(ordinal) => Err(DeviceError::Unavailable { asked: format!("cuda:{ordinal}"), reason: no_cuda() }),
    }
}

/// What lacks for a GPU pool here: the one thing in this build, and whether a driver would be there.
fn no_cuda() -> String {
    let driver = if Path::new("/proc/driver/nvidia/version").exists() {
        "an NVIDIA driver is loaded"
    } else {
        "no NVIDIA driver is loaded either"
    };
    format!("this build has no cuda backend ({driver})")
}

impl std::str::FromStr for Choice {
    type Err = DeviceError;

    fn from_str(text: &str) -> Result<Self, DeviceError> {
        let unknown = || DeviceError::Unavailable {
            asked: format!("{text:?}"),
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
    use crate::pool::DeviceKind;

    #[test]
    fn without_cuda_the_choice_says_what_is_missing() {
        let error = open("cuda:1".parse().unwrap()).unwrap_err().to_string();
        assert!(error.contains("cuda:1") && error.contains("--device host"), "{error}");
        assert!(error.contains("this build has no cuda backend") && error.contains("NVIDIA driver"), "{error}");
    }

    #[test]
    fn auto_takes_host_memory_and_says_why_nothing_better() {
        let chosen = open(Choice::Auto).unwrap();
        assert_eq!(chosen.backend.kind(), DeviceKind::Host);
        assert!(chosen.reason.contains("no cuda backend"), "{}", chosen.reason);
        assert_eq!(open(Choice::Host).unwrap().reason, "host memory, as configured");
    }

    #[test]
    fn unknown_devices_are_refused_by_name() {
        for text in ["gpu", "cuda:x", "cuda:", "cuda:-1", "", "host:0", "cuda:99999999999"] {
            let error = text.parse::<Choice>().unwrap_err().to_string();
            assert!(error.contains(&format!("{text:?}")) && error.contains("cuda:N"), "{error}");
        }
    }
}
