//! The envelope in front of a message's bytes: its description and typed metadata.
//!
//! ```text
//!  0 version u32   4 kind u32   8 path u64   16 published u64   24 staged u64   32 sent u64   40 source host, 16 B
//! 56 host epoch u64   64 history depth u32   68 metadata bytes u32
//! 72 previous u64    80 gap notice u32 (0 or 1)    84 source u32 (0 queue, 1 history, 2 owed history)    88 metadata
//! ```
//!
//! Trusts      nothing: it comes from another host.

use rgaps_shm::info::{MessageInfo, Stamps, decode_path, encode_path};
use rgaps_shm::layout::META_BYTES_MAX;

/// Bytes before the metadata.
pub const HEAD_BYTES: usize = 88;
/// Bytes of an envelope, at most.
pub const ENVELOPE_BYTES_MAX: usize = HEAD_BYTES + META_BYTES_MAX;
/// Version of the layout above.
pub const ENVELOPE_VERSION: u32 = 5;

/// An envelope that is ready to be sent, stored inline so that a message costs no allocation.
#[derive(Clone, Debug)]
pub struct Envelope {
    bytes: [u8; ENVELOPE_BYTES_MAX],
    used: usize,
}

/// What a message says about messages that were not sent (`sent.rs`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gap {
    /// The sequence of the publisher's last message before this one that was sent or need not be sent.
    pub previous: u64,
    /// This is a gap notice: the message itself was not sent, and is lost with those between it and the last one that arrived.
    pub is_notice: bool,
}

/// Where its sender took a message from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Source {
    /// From the queue, in its turn.
    #[default]
    Queue,
    /// From history. It was published before the hosts were linked: it is for subscribers that want history, and lost for none.
    History,
    /// From history. Subscribers that joined after the publisher's previous message had arrived may have joined after this one was published.
    OwedHistory,
}

/// A received envelope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened<'a> {
    /// The description; publisher, sequence and bytes come from the record, not from the envelope.
    pub info: MessageInfo,
    /// How many of its publisher's last messages late joiners get.
    pub history_depth: u32,
    /// What was not sent.
    pub gap: Gap,
    /// Where the sender took it from.
    pub source: Source,
    /// Typed metadata.
    pub meta: &'a [u8],
}

/// Why bytes are not an envelope.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EnvelopeError {
    /// Too short, too long, or its lengths contradict each other.
    #[error("an envelope of {0} B is malformed")]
    Length(usize),
    /// It has another version.
    #[error("an envelope has version {0}, this host reads {ENVELOPE_VERSION}; run one version of RGAPS on all hosts")]
    Version(u32),
}

impl Envelope {
    /// Seals a description. Metadata is never longer than `META_BYTES_MAX`, since a segment holds no more.
    pub fn seal(info: &MessageInfo, history_depth: u32, gap: Gap, meta: &[u8]) -> Self {
        let mut envelope = Self { bytes: [0; ENVELOPE_BYTES_MAX], used: HEAD_BYTES };
        let meta = &meta[..meta.len().min(META_BYTES_MAX)];
        envelope.put(0, &ENVELOPE_VERSION.to_le_bytes());
        envelope.put(4, &info.kind.to_le_bytes());
        envelope.put(8, &encode_path(info).to_le_bytes());
        envelope.put(16, &info.stamps.published.to_le_bytes());
        envelope.put(24, &info.stamps.staged.to_le_bytes());
        envelope.put(32, &info.stamps.sent.to_le_bytes());
        envelope.put(40, &info.source_host);
        envelope.put(56, &info.host_epoch.to_le_bytes());
        envelope.put(64, &history_depth.to_le_bytes());
        envelope.put(68, &(meta.len() as u32).to_le_bytes());
        envelope.put(72, &gap.previous.to_le_bytes());
        envelope.put(80, &u32::from(gap.is_notice).to_le_bytes());
        envelope.put(HEAD_BYTES, meta);
        envelope.used = HEAD_BYTES + meta.len();
        envelope
    }

    /// Says where the message was taken from, if not from the queue.
    #[must_use]
    pub fn taken_from(mut self, source: Source) -> Self {
        let code: u32 = match source {
            Source::Queue => 0,
            Source::History => 1,
            Source::OwedHistory => 2,
        };
        self.put(84, &code.to_le_bytes());
        self
    }

