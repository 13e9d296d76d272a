//! Asserts that the stack's allocations, as the program's allocator counts them, keep the
//! configured limits.

use crate::simulation::{config, sum};
use towpath_stack::{Checksum, Instant, Meta, SocketError, Stack, UdpId};
use towpath_testkit::CountingAllocator;

const LIMIT: usize = 1 << 20;
const VERIFIED: Meta = Meta { checksum: Checksum::Verified, segmentation: None };

/// Makes a UDP datagram from 10.0.0.2, or a link-local address, to port 53 of node 0.
fn datagram(stack: &Stack, v6: bool, data: &[u8]) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
    let len = (8 + data.len()) as u16;
    if v6 {
        let ours = stack.addresses().find_map(|(address, _)| match address {
            std::net::IpAddr::V6(v6) => Some(v6.octets()),
            std::net::IpAddr::V4(_) => None,
        });
        frame.extend_from_slice(&[0x86, 0xdd, 0x60, 0, 0, 0]);
        frame.extend_from_slice(&len.to_be_bytes());
        frame.extend_from_slice(&[17, 64, 0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9]);
        frame.extend_from_slice(&ours.unwrap());
    } else {
        frame.extend_from_slice(&[8, 0, 0x45, 0]);
        frame.extend_from_slice(&(20 + len).to_be_bytes());
        frame.extend_from_slice(&[0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 2, 10, 0, 0, 1]);
        let value = !sum(&frame[14..34]);
        frame[24..26].copy_from_slice(&value.to_be_bytes());
    }
    frame.extend_from_slice(&[0x30, 0x39, 0, 53]);
    frame.extend_from_slice(&len.to_be_bytes());
    frame.extend_from_slice(&[0, 0]);
    frame.extend_from_slice(data);
    frame
}

fn drain(stack: &mut Stack, socket: UdpId, buffer: &mut [u8]) -> usize {
    let mut count = 0;
    loop {
        match stack.udp_recv(socket, buffer, false) {
            Ok(_) => count += 1,
            Err(error) => {
                assert_eq!(error, SocketError::WouldBlock);
                return count;
            }
        }
    }
}

#[test]
fn a_udp_sockets_limit_is_of_memory() {
    assert!(CountingAllocator::is_installed());
    for (v6, record_bytes) in [(false, 14), (true, 38)] {
        for len in [0, 1, 100, 1472, 60_000] {
            let mut config = config(0);
            config.limits.udp_receive_bytes = LIMIT;
            let mut stack = Stack::new(config, Instant::ZERO).unwrap();
            let bind = if v6 { "[::]:53" } else { "0.0.0.0:53" };
            let socket = stack.udp_bind(bind.parse().unwrap()).unwrap();
            let mut buffer = vec![0; 65_535];
            // The list of reported sockets allocates before the count starts.
            let first = datagram(&stack, v6, &[]);
            stack.input(Instant::ZERO, &first, VERIFIED);
            assert_eq!(drain(&mut stack, socket, &mut buffer), 1);
            let frame = datagram(&stack, v6, &vec![7; len]);
            let flood = |stack: &mut Stack| {
                let before = stack.udp_dropped(socket).unwrap();
                let mut held = 0;
                while stack.udp_dropped(socket).unwrap() < before + 1000 {
                    stack.input(Instant::ZERO, &frame, VERIFIED);
                    held += 1;
                }
                held - 1000
            };
            let (held, counted) = CountingAllocator::of_this_thread(|| flood(&mut stack));
            let of = format!("{held} datagrams of {len} bytes, {v6}: {counted:?}");
            assert_eq!(held, LIMIT / (record_bytes + len), "{of}");
            assert!(counted.live_bytes() <= LIMIT as i64, "{of}");
            assert!(counted.live_bytes() >= (held * (record_bytes + len)) as i64 - 4096, "{of}");
            // The next flood reuses the memory.
            assert_eq!(drain(&mut stack, socket, &mut buffer), held);
            let (again, counted) = CountingAllocator::of_this_thread(|| flood(&mut stack));
            assert_eq!((again, counted.calls()), (held, 0), "{of}");
            let ((), counted) = CountingAllocator::of_this_thread(|| {
                stack.udp_close(socket).unwrap();
            });
            assert!(counted.live_bytes() <= 4096 - (held * (record_bytes + len)) as i64, "{of}");
        }
    }
}
