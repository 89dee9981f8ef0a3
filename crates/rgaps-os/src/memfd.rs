//! Sealed anonymous files: memory without a name, so that nothing is left behind by kill -9.
//!
//! Every file is sealed against shrinking and growing at birth, so that a mapping of its full size can never fault. A pool is
//! also sealed against future writable mappings once its owner has mapped it: from then on nobody else *can* write to it. The last seal of each
//! file forbids further seals (F_SEAL_SEAL). Without it, a process with the file descriptor could add a seal that keeps others from mapping the file.
//!
//! ```text
//!                                     shrink, grow   future write   seal
//!   segment, ring, staging            at birth       never          at birth
//!   pool on the host, pool header     at birth       by `seal`, when its writer has mapped it: both
//! ```
//!
//! Trusts      no file descriptor of another process. It may be of any file, of a pipe at which open(2) blocks, or of a file system that its sender
//!             serves and where fstat(2) blocks. So `check_own` first reads the seals, which only memory has. Only sealed memory of this user is
//!             opened again or has its mode changed.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{
    FallocateFlags, MemfdFlags, Mode, OFlags, SealFlags, SeekFrom, fallocate, fchmod, fcntl_add_seals, fcntl_get_seals,
    fcntl_getfl, fstat, ftruncate, memfd_create, open, seek,
};
use rustix::process::geteuid;

/// What a file descriptor that arrives from another process must be sealed against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seals {
    /// Its size is fixed.
    Size,
    /// Its size is fixed and no new writable mapping can be made.
    SizeAndFutureWrite,
}

/// A file descriptor is not the memory that it was said to be.
#[derive(Debug, thiserror::Error)]
pub enum SealError {
    /// The file descriptor's size differs from what was announced.
    #[error("shared memory has {found} B where {expected} B were announced")]
    Size {
        /// Bytes announced.
        expected: u64,
        /// Bytes found.
        found: u64,
    },
    /// A seal is missing, so the memory could shrink or be written under our feet.
    #[error("shared memory lacks the seals {missing}; it was not made by a manager of RGAPS")]
    Missing {
        /// The missing seals, by name.
        missing: String,
    },
    /// It is another user's.
    #[error("shared memory belongs to user {found} where rgapsd of user {own} made it")]
    Owner {
        /// This user.
        own: u32,
        /// The file's.
        found: u32,
    },
    /// The kernel refused.
    #[error("shared memory could not be examined or opened: {0}")]
    Os(#[from] io::Error),
}

/// Makes a memfd of `bytes`, all zero, its size sealed, to which nobody can add a seal. `name` shows in /proc/PID/maps only.
pub fn create(name: &str, bytes: u64) -> io::Result<OwnedFd> {
    let fd = create_to_be_sealed(name, bytes)?;
    fcntl_add_seals(&fd, SealFlags::SEAL)?;
    Ok(fd)
}

/// As `create`, but for `seal_future_write`, which is to come.
pub fn create_to_be_sealed(name: &str, bytes: u64) -> io::Result<OwnedFd> {
    let fd = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&fd, bytes)?;
    fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW)?;
    Ok(fd)
}

/// Forbids every writable mapping that does not exist yet, and any further seal.
pub fn seal_future_write(fd: impl AsFd) -> io::Result<()> {
    Ok(fcntl_add_seals(fd, SealFlags::FUTURE_WRITE | SealFlags::SEAL)?)
}

/// Another file descriptor of a memfd of `bytes` of this user's, that can be mapped for reading and neither mapped for writing nor sealed. A process
/// of the same user could open the file anew by way of /proc; one of another user cannot.
pub fn read_only(fd: impl AsFd, bytes: u64) -> Result<OwnedFd, SealError> {
    let fd = fd.as_fd();
    check_own(fd, bytes)?;
    fchmod(fd, Mode::RUSR).map_err(io::Error::from)?;
    Ok(open_anew(fd, OFlags::RDONLY)?)
}

/// A file descriptor for writing of a memfd of `bytes` of this user's, from one for reading; one for writing stays as it is.
pub fn writable(fd: OwnedFd, bytes: u64) -> Result<OwnedFd, SealError> {
    check_own(&fd, bytes)?;
    if fcntl_getfl(&fd).map_err(io::Error::from)?.contains(OFlags::RDWR) {
        return Ok(fd);
    }
    fchmod(&fd, Mode::RUSR | Mode::WUSR).map_err(io::Error::from)?;
    let opened = open_anew(fd.as_fd(), OFlags::RDWR);
    fchmod(&fd, Mode::RUSR).map_err(io::Error::from)?;
    Ok(opened?)
}

