//! The tcp connection beside a queue pair, by which each side detects the other's end, orderly or not.
//!
//! A reliable connected queue pair does not report a dead peer to an idle side, and just after a kill even writes succeed. The kernel closes
//! a dead process's socket at once, and keepalives detect a silent host. A sender that closes orderly first sends its number of posted
//! records, as a checked pair like a credit; then the end of the connection is no failure.

use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};

use crate::credit::{CREDIT_BYTES, CreditPair};
use crate::error::LinkError;
use crate::position::Position;
use crate::tcp::socket::{self, broken};

/// What the peer has sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Said {
    /// Nothing: the connection is open.
    Nothing,
    /// It has posted this many records and will post no more.
    End(u64),
    /// The connection has ended.
    Gone,
}

#[derive(Debug)]
pub(super) struct LivenessSocket {
    stream: TcpStream,
    partial: [u8; CREDIT_BYTES],
    filled: usize,
    said: Said,
}

impl LivenessSocket {
    pub(super) fn new(stream: TcpStream) -> Self {
        Self { stream, partial: [0; CREDIT_BYTES], filled: 0, said: Said::Nothing }
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    /// Reads what the peer has sent until now, without waiting.
    pub(super) fn look(&mut self) -> Result<Said, LinkError> {
        while !matches!(self.said, Said::Gone) {
            let mut rest = [0; CREDIT_BYTES];
            let wanted = CREDIT_BYTES - self.filled;
            match socket::receive(&self.stream, &mut rest[..wanted]) {
                Ok(None) => break,
                // After an announced end, the end of the connection means nothing more.
                Ok(Some(0)) if matches!(self.said, Said::End(_)) => break,
                Ok(Some(0)) => self.said = Said::Gone,
                Ok(Some(n)) => {
                    self.partial[self.filled..self.filled + n].copy_from_slice(&rest[..n]);
                    self.filled += n;
                    if self.filled == CREDIT_BYTES {
                        self.filled = 0;
                        let anything = Position::new(u64::MAX);
                        let records = CreditPair::decode(self.partial).accept(Position::START, anything)?;
                        self.said = Said::End(records.value());
                    }
                }
                Err(_) if matches!(self.said, Said::End(_)) => break,
                Err(rustix::io::Errno::CONNRESET | rustix::io::Errno::PIPE) => self.said = Said::Gone,
                Err(errno) => return Err(broken("reading the liveness socket", errno)),
            }
        }
        Ok(self.said)
    }

    /// Announces to the peer that it gets `records` records and no more.
    pub(super) fn end(&self, records: u64) {
        let frame = CreditPair::new(Position::new(records)).encode();
        // This side sends nothing else, so 16 bytes always fit.
        if let Err(errno) = socket::send(&self.stream, &[(&frame[..]).into()]) {
            tracing::debug!(%errno, "the end of a link could not be announced");
        }
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    pub(super) fn hang_up(&self) {
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}
