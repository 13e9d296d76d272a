//! A minimal host on a device: it answers ARP, echo requests and one TCP connection at a time.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use towpath_device::{
    Armed, Device, DeviceError, DeviceQueue, Kick, Meta, Packet, Part, Received, Space, SpaceId,
    Spaces,
};
use towpath_memory::Region;
use towpath_packet::build::{Flow, Tcp};
use towpath_packet::checksum::{Verdict, complete, verify};
use towpath_packet::headers::{Headers, Network};
use towpath_packet::transport::{Transport, tcp_flags};

pub(crate) const MAC: [u8; 6] = [0x02, 0, 0, 0, 0, 0x77];

const FRAMES: u32 = 64;

/// The peer's record.
#[derive(Default, Debug)]
pub(crate) struct Seen {
    pub echo_requests: usize,
    /// Payload of the TCP connection, in order.
    pub stream: Vec<u8>,
    /// TCP packets with payload, and those of them that were not yet segmented.
    pub data_packets: usize,
    pub large_packets: usize,
    pub longest_packet: usize,
    pub wrong_checksums: usize,
    pub sleeps: usize,
}

/// A peer that runs on a device in a thread, until the test stops it or the device fails.
pub(crate) struct Peer {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<(Box<dyn DeviceQueue>, Seen, Option<DeviceError>)>,
}

impl Peer {
    /// Starts a peer. It sends `reply` over a TCP connection as soon as the connection is
    /// established, in packets of `chunk` bytes.
    pub(crate) fn start(
        device: Box<dyn Device>,
        address: Ipv4Addr,
        reply: Vec<u8>,
        chunk: usize,
    ) -> Peer {
        let stop = Arc::new(AtomicBool::new(false));
        let told = stop.clone();
        let thread = std::thread::spawn(move || {
            let mut host = Host::new(device, address, reply, chunk);
            let error = host.run(&told).err();
            (host.queue, host.seen, error)
        });
        Peer { stop, thread }
    }

    /// Stops the peer. Returns the queue, the peer's record, and the device's error if it failed.
    pub(crate) fn stop(self) -> (Box<dyn DeviceQueue>, Seen, Option<DeviceError>) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("the peer's thread")
    }

    pub(crate) fn wait(self) -> (Box<dyn DeviceQueue>, Seen, Option<DeviceError>) {
        self.thread.join().expect("the peer's thread")
    }
}

struct Host {
    queue: Box<dyn DeviceQueue>,
    spaces: Spaces,
    memory: SpaceId,
    frame_bytes: u32,
    address: Ipv4Addr,
    seen: Seen,
    reply: Vec<u8>,
    chunk: usize,
    /// The number of bytes of `reply` that the peer has sent.
    sent: usize,
    /// The next sequence number expected.
    expected: u32,
}

impl Host {
    fn new(mut device: Box<dyn Device>, address: Ipv4Addr, reply: Vec<u8>, chunk: usize) -> Host {
        let mut spaces = Spaces::default();
        let mut queue = device.open_queue(0, &mut spaces).expect("the queue opens");
        let frame_bytes = device.info().limits.rx_stride() as u32;
        // One buffer more than the peer provides: the peer sends replies from it.
        let region = Region::private(((FRAMES + 1) * frame_bytes) as usize).expect("memory");
        let memory = spaces.add(Space::writable(region));
        let frames: Vec<u32> = (0..FRAMES).map(|index| index * frame_bytes).collect();
        assert_eq!(queue.rx_fill(&spaces, memory, &frames), FRAMES as usize);
        let seen = Seen::default();
        queue.kick(&mut spaces, Kick::Rx).expect("the device lives");
        Host {
            queue,
            spaces,
            memory,
            frame_bytes,
            address,
            seen,
            reply,
            chunk,
            sent: 0,
            expected: 0,
        }
    }

    fn run(&mut self, stop: &AtomicBool) -> Result<(), DeviceError> {
        let mut received: Vec<Received> = Vec::new();
        while !stop.load(Ordering::Relaxed) {
            if self.queue.rx_poll(&mut self.spaces, &mut received, 32)? == 0
                && self.queue.arm(false)? == Armed::Sleep
            {
                self.seen.sleeps += 1;
                let fd = self.queue.sleep_fd().expect("a descriptor to sleep on");
                let mut fds = [rustix::event::PollFd::new(&fd, rustix::event::PollFlags::IN)];
                // The timeout is only for `stop`; frames wake the peer.
                let timeout = rustix::event::Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
                rustix::event::poll(&mut fds, Some(&timeout)).expect("poll");
            }
            for got in received.drain(..) {
                let mut frame = vec![0; got.len as usize];
                self.spaces.copy_out(got.space, got.offset, &mut frame).expect("inside");
                self.queue.rx_fill(&self.spaces, got.space, &[got.buffer]);
                self.queue.kick(&mut self.spaces, Kick::Rx)?;
                self.answer(&frame, got.meta)?;
            }
        }
        Ok(())
    }

