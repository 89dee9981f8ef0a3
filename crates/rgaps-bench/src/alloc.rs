//! `bench alloc`: the pool's allocator against bare rlsf of the same type, at several fill levels and size mixes.

use rgaps_os::Mapping;
use rgaps_shm::writer::pool::block_bytes;
use rgaps_shm::{BareBlock, BareTlsf, Block, PoolAllocator};

use crate::measure::{Pairs, seconds};
use crate::results::Part;
use crate::{BenchError, Bound, Effort, Options, Row};

const BENCH: &str = "alloc";
const POOL_BYTES: u64 = 256 << 20;
/// Allocations and frees in a timed batch.
const BATCH: usize = 20_000;

/// Sizes of a mix in bytes.
struct Mix {
    name: &'static str,
    bytes: &'static [u64],
}

const MIXES: &[Mix] = &[
    Mix { name: "4 KiB", bytes: &[4096] },
    Mix { name: "6.2 MB frames", bytes: &[6_220_800] },
    Mix { name: "mixed 256 B to 1 MiB", bytes: &[256, 4096, 60_000, 921_600, 1 << 20, 12_345, 300] },
];

/// Fill levels and mixes, each as ours / rlsf.
pub(crate) fn run(options: &Options) -> Result<Part, BenchError> {
    let mut rows = Vec::new();
    for mix in MIXES {
        for fill in [10, 50, 90] {
            let name = format!("{}, {fill} % full", mix.name);
            if options.wants(&name) {
                rows.push(case(options.effort, mix, fill, name)?);
            }
        }
    }
    Ok(rows.into())
}

fn case(effort: Effort, mix: &Mix, fill: u64, name: String) -> Result<Row, BenchError> {
    let mut ours = Ours::new()?;
    let mut theirs = Theirs::new()?;
    let until = POOL_BYTES / 100 * fill;
    let live = fill_both(&mut ours, &mut theirs, mix, until);
    let pairs =
        Pairs::run::<BenchError>(effort.rounds(60), || churn(&mut ours, mix, live), || churn(&mut theirs, mix, live))?;
    Ok(Row::of_pairs((BENCH, name), "bare rlsf", "ns a pair", &pairs, Some(Bound::AtMost(1.2))))
}

/// The operation of both sides: replace the n-th live block by a new one.
trait Allocator {
    fn add(&mut self, bytes: u64) -> bool;
    /// False if no block was found: the figure would then count failures.
    fn replace(&mut self, at: usize, bytes: u64) -> bool;
}

fn fill_both(ours: &mut Ours, theirs: &mut Theirs, mix: &Mix, until: u64) -> usize {
    let mut used = 0;
    let mut live = 0;
    while used < until {
        let bytes = mix.bytes[live % mix.bytes.len()];
        if !(ours.add(bytes) && theirs.add(bytes)) {
            break;
        }
        used += block_bytes(bytes);
        live += 1;
    }
    live.max(1)
}

fn churn(allocator: &mut impl Allocator, mix: &Mix, live: usize) -> Result<f64, BenchError> {
    // A fixed step that is coprime to most counts visits the live blocks in a scattered order, the same for both sides.
    let mut at = 0;
    let mut missed = 0_u32;
    let took = seconds(|| {
        for _ in 0..BATCH {
            missed += u32::from(!allocator.replace(at, mix.bytes[at % mix.bytes.len()]));
            at = (at + 7919) % live;
        }
    });
    if missed > 0 {
        return Err(BenchError::failed(
            BENCH,
            format!("{missed} of {BATCH} allocations found no block in {}", mix.name),
        ));
    }
    Ok(took * 1e9 / BATCH as f64)
}

struct Ours {
    allocator: PoolAllocator,
    live: Vec<Option<Block>>,
    _memory: Mapping,
}

impl Ours {
    fn new() -> Result<Self, BenchError> {
        let memory = Mapping::anonymous(POOL_BYTES).map_err(|e| BenchError::failed(BENCH, e))?;
        let right = memory.allocation_right().ok_or_else(|| BenchError::failed(BENCH, "the pool is taken"))?;
        let allocator = PoolAllocator::new(right).map_err(|e| BenchError::failed(BENCH, e))?;
        Ok(Self { allocator, live: Vec::new(), _memory: memory })
    }
}

impl Allocator for Ours {
    fn add(&mut self, bytes: u64) -> bool {
        let block = self.allocator.allocate(bytes).ok();
        let fits = block.is_some();
        self.live.push(block);
        fits
    }

    fn replace(&mut self, at: usize, bytes: u64) -> bool {
        if let Some(block) = self.live[at].take() {
            self.allocator.free(block);
        }
        self.live[at] = self.allocator.allocate(bytes).ok();
        self.live[at].is_some()
    }
}

/// Bare rlsf over real memory of the same size, with blocks of the same lengths (its header included), so that both sides find or miss a block
/// alike.
struct Theirs {
    engine: BareTlsf,
    live: Vec<Option<BareBlock>>,
}

impl Theirs {
    fn new() -> Result<Self, BenchError> {
        let engine = BareTlsf::new(POOL_BYTES).map_err(|e| BenchError::failed(BENCH, e))?;
        Ok(Self { engine, live: Vec::new() })
    }
}

impl Allocator for Theirs {
    fn add(&mut self, bytes: u64) -> bool {
        let block = self.engine.allocate(same_block(bytes));
        let fits = block.is_some();
        self.live.push(block);
        fits
    }

    fn replace(&mut self, at: usize, bytes: u64) -> bool {
        if let Some(block) = self.live[at].take() {
            self.engine.free(block);
        }
        self.live[at] = self.engine.allocate(same_block(bytes));
        self.live[at].is_some()
    }
}

fn same_block(bytes: u64) -> u64 {
    block_bytes(bytes) - BareTlsf::HEADER_BYTES
}
