//! The subscribers of a topic, as a process that frees messages or wakes subscribers knows them: their own words, and their eventfds.
//!
//! The manager hands these out when a subscriber joins. They may arrive after the subscriber's first take. Until then the subscriber counts as
//! asleep, and as needing every message that it could have.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rgaps_os::{EventFd, futex};

use crate::layout::NOT_LINKED;
use crate::notify::Wake;
use crate::pages::SubscriberPages;
use crate::segment::{Segment, bits};
use crate::slot::SubscriberSlot;
use crate::words::message::{Generation, Holding, Need, ReaderWords};
use crate::words::queue::MessageIndex;
use crate::words::wake_up::{self, LastWakeUp};

#[derive(Debug)]
struct Known {
    pages: Arc<SubscriberPages>,
    event: Option<Arc<EventFd>>,
}

/// The subscribers of a topic, in one process.
#[derive(Debug)]
pub struct Subscribers {
    segment: Arc<Segment>,
    /// By slot. A former occupant stays until the next one is added, or until `forget_gone`.
    known: Vec<Option<Known>>,
    last_wake_up: LastWakeUp,
}

/// What decides which subscribers could have a message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Publication {
    pub(crate) index: MessageIndex,
    pub(crate) generation: Generation,
    /// `None`: no queue slot names it. It was never published, or is overrun.
    pub(crate) position: Option<u64>,
    /// Whether history ever kept it, so that later subscribers may have it.
    pub(crate) was_kept: bool,
}

/// A subscriber in relation to one message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reader<'a> {
    pub(crate) slot: SubscriberSlot,
    /// Keep-last depth; 0 is keep-all.
    pub(crate) depth: u64,
    /// Messages that it has taken; 0 if its words are not known.
    pub(crate) taken: u64,
    message: Publication,
    joined: u64,
    words: Option<ReaderWords<'a>>,
}

impl Reader<'_> {
    /// How much it still needs the message, when the queue ends at `end`.
    pub(crate) fn need(&self, end: u64) -> Need {
        match (self.message.position, self.words) {
            (Some(position), Some(words)) => words.need(position, self.message.generation, end),
            // Nobody gets it from the queue any more, but history may have given it to the subscriber before.
            (None, Some(words)) => match words.hold.of(self.message.generation) {
                Holding::None => Need::None,
                Holding::Wanted | Holding::Held | Holding::Released => words.need(0, self.message.generation, end),
            },
            (_, None) if self.could_have_it() => Need::Hard,
            (_, None) => Need::None,
        }
    }

    /// Whether there are messages that it has not looked at, or may be, when the queue ends at `end`.
    pub(crate) fn is_behind(&self, end: u64) -> bool {
        self.words.is_none_or(|words| words.is_behind(end))
    }

    /// Whether it holds the message, or may hold it.
    pub(crate) fn is_holding(&self) -> bool {
        match self.words {
            Some(words) => words.is_holding(self.message.generation),
            None => self.could_have_it(),
        }
    }

    fn could_have_it(&self) -> bool {
        let Publication { position, was_kept, .. } = self.message;
        was_kept || position.is_some_and(|position| position >= self.joined)
    }
}

impl Subscribers {
    /// Knows no subscriber yet.
    pub fn new(segment: Arc<Segment>) -> Self {
        Self { segment, known: Vec::new(), last_wake_up: LastWakeUp::default() }
    }

    /// Adds a subscriber that the manager handed out, or its eventfd. Signals the eventfd once, since the subscriber may have missed a message.
    pub fn add(&mut self, pages: Arc<SubscriberPages>, event: Option<Arc<EventFd>>) {
        if let Some(event) = &event {
            let _ = event.signal();
        }
        let index = usize::from(pages.slot().index);
        if index >= self.known.len() {
            self.known.resize_with(index + 1, || None);
        }
        let Some(place) = self.known.get_mut(index) else { return };
        match place {
            // Its words are known; what is new is the eventfd.
            Some(known) if known.pages.slot() == pages.slot() => {
                if event.is_some() {
                    known.event = event;
                }
            }
            // This notice is about a former occupant, and late.
            Some(known) if is_there(&self.segment, &known.pages) => {}
            _ => *place = Some(Known { pages, event }),
        }
    }

    /// Forgets subscribers that have left: their file descriptors and mappings.
    pub fn forget_gone(&mut self) {
        let segment = &self.segment;
        let has_gone = |known: &mut Known| !is_there(segment, &known.pages);
        self.known.iter_mut().for_each(|known| drop(known.take_if(has_gone)));
    }

