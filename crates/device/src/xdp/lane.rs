//! What belongs to one queue to open: its hardware queues, its memory, and the sockets that it binds.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, Weak};

use towpath_memory::Mapping;

use super::kept::Kept;
use super::ledger::{ChunkLedger, Shape};
use super::left_packets::{LEDGER, MEMORY, SOCKET, Taken};
use super::shared::{Properties, SharedInterface, lock};
use super::socket::{Binding, CopyMode, TxChecksum, Umem, XdpSocket};
use crate::kernel_interface::packet_ring::PacketRing;
use crate::kernel_interface::packet_sender::PacketSender;
use crate::{Access, Dma, DmaError};

/// What belongs to one queue to open, and to the thread that drives it.
pub(super) struct Lane {
    pub(super) shared: Arc<SharedInterface>,
    /// The hardware queues. The first one sends.
    hardware: Vec<u32>,
    /// `true` for the device's first queue, which also has the packet sockets' rings.
    pub(super) is_first: bool,
    /// The receive buffers of the session whose queue this is; `None` for a queue of the server's.
    pub(super) own: Option<OwnBuffers>,
    pub(super) binding: Binding,
    /// Sends large packets; `None` where a driver without copies sends the others later.
    pub(super) large: Option<Arc<PacketSender>>,
    /// What an earlier server left that this queue may go on with.
    kept: Mutex<Option<Kept>>,
    umem: Mutex<Option<Umem>>,
    /// The socket whose memory the others share, while it is bound.
    first_socket: Mutex<Weak<OwnedFd>>,
}

/// The receive buffers of a session.
#[derive(Clone, Copy, Debug)]
pub(super) struct OwnBuffers {
    /// The distance from one to the next, in bytes.
    pub(super) bytes: u32,
    pub(super) count: u32,
}

impl Lane {
    /// Creates queue `number` of those to open.
    pub(super) fn new(
        shared: Arc<SharedInterface>,
        number: u32,
        large: Option<PacketSender>,
        kept: Option<Kept>,
    ) -> Lane {
        let Properties { binding, queues, lanes, .. } = shared.properties;
        Lane {
            hardware: (number..queues).step_by(lanes as usize).collect(),
            is_first: number == 0,
            own: None,
            binding,
            large: large.map(Arc::new),
            kept: Mutex::new(kept),
            umem: Mutex::new(None),
            first_socket: Mutex::default(),
            shared,
        }
    }

    /// Creates the state of a session's own queue, in copy mode. Packets may span several buffers
    /// if the kernel supports that. Large packets leave through the packet socket of `among`, which
    /// otherwise serves the hardware queue.
    pub(super) fn own(among: &Lane, hardware: u32, own: OwnBuffers) -> Lane {
        let shared = among.shared.clone();
        let spans = shared.attached_program().spans();
        Lane {
            hardware: vec![hardware],
            is_first: false,
            own: Some(own),
            binding: Binding { copying: CopyMode::Copy, spans, ..among.binding },
            large: among.large.clone(),
            kept: Mutex::default(),
            umem: Mutex::new(None),
            first_socket: Mutex::default(),
            shared,
        }
    }

    pub(super) fn umem(&self) -> Option<Umem> {
        lock(&self.umem).clone()
    }

    /// Maps the ring of the packets from this host's own sockets, if this queue has it.
    pub(super) fn host_ring(&self) -> io::Result<Option<PacketRing>> {
        let local = self.shared.host_traffic.as_ref().filter(|_| self.is_first);
        local.map(|local| PacketRing::map(local.socket().clone())).transpose()
    }

    /// Maps the ring of packets to groups, if this queue has it.
    pub(super) fn packet_ring(&self) -> io::Result<Option<PacketRing>> {
        let socket = self.shared.packet_socket.clone().filter(|_| self.is_first);
        socket.map(PacketRing::map).transpose()
    }

    /// Returns the shape of the ledger of so many receive buffers.
    fn shape(&self, chunks: u32) -> Shape {
        let Properties { binding, chunk_bytes, tx_checksum, busy_poll, .. } =
            self.shared.properties;
        let Binding { spans, copying, .. } = binding;
        let sockets = self.hardware.len() as u32;
        Shape { chunk_bytes, chunks, sockets, spans, copying, tx_checksum, busy_poll }
    }

