//! An interface that the kernel and a server share: what the filter costs the kernel's own TCP,
//! what is left for it while applications send and receive, and how theirs compares.
//!
//! The interface is one end of a veth pair; the kernel's sockets at the other end, in a namespace
//! of its own, talk to the kernel's sockets and to an application at this end. The server runs in a
//! process of its own.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use anyhow::Context;
use serde::{Deserialize, Serialize};
use towpath_device::xdp::{self, XdpDevice};
use towpath_net::Network;
use towpath_protocol::store::MemoryStore;
use towpath_server::{Config, Server, Subnet, Subnets, WaitStrategy as EngineStrategy};
use towpath_testkit::{End, Namespace, connect, set_tcp_segmentation};

use crate::Settings;
use crate::child::{Child, OwnSocket, Role, tell, wait_for_end};
use crate::report::{Outcome, Row};
use crate::statistics::Pairs;
use crate::tcp::{flow, kernel_stream, own_stream};

/// The shared interface, and the kernel's addresses at both ends.
const INTERFACE: &str = "tpbench1";
const NEAR: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const FAR: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);
const BITS: u8 = 24;
/// A second pair, which takes no packets of several segments from the kernel.
const SEGMENTED: &str = "tpbench3";
const SEGMENTED_NEAR: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 1);
const SEGMENTED_FAR: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 2);
/// The addresses for applications.
const LEASES: (Ipv4Addr, Ipv4Addr) = (Ipv4Addr::new(192, 0, 2, 64), Ipv4Addr::new(192, 0, 2, 79));
/// The lower limits: of the kernel's stream while an application's runs, and of an application's
/// TCP to the kernel's. The kernel sends large packets, too, for the comparison.
const BESIDE_AT_LEAST: f64 = 0.4;
const RECEIVING_AT_LEAST: f64 = 0.9;
const SENDING_AT_LEAST: f64 = 1.0;

/// How the kernel runs the filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Mode {
    Generic,
    Native,
}

impl Mode {
    fn name(self) -> &'static str {
        match self {
            Mode::Generic => "generic",
            Mode::Native => "native",
        }
    }
}

fn attach(mode: Mode) -> anyhow::Result<XdpDevice> {
    let mode = match mode {
        Mode::Generic => xdp::Mode::Generic,
        Mode::Native => xdp::Mode::Native,
    };
    let options = xdp::Options { interface: INTERFACE.into(), mode, ..Default::default() };
    Ok(XdpDevice::open(&options)?)
}

/// Serves the shared interface.
#[derive(Serialize, Deserialize)]
pub(crate) struct SharedServer {
    /// The socket's path.
    pub(crate) socket: PathBuf,
    /// How the kernel runs the filter.
    pub(crate) mode: Mode,
}

impl Role for SharedServer {
    const NAME: &'static str = "SharedServer";

    fn directory(&self) -> Option<&Path> {
        self.socket.parent()
    }

    fn act(self) -> anyhow::Result<()> {
        serve(self.socket, self.mode)
    }
}

/// Runs the server's process, until its parent is gone.
fn serve(socket: PathBuf, mode: Mode) -> anyhow::Result<()> {
    let device = attach(mode)?;
    let subnet = Subnet { gateway: None, leases: Some(LEASES), ..Subnet::new(NEAR, BITS) };
    let config = Config {
        socket: Some(socket),
        settings: EngineStrategy::Block.into(),
        subnets: Subnets { ipv4: Some(subnet), ipv6: None },
        ..Config::default()
    };
    let server = Server::start(&config, Box::new(device), Box::<MemoryStore>::default())?;
    tell("ready")?;
    wait_for_end()?;
    Ok(server.stop()?)
}

pub(crate) fn measure(settings: Settings) -> anyhow::Result<Outcome> {
    let (here, there) = (Namespace::current()?, Namespace::create()?);
    let address = |ip: Ipv4Addr| format!("{ip}/{BITS}").parse();
    connect(
        &End { namespace: &here, name: INTERFACE, addresses: &[address(NEAR)?] },
        &End { namespace: &there, name: "tpbench2", addresses: &[address(FAR)?] },
        None,
    )?;
    // AF_XDP takes no packets for the kernel to segment. So the kernel sends such ones, too, over a
    // pair of their own.
    connect(
        &End { namespace: &here, name: SEGMENTED, addresses: &[address(SEGMENTED_NEAR)?] },
        &End { namespace: &there, name: "tpbench4", addresses: &[address(SEGMENTED_FAR)?] },
        None,
    )?;
    set_tcp_segmentation(SEGMENTED, false).context("turning segmentation offload off")?;
    let mut outcome = Outcome {
        how: "one TCP flow from or to the far end of a veth pair, beside one of an application \
              where the row says so; 1 500 bytes of MTU; server in a process of its own; engine and \
              application sleep when idle; nothing pinned"
            .into(),
        ..Outcome::default()
    };
    for mode in [Mode::Generic, Mode::Native] {
        one_mode(mode, settings, &there, &mut outcome)?;
    }
    Ok(outcome)
}

