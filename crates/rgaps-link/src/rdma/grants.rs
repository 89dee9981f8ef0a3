//! Grants: blocks of the receiver's consumer into which the sender writes the data of large messages itself.
//!
//! ```text
//!  receiver                                                sender
//!  bind a window to the block ══ WRITE of the entry ══════▶ its page of credit words and grants
//!                             ◀═ WRITE of data, chunk by chunk, through the window
//!                             ◀═ WRITE WITH IMM: header, envelope, number of the grant ═ one for each chunk, into the ring
//!  last record: invalidate the window, await that, and only then return the record
//!
//!  revoke, by the liveness socket ─────────────────────────▶ uses it no more ─── return, by the liveness socket ──▶ invalidate
//! ```
//!
//! A large message waits for a grant while an earlier large one is not acknowledged: the receiver gives the next grant, if it can, before it acknowledges
//! a message. Otherwise the message goes through the ring. So a sender that is faster than its receiver does not fill the ring instead.
//!
//! Invariants  A block is the peer's from `issue` until its window is invalid. An entry of the sender's page is written again only after that, so it
//!             does not change while it is in use. Numbers increase, so each grant is used at most once.
//! Trusts      nothing of a record but its number, and that its data were written before it: a sender that lies about the latter has its subscribers
//!             read what was in the block before. A sender that writes through a window too late or too far is refused by the device.
//! Source      "rendezvous" messages whose memory is granted ahead: J. Liu, J. Wu and D. K. Panda, High Performance RDMA-Based MPI Implementation
//!             over InfiniBand, International Journal of Parallel Programming 32 (3), 2004.

use std::collections::VecDeque;
use std::sync::Arc;

use rgaps_os::Mapping;

use crate::link::LandingPlace;
use crate::position::Position;
use crate::rdma::domain::{Domain, VerbsError};
use crate::rdma::queue_pair::QueuePair;
use crate::rdma::window::{self, Window, WindowRegion};
use crate::rdma::{RdmaOptions, RemoteMemory};
use crate::record::{GrantNumber, MessageId, RecordHeader};
use crate::ring::GrantError;
use crate::tcp::integrity;

/// Most grants of a link at a time.
pub(super) const GRANTS_MAX: usize = 8;
/// Requests of a grant's life: bind, write, and invalidate.
pub(super) const GRANT_REQUESTS: usize = 3;
/// Bytes of an entry.
pub(super) const ENTRY_BYTES: usize = 40;
/// Where entries start in the sender's page, and how far apart they are.
const ENTRIES_OFFSET: u64 = 64;
const ENTRY_STRIDE: u64 = 64;
/// Registered parts of pools that are kept for later grants, and their bytes, at most. Their pages are pinned.
const REGIONS_MAX: usize = 2 * GRANTS_MAX;
const REGION_BYTES_MAX: u64 = 64 << 20;

/// A grant as the sender sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Grant {
    pub(super) number: GrantNumber,
    /// The block, with the key of its window.
    pub(super) block: RemoteMemory,
}

/// The slot of a grant, on both sides.
fn slot_of(number: GrantNumber) -> usize {
    (number.0 % GRANTS_MAX as u64) as usize
}

impl Grant {
    /// Where its entry is in the sender's page.
    pub(super) fn entry_offset(number: GrantNumber) -> u64 {
        ENTRIES_OFFSET + slot_of(number) as u64 * ENTRY_STRIDE
    }

    fn words(&self) -> [u64; 4] {
        [self.number.0, self.block.address, self.block.bytes, u64::from(self.block.key)]
    }

    /// Whether a message of so many bytes fits, and does not keep a block that is more than twice as large.
    fn suits(&self, total: u64) -> bool {
        total <= self.block.bytes && self.block.bytes / 2 <= total
    }

