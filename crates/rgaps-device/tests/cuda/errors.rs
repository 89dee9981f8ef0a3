//! Injects an error at every driver call, and at every operation of a stream.

use super::*;

/// Does everything that the backend can do, once.
fn everything() -> Result<(), DeviceError> {
    let backend = CudaBackend::open(0)?;
    let pools = shared(&backend, 40 * MIB)?;
    let at = pools[0].first_slab_bytes().unwrap_or(0);
    give_memory(&pools, at, MIB)?;
    if backend.gpu().properties().gpu_direct.is_ok() {
        pools[0].dma_buf(at, MIB)?;
        pools[0].flush_dma()?;
    }
    let (own, consumer) = (backend.stream()?, backend.stream()?);
    // Wrap it as a caller's stream, for which the backend makes more driver calls.
    let handle = backend.raw_stream(&own).unwrap();
    // SAFETY: `own` outlives it and all its work.
    let producer = unsafe { backend.borrow_stream(handle) };
    let page = memfd::create("rgaps-test", 4096).unwrap();
    let memory = backend.stream_memory(&Arc::new(Mapping::map(&page, 4096, Access::ReadWrite).unwrap()))?;
    let buffer = backend.host_buffer(&BufferSpec { name: "rgaps-test".to_owned(), bytes: MIB })?;
    let outcome = in_order(&backend, &pools, at, [&producer, &consumer], memory.as_ref(), &buffer);
    // Wait for all work before its memory is freed. Twice: the injected error may hit the first wait.
    for stream in [&producer, &consumer, &producer, &consumer] {
        let _ = stream.synchronize(PATIENCE);
    }
    outcome?;
    let [_, writer, _] = &pools;
    match writer.release_unused(at, 40 * MIB - at) {
        Err(DeviceError::Kept { .. }) => Ok(()),
        given_back => given_back,
    }
}

fn in_order(
    backend: &CudaBackend,
    pools: &[Arc<dyn PoolMemory>; 3],
    at: u64,
    [producer, consumer]: [&Stream; 2],
    words: &dyn StreamMemory,
    buffer: &HostBuffer,
) -> Result<(), DeviceError> {
    let [_, writer, reader] = pools;
    let word = StreamWord { memory: words, offset: 8 };
    let (ring, read) = (BufferPart { buffer, offset: 0 }, PoolPart::of(reader.as_ref(), at));
    let written = PoolPart::of(writer.as_ref(), at);
    backend.copy_to_device(producer, ring, written, MIB)?.wait(PATIENCE)?;
    producer.write_value(&word, 1)?;
    consumer.wait_value(&word, 1, PATIENCE)?;
    let event = producer.record();
    consumer.wait(&event, PATIENCE)?;
    backend.copy_to_host(consumer, read, ring, MIB)?.wait(PATIENCE)?;
    backend.copy_in(producer, &[3; 5000], written)?.wait(PATIENCE)?;
    let part = contract::part_of(reader, at, 5000)?;
    backend.copy_within(producer, &part, PoolPart::of(writer.as_ref(), at + 8192))?;
    let mut found = [0; 5000];
    backend.copy_out(producer, PoolPart::of(reader.as_ref(), at + 8192), &mut found)?;
    assert_eq!(found, [3; 5000]);
    backend.gpu().memory()?;
    consumer.synchronize(PATIENCE)
}

/// The driver functions that the backend calls, from its table.
fn functions() -> Vec<&'static str> {
    let table = include_str!("../../src/cuda/driver.rs").lines();
    let named = table.filter_map(|line| Some(line.split_once(" = \"cu")?.1.split_once('"')?.0));
    let named: Vec<&str> = named.collect();
    assert!(named.len() > 30, "{named:?}");
    named
}

/// Does everything that a backend without peer access to the pools can do, once. The manager uses the pools' device.
fn everything_apart() -> Result<(), DeviceError> {
    let manager = CudaBackend::open(0)?;
    let backend = CudaBackend::open_beside(1, 0).map_err(DeviceError::Failed)?;
    let made = manager.create_pool(&spec(4 * MIB))?;
    let (description, fds) = made.export()?;
    let writer = backend.import_pool(&description, fds, PoolRole::Writer)?;
    made.seal()?;
    let (description, fds) = made.export()?;
    let reader = backend.import_pool(&description, fds, PoolRole::Reader)?;
    let stream = backend.stream()?;
    let page = memfd::create("rgaps-test", 4096).unwrap();
    let memory = backend.stream_memory(&Arc::new(Mapping::map(&page, 4096, Access::ReadWrite).unwrap()))?;
    let buffer = backend.host_buffer(&BufferSpec { name: "rgaps-test".to_owned(), bytes: MIB })?;
    let outcome = across(&backend, [&writer, &reader], &stream, memory.as_ref(), &buffer);
    // Twice: the injected error may hit the first wait.
    for _ in 0..2 {
        let _ = stream.synchronize(PATIENCE);
    }
    outcome
}