/// For a file descriptor that was checked. Memory is never waited for; the flags say that nothing else is either.
fn open_anew(fd: BorrowedFd<'_>, access: OFlags) -> io::Result<OwnedFd> {
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    Ok(open(path, access | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty())?)
}

/// Gives memory of a memfd back; it reads as zeros from now on.
pub fn punch_hole(fd: impl AsFd, offset: u64, bytes: u64) -> io::Result<()> {
    Ok(fallocate(fd, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, offset, bytes)?)
}

/// Checks a file descriptor that came from another process before it is mapped.
pub fn check(fd: impl AsFd, bytes: u64, seals: Seals) -> Result<(), SealError> {
    let fd = fd.as_fd();
    check_seals(fd, seals)?;
    let size = fstat(fd).map_err(io::Error::from)?.st_size as u64;
    if size != bytes {
        return Err(SealError::Size { expected: bytes, found: size });
    }
    Ok(())
}

/// Seals are asked for first: of a file that is not memory, fstat(2) may block.
fn check_seals(fd: BorrowedFd<'_>, seals: Seals) -> Result<(), SealError> {
    let found = fcntl_get_seals(fd).map_err(io::Error::from)?;
    let mut wanted = SealFlags::SHRINK | SealFlags::GROW;
    if seals == Seals::SizeAndFutureWrite {
        wanted |= SealFlags::FUTURE_WRITE;
    }
    if found.contains(wanted) { Ok(()) } else { Err(SealError::Missing { missing: format!("{:?}", wanted - found) }) }
}

/// As `check` of a size, and that the memory is this user's.
pub fn check_own(fd: impl AsFd, bytes: u64) -> Result<(), SealError> {
    let fd = fd.as_fd();
    check(fd, bytes, Seals::Size)?;
    let (own, found) = (geteuid().as_raw(), fstat(fd).map_err(io::Error::from)?.st_uid);
    if own == found { Ok(()) } else { Err(SealError::Owner { own, found }) }
}

/// The identity of the memory behind a file descriptor: (device, inode). Equal for all file descriptors of one memfd.
pub fn identity(fd: impl AsFd) -> io::Result<(u64, u64)> {
    let stat = fstat(fd)?;
    Ok((stat.st_dev, stat.st_ino))
}

/// As `identity`, of a file descriptor that came from another process: an error if it is no memfd whose size is sealed.
pub fn sealed_identity(fd: impl AsFd) -> Result<(u64, u64), SealError> {
    let fd = fd.as_fd();
    check_seals(fd, Seals::Size)?;
    Ok(identity(fd)?)
}

/// The file's length in bytes.
pub fn bytes(fd: impl AsFd) -> io::Result<u64> {
    Ok(fstat(fd)?.st_size as u64)
}

/// Bytes of memory that a part of the file occupies.
pub fn resident_bytes_of(fd: impl AsFd, part: Range<u64>) -> io::Result<u64> {
    let seek = |from| match seek(&fd, from) {
        Ok(found) => Ok(found.min(part.end)),
        // Nothing but holes up to the end.
        Err(rustix::io::Errno::NXIO) => Ok(part.end),
        Err(error) => Err(io::Error::from(error)),
    };
    let (mut at, mut resident) = (part.start, 0);
    while at < part.end {
        let data = seek(SeekFrom::Data(at))?;
        at = if data < part.end { seek(SeekFrom::Hole(data))? } else { part.end };
        resident += at - data;
    }
    Ok(resident)
}

