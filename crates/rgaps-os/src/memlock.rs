//! Checks whether this process may lock more memory, before pinning a ring or pool for a GPU or NIC fails half-way.

use rustix::process::{Resource, getrlimit};

/// CAP_IPC_LOCK of capabilities(7): a process that has it is under no limit.
const CAP_IPC_LOCK: u32 = 14;

/// This process may not lock as much memory as is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{bytes} B of locked memory are needed, {locked} B are locked already and RLIMIT_MEMLOCK allows {limit} B; raise it: \
     `ulimit -l {}` (KiB) or unlimited, LimitMEMLOCK=infinity in the systemd unit, or memlock in /etc/security/limits.conf",
    self.bytes.saturating_add(self.locked).div_ceil(1024)
)]
pub struct MemlockError {
    /// Bytes needed.
    pub bytes: u64,
    /// Bytes that this process has locked already.
    pub locked: u64,
    /// The limit in bytes.
    pub limit: u64,
}

/// Checks whether this process may lock `bytes` more.
pub fn check(bytes: u64) -> Result<(), MemlockError> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    check_against(bytes, getrlimit(Resource::Memlock).current, &status)
}

/// `limit` is `None` if there is no limit; `status` is /proc/PID/status.
fn check_against(bytes: u64, limit: Option<u64>, status: &str) -> Result<(), MemlockError> {
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let privileged = field("CapEff:")
        .and_then(|text| u64::from_str_radix(text, 16).ok())
        .is_some_and(|capabilities| capabilities & 1 << CAP_IPC_LOCK != 0);
    // VmLck is what mlock(2) locked, VmPin what drivers pinned for devices. The kernel holds each against the limit by itself.
    let kib = |name| field(name).and_then(|text| text.strip_suffix("kB")?.trim().parse::<u64>().ok()).unwrap_or(0);
    let locked = kib("VmLck:").max(kib("VmPin:")) * 1024;
    match limit {
        Some(limit) if !privileged && locked.saturating_add(bytes) > limit => {
            Err(MemlockError { bytes, locked, limit })
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: &str = "Name:\tx\nVmLck:\t    1024 kB\nCapEff:\t0000000000000000\n";

    #[test]
    fn locked_memory_counts_and_the_error_has_numbers_and_a_remedy() {
        assert_eq!(check_against(7 << 20, Some(8 << 20), PLAIN), Ok(()));
        let said = check_against((7 << 20) + 1, Some(8 << 20), PLAIN).unwrap_err().to_string();
        for part in ["7340033 B", "1048576 B are locked", "8388608 B", "`ulimit -l 8193`", "LimitMEMLOCK=infinity"] {
            assert!(said.contains(part), "{said}");
        }
    }

    #[test]
    fn without_a_limit_or_with_cap_ipc_lock_any_size_is_allowed() {
        assert_eq!(check_against(u64::MAX, None, PLAIN), Ok(()));
        let privileged = PLAIN.replace("0000000000000000", "000001ffffffffff");
        assert_eq!(check_against(1 << 40, Some(1), &privileged), Ok(()));
        assert!(check_against(1, Some(0), "").is_err(), "if /proc has no capabilities, the limit counts");
        assert_eq!(check(0), Ok(()));
    }
}
