//! TCP between the kernel and a host over TAP, and between two hosts of one server, beside the
//! kernel's own over veth, and beside a loop that only reads from a TAP.
//!
//! The host is an application: its own stack over a session with a server in another process, which
//! serves a TAP device in a network namespace made for this. The kernel at the TAP's other side
//! talks to the host, and in turn, over a veth pair, to itself in a second namespace.

mod bare;

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use serde::{Deserialize, Serialize};
use towpath_device::tap::{Options, TapDevice};
use towpath_net::Network;
use towpath_netlink::Netlink;
use towpath_protocol::store::MemoryStore;
use towpath_server::{Config, Server, Subnet, Subnets};
use towpath_testkit::{End, Namespace, connect};

use crate::Settings;
use crate::child::{Child, OwnSocket, Role, tell, wait_for_end};
use crate::kernel_wire::read;
use crate::report::{Outcome, Row};
use crate::statistics::{in_turn, ratios};
use bare::PATIENCE;

/// The lower limits of the ratios.
const INWARD_TO_LOOP: f64 = 0.85;
const OUTWARD_TO_KERNEL: f64 = 1.3;
const BETWEEN_TO_KERNEL: f64 = 2.0;
/// The TAP, and the kernel's address there.
const TAP: &str = "tpbench0";
const KERNEL: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
/// Bytes of one write or read.
const WRITE_BYTES: usize = 128 * 1024;

/// Returns the name of the kernel's default congestion control, on which its throughput depends.
fn congestion_control() -> String {
    let name = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control");
    name.map_or_else(|_| "that".to_owned(), |name| name.trim().to_uppercase())
}

/// Serves a TAP device.
#[derive(Serialize, Deserialize)]
pub(crate) struct TapServer {
    /// The socket's path.
    pub(crate) socket: PathBuf,
}

impl Role for TapServer {
    const NAME: &'static str = "TapServer";

    fn directory(&self) -> Option<&Path> {
        self.socket.parent()
    }

    fn act(self) -> anyhow::Result<()> {
        serve(self.socket)
    }
}

/// Runs the server's process: makes a TAP, and serves it until its parent is gone.
fn serve(socket: PathBuf) -> anyhow::Result<()> {
    let device = TapDevice::open(&Options { name: TAP.into(), offloads: true })?;
    let mut netlink = Netlink::open()?;
    netlink.add_address(TAP, format!("{KERNEL}/24").parse()?)?;
    netlink.set_up(TAP)?;
    let config = Config {
        socket: Some(socket),
        subnets: Subnets { ipv4: Some(Subnet::new(KERNEL, 24)), ipv6: None },
        ..Config::default()
    };
    let server = Server::start(&config, Box::new(device), Box::<MemoryStore>::default())?;
    tell("ready")?;
    wait_for_end()?;
    Ok(server.stop()?)
}

/// Enters a new namespace. The caller calls it before the process has a second thread.
pub(crate) fn enter() -> anyhow::Result<()> {
    towpath_testkit::check_tun().map_err(towpath_testkit::Error::Unavailable)?;
    towpath_testkit::enter()?;
    Ok(())
}

pub(crate) fn measure(settings: Settings) -> anyhow::Result<Outcome> {
    let (here, there) = (Namespace::current()?, Namespace::create()?);
    let (near, far) = ("192.0.2.1/24".parse()?, "192.0.2.2/24".parse()?);
    connect(
        &End { namespace: &here, name: "tpbench1", addresses: &[near] },
        &End { namespace: &there, name: "tpbench2", addresses: &[far] },
        None,
    )?;
    let socket = OwnSocket::new()?;
    let _server = Child::start(&TapServer { socket: socket.path() })?;
    let network = Network::attach(socket.path())?;
    let ours = network.addresses().into_iter().find(|address| address.is_ipv4());
    let ours = ours.context("the host got no IPv4 address")?;
    let window = Duration::from_millis(if settings.quick { 250 } else { 1000 });

    let mut kernel_to_kernel = || {
        let listener = std::net::TcpListener::bind(("192.0.2.1", 0))?;
        let at = listener.local_addr()?;
        flow(
            window,
            || kernel_stream(listener.accept()?.0),
            || kernel_stream(there.run(|| std::net::TcpStream::connect(at))??),
        )
    };
    let mut to_application = || {
        let listener = towpath_net::TcpListener::bind(&network, SocketAddr::new(ours, 0))?;
        let at = listener.local_addr()?;
        flow(
            window,
            || own_stream(listener.accept()?.0),
            || kernel_stream(std::net::TcpStream::connect(at)?),
        )
    };
    let mut to_kernel = || {
        let listener = std::net::TcpListener::bind((KERNEL, 0))?;
        let at = listener.local_addr()?;
        flow(
            window,
            || kernel_stream(listener.accept()?.0),
            || own_stream(towpath_net::TcpStream::connect(&network, at)?),
        )
    };
    let other = Network::attach(socket.path())?;
    let mut between = || {
        let listener = towpath_net::TcpListener::bind(&network, SocketAddr::new(ours, 0))?;
        let at = listener.local_addr()?;
        flow(
            window,
            || own_stream(listener.accept()?.0),
            || own_stream(towpath_net::TcpStream::connect(&other, at)?),
        )
    };
    let bare = bare::Loop::start()?;
    let mut measured = in_turn(
        settings.pairs(),
        &mut [
            &mut to_application,
            &mut to_kernel,
            &mut between,
            &mut || into_loop(window, &bare),
            &mut kernel_to_kernel,
        ],
    )?
    .into_iter();
    let mut next = || measured.next().unwrap_or_default();
    Ok(Values { inward: next(), outward: next(), between: next(), looped: next(), kernel: next() }
        .outcome())
}

