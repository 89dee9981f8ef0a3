//! RDMA verbs on this host: which ports could carry a link to another host, with one protection domain for each.
//!
//! ```text
//!   publishing host                                  subscribing host
//!   an end of a queue pair for each usable port ──request──▶ chooses the first pair of ports with a route between them
//!   connects the chosen end ◀────────────────────offer────── its own end, connected, and the ring's address and key
//!   opens the data connection, which is the link's liveness socket
//! ```
//!
//! `auto` uses RDMA if it works, and says why if it does not. `rdma` never falls back to tcp. `tcp` does not look for devices. If links end without
//! an acknowledged message, the sender uses tcp for the next one: a firewall may drop what the routing table permits.

use std::collections::HashMap;
use std::net::Ipv6Addr;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use rgaps_control::wire::{RDMA_ENDS_MAX, RdmaEnd, RingRequest};
use rgaps_control::{Config, HostId};
use rgaps_device::Backend;
use rgaps_link::rdma::{
    Address, Candidate, Domain, Gid, LinkLayer, RdmaOptions, ReceiverEnd, RemoteMemory, SenderEnd, VerbsError, ports,
};
use rgaps_link::{FlowControl, RingGeometry, RingMemory};

use crate::device_access::DeviceAccess;

/// Receives posted for a ring, at most, and so the records in it, at most.
const RECEIVES: u64 = 4096;

/// What the publish and the subscribe manager know about the host's devices.
#[derive(Debug)]
pub(crate) struct RdmaDevices {
    transport: String,
    device: String,
    gid: String,
    options: RdmaOptions,
    domains: Mutex<HashMap<(HostId, String), Weak<Domain>>>,
    gpu_direct: bool,
    /// By network card.
    device_access: Mutex<HashMap<String, Arc<DeviceAccess>>>,
}

/// Two ports with a route between them: ours, and one of the peer's ends.
#[derive(Clone, Debug)]
pub(crate) struct Match {
    candidate: Candidate,
    end: RdmaEnd,
    /// The index of the peer's end in the request.
    pub(crate) to: u32,
}

impl Match {
    /// The network card.
    pub(crate) fn device(&self) -> &str {
        &self.candidate.device
    }
}

impl RdmaDevices {
    pub(crate) fn new(config: &Config) -> Self {
        Self {
            transport: config.transport.clone(),
            device: config.rdma_device.clone(),
            gid: config.rdma_gid.clone(),
            options: RdmaOptions {
                dead_peer_timeout: Duration::from_millis(config.rdma_timeout_ms),
                spin: Duration::from_micros(config.rdma_spin_us),
                landing_bytes_min: landing_bytes_min(config),
            },
            domains: Mutex::default(),
            gpu_direct: config.gpu_direct,
            device_access: Mutex::default(),
        }
    }

    pub(crate) fn options(&self) -> RdmaOptions {
        self.options
    }

    /// Whether links must use RDMA.
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

    /// The protection domain for a peer and device, shared while a link uses it.
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

    /// The ends for a request: one for each port by which this host could be reached.
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

    /// Whether a network card accesses this host's device memory; the error says why not.
    pub(crate) fn device_access(
        &self,
        peer: HostId,
        device: &str,
        backend: &dyn Backend,
    ) -> Result<Arc<DeviceAccess>, String> {
        let domain = self.domain(peer, device).map_err(|error| error.to_string())?;
        let mut known = self.device_access.lock().unwrap_or_else(PoisonError::into_inner);
        let access = known.entry(device.to_owned());
        let access = access.or_insert_with(|| {
            Arc::new(match self.gpu_direct {
                true => DeviceAccess::tried(backend, &domain),
                false => DeviceAccess::refused("gpu_direct = false"),
            })
        });
        access.refusal().map_or_else(|| Ok(access.clone()), |why| Err(why.to_owned()))
    }

    /// The match for an offer: a port of ours with a route to one of the peer's ends.
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

    /// The alignment with which a ring holds no more records than receives can be posted.
    pub(crate) fn alignment(&self, peer: HostId, with: &Match, ring_bytes: u64) -> Result<u32, String> {
        let domain = self.domain(peer, &with.candidate.device).map_err(|error| error.to_string())?;
        let receives = domain.receives_max().map_err(|error| error.to_string())?.clamp(1, RECEIVES);
        let alignment = ring_bytes.div_ceil(receives).next_power_of_two().max(64);
        u32::try_from(alignment).map_err(|_| format!("a ring of {ring_bytes} B for {receives} receives"))
    }

    /// Our end for the peer's, with the ring registered.
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

/// The least bytes of a message that lands in granted memory.
pub(crate) fn landing_bytes_min(config: &Config) -> u64 {
    if config.rdma_landing_bytes == 0 { u64::MAX } else { config.rdma_landing_bytes }
}

fn link_layer(end: &RdmaEnd) -> LinkLayer {
    if end.infiniband { LinkLayer::InfiniBand } else { LinkLayer::Ethernet }
}

/// Converts an end for the hand-shake.
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

/// Converts an end from the hand-shake, which has checked it.
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
