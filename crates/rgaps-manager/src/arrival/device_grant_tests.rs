//! Grants of GPU memory: the GPU is the stand-in for libcuda, the link and its network card are doubles.

use std::sync::{Arc, Mutex};

use rgaps_device::cuda::CudaBackend;
use rgaps_device::{Backend, PoolPart};
use rgaps_link::rdma::TransferError;
use rgaps_link::{LinkError, PayloadMemory};
use rgaps_shm::{ReaderPort, Segment};
use rgaps_standin_cuda::{Control, link_into};
use rgaps_testing::{again_with, is_again};

use super::grant_tests::Receiving;
use super::scripted_link::Peer;
use crate::device_access::DeviceAccess;

const MIB: u64 = 1 << 20;
const GPU_DIRECT: (&str, &str) = ("RGAPS_TEST_STANDIN_GPU_DIRECT", "1");
const FLUSH: &str = "cuFlushGPUDirectRDMAWrites";

fn again(settings: &[(&str, &str)]) -> bool {
    again_with(settings, link_into)
}

fn gpu() -> (Control, Arc<dyn Backend>) {
    let control = Control::load();
    control.delay_us(0);
    (control, Arc::new(CudaBackend::open(0).unwrap()))
}

/// An arrival on a GPU whose memory the network card writes, and a subscriber.
fn receiving(backend: Arc<dyn Backend>) -> (Receiving, ReaderPort, Arc<DeviceAccess>) {
    let access = Arc::new(DeviceAccess::default());
    let mut receiving = Receiving::on(backend, Some(access.clone()), 8 * MIB);
    let reader = receiving.subscriber();
    (receiving, reader, access)
}

/// The rights of the peer and the queue's end, at each flush.
static AT_FLUSH: Mutex<Vec<(Vec<u64>, u64)>> = Mutex::new(Vec::new());
static LOOKED_AT: Mutex<Option<(Peer, Arc<Segment>)>> = Mutex::new(None);

extern "C" fn look() {
    if let Some((peer, segment)) = &*LOOKED_AT.lock().unwrap() {
        AT_FLUSH.lock().unwrap().push((peer.rights(), segment.queue().end().0));
    }
}

#[test]
fn a_cards_writes_are_flushed_after_its_right_ends_and_before_the_message_is_ready() {
    if !again(&[GPU_DIRECT]) {
        return;
    }
    let (gpu, backend) = gpu();
    let (mut receiving, mut reader, access) = receiving(backend.clone());
    receiving.send(1, MIB, None);
    assert_eq!(reader.take().unwrap().unwrap().info().copies.pooled, 1);
    assert_eq!((receiving.peer.rights(), gpu.calls(FLUSH)), (vec![1, 2, 3, 4], 0), "a copy needs no flush");
    let end = receiving.topic.segment.queue().end().0;
    *LOOKED_AT.lock().unwrap() = Some((receiving.peer.clone(), receiving.topic.segment.clone()));
    gpu.at_flush(Some(look));
    let data: Vec<u8> = (0..MIB).map(|at| (at % 251) as u8).collect();
    receiving.peer.write(2, &data);
    receiving.send(2, MIB, Some(2));
    assert_eq!(*AT_FLUSH.lock().unwrap(), [(vec![1, 3, 4], end)], "invalidated, flushed, then in the queue");
    let held = reader.take().unwrap().unwrap();
    assert_eq!((held.info().copies.pooled, access.refusal()), (0, None));
    let (mut found, stream) = (vec![0; MIB as usize], backend.stream().unwrap());
    let pool = receiving.arrival.messages.state.pool.clone();
    backend.copy_out(&stream, PoolPart::to_read(pool.as_ref(), held.offset(), MIB), &mut found).unwrap();
    assert!(found == data, "the subscriber's GPU reads what the card wrote");
    assert_eq!(receiving.peer.rights(), [1, 3, 4, 5], "and the next block is granted");
}

