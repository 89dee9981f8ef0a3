//! Bytes that a peer, a device or another mapping may write at any time: to copy, to send, or to hand to a device. Only an unsafe call makes a
//! slice of them.
//!
//! A plain slice promises that its bytes do not change while it lives. Shared memory cannot keep that promise. A copy of such bytes, by this
//! process or by the kernel, is torn at worst.

use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsFd, AsRawFd};

use crate::mapping::OutOfRange;

/// Bytes to read while another process may write them. They stay mapped for `'a`.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct SharedBytes<'a> {
    // In the kernel's form, so that an array of these is one gathered write.
    place: libc::iovec,
    memory: PhantomData<&'a [u8]>,
}

// SAFETY: an address and a length. Any thread may read there: by memcpy(3), the kernel or a device.
unsafe impl Send for SharedBytes<'_> {}
// SAFETY: as above.
unsafe impl Sync for SharedBytes<'_> {}

impl<'a> SharedBytes<'a> {
    /// No bytes.
    pub const fn empty() -> Self {
        let place = libc::iovec { iov_base: std::ptr::dangling_mut(), iov_len: 0 };
        Self { place, memory: PhantomData }
    }

    /// `bytes` bytes from `start` on, which are mapped for `'a`.
    pub(crate) fn at(start: *const u8, bytes: usize) -> Self {
        Self { place: libc::iovec { iov_base: start.cast_mut().cast(), iov_len: bytes }, memory: PhantomData }
    }

    /// `bytes` bytes from `start` on.
    ///
    /// # Safety
    /// They are mapped for `'a`, and initialised.
    pub unsafe fn from_raw(start: *const u8, bytes: usize) -> Self {
        Self::at(start, bytes)
    }

    /// Number of bytes.
    pub fn len(&self) -> usize {
        self.place.iov_len
    }

    /// Whether the length is 0.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The address of the first byte, for a device; do not dereference it.
    pub fn address(&self) -> u64 {
        self.place.iov_base as u64
    }

    /// The `bytes` bytes from `offset` on.
    pub fn part(&self, offset: usize, bytes: usize) -> Result<Self, OutOfRange> {
        let end = offset.checked_add(bytes).filter(|end| *end <= self.len());
        end.ok_or(OutOfRange { offset: offset as u64, bytes: bytes as u64, mapped: self.len() as u64 })?;
        Ok(Self::at(self.place.iov_base.cast::<u8>().wrapping_add(offset), bytes))
    }

    /// Copies bytes out, from `offset` on. If another process writes them at the same time, the copy is torn, never worse.
    pub fn copy_out(&self, offset: usize, to: &mut [u8]) -> Result<(), OutOfRange> {
        let from = self.part(offset, to.len())?;
        if !from.is_empty() {
            // SAFETY: `to.len()` bytes that are mapped for `'a`; `to` is borrowed mutably, so it does not overlap them. memcpy(3) is opaque to
            // the
            // compiler.
            unsafe { libc::memcpy(to.as_mut_ptr().cast(), from.place.iov_base, to.len()) };
        }
        Ok(())
    }