    /// Says up to which message of the publisher none is owed.
    pub fn set_previous(&mut self, previous: u64) {
        self.put(72, &previous.to_le_bytes());
    }

    /// The bytes to send.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.used]
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
    }
}

/// Reads an envelope from another host.
pub fn open(bytes: &[u8]) -> Result<Opened<'_>, EnvelopeError> {
    if bytes.len() < HEAD_BYTES || bytes.len() > ENVELOPE_BYTES_MAX {
        return Err(EnvelopeError::Length(bytes.len()));
    }
    let u32_at = |at: usize| bytes[at..at + 4].try_into().map_or(0, u32::from_le_bytes);
    let u64_at = |at: usize| bytes[at..at + 8].try_into().map_or(0, u64::from_le_bytes);
    if u32_at(0) != ENVELOPE_VERSION {
        return Err(EnvelopeError::Version(u32_at(0)));
    }
    let meta = &bytes[HEAD_BYTES..];
    if u32_at(68) as usize != meta.len() {
        return Err(EnvelopeError::Length(bytes.len()));
    }
    let mut source_host = [0; 16];
    source_host.copy_from_slice(&bytes[40..56]);
    let stamps = Stamps { published: u64_at(16), staged: u64_at(24), sent: u64_at(32), ..Stamps::default() };
    let host_epoch = u64_at(56);
    let mut info = MessageInfo { kind: u32_at(4), source_host, host_epoch, stamps, ..MessageInfo::default() };
    decode_path(u64_at(8), &mut info);
    let gap = Gap { previous: u64_at(72), is_notice: u32_at(80) != 0 };
    let source = match u32_at(84) {
        1 => Source::History,
        2 => Source::OwedHistory,
        _ => Source::Queue,
    };
    Ok(Opened { info, history_depth: u32_at(64), gap, source, meta })
}

/// Fuzz entry: opening, sealing and opening again gives the same description.
pub fn fuzz_envelope(data: &[u8]) -> bool {
    let Ok(opened) = open(data) else { return false };
    let sealed = Envelope::seal(&opened.info, opened.history_depth, opened.gap, opened.meta);
    let sealed = sealed.taken_from(opened.source);
    assert_eq!(open(sealed.bytes()), Ok(opened));
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info() -> MessageInfo {
        let stamps = Stamps { published: 1, staged: 2, sent: 3, ..Stamps::default() };
        MessageInfo { kind: 2, source_host: [7; 16], host_epoch: 8, stamps, ..MessageInfo::default() }
    }

    #[test]
    fn opening_a_sealed_envelope_gives_the_same_description() {
        let gap = Gap { previous: 6, is_notice: true };
        let mut sealed = Envelope::seal(&info(), 5, gap, b"metadata");
        let opened = Opened { info: info(), history_depth: 5, gap, source: Source::Queue, meta: b"metadata" };
        assert_eq!(open(sealed.bytes()), Ok(opened));
        for source in [Source::Queue, Source::History, Source::OwedHistory] {
            assert_eq!(open(sealed.clone().taken_from(source).bytes()), Ok(Opened { source, ..opened }));
        }
        sealed.set_previous(8);
        assert_eq!(open(sealed.bytes()), Ok(Opened { gap: Gap { previous: 8, ..gap }, ..opened }));
    }

    #[test]
    fn every_truncated_envelope_and_every_wrong_length_is_refused() {
        let sealed = Envelope::seal(&info(), 5, Gap::default(), b"metadata");
        for cut in 0..sealed.bytes().len() {
            assert!(open(&sealed.bytes()[..cut]).is_err(), "cut at {cut}");
        }
        let mut lie = sealed.bytes().to_vec();
        lie[68] = 9;
        assert!(open(&lie).is_err());
        lie[0] = 1;
        assert_eq!(open(&lie), Err(EnvelopeError::Version(1)));
        assert!(open(&vec![0; ENVELOPE_BYTES_MAX + 1]).is_err());
        for n in 0..200_u8 {
            fuzz_envelope(&[n; 100]);
        }
        fuzz_envelope(sealed.bytes());
    }
}
