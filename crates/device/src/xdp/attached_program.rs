//! The XDP program of a device: the flow filter, or one that takes every packet; and how it is attached.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use towpath_bpf::{Error, Link, Map, Program, XdpMode};
use towpath_netlink::Netlink;

use super::error::{XdpError, refused};
use super::options::Mode;
use crate::kernel_interface::flow_filter::FlowFilter;
use crate::kernel_interface::other_server;
use crate::{EarlierObjects, Filter, FilterError, FlowRule};

/// The Linux version from which AF_XDP sockets take packets in several buffers (`XDP_USE_SG`).
const SPANNING_SINCE: (u32, u32) = (6, 6);

/// The name of the link among the objects that outlive a server.
const LINK: &str = "device-xdp";

/// The part of an earlier server's program that this server uses.
struct EarlierProgram {
    /// The map of its sockets. `None` if it cannot be opened: the kernel then drops the packets of its
    /// flows until the take-over.
    sockets: Option<Map>,
}

/// The program, its maps, and its link to the interface. Dropping this value closes the link.
pub(super) struct AttachedProgram {
    filter: FlowFilter,
    link: Option<Link>,
    /// The program of an earlier server, while the link has that one.
    earlier: Option<EarlierProgram>,
}

impl AttachedProgram {
    /// Loads the program for so many hardware queues.
    pub(super) fn new(queues: u32, exclusive: bool) -> Result<AttachedProgram, Error> {
        let filter = if exclusive { FlowFilter::of_all(queues)? } else { FlowFilter::new(queues)? };
        Ok(AttachedProgram { filter, link: None, earlier: None })
    }

    /// Returns `true` if the kernel hands over packets in several buffers.
    pub(super) fn spans(&self) -> bool {
        self.filter.spans() && towpath_bpf::kernel_version() >= SPANNING_SINCE
    }

    /// Goes on with the program and the maps of an earlier server, attached to this interface; `None`
    /// if it left none that this server can go on with.
    pub(super) fn of_earlier_server(
        interface: u32,
        queues: u32,
        earlier: &EarlierObjects,
    ) -> Option<AttachedProgram> {
        let link = earlier_link(interface, earlier)?;
        let filter = FlowFilter::of_earlier_server(queues, link.program().ok()?, earlier)?;
        Some(AttachedProgram { filter, link: Some(link), earlier: None })
    }

    /// Returns `true` if the program is attached.
    pub(super) fn has_link(&self) -> bool {
        self.link.is_some()
    }

    pub(super) fn program(&self) -> &Program {
        self.filter.program()
    }

    /// Keeps the link, so that the program stays attached.
    pub(super) fn keep(&mut self, link: Link) {
        self.link = Some(link);
    }

    /// Returns `true` if the link of an earlier server is attached to this interface.
    pub(super) fn is_attached(interface: u32, earlier: &EarlierObjects) -> bool {
        earlier_link(interface, earlier).is_some()
    }

    /// Keeps the link of an earlier server, if it is attached to this interface still. Its program
    /// stays attached until [`SharedInterface::take_over`](super::shared::SharedInterface::take_over). Returns `true` if
    /// there is such a link.
    pub(super) fn keep_earlier(&mut self, interface: u32, earlier: &EarlierObjects) -> bool {
        let Some(link) = earlier_link(interface, earlier) else { return false };
        let attached = link.program().unwrap_or_default();
        let sockets = FlowFilter::earlier_sockets(attached, earlier);
        self.keep(link);
        self.earlier = Some(EarlierProgram { sockets });
        true
    }

    /// Returns the link, if an earlier server's program is attached, and the program to attach in its
    /// place. After that, the caller calls [`AttachedProgram::forget_earlier`].
    pub(super) fn replacement(&self) -> io::Result<Option<(Link, Program)>> {
        let Some(link) = self.link.as_ref().filter(|_| self.earlier.is_some()) else {
            return Ok(None);
        };
        Ok(Some((link.try_clone()?, self.filter.program().try_clone()?)))
    }

    /// Forgets an earlier server's program, which is not attached any more, or what it added to the
    /// program's maps and this server did not.
    pub(super) fn forget_earlier(&mut self) {
        self.earlier = None;
        self.filter.remove_earlier();
    }

    /// Returns the link, the program and the maps, with the names under which a keeper holds them.
    pub(super) fn objects(&self) -> Vec<(&'static str, BorrowedFd<'_>)> {
        let link = self.link.iter().map(|link| (LINK, link.as_fd()));
        link.chain(self.filter.objects()).collect()
    }

    /// Gives the packets of a hardware queue to a socket.
    pub(super) fn set_socket(&self, queue: u32, socket: BorrowedFd<'_>) -> io::Result<()> {
        if let Some(sockets) = self.earlier.as_ref().and_then(|earlier| earlier.sockets.as_ref()) {
            // Until the take-over, the earlier program also redirects packets to this socket.
            let _ = sockets.set_fd(queue, socket);
        }
        Ok(self.filter.set_socket(queue, socket)?)
    }

    /// Reserves a hardware queue for the flows of its owner, or ends that if `owned` is `false`.
    pub(super) fn set_owner(&self, queue: u32, owned: bool) -> io::Result<()> {
        Ok(self.filter.set_owner(queue, owned)?)
    }

