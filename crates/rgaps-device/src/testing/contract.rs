//! The test suite that every backend passes; a backend's test calls `check`.
//!
//! Nothing here assumes that a copy is over when its call returns, that the CPU can read a pool, or that a pool is one slab.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use rgaps_os::{Access, Mapping, memfd};

use crate::backend::{Backend, BufferPart, Original, PayloadAccess, PoolPart};
use crate::buffer::{BufferSpec, HostBuffer};
use crate::error::{DescriptionError, DeviceError};
use crate::pool::{DeviceKind, PoolDescription, PoolMemory, PoolRole, PoolSpec};
use crate::raw::DevicePart;
use crate::stream::StreamWord;

const BYTES: u64 = 1 << 20;
/// How long a device may take for a few bytes before the test fails.
const PATIENCE: Duration = Duration::from_secs(30);

/// Runs the whole contract; panics if the backend breaks it.
pub fn check(backend: &dyn Backend) {
    readers_see_what_the_writer_writes(backend);
    sealing_shuts_out_later_writers_and_no_earlier_one(backend);
    a_pool_is_one_memory_in_every_process(backend);
    copies_arrive_and_stay_inside(backend);
    parts_keep_to_their_bytes_and_rights(backend);
    copies_of_one_stream_are_in_order_and_events_mark_it(backend);
    foreign_memory_is_copied_in(backend);
    device_memory_is_copied_within_the_device_and_read_back(backend);
    a_word_is_written_and_waited_for_in_stream_order(backend);
    a_message_out_of_reach_has_one_mirror_and_a_block_a_scratch(backend);
    host_buffers_are_shared_by_file_descriptor(backend);
    the_right_to_allocate_is_given_once(backend);
    memory_is_populated_and_freed(backend);
    impossible_sizes_are_refused(backend);
    false_pool_descriptions_are_refused_by_name(backend);
}

fn must<T>(outcome: Result<T, DeviceError>) -> T {
    match outcome {
        Ok(value) => value,
        Err(error) => panic!("the contract needs this to succeed: {error}"),
    }
}

/// Part of a pool as the caller's device memory, which keeps the pool alive. Keep it until the stream has done the work that uses it.
pub fn part_of(pool: &Arc<dyn PoolMemory>, offset: u64, bytes: u64) -> Result<DevicePart, DeviceError> {
    Ok(DevicePart::of_pool(pool, offset, bytes)?)
}

fn made(backend: &dyn Backend) -> Arc<dyn PoolMemory> {
    must(backend.create_pool(&PoolSpec { name: "rgaps-contract".to_owned(), bytes: BYTES }))
}

/// The caller's device memory, for streams to work on.
fn own_memory(backend: &dyn Backend) -> Arc<dyn PoolMemory> {
    must(backend.scratch(BYTES)).unwrap_or_else(|| made(backend))
}

fn buffer(backend: &dyn Backend, bytes: u64) -> HostBuffer {
    must(backend.host_buffer(&BufferSpec { name: "rgaps-contract".to_owned(), bytes }))
}

fn put(buffer: &HostBuffer, offset: u64, bytes: &[u8]) {
    assert!(buffer.mapping().copy_in(offset, bytes).is_ok(), "a host buffer can be written");
}

/// Reads a pool by a copy, which works for any kind of memory.
fn holds(backend: &dyn Backend, pool: &dyn PoolMemory, offset: u64, bytes: u64) -> Vec<u8> {
    let to = buffer(backend, bytes);
    let stream = must(backend.stream());
    let copy = backend.copy_to_host(&stream, PoolPart::of(pool, offset), BufferPart { buffer: &to, offset: 0 }, bytes);
    must(must(copy).wait(PATIENCE));
    let mut found = vec![0; bytes as usize];
    assert!(to.mapping().copy_out(0, &mut found).is_ok());
    found
}

fn fill(backend: &dyn Backend, pool: &dyn PoolMemory, offset: u64, bytes: &[u8]) {
    let stream = must(backend.stream());
    must(must(backend.copy_in(&stream, bytes, PoolPart::of(pool, offset))).wait(PATIENCE));
}

