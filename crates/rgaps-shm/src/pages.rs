//! A subscriber's own words: what it has read, what it holds, and whether it sleeps. Only its client and the manager can write their file.
//!
//! ```text
//!   the file of one client:   [ place 0 ][ place 1 ][ place 2 ] ...   a place is SubscriberWords, 64 KiB │ hold words, 2^16 × 4 B
//!
//!   manager ── makes it, and keeps a file descriptor for publishers that come later
//!      ├──▶ the client, for writing: it has a place for each of its subscribers, of whatever topic
//!      └──▶ publishers of their topics, for reading (subscribers.rs): each maps that one place
//! ```
//!
//! A subscriber maps the segment for reading and its own place for writing. So it can change only
//! what its own client's subscribers say of themselves. No place is used twice, so nobody reads what a former subscriber or its streams still write.
//!
//! Trusts      nothing: length and seals are checked by the mapping, identity here.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::{ControlFlow, Range};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use rgaps_os::{Access, Found, Links, MapError, Mapping, SealError, Seals, memfd, pidfd};

use crate::layout::{
    HOLDS_OFFSET, LAYOUT_VERSION, PAGES_MAGIC, SUBSCRIBER_PAGES_BYTES, SUBSCRIBERS_MAX, SubscriberWords,
};
use crate::raw::view;
use crate::segment::{AttachError, halves, inside};
use crate::slot::SubscriberSlot;
use crate::words::message::HoldWord;
use crate::words::queue::MessageIndex;

/// Places of one file, nearly all of them holes. A client that makes more subscribers in its life gets another file.
const PLACES: u32 = 4096;
/// As /proc shows it.
const NAME: &str = "rgaps-subscribers";
const FILE_BYTES: u64 = PLACES as u64 * SUBSCRIBER_PAGES_BYTES;

/// The file that one client's subscribers write.
#[derive(Debug)]
pub struct SubscriberFile {
    fd: OwnedFd,
    /// Places that were given out.
    used: AtomicU32,
    /// For reading, once somebody was told of it.
    reading: OnceLock<OwnedFd>,
}

impl SubscriberFile {
    /// Makes a client's file. Only the manager does.
    pub fn create() -> Result<Arc<Self>, AttachError> {
        let os = |source| MapError::Os { bytes: FILE_BYTES, source };
        let fd = memfd::create(NAME, FILE_BYTES).map_err(os)?;
        Ok(Arc::new(Self { fd, used: AtomicU32::new(0), reading: OnceLock::new() }))
    }

    /// A file that came through a socket: its places were given out by somebody else.
    pub fn adopt(fd: OwnedFd) -> Arc<Self> {
        Arc::new(Self { fd, used: AtomicU32::new(PLACES), reading: OnceLock::new() })
    }

    fn has_place(&self) -> bool {
        self.used.load(Ordering::Relaxed) < PLACES
    }

    /// Calls `look` for each such file that a process of this user's has open, until it breaks: for a client that is stopped, and hands nothing back.
    /// The files are open for reading while `look` keeps them.
    pub fn each_of_process(pid: u32, mut look: impl FnMut(Arc<Self>) -> ControlFlow<()>) {
        let open = pidfd::open_files(pid).into_iter().flatten();
        let is_named_so = |path: &PathBuf| {
            std::fs::read_link(path).is_ok_and(|to| to.to_string_lossy().starts_with(&format!("/memfd:{NAME} ")))
        };
        // All memfds are on one device, which the kernel keeps to itself. A process can give any file of its own that name.
        let Ok((memory, _)) = memfd::create(NAME, 0).and_then(memfd::identity) else { return };
        let mut seen = BTreeSet::new();
        for path in open.filter(is_named_so) {
            let Ok(found) = Found::at(&path, Links::Follow) else { continue };
            if found.identity().0 != memory || !seen.insert(found.identity()) {
                continue;
            }
            let Ok(fd) = found.open().map(OwnedFd::from) else { continue };
            if memfd::check_own(&fd, FILE_BYTES).is_ok() && look(Self::adopt(fd)).is_break() {
                return;
            }
        }
    }

    /// A file descriptor that can be mapped for reading and not for writing. An error if the file is another user's, or no such file.
    pub fn reading(&self) -> Result<BorrowedFd<'_>, SealError> {
        if let Some(fd) = self.reading.get() {
            return Ok(fd.as_fd());
        }
        let fd = memfd::read_only(&self.fd, FILE_BYTES)?;
        Ok(self.reading.get_or_init(|| fd).as_fd())
    }
}