    /// Returns the file of an earlier server's memory, if this queue goes on with it and with its
    /// sockets. Otherwise takes the packets that wait in the sockets.
    pub(super) fn earlier_memory(&self, bytes: usize) -> io::Result<Option<OwnedFd>> {
        let mut kept = lock(&self.kept);
        let Some(theirs) = kept.as_mut() else { return Ok(None) };
        let properties = &self.shared.properties;
        let chunks = (bytes / properties.chunk_bytes as usize) as u32;
        // Sessions' own queues need a memory that is made for them.
        let memory = match properties.gives_queues {
            true => Ok(None),
            false => theirs.memory(bytes, &self.shape(chunks)),
        };
        if !matches!(memory, Ok(Some(_)))
            && let Some(kept) = kept.take()
        {
            self.shared.left_packets.add(kept);
        }
        memory
    }

    /// Goes on with the sockets of an earlier server, with its ledger. `None` if that is impossible:
    /// then the queue binds new ones.
    pub(super) fn go_on(&self) -> io::Result<Option<(Vec<XdpSocket>, ChunkLedger, bool)>> {
        let Some(kept) = lock(&self.kept).take() else { return Ok(None) };
        let Kept { sockets, ledger: Some(ledger), drops, .. } = kept else { return Ok(None) };
        // A next server goes on with the sockets only together with memory and ledger, so the keeper
        // holds these first, also under this server's number.
        if let Some(first) = sockets.first() {
            self.hold_named(MEMORY, first.memory.as_fd())?;
        }
        let mut all = Vec::new();
        for one in sockets {
            let socket = XdpSocket::of_earlier_server(one.socket, one.hardware);
            // What fails here fails for the last time: other sockets take its place.
            let Ok(Some(socket)) = socket else { return Ok(None) };
            all.push(socket);
        }
        all.sort_by_key(|socket| socket.hardware);
        let Some(first) = all.first() else { return Ok(None) };
        *lock(&self.first_socket) = Arc::downgrade(&first.fd);
        self.hold_named(LEDGER, ledger.file.as_fd())?;
        self.let_packets_in(&all)?;
        Ok(Some((all, ledger, drops)))
    }

    /// Makes a ledger of the receive buffers, which a keeper holds if a next server can go on with
    /// it. `None` without a keeper, and for what no server can go on with.
    pub(super) fn new_ledger(
        &self,
        chunks: u32,
        zero_copy: bool,
    ) -> io::Result<Option<ChunkLedger>> {
        let never = zero_copy || self.own.is_some() || self.shared.properties.gives_queues;
        if never || self.shared.keeper.get().is_none() {
            return Ok(None);
        }
        ChunkLedger::new(&self.shape(chunks)).map(Some)
    }

    /// Has the keeper hold the ledger of new sockets, and none of earlier ones.
    pub(super) fn replace_ledger(&self, ledger: Option<&ChunkLedger>) -> io::Result<()> {
        if let Some(keeper) = self.shared.keeper.get().filter(|_| self.own.is_none()) {
            keeper.release_sockets(&[self.name(LEDGER)])?;
        }
        ledger.map_or(Ok(()), |ledger| self.hold_named(LEDGER, ledger.file.as_fd()))
    }

    /// Returns a name with the lane's number.
    fn name(&self, name: &str) -> String {
        format!("{name}{}", self.hardware.first().copied().unwrap_or_default())
    }

    /// Has the keeper hold a descriptor, under a name with the lane's number.
    fn hold_named(&self, name: &str, descriptor: BorrowedFd<'_>) -> io::Result<()> {
        let Some(keeper) = self.shared.keeper.get() else { return Ok(()) };
        keeper.hold_socket(&self.name(name), descriptor)
    }

    /// Takes the packets that wait in an earlier server's sockets.
    pub(super) fn take_left_packets(&self) -> Taken {
        self.shared.left_packets.take(&self.hardware)
    }

    /// Binds one socket per hardware queue of this queue to the registered memory, except for those
    /// that are ceded, and lets packets in. A copy of an earlier socket would still occupy its
    /// hardware queue, so the keeper closes those first.
    pub(super) fn bind(&self, ceded: &[u32]) -> io::Result<Vec<XdpSocket>> {
        let umem = self.umem().ok_or_else(|| io::Error::other("the device has no memory yet"))?;
        let shared = &self.shared;
        let theirs = self.hardware.iter().copied().filter(|hardware| !ceded.contains(hardware));
        let names: Vec<_> = theirs.clone().map(socket_name).collect();
        let keeper = shared.keeper.get();
        keeper.map_or(Ok(()), |keeper| keeper.release_sockets(&names))?;
        let mut rest = theirs;
        let number = rest.next().ok_or(io::ErrorKind::InvalidInput)?;
        let first = XdpSocket::first(shared.unbound()?, &umem, self.binding, number);
        let first = first.map_err(|cause| locked(cause, umem.memory.len()))?;
        *lock(&self.first_socket) = Arc::downgrade(&first.fd);
        shared.zero_copy.fetch_or(first.zero_copy, Ordering::Relaxed);
        let mut sockets = vec![first];
        for number in rest {
            sockets.push(self.bind_another(number)?);
        }
        self.let_packets_in(&sockets)?;
        Ok(sockets)
    }