fn readers_see_what_the_writer_writes(backend: &dyn Backend) {
    let made = made(backend);
    let (description, slabs) = must(made.export());
    let writer = must(backend.import_pool(&description, slabs, PoolRole::Writer));
    must(made.seal());
    let reader = must(backend.import_pool(&description, must(made.export()).1, PoolRole::Reader));
    fill(backend, writer.as_ref(), 512, b"written once");
    assert_eq!(holds(backend, reader.as_ref(), 512, 12), b"written once");
    assert_eq!(holds(backend, made.as_ref(), 512, 12), b"written once", "the manager reads it too: path 1");
    match (backend.payload_access(), reader.shared(512, 12)) {
        (_, Ok(bytes)) => assert_eq!(bytes.to_vec(), b"written once"),
        (PayloadAccess::Direct, Err(error)) => panic!("links read this pool directly, yet: {error}"),
        (PayloadAccess::Staged, Err(_)) => {}
    }
    assert!(reader.shared(BYTES, 1).is_err() && reader.shared(u64::MAX, 2).is_err());
}

fn parts_keep_to_their_bytes_and_rights(backend: &dyn Backend) {
    let pool = made(backend);
    let stream = must(backend.stream());
    fill(backend, pool.as_ref(), 0, &[1; 128]);
    let (filled, read) = (PoolPart::to_fill(pool.as_ref(), 64, 8), PoolPart::to_read(pool.as_ref(), 64, 8));
    let Ok(rest) = filled.skip(6) else { panic!("6 B of 8 can be left out") };
    for (bytes, part) in [(&[2; 9][..], filled), (&[2; 3], rest), (&[2; 1], read)] {
        let refused = backend.copy_in(&stream, bytes, part);
        assert!(matches!(refused, Err(DeviceError::Range(_))), "{refused:?}");
    }
    let refused = backend.copy_out(&stream, read, &mut [0; 9]);
    assert!(matches!(refused, Err(DeviceError::Range(_))), "{refused:?}");
    assert!(filled.skip(9).is_err() && read.skip(u64::MAX).is_err());
    assert_eq!(holds(backend, pool.as_ref(), 0, 128), [1; 128], "nothing was written");
    must(must(backend.copy_in(&stream, &[2; 2], rest)).wait(PATIENCE));
    assert_eq!(holds(backend, pool.as_ref(), 68, 8), [1, 1, 2, 2, 1, 1, 1, 1]);
}

fn sealing_shuts_out_later_writers_and_no_earlier_one(backend: &dyn Backend) {
    let made = made(backend);
    let (description, slabs) = must(made.export());
    let unsealed = backend.import_pool(&description, must(made.export()).1, PoolRole::Reader);
    assert!(unsealed.is_err(), "a reader insists on the seal");
    let writer = must(backend.import_pool(&description, slabs, PoolRole::Writer));
    must(made.seal());
    let second = backend.import_pool(&description, must(made.export()).1, PoolRole::Writer);
    assert!(second.is_err(), "a sealed pool has the writers that it had");
    fill(backend, writer.as_ref(), 0, b"still");
    let reader = must(backend.import_pool(&description, must(made.export()).1, PoolRole::Reader));
    let stream = must(backend.stream());
    let write = backend.copy_in(&stream, b"never", PoolPart::of(reader.as_ref(), 0));
    assert!(write.is_err(), "a reader's pool takes no copy");
    assert_eq!(holds(backend, made.as_ref(), 0, 5), b"still");
}

fn a_pool_is_one_memory_in_every_process(backend: &dyn Backend) {
    let one = made(backend);
    must(one.seal());
    let (description, slabs) = must(one.export());
    assert_eq!((description.kind, description.device), (backend.kind(), backend.device()));
    assert_eq!(description.bytes, one.bytes());
    let two = must(backend.import_pool(&description, slabs, PoolRole::Successor));
    assert_eq!((two.kind(), two.bytes(), two.identity()), (backend.kind(), one.bytes(), one.identity()));
    let (handed_on, slabs) = must(two.export());
    assert_eq!(handed_on, description, "an importer hands on what it was given");
    let three = must(backend.import_pool(&handed_on, slabs, PoolRole::Reader));
    fill(backend, one.as_ref(), 0, b"one memory");
    assert_eq!(holds(backend, three.as_ref(), 0, 10), b"one memory");
    assert_ne!(made(backend).identity(), one.identity());
    for pool in [&one, &two] {
        let Ok(start) = pool.device_address(0) else { panic!("a pool starts somewhere") };
        assert_eq!(pool.device_address(BYTES - 1), Ok(start + BYTES - 1));
        assert!(pool.device_address(BYTES).is_err() && pool.device_address(u64::MAX).is_err());
    }
}

