//! The hand-shake between two managers before bytes flow: the publishing host requests a ring, the subscribing host offers one.
//!
//! Source      the order of steps is that of Jiang, master's thesis (RGAPS), 2026, section 3.2 (remote coordination, resource creation,
//!             finalization).
//! Trusts      nothing: sizes, counts, addresses and the ring's shape are checked before anything is made from them.

use std::collections::{BTreeSet, HashSet};
use std::hash::Hash;
use std::net::{Ipv6Addr, SocketAddr};

use serde::{Deserialize, Deserializer, Serialize};

use crate::limits::OverBudget;
use crate::local::Role;
use crate::names::{self, HostId, TopicKey};
use crate::qos::{Durability, Mismatch, PublisherQos, Reliability, SubscriberQos, compatible, incompatible};
use crate::text;

/// Version of everything in this file and of the records on a link.
pub const WIRE_VERSION: u32 = 7;
/// Most different offers in a request: one for each publisher that a host can have.
const OFFERS_MAX: usize = 256;
/// Ends of queue pairs in one request, at most.
pub const RDMA_ENDS_MAX: usize = 8;
/// Bytes of a ring, chunk or message, at most: 1 TiB.
pub const SIZE_MAX: u64 = 1 << 40;
/// Bytes of a hand-shake's payload, at most; longer ones are not read.
pub const HANDSHAKE_BYTES_MAX: usize = 64 << 10;
/// Addresses in an offer, at most.
pub const ADDRESSES_MAX: usize = 64;
/// Publishers in an offer's `resume`, at most.
pub const RESUME_MAX: usize = 1024;
/// Publishers in a request's `published`, at most.
pub const PUBLISHED_MAX: usize = 512;
/// Smallest alignment of records, and the bytes of their header.
pub const RECORD_ALIGNMENT: u64 = 64;
/// Largest alignment of records.
pub const RECORD_ALIGNMENT_MAX: u64 = 1 << 16;

/// A host's publishers of a topic, or its subscribers. Travels in the key of a liveliness token.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Endpoint {
    /// The topic.
    pub key: TopicKey,
    /// Publishers or subscribers.
    pub role: Role,
    /// The type.
    #[serde(deserialize_with = "names::type_name")]
    pub type_name: String,
    /// The publishers' offers, without duplicates.
    #[serde(deserialize_with = "each_once")]
    pub offers: Vec<PublisherQos>,
    /// The subscribers' requests, without duplicates.
    #[serde(deserialize_with = "each_once")]
    pub requests: Vec<SubscriberQos>,
}

/// Deserializes a list without its duplicates. Otherwise the list could be much larger than its text, since `{}` is a whole offer.
fn each_once<'de, T, D>(from: D) -> Result<Vec<T>, D::Error>
where
    T: Deserialize<'de> + Copy + Eq + Hash,
    D: Deserializer<'de>,
{
    let mut items = Vec::<T>::deserialize(from)?;
    let mut seen = HashSet::new();
    items.retain(|item| seen.insert(*item));
    items.shrink_to_fit();
    Ok(items)
}

/// The policies that `incompatible` compares.
fn compared(offer: &PublisherQos) -> (Reliability, Durability) {
    (offer.reliability, offer.durability)
}

impl Endpoint {
    /// Whether any publisher of `self` is compatible with any subscriber of `subscribers`. The error is the first mismatch.
    pub fn fits(&self, subscribers: &Endpoint) -> Result<(), Mismatch> {
        let some_pair = self.type_name == subscribers.type_name && self.fitting(subscribers).next().is_some();
        match self.mismatches(subscribers).into_iter().next() {
            Some(mismatch) if !some_pair => Err(mismatch),
            _ => Ok(()),
        }
    }

    /// Every mismatch between a publisher of `self` and a subscriber of `subscribers`, even if other pairs are compatible.
    pub fn mismatches(&self, subscribers: &Endpoint) -> BTreeSet<Mismatch> {
        if self.type_name != subscribers.type_name {
            let (offered, requested) = (self.type_name.clone(), subscribers.type_name.clone());
            return BTreeSet::from([Mismatch::Type { offered, requested }]);
        }
        // Another host may send hundreds of offers and requests, of which few differ in the compared policies.
        let mut offers: Vec<&PublisherQos> = Vec::new();
        for offer in &self.offers {
            let is_alike = |known: &&PublisherQos| compared(known) == compared(offer);
            if !offers.iter().any(is_alike) {
                offers.push(offer);
            }
        }
        let mut found = BTreeSet::new();
        for request in &subscribers.requests {
            found.extend(offers.iter().flat_map(|offer| incompatible(offer, request)));
        }
        found
    }

