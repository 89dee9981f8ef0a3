//! `bench link`: a ring over tcp against one bare socket that fills memory of the same kind.
//!
//! ```text
//!   ours  source ──TcpSender::post──▶ loopback ──TcpReceiver──▶ ring of 64 MiB, released, credit goes back
//!   bare  source ──write_all────────▶ loopback ──read(2)──────────────────▶ 64 MiB of the same memory, in a circle
//! ```
//!
//! The bare socket reads 64 KiB at a time. On loopback this is much faster than larger reads: the window opens sooner, and the bytes read are
//! still in the cache.
//!
//! The bare socket has no checksums, so ours has none in that row either (`integrity = "none"`). Another row measures their cost: the same link with
//! and without them, in turns.
//!
//! Both go through their whole memory, so that neither finds it in the cache when the other does not. The time ends when the receiving side has
//! the last byte. Nothing is copied out of either memory.

use std::hint::black_box;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rgaps_link::tcp::Summer;
use rgaps_link::{Integrity, RingMemory, RingOptions};
use rgaps_os::SharedBytes;
use rustix::time::{ClockId, clock_gettime};

use super::ring::{Ring, join, thread};
use crate::measure::Pairs;
use crate::network::Network;
use crate::results::Part;
use crate::{BenchError, Bound, Effort, Options, Row, available_bytes};

pub(super) const BENCH: &str = "link";
/// Size of the ring, and of the bare socket's memory.
const MEMORY_BYTES: u64 = 64 << 20;
/// The read size with which a bare socket is fastest.
const READ_BYTES: u64 = 64 << 10;
/// Bytes that the bare writer sums, then writes, at a time, as ours does.
const PIECE_BYTES: usize = 256 << 10;
/// The size with the promised bound.
const BOUND_BYTES: u64 = 64 << 20;
/// A transfer that takes longer has failed.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);
/// How often the receiving threads check whether to stop.
pub(super) const TICK: Duration = Duration::from_millis(100);
/// The largest size also needs memory for its source.
const LARGE_NEEDS_BYTES: u64 = 4 << 30;

/// The sizes, each as ours / bare.
pub(crate) fn run(options: &Options) -> Result<Part, BenchError> {
    let effort = options.effort;
    let large = effort == Effort::Full && available_bytes() > LARGE_NEEDS_BYTES;
    let mut cases = vec![(effort.rounds(300), 4 << 20, "4 MiB"), (effort.rounds(100), BOUND_BYTES, "64 MiB")];
    if large {
        cases.push((7, 1 << 30, "1 GiB"));
    }
    let mut rows = Vec::new();
    for (rounds, bytes, name) in cases {
        if options.wants(&format!("tcp {name}, no checksums")) {
            rows.push(case(rounds, bytes, name)?);
        }
        if options.wants(&format!("tcp {name}, crc32c")) {
            rows.push(integrity(rounds, bytes, name)?);
        }
    }
    Ok(rows.into())
}

fn case(rounds: usize, bytes: u64, name: &str) -> Result<Row, BenchError> {
    let source = source(bytes)?;
    let data = source.mapping().shared(0, bytes).map_err(failed)?;
    let (mut ring, mut bare) = (ring(Integrity::None)?, Bare::new(MEMORY_BYTES, Integrity::None)?);
    // Warm-up: every page of both memories is touched.
    for _ in 0..=(2 * MEMORY_BYTES / bytes).min(20) {
        ring.transfer(data)?;
        bare.transfer(data)?;
    }
    let rate = |took: f64| bytes as f64 / took / 1e9;
    let pairs = Pairs::run(rounds, || ring.transfer(data).map(rate), || bare.transfer(data).map(rate))?;
    let bound = (bytes == BOUND_BYTES).then_some(Bound::AtLeast(0.9));
    Ok(Row::of_pairs((BENCH, format!("tcp {name}, no checksums")), "bare socket", "GB/s", &pairs, bound))
}

/// The cost of the default checksums.
fn integrity(rounds: usize, bytes: u64, name: &str) -> Result<Row, BenchError> {
    let source = source(bytes)?;
    let data = source.mapping().shared(0, bytes).map_err(failed)?;
    let (mut with, mut without) = (ring(Integrity::Crc32c)?, ring(Integrity::None)?);
    for _ in 0..=(2 * MEMORY_BYTES / bytes).min(20) {
        with.transfer(data)?;
        without.transfer(data)?;
    }
    let rate = |took: f64| bytes as f64 / took / 1e9;
    let pairs = Pairs::run(rounds, || with.transfer(data).map(rate), || without.transfer(data).map(rate))?;
    Ok(Row::of_pairs((BENCH, format!("tcp {name}, crc32c")), "no checksums", "GB/s", &pairs, None))
}

fn ring(integrity: Integrity) -> Result<Ring, BenchError> {
    Ring::tcp(RingOptions { ring_bytes: MEMORY_BYTES, integrity, ..RingOptions::default() })
}

/// Memory like a publisher's pool, with every page written.
pub(super) fn source(bytes: u64) -> Result<Arc<RingMemory>, BenchError> {
    let memory = RingMemory::create("rgaps-bench", bytes).map_err(failed)?;
    write(&memory, bytes, 1)?;
    Ok(memory)
}

