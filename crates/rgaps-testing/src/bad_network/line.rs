//! One direction of a bad network: when each frame is delivered, and what happens to it. No clock, no thread; random numbers come from a seed.
//!
//! ```text
//!   handle(now, frame) ──cut? lost? too large? no room?──▶ damaged? ──▶ queue of (due, frame), once or twice ──poll(now)──▶
//! ```

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::{Duration, Instant};

use super::damage;

/// A million in a million: always.
pub const ALWAYS_PPM: u32 = 1_000_000;

/// What the network does to frames, in each direction separately. The default passes everything at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Conditions {
    /// Nothing passes, and frames in flight are lost.
    pub is_cut: bool,
    /// Frames in a million that are lost.
    pub lost_ppm: u32,
    /// Frames in a million that are delivered twice.
    pub twice_ppm: u32,
    /// Frames in a million that are delayed by up to `late_by`, so that others overtake them.
    pub late_ppm: u32,
    /// The longest such delay.
    pub late_by: Duration,
    /// Frames in a million of which one bit is flipped; the kernel's checksums detect it.
    pub flipped_ppm: u32,
    /// Frames in a million of whose payload two 16-bit words are swapped; the kernel's checksums do not detect it.
    pub swapped_ppm: u32,
    /// The delay of every frame.
    pub delay: Duration,
    /// Bytes that pass per second; 0 is no limit.
    pub bytes_per_second: u64,
    /// Bytes that may wait at that rate; frames beyond it are lost.
    pub queue_bytes: u64,
    /// Frames with more bytes after the Ethernet header are lost; 0 is no limit.
    pub mtu_bytes: usize,
}

/// Counts of what happened to frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Passage {
    /// Frames that went in.
    pub came: u64,
    /// Lost by chance.
    pub lost: u64,
    /// Lost in a cut.
    pub cut: u64,
    /// Lost because the queue was full.
    pub overflowed: u64,
    /// Lost because they were larger than the MTU.
    pub too_large: u64,
    /// Delivered twice.
    pub twice: u64,
    /// Delayed so that others could overtake them.
    pub late: u64,
    /// With a flipped bit.
    pub flipped: u64,
    /// With swapped words.
    pub swapped: u64,
}

/// A frame in flight. The order is the order of delivery.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct UnderWay {
    due: Instant,
    serial: u64,
    frame: Vec<u8>,
}

/// Pseudo-random numbers from a seed (xorshift, Marsaglia 2003).
#[derive(Debug)]
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        // Neighbouring seeds start far apart. A state of 0 would stay 0.
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(super) fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        // The low bits are the weakest.
        (self.0 >> 11) % limit.max(1)
    }

    fn chance(&mut self, ppm: u32) -> bool {
        ppm > 0 && self.below(u64::from(ALWAYS_PPM)) < u64::from(ppm)
    }
}

/// One direction.
#[derive(Debug)]
pub struct Line {
    conditions: Conditions,
    random: Random,
    under_way: BinaryHeap<Reverse<UnderWay>>,
    serial: u64,
    /// When the last waiting byte has passed.
    busy_until: Option<Instant>,
    passage: Passage,
}

impl Line {
    /// A line that passes everything.
    pub fn new(seed: u64) -> Self {
        Self {
            conditions: Conditions::default(),
            random: Random::new(seed),
            under_way: BinaryHeap::new(),
            serial: 0,
            busy_until: None,
            passage: Passage::default(),
        }
    }

    /// Sets the conditions from now on.
    pub fn set(&mut self, conditions: Conditions) {
        self.conditions = conditions;
        if conditions.is_cut {
            self.passage.cut += self.under_way.len() as u64;
            self.under_way.clear();
        }
        self.busy_until = None;
    }

    /// Counts of what has happened to frames so far.
    pub fn passage(&self) -> Passage {
        self.passage
    }

    /// Takes a frame in.
    pub fn handle(&mut self, now: Instant, mut frame: Vec<u8>) {
        let conditions = self.conditions;
        self.passage.came += 1;
        if conditions.is_cut {
            self.passage.cut += 1;
            return;
        }
        if self.random.chance(conditions.lost_ppm) {
            self.passage.lost += 1;
            return;
        }
        if conditions.mtu_bytes > 0 && frame.len() > damage::ETHERNET_BYTES + conditions.mtu_bytes {
            self.passage.too_large += 1;
            return;
        }
        let Some(turn) = self.turn(now, frame.len() as u64) else {
            self.passage.overflowed += 1;
            return;
        };
        if self.random.chance(conditions.flipped_ppm) {
            self.passage.flipped += u64::from(damage::flip(&mut frame, &mut self.random));
        }
        if self.random.chance(conditions.swapped_ppm) {
            self.passage.swapped += u64::from(damage::swap(&mut frame, &mut self.random));
        }
        let mut due = turn + conditions.delay;
        if self.random.chance(conditions.late_ppm) {
            self.passage.late += 1;
            due += Duration::from_micros(self.random.below(conditions.late_by.as_micros() as u64 + 1));
        }
        if self.random.chance(conditions.twice_ppm) {
            self.passage.twice += 1;
            self.send(due, frame.clone());
        }
        self.send(due, frame);
    }

    /// The next frame that is due by now.
    pub fn poll(&mut self, now: Instant) -> Option<Vec<u8>> {
        self.due().filter(|due| *due <= now)?;
        self.under_way.pop().map(|Reverse(under_way)| under_way.frame)
    }