    /// The requests of `subscribers` that are compatible with some offer of `self`. The types must be equal.
    pub fn fitting<'a>(&'a self, subscribers: &'a Endpoint) -> impl Iterator<Item = &'a SubscriberQos> {
        let fits = |request: &SubscriberQos| self.offers.iter().any(|offer| compatible(offer, request).is_ok());
        subscribers.requests.iter().filter(move |request| fits(request))
    }
}

/// One end of an RDMA queue pair, and the memory that the other end may write: the sender's credit words, or the receiver's ring.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RdmaEnd {
    /// InfiniBand if true, else RoCE v2.
    pub infiniband: bool,
    /// The port's GID.
    pub gid: Ipv6Addr,
    /// The port's local identifier (LID), used on InfiniBand only.
    pub lid: u16,
    /// The port's MTU in bytes.
    pub mtu_bytes: u32,
    /// The queue pair's number (QPN).
    pub queue_pair: u32,
    /// The sequence number of its first packet (PSN).
    pub packet: u32,
    /// Start of the memory, in its owner's address space.
    pub address: u64,
    /// The memory's remote key (rkey).
    pub key: u32,
    /// Bytes of the memory.
    pub bytes: u64,
}

/// The checksum of payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Integrity {
    /// A CRC32C over each record and credit.
    Crc32c,
    /// None of ours.
    None,
}

impl Integrity {
    /// The checksum of a link between two hosts: a CRC if either host wants one.
    pub fn stricter(self, other: Self) -> Self {
        if self == Self::Crc32c { self } else { other }
    }
}

/// What a subscribing host that accepts RDMA adds to its offer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RdmaRing {
    /// The index of the end in the request that it has connected its own end to.
    pub to: u32,
    /// Its own end, with the ring as the memory.
    pub end: RdmaEnd,
    /// It grants blocks for messages of at least so many bytes; `None`: it grants none.
    pub grants_from_bytes: Option<u64>,
}

/// A publishing host's request for a ring.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RingRequest {
    /// `WIRE_VERSION`.
    pub version: u32,
    /// The requesting host.
    pub host: HostId,
    /// Its name.
    pub host_name: String,
    /// What it publishes.
    pub endpoint: Endpoint,
    /// Bytes of the longest message that may follow.
    pub message_bytes_max: u64,
    /// Whether the sender waits for credit.
    pub flow_control: bool,
    /// The checksum that this host wants, at least, on the data connection.
    pub integrity: Integrity,
    /// Ends of queue pairs that can be connected to, one for each RDMA address of this host.
    pub rdma: Vec<RdmaEnd>,
    /// Why there are no ends, in words.
    pub no_rdma: String,
    /// The newest sequence of each publisher: (publisher, sequence), 0 before its first message. The subscribing host forgets later sequences that it
    /// has noted for these publishers: another sender forged them.
    #[serde(default)]
    pub published: Vec<(u64, u64)>,
}

/// A subscribing host's offer of a ring.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RingOffer {
    /// `WIRE_VERSION`.
    pub version: u32,
    /// Identifies the data connection to the offer; valid once; 32 hexadecimal digits.
    pub token: crate::names::TopicId,
    /// The addresses that it listens on, in order of preference: "10.0.0.2:40001".
    pub addresses: Vec<String>,
    /// Bytes of the ring.
    pub ring_bytes: u64,
    /// Bytes of a record's payload, at most.
    pub chunk_bytes: u64,
    /// Bytes of credit that the receiver may withhold.
    pub watermark_bytes: u64,
    /// Records start at multiples of this.
    pub alignment: u32,
    /// The checksum of the data connection: at least what the request wants.
    pub integrity: Integrity,
    /// Set if payload is sent over RDMA; otherwise it is sent over the data connection.
    pub rdma: Option<RdmaRing>,
    /// Why RDMA is not used, in words.
    pub no_rdma: String,
    /// Whether it was linked with that host before and remembers what it got. Otherwise the sender owes it only what is published from now on.
    pub remembers: bool,
    /// The last message that it has of each publisher: (publisher, sequence). The sender resends only newer ones.
    pub resume: Vec<(u64, u64)>,
    /// Whether late joiners get history of all publishers in `resume`. Otherwise the sender resends its history.
    pub keeps_history: bool,
}

