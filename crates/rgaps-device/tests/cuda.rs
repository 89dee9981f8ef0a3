//! The cuda backend on the stand-in for libcuda: the contract, every kind of device, and an error at every call of the driver.
//!
//! One process has one driver, whose settings come from the environment: a test of another setting runs itself again (`again`).

#![allow(clippy::unwrap_used)] // helpers of tests, outside #[test] functions
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rgaps_device::cuda::{CudaBackend, Device};
use rgaps_device::idle::KEEP;
use rgaps_device::{
    Backend, BufferPart, BufferSpec, Choice, DescriptionError, DeviceError, DeviceKind, HostBuffer, Idle, Original,
    PayloadAccess, PoolMemory, PoolPart, PoolRole, PoolSpec, Stream, Word, Words, contract,
};
use rgaps_os::{Access, Mapping, memfd};
use rgaps_standin_cuda::{Control, DEVICE_NAME, link_into};
use rgaps_testing::{Watchdog, again_with, is_again};

const MIB: u64 = 1 << 20;
const NO_PEER: &str = "RGAPS_TEST_STANDIN_NO_PEER";
/// Two devices, of which none reaches the other's memory.
const BESIDE: [(&str, &str); 2] = [("RGAPS_TEST_STANDIN_DEVICES", "2"), (NO_PEER, "1")];
const PATIENCE: Duration = Duration::from_secs(30);

/// The stand-in, for one test at a time.
fn standin() -> (Control, MutexGuard<'static, ()>, Watchdog) {
    static ONE: Mutex<()> = Mutex::new(());
    let one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    (Control::load(), one, Watchdog::new(Duration::from_secs(120)))
}

/// In a process of its own, on a stand-in with these settings.
fn again(settings: &[(&str, &str)]) -> bool {
    again_with(settings, link_into)
}

fn spec(bytes: u64) -> PoolSpec {
    PoolSpec { name: "rgaps-test".to_owned(), bytes }
}

/// A pool as its maker, its writer and a reader have it.
fn shared(backend: &dyn Backend, bytes: u64) -> Result<[Arc<dyn PoolMemory>; 3], DeviceError> {
    let made = backend.create_pool(&spec(bytes))?;
    let (description, descriptors) = made.export()?;
    let writer = backend.import_pool(&description, descriptors, PoolRole::Writer)?;
    made.seal()?;
    let (description, descriptors) = made.export()?;
    let reader = backend.import_pool(&description, descriptors, PoolRole::Reader)?;
    Ok([made, writer, reader])
}

/// What the API does before it fills a block, and before it reads one.
fn give_memory(pools: &[Arc<dyn PoolMemory>; 3], offset: u64, bytes: u64) -> Result<(), DeviceError> {
    let [made, writer, reader] = pools;
    let missing = writer.missing(offset, bytes)?;
    if !missing.is_empty() {
        let (slabs, descriptors) = made.commit(&missing, writer.newest_generation())?;
        writer.add_slabs(&slabs, descriptors)?;
    }
    if !reader.missing(offset, bytes)?.is_empty() {
        let (description, descriptors) = made.export()?;
        reader.refresh(&description, descriptors)?;
    }
    Ok(())
}

#[test]
fn the_cuda_backend_keeps_the_contract() {
    let (gpu, _one, _watchdog) = standin();
    let backend = CudaBackend::open(0).unwrap();
    assert_eq!((backend.kind(), backend.payload_access()), (DeviceKind::Cuda, PayloadAccess::Staged));
    assert_eq!(backend.gpu().properties().name, DEVICE_NAME);
    contract::check(&backend);
    drop(backend);
    assert_eq!(gpu.leaks(), []);
}

