//! How a sender gets a ring: the request, the geometry of the offered ring, and a connection to the first of its addresses that answers.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use rgaps_control::network::{RingAsker, RingError};
use rgaps_control::reach::Seen;
use rgaps_control::wire::{Integrity, RECORD_ALIGNMENT_MAX, RingOffer, RingRefusal, RingRequest};
use rgaps_control::{Config, HostId, text};
use rgaps_link::record::HEADER_BYTES;
use rgaps_link::tcp::{ConnectError, LinkToken, TcpOptions};
use rgaps_link::{FlowControl, RingGeometry, RingOptions, Watermark};

use crate::envelope::ENVELOPE_BYTES_MAX;

/// Requests rings of other hosts: over the network, or in tests by a call.
pub(crate) trait Ask: std::fmt::Debug + Send + Sync {
    /// Waits for the answer. Returns it, and where its sender was seen.
    fn ask(&self, host: HostId, request: &RingRequest, timeout: Duration) -> Result<(RingOffer, Seen), RingError>;
}

impl Ask for RingAsker {
    fn ask(&self, host: HostId, request: &RingRequest, timeout: Duration) -> Result<(RingOffer, Seen), RingError> {
        self.request(host, request, timeout)
    }
}

/// The name of a tcp link in the status of both hosts.
pub(crate) fn over_tcp(no_rdma: &str, integrity: Integrity) -> String {
    match integrity {
        Integrity::Crc32c => format!("tcp ({no_rdma})"),
        Integrity::None => format!("tcp ({no_rdma}), without checksums (integrity = \"none\")"),
    }
}

pub(crate) fn link_integrity(integrity: Integrity) -> rgaps_link::Integrity {
    match integrity {
        Integrity::Crc32c => rgaps_link::Integrity::Crc32c,
        Integrity::None => rgaps_link::Integrity::None,
    }
}

/// Payload bytes of a record: those of a chunk, and of the envelope before a message's first bytes, so that a message of one chunk is one record. In a
/// ring without room for that, the envelope takes its bytes from the first chunk.
pub(crate) fn link_chunk_bytes(config: &Config) -> u32 {
    let most = (config.ring_bytes - config.watermark_bytes()) / 2;
    let has_room = config.chunk_bytes + RECORD_ALIGNMENT_MAX <= most;
    let chunk_bytes = u32::try_from(config.chunk_bytes).unwrap_or(u32::MAX);
    if has_room { chunk_bytes.saturating_add(ENVELOPE_BYTES_MAX as u32) } else { chunk_bytes - HEADER_BYTES as u32 }
}

pub(crate) fn geometry(offer: &RingOffer, flow_control: bool) -> Result<RingGeometry, String> {
    let watermark = Watermark::ALL
        .into_iter()
        .find(|watermark| watermark.bytes(offer.ring_bytes) == offer.watermark_bytes)
        .ok_or_else(|| format!("the other host offers a watermark of {} B", offer.watermark_bytes))?;
    let chunk_bytes = u32::try_from(offer.chunk_bytes).map_err(|_| format!("a chunk of {} B", offer.chunk_bytes))?;
    let flow_control = if flow_control { FlowControl::On } else { FlowControl::Off };
    let RingOffer { ring_bytes, alignment, .. } = *offer;
    let integrity = link_integrity(offer.integrity);
    let options = RingOptions { ring_bytes, chunk_bytes, watermark, alignment, flow_control, integrity };
    RingGeometry::new(options).map_err(|error| error.to_string())
}

/// Fuzz entry: any bytes as the answer to a ring request. An offer that passes its check makes a link, and is safe to show.
pub fn fuzz_answer(data: &[u8]) -> bool {
    let Ok(answer) = text::from_json::<Result<RingOffer, RingRefusal>>(data) else { return false };
    let text = serde_json::to_vec(&answer).unwrap_or_default();
    assert!(text::from_json::<Result<RingOffer, RingRefusal>>(&text).is_ok_and(|again| again == answer));
    match answer.and_then(|offer| offer.check().map(|()| offer)) {
        Ok(offer) => {
            for flow_control in [true, false] {
                let made = geometry(&offer, flow_control);
                assert!(made.as_ref().is_ok_and(|made| made.ring_bytes() == offer.ring_bytes), "{offer:?}: {made:?}");
            }
            let _ = offer.rdma.as_ref().map(|ring| crate::rdma_devices::from_wire(&ring.end));
            true
        }
        Err(refusal) => {
            assert_eq!(text::plain(&refusal.to_string()), refusal.to_string());
            false
        }
    }
}

/// Connects to the ring at the first of its addresses that answers. `patience`: how long a record may take.
pub(crate) fn dial<T>(
    offer: &RingOffer,
    timeout: Duration,
    patience: Duration,
    connect: impl Fn(SocketAddr, LinkToken, TcpOptions) -> Result<T, ConnectError>,
) -> Result<T, String> {
    let mut why = "the other host offers no address".to_owned();
    let connect_timeout = (timeout / 4).max(Duration::from_millis(200));
    // The offer expires, too, however many addresses it has.
    let by = Instant::now() + 2 * timeout.max(connect_timeout);
    for address in offer.addresses.iter().take(16) {
        let Ok(address) = address.parse::<SocketAddr>() else { continue };
        // Over rdma the other host connects its queue pair before it answers: the kernel may look for the owner of an address for a second.
        let hello_timeout = if offer.rdma.is_some() { timeout } else { connect_timeout };
        if Instant::now() >= by {
            break;
        }
        let (dead_peer_timeout, send_timeout) = (timeout, patience);
        let options =
            TcpOptions { connect_timeout, hello_timeout, dead_peer_timeout, send_timeout, ..TcpOptions::default() };
        match connect(address, LinkToken(offer.token.0), options) {
            Ok(link) => return Ok(link),
            Err(error) => why = error.to_string(),
        }
    }
    Err(why)
}
