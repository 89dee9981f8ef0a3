//! The protocol between a client and its manager: JSON messages with file descriptors beside them, over a Unix SOCK_SEQPACKET socket.
//!
//! A client sends `Request`s. The manager answers each with a `Reply` of the same id, and sends `Notice`s unasked. The protocol sets topics up;
//! messages then need the segment only.
//!
//! Trusts      nothing: a message that is longer than 64 KiB, has more than 136 file descriptors or is not valid JSON of this protocol ends the
//!             connection with a named error. The manager takes the peer's credentials from the kernel.

mod connection;
mod messages;

pub use connection::{Connection, FDS_MAX, Listener, LocalError, MESSAGE_BYTES_MAX, Packet, PeerCredentials};
pub use messages::{
    Advertised, Body, HANDED_SLOTS_MAX, HELD_LOCKS_MAX, Handed, HandedSlot, HandedTopic, Notice, NoticedSubscriber,
    PROTOCOL_VERSION, Refusal, RefusedSlot, Reply, Request, Role, SUBSCRIBERS_A_REPLY_MAX, Subscribed, ToClient,
    TopicSummary, Welcome,
};