#[test]
fn an_integrated_gpu_keeps_the_contract_too() {
    if again(&[("RGAPS_TEST_STANDIN_INTEGRATED", "1")]) {
        let (gpu, _one, _watchdog) = standin();
        let backend = CudaBackend::open(0).unwrap();
        assert_eq!(backend.payload_access(), PayloadAccess::Direct);
        let ring = backend.host_buffer(&BufferSpec { name: "ring".to_owned(), bytes: MIB }).unwrap();
        assert!(ring.is_registered(), "whoever gives its pages back would leave the device with the old ones");
        drop(ring);
        contract::check(&backend);
        drop(backend);
        assert_eq!(gpu.leaks(), []);
    }
}

#[test]
fn a_gpu_without_stream_memory_operations_keeps_the_contract_too() {
    if again(&[("RGAPS_TEST_STANDIN_NO_STREAM_MEM_OPS", "1")]) {
        let (gpu, _one, _watchdog) = standin();
        let backend = CudaBackend::open(0).unwrap();
        assert!(!backend.gpu().properties().has_stream_words);
        contract::check(&backend);
        assert!(gpu.calls("cuLaunchHostFunc") > 0);
        drop(backend);
        assert_eq!(gpu.leaks(), []);
    }
}

#[test]
fn a_gpu_beside_the_pools_keeps_the_contract_whether_it_reaches_them_or_not() {
    for (settings, reaches) in [(&BESIDE[..1], true), (&BESIDE[..], false)] {
        if !is_again() {
            again(settings);
        } else if reaches == std::env::var_os(NO_PEER).is_none() {
            let (gpu, _one, _watchdog) = standin();
            let backend = CudaBackend::open_beside(1, 0).unwrap();
            assert_eq!(backend.reaches_pools(), reaches);
            contract::check(&backend);
            assert_eq!(gpu.calls("cuMemcpyPeerAsync") > 0, !reaches);
            drop(backend);
            assert_eq!(gpu.leaks(), []);
        }
    }
}

#[test]
fn what_is_missing_for_copies_between_gpus_is_said_by_name() {
    let cases = [
        ("RGAPS_TEST_STANDIN_NO_MEMORY_POOLS", "no stream-ordered memory for copies"),
        ("RGAPS_TEST_STANDIN_INTEGRATED", "has no pools to be copied from"),
    ];
    for (name, reason) in cases {
        if !is_again() {
            again(&[BESIDE[0], BESIDE[1], (name, "1")]);
        } else if std::env::var_os(name).is_some() {
            let (gpu, _one, _watchdog) = standin();
            let error = rgaps_device::open_beside(Choice::Cuda(1), Choice::Cuda(0)).unwrap_err();
            assert!(matches!(error, DeviceError::Elsewhere { .. }), "{error:?}");
            assert!(error.to_string().contains(reason), "{error}");
            assert_eq!(gpu.leaks(), []);
        }
    }
}

#[test]
fn what_is_missing_for_a_gpu_is_said_by_name() {
    let cases = [
        ("RGAPS_TEST_STANDIN_DEVICES", "0", "CUDA_ERROR_NO_DEVICE"),
        ("RGAPS_TEST_STANDIN_NO_VMM", "1", "no VMM with POSIX descriptors"),
        ("RGAPS_TEST_STANDIN_FAIL", "cuInit#1=999", "cuInit failed: CUDA_ERROR_UNKNOWN (999)"),
        ("RGAPS_TEST_STANDIN_FAIL", "cuDevicePrimaryCtxRetain#1=2", "cuDevicePrimaryCtxRetain failed"),
    ];
    for (name, value, reason) in cases {
        if !is_again() {
            again(&[(name, value)]);
        } else if std::env::var(name).as_deref() == Ok(value) {
            let (_gpu, _one, _watchdog) = standin();
            let error = rgaps_device::open(Choice::Cuda(0)).unwrap_err().to_string();
            assert!(error.contains(reason) && error.contains("use --device host"), "{error}");
        }
    }
    if !is_again() {
        let (_gpu, _one, _watchdog) = standin();
        let error = rgaps_device::open(Choice::Cuda(7)).unwrap_err().to_string();
        assert!(error.contains("there is no device 7: this process sees 1"), "{error}");
    }
}

