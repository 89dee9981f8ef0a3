//! Tests of grants on a device, for example Soft-RoCE.

use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rgaps_os::Mapping;

use crate::contract::WATCHDOG;
use crate::credit::CreditPair;
use crate::error::LinkError;
use crate::geometry::{RingOptions, Watermark};
use crate::link::{LandingPlace, LinkReceiver, LinkSender, Release, RingRecord};
use crate::position::Position;
use crate::rdma::grants::{GRANTS_MAX, Grant};
use crate::rdma::tests::{Noise, head, pair, send};
use crate::rdma::{RdmaReceiver, RdmaSender, TransferError};
use crate::record::{Flags, GrantNumber, MessageId, MessageName, RecordHeader, RecordSequence};

const BLOCK: u64 = 1 << 20;

/// A link, and a pool of blocks at its receiver.
struct Link {
    sender: RdmaSender,
    receiver: RdmaReceiver,
    pool: Arc<Mapping>,
}

fn link(blocks: u64) -> Link {
    let options = RingOptions { ring_bytes: 4 << 20, chunk_bytes: 200_000, ..RingOptions::default() };
    let (sender, receiver) = pair(options);
    assert_eq!(receiver.grants_max(), GRANTS_MAX, "the device has memory windows of type 2B");
    let pool = Arc::new(Mapping::anonymous(blocks * BLOCK).unwrap());
    pool.copy_in(0, &vec![0x5a; (blocks * BLOCK) as usize]).unwrap();
    Link { sender, receiver, pool }
}

impl Link {
    fn place(&self, block: u64) -> LandingPlace {
        LandingPlace { memory: self.pool.clone().into(), offset: block * BLOCK }
    }

    fn grant(&mut self, block: u64) -> GrantNumber {
        let place = self.place(block);
        self.receiver.grant(&place, BLOCK).unwrap().expect("a free slot")
    }

    fn block(&self, block: u64, bytes: u64) -> Vec<u8> {
        let mut read = vec![0; bytes as usize];
        self.pool.copy_out(block * BLOCK, &mut read).unwrap();
        read
    }

    /// Waits until the sender has seen a free grant.
    fn await_grant(&mut self) -> Grant {
        let start = Instant::now();
        loop {
            if let Some(grant) = self.sender.peek_grant() {
                return grant;
            }
            assert!(start.elapsed() < WATCHDOG, "no grant arrives");
            self.sender.progress().unwrap();
            // It posts a grant when its earlier writes have completed.
            assert_eq!(self.receiver.next(Duration::ZERO).unwrap(), None);
        }
    }

    /// The records of one message, released.
    fn receive(&mut self) -> Vec<RecordHeader> {
        let mut headers = Vec::new();
        loop {
            let record = self.next();
            let header = *record.header();
            headers.push(header);
            assert_eq!(self.receiver.release(record).unwrap(), Release::Intact);
            if header.ends_message() {
                return headers;
            }
        }
    }

    fn next(&mut self) -> RingRecord {
        self.receiver.next(WATCHDOG).unwrap().expect("a record")
    }

    /// What ends the sender's link.
    fn sender_error(&mut self) -> LinkError {
        let start = Instant::now();
        loop {
            assert!(start.elapsed() < WATCHDOG, "the device has refused nothing");
            if let Err(error) = self.sender.progress() {
                return error;
            }
            self.sender.wait(Duration::from_millis(100), &[]).unwrap();
        }
    }
}

#[test]
#[ignore = "needs an RDMA device (./dev test-rdma)"]
fn large_messages_land_in_granted_blocks_and_not_in_the_ring() {
    let mut link = link(4);
    let noise = Noise::new(BLOCK);
    let mut granted = (0..4).map(|block| link.grant(block)).collect::<Vec<_>>().into_iter();
    for (block, bytes) in [BLOCK, BLOCK - 1, BLOCK / 2, 600_001].into_iter().enumerate() {
        link.await_grant();
        let id = block as u64 + 1;
        send(&mut link.sender, id, noise.message(id, bytes)).unwrap();
        let grant = granted.next();
        loop {
            let record = link.next();
            let ends = record.header().ends_message();
            assert!(record.has_landed() && record.grant() == grant, "{record:?}");
            assert_eq!(link.receiver.release(record).unwrap(), Release::Intact);
            if ends {
                break;
            }
        }
        assert!(link.block(block as u64, bytes) == noise.message(id, bytes), "message {id} differs");
    }
    // Neither the chunks nor any other part of a message is in the ring.
    let memory = link.receiver.memory().clone();
    let mut ring = vec![0; memory.bytes() as usize];
    memory.mapping().copy_out(0, &mut ring).unwrap();
    let written = ring.iter().filter(|byte| **byte != 0).count();
    assert!(written < 20 * 100, "{written} B of the ring are written");
    link.sender.drain(WATCHDOG).unwrap_or_else(|error| panic!("all is acknowledged: {error}"));
}

