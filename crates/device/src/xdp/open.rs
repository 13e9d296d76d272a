//! Attaches to an interface: chooses the mode, loads the program, and opens the sockets.

use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::thread::{CapabilitySet, capabilities};
use towpath_bpf::XdpMode;
use towpath_netlink::Netlink;

use super::attached_program::{AttachedProgram, attach_after};
use super::error::{XdpError, refused};
use super::info::{
    HEADROOM_BYTES, LARGE_CHUNK_BYTES, RX_BUFFERS, SMALL_CHUNK_BYTES, announce_host_traffic, info,
};
use super::kept::Kept;
use super::lane::Lane;
use super::left_packets::{LeftSockets, Taking};
use super::locked;
use super::options::{Notes, Options};
use super::shared::{Properties, SharedInterface};
use super::socket::{self, Binding, CopyMode};
use super::tx_checksum::{self, Asked};
use crate::kernel_interface::ethtool::Ethtool;
use crate::kernel_interface::host_traffic::HostTraffic;
use crate::kernel_interface::other_server;
use crate::kernel_interface::packet_sender::{self, PacketSender};
use crate::kernel_interface::packet_socket::{self, PacketSocket, RING_BYTES};
use crate::kernel_interface::warnings;
use crate::{ETHERNET_HEADER_BYTES, EarlierObjects, Info, VLAN_TAG_BYTES};

/// What opening found and made.
pub(super) struct Opened {
    pub(super) info: Info,
    pub(super) index: u32,
    pub(super) shared: Arc<SharedInterface>,
    pub(super) lanes: Vec<Arc<Lane>>,
    pub(super) members: Arc<PacketSocket>,
    pub(super) notes: Notes,
}

/// Attaches to an interface, after an earlier server.
pub(super) fn open(options: &Options, earlier: &mut EarlierObjects) -> Result<Opened, XdpError> {
    let link = Netlink::open()?.link_by(&options.interface, options.index)?;
    // The interface's name at this time: it may change while the server starts.
    let options = Options { interface: link.name.clone(), ..options.clone() };
    open_link(&link, &options, earlier)
}

fn open_link(
    link: &towpath_netlink::Link,
    options: &Options,
    earlier: &mut EarlierObjects,
) -> Result<Opened, XdpError> {
    let name = &link.name;
    let mac = link.mac.ok_or_else(|| XdpError::NotEthernet { name: name.clone() })?;
    let ethtool = Ethtool::of(link.index).map_err(refused(name, "a socket for ethtool"))?;
    let queues = ethtool.queues();
    let lanes = lanes(options, queues)?;
    let frame_bytes = link.mtu as usize + ETHERNET_HEADER_BYTES + VLAN_TAG_BYTES;
    let is_virtual = link.kind.is_some();

    check_ingress(link, earlier)?;
    // The kernel makes each of these wait, so all wait at once.
    let parts = EarlierParts::find(earlier, options, link.index, queues, lanes, frame_bytes);
    let EarlierParts { left_packets, kept, groups, program } =
        parts.map_err(refused(name, "copying a descriptor"))?;
    let host_traffic = HostTraffic::begin(options.host, mac, options.owner, earlier);
    let (Sockets { unbound, packet_socket, members }, mut attached_program) =
        sockets_and_program(options, link.index, queues, frame_bytes, groups, program)?;
    let attached = attach_after(earlier, link, options.mode, &mut attached_program)?;
    let is_generic = attached == XdpMode::Generic;
    let spans = needs_to_span(name, &ethtool, is_generic, frame_bytes, attached_program.spans())?;
    let chunk_bytes = if spans { LARGE_CHUNK_BYTES } else { SMALL_CHUNK_BYTES };
    let own_queues = lanes..queues.min(ethtool.sending_queues()).max(lanes);
    let gives_queues = options.own_queues.iter().any(|one| own_queues.contains(one));
    let rx_buffers = locked::receive_buffers(RX_BUFFERS, chunk_bytes, queues, lanes, gives_queues);
    check_zero_copy(options, is_generic)?;

    let copies = is_generic || is_virtual || options.copying == CopyMode::Copy;
    let large = large_senders(link, copies, lanes)
        .map_err(refused(name, "opening a packet socket for large packets"))?;
    let asked = Asked { index: link.index, copies, room: chunk_bytes.saturating_sub(frame_bytes) };
    let mut notes = notes(link, options, attached, &own_queues, &ethtool);
    notes.warnings.extend(tx_checksum::check(name, options.tx_checksum, asked)?);
    locked::tell(&mut notes, name, rx_buffers, chunk_bytes, RX_BUFFERS);
    let host_traffic = host_traffic.finish(&mut notes.warnings);
    let binding = Binding { index: link.index, copying: copying(options, copies), spans };
    let properties = Properties {
        binding,
        queues,
        own_queues,
        lanes,
        frame_bytes,
        chunk_bytes: chunk_bytes as u32,
        may_be_partial: is_generic || is_virtual,
        tx_checksum: options.tx_checksum,
        busy_poll: options.busy_poll,
        gives_queues,
    };
    let mut info = info(link, mac, &properties, rx_buffers, !large.is_empty());
    if host_traffic.is_some() {
        announce_host_traffic(&mut info, chunk_bytes);
    }
    let shared = Arc::new(SharedInterface::new(
        properties,
        attached_program,
        packet_socket,
        host_traffic,
        unbound,
        left_packets.map(Taking::finish).unwrap_or_default(),
    ));
    let (mut large, mut kept) = (large.into_iter(), kept.into_iter());
    let lane = |number| Arc::new(Lane::new(shared.clone(), number, large.next(), kept.next()));
    let lanes = (0..lanes).map(lane).collect();
    Ok(Opened { info, index: link.index, shared, lanes, members: Arc::new(members), notes })
}

