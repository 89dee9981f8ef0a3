//! Processor time of a process, and of this thread.

use std::io;

use rustix::time::{ClockId, clock_gettime};

/// Seconds that the threads of a process have used; those that have ended are not counted.
pub(crate) fn of_process(id: u32) -> io::Result<f64> {
    let mut nanoseconds = 0;
    for task in std::fs::read_dir(format!("/proc/{id}/task"))?.flatten() {
        // A thread may have ended meanwhile.
        let text = std::fs::read_to_string(task.path().join("schedstat")).unwrap_or_default();
        nanoseconds += text.split(' ').next().and_then(|on_cpu| on_cpu.parse::<u64>().ok()).unwrap_or(0);
    }
    Ok(nanoseconds as f64 / 1e9)
}

/// Seconds that this thread has used.
pub(crate) fn of_this_thread() -> f64 {
    let used = clock_gettime(ClockId::ThreadCPUTime);
    used.tv_sec as f64 + used.tv_nsec as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_works_uses_time_and_so_does_its_process() {
        let (process, thread) = (of_process(std::process::id()).unwrap(), of_this_thread());
        let mut number = 1_u64;
        while of_this_thread() - thread < 0.02 {
            number = std::hint::black_box(number.wrapping_mul(3));
        }
        assert!(of_process(std::process::id()).unwrap() > process);
        assert!(of_process(u32::MAX).is_err());
    }
}