#[test]
#[ignore = "needs an RDMA device (./dev test-rdma)"]
fn a_sender_that_writes_after_the_last_record_is_refused_by_the_device() {
    let mut link = link(1);
    link.grant(0);
    let grant = link.await_grant();
    let noise = Noise::new(BLOCK);
    send(&mut link.sender, 1, noise.message(1, BLOCK)).unwrap();
    assert!(link.receive().iter().all(|header| header.flags.contains(Flags::LANDED)));
    // The consumer has the message now, and publishes it.
    link.sender.write_to(grant.block, 0, &[0xff; 64], None).unwrap();
    assert_eq!(link.sender_error(), LinkError::Transfer(TransferError::RemoteAccess));
    assert!(link.block(0, BLOCK) == noise.message(1, BLOCK), "the published message has changed");
}

#[test]
#[ignore = "needs an RDMA device (./dev test-rdma)"]
fn a_window_ends_where_its_block_ends() {
    for (at, bytes) in [(BLOCK - 32, 64), (BLOCK, 64), (u64::MAX - 63, 64)] {
        let mut link = link(3);
        link.grant(1);
        let grant = link.await_grant();
        let beyond = crate::rdma::RemoteMemory { address: grant.block.address.wrapping_add(at), ..grant.block };
        link.sender.write_to(beyond, 0, &vec![0xff; bytes], None).unwrap();
        assert_eq!(link.sender_error(), LinkError::Transfer(TransferError::RemoteAccess), "at {at}");
        assert!(link.block(0, 3 * BLOCK).iter().all(|byte| *byte == 0x5a), "written at {at}");
    }
}

#[test]
#[ignore = "needs an RDMA device (./dev test-rdma)"]
fn without_a_grant_that_fits_a_message_goes_through_the_ring() {
    let mut link = link(2);
    let place = link.place(0);
    link.receiver.grant(&place, 100_000).unwrap().unwrap();
    link.await_grant();
    let noise = Noise::new(BLOCK);
    // Too small, so that the peer learns it; and a message that is not worth a grant.
    for (id, bytes) in [(1, 150_000), (2, 65_535)] {
        send(&mut link.sender, id, noise.message(id, bytes)).unwrap();
        assert!(link.receive().iter().all(|header| !header.flags.contains(Flags::LANDED)));
    }
    let returned = await_returned(&mut link);
    assert_eq!(returned, GrantNumber(1));
    link.grant(1);
    link.await_grant();
    for (id, bytes, lands) in [(3, 150_000, false), (4, BLOCK, true)] {
        send(&mut link.sender, id, noise.message(id, bytes)).unwrap();
        assert!(link.receive().iter().all(|header| header.flags.contains(Flags::LANDED) == lands), "{bytes} B");
    }
    assert!(link.block(1, BLOCK) == noise.message(4, BLOCK));
}

fn await_returned(link: &mut Link) -> GrantNumber {
    let start = Instant::now();
    loop {
        assert!(start.elapsed() < WATCHDOG, "the grant does not come back");
        link.sender.wait(Duration::from_millis(1), &[]).unwrap();
        link.sender.progress().unwrap();
        assert_eq!(link.receiver.next(Duration::from_millis(1)).unwrap(), None);
        if let Some(number) = link.receiver.next_returned() {
            return number;
        }
    }
}

#[test]
#[ignore = "needs an RDMA device (./dev test-rdma)"]
fn a_revoked_grant_comes_back_and_can_no_longer_be_written() {
    let mut link = link(1);
    link.grant(0);
    let grant = link.await_grant();
    link.receiver.revoke_grants();
    link.receiver.revoke_grants();
    assert_eq!(await_returned(&mut link), grant.number);
    assert_eq!(link.receiver.next_returned(), None);
    assert_eq!(link.sender.peek_grant(), None);
    let noise = Noise::new(BLOCK);
    send(&mut link.sender, 1, noise.message(1, BLOCK)).unwrap();
    assert!(link.receive().iter().all(|header| !header.flags.contains(Flags::LANDED)));
    link.sender.write_to(grant.block, 0, &[0xff; 64], None).unwrap();
    assert_eq!(link.sender_error(), LinkError::Transfer(TransferError::RemoteAccess));
}

