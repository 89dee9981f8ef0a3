//! The tcp connection beside a queue pair, by which each side detects the other's end, orderly or not.
//!
//! A reliable connected queue pair does not report a dead peer to an idle side, and just after a kill even writes succeed. The kernel closes
//! a dead process's socket at once, and keepalives detect a silent host. A sender that closes orderly first sends its number of posted
//! records; then the end of the connection is no failure. A receiver that wants a grant back says so here, and the sender returns it here, since
//! neither is urgent and each wakes the other side.
//!
//! ```text
//!  frame   kind, 2 bits | number, 62 bits | the complement of both, 8 B       as a credit, which detects a frame that is none
//! ```

use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};

use rustix::io::Errno;

use crate::credit::{CREDIT_BYTES, CreditPair};
use crate::error::LinkError;
use crate::position::Position;
use crate::record::GrantNumber;
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

/// What is sent over the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Frame {
    /// From the sender: it has posted this many records and will post no more.
    End(u64),
    /// From the receiver: it wants the grant back.
    Revoke(GrantNumber),
    /// From the sender: it has not used the grant and never will.
    Return(GrantNumber),
    /// From the receiver: it grants nothing any more.
    NoGrants,
}

/// Where the kind is in a frame's first word.
const KIND_SHIFT: u32 = 62;

impl Frame {
    fn encode(self) -> [u8; CREDIT_BYTES] {
        let (kind, number) = match self {
            Self::End(records) => (0, records),
            Self::Revoke(grant) => (1, grant.0),
            Self::Return(grant) => (2, grant.0),
            Self::NoGrants => (3, 0),
        };
        CreditPair::new(Position::new(kind << KIND_SHIFT | number)).encode()
    }

    fn decode(bytes: [u8; CREDIT_BYTES]) -> Result<Self, LinkError> {
        let word = CreditPair::decode(bytes).accept(Position::START, Position::new(u64::MAX))?.value();
        let number = word & !(3 << KIND_SHIFT);
        match word >> KIND_SHIFT {
            0 => Ok(Self::End(number)),
            1 => Ok(Self::Revoke(GrantNumber(number))),
            2 => Ok(Self::Return(GrantNumber(number))),
            _ => Ok(Self::NoGrants),
        }
    }
}

/// Most frames that one look reads, so that a peer that sends without end cannot keep it.
const FRAMES_MAX: usize = 64;

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

    /// Reads what the peer has sent until now, without waiting. Passes frames other than the end to `take`.
    pub(super) fn look(&mut self, mut take: impl FnMut(Frame)) -> Result<Said, LinkError> {
        for _ in 0..FRAMES_MAX {
            if self.said == Said::Gone {
                break;
            }
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
                        match Frame::decode(self.partial)? {
                            Frame::End(records) => self.said = Said::End(records),
                            frame => take(frame),
                        }
                    }
                }
                Err(_) if matches!(self.said, Said::End(_)) => break,
                Err(Errno::CONNRESET | Errno::PIPE) => self.said = Said::Gone,
                Err(errno) => return Err(broken("reading the liveness socket", errno)),
            }
        }
        Ok(self.said)
    }

    /// Announces to the peer that it gets `records` records and no more.
    pub(super) fn end(&self, records: u64) {
        if let Err(error) = self.send(Frame::End(records)) {
            tracing::debug!(%error, "the end of a link could not be announced");
        }
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    /// Sends a frame. The few that are sent fit the socket's buffer, unless the peer reads none: that is an error.
    pub(super) fn send(&self, frame: Frame) -> Result<(), LinkError> {
        match socket::send(&self.stream, &[(&frame.encode()[..]).into()]) {
            Ok(Some(CREDIT_BYTES)) => Ok(()),
            Ok(_) => Err(broken("writing to the liveness socket, which the peer does not read", Errno::NOBUFS)),
            Err(errno) => Err(broken("writing to the liveness socket", errno)),
        }
    }

    pub(super) fn hang_up(&self) {
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}
