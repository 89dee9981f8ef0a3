//! The hello: the first 64 bytes each way on a data connection, with the ring's token and shape. Other peers are refused here.
//!
//! ```text
//!  0 magic "RGLH"   4 version u16   6 verdict u16 (0 in a hello)    8 token 16 B
//! 24 ring bytes u64   32 chunk u32   36 watermark u32   40 alignment u32   44 flow control u32
//! 48 integrity u32 (0 CRC32C, 1 none)   52 zero   60 CRC32C of all before
//! ```
//!
//! The hello always has a sum. Both sides must state the same integrity and shape.
//! The hosts agree on the token over the control plane. It is valid for one ring, and no secret from an attacker who reads the network.

use crate::geometry::{FlowControl, GeometryError, Integrity, RingGeometry, RingOptions, Watermark};
use crate::tcp::integrity;

/// Bytes of a hello and of its answer.
pub const HELLO_BYTES: usize = 64;
const MAGIC: u32 = u32::from_le_bytes(*b"RGLH");
/// The version of hello, records and credit on a tcp link.
const VERSION: u16 = 2;
/// Offset of its sum.
const SUM_AT: usize = 60;

/// Identifies one ring to its listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LinkToken(pub [u8; 16]);

impl LinkToken {
    /// Creates a random token.
    pub fn random() -> std::io::Result<Self> {
        rgaps_os::random().map(Self)
    }
}

/// A listener's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The sender may send records.
    Accepted,
    /// No ring waits for that token.
    UnknownToken,
    /// The ring has another shape, which is in the answer.
    OtherGeometry,
    /// The listener has another protocol version.
    OtherVersion,
}

/// Why bytes are no valid hello.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HelloError {
    /// Not from RGAPS.
    #[error("hello has magic {found:#010x} instead of {MAGIC:#010x}; the peer is not RGAPS")]
    Magic {
        /// What was found.
        found: u32,
    },
    /// Another version.
    #[error("hello has version {found}, this side has {VERSION}; run the same release of RGAPS on both hosts")]
    Version {
        /// What was found.
        found: u16,
    },
    /// The network damaged it.
    #[error("hello was damaged by the network: its CRC32C is {found:#010x}, but {sent:#010x} was sent; connect again")]
    Corrupt {
        /// The sum that was sent with it.
        sent: u32,
        /// The sum of the received bytes.
        found: u32,
    },
    /// A hello with a verdict, an answer without one, or an unknown code.
    #[error("hello has the invalid verdict {found}")]
    Verdict {
        /// What was found.
        found: u16,
    },
    /// A field out of its range.
    #[error("hello has the invalid {field} {found}")]
    Field {
        /// The field.
        field: &'static str,
        /// What was found.
        found: u32,
    },
    /// The shape is invalid.
    #[error("hello has an invalid ring shape: {0}")]
    Geometry(#[from] GeometryError),
}

/// A hello (`verdict` is `None`) or its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The ring's token.
    pub token: LinkToken,
    /// The ring's shape, as the sender of this hello knows it.
    pub geometry: RingGeometry,
    /// The listener's answer.
    pub verdict: Option<Verdict>,
}

impl Hello {
    /// Encodes it for the wire.
    pub fn encode(&self) -> [u8; HELLO_BYTES] {
        let mut bytes = [0; HELLO_BYTES];
        let options = self.geometry.options();
        bytes[0..4].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[4..6].copy_from_slice(&VERSION.to_le_bytes());
        bytes[6..8].copy_from_slice(&verdict_code(self.verdict).to_le_bytes());
        bytes[8..24].copy_from_slice(&self.token.0);
        bytes[24..32].copy_from_slice(&options.ring_bytes.to_le_bytes());
        bytes[32..36].copy_from_slice(&options.chunk_bytes.to_le_bytes());
        bytes[36..40].copy_from_slice(&options.watermark.code().to_le_bytes());
        bytes[40..44].copy_from_slice(&options.alignment.to_le_bytes());
        bytes[44..48].copy_from_slice(&u32::from(options.flow_control == FlowControl::Off).to_le_bytes());
        bytes[48..52].copy_from_slice(&u32::from(options.integrity == Integrity::None).to_le_bytes());
        seal(&mut bytes);
        bytes
    }

