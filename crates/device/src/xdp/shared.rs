//! What the control part and the queues share: sockets to bind, memory, and the attached program.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use towpath_memory::Mapping;

use super::attached_program::AttachedProgram;
use super::socket::{self, Binding, TxChecksum, Umem, XdpSocket};
use crate::Keeper;
use crate::dma::{Dma, DmaError};
use crate::kernel_interface::host_traffic::HostTraffic;
use crate::kernel_interface::packet_sender::PacketSender;
use crate::kernel_interface::packet_socket::{PacketRing, PacketSocket};

/// The properties of a device that hold for as long as it is open.
#[derive(Clone, Copy, Debug)]
pub(super) struct Properties {
    pub(super) binding: Binding,
    /// The number of hardware queues.
    pub(super) queues: u32,
    /// The number of queues to open, which divide the hardware queues among themselves.
    pub(super) lanes: u32,
    /// The longest frame on the wire, in bytes.
    pub(super) frame_bytes: usize,
    pub(super) chunk_bytes: u32,
    /// `true` if packets may come with partial checksums, or merged.
    pub(super) may_be_partial: bool,
    pub(super) tx_checksum: TxChecksum,
    pub(super) busy_poll: bool,
}

/// The shared part of a device.
pub(super) struct Shared {
    interface: String,
    properties: Properties,
    pub(super) attached_program: Mutex<AttachedProgram>,
    /// The packet socket; `None` for a device that leaves the kernel no packet.
    packet_socket: Option<Arc<PacketSocket>>,
    /// Carries packets between applications and the kernel's sockets of this host, if they share
    /// addresses.
    pub(super) host_traffic: Option<HostTraffic>,
    /// Sockets that are not bound yet, for the first binding.
    unbound: Mutex<Vec<OwnedFd>>,
    /// Makes the sockets after that, and holds bound ones.
    keeper: OnceLock<Arc<dyn Keeper>>,
}

/// What belongs to one queue to open, and to the thread that drives it.
pub(super) struct Lane {
    pub(super) shared: Arc<Shared>,
    /// The queue's number. Queue 0 also has the packet sockets' rings.
    pub(super) number: u32,
    /// Sends large packets; `None` where a driver without copies sends the others later.
    pub(super) large: Option<PacketSender>,
    umem: Mutex<Option<Umem>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    pub(super) fn new(
        interface: String,
        properties: Properties,
        attached_program: AttachedProgram,
        packet_socket: Option<PacketSocket>,
        host_traffic: Option<HostTraffic>,
        unbound: Vec<OwnedFd>,
    ) -> Shared {
        Shared {
            interface,
            properties,
            attached_program: Mutex::new(attached_program),
            packet_socket: packet_socket.map(Arc::new),
            host_traffic,
            unbound: Mutex::new(unbound),
            keeper: OnceLock::new(),
        }
    }

    pub(super) fn attached_program(&self) -> MutexGuard<'_, AttachedProgram> {
        lock(&self.attached_program)
    }

    pub(super) fn packet_socket(&self) -> Option<Arc<PacketSocket>> {
        self.packet_socket.clone()
    }

    /// Returns copies of the descriptors that must outlive the driver, with their names.
    pub(super) fn objects(&self) -> io::Result<Vec<(&'static str, OwnedFd)>> {
        let program = self.attached_program();
        let groups = self.packet_socket.iter().map(|one| ("device-packet-groups", (**one).as_fd()));
        let local = self.host_traffic.iter().flat_map(HostTraffic::objects);
        let all = program.objects().into_iter().chain(groups).chain(local);
        all.map(|(name, object)| Ok((name, object.try_clone_to_owned()?))).collect()
    }

    pub(super) fn set_keeper(&self, keeper: Arc<dyn Keeper>) {
        let _ = self.keeper.set(keeper);
    }

    /// Returns the longest frame on the wire, in bytes.
    #[inline]
    pub(super) fn frame_bytes(&self) -> usize {
        self.properties.frame_bytes
    }

    #[inline]
    pub(super) fn may_be_partial(&self) -> bool {
        self.properties.may_be_partial
    }

    #[inline]
    pub(super) fn busy_polls(&self) -> bool {
        self.properties.busy_poll
    }

    /// Returns `true` if a packet may take several descriptors.
    #[inline]
    pub(super) fn spans(&self) -> bool {
        self.properties.binding.spans
    }

    /// Returns a socket that is not bound. Those from the start are in the interface's network
    /// namespace, and so is the keeper. Without a keeper, this thread makes more.
    fn unbound(&self) -> io::Result<OwnedFd> {
        let kept = lock(&self.unbound).pop();
        let another = || match self.keeper.get() {
            Some(keeper) => keeper.xdp_socket(),
            None => socket::unbound_socket(&self.interface, self.properties.busy_poll),
        };
        kept.map_or_else(another, Ok)
    }
}