#[test]
fn auto_takes_the_gpu_and_its_identity_opens_it_again() {
    let (gpu, _one, _watchdog) = standin();
    let chosen = rgaps_device::open(Choice::Auto).unwrap();
    assert!(chosen.reason.contains(DEVICE_NAME), "{}", chosen.reason);
    let by_identity: Choice = chosen.as_choice().to_string().parse().unwrap();
    let again = rgaps_device::open(by_identity).unwrap();
    assert_eq!(again.backend.device(), chosen.backend.device());
    drop((chosen, again));
    assert_eq!(gpu.leaks(), []);
}

#[test]
fn memory_comes_with_the_first_message_that_needs_it_and_goes_when_the_pool_is_idle() {
    let (gpu, _one, _watchdog) = standin();
    let backend = CudaBackend::open(0).unwrap();
    let pools = shared(&backend, 100 * MIB).unwrap();
    let [made, writer, reader] = &pools;
    let slab = writer.first_slab_bytes().unwrap();
    let resident = |pool: &Arc<dyn PoolMemory>| pool.resident_bytes();
    assert_eq!(pools.each_ref().map(resident), [slab; 3], "one slab until something is published");
    assert!(slab <= 16 * MIB);

    let block = (3 * slab - 4096, 8192);
    assert_eq!(reader.missing(block.0, block.1).unwrap(), [2, 3]);
    let stream = backend.stream().unwrap();
    let absent = backend.copy_in(&stream, &[1; 8192], PoolPart { pool: writer.as_ref(), offset: block.0 });
    assert!(matches!(absent, Err(DeviceError::Absent { slab: 2, .. })), "{absent:?}");
    give_memory(&pools, block.0, block.1).unwrap();
    assert_eq!(pools.each_ref().map(resident), [3 * slab; 3]);
    let place = |pool| PoolPart { pool, offset: block.0 };
    backend.copy_in(&stream, &[7; 8192], place(writer.as_ref())).unwrap().wait(PATIENCE).unwrap();
    let mut found = [0; 8192];
    backend.copy_out(&stream, place(reader.as_ref()), &mut found).unwrap();
    assert_eq!(found, [7; 8192]);

    // Idle: the writer lets go, the manager is told, the reader sees it.
    let (mut idle, now) = (Idle::default(), Instant::now());
    assert_eq!(idle.look(writer.as_ref(), 0, now), None);
    assert_eq!(idle.look(writer.as_ref(), 8192, now + KEEP), None, "not while something lies in it");
    assert_eq!(idle.look(writer.as_ref(), 0, now + KEEP), None, "not at once");
    let (offset, bytes) = idle.look(writer.as_ref(), 0, now + 2 * KEEP).unwrap();
    assert_eq!((offset, bytes), (slab, 100 * MIB - slab));
    made.release_unused(offset, bytes).unwrap();
    reader.trim();
    assert_eq!(pools.each_ref().map(resident), [slab; 3]);
    assert_eq!(gpu.live("allocated_bytes"), slab, "it is one memory in this process");
    let gone = backend.copy_out(&stream, place(reader.as_ref()), &mut found);
    assert!(matches!(gone, Err(DeviceError::Absent { slab: 2, .. })), "{gone:?}");

    // And again, with memory that no reader takes for the old one.
    let before = writer.newest_generation();
    give_memory(&pools, block.0, block.1).unwrap();
    assert!(writer.newest_generation() > before);
    backend.copy_in(&stream, &[9; 8192], place(writer.as_ref())).unwrap().wait(PATIENCE).unwrap();
    backend.copy_out(&stream, place(reader.as_ref()), &mut found).unwrap();
    assert_eq!(found, [9; 8192]);
    drop((stream, pools, backend));
    assert_eq!(gpu.leaks(), []);
}

