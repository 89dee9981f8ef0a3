//! The protocol between a client and its manager: JSON messages with descriptors beside them, over a Unix SOCK_SEQPACKET socket.
//!
//! A client asks (`Request`), the manager answers each (`Reply`, same id) and sometimes speaks up by itself (`Notice`). Nothing here
//! is on the path of a message: a topic is set up with it, then the segment is all that is touched.
//!
//! Trusts      nothing: a message longer than 64 KiB, with more than 136 descriptors, or that is no JSON of ours, ends the connection
//!             with a named error. The manager takes the peer's credentials from the kernel.

mod connection;
mod messages;

pub use connection::{Connection, DESCRIPTORS_MAX, Listener, LocalError, MESSAGE_BYTES_MAX, Packet, PeerCredentials};
pub use messages::{
    Advertised, Body, HANDED_SLOTS_MAX, HELD_LOCKS_MAX, Handed, HandedSlot, HandedTopic, Notice, NoticedSubscriber,
    PROTOCOL_VERSION, Refusal, RefusedSlot, Reply, Request, Role, Subscribed, TOLD_SUBSCRIBERS_MAX, ToClient,
    TopicSummary, Welcome,
};
