//! What the control part and the queue share: sockets to bind, the memory, and the steering.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use towpath_memory::Mapping;

use super::groups::{GroupRing, PacketSocket};
use super::socket::{self, Binding, Umem, XdpSocket};
use super::steering::Steering;
use crate::dma::{Dma, DmaError};

/// Sockets for later resets, for a server that may not create any by then.
pub(super) const SPARE_RESETS: usize = 4;

/// The properties of a device that hold for as long as it is open.
#[derive(Clone, Copy, Debug)]
pub(super) struct Properties {
    pub(super) binding: Binding,
    /// The number of hardware queues.
    pub(super) queues: u32,
    /// The longest frame on the wire, in bytes.
    pub(super) frame_bytes: usize,
    pub(super) chunk_bytes: u32,
    /// `true` if packets may come with partial checksums, or merged.
    pub(super) may_be_partial: bool,
    pub(super) busy_poll: bool,
}

/// The shared part of a device.
pub(super) struct Shared {
    properties: Properties,
    pub(super) steering: Mutex<Steering>,
    /// The packet socket; `None` for a device that leaves the kernel no packet.
    packet_socket: Option<Arc<PacketSocket>>,
    /// Sockets that are not bound yet.
    unbound: Mutex<Vec<OwnedFd>>,
    umem: Mutex<Option<Umem>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    pub(super) fn new(
        properties: Properties,
        steering: Steering,
        packet_socket: Option<PacketSocket>,
        unbound: Vec<OwnedFd>,
    ) -> Shared {
        Shared {
            properties,
            steering: Mutex::new(steering),
            packet_socket: packet_socket.map(Arc::new),
            unbound: Mutex::new(unbound),
            umem: Mutex::new(None),
        }
    }

    pub(super) fn steering(&self) -> MutexGuard<'_, Steering> {
        lock(&self.steering)
    }

    pub(super) fn packet_socket(&self) -> Option<&PacketSocket> {
        self.packet_socket.as_deref()
    }

    pub(super) fn umem(&self) -> Option<Umem> {
        lock(&self.umem).clone()
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

    pub(super) fn group_ring(&self) -> io::Result<Option<GroupRing>> {
        self.packet_socket.clone().map(GroupRing::map).transpose()
    }

    /// Binds one socket per hardware queue to the registered memory, and lets packets in.
    pub(super) fn bind(&self) -> io::Result<Vec<XdpSocket>> {
        let umem = self.umem().ok_or_else(|| io::Error::other("the device has no memory yet"))?;
        let Properties { binding, queues, .. } = self.properties;
        let mut sockets = vec![XdpSocket::first(self.unbound()?, &umem, binding, 0)?];
        for queue in 1..queues {
            let first = sockets[0].fd.as_fd();
            let another = XdpSocket::another(self.unbound()?, first, binding.index, queue)?;
            sockets.push(another);
        }
        let steering = self.steering();
        for (queue, socket) in (0..).zip(&sockets) {
            steering.set_socket(queue, socket.fd.as_fd())?;
        }
        Ok(sockets)
    }

    /// Returns a socket that is not bound. Those from the start are in the interface's network
    /// namespace; this thread, which may be in another one, creates more only after these.
    fn unbound(&self) -> io::Result<OwnedFd> {
        let kept = lock(&self.unbound).pop();
        kept.map_or_else(|| socket::create(self.properties.busy_poll), Ok)
    }
}

/// The memory of an AF_XDP device is registered once, with its sockets (`XDP_UMEM_REG`). It cannot
/// grow, so the kernel reaches no memory of a session.
impl Dma for Shared {
    fn register(&self, memory: &Arc<Mapping>) -> Result<u64, DmaError> {
        let mut umem = lock(&self.umem);
        if umem.is_some() {
            let cause = io::Error::from_raw_os_error(libc::ENOSPC);
            return Err(DmaError { bytes: memory.len(), cause });
        }
        *umem = Some(Umem { memory: memory.clone(), chunk_bytes: self.properties.chunk_bytes });
        // The kernel's addresses count from the memory's beginning.
        Ok(0)
    }

    fn unregister(&self, _: u64) {
        *lock(&self.umem) = None;
    }
}
