//! A link's counters, for statistics and benches.

/// The sender's counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SenderCounters {
    /// Records sent.
    pub records: u64,
    /// Messages whose last record was sent.
    pub messages: u64,
    /// Payload bytes sent, envelopes included, headers not.
    pub bytes: u64,
    /// Batches: groups of records passed to the transport at once.
    pub batches: u64,
    /// Calls to the transport that sent something.
    pub writes: u64,
    /// Credits received.
    pub credits_received: u64,
    /// Credits damaged by the network. The first one ends the link.
    pub corrupt: u64,
    /// Times that a batch ended because the ring had no room.
    pub out_of_room: u64,
    /// Memory regions that `post` registered because the caller had not. Only rdma registers memory.
    pub registrations: u64,
    /// Payload copies made by this link in user space. Always 0 for the links here; a link that stages counts.
    pub payload_copies: u64,
}

/// The receiver's counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReceiverCounters {
    /// Records received.
    pub records: u64,
    /// Payload bytes received, envelopes included, headers not.
    pub bytes: u64,
    /// Calls to the transport that returned data.
    pub reads: u64,
    /// Wake-ups of the consumer.
    pub wakes: u64,
    /// Credits sent.
    pub credits_sent: u64,
    /// Records discarded because the sender overwrote them before they were consumed (flow control off).
    pub torn: u64,
    /// Records damaged by the network. The first one ends the link.
    pub corrupt: u64,
    /// Payload copies made by this link in user space. Always 0 for the links here.
    pub payload_copies: u64,
}