/// A subscribing host's refusal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "snake_case")]
pub enum RingRefusal {
    /// The hosts have different versions.
    #[error("the hosts have wire versions {theirs} and {ours}; run one version of RGAPS on all hosts")]
    Version {
        /// Of the host that checks.
        ours: u32,
        /// Of the host whose message it checks.
        theirs: u32,
    },
    /// The host has no subscriber of the topic (any more).
    #[error("the other host has no subscriber of {0}")]
    NoSubscribers(String),
    /// Publishers and subscribers are incompatible.
    #[error("{0}")]
    Mismatch(Mismatch),
    /// A size is beyond all reason.
    #[error("{what} of {bytes} B exceeds {SIZE_MAX} B")]
    ImpossibleSize {
        /// The thing with that size.
        what: String,
        /// Its size in bytes.
        bytes: u64,
    },
    /// The offer or request cannot work. Raised by the host that checks it.
    #[error("the other host's {what}; is it of another version, or not RGAPS?")]
    Inconsistent {
        /// The faulty part, and the rule that it breaks.
        what: String,
    },
    /// A budget of the refusing host is used up.
    #[error(
        "the other host has no room for the link: {0}; this host retries in a moment. Raise that limit there, or use fewer hosts or topics"
    )]
    NoRoom(OverBudget),
    /// The same host has sent a newer request for the same topic meanwhile.
    #[error("this host has sent a newer request for {0} before this one was answered")]
    AskedAgain(String),
    /// The refusing host could not make the ring.
    #[error("the other host could not make the ring: {0}")]
    Failed(String),
}

impl RdmaEnd {
    /// Checks an end that a peer has sent. The link checks its memory.
    fn check(&self) -> Result<(), RingRefusal> {
        if self.queue_pair >> 24 != 0 || self.packet >> 24 != 0 {
            return Err(inconsistent("queue pair or packet has more than 24 bits"));
        }
        if !(256..=4096).contains(&self.mtu_bytes) {
            return Err(inconsistent(format!("packets of {} B are not from 256 to 4096 B", self.mtu_bytes)));
        }
        if self.bytes > SIZE_MAX || self.address.checked_add(self.bytes).is_none() {
            return Err(RingRefusal::ImpossibleSize { what: "memory for RDMA".to_owned(), bytes: self.bytes });
        }
        Ok(())
    }
}

impl RingRequest {
    /// Reads and checks a peer's request. Another version may lack fields of ours, so its number is read first.
    pub fn of_json(bytes: &[u8]) -> Result<Self, RingRefusal> {
        #[derive(Deserialize)]
        struct Versioned {
            version: u32,
        }
        match serde_json::from_slice(bytes) {
            Ok(Versioned { version }) if version != WIRE_VERSION => {
                Err(RingRefusal::Version { ours: WIRE_VERSION, theirs: version })
            }
            _ => {
                let request: Self = text::from_json_of_host(bytes)
                    .map_err(|error| RingRefusal::Failed(format!("the request cannot be read: {error}")))?;
                // Requests wait, and each element of a list takes a multiple of its text.
                request.check()?;
                Ok(request)
            }
        }
    }

    fn check(&self) -> Result<(), RingRefusal> {
        if self.message_bytes_max > SIZE_MAX {
            return Err(RingRefusal::ImpossibleSize { what: "a message".to_owned(), bytes: self.message_bytes_max });
        }
        if self.endpoint.role != Role::Publisher || self.endpoint.offers.is_empty() {
            return Err(inconsistent("request offers nothing"));
        }
        let offers = self.endpoint.offers.len();
        if offers > OFFERS_MAX {
            return Err(inconsistent(format!("request has {offers} offers, at most {OFFERS_MAX} are allowed")));
        }
        if self.rdma.len() > RDMA_ENDS_MAX {
            return Err(inconsistent(format!(
                "request has {} RDMA ends, at most {RDMA_ENDS_MAX} are allowed",
                self.rdma.len()
            )));
        }
        if self.published.len() > PUBLISHED_MAX {
            let named = self.published.len();
            return Err(inconsistent(format!("request names {named} publishers, at most {PUBLISHED_MAX} are allowed")));
        }
        self.rdma.iter().try_for_each(RdmaEnd::check)?;
        Ok(())
    }

    /// Refuses a request under this host's own identity: its messages would pass for messages of this host's own publishers.
    pub fn check_host(&self, own: HostId) -> Result<(), RingRefusal> {
        if self.host == own { Err(inconsistent("request comes under this host's own identity")) } else { Ok(()) }
    }
}

