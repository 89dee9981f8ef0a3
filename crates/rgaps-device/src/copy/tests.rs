//! Compares chunked copies of random sizes with a plain memcpy, on the host backend and on the late one.

use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::backend::PoolPart;
use crate::buffer::BufferSpec;
use crate::error::DeviceError;
use crate::host::HostBackend;
use crate::pool::{PoolMemory, PoolSpec};
use crate::testing::deferred::DeferredBackend;

const SECOND: std::time::Duration = std::time::Duration::from_secs(1);
const POOL: u64 = 64 << 10;

struct Bench {
    backend: Arc<dyn Backend>,
    stream: Stream,
    pool: Arc<dyn PoolMemory>,
    buffer: HostBuffer,
}

impl Bench {
    fn new(backend: Arc<dyn Backend>) -> Self {
        let pool = backend.create_pool(&PoolSpec { name: "rgaps-test".to_owned(), bytes: POOL }).unwrap();
        let buffer = backend.host_buffer(&BufferSpec { name: "rgaps-test".to_owned(), bytes: POOL }).unwrap();
        Self { stream: backend.stream().unwrap(), backend, pool, buffer }
    }

    fn lane(&self) -> Lane<'_> {
        Lane {
            backend: self.backend.as_ref(),
            stream: &self.stream,
            pool: PoolPart::of(self.pool.as_ref(), 0),
            buffer: &self.buffer,
        }
    }

    fn fill_pool(&self, bytes: &[u8]) {
        let to = PoolPart::of(self.pool.as_ref(), 0);
        self.backend.copy_in(&self.stream, bytes, to).unwrap().wait(SECOND).unwrap();
    }
}

fn backends() -> [Arc<dyn Backend>; 2] {
    [Arc::new(HostBackend::new()), Arc::new(DeferredBackend::default())]
}

fn pattern(bytes: u64, seed: u8) -> Vec<u8> {
    (0..bytes).map(|n| (n as u8).wrapping_mul(31).wrapping_add((n >> 8) as u8) ^ seed).collect()
}

fn two_slots(bytes: u64) -> StagingSpec {
    StagingSpec { pool_offset: 0, bytes, chunk_bytes: 1000, buffer_offset: 0, slots: 2 }
}