impl AsFd for SubscriberFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The files of one client whose subscribers live: one to give places of, and those that it had of earlier managers.
#[derive(Debug, Default)]
pub struct SubscriberFiles {
    /// The one to give places of.
    current: Weak<SubscriberFile>,
    /// All, by device and inode.
    known: BTreeMap<(u64, u64), Weak<SubscriberFile>>,
}

impl SubscriberFiles {
    /// The file to give a place of: a new one if the client has none, or no place is left in it. A file ends with its last subscriber.
    pub fn with_place(&mut self) -> Result<Arc<SubscriberFile>, AttachError> {
        if let Some(file) = self.current.upgrade().filter(|file| file.has_place()) {
            return Ok(file);
        }
        let file = SubscriberFile::create()?;
        self.current = Arc::downgrade(&file);
        Ok(file)
    }

    /// A file that comes through a socket, as `SubscriberFile::adopt` has it. If it came before and is in use still, its new file descriptor is not
    /// kept.
    pub fn adopt(&mut self, fd: OwnedFd) -> Result<Arc<SubscriberFile>, SealError> {
        memfd::check(&fd, FILE_BYTES, Seals::Size)?;
        let identity = memfd::identity(&fd)?;
        if let Some(file) = self.known.get(&identity).and_then(Weak::upgrade) {
            return Ok(file);
        }
        self.known.retain(|_, file| file.strong_count() > 0);
        let file = SubscriberFile::adopt(fd);
        self.known.insert(identity, Arc::downgrade(&file));
        Ok(file)
    }
}

/// A subscriber's own words in this process.
#[derive(Debug)]
pub struct SubscriberPages {
    mapping: Mapping,
    place: u32,
    slot: SubscriberSlot,
    /// `None` where it is only read.
    file: Option<Arc<SubscriberFile>>,
}

impl SubscriberPages {
    /// Makes the words of a slot's next occupant, in its client's file. Only the manager does.
    pub fn create(file: &Arc<SubscriberFile>, topic: [u8; 16], slot: SubscriberSlot) -> Result<Self, AttachError> {
        let place = file.used.fetch_add(1, Ordering::Relaxed);
        let mapping = map(&file.fd, place, Access::ReadWrite)?;
        let pages = Self { mapping, place, slot, file: Some(file.clone()) };
        let header = &pages.words().header;
        header.version.store(LAYOUT_VERSION, Ordering::Relaxed);
        header.slot.store(slot.index.into(), Ordering::Relaxed);
        header.generation.store(slot.generation, Ordering::Relaxed);
        store(&header.topic, topic);
        header.magic.store(PAGES_MAGIC, Ordering::Release);
        Ok(pages)
    }

    /// Maps one's own words, or a manager's successor those of a subscriber that hands them back.
    pub fn attach(
        file: Arc<SubscriberFile>,
        place: u32,
        topic: [u8; 16],
        slot: SubscriberSlot,
    ) -> Result<Self, AttachError> {
        let mapping = map(&file.fd, place, Access::ReadWrite)?;
        Self { mapping, place, slot, file: Some(file) }.checked(topic)
    }

    /// Maps another's words for reading. The file descriptor is needed no more.
    pub fn observe(fd: impl AsFd, place: u32, topic: [u8; 16], slot: SubscriberSlot) -> Result<Self, AttachError> {
        let mapping = map(fd, place, Access::ReadOnly)?;
        Self { mapping, place, slot, file: None }.checked(topic)
    }

    /// As `observe`, keeping the file for those who are to be told of the subscriber.
    pub fn find(
        file: &Arc<SubscriberFile>,
        place: u32,
        topic: [u8; 16],
        slot: SubscriberSlot,
    ) -> Result<Self, AttachError> {
        let observed = Self::observe(file, place, topic, slot)?;
        Ok(Self { file: Some(file.clone()), ..observed })
    }

    fn checked(self, topic: [u8; 16]) -> Result<Self, AttachError> {
        let header = &self.words().header;
        let found = header.magic.load(Ordering::Acquire);
        if found != PAGES_MAGIC {
            return Err(AttachError::Magic { found, wanted: PAGES_MAGIC });
        }
        let found = header.version.load(Ordering::Relaxed);
        if found != LAYOUT_VERSION {
            return Err(AttachError::Version { found });
        }
        let load = |half: &AtomicU64| half.load(Ordering::Relaxed);
        let SubscriberSlot { index, generation } = self.slot;
        let found = (header.slot.load(Ordering::Relaxed), header.generation.load(Ordering::Relaxed));
        let is_its = found == (index.into(), generation) && usize::from(index) < SUBSCRIBERS_MAX;
        if !is_its || header.topic.each_ref().map(load) != halves(topic) {
            return Err(AttachError::Topic);
        }
        Ok(self)
    }