#[test]
fn a_reader_that_was_away_while_memory_came_and_went_finds_the_new_one() {
    let (_gpu, _one, _watchdog) = standin();
    let backend = CudaBackend::open(0).unwrap();
    let pools = shared(&backend, 64 * MIB).unwrap();
    let [made, writer, reader] = &pools;
    let (slab, stream) = (writer.first_slab_bytes().unwrap(), backend.stream().unwrap());
    let place = |pool| PoolPart { pool, offset: slab };
    for round in 1..4_u8 {
        // The reader does not look in between: it still has the slab of the round before.
        give_memory(&pools, slab, 100).unwrap();
        backend.copy_in(&stream, &[round; 100], place(writer.as_ref())).unwrap().wait(PATIENCE).unwrap();
        let mut found = [0; 100];
        backend.copy_out(&stream, place(reader.as_ref()), &mut found).unwrap();
        assert_eq!(found, [round; 100]);
        writer.release_unused(slab, 64 * MIB - slab).unwrap();
        made.release_unused(slab, 64 * MIB - slab).unwrap();
    }
}

#[test]
fn memory_is_not_taken_away_under_a_copy_and_more_slabs_than_there_are_are_refused() {
    let (gpu, _one, _watchdog) = standin();
    let backend = CudaBackend::open(0).unwrap();
    let pools = shared(&backend, 64 * MIB).unwrap();
    let [made, writer, _] = &pools;
    let (slab, stream) = (writer.first_slab_bytes().unwrap(), backend.stream().unwrap());
    give_memory(&pools, slab, MIB).unwrap();
    let buffer = backend.host_buffer(&BufferSpec { name: "rgaps-test".to_owned(), bytes: MIB }).unwrap();
    gpu.hold();
    let from = PoolPart { pool: made.as_ref(), offset: slab };
    let copy = backend.copy_to_host(&stream, from, BufferPart { buffer: &buffer, offset: 0 }, MIB).unwrap();
    // A client that says that its pool is empty, and lies.
    let refused = made.release_unused(slab, 64 * MIB - slab);
    assert!(matches!(refused, Err(DeviceError::Busy { .. })), "{refused:?}");
    gpu.go();
    copy.wait(PATIENCE).unwrap();
    made.release_unused(slab, 64 * MIB - slab).unwrap();
    let refused = made.commit(&[0; 65], 0);
    assert!(matches!(refused, Err(DeviceError::Refused(DescriptionError::Slabs { described: 65, .. }))), "{refused:?}");
    let refused = made.commit(&[64], 0);
    assert!(matches!(refused, Err(DeviceError::Refused(DescriptionError::Order { index: 64, .. }))), "{refused:?}");
}

#[test]
fn a_driver_without_mappings_for_reading_only_maps_for_both() {
    let (gpu, _one, _watchdog) = standin();
    let backend = CudaBackend::open(0).unwrap();
    let made = backend.create_pool(&spec(MIB)).unwrap();
    made.seal().unwrap();
    let (description, descriptors) = made.export().unwrap();
    gpu.fail("cuMemSetAccess", 1, 801);
    let reader = backend.import_pool(&description, descriptors, PoolRole::Reader).unwrap();
    let stream = backend.stream().unwrap();
    backend.copy_in(&stream, b"read", PoolPart { pool: made.as_ref(), offset: 0 }).unwrap().wait(PATIENCE).unwrap();
    let mut found = [0; 4];
    backend.copy_out(&stream, PoolPart { pool: reader.as_ref(), offset: 0 }, &mut found).unwrap();
    assert_eq!(&found, b"read");
    let refused = backend.copy_in(&stream, b"no", PoolPart { pool: reader.as_ref(), offset: 0 });
    assert!(refused.is_err(), "this side still does not write into it");
}

