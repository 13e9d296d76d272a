//! A TAP interface: the kernel's network stack at the other end of a descriptor.
//!
//! One system call moves one packet. The driver receives directly into a pool buffer, with the
//! virtio-net header in its headroom, and transmits directly from the data spaces. With offloads
//! the kernel and the driver exchange TCP packets of up to 64 KiB whole, and neither side computes
//! a checksum in between.
//!
//! The descriptor is the interface: when the last descriptor is closed, an interface that is not
//! persistent vanishes with its addresses and routes. So the driver never closes and reopens it.
//! Packets that a server has read and not delivered outlive it, too (`hand`).

mod hand;
mod open;
mod queue;

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use towpath_netlink::{LinkWatch, Netlink, Sent, Watched};

use crate::{
    Capabilities, Device, DeviceError, DeviceQueue, EarlierObjects, Event, Info, LARGE_FRAME_BYTES,
    Limits, POOL_HEADROOM_BYTES, Spaces, longest_frame,
};

use hand::{LeftFile, PacketsInHand};
use queue::TapQueue;

pub use open::TapError;

/// The interface, and the driver's requests for it.
#[derive(Clone, Debug)]
pub struct Options {
    /// The interface's name. The driver takes an existing interface, and creates a missing one.
    /// With `tap%d` the kernel chooses a number.
    pub name: String,
    /// `true` to request large packets and partial checksums. If the kernel refuses them, the
    /// driver works without.
    pub offloads: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options { name: "tap%d".to_owned(), offloads: true }
    }
}

/// The driver.
pub struct TapDevice {
    info: Info,
    /// The open queue has the same descriptor.
    fd: Arc<OwnedFd>,
    /// The state of the interface, as the kernel multicasts it; `None` where the kernel sends none,
    /// and the link counts as up.
    watch: Option<LinkWatch>,
    /// The last name and the last state of the link that the driver reported.
    name: String,
    link_up: bool,
    /// A change of the link, to be reported after a change of the name.
    link_change: Option<bool>,
    /// The ledger of the packets in hand.
    ledger: OwnedFd,
    /// What an earlier server had in hand, for the first queue.
    left: VecDeque<Vec<u8>>,
    /// The file of these packets.
    left_file: Option<OwnedFd>,
    /// Packets of the earlier server that the driver dropped.
    left_dropped: u64,
}

impl TapDevice {
    /// Creates an interface, or takes a persistent one that no process has open.
    ///
    /// This neither brings the interface up nor sets its address.
    ///
    /// # Errors
    /// See [`TapError`].
    pub fn open(options: &Options) -> Result<TapDevice, TapError> {
        Self::new(open::create(&options.name)?, options.offloads)
    }

    /// Takes over an open descriptor of a TAP, which an earlier driver returned from
    /// [`TapDevice::as_fd`]. The interface must be in this thread's network namespace.
    ///
    /// # Errors
    /// See [`TapError`]; [`TapError::BadDescriptor`] for anything but a TAP with `IFF_NO_PI` and
    /// `IFF_VNET_HDR`.
    pub fn from_fd(fd: OwnedFd, offloads: bool) -> Result<TapDevice, TapError> {
        open::adopt(&fd)?;
        Self::new(fd, offloads)
    }

    /// Returns the interface's present name, which an administrator may change at any time.
    ///
    /// ```no_run
    /// use towpath_device::tap::{Options, TapDevice};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let tap = TapDevice::open(&Options { name: "tap0".to_owned(), offloads: true })?;
    /// // ip link set tap0 name lan0
    /// assert_eq!(tap.present_name()?, "lan0");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// If the interface is gone.
    pub fn present_name(&self) -> io::Result<String> {
        open::name(&self.fd)
    }

    fn new(fd: OwnedFd, offloads: bool) -> Result<TapDevice, TapError> {
        let interface = open::describe(&fd)?;
        let refused = |what| {
            let name = interface.name.clone();
            move |cause: io::Error| TapError::Refused { name, what, cause }
        };
        open::set_header(fd.as_fd()).map_err(refused("TUNSETVNETHDRSZ"))?;
        let granted = open::set_offloads(fd.as_fd(), offloads).map_err(refused("TUNSETOFFLOAD"))?;
        let ledger = PacketsInHand::file().map_err(refused("memory for its ledger"))?;
        let longest =
            if granted { LARGE_FRAME_BYTES } else { longest_frame(interface.mtu.max(1500)) };
        let info = Info {
            name: interface.name,
            mac: interface.mac,
            mtu: interface.mtu,
            can: Capabilities {
                tx_in_place: true,
                tx_checksum: offloads,
                tx_segmentation: offloads,
                tx_segmentation_ecn: offloads,
                rx_offload: granted,
                ..Capabilities::default()
            },
            // At least one byte more than the longest packet, so that the driver notices a longer
            // one.
            queues: 1,
            limits: Limits {
                rx_headroom_bytes: POOL_HEADROOM_BYTES,
                ..Limits::new((POOL_HEADROOM_BYTES + longest + 1).next_multiple_of(256))
            },
            rx_queue_packets: interface.queue_packets.unwrap_or(0),
        };
        let watch = interface.index.and_then(|index| LinkWatch::new(index).ok());
        Ok(TapDevice {
            name: info.name.clone(),
            info,
            fd: Arc::new(fd),
            watch,
            link_up: true,
            link_change: None,
            ledger,
            left: VecDeque::new(),
            left_file: None,
            left_dropped: 0,
        })
    }

