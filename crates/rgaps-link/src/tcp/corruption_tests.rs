//! Tests that a network that damages bytes ends a link with a clear error, and that no damaged byte is used.

use proptest::prelude::*;
use rgaps_testing::{Proxy, Swap, Toward};

use super::integrity::{SUM_BYTES, credit_frame, open_credit};
use super::tests::*;
use super::*;
use crate::contract::WATCHDOG;
use crate::credit::CreditPair;
use crate::error::LinkError;
use crate::geometry::{Integrity, RingGeometry, RingOptions, Watermark};
use crate::link::{LinkReceiver, LinkSender};
use crate::position::Position;
use crate::record::{HEADER_BYTES, MessageHead, MessageId, MessageName};

/// Both ends of a link through a proxy.
fn through_a_proxy(options: RingOptions) -> (TcpSender, TcpReceiver, Proxy) {
    let listener = listener();
    let setup = setup(options, TcpOptions::default());
    let (geometry, proxy) = (setup.geometry, Proxy::new(listener.address()).unwrap());
    let accept = std::thread::spawn(move || listener.accept_ring(TOKEN, &setup, WATCHDOG).unwrap());
    let sender = TcpSender::connect(proxy.address(), TOKEN, geometry, TcpOptions::default()).unwrap();
    (sender, accept.join().unwrap(), proxy)
}

/// If the same two words are swapped in a head and in its complement, the pair is still whole; only the sum detects the damage.
#[test]
fn a_credit_with_swapped_words_acknowledges_nothing() {
    let options =
        RingOptions { ring_bytes: 128 << 10, chunk_bytes: 9920, watermark: Watermark::Zero, ..RingOptions::default() };
    let (mut sender, mut arrivals, proxy) = through_a_proxy(options);
    let data = vec![7; 9920];
    let heads =
        [1, 2, 3, 4, 5, 6].map(|id| MessageHead { id: MessageId(id), name: MessageName::default(), total: 9920 });
    assert_eq!(sender.post(&heads.map(|head| head.first(b"", &data))).unwrap(), 6);
    proxy.order(Swap { toward: Toward::Caller, after: 0, apart: 8 });
    let record = arrivals.next(WATCHDOG).unwrap().unwrap();
    let _ = arrivals.release(record).unwrap();
    let error = loop {
        match sender.progress() {
            Ok(progress) if progress.delayed_head.value() > 0 => break None,
            Ok(_) => drop(sender.wait(WATCHDOG, &[]).unwrap()),
            Err(error) => break Some(error),
        }
    };
    let acknowledged: Vec<MessageId> = std::iter::from_fn(|| sender.next_acknowledged()).collect();
    assert_eq!(acknowledged, [], "the only credit is damaged");
    assert!(matches!(error, Some(LinkError::Corrupt { what: "a credit", .. })), "{error:?}");
    assert_eq!(sender.counters().corrupt, 1);
}

#[test]
fn damage_to_any_byte_of_a_record_ends_the_link() {
    let whole = record_bytes(0, 1, 100, &[1; 20]);
    for at in 0..whole.len() {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x10;
        // The peer stays connected: the receiver must not wait for a damaged length.
        let (error, _, mut arrivals) = read_over(&bytes, small(), TcpOptions::default(), false);
        let expected = if at < HEADER_BYTES + SUM_BYTES { "a record's header" } else { "a record" };
        assert!(matches!(error, LinkError::Corrupt { what, .. } if what == expected), "byte {at}: {error}");
        assert_eq!((arrivals.next(WATCHDOG), arrivals.counters().corrupt), (Err(error), 1), "byte {at}");
    }
}

#[test]
fn damage_to_any_byte_of_a_credit_ends_the_link() {
    let (whole, bytes) = credit_frame(CreditPair::new(Position::new(128)), Integrity::Crc32c);
    assert_eq!(open_credit(&whole, Integrity::Crc32c).unwrap(), CreditPair::new(Position::new(128)));
    for at in 0..bytes {
        let mut frame = whole;
        frame[at] ^= 0x10;
        let error = open_credit(&frame, Integrity::Crc32c).unwrap_err();
        assert!(matches!(error, LinkError::Corrupt { what: "a credit", .. }), "byte {at}: {error}");
    }
}