proptest! {
    #[test]
    fn chunks_cover_a_message_once_and_in_order(total in 0_u64..100_000, chunk in 0_u64..5000) {
        let mut end = 0;
        let chunks: Vec<Chunk> = ChunkPlan::new(total, chunk).collect();
        for (n, part) in chunks.iter().enumerate() {
            prop_assert_eq!(part.offset, end);
            prop_assert!(part.bytes <= chunk.max(1) && (part.bytes > 0 || total == 0));
            prop_assert_eq!(part.last, n + 1 == chunks.len());
            end += part.bytes;
        }
        prop_assert_eq!(end, total);
    }

    #[test]
    fn a_staged_message_arrives_whole_however_late_slots_are_released(
        bytes in 0_u64..20_000,
        pool_offset in 0_u64..40_000,
        chunk_bytes in 1_u64..4000,
        buffer_offset in 0_u64..5000,
        slots in 1_u32..8,
        holds in proptest::collection::vec(0_usize..4, 1..8),
        seed: u8,
    ) {
        for backend in backends() {
            let bench = Bench::new(backend);
            let all = pattern(POOL, seed);
            bench.fill_pool(&all);
            let spec = StagingSpec { pool_offset, bytes, chunk_bytes, buffer_offset, slots };
            let mut copy = StagingCopy::new(spec).unwrap();
            let (mut sent, mut held) = (Vec::new(), Vec::<StagedChunk>::new());
            let mut holds = holds.iter().cycle();
            while !copy.is_handed_out() {
                copy.pump(&bench.lane()).unwrap();
                match copy.poll().unwrap() {
                    Some(chunk) => {
                        prop_assert_eq!(chunk.chunk.offset, sent.len() as u64);
                        let mut out = vec![0; chunk.chunk.bytes as usize];
                        bench.buffer.mapping().copy_out(chunk.buffer_offset, &mut out).unwrap();
                        sent.extend(out);
                        held.push(chunk);
                        // Some sends take longer than others, so they complete in any order.
                        while held.len() > *holds.next().unwrap() {
                            copy.release(held.swap_remove(0));
                        }
                    }
                    None => held.pop().into_iter().for_each(|chunk| copy.release(chunk)),
                }
            }
            let (from, to) = (pool_offset as usize, (pool_offset + bytes) as usize);
            prop_assert_eq!(&sent[..], &all[from..to]);
        }
    }

    #[test]
    fn interleaved_messages_reach_their_blocks_and_free_the_ring_in_order(
        sizes in proptest::collection::vec(1_u64..6000, 1..6),
        chunk_bytes in 1_u64..3000,
        most in 1_usize..5,
        seed: u8,
    ) {
        for backend in backends() {
            let bench = Bench::new(backend);
            let ring = pattern(POOL, seed);
            bench.buffer.mapping().copy_in(0, &ring).unwrap();
            let place = |message: usize| 7 + message as u64 * 8000;
            // Chunks of all messages interleaved, each at the ring's current position.
            let mut chunks: Vec<(usize, Chunk)> = sizes
                .iter()
                .enumerate()
                .flat_map(|(message, &bytes)| ChunkPlan::new(bytes, chunk_bytes).map(move |chunk| (message, chunk)))
                .collect();
            chunks.sort_by_key(|(message, chunk)| (chunk.offset, *message));
            let mut copy = PoolingCopy::new(most);
            let (mut expected, mut at) = (vec![0; POOL as usize], 0);
            let mut landed = Vec::new();
            let mut count = 0;
            for (message, chunk) in chunks {
                if at + chunk.bytes > POOL { at = 0 }
                let (target, arrived) = (
                    PoolBlock { pool_offset: place(message), bytes: sizes[message] },
                    ArrivedChunk { offset: chunk.offset, bytes: chunk.bytes, buffer_offset: at },
                );
                while !copy.has_room() {
                    landed.extend(copy.poll().unwrap());
                }
                copy.start(&bench.lane(), target, arrived, count).unwrap();
                let start = (place(message) + chunk.offset) as usize;
                let bytes = chunk.bytes as usize;
                expected[start..start + bytes].copy_from_slice(&ring[at as usize..at as usize + bytes]);
                at += chunk.bytes;
                count += 1;
            }
            while let Some(item) = copy.wait(SECOND).unwrap() {
                landed.push(item);
            }
            prop_assert_eq!(landed, (0..count).collect::<Vec<u32>>());
            prop_assert_eq!(bench.pool.shared(0, POOL).unwrap().to_vec(), expected);
        }
    }
}

#[test]
fn a_chunk_is_copied_while_the_one_before_it_is_sent() {
    let bench = Bench::new(Arc::new(DeferredBackend::default()));
    bench.fill_pool(&pattern(POOL, 0));
    let mut copy = StagingCopy::new(two_slots(3000)).unwrap();
    assert_eq!(copy.pump(&bench.lane()).unwrap(), 2, "both slots are under way at once");
    assert_eq!(copy.poll().unwrap(), None, "not before its copy is complete");
    let first = copy.wait(SECOND).unwrap().unwrap();
    assert_eq!(copy.pump(&bench.lane()).unwrap(), 0, "a slot that is being sent is not overwritten");
    let second = copy.wait(SECOND).unwrap().unwrap();
    assert_eq!(copy.wait(SECOND).unwrap(), None, "all slots are held by the caller");
    copy.release(second);
    assert_eq!(copy.pump(&bench.lane()).unwrap(), 1);
    assert!(copy.wait(SECOND).unwrap().unwrap().chunk.last && copy.is_handed_out());
    copy.release(first);
}

#[test]
fn a_stuck_device_times_out_and_nothing_is_handed_out() {
    let backend = Arc::new(DeferredBackend::default());
    let bench = Bench::new(backend.clone());
    let mut copy = StagingCopy::new(two_slots(3000)).unwrap();
    copy.pump(&bench.lane()).unwrap();
    backend.stall();
    assert!(matches!(copy.wait(SECOND), Err(DeviceError::TimedOut(SECOND))));
    assert_eq!(copy.poll().unwrap(), None);
    assert!(!copy.is_handed_out(), "the chunk is still under way");
    assert!(matches!(copy.abandon(SECOND), Err(DeviceError::TimedOut(_))));
}

#[test]
fn an_abandoned_message_leaves_nothing_under_way() {
    let bench = Bench::new(Arc::new(DeferredBackend::default()));
    let mut copy = StagingCopy::new(two_slots(30_000)).unwrap();
    copy.pump(&bench.lane()).unwrap();
    copy.abandon(SECOND).unwrap();
    assert!(copy.is_handed_out());
    assert_eq!(copy.pump(&bench.lane()).unwrap(), 0);
}