    /// Enters sockets into the program's map, and has the keeper hold them.
    fn let_packets_in(&self, sockets: &[XdpSocket]) -> io::Result<()> {
        let attached_program = self.shared.attached_program();
        for socket in sockets {
            attached_program.set_socket(socket.hardware, socket.fd.as_fd())?;
        }
        // Other threads need the program while the keeper is slow.
        drop(attached_program);
        sockets.iter().try_for_each(|socket| self.hold(socket))
    }

    /// Lets the keeper hold a copy of a bound socket of the server's. That of a session's own queue
    /// ends with this process: its memory is the session's, and no later server may occupy it.
    fn hold(&self, socket: &XdpSocket) -> io::Result<()> {
        let Some(keeper) = self.shared.keeper.get().filter(|_| self.own.is_none()) else {
            return Ok(());
        };
        keeper.hold_socket(&socket_name(socket.hardware), socket.fd.as_fd())
    }

    fn bind_another(&self, hardware: u32) -> io::Result<XdpSocket> {
        let first = lock(&self.first_socket).upgrade();
        let first = first.ok_or_else(|| io::Error::other("the server's queue is not open"))?;
        let unbound = self.shared.unbound()?;
        XdpSocket::another(unbound, first.as_fd(), self.binding.index, hardware)
    }

    /// Binds a socket to a hardware queue that was ceded, and lets packets in. The keeper may hold
    /// a copy of the ceded socket still, if no session's was bound in between.
    pub(super) fn bind_again(&self, hardware: u32) -> io::Result<XdpSocket> {
        if let Some(keeper) = self.shared.keeper.get() {
            keeper.release_sockets(&[socket_name(hardware)])?;
        }
        let socket = self.bind_another(hardware)?;
        self.shared.attached_program().set_socket(hardware, socket.fd.as_fd())?;
        self.hold(&socket)?;
        Ok(socket)
    }

    /// Returns the number of hardware queues.
    pub(super) fn hardware_queues(&self) -> usize {
        self.hardware.len()
    }
}

/// Returns the name under which a keeper holds the socket of a hardware queue.
fn socket_name(hardware: u32) -> String {
    format!("{SOCKET}{hardware}")
}

/// Names the limit that memory of so many bytes exceeds.
fn locked(cause: io::Error, bytes: usize) -> io::Error {
    if cause.raw_os_error() != Some(libc::ENOBUFS) {
        return cause;
    }
    let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock).current;
    let limit = limit.map_or("unlimited".to_owned(), |limit| format!("{} KiB", limit >> 10));
    io::Error::other(format!(
        "its memory of {} KiB exceeds the limit of locked memory of the server's user, {limit} for \
         all processes of it; raise the limit where the server starts (ulimit -l, LimitMEMLOCK=)",
        bytes >> 10
    ))
}

/// The memory of a queue is registered once, with its sockets (`XDP_UMEM_REG`). It cannot grow, so
/// through the server's queues the kernel reaches no memory of a session.
impl Dma for Lane {
    fn register(&self, memory: &Arc<Mapping>, _: Access) -> Result<u64, DmaError> {
        let mut umem = lock(&self.umem);
        if umem.is_some() {
            let cause = io::Error::from_raw_os_error(libc::ENOSPC);
            return Err(DmaError { bytes: memory.len(), cause });
        }
        let Properties { chunk_bytes, tx_checksum, .. } = self.shared.properties;
        let (chunk_bytes, tx_checksum, own_buffers) = match self.own {
            Some(own) => (own.bytes, TxChecksum::Engine, Some(own.count)),
            None => (chunk_bytes, tx_checksum, None),
        };
        *umem = Some(Umem { memory: memory.clone(), chunk_bytes, tx_checksum, own_buffers });
        // The kernel's addresses count from the memory's beginning.
        Ok(0)
    }

    fn unregister(&self, _: u64) {
        *lock(&self.umem) = None;
    }
}