#[test]
#[ignore = "needs an RDMA device (./dev test-rdma)"]
fn a_grant_that_a_message_uses_is_not_returned_when_it_is_revoked() {
    let mut link = link(1);
    link.grant(0);
    let grant = link.await_grant();
    let noise = Noise::new(BLOCK);
    let message = noise.message(1, BLOCK);
    let head = head(1, BLOCK);
    assert_eq!(link.sender.post(&[head.first(b"meta", &message[..100_000])]).unwrap(), 1);
    link.receiver.revoke_grants();
    let first = link.next();
    assert_eq!(first.grant(), Some(grant.number));
    let mut envelope = [0; 4];
    link.receiver.copy_out(&first, 0, &mut envelope).unwrap();
    assert_eq!(&envelope, b"meta");
    assert_eq!(link.receiver.release(first).unwrap(), Release::Intact);
    for at in (100_000..BLOCK as usize).step_by(100_000) {
        let part = &message[at..(at + 100_000).min(BLOCK as usize)];
        link.sender.wait_for_room(part.len() as u32, WATCHDOG).unwrap();
        assert_eq!(link.sender.post(&[head.part(at as u64, part)]).unwrap(), 1);
        let record = link.next();
        assert_eq!(record.grant(), Some(grant.number));
        assert_eq!(link.receiver.release(record).unwrap(), Release::Intact);
    }
    assert!(link.block(0, BLOCK) == message);
    assert_eq!(link.receiver.next_returned(), None);
}

#[test]
#[ignore = "needs an RDMA device (./dev test-rdma)"]
fn the_grant_of_an_aborted_message_ends_with_its_abort() {
    let mut link = link(1);
    link.grant(0);
    let grant = link.await_grant();
    let noise = Noise::new(BLOCK);
    let head = head(1, BLOCK);
    assert_eq!(link.sender.post(&[head.first(b"", &noise.0[..100_000]), head.abort(100_000)]).unwrap(), 2);
    assert_eq!(link.receive().len(), 2);
    link.sender.write_to(grant.block, 0, &[0xff; 64], None).unwrap();
    assert_eq!(link.sender_error(), LinkError::Transfer(TransferError::RemoteAccess));
    // The slot is free for another grant: with a link that lives.
    let mut link = self::link(1);
    for id in 1..=3 * GRANTS_MAX as u64 {
        let number = link.grant(0);
        assert_eq!(link.await_grant().number, number);
        send(&mut link.sender, id, noise.message(id, 570_000)).unwrap();
        assert!(link.receive().iter().all(|header| header.flags.contains(Flags::LANDED)));
        assert!(link.block(0, 570_000) == noise.message(id, 570_000));
    }
}

#[test]
#[ignore = "needs an RDMA device (./dev test-rdma)"]
fn a_record_in_memory_that_is_not_granted_to_it_ends_the_link() {
    let landed = |record: u64, message: u64, total: u64, number: u64| {
        let header = RecordHeader {
            flags: Flags::FIRST.with(Flags::LANDED),
            record: RecordSequence(record),
            message: MessageId(message),
            name: MessageName { publisher: 1, sequence: message },
            offset: 0,
            total,
            payload_bytes: 1000,
            envelope_bytes: 0,
        };
        [&header.encode()[..], &number.to_le_bytes()].concat()
    };
    let told = |tell: &mut dyn FnMut(&mut RdmaSender)| {
        let mut link = link(2);
        link.grant(0);
        link.grant(1);
        tell(&mut link.sender);
        let error = loop {
            match link.receiver.next(WATCHDOG) {
                Ok(record) => drop(record.expect("a record or an error")),
                Err(error) => break error,
            }
        };
        assert!(error.is_protocol_violation(), "{error}");
        error.to_string()
    };
    for number in [0, 3, 1 << 40] {
        let text = told(&mut |sender| sender.write_raw(0, &landed(0, 1, 2000, number), Some(0)).unwrap());
        assert!(text.contains("which is not granted to it"), "{text}");
    }
    let text = told(&mut |sender| sender.write_raw(0, &landed(0, 1, BLOCK + 1, 1), Some(0)).unwrap());
    assert!(text.contains("which has 1048576 B"), "{text}");
    // Two messages in one block, and one message in two.
    for (message, number) in [(2, 1), (1, 2)] {
        let text = told(&mut |sender| {
            sender.write_raw(0, &landed(0, 1, 2000, 1), Some(0)).unwrap();
            // A record takes as much of the ring as if its data were there.
            let second = sender.geometry().record_bytes(1000);
            sender.write_raw(second, &landed(1, message, 2000, number), Some(1)).unwrap();
        });
        assert!(text.contains("which is not granted to it"), "{text}");
    }
}