#[test]
fn the_next_message_uses_the_same_slots_once_the_last_one_released_them() {
    let bench = Bench::new(Arc::new(DeferredBackend::default()));
    bench.fill_pool(&pattern(POOL, 0));
    let mut copy = StagingCopy::new(two_slots(1500)).unwrap();
    copy.pump(&bench.lane()).unwrap();
    assert!(copy.is_copying() && copy.restart(5000, 10).is_err(), "copies are under way");
    let [first, second] = [0, 1].map(|_| copy.wait(SECOND).unwrap().unwrap());
    assert!(copy.restart(5000, 10).is_err(), "chunks are being sent");
    copy.release(second);
    copy.release(first);
    assert!(copy.restart(u64::MAX, 1).is_err());
    copy.restart(5000, 10).unwrap();
    assert!(!copy.is_idle());
    copy.pump(&bench.lane()).unwrap();
    copy.wait_for_copy(SECOND).unwrap();
    let chunk = copy.poll().unwrap().unwrap();
    let mut out = [0; 10];
    bench.buffer.mapping().copy_out(chunk.buffer_offset, &mut out).unwrap();
    assert_eq!(out, pattern(POOL, 0)[5000..5010]);
}

#[test]
fn an_empty_message_is_one_empty_chunk() {
    let bench = Bench::new(Arc::new(HostBackend::new()));
    let mut copy = StagingCopy::new(two_slots(0)).unwrap();
    assert_eq!(copy.pump(&bench.lane()).unwrap(), 1);
    let chunk = copy.poll().unwrap().unwrap();
    assert_eq!(chunk.chunk, Chunk { offset: 0, bytes: 0, last: true });
    assert!(copy.is_handed_out());
}

#[test]
fn an_impossible_staging_area_is_refused() {
    let good = two_slots(10);
    for spec in [
        StagingSpec { slots: 0, ..good },
        StagingSpec { slots: SLOTS_MAX + 1, ..good },
        StagingSpec { chunk_bytes: 0, ..good },
        StagingSpec { chunk_bytes: u64::MAX, ..good },
        StagingSpec { pool_offset: u64::MAX, ..good },
        StagingSpec { buffer_offset: u64::MAX, ..good },
    ] {
        assert!(matches!(StagingCopy::new(spec), Err(ChunkError::Staging { .. })), "{spec:?}");
    }
    assert!(StagingCopy::new(StagingSpec { slots: SLOTS_MAX, ..good }).is_ok());
}

#[test]
fn a_refused_copy_of_a_chunk_can_be_tried_again_and_skips_nothing() {
    let bench = Bench::new(Arc::new(HostBackend::new()));
    let beyond = StagingSpec { buffer_offset: POOL - 1500, ..two_slots(3000) };
    let mut copy = StagingCopy::new(beyond).unwrap();
    assert!(matches!(copy.pump(&bench.lane()), Err(DeviceError::Range(_))), "the second slot leaves the buffer");
    let first = copy.poll().unwrap().unwrap();
    assert_eq!(first.chunk.offset, 0);
    copy.release(first);
    assert!(copy.pump(&bench.lane()).is_err());
    assert_eq!(copy.poll().unwrap().unwrap().chunk.offset, 1000);
}

#[test]
fn chunks_that_exceed_their_message_or_find_no_room_are_refused() {
    let bench = Bench::new(Arc::new(DeferredBackend::default()));
    let mut copy = PoolingCopy::new(1);
    let target = PoolBlock { pool_offset: 0, bytes: 100 };
    let arrived = |offset, bytes| ArrivedChunk { offset, bytes, buffer_offset: 0 };
    for (offset, bytes) in [(0, 101), (100, 1), (u64::MAX, 1), (1, u64::MAX)] {
        let outcome = copy.start(&bench.lane(), target, arrived(offset, bytes), ());
        assert!(matches!(outcome, Err(DeviceError::Chunk(ChunkError::Outside { .. }))));
    }
    let beyond = PoolBlock { pool_offset: u64::MAX - 4, bytes: 100 };
    assert!(copy.start(&bench.lane(), beyond, arrived(50, 10), ()).is_err());
    copy.start(&bench.lane(), target, arrived(0, 100), ()).unwrap();
    let full = copy.start(&bench.lane(), target, arrived(0, 100), ());
    assert!(matches!(full, Err(DeviceError::Chunk(ChunkError::Full { under_way: 1 }))));
    copy.wait(SECOND).unwrap().unwrap();
    assert!(copy.has_room());
}