impl RingOffer {
    /// Checks what a peer has sent.
    pub fn check(&self) -> Result<(), RingRefusal> {
        if self.version != WIRE_VERSION {
            return Err(RingRefusal::Version { ours: WIRE_VERSION, theirs: self.version });
        }
        for (what, bytes) in [("a ring", self.ring_bytes), ("a chunk", self.chunk_bytes)] {
            if bytes > SIZE_MAX || bytes == 0 {
                return Err(RingRefusal::ImpossibleSize { what: what.to_owned(), bytes });
            }
        }
        self.check_shape()?;
        if self.addresses.is_empty() || self.addresses.len() > ADDRESSES_MAX {
            return Err(inconsistent(format!(
                "offer has {} addresses, not 1 to {ADDRESSES_MAX}",
                self.addresses.len()
            )));
        }
        if let Some(bad) = self.addresses.iter().find(|address| address.parse::<SocketAddr>().is_err()) {
            let bad: String = bad.chars().take(64).collect();
            return Err(inconsistent(format!("offer has the address {bad:?}, which is not IP:PORT")));
        }
        if self.resume.len() > RESUME_MAX {
            return Err(inconsistent(format!(
                "offer has {} resume entries, at most {RESUME_MAX} are allowed",
                self.resume.len()
            )));
        }
        self.rdma.iter().try_for_each(|ring| ring.end.check())?;
        Ok(())
    }

    /// The same arithmetic as the link's: the receiver may withhold a watermark of credit, and a record that does not fit before the ring's end
    /// costs up to its size again. The rest of the ring must hold one record.
    fn check_shape(&self) -> Result<(), RingRefusal> {
        let Self { ring_bytes, chunk_bytes, watermark_bytes, .. } = *self;
        let alignment = u64::from(self.alignment);
        if !alignment.is_power_of_two() || !(RECORD_ALIGNMENT..=RECORD_ALIGNMENT_MAX).contains(&alignment) {
            return Err(inconsistent(format!(
                "alignment of {alignment} B is no power of two from {RECORD_ALIGNMENT} to {RECORD_ALIGNMENT_MAX}"
            )));
        }
        if !ring_bytes.is_multiple_of(alignment) {
            return Err(inconsistent(format!("ring of {ring_bytes} B is no multiple of {alignment} B")));
        }
        if ![0, ring_bytes / 8, ring_bytes / 4, ring_bytes / 2].contains(&watermark_bytes) {
            return Err(inconsistent(format!(
                "watermark of {watermark_bytes} B is neither 0 nor an eighth, a quarter or half of its ring of {ring_bytes} B"
            )));
        }
        let record = (RECORD_ALIGNMENT + chunk_bytes).next_multiple_of(alignment);
        let record_max = (ring_bytes - watermark_bytes) / 2;
        if record > record_max || u32::try_from(chunk_bytes).is_err() {
            return Err(inconsistent(format!(
                "chunk of {chunk_bytes} B makes records of {record} B; its ring of {ring_bytes} B holds records of {record_max} B"
            )));
        }
        Ok(())
    }
}

