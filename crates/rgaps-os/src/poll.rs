//! Waits for file descriptors with a time-out.
//!
//! poll(2) refuses more file descriptors than RLIMIT_NOFILE, which a program may lower below the number that it has open. They are then polled in
//! slices, with pauses between the rounds.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, retry_on_intr};

/// Between two rounds in slices.
const ROUND_PAUSE: Duration = Duration::from_millis(5);

/// Whether the file descriptor turned readable (or was hung up) within `timeout`. A signal ends the wait early, as not readable. In a process that may
/// have no file descriptors it counts as readable after a pause.
pub fn readable(fd: impl AsFd, timeout: Duration) -> io::Result<bool> {
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    match poll(&mut fds, Some(&timespec(timeout))) {
        Ok(ready) => Ok(ready > 0),
        Err(Errno::INTR) => Ok(false),
        Err(Errno::INVAL) => Ok(in_slices(&mut fds, 0, timeout)?[0]),
        Err(error) => Err(error.into()),
    }
}

/// Like `readable`, for each of these file descriptors. Ends when one of them is readable.
pub fn readable_among(fds: &[BorrowedFd<'_>], timeout: Duration) -> io::Result<Vec<bool>> {
    let mut polled: Vec<PollFd<'_>> = fds.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
    match poll(&mut polled, Some(&timespec(timeout))) {
        Ok(_) => Ok(ready(&polled)),
        Err(Errno::INTR) => Ok(vec![false; fds.len()]),
        Err(Errno::INVAL) => in_slices(&mut polled, crate::fds::limit(), timeout),
        Err(error) => Err(error.into()),
    }
}

/// Waits until one of these is ready, at most `timeout`; `revents` then tells which. A signal ends the wait early. In a process that may have no
/// file descriptors none is ready after a pause.
pub fn any(polled: &mut [PollFd<'_>], timeout: Duration) -> io::Result<()> {
    match poll(polled, Some(&timespec(timeout))) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(Errno::INVAL) => {
            polled.iter_mut().for_each(PollFd::clear_revents);
            in_slices(polled, crate::fds::limit(), timeout).map(drop)
        }
        Err(error) => Err(error.into()),
    }
}

fn in_slices(polled: &mut [PollFd<'_>], slice: u64, timeout: Duration) -> io::Result<Vec<bool>> {
    let began = Instant::now();
    loop {
        let left = timeout.saturating_sub(began.elapsed());
        let slice = usize::try_from(slice).unwrap_or(usize::MAX);
        if slice == 0 {
            std::thread::sleep(left.min(ROUND_PAUSE));
            return Ok(vec![true; polled.len()]);
        }
        for some in polled.chunks_mut(slice) {
            retry_on_intr(|| poll(some, Some(&Timespec::default())))?;
        }
        let ready = ready(polled);
        if left.is_zero() || ready.contains(&true) {
            return Ok(ready);
        }
        std::thread::sleep(left.min(ROUND_PAUSE));
    }
}

fn ready(polled: &[PollFd<'_>]) -> Vec<bool> {
    polled.iter().map(|fd| !fd.revents().is_empty()).collect()
}

/// A duration in the kernel's form, truncated to the longest that fits.
pub fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: duration.as_secs().min(i64::MAX as u64) as i64,
        tv_nsec: i64::from(duration.subsec_nanos()) as _,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::EventFd;

    #[test]
    fn more_fds_than_the_limit_are_polled_in_slices() {
        let events: Vec<EventFd> = (0..5).map(|_| EventFd::new().unwrap()).collect();
        let mut polled: Vec<PollFd<'_>> = events.iter().map(|event| PollFd::new(event, PollFlags::IN)).collect();
        let long = Duration::from_secs(60);
        for slice in 1..7 {
            assert_eq!(in_slices(&mut polled, slice, Duration::ZERO).unwrap(), [false; 5]);
            events[4].signal().unwrap();
            assert_eq!(in_slices(&mut polled, slice, long).unwrap(), [false, false, false, false, true]);
            assert!(events[4].drain().unwrap());
            let signals = std::thread::scope(|scope| {
                scope.spawn(|| events[1].signal().unwrap());
                in_slices(&mut polled, slice, long).unwrap()
            });
            assert_eq!(signals, [false, true, false, false, false]);
            assert!(events[1].drain().unwrap());
        }
    }

    #[test]
    fn a_wait_in_a_process_that_may_have_no_fds_pauses() {
        let event = EventFd::new().unwrap();
        let began = Instant::now();
        assert_eq!(in_slices(&mut [PollFd::new(&event, PollFlags::IN)], 0, Duration::MAX).unwrap(), [true]);
        assert!(began.elapsed() >= ROUND_PAUSE);
    }
}