#[test]
fn more_than_the_device_has_is_refused_with_the_numbers() {
    let (gpu, _one, _watchdog) = standin();
    let backend = CudaBackend::open(0).unwrap();
    let error = backend.create_pool(&spec(1 << 40)).unwrap_err();
    assert!(matches!(error, DeviceError::TooLarge { memory: 0x4000_0000, .. }), "{error}");
    let most = backend.create_pool(&spec(900 * MIB)).unwrap();
    most.commit(&(0..50).collect::<Vec<_>>(), 0).unwrap();
    let other = backend.create_pool(&spec(900 * MIB)).unwrap();
    let error = other.commit(&(0..50).collect::<Vec<_>>(), 0).unwrap_err();
    assert!(matches!(error, DeviceError::OutOfMemory { .. }), "{error}");
    assert!(error.to_string().contains("lower pool_bytes"), "{error}");
    drop((most, other, backend));
    assert_eq!(gpu.leaks(), []);
}

/// Everything that the backend does, once.
fn everything() -> Result<(), DeviceError> {
    let backend = CudaBackend::open(0)?;
    let pools = shared(&backend, 40 * MIB)?;
    let at = pools[0].first_slab_bytes().unwrap_or(0);
    give_memory(&pools, at, MIB)?;
    let (producer, consumer) = (backend.stream()?, backend.stream()?);
    let page = memfd::create("rgaps-test", 4096).unwrap();
    let words = backend.words(&Arc::new(Mapping::map(&page, 4096, Access::ReadWrite).unwrap()))?;
    let buffer = backend.host_buffer(&BufferSpec { name: "rgaps-test".to_owned(), bytes: MIB })?;
    let outcome = in_order(&backend, &pools, at, [&producer, &consumer], words.as_ref(), &buffer);
    // Whatever failed, what was started is over before its memory goes. Twice: the error may strike here.
    for stream in [&producer, &consumer, &producer, &consumer] {
        let _ = stream.synchronize(PATIENCE);
    }
    outcome?;
    let [_, writer, _] = &pools;
    writer.release_unused(at, 40 * MIB - at)
}

fn in_order(
    backend: &CudaBackend,
    pools: &[Arc<dyn PoolMemory>; 3],
    at: u64,
    [producer, consumer]: [&Stream; 2],
    words: &dyn Words,
    buffer: &HostBuffer,
) -> Result<(), DeviceError> {
    let [_, writer, reader] = pools;
    let word = Word { words, offset: 8 };
    let (ring, read) = (BufferPart { buffer, offset: 0 }, PoolPart { pool: reader.as_ref(), offset: at });
    let written = PoolPart { pool: writer.as_ref(), offset: at };
    backend.copy_to_device(producer, ring, written, MIB)?.wait(PATIENCE)?;
    producer.write_word(&word, 1)?;
    consumer.wait_word(&word, 1, PATIENCE)?;
    let event = producer.record();
    consumer.wait(&event, PATIENCE)?;
    backend.copy_to_host(consumer, read, ring, MIB)?.wait(PATIENCE)?;
    backend.copy_in(producer, &[3; 5000], written)?.wait(PATIENCE)?;
    let part = contract::part_of(reader.as_ref(), at, 5000)?;
    backend.copy_within(producer, &part, PoolPart { pool: writer.as_ref(), offset: at + 8192 })?;
    let mut found = [0; 5000];
    backend.copy_out(producer, PoolPart { pool: reader.as_ref(), offset: at + 8192 }, &mut found)?;
    assert_eq!(found, [3; 5000]);
    backend.gpu().memory()?;
    consumer.synchronize(PATIENCE)
}

/// The functions of the driver that the backend calls, from its own table.
fn functions() -> Vec<&'static str> {
    let table = include_str!("../src/cuda/driver.rs").lines();
    let named = table.filter_map(|line| Some(line.split_once(" = \"cu")?.1.split_once('"')?.0));
    let named: Vec<&str> = named.collect();
    assert!(named.len() > 30, "{named:?}");
    named
}

