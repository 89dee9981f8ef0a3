//! Assembles records into messages: a state machine without I/O that allocates once.
//!
//! ```text
//!  (nothing) ──FIRST──▶ partial{next offset} ──data in order──▶ … ──LAST──▶ End
//!                          └──ABORT, torn, evicted──▶ Aborted
//! ```
//!
//! Records of up to 64 messages may interleave. With `Continuity::Reliable` every gap is a protocol error of the peer. With
//! `Continuity::Lossy` (flow control off) records may be missing: a message with a gap is aborted, and its later records are ignored.

use crate::position::RingSpan;
use crate::record::{Flags, HEADER_BYTES, MessageId, MessageName, RecordHeader};

/// Most messages under way at a time.
pub const PARTIAL_MAX: usize = 64;

/// Whether records can be missing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Continuity {
    /// Never: flow control is on.
    #[default]
    Reliable,
    /// Yes: flow control is off, and torn records were discarded.
    Lossy,
}

/// The receiver's limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AssemblerOptions {
    /// The largest message.
    pub message_bytes_max: u64,
    /// Whether records can be missing.
    pub continuity: Continuity,
}

impl Default for AssemblerOptions {
    fn default() -> Self {
        Self { message_bytes_max: 1 << 36, continuity: Continuity::Reliable }
    }
}

/// Why a message is aborted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AbortReason {
    /// The sender aborted it.
    Sender,
    /// A record of it is missing.
    Torn,
    /// Too many messages were unfinished, and this was the oldest. Lost records leave some messages unfinished for ever.
    Evicted,
}

/// What a record does to its message. Spans refer to the ring and are valid until the record is released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A message begins: allocate for it.
    Begin {
        /// Its id on this link.
        message: MessageId,
        /// Its publisher and sequence.
        name: MessageName,
        /// Its bytes.
        total: u64,
        /// Its opaque description, 0 to 4096 B.
        envelope: RingSpan,
    },
    /// Data of the message: copy them.
    Data {
        /// The message.
        message: MessageId,
        /// Their offset in the message.
        offset: u64,
        /// Their bytes in the ring.
        span: RingSpan,
    },
    /// The message is complete.
    End {
        /// The message.
        message: MessageId,
    },
    /// The message will not be completed: free its memory.
    Aborted {
        /// The message.
        message: MessageId,
        /// Why.
        reason: AbortReason,
    },
}

/// The events of one record, in order; at most four.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Events {
    items: [Option<Event>; 4],
    filled: usize,
}

impl Events {
    fn push(&mut self, event: Event) {
        if let Some(slot) = self.items.get_mut(self.filled) {
            *slot = Some(event);
            self.filled += 1;
        }
    }
}

impl IntoIterator for Events {
    type Item = Event;
    type IntoIter = std::iter::Flatten<std::array::IntoIter<Option<Event>, 4>>;

    fn into_iter(self) -> Self::IntoIter {
        self.items.into_iter().flatten()
    }
}

/// Why records do not form a message. The peer is broken; close the link and free its partial messages (`abandon`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AssembleError {
    /// The message exceeds the receiver's limit.
    #[error("message {} of {total} B exceeds this receiver's limit of {max} B; publish smaller messages", message.0)]
    TooLarge {
        /// The message.
        message: MessageId,
        /// Its bytes.
        total: u64,
        /// The limit.
        max: u64,
    },
    /// Message ids do not increase.
    #[error("message {} begins after message {} has begun; ids must increase", message.0, newest.0)]
    Reused {
        /// The message.
        message: MessageId,
        /// The newest message so far.
        newest: MessageId,
    },
    /// Too many messages under way.
    #[error("message {} begins while {PARTIAL_MAX} others are unfinished", message.0)]
    TooMany {
        /// The message.
        message: MessageId,
    },
    /// Data or an abort of a message that is not under way.
    #[error("record of message {}, which never began or has ended", message.0)]
    Unknown {
        /// The message.
        message: MessageId,
    },
    /// A gap or a repetition.
    #[error("message {} continues at offset {found}, but {expected} was expected", message.0)]
    Offset {
        /// The message.
        message: MessageId,
        /// The offset expected.
        expected: u64,
        /// The offset received.
        found: u64,
    },
    /// Two records of a message state different sizes or origins.
    #[error("message {} changes its size or name: {found} B after {expected} B", message.0)]
    Changed {
        /// The message.
        message: MessageId,
        /// The size in the first record.
        expected: u64,
        /// The size in this record.
        found: u64,
    },
    /// The payload is not as long as the header says.
    #[error("record of message {} has a payload of {found} B, but its header says {expected} B", message.0)]
    Payload {
        /// The message.
        message: MessageId,
        /// Bytes according to the header.
        expected: u64,
        /// Bytes of the payload.
        found: u64,
    },
}

