//! What makes a host the same host again: its machine since the last boot, user, network namespace and runtime directory.

use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// Everything from which a host's identity is computed. No two managers that run at the same time have all of it in common.
///
/// The kernel's random boot id stands for the machine. /etc/machine-id does not: robots with copies of one disk have the same, and would take
/// each other for themselves. It is not meant to be shown to others, either.
#[derive(Clone, Debug)]
pub(crate) struct HostIdentitySource {
    pub(crate) boot: String,
    pub(crate) uid: u32,
    /// Inode of the network namespace.
    pub(crate) network: u64,
    /// Device and inode of the folder that the directory is in.
    pub(crate) parent: (u64, u64),
    pub(crate) path: PathBuf,
}

impl HostIdentitySource {
    /// FNV-1a of 128 bits (draft-eastlake-fnv-21): its input is no secret, and no user gains anything by a collision.
    pub(crate) fn identity(&self) -> [u8; 16] {
        const OFFSET: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
        const PRIME: u128 = (1 << 88) + 0x13b;
        let Self { boot, uid, network, parent, path } = self;
        let numbers = format!("{}/{uid}/{network}/{}/{}/", boot.trim(), parent.0, parent.1);
        let bytes = numbers.as_bytes().iter().chain(path.as_os_str().as_bytes());
        bytes.fold(OFFSET, |hash, byte| (hash ^ u128::from(*byte)).wrapping_mul(PRIME)).to_be_bytes()
    }
}
