//! A link on a TAP device, whose other side is the kernel's own stack. Each side leaves checksums
//! and segmentation to the other (`IFF_VNET_HDR`, linux/if_tun.h, linux/virtio_net.h).

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;

use towpath_net::{
    Armed, Checksum, Link, LinkError, LinkInfo, Meta, Offload, Segmentation, SegmentationKind,
};

const TUNSETIFF: libc::c_ulong = 0x4004_54ca;
const TUNSETOFFLOAD: libc::c_ulong = 0x4004_54d0;
const IFF_TAP: i16 = 2;
const IFF_NO_PI: i16 = 0x1000;
const IFF_VNET_HDR: i16 = 0x4000;
const HEADER: usize = 10;
const FRAME: usize = HEADER + 14 + 65_535 + 4;
const SLOTS: usize = 64;

struct Slot {
    bytes: Box<[u8]>,
    len: usize,
}

fn slots() -> Vec<Slot> {
    (0..SLOTS).map(|_| Slot { bytes: vec![0; FRAME].into(), len: 0 }).collect()
}

pub(crate) struct TapLink {
    file: File,
    info: LinkInfo,
    rx: Vec<Slot>,
    /// The number of buffers read, and of those passed to the network.
    rx_filled: usize,
    rx_given: usize,
    tx: Vec<Slot>,
    /// The number of buffers filled, and of those written.
    tx_filled: usize,
    tx_written: usize,
}

impl TapLink {
    /// Makes the interface. With `offload`, each side leaves checksums and segmentation to the
    /// other.
    pub(crate) fn new(name: &str, mtu: usize, offload: bool) -> io::Result<TapLink> {
        let mut options = OpenOptions::new();
        let file = options
            .read(true)
            .write(true)
            .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC)
            .open("/dev/net/tun")?;
        let mut request = [0u8; 40];
        request[..name.len()].copy_from_slice(name.as_bytes());
        request[16..18].copy_from_slice(&(IFF_TAP | IFF_NO_PI | IFF_VNET_HDR).to_ne_bytes());
        // SAFETY: the request is as large as struct ifreq, and the kernel reads and writes at most
        // that.
        if unsafe { libc::ioctl(file.as_raw_fd(), TUNSETIFF, request.as_mut_ptr()) } < 0 {
            return Err(io::Error::last_os_error());
        }
        // TUN_F_CSUM, TUN_F_TSO4, TUN_F_TSO6.
        let features: libc::c_ulong = if offload { 7 } else { 0 };
        // SAFETY: the argument is a number, not an address.
        if unsafe { libc::ioctl(file.as_raw_fd(), TUNSETOFFLOAD, features) } < 0 {
            return Err(io::Error::last_os_error());
        }
        let max_frame_bytes = 65_535 + 14;
        let offload = Offload { checksum: offload, tcp_segmentation: offload, max_frame_bytes };
        let info = LinkInfo { mac: [2, 0, 0, 0, 0x70, 2].into(), mtu, offload };
        Ok(TapLink {
            file,
            info,
            rx: slots(),
            rx_filled: 0,
            rx_given: 0,
            tx: slots(),
            tx_filled: 0,
            tx_written: 0,
        })
    }
}

fn meta(header: &[u8]) -> Meta {
    let half = |at: usize| u16::from_ne_bytes([header[at], header[at + 1]]);
    let checksum = match header[0] {
        flags if flags & 1 != 0 => Checksum::Partial { start: half(6), offset: half(8) },
        flags if flags & 2 != 0 => Checksum::Verified,
        _ => Checksum::Full,
    };
    let kind = match header[1] & 0x7f {
        1 => Some(SegmentationKind::Tcp4),
        4 => Some(SegmentationKind::Tcp6),
        _ => None,
    };
    let segmentation = kind.map(|kind| Segmentation {
        kind,
        segment_bytes: half(4),
        header_bytes: half(2),
        ecn: header[1] & 0x80 != 0,
    });
    Meta { checksum, segmentation }
}

fn header(meta: Meta) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    if let Checksum::Partial { start, offset } = meta.checksum {
        header[0] = 1;
        header[6..8].copy_from_slice(&start.to_ne_bytes());
        header[8..10].copy_from_slice(&offset.to_ne_bytes());
    }
    if let Some(segmentation) = meta.segmentation {
        header[1] = match segmentation.kind {
            SegmentationKind::Tcp4 => 1,
            SegmentationKind::Tcp6 => 4,
        };
        header[2..4].copy_from_slice(&segmentation.header_bytes.to_ne_bytes());
        header[4..6].copy_from_slice(&segmentation.segment_bytes.to_ne_bytes());
    }
    header
}

impl Link for TapLink {
    fn info(&self) -> LinkInfo {
        self.info
    }

    fn sleep_fd(&self) -> io::Result<OwnedFd> {
        Ok(self.file.try_clone()?.into())
    }

    fn prepare(&mut self) -> Result<(), LinkError> {
        if self.rx_given < self.rx_filled {
            return Ok(());
        }
        (self.rx_filled, self.rx_given) = (0, 0);
        while self.rx_filled < SLOTS {
            let slot = &mut self.rx[self.rx_filled];
            match self.file.read(&mut slot.bytes) {
                Ok(len) => slot.len = len,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error.into()),
            }
            self.rx_filled += 1;
        }
        Ok(())
    }

    fn receive(
        &mut self,
        budget: usize,
        take: &mut dyn FnMut(&[u8], Meta),
    ) -> Result<usize, LinkError> {
        let count = budget.min(self.rx_filled - self.rx_given);
        for slot in &self.rx[self.rx_given..self.rx_given + count] {
            if slot.len > HEADER {
                take(&slot.bytes[HEADER..slot.len], meta(&slot.bytes));
            }
        }
        self.rx_given += count;
        Ok(count)
    }

    fn room(&mut self, len: usize) -> bool {
        self.tx_filled < SLOTS && len + HEADER <= FRAME
    }

    fn transmit(&mut self, len: usize, meta: Meta, fill: &mut dyn FnMut(&mut [u8])) -> bool {
        if !self.room(len) {
            return false;
        }
        let slot = &mut self.tx[self.tx_filled];
        slot.bytes[..HEADER].copy_from_slice(&header(meta));
        fill(&mut slot.bytes[HEADER..HEADER + len]);
        slot.len = HEADER + len;
        self.tx_filled += 1;
        true
    }

    fn flush(&mut self) -> Result<(), LinkError> {
        while self.tx_written < self.tx_filled {
            let slot = &self.tx[self.tx_written];
            match self.file.write(&slot.bytes[..slot.len]) {
                Ok(_) => self.tx_written += 1,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
        (self.tx_filled, self.tx_written) = (0, 0);
        Ok(())
    }

    fn arm(&mut self, blocked: bool) -> Result<Armed, LinkError> {
        // The descriptor of a TAP device is readable while frames wait: there is nothing to
        // request.
        if self.rx_given < self.rx_filled {
            return Ok(Armed::Work);
        }
        Ok(Armed::Sleep { writable: blocked || self.tx_written < self.tx_filled })
    }
}