fn inconsistent(what: impl Into<String>) -> RingRefusal {
    RingRefusal::Inconsistent { what: what.into() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::qos::History;

    fn endpoint(role: Role, type_name: &str) -> Endpoint {
        Endpoint {
            key: TopicKey::new(0, "a").unwrap(),
            role,
            type_name: type_name.to_owned(),
            offers: vec![PublisherQos { reliability: Reliability::BestEffort, ..Default::default() }],
            requests: vec![SubscriberQos::default()],
        }
    }

    #[test]
    fn an_endpoint_keeps_no_duplicates_of_offers_and_requests() {
        let told = |offers: &str, requests: &str| {
            let key = r#"{"domain":0,"name":"/a"}"#;
            let text = format!(
                r#"{{"key":{key},"role":"publisher","type_name":"t","offers":[{offers}],"requests":[{requests}]}}"#
            );
            text::from_json::<Endpoint>(text.as_bytes()).unwrap()
        };
        let many = told(
            &vec!["{}"; 5000].join(","),
            &[vec!["{}"; 5000].join(","), r#"{"history":"keep_all"}"#.to_owned()].join(","),
        );
        assert_eq!((many.offers.len(), many.requests.len()), (1, 2));
        assert_eq!(many.offers, [PublisherQos::default()]);
        assert_eq!(many.requests[1], SubscriberQos { history: History::KeepAll, ..Default::default() });
        assert!(many.offers.capacity() + many.requests.capacity() <= 8, "the lists are no larger than their text");
    }

    #[test]
    fn one_compatible_pair_is_enough_and_a_mismatch_is_named() {
        let mut publishers = endpoint(Role::Publisher, "rgaps/Image");
        let subscribers = endpoint(Role::Subscriber, "rgaps/Image");
        assert_eq!(publishers.fits(&subscribers), Err(Mismatch::Reliability));
        publishers.offers.push(PublisherQos::default());
        assert_eq!(publishers.fits(&subscribers), Ok(()));
        assert_eq!(publishers.mismatches(&subscribers), BTreeSet::from([Mismatch::Reliability]));
        let other = endpoint(Role::Subscriber, "rgaps/Tensor");
        assert!(matches!(publishers.fits(&other), Err(Mismatch::Type { .. })));
    }

    #[test]
    fn a_request_with_more_offers_than_a_host_has_publishers_is_refused() {
        let offers = |count: usize| {
            let offer = |n: usize| PublisherQos { history_depth: n as u32, ..PublisherQos::default() };
            let request = RingRequest {
                version: WIRE_VERSION,
                host: HostId([1; 16]),
                host_name: "head".to_owned(),
                endpoint: Endpoint { offers: (1..=count).map(offer).collect(), ..endpoint(Role::Publisher, "t") },
                message_bytes_max: 1,
                flow_control: true,
                integrity: Integrity::Crc32c,
                rdma: Vec::new(),
                no_rdma: String::new(),
                published: Vec::new(),
            };
            RingRequest::of_json(&serde_json::to_vec(&request).unwrap()).map(|read| read.endpoint.offers.len())
        };
        assert_eq!(offers(OFFERS_MAX).ok(), Some(OFFERS_MAX));
        assert!(offers(OFFERS_MAX + 1).unwrap_err().to_string().contains("257 offers"));
    }

    fn ring(change: impl FnOnce(&mut RdmaEnd)) -> RdmaRing {
        let mut end = RdmaEnd {
            infiniband: false,
            gid: "::ffff:10.0.0.2".parse().unwrap(),
            lid: 0,
            mtu_bytes: 4096,
            queue_pair: 17,
            packet: 1,
            address: 1 << 40,
            key: 5,
            bytes: 64 << 20,
        };
        change(&mut end);
        RdmaRing { to: 0, end, grants_from_bytes: Some(1 << 16) }
    }

    fn offer() -> RingOffer {
        RingOffer {
            version: WIRE_VERSION,
            token: crate::names::TopicId([1; 16]),
            addresses: vec!["10.0.0.2:40001".to_owned()],
            ring_bytes: 64 << 20,
            chunk_bytes: (1 << 20) - 64,
            watermark_bytes: 8 << 20,
            alignment: 64,
            integrity: Integrity::Crc32c,
            rdma: None,
            no_rdma: "no device".to_owned(),
            remembers: true,
            resume: vec![],
            keeps_history: true,
        }
    }

    #[test]
    fn impossible_sizes_and_versions_are_refused() {
        assert_eq!(offer().check(), Ok(()));
        for bytes in [0, SIZE_MAX + 64, u64::MAX] {
            assert!(matches!(
                RingOffer { ring_bytes: bytes, ..offer() }.check(),
                Err(RingRefusal::ImpossibleSize { .. })
            ));
            assert!(matches!(
                RingOffer { chunk_bytes: bytes, ..offer() }.check(),
                Err(RingRefusal::ImpossibleSize { .. })
            ));
        }
        let said = RingOffer { version: 9, ..offer() }.check().unwrap_err().to_string();
        assert!(said.contains(&format!("wire versions 9 and {WIRE_VERSION}; run one version of RGAPS")), "{said}");
    }

    #[test]
    fn a_request_of_another_version_is_refused_for_its_version_whatever_else_it_has() {
        let other = format!("wire versions 2 and {WIRE_VERSION}; run one version of RGAPS on all hosts");
        let own = format!(r#"{{"version":{WIRE_VERSION}}}"#);
        for (text, said) in [
            (r#"{"version":2,"host":"0"}"#, other.as_str()),
            (own.as_str(), "cannot be read"),
            (r#"{"name":"x"}"#, "cannot be read"),
        ] {
            let refusal = RingRequest::of_json(text.as_bytes()).unwrap_err().to_string();
            assert!(refusal.contains(said), "{text}: {refusal}");
        }
    }

    #[test]
    fn a_link_has_checksums_if_either_host_wants_them() {
        use Integrity::{Crc32c, None};
        let agreed = [(Crc32c, Crc32c), (Crc32c, None), (None, Crc32c), (None, None)].map(|(a, b)| a.stricter(b));
        assert_eq!(agreed, [Crc32c, Crc32c, Crc32c, None]);
    }

    #[test]
    fn an_offer_that_no_link_can_be_made_of_is_refused_with_the_broken_rule() {
        let most = (64 << 20) / 2 - 64;
        let fits = RingOffer { watermark_bytes: 0, chunk_bytes: most, ..offer() };
        assert_eq!(fits.check(), Ok(()));
        let refused = |bad: RingOffer, rule: &str| {
            let said = bad.check().unwrap_err();
            assert!(matches!(said, RingRefusal::Inconsistent { .. }) && said.to_string().contains(rule), "{said}");
        };
        refused(RingOffer { chunk_bytes: most + 1, watermark_bytes: 0, ..offer() }, "makes records of");
        refused(RingOffer { chunk_bytes: most, watermark_bytes: 32 << 20, ..offer() }, "makes records of");
        refused(
            RingOffer { chunk_bytes: 1 << 33, ring_bytes: 1 << 40, watermark_bytes: 0, ..offer() },
            "makes records of",
        );
        refused(RingOffer { ring_bytes: (64 << 20) + 1, ..offer() }, "no multiple of");
        refused(RingOffer { watermark_bytes: 7 << 20, ..offer() }, "watermark");
        refused(RingOffer { alignment: 96, ..offer() }, "alignment of 96 B");
        refused(RingOffer { alignment: 1 << 17, ..offer() }, "alignment of 131072 B");
        refused(RingOffer { rdma: Some(ring(|end| end.queue_pair = 1 << 24)), ..offer() }, "24 bits");
        refused(RingOffer { rdma: Some(ring(|end| end.mtu_bytes = 9000)), ..offer() }, "packets of 9000 B");
        let beyond = RingOffer { rdma: Some(ring(|end| end.address = u64::MAX)), ..offer() };
        assert!(matches!(beyond.check(), Err(RingRefusal::ImpossibleSize { .. })));
        assert_eq!(RingOffer { rdma: Some(ring(|_| ())), ..offer() }.check(), Ok(()));
        refused(RingOffer { watermark_bytes: u64::MAX, ..offer() }, "watermark");
        refused(RingOffer { addresses: vec![], ..offer() }, "0 addresses");
        refused(RingOffer { addresses: vec!["10.0.0.2:1".to_owned(); ADDRESSES_MAX + 1], ..offer() }, "65 addresses");
        refused(RingOffer { addresses: vec!["camera:1".to_owned()], ..offer() }, "\"camera:1\"");
        refused(RingOffer { resume: vec![(1, 1); RESUME_MAX + 1], ..offer() }, "resume");
    }

    #[test]
    fn a_request_under_our_own_identity_or_of_too_many_publishers_is_refused() {
        let request = RingRequest {
            version: WIRE_VERSION,
            host: HostId([1; 16]),
            host_name: "arm".to_owned(),
            endpoint: endpoint(Role::Publisher, "rgaps/Image"),
            message_bytes_max: 1 << 20,
            flow_control: true,
            integrity: Integrity::Crc32c,
            rdma: vec![],
            no_rdma: String::new(),
            published: vec![(u64::MAX, u64::MAX); PUBLISHED_MAX],
        };
        assert_eq!((request.check(), request.check_host(HostId([2; 16]))), (Ok(()), Ok(())));
        let said = request.check_host(request.host).unwrap_err().to_string();
        assert!(said.contains("this host's own identity"), "{said}");
        let more = RingRequest { published: vec![(1, 1); PUBLISHED_MAX + 1], ..request };
        assert!(more.check().unwrap_err().to_string().contains("names 513 publishers"));
    }

    #[test]
    fn the_largest_offer_fits_a_hand_shake() {
        let largest = RingOffer {
            addresses: vec!["255.255.255.255:65535".to_owned(); ADDRESSES_MAX],
            resume: vec![(u64::MAX, u64::MAX); RESUME_MAX],
            ..offer()
        };
        let bytes = serde_json::to_vec(&Ok::<_, RingRefusal>(largest)).unwrap().len();
        assert!(bytes <= HANDSHAKE_BYTES_MAX, "{bytes}");
    }
}