/// Damages the first, a middle and the last piece that the sender sums.
#[test]
fn a_large_record_with_swapped_words_anywhere_never_arrives() {
    for after in [100, 300 << 10, (1 << 20) - 200] {
        let (mut sender, mut arrivals, proxy) = through_a_proxy(RingOptions::default());
        let data: Vec<u8> = (0..(1 << 20) - 64_u32).map(|i| (i * 7 + (i >> 8)) as u8).collect();
        let head = |id| MessageHead { id: MessageId(id), name: MessageName::default(), total: data.len() as u64 };
        assert_eq!(sender.post(&[head(1).first(b"", &data)]).unwrap(), 1);
        let record = arrivals.next(WATCHDOG).unwrap().unwrap();
        assert!(payload(&arrivals, &record) == data);
        proxy.order(Swap { toward: Toward::Listener, after, apart: 2 });
        assert_eq!(sender.post(&[head(2).first(b"", &data)]).unwrap(), 1);
        let error = arrivals.next(WATCHDOG).unwrap_err();
        assert!(matches!(error, LinkError::Corrupt { what: "a record", .. }), "after {after} B: {error}");
    }
}

#[test]
fn without_integrity_swapped_words_arrive_as_they_are() {
    let (mut sender, mut arrivals, proxy) =
        through_a_proxy(RingOptions { integrity: Integrity::None, ..RingOptions::default() });
    proxy.order(Swap { toward: Toward::Listener, after: 64, apart: 2 });
    let head = MessageHead { id: MessageId(1), name: MessageName::default(), total: 8 };
    sender.post(&[head.first(b"", b"abcdefgh")]).unwrap();
    let record = arrivals.next(WATCHDOG).unwrap().unwrap();
    assert_eq!(payload(&arrivals, &record), b"cdabefgh");
}

/// One side has sums and the other has none.
#[test]
fn a_ring_with_another_integrity_is_refused() {
    let listener = listener();
    let setup = setup(small(), TcpOptions::default());
    let address = listener.address();
    let accept = std::thread::spawn(move || listener.accept_ring(TOKEN, &setup, WATCHDOG).map(|_| ()));
    let other = RingGeometry::new(RingOptions { integrity: Integrity::None, ..small() }).unwrap();
    let error = TcpSender::connect(address, TOKEN, other, TcpOptions::default()).unwrap_err();
    assert!(matches!(error, ConnectError::OtherGeometry { .. }) && error.to_string().contains("Crc32c"), "{error}");
    accept.join().unwrap().unwrap_err();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    /// Damages up to 32 contiguous bits, or swaps two words, at any place: every record delivered before that is whole.
    #[test]
    fn no_damaged_record_is_delivered(
        sizes in prop::collection::vec(0_usize..300, 1..6), at in any::<prop::sample::Index>(),
        flip in 1_u32.., swap in any::<bool>(),
    ) {
        let contents: Vec<Vec<u8>> = sizes.iter().map(|bytes| (0..*bytes).map(|i| (i * 31 + bytes) as u8).collect()).collect();
        let records = contents.iter().zip(0..);
        let whole: Vec<u8> = records.flat_map(|(data, i)| record_bytes(i, i + 1, data.len() as u64, data)).collect();
        let mut bytes = whole.clone();
        let at = at.index(bytes.len() - 3);
        if swap {
            bytes[at..at + 4].rotate_left(2);
        } else {
            bytes[at..at + 4].iter_mut().zip(flip.to_le_bytes()).for_each(|(byte, flip)| *byte ^= flip);
        }
        let (error, records, arrivals) = read_over(&bytes, small(), TcpOptions::default(), true);
        let is_corrupt = matches!(error, LinkError::Corrupt { .. });
        prop_assert_eq!(is_corrupt, bytes != whole, "{}", error);
        for (record, content) in records.iter().zip(&contents) {
            prop_assert_eq!(&payload(&arrivals, record), content);
        }
        prop_assert!(!is_corrupt || records.len() < contents.len());
    }
}

/// Runs the contract on links without sums.
mod without_sums {
    use std::any::Any;

    use super::*;
    use crate::contract::{Fixture, Pair};
    use crate::credit::CreditPair;

    struct LoopbackWithoutSums;

    fn without(options: RingOptions) -> RingOptions {
        RingOptions { integrity: Integrity::None, ..options }
    }

    impl Fixture for LoopbackWithoutSums {
        fn pair(&self, options: RingOptions) -> Pair {
            Loopback.pair(without(options))
        }

        fn sender_with_lying_peer(
            &self,
            options: RingOptions,
            lie: CreditPair,
        ) -> (Box<dyn LinkSender>, Box<dyn Any + Send>) {
            Loopback.sender_with_lying_peer(without(options), lie)
        }
    }

    crate::contract_suite!(LoopbackWithoutSums);
    crate::contract_suite!(LoopbackWithoutSums, without_flow_control);
}
