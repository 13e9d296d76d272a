//! AF_XDP: a kernel's interface, beside the kernel's own sockets
//! (Documentation/networking/af_xdp.rst).
//!
//! A small program in the kernel looks at each received packet, before the kernel's network stack
//! does. It gives the packets of the flows that applications own to the driver's sockets, and
//! passes all others on to the kernel. The flows are in maps, which the driver changes while
//! packets arrive.
//!
//! | part | is |
//! |---|---|
//! | [`XdpDevice`] | the control part: program, sockets, filters, events |
//! | `left_packets`, `kept`, `ledger` | the sockets of an earlier server: packets that wait in them, or all of them |
//! | `queue` | the data part: the rings of all hardware queues |
//! | `shared`, `lane` | what the control part and the queues share: of the device, and of one queue to open |
//! | `socket`, `ring` | an AF_XDP socket, and the rings that it shares with the kernel |
//! | `own` | hardware queues that sessions have to themselves |
//! | `attached_program` | the program, and its link to the interface |
//! | `info` | what the device says of itself, and the sizes of its buffers |
//! | `tx_checksum` | whether the kernel and the interface complete checksums |
//! | `offload` | partial checksums and merged packets, which AF_XDP does not announce |
//!
//! What it has in common with other drivers of such interfaces is in `kernel_interface`.
//!
//! Program, link, addresses and promiscuous mode vanish with the driver's descriptors: when the
//! process ends, in whatever way, and no keeper holds copies, the interface is as it was before.

mod attached_program;
mod error;
mod in_flight;
mod info;
mod kept;
mod lane;
mod ledger;
mod left_packets;
mod locked;
mod offload;
mod open;
mod options;
mod own;
mod queue;
mod ring;
mod shared;
mod socket;
mod tx_checksum;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Weak};

use crate::PacketMemory;
use crate::dma::Dma;
use crate::kernel_interface::filters;
use crate::kernel_interface::flow_filter;
use crate::kernel_interface::groups::Groups;
use crate::kernel_interface::link_events::{LinkEvents, QueueEvents};
use crate::kernel_interface::packet_socket::PacketSocket;
use crate::{
    Device, DeviceError, DeviceQueue, EarlierObjects, Event, Filter, FilterError, FlowRule,
    HardwareQueues, Info, Keeper, Limits, OwnQueueError, OwnQueueLimits, OwnQueues, Spaces,
    TakeOver,
};
use lane::Lane;
use options::Notes;
use queue::XdpQueue;
use shared::SharedInterface;

pub use error::XdpError;
pub use options::{Mode, Options};
pub use socket::{CopyMode, TxChecksum, unbound_socket};

/// Returns `true` for the name of a program of this driver.
#[must_use]
pub fn is_program(name: &str) -> bool {
    [flow_filter::PROGRAM_FLOWS, flow_filter::PROGRAM_ALL].contains(&name)
}

/// Returns the number of bytes that a device locks for an interface with one hardware queue and an MTU of 1500, if the
/// limit allows: with [`Mode::Native`] for a driver that runs the program, otherwise with the larger buffers of generic
/// mode.
///
/// ```
/// use towpath_device::xdp::{Mode, wanted_locked_bytes};
/// assert!(wanted_locked_bytes(Mode::Native) < wanted_locked_bytes(Mode::Generic));
/// ```
#[must_use]
pub fn wanted_locked_bytes(mode: Mode) -> usize {
    let chunk_bytes =
        if mode == Mode::Native { info::SMALL_CHUNK_BYTES } else { info::LARGE_CHUNK_BYTES };
    locked::THREAD_BYTES + info::RX_BUFFERS * chunk_bytes
}

/// Returns the fewest bytes that a device locks for such an interface, with the fewest receive buffers. With a lower
/// limit, the device does not open.
///
/// ```
/// use towpath_device::xdp::{Mode, least_locked_bytes, wanted_locked_bytes};
/// assert!(least_locked_bytes() < wanted_locked_bytes(Mode::Native));
/// ```
#[must_use]
pub fn least_locked_bytes() -> usize {
    locked::THREAD_BYTES + locked::MIN_RX_BUFFERS * info::SMALL_CHUNK_BYTES
}

