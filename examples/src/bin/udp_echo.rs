//! Sends every UDP datagram to port 7 back (RFC 862), from a private host.
//!
//! ```text
//! cargo run -p towpath-examples --bin udp_echo -- /run/towpath/tap0.sock
//! ```
//!
//! The host has its own MAC and IP addresses, which the server assigns, and its own network stack,
//! in this process. The host also answers pings. With a second argument, such as 7, only hosts of that
//! VLAN reach it.
#![forbid(unsafe_code)]

use std::error::Error;
use std::ffi::OsString;
use std::io::{self, ErrorKind};
use std::process::ExitCode;

use towpath_net::{Network, UdpSocket};

fn main() -> ExitCode {
    towpath_examples::run(
        "udp_echo SOCKET [VLAN]",
        "Sends every UDP datagram to port 7 back.\n\n\
         With VLAN, 1 to 4094, only hosts of that VLAN reach it. A server with --share-host has no VLANs.",
        serve,
    )
}

fn serve([path, vlan]: [OsString; 2]) -> Result<(), Box<dyn Error>> {
    let network = if vlan.is_empty() {
        Network::attach(path)?
    } else {
        let number = vlan.to_str().and_then(|vlan| vlan.parse().ok());
        let wrong = || format!("VLAN {}: give a number from 1 to 4094", vlan.display());
        Network::builder().vlan(number.ok_or_else(wrong)?).attach(path)?
    };
    // As on Linux, this socket takes IPv6 and IPv4.
    let socket = UdpSocket::bind(&network, "[::]:7")?;
    println!("answering at {:?}, port 7", network.addresses());
    Ok(echo(&socket)?)
}

fn echo(socket: &UdpSocket) -> io::Result<()> {
    let mut datagram = vec![0; 65_535];
    loop {
        let sent = socket
            .recv_from(&mut datagram)
            .and_then(|(len, from)| socket.send_to(&datagram[..len], from));
        // Only these errors are permanent: the server has gone for good, or the policy has taken the port away.
        if let Err(error) = sent
            && matches!(error.kind(), ErrorKind::NetworkDown | ErrorKind::PermissionDenied)
        {
            return Err(error);
        }
    }
}