    /// Decodes and checks a hello.
    pub fn decode(bytes: &[u8; HELLO_BYTES]) -> Result<Self, HelloError> {
        let u16_at = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let u32_at = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        if u32_at(0) != MAGIC {
            return Err(HelloError::Magic { found: u32_at(0) });
        }
        if u16_at(4) != VERSION {
            return Err(HelloError::Version { found: u16_at(4) });
        }
        let (sent, found) = (u32_at(SUM_AT), integrity::sum(&bytes[..SUM_AT]));
        if sent != found {
            return Err(HelloError::Corrupt { sent, found });
        }
        let field = |field, at| HelloError::Field { field, found: u32_at(at) };
        let flow_control = match u32_at(44) {
            0 => FlowControl::On,
            1 => FlowControl::Off,
            _ => return Err(field("flow control", 44)),
        };
        let integrity = match u32_at(48) {
            0 => Integrity::Crc32c,
            1 => Integrity::None,
            _ => return Err(field("integrity", 48)),
        };
        if let Some(at) = (52..SUM_AT).step_by(4).find(|at| u32_at(*at) != 0) {
            return Err(field("reserved field", at));
        }
        let geometry = RingGeometry::new(RingOptions {
            ring_bytes: u64::from_le_bytes(std::array::from_fn(|i| bytes[24 + i])),
            chunk_bytes: u32_at(32),
            watermark: Watermark::from_code(u32_at(36)).ok_or_else(|| field("watermark", 36))?,
            alignment: u32_at(40),
            flow_control,
            integrity,
        })?;
        let token = LinkToken(std::array::from_fn(|i| bytes[8 + i]));
        Ok(Self { token, geometry, verdict: verdict_of(u16_at(6))? })
    }
}

fn seal(bytes: &mut [u8; HELLO_BYTES]) {
    let sum = integrity::sum(&bytes[..SUM_AT]);
    bytes[SUM_AT..].copy_from_slice(&sum.to_le_bytes());
}

fn verdict_code(verdict: Option<Verdict>) -> u16 {
    match verdict {
        None => 0,
        Some(Verdict::Accepted) => 1,
        Some(Verdict::UnknownToken) => 2,
        Some(Verdict::OtherGeometry) => 3,
        Some(Verdict::OtherVersion) => 4,
    }
}

fn verdict_of(code: u16) -> Result<Option<Verdict>, HelloError> {
    Ok(match code {
        0 => None,
        1 => Some(Verdict::Accepted),
        2 => Some(Verdict::UnknownToken),
        3 => Some(Verdict::OtherGeometry),
        4 => Some(Verdict::OtherVersion),
        found => return Err(HelloError::Verdict { found }),
    })
}

/// Fuzz entry: any bytes as a hello, with their own sum and with the right one. An accepted hello encodes to the same bytes.
pub fn fuzz_hello(data: &[u8]) -> bool {
    let Some(bytes) = data.first_chunk::<HELLO_BYTES>() else { return false };
    let mut sealed = *bytes;
    seal(&mut sealed);
    let mut is_accepted = false;
    for bytes in [bytes, &sealed] {
        if let Ok(hello) = Hello::decode(bytes) {
            assert_eq!(&hello.encode(), bytes);
            is_accepted = true;
        }
    }
    is_accepted
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello() -> Hello {
        let geometry = RingGeometry::new(RingOptions::default()).unwrap();
        Hello { token: LinkToken([7; 16]), geometry, verdict: Some(Verdict::OtherGeometry) }
    }

    #[test]
    fn a_hello_survives_the_wire() {
        assert_eq!(Hello::decode(&hello().encode()), Ok(hello()));
    }

    #[test]
    fn foreign_magic_and_invalid_fields_are_named() {
        let with = |at: usize, byte: u8| {
            let mut bytes = hello().encode();
            bytes[at] = byte;
            seal(&mut bytes);
            Hello::decode(&bytes).unwrap_err()
        };
        assert!(matches!(Hello::decode(&[b'G'; 64]), Err(HelloError::Magic { .. })));
        assert!(matches!(with(4, 9), HelloError::Version { found: 9 }));
        assert!(matches!(with(6, 9), HelloError::Verdict { found: 9 }));
        assert!(matches!(with(36, 9), HelloError::Field { field: "watermark", .. }));
        assert!(matches!(with(44, 2), HelloError::Field { field: "flow control", .. }));
        assert!(matches!(with(48, 2), HelloError::Field { field: "integrity", .. }));
        assert!(matches!(with(56, 1), HelloError::Field { field: "reserved field", .. }));
        assert!(matches!(with(31, 1), HelloError::Geometry(_)));
    }

    #[test]
    fn damage_to_any_byte_of_a_hello_is_an_error() {
        let whole = hello().encode();
        for at in 0..HELLO_BYTES {
            let mut bytes = whole;
            bytes[at] ^= 0x40;
            let error = Hello::decode(&bytes).unwrap_err();
            let named = match at {
                0..4 => matches!(error, HelloError::Magic { .. }),
                4..6 => matches!(error, HelloError::Version { .. }),
                _ => matches!(error, HelloError::Corrupt { .. }),
            };
            assert!(named, "byte {at}: {error}");
        }
    }
}
