//! What every backend keeps; a backend's test calls `check` and inherits all of it.

use crate::backend::{Backend, BufferPart, PoolPart};
use crate::buffer::BufferSpec;
use crate::error::DeviceError;
use crate::pool::{PoolRole, PoolSpec};

const BYTES: u64 = 1 << 20;

/// Runs the whole contract; panics where it is broken.
pub fn check(backend: &dyn Backend) {
    readers_see_what_the_writer_writes(backend);
    copies_arrive_and_stay_inside(backend);
    the_right_to_allocate_is_given_once(backend);
    lies_about_a_pool_are_refused(backend);
}

fn must<T>(outcome: Result<T, DeviceError>) -> T {
    match outcome {
        Ok(value) => value,
        Err(error) => panic!("the contract needs this to succeed: {error}"),
    }
}

fn spec() -> PoolSpec {
    PoolSpec { name: "rgaps-contract".to_owned(), bytes: BYTES }
}

fn readers_see_what_the_writer_writes(backend: &dyn Backend) {
    let made = must(backend.create_pool(&spec()));
    let (description, slabs) = must(made.export());
    let writer = must(backend.import_pool(&description, slabs, PoolRole::Writer));
    must(made.seal());
    let (_, slabs) = must(made.export());
    assert!(backend.import_pool(&description, slabs, PoolRole::Writer).is_err(), "a sealed pool has one writer");
    let (_, slabs) = must(made.export());
    let reader = must(backend.import_pool(&description, slabs, PoolRole::Reader));
    assert_eq!(writer.identity(), reader.identity());
    assert_eq!(reader.bytes(), BYTES);
    assert!(reader.allocation_right().is_none(), "a reader never allocates");
    let buffer = must(backend.host_buffer(&BufferSpec { name: "rgaps-contract".to_owned(), bytes: 4096 }));
    assert!(buffer.mapping().copy_in(0, b"written once").is_ok());
    let stream = must(backend.stream());
    let from = BufferPart { buffer: &buffer, offset: 0 };
    let done = must(backend.copy_to_device(&stream, from, PoolPart { pool: writer.as_ref(), offset: 512 }, 12));
    assert!(done.is_complete() || backend.payload_access() == crate::backend::PayloadAccess::Staged);
    if let Ok(bytes) = reader.host_bytes(512, 12) {
        assert_eq!(bytes, b"written once");
    }
}

fn copies_arrive_and_stay_inside(backend: &dyn Backend) {
    let pool = must(backend.create_pool(&spec()));
    let buffer = must(backend.host_buffer(&BufferSpec { name: "rgaps-contract".to_owned(), bytes: 8192 }));
    let stream = must(backend.stream());
    assert!(buffer.mapping().copy_in(100, b"there and back").is_ok());
    let part = |offset| PoolPart { pool: pool.as_ref(), offset };
    let place = |offset| BufferPart { buffer: &buffer, offset };
    let _ = must(backend.copy_to_device(&stream, place(100), part(BYTES - 14), 14));
    let back = must(backend.copy_to_host(&stream, part(BYTES - 14), place(4000), 14));
    assert!(back.is_complete());
    let mut bytes = [0; 14];
    assert!(buffer.mapping().copy_out(4000, &mut bytes).is_ok());
    assert_eq!(&bytes, b"there and back");
    for (pool_at, buffer_at, bytes) in [(BYTES - 13, 0, 14), (0, 8192, 1), (u64::MAX, 0, 1), (0, 0, u64::MAX)] {
        assert!(backend.copy_to_device(&stream, place(buffer_at), part(pool_at), bytes).is_err());
        assert!(backend.copy_to_host(&stream, part(pool_at), place(buffer_at), bytes).is_err());
    }
}

fn the_right_to_allocate_is_given_once(backend: &dyn Backend) {
    let pool = must(backend.create_pool(&spec()));
    assert!(pool.allocation_right().is_some());
    assert!(pool.allocation_right().is_none());
}

fn lies_about_a_pool_are_refused(backend: &dyn Backend) {
    let pool = must(backend.create_pool(&spec()));
    let (honest, slabs) = must(pool.export());
    let unsealed = backend.import_pool(&honest, slabs, PoolRole::Reader);
    assert!(unsealed.is_err(), "a reader insists on the seal");
    must(pool.seal());
    let import = |description: &crate::pool::PoolDescription, fds| {
        assert!(backend.import_pool(description, fds, PoolRole::Reader).is_err(), "{description:?}");
    };
    let fds = || must(pool.export()).1;
    let mut lie = honest.clone();
    lie.bytes *= 2;
    import(&lie, fds());
    lie.slabs[0].bytes *= 2;
    import(&lie, fds());
    lie.bytes = u64::MAX;
    lie.slabs[0].bytes = u64::MAX;
    import(&lie, fds());
    import(&honest, Vec::new());
    let mut none = honest.clone();
    none.slabs.clear();
    import(&none, fds());
    let stranger = std::fs::File::open("/dev/null").map(Into::into);
    import(&honest, stranger.into_iter().collect());
}
