//! Handles: opaque numbers that a C program holds instead of objects. They look like pointers, but are not followed.
//!
//! ```text
//!   63        32 31       10 9      5 4     1   0
//!  ┌────────────┬───────────┬────────┬───────┬───┐   generation  of the table's entry; differs from the entry's present one if released
//!  │ generation │   index   │ forks  │ what  │ 1 │   index       of the entry in the table for that kind of object
//!  └────────────┴───────────┴────────┴───────┴───┘   forks       number of forks before this process, so that a child detects its parent's
//!                                                    what        kind of object
//! ```
//!
//! No aligned pointer has the low bit set. A child starts with empty tables, because threads that it does not have may hold locks of its parent's.
//!
//! Invariants  H1 entries are never freed, so that a look-up of any number is safe. H2 an entry's generation changes when its object is removed;
//!             generation 0 is never used. H3 a look-up returns a clone, so that an object in use outlives its handle. H4 a child touches neither
//!             locks nor objects of its parent's tables.
//!
//! Costs       a look-up is an uncontended lock and a clone of an `Arc`. Entries are reused, so that a message's handle needs no heap allocation.

use std::fmt;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use crate::raw;

/// Entries of the first block; each further block has twice as many as the one before it.
const FIRST_BLOCK: u32 = 64;
/// Entries of a table, so that indices fit their bits.
pub(crate) const ENTRIES_MAX: u32 = 1 << 22;
/// Blocks needed for `ENTRIES_MAX` entries.
const BLOCKS: usize = 17;
/// Generations of forked processes with their own tables; the 33rd uses the first one's again.
pub const FORKS: u32 = 32;

/// Kinds of objects that have handles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum What {
    /// A node.
    Node = 1,
    /// A publisher.
    Publisher,
    /// A subscriber.
    Subscriber,
    /// A loan.
    Loan,
    /// A message.
    Message,
    /// What takes the messages of a ROS subscription.
    Payloads,
    /// A pool.
    Pool,
    /// A buffer.
    Buffer,
    /// A buffer of a ROS message.
    RosBuffer,
    /// A read or write of such a buffer.
    RosAccess,
}

impl What {
    const ALL: [Self; 10] = [
        Self::Node,
        Self::Publisher,
        Self::Subscriber,
        Self::Loan,
        Self::Message,
        Self::Payloads,
        Self::Pool,
        Self::Buffer,
        Self::RosBuffer,
        Self::RosAccess,
    ];
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Node => "node",
            Self::Publisher => "publisher",
            Self::Subscriber => "subscriber",
            Self::Loan => "loan",
            Self::Message => "message",
            Self::Payloads => "payloads object",
            Self::Pool => "pool",
            Self::Buffer => "buffer",
            Self::RosBuffer => "buffer of a ROS message",
            Self::RosAccess => "read or write of a ROS message",
        })
    }
}

/// Why a handle names no object of the required kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadHandle {
    /// NULL.
    Null(What),
    /// It is not a handle, or was never returned.
    Foreign(What, u64),
    /// It is the handle of another kind of object.
    Other(What, What),
    /// Its object was released.
    Released(What),
    /// The process that this one was forked from created it.
    Forked(What),
}

impl fmt::Display for BadHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null(wanted) => write!(f, "the {wanted} is NULL"),
            Self::Foreign(wanted, handle) => {
                write!(f, "{handle:#x} is no {wanted} of RGAPS; it may be a pointer to one")
            }
            Self::Other(wanted, found) => write!(f, "a {wanted} is needed, this is the handle of a {found}"),
            Self::Released(wanted) => {
                write!(f, "the {wanted} has been released or destroyed; its handle is no longer valid")
            }
            Self::Forked(wanted) => write!(f, "the {wanted} belongs to the parent process; make a node after fork"),
        }
    }
}

#[derive(Debug)]
struct Entry<T> {
    generation: u32,
    object: Option<T>,
}

#[derive(Debug, Default)]
struct Free {
    /// Entries to reuse.
    list: Vec<u32>,
    /// Entries that were ever used.
    used: u32,
}

type Block<T> = OnceLock<Box<[Mutex<Entry<T>>]>>;

#[derive(Debug)]
struct Entries<T> {
    blocks: [Block<T>; BLOCKS],
    free: Mutex<Free>,
}

/// The objects of one kind that C programs hold.
#[derive(Debug)]
pub struct Table<T> {
    what: What,
    /// The tables of this process and of its forebears, indexed by forks.
    of: [OnceLock<Box<Entries<T>>>; FORKS as usize],
}

impl<T: Clone> Table<T> {
    /// An empty table.
    pub const fn new(what: What) -> Self {
        Self { what, of: [const { OnceLock::new() }; FORKS as usize] }
    }