impl Lane {
    pub(super) fn new(shared: Arc<Shared>, number: u32, large: Option<PacketSender>) -> Lane {
        Lane { shared, number, large, umem: Mutex::new(None) }
    }

    pub(super) fn umem(&self) -> Option<Umem> {
        lock(&self.umem).clone()
    }

    /// Maps the ring of the packets from this host's own sockets, if this queue has it.
    pub(super) fn host_ring(&self) -> io::Result<Option<PacketRing>> {
        let local = self.shared.host_traffic.as_ref().filter(|_| self.number == 0);
        local.map(|local| PacketRing::map(local.socket().clone())).transpose()
    }

    /// Maps the ring of packets to groups, if this queue has it.
    pub(super) fn packet_ring(&self) -> io::Result<Option<PacketRing>> {
        let socket = self.shared.packet_socket.clone().filter(|_| self.number == 0);
        socket.map(PacketRing::map).transpose()
    }

    /// Binds one socket per hardware queue of this queue to the registered memory, and lets packets
    /// in. A copy of an earlier socket would still occupy its hardware queue, so the keeper closes
    /// those first.
    pub(super) fn bind(&self) -> io::Result<Vec<XdpSocket>> {
        let umem = self.umem().ok_or_else(|| io::Error::other("the device has no memory yet"))?;
        let shared = &self.shared;
        let Properties { binding, queues, lanes, .. } = shared.properties;
        let theirs = (self.number..queues).step_by(lanes as usize);
        let names: Vec<_> = theirs.clone().map(|queue| format!("device-socket-{queue}")).collect();
        let keeper = shared.keeper.get();
        keeper.map_or(Ok(()), |keeper| keeper.release_sockets(&names))?;
        let first = XdpSocket::first(shared.unbound()?, &umem, binding, self.number);
        let mut sockets = vec![first.map_err(|cause| locked(cause, umem.memory.len()))?];
        for queue in theirs.clone().skip(1) {
            let first = sockets[0].fd.as_fd();
            let another = XdpSocket::another(shared.unbound()?, first, binding.index, queue)?;
            sockets.push(another);
        }
        let attached_program = shared.attached_program();
        for (queue, socket) in theirs.zip(&sockets) {
            attached_program.set_socket(queue, socket.fd.as_fd())?;
        }
        // Other threads need the program while the keeper is slow.
        drop(attached_program);
        for (name, socket) in names.iter().zip(&sockets) {
            keeper.map_or(Ok(()), |keeper| keeper.hold_socket(name, socket.fd.as_fd()))?;
        }
        Ok(sockets)
    }
}

/// Names the limit that memory of so many bytes exceeds.
fn locked(cause: io::Error, bytes: usize) -> io::Error {
    if cause.raw_os_error() != Some(libc::ENOBUFS) {
        return cause;
    }
    let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock).current;
    let limit = limit.map_or("unlimited".to_owned(), |limit| format!("{} KiB", limit >> 10));
    io::Error::other(format!(
        "its memory of {} KiB exceeds the limit of locked memory, {limit} for all processes of this \
         user; raise the limit (ulimit -l, LimitMEMLOCK=)",
        bytes >> 10
    ))
}

/// The memory of a queue is registered once, with its sockets (`XDP_UMEM_REG`), and cannot grow. So
/// the kernel reaches no memory of a session.
impl Dma for Lane {
    fn register(&self, memory: &Arc<Mapping>) -> Result<u64, DmaError> {
        let mut umem = lock(&self.umem);
        if umem.is_some() {
            let cause = io::Error::from_raw_os_error(libc::ENOSPC);
            return Err(DmaError { bytes: memory.len(), cause });
        }
        let Properties { chunk_bytes, tx_checksum, .. } = self.shared.properties;
        *umem = Some(Umem { memory: memory.clone(), chunk_bytes, tx_checksum });
        // The kernel's addresses count from the memory's beginning.
        Ok(0)
    }

    fn unregister(&self, _: u64) {
        *lock(&self.umem) = None;
    }
}
