//! The doctor's GPU finding: which GPUs there are, and whether the configured device can be opened, as `rgapsd` would do.

use rgaps::device::cuda::{Device, Properties, uuid_text};
use rgaps::device::{Choice, Chosen, DeviceError, DeviceKind, open};
use rgaps_command::{device, output};

use super::Finding;

const WHAT: &str = "GPU";

/// Opens the configured device with a context, since a driver that lists a device may still refuse it.
pub(super) fn finding() -> Finding {
    // An invalid configuration is a finding of its own.
    let choice = device::asked_for(None).unwrap_or_default();
    of(choice, listed(), open(choice))
}

/// The driver and its devices on one line.
fn listed() -> Result<String, String> {
    let count = Device::count()?;
    let (major, minor) = Device::driver_version()?;
    let devices = (0..count).map(|ordinal| Device::properties_of(ordinal).map(|found| line(&found)));
    let devices = devices.collect::<Result<Vec<_>, _>>()?;
    Ok(format!(
        "CUDA {major}.{minor}; {}",
        if devices.is_empty() { "no device".to_owned() } else { devices.join("; ") }
    ))
}

/// A GPU on one line.
fn line(gpu: &Properties) -> String {
    let words = if gpu.has_stream_words { "" } else { ", no stream memory operations" };
    let kind = if gpu.is_integrated { ", integrated" } else { "" };
    format!(
        "cuda:{} {}, {}, compute {}.{}, {}{kind}{words}",
        gpu.ordinal,
        gpu.name,
        output::bytes(gpu.memory_bytes as f64),
        gpu.capability.0,
        gpu.capability.1,
        uuid_text(gpu.id),
    )
}

fn of(choice: Choice, listed: Result<String, String>, opened: Result<Chosen, DeviceError>) -> Finding {
    let chosen = match opened {
        Ok(chosen) => chosen,
        Err(error) => return refused(choice, listed, error),
    };
    match (chosen.backend.kind(), listed, chosen.fault) {
        (DeviceKind::Cuda, listed, _) => {
            let others = listed.unwrap_or_default();
            let used = if choice == Choice::Auto { String::new() } else { format!("; used: {}", chosen.reason) };
            Finding::ok(WHAT, others + &used)
        }
        (DeviceKind::Host, listed, Some(fault)) => {
            let (found, hint) = halves(&fault);
            let found = listed.map_or_else(|_| found.to_owned(), |listed| format!("{listed}; {found}"));
            let remedy = hint.unwrap_or("see what nvidia-smi says of it, or install a newer driver");
            Finding::limited(WHAT, found, format!("{remedy}; until then messages live in host memory"))
        }
        (DeviceKind::Host, Ok(listed), None) => {
            Finding::ok(WHAT, format!("{listed}; not used: messages live in host memory, as configured"))
        }
        (DeviceKind::Host, Err(reason), None) => {
            let none = "none needed: messages live in host memory";
            let remedy = match choice {
                Choice::Host => format!("{none}, as configured"),
                _ => format!("{none}; for GPU memory install the NVIDIA driver"),
            };
            Finding::limited(WHAT, halves(&reason).0, remedy)
        }
    }
}

/// The configuration names a device that cannot be opened, so no manager starts.
fn refused(choice: Choice, listed: Result<String, String>, error: DeviceError) -> Finding {
    let reason = match error {
        DeviceError::Unavailable { reason, .. } => reason,
        error => error.to_string(),
    };
    let (found, hint) = halves(&reason);
    let there = listed.as_ref().map_or_else(|_| String::new(), |listed| format!("; there is: {listed}"));
    let remedy = match (hint, listed) {
        (Some(hint), _) => hint,
        (None, Ok(_)) => "name a device that is there and works, or auto",
        (None, Err(_)) => "install the NVIDIA driver, or give this container its devices",
    };
    Finding::broken(
        WHAT,
        format!("device {choice}, as configured, is not available: {found}{there}"),
        format!("{remedy}; or set RGAPS_DEVICE=host for messages in host memory"),
    )
}

/// Splits a driver's error text at its semicolon: what failed, and what to do if the text says so.
fn halves(reason: &str) -> (&str, Option<&str>) {
    reason.split_once("; ").map_or((reason, None), |(found, hint)| (found, Some(hint)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Verdict;

    const MISMATCH: &str = "cuInit failed: X (803); driver and kernel module are of different versions: reboot";
    const ABSENT: &str = "libcuda.so.1 is not there: no NVIDIA driver is installed";

    fn in_host_memory(choice: Choice, listed: Result<&str, &str>, fault: Option<&str>) -> Finding {
        let chosen = Chosen { fault: fault.map(str::to_owned), ..open(Choice::Host).unwrap() };
        of(choice, listed.map(str::to_owned).map_err(str::to_owned), Ok(chosen))
    }

    fn unavailable(choice: Choice, listed: Result<&str, &str>, reason: &str) -> Finding {
        let error = DeviceError::Unavailable { asked: choice.to_string(), reason: reason.to_owned() };
        of(choice, listed.map(str::to_owned).map_err(str::to_owned), Err(error))
    }

    #[test]
    fn a_named_device_that_is_unavailable_is_broken_with_the_errors_own_remedy() {
        let found = unavailable(Choice::Cuda(0), Err(MISMATCH), MISMATCH);
        assert!(found.verdict == Verdict::Broken && found.found.ends_with("cuInit failed: X (803)"), "{found:?}");
        assert!(found.remedy.contains("reboot; or set RGAPS_DEVICE=host"), "{found:?}");
        let found = unavailable(Choice::Cuda(0), Err(ABSENT), ABSENT);
        assert!(found.verdict == Verdict::Broken && found.remedy.contains("install the NVIDIA driver"), "{found:?}");
        let found = unavailable(Choice::Cuda(9), Ok("CUDA 12.8; cuda:0 X"), "there is no device 9");
        assert!(
            found.verdict == Verdict::Broken && found.found.contains("no device 9; there is: CUDA 12.8"),
            "{found:?}"
        );
    }

    #[test]
    fn a_broken_driver_is_not_reported_as_missing() {
        let found = in_host_memory(Choice::Auto, Err(MISMATCH), Some(MISMATCH));
        assert!(found.verdict == Verdict::Limited && found.found == "cuInit failed: X (803)", "{found:?}");
        assert!(found.remedy.contains("reboot") && !found.remedy.contains("none needed"), "{found:?}");
        let found = in_host_memory(Choice::Auto, Ok("cuda:0 X"), Some("cuDevicePrimaryCtxRetain failed: Y (46)"));
        assert!(found.verdict == Verdict::Limited && found.found.starts_with("cuda:0 X; cuDevice"), "{found:?}");
        let found = in_host_memory(Choice::Auto, Err(ABSENT), None);
        assert!(found.verdict == Verdict::Limited && found.remedy.contains("none needed"), "{found:?}");
    }

    #[test]
    fn configured_host_memory_is_reported_and_needs_no_driver() {
        let found = in_host_memory(Choice::Host, Ok("cuda:0 X"), None);
        assert!(found.verdict == Verdict::Ok && found.found.contains("not used"), "{found:?}");
        let found = in_host_memory(Choice::Host, Err(ABSENT), None);
        assert!(found.remedy == "none needed: messages live in host memory, as configured", "{found:?}");
    }
}