fn across(
    backend: &CudaBackend,
    [writer, reader]: [&Arc<dyn PoolMemory>; 2],
    stream: &Stream,
    words: &dyn StreamMemory,
    buffer: &HostBuffer,
) -> Result<(), DeviceError> {
    let block = |offset| PoolPart::of(writer.as_ref(), offset);
    let ring = BufferPart { buffer, offset: 0 };
    backend.copy_to_device(stream, ring, block(MIB), 4096)?.wait(PATIENCE)?;
    backend.copy_to_host(stream, block(MIB), ring, 4096)?.wait(PATIENCE)?;
    let scratch = backend.scratch(5000)?.expect("it does not reach the pools");
    let filled = backend.copy_in(stream, &[5; 5000], PoolPart::of(scratch.as_ref(), 0));
    let filled = filled.and_then(|copy| copy.wait(PATIENCE));
    // Wait for the copy before the memory is freed, also after an error.
    let _ = stream.synchronize(PATIENCE);
    filled?;
    backend.copy_within(stream, &contract::part_of(&scratch, 0, 5000)?, block(8192))?;
    let _behind = backend.copy_scratch(stream, scratch.as_ref(), block(0), 5000)?;
    drop(scratch);
    let word = StreamWord { memory: words, offset: 8 };
    stream.write_value(&word, 1)?;
    let original =
        Original { pool: reader, offset: 0, bytes: 5000, position: 1, awaited: Some((word, 1)), timeout: PATIENCE };
    let mirror = backend.mirror(&original)?.expect("it does not reach the pools");
    let mut found = [0; 5000];
    let read = stream
        .wait(mirror.copied.event(), PATIENCE)
        .and_then(|()| backend.copy_out(stream, PoolPart::of(mirror.memory.as_ref(), 0), &mut found));
    // The original must stay until the copy is over. Twice: the injected error may hit the first wait.
    let over = mirror.copied.wait(PATIENCE).or_else(|_| mirror.copied.wait(PATIENCE));
    read.and(over)?;
    assert_eq!(found, [5; 5000]);
    backend.copy_out(stream, PoolPart::of(reader.as_ref(), 8192), &mut found)?;
    assert_eq!(found, [5; 5000]);
    Ok(())
}

/// Fails each driver call of a scenario, one at a time: the error must name the call, and nothing may leak. Returns how many calls failed.
/// The scenario must call every function except those in `not_here`.
fn inject(gpu: &Control, scenario: fn() -> Result<(), DeviceError>, not_here: &[&str]) -> usize {
    scenario().unwrap();
    assert_eq!(gpu.leaks(), []);
    // Functions that free something: their errors are not reported, and the object leaks. They are tested last.
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
        for nth in 1..=calls {
            injected += 1;
            gpu.fail(&name, nth, 999);
            let outcome = scenario();
            gpu.fail(&name, nth, 0);
            // The backend also calls these for itself, where it handles an error.
            let own_sake = function.starts_with("Event") || function == "StreamIsCapturing";
            let may_pass = gives_back(&function) || own_sake;
            match outcome {
                Ok(()) => assert!(may_pass, "call {nth} of {name} failed without an error"),
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

/// Functions with tests of their own: below, and `an_error_names_what_is_missing_for_a_gpu`.
const ALONE: [&str; 4] = ["cuStreamQuery", "cuInit", "cuDriverGetVersion", "cuLaunchHostFunc"];
/// Functions that only a second device needs.
const FOR_A_SECOND: [&str; 4] = ["cuDeviceCanAccessPeer", "cuMemcpyPeerAsync", "cuMemAllocAsync", "cuMemFreeAsync"];

/// Functions for network cards.
const FOR_CARDS: [&str; 2] = ["cuMemGetHandleForAddressRange", "cuFlushGPUDirectRDMAWrites"];

#[test]
fn an_error_at_any_call_of_the_driver_is_named_and_leaks_nothing() {
    let devices: [(&str, &[&str]); 4] = [
        ("RGAPS_TEST_STANDIN_DEVICES", &[]),
        ("RGAPS_TEST_STANDIN_GPU_DIRECT", &[]),
        ("RGAPS_TEST_STANDIN_NO_STREAM_MEM_OPS", &["cuStreamWriteValue32_v2", "cuStreamWaitValue32_v2"]),
        (
            "RGAPS_TEST_STANDIN_INTEGRATED",
            &[
                "cuMemGetAllocationGranularity",
                "cuMemAddressReserve",
                "cuMemAddressFree",
                "cuMemCreate",
                "cuMemRelease",
                "cuMemMap",
                "cuMemUnmap",
                "cuMemSetAccess",
                "cuMemExportToShareableHandle",
                "cuMemImportFromShareableHandle",
            ],
        ),
    ];
    for (name, not_there) in devices {
        if !is_again() {
            again(&[(name, "1")]);
        } else if std::env::var_os(name).is_some() {
            let (gpu, _one, _watchdog) = standin();
            gpu.delay_us(0);
            let for_cards = if name == "RGAPS_TEST_STANDIN_GPU_DIRECT" { &[][..] } else { &FOR_CARDS };
            let injected = inject(&gpu, everything, &[&ALONE[..], &FOR_A_SECOND[..], for_cards, not_there].concat());
            assert!(injected > 300, "{injected}");
        }
    }
}

/// Runs `action` while the first call of `name` fails.
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
            // Functions that this scenario does not call; the test above fails them.
            let above = ["cuMemcpyDtoDAsync_v2", "cuMemGetInfo_v2", "cuStreamIsCapturing"];
            let injected = inject(&gpu, everything_apart, &[&ALONE[..], &FOR_CARDS[..], &above[..]].concat());
            assert!(injected > 300, "{injected}");
        }
    }
}