/// Everything that a backend does whose device does not reach the pools, once. The manager's is on theirs.
fn everything_apart() -> Result<(), DeviceError> {
    let manager = CudaBackend::open(0)?;
    let backend = CudaBackend::open_beside(1, 0).map_err(DeviceError::Failed)?;
    let made = manager.create_pool(&spec(4 * MIB))?;
    let (description, descriptors) = made.export()?;
    let writer = backend.import_pool(&description, descriptors, PoolRole::Writer)?;
    made.seal()?;
    let (description, descriptors) = made.export()?;
    let reader = backend.import_pool(&description, descriptors, PoolRole::Reader)?;
    let stream = backend.stream()?;
    let page = memfd::create("rgaps-test", 4096).unwrap();
    let words = backend.words(&Arc::new(Mapping::map(&page, 4096, Access::ReadWrite).unwrap()))?;
    let buffer = backend.host_buffer(&BufferSpec { name: "rgaps-test".to_owned(), bytes: MIB })?;
    let outcome = across(&backend, [&writer, &reader], &stream, words.as_ref(), &buffer);
    // As in `everything`.
    for _ in 0..2 {
        let _ = stream.synchronize(PATIENCE);
    }
    outcome
}

fn across(
    backend: &CudaBackend,
    [writer, reader]: [&Arc<dyn PoolMemory>; 2],
    stream: &Stream,
    words: &dyn Words,
    buffer: &HostBuffer,
) -> Result<(), DeviceError> {
    let block = |offset| PoolPart { pool: writer.as_ref(), offset };
    let ring = BufferPart { buffer, offset: 0 };
    backend.copy_to_device(stream, ring, block(MIB), 4096)?.wait(PATIENCE)?;
    backend.copy_to_host(stream, block(MIB), ring, 4096)?.wait(PATIENCE)?;
    let scratch = backend.scratch(5000)?.expect("it does not reach the pools");
    let filled = backend.copy_in(stream, &[5; 5000], PoolPart { pool: scratch.as_ref(), offset: 0 });
    let filled = filled.and_then(|copy| copy.wait(PATIENCE));
    // Whatever that says, the copy is over before the memory goes.
    let _ = stream.synchronize(PATIENCE);
    filled?;
    backend.copy_within(stream, &contract::part_of(scratch.as_ref(), 0, 5000)?, block(8192))?;
    let _behind = backend.copy_scratch(stream, scratch.as_ref(), block(0), 5000)?;
    drop(scratch);
    let word = Word { words, offset: 8 };
    stream.write_word(&word, 1)?;
    let original =
        Original { pool: reader, offset: 0, bytes: 5000, position: 1, awaited: Some((word, 1)), timeout: PATIENCE };
    let mirror = backend.mirror(&original)?.expect("it does not reach the pools");
    let mut found = [0; 5000];
    let read = stream
        .wait(mirror.copied.event(), PATIENCE)
        .and_then(|()| backend.copy_out(stream, PoolPart { pool: mirror.memory.as_ref(), offset: 0 }, &mut found));
    // The original must stay until the copy is over. Twice: the error may strike here.
    let over = mirror.copied.wait(PATIENCE).or_else(|_| mirror.copied.wait(PATIENCE));
    read.and(over)?;
    assert_eq!(found, [5; 5000]);
    backend.copy_out(stream, PoolPart { pool: reader.as_ref(), offset: 8192 }, &mut found)?;
    assert_eq!(found, [5; 5000]);
    Ok(())
}

