//! The tcp connection beside a queue pair: how each side learns that the other has ended, orderly or not.
//!
//! A reliable connected queue pair tells an idle side nothing about its peer, and for a moment after a kill even writes succeed. The kernel
//! closes a dead process's socket at once, and keepalives find a silent host. An orderly sender says how many records it has posted, as
//! a pair that proves itself like credit; then the connection's end is no death.

use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};

use crate::credit::{CREDIT_BYTES, CreditPair};
use crate::error::LinkError;
use crate::position::Position;
use crate::tcp::socket::{self, broken};

/// What the peer has said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Said {
    /// Nothing: it lives.
    Nothing,
    /// It has posted so many records and posts no more.
    End(u64),
    /// The connection is gone.
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

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    /// What the peer has said until now, without waiting.
    pub(super) fn look(&mut self) -> Result<Said, LinkError> {
        while !matches!(self.said, Said::Gone) {
            let mut rest = [0; CREDIT_BYTES];
            let wanted = CREDIT_BYTES - self.filled;
            match socket::receive(&self.stream, &mut rest[..wanted]) {
                Ok(None) => break,
                // An end that was announced stays: what follows it is only the connection's.
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
                Err(errno) => return Err(broken("listening for the peer's end", errno)),
            }
        }
        Ok(self.said)
    }

    /// Tells the peer that no more than `records` come.
    pub(super) fn end(&self, records: u64) {
        let frame = CreditPair::new(Position::new(records)).encode();
        // The connection carries nothing else, so 16 bytes always fit.
        if let Err(errno) = socket::send(&self.stream, &[(&frame[..]).into()]) {
            tracing::debug!(%errno, "the end of a link could not be said");
        }
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    pub(super) fn hang_up(&self) {
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}
