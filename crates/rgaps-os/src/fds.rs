//! How many file descriptors this process has open, and how many it may have.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The soft limit (RLIMIT_NOFILE); `u64::MAX` if there is none.
pub fn limit() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// A lower bound of the file descriptors that this process has open: all below the number that a copy of `any` gets are. The limit if the copy fails.
pub fn in_use(any: impl AsFd) -> u64 {
    let next = rustix::io::fcntl_dupfd_cloexec(any, 0);
    next.map_or_else(|_| limit(), |next| u64::try_from(next.as_raw_fd()).unwrap_or_default())
}

/// Raises the soft limit to the hard limit, and returns it. For programs only: a library must not, since its program may use select(2), which is
/// limited to 1024 file descriptors.
pub fn raise_limit() -> io::Result<u64> {
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })?;
    Ok(limit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_file_descriptors_are_counted_as_a_lower_bound() {
        let before = in_use(io::stdin());
        let more: Vec<_> = (0..200).map(|_| rustix::io::fcntl_dupfd_cloexec(io::stdin(), 0).unwrap()).collect();
        // Other tests of this process open and close file descriptors meanwhile.
        assert!(in_use(io::stdin()) >= 200, "{before} before");
        drop(more);
    }

    #[test]
    fn the_limit_is_raised_as_far_as_it_goes() {
        let before = limit();
        assert!(raise_limit().unwrap() >= before);
        assert_eq!(getrlimit(Resource::Nofile).current, getrlimit(Resource::Nofile).maximum);
    }
}