fn copies_arrive_and_stay_inside(backend: &dyn Backend) {
    let pool = made(backend);
    let buffer = buffer(backend, 8192);
    let stream = must(backend.stream());
    put(&buffer, 100, b"there and back");
    let part = |offset| PoolPart::of(pool.as_ref(), offset);
    let place = |offset| BufferPart { buffer: &buffer, offset };
    let _ = must(backend.copy_to_device(&stream, place(100), part(BYTES - 14), 14));
    let back = must(backend.copy_to_host(&stream, part(BYTES - 14), place(4000), 14));
    must(back.wait(PATIENCE));
    assert!(back.is_complete(), "what was waited for is complete");
    let mut bytes = [0; 16];
    assert!(buffer.mapping().copy_out(3999, &mut bytes).is_ok());
    assert_eq!(&bytes, b"\0there and back\0", "not a byte more");
    for (pool_at, buffer_at, bytes) in [(BYTES - 13, 0, 14), (0, 8192, 1), (u64::MAX, 0, 1), (0, 0, u64::MAX)] {
        let to_device = backend.copy_to_device(&stream, place(buffer_at), part(pool_at), bytes);
        assert!(matches!(to_device, Err(DeviceError::Range(_))), "{bytes} B to {pool_at} from {buffer_at}");
        let to_host = backend.copy_to_host(&stream, part(pool_at), place(buffer_at), bytes);
        assert!(matches!(to_host, Err(DeviceError::Range(_))), "{bytes} B from {pool_at} to {buffer_at}");
    }
    must(must(backend.copy_to_device(&stream, place(8192), part(BYTES), 0)).wait(PATIENCE));
}

fn copies_of_one_stream_are_in_order_and_events_mark_it(backend: &dyn Backend) {
    let pool = made(backend);
    let buffer = buffer(backend, 8192);
    put(&buffer, 0, b"firstsecond");
    let (stream, other) = (must(backend.stream()), must(backend.stream()));
    let part = PoolPart::of(pool.as_ref(), 64);
    let place = |offset| BufferPart { buffer: &buffer, offset };
    let _ = must(backend.copy_to_device(&stream, place(0), part, 5));
    let _ = must(backend.copy_to_device(&stream, place(5), part, 6));
    let written = stream.record();
    must(other.wait(&written, PATIENCE));
    let read = must(backend.copy_to_host(&other, part, place(4096), 6));
    must(read.wait(PATIENCE));
    must(written.wait(PATIENCE));
    assert!(must(written.query()) && must(read.query()) && read.event().is_complete());
    let mut bytes = [0; 6];
    assert!(buffer.mapping().copy_out(4096, &mut bytes).is_ok());
    assert_eq!(&bytes, b"second");
    must(stream.synchronize(PATIENCE));
    must(stream.clone().synchronize(PATIENCE));
}

fn foreign_memory_is_copied_in(backend: &dyn Backend) {
    let pool = made(backend);
    let stream = must(backend.stream());
    let mut mine = *b"pushed";
    let pushed = must(backend.copy_in(&stream, &mine, PoolPart::of(pool.as_ref(), BYTES - 6)));
    mine.fill(0); // The caller may reuse its memory when the call returns.
    must(pushed.wait(PATIENCE));
    assert_eq!(holds(backend, pool.as_ref(), BYTES - 6, 6), b"pushed");
    let outside = backend.copy_in(&stream, b"pushed", PoolPart::of(pool.as_ref(), BYTES - 5));
    assert!(matches!(outside, Err(DeviceError::Range(_))));
}

