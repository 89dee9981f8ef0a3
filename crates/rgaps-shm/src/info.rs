//! The description of a message: its origin, its route and why it took no better one, and when it passed each stage.

/// Largest believable step between the sequences of two messages of a publisher that arrive here: 71 minutes at a million messages a second. A
/// larger step is not a loss but a new count (docs/decisions/019-one-lie.md).
pub const SEQUENCE_STEP_MAX: u64 = 1 << 32;

/// How the publisher handed the message over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Origin {
    /// Not stated.
    #[default]
    Unknown,
    /// Written in place into a loaned block.
    Loaned,
    /// Copied once into the block, from memory of the CPU or of a device.
    Pushed,
}

/// How the message reached this host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Route {
    /// Published on this host, and read in place.
    #[default]
    Local,
    /// Over TCP into the receive ring, then one copy into the pool.
    Tcp,
    /// Over RDMA into the receive ring, then one copy into the pool.
    Rdma,
}

/// Why a message took its route, and no better one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum RouteReason {
    /// It took the best route.
    #[default]
    Best,
    /// The publisher pushed a foreign buffer instead of loaning a block.
    ForeignBuffer,
    /// Configuration asks for TCP.
    Configured,
    /// A host has no usable device, or none with a route to the other's.
    NoRdma,
    /// RDMA was tried and failed.
    RdmaFailed,
    /// Without flow control there is no credit for the receives that RDMA needs.
    NoFlowControl,
}

/// Payload copies that a message went through: in the publisher (push), to staging, and into the pool of the receiving host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Copies {
    /// Into the block, from memory of the CPU or of a device: by `push`, or at the publication of a loan that was filled in other memory.
    pub pushed: u8,
    /// Device to host, into staging.
    pub staged: u8,
    /// Ring to pool, once per receiving host, whatever its number of subscribers.
    pub pooled: u8,
}

/// When a message passed each stage, in ns since 1970 on the clock of the host where it happened; 0 where it did not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stamps {
    /// Published, on the publisher's host.
    pub published: u64,
    /// The manager took it, to copy it to staging or (host backend) to send it from the pool.
    pub staged: u64,
    /// Its first byte was handed to the link.
    pub sent: u64,
    /// Its last byte was in the receive ring.
    pub landed: u64,
    /// Its last byte was in the receiving host's pool.
    pub pooled: u64,
}

/// Everything about a message except its payload and typed metadata.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MessageInfo {
    /// Position in the queue of the topic on this host.
    pub position: u64,
    /// Identity of the publisher.
    pub publisher: u64,
    /// The publisher's count of its messages, from 1.
    pub sequence: u64,
    /// Host of the publisher.
    pub source_host: [u8; 16],
    /// When that host started, in ns since 1970 on its clock: the start of its manager, or of the first manager in an unbroken line of
    /// successors.
    pub host_epoch: u64,
    /// Kind of the typed metadata.
    pub kind: u32,
    /// Bytes of the message.
    pub bytes: u64,
    /// Stage timestamps.
    pub stamps: Stamps,
    /// How the publisher handed it over.
    pub origin: Origin,
    /// How it reached this host.
    pub route: Route,
    /// Why it took no better route.
    pub route_reason: RouteReason,
    /// Copies made on the way.
    pub copies: Copies,
}

impl MessageInfo {
    /// Origin, route, reason, and the copies pushed, staged and pooled, encoded as in the segment; then zeros.
    ///
    /// ```
    /// use rgaps_shm::info::{Copies, MessageInfo, Origin, Route};
    ///
    /// let copies = Copies { pooled: 1, ..Copies::default() };
    /// let info = MessageInfo { origin: Origin::Loaned, route: Route::Tcp, copies, ..MessageInfo::default() };
    /// assert_eq!(info.path_codes(), [1, 1, 0, 0, 0, 1, 0, 0]); // one copy, into this host's pool
    /// ```
    pub fn path_codes(&self) -> [u8; 8] {
        encode_path(self).to_le_bytes()
    }
}

/// Origin, route, reason and copies as one word of the segment.
pub fn encode_path(info: &MessageInfo) -> u64 {
    let origin = match info.origin {
        Origin::Unknown => 0,
        Origin::Loaned => 1,
        Origin::Pushed => 2,
    };
    let route = match info.route {
        Route::Local => 0,
        Route::Tcp => 1,
        Route::Rdma => 2,
    };
    let reason = match info.route_reason {
        RouteReason::Best => 0,
        RouteReason::ForeignBuffer => 1,
        RouteReason::Configured => 2,
        RouteReason::NoRdma => 3,
        RouteReason::RdmaFailed => 4,
        RouteReason::NoFlowControl => 5,
    };
    u64::from_le_bytes([origin, route, reason, info.copies.pushed, info.copies.staged, info.copies.pooled, 0, 0])
}

/// The reverse of `encode_path`. Unknown codes become the defaults.
pub fn decode_path(word: u64, info: &mut MessageInfo) {
    let [origin, route, reason, pushed, staged, pooled, ..] = word.to_le_bytes();
    info.origin = match origin {
        1 => Origin::Loaned,
        2 => Origin::Pushed,
        _ => Origin::Unknown,
    };
    info.route = match route {
        1 => Route::Tcp,
        2 => Route::Rdma,
        _ => Route::Local,
    };
    info.route_reason = match reason {
        1 => RouteReason::ForeignBuffer,
        2 => RouteReason::Configured,
        3 => RouteReason::NoRdma,
        4 => RouteReason::RdmaFailed,
        5 => RouteReason::NoFlowControl,
        _ => RouteReason::Best,
    };
    info.copies = Copies { pushed, staged, pooled };
}

impl Origin {
    /// Text for tables and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Loaned => "loaned",
            Self::Pushed => "pushed",
        }
    }
}

impl Route {
    /// Text for tables and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Local => "in place",
            Self::Tcp => "tcp",
            Self::Rdma => "rdma",
        }
    }
}

impl RouteReason {
    /// Text for tables and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Best => "best",
            Self::ForeignBuffer => "pushed from a foreign buffer: loan to save the copy",
            Self::Configured => "tcp by configuration",
            Self::NoRdma => "no rdma devices with a route between the hosts",
            Self::RdmaFailed => "rdma was tried and failed",
            Self::NoFlowControl => "rdma needs flow control, which is off",
        }
    }
}

#[cfg(test)]
#[cfg(not(any(loom, shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn a_path_survives_its_word() {
        let info = MessageInfo {
            origin: Origin::Pushed,
            route: Route::Tcp,
            route_reason: RouteReason::NoRdma,
            copies: Copies { pushed: 1, staged: 0, pooled: 1 },
            ..MessageInfo::default()
        };
        let mut read = MessageInfo::default();
        decode_path(encode_path(&info), &mut read);
        assert_eq!(read, info);
        decode_path(u64::MAX, &mut read);
        assert_eq!(read.origin, Origin::Unknown);
    }
}