/// Checks that no other server has its program at the interface's ingress hook.
fn check_ingress(link: &towpath_netlink::Link, earlier: &EarlierObjects) -> Result<(), XdpError> {
    let other = other_server::at_ingress(link.index, earlier);
    let name = || link.name.clone();
    other.map_or(Ok(()), |program| Err(XdpError::OtherServer { name: name(), program }))
}

/// Checks that the hardware may reach the server's memory if that was asked for.
fn check_zero_copy(options: &Options, is_generic: bool) -> Result<(), XdpError> {
    if options.copying == CopyMode::ZeroCopy && is_generic {
        return Err(XdpError::NoZeroCopy { name: options.interface.clone() });
    }
    Ok(())
}

/// What an earlier server left.
#[derive(Default)]
struct EarlierParts {
    /// Its sockets, if no lane can go on with them.
    left_packets: Option<Taking>,
    /// Its sockets, for each lane that can go on with them.
    kept: Vec<Kept>,
    /// The socket with a ring for packets to groups.
    groups: Option<PacketSocket>,
    program: Option<AttachedProgram>,
}

impl EarlierParts {
    /// Finds what the device can go on with. Begins to release the sockets with which it cannot.
    fn find(
        earlier: &mut EarlierObjects,
        options: &Options,
        index: u32,
        queues: u32,
        lanes: u32,
        frame_bytes: usize,
    ) -> io::Result<EarlierParts> {
        let mut parts = EarlierParts::default();
        // A link that is attached shows that the interface is the same one.
        let is_attached = AttachedProgram::is_attached(index, earlier);
        if is_attached {
            parts.groups = earlier_groups(earlier, index, frame_bytes)?;
        }
        let Some(left) = LeftSockets::find(earlier)? else { return Ok(parts) };
        if is_attached && left.are_whole(queues, lanes) {
            parts.kept = left.by_lanes();
            if !options.exclusive {
                parts.program = AttachedProgram::of_earlier_server(index, queues, earlier);
            }
        } else {
            parts.left_packets = Some(left.release());
        }
        Ok(parts)
    }
}

/// Returns the socket with which an earlier server copied packets to groups, if there is one with a ring
/// for frames of this size.
fn earlier_groups(
    earlier: &EarlierObjects,
    index: u32,
    frame_bytes: usize,
) -> io::Result<Option<PacketSocket>> {
    let Some(name) = packet_socket::ring_name(frame_bytes) else { return Ok(None) };
    let drops = earlier.is_after_crash();
    let going_on = |fd| PacketSocket::of_earlier_server(fd, index, frame_bytes, RING_BYTES, drops);
    Ok(earlier.copy(name)?.map(going_on))
}

/// Opens the sockets and loads the program, both at once: the kernel makes each of them wait, and
/// connections pause while a server opens its device after another one.
fn sockets_and_program(
    options: &Options,
    index: u32,
    queues: u32,
    frame_bytes: usize,
    groups: Option<PacketSocket>,
    program: Option<AttachedProgram>,
) -> Result<(Sockets, AttachedProgram), XdpError> {
    if let Some(program) = program {
        let sockets = Sockets::open(options, index, queues, frame_bytes, groups)?;
        return Ok((sockets, program));
    }
    let (sockets, program) = std::thread::scope(|scope| {
        let program = scope.spawn(|| AttachedProgram::new(queues, options.exclusive));
        let sockets = Sockets::open(options, index, queues, frame_bytes, groups);
        let program = program.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        (sockets, program)
    });
    // The sockets' error comes first: it shows most clearly what this user may not do.
    let sockets = sockets?;
    let failed = |error| from_bpf(&options.interface, "loading the XDP program", error);
    Ok((sockets, program.map_err(failed)?))
}

/// Returns the number of queues to open, if the interface has as many.
fn lanes(options: &Options, queues: u32) -> Result<u32, XdpError> {
    let (name, lanes) = (options.interface.clone(), options.lanes.max(1));
    let fitting = u32::try_from(lanes).ok().filter(|lanes| *lanes <= queues);
    fitting.ok_or(XdpError::TooFewQueues { name, queues, lanes })
}