    /// Gives an object a handle. `None` if all `ENTRIES_MAX` entries are in use.
    pub fn insert(&self, object: T) -> Option<u64> {
        self.insert_after(raw::forks() % FORKS, object)
    }

    /// The object of a handle.
    pub fn look_up(&self, handle: u64) -> Result<T, BadHandle> {
        self.look_up_after(raw::forks() % FORKS, handle)
    }

    /// Removes the object and invalidates its handle.
    pub fn remove(&self, handle: u64) -> Result<T, BadHandle> {
        self.remove_after(raw::forks() % FORKS, handle)
    }

    fn insert_after(&self, forks: u32, object: T) -> Option<u64> {
        let entries = self.of.get(forks as usize)?.get_or_init(Box::default);
        let (index, generation) = entries.insert(object)?;
        let handle = u64::from(generation) << 32 | u64::from(index) << 10 | u64::from(forks) << 5;
        Some(handle | (self.what as u64) << 1 | 1)
    }

    fn look_up_after(&self, forks: u32, handle: u64) -> Result<T, BadHandle> {
        let (entry, generation) = self.entry(forks, handle)?;
        let entry = lock(entry);
        let object = entry.object.as_ref().filter(|_| entry.generation == generation);
        object.cloned().ok_or(BadHandle::Released(self.what))
    }

    fn remove_after(&self, forks: u32, handle: u64) -> Result<T, BadHandle> {
        let (entry, generation) = self.entry(forks, handle)?;
        let mut entry = lock(entry);
        if entry.generation != generation {
            return Err(BadHandle::Released(self.what));
        }
        let object = entry.object.take().ok_or(BadHandle::Released(self.what))?;
        entry.generation = entry.generation.checked_add(1).unwrap_or(1);
        drop(entry);
        if let Some(entries) = self.of.get(forks as usize).and_then(OnceLock::get) {
            lock(&entries.free).list.push(index_of(handle));
        }
        Ok(object)
    }

    /// The entry that a handle names, and its generation.
    fn entry(&self, forks: u32, handle: u64) -> Result<(&Mutex<Entry<T>>, u32), BadHandle> {
        if handle == 0 {
            return Err(BadHandle::Null(self.what));
        }
        let generation = (handle >> 32) as u32;
        let what = What::ALL.into_iter().find(|what| *what as u64 == handle >> 1 & 0xf);
        match what.filter(|_| handle & 1 == 1 && generation != 0) {
            Some(what) if what != self.what => return Err(BadHandle::Other(self.what, what)),
            Some(_) if (handle >> 5) as u32 % FORKS != forks => return Err(BadHandle::Forked(self.what)),
            Some(_) => {}
            None => return Err(BadHandle::Foreign(self.what, handle)),
        }
        let entries = self.of.get(forks as usize).and_then(OnceLock::get);
        let entry = entries.and_then(|entries| entries.entry(index_of(handle)));
        Ok((entry.ok_or(BadHandle::Foreign(self.what, handle))?, generation))
    }
}

impl<T> Default for Entries<T> {
    fn default() -> Self {
        Self { blocks: [const { OnceLock::new() }; BLOCKS], free: Mutex::default() }
    }
}

impl<T> Entries<T> {
    /// Stores the object; returns its index and the entry's generation.
    fn insert(&self, object: T) -> Option<(u32, u32)> {
        let mut free = lock(&self.free);
        let index = match free.list.pop() {
            Some(index) => index,
            None => {
                let index = free.used;
                self.make(index)?;
                free.used += 1;
                index
            }
        };
        drop(free);
        let mut entry = lock(self.entry(index)?);
        entry.object = Some(object);
        Some((index, entry.generation))
    }

    fn entry(&self, index: u32) -> Option<&Mutex<Entry<T>>> {
        let (block, offset) = block_of(index);
        self.blocks.get(block)?.get()?.get(offset)
    }

    /// Creates the block of this index if it does not exist.
    fn make(&self, index: u32) -> Option<()> {
        let (block, _) = block_of(Some(index).filter(|index| *index < ENTRIES_MAX)?);
        let empty = || Mutex::new(Entry { generation: 1, object: None });
        self.blocks.get(block)?.get_or_init(|| (0..FIRST_BLOCK << block).map(|_| empty()).collect());
        Some(())
    }
}

fn index_of(handle: u64) -> u32 {
    handle as u32 >> 10
}

