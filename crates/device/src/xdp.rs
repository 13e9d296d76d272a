//! AF_XDP: a kernel's interface, beside the kernel's own sockets (Documentation/networking/af_xdp.rst).
//!
//! A small program in the kernel looks at each received packet, before the kernel's network stack
//! does. It gives the packets of the flows that applications own to the driver's sockets, and passes
//! all others on to the kernel. The flows are in maps, which the driver changes while packets arrive.
//!
//! | part | is |
//! |---|---|
//! | [`XdpDevice`] | the control part: program, sockets, filters, events |
//! | `queue` | the data part: the rings of all hardware queues |
//! | `socket`, `ring` | an AF_XDP socket, and the rings that it shares with the kernel |
//! | `attached_program` | the program, and its link to the interface |
//! | `offload` | partial checksums and merged packets, which AF_XDP does not announce |
//!
//! What it has in common with other drivers of such interfaces is in `kernel_interface`.
//!
//! Program, link, addresses and promiscuous mode vanish with the driver's descriptors: when the
//! process ends, in whatever way, the interface is as it was before.

mod attached_program;
mod error;
mod in_flight;
mod offload;
mod open;
mod options;
mod queue;
mod ring;
mod shared;
mod socket;

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Weak};

use towpath_netlink::{Link, LinkWatch, Watched};

use crate::dma::Dma;
use crate::kernel_interface::flow_filter;
use crate::kernel_interface::packet_socket::{PacketSocket, Wanted, is_group};
use crate::{Device, DeviceError, DeviceQueue, Event, Filter, FilterError, Info, Spaces};
use options::Notes;
use queue::XdpQueue;
use shared::Shared;

pub use error::XdpError;
pub use options::{Mode, Options};
pub use socket::CopyMode;

/// Returns `true` for the name of a program of this driver.
#[must_use]
pub fn is_program(name: &str) -> bool {
    [flow_filter::PROGRAM_FLOWS, flow_filter::PROGRAM_ALL].contains(&name)
}

/// An AF_XDP device on one host interface.
pub struct XdpDevice {
    info: Info,
    index: u32,
    shared: Arc<Shared>,
    /// The open queue's hold on `shared`, while it is open.
    open: Weak<Shared>,
    wanted: Wanted,
    watch: Option<LinkWatch>,
    link: LinkState,
    events: VecDeque<Event>,
    /// The attachments of the programs, for a process that outlives this one.
    links: Vec<(&'static str, OwnedFd)>,
    /// How the interface is served, for the operator.
    notes: Notes,
    /// Keeps the interface in promiscuous mode, if the kernel receives nothing.
    _promiscuous: Option<PacketSocket>,
}

/// The state of the interface that the driver reported.
#[derive(Clone, Debug, PartialEq, Eq)]
struct LinkState {
    up: bool,
    mtu: usize,
    mac: [u8; 6],
}

impl XdpDevice {
    /// Attaches to an interface. It keeps its addresses, its MTU and its state, and the kernel goes
    /// on receiving all packets until filters say otherwise.
    ///
    /// # Errors
    /// See [`XdpError`].
    pub fn open(options: &Options) -> Result<XdpDevice, XdpError> {
        let opened = open::open(options)?;
        let name = &options.interface;
        let links = opened.shared.links().map_err(error::refused(name, "copying a descriptor"))?;
        let watch = LinkWatch::new(opened.index).ok();
        let link = LinkState { up: true, mtu: opened.info.mtu, mac: opened.info.mac };
        Ok(XdpDevice {
            info: opened.info,
            index: opened.index,
            shared: Arc::new(opened.shared),
            open: Weak::new(),
            wanted: Wanted::default(),
            watch,
            link,
            events: VecDeque::new(),
            links,
            notes: opened.notes,
            _promiscuous: opened.promiscuous,
        })
    }

    /// Returns how the interface is served, and what that changes for others, one line each.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        &self.notes.notes
    }

    /// Returns what may keep packets from the applications, one line each.
    #[must_use]
    pub fn warnings(&self) -> &[String] {
        &self.notes.warnings
    }

    /// Changes what the packet socket copies.
    fn update_copied_filters(&mut self, filter: &Filter, wanted: bool) -> io::Result<()> {
        let Some(socket) = self.shared.packet_socket() else { return Ok(()) };
        let mut changed = self.wanted.clone();
        if !changed.change(filter, wanted) {
            return Ok(());
        }
        socket.set_filter(&changed)?;
        self.wanted = changed;
        match filter {
            Filter::Everything => socket.promiscuous(wanted),
            Filter::AllGroups => socket.join_all(wanted),
            Filter::Address(group) => socket.join(group, wanted),
            Filter::Flow(_) => Ok(()),
        }
    }

