//! The tcp link: sends the ring's records as a stream, which the kernel reads directly into the ring's memory.
//!
//! ```text
//!  TcpSender ── hello, then records (header, payload, their sums; no skips, no padding) ──▶ SocketReader ──queue──▶ TcpReceiver
//!      ▲                                                                                                         │
//!      └─────────────────── answer to the hello, then credits of 16 B and their sums ────────────────────────────┘
//! ```
//!
//! `integrity` has the sums, which detect damage by the network: the link ends then, and no damaged byte is used. `SocketReader` and
//! `TcpReceiver` are the receiver's two halves, for two threads: one keeps the socket empty, the other consumes. The socket stays in blocking
//! mode; calls that must not block pass MSG_DONTWAIT. Every wait has a time-out (`TcpOptions`).

#[cfg(test)]
mod corruption_tests;
mod hello;
mod integrity;
mod listener;
#[cfg(all(test, loom))]
mod loom_models;
mod queue;
mod receiver;
mod sender;
pub(crate) mod socket;
mod socket_reader;
#[cfg(test)]
mod tests;

pub use hello::{HELLO_BYTES, Hello, HelloError, LinkToken, Verdict, fuzz_hello};
pub use listener::{AcceptError, HangUp, Incoming, PendingConnection, RingSetup, TcpRingListener};
pub use receiver::TcpReceiver;
pub use sender::{ConnectError, TcpSender, connect};
pub use socket::TcpOptions;
pub use socket_reader::SocketReader;
