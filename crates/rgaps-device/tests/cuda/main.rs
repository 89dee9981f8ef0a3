//! Tests the cuda backend on the stand-in for libcuda: the contract, every kind of device, and an error at every driver call (errors.rs).
//!
//! A process has one driver, whose settings are environment variables: a test of other settings runs itself again as a child (`again`).

#![allow(clippy::unwrap_used)] // helpers of tests, outside #[test] functions
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rgaps_device::cuda::{CudaBackend, Device};
use rgaps_device::idle::KEEP;
use rgaps_device::{
    Backend, BufferPart, BufferSpec, Choice, DescriptionError, DeviceError, DeviceKind, HostBuffer, Idle, Original,
    PayloadAccess, PoolMemory, PoolPart, PoolRole, PoolSpec, Stream, StreamMemory, StreamWord, testing::contract,
};
use rgaps_os::{Access, Mapping, memfd};
use rgaps_standin_cuda::{Control, DEVICE_NAME, link_into};
use rgaps_testing::{Watchdog, again_with, is_again, skipped};

mod errors;
mod gpu_direct;

const MIB: u64 = 1 << 20;
const NO_PEER: &str = "RGAPS_TEST_STANDIN_NO_PEER";
/// Two devices without peer access to each other.
const BESIDE: [(&str, &str); 2] = [("RGAPS_TEST_STANDIN_DEVICES", "2"), (NO_PEER, "1")];
const PATIENCE: Duration = Duration::from_secs(30);

/// Locks the stand-in, which serves one test at a time.
fn standin() -> (Control, MutexGuard<'static, ()>, Watchdog) {
    static ONE: Mutex<()> = Mutex::new(());
    let one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    (Control::load(), one, Watchdog::new(Duration::from_secs(120)))
}

/// Runs this test in a child process, on a stand-in with these settings.
fn again(settings: &[(&str, &str)]) -> bool {
    again_with(settings, link_into)
}

fn spec(bytes: u64) -> PoolSpec {
    PoolSpec { name: "rgaps-test".to_owned(), bytes }
}

/// A pool, mapped as manager, writer and reader.
fn shared(backend: &dyn Backend, bytes: u64) -> Result<[Arc<dyn PoolMemory>; 3], DeviceError> {
    let made = backend.create_pool(&spec(bytes))?;
    let (description, fds) = made.export()?;
    let writer = backend.import_pool(&description, fds, PoolRole::Writer)?;
    made.seal()?;
    let (description, fds) = made.export()?;
    let reader = backend.import_pool(&description, fds, PoolRole::Reader)?;
    Ok([made, writer, reader])
}

