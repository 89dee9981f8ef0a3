//! Ports of RDMA devices: lists them, selects those that can carry a link, and finds pairs of two hosts that reach each other.
//!
//! A GID is identified by its value, not by its index, which changes when addresses are added or removed. On Ethernet only RoCE v2 is used,
//! which is UDP port 4791, so the kernel's routing table says from which of our GIDs a peer's GID is reachable. On InfiniBand two ports
//! reach each other if they are in one subnet.

use std::net::{IpAddr, Ipv6Addr, SocketAddr, UdpSocket};

use crate::rdma::domain::{Context, VerbsError, device_names};
use crate::rdma::sys;

/// UDP port of RoCE v2 (InfiniBand Architecture Specification, annex A17).
const ROCE_V2_PORT: u16 = 4791;

/// A GID: 16 bytes in network order. On RoCE it is an IPv6 address, or an IPv4 address mapped into one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// The IP address that it is on RoCE.
    pub fn address(self) -> IpAddr {
        let address = Ipv6Addr::from(self.0);
        address.to_ipv4_mapped().map_or(IpAddr::V6(address), IpAddr::V4)
    }

    fn is_empty(self) -> bool {
        self.0[8..] == [0; 8]
    }

    fn is_link_local(self) -> bool {
        self.0[..2] == [0xfe, 0x80]
    }

    fn subnet(self) -> [u8; 8] {
        std::array::from_fn(|i| self.0[i])
    }
}

impl std::fmt::Display for Gid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.address().fmt(f)
    }
}

/// The link layer of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkLayer {
    /// RoCE v2.
    Ethernet,
    /// InfiniBand.
    InfiniBand,
}

/// A GID of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortGid {
    /// Its current index in the port's table.
    pub index: u32,
    /// Its value.
    pub gid: Gid,
    /// Its type, as the kernel names it: "RoCE v2", "IB/RoCE v1".
    pub kind: String,
}

/// A port of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// The device, as `ibv_devices` names it.
    pub device: String,
    /// The port's number, from 1.
    pub number: u8,
    /// Whether it is up.
    pub is_active: bool,
    /// Its link layer; `None` if it is neither Ethernet nor InfiniBand.
    pub link_layer: Option<LinkLayer>,
    /// Its MTU, 256 to 4096 B.
    pub mtu_bytes: u32,
    /// Local identifier (LID), used on InfiniBand.
    pub lid: u16,
    /// Its GIDs, without empty ones.
    pub gids: Vec<PortGid>,
}

/// A port with the GID that a link uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The device.
    pub device: String,
    /// The port's number.
    pub port: u8,
    /// Its link layer.
    pub link_layer: LinkLayer,
    /// The GID.
    pub gid: Gid,
    /// Its MTU.
    pub mtu_bytes: u32,
    /// Local identifier (LID), used on InfiniBand.
    pub lid: u16,
}

/// All ports of all devices of this host.
pub fn ports() -> Result<Vec<Port>, VerbsError> {
    let mut ports = Vec::new();
    for name in device_names()? {
        let context = Context::open(&name)?;
        for number in 1..=context.attributes()?.phys_port_cnt {
            ports.push(port(&context, number)?);
        }
    }
    Ok(ports)
}

fn port(context: &Context, number: u8) -> Result<Port, VerbsError> {
    let attributes = context.port(number)?;
    let mut gids = Vec::new();
    for index in 0..u32::try_from(attributes.gid_tbl_len).unwrap_or(0) {
        // The kernel reports a type only for entries in use.
        let Some(kind) = gid_kind(context.name(), number, index) else { continue };
        let gid = Gid(context.gid(number, index)?.0);
        if !gid.is_empty() {
            gids.push(PortGid { index, gid, kind });
        }
    }
    Ok(Port {
        device: context.name().to_owned(),
        number,
        is_active: attributes.state == sys::PORT_ACTIVE,
        link_layer: match attributes.link_layer {
            sys::LINK_LAYER_ETHERNET => Some(LinkLayer::Ethernet),
            sys::LINK_LAYER_INFINIBAND | 0 => Some(LinkLayer::InfiniBand),
            _ => None,
        },
        mtu_bytes: mtu_bytes(attributes.active_mtu),
        lid: attributes.lid,
        gids,
    })
}

/// The current index of a GID in a port's table.
pub(super) fn gid_index(context: &Context, number: u8, gid: Gid) -> Result<Option<u8>, VerbsError> {
    let found = port(context, number)?.gids.into_iter().find(|entry| entry.gid == gid && entry.kind != "IB/RoCE v1");
    let by_value = found.or_else(|| {
        // On InfiniBand all GIDs have the type "IB/RoCE v1".
        port(context, number).ok()?.gids.into_iter().find(|entry| entry.gid == gid)
    });
    Ok(by_value.and_then(|entry| u8::try_from(entry.index).ok()))
}