#[derive(Clone, Copy, Debug)]
struct Partial {
    message: MessageId,
    name: MessageName,
    total: u64,
    next_offset: u64,
}

/// The table of partial messages of one link.
#[derive(Debug)]
pub struct Assembler {
    options: AssemblerOptions,
    partial: Vec<Partial>,
    newest: Option<MessageId>,
    ignored: u64,
}

impl Assembler {
    /// An empty table; it allocates here and never again.
    pub fn new(options: AssemblerOptions) -> Self {
        Self { options, partial: Vec::with_capacity(PARTIAL_MAX), newest: None, ignored: 0 }
    }

    /// Messages under way.
    pub fn partial(&self) -> usize {
        self.partial.len()
    }

    /// Records that were ignored because their message had lost an earlier record.
    pub fn ignored(&self) -> u64 {
        self.ignored
    }

    /// Removes and returns all messages under way, after the link has ended. The caller frees them.
    pub fn abandon(&mut self) -> impl Iterator<Item = MessageId> + '_ {
        self.partial.drain(..).map(|partial| partial.message)
    }

    /// Processes the next record, whose payload is at `payload` in the ring.
    pub fn push(&mut self, header: &RecordHeader, payload: RingSpan) -> Result<Events, AssembleError> {
        let mut events = Events::default();
        let (message, expected) = (header.message, u64::from(header.payload_bytes));
        if payload.bytes != expected {
            return Err(AssembleError::Payload { message, expected, found: payload.bytes });
        }
        if header.flags.contains(Flags::ABORT) {
            self.abort(header, &mut events)?;
            return Ok(events);
        }
        if header.flags.contains(Flags::FIRST) {
            self.begin(header, payload, &mut events)?;
        }
        self.data(header, payload, &mut events)?;
        Ok(events)
    }

    fn begin(&mut self, header: &RecordHeader, payload: RingSpan, events: &mut Events) -> Result<(), AssembleError> {
        let (message, total) = (header.message, header.total);
        if let Some(newest) = self.newest.filter(|newest| message <= *newest) {
            return Err(AssembleError::Reused { message, newest });
        }
        let max = self.options.message_bytes_max;
        if total > max {
            return Err(AssembleError::TooLarge { message, total, max });
        }
        if self.partial.len() == PARTIAL_MAX {
            if self.options.continuity == Continuity::Reliable {
                return Err(AssembleError::TooMany { message });
            }
            // Ids increase and removals keep the order, so the first is the oldest.
            let oldest = self.partial.remove(0);
            events.push(Event::Aborted { message: oldest.message, reason: AbortReason::Evicted });
        }
        self.newest = Some(message);
        self.partial.push(Partial { message, name: header.name, total, next_offset: 0 });
        let envelope = RingSpan { offset: payload.offset, bytes: u64::from(header.envelope_bytes) };
        events.push(Event::Begin { message, name: header.name, total, envelope });
        Ok(())
    }

    fn data(&mut self, header: &RecordHeader, payload: RingSpan, events: &mut Events) -> Result<(), AssembleError> {
        let message = header.message;
        let Some(index) = self.find(message)? else { return Ok(()) };
        let partial = &mut self.partial[index];
        if partial.total != header.total || partial.name != header.name {
            return Err(AssembleError::Changed { message, expected: partial.total, found: header.total });
        }
        let (expected, found) = (partial.next_offset, header.offset);
        if expected != found {
            // Without flow control a gap is a lost record; a smaller offset is always a protocol error.
            if self.options.continuity == Continuity::Lossy && found > expected {
                self.partial.remove(index);
                events.push(Event::Aborted { message, reason: AbortReason::Torn });
                return Ok(());
            }
            return Err(AssembleError::Offset { message, expected, found });
        }
        let bytes = u64::from(header.data_bytes());
        partial.next_offset = expected.saturating_add(bytes);
        if bytes > 0 {
            let offset = payload.offset.forward(u64::from(header.envelope_bytes));
            events.push(Event::Data { message, offset: expected, span: RingSpan { offset, bytes } });
        }
        if header.flags.contains(Flags::LAST) {
            self.partial.remove(index);
            events.push(Event::End { message });
        }
        Ok(())
    }

    fn abort(&mut self, header: &RecordHeader, events: &mut Events) -> Result<(), AssembleError> {
        if let Some(index) = self.find(header.message)? {
            self.partial.remove(index);
            events.push(Event::Aborted { message: header.message, reason: AbortReason::Sender });
        }
        Ok(())
    }

    /// The partial message, or `None` if a lossy link has lost an earlier record of it.
    fn find(&mut self, message: MessageId) -> Result<Option<usize>, AssembleError> {
        let index = self.partial.iter().position(|partial| partial.message == message);
        if index.is_none() {
            if self.options.continuity == Continuity::Reliable {
                return Err(AssembleError::Unknown { message });
            }
            self.ignored += 1;
        }
        Ok(index)
    }
}

