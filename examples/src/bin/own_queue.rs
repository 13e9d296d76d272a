//! Answers UDP datagrams to port 7 (RFC 862) over a hardware queue that the program has to itself.
//!
//! ```text
//! cargo run -p towpath-examples --bin own_queue -- /run/towpath/0000:00:03.0.sock
//! ```
//!
//! The device, or the kernel, puts received packets into this program's memory, so that the server
//! copies none. The administrator has to grant the queue (`own-queues`, docs/policy.md).
#![forbid(unsafe_code)]

use std::error::Error;
use std::ffi::OsString;
use std::process::ExitCode;

use towpath_net::{Network, UdpSocket};

fn main() -> ExitCode {
    let about = "Sends UDP datagrams to port 7 back, over a hardware queue of its own.";
    towpath_examples::run("own_queue SOCKET", about, serve)
}

fn serve([path]: [OsString; 1]) -> Result<(), Box<dyn Error>> {
    let network = Network::builder().own_queue(true).attach(path)?;
    let socket = UdpSocket::bind(&network, "0.0.0.0:7")?;
    println!("answering at {:?}, port 7", network.addresses());
    let mut datagram = vec![0; 65_535];
    loop {
        let (len, from) = socket.recv_from(&mut datagram)?;
        socket.send_to(&datagram[..len], from)?;
    }
}
