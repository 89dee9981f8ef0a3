//! The ring's three invariants, on monotonic positions. The ring asserts them; tests and models call them.
//!
//! ```text
//!  delayed head ≤ head ≤ tail ≤ delayed head + ring
//!       lag ──────┘      │      └── production
//!       consumption ─────┘
//! ```
//!
//! Source      Jiang, master's thesis (RGAPS), 2026, section 3.4, "Initial state verification" (full title in lib.rs). The
//!             thesis compares offsets; positions that never wrap are ours.

use crate::position::Position;

/// A violated invariant, with the numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// The writer has passed the reader by a whole ring.
    #[error(
        "production integrity: tail {tail} is {} B beyond the reader at {reader} in a ring of {ring_bytes} B; \
         unread bytes would be overwritten", tail.since(reader.forward(*ring_bytes))
    )]
    Production {
        /// The writer's new tail.
        tail: Position,
        /// The reader: the delayed head at the sender, the head at the receiver.
        reader: Position,
        /// Bytes of the ring.
        ring_bytes: u64,
    },
    /// The reader has overtaken the writer.
    #[error("consumption integrity: head {head} is beyond tail {tail}; bytes that were never written would be read")]
    Consumption {
        /// The reader.
        head: Position,
        /// The writer.
        tail: Position,
    },
    /// The sender's delayed head is beyond the receiver's head.
    #[error(
        "lag integrity: delayed head {delayed_head} is beyond head {head}; the sender would overwrite unread bytes"
    )]
    Lag {
        /// The sender's delayed head.
        delayed_head: Position,
        /// The receiver's head.
        head: Position,
    },
}

/// Production integrity: the writer never overwrites bytes that the reader has not released.
pub fn production(tail: Position, reader: Position, ring_bytes: u64) -> Result<(), Violation> {
    if tail.since(reader) <= ring_bytes { Ok(()) } else { Err(Violation::Production { tail, reader, ring_bytes }) }
}

/// Consumption integrity: the reader never overtakes the writer.
pub fn consumption(head: Position, tail: Position) -> Result<(), Violation> {
    if head <= tail { Ok(()) } else { Err(Violation::Consumption { head, tail }) }
}

/// Lag integrity: the delayed head never passes the head.
pub fn lag(delayed_head: Position, head: Position) -> Result<(), Violation> {
    if delayed_head <= head { Ok(()) } else { Err(Violation::Lag { delayed_head, head }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_three_hold_at_the_start_and_each_names_its_own_violation() {
        let (p, zero) = (Position::new, Position::START);
        production(zero, zero, 64).unwrap();
        consumption(zero, zero).unwrap();
        lag(zero, zero).unwrap();
        production(p(164), p(100), 64).unwrap();
        let text = production(p(165), p(100), 64).unwrap_err().to_string();
        assert!(text.contains("production") && text.contains("is 1 B beyond"), "{text}");
        assert!(consumption(p(2), p(1)).unwrap_err().to_string().contains("consumption"));
        assert!(lag(p(2), p(1)).unwrap_err().to_string().contains("lag"));
    }
}