/// Fuzz entry: any bytes as a sequence of headers. The table stays bounded, data are in bounds, and each end follows a begin.
pub fn fuzz_assemble(data: &[u8]) -> bool {
    let mut has_ended = false;
    for continuity in [Continuity::Reliable, Continuity::Lossy] {
        let options = AssemblerOptions { message_bytes_max: 1 << 30, continuity };
        let mut assembler = Assembler::new(options);
        let mut open = Vec::new();
        for bytes in data.as_chunks::<HEADER_BYTES>().0 {
            let Ok(header) = RecordHeader::decode(bytes) else { continue };
            let payload = RingSpan { offset: Default::default(), bytes: u64::from(header.payload_bytes) };
            for event in assembler.push(&header, payload).into_iter().flatten() {
                match event {
                    Event::Begin { message, total, .. } => open.push((message, total)),
                    Event::Data { message, offset, span } => {
                        assert!(open.iter().any(|(id, total)| *id == message && offset + span.bytes <= *total));
                    }
                    Event::End { message } | Event::Aborted { message, .. } => {
                        let index = open.iter().position(|(id, _)| *id == message);
                        assert!(index.is_some_and(|index| open.swap_remove(index).0 == message));
                        has_ended = true;
                    }
                }
            }
            assert!(assembler.partial() == open.len() && open.len() <= PARTIAL_MAX);
        }
        assert_eq!(assembler.abandon().count(), open.len());
    }
    has_ended
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::geometry::{RingGeometry, RingOptions};
    use crate::position::RingOffset;
    use crate::record::{MessageHead, Record, RecordSequence};

    fn feed(assembler: &mut Assembler, record: Record<'_>) -> Result<Vec<Event>, AssembleError> {
        let geometry = RingGeometry::new(RingOptions::default()).unwrap();
        let header = record.header(RecordSequence(0), &geometry).unwrap();
        let payload = RingSpan { offset: RingOffset(64), bytes: u64::from(header.payload_bytes) };
        Ok(assembler.push(&header, payload)?.into_iter().collect())
    }

    fn message(id: u64, total: u64) -> MessageHead {
        MessageHead { id: MessageId(id), name: MessageName { publisher: 1, sequence: id }, total }
    }

    #[test]
    fn a_message_in_one_record_begins_carries_and_ends() {
        let mut assembler = Assembler::new(AssemblerOptions::default());
        let events = feed(&mut assembler, message(1, 4).first(b"meta!", b"data")).unwrap();
        let id = MessageId(1);
        let envelope = RingSpan { offset: RingOffset(64), bytes: 5 };
        let span = RingSpan { offset: RingOffset(69), bytes: 4 };
        assert_eq!(
            events,
            [
                Event::Begin { message: id, name: MessageName { publisher: 1, sequence: 1 }, total: 4, envelope },
                Event::Data { message: id, offset: 0, span },
                Event::End { message: id }
            ]
        );
        assert_eq!(assembler.partial(), 0);
    }

    #[test]
    fn messages_interleave_by_id() {
        let mut assembler = Assembler::new(AssemblerOptions::default());
        let (a, b) = (message(1, 4), message(2, 2));
        feed(&mut assembler, a.first(b"", b"")).unwrap();
        feed(&mut assembler, b.first(b"", b"x")).unwrap();
        feed(&mut assembler, a.part(0, b"12")).unwrap();
        let events = feed(&mut assembler, b.part(1, b"y")).unwrap();
        assert_eq!(events.last(), Some(&Event::End { message: MessageId(2) }));
        let events = feed(&mut assembler, a.part(2, b"34")).unwrap();
        assert_eq!(events.last(), Some(&Event::End { message: MessageId(1) }));
    }

    #[test]
    fn protocol_violations_are_named() {
        let mut assembler = Assembler::new(AssemblerOptions { message_bytes_max: 100, ..AssemblerOptions::default() });
        let a = message(5, 10);
        assert!(matches!(feed(&mut assembler, message(1, 101).first(b"", b"")), Err(AssembleError::TooLarge { .. })));
        assert!(matches!(feed(&mut assembler, a.part(0, b"x")), Err(AssembleError::Unknown { .. })));
        assert!(matches!(feed(&mut assembler, a.abort(0)), Err(AssembleError::Unknown { .. })));
        feed(&mut assembler, a.first(b"", b"12")).unwrap();
        assert!(matches!(feed(&mut assembler, a.first(b"", b"")), Err(AssembleError::Reused { .. })));
        assert!(matches!(feed(&mut assembler, message(4, 1).first(b"", b"")), Err(AssembleError::Reused { .. })));
        assert!(matches!(
            feed(&mut assembler, a.part(3, b"x")),
            Err(AssembleError::Offset { expected: 2, found: 3, .. })
        ));
        assert!(matches!(feed(&mut assembler, a.part(1, b"x")), Err(AssembleError::Offset { .. })));
        assert!(matches!(feed(&mut assembler, message(5, 11).part(2, b"x")), Err(AssembleError::Changed { .. })));
        for id in 6..5 + PARTIAL_MAX as u64 {
            feed(&mut assembler, message(id, 10).first(b"", b"1")).unwrap();
        }
        assert!(matches!(feed(&mut assembler, message(99, 10).first(b"", b"")), Err(AssembleError::TooMany { .. })));
        assert_eq!(assembler.abandon().count(), PARTIAL_MAX);
    }

    #[test]
    fn an_abort_of_the_sender_frees_the_partial_message() {
        let mut assembler = Assembler::new(AssemblerOptions::default());
        feed(&mut assembler, message(1, 10).first(b"", b"12")).unwrap();
        let events = feed(&mut assembler, message(1, 10).abort(2)).unwrap();
        assert_eq!(events, [Event::Aborted { message: MessageId(1), reason: AbortReason::Sender }]);
        assert_eq!(assembler.partial(), 0);
    }

    #[test]
    fn without_flow_control_gaps_abort_their_message_and_nothing_else() {
        let options = AssemblerOptions { continuity: Continuity::Lossy, ..AssemblerOptions::default() };
        let mut assembler = Assembler::new(options);
        let (a, b) = (message(1, 10), message(2, 10));
        feed(&mut assembler, a.first(b"", b"1")).unwrap();
        feed(&mut assembler, b.first(b"", b"1")).unwrap();
        let events = feed(&mut assembler, a.part(5, b"6")).unwrap();
        assert_eq!(events, [Event::Aborted { message: MessageId(1), reason: AbortReason::Torn }]);
        assert_eq!(feed(&mut assembler, a.part(6, b"7")).unwrap(), []);
        assert_eq!(assembler.ignored(), 1);
        assert_eq!(
            feed(&mut assembler, b.part(1, b"234567890")).unwrap().last(),
            Some(&Event::End { message: MessageId(2) })
        );
        for id in 3..=3 + PARTIAL_MAX as u64 {
            feed(&mut assembler, message(id, 10).first(b"", b"1")).unwrap();
        }
        assert_eq!(assembler.partial(), PARTIAL_MAX);
        assert_eq!(feed(&mut assembler, message(3, 10).part(1, b"2")).unwrap(), [], "the oldest was evicted");
    }
}