/// An AF_XDP device on one host interface.
pub struct XdpDevice {
    info: Info,
    index: u32,
    shared: Arc<SharedInterface>,
    /// The state of each device queue.
    lanes: Vec<Arc<Lane>>,
    /// Each open queue's hold on its part of `lanes`, while it is open.
    open: Vec<Weak<Lane>>,
    /// `None` for a device that leaves the kernel no packet.
    groups: Option<Groups>,
    link_events: LinkEvents,
    /// `None` if the kernel does not report changes of the hardware queues.
    queue_events: Option<QueueEvents>,
    /// Copies of the descriptors that must outlive this process, with their names.
    objects: Vec<(&'static str, OwnedFd)>,
    /// How the interface is served, for the operator.
    notes: Notes,
    /// Keeps the interface in promiscuous mode, if the kernel receives nothing.
    _members: Arc<PacketSocket>,
}

impl XdpDevice {
    /// Attaches to an interface. It keeps its addresses, its MTU and its state, and the kernel goes
    /// on receiving all packets until filters say otherwise.
    ///
    /// # Errors
    /// See [`XdpError`].
    pub fn open(options: &Options) -> Result<XdpDevice, XdpError> {
        XdpDevice::open_after(options, &mut EarlierObjects::default())
    }

    /// Attaches to an interface, after an earlier server, whose program stays attached until
    /// [`Device::take_over`]. Packets that wait in that server's sockets are received first.
    ///
    /// # Errors
    /// See [`XdpError`].
    pub fn open_after(
        options: &Options,
        earlier: &mut EarlierObjects,
    ) -> Result<XdpDevice, XdpError> {
        let opened = open::open(options, earlier)?;
        let name = &options.interface;
        let copied = opened.shared.objects();
        let mut objects = copied.map_err(error::refused(name, "copying a descriptor"))?;
        let copied = (*opened.members).as_fd().try_clone_to_owned();
        let copied = copied.map_err(error::refused(name, "copying a descriptor"))?;
        objects.push(("device-packet-groups", copied));
        // The last close of a packet socket waits for an RCU grace period: here, the keeper waits, and
        // not the end of a killed server.
        for sender in opened.lanes.iter().filter_map(|lane| lane.large.as_ref()) {
            let copied = sender.socket().try_clone_to_owned();
            let copied = copied.map_err(error::refused(name, "copying a descriptor"))?;
            objects.push(("device-packet-sender", copied));
        }
        let link_events = LinkEvents::new(opened.index, &opened.info);
        let served = opened.shared.properties().queues;
        let queue_events = QueueEvents::new(opened.index, served, &link_events);
        let mut notes = opened.notes;
        notes.notes.extend(queue_events.as_ref().err().map(|error| {
            format!("the server does not hear of hardware queues that {name} gets later: {error}")
        }));
        let socket = opened.shared.packet_socket();
        let members = opened.members;
        let groups = socket.map(|socket| Groups::new(socket, members.clone(), opened.info.mac));
        Ok(XdpDevice {
            info: opened.info,
            index: opened.index,
            shared: opened.shared,
            open: opened.lanes.iter().map(|_| Weak::new()).collect(),
            lanes: opened.lanes,
            groups,
            link_events,
            queue_events: queue_events.ok(),
            objects,
            notes,
            _members: members,
        })
    }

    /// Returns `true` if a device that is opened anew can serve this number of hardware queues: each lane has
    /// one, and the memory fits into the limit of locked memory.
    fn can_serve(&self, queues: u32) -> bool {
        let properties = self.shared.properties();
        let Limits { rx_ring, rx_buffer_bytes, .. } = self.info.limits;
        let held = self.lanes.iter().filter_map(|lane| lane.umem());
        let held: usize = held.map(|umem| umem.memory.len()).sum();
        let buffers = |rx_ring: usize| self.lanes.len() * rx_ring * rx_buffer_bytes;
        let next =
            (held + buffers(info::rx_ring_of(queues, properties))).saturating_sub(buffers(rx_ring));
        queues >= properties.lanes && locked::fits(next)
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
}

impl Device for XdpDevice {
    fn info(&self) -> &Info {
        &self.info
    }