fn gid_kind(device: &str, number: u8, index: u32) -> Option<String> {
    let path = format!("/sys/class/infiniband/{device}/ports/{number}/gid_attrs/types/{index}");
    std::fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

/// `enum ibv_mtu` in bytes.
fn mtu_bytes(code: u32) -> u32 {
    match code {
        1..=5 => 128 << code,
        _ => 256,
    }
}

impl Port {
    /// The GIDs by which this port could carry a link, the best first: routable addresses before link-local ones.
    pub fn candidates(&self) -> Vec<Candidate> {
        let Some(link_layer) = self.link_layer.filter(|_| self.is_active) else { return Vec::new() };
        let usable = |entry: &&PortGid| link_layer == LinkLayer::InfiniBand || entry.kind == "RoCE v2";
        let mut gids: Vec<&PortGid> = self.gids.iter().filter(usable).collect();
        gids.sort_by_key(|entry| (link_layer == LinkLayer::Ethernet && entry.gid.is_link_local(), entry.index));
        let candidate = |entry: &PortGid| Candidate {
            device: self.device.clone(),
            port: self.number,
            link_layer,
            gid: entry.gid,
            mtu_bytes: self.mtu_bytes,
            lid: self.lid,
        };
        gids.into_iter().map(candidate).collect()
    }
}

impl Candidate {
    /// Whether this port reaches a peer's port.
    pub fn reaches(&self, link_layer: LinkLayer, gid: Gid) -> bool {
        match (self.link_layer, link_layer) {
            (LinkLayer::InfiniBand, LinkLayer::InfiniBand) => self.gid.subnet() == gid.subnet(),
            (LinkLayer::Ethernet, LinkLayer::Ethernet) => source_address(gid.address()) == Some(self.gid.address()),
            _ => false,
        }
    }
}

/// The source address that the kernel would use for a destination. Sends no packet: connect(2) of a datagram socket only sets its peer.
fn source_address(to: IpAddr) -> Option<IpAddr> {
    let any: IpAddr = if to.is_ipv4() { [0; 4].into() } else { [0; 16].into() };
    let socket = UdpSocket::bind(SocketAddr::new(any, 0)).ok()?;
    socket.connect(SocketAddr::new(to, ROCE_V2_PORT)).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(link_layer: LinkLayer, gids: &[(&str, &str)]) -> Port {
        let gid = |(index, (address, kind)): (usize, &(&str, &str))| {
            let address: Ipv6Addr = address.parse().unwrap();
            PortGid { index: index as u32, gid: Gid(address.octets()), kind: (*kind).to_owned() }
        };
        Port {
            device: "nic".to_owned(),
            number: 1,
            is_active: true,
            link_layer: Some(link_layer),
            mtu_bytes: 4096,
            lid: 7,
            gids: gids.iter().enumerate().map(gid).collect(),
        }
    }

    #[test]
    fn on_ethernet_only_roce_v2_is_used_and_link_local_comes_last() {
        let mut port = port(
            LinkLayer::Ethernet,
            &[("fe80::1", "RoCE v2"), ("::ffff:10.0.0.1", "IB/RoCE v1"), ("::ffff:10.0.0.1", "RoCE v2")],
        );
        let addresses: Vec<String> = port.candidates().iter().map(|candidate| candidate.gid.to_string()).collect();
        assert_eq!(addresses, ["10.0.0.1", "fe80::1"]);
        port.is_active = false;
        assert_eq!(port.candidates(), []);
    }

    #[test]
    fn ports_of_one_subnet_or_one_route_reach_each_other() {
        let infiniband = port(LinkLayer::InfiniBand, &[("fe80::1", "IB/RoCE v1")]).candidates().remove(0);
        let gid = |text: &str| Gid(text.parse::<Ipv6Addr>().unwrap().octets());
        assert!(infiniband.reaches(LinkLayer::InfiniBand, gid("fe80::9")));
        assert!(!infiniband.reaches(LinkLayer::InfiniBand, gid("fec0::9")));
        assert!(!infiniband.reaches(LinkLayer::Ethernet, gid("fe80::9")));
        let ethernet = port(LinkLayer::Ethernet, &[("::ffff:127.0.0.1", "RoCE v2")]).candidates().remove(0);
        assert!(ethernet.reaches(LinkLayer::Ethernet, gid("::ffff:127.0.0.1")));
        let elsewhere = port(LinkLayer::Ethernet, &[("::ffff:192.0.2.1", "RoCE v2")]).candidates().remove(0);
        assert!(!elsewhere.reaches(LinkLayer::Ethernet, gid("::ffff:127.0.0.1")));
    }

    #[test]
    fn packets_have_256_to_4096_bytes() {
        assert_eq!([1, 3, 5, 0, 9].map(mtu_bytes), [256, 1024, 4096, 256, 256]);
    }
}
