//! LZF, the compression of binary_compressed PCD files: literal runs and references into the last 8 KiB, without checksum.

/// A reference of 3 input bytes expands to at most 264 bytes, which bounds the ratio of the compression.
const EXPANSION_MAX: usize = 264;

/// Decompresses to exactly `bytes` bytes; `None` if the input is damaged or has another length.
pub(super) fn decompress(compressed: &[u8], bytes: usize) -> Option<Vec<u8>> {
    if bytes > compressed.len().checked_mul(EXPANSION_MAX)? {
        return None;
    }
    let mut out: Vec<u8> = Vec::with_capacity(bytes);
    let mut input = compressed;
    while let Some((&control, rest)) = input.split_first() {
        input = if control < 32 {
            let (literals, rest) = rest.split_at_checked(usize::from(control) + 1)?;
            out.extend_from_slice(literals);
            rest
        } else {
            refer_back(control, rest, &mut out, bytes)?
        };
        if out.len() > bytes {
            return None;
        }
    }
    (out.len() == bytes).then_some(out)
}

/// Expands a reference; returns the input after it.
fn refer_back<'a>(control: u8, input: &'a [u8], out: &mut Vec<u8>, limit: usize) -> Option<&'a [u8]> {
    let (long, input) = match control >> 5 {
        7 => input.split_first()?,
        _ => (&0, input),
    };
    let (&low, input) = input.split_first()?;
    let length = usize::from(control >> 5) + usize::from(*long) + 2;
    let distance = (usize::from(control & 31) << 8 | usize::from(low)) + 1;
    let start = out.len().checked_sub(distance)?;
    if out.len() + length > limit {
        return None;
    }
    // A reference may overlap its own output, so it is copied byte by byte.
    for at in start..start + length {
        out.push(out[at]);
    }
    Some(input)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_references_and_overlapping_references_are_expanded() {
        assert_eq!(decompress(&[2, b'a', b'b', b'c'], 3).unwrap(), b"abc");
        assert_eq!(decompress(&[2, b'a', b'b', b'c', 1 << 5, 2], 6).unwrap(), b"abcabc");
        assert_eq!(decompress(&[0, b'x', 7 << 5, 255, 0], 265).unwrap(), [b'x'; 265]);
    }

    #[test]
    fn damaged_input_is_refused() {
        assert_eq!(decompress(&[2, b'a', b'b'], 3), None, "literals cut off");
        assert_eq!(decompress(&[0, b'a', 1 << 5], 4), None, "reference cut off");
        assert_eq!(decompress(&[0, b'a', 7 << 5, 1], 4), None, "long reference cut off");
        assert_eq!(decompress(&[0, b'a', 1 << 5, 1], 4), None, "reference before the start");
        assert_eq!(decompress(&[0, b'a', 7 << 5, 255, 0], 264), None, "longer than announced");
        assert_eq!(decompress(&[0, b'a'], 2), None, "shorter than announced");
        assert_eq!(decompress(&[0, b'a'], usize::MAX), None, "impossible length");
    }
}