/// Fails each function of the driver at calls of a scenario, one at a time: each is named, and nothing is leaked. Returns how many were
/// failed.
fn inject(gpu: &Control, scenario: fn() -> Result<(), DeviceError>, not_here: &[&str]) -> usize {
    scenario().unwrap();
    assert_eq!(gpu.leaks(), []);
    // Who cannot give something back has nobody to tell, and keeps it. Those come last.
    let gives_back = |function: &&str| {
        let what =
            ["Release", "Unmap", "AddressFree", "FreeAsync", "Unregister", "Destroy", "CtxP", "CtxS", "Exchange"];
        what.iter().any(|part| function.contains(part))
    };
    let mut injected = 0;
    let (last, first): (Vec<&str>, Vec<&str>) = functions().into_iter().partition(gives_back);
    for function in first.into_iter().chain(last) {
        let name = format!("cu{function}");
        gpu.reset_calls();
        scenario().unwrap();
        let calls = gpu.calls(&name);
        assert!(calls > 0 || not_here.contains(&name.as_str()), "{name} is never called");
        // The first of each, the last, and some between: contexts are pushed and popped at each call.
        let step = (calls / 12).max(1);
        for nth in (1..=calls).step_by(step as usize).chain([calls]).filter(|nth| *nth > 0) {
            injected += 1;
            gpu.fail(&name, nth, 999);
            let outcome = scenario();
            gpu.fail(&name, nth, 0);
            // Whether an event is over may be asked for the backend's own sake.
            let may_pass = gives_back(&function) || function.starts_with("Event");
            match outcome {
                Ok(()) => assert!(may_pass, "call {nth} of {name} failed, and nobody was told"),
                Err(error) => {
                    let text = error.to_string();
                    let named = text.contains(&name) && text.contains("CUDA_ERROR_UNKNOWN (999)");
                    assert!(named, "call {nth} of {name}: {text}");
                }
            }
            assert!(gives_back(&function) || gpu.leaks().is_empty(), "call {nth} of {name}: {:?}", gpu.leaks());
        }
    }
    injected
}

#[test]
fn an_error_at_any_call_of_the_driver_is_named_and_leaks_nothing() {
    if !again(&[]) {
        return;
    }
    let (gpu, _one, _watchdog) = standin();
    gpu.delay_us(0);
    // These have tests of their own: below, in capture.rs, and `what_is_missing_for_a_gpu_is_said_by_name`.
    let alone = ["cuStreamIsCapturing", "cuStreamQuery", "cuInit", "cuDriverGetVersion", "cuLaunchHostFunc"];
    let beside = ["cuDeviceCanAccessPeer", "cuMemcpyPeerAsync", "cuMemAllocAsync", "cuMemFreeAsync"];
    let injected = inject(&gpu, everything, &[&alone[..], &beside[..]].concat());
    assert!(injected > 150, "{injected}");
}

/// `name` fails at its first call.
fn failing<T>(gpu: &Control, name: &str, action: impl FnOnce() -> T) -> T {
    gpu.fail(name, 1, 999);
    let outcome = action();
    gpu.fail(name, 1, 0);
    outcome
}

#[test]
fn an_error_at_a_call_that_a_second_device_needs_is_named() {
    for settings in [&BESIDE[..1], &BESIDE[..]] {
        let apart = settings.len() > 1;
        if !is_again() {
            again(settings);
            continue;
        }
        if apart != std::env::var_os(NO_PEER).is_some() {
            continue;
        }
        let (gpu, _one, _watchdog) = standin();
        gpu.delay_us(0);
        let error = failing(&gpu, "cuDeviceCanAccessPeer", || CudaBackend::open_beside(1, 0)).unwrap_err();
        assert!(error.contains("cuDeviceCanAccessPeer failed: CUDA_ERROR_UNKNOWN (999)"), "{error}");
        let error = failing(&gpu, "cuDriverGetVersion", Device::driver_version).unwrap_err();
        assert!(error.contains("cuDriverGetVersion failed"), "{error}");
        assert_eq!(gpu.leaks(), []);
        if apart {
            // Those that this does not need are failed above.
            let not_here =
                ["cuStreamQuery", "cuInit", "cuDriverGetVersion", "cuLaunchHostFunc", "cuMemcpyDtoDAsync_v2"];
            let injected = inject(&gpu, everything_apart, &[&not_here[..], &["cuMemGetInfo_v2"]].concat());
            assert!(injected > 150, "{injected}");
        }
    }
}