/// Maps missing slabs, like the API before it fills or reads a block.
fn give_memory(pools: &[Arc<dyn PoolMemory>; 3], offset: u64, bytes: u64) -> Result<(), DeviceError> {
    let [made, writer, reader] = pools;
    let missing = writer.missing(offset, bytes)?;
    if !missing.is_empty() {
        let (slabs, fds) = made.commit(&missing)?;
        writer.add_slabs(&slabs, fds)?;
    }
    if !reader.missing(offset, bytes)?.is_empty() {
        let (description, fds) = made.export()?;
        reader.refresh(&description, fds)?;
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
        assert!(ring.is_registered(), "the device has pinned the buffer's pages");
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
fn a_second_gpu_keeps_the_contract_with_and_without_peer_access() {
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
fn an_error_names_what_is_missing_for_copies_between_gpus() {
    let cases = [
        ("RGAPS_TEST_STANDIN_NO_MEMORY_POOLS", "no stream-ordered memory for copies"),
        ("RGAPS_TEST_STANDIN_INTEGRATED", "whose pools cannot be copied"),
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
fn an_error_names_what_is_missing_for_a_gpu() {
    let cases = [
        ("RGAPS_TEST_STANDIN_DEVICES", "0", "CUDA_ERROR_NO_DEVICE"),
        ("RGAPS_TEST_STANDIN_NO_VMM", "1", "no VMM with POSIX file descriptors"),
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
fn an_integrated_gpu_needs_read_only_registration() {
    const NOT_FOR_READING: (&str, &str) = ("RGAPS_TEST_STANDIN_NO_READ_ONLY_REGISTER", "1");
    const INTEGRATED: (&str, &str) = ("RGAPS_TEST_STANDIN_INTEGRATED", "1");
    if !is_again() {
        again(&[NOT_FOR_READING]);
        again(&[NOT_FOR_READING, INTEGRATED]);
        return;
    }
    let (_gpu, _one, _watchdog) = standin();
    let opened = CudaBackend::open(0);
    if std::env::var_os(INTEGRATED.0).is_none() {
        contract::check(&opened.unwrap());
    } else {
        let error = opened.unwrap_err().to_string();
        assert!(error.contains("cannot use memory of the host by itself (cuMemHostRegister)"), "{error}");
    }
}

#[test]
fn an_error_names_a_libcuda_that_is_missing_broken_or_foreign() {
    const WHICH: &str = "RGAPS_TEST_LIBCUDA";
    const NAMES: [&str; 2] = ["libcuda.so", "libcuda.so.1"];
    let Ok(which) = std::env::var(WHICH) else {
        again_with(&[(WHICH, "absent")], |_| Ok(()));
        let text = "no library, but longer than an ELF header, which has sixty-four bytes";
        again_with(&[(WHICH, "broken")], |folder| {
            NAMES.iter().try_for_each(|name| std::fs::write(folder.join(name), text))
        });
        again_with(&[(WHICH, "foreign")], |folder| {
            let maps = std::fs::read_to_string("/proc/self/maps")?;
            let files = maps.lines().filter_map(|line| line.find('/').map(|path| &line[path..]));
            let libc = files.clone().find(|path| path.contains("/libc.so") || path.contains("/libc-")).unwrap();
            NAMES.iter().try_for_each(|name| std::os::unix::fs::symlink(libc, folder.join(name)))
        });
        return;
    };
    let expected = match which.as_str() {
        "absent" if Device::count().is_ok() => return skipped("there is a driver"),
        "absent" => "libcuda.so.1 is not there: no NVIDIA driver is installed",
        "broken" => "libcuda.so.1 cannot be loaded: ",
        _ => "the libcuda that was found is not NVIDIA's: it has no cuInit",
    };
    let said = Device::count().unwrap_err();
    assert!(said.starts_with(expected), "{which}: {said}");
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
fn a_slab_is_mapped_for_its_first_message_and_freed_when_the_pool_is_idle() {
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
    let absent = backend.copy_in(&stream, &[1; 8192], PoolPart::of(writer.as_ref(), block.0));
    assert!(matches!(absent, Err(DeviceError::Absent { slab: 2, .. })), "{absent:?}");
    give_memory(&pools, block.0, block.1).unwrap();
    assert_eq!(pools.each_ref().map(resident), [3 * slab; 3]);
    let generation = || writer.export().unwrap().0.slabs[2].generation;
    let before = generation();
    let place = |pool| PoolPart::of(pool, block.0);
    backend.copy_in(&stream, &[7; 8192], place(writer.as_ref())).unwrap().wait(PATIENCE).unwrap();
    let mut found = [0; 8192];
    backend.copy_out(&stream, place(reader.as_ref()), &mut found).unwrap();
    assert_eq!(found, [7; 8192]);

    // Idle: the writer frees the slabs, then the manager does, then the reader unmaps them.
    let (mut idle, now) = (Idle::default(), Instant::now());
    assert_eq!(idle.release_memory(writer.as_ref(), 0, now), None);
    assert_eq!(idle.release_memory(writer.as_ref(), 8192, now + KEEP), None, "not while a block is in use");
    assert_eq!(idle.release_memory(writer.as_ref(), 0, now + KEEP), None, "not at once");
    let (offset, bytes) = idle.release_memory(writer.as_ref(), 0, now + 2 * KEEP).unwrap();
    assert_eq!((offset, bytes), (slab, 100 * MIB - slab));
    made.release_unused(offset, bytes).unwrap();
    reader.trim();
    assert_eq!(pools.each_ref().map(resident), [slab; 3]);
    assert_eq!(gpu.live("allocated_bytes"), slab, "the three mappings share one allocation");
    let gone = backend.copy_out(&stream, place(reader.as_ref()), &mut found);
    assert!(matches!(gone, Err(DeviceError::Absent { slab: 2, .. })), "{gone:?}");

    // Allocate again: the new generation tells readers that it is other memory.
    give_memory(&pools, block.0, block.1).unwrap();
    assert!(![0, before].contains(&generation()));
    backend.copy_in(&stream, &[9; 8192], place(writer.as_ref())).unwrap().wait(PATIENCE).unwrap();
    backend.copy_out(&stream, place(reader.as_ref()), &mut found).unwrap();
    assert_eq!(found, [9; 8192]);
    drop((stream, pools, backend));
    assert_eq!(gpu.leaks(), []);
}

#[test]
fn a_reader_that_missed_the_reuse_of_a_slab_maps_the_new_memory() {
    let (_gpu, _one, _watchdog) = standin();
    let backend = CudaBackend::open(0).unwrap();
    let pools = shared(&backend, 64 * MIB).unwrap();
    let [made, writer, reader] = &pools;
    let (slab, stream) = (writer.first_slab_bytes().unwrap(), backend.stream().unwrap());
    let place = |pool| PoolPart::of(pool, slab);
    for round in 1..4_u8 {
        // The reader does not trim in between: it still maps the slab of the previous round.
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
fn a_reader_does_not_take_a_successors_slab_for_one_that_the_writer_never_got() {
    let (_gpu, _one, _watchdog) = standin();
    let backend = CudaBackend::open(0).unwrap();
    let [made, writer, reader] = shared(&backend, 64 * MIB).unwrap();
    let (slab, stream) = (writer.first_slab_bytes().unwrap(), backend.stream().unwrap());
    let mut last = made;
    for round in 1..4_u8 {
        // Readers get slabs of this manager that the writer does not get.
        last.commit(&[1, 2]).unwrap();
        let (description, fds) = last.export().unwrap();
        let newcomer = backend.import_pool(&description, fds, PoolRole::Reader).unwrap();
        let (description, fds) = last.export().unwrap();
        reader.refresh(&description, fds).unwrap();
        // The manager dies, and the writer hands its pool to the next one.
        let (description, fds) = writer.export().unwrap();
        last = backend.import_pool(&description, fds, PoolRole::Successor).unwrap();
        let (slabs, fds) = last.commit(&[1]).unwrap();
        writer.add_slabs(&slabs, fds).unwrap();
        let place = |pool| PoolPart::of(pool, slab);
        backend.copy_in(&stream, &[round; 100], place(writer.as_ref())).unwrap().wait(PATIENCE).unwrap();
        for reader in [&reader, &newcomer] {
            assert_eq!(reader.missing(slab, 100).unwrap(), [1]);
            let (description, fds) = last.export().unwrap();
            reader.refresh(&description, fds).unwrap();
            let mut found = [0; 100];
            backend.copy_out(&stream, place(reader.as_ref()), &mut found).unwrap();
            assert_eq!(found, [round; 100]);
        }
        writer.release_unused(slab, 64 * MIB - slab).unwrap();
    }
}

#[test]
fn no_slab_is_freed_under_a_copy_and_impossible_slab_numbers_are_refused() {
    let (gpu, _one, _watchdog) = standin();
    let backend = CudaBackend::open(0).unwrap();
    let pools = shared(&backend, 64 * MIB).unwrap();
    let [made, writer, _] = &pools;
    let (slab, stream) = (writer.first_slab_bytes().unwrap(), backend.stream().unwrap());
    give_memory(&pools, slab, MIB).unwrap();
    let buffer = backend.host_buffer(&BufferSpec { name: "rgaps-test".to_owned(), bytes: MIB }).unwrap();
    gpu.hold();
    let from = PoolPart::of(made.as_ref(), slab);
    let copy = backend.copy_to_host(&stream, from, BufferPart { buffer: &buffer, offset: 0 }, MIB).unwrap();
    // A client falsely says that its pool is empty.
    let refused = made.release_unused(slab, 64 * MIB - slab);
    assert!(matches!(refused, Err(DeviceError::Busy { .. })), "{refused:?}");
    gpu.go();
    copy.wait(PATIENCE).unwrap();
    made.release_unused(slab, 64 * MIB - slab).unwrap();
    let refused = made.commit(&[0; 65]);
    assert!(matches!(refused, Err(DeviceError::Refused(DescriptionError::Slabs { described: 65, .. }))), "{refused:?}");
    let refused = made.commit(&[64]);
    assert!(matches!(refused, Err(DeviceError::Refused(DescriptionError::Order { index: 64, .. }))), "{refused:?}");
}

#[test]
fn a_driver_without_read_only_mappings_maps_for_writing_too() {
    let (gpu, _one, _watchdog) = standin();
    let backend = CudaBackend::open(0).unwrap();
    let made = backend.create_pool(&spec(MIB)).unwrap();
    made.seal().unwrap();
    let (description, fds) = made.export().unwrap();
    gpu.fail("cuMemSetAccess", 1, 801);
    let reader = backend.import_pool(&description, fds, PoolRole::Reader).unwrap();
    let stream = backend.stream().unwrap();
    backend.copy_in(&stream, b"read", PoolPart::of(made.as_ref(), 0)).unwrap().wait(PATIENCE).unwrap();
    let mut found = [0; 4];
    backend.copy_out(&stream, PoolPart::of(reader.as_ref(), 0), &mut found).unwrap();
    assert_eq!(&found, b"read");
    let refused = backend.copy_in(&stream, b"no", PoolPart::of(reader.as_ref(), 0));
    assert!(refused.is_err(), "the backend itself still refuses to write into it");
}

#[test]
fn more_than_the_device_has_is_refused_with_the_numbers() {
    let (gpu, _one, _watchdog) = standin();
    let backend = CudaBackend::open(0).unwrap();
    let error = backend.create_pool(&spec(1 << 40)).unwrap_err();
    assert!(matches!(error, DeviceError::TooLarge { memory: 0x4000_0000, .. }), "{error}");
    let most = backend.create_pool(&spec(900 * MIB)).unwrap();
    most.commit(&(0..50).collect::<Vec<_>>()).unwrap();
    let other = backend.create_pool(&spec(900 * MIB)).unwrap();
    let error = other.commit(&(0..50).collect::<Vec<_>>()).unwrap_err();
    assert!(matches!(error, DeviceError::OutOfMemory { .. }), "{error}");
    assert!(error.to_string().contains("lower pool_bytes"), "{error}");
    drop((most, other, backend));
    assert_eq!(gpu.leaks(), []);
}

#[test]
#[cfg(feature = "baseline")]
fn pageable_memory_is_copied_there_and_back_when_the_call_returns() {
    let (gpu, _one, _watchdog) = standin();
    let backend = CudaBackend::open(0).unwrap();
    let pools = shared(&backend, MIB).unwrap();
    let [_, writer, reader] = &pools;
    let part = |pool, offset| PoolPart::of(pool, offset);
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
    gpu.fail("cuMemcpyDtoH_v2", 1, 719);
    gpu.fail("cuGetErrorName", 1, 999);
    let error = backend.copy_to_pageable(part(reader.as_ref(), 0), &mut found).unwrap_err().to_string();
    assert!(error.contains("cuMemcpyDtoH_v2 failed: a code that the driver does not know (719)"), "{error}");
    drop((pools, backend));
    assert_eq!(gpu.leaks(), []);
}