    /// Encodes its entry: number, address, bytes, key, and the CRC32C of these, 8 B each, little endian.
    pub(super) fn encode(&self) -> [u8; ENTRY_BYTES] {
        let mut bytes = [0; ENTRY_BYTES];
        let words = self.words();
        let sum = u64::from(sum(words));
        for (part, word) in bytes.chunks_mut(8).zip(words.into_iter().chain([sum])) {
            part.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Decodes an entry that the peer may be writing; `None` if it is torn, or no entry.
    fn decode(bytes: &[u8; ENTRY_BYTES]) -> Option<Self> {
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| bytes[8 * at + i]));
        let words = std::array::from_fn(word);
        let [number, address, bytes, key] = words;
        let key = u32::try_from(key).ok()?;
        let is_whole = word(4) == u64::from(sum(words)) && number > 0 && address.checked_add(bytes).is_some();
        is_whole.then_some(Self { number: GrantNumber(number), block: RemoteMemory { address, key, bytes } })
    }
}

fn sum(words: [u64; 4]) -> u32 {
    let mut bytes = [0; 32];
    for (part, word) in bytes.chunks_mut(8).zip(words) {
        part.copy_from_slice(&word.to_le_bytes());
    }
    integrity::sum(&bytes)
}

/// The sender's side: which grants are free, and which message uses which.
#[derive(Debug)]
pub(super) struct ReceivedGrants {
    /// By slot, the newest grant that was used, returned or revoked.
    newest: [u64; GRANTS_MAX],
    /// The messages under way that use one.
    in_use: Vec<(MessageId, Grant)>,
    /// Messages of at least this many bytes get one.
    bytes_min: u64,
    /// Where the newest large message ends that was sent whole.
    in_flight: Position,
    /// A grant was too small for a message, or has been revoked.
    to_return: VecDeque<GrantNumber>,
}

impl ReceivedGrants {
    /// For messages of at least `bytes_min`.
    pub(super) fn new(bytes_min: u64) -> Self {
        let (in_use, to_return) = (Vec::new(), VecDeque::new());
        Self { newest: [0; GRANTS_MAX], in_use, bytes_min, in_flight: Position::START, to_return }
    }

    /// The peer grants nothing any more.
    pub(super) fn expect_none(&mut self) {
        self.bytes_min = u64::MAX;
    }

    /// Whether a message of so many bytes is large enough for a grant.
    pub(super) fn are_for(&self, total: u64) -> bool {
        total >= self.bytes_min
    }

    /// Takes a grant for a message that begins: the smallest that suits it. If none is large enough, the oldest is returned, so that the peer can give
    /// a larger one. `page`: the one that the peer writes.
    pub(super) fn take_for(&mut self, message: MessageId, total: u64, page: &Mapping) -> Option<Grant> {
        let free = (0..GRANTS_MAX as u64).filter_map(|slot| self.free_in(slot, page));
        let (mut best, mut oldest): (Option<Grant>, Option<Grant>) = (None, None);
        let mut is_any_large_enough = false;
        for grant in free {
            if oldest.is_none_or(|oldest| grant.number < oldest.number) {
                oldest = Some(grant);
            }
            let key = |grant: Grant| (grant.block.bytes, grant.number);
            is_any_large_enough |= grant.block.bytes >= total;
            if grant.suits(total) && best.is_none_or(|best| key(grant) < key(best)) {
                best = Some(grant);
            }
        }
        match best {
            Some(grant) => {
                self.newest[slot_of(grant.number)] = grant.number.0;
                self.in_use.push((message, grant));
            }
            None if is_any_large_enough => {}
            None => oldest.into_iter().for_each(|grant| self.revoke(grant.number)),
        }
        best
    }

    /// A grant that is free, for tests.
    #[cfg(test)]
    pub(crate) fn peek(&self, page: &Mapping) -> Option<Grant> {
        (0..GRANTS_MAX as u64).find_map(|slot| self.free_in(slot, page))
    }

    fn free_in(&self, slot: u64, page: &Mapping) -> Option<Grant> {
        let mut bytes = [0; ENTRY_BYTES];
        page.copy_out(Grant::entry_offset(GrantNumber(slot)), &mut bytes).ok()?;
        let grant = Grant::decode(&bytes)?;
        let is_free = grant.number.0 % GRANTS_MAX as u64 == slot && grant.number.0 > self.newest[slot as usize];
        is_free.then_some(grant)
    }

