//! The AF_XDP socket of one hardware queue: its memory, its rings and its binding
//! (Documentation/networking/af_xdp.rst).
//!
//! To create a socket needs CAP_NET_RAW. To register memory, to map rings and to bind does not, so
//! a server that gave up its capabilities can still do that with a socket from before.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::xdp::{
    SocketAddrXdp, SocketAddrXdpFlags, SocketAddrXdpWithSharedUmem, XDP_PGOFF_RX_RING,
    XDP_PGOFF_TX_RING, XDP_UMEM_PGOFF_COMPLETION_RING, XDP_UMEM_PGOFF_FILL_RING, XdpOptionsFlags,
    XdpUmemReg, XdpUmemRegFlags,
};
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use towpath_memory::Mapping;

use super::ring::{Consumer, Descriptor, Producer};
use crate::TX_METADATA_BYTES;
use crate::kernel_interface::socket_option::{enlarge_send_buffer, set};

/// The number of descriptors in the rings of packets to send, and of sent ones.
pub(super) const TX_ENTRIES: u32 = 2048;
/// The number of descriptors in the rings of received packets, and of empty buffers. A ring has an entry for each
/// buffer that a socket can have, so the buffers limit a burst, and the kernel finds no ring full. An entry takes
/// 24 bytes in the two rings together.
pub(super) const RX_ENTRIES: u32 = 4096;
/// The number of descriptors in the ring of received packets of a server of an earlier version.
pub(super) const EARLIER_RX_ENTRIES: u32 = 2048;

/// `XDP_MAX_TX_SKB_BUDGET` (Linux 6.17): packets that one system call sends in copy mode; 32
/// before.
const XDP_MAX_TX_SKB_BUDGET: i32 = 9;
/// `SO_PREFER_BUSY_POLL` and `SO_BUSY_POLL_BUDGET` (Linux 5.11), which libc does not have.
const SO_PREFER_BUSY_POLL: i32 = 69;
const SO_BUSY_POLL_BUDGET: i32 = 70;
/// How long one system call polls the device, in microseconds, and how many packets it takes.
const BUSY_POLL_US: i32 = 20;
const BUSY_POLL_PACKETS: i32 = 64;

/// After a socket is closed, the kernel frees its hardware queue and its locked memory a moment
/// later. Until then it refuses another socket with EBUSY, and memory with ENOBUFS. The kernel needs its lock of
/// all interfaces for that: while it removed other network namespaces, two processors took up to 3.4 s, else
/// under one. A longer wait would approach the time after which a sleeping engine counts as hung.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(3);
const RELEASE_PAUSE: Duration = Duration::from_millis(1);

/// The time in which the kernel completes what it has taken to send, if it copies: it does so once the
/// interface, or the receiver at the other end of a veth, has freed its copy.
const SEND_TIMEOUT: Duration = Duration::from_millis(10);
const SEND_PAUSE: Duration = Duration::from_micros(100);

/// Whether the device reads and writes the registered memory itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CopyMode {
    /// The driver works without copies if it can, and else the kernel copies.
    #[default]
    Auto,
    /// The kernel copies each packet (`XDP_COPY`).
    Copy,
    /// The driver works without copies (`XDP_ZEROCOPY`), or the device does not open.
    ZeroCopy,
}

/// The component that completes checksums that applications leave partial.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TxChecksum {
    /// The engine, in software.
    #[default]
    Engine,
    /// The interface, as for the kernel's own packets, or the kernel for one that cannot
    /// (`XDP_TXMD_FLAGS_CHECKSUM`, Linux 6.8).
    Interface,
    /// The kernel, in software, for tests and against faults of an interface
    /// (`XDP_UMEM_TX_SW_CSUM`).
    Kernel,
}

/// How sockets bind.
#[derive(Clone, Copy, Debug)]
pub(super) struct Binding {
    pub(super) index: u32,
    pub(super) copying: CopyMode,
    /// `true` for packets that span several buffers (`XDP_USE_SG`, Linux 6.6).
    pub(super) spans: bool,
}

/// `XDP_UMEM_TX_SW_CSUM` (Linux 6.8) and `XDP_UMEM_TX_METADATA_LEN` (Linux 6.11), which rustix does
/// not have.
const XDP_UMEM_TX_SW_CSUM: u32 = 1 << 1;
const XDP_UMEM_TX_METADATA_LEN: u32 = 1 << 2;