    /// The place in its client's file.
    pub fn place(&self) -> u32 {
        self.place
    }

    /// The slot of the subscriber that they belong to.
    pub fn slot(&self) -> SubscriberSlot {
        self.slot
    }

    /// What the subscriber says of itself.
    pub fn words(&self) -> &SubscriberWords {
        inside(view::subscriber_words(&self.mapping))
    }

    /// What the subscriber says of a message.
    pub(crate) fn hold(&self, index: MessageIndex) -> HoldWord<'_> {
        HoldWord(inside(self.mapping.atomic_u32(HOLDS_OFFSET + u64::from(index.0) * 4)))
    }

    /// The hold words, mapped once more, for the subscriber's streams to write.
    pub fn hold_words(&self) -> Result<Arc<Mapping>, MapError> {
        let bytes = SUBSCRIBER_PAGES_BYTES - HOLDS_OFFSET;
        let not_ours = || MapError::Os { bytes, source: io::ErrorKind::PermissionDenied.into() };
        let file = self.file.as_ref().ok_or_else(not_ours)?;
        let offset = part(self.place).start + HOLDS_OFFSET;
        Ok(Arc::new(Mapping::map_part(file, FILE_BYTES, offset, bytes, Access::ReadWrite)?))
    }

    /// The file that they lie in; `None` if it was not kept.
    pub fn file(&self) -> Option<&Arc<SubscriberFile>> {
        self.file.as_ref()
    }

    /// Bytes of memory that they occupy; 0 where they are only read.
    pub fn resident_bytes(&self) -> u64 {
        let resident = self.file.as_ref().map(|file| memfd::resident_bytes_of(file, part(self.place)));
        resident.and_then(Result::ok).unwrap_or(0)
    }

    /// The subscriber has gone: gives their memory back.
    pub(crate) fn give_back(&self) {
        if let Some(file) = &self.file {
            // What cannot be given back, as by who may only read it, stays until the client ends.
            let _ = memfd::punch_hole(file, part(self.place).start, SUBSCRIBER_PAGES_BYTES);
        }
    }
}

fn part(place: u32) -> Range<u64> {
    let start = u64::from(place) * SUBSCRIBER_PAGES_BYTES;
    start..start + SUBSCRIBER_PAGES_BYTES
}

/// A place past the last is outside of the file, and refused.
fn map(fd: impl AsFd, place: u32, access: Access) -> Result<Mapping, MapError> {
    Mapping::map_part(fd, FILE_BYTES, part(place).start, SUBSCRIBER_PAGES_BYTES, access)
}