    fn send(&mut self, frame: &[u8], meta: Meta) -> Result<(), DeviceError> {
        let offset = FRAMES * self.frame_bytes;
        self.spaces.copy_in(self.memory, offset, frame).expect("inside");
        let parts = [Part { space: self.memory, offset, len: frame.len() as u32 }];
        let packet = Packet { parts: &parts, meta, tag: None, token: 1 };
        let mut tokens = Vec::new();
        while self.queue.tx_submit(&mut self.spaces, &[packet])? == 0 {
            std::thread::yield_now();
        }
        self.queue.kick(&mut self.spaces, Kick::Tx)?;
        while self.queue.tx_complete(&mut tokens, 1)? == 0 {}
        Ok(())
    }

    fn answer(&mut self, frame: &[u8], meta: Meta) -> Result<(), DeviceError> {
        let Ok(headers) = Headers::parse(frame, frame.len()) else { return Ok(()) };
        match &headers.network {
            Network::Arp(arp) if arp.operation == 1 && arp.target_ip == self.address.to_bits() => {
                let flow = Flow::v4()
                    .macs(MAC, headers.source)
                    .addresses(self.address, Ipv4Addr::from_bits(arp.sender_ip));
                self.send(&flow.i_have(), Meta::FULL)
            }
            Network::Ipv4(ip) if ip.destination == self.address.to_bits() => {
                if !checksum_is_right(frame, &headers, meta) {
                    self.seen.wrong_checksums += 1;
                    return Ok(());
                }
                let flow = Flow::v4()
                    .macs(MAC, headers.source)
                    .addresses(self.address, Ipv4Addr::from_bits(ip.source));
                let l4 = &frame[usize::from(ip.l4_offset)..headers.ip_end().unwrap_or(0)];
                match ip.transport {
                    Transport::Icmp { kind: 8, id, .. } => {
                        self.seen.echo_requests += 1;
                        let sequence = u16::from_be_bytes([l4[6], l4[7]]);
                        self.send(&flow.echo(false, id, sequence, &l4[8..]), Meta::FULL)
                    }
                    Transport::Tcp { source, destination, flags, header_bytes } => {
                        let flow = flow.ports(destination, source);
                        let number = |at: usize| {
                            u32::from_be_bytes([l4[at], l4[at + 1], l4[at + 2], l4[at + 3]])
                        };
                        let payload = &l4[usize::from(header_bytes)..];
                        if !payload.is_empty() {
                            self.seen.data_packets += 1;
                            self.seen.large_packets += usize::from(meta.segmentation.is_some());
                            self.seen.longest_packet = self.seen.longest_packet.max(frame.len());
                        }
                        self.tcp(&flow, flags, number(4), payload)
                    }
                    _ => Ok(()),
                }
            }
            _ => Ok(()),
        }
    }

    /// Serves the connection: acknowledges bytes that come in order, and sends without
    /// retransmission, since no packet is lost between the kernel and a device.
    fn tcp(
        &mut self,
        flow: &Flow,
        flags: u8,
        sequence: u32,
        payload: &[u8],
    ) -> Result<(), DeviceError> {
        const FIRST: u32 = 1000;
        if flags & tcp_flags::SYN != 0 {
            self.expected = sequence.wrapping_add(1);
            self.sent = 0;
            let tcp = Tcp {
                sequence: FIRST,
                acknowledgement: self.expected,
                flags: tcp_flags::SYN | tcp_flags::ACK,
                window: 65535,
                // Maximum segment size 1460, no operation, window scale 8 (RFC 9293, 3.2; RFC
                // 7323, 2.2).
                options: &[2, 4, 5, 180, 1, 3, 3, 8],
            };
            return self.send(&flow.tcp(&tcp, &[]), Meta::FULL);
        }
        if sequence == self.expected {
            self.seen.stream.extend_from_slice(payload);
            let fin = u32::from(flags & tcp_flags::FIN != 0);
            self.expected = self.expected.wrapping_add(payload.len() as u32 + fin);
        }
        let mut tcp = Tcp {
            sequence: FIRST + 1 + self.sent as u32,
            acknowledgement: self.expected,
            flags: tcp_flags::ACK,
            window: 65535,
            options: &[],
        };
        while self.sent < self.reply.len() {
            let end = (self.sent + self.chunk).min(self.reply.len());
            let large = &self.reply[self.sent..end];
            tcp.sequence = FIRST + 1 + self.sent as u32;
            let (frame, meta) = if large.len() > 1460 {
                flow.tcp_large(&tcp, large, 1460)
            } else {
                flow.tcp_partial(&tcp, large)
            };
            self.sent = end;
            self.send(&frame, meta)?;
        }
        tcp.sequence = FIRST + 1 + self.sent as u32;
        if !payload.is_empty() || flags & tcp_flags::FIN != 0 {
            self.send(&flow.tcp(&tcp, &[]), Meta::FULL)?;
        }
        Ok(())
    }
}

/// Completes a partial checksum, and verifies it. Completes a large packet's checksum as that of
/// one whole packet, since its field holds the pseudo-header's sum with the whole length.
fn checksum_is_right(frame: &[u8], headers: &Headers, meta: Meta) -> bool {
    let mut frame = frame.to_vec();
    if let towpath_device::Checksum::Partial { start, offset } = meta.checksum
        && complete(&mut frame, start, offset).is_err()
    {
        return false;
    }
    verify(&frame, headers) == Verdict::Right
}