/// The memory of all packets.
#[derive(Clone)]
pub(super) struct Umem {
    pub(super) memory: Arc<Mapping>,
    /// The distance from the start of one receive buffer to the start of the next, in bytes.
    pub(super) chunk_bytes: u32,
    pub(super) tx_checksum: TxChecksum,
    /// The number of receive buffers of a session, which are at the front. Nothing in such memory
    /// is aligned (`XDP_UMEM_UNALIGNED_CHUNK_FLAG`, Linux 5.4). `None` for the server's own memory,
    /// all of which consists of chunks.
    pub(super) own_buffers: Option<u32>,
}

impl Umem {
    /// Returns the number of chunks that may be receive buffers.
    pub(super) fn buffers(&self) -> u32 {
        self.own_buffers.unwrap_or((self.memory.len() / self.chunk_bytes as usize) as u32)
    }

    /// Returns the bytes that are registered.
    pub(super) fn bytes(&self) -> u64 {
        match self.own_buffers {
            None => u64::from(self.buffers()) * u64::from(self.chunk_bytes),
            Some(_) => self.memory.len() as u64,
        }
    }

    /// Registers the memory with a socket. Each packet to send then has metadata in front, unless
    /// the engine completes all checksums.
    pub(super) fn register(&self, socket: BorrowedFd<'_>) -> io::Result<()> {
        let (flags, tx_metadata_len) = match self.tx_checksum {
            TxChecksum::Engine => (0, 0),
            TxChecksum::Interface => (XDP_UMEM_TX_METADATA_LEN, TX_METADATA_BYTES as u32),
            TxChecksum::Kernel => {
                (XDP_UMEM_TX_METADATA_LEN | XDP_UMEM_TX_SW_CSUM, TX_METADATA_BYTES as u32)
            }
        };
        let unaligned = match self.own_buffers {
            None => XdpUmemRegFlags::empty(),
            Some(_) => XdpUmemRegFlags::XDP_UMEM_UNALIGNED_CHUNK_FLAG,
        };
        let registration = XdpUmemReg {
            addr: self.memory.start().as_ptr() as u64,
            len: self.bytes(),
            chunk_size: self.chunk_bytes,
            headroom: 0,
            flags: XdpUmemRegFlags::from_bits_retain(flags) | unaligned,
            tx_metadata_len,
        };
        when_released(|| sockopt::set_xdp_umem_reg(socket, registration))
    }
}

/// A bound socket with its rings.
pub(super) struct XdpSocket {
    /// The number of the hardware queue.
    pub(super) hardware: u32,
    pub(super) fd: Arc<OwnedFd>,
    pub(super) rx: Consumer<Descriptor>,
    pub(super) tx: Producer<Descriptor>,
    pub(super) fill: Producer<u64>,
    pub(super) completion: Consumer<u64>,
    pub(super) zero_copy: bool,
    /// The kernel's count of dropped packets, as last seen.
    pub(super) kernel_drops: u64,
    /// The receive buffers that it has.
    pub(super) held: u32,
    /// Receive buffers of dropped packets, which go back to the kernel with the packets' slots.
    pub(super) dropped: Vec<u32>,
}

/// A socket whose rings are mapped.
struct Mapped {
    fd: OwnedFd,
    rx: Consumer<Descriptor>,
    tx: Producer<Descriptor>,
    fill: Producer<u64>,
    completion: Consumer<u64>,
}

impl Mapped {
    fn with(self, hardware: u32, zero_copy: bool) -> XdpSocket {
        let Mapped { fd, rx, tx, fill, completion } = self;
        let (fd, kernel_drops, held) = (Arc::new(fd), 0, 0);
        let dropped = Vec::new();
        XdpSocket { hardware, fd, rx, tx, fill, completion, zero_copy, kernel_drops, held, dropped }
    }
}

