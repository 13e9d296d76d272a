//! A host that receives any frames, one after the other, while time passes: never a panic, its
//! tables stay within their limits, it becomes idle, and its own frames are well-formed.
//!
//! The input is a conversation: per frame a byte of flags, the time to wait before it (tenths of a
//! second), its length (two bytes), its bytes. To reach deeper states, one flag corrects the
//! frame's checksums, and another makes the frame an answer to the last TCP segment sent.
#![no_main]

use std::net::SocketAddr;
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use towpath_packet::checksum::{Sum, Verdict, verify};
use towpath_packet::transport::tcp_flags::{FIN, SYN};
use towpath_packet::{Headers, Network, Transport};
use towpath_stack::{
    Checksum, Config, Instant, Limits, Meta, SocketId, Stack, TcpConfig, TcpId, Transmit,
};

const MEND: u8 = 1;
const ANSWER: u8 = 2;
const VERIFIED: u8 = 4;
const APPLICATION: u8 = 8;
const CLOSE: u8 = 16;

/// The maximum number of frames in a conversation, and of polls after each.
const MAX_FRAMES: usize = 32;
const MAX_POLLS: usize = 64;

/// The fields of an answer to the last sent TCP segment: ports, sequence, acknowledgement.
#[derive(Clone, Copy)]
struct Last {
    ports: [u8; 4],
    sequence: [u8; 4],
    acknowledgement: [u8; 4],
}

/// Checks every frame that the host sends.
#[derive(Default)]
struct Wire {
    last: Option<Last>,
}

impl Transmit for Wire {
    fn room(&mut self, _: usize) -> bool {
        true
    }

    fn transmit(&mut self, len: usize, meta: Meta, fill: impl FnOnce(&mut [u8])) -> bool {
        let mut frame = vec![0xee; len];
        fill(&mut frame);
        // The link offers no offload.
        assert_eq!(meta, Meta::default());
        let headers = Headers::parse(&frame, len).expect("a whole header");
        assert_eq!(headers.malformed, None, "{frame:x?}");
        let verdict = verify(&frame, &headers);
        assert!(matches!(verdict, Verdict::Right | Verdict::NotCovered), "{verdict:?} {frame:x?}");
        if let (Transport::Tcp { flags, header_bytes, .. }, Some(l4), Some(end)) =
            (headers.transport(), headers.l4_offset(), headers.ip_end())
        {
            let tcp = &frame[l4..end];
            let four = |at: usize| [tcp[at], tcp[at + 1], tcp[at + 2], tcp[at + 3]];
            let ends = u32::from(flags & SYN != 0) + u32::from(flags & FIN != 0);
            let payload = (tcp.len() - usize::from(header_bytes)) as u32 + ends;
            let next = u32::from_be_bytes(four(4)).wrapping_add(payload);
            self.last = Some(Last {
                ports: [tcp[2], tcp[3], tcp[0], tcp[1]],
                sequence: four(8),
                acknowledgement: next.to_be_bytes(),
            });
        }
        true
    }
}

/// Makes the frame an answer to the last TCP segment, if the frame is TCP.
fn answer(frame: &mut [u8], last: Last) {
    let Ok(headers) = Headers::parse(frame, frame.len()) else { return };
    let (Transport::Tcp { .. }, Some(l4)) = (headers.transport(), headers.l4_offset()) else {
        return;
    };
    frame[l4..l4 + 4].copy_from_slice(&last.ports);
    frame[l4 + 4..l4 + 8].copy_from_slice(&last.sequence);
    frame[l4 + 8..l4 + 12].copy_from_slice(&last.acknowledgement);
}

/// Writes right checksums into the frame.
fn mend(frame: &mut [u8]) {
    let Ok(headers) = Headers::parse(frame, frame.len()) else { return };
    let (Some(l4), Some(end)) = (headers.l4_offset(), headers.ip_end()) else { return };
    let l3 = usize::from(headers.l3_offset);
    let (protocol, pseudo) = match &headers.network {
        Network::Ipv4(ip) => {
            frame[l3 + 10..l3 + 12].fill(0);
            let mut sum = Sum::default();
            sum.add(&frame[l3..l4]);
            frame[l3 + 10..l3 + 12].copy_from_slice(&sum.checksum().to_be_bytes());
            let len = (end - l4) as u16;
            (ip.protocol, Sum::pseudo4(ip.source, ip.destination, ip.protocol, len))
        }
        Network::Ipv6(ip) => {
            let len = (end - l4) as u32;
            (ip.protocol, Sum::pseudo6(ip.source, ip.destination, ip.protocol, len))
        }
        Network::Arp(_) | Network::Other => return,
    };
    let (offset, mut sum) = match protocol {
        1 => (2, Sum::default()),
        6 => (16, pseudo),
        17 => (6, pseudo),
        58 => (2, pseudo),
        _ => return,
    };
    let Some(transport) = frame.get_mut(l4..end) else { return };
    if transport.len() < offset + 2 {
        return;
    }
    transport[offset..offset + 2].fill(0);
    sum.add(transport);
    transport[offset..offset + 2].copy_from_slice(&sum.nonzero_checksum().to_be_bytes());
}

