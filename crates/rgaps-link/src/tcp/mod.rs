//! The tcp link: the records of the ring as a stream, read by the kernel straight into the ring's memory.
//!
//! ```text
//!  TcpSender ── hello, then records (header, payload, their sums; no skips, no padding) ──▶ SocketReader ──queue──▶ Arrivals
//!      ▲                                                                                                         │
//!      └─────────────────── answer to the hello, then credits of 16 B and their sums ────────────────────────────┘
//! ```
//!
//! `integrity` has the sums, by which damage on the way shows: the link ends then, and nothing of what was damaged is used.
//! `SocketReader` and `Arrivals` are the receiver's two halves for two threads: one keeps the socket empty, the other consumes.
//! The socket stays in blocking mode; what must not block says so per call. Every wait has a time-out (`TcpOptions`).

mod arrivals;
#[cfg(test)]
mod corruption_tests;
mod hello;
mod integrity;
mod listener;
#[cfg(all(test, loom))]
mod loom_models;
mod queue;
mod sender;
pub(crate) mod socket;
mod socket_reader;
#[cfg(test)]
mod tests;

pub use arrivals::Arrivals;
pub use hello::{HELLO_BYTES, Hello, HelloError, LinkToken, Verdict, fuzz_hello};
pub use listener::{AcceptError, Caller, HangUp, Incoming, RingSetup, TcpRingListener};
pub use sender::{ConnectError, TcpSender, connect};
pub use socket::TcpOptions;
pub use socket_reader::SocketReader;