/// Creates a socket that is not bound yet, with the options that need a capability: CAP_NET_RAW for
/// the socket, and CAP_NET_ADMIN for busy polling and for a large send buffer. It can be bound only to
/// the interface with this number, where the kernel enforces that (Linux 6.6).
///
/// # Errors
/// Fails with the error of a system call.
pub fn unbound_socket(index: u32, busy_poll: bool) -> io::Result<OwnedFd> {
    let fd =
        rustix::net::socket_with(AddressFamily::XDP, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
    // The number stays when the interface gets another name.
    set(fd.as_fd(), libc::SOL_SOCKET, libc::SO_BINDTOIFINDEX, &(index as libc::c_int))?;
    // Without CAP_NET_ADMIN the kernel grants what net.core.wmem_max allows, and more system calls
    // are needed.
    enlarge_send_buffer(fd.as_fd())?;
    if busy_poll {
        set(fd.as_fd(), libc::SOL_SOCKET, SO_PREFER_BUSY_POLL, &1i32)?;
        set(fd.as_fd(), libc::SOL_SOCKET, libc::SO_BUSY_POLL, &BUSY_POLL_US)?;
        set(fd.as_fd(), libc::SOL_SOCKET, SO_BUSY_POLL_BUDGET, &BUSY_POLL_PACKETS)?;
    }
    Ok(fd)
}

impl XdpSocket {
    /// Binds the first socket of a device to a hardware queue, and registers the memory.
    pub(super) fn first(
        fd: OwnedFd,
        umem: &Umem,
        binding: Binding,
        queue: u32,
    ) -> io::Result<XdpSocket> {
        umem.register(fd.as_fd())?;
        XdpSocket::with_rings(fd, queue, |fd| {
            let spans = if binding.spans {
                SocketAddrXdpFlags::XDP_USE_SG
            } else {
                SocketAddrXdpFlags::empty()
            };
            let flags = spans | SocketAddrXdpFlags::XDP_USE_NEED_WAKEUP;
            let address = |how| SocketAddrXdp::new(flags | how, binding.index, queue);
            let copy = SocketAddrXdpFlags::XDP_COPY;
            let zero_copy = SocketAddrXdpFlags::XDP_ZEROCOPY;
            match binding.copying {
                CopyMode::Copy => when_released(|| rustix::net::bind(fd, &address(copy))),
                CopyMode::ZeroCopy => when_released(|| rustix::net::bind(fd, &address(zero_copy)))
                    .map_err(|cause| match cause.raw_os_error() {
                        Some(libc::EOPNOTSUPP | libc::EINVAL) => {
                            io::Error::other("the driver has no zero-copy; leave zero-copy out")
                        }
                        _ => cause,
                    }),
                CopyMode::Auto => when_released(|| rustix::net::bind(fd, &address(zero_copy)))
                    .or_else(|_| when_released(|| rustix::net::bind(fd, &address(copy)))),
            }
        })
    }

    /// Binds another socket to a hardware queue. It shares memory and options with the first one.
    pub(super) fn another(
        fd: OwnedFd,
        first: BorrowedFd<'_>,
        index: u32,
        queue: u32,
    ) -> io::Result<XdpSocket> {
        XdpSocket::with_rings(fd, queue, |fd| {
            let addr = SocketAddrXdp::new(SocketAddrXdpFlags::XDP_SHARED_UMEM, index, queue);
            let address = SocketAddrXdpWithSharedUmem { addr, shared_umem_fd: first };
            when_released(|| rustix::net::bind(fd, &address))
        })
    }

    /// Goes on with the bound socket of a server that has ended. What that server had handed to the
    /// kernel, and the kernel had not taken to send, is not sent. `None` if the kernel does not
    /// complete the rest in time, or if it works without copies: then its memory is still in use.
    pub(super) fn of_earlier_server(fd: OwnedFd, hardware: u32) -> io::Result<Option<XdpSocket>> {
        let options = sockopt::xdp_options(&fd)?;
        if options.contains(XdpOptionsFlags::XDP_OPTIONS_ZEROCOPY) {
            return Ok(None);
        }
        let mut socket = XdpSocket::map_rings(fd)?.with(hardware, false);
        let deadline = Instant::now() + SEND_TIMEOUT;
        // The kernel drops a descriptor outside of its memory, one with each call.
        socket.tx.replace_waiting(Descriptor { address: u64::MAX, len: 1, options: 0 });
        while socket.tx.left() > 0 {
            match kick_tx(socket.fd.as_fd()) {
                Ok(()) | Err(Errno::AGAIN | Errno::BUSY | Errno::NOBUFS | Errno::INTR) => {}
                Err(_) => return Ok(None),
            }
            if Instant::now() >= deadline {
                return Ok(None);
            }
        }
        // The kernel completes each descriptor that it takes, wrong ones included; some kernels only
        // count the wrong ones.
        let taken = socket.tx.consumed();
        let wrong = sockopt::xdp_statistics(&socket.fd)?.tx_invalid_descs as u32;
        while socket.completion.take_all() != taken {
            if Instant::now() >= deadline {
                let is_complete = socket.completion.take_all().wrapping_add(wrong) == taken;
                return Ok(is_complete.then_some(socket));
            }
            std::thread::sleep(SEND_PAUSE);
        }
        Ok(Some(socket))
    }

    fn with_rings(
        fd: OwnedFd,
        hardware: u32,
        bind: impl FnOnce(BorrowedFd<'_>) -> io::Result<()>,
    ) -> io::Result<XdpSocket> {
        sockopt::set_xdp_umem_fill_ring_size(&fd, RX_ENTRIES)?;
        sockopt::set_xdp_umem_completion_ring_size(&fd, TX_ENTRIES)?;
        sockopt::set_xdp_rx_ring_size(&fd, RX_ENTRIES)?;
        sockopt::set_xdp_tx_ring_size(&fd, TX_ENTRIES)?;
        // Older kernels need a system call for each 32 packets.
        let _ = set(fd.as_fd(), libc::SOL_XDP, XDP_MAX_TX_SKB_BUDGET, &(TX_ENTRIES as i32));
        // Before Linux 6.4, the kernel maps no ring of a bound socket (`xsk_mmap` in
        // net/xdp/xsk.c).
        let mapped = XdpSocket::map_rings(fd)?;
        bind(mapped.fd.as_fd())?;
        let options = sockopt::xdp_options(&mapped.fd)?;
        Ok(mapped.with(hardware, options.contains(XdpOptionsFlags::XDP_OPTIONS_ZEROCOPY)))
    }

    fn map_rings(fd: OwnedFd) -> io::Result<Mapped> {
        let offsets = sockopt::xdp_mmap_offsets(&fd)?;
        let socket = fd.as_fd();
        let rx = Consumer::map(socket, XDP_PGOFF_RX_RING, offsets.rx, RX_ENTRIES)?;
        let tx = Producer::map(socket, XDP_PGOFF_TX_RING, offsets.tx, TX_ENTRIES)?;
        let fill = Producer::map(socket, XDP_UMEM_PGOFF_FILL_RING, offsets.fr, RX_ENTRIES)?;
        let completion =
            Consumer::map(socket, XDP_UMEM_PGOFF_COMPLETION_RING, offsets.cr, TX_ENTRIES)?;
        Ok(Mapped { fd, rx, tx, fill, completion })
    }
}

/// Makes the kernel process the transmit ring.
pub(super) fn kick_tx(fd: BorrowedFd<'_>) -> Result<(), Errno> {
    rustix::net::send(fd, &[], rustix::net::SendFlags::DONTWAIT).map(drop)
}

/// Repeats an attempt while the kernel still frees what an earlier socket held.
fn when_released(mut attempt: impl FnMut() -> Result<(), Errno>) -> io::Result<()> {
    let deadline = Instant::now() + RELEASE_TIMEOUT;
    loop {
        match attempt() {
            Err(Errno::BUSY | Errno::NOBUFS) if Instant::now() < deadline => {
                std::thread::sleep(RELEASE_PAUSE);
            }
            outcome => return Ok(outcome?),
        }
    }
}

#[cfg(test)]
mod tests {
    use towpath_memory::Region;
    use towpath_netlink::{Netlink, Veth};
    use towpath_packet::build::Flow;
    use towpath_testkit::{PacketSocket, isolated};

    use super::*;

    /// The kernel sends at most this many packets in one call.
    const BATCH: u32 = 32;
    /// Descriptors that the earlier server left, of which the kernel sent one batch.
    const LEFT: u32 = 3 * BATCH + 5;

    /// Makes memory of frames, each of which ends in its number. Returns also their length.
    fn frames(count: u32) -> (Umem, u32) {
        let mut region = Region::private(count as usize * 2048).unwrap();
        let frame = |number: u32| Flow::v4().udp(&number.to_le_bytes());
        for number in 0..count {
            assert!(region.copy_in(number as usize * 2048, &frame(number)));
        }
        let memory = region.mapping().clone();
        let (tx_checksum, own_buffers) = (TxChecksum::Engine, None);
        let umem = Umem { memory, chunk_bytes: 2048, tx_checksum, own_buffers };
        (umem, frame(0).len() as u32)
    }

    /// Appends the numbers of received frames to `got`, until there are `count` of them.
    fn receive(far: &PacketSocket, got: &mut Vec<u32>, count: u32) {
        let deadline = Instant::now() + Duration::from_secs(40);
        let mut bytes = [0; 2048];
        while got.len() < count as usize {
            assert!(Instant::now() < deadline, "{got:?}");
            let Some(len) = far.receive(&mut bytes).unwrap() else { continue };
            got.push(u32::from_le_bytes(bytes[len - 4..len].try_into().unwrap()));
        }
    }

    /// Goes on with the socket of an earlier server. The kernel may be slower than SEND_TIMEOUT on a
    /// busy machine. A server then opens another socket.
    fn go_on(fd: &OwnedFd) -> XdpSocket {
        let deadline = Instant::now() + Duration::from_secs(40);
        loop {
            assert!(Instant::now() < deadline, "the kernel does not complete what it took");
            let fd = fd.try_clone().unwrap();
            if let Some(socket) = XdpSocket::of_earlier_server(fd, 0).unwrap() {
                return socket;
            }
        }
    }

    /// The next server's own packets are sent, each once, and none that the earlier server left, whether
    /// or not the kernel had looked at its descriptor.
    #[test]
    fn what_an_earlier_server_left_to_send_is_not_sent() {
        isolated!(|| {
            let mut netlink = Netlink::open().unwrap();
            netlink.create_veth(&Veth::new("near", "far")).unwrap();
            netlink.set_up("near").unwrap();
            netlink.set_up("far").unwrap();
            let index = netlink.index("near").unwrap();
            let unbound = match unbound_socket(index, false) {
                Ok(socket) => socket,
                Err(error) => return println!("SKIP what_an_earlier_server_left: {error}"),
            };
            let far = PacketSocket::open("far", 0x0800).unwrap();
            let (umem, len) = frames(2 * LEFT);
            let binding = Binding { index, copying: CopyMode::Copy, spans: false };
            let mut socket = XdpSocket::first(unbound, &umem, binding, 0).unwrap();
            let _ = set(socket.fd.as_fd(), libc::SOL_XDP, XDP_MAX_TX_SKB_BUDGET, &(BATCH as i32));
            let descriptor =
                |number: u32| Descriptor { address: u64::from(number) * 2048, len, options: 0 };
            (0..LEFT).for_each(|number| socket.tx.push(descriptor(number)));
            socket.tx.publish();
            // Until both ends run, the kernel refuses packets.
            while socket.tx.left() == LEFT {
                let _ = kick_tx(socket.fd.as_fd());
            }
            let sent = LEFT - socket.tx.left();
            assert!(sent < LEFT, "the kernel sent more than a batch");
            let mut got = Vec::new();
            receive(&far, &mut got, sent);
            let fd = socket.fd.as_fd().try_clone_to_owned().unwrap();
            drop(socket);

            let mut next = go_on(&fd);
            assert_eq!((next.tx.left(), next.completion.available(1)), (0, 0));
            let mut completed = 0;
            for round in 0..3 {
                let first = LEFT + round * 20;
                (first..first + 20).for_each(|number| next.tx.push(descriptor(number)));
                next.tx.publish();
                while next.tx.left() > 0 {
                    let _ = kick_tx(next.fd.as_fd());
                }
                receive(&far, &mut got, sent + (round + 1) * 20);
                assert_eq!(got[sent as usize..], (LEFT..first + 20).collect::<Vec<_>>());
                let news = next.completion.available(TX_ENTRIES);
                next.completion.take(news);
                completed += news;
            }
            assert_eq!(completed, 60, "of its own packets alone");
            assert_eq!(far.receive(&mut [0; 2048]).unwrap(), None);
        });
    }
}
