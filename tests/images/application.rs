//! The application of a memory image: a program of the version whose image is made, see `capture`.
//!
//! It attaches and opens endpoints. At each line of its input, it sends a packet that no server takes,
//! and says so. It never receives.

use std::io::BufRead;

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
        // Broadcast: the far end needs no address.
        let mut packet = [&[0xff; 6][..], &own, &[0x88, 0xb5], line.as_bytes()].concat();
        packet.resize(60, 0);
        session.send_bytes(sender, &packet)?;
        let _ = session.flush_now();
        println!("sent {line}");
    }
    Ok(())
}
