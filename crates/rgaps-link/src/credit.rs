//! Credit: tells the sender which bytes it may overwrite. The receiver sends it lazily, and the sender checks it.
//!
//! A credit is the pair {head, !head}: 16 bytes that rdma writes into the sender's memory with one WRITE and tcp sends as a frame. The
//! sender accepts it only if the two words agree and the head is in [delayed head, tail].
//!
//! The receiver sends a credit when it has consumed a watermark of bytes, or when its ring is empty after the end of a message, so that
//! an idle link withholds no acknowledgement. It sends none when the ring is empty in the middle of a message: it withholds less than a
//! watermark then, so the sender has room for another record and its skip (the rule of `geometry`), which brings the next credit.
//! Otherwise a consumer as fast as the wire would send credit for every chunk, and the watermark would have no effect.
//!
//! Source      the watermark: Jiang, master's thesis (RGAPS), 2026, section 3.4, "Watermark-based update mechanism" (full title in lib.rs). The
//!             complement, and the credit of an empty ring, are ours.

use crate::invariants;
use crate::position::Position;

/// Bytes of a credit, in memory and on the wire.
pub const CREDIT_BYTES: usize = 16;

/// A head and its complement. A pair from the peer is untrusted until `accept`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CreditPair {
    head: u64,
    complement: u64,
}

/// Why a credit is false. Close the link: the sender no longer knows what it may overwrite.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CreditError {
    /// The second word is not the complement of the first.
    #[error("credit is torn or garbage: head {head:#x} beside complement {complement:#x}; the peer must be restarted")]
    Inconsistent {
        /// The first word.
        head: u64,
        /// The second word.
        complement: u64,
    },
    /// The head is before the delayed head.
    #[error("credit goes back: head {head} after delayed head {delayed_head}; the peer must be restarted")]
    Backwards {
        /// The peer's head.
        head: Position,
        /// The last accepted head.
        delayed_head: Position,
    },
    /// The head is beyond the tail.
    #[error("credit runs ahead: head {head} beyond tail {tail}, which was never sent; the peer must be restarted")]
    Ahead {
        /// The peer's head.
        head: Position,
        /// The end of the last record sent.
        tail: Position,
    },
}

impl CreditPair {
    /// The credit for a head.
    pub fn new(head: Position) -> Self {
        Self { head: head.value(), complement: !head.value() }
    }

    /// The credit from two received words, unchecked.
    pub fn from_words(head: u64, complement: u64) -> Self {
        Self { head, complement }
    }

    /// Encodes it: little endian, head first.
    pub fn encode(self) -> [u8; CREDIT_BYTES] {
        (u128::from(self.head) | u128::from(self.complement) << 64).to_le_bytes()
    }

    /// The reverse of `encode`.
    pub fn decode(bytes: [u8; CREDIT_BYTES]) -> Self {
        let both = u128::from_le_bytes(bytes);
        Self { head: both as u64, complement: (both >> 64) as u64 }
    }

    /// Whether the second word is the complement of the first.
    pub fn is_whole(self) -> bool {
        self.complement == !self.head
    }

    /// Returns the head if the pair is whole and the head is in [delayed head, tail].
    ///
    /// ```
    /// use rgaps_link::credit::CreditPair;
    /// use rgaps_link::position::Position;
    ///
    /// let (delayed_head, tail) = (Position::new(0), Position::new(1024));
    /// let credit = CreditPair::decode(CreditPair::new(Position::new(256)).encode()); // from the peer
    /// assert_eq!(credit.accept(delayed_head, tail), Ok(Position::new(256)));
    /// assert!(CreditPair::new(Position::new(2048)).accept(delayed_head, tail).is_err()); // beyond what was sent
    /// assert!(CreditPair::from_words(256, 7).accept(delayed_head, tail).is_err()); // torn
    /// ```
    pub fn accept(self, delayed_head: Position, tail: Position) -> Result<Position, CreditError> {
        if !self.is_whole() {
            return Err(CreditError::Inconsistent { head: self.head, complement: self.complement });
        }
        let head = Position::new(self.head);
        if head < delayed_head {
            return Err(CreditError::Backwards { head, delayed_head });
        }
        if head > tail {
            return Err(CreditError::Ahead { head, tail });
        }
        Ok(head)
    }
}

/// The receiver's side: the head, and the head in the last credit.
#[derive(Clone, Debug)]
pub struct CreditBatch {
    watermark_bytes: u64,
    head: Position,
    told: Position,
    sent: u64,
    message_ended: bool,
}