    /// Subscribers whose words are not known, or whose eventfd exists and is not known.
    pub fn unknown(&self) -> Vec<SubscriberSlot> {
        let event_fds = &self.segment.header().event_fds.0;
        let has_event_fd = |index: u16| bits(event_fds).any(|known| known == index);
        let is_unknown = |slot: &SubscriberSlot| match self.get(*slot) {
            Some(known) => known.event.is_none() && has_event_fd(slot.index),
            None => true,
        };
        self.occupants().filter(is_unknown).collect()
    }

    /// Whether the words of some subscriber are not known.
    pub(crate) fn lack_words(&self) -> bool {
        self.occupants().any(|slot| self.get(slot).is_none())
    }

    /// Forgets the subscriber known in a slot, and returns its words.
    pub fn remove(&mut self, index: u16) -> Option<Arc<SubscriberPages>> {
        Some(self.known.get_mut(usize::from(index))?.take()?.pages)
    }

    /// A subscriber's own words, if they are known.
    pub fn pages(&self, slot: SubscriberSlot) -> Option<&Arc<SubscriberPages>> {
        self.get(slot).map(|known| &known.pages)
    }

    /// Subscribers that are not closed.
    pub fn count(&self) -> usize {
        self.open().count()
    }

    fn open(&self) -> impl Iterator<Item = SubscriberSlot> + '_ {
        let is_closed = |known: &Known| known.pages.words().cursor.load(Ordering::Relaxed) == u64::MAX;
        self.occupants().filter(move |slot| !self.get(*slot).is_some_and(is_closed))
    }

    /// Those of them that a message reaches now: of this host, and senders that are connected with their hosts.
    pub fn linked_count(&self) -> usize {
        let is_linked = |slot: &SubscriberSlot| {
            self.segment.subscriber(slot.index).is_some_and(|words| words.remote.load(Ordering::Relaxed) != NOT_LINKED)
        };
        self.open().filter(is_linked).count()
    }

    /// The topic's subscribers in relation to a message.
    pub(crate) fn readers(&self, message: Publication) -> impl Iterator<Item = Reader<'_>> {
        self.occupants().filter_map(move |slot| {
            let slot_words = self.segment.subscriber(slot.index)?;
            let joined = slot_words.joined.load(Ordering::Acquire);
            let depth = slot_words.depth.load(Ordering::Relaxed);
            let pages = self.get(slot).map(|known| &known.pages);
            let words = pages.map(|pages| {
                let own = pages.words();
                ReaderWords { cursor: &own.cursor, hold: pages.hold(message.index), joined, depth }
            });
            let taken = pages.map_or(0, |pages| pages.words().taken.load(Ordering::Relaxed));
            Some(Reader { slot, depth, taken, message, joined, words })
        })
    }

    /// The topic's subscribers, without a message.
    pub(crate) fn all(&self) -> impl Iterator<Item = Reader<'_>> {
        self.readers(Publication { index: MessageIndex(0), generation: Generation(0), position: None, was_kept: false })
    }

    fn occupants(&self) -> impl Iterator<Item = SubscriberSlot> + '_ {
        bits(&self.segment.header().subscribers.0).filter_map(|index| self.segment.occupant(index))
    }

    fn get(&self, slot: SubscriberSlot) -> Option<&Known> {
        let known = self.known.get(usize::from(slot.index))?.as_ref()?;
        (known.pages.slot() == slot).then_some(known)
    }

    /// Whether a subscriber must be woken. One whose words are unknown always is.
    fn is_asleep(&self, slot: SubscriberSlot, last: &LastWakeUp) -> bool {
        let announced = |known: &Known| known.pages.words().asleep.load(Ordering::Relaxed);
        self.get(slot).is_none_or(|known| last.must_be_repeated_for(announced(known)))
    }
}

/// Whether the subscriber with these words still has its slot.
fn is_there(segment: &Segment, pages: &SubscriberPages) -> bool {
    segment.occupant(pages.slot().index) == Some(pages.slot())
}

impl Wake for Subscribers {
    fn wake(&mut self) -> io::Result<()> {
        let header = self.segment.header();
        let publications = &header.publications.0;
        let (mut last, published) = (self.last_wake_up, self.segment.queue().end().0);
        let any_sleeps = |last: &LastWakeUp| self.occupants().any(|slot| self.is_asleep(slot, last));
        if wake_up::must_wake(publications, &mut last, published, any_sleeps) {
            futex::wake_all(publications);
        }
        self.last_wake_up = last;
        let mut outcome = Ok(());
        for index in bits(&header.event_fds.0) {
            let Some(slot) = self.segment.occupant(index) else { continue };
            if let Some(event) = self.get(slot).and_then(|known| known.event.as_ref()) {
                outcome = outcome.and(event.signal());
            }
        }
        outcome
    }
}