fn device_memory_is_copied_within_the_device_and_read_back(backend: &dyn Backend) {
    let (from, to) = (own_memory(backend), made(backend));
    fill(backend, from.as_ref(), 256, b"there and back");
    let stream = must(backend.stream());
    let Ok(part) = DevicePart::of_pool(&from, 256, 14) else { panic!("a pool has device addresses") };
    must(backend.copy_within(&stream, &part, PoolPart::of(to.as_ref(), 512)));
    let mut found = [0; 14];
    must(backend.copy_out(&stream, PoolPart::of(to.as_ref(), 512), &mut found));
    assert_eq!(&found, b"there and back");
    for offset in [BYTES - 13, u64::MAX - 1] {
        let place = PoolPart::of(to.as_ref(), offset);
        assert!(backend.copy_within(&stream, &part, place).is_err(), "beyond the pool");
        assert!(backend.copy_out(&stream, place, &mut found).is_err(), "beyond the pool");
    }
    let (read, target) = (PoolPart::to_read(to.as_ref(), 512, 14), PoolPart::to_fill(to.as_ref(), 1024, 14));
    must(must(backend.copy_across(&stream, read, target)).wait(PATIENCE));
    assert_eq!(holds(backend, to.as_ref(), 1024, 14), b"there and back");
    assert!(backend.copy_across(&stream, target, read).is_err(), "into what may only be read");
    assert!(backend.copy_across(&stream, read, PoolPart::to_fill(to.as_ref(), 1024, 13)).is_err(), "beyond the part");
    // Larger than any intermediate buffer.
    let many: Vec<u8> = (0..BYTES).map(|n| (n % 251) as u8).collect();
    fill(backend, from.as_ref(), 0, &many);
    let mut found = vec![0; many.len()];
    must(backend.copy_out(&stream, PoolPart::of(from.as_ref(), 0), &mut found));
    assert!(found == many, "what came back is not what went in");
}

fn a_word_is_written_and_waited_for_in_stream_order(backend: &dyn Backend) {
    let (Ok(fd), pool) = (memfd::create("rgaps-contract", 4096), made(backend)) else {
        panic!("a page of shared memory")
    };
    let Ok(mapping) = Mapping::map(&fd, 4096, Access::ReadWrite) else { panic!("it can be mapped") };
    let memory = must(backend.stream_memory(&Arc::new(mapping)));
    let word = |offset| StreamWord { memory: memory.as_ref(), offset };
    let (producer, consumer) = (must(backend.stream()), must(backend.stream()));
    let from = buffer(backend, BYTES);
    let to = buffer(backend, BYTES);
    // The counter wraps: the last value is 3 past the one before it.
    for (round, value) in [1 << 30, 1 << 31, u32::MAX, 2].into_iter().enumerate() {
        let content = vec![round as u8 + 1; BYTES as usize];
        put(&from, 0, &content);
        let place = PoolPart::of(pool.as_ref(), 0);
        let _behind = must(backend.copy_to_device(&producer, BufferPart { buffer: &from, offset: 0 }, place, BYTES));
        must(producer.write_value(&word(64), value));
        must(consumer.wait_value(&word(64), value, PATIENCE));
        let back = backend.copy_to_host(&consumer, place, BufferPart { buffer: &to, offset: 0 }, BYTES);
        must(must(back).wait(PATIENCE));
        let found = to.mapping().shared(0, BYTES).map(|found| found.to_vec());
        assert!(found.is_ok_and(|found| found == content), "the consumer was too early");
        assert_eq!(word(64).has_reached(value), Ok(true));
        assert_eq!(word(64).has_reached(value.wrapping_add(1)), Ok(false));
    }
    for offset in [4096, 4094, 2, u64::MAX] {
        assert!(producer.write_value(&word(offset), 1).is_err(), "a word at {offset}");
        assert!(consumer.wait_value(&word(offset), 0, PATIENCE).is_err(), "a word at {offset}");
    }
}

