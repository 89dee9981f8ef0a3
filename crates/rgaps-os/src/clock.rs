//! The clock of stage timestamps: `CLOCK_REALTIME` in nanoseconds, which hosts of a robot share through PTP or NTP, as ROS does.

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds since 1970-01-01 UTC on this host's clock.
pub fn realtime_ns() -> u64 {
    nanoseconds(ClockId::Realtime)
}

/// Nanoseconds since an arbitrary start; never goes back. For time-outs and durations.
pub fn monotonic_ns() -> u64 {
    nanoseconds(ClockId::Monotonic)
}

fn nanoseconds(clock: ClockId) -> u64 {
    let now = clock_gettime(clock);
    (now.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(now.tv_nsec as u64)
}