    /// Receives what an earlier server of this interface had in hand, as if it came first. After a
    /// crash or a hang, drops it and counts it, because a packet may be the cause.
    ///
    /// # Errors
    /// If the earlier server's memory cannot be read.
    pub fn receive_left(&mut self, earlier: &EarlierObjects) -> io::Result<()> {
        let left = hand::left(earlier, sent(&self.fd))?;
        let count = left.len();
        if !earlier.is_after_crash() {
            self.left.extend(left.into_iter().flatten());
        }
        self.left_dropped += (count - self.left.len()) as u64;
        if !self.left.is_empty() {
            self.left_file = Some(LeftFile::file(&self.left)?);
        }
        Ok(())
    }
}

/// Returns the kernel's count of the packets that were read from an interface. `None` if the kernel does not
/// say.
fn sent(tap: &OwnedFd) -> Option<Sent> {
    let name = open::name(tap).ok()?;
    Netlink::open().and_then(|mut netlink| netlink.sent(&name)).ok()
}

impl Device for TapDevice {
    fn info(&self) -> &Info {
        &self.info
    }

    /// Opens the queue. After it is dropped, the queue can be opened again.
    fn open_queue(
        &mut self,
        index: usize,
        _: &mut Spaces,
    ) -> Result<Box<dyn DeviceQueue>, DeviceError> {
        let is_open = Arc::strong_count(&self.fd) > 1;
        if index != 0 || is_open {
            return Err(DeviceError::no_queue(&self.info.name, index == 0));
        }
        let failed = |cause: io::Error| self.info.failed("its ledger")(cause);
        let ledger = self.ledger.try_clone().map_err(failed)?;
        let hand = PacketsInHand::new(ledger, sent(&self.fd)).map_err(failed)?;
        let mut queue = TapQueue::new(self.info.clone(), self.fd.clone(), hand)?;
        if let Some(file) = self.left_file.as_ref().filter(|_| !self.left.is_empty()) {
            let file = file.try_clone().map_err(failed)?;
            queue.left_file = Some(LeftFile::new(file, &self.left).map_err(failed)?);
        }
        queue.left = std::mem::take(&mut self.left);
        queue.counters.rx_dropped += std::mem::take(&mut self.left_dropped);
        Ok(Box::new(queue))
    }

    fn keeps_memory(&self) -> bool {
        true
    }

    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        self.watch.as_ref().map(AsFd::as_fd)
    }

    /// Returns a change of the name or the link. The link is up while the interface is set up and has a
    /// carrier, which a program may take away (`TUNSETCARRIER`).
    fn take_event(&mut self) -> Option<Event> {
        if let Some(up) = self.link_change.take() {
            return Some(Event::Link { up });
        }
        let (name, up) = match self.watch.as_mut()?.latest()? {
            Watched::Here(link) => (Some(link.name), link.up && link.carrier),
            // In another namespace, the kernel refuses packets while the interface is down.
            Watched::Gone => (None, true),
        };
        self.link_change = (std::mem::replace(&mut self.link_up, up) != up).then_some(up);
        match name.filter(|name| *name != self.name) {
            Some(name) => {
                self.name.clone_from(&name);
                Some(Event::Name(name))
            }
            None => self.link_change.take().map(|up| Event::Link { up }),
        }
    }

    fn objects(&self) -> Vec<(&'static str, BorrowedFd<'_>)> {
        let tap = [("device-tap", self.fd.as_fd())];
        let left = self.left_file.iter().map(|file| (hand::LEFT, file.as_fd()));
        // The ledger comes after the file of the packets that are left: the next server begins with the last
        // server that has a ledger.
        tap.into_iter().chain(left).chain([(hand::LEDGER, self.ledger.as_fd())]).collect()
    }
}

impl AsFd for TapDevice {
    /// Returns the interface's descriptor, of which another process may hold a duplicate.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