    /// Adds a flow to those that a hardware queue's owner receives.
    pub(super) fn own_flow(&self, rule: &FlowRule, queue: u32) -> Result<(), FilterError> {
        self.filter.own_flow(rule, queue)
    }

    /// Returns the number of packets that belonged to an application and found no socket, or the
    /// hardware queue of another session.
    pub(super) fn without_socket(&self) -> u64 {
        self.filter.without_socket()
    }

    /// Returns the number of packets that belonged to an application and arrived on a hardware queue without
    /// a socket.
    pub(super) fn unserved(&self) -> u64 {
        self.filter.unserved()
    }

    /// Adds an address or a flow.
    pub(super) fn add(&mut self, filter: &Filter) -> Result<(), FilterError> {
        self.filter.add(filter)
    }

    /// Returns `true` if there is room for the addresses and flows of `wanted` without those of `removed`.
    pub(super) fn would_have_room(&self, wanted: &[Filter], removed: &[Filter]) -> bool {
        self.filter.would_have_room(wanted, removed)
    }

    /// Removes an address or a flow.
    pub(super) fn remove(&mut self, filter: &Filter) {
        self.filter.remove(filter);
    }
}

/// Returns the link of an earlier server, if it is attached to this interface.
fn earlier_link(interface: u32, earlier: &EarlierObjects) -> Option<Link> {
    let link = earlier.copy(LINK).ok().flatten().and_then(|link| Link::from_fd(link).ok());
    link.filter(|link| link.is_attached_to(interface))
}

/// Goes on with the link of an earlier server, or attaches the program.
pub(super) fn attach_after(
    earlier: &EarlierObjects,
    link: &towpath_netlink::Link,
    mode: Mode,
    attached_program: &mut AttachedProgram,
) -> Result<XdpMode, XdpError> {
    if !attached_program.has_link() && !attached_program.keep_earlier(link.index, earlier) {
        return attach(link, mode, attached_program);
    }
    Ok(if link.xdp_in_driver { XdpMode::Native } else { XdpMode::Generic })
}

/// Attaches the program in the mode that was asked for, or the best one.
fn attach(
    link: &towpath_netlink::Link,
    mode: Mode,
    attached_program: &mut AttachedProgram,
) -> Result<XdpMode, XdpError> {
    let (name, index, is_virtual) = (&link.name, link.index, link.kind.is_some());
    // Natively, the ports of a bond run its program, and packets belong to the ports' queues, where
    // no socket of the bond gets them (`xsk_rcv_check`, net/xdp/xsk.c).
    let is_bond = link.kind.as_deref() == Some("bond");
    let modes: &[XdpMode] = match mode {
        Mode::Native if is_bond => return Err(XdpError::NativeBond { name: name.clone() }),
        Mode::Auto if is_bond => &[XdpMode::Generic],
        Mode::Native => &[XdpMode::Native],
        Mode::Generic => &[XdpMode::Generic],
        // Natively, a veth's other end sends no large packets any more; generically, without
        // spanning, they would be lost.
        Mode::Auto if is_virtual && attached_program.spans() => {
            &[XdpMode::Generic, XdpMode::Native]
        }
        Mode::Auto => &[XdpMode::Native, XdpMode::Generic],
    };
    let mut cause = io::Error::from_raw_os_error(libc::EOPNOTSUPP);
    for mode in modes {
        let attach = || Link::attach_xdp(attached_program.program(), index, *mode);
        let is_there = |attached: &Result<_, _>| attached.as_ref().is_err_and(has_program);
        cause = match other_server::until_gone(attach, is_there) {
            Ok(link) => {
                attached_program.keep(link);
                return Ok(*mode);
            }
            Err(error) if has_program(&error) => return Err(other(name, index)),
            Err(error) => error.into(),
        };
    }
    if mode == Mode::Native
        && matches!(
            cause.raw_os_error(),
            Some(libc::EOPNOTSUPP | libc::EINVAL | libc::ENOSPC | libc::ERANGE)
        )
    {
        return Err(XdpError::NoNative { name: name.clone(), cause });
    }
    Err(refused(name, "attaching the XDP program")(cause))
}

/// Returns `true` if the interface has a program already; EEXIST: one of the other mode.
fn has_program(error: &towpath_bpf::Error) -> bool {
    matches!(error.errno(), Some(libc::EBUSY | libc::EEXIST))
}

/// Describes the program that is on the interface already.
fn other(name: &str, index: u32) -> XdpError {
    let name = name.to_owned();
    let id =
        Netlink::open().and_then(|mut kernel| kernel.link_at(index)).ok().and_then(|link| link.xdp);
    let program = match id.map(|id| (id, towpath_bpf::attached(index, id))) {
        Some((_, Ok(attached))) if other_server::has_xdp_name(&attached) => {
            return XdpError::OtherServer { name, program: attached.to_string() };
        }
        Some((_, Ok(attached))) => attached.to_string(),
        Some((id, Err(_))) => format!("id {id}"),
        None => "its id is not known".to_owned(),
    };
    XdpError::OtherProgram { name, program }
}