#[test]
fn an_error_of_the_host_function_that_replaces_stream_words_is_named() {
    if again(&[("RGAPS_TEST_STANDIN_NO_STREAM_MEM_OPS", "1")]) {
        let (gpu, _one, _watchdog) = standin();
        let error = failing(&gpu, "cuLaunchHostFunc", everything).unwrap_err().to_string();
        assert!(error.contains("cuLaunchHostFunc failed: CUDA_ERROR_UNKNOWN (999)"), "{error}");
        assert_eq!(gpu.leaks(), []);
    }
}

#[test]
fn a_stream_that_can_neither_record_nor_be_queried_is_an_error_and_no_hang() {
    let (gpu, _one, _watchdog) = standin();
    let error = failing(&gpu, "cuStreamQuery", || failing(&gpu, "cuEventRecord", everything)).unwrap_err().to_string();
    assert!(error.contains("cuEventRecord failed: CUDA_ERROR_UNKNOWN (999)"), "{error}");
}

#[test]
fn a_refused_event_returns_its_error_once_the_work_is_done() {
    let (gpu, _one, _watchdog) = standin();
    let backend = CudaBackend::open(0).unwrap();
    let page = memfd::create("rgaps-test", 4096).unwrap();
    let memory = backend.stream_memory(&Arc::new(Mapping::map(&page, 4096, Access::ReadWrite).unwrap())).unwrap();
    let word = StreamWord { memory: memory.as_ref(), offset: 0 };
    let stream = backend.stream().unwrap();
    gpu.hold();
    stream.write_value(&word, 1).unwrap();
    let event = failing(&gpu, "cuEventRecord", || stream.record());
    assert!(!event.query().unwrap() && !word.has_reached(1).unwrap());
    assert!(matches!(event.wait(Duration::ZERO), Err(DeviceError::TimedOut(_))));
    gpu.go();
    let error = event.wait(PATIENCE).unwrap_err().to_string();
    assert!(error.contains("cuEventRecord failed") && word.has_reached(1).unwrap(), "{error}");
    assert_eq!(event.query().unwrap_err().to_string(), error, "the error stays");
}

#[test]
fn an_event_of_a_captured_stream_is_reached_after_the_capture() {
    let (gpu, _one, _watchdog) = standin();
    let backend = CudaBackend::open(0).unwrap();
    let (stream, other) = (backend.stream().unwrap(), backend.stream().unwrap());
    let handle = backend.raw_stream(&stream).unwrap();
    gpu.begin_capture(handle);
    let event = stream.record();
    assert!(!event.query().unwrap());
    assert!(matches!(event.wait(Duration::ZERO), Err(DeviceError::TimedOut(_))));
    for refused in [other.wait(&event, PATIENCE), stream.synchronize(PATIENCE)] {
        let refused = refused.unwrap_err().to_string();
        assert!(refused.contains("a stream is being captured"), "{refused}");
    }
    assert!(gpu.end_capture(handle), "no operation became part of the graph");
    event.wait(PATIENCE).unwrap();
    other.wait(&event, PATIENCE).unwrap();
    assert!(event.query().unwrap());
}

#[test]
fn a_device_failure_under_way_is_an_error_and_never_a_wrong_byte() {
    if again(&[]) {
        fail_under_way(everything, 8);
    }
}

#[test]
fn a_device_failure_while_messages_are_copied_is_an_error_and_no_wrong_byte() {
    if again(&BESIDE) {
        fail_under_way(everything_apart, 12);
    }
}

/// Fails the operations of all streams, one at a time.
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
                    text.contains("CUDA_ERROR_LAUNCH_FAILED (719)") && text.contains("restart the process"),
                    "{text}"
                );
            }
        }
        scenario().unwrap_or_else(|error| panic!("a new context is whole again: {error}"));
    }
}
