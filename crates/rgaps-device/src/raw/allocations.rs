//! Counts a thread's heap allocations, for tests of paths that must not allocate.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static TAKEN: Cell<u64> = const { Cell::new(0) };
}

/// The system allocator with a counter. Make it the `#[global_allocator]` of a test program.
#[derive(Debug)]
pub struct CountingAllocator;

/// How often this thread has allocated from the heap.
pub fn taken_by_this_thread() -> u64 {
    TAKEN.with(Cell::get)
}

fn count() {
    // A thread that is exiting has already dropped its counter.
    let _ = TAKEN.try_with(|taken| taken.set(taken.get() + 1));
}

// SAFETY: every call goes to the system allocator with the same arguments; counting only changes a thread-local that allocates nothing.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller keeps the contract of `GlobalAlloc::alloc`, which is System's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the block came from `alloc` or `realloc` above, hence from System, with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        count();
        // SAFETY: the block came from System with this layout; the caller keeps the contract for `bytes`.
        unsafe { System.realloc(pointer, layout, bytes) }
    }
}
