//! Memory of a GPU over an RDMA device. No device that tests can use has both, so a memfd is the GPU's memory. Soft-RoCE registers no dma-buf: one test
//! shows its refusal, the others put a double in the place of that one call (`device_memory::double`). All else is the device's own.

use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rgaps_os::{Access, DmaBuf, Mapping, memfd};
use rustix::io::Errno;

use crate::contract::WATCHDOG;
use crate::error::LinkError;
use crate::geometry::RingOptions;
use crate::link::{LandingPlace, LinkReceiver, LinkSender, Release};
use crate::payload::Data;
use crate::rdma::device_memory::double;
use crate::rdma::tests::{Noise, candidates, head, pair};
use crate::rdma::{Domain, RdmaSender, TransferError, VerbsError};
use crate::record::RecordError;

const MIB: u64 = 1 << 20;
/// No address of this process: whatever is accessed there by mistake is an error.
const DEVICE_ADDRESS: u64 = 0x7_0000_0000_0000;

/// The double in its place, for one test at a time.
struct Double(#[expect(dead_code, reason = "held")] MutexGuard<'static, ()>);

static ONE: Mutex<()> = Mutex::new(());

impl Double {
    fn put_in_place() -> Self {
        let one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        double::put_in_place(true);
        Self(one)
    }
}

impl Drop for Double {
    fn drop(&mut self) {
        double::put_in_place(false);
    }
}

/// Memory of a GPU, and how a test sees it.
fn device_memory(bytes: u64, address: u64) -> (Arc<DmaBuf>, Mapping) {
    let fd = memfd::create("rgaps-test-gpu", bytes).unwrap();
    let seen = Mapping::map(fd.as_fd(), bytes, Access::ReadWrite).unwrap();
    (Arc::new(DmaBuf::new(fd, address, bytes)), seen)
}

fn ring() -> RingOptions {
    RingOptions { ring_bytes: 4 << 20, chunk_bytes: 200_000, ..RingOptions::default() }
}

/// Sends a message from memory of a device, chunk by chunk.
fn send(sender: &mut RdmaSender, id: u64, memory: &Arc<DmaBuf>, offset: u64, total: u64) -> Result<(), LinkError> {
    let head = head(id, total);
    let mut sent = 0;
    while sent < total {
        let bytes = (total - sent).min(200_000) as usize;
        let data = Data::Device { memory, offset: offset + sent, bytes };
        let record = if sent == 0 { head.first(&[], data) } else { head.part(sent, data) };
        sender.wait_for_room(bytes as u32, WATCHDOG)?;
        sent += if sender.post(&[record])? == 1 { bytes as u64 } else { 0 };
    }
    Ok(())
}

#[test]
#[ignore = "needs an RDMA device (./dev test-rdma)"]
fn a_device_that_registers_no_dma_buf_says_so() {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (candidate, _) = candidates().unwrap();
    let (memory, _) = device_memory(MIB, DEVICE_ADDRESS);
    let refused = Domain::open(&candidate.device).unwrap().try_device_memory(&memory).unwrap_err();
    let device = candidate.device.clone();
    assert_eq!(refused, VerbsError::DeviceMemory { device: device.clone(), bytes: MIB, errno: Errno::OPNOTSUPP });
    let text = refused.to_string();
    assert!(text.starts_with(&device) && text.ends_with(": its driver registers no memory of other devices"), "{text}");
    let (mut sender, mut receiver) = pair(ring());
    assert!(matches!(sender.register(&memory.clone().into()), Err(LinkError::Verbs(_))));
    let place = LandingPlace { memory: memory.into(), offset: 0 };
    assert_eq!(receiver.grant(&place, MIB).unwrap(), None);
    assert_eq!(receiver.grants_max(), 0, "all messages go through the ring");
}

#[test]
#[ignore = "needs an RDMA device (./dev test-rdma)"]
fn with_a_double_messages_go_from_one_gpu_to_another_by_grant_or_ring() {
    let _double = Double::put_in_place();
    let (mut sender, mut receiver) = pair(ring());
    let (from, source) = device_memory(8 * MIB, DEVICE_ADDRESS);
    let (to, target) = device_memory(8 * MIB, DEVICE_ADDRESS + (1 << 40));
    let noise = Noise::new(4 * MIB);
    sender.register(&from.clone().into()).unwrap();
    // Small ones too: nothing of them is inline, which the processor would read.
    let sizes = [MIB, 3 * MIB / 2, 64, 5, 600_001];
    for (id, bytes) in (1..).zip(sizes) {
        let (offset, place) = (id * 4097, id * 8192 + 100);
        source.copy_in(offset, noise.message(id, bytes)).unwrap();
        let granted = bytes >= 600_001;
        if granted {
            let place = LandingPlace { memory: to.clone().into(), offset: place };
            receiver.grant(&place, bytes).unwrap().unwrap();
            while sender.peek_grant().is_none() {
                sender.progress().unwrap();
                assert_eq!(receiver.next(Duration::ZERO).unwrap(), None);
            }
        }
        send(&mut sender, id, &from, offset, bytes).unwrap();
        let (mut came, mut ends) = (vec![0; bytes as usize], false);
        while !ends {
            let record = receiver.next(WATCHDOG).unwrap().unwrap();
            assert_eq!(record.has_landed(), granted, "message {id}");
            let header = *record.header();
            ends = header.ends_message();
            let part = header.offset as usize..header.offset as usize + header.payload_bytes as usize;
            match granted {
                true => target.copy_out(place + header.offset, &mut came[part]).unwrap(),
                false => receiver.copy_out(&record, 0, &mut came[part]).unwrap(),
            }
            assert_eq!(receiver.release(record).unwrap(), Release::Intact);
        }
        assert!(came == noise.message(id, bytes), "message {id} differs");
    }
    sender.drain(WATCHDOG).unwrap();
}

#[test]
#[ignore = "needs an RDMA device (./dev test-rdma)"]
fn with_a_double_a_gpus_block_cannot_be_written_after_its_message() {
    let _double = Double::put_in_place();
    let (mut sender, mut receiver) = pair(ring());
    let (to, target) = device_memory(2 * MIB, DEVICE_ADDRESS);
    let place = LandingPlace { memory: to.into(), offset: 4096 };
    receiver.grant(&place, MIB).unwrap().unwrap();
    let grant = loop {
        sender.progress().unwrap();
        if let Some(grant) = sender.peek_grant() {
            break grant;
        }
    };
    let noise = Noise::new(MIB);
    crate::rdma::tests::send(&mut sender, 1, noise.message(1, MIB)).unwrap();
    loop {
        let record = receiver.next(WATCHDOG).unwrap().unwrap();
        let ends = record.header().ends_message();
        assert!(record.has_landed());
        assert_eq!(receiver.release(record).unwrap(), Release::Intact);
        if ends {
            break;
        }
    }
    sender.write_to(grant.block, 0, &[0xff; 64], None).unwrap();
    let error = loop {
        if let Err(error) = sender.progress() {
            break error;
        }
        sender.wait(WATCHDOG, &[]).unwrap();
    };
    assert_eq!(error, LinkError::Transfer(TransferError::RemoteAccess));
    let mut found = vec![0; MIB as usize];
    target.copy_out(4096, &mut found).unwrap();
    assert!(found == noise.message(1, MIB), "the published message has changed");
}

#[test]
#[ignore = "needs an RDMA device (./dev test-rdma)"]
fn data_of_a_gpu_that_is_not_registered_or_outside_it_are_not_sent() {
    let _double = Double::put_in_place();
    let (mut sender, _receiver) = pair(ring());
    let (memory, _) = device_memory(MIB, DEVICE_ADDRESS);
    let mut refused = |offset, registered: bool| {
        if registered {
            sender.register(&memory.clone().into()).unwrap();
        }
        let data = Data::Device { memory: &memory, offset, bytes: 100 };
        sender.post(&[head(1, 100).first(&[], data)])
    };
    assert_eq!(refused(0, false), Err(LinkError::Unsendable(RecordError::DeviceMemory)));
    assert_eq!(refused(MIB - 99, true), Err(LinkError::Unsendable(RecordError::DeviceMemory)));
    memory.retire();
    let (other, _) = device_memory(MIB, DEVICE_ADDRESS);
    sender.register(&other.into()).unwrap();
    let data = Data::Device { memory: &memory, offset: 0, bytes: 100 };
    let retired = sender.post(&[head(1, 100).first(&[], data)]);
    assert_eq!(retired, Err(LinkError::Unsendable(RecordError::DeviceMemory)), "its slab is gone");
}