    /// Opens a queue. After it is dropped, it can be opened again.
    fn open_queue(
        &mut self,
        index: usize,
        _: &mut Spaces,
    ) -> Result<Box<dyn DeviceQueue>, DeviceError> {
        let no_queue = |is_open| DeviceError::no_queue(&self.info.name, is_open);
        let lane = self.lanes.get(index).ok_or_else(|| no_queue(false))?;
        if self.open[index].strong_count() > 1 {
            return Err(no_queue(true));
        }
        let queue = XdpQueue::new(self.info.clone(), lane.clone())?;
        self.open[index] = Arc::downgrade(lane);
        Ok(Box::new(queue))
    }

    fn dma(&self) -> Option<Arc<dyn Dma>> {
        self.dma_of(0)
    }

    fn own_queue_limits(&self) -> Result<OwnQueueLimits, OwnQueueError> {
        own::limits(&self.info, &self.shared, self.groups.is_none())
    }

    fn own_queues(&self) -> Option<Box<dyn OwnQueues>> {
        // One engine thread serves all other hardware queues.
        let [lane] = &self.lanes[..] else { return None };
        self.own_queue_limits().ok()?;
        Some(Box::new(own::Opener::new(self.info.clone(), lane)))
    }

    fn own_flow(&mut self, rule: &FlowRule, hardware: u32) -> Result<(), FilterError> {
        self.shared.attached_program().own_flow(rule, hardware)
    }

    fn dma_of(&self, queue: usize) -> Option<Arc<dyn Dma>> {
        let lane = self.lanes.get(queue)?.clone();
        Some(lane)
    }

    fn add_filter(&mut self, filter: &Filter) -> Result<(), FilterError> {
        let groups = self.groups.as_mut().ok_or(FilterError::Unsupported)?;
        let host_traffic = self.shared.host_traffic.as_ref();
        filters::add_filter(filter, &mut &*self.shared, groups, host_traffic)
    }

    fn remove_filter(&mut self, filter: &Filter) {
        let Some(groups) = &mut self.groups else { return };
        let host_traffic = self.shared.host_traffic.as_ref();
        filters::remove_filter(filter, &mut &*self.shared, groups, host_traffic);
    }

    fn would_have_room(&self, wanted: &[Filter], removed: &[Filter]) -> bool {
        self.shared.attached_program().would_have_room(wanted, removed)
    }

    fn earlier_memory(
        &mut self,
        index: usize,
        memory: PacketMemory,
    ) -> io::Result<Option<OwnedFd>> {
        self.lanes.get(index).map_or(Ok(None), |lane| lane.earlier_memory(memory.bytes))
    }

    fn set_keeper(&mut self, keeper: Arc<dyn Keeper>) {
        self.shared.set_keeper(keeper);
    }

    fn memory_name(&self) -> &'static str {
        left_packets::MEMORY_NAME
    }

    fn take_over(&mut self) -> Option<TakeOver> {
        let (shared, info) = (self.shared.clone(), self.info.clone());
        let groups = self.groups.as_ref().map_or(Ok(()), Groups::refresh);
        let take_over = move || {
            groups.map_err(info.failed("setting what a packet socket copies"))?;
            shared.take_over().map_err(info.failed("replacing the program of an earlier server"))
        };
        Some(Box::new(take_over))
    }

    /// Returns the program's counts since it was attached.
    fn statistics(&mut self) -> Vec<(&'static str, u64)> {
        vec![("rx_no_socket", self.shared.attached_program().unserved())]
    }

    fn objects(&self) -> Vec<(&'static str, BorrowedFd<'_>)> {
        self.objects.iter().map(|(name, object)| (*name, object.as_fd())).collect()
    }

    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        self.queue_events.as_ref().map(QueueEvents::fd).or(self.link_events.fd())
    }

    fn take_event(&mut self) -> Option<Event> {
        if let Some(event) = self.link_events.take() {
            return Some(event);
        }
        let present = self.queue_events.as_mut()?.take()?;
        Some(Event::HardwareQueues(HardwareQueues {
            present,
            served: self.shared.properties().queues,
            can_serve_all: self.can_serve(present),
        }))
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