#[test]
#[ignore = "needs an RDMA device (./dev test-rdma)"]
fn messages_of_all_sizes_arrive_whole_by_grant_or_by_ring() {
    let options = RingOptions {
        ring_bytes: 256 << 10,
        chunk_bytes: 40_000,
        watermark: Watermark::Eighth,
        ..RingOptions::default()
    };
    let (mut sender, mut receiver) = pair(options);
    let count = if std::env::var_os("RDMA_VM").is_some() { 600 } else { 100 };
    let sizes: Vec<u64> = (1..=count).map(|id: u64| 1 + id * id * 7919 % 300_000).collect();
    let noise = Noise::new(300_000);
    let expected = Noise::new(300_000);
    let pool = Arc::new(Mapping::anonymous(16 * BLOCK).unwrap());
    let landed = std::thread::scope(|scope| {
        let sent = sizes.clone();
        scope.spawn(move || {
            for (id, bytes) in (1..).zip(sent) {
                send(&mut sender, id, noise.message(id, bytes)).unwrap();
            }
            sender.drain(WATCHDOG).unwrap();
            sender.close();
            sender.counters()
        });
        let (mut blocks, mut granted): (Vec<u64>, Vec<(GrantNumber, u64)>) = ((0..16).collect(), Vec::new());
        let mut landed = 0;
        for (id, bytes) in (1..).zip(sizes) {
            let mut whole = vec![0; bytes as usize];
            let mut block = None;
            loop {
                while granted.len() < 3 {
                    let place = LandingPlace { memory: pool.clone().into(), offset: blocks[0] * BLOCK };
                    // Too small for some, so that grants are returned.
                    let size = if id % 5 == 0 { 100_000 } else { 300_000 };
                    let Some(number) = receiver.grant(&place, size).unwrap() else { break };
                    granted.push((number, blocks.remove(0)));
                }
                if id % 50 == 0 {
                    receiver.revoke_grants();
                }
                let record = receiver.next(WATCHDOG).unwrap().expect("the sender goes on");
                while let Some(number) = receiver.next_returned() {
                    let at = granted.iter().position(|(known, _)| *known == number).unwrap();
                    blocks.push(granted.remove(at).1);
                }
                let header = *record.header();
                assert_eq!(header.message, MessageId(id));
                if let Some(number) = record.grant()
                    && let Some(at) = granted.iter().position(|(known, _)| *known == number)
                {
                    block = Some(granted.remove(at).1);
                    landed += 1;
                }
                let part = &mut whole[header.offset as usize..][..header.data_bytes() as usize];
                match record.has_landed() {
                    true => pool.copy_out(block.unwrap() * BLOCK + header.offset, part).unwrap(),
                    false => receiver.copy_out(&record, 0, part).unwrap(),
                }
                assert_eq!(receiver.release(record).unwrap(), Release::Intact);
                if header.ends_message() {
                    break;
                }
            }
            blocks.extend(block);
            assert!(whole == expected.message(id, bytes), "message {id} of {bytes} B differs");
        }
        landed
    });
    assert!(landed > count / 4, "{landed} of {count} messages have landed");
    println!("{landed} of {count} messages have landed");
}

#[test]
#[ignore = "needs an RDMA device (./dev test-rdma)"]
fn a_window_of_a_block_that_does_not_begin_and_end_on_a_page_ends_with_it() {
    // The blocks of a pool are aligned to 256 B.
    let (offset, bytes) = (BLOCK + 256, 70_144);
    for at in [bytes, u64::MAX - 63] {
        let mut link = link(3);
        let place = LandingPlace { memory: link.pool.clone().into(), offset };
        link.receiver.grant(&place, bytes).unwrap().unwrap();
        let grant = link.await_grant();
        let beyond = crate::rdma::RemoteMemory { address: grant.block.address.wrapping_add(at), ..grant.block };
        link.sender.write_to(beyond, 0, &[0xff; 64], None).unwrap();
        let start = Instant::now();
        let mut refused = false;
        while !refused && start.elapsed() < Duration::from_secs(3) {
            refused = link.sender.progress().is_err();
            std::thread::yield_now();
        }
        let changed = link.block(0, 3 * BLOCK).iter().filter(|byte| **byte != 0x5a).count();
        assert!(refused && changed == 0, "at {at}: refused {refused}, {changed} B of the neighbours are overwritten");
    }
}

/// A wire that is slowed down, in the virtual machine, until this is dropped.
struct Delay;

impl Delay {
    fn of(delay: &str) -> Self {
        Self::tc(&format!("qdisc add dev wire_a root netem delay {delay}"));
        Self
    }