    /// A copy of all bytes.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut copy = vec![0; self.len()];
        // Cannot fail: `copy` has the same length.
        let _ = self.copy_out(0, &mut copy);
        copy
    }

    /// The bytes as a plain slice.
    ///
    /// # Safety
    /// Nothing writes the bytes while the slice lives: neither this process, through any mapping, copy, device or `OwnedRange`, nor another
    /// process. A publisher is trusted not to write into a block after publishing it (docs/promises.md), so the holder of a message may view its
    /// payload as a slice while it holds it.
    pub unsafe fn as_slice(self) -> &'a [u8] {
        if self.place.iov_base.is_null() {
            return &[];
        }
        // Keep the address even if the length is 0: a block is aligned, and `&[]` is not.
        // SAFETY: mapped for `'a`, initialised (a memfd is zero at birth), and not written, as the caller promises.
        unsafe { std::slice::from_raw_parts(self.place.iov_base.cast(), self.len()) }
    }

    /// Writes the bytes to a file descriptor: one write(2), which may be short.
    pub fn write_to(&self, fd: impl AsFd) -> io::Result<usize> {
        // SAFETY: the kernel reads bytes that are mapped for `'a`.
        let n = unsafe { libc::write(fd.as_fd().as_raw_fd(), self.place.iov_base, self.len()) };
        usize::try_from(n).map_err(|_| io::Error::last_os_error())
    }

    /// Removes the bytes that have been sent, like `IoSlice::advance_slices`.
    pub fn advance(parts: &mut &mut [Self], mut bytes: usize) {
        let sent = parts.iter().take_while(|part| {
            let is_sent = part.len() <= bytes;
            bytes -= if is_sent { part.len() } else { 0 };
            is_sent
        });
        let count = sent.count();
        let rest = std::mem::take(parts).get_mut(count..).unwrap_or_default();
        if let Some(first) = rest.first_mut() {
            *first = first.part(bytes, first.len() - bytes).unwrap_or(*first);
        }
        *parts = rest;
    }
}

impl<'a> From<&'a [u8]> for SharedBytes<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Self::at(bytes.as_ptr(), bytes.len())
    }
}

impl<'a, const N: usize> From<&'a [u8; N]> for SharedBytes<'a> {
    fn from(bytes: &'a [u8; N]) -> Self {
        Self::from(&bytes[..])
    }
}

impl<'a> From<&'a Vec<u8>> for SharedBytes<'a> {
    fn from(bytes: &'a Vec<u8>) -> Self {
        Self::from(&bytes[..])
    }
}

impl fmt::Debug for SharedBytes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} B at {:#x}", self.len(), self.address())
    }
}

/// One gathered send on a socket, without blocking and without SIGPIPE; it may be short.
pub fn send(socket: impl AsFd, parts: &[SharedBytes<'_>]) -> io::Result<usize> {
    // SAFETY: a msghdr of zeros names nothing.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = parts.as_ptr().cast::<libc::iovec>().cast_mut();
    message.msg_iovlen = parts.len() as _;
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    // SAFETY: `parts` are iovecs of bytes that are mapped; sendmsg(2) reads them and writes neither.
    let n = unsafe { libc::sendmsg(socket.as_fd().as_raw_fd(), &raw const message, flags) };
    usize::try_from(n).map_err(|_| io::Error::last_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    #[test]
    fn parts_are_checked_and_copied_out() {
        let bytes = SharedBytes::from(b"message");
        let mut two = [0; 2];
        bytes.part(3, 4).unwrap().copy_out(1, &mut two).unwrap();
        assert_eq!((&two, bytes.part(7, 0).unwrap().len()), (b"ag", 0));
        for (offset, length) in [(8, 0), (3, 5), (usize::MAX, 2)] {
            assert!(bytes.part(offset, length).is_err());
        }
        assert!(bytes.copy_out(6, &mut two).is_err());
        SharedBytes::empty().copy_out(0, &mut []).unwrap();
    }

    #[test]
    fn the_rest_of_a_short_send_is_sent_next() {
        let (near, mut far) = UnixStream::pair().unwrap();
        let whole = b"header, envelope and data";
        for first in 0..=whole.len() {
            let mut parts = [&whole[..7], b"", &whole[7..16], &whole[16..]].map(SharedBytes::from);
            let mut rest = &mut parts[..];
            SharedBytes::advance(&mut rest, first);
            let left = whole.len() - first;
            assert_eq!(rest.iter().map(SharedBytes::len).sum::<usize>(), left);
            if left > 0 {
                assert_eq!(send(&near, rest).unwrap(), left);
            }
            let mut came = vec![0; left];
            far.read_exact(&mut came).unwrap();
            assert_eq!(came, whole[first..]);
        }
    }
}