fn one_mode(
    mode: Mode,
    settings: Settings,
    there: &Namespace,
    outcome: &mut Outcome,
) -> anyhow::Result<()> {
    let window = Duration::from_millis(if settings.quick { 250 } else { 1000 });
    let kernel_receives = || kernel_receives(window, there);
    let kernel_sends = |to| kernel_sends(window, there, to);
    let with_filter = || {
        let _attached = attach(mode)?;
        kernel_receives()
    };
    let filter = Pairs::measure(settings.pairs(), with_filter, kernel_receives)?;

    let socket = OwnSocket::new()?;
    let _server = Child::start(&SharedServer { socket: socket.path(), mode })?;
    let network = Network::attach(socket.path())?;
    let ours = network.addresses().into_iter().find(IpAddr::is_ipv4);
    let ours = ours.context("the application got no IPv4 address")?;
    let application_receives = || {
        let listener = towpath_net::TcpListener::bind(&network, SocketAddr::new(ours, 0))?;
        let at = listener.local_addr()?;
        flow(
            window,
            || own_stream(listener.accept()?.0),
            || kernel_stream(there.run(|| TcpStream::connect(at))??),
        )
    };
    let application_sends = || {
        let listener = there.run(|| TcpListener::bind((FAR, 0)))??;
        let at = listener.local_addr()?;
        flow(
            window,
            || kernel_stream(listener.accept()?.0),
            || own_stream(towpath_net::TcpStream::connect(&network, at)?),
        )
    };
    let both = || {
        thread::scope(|scope| {
            let application = scope.spawn(application_receives);
            let kernel = kernel_receives();
            application
                .join()
                .map_err(|_| anyhow::anyhow!("the application's thread failed"))??;
            kernel
        })
    };
    let beside = Pairs::measure(settings.pairs(), both, kernel_receives)?;
    let receiving = Pairs::measure(settings.pairs(), application_receives, kernel_receives)?;
    let sending =
        Pairs::measure(settings.pairs(), application_sends, || kernel_sends(SEGMENTED_FAR))?;
    let whole = Pairs::measure(settings.pairs(), application_sends, || kernel_sends(FAR))?;

    add(mode, &Figures { filter, beside, receiving, sending, whole }, outcome);
    Ok(())
}

/// Carries a stream between the kernel's sockets, from the far end.
fn kernel_receives(window: Duration, there: &Namespace) -> anyhow::Result<f64> {
    let listener = TcpListener::bind((NEAR, 0))?;
    let at = listener.local_addr()?;
    flow(
        window,
        || kernel_stream(listener.accept()?.0),
        || kernel_stream(there.run(|| TcpStream::connect(at))??),
    )
}

/// Carries a stream between the kernel's sockets, to the far end.
fn kernel_sends(window: Duration, there: &Namespace, to: Ipv4Addr) -> anyhow::Result<f64> {
    let listener = there.run(|| TcpListener::bind((to, 0)))??;
    let at = listener.local_addr()?;
    flow(window, || kernel_stream(listener.accept()?.0), || kernel_stream(TcpStream::connect(at)?))
}

/// The rates of one mode.
struct Figures {
    filter: Pairs,
    beside: Pairs,
    receiving: Pairs,
    sending: Pairs,
    whole: Pairs,
}

/// Adds the rows of one mode.
fn add(mode: Mode, figures: &Figures, outcome: &mut Outcome) {
    let Figures { filter, beside, receiving, sending, whole } = figures;
    let row = |name: &str, unit: &str, values: &[f64]| {
        Row::new(&format!("{}: {name}", mode.name()), &[], unit, values)
    };
    outcome.rows.extend([
        row("kernel receives, filter idle, to no filter", "ratio", &filter.ratios()),
        row("kernel receives, beside an application, to alone", "ratio", &beside.ratios())
            .at_least(BESIDE_AT_LEAST),
        row("application receives, to the kernel", "ratio", &receiving.ratios())
            .at_least(RECEIVING_AT_LEAST),
        row("application sends, to the kernel in segments", "ratio", &sending.ratios()),
        row("application sends, to the kernel in large packets", "ratio", &whole.ratios())
            .at_least(SENDING_AT_LEAST),
    ]);
    outcome.context.extend([
        row("kernel receives, no filter", "Gbit/s", &filter.base),
        row("kernel receives, filter idle", "Gbit/s", &filter.ours),
        row("kernel receives, beside an application", "Gbit/s", &beside.ours),
        row("kernel receives, server idle", "Gbit/s", &receiving.base),
        row("application receives", "Gbit/s", &receiving.ours),
        row("kernel sends in segments", "Gbit/s", &sending.base),
        row("kernel sends in large packets", "Gbit/s", &whole.base),
        row("application sends", "Gbit/s", &sending.ours),
    ]);
}