/// The block that an index is in, and its entry there.
fn block_of(index: u32) -> (usize, usize) {
    let number = u64::from(index) + u64::from(FIRST_BLOCK);
    let block = number.ilog2() - FIRST_BLOCK.ilog2();
    (block as usize, (number - (u64::from(FIRST_BLOCK) << block)) as usize)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn every_index_has_its_own_place() {
        let mut expected = (0, 0);
        for index in 0..100_000 {
            assert_eq!(block_of(index), expected);
            expected.1 += 1;
            if expected.1 == (FIRST_BLOCK as usize) << expected.0 {
                expected = (expected.0 + 1, 0);
            }
        }
        assert!(block_of(ENTRIES_MAX - 1).0 < BLOCKS);
        assert_eq!(index_of(u64::from(u32::MAX)), ENTRIES_MAX - 1, "its bits hold no more");
    }

    #[test]
    fn a_handle_names_its_object_until_it_is_released_and_is_an_error_afterwards() {
        let table = Table::new(What::Message);
        let handles: Vec<u64> = (0..1000).map(|number| table.insert(number).unwrap()).collect();
        for (number, handle) in handles.iter().enumerate() {
            assert_eq!((table.look_up(*handle), handle & 1), (Ok(number), 1));
        }
        assert_eq!(table.remove(handles[7]), Ok(7));
        let released = Err(BadHandle::Released(What::Message));
        assert_eq!((table.look_up(handles[7]), table.remove(handles[7])), (released, released));
        let again = table.insert(70).unwrap();
        assert_ne!(again, handles[7], "the same entry, another generation");
        assert_eq!((table.look_up(again), table.look_up(handles[7])), (Ok(70), released));
    }

    #[test]
    fn an_invalid_handle_is_refused_with_its_reason() {
        let (nodes, loans) = (Table::new(What::Node), Table::new(What::Loan));
        let (node, loan) = (nodes.insert(()).unwrap(), loans.insert(()).unwrap());
        assert_eq!(nodes.look_up(0), Err(BadHandle::Null(What::Node)));
        assert_eq!(nodes.look_up(loan), Err(BadHandle::Other(What::Node, What::Loan)));
        let pointer = std::ptr::from_ref(&nodes) as u64;
        for foreign in [pointer, u64::MAX, 1, node | 0x1f << 27 | 0xffff << 10, node & 0xffff_ffff] {
            assert!(matches!(nodes.look_up(foreign), Err(BadHandle::Foreign(What::Node, _))), "{foreign:#x}");
            assert!(matches!(nodes.remove(foreign), Err(BadHandle::Foreign(What::Node, _))), "{foreign:#x}");
        }
        assert_eq!(loans.remove(loan), Ok(()));
    }

    #[test]
    fn a_forked_process_has_empty_tables_and_gets_an_error_for_its_parents_handles() {
        let table = Table::new(What::Loan);
        let parents = table.insert_after(0, 1).unwrap();
        let forked = Err(BadHandle::Forked(What::Loan));
        assert_eq!((table.look_up_after(1, parents), table.remove_after(1, parents)), (forked, forked));
        let childs = table.insert_after(1, 2).unwrap();
        assert_ne!(childs, parents);
        assert_eq!((table.look_up_after(1, childs), table.look_up_after(0, parents)), (Ok(2), Ok(1)));
        assert_eq!(table.look_up_after(0, childs), forked);
        assert_eq!((table.remove_after(1, childs), table.remove_after(0, parents)), (Ok(2), Ok(1)));
    }

    #[test]
    fn a_child_does_not_wait_for_a_lock_that_its_parent_held() {
        let table = Table::new(What::Loan);
        let parents = table.insert_after(0, 1).unwrap();
        let entries = table.of[0].get().unwrap();
        let _locked = (lock(&entries.free), lock(entries.entry(0).unwrap()));
        assert!(table.look_up_after(1, parents).is_err());
        assert_eq!(table.insert_after(1, 2).map(|childs| table.remove_after(1, childs)), Some(Ok(2)));
    }

    #[test]
    fn an_object_in_use_outlives_its_handle() {
        let table = Table::new(What::Publisher);
        let handle = table.insert(Arc::new(5)).unwrap();
        let used = table.look_up(handle).unwrap();
        drop(table.remove(handle));
        assert_eq!((*used, Arc::strong_count(&used)), (5, 1));
    }

    #[test]
    fn threads_that_release_the_same_handle_release_it_once() {
        let table = Table::new(What::Message);
        for _ in 0..200 {
            let handle = table.insert(()).unwrap();
            let released: usize = std::thread::scope(|scope| {
                let threads: Vec<_> =
                    (0..3).map(|_| scope.spawn(|| usize::from(table.remove(handle).is_ok()))).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).sum()
            });
            assert_eq!(released, 1);
        }
    }
}
