//! Examines a file before opening it. Opening a pipe blocks until a writer opens it, and opening a file on a FUSE mount may block as long as the
//! owner of the mount wants. A process may have either open under any name.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, StatxFlags};
use rustix::io::Errno;

/// Whether a symbolic link at the end of a path is followed, as it must be for a file descriptor in /proc.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Links {
    /// The link is followed.
    Follow,
    /// The link itself is found.
    Refuse,
}

/// A file that was found and is not opened.
#[derive(Debug)]
pub struct Found {
    place: OwnedFd,
    seen: Seen,
}

#[derive(Clone, Copy, Debug)]
struct Seen {
    identity: (u64, u64),
    kind: FileType,
    user: u32,
}

impl Found {
    /// Finds the file at a path, without opening it.
    pub fn at(path: &Path, links: Links) -> io::Result<Self> {
        let how = if links == Links::Refuse { OFlags::NOFOLLOW } else { OFlags::empty() };
        // With O_PATH, open(2) opens nothing.
        let place = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC | how, Mode::empty())?;
        let seen = see(&place, Path::new(""), AtFlags::EMPTY_PATH)?;
        Ok(Self { place, seen })
    }

    /// Its device and inode.
    pub fn identity(&self) -> (u64, u64) {
        self.seen.identity
    }

    /// Whether it is a regular file of this process's user.
    pub fn is_own_file(&self) -> bool {
        self.seen.kind == FileType::RegularFile && self.seen.user == rustix::process::geteuid().as_raw()
    }

    /// Opens the found file for reading, even if another file is at its path now.
    pub fn open(&self) -> io::Result<File> {
        let path = format!("/proc/self/fd/{}", self.place.as_raw_fd());
        let how = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        Ok(rustix::fs::open(path, how, Mode::empty())?.into())
    }
}

/// Device and inode of the file at a path; a symbolic link there is followed.
pub fn identity_at(path: &Path) -> io::Result<(u64, u64)> {
    Ok(see(CWD, path, AtFlags::empty())?.identity)
}

/// What the kernel knows of a file without asking its file system (STATX_DONT_SYNC in statx(2)).
fn see(dir: impl AsFd, path: &Path, how: AtFlags) -> io::Result<Seen> {
    let wanted = StatxFlags::INO | StatxFlags::TYPE | StatxFlags::UID;
    match rustix::fs::statx(&dir, path, how | AtFlags::STATX_DONT_SYNC, wanted) {
        Ok(found) => Ok(Seen {
            identity: (rustix::fs::makedev(found.stx_dev_major, found.stx_dev_minor), found.stx_ino),
            kind: FileType::from_raw_mode(found.stx_mode.into()),
            user: found.stx_uid,
        }),
        // Some containers forbid statx(2).
        Err(Errno::NOSYS | Errno::PERM) => {
            let found = rustix::fs::statat(&dir, path, how)?;
            let kind = FileType::from_raw_mode(found.st_mode);
            Ok(Seen { identity: (found.st_dev, found.st_ino), kind, user: found.st_uid })
        }
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_found_is_opened_whatever_is_at_its_path_by_now() {
        let path = std::env::temp_dir().join(format!("rgaps-found-{}", std::process::id()));
        std::fs::write(&path, "first").unwrap();
        let found = Found::at(&path, Links::Refuse).unwrap();
        assert!(found.is_own_file());
        assert_eq!(found.identity(), identity_at(&path).unwrap());
        std::fs::remove_file(&path).unwrap();
        rustix::fs::mknodat(CWD, &path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        assert_eq!(io::read_to_string(found.open().unwrap()).unwrap(), "first");
        // Opening this pipe for reading would block until a writer opens it.
        assert!(!Found::at(&path, Links::Refuse).unwrap().is_own_file());
        std::fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("/dev/null", &path).unwrap();
        assert_eq!(Found::at(&path, Links::Follow).unwrap().identity(), identity_at(Path::new("/dev/null")).unwrap());
        assert_ne!(Found::at(&path, Links::Refuse).unwrap().identity(), identity_at(&path).unwrap());
        std::fs::remove_file(&path).unwrap();
    }
}
