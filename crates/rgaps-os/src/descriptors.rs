//! How many descriptors this process may have open.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The limit now (RLIMIT_NOFILE, soft); the largest number if there is none.
pub fn limit() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// How many descriptors this process has open, at the least: all below the one that it would get next, a copy of `any`. The limit if it gets none.
pub fn in_use(any: impl AsFd) -> u64 {
    let next = rustix::io::fcntl_dupfd_cloexec(any, 0);
    next.map_or_else(|_| limit(), |next| u64::try_from(next.as_raw_fd()).unwrap_or_default())
}

/// Raises the limit to what the process may raise it to, which is then the limit. For programs: a library leaves it alone, since a program
/// may use select(2), which knows 1024 descriptors.
pub fn raise_limit() -> io::Result<u64> {
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })?;
    Ok(limit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_that_are_open_are_counted_at_the_least() {
        let before = in_use(io::stdin());
        let more: Vec<_> = (0..200).map(|_| rustix::io::fcntl_dupfd_cloexec(io::stdin(), 0).unwrap()).collect();
        // Tests beside this one open and close some.
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