fn a_message_out_of_reach_has_one_mirror_and_a_block_a_scratch(backend: &dyn Backend) {
    let (Ok(fd), pool) = (memfd::create("rgaps-contract", 4096), made(backend)) else {
        panic!("a page of shared memory")
    };
    let Ok(mapping) = Mapping::map(&fd, 4096, Access::ReadWrite) else { panic!("it can be mapped") };
    let memory = must(backend.stream_memory(&Arc::new(mapping)));
    let word = StreamWord { memory: memory.as_ref(), offset: 0 };
    let (producer, consumer) = (must(backend.stream()), must(backend.stream()));
    fill(backend, pool.as_ref(), 0, b"before");
    let original =
        Original { pool: &pool, offset: 0, bytes: 6, position: 7, awaited: Some((word, 1)), timeout: PATIENCE };
    let part = PoolPart::of(pool.as_ref(), 0);
    let Some(scratch) = must(backend.scratch(6)) else {
        assert!(must(backend.mirror(&original)).is_none(), "a device that works in place needs no copy");
        assert!(backend.copy_scratch(&producer, pool.as_ref(), part, 6).is_err());
        return;
    };
    // Filled, copied and freed in the order of one stream.
    let _behind = must(backend.copy_in(&producer, b"behind", PoolPart::of(scratch.as_ref(), 0)));
    let _copied = must(backend.copy_scratch(&producer, scratch.as_ref(), part, 6));
    drop(scratch);
    must(producer.write_value(&word, 1));
    let mirror = |of: &Original<'_>| match must(backend.mirror(of)) {
        Some(mirror) => mirror,
        None => panic!("it does not reach the pool"),
    };
    let first = mirror(&original);
    must(consumer.wait(first.copied.event(), PATIENCE));
    let mut found = [0; 6];
    must(backend.copy_out(&consumer, PoolPart::of(first.memory.as_ref(), 0), &mut found));
    assert_eq!(&found, b"behind", "the copy was made too early");
    let again = mirror(&original);
    assert!(!first.is_shared && again.is_shared && again.memory.identity() == first.memory.identity());
    let later = mirror(&Original { position: 8, ..original });
    assert!(!later.is_shared, "a later message in the same block is another message");
    drop((first, again));
    let anew = mirror(&original);
    assert!(!anew.is_shared, "the first copy was dropped");
    let empty = mirror(&Original { offset: BYTES, bytes: 0, position: 9, ..original });
    assert!(empty.memory.device_address(0).is_ok(), "an empty message has an address too");
    [later, anew, empty].iter().for_each(|mirror| must(mirror.copied.wait(PATIENCE)));
    for offset in [BYTES - 5, u64::MAX] {
        assert!(backend.mirror(&Original { offset, ..original }).is_err(), "beyond the pool");
    }
}

fn host_buffers_are_shared_by_file_descriptor(backend: &dyn Backend) {
    let one = buffer(backend, 8192);
    let Ok(fd) = one.fd().try_clone_to_owned() else { panic!("a file descriptor can be cloned") };
    let spec = |bytes| BufferSpec { name: "rgaps-contract".to_owned(), bytes };
    let two = must(backend.host_buffer_from_fd(&spec(8192), fd));
    put(&one, 8000, b"one memory");
    let pool = made(backend);
    let stream = must(backend.stream());
    let copy =
        backend.copy_to_device(&stream, BufferPart { buffer: &two, offset: 8000 }, PoolPart::of(pool.as_ref(), 0), 10);
    must(must(copy).wait(PATIENCE));
    assert_eq!(holds(backend, pool.as_ref(), 0, 10), b"one memory");
    let Ok(fd) = one.fd().try_clone_to_owned() else { panic!("a file descriptor can be cloned") };
    assert!(matches!(backend.host_buffer_from_fd(&spec(4096), fd), Err(DeviceError::Map { .. })));
    for fd in strangers() {
        assert!(matches!(backend.host_buffer_from_fd(&spec(8192), fd), Err(DeviceError::Map { .. })));
    }
}

fn the_right_to_allocate_is_given_once(backend: &dyn Backend) {
    let pool = made(backend);
    let Some(right) = pool.allocation_right() else { panic!("a pool's maker may be its writer") };
    assert_eq!(right.bytes(), BYTES);
    assert!(pool.allocation_right().is_none());
    must(pool.seal());
    let (description, slabs) = must(pool.export());
    let reader = must(backend.import_pool(&description, slabs, PoolRole::Reader));
    assert!(reader.allocation_right().is_none(), "a reader never allocates");
}

fn memory_is_populated_and_freed(backend: &dyn Backend) {
    let pool = made(backend);
    let before = pool.resident_bytes();
    must(pool.populate(0, BYTES));
    assert!(pool.resident_bytes() >= before.max(BYTES), "populated memory is resident");
    fill(backend, pool.as_ref(), 0, b"kept");
    must(pool.populate(0, BYTES));
    assert_eq!(holds(backend, pool.as_ref(), 0, 4), b"kept", "preparing changes no byte");
    assert!(matches!(pool.populate(1, BYTES), Err(DeviceError::Range(_))));
    assert!(matches!(pool.release_unused(BYTES, 1), Err(DeviceError::Range(_))));
    match pool.release_unused(0, BYTES) {
        Ok(()) => assert!(pool.resident_bytes() < BYTES, "freed memory is no longer resident"),
        Err(DeviceError::Kept { bytes: BYTES, .. }) => {}
        Err(error) => panic!("memory is freed, or the error is Kept: {error}"),
    }
}