/// Opens a socket for large packets for each queue to open, if the kernel can send such. Packets of
/// one flow must not overtake each other: only with copies does the kernel send each packet within
/// the call that passes it.
fn large_senders(
    link: &towpath_netlink::Link,
    copies: bool,
    lanes: u32,
) -> io::Result<Vec<PacketSender>> {
    let wanted = copies && packet_sender::segments(link.kind.as_deref());
    (0..if wanted { lanes } else { 0 }).map(|_| PacketSender::open(link.index)).collect()
}

/// The sockets that need a capability.
struct Sockets {
    unbound: Vec<OwnedFd>,
    packet_socket: Option<PacketSocket>,
    /// Receives no packet: it has the interface receive those of groups, or all.
    members: PacketSocket,
}

impl Sockets {
    fn open(
        options: &Options,
        index: u32,
        queues: u32,
        frame_bytes: usize,
        earlier: Option<PacketSocket>,
    ) -> Result<Sockets, XdpError> {
        let name = &options.interface;
        let unbound = (0..queues)
            .map(|_| socket::unbound_socket(index, options.busy_poll))
            .collect::<io::Result<Vec<_>>>()
            .map_err(refused(name, "creating an AF_XDP socket"))?;
        let failed = refused(name, "opening a packet socket");
        let members = PacketSocket::without_packets(index).map_err(failed)?;
        if options.exclusive {
            members.promiscuous(true).map_err(refused(name, "setting promiscuous mode"))?;
            return Ok(Sockets { unbound, packet_socket: None, members });
        }
        let failed = refused(name, "opening a packet socket");
        let packet_socket = match earlier {
            Some(earlier) => earlier,
            None => PacketSocket::open(index, frame_bytes, RING_BYTES).map_err(failed)?,
        };
        Ok(Sockets { unbound, packet_socket: Some(packet_socket), members })
    }
}

/// Generic mode always copies, and so do virtual interfaces.
fn copying(options: &Options, copies: bool) -> CopyMode {
    if copies && options.copying == CopyMode::Auto { CopyMode::Copy } else { options.copying }
}

fn from_bpf(name: &str, what: &'static str, error: towpath_bpf::Error) -> XdpError {
    match error {
        // Without CAP_PERFMON, the verifier refuses some of the program's pointer arithmetic.
        towpath_bpf::Error::Rejected { cause, .. } if !has_perfmon() => {
            XdpError::NotPermitted { name: name.to_owned(), what, cause }
        }
        error => refused(name, what)(error.into()),
    }
}

/// Returns `true` if this thread has CAP_PERFMON, or CAP_SYS_ADMIN, which stands for it.
fn has_perfmon() -> bool {
    let either = CapabilitySet::PERFMON | CapabilitySet::SYS_ADMIN;
    capabilities(None).is_ok_and(|sets| sets.effective.intersects(either))
}

/// Returns `true` if packets may take several buffers.
fn needs_to_span(
    name: &str,
    ethtool: &Ethtool,
    is_generic: bool,
    frame_bytes: usize,
    can_span: bool,
) -> Result<bool, XdpError> {
    let fits = frame_bytes <= SMALL_CHUNK_BYTES - HEADROOM_BYTES;
    if can_span {
        return Ok(is_generic || !fits);
    }
    let (why, remedy) = if !fits {
        ("its MTU needs more than one buffer per packet", "lower the MTU to 1500".to_owned())
    } else if is_generic && ethtool.merges() {
        let remedy = format!("turn that off: ethtool -K {name} gro off; or use mode=native");
        ("it merges received packets (GRO)", remedy)
    } else {
        return Ok(false);
    };
    Err(XdpError::NoSpanning { name: name.to_owned(), why, remedy })
}

/// Returns what the operator should know about how the interface is served.
fn notes(
    link: &towpath_netlink::Link,
    options: &Options,
    mode: XdpMode,
    own_queues: &Range<u32>,
    ethtool: &Ethtool,
) -> Notes {
    let (name, kind) = (&link.name, &link.kind);
    let mut notes = Vec::new();
    let driver = ethtool.driver();
    notes.push(match mode {
        XdpMode::Native => format!("the driver {driver} of {name} runs the XDP program itself"),
        XdpMode::Generic => {
            format!("the kernel runs the XDP program for {name} (generic mode, driver {driver})")
        }
    });
    if mode == XdpMode::Native && kind.as_deref() == Some("veth") {
        notes.push(format!(
            "the other end of {name} sends no large packets (TSO) while the server runs"
        ));
    }
    if mode == XdpMode::Generic && kind.as_deref() == Some("veth") {
        notes.push(format!(
            "a sender at the other end of {name} that leaves UDP segmentation to it loses those \
             packets; to prevent that, there: ethtool -K INTERFACE tx-udp-segmentation off"
        ));
    }
    if options.exclusive {
        notes.push(format!("the kernel receives nothing on {name} while the server runs"));
    }
    let hidden_tags = warnings::of_hidden_tags(name, ethtool, kind.is_some());
    let mut warnings: Vec<_> =
        hidden_tags.into_iter().chain(warnings::of_one_address(name, ethtool)).collect();
    warnings.extend(warnings::of_own_queues(name, ethtool, &options.own_queues, own_queues));
    Notes { notes, warnings }
}