    /// Whether a message of so many bytes waits for a grant. What it waits for needs nothing more from this side.
    pub(super) fn must_wait(&self, total: u64, delayed_head: Position, page: &Mapping) -> bool {
        let fits = |slot| self.free_in(slot, page).is_some_and(|grant| grant.block.bytes >= total);
        self.are_for(total) && self.in_flight > delayed_head && !(0..GRANTS_MAX as u64).any(fits)
    }

    /// The grant that a message under way uses.
    pub(super) fn of(&self, message: MessageId) -> Option<Grant> {
        self.in_use.iter().find(|(user, _)| *user == message).map(|(_, grant)| *grant)
    }

    /// A message of so many bytes has been sent whole; its last record ends at `end`.
    pub(super) fn end(&mut self, message: MessageId, total: u64, end: Position) {
        self.abort(message);
        if self.are_for(total) {
            self.in_flight = end;
        }
    }

    /// A message will not be sent whole.
    pub(super) fn abort(&mut self, message: MessageId) {
        self.in_use.retain(|(user, _)| *user != message);
    }

    /// The peer wants a grant back. It is returned, unless a message uses it or has used it: then the peer learns that from the message.
    pub(super) fn revoke(&mut self, number: GrantNumber) {
        let newest = &mut self.newest[slot_of(number)];
        if number.0 > *newest {
            *newest = number.0;
            self.to_return.push_back(number);
        }
    }

    /// The next grant to return.
    pub(super) fn next_to_return(&mut self) -> Option<GrantNumber> {
        self.to_return.pop_front()
    }
}

/// How far a grant is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Its window is not bound yet.
    Waiting,
    /// The peer may use it.
    Free { is_revoked: bool },
    /// Data of this message go there.
    Used(MessageId),
    /// Its window is being invalidated. `is_returned`: no message has used it.
    Ending { is_returned: bool },
}

#[derive(Debug)]
struct Issued {
    number: GrantNumber,
    address: u64,
    bytes: u64,
    state: State,
    region: Arc<WindowRegion>,
}

#[derive(Debug, Default)]
struct Slot {
    window: Option<Window>,
    issued: Option<Issued>,
}

/// The receiver's side: the windows, and who may use them.
#[derive(Debug)]
pub(super) struct IssuedGrants {
    slots: [Slot; GRANTS_MAX],
    last: GrantNumber,
    /// The most recently used last.
    regions: Vec<Arc<WindowRegion>>,
    domain: Arc<Domain>,
    is_supported: bool,
    returned: VecDeque<GrantNumber>,
}

impl IssuedGrants {
    /// `inline_bytes`: how many the queue pair sends inline, as entries are.
    pub(super) fn new(domain: &Arc<Domain>, inline_bytes: u32, options: RdmaOptions) -> Self {
        let is_wanted = options.landing_bytes_min < u64::MAX && inline_bytes >= ENTRY_BYTES as u32;
        let is_supported = is_wanted && window::are_supported(domain);
        let (slots, regions, returned) = (Default::default(), Vec::new(), VecDeque::new());
        Self { slots, last: GrantNumber(0), regions, domain: domain.clone(), is_supported, returned }
    }

    pub(super) fn is_supported(&self) -> bool {
        self.is_supported
    }

    /// Whether anything has been granted.
    pub(super) fn have_begun(&self) -> bool {
        self.last > GrantNumber(0)
    }

    /// Takes a slot for a block, whose window is still to be bound. `None` if no slot is free, or the block cannot be registered; then nothing is granted
    /// any more.
    pub(super) fn issue(&mut self, place: &LandingPlace, bytes: u64) -> Option<GrantNumber> {
        let mut next = (1..=GRANTS_MAX as u64).map(|step| GrantNumber(self.last.0 + step));
        let number = next.find(|number| self.slots[slot_of(*number)].issued.is_none())?;
        if !self.is_supported || bytes == 0 || !place.has_room(bytes) {
            return None;
        }
        let region = self.prepare(number, place, bytes)?;
        let address = region.address(place.offset);
        self.slots[slot_of(number)].issued = Some(Issued { number, address, bytes, state: State::Waiting, region });
        self.last = number;
        Some(number)
    }