fn impossible_sizes_are_refused(backend: &dyn Backend) {
    for bytes in [u64::MAX, 1 << 63, 1 << 60] {
        let pool = backend.create_pool(&PoolSpec { name: "rgaps-contract".to_owned(), bytes });
        assert!(matches!(pool, Err(DeviceError::TooLarge { .. } | DeviceError::Create { .. })), "a pool of {bytes} B");
        let buffer = backend.host_buffer(&BufferSpec { name: "rgaps-contract".to_owned(), bytes });
        assert!(buffer.is_err(), "a host buffer of {bytes} B");
    }
    let smallest = must(backend.create_pool(&PoolSpec { name: "rgaps-contract".to_owned(), bytes: 0 }));
    assert!(smallest.bytes() > 0, "a pool holds something");
}

/// File descriptors that must be refused: two that are no memfd, and a memfd whose size is not sealed.
fn strangers() -> Vec<OwnedFd> {
    let device = std::fs::File::open("/dev/null").map(OwnedFd::from);
    let file = std::fs::File::open("/proc/self/exe").map(OwnedFd::from);
    let resizable = rustix::fs::memfd_create("rgaps-contract", rustix::fs::MemfdFlags::ALLOW_SEALING);
    let resizable = resizable.and_then(|fd| rustix::fs::ftruncate(&fd, BYTES).map(|()| fd));
    device.into_iter().chain(file).chain(resizable).collect()
}

fn false_pool_descriptions_are_refused_by_name(backend: &dyn Backend) {
    let pool = made(backend);
    must(pool.seal());
    let honest = must(pool.export()).0;
    let fds = || must(pool.export()).1;
    let refused = |lie: &PoolDescription, fds: Vec<OwnedFd>| match backend.import_pool(lie, fds, PoolRole::Reader) {
        Ok(_) => panic!("believed: {lie:?}"),
        Err(error) => error,
    };
    let named = |lie: &PoolDescription, fds| match refused(lie, fds) {
        DeviceError::Refused(name) => name,
        other => panic!("{lie:?} gives {other}"),
    };
    let with = |change: &dyn Fn(&mut PoolDescription)| {
        let mut lie = honest.clone();
        change(&mut lie);
        lie
    };

    let pool_only = with(&|lie| lie.bytes *= 2);
    assert!(matches!(named(&pool_only, fds()), DescriptionError::Bytes { .. }));
    let both = with(&|lie| {
        lie.bytes *= 2;
        lie.slabs[0].bytes += lie.bytes / 2;
    });
    assert!(matches!(refused(&both, fds()), DeviceError::Map { .. }), "the file descriptor itself says how long it is");
    let impossible = with(&|lie| {
        lie.bytes = u64::MAX;
        lie.slabs[0].bytes = u64::MAX;
    });
    assert_eq!(named(&impossible, fds()), DescriptionError::ImpossibleSize(u64::MAX));
    let empty = with(&|lie| {
        lie.bytes = 0;
        lie.slabs[0].bytes = 0;
    });
    assert_eq!(named(&empty, fds()), DescriptionError::ImpossibleSize(0));
    assert!(matches!(named(&with(&|lie| lie.slabs.clear()), fds()), DescriptionError::Slabs { described: 0, .. }));
    assert!(matches!(named(&with(&|lie| lie.slabs[0].index = 9), fds()), DescriptionError::Order { index: 9, .. }));
    assert!(matches!(named(&with(&|lie| lie.device.0[3] ^= 1), fds()), DescriptionError::Device { .. }));
    let other = if backend.kind() == DeviceKind::Host { DeviceKind::Cuda } else { DeviceKind::Host };
    assert!(matches!(named(&with(&|lie| lie.kind = other), fds()), DescriptionError::Device { .. }));
    assert!(matches!(named(&honest, Vec::new()), DescriptionError::FileDescriptors { came: 0, .. }));
    let more = fds().into_iter().chain(fds()).collect();
    assert!(matches!(named(&honest, more), DescriptionError::FileDescriptors { .. }));
    for stranger in strangers() {
        let mut fds = fds();
        fds[0] = stranger;
        assert!(matches!(refused(&honest, fds), DeviceError::Map { .. }));
    }
    if let Ok(unsealed) = memfd::create("rgaps-contract", honest.slabs[0].bytes) {
        let mut fds = fds();
        fds[0] = unsealed;
        assert!(matches!(refused(&honest, fds), DeviceError::Map { .. }), "a reader insists on the seal");
    }
}