#[test]
fn a_message_whose_flush_fails_is_not_published_and_no_more_is_granted() {
    if !again(&[GPU_DIRECT]) {
        return;
    }
    let (gpu, backend) = gpu();
    let (mut receiving, mut reader, access) = receiving(backend);
    receiving.send(1, MIB, None);
    drop(reader.take().unwrap().unwrap());
    gpu.fail(FLUSH, 1, 999);
    receiving.begin(2, MIB, MIB, Some(1));
    let why = receiving.arrival.turn().unwrap_err();
    assert!(why.contains("cuFlushGPUDirectRDMAWrites failed: CUDA_ERROR_UNKNOWN"), "{why}");
    assert!(reader.take().unwrap().is_none(), "nobody gets bytes that may not be there");
    assert_eq!(access.refusal(), Some(why.as_str()));
    receiving.peer.give_back();
    receiving.send(3, MIB, None);
    assert!(receiving.peer.rights().is_empty());
    assert_eq!(reader.take().unwrap().unwrap().info().copies.pooled, 1, "through the ring");
}

#[test]
fn memory_of_a_gpu_is_not_granted_to_a_card_that_does_not_write_it() {
    if !again(&[GPU_DIRECT]) {
        return;
    }
    let (gpu, backend) = gpu();
    let mut receiving = Receiving::on(backend, None, 8 * MIB);
    let mut reader = receiving.subscriber();
    receiving.send(1, MIB, None);
    assert!(receiving.peer.rights().is_empty());
    assert_eq!((reader.take().unwrap().unwrap().info().copies.pooled, gpu.calls(FLUSH)), (1, 0));
}

#[test]
fn a_block_that_the_driver_does_not_export_leaves_its_message_to_the_ring() {
    if !again(&[GPU_DIRECT, ("RGAPS_TEST_STANDIN_NO_DMA_BUF", "1")]) {
        return;
    }
    let (_gpu, backend) = gpu();
    let (mut receiving, mut reader, _) = receiving(backend);
    for sequence in 1..=3 {
        receiving.send(sequence, MIB, None);
        assert_eq!(reader.take().unwrap().unwrap().info().copies.pooled, 1);
    }
    assert!(receiving.peer.rights().is_empty());
    assert_eq!(receiving.arrival.messages.granted.count(), 0, "no block is lost");
}

#[test]
fn the_pool_of_an_integrated_gpu_is_granted_as_memory_of_the_host() {
    if !again(&[("RGAPS_TEST_STANDIN_INTEGRATED", "1")]) {
        return;
    }
    let (gpu, backend) = gpu();
    let mut receiving = Receiving::on(backend, None, 8 * MIB);
    let mut reader = receiving.subscriber();
    receiving.send(1, MIB, None);
    drop(reader.take().unwrap().unwrap());
    assert_eq!(receiving.peer.rights(), [1, 2, 3, 4]);
    assert!(matches!(receiving.peer.place(1).memory, PayloadMemory::Host(_)));
    receiving.peer.write(1, b"written by a card");
    receiving.send(2, MIB, Some(1));
    let held = reader.take().unwrap().unwrap();
    let bytes = receiving.arrival.messages.state.pool.shared(held.offset(), 17).unwrap().to_vec();
    assert_eq!((held.info().copies.pooled, bytes.as_slice(), gpu.calls(FLUSH)), (0, &b"written by a card"[..], 0));
}

#[test]
fn links_that_fail_before_a_message_has_landed_give_a_card_up_and_ended_ones_do_not() {
    if !again(&[GPU_DIRECT]) {
        return;
    }
    let (_gpu, backend) = gpu();
    let (mut receiving, _reader, access) = receiving(backend);
    let broken = LinkError::Transfer(TransferError::Flushed);
    (0..3).for_each(|_| drop(receiving.arrival.messages.link_failed(&broken)));
    assert_eq!(access.refusal(), None, "nothing has been granted");
    receiving.send(1, MIB, None);
    (0..3).for_each(|_| drop(receiving.arrival.messages.link_failed(&LinkError::Closed { by_peer: true })));
    assert_eq!(access.refusal(), None, "the peer has left");
    (0..2).for_each(|_| drop(receiving.arrival.messages.link_failed(&broken)));
    assert!(access.refusal().is_some_and(|why| why.contains("2 links failed")), "{access:?}");
    assert!(is_again());
}
