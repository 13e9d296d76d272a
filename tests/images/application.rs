//! The application of a memory image: a program of the version whose image is made, see `capture`.
//!
//! It attaches and opens endpoints. At each line of its input, it sends a packet that no server takes,
//! and says so. It never receives.

use std::io::BufRead;
use std::net::Ipv4Addr;

use towpath_client::{Options, Rule, Session};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let socket = std::env::args_os().nth(1).ok_or("no socket")?;
    let options = Options {
        name: "image".into(),
        queue_pairs: 2,
        endpoints: 4,
        transmit_slots: 8,
        receive_slots: 8,
        transmit_buffer_bytes: 512,
        receive_buffer_bytes: 512,
        ..Options::default()
    };
    let mut session = Session::attach(socket, &options)?;
    let sender = session.open(&Rule::new().udp(1000))?;
    session.open(&Rule::new().tcp(2000).queue_pair(1))?;
    let own = session.info().mac;
    let (ip, _) = session.info().ipv4.ok_or("no address")?;
    let mac = own.map(|byte| format!("{byte:02x}")).join(":");
    println!("{ip} {mac}");
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        session.send_bytes(sender, &datagram(own, ip, line.as_bytes()))?;
        let _ = session.flush_now();
        println!("sent {line}");
    }
    Ok(())
}

/// Returns a broadcast from port 1000 to port 7: for the far end of any device.
fn datagram(mac: [u8; 6], ip: Ipv4Addr, payload: &[u8]) -> Vec<u8> {
    let length = |headers: usize| ((headers + payload.len()) as u16).to_be_bytes();
    let mut header = vec![0x45, 0];
    header.extend(length(28));
    // No fragments, 64 hops, UDP.
    header.extend([0, 0, 0x40, 0, 64, 17, 0, 0]);
    header.extend(ip.octets());
    header.extend([255; 4]);
    let words = header.chunks(2).map(|two| u32::from(u16::from_be_bytes([two[0], two[1]])));
    let sum: u32 = words.sum();
    let checksum = !((sum & 0xffff) + (sum >> 16)) as u16;
    header[10..12].copy_from_slice(&checksum.to_be_bytes());
    // Without a checksum of UDP (RFC 768).
    let udp = [&1000u16.to_be_bytes()[..], &7u16.to_be_bytes(), &length(8), &[0, 0]].concat();
    [&[0xff; 6][..], &mac, &[0x08, 0x00], &header, &udp, payload].concat()
}
