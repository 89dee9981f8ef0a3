//! The tcp link: sends the ring's records as a stream, which the kernel copies directly to where they stay.
//!
//! ```text
//!  TcpSender ── hello, then records (header, payload, their sums; no skips, no padding) ──▶ TcpReceiver ──▶ the ring, or the consumer's memory
//!      ▲                                                                                        │
//!      └──────────── answer to the hello, then credits of 16 B and their sums ──────────────────┘
//! ```
//!
//! `integrity` has the sums, which detect damage by the network: the link ends then, and no damaged byte is used. Neither end has a thread: each is
//! used by its worker, which waits in poll(2). Calls that must not block pass MSG_DONTWAIT, or the socket is in non-blocking mode. Every wait has a
//! time-out (`TcpOptions`).

#[cfg(test)]
mod corruption_tests;
mod hello;
pub(crate) mod integrity;
mod listener;
mod read_buffer;
mod receiver;
mod sender;
pub(crate) mod socket;
#[cfg(test)]
mod tests;

pub use hello::{HELLO_BYTES, Hello, HelloError, LinkToken, Verdict, fuzz_hello};
pub use integrity::Summer;
pub use listener::{AcceptError, HangUp, Incoming, PendingConnection, RingSetup, TcpRingListener};
pub use receiver::TcpReceiver;
pub use sender::{ConnectError, TcpSender, connect};
pub use socket::TcpOptions;
