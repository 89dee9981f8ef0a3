//! A double of a link whose peer writes into granted blocks, as over rdma, but without a device. A test says what arrives, and sees what is granted.
//!
//! It keeps the promises of `LinkReceiver::grant`, and panics when a block is granted where the peer may still write.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rgaps_link::record::Flags;
use rgaps_link::{
    GrantNumber, LandingPlace, LinkError, LinkReceiver, MessageHead, MessageId, PayloadMemory, ReceiverCounters,
    ReceiverRing, RecordHeader, RecordSequence, Release, RingGeometry, RingMemory, RingRecord,
};
use rgaps_os::{Access, EventFd, Mapping};

/// A record that the peer sends.
struct Sent {
    header: RecordHeader,
    envelope: Vec<u8>,
    grant: Option<GrantNumber>,
}

/// What the test and its link share.
pub(super) struct Script {
    /// The peer takes at most so many grants.
    pub(super) grants_max: usize,
    /// Where the peer may write.
    pub(super) rights: BTreeMap<GrantNumber, Range<u64>>,
    /// All that was ever granted.
    places: BTreeMap<GrantNumber, LandingPlace>,
    /// The peer returns what it does not use as soon as it is asked.
    pub(super) returns: bool,
    /// How many grants the peer had when it learned that a message had arrived.
    pub(super) rights_at_ends: Vec<usize>,
    /// What the link calls when it is dropped.
    pub(super) on_drop: Option<Box<dyn FnOnce() + Send>>,
    /// The peer hangs up when all of it has been received.
    pub(super) ends: bool,
    sent: VecDeque<Sent>,
    /// By message, the grant that it uses.
    used: HashMap<MessageId, GrantNumber>,
    returned: VecDeque<GrantNumber>,
    revocations: u64,
    records: u64,
    granted: u64,
}

/// A test's handle of its link: it plays the peer.
#[derive(Clone)]
pub(super) struct Peer(Arc<Mutex<Script>>);

/// The link.
pub(super) struct ScriptedLink {
    peer: Peer,
    ring: ReceiverRing,
    memory: Arc<RingMemory>,
}

impl Peer {
    /// A link with this ring, and its peer.
    pub(super) fn new(geometry: RingGeometry, memory: Arc<RingMemory>) -> (Self, ScriptedLink) {
        let peer = Self(Arc::new(Mutex::new(Script {
            grants_max: 16,
            rights: BTreeMap::new(),
            places: BTreeMap::new(),
            returns: true,
            rights_at_ends: Vec::new(),
            on_drop: None,
            ends: false,
            sent: VecDeque::new(),
            used: HashMap::new(),
            returned: VecDeque::new(),
            revocations: 0,
            records: 0,
            granted: 0,
        })));
        let link = ScriptedLink { peer: peer.clone(), ring: ReceiverRing::new(geometry), memory };
        (peer, link)
    }

    pub(super) fn script(&self) -> MutexGuard<'_, Script> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends the first record of a message, with data of these bytes: through the ring, or in the memory of a grant.
    pub(super) fn begin(&self, head: MessageHead, envelope: &[u8], bytes: u64, grant: Option<u64>) {
        let flags = Flags::FIRST.with(if bytes == head.total { Flags::LAST } else { Flags::NONE });
        self.send(head, flags, envelope, 0..bytes, grant);
    }

    /// Sends the rest of a message from this offset.
    pub(super) fn finish(&self, head: MessageHead, offset: u64, grant: Option<u64>) {
        self.send(head, Flags::LAST, &[], offset..head.total, grant);
    }

    /// Aborts a message after these bytes.
    pub(super) fn abort(&self, head: MessageHead, offset: u64) {
        self.send(head, Flags::ABORT, &[], offset..offset, None);
    }

    fn send(&self, head: MessageHead, flags: Flags, envelope: &[u8], data: Range<u64>, grant: Option<u64>) {
        let mut script = self.script();
        let grant = grant.map(GrantNumber);
        let header = RecordHeader {
            flags: if grant.is_some() { flags.with(Flags::LANDED) } else { flags },
            record: RecordSequence(script.records),
            message: head.id,
            name: head.name,
            offset: data.start,
            total: head.total,
            payload_bytes: (envelope.len() as u64 + data.end - data.start) as u32,
            envelope_bytes: envelope.len() as u32,
        };
        assert_eq!(RecordHeader::decode(&header.encode()), Ok(header), "the script is no stream of records");
        script.records += 1;
        script.sent.push_back(Sent { header, envelope: envelope.to_vec(), grant });
    }

