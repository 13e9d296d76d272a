//! The least that a receiver of TCP over a TAP can do: a loop that reads packets of up to 64 KiB,
//! copies the payload of each once, and acknowledges it. It knows one connection, keeps nothing,
//! and believes what it reads: only a kernel without losses can talk to it.

use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, ensure};
use rustix::event::{PollFd, PollFlags, Timespec};
use towpath_device::Device;
use towpath_device::tap::{Options, TapDevice};
use towpath_device::virtio::{HEADER_BYTES, header};
use towpath_netlink::Netlink;
use towpath_packet::Meta;
use towpath_packet::build::{Flow, Tcp};
use towpath_packet::transport::tcp_flags::{ACK, FIN, RST, SYN};

const NAME: &str = "tploop0";
/// The kernel's address on the TAP, and the loop's.
const KERNEL: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 1);
const LOOP: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 2);
const PORT: u16 = 7;
const MAC: [u8; 6] = [2, 0, 0, 0x78, 0, 2];
/// The largest packet that a TAP hands over, with Ethernet header.
const MOST: usize = 65_535 + 14;
/// Segment size of 1460, and a window shift of 10: a window of 64 MiB.
const SYN_OPTIONS: [u8; 8] = [2, 4, 0x05, 0xb4, 1, 3, 3, 10];
/// The time after which the loop looks whether it is to end.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

/// The longest time that a sender or a receiver waits, after which the run fails.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// The running loop.
pub(super) struct Loop {
    _device: TapDevice,
    end: Arc<AtomicBool>,
    got: Arc<AtomicU64>,
    thread: Option<JoinHandle<anyhow::Result<()>>>,
}

impl Loop {
    pub(super) fn start() -> anyhow::Result<Loop> {
        let device = TapDevice::open(&Options { name: NAME.into(), offloads: true })?;
        let mut netlink = Netlink::open()?;
        netlink.add_address(NAME, format!("{KERNEL}/24").parse()?)?;
        netlink.set_up(NAME)?;
        let fd = device.objects().into_iter().next().context("a TAP without a descriptor")?.1;
        let (fd, kernel_mac) = (fd.try_clone_to_owned()?, device.info().mac);
        let (end, got) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let thread = {
            let (end, got) = (end.clone(), got.clone());
            std::thread::spawn(move || run(&fd, kernel_mac, &end, &got))
        };
        Ok(Loop { _device: device, end, got, thread: Some(thread) })
    }

    /// The address to connect to.
    pub(super) fn address() -> SocketAddr {
        SocketAddr::new(LOOP.into(), PORT)
    }

    /// The number of payload bytes so far.
    pub(super) fn bytes(&self) -> u64 {
        self.got.load(Ordering::Relaxed)
    }

    /// Waits until the loop has received so many bytes.
    pub(super) fn wait_for(&self, bytes: u64) -> anyhow::Result<()> {
        let until = std::time::Instant::now() + PATIENCE;
        while self.bytes() < bytes {
            let is_running = self.thread.as_ref().is_some_and(|thread| !thread.is_finished());
            ensure!(
                is_running && std::time::Instant::now() < until,
                "the loop received too little"
            );
            std::thread::sleep(Duration::from_micros(200));
        }
        Ok(())
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        self.end.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn run(fd: &OwnedFd, kernel_mac: [u8; 6], end: &AtomicBool, got: &AtomicU64) -> anyhow::Result<()> {
    let (mut packet, mut copy) = (vec![0; HEADER_BYTES + MOST], vec![0; MOST]);
    while !end.load(Ordering::Relaxed) {
        match rustix::io::read(fd, &mut packet) {
            Ok(len) => {
                let frame = &packet[HEADER_BYTES.min(len)..len];
                if let Some(answer) = answer(frame, kernel_mac, &mut copy, got) {
                    let bytes = [&header(Meta::FULL)[..], &answer].concat();
                    rustix::io::write(fd, &bytes).context("writing to the TAP")?;
                }
            }
            Err(rustix::io::Errno::AGAIN) => {
                let mut wait = [PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN)];
                match rustix::event::poll(&mut wait, Some(&LOOK)) {
                    Ok(_) | Err(rustix::io::Errno::INTR) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            Err(error) => return Err(error).context("reading from the TAP"),
        }
    }
    Ok(())
}

fn be32(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0, |value, &byte| value << 8 | u32::from(byte))
}

/// Returns the answer to a frame, if it needs one; copies and counts its payload.
fn answer(frame: &[u8], kernel_mac: [u8; 6], copy: &mut [u8], got: &AtomicU64) -> Option<Vec<u8>> {
    let mut flow = Flow::v4().macs(MAC, kernel_mac).addresses(LOOP, KERNEL);
    if frame.get(12..14)? == [8, 6] {
        let asks = frame.get(20..22)? == [0, 1] && frame.get(38..42)? == LOOP.octets();
        return asks.then(|| flow.arp(2, MAC, LOOP, kernel_mac, KERNEL));
    }
    if frame.len() < 54 || frame[12..14] != [8, 0] || frame[23] != 6 {
        return None;
    }
    let tcp = &frame[34..];
    let payload = tcp.get(usize::from(tcp[12] >> 4) * 4..)?;
    flow = flow.ports(PORT, u16::from_be_bytes([tcp[0], tcp[1]]));
    let (sequence, flags) = (be32(&tcp[4..8]), tcp[13]);
    if flags & RST != 0 {
        return None;
    }
    let mut reply = Tcp { sequence: be32(&tcp[8..12]), flags: ACK, ..Tcp::default() };
    let ends = u32::from(flags & (SYN | FIN) != 0);
    reply.acknowledgement = sequence.wrapping_add(payload.len() as u32).wrapping_add(ends);
    if flags & SYN != 0 {
        reply = Tcp { sequence: 1, flags: SYN | ACK, options: &SYN_OPTIONS, ..reply };
    } else if flags & FIN != 0 {
        reply.flags |= FIN;
    } else if payload.is_empty() {
        return None;
    }
    let len = payload.len();
    copy[..len].copy_from_slice(payload);
    std::hint::black_box(&copy[..len]);
    got.fetch_add(len as u64, Ordering::Relaxed);
    Some(flow.tcp(&reply, &[]))
}
