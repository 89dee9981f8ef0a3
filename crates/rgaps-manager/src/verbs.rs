//! Verbs of this host: which ports could carry a link to another host, and one protection domain for each of those.
//!
//! ```text
//!   publishing host                                  subscribing host
//!   an end of a queue pair for each usable port ──request──▶ the first pair of ports with a route between them:
//!   joins the one that was chosen ◀──────────────offer────── its own end, joined, and the ring's address and key
//!   connects the data connection, which is the link's liveness socket
//! ```
//!
//! `auto` takes RDMA where that works and says why where it does not; `rdma` refuses to go on without; `tcp` does not look. A link that
//! fails before it has brought anything is tried over tcp the next time: a firewall may drop what the routing table lets pass.

use std::collections::HashMap;
use std::net::Ipv6Addr;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use rgaps_control::wire::{RDMA_ENDS_MAX, RdmaEnd, RingRequest};
use rgaps_control::{Config, HostId};
use rgaps_link::rdma::{
    Address, Candidate, Domain, Gid, LinkLayer, RdmaOptions, ReceiverEnd, RemoteMemory, SenderEnd, VerbsError, ports,
};
use rgaps_link::{FlowControl, RingGeometry, RingMemory};

/// The most receives that are posted for a ring, and so the most records in it.
const RECEIVES: u64 = 4096;

/// What the two managers of a host know of its devices.
#[derive(Debug)]
pub(crate) struct Verbs {
    transport: String,
    device: String,
    gid: String,
    options: RdmaOptions,
    domains: Mutex<HashMap<(HostId, String), Weak<Domain>>>,
}

/// Two ports with a route between them: ours, and which of the peer's ends.
#[derive(Clone, Debug)]
pub(crate) struct Match {
    candidate: Candidate,
    end: RdmaEnd,
    /// Its place in the request.
    pub(crate) to: u32,
}

impl Verbs {
    pub(crate) fn new(config: &Config) -> Self {
        Self {
            transport: config.transport.clone(),
            device: config.rdma_device.clone(),
            gid: config.rdma_gid.clone(),
            options: RdmaOptions {
                dead_peer_timeout: Duration::from_millis(config.rdma_timeout_ms),
                spin: Duration::from_micros(config.rdma_spin_us),
            },
            domains: Mutex::default(),
        }
    }

    pub(crate) fn options(&self) -> RdmaOptions {
        self.options
    }

    /// Whether a link over anything else is no use.
    pub(crate) fn is_required(&self) -> bool {
        self.transport == "rdma"
    }

    /// Ports of this host that could carry a link, or why there are none.
    fn candidates(&self, flow_control: bool) -> Result<Vec<Candidate>, String> {
        if self.transport == "tcp" {
            return Err("transport = \"tcp\" is configured".to_owned());
        }
        if !flow_control {
            return Err("flow control is off for this topic, and rdma needs it".to_owned());
        }
        let ports = ports().map_err(|error| error.to_string())?;
        if ports.is_empty() {
            return Err("there is no RDMA device".to_owned());
        }
        let named = |candidate: &Candidate| {
            let port = format!("{}/{}", candidate.device, candidate.port);
            (self.device.is_empty() || self.device == candidate.device || self.device == port)
                && (self.gid.is_empty() || self.gid == candidate.gid.to_string())
        };
        let all: Vec<Candidate> = ports.iter().flat_map(|port| port.candidates()).filter(named).collect();
        if all.is_empty() {
            return Err(format!(
                "none of {} RDMA ports is active{}",
                ports.len(),
                if self.device.is_empty() && self.gid.is_empty() {
                    ""
                } else {
                    " and has the configured device and gid"
                }
            ));
        }
        Ok(all)
    }

    /// One domain for each peer and device, as long as a link uses it.
    fn domain(&self, peer: HostId, device: &str) -> Result<Arc<Domain>, VerbsError> {
        let mut domains = self.domains.lock().unwrap_or_else(PoisonError::into_inner);
        domains.retain(|_, domain| domain.strong_count() > 0);
        if let Some(domain) = domains.get(&(peer, device.to_owned())).and_then(Weak::upgrade) {
            return Ok(domain);
        }
        let domain = Domain::open(device)?;
        domains.insert((peer, device.to_owned()), Arc::downgrade(&domain));
        Ok(domain)
    }