#[test]
fn an_error_where_a_stream_calls_a_function_for_want_of_words_is_named() {
    if again(&[("RGAPS_TEST_STANDIN_NO_STREAM_MEM_OPS", "1")]) {
        let (gpu, _one, _watchdog) = standin();
        let error = failing(&gpu, "cuLaunchHostFunc", everything).unwrap_err().to_string();
        assert!(error.contains("cuLaunchHostFunc failed: CUDA_ERROR_UNKNOWN (999)"), "{error}");
        assert_eq!(gpu.leaks(), []);
    }
}

#[test]
fn a_stream_that_takes_no_event_and_cannot_be_asked_either_is_an_error_and_no_wait_for_ever() {
    let (gpu, _one, _watchdog) = standin();
    let error = failing(&gpu, "cuStreamQuery", || failing(&gpu, "cuEventRecord", everything)).unwrap_err().to_string();
    assert!(error.contains("cuEventRecord failed: CUDA_ERROR_UNKNOWN (999)"), "{error}");
}

#[test]
fn a_device_that_fails_under_way_is_an_error_and_never_a_wrong_byte() {
    if again(&[]) {
        fail_under_way(everything, 8);
    }
}

#[test]
fn a_device_that_fails_while_messages_are_copied_to_it_is_an_error_and_never_a_wrong_byte() {
    if again(&BESIDE) {
        fail_under_way(everything_apart, 12);
    }
}

/// An operation of any stream fails, one after the other.
fn fail_under_way(scenario: fn() -> Result<(), DeviceError>, operations_min: u64) {
    let (gpu, _one, _watchdog) = standin();
    gpu.delay_us(0);
    for nth in 1..60 {
        gpu.fail_later(nth, 719);
        let outcome = scenario();
        gpu.fail_later(nth, 0);
        match outcome {
            Ok(()) => assert!(nth > operations_min, "the scenario has more operations than {nth}"),
            Err(error) => {
                let text = error.to_string();
                assert!(
                    text.contains("CUDA_ERROR_LAUNCH_FAILED (719)") && text.contains("start the process anew"),
                    "{text}"
                );
            }
        }
        scenario().unwrap_or_else(|error| panic!("a new context is whole again: {error}"));
    }
}

#[test]
#[cfg(feature = "baseline")]
fn pageable_memory_is_copied_there_and_back_when_the_call_returns() {
    let (gpu, _one, _watchdog) = standin();
    let backend = CudaBackend::open(0).unwrap();
    let pools = shared(&backend, MIB).unwrap();
    let [_, writer, reader] = &pools;
    let part = |pool, offset| PoolPart { pool, offset };
    let content: Vec<u8> = (0..100_000_u32).map(|n| (n * 7 % 251) as u8).collect();
    backend.copy_from_pageable(&content, part(writer.as_ref(), 4096)).unwrap();
    let mut found = vec![0; content.len()];
    backend.copy_to_pageable(part(reader.as_ref(), 4096), &mut found).unwrap();
    assert!(found == content);
    for refused in [
        backend.copy_from_pageable(&content, part(reader.as_ref(), 0)),
        backend.copy_from_pageable(&content, part(writer.as_ref(), MIB - 1)),
        backend.copy_to_pageable(part(reader.as_ref(), u64::MAX), &mut found),
    ] {
        assert!(matches!(refused, Err(DeviceError::Range(_))), "{refused:?}");
    }
    gpu.fail("cuMemcpyHtoD_v2", 1, 719);
    let error = backend.copy_from_pageable(&content, part(writer.as_ref(), 0)).unwrap_err().to_string();
    assert!(error.contains("cuMemcpyHtoD_v2 failed: CUDA_ERROR_LAUNCH_FAILED (719)"), "{error}");
    drop((pools, backend));
    assert_eq!(gpu.leaks(), []);
}