    /// Whether a window is still to be bound.
    pub(super) fn is_any_waiting(&self) -> bool {
        self.waiting().next().is_some()
    }

    fn waiting(&self) -> impl Iterator<Item = GrantNumber> {
        let issued = self.slots.iter().filter_map(|slot| slot.issued.as_ref());
        issued.filter(|issued| issued.state == State::Waiting).map(|issued| issued.number)
    }

    /// Binds the windows of the grants that wait. Their entries are then to be written to the sender's page, in this order.
    pub(super) fn bind_waiting(&mut self, queue: &QueuePair) -> Result<Vec<Grant>, VerbsError> {
        let mut bound = Vec::new();
        for Slot { window, issued } in &mut self.slots {
            let waiting = issued.as_mut().filter(|issued| issued.state == State::Waiting);
            let (Some(window), Some(issued)) = (window, waiting) else { continue };
            let (address, bytes) = (issued.address, issued.bytes);
            queue.bind(window, &issued.region, (address, bytes))?;
            issued.state = State::Free { is_revoked: false };
            bound.push(Grant { number: issued.number, block: RemoteMemory { address, key: window.key(), bytes } });
        }
        bound.sort_by_key(|grant| grant.number);
        Ok(bound)
    }

    /// Whether anything is granted, or waits to be.
    pub(super) fn is_any_issued(&self) -> bool {
        self.slots.iter().any(|slot| slot.issued.is_some())
    }

    /// Makes the window of a slot and registers the block. `None` if the device refuses either.
    fn prepare(&mut self, number: GrantNumber, place: &LandingPlace, bytes: u64) -> Option<Arc<WindowRegion>> {
        let slot = &mut self.slots[slot_of(number)];
        let made = match &slot.window {
            Some(_) => Ok(()),
            None => Window::new(&self.domain).map(|window| slot.window = Some(window)),
        };
        match made.and_then(|()| self.region(place, bytes)) {
            Ok(region) => Some(region),
            Err(error) => {
                tracing::warn!(%error, "large messages over this rdma link go through its ring");
                self.is_supported = false;
                None
            }
        }
    }

    /// The region of a block.
    fn region(&mut self, place: &LandingPlace, bytes: u64) -> Result<Arc<WindowRegion>, VerbsError> {
        let part = (place.offset, bytes);
        let known = self.regions.iter().position(|region| region.is(&place.memory, part));
        let region = match known {
            Some(known) => self.regions.remove(known),
            None => {
                let kept = |regions: &[Arc<WindowRegion>]| regions.iter().map(|region| region.bytes()).sum::<u64>();
                while self.regions.len() >= REGIONS_MAX
                    || !self.regions.is_empty() && kept(&self.regions) + part.1 > REGION_BYTES_MAX
                {
                    self.regions.remove(0);
                }
                Arc::new(WindowRegion::new(&self.domain, &place.memory, part)?)
            }
        };
        self.regions.push(region.clone());
        Ok(region)
    }

    /// Deregisters the memory of which nothing is granted.
    pub(super) fn forget_unused(&mut self) {
        self.regions.retain(|region| Arc::strong_count(region) > 1);
    }

    /// Frees all windows. Call it when the queue pair has failed, and before it is destroyed.
    pub(super) fn free_windows(&mut self) {
        self.is_supported = false;
        self.slots.iter_mut().for_each(|slot| slot.window = None);
    }

    fn find(&mut self, number: GrantNumber) -> Option<&mut Issued> {
        self.slots[slot_of(number)].issued.as_mut().filter(|issued| issued.number == number)
    }

    /// A record says that its data are in a grant.
    pub(super) fn land(&mut self, number: GrantNumber, header: &RecordHeader) -> Result<(), GrantError> {
        let (message, total) = (header.message, header.total);
        let not_granted = GrantError::NotGranted { message, number };
        if self.used_by(message).is_some_and(|used| used != number) {
            return Err(not_granted);
        }
        let issued = self.find(number).ok_or(not_granted)?;
        if total > issued.bytes {
            return Err(GrantError::TooLarge { message, number, total, granted: issued.bytes });
        }
        match issued.state {
            State::Free { .. } => issued.state = State::Used(message),
            State::Used(user) if user == message => {}
            State::Waiting | State::Used(_) | State::Ending { .. } => return Err(not_granted),
        }
        Ok(())
    }

