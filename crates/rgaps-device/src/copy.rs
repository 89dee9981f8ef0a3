//! Copying a message chunk by chunk, so that chunk k + 1 is copied while chunk k is on the wire.

/// Which way bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the pool into a host buffer: path 1.
    ToHost,
    /// From a host buffer into the pool: path 3.
    ToDevice,
}

/// The chunks of a message, in order. An empty message is one empty chunk.
#[derive(Clone, Debug)]
pub struct ChunkPlan {
    total: u64,
    chunk_bytes: u64,
    next: u64,
    done: bool,
}

/// A part of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// First byte, from the start of the message.
    pub offset: u64,
    /// Bytes.
    pub bytes: u64,
    /// Whether the message ends with it.
    pub last: bool,
}

impl ChunkPlan {
    /// The chunks of `total` bytes, each at most `chunk_bytes` (at least 1).
    pub fn new(total: u64, chunk_bytes: u64) -> Self {
        Self { total, chunk_bytes: chunk_bytes.max(1), next: 0, done: false }
    }
}

impl Iterator for ChunkPlan {
    type Item = Chunk;

    fn next(&mut self) -> Option<Chunk> {
        if self.done {
            return None;
        }
        let offset = self.next;
        let bytes = (self.total - offset).min(self.chunk_bytes);
        self.next = offset + bytes;
        self.done = self.next == self.total;
        Some(Chunk { offset, bytes, last: self.done })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

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
    }
}