    /// Makes the interface receive packets to one of the server's own addresses, or no longer.
    fn receive_for(&self, mac: &[u8; 6], wanted: bool) -> io::Result<()> {
        let socket = self.shared.packet_socket().filter(|_| *mac != self.info.mac);
        socket.map_or(Ok(()), |socket| socket.receive_for(mac, wanted))
    }

    /// Reports what changed on the interface.
    fn compare(&mut self, link: &Link) {
        let now = LinkState {
            up: link.up && link.carrier,
            mtu: link.mtu as usize,
            mac: link.mac.unwrap_or(self.link.mac),
        };
        if now.up != self.link.up {
            self.events.push_back(Event::Link { up: now.up });
        }
        if now.mtu != self.link.mtu {
            self.events.push_back(Event::Mtu(now.mtu));
        }
        if now.mac != self.link.mac {
            self.events.push_back(Event::Address(now.mac));
        }
        self.link = now;
    }
}

impl Device for XdpDevice {
    fn info(&self) -> &Info {
        &self.info
    }

    /// Opens the queue. After it is dropped, the queue can be opened again.
    fn open_queue(
        &mut self,
        index: usize,
        _: &mut Spaces,
    ) -> Result<Box<dyn DeviceQueue>, DeviceError> {
        let is_open = self.open.strong_count() > 1;
        if index != 0 || is_open {
            return Err(DeviceError::no_queue(&self.info.name, index == 0));
        }
        let queue = XdpQueue::new(self.info.clone(), self.shared.clone())?;
        self.open = Arc::downgrade(&self.shared);
        Ok(Box::new(queue))
    }

    fn dma(&self) -> Option<Arc<dyn Dma>> {
        Some(self.shared.clone())
    }

    fn add_filter(&mut self, filter: &Filter) -> Result<(), FilterError> {
        if self.shared.packet_socket().is_none() {
            return Err(FilterError::Unsupported);
        }
        match filter {
            Filter::Address(mac) if !is_group(mac) => {
                self.receive_for(mac, true).map_err(FilterError::Failed)?;
                let added = self.shared.attached_program().add(filter);
                if added.is_err() {
                    let _ = self.receive_for(mac, false);
                }
                added
            }
            Filter::Flow(rule) => {
                self.shared.attached_program().add(filter)?;
                let added =
                    self.shared.host_traffic.as_ref().map_or(Ok(()), |local| local.add(rule));
                added.map_err(|error| {
                    self.shared.attached_program().remove(filter);
                    FilterError::Failed(error.into())
                })
            }
            Filter::Address(_) | Filter::AllGroups | Filter::Everything => {
                self.update_copied_filters(filter, true).map_err(FilterError::Failed)
            }
        }
    }

    fn remove_filter(&mut self, filter: &Filter) {
        // Only an interface that is gone refuses this.
        let _ = match filter {
            Filter::Address(mac) if !is_group(mac) => {
                self.shared.attached_program().remove(filter);
                self.receive_for(mac, false)
            }
            Filter::Flow(rule) => {
                if let Some(local) = &self.shared.host_traffic {
                    local.remove(rule);
                }
                self.shared.attached_program().remove(filter);
                Ok(())
            }
            Filter::Address(_) | Filter::AllGroups | Filter::Everything => {
                self.update_copied_filters(filter, false)
            }
        };
    }

    fn objects(&self) -> Vec<(&'static str, BorrowedFd<'_>)> {
        self.links.iter().map(|(name, link)| (*name, link.as_fd())).collect()
    }

    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        self.watch.as_ref().map(AsFd::as_fd)
    }

    fn take_event(&mut self) -> Option<Event> {
        if self.events.is_empty() {
            match self.watch.as_mut()?.latest()? {
                Watched::Here(link) => self.compare(&link),
                // In another namespace, the program is still on the interface, but nothing reports
                // its state: as good as removed.
                Watched::Gone => self.events.push_back(Event::Removed),
            }
        }
        self.events.pop_front()
    }
}

impl std::fmt::Debug for XdpDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("XdpDevice")
            .field("info", &self.info)
            .field("index", &self.index)
            .finish_non_exhaustive()
    }
}
