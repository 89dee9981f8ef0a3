//! Content of the GPU benches' messages: eight-byte marks at the start of each sixteenth, and at the end.
//!
//! Each mark encodes the message's number and its own offset, so a chunk that is missing, old or misplaced is detected in any memory: in a slice,
//! chunk by chunk, or on the device. Checks are not timed.

use std::time::Duration;

use rgaps::device::{Backend, DeviceError, PoolPart, Stream};
use rgaps_os::{Mapping, OutOfRange, SharedBytes};

const PARTS: u64 = 16;
const MARK_BYTES: u64 = 8;
/// How long the device may take to copy a few marks.
const TIMEOUT: Duration = Duration::from_secs(30);

/// A message: its number and its length, at least 256 B and a multiple of 8.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Content {
    pub(super) sequence: u64,
    pub(super) bytes: u64,
}

impl Content {
    /// Each mark with its offset.
    fn marks(self) -> impl Iterator<Item = (u64, [u8; MARK_BYTES as usize])> {
        let starts = (0..PARTS).map(move |part| (self.bytes / PARTS * part).next_multiple_of(MARK_BYTES));
        let all = starts.chain([self.bytes - MARK_BYTES]).zip(0..);
        all.map(move |(offset, place): (u64, u64)| (offset, (self.sequence << 8 | place).to_le_bytes()))
    }

    /// Writes the marks into host memory; the message's first byte is at `start`.
    pub(super) fn write(self, to: &Mapping, start: u64) -> Result<(), OutOfRange> {
        self.marks().try_for_each(|(offset, mark)| to.copy_in(start + offset, &mark))
    }

    /// Writes the marks into device memory, and waits until they are written.
    pub(super) fn write_on_device(
        self,
        backend: &dyn Backend,
        stream: &Stream,
        to: PoolPart<'_>,
    ) -> Result<(), String> {
        for (offset, mark) in self.marks() {
            let copied = to
                .skip(offset)
                .map_err(DeviceError::from)
                .and_then(|place| backend.copy_in(stream, &mark, place))
                .and_then(|copy| copy.wait(TIMEOUT));
            copied.map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    /// Checks the marks of a part of the message that begins at `start`.
    pub(super) fn check<'a>(self, part: impl Into<SharedBytes<'a>>, start: u64) -> Result<(), String> {
        let part = part.into();
        let end = start + part.len() as u64;
        for (offset, mark) in self.marks().filter(|(offset, _)| (start..end).contains(offset)) {
            let mut found = [0; MARK_BYTES as usize];
            part.copy_out((offset - start) as usize, &mut found).map_err(|error| error.to_string())?;
            self.compare(offset, &found, &mark)?;
        }
        Ok(())
    }

    /// Checks the marks of a message in device memory.
    pub(super) fn check_on_device(
        self,
        backend: &dyn Backend,
        stream: &Stream,
        from: PoolPart<'_>,
    ) -> Result<(), String> {
        for (offset, mark) in self.marks() {
            let mut found = [0; MARK_BYTES as usize];
            let place = from.skip(offset).map_err(|error| error.to_string())?;
            backend.copy_out(stream, place, &mut found).map_err(|error| error.to_string())?;
            self.compare(offset, &found, &mark)?;
        }
        Ok(())
    }

    fn compare(self, offset: u64, found: &[u8], mark: &[u8]) -> Result<(), String> {
        if found == mark {
            return Ok(());
        }
        let Self { sequence, bytes } = self;
        Err(format!("message {sequence} of {bytes} B has {found:x?} at {offset} instead of {mark:x?}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_missing_and_displaced_parts_are_found_whole_or_by_chunks() {
        let content = Content { sequence: 7, bytes: 4096 };
        let memory = Mapping::anonymous(8192).unwrap();
        content.write(&memory, 4096).unwrap();
        let mut message = vec![0; 4096];
        memory.copy_out(4096, &mut message).unwrap();
        content.check(&message, 0).unwrap();
        message.chunks(512).enumerate().for_each(|(n, part)| content.check(part, n as u64 * 512).unwrap());
        let old = Content { sequence: 6, ..content };
        assert!(old.check(&message, 0).unwrap_err().contains("message 6 of 4096 B"));
        for at in [0, 256, 2048, 4088] {
            let mut torn = message.clone();
            torn[at] ^= 1;
            content.check(&torn, 0).unwrap_err();
        }
        message.rotate_left(256);
        content.check(&message, 0).unwrap_err();
    }
}