/// Bytes of memory that the file really occupies.
pub fn resident_bytes(fd: impl AsFd) -> io::Result<u64> {
    Ok((fstat(fd)?.st_blocks as u64) * 512)
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt;

    use super::*;

    #[test]
    fn a_new_file_has_its_size_sealed_and_a_lie_about_it_is_refused() {
        let fd = create("test", 8192).unwrap();
        check(&fd, 8192, Seals::Size).unwrap();
        assert!(matches!(check(&fd, 4096, Seals::Size), Err(SealError::Size { expected: 4096, found: 8192 })));
        assert!(ftruncate(&fd, 4096).is_err());
        assert!(ftruncate(&fd, 16384).is_err());
    }

    #[test]
    fn a_pool_without_its_write_seal_is_refused() {
        let fd = create_to_be_sealed("test", 4096).unwrap();
        assert!(matches!(check(&fd, 4096, Seals::SizeAndFutureWrite), Err(SealError::Missing { .. })));
        seal_future_write(&fd).unwrap();
        check(&fd, 4096, Seals::SizeAndFutureWrite).unwrap();
    }

    #[test]
    fn whoever_gets_a_file_can_add_no_seal_that_shuts_others_out() {
        let fd = create("test", 4096).unwrap();
        for seal in [SealFlags::FUTURE_WRITE, SealFlags::WRITE, SealFlags::SEAL] {
            assert_eq!(fcntl_add_seals(&fd, seal), Err(rustix::io::Errno::PERM), "{seal:?}");
        }
        assert!(crate::Mapping::map(&fd, 4096, crate::Access::ReadWrite).is_ok());
        let pool = create_to_be_sealed("test", 4096).unwrap();
        seal_future_write(&pool).unwrap();
        assert_eq!(fcntl_add_seals(&pool, SealFlags::WRITE), Err(rustix::io::Errno::PERM));
    }

    #[test]
    fn what_is_read_only_is_opened_for_writing_by_its_user_alone() {
        let fd = create("test", 4096).unwrap();
        let reading = || read_only(&fd, 4096).unwrap();
        let again = writable(reading(), 4096).unwrap();
        assert!(crate::Mapping::map(&again, 4096, crate::Access::ReadWrite).is_ok());
        if !rustix::process::geteuid().is_root() {
            return;
        }
        // As another user, who gets the file descriptor as its standard input.
        let opens = |how: &str| {
            let mut shell = std::process::Command::new("/bin/sh");
            shell.args(["-c", how]).uid(65534).gid(65534).stdin(reading());
            shell.stderr(std::process::Stdio::null()).status().unwrap().success()
        };
        assert!(opens("head -c 1 > /dev/null"), "it can read");
        assert!(!opens(": <> /proc/self/fd/0"), "the file belongs to another");
        assert!(!opens("chmod u+w /proc/self/fd/0"));
    }

    /// Files of this user's that are no sealed memory, each open for reading, and its mode.
    fn others() -> Vec<(&'static str, OwnedFd, u32)> {
        let path = std::env::temp_dir().join(format!("rgaps-memfd-{}", std::process::id()));
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let open_and_remove = || {
            let fd = open(&path, flags, Mode::empty()).unwrap();
            std::fs::remove_file(&path).unwrap();
            fd
        };
        std::fs::write(&path, [0; 4096]).unwrap();
        let file = open_and_remove();
        let fifo = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, &path, fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        // Without a writer: who opens it for reading waits for one.
        let pipe = open_and_remove();
        let unsealed = memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&unsealed, 4096).unwrap();
        let long = create("test", 8192).unwrap();
        let named = [("a file", file), ("a pipe", pipe), ("unsealed memory", unsealed), ("longer memory", long)];
        let with_mode = |(what, fd): (_, OwnedFd)| {
            fchmod(&fd, Mode::from_raw_mode(0o755)).unwrap();
            (what, fd, 0o755)
        };
        named.into_iter().map(with_mode).collect()
    }

    #[test]
    fn nothing_but_sealed_memory_of_this_user_is_opened_anew_or_changes_its_mode() {
        let mut others = others();
        if geteuid().is_root() {
            let fd = create("test", 4096).unwrap();
            rustix::fs::fchown(&fd, Some(rustix::fs::Uid::from_raw(54_000)), None).unwrap();
            others.push(("memory of another user", fd, 0o777));
        }
        for (what, fd, mode) in others {
            let of = |fd: &OwnedFd| fstat(fd).unwrap().st_mode & 0o7777;
            assert!(read_only(&fd, 4096).is_err(), "{what}");
            assert_eq!(of(&fd), mode, "{what}, opened for reading");
            assert!(writable(fd.try_clone().unwrap(), 4096).is_err(), "{what}");
            assert_eq!(of(&fd), mode, "{what}, opened for writing");
        }
    }

    #[test]
    fn the_memory_of_a_part_is_that_of_its_pages() {
        let page = crate::page_bytes();
        let fd = create("test", 256 * page).unwrap();
        assert_eq!(resident_bytes_of(&fd, 0..256 * page).unwrap(), 0);
        let mapping = crate::Mapping::map(&fd, 256 * page, crate::Access::ReadWrite).unwrap();
        for written in [0, 3, 4, 255] {
            mapping.copy_in(written * page, &vec![1; page as usize][..]).unwrap();
        }
        let of = |pages: Range<u64>| resident_bytes_of(&fd, pages.start * page..pages.end * page).unwrap() / page;
        assert_eq!([of(0..256), of(0..4), of(4..5), of(5..255), of(1..256)], [4, 2, 1, 0, 3]);
    }

    #[test]
    fn an_ordinary_file_is_refused() {
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        assert!(check(&file, 1, Seals::Size).is_err());
    }
}