/// Writes the first `bytes`, as a message's producer would.
pub(super) fn write(memory: &RingMemory, bytes: u64, value: u8) -> Result<(), BenchError> {
    let block = vec![value; 64 << 10];
    for offset in (0..bytes).step_by(block.len()) {
        let length = (bytes - offset).min(block.len() as u64) as usize;
        memory.mapping().copy_in(offset, &block[..length]).map_err(failed)?;
    }
    Ok(())
}

/// The physical limit: one socket on loopback, and a thread that reads it into memory. With checksums both sides sum what they write and read, as ours
/// do.
pub(super) struct Bare {
    stream: TcpStream,
    summer: Option<Summer>,
    landed: Receiver<Instant>,
    /// How many bytes the reader waits for.
    wanted: Arc<AtomicU64>,
    /// Nanoseconds of processor time that the reader has used.
    cpu: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Bare {
    /// `memory_bytes`: the memory that the reader fills in a circle.
    pub(super) fn new(memory_bytes: u64, integrity: Integrity) -> Result<Self, BenchError> {
        Self::over(&Network::Loopback, memory_bytes, integrity)
    }

    /// The same over another network.
    pub(super) fn over(network: &Network, memory_bytes: u64, integrity: Integrity) -> Result<Self, BenchError> {
        let [stream, incoming] = network.sockets().map_err(system("connecting"))?;
        stream.set_nodelay(true).map_err(system("a socket"))?;
        stream.set_write_timeout(Some(PATIENCE)).map_err(system("a socket"))?;
        incoming.set_read_timeout(Some(TICK)).map_err(system("a socket"))?;
        let memory = RingMemory::create("rgaps-bench-bare", memory_bytes).map_err(failed)?;
        let (wanted, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let cpu = Arc::new(AtomicU64::new(0));
        let (told, landed) = channel();
        let reader = {
            let (wanted, cpu, stop) = (wanted.clone(), cpu.clone(), stop.clone());
            thread("bench-bare", move || fill(&incoming, &memory, integrity, (&wanted, &cpu), &told, &stop))?
        };
        let summer = (integrity == Integrity::Crc32c).then(Summer::new);
        Ok(Self { stream, summer, landed, wanted, cpu, stop, threads: vec![reader] })
    }

    /// Seconds of processor time that the reader has used.
    pub(super) fn cpu_seconds(&self) -> f64 {
        self.cpu.load(Ordering::Acquire) as f64 / 1e9
    }

    /// Seconds until the reader has all of `data`.
    pub(super) fn transfer(&mut self, mut data: SharedBytes<'_>) -> Result<f64, BenchError> {
        self.wanted.fetch_add(data.len() as u64, Ordering::Release);
        let start = Instant::now();
        while !data.is_empty() {
            let mut piece = data;
            if let Some(summer) = &mut self.summer {
                piece = data.part(0, data.len().min(PIECE_BYTES)).map_err(failed)?;
                summer.add(piece);
            }
            data = data.part(piece.len(), data.len() - piece.len()).map_err(failed)?;
            while !piece.is_empty() {
                let written = piece.write_to(&self.stream).map_err(system("writing to a bare socket"))?;
                piece = piece.part(written, piece.len() - written).map_err(failed)?;
            }
        }
        let _ = black_box(self.summer.as_ref().map(Summer::sum));
        let landed = self.landed.recv_timeout(PATIENCE).map_err(failed)?;
        Ok(landed.duration_since(start).as_secs_f64())
    }
}

impl Drop for Bare {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
        join(&mut self.threads);
    }
}

/// Reads in a circle, and reports when it has the requested bytes.
fn fill(
    stream: &TcpStream,
    memory: &RingMemory,
    integrity: Integrity,
    (wanted, cpu): (&AtomicU64, &AtomicU64),
    told: &Sender<Instant>,
    stop: &AtomicBool,
) {
    let memory_bytes = memory.bytes();
    let mut summer = (integrity == Integrity::Crc32c).then(Summer::new);
    let mut filled = 0_u64;
    while !stop.load(Ordering::Acquire) {
        let offset = filled % memory_bytes;
        match memory.mapping().read_from(stream, offset, READ_BYTES.min(memory_bytes - offset), &mut []) {
            Ok(0) => return,
            Ok(n) => {
                if let (Some(summer), Ok(landed)) = (&mut summer, memory.mapping().shared(offset, n as u64)) {
                    summer.add(landed);
                    black_box(summer.sum());
                }
                filled += n as u64;
                let used = clock_gettime(ClockId::ThreadCPUTime);
                cpu.store((used.tv_sec * 1_000_000_000 + used.tv_nsec) as u64, Ordering::Release);
                if filled == wanted.load(Ordering::Acquire) && told.send(Instant::now()).is_err() {
                    return;
                }
            }
            Err(error) if matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::Interrupted) => {}
            Err(_) => return,
        }
    }
}

pub(super) fn any_port() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, 0).into()
}

pub(super) fn failed(cause: impl std::fmt::Display) -> BenchError {
    BenchError::failed(BENCH, cause)
}

pub(super) fn system(what: &'static str) -> impl Fn(std::io::Error) -> BenchError {
    BenchError::system(BENCH, what)
}