    fn used_by(&self, message: MessageId) -> Option<GrantNumber> {
        let issued = self.slots.iter().filter_map(|slot| slot.issued.as_ref());
        issued.filter(|issued| issued.state == State::Used(message)).map(|issued| issued.number).next()
    }

    /// A message has ended. If it used a grant, returns that: its window is to be invalidated.
    pub(super) fn end_of(&mut self, message: MessageId) -> Option<(GrantNumber, u32)> {
        let number = self.used_by(message)?;
        self.begin_end(number, false)
    }

    /// The peer returns a grant. If it is free, returns its key, to be invalidated.
    pub(super) fn take_back(&mut self, number: GrantNumber) -> Option<(GrantNumber, u32)> {
        let issued = self.find(number)?;
        if matches!(issued.state, State::Free { .. }) { self.begin_end(number, true) } else { None }
    }

    fn begin_end(&mut self, number: GrantNumber, is_returned: bool) -> Option<(GrantNumber, u32)> {
        self.find(number)?.state = State::Ending { is_returned };
        let key = self.slots[slot_of(number)].window.as_ref()?.key();
        Some((number, key))
    }

    /// The window of a grant is invalid.
    pub(super) fn ended(&mut self, number: GrantNumber) {
        let Some(Issued { state: State::Ending { is_returned }, .. }) = self.find(number) else { return };
        let is_returned = *is_returned;
        self.slots[slot_of(number)].issued = None;
        // Nobody sends, or the memory is wanted for something else.
        if is_returned {
            self.returned.push_back(number);
            self.forget_unused();
        }
    }

    /// Whether the window of a grant is still valid.
    pub(super) fn is_alive(&self, number: GrantNumber) -> bool {
        self.slots[slot_of(number)].issued.as_ref().is_some_and(|issued| issued.number == number)
    }

    pub(super) fn next_returned(&mut self) -> Option<GrantNumber> {
        self.returned.pop_front()
    }

    /// Whether a grant that was revoked has not come back.
    pub(super) fn is_revoking(&self) -> bool {
        let mut issued = self.slots.iter().filter_map(|slot| slot.issued.as_ref());
        issued.any(|issued| {
            matches!(issued.state, State::Free { is_revoked: true } | State::Ending { is_returned: true })
        })
    }

