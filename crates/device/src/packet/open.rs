//! Attaches to an interface: loads the programs and opens the sockets.

use std::io;
use std::sync::Arc;

use towpath_bpf::Link;

use super::error::{PacketError, refused};
use super::shared::SharedSockets;
use crate::kernel_interface::ethtool::Ethtool;
use crate::kernel_interface::flow_filter::PacketFilter;
use crate::kernel_interface::host_traffic::HostTraffic;
use crate::kernel_interface::other_server;
use crate::kernel_interface::packet_sender::{self, PacketSender};
use crate::kernel_interface::packet_socket::{PacketSocket, RING_BYTES};
use crate::kernel_interface::warnings;
use crate::{
    Capabilities, ETHERNET_HEADER_BYTES, EarlierObjects, Info, LARGE_FRAME_BYTES, Limits,
    VLAN_TAG_BYTES,
};
use towpath_netlink::Netlink;

/// The size of the ring for packets of owned flows, in bytes: 256 packets, if the kernel merges
/// received packets (GRO).
const FLOWS_RING_BYTES: u32 = 32 << 20;
/// The size of a receive buffer, in bytes.
const BUFFER_BYTES: usize = 4096;

/// The interface, and the driver's requests for it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// The interface's name.
    pub interface: String,
    /// The interface's number, if the caller knows it: the driver then finds the interface by it, under any name.
    pub index: Option<u32>,
    /// `true` to carry packets between applications and the kernel's sockets of this host, too, if
    /// they share the interface's addresses.
    pub host: bool,
    /// The user that rules of the host's firewall see as the owner of packets to the kernel's
    /// sockets; this process's user if `None`.
    pub owner: Option<u32>,
}

/// What opening found and made.
pub(super) struct Opened {
    pub(super) info: Info,
    pub(super) index: u32,
    pub(super) shared: SharedSockets,
    pub(super) filter: PacketFilter,
    pub(super) ingress: Link,
    pub(super) notes: Vec<String>,
    pub(super) warnings: Vec<String>,
}

/// Attaches to an interface.
pub(super) fn open(options: &Options, earlier: &EarlierObjects) -> Result<Opened, PacketError> {
    let link = Netlink::open()?.link_by(&options.interface, options.index)?;
    let name = &link.name;
    let (index, mtu) = (link.index, link.mtu as usize);
    let mac = link.mac.filter(|mac| *mac != [0; 6]);
    let mac = mac.ok_or_else(|| PacketError::NotEthernet { name: name.clone() })?;
    let ethtool = Ethtool::of(link.index).map_err(refused(name, "a socket for ethtool"))?;
    let frame_bytes = mtu + ETHERNET_HEADER_BYTES + VLAN_TAG_BYTES;

    let xdp = || other_server::with_xdp(index, link.xdp?);
    if let Some(program) = other_server::at_ingress(index, earlier).or_else(xdp) {
        return Err(PacketError::OtherServer { name: name.clone(), program });
    }
    // The sockets come first: they show most clearly what this user may not do.
    let socket = |bytes, ring_bytes| {
        let opened = PacketSocket::open(index, bytes, ring_bytes).map(Arc::new);
        opened.map_err(refused(name, "opening a packet socket"))
    };
    // A virtual interface delivers what its other end did not segment.
    let is_large = ethtool.merges() || link.kind.is_some();
    let longest = if is_large { LARGE_FRAME_BYTES } else { frame_bytes };
    let (groups, flows) = (socket(longest, RING_BYTES)?, socket(longest, FLOWS_RING_BYTES)?);
    let host_traffic = HostTraffic::begin(options.host, mac, options.owner, earlier);
    let sender =
        PacketSender::open(index).map_err(refused(name, "opening a packet socket to send"))?;
    let filter =
        PacketFilter::new().map_err(|error| refused(name, "loading a program")(error.into()))?;
    // Until a flow is added, neither program finds a packet.
    flows.attach(filter.copies()).map_err(refused(name, "attaching a socket's filter"))?;
    let ingress = Link::attach_ingress(filter.drops(), index).map_err(|error| {
        match (error.errno(), io::Error::from(error)) {
            (Some(libc::EINVAL), cause) => PacketError::NoHook { name: name.clone(), cause },
            (_, cause) => refused(name, "attaching the ingress program")(cause),
        }
    })?;

    let mut warnings = Vec::from_iter(warnings::of_one_address(name, &ethtool));
    let host_traffic = host_traffic.finish(&mut warnings);
    let info = info(&link, mac, longest, host_traffic.is_some());
    let shared = SharedSockets { groups, flows, sender, host_traffic };
    let driver = ethtool.driver();
    let notes = vec![format!("packet sockets serve {name} (driver {driver}), without AF_XDP")];
    Ok(Opened { info, index, shared, filter, ingress, notes, warnings })
}

/// Describes the device. `longest`: the longest frame that it receives, in bytes.
fn info(link: &towpath_netlink::Link, mac: [u8; 6], longest: usize, tx_to_host: bool) -> Info {
    Info {
        name: link.name.clone(),
        mac,
        mtu: link.mtu as usize,
        can: Capabilities {
            tx_in_place: true,
            tx_checksum: true,
            tx_segmentation: packet_sender::segments(link.kind.as_deref()),
            tx_segmentation_ecn: packet_sender::segments(link.kind.as_deref()),
            tx_to_host,
            rx_offload: true,
            ..Capabilities::default()
        },
        queues: 1,
        limits: Limits {
            rx_packet_buffers: if tx_to_host { LARGE_FRAME_BYTES } else { longest }
                .div_ceil(BUFFER_BYTES),
            ..Limits::new(BUFFER_BYTES)
        },
        rx_queue_packets: PacketSocket::slots(longest, FLOWS_RING_BYTES),
    }
}
