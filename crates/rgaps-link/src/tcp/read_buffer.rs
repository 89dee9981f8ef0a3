//! Bytes that were read from a socket before they were needed, so that one read brings the end of a record and the header of the next, or many
//! small records at once.

use std::net::TcpStream;

use rustix::io::Errno;

use crate::record::{ENVELOPE_BYTES_MAX, HEADER_BYTES};
use crate::tcp::integrity::SUM_BYTES;
use crate::tcp::socket;

/// Bytes of the buffer. Payload that goes through it is copied once more, so it is small beside a chunk.
const BUFFER_BYTES: usize = 16 << 10;

// `fill` can be asked for a header, an envelope or a sum.
const _: () = assert!(BUFFER_BYTES >= HEADER_BYTES + SUM_BYTES && BUFFER_BYTES >= ENVELOPE_BYTES_MAX as usize);

/// Why no more bytes can be read now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stopped {
    /// None have arrived.
    Blocked,
    /// The peer has ended the stream.
    End,
    /// The connection broke.
    Broken(Errno),
}

/// A buffer of bytes that have been read and not used.
#[derive(Debug)]
pub(crate) struct ReadBuffer {
    bytes: Box<[u8; BUFFER_BYTES]>,
    start: usize,
    end: usize,
}

impl ReadBuffer {
    pub(crate) fn new() -> Self {
        Self { bytes: Box::new([0; BUFFER_BYTES]), start: 0, end: 0 }
    }

    /// The bytes in it.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    /// Reads until it has `wanted` bytes, at most its size, without blocking. Counts the reads that bring bytes.
    pub(crate) fn fill(&mut self, stream: &TcpStream, wanted: usize, reads: &mut u64) -> Result<(), Stopped> {
        while self.bytes().len() < wanted {
            if self.start > 0 {
                self.bytes.copy_within(self.start..self.end, 0);
                (self.start, self.end) = (0, self.end - self.start);
            }
            match socket::receive(stream, &mut self.bytes[self.end..]) {
                Ok(None) => return Err(Stopped::Blocked),
                Ok(Some(0)) => return Err(Stopped::End),
                Ok(Some(n)) => (self.end, *reads) = (self.end + n, *reads + 1),
                Err(errno) => return Err(Stopped::Broken(errno)),
            }
        }
        Ok(())
    }

    /// Drops its first `count` bytes.
    pub(crate) fn consume(&mut self, count: usize) {
        self.start = self.end.min(self.start + count);
    }

    /// All of an empty buffer, to read into; `read` says how much was read.
    pub(crate) fn free(&mut self) -> &mut [u8] {
        debug_assert!(self.bytes().is_empty(), "unused bytes would be overwritten");
        &mut self.bytes[..]
    }

    /// `count` bytes were read into `free`.
    pub(crate) fn read(&mut self, count: usize) {
        (self.start, self.end) = (0, count.min(BUFFER_BYTES));
    }
}