    /// The grants that the peer is to return and has not been asked for. Takes back those that it does not have yet.
    pub(super) fn revoke(&mut self) -> impl Iterator<Item = GrantNumber> {
        for number in self.waiting().collect::<Vec<_>>() {
            self.slots[slot_of(number)].issued = None;
            self.returned.push_back(number);
        }
        self.slots.iter_mut().filter_map(|slot| slot.issued.as_mut()).filter_map(|issued| match &mut issued.state {
            State::Free { is_revoked } if !*is_revoked => {
                *is_revoked = true;
                Some(issued.number)
            }
            _ => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grant(number: u64, bytes: u64) -> Grant {
        Grant { number: GrantNumber(number), block: RemoteMemory { address: 4096 * number, key: 7, bytes } }
    }

    fn page(grants: &[Grant]) -> Mapping {
        let page = Mapping::anonymous(4096).unwrap();
        for grant in grants {
            page.copy_in(Grant::entry_offset(grant.number), &grant.encode()).unwrap();
        }
        page
    }

    #[test]
    fn a_message_gets_the_smallest_grant_that_it_fits_once() {
        let mut grants = ReceivedGrants::new(1);
        let page = page(&[grant(1, 100), grant(2, 300), grant(3, 200)]);
        assert_eq!(grants.take_for(MessageId(1), 150, &page), Some(grant(3, 200)));
        assert_eq!(grants.of(MessageId(1)), Some(grant(3, 200)));
        assert_eq!(grants.take_for(MessageId(2), 150, &page), Some(grant(2, 300)));
        assert_eq!(grants.take_for(MessageId(3), 150, &page), None, "the rest is too small");
        assert_eq!(grants.next_to_return(), Some(GrantNumber(1)), "so that the peer can grant a larger block");
        assert_eq!(grants.take_for(MessageId(4), 1, &page), None);
        assert_eq!(grants.next_to_return(), None);
        grants.abort(MessageId(1));
        assert_eq!(grants.of(MessageId(1)), None);
    }

    #[test]
    fn a_small_message_takes_no_large_grant_and_waits_for_none() {
        let mut grants = ReceivedGrants::new(1);
        let large = page(&[grant(1, 1000)]);
        assert_eq!(grants.take_for(MessageId(1), 499, &large), None);
        assert_eq!(grants.next_to_return(), None, "the peer gives it for larger messages");
        grants.end(MessageId(1), 499, Position::new(1000));
        assert!(!grants.must_wait(499, Position::START, &large));
        assert_eq!(grants.take_for(MessageId(2), 500, &large), Some(grant(1, 1000)));
    }

    #[test]
    fn a_message_waits_for_a_grant_while_one_is_in_flight() {
        let mut grants = ReceivedGrants::new(1);
        let empty = page(&[]);
        assert!(!grants.must_wait(100, Position::START, &empty), "nothing has ever been granted");
        assert_eq!(grants.take_for(MessageId(1), 100, &page(&[grant(1, 100)])), Some(grant(1, 100)));
        assert!(!grants.must_wait(100, Position::START, &empty), "a message that is not sent whole needs this side");
        grants.end(MessageId(1), 100, Position::new(1000));
        assert!(grants.must_wait(100, Position::new(999), &empty));
        assert!(grants.must_wait(100, Position::new(999), &page(&[grant(2, 99)])), "it is too small");
        assert!(!grants.must_wait(100, Position::new(999), &page(&[grant(2, 100)])));
        assert!(!grants.must_wait(100, Position::new(1000), &empty), "it is acknowledged, and there is no other grant");
        assert_eq!(grants.take_for(MessageId(2), 100, &page(&[grant(2, 100)])), Some(grant(2, 100)));
        grants.expect_none();
        assert!(!grants.must_wait(100, Position::new(999), &empty));
        grants.end(MessageId(2), 100, Position::new(2000));
        assert_eq!(grants.of(MessageId(2)), None, "it is forgotten all the same");
    }

    #[test]
    fn a_revoked_grant_is_returned_once_unless_it_was_used() {
        let mut grants = ReceivedGrants::new(1);
        let page = page(&[grant(1, 100), grant(2, 100)]);
        assert_eq!(grants.take_for(MessageId(1), 100, &page), Some(grant(1, 100)));
        for number in [1, 2, 2] {
            grants.revoke(GrantNumber(number));
        }
        assert_eq!([grants.next_to_return(), grants.next_to_return()], [Some(GrantNumber(2)), None]);
        assert_eq!(grants.take_for(MessageId(2), 100, &page), None);
    }

    #[test]
    fn torn_entries_and_entries_of_other_slots_are_no_grants() {
        let mut grants = ReceivedGrants::new(1);
        for at in 0..ENTRY_BYTES as u64 {
            let page = page(&[grant(9, 100)]);
            let mut byte = [0];
            page.copy_out(Grant::entry_offset(GrantNumber(9)) + at, &mut byte).unwrap();
            page.copy_in(Grant::entry_offset(GrantNumber(9)) + at, &[byte[0] ^ 1]).unwrap();
            assert_eq!(grants.take_for(MessageId(1), 100, &page), None, "byte {at}");
        }
        let elsewhere = Mapping::anonymous(4096).unwrap();
        elsewhere.copy_in(Grant::entry_offset(GrantNumber(2)), &grant(9, 100).encode()).unwrap();
        assert_eq!(grants.take_for(MessageId(1), 100, &elsewhere), None);
        let beyond = Grant { block: RemoteMemory { address: u64::MAX, key: 1, bytes: 100 }, ..grant(1, 0) };
        assert_eq!(grants.take_for(MessageId(1), 100, &page(&[beyond])), None);
        assert_eq!(grants.take_for(MessageId(1), 100, &page(&[grant(9, 100)])), Some(grant(9, 100)));
    }
}