    /// The numbers of the grants that the peer has, or uses.
    pub(super) fn rights(&self) -> Vec<u64> {
        self.script().rights.keys().map(|number| number.0).collect()
    }

    /// Where a granted block is.
    pub(super) fn place(&self, number: u64) -> LandingPlace {
        self.script().places[&GrantNumber(number)].clone()
    }

    /// Writes into a granted block, as a network card does.
    pub(super) fn write(&self, number: u64, bytes: &[u8]) {
        assert!(self.rights().contains(&number), "the device refuses the write");
        let LandingPlace { memory, offset } = self.place(number);
        let memory = match memory {
            PayloadMemory::Host(mapping) => mapping,
            PayloadMemory::Device(memory) => {
                Arc::new(Mapping::map(memory.as_ref(), memory.bytes(), Access::ReadWrite).unwrap())
            }
        };
        memory.copy_in(offset, bytes).unwrap();
    }

    /// How often grants were revoked.
    pub(super) fn revocations(&self) -> u64 {
        self.script().revocations
    }

    /// Returns grants that the peer does not use.
    pub(super) fn give_back(&self) {
        self.script().give_back();
    }

    pub(super) fn has_sent_all(&self) -> bool {
        self.script().sent.is_empty()
    }
}

/// Where memory of a device begins; 0 for memory of this host.
fn device_address(place: &LandingPlace) -> u64 {
    match &place.memory {
        PayloadMemory::Host(_) => 0,
        PayloadMemory::Device(memory) => memory.address(),
    }
}

impl Script {
    fn give_back(&mut self) {
        let Self { rights, used, returned, .. } = self;
        returned.extend(rights.keys().filter(|number| !used.values().any(|used| used == *number)));
        rights.retain(|number, _| !returned.contains(number));
    }
}

impl LinkReceiver for ScriptedLink {
    fn geometry(&self) -> &RingGeometry {
        self.ring.geometry()
    }

    fn memory(&self) -> &Arc<RingMemory> {
        &self.memory
    }

    fn next(&mut self, _: Duration) -> Result<Option<RingRecord>, LinkError> {
        let mut script = self.peer.script();
        let Some(Sent { header, envelope, grant }) = script.sent.pop_front() else {
            return if script.ends { Err(LinkError::Closed { by_peer: true }) } else { Ok(None) };
        };
        let placement = self.ring.admit(&header).unwrap();
        let record = RingRecord::new(header, placement, self.ring.geometry(), grant);
        self.memory.mapping().copy_in(record.payload().offset.0, &envelope).unwrap();
        if let Some(number) = grant {
            assert!(script.rights.contains_key(&number), "the script uses a grant that the peer does not have");
            script.used.insert(header.message, number);
        }
        // From here on the device refuses what the peer writes there.
        if header.ends_message()
            && let Some(number) = script.used.remove(&header.message)
        {
            script.rights.remove(&number);
        }
        Ok(Some(record))
    }

    fn wake_by(&mut self, _: Arc<EventFd>) {}

    fn grants_max(&self) -> usize {
        self.peer.script().grants_max
    }

    fn grant(&mut self, place: &LandingPlace, bytes: u64) -> Result<Option<GrantNumber>, LinkError> {
        let mut script = self.peer.script();
        if script.rights.len() >= script.grants_max {
            return Ok(None);
        }
        let start = place.offset + device_address(place);
        let block = start..start + bytes;
        let is_apart = |other: &Range<u64>| other.end <= block.start || block.end <= other.start;
        assert!(script.rights.values().all(is_apart), "a block is granted where the peer may still write");
        script.granted += 1;
        let number = GrantNumber(script.granted);
        script.rights.insert(number, block);
        script.places.insert(number, place.clone());
        Ok(Some(number))
    }

    fn revoke_grants(&mut self) {
        let mut script = self.peer.script();
        script.revocations += 1;
        if script.returns {
            script.give_back();
        }
    }

    fn next_returned(&mut self) -> Option<GrantNumber> {
        self.peer.script().returned.pop_front()
    }

    fn release(&mut self, record: RingRecord) -> Result<Release, LinkError> {
        self.ring.consumed(record.placement().end).unwrap();
        if record.header().ends_message() {
            let mut script = self.peer.script();
            let rights = script.rights.len();
            script.rights_at_ends.push(rights);
        }
        Ok(Release::Intact)
    }

    fn flush_credit(&mut self) {}

    fn counters(&self) -> ReceiverCounters {
        ReceiverCounters::default()
    }

    fn close(&mut self) {}
}

impl Drop for ScriptedLink {
    fn drop(&mut self) {
        if let Some(on_drop) = self.peer.script().on_drop.take() {
            on_drop();
        }
    }
}