fn store(words: &[AtomicU64; 2], id: [u8; 16]) {
    words.iter().zip(halves(id)).for_each(|(word, half)| word.store(half, Ordering::Relaxed));
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOPIC: [u8; 16] = [7; 16];
    const SLOT: SubscriberSlot = SubscriberSlot { index: 3, generation: 5 };

    fn made() -> SubscriberPages {
        SubscriberPages::create(&SubscriberFile::create().unwrap(), TOPIC, SLOT).unwrap()
    }

    fn observe(fd: impl AsFd, place: u32) -> Result<SubscriberPages, AttachError> {
        SubscriberPages::observe(fd, place, TOPIC, SLOT)
    }

    #[test]
    fn who_reads_a_subscribers_words_can_neither_write_nor_seal_them() {
        let own = made();
        let reading = own.file().unwrap().reading().unwrap();
        assert!(Mapping::map(reading, FILE_BYTES, Access::ReadWrite).is_err());
        assert!(memfd::seal_future_write(reading).is_err());
        let read = observe(reading, own.place()).unwrap();
        own.words().taken.store(9, Ordering::Relaxed);
        assert_eq!(read.words().taken.load(Ordering::Relaxed), 9);
        assert!(read.file().is_none() && read.hold_words().is_err(), "it has no file descriptor to give");
    }

    #[test]
    fn words_of_another_topic_slot_generation_or_place_are_refused() {
        let own = made();
        let file = || own.file().unwrap().clone();
        for (place, topic, index, generation) in [(0, [8; 16], 3, 5), (0, TOPIC, 4, 5), (0, TOPIC, 3, 6)] {
            let refused = SubscriberPages::attach(file(), place, topic, SubscriberSlot { index, generation });
            assert!(matches!(refused, Err(AttachError::Topic)), "{topic:?} {index} {generation}");
        }
        assert!(matches!(observe(file(), 1), Err(AttachError::Magic { found: 0, .. })), "nobody's yet");
        assert!(matches!(observe(file(), PLACES), Err(AttachError::Map(_))), "there is no such place");
        assert!(matches!(observe(file(), u32::MAX), Err(AttachError::Map(_))));
        own.words().header.version.store(99, Ordering::Relaxed);
        assert!(matches!(observe(file(), 0), Err(AttachError::Version { found: 99 })));
        own.words().header.magic.store(1, Ordering::Relaxed);
        assert!(matches!(observe(file(), 0), Err(AttachError::Magic { found: 1, .. })));
        let short = memfd::create("short", 100).unwrap();
        assert!(matches!(observe(short, 0), Err(AttachError::Map(_))));
    }

    #[test]
    fn each_subscriber_has_a_place_of_its_own_and_gives_its_memory_back() {
        let file = SubscriberFile::create().unwrap();
        let slot = |index| SubscriberSlot { index, generation: 1 };
        let make = |index| SubscriberPages::create(&file, TOPIC, slot(index)).unwrap();
        let (first, second) = (make(1), make(2));
        assert_eq!((first.place(), second.place(), file.has_place()), (0, 1, true));
        let page = second.resident_bytes();
        assert!((1..=rgaps_os::page_bytes()).contains(&page) && first.resident_bytes() == page);
        let held = first.hold(MessageIndex(u16::MAX));
        held.0.store(1, Ordering::Relaxed);
        assert_eq!((first.resident_bytes(), second.resident_bytes()), (2 * page, page));
        first.give_back();
        assert_eq!((first.resident_bytes(), second.resident_bytes()), (0, page));
        assert_eq!(make(3).place(), 2, "not the one that has gone");
    }

    #[test]
    fn what_a_process_says_of_itself_is_found_and_read_where_it_hands_nothing_back() {
        let own = made();
        own.words().cursor.store(12, Ordering::Relaxed);
        let found = found_where(own.place(), |found| found.words().cursor.load(Ordering::Relaxed) == 12).unwrap();
        assert!(found.hold_words().is_err(), "for reading only");
        let told = found.file().unwrap().reading().unwrap();
        assert!(observe(told, own.place()).is_ok(), "and for publishers to read");
        let before = own.resident_bytes();
        found.give_back();
        assert!(before > 0 && own.resident_bytes() == before);
        SubscriberFile::each_of_process(0, |_| panic!("no process has this id"));
    }

    /// Of this process's files.
    fn found_where(place: u32, is_it: impl Fn(&SubscriberPages) -> bool) -> Option<SubscriberPages> {
        let mut found = None;
        SubscriberFile::each_of_process(std::process::id(), |file| {
            found = SubscriberPages::find(&file, place, TOPIC, SLOT).ok().filter(&is_it);
            if found.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        found
    }

    #[test]
    fn words_in_any_of_many_files_of_a_process_are_found() {
        let files: Vec<SubscriberPages> = (0..100).map(|_| made()).collect();
        for (number, own) in (1000..).zip(&files) {
            own.words().cursor.store(number, Ordering::Relaxed);
        }
        for (number, own) in (1000..).zip(&files) {
            let is_it = |found: &SubscriberPages| found.words().cursor.load(Ordering::Relaxed) == number;
            assert!(found_where(own.place(), is_it).is_some(), "those of file {number}");
        }
    }

    #[test]
    fn each_file_that_comes_again_is_kept_once() {
        let (one, two) = (SubscriberFile::create().unwrap(), SubscriberFile::create().unwrap());
        let again = |file: &SubscriberFile| file.as_fd().try_clone_to_owned().unwrap();
        let mut files = SubscriberFiles::default();
        let known = [&one, &two].map(|file| files.adopt(again(file)).unwrap());
        let own = files.with_place().unwrap();
        assert!(known.iter().all(|known| !Arc::ptr_eq(&own, known)), "their places are another's to give");
        for _ in 0..3 {
            for (file, known) in [&one, &two].into_iter().zip(&known) {
                assert!(Arc::ptr_eq(known, &files.adopt(again(file)).unwrap()));
            }
            assert!(Arc::ptr_eq(&own, &files.with_place().unwrap()), "it has places still");
        }
        drop((known, own));
        assert!(files.current.upgrade().is_none(), "nobody writes it");
        let anew = files.adopt(again(&one)).unwrap();
        assert_eq!((files.known.len(), Arc::strong_count(&anew)), (1, 1), "what nobody uses is forgotten");
    }
}
