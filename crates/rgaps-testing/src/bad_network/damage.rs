//! Damage to a frame: a flipped bit, which the kernel's checksums detect, and swapped words, which they do not.

use super::line::Random;

/// Bytes of the Ethernet header, before the IP packet.
pub const ETHERNET_BYTES: usize = 14;
const IPV4: [u8; 2] = [8, 0];
const TCP: u8 = 6;

/// Flips a bit after the Ethernet header. False if there is none.
pub(super) fn flip(frame: &mut [u8], random: &mut Random) -> bool {
    let Some(packet) = frame.get_mut(ETHERNET_BYTES..).filter(|packet| !packet.is_empty()) else { return false };
    let bit = random.below(packet.len() as u64 * 8);
    packet[(bit / 8) as usize] ^= 1 << (bit % 8);
    true
}

/// Swaps two different words of a TCP payload, which keeps its checksum valid. False if there are none.
pub(super) fn swap(frame: &mut [u8], random: &mut Random) -> bool {
    let Some(payload) = tcp_payload(frame) else { return false };
    // The header has a multiple of four bytes, so words of the payload are words of the checksum.
    let words = (frame.len() - payload) / 2;
    let word = |frame: &[u8], index: usize| [frame[payload + 2 * index], frame[payload + 2 * index + 1]];
    let first = random.below(words as u64) as usize;
    let Some(second) = (first + 1..words).chain(0..first).find(|index| word(frame, *index) != word(frame, first))
    else {
        return false;
    };
    for byte in 0..2 {
        frame.swap(payload + 2 * first + byte, payload + 2 * second + byte);
    }
    true
}

/// Where the payload of a TCP segment over IPv4 begins.
fn tcp_payload(frame: &[u8]) -> Option<usize> {
    let packet = frame.get(ETHERNET_BYTES..)?;
    if frame[12..ETHERNET_BYTES] != IPV4 || *packet.get(9)? != TCP {
        return None;
    }
    let header = usize::from(packet[0] & 15) * 4;
    let payload = ETHERNET_BYTES + header + usize::from(packet.get(header + 12)? >> 4) * 4;
    (payload < frame.len()).then_some(payload)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An IPv4 packet without options, with a TCP header of 20 bytes.
    fn segment(payload: &[u8]) -> Vec<u8> {
        let mut frame = vec![0; ETHERNET_BYTES + 40];
        frame[12..14].copy_from_slice(&IPV4);
        frame[ETHERNET_BYTES] = 0x45;
        frame[ETHERNET_BYTES + 9] = TCP;
        frame[ETHERNET_BYTES + 32] = 5 << 4;
        [frame, payload.to_vec()].concat()
    }

    /// TCP's checksum, without the parts that do not change here.
    fn sum(frame: &[u8]) -> u64 {
        let words = frame[ETHERNET_BYTES + 20..].chunks(2);
        words.map(|word| u64::from(u16::from_be_bytes([word[0], *word.get(1).unwrap_or(&0)]))).sum::<u64>() % 0xffff
    }

    #[test]
    fn swapping_words_does_not_change_the_checksum() {
        let whole = segment(&[0, 1, 2, 3, 4, 5, 6, 7, 8]);
        for seed in 0..100 {
            let mut frame = whole.clone();
            assert!(swap(&mut frame, &mut Random::new(seed)));
            assert!(frame != whole && sum(&frame) == sum(&whole) && frame[..54] == whole[..54]);
        }
    }

    #[test]
    fn a_payload_of_equal_words_is_not_swapped() {
        let mut other = segment(&[1, 2, 3, 4]);
        other[ETHERNET_BYTES + 9] = 17;
        for frame in [segment(&[]), segment(&[1]), segment(&[1, 2, 1, 2]), other, vec![0; 20], Vec::new()] {
            let mut same = frame.clone();
            assert!(!swap(&mut same, &mut Random::new(1)) && same == frame);
        }
    }

    #[test]
    fn a_flipped_bit_changes_the_checksum() {
        for seed in 0..100 {
            let whole = segment(&[1, 2, 3, 4]);
            let mut frame = whole.clone();
            assert!(flip(&mut frame, &mut Random::new(seed)));
            let turned: u32 = frame.iter().zip(&whole).map(|(a, b)| (a ^ b).count_ones()).sum();
            assert!(turned == 1 && frame[..ETHERNET_BYTES] == whole[..ETHERNET_BYTES]);
        }
        assert!(!flip(&mut [0; ETHERNET_BYTES], &mut Random::new(1)));
    }
}