    /// When `poll` next has a frame.
    pub fn due(&self) -> Option<Instant> {
        self.under_way.peek().map(|Reverse(first)| first.due)
    }

    fn send(&mut self, due: Instant, frame: Vec<u8>) {
        self.serial += 1;
        self.under_way.push(Reverse(UnderWay { due, serial: self.serial, frame }));
    }

    /// When the last byte of a frame has passed at the line's rate. `None` if the queue has no room for it.
    fn turn(&mut self, now: Instant, bytes: u64) -> Option<Instant> {
        let Conditions { bytes_per_second, queue_bytes, .. } = self.conditions;
        if bytes_per_second == 0 {
            return Some(now);
        }
        let time = |bytes: u64| Duration::from_nanos(bytes * 1_000_000_000 / bytes_per_second);
        let start = self.busy_until.map_or(now, |busy| busy.max(now));
        if start - now > time(queue_bytes) {
            return None;
        }
        let end = start + time(bytes);
        self.busy_until = Some(end);
        Some(end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FRAMES: u64 = 20_000;

    fn line(conditions: Conditions) -> Line {
        let mut line = Line::new(7);
        line.set(conditions);
        line
    }

    fn frame(number: u64) -> Vec<u8> {
        [&[0; damage::ETHERNET_BYTES][..], &number.to_le_bytes()].concat()
    }

    fn number(frame: &[u8]) -> u64 {
        u64::from_le_bytes(*frame[damage::ETHERNET_BYTES..].first_chunk().unwrap())
    }

    /// Sends `frames` frames, one per millisecond, and returns those that come out: (milliseconds, number).
    fn run(line: &mut Line, frames: u64) -> Vec<(u128, u64)> {
        let start = Instant::now();
        let mut out = Vec::new();
        let mut drain = |line: &mut Line, now: Instant| {
            while let Some(frame) = line.poll(now) {
                out.push(((now - start).as_millis(), number(&frame)));
            }
        };
        for sent in 0..frames {
            let now = start + Duration::from_millis(sent);
            line.handle(now, frame(sent));
            drain(line, now);
        }
        while let Some(due) = line.due() {
            drain(line, due);
        }
        out
    }

    #[test]
    fn a_line_without_conditions_passes_everything_at_once() {
        let out = run(&mut line(Conditions::default()), 100);
        assert!(out.iter().enumerate().all(|(index, (at, number))| (*at, *number) == (index as u128, index as u64)));
        assert_eq!(out.len(), 100);
    }

    #[test]
    fn frames_are_lost_doubled_and_delayed_at_their_rates_and_repeatably_by_seed() {
        let late_by = Duration::from_millis(20);
        let conditions =
            Conditions { lost_ppm: 50_000, twice_ppm: 20_000, late_ppm: 10_000, late_by, ..Conditions::default() };
        let mut first = line(conditions);
        let out = run(&mut first, FRAMES);
        let Passage { came, lost, twice, late, .. } = first.passage();
        assert_eq!((came, out.len() as u64), (FRAMES, FRAMES - lost + twice));
        let about = |count: u64, percent: u64| (FRAMES * percent / 200..FRAMES * percent / 50).contains(&count);
        assert!(about(lost, 5) && about(twice, 2) && about(late, 1), "{:?}", first.passage());
        assert!(out.windows(2).any(|pair| pair[0].1 > pair[1].1), "no frame overtook another");
        assert!(out.iter().all(|(at, number)| *at <= u128::from(*number) + 20), "a delay beyond late_by");
        let mut again = line(conditions);
        assert_eq!((run(&mut again, FRAMES), again.passage()), (out, first.passage()));
    }

    #[test]
    fn a_frame_is_in_flight_for_the_delay() {
        let out = run(&mut line(Conditions { delay: Duration::from_millis(50), ..Conditions::default() }), 100);
        assert!(out.iter().all(|(at, number)| *at == u128::from(*number) + 50) && out.len() == 100);
    }

    #[test]
    fn a_rate_holds_frames_back_and_a_full_queue_loses_them() {
        // A frame has 22 bytes, so ten pass per second, and three wait.
        let conditions = Conditions { bytes_per_second: 220, queue_bytes: 44, ..Conditions::default() };
        let mut line = line(conditions);
        let out = run(&mut line, 10);
        assert_eq!(out.iter().map(|(at, _)| *at).collect::<Vec<_>>(), [100, 200, 300]);
        assert_eq!(line.passage().overflowed, 7);
    }

    #[test]
    fn a_cut_loses_frames_in_flight_and_new_ones_until_it_ends() {
        let delay = Duration::from_millis(50);
        let conditions = Conditions { delay, ..Conditions::default() };
        let mut line = line(conditions);
        let now = Instant::now();
        line.handle(now, frame(0));
        line.set(Conditions { is_cut: true, ..conditions });
        line.handle(now, frame(1));
        assert_eq!((line.due(), line.passage().cut), (None, 2));
        line.set(conditions);
        line.handle(now, frame(2));
        assert_eq!((line.poll(now), line.poll(now + delay)), (None, Some(frame(2))));
    }

    #[test]
    fn frames_larger_than_the_mtu_are_lost() {
        let mut line = line(Conditions { mtu_bytes: 8, ..Conditions::default() });
        let now = Instant::now();
        line.handle(now, frame(0));
        line.handle(now, [frame(1), vec![0]].concat());
        assert_eq!((line.poll(now), line.poll(now)), (Some(frame(0)), None));
        assert_eq!(line.passage().too_large, 1);
    }
}
