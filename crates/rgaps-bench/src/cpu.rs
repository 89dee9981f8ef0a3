//! What a process uses: processor time, wake-ups, memory, file descriptors and threads.

use std::io;

use rustix::param::clock_ticks_per_second;
use rustix::time::{ClockId, clock_gettime};

/// Seconds that a process has used. Exact while none of its threads has ended; of those that have, ticks of 10 ms are counted.
pub(crate) fn of_process(id: u32) -> io::Result<f64> {
    // Both are at most what was used: `schedstat` is exact, but of threads that run; `stat` is of all, in ticks.
    Ok(of_threads(id).max(of_stat(&std::fs::read_to_string(format!("/proc/{id}/stat"))?)?))
}

/// How often threads of a process have slept and woken again, without threads that have ended.
pub(crate) fn wakeups(id: u32) -> io::Result<u64> {
    let mut all = 0;
    for task in std::fs::read_dir(format!("/proc/{id}/task"))? {
        // The thread may have ended meanwhile.
        let Ok(text) = std::fs::read_to_string(task?.path().join("status")) else { continue };
        all += field(&text, "voluntary_ctxt_switches:")?;
    }
    Ok(all)
}

/// Memory of a process, and shared memory that it has used.
pub(crate) fn resident_bytes(id: u32) -> io::Result<u64> {
    Ok(field(&std::fs::read_to_string(format!("/proc/{id}/status"))?, "VmRSS:")? << 10)
}

/// Open file descriptors of a process.
pub(crate) fn open_fds(id: u32) -> io::Result<u64> {
    Ok(std::fs::read_dir(format!("/proc/{id}/fd"))?.count() as u64)
}

/// Threads of a process.
pub(crate) fn threads(id: u32) -> io::Result<u64> {
    Ok(std::fs::read_dir(format!("/proc/{id}/task"))?.count() as u64)
}

/// A number of a text of /proc/PID/status.
fn field(text: &str, name: &str) -> io::Result<u64> {
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.split_whitespace().next()?.parse().ok());
    value.ok_or_else(|| io::Error::other(format!("its status has no {name}")))
}

/// Seconds that the threads of a process have used, without those that have ended; 0 if the kernel does not say.
fn of_threads(id: u32) -> f64 {
    let tasks = std::fs::read_dir(format!("/proc/{id}/task")).into_iter().flatten().flatten();
    let used = tasks.filter_map(|task| {
        let text = std::fs::read_to_string(task.path().join("schedstat")).ok()?;
        text.split(' ').next()?.parse::<u64>().ok()
    });
    used.sum::<u64>() as f64 / 1e9
}

/// Seconds of user and system time in a text of /proc/PID/stat, whose second field, the program's name, may have spaces and brackets.
fn of_stat(text: &str) -> io::Result<f64> {
    let mut fields = text.rsplit_once(") ").map_or("", |(_, rest)| rest).split(' ').skip(11);
    let mut ticks = || fields.next().and_then(|field| field.parse::<u64>().ok());
    match (ticks(), ticks()) {
        (Some(user), Some(system)) => Ok((user + system) as f64 / clock_ticks_per_second() as f64),
        _ => Err(io::Error::other("its /proc/PID/stat has no utime and stime")),
    }
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

    #[test]
    fn the_time_of_threads_that_have_ended_is_counted() {
        let before = of_process(std::process::id()).unwrap();
        let work = || while of_this_thread() < 0.3 {};
        std::thread::spawn(work).join().unwrap();
        let used = of_process(std::process::id()).unwrap() - before;
        assert!(used > 0.2, "{used}");
    }

    #[test]
    fn a_stat_without_times_is_an_error() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194560 12 0 0 0 150 50 0 0 20 0";
        assert_eq!(of_stat(stat).unwrap(), 200.0 / clock_ticks_per_second() as f64);
        assert!(of_stat("").is_err() && of_stat("7 (a) S 1 7").is_err());
    }
}
