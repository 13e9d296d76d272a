//! `towpath measure`: compares the ways to serve an interface, on the interface itself.
//!
//! Each way in turn carries datagrams to a peer that sends them back. The kernel's own sockets are
//! the baseline of each round, so that other load on the machine touches all ways alike.
#![forbid(unsafe_code)]

mod exchange;
mod outcome;
mod served;

use std::net::SocketAddr;
use std::time::Duration;

use rustix::thread::CapabilitySet;
use towpath_netlink::Netlink;

use crate::failure::{Failure, print, says};
use crate::number::Number;
use crate::serve::confine::FOR_INTERFACES;
use crate::serve::values::InterfaceName;
use crate::signals::Signals;
use exchange::{Amounts, Measured, Socket, exchange};
use outcome::Outcomes;
use served::Served;

/// Text after the help.
pub(crate) const EXAMPLES: &str = "\
Each way attaches to the interface and detaches again, once per round. The driver of a physical
interface may stop its rings for a moment each time, and the traffic of other programs shares the
interface. The command therefore needs --disturb.

PEER is a host on the interface's network that sends each datagram back (RFC 862), for example
with the example program udp_echo, or with: socat UDP4-RECVFROM:7,fork EXEC:cat

Examples:
  towpath measure eth0 --peer 192.0.2.200:7 --disturb
  towpath measure eth0 --peer 192.0.2.200:7 --bytes 1400 --rounds 9 --disturb --json";

/// The ways to serve an interface, as values of `--device` with the interface's name between the
/// two texts.
const WAYS: [(&str, &str); 3] =
    [("xdp:", ",mode=native"), ("xdp:", ",mode=generic"), ("packet:", "")];

/// Options of `towpath measure`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The interface
    #[arg(value_name = "INTERFACE")]
    interface: InterfaceName,
    /// Address and UDP port of a host that sends each datagram back
    #[arg(long, value_name = "PEER")]
    peer: SocketAddr,
    /// Attach to the interface, which may disturb its other traffic
    #[arg(long)]
    disturb: bool,
    /// Bytes of a datagram, 16 to 1472
    #[arg(long, value_name = "BYTES", default_value = "64")]
    bytes: Number<16, 1472>,
    /// Datagrams in flight at a time, 1 to 1024
    #[arg(long, value_name = "DATAGRAMS", default_value = "32")]
    window: Number<1, 1024>,
    /// Milliseconds of traffic per way and round, 10 to 60000
    #[arg(long, value_name = "MS", default_value = "500")]
    time: Number<10, 60_000>,
    /// Rounds, 1 to 100; the result of each way is the median of its rounds
    #[arg(long, value_name = "ROUNDS", default_value = "5")]
    rounds: Number<1, 100>,
    /// Print the results as JSON
    #[arg(long)]
    json: bool,
}

/// Measures.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let name = args.interface.to_string();
    if !args.disturb {
        return Err(Failure::usage(format!(
            "measuring attaches to {name} several times, which may disturb its other traffic; give \
             --disturb to allow that"
        )));
    }
    check_rights()?;
    check_peer(&name, args.peer)?;
    let signals = Signals::block()
        .map_err(|error| Failure::new(format!("waiting for signals: {}", says(&error))))?;
    let amounts = Amounts {
        bytes: args.bytes.get(),
        window: args.window.get() as u64,
        time: Duration::from_millis(args.time.get() as u64),
    };
    let mut outcomes = Outcomes::new(amounts);
    // A peer that does not answer is found before anything is attached.
    let kernel = || kernel(args.peer, amounts);
    kernel()?;
    for _ in 0..args.rounds.get() {
        outcomes.add("kernel", Ok(kernel()?));
        for (kind, mode) in WAYS {
            if signals.take().is_some() {
                return Err(Failure::new(
                    "measuring was interrupted; nothing is attached any more",
                ));
            }
            let way = format!("{kind}{name}{mode}");
            if !outcomes.is_refused(&way) {
                let measured = serve(&way, args.peer, amounts);
                outcomes.add(&way, measured);
            }
        }
    }
    if !outcomes.has_ways() {
        return Err(Failure::new(outcomes.refusals()));
    }
    print(&if args.json { outcomes.to_json() } else { outcomes.to_text() })
}

/// Checks that this process may attach programs to an interface, as its servers do.
fn check_rights() -> Result<(), Failure> {
    let own = rustix::thread::capabilities(None)
        .map_or(CapabilitySet::empty(), |capabilities| capabilities.effective);
    // CAP_SYS_ADMIN includes CAP_BPF and CAP_PERFMON.
    let programs = CapabilitySet::BPF | CapabilitySet::PERFMON;
    let implied = if own.contains(CapabilitySet::SYS_ADMIN) { programs } else { own };
    if (own | implied).contains(FOR_INTERFACES) {
        return Ok(());
    }
    Err(Failure::unavailable(
        "measuring attaches programs to the interface, which this user may not do; run towpath \
         measure as root, or with CAP_NET_ADMIN, CAP_NET_RAW, CAP_BPF and CAP_PERFMON"
            .to_owned(),
    ))
}

/// Checks that the way to the peer leads over the interface.
fn check_peer(name: &str, peer: SocketAddr) -> Result<(), Failure> {
    let failed = |error: towpath_netlink::Error| Failure::new(error.to_string());
    let mut netlink = Netlink::open().map_err(failed)?;
    let index = netlink.index(name).map_err(|error| {
        Failure::new(format!("{error}; ip link shows the interfaces of this network namespace"))
    })?;
    let way = netlink.route_to(peer.ip(), None).map_err(failed)?;
    if way.is_none_or(|way| way.link != index) {
        return Err(Failure::new(format!(
            "the kernel's route to {} does not use {name}; choose a peer on the network of {name}",
            peer.ip()
        )));
    }
    Ok(())
}

/// Measures the kernel's sockets.
fn kernel(peer: SocketAddr, amounts: Amounts) -> Result<Measured, Failure> {
    let failed = |error: std::io::Error| {
        Failure::new(format!("opening a UDP socket to {peer}: {}", says(&error)))
    };
    let any = if peer.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = std::net::UdpSocket::bind(any).map_err(failed)?;
    socket.connect(peer).map_err(failed)?;
    exchange(&Socket::Kernel(socket), None, amounts)
        .map_err(|error| Failure::new(format!("{peer}, over the kernel's sockets: {error}")))
}

/// Measures an application of a server.
fn serve(way: &str, peer: SocketAddr, amounts: Amounts) -> Result<Measured, String> {
    let served = Served::start(way)?;
    let socket = served.socket(peer)?;
    let measured = exchange(&socket, Some(served.pid()), amounts);
    drop(socket);
    served.end()?;
    measured
}