/// Gigabits per second of each flow, in the same rounds.
struct Values {
    inward: Vec<f64>,
    outward: Vec<f64>,
    between: Vec<f64>,
    looped: Vec<f64>,
    kernel: Vec<f64>,
}

impl Values {
    fn outcome(&self) -> Outcome {
        let parameters = [("mtu_bytes", 1500.0)];
        let row = |name, unit, values: &[f64]| Row::new(name, &parameters, unit, values);
        let ratio = |name, ours: &[f64], base: &[f64]| row(name, "ratio", &ratios(ours, base));
        Outcome {
            how: format!(
                "one TCP flow, 1 500 bytes of MTU, checksum and segmentation offload on both \
                 sides; server in a process of its own, its engine and the applications wait as by \
                 default; the loop: the same TCP of the kernel sends to a loop that reads its packets \
                 from a TAP, copies each payload once and acknowledges it; nothing pinned; \
                 congestion control: {} of the kernel's, as by default here, CUBIC of Towpath's",
                congestion_control()
            ),
            rows: vec![
                ratio("kernel to application, to the loop", &self.inward, &self.looped)
                    .at_least(INWARD_TO_LOOP),
                ratio("kernel to application, to kernel to kernel", &self.inward, &self.kernel),
                ratio("application to kernel, to kernel to kernel", &self.outward, &self.kernel)
                    .at_least(OUTWARD_TO_KERNEL),
                ratio(
                    "application to application, to kernel to kernel",
                    &self.between,
                    &self.kernel,
                )
                .at_least(BETWEEN_TO_KERNEL),
            ],
            context: vec![
                row("kernel to application, over TAP", "Gbit/s", &self.inward),
                row("application to kernel, over TAP", "Gbit/s", &self.outward),
                row("application to application, one server", "Gbit/s", &self.between),
                row("kernel to the loop, over TAP", "Gbit/s", &self.looped),
                row("kernel to kernel, over veth", "Gbit/s", &self.kernel),
            ],
            ..Outcome::default()
        }
    }
}

/// Sends from the kernel to the loop for a time; returns gigabits received per second.
fn into_loop(window: Duration, bare: &bare::Loop) -> anyhow::Result<f64> {
    let before = bare.bytes();
    let mut stream = kernel_stream(std::net::TcpStream::connect(bare::Loop::address())?)?;
    let (data, start, mut sent) = (vec![7; WRITE_BYTES], Instant::now(), 0);
    while start.elapsed() < window {
        sent += stream.write(&data).context("sending to the loop")? as u64;
    }
    bare.wait_for(before + sent)?;
    Ok(sent as f64 * 8.0 / start.elapsed().as_secs_f64() / 1e9)
}

pub(crate) fn kernel_stream(stream: std::net::TcpStream) -> anyhow::Result<std::net::TcpStream> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(stream)
}

pub(crate) fn own_stream(stream: towpath_net::TcpStream) -> anyhow::Result<towpath_net::TcpStream> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(stream)
}

/// Sends through a connection for a time; returns gigabits received per second, from the first byte
/// to the last. All bytes sent must arrive.
pub(crate) fn flow<A: Write, B: Read>(
    window: Duration,
    accept: impl FnOnce() -> anyhow::Result<B>,
    connect: impl FnOnce() -> anyhow::Result<A> + Send,
) -> anyhow::Result<f64> {
    flow_in_blocks(WRITE_BYTES, window, accept, connect)
}

/// Sends as [`flow`] does, in writes of `block_bytes`.
pub(crate) fn flow_in_blocks<A: Write, B: Read>(
    block_bytes: usize,
    window: Duration,
    accept: impl FnOnce() -> anyhow::Result<B>,
    connect: impl FnOnce() -> anyhow::Result<A> + Send,
) -> anyhow::Result<f64> {
    thread::scope(|scope| {
        let sender = scope.spawn(move || -> anyhow::Result<u64> {
            let (mut stream, data) = (connect()?, vec![7; block_bytes]);
            let (start, mut sent) = (Instant::now(), 0);
            while start.elapsed() < window {
                sent += stream.write(&data).context("sending")? as u64;
            }
            Ok(sent)
        });
        let mut stream = accept().context("accepting")?;
        let (mut buffer, mut got) = (vec![0; block_bytes], 0);
        let mut start = None;
        loop {
            let len = read(&mut stream, &mut buffer).context("receiving")?;
            start.get_or_insert_with(Instant::now);
            if len == 0 {
                break;
            }
            got += len as u64;
        }
        let took = start.map_or(Duration::ZERO, |start| start.elapsed());
        let sent = sender.join().map_err(|_| anyhow::anyhow!("the sending thread failed"))??;
        ensure!(sent == got, "{sent} bytes sent, {got} received");
        Ok(got as f64 * 8.0 / took.as_secs_f64() / 1e9)
    })
}