fn host(limits: Limits) -> Stack {
    let mut config = Config::new([2, 0, 0, 0, 0, 2]);
    config.ipv4 = Some(("192.0.2.2".parse().expect("an address"), 24));
    config.ipv6 = vec![("2001:db8::2".parse().expect("an address"), 64)];
    config.limits = limits;
    config.tcp =
        TcpConfig { receive_buffer_bytes: 8192, send_buffer_bytes: 8192, ..TcpConfig::default() };
    Stack::new(config, Instant::ZERO).expect("a good configuration")
}

/// Acts as an application that listens, reads, answers, and closes.
fn application(stack: &mut Stack, now: Instant, streams: &mut Vec<TcpId>, close: bool) {
    let mut buffer = [0; 512];
    for _ in 0..16 {
        let Some(socket) = stack.next_news() else { break };
        match socket {
            SocketId::Udp(id) => {
                if let Ok(received) = stack.udp_recv(id, &mut buffer, false) {
                    let _ = stack.udp_send(now, id, b"answer", Some(received.from));
                }
            }
            SocketId::Listener(id) => {
                if let Ok((id, _)) = stack.tcp_accept(id) {
                    streams.push(id);
                }
            }
            SocketId::Tcp(_) => {}
        }
    }
    for id in streams.iter() {
        let _ = stack.tcp_recv(now, *id, &mut buffer);
        let _ = stack.tcp_send(*id, &buffer);
        if close {
            let _ = stack.tcp_close(now, *id);
        }
    }
    if close {
        streams.clear();
    }
}

/// Polls until no work is left at this time.
fn settle(stack: &mut Stack, now: Instant, wire: &mut Wire) {
    let mut polls = 0;
    while stack.poll(now, wire) {
        polls += 1;
        assert!(polls < MAX_POLLS, "the stack does not become idle");
    }
}

fuzz_target!(|bytes: &[u8]| {
    let limits = Limits {
        connections: 8,
        half_open: 4,
        time_wait: 4,
        sockets: 8,
        neighbours: 8,
        pending_bytes: 2 * 2304,
        reassemblies: 2,
        reassembly_bytes: 128 << 10,
        udp_receive_bytes: 8192,
        transmit_bytes: 64 << 10,
        ..Limits::default()
    };
    let mut stack = host(limits);
    let mut wire = Wire::default();
    let mut now = Instant::ZERO;
    let address = |text: &str| -> SocketAddr { text.parse().expect("an address") };
    for local in ["0.0.0.0:2000", "[::]:2000"] {
        let _ = stack.udp_bind(address(local)).expect("a free port");
        let _ = stack.tcp_listen(address(local), 4).expect("a free port");
    }
    let mut streams = Vec::new();
    for remote in ["192.0.2.1:1000", "[2001:db8::1]:1000"] {
        streams.push(stack.tcp_connect(now, address(remote), None, None).expect("a route"));
    }
    settle(&mut stack, now, &mut wire);

    let mut rest = bytes;
    for _ in 0..MAX_FRAMES {
        let Some((&[flags, wait, high, low], after)) = rest.split_first_chunk::<4>() else { break };
        let len = usize::from(u16::from_be_bytes([high, low])).min(after.len());
        let (frame, after) = after.split_at(len);
        rest = after;
        now = Instant::from_micros(now.as_micros() + u64::from(wait) * 100_000);

        let mut frame = frame.to_vec();
        if let Some(last) = wire.last
            && flags & ANSWER != 0
        {
            answer(&mut frame, last);
        }
        if flags & MEND != 0 {
            mend(&mut frame);
        }
        let mut meta = Meta::default();
        if flags & VERIFIED != 0 {
            meta.checksum = Checksum::Verified;
        }
        stack.input(now, &frame, meta);
        if flags & (APPLICATION | CLOSE) != 0 {
            application(&mut stack, now, &mut streams, flags & CLOSE != 0);
        }
        settle(&mut stack, now, &mut wire);
        let (connections, time_wait) = stack.tcp_sizes();
        assert!(connections <= limits.connections && time_wait <= limits.time_wait);
        assert!(stack.neighbours() <= limits.neighbours);
        assert!(stack.reassembly_bytes() <= limits.reassembly_bytes);
    }
    // A day later everything that waited has timed out, with bounded work.
    for _ in 0..8 {
        now = Instant::from_micros(now.as_micros() + Duration::from_hours(3).as_micros() as u64);
        settle(&mut stack, now, &mut wire);
    }
});
