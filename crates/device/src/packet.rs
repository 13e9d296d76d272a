//! Packet sockets: a kernel's interface, beside the kernel's own sockets, without AF_XDP
//! (packet(7)).
//!
//! The kernel makes a packet of its own first, and then two programs look its flow up in the maps
//! that the driver changes. As a socket's filter, the program gives a copy of an owned flow's
//! packet to the driver. At the interface's ingress hook (TCX, Linux 6.6), it drops that packet
//! before the kernel's network stack handles it. The hook takes programs of several owners, so this
//! driver also works beside another XDP program. Each packet to send costs a system call; large
//! packets go in one piece.
//!
//! | part | is |
//! |---|---|
//! | [`PacketDevice`] | the control part: programs, sockets, filters, events |
//! | `open` | attaching to an interface |
//! | `queue` | the data part: the rings of the packet sockets |
//!
//! Programs, link, addresses and promiscuous mode vanish with the driver's descriptors: when the
//! process ends, in whatever way, and no keeper holds copies, the interface is as it was before.

mod error;
mod open;
mod queue;
mod shared;

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Weak};

use towpath_bpf::Link;

use crate::kernel_interface::filters;
use crate::kernel_interface::flow_filter::{PROGRAM_PACKETS, PacketFilter};
use crate::kernel_interface::groups::Groups;
use crate::kernel_interface::host_traffic::HostTraffic;
use crate::kernel_interface::link_events::LinkEvents;
use crate::kernel_interface::other_server::INGRESS;
use crate::{
    Device, DeviceError, DeviceQueue, EarlierObjects, Event, Filter, FilterError, Info, Spaces,
    TakeOver,
};
use queue::PacketQueue;
use shared::SharedSockets;

pub use error::PacketError;
pub use open::Options;

/// Returns `true` for the name of a program of this driver.
#[must_use]
pub fn is_program(name: &str) -> bool {
    name == PROGRAM_PACKETS
}

/// Packet sockets on one host interface.
pub struct PacketDevice {
    info: Info,
    index: u32,
    shared: Arc<SharedSockets>,
    /// The open queue's hold on `shared`, while it is open.
    open: Weak<SharedSockets>,
    filter: PacketFilter,
    groups: Groups,
    link_events: LinkEvents,
    notes: Vec<String>,
    warnings: Vec<String>,
    /// Keeps the program at the ingress hook.
    ingress: Link,
}

impl PacketDevice {
    /// Attaches to an interface. It keeps its addresses, its MTU and its state, and the kernel goes
    /// on receiving all packets until filters say otherwise.
    ///
    /// # Errors
    /// See [`PacketError`].
    pub fn open(options: &Options) -> Result<PacketDevice, PacketError> {
        PacketDevice::open_after(options, &EarlierObjects::default())
    }

    /// Attaches to an interface, after an earlier server. What that server attached stays in force
    /// for as long as its descriptors are open.
    ///
    /// # Errors
    /// See [`PacketError`].
    pub fn open_after(
        options: &Options,
        earlier: &EarlierObjects,
    ) -> Result<PacketDevice, PacketError> {
        let opened = open::open(options, earlier)?;
        Ok(PacketDevice {
            groups: {
                let socket = opened.shared.groups.clone();
                Groups::new(socket.clone(), socket, opened.info.mac)
            },
            link_events: LinkEvents::new(opened.index, &opened.info),
            info: opened.info,
            index: opened.index,
            shared: Arc::new(opened.shared),
            open: Weak::new(),
            filter: opened.filter,
            notes: opened.notes,
            warnings: opened.warnings,
            ingress: opened.ingress,
        })
    }

    /// Returns how the interface is served, and what that changes for others, one line each.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Returns what may keep packets from the applications, one line each.
    #[must_use]
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Makes one socket copy every packet, so that the other one copies none, or no longer.
    fn copy_everything(&mut self, wanted: bool) -> io::Result<()> {
        let flows = &self.shared.flows;
        if !wanted {
            flows.attach(self.filter.copies())?;
        }
        self.groups.change(&Filter::Everything, wanted)?;
        if wanted && let Err(error) = flows.copy_nothing() {
            let _ = self.groups.change(&Filter::Everything, false);
            return Err(error);
        }
        Ok(())
    }
}

impl Device for PacketDevice {
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
        let queue = PacketQueue::new(self.info.clone(), self.shared.clone())?;
        self.open = Arc::downgrade(&self.shared);
        Ok(Box::new(queue))
    }

    fn add_filter(&mut self, filter: &Filter) -> Result<(), FilterError> {
        if *filter == Filter::Everything {
            return self.copy_everything(true).map_err(FilterError::Failed);
        }
        let host_traffic = self.shared.host_traffic.as_ref();
        filters::add_filter(filter, &mut self.filter, &mut self.groups, host_traffic)
    }

    fn remove_filter(&mut self, filter: &Filter) {
        if *filter == Filter::Everything {
            // Only an interface that is gone refuses this.
            let _ = self.copy_everything(false);
            return;
        }
        let host_traffic = self.shared.host_traffic.as_ref();
        filters::remove_filter(filter, &mut self.filter, &mut self.groups, host_traffic);
    }

    fn would_have_room(&self, wanted: &[Filter], removed: &[Filter]) -> bool {
        self.filter.would_have_room(wanted, removed)
    }

    fn take_over(&mut self) -> Option<TakeOver> {
        let shared = self.shared.clone();
        Some(Box::new(move || {
            shared.host_traffic.iter().for_each(HostTraffic::remove_earlier_flows);
            Ok(())
        }))
    }

    fn objects(&self) -> Vec<(&'static str, BorrowedFd<'_>)> {
        let SharedSockets { groups, flows, host_traffic, .. } = &*self.shared;
        let own = [
            (INGRESS, self.ingress.as_fd()),
            ("device-packet-flows", (**flows).as_fd()),
            ("device-packet-groups", (**groups).as_fd()),
        ];
        let local = host_traffic.iter().flat_map(HostTraffic::objects);
        own.into_iter().chain(self.filter.maps()).chain(local).collect()
    }

    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        self.link_events.fd()
    }

    fn take_event(&mut self) -> Option<Event> {
        self.link_events.take()
    }
}

impl std::fmt::Debug for PacketDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PacketDevice")
            .field("info", &self.info)
            .field("index", &self.index)
            .finish_non_exhaustive()
    }
}