    /// For a request: an end for each way in which this host could be reached.
    pub(crate) fn sender_ends(&self, peer: HostId, flow_control: bool) -> Result<Vec<SenderEnd>, String> {
        let mut ends = Vec::new();
        let mut why = String::new();
        for candidate in self.candidates(flow_control)?.into_iter().take(RDMA_ENDS_MAX) {
            let made = self.domain(peer, &candidate.device).and_then(|domain| SenderEnd::new(&domain, &candidate));
            match made {
                Ok(end) => ends.push(end),
                Err(error) => why = error.to_string(),
            }
        }
        if ends.is_empty() { Err(why) } else { Ok(ends) }
    }

    /// For an offer: a port of ours from which one of the peer's can be reached.
    pub(crate) fn choose(&self, request: &RingRequest) -> Result<Match, String> {
        let candidates = self.candidates(request.flow_control)?;
        if request.rdma.is_empty() {
            return Err(format!("{}: {}", request.host_name, request.no_rdma));
        }
        for (to, end) in (0..).zip(&request.rdma) {
            let (link_layer, gid) = (link_layer(end), Gid(end.gid.octets()));
            if let Some(candidate) = candidates.iter().find(|candidate| candidate.reaches(link_layer, gid)) {
                return Ok(Match { candidate: candidate.clone(), end: end.clone(), to });
            }
        }
        let theirs: Vec<String> = request.rdma.iter().map(|end| Gid(end.gid.octets()).to_string()).collect();
        let ours: Vec<String> = candidates.iter().map(|candidate| candidate.gid.to_string()).collect();
        Err(format!("no route from {} to {}", ours.join(", "), theirs.join(", ")))
    }

    /// The alignment with which a ring has no more records than receives can be posted.
    pub(crate) fn alignment(&self, peer: HostId, with: &Match, ring_bytes: u64) -> Result<u32, String> {
        let domain = self.domain(peer, &with.candidate.device).map_err(|error| error.to_string())?;
        let receives = domain.receives_max().map_err(|error| error.to_string())?.clamp(1, RECEIVES);
        let alignment = ring_bytes.div_ceil(receives).next_power_of_two().max(64);
        u32::try_from(alignment).map_err(|_| format!("a ring of {ring_bytes} B for {receives} receives"))
    }

    /// Our end, joined to the peer's, with the ring registered.
    pub(crate) fn receiver_end(
        &self,
        peer: HostId,
        with: &Match,
        memory: &Arc<RingMemory>,
        geometry: RingGeometry,
    ) -> Result<ReceiverEnd, VerbsError> {
        debug_assert_eq!(geometry.flow_control(), FlowControl::On);
        memory.advise_huge_pages();
        let domain = self.domain(peer, &with.candidate.device)?;
        let (address, credit) = from_wire(&with.end);
        ReceiverEnd::new(&domain, &with.candidate, memory, geometry, (&address, credit), self.options)
    }
}

fn link_layer(end: &RdmaEnd) -> LinkLayer {
    if end.infiniband { LinkLayer::InfiniBand } else { LinkLayer::Ethernet }
}

/// For the hand-shake.
pub(crate) fn to_wire(address: &Address, memory: RemoteMemory) -> RdmaEnd {
    RdmaEnd {
        infiniband: address.link_layer == LinkLayer::InfiniBand,
        gid: Ipv6Addr::from(address.gid.0),
        lid: address.lid,
        mtu_bytes: address.mtu_bytes,
        queue_pair: address.queue_pair,
        packet: address.packet,
        address: memory.address,
        key: memory.key,
        bytes: memory.bytes,
    }
}

/// From the hand-shake, which has checked it.
pub(crate) fn from_wire(end: &RdmaEnd) -> (Address, RemoteMemory) {
    let address = Address {
        link_layer: link_layer(end),
        gid: Gid(end.gid.octets()),
        lid: end.lid,
        mtu_bytes: end.mtu_bytes,
        queue_pair: end.queue_pair,
        packet: end.packet,
    };
    (address, RemoteMemory { address: end.address, key: end.key, bytes: end.bytes })
}
