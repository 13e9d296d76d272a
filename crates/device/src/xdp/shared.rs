//! What the control part and the queues share: sockets to bind, memory, and the attached program.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use super::attached_program::AttachedProgram;
use super::left_packets::LeftPackets;
use super::socket::{self, Binding, TxChecksum};
use crate::kernel_interface::filters::ProgramMaps;
use crate::kernel_interface::host_traffic::HostTraffic;
use crate::kernel_interface::packet_socket::{self, PacketSocket};
use crate::{Filter, FilterError, Keeper, close_early};

/// The properties of a device that hold for as long as it is open.
#[derive(Clone, Debug)]
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
    /// The hardware queues that sessions can have to themselves: they receive and send, and the
    /// server can do without.
    pub(super) own_queues: Range<u32>,
    /// `true` if sessions may have some of these.
    pub(super) gives_queues: bool,
}

/// The shared part of a device.
pub(super) struct SharedInterface {
    pub(super) properties: Properties,
    pub(super) attached_program: Mutex<AttachedProgram>,
    /// The packet socket; `None` for a device that leaves the kernel no packet.
    pub(super) packet_socket: Option<Arc<PacketSocket>>,
    /// Carries packets between applications and the kernel's sockets of this host, if they share
    /// addresses.
    pub(super) host_traffic: Option<HostTraffic>,
    /// Sockets that are not bound yet, for the first binding.
    unbound: Mutex<Vec<OwnedFd>>,
    /// The sockets of an earlier server.
    pub(super) left_packets: LeftPackets,
    /// Makes the sockets after that, and holds bound ones.
    pub(super) keeper: OnceLock<Arc<dyn Keeper>>,
    /// `true` once a socket works without copies.
    pub(super) zero_copy: AtomicBool,
}

/// Locks a mutex, also after a panic of another thread.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl SharedInterface {
    pub(super) fn new(
        properties: Properties,
        attached_program: AttachedProgram,
        packet_socket: Option<PacketSocket>,
        host_traffic: Option<HostTraffic>,
        unbound: Vec<OwnedFd>,
        left_packets: LeftPackets,
    ) -> SharedInterface {
        SharedInterface {
            properties,
            attached_program: Mutex::new(attached_program),
            packet_socket: packet_socket.map(Arc::new),
            host_traffic,
            unbound: Mutex::new(unbound),
            left_packets,
            keeper: OnceLock::new(),
            zero_copy: AtomicBool::new(false),
        }
    }

    pub(super) fn attached_program(&self) -> MutexGuard<'_, AttachedProgram> {
        lock(&self.attached_program)
    }

    /// Replaces an earlier server's program. The kernel takes long, so other threads can use the maps
    /// meanwhile.
    pub(super) fn take_over(&self) -> io::Result<()> {
        self.host_traffic.iter().for_each(HostTraffic::remove_earlier_flows);
        let replacement = self.attached_program().replacement()?;
        if let Some((link, program)) = replacement {
            link.update(&program)?;
        }
        self.attached_program().forget_earlier();
        Ok(())
    }

    pub(super) fn packet_socket(&self) -> Option<Arc<PacketSocket>> {
        self.packet_socket.clone()
    }

    /// Returns copies of the descriptors that must outlive the driver, with their names.
    pub(super) fn objects(&self) -> io::Result<Vec<(&'static str, OwnedFd)>> {
        let program = self.attached_program();
        let name = packet_socket::ring_name(self.properties.frame_bytes);
        let groups = name.zip(self.packet_socket.as_ref());
        let groups = groups.map(|(name, socket)| (name, (**socket).as_fd()));
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

    /// Returns `true` if a socket works without copies.
    pub(super) fn is_zero_copy(&self) -> bool {
        self.zero_copy.load(Ordering::Relaxed)
    }

    pub(super) fn properties(&self) -> &Properties {
        &self.properties
    }

    /// Returns `true` if a session may have a hardware queue to itself: a keeper makes sockets for
    /// it; or some are left for it and for the way back, and for a reset of all queues.
    pub(super) fn has_sockets_for_session(&self) -> bool {
        if self.keeper.get().is_some() {
            return true;
        }
        let needed = 2 + self.properties.queues as usize;
        let mut unbound = lock(&self.unbound);
        while unbound.len() < needed {
            let Ok(one) = self.another_unbound() else { return false };
            unbound.push(one);
        }
        true
    }

    /// Returns a socket that is not bound. Those from the start are in the interface's network
    /// namespace, and so is the keeper. Without a keeper, this thread makes more.
    pub(super) fn unbound(&self) -> io::Result<OwnedFd> {
        let kept = lock(&self.unbound).pop();
        let another = || match self.keeper.get() {
            Some(keeper) => keeper.xdp_socket(),
            None => self.another_unbound(),
        };
        // While a killed server has a socket of a hardware queue, the next one cannot have it.
        kept.map_or_else(another, Ok).map(close_early)
    }

    /// Makes a socket that is not bound, with this thread's rights.
    fn another_unbound(&self) -> io::Result<OwnedFd> {
        socket::unbound_socket(self.properties.binding.index, self.properties.busy_poll)
    }
}

/// Other threads use the program between two changes of its maps.
impl ProgramMaps for &SharedInterface {
    fn add(&mut self, filter: &Filter) -> Result<(), FilterError> {
        self.attached_program().add(filter)
    }

    fn remove(&mut self, filter: &Filter) {
        self.attached_program().remove(filter);
    }
}