impl CreditBatch {
    /// Starts at the first position of a ring.
    pub fn new(watermark_bytes: u64) -> Self {
        Self { watermark_bytes, head: Position::START, told: Position::START, sent: 0, message_ended: false }
    }

    /// The head.
    pub fn head(&self) -> Position {
        self.head
    }

    /// Credits returned so far.
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// Advances the head to `end`, the end of a consumed record; the ring is written, or being written, up to `tail`. Returns a credit if one
    /// is due: the watermark is reached, or the ring is empty and a message has ended since the last credit.
    pub fn consume(&mut self, end: Position, ends_message: bool, tail: Position) -> Option<CreditPair> {
        debug_assert!(end >= self.head, "the head never goes back");
        debug_assert_eq!(invariants::consumption(end, tail), Ok(()));
        self.head = end;
        self.message_ended |= ends_message;
        let owed = end.since(self.told);
        let flush = end == tail && self.message_ended;
        if owed == 0 || (owed < self.watermark_bytes && !flush) {
            return None;
        }
        self.flush()
    }

    /// A credit for all that is consumed, whether or not one is due; `None` if the last one had it.
    pub fn flush(&mut self) -> Option<CreditPair> {
        if self.told == self.head {
            return None;
        }
        self.told = self.head;
        self.message_ended = false;
        self.sent += 1;
        debug_assert_eq!(invariants::lag(self.told, self.head), Ok(()));
        Some(CreditPair::new(self.head))
    }
}

/// Fuzz entry: any 16 bytes against any state; an accepted head is in bounds.
pub fn fuzz_credit(data: &[u8]) -> bool {
    let (Some(pair), Some(low), Some(high)) =
        (data.first_chunk::<CREDIT_BYTES>(), word(data, CREDIT_BYTES), word(data, CREDIT_BYTES + 8))
    else {
        return false;
    };
    let (delayed_head, tail) = (Position::new(low.min(high)), Position::new(low.max(high)));
    let pair = CreditPair::decode(*pair);
    assert_eq!(CreditPair::decode(pair.encode()), pair);
    let Ok(head) = pair.accept(delayed_head, tail) else { return false };
    assert!(delayed_head <= head && head <= tail);
    true
}

fn word(data: &[u8], at: usize) -> Option<u64> {
    data.get(at..)?.first_chunk::<8>().map(|bytes| u64::from_le_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn p(bytes: u64) -> Position {
        Position::new(bytes)
    }

    #[test]
    fn a_credit_is_accepted_only_between_delayed_head_and_tail() {
        let credit = CreditPair::decode(CreditPair::new(p(128)).encode());
        assert_eq!(credit.accept(p(128), p(128)), Ok(p(128)));
        assert!(matches!(credit.accept(p(129), p(200)), Err(CreditError::Backwards { .. })));
        assert!(matches!(credit.accept(p(0), p(127)), Err(CreditError::Ahead { .. })));
        assert!(matches!(CreditPair::from_words(1, 2).accept(p(0), p(9)), Err(CreditError::Inconsistent { .. })));
    }

    #[test]
    fn zero_memory_is_no_credit() {
        assert!(CreditPair::decode([0; 16]).accept(p(0), p(64)).is_err());
    }

    #[test]
    fn credit_waits_for_the_watermark_and_no_longer() {
        let mut batch = CreditBatch::new(256);
        assert_eq!(batch.consume(p(128), false, p(4096)), None);
        assert_eq!(batch.consume(p(255), true, p(4096)), None);
        assert_eq!(batch.consume(p(256), false, p(4096)), Some(CreditPair::new(p(256))));
        assert_eq!(batch.consume(p(300), true, p(4096)), None);
        assert_eq!(batch.sent(), 1);
    }

    #[test]
    fn credit_is_flushed_when_the_ring_runs_empty_behind_a_message() {
        let mut batch = CreditBatch::new(1 << 20);
        assert_eq!(batch.consume(p(64), false, p(64)), None, "the message goes on");
        assert_eq!(batch.consume(p(128), true, p(192)), None, "more bytes wait to be consumed");
        assert_eq!(batch.consume(p(192), false, p(192)), Some(CreditPair::new(p(192))), "a message ended before");
        assert_eq!(batch.consume(p(256), false, p(256)), None, "it was credited");
        assert_eq!(batch.consume(p(320), true, p(320)), Some(CreditPair::new(p(320))));
    }

    #[test]
    fn watermark_zero_credits_every_record() {
        let mut batch = CreditBatch::new(0);
        for end in [64, 128, 192] {
            assert!(batch.consume(p(end), false, p(4096)).is_some());
        }
        assert_eq!(batch.sent(), 3);
    }
}
