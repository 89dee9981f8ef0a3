//! What a link has done, counted where it happens; plain numbers for statistics and benches.

/// The sender's counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SenderCounters {
    /// Records sent.
    pub records: u64,
    /// Messages whose last record was sent.
    pub messages: u64,
    /// Payload bytes sent, envelopes included, headers not.
    pub bytes: u64,
    /// Batches: groups of records handed to the transport at once.
    pub batches: u64,
    /// Calls to the transport that sent something.
    pub writes: u64,
    /// Credits received.
    pub credits_received: u64,
    /// Credits that were damaged on the way. The first one ends the link.
    pub corrupt: u64,
    /// Times that a batch ended because the ring had no room.
    pub out_of_room: u64,
    /// Memory registered for one transfer because nobody had registered it before. Only rdma registers.
    pub registrations: u64,
    /// Payload copies made by this link in user space. Always 0 for the links here; a link that stages counts.
    pub payload_copies: u64,
}

/// The receiver's counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReceiverCounters {
    /// Records landed.
    pub records: u64,
    /// Payload bytes landed, envelopes included, headers not.
    pub bytes: u64,
    /// Calls to the transport that brought something.
    pub reads: u64,
    /// Batches: groups of arrivals taken over by the consumer at once.
    pub batches: u64,
    /// Times that a sleeping consumer was woken.
    pub wakes: u64,
    /// Credits sent.
    pub credits_sent: u64,
    /// Records discarded because they were overwritten before they were consumed (flow control off).
    pub torn: u64,
    /// Records that were damaged on the way. The first one ends the link.
    pub corrupt: u64,
    /// Payload copies made by this link in user space. Always 0 for the links here.
    pub payload_copies: u64,
}