    fn tc(words: &str) {
        assert!(Command::new("tc").args(words.split(' ')).status().unwrap().success(), "tc {words}");
    }
}

impl Drop for Delay {
    fn drop(&mut self) {
        Self::tc("qdisc del dev wire_a root");
    }
}

/// Sends a message by a grant, and waits until the receiver's device has it all.
fn send_by_grant(link: &mut Link, noise: &Noise) -> GrantNumber {
    let number = link.grant(0);
    link.await_grant();
    send(&mut link.sender, 1, noise.message(1, BLOCK / 2 + 1)).unwrap();
    while link.sender.progress().unwrap().reusable.0 < link.sender.counters().records {
        link.sender.wait(Duration::from_millis(1), &[]).unwrap();
    }
    number
}

#[test]
#[ignore = "needs the virtual machine of ./dev test-rdma"]
fn the_last_message_of_a_sender_that_closes_is_returned_before_the_end() {
    let noise = Noise::new(BLOCK);
    let mut link = link(2);
    send_by_grant(&mut link, &noise);
    link.sender.close();
    // The invalidation completes after an earlier write, which takes a round trip.
    let delay = Delay::of("50ms");
    link.receiver.lie(CreditPair::new(Position::START)).unwrap();
    while !link.next().header().ends_message() {}
    drop(delay);
    assert!(matches!(link.receiver.next(WATCHDOG), Err(LinkError::Closed { by_peer: true })));
}

#[test]
#[ignore = "needs the virtual machine of ./dev test-rdma"]
fn the_last_record_is_returned_only_when_its_window_is_invalid() {
    let noise = Noise::new(BLOCK);
    let mut link = link(2);
    let number = send_by_grant(&mut link, &noise);
    let _delay = Delay::of("200ms");
    link.receiver.lie(CreditPair::new(Position::START)).unwrap();
    while !link.next().header().ends_message() {}
    assert!(!link.receiver.is_granted(number));
}

#[test]
#[ignore = "needs an RDMA device (./dev test-rdma)"]
fn a_grant_that_is_returned_while_a_message_uses_it_stays_in_use() {
    let mut link = link(1);
    let number = link.grant(0);
    link.await_grant();
    let noise = Noise::new(BLOCK);
    let head = head(1, BLOCK);
    assert_eq!(link.sender.post(&[head.first(b"", &noise.0[..100_000])]).unwrap(), 1);
    assert_eq!(link.next().grant(), Some(number));
    link.sender.return_grant(number).unwrap();
    for _ in 0..3 {
        assert_eq!(link.receiver.next(Duration::from_millis(10)).unwrap(), None);
    }
    assert_eq!((link.receiver.next_returned(), link.receiver.is_granted(number)), (None, true));
}

#[test]
#[ignore = "needs the virtual machine of ./dev test-rdma"]
fn grants_work_though_acknowledgements_are_so_late_that_writes_are_sent_again() {
    let noise = Noise::new(BLOCK);
    let mut link = link(3);
    // Longer than the device waits before it sends a write once more.
    let _delay = Delay::of("350ms");
    for block in 0..3 {
        link.grant(block);
    }
    for id in 1..=3 {
        let start = Instant::now();
        while link.sender.peek_grant().is_none() {
            assert!(start.elapsed() < WATCHDOG, "grant {id} does not arrive");
            assert_eq!(link.receiver.next(Duration::from_millis(10)).unwrap(), None);
        }
        send(&mut link.sender, id, noise.message(id, BLOCK)).unwrap();
        assert!(link.receive().iter().all(|header| header.flags.contains(Flags::LANDED)), "message {id}");
        assert!(link.block(id - 1, BLOCK) == noise.message(id, BLOCK), "message {id} differs");
    }
    link.sender.drain(WATCHDOG).unwrap_or_else(|error| panic!("all is acknowledged: {error}"));
}

#[test]
#[ignore = "needs the virtual machine of ./dev test-rdma"]
fn a_grant_that_is_revoked_before_its_window_is_bound_comes_back_at_once() {
    let mut link = link(2);
    let _delay = Delay::of("100ms");
    let (bound, waiting) = (link.grant(0), link.grant(1));
    link.receiver.revoke_grants();
    assert_eq!(link.receiver.next_returned(), Some(waiting));
    assert!(!link.receiver.is_granted(waiting));
    let start = Instant::now();
    while link.receiver.next_returned() != Some(bound) {
        assert!(start.elapsed() < WATCHDOG, "it does not come back");
        link.sender.progress().unwrap();
        link.sender.wait(Duration::from_millis(10), &[]).unwrap();
    }
}
