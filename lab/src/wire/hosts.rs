//! The two hosts of the wire. Each is a network namespace with a TAP, whose address is the
//! kernel's; a Towpath network of this process may have another address beside it.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::Context;
use rustix::net::sockopt;
use towpath_device::Device;
use towpath_device::tap::{Options, TapDevice};
use towpath_net::{Config, CongestionControl, Network};
use towpath_netlink::Netlink;
use towpath_testkit::Namespace;

use super::path::Conditions;
use super::port::{Doorbell, Port, PortLink};
use super::wire_thread::{Side, StopOnDrop, WireReport, WireThread};
use crate::process::{Process, Serving, Wire, XdpMode};

/// The TCP at one end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Kernel,
    /// A network of this process, at the wire itself.
    Towpath,
    /// A network of this process behind a server in another one, which uses the kernel's TAP by
    /// AF_XDP.
    Server,
}

/// The time after which a read or a write without progress looks whether the run is over.
pub(super) const GLANCE: Duration = Duration::from_millis(20);
/// The time limit of a handshake.
const PATIENCE: Duration = Duration::from_secs(15);
/// The congestion control of both TCPs.
const CONGESTION_CONTROL: &str = "cubic";
/// The most that the kernel may buffer for a connection, and TCP's buffers in Towpath.
const KERNEL_BUFFER_BYTES: usize = 64 << 20;
const SMALLEST_BUFFER_BYTES: usize = 4 << 20;
const LARGEST_BUFFER_BYTES: usize = 64 << 20;

/// A sending end, which knows its congestion window.
pub(super) trait Sends: Write + Send {
    /// Returns the congestion window, in bytes.
    fn congestion_window(&self) -> std::io::Result<u64>;
}

impl Sends for std::net::TcpStream {
    fn congestion_window(&self) -> std::io::Result<u64> {
        towpath_testkit::congestion_window(self)
    }
}

impl Sends for towpath_net::TcpStream {
    fn congestion_window(&self) -> std::io::Result<u64> {
        Ok(self.info()?.congestion_window.into())
    }
}

/// The sending and the receiving end of a connection.
pub(super) type Sender = Box<dyn Sends>;
pub(super) type Receiver = Box<dyn Read + Send>;

struct Host {
    namespace: Namespace,
    device: TapDevice,
    name: String,
    kernel: Ipv4Addr,
    towpath: Ipv4Addr,
    /// The address of an application at a server.
    application: Ipv4Addr,
    mac: [u8; 6],
}

impl Host {
    /// Makes a host. Returns what could not be set, too.
    fn new(number: u8) -> anyhow::Result<(Host, Option<String>)> {
        let namespace = Namespace::create()?;
        let _ = namespace.silence();
        let kernel = Ipv4Addr::new(10, 79, 0, number);
        let towpath = Ipv4Addr::new(10, 79, 0, number + 10);
        let mut unset = None;
        for (setting, value) in [
            // A connection must not learn from the one before it.
            ("tcp_no_metrics_save", "1".to_owned()),
            ("tcp_rmem", format!("4096 131072 {KERNEL_BUFFER_BYTES}")),
            ("tcp_wmem", format!("4096 16384 {KERNEL_BUFFER_BYTES}")),
        ] {
            if let Err(error) = namespace.set(&format!("net.ipv4.{setting}"), &value) {
                unset = Some(format!(
                    "the kernel's TCP with large buffers and without memory of earlier \
                     connections: {error}; make /proc/sys writable"
                ));
            }
        }
        let name = format!("tpwire{number}");
        let open = || -> anyhow::Result<TapDevice> {
            let device = TapDevice::open(&Options { name: name.clone(), offloads: false })?;
            let mut netlink = Netlink::open()?;
            netlink.add_address(&name, format!("{kernel}/24").parse()?)?;
            netlink.set_up(&name)?;
            Ok(device)
        };
        let device = namespace.run(open)??;
        let mac = [2, 0, 0, 0, 0x79, number];
        let application = Ipv4Addr::new(10, 79, 0, number + 20);
        Ok((Host { namespace, device, name, kernel, towpath, application, mac }, unset))
    }

    fn tap(&self) -> anyhow::Result<BorrowedFd<'_>> {
        let objects = self.device.objects();
        Ok(objects.into_iter().next().context("a TAP without a descriptor")?.1)
    }

    /// Starts a network at a link, with buffers for the conditions.
    fn network(&self, link: PortLink, conditions: &Conditions) -> anyhow::Result<Network> {
        let mut config = Config::new(self.mac);
        config.ipv4 = Some((self.towpath, 24));
        config.ipv6_link_local = false;
        set_tcp(&mut config, buffer_bytes(conditions));
        Ok(Network::builder().on(Box::new(link), config)?)
    }

    /// Starts a server on the kernel's TAP. The kernel keeps the packets of its own address.
    fn server(&self) -> anyhow::Result<Process> {
        let wire = Wire::Xdp {
            name: self.name.clone(),
            mode: XdpMode::Generic,
            own: self.kernel,
            lease: self.application,
        };
        Process::start(&Serving { wire, ..Serving::tap(&self.name) }, Some(&self.namespace))
    }
}

/// Starts a network of an application at a server.
fn attached(server: &Process, conditions: &Conditions) -> anyhow::Result<Network> {
    let buffer = buffer_bytes(conditions);
    Ok(Network::builder().stack(move |config| set_tcp(config, buffer)).attach(server.socket())?)
}

/// Returns why the wire's thread cannot run before all others.
fn unpunctual() -> Option<String> {
    // The thread that tries it ends at once.
    let tried = std::thread::spawn(towpath_testkit::run_before_others).join().ok()?;
    tried.err().map(|error| format!("a punctual wire, by a real-time thread: {error}; run as root"))
}

/// Returns the size of a connection's buffers.
fn buffer_bytes(conditions: &Conditions) -> usize {
    // Twice what fits on the wire and in its queue.
    let buffer = (4 * conditions.queue_bytes as usize).next_power_of_two();
    buffer.clamp(SMALLEST_BUFFER_BYTES, LARGEST_BUFFER_BYTES)
}

/// Sets Towpath's TCP as the kernel's is set.
fn set_tcp(config: &mut Config, buffer: usize) {
    config.tcp.send_buffer_bytes = buffer;
    config.tcp.receive_buffer_bytes = buffer;
    config.tcp.congestion_control = CongestionControl::Cubic;
}

/// The two hosts.
pub(super) struct Hosts {
    hosts: [Host; 2],
    /// `true` if a server can use the TAPs.
    pub(super) serves: bool,
}

/// The hosts while a wire joins them.
pub(super) struct Joined<'a> {
    hosts: &'a [Host; 2],
    networks: [Option<Network>; 2],
}

impl Hosts {
    /// Makes the hosts. Returns what is missing here, too, in the words of a report.
    pub(super) fn new() -> anyhow::Result<(Hosts, Vec<String>)> {
        let ((first, unset), (second, _)) = (Host::new(1)?, Host::new(2)?);
        let refused = first.server().err().map(|error| {
            format!("applications behind a server: {error:#}; run as root, with AF_XDP")
        });
        let serves = refused.is_none();
        let hosts = Hosts { hosts: [first, second], serves };
        let missing = unset.into_iter().chain(refused).chain(unpunctual());
        Ok((hosts, missing.collect()))
    }

    /// Joins the hosts by a wire for as long as `work` runs, with a Towpath network, and perhaps a
    /// server, at each end that needs one.
    pub(super) fn join<R>(
        &self,
        conditions: Conditions,
        seed: u64,
        ends: [End; 2],
        work: impl FnOnce(&Joined<'_>) -> anyhow::Result<R>,
    ) -> anyhow::Result<(R, WireReport)> {
        let doorbell = Arc::new(Doorbell::new()?);
        let (mut ports, mut links) = ([None, None], [None, None]);
        let mut servers = [None, None];
        for side in 0..2 {
            match ends[side] {
                End::Kernel => {}
                End::Towpath => {
                    let (port, link) = Port::new(self.hosts[side].mac, doorbell.clone())?;
                    (ports[side], links[side]) = (Some(port), Some(link));
                }
                End::Server => servers[side] = Some(self.hosts[side].server()?),
            }
        }
        let [first, second] = ports;
        let sides = [
            Side { tap: self.hosts[0].tap()?, port: first },
            Side { tap: self.hosts[1].tap()?, port: second },
        ];
        let wire_thread = WireThread::new(sides, conditions, seed, doorbell)?;
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let end = StopOnDrop(&over);
            let builder = std::thread::Builder::new().name("wire".to_owned());
            let wire = builder.spawn_scoped(scope, || wire_thread.run(&over))?;
            let mut networks = [None, None];
            for (side, link) in links.into_iter().enumerate() {
                let network = link.map(|link| self.hosts[side].network(link, &conditions));
                let attached = servers[side].as_ref().map(|server| attached(server, &conditions));
                networks[side] = network.or(attached).transpose()?;
            }
            let joined = Joined { hosts: &self.hosts, networks };
            let result = work(&joined);
            drop(joined);
            // Resets of the connections still cross the wire.
            std::thread::sleep(2 * conditions.delay + Duration::from_millis(5));
            drop(end);
            let carried = wire.join().map_err(|_| anyhow::anyhow!("the wire's thread failed"))?;
            // A wire that failed explains why the work did.
            let carried = carried?;
            Ok((result?, carried))
        })
    }
}

impl Joined<'_> {
    /// Connects the first host to the second, and returns the ends: the first host sends.
    pub(super) fn connect(&self, sender: End, receiver: End) -> anyhow::Result<(Sender, Receiver)> {
        match receiver {
            End::Kernel => {
                let host = &self.hosts[1];
                let listener =
                    host.namespace.run(|| std::net::TcpListener::bind((host.kernel, 0)))??;
                let sender = self.connect_to(sender, listener.local_addr()?)?;
                let stream = listener.accept().context("accepting")?.0;
                stream.set_read_timeout(Some(GLANCE))?;
                sockopt::set_socket_linger(stream.as_fd(), Some(Duration::ZERO))?;
                Ok((sender, Box::new(stream)))
            }
            End::Towpath | End::Server => {
                let (network, host) = (self.network(1)?, &self.hosts[1]);
                let ip = if receiver == End::Server { host.application } else { host.towpath };
                let at = SocketAddr::new(ip.into(), 0);
                let listener = towpath_net::TcpListener::bind(network, at)?;
                let sender = self.connect_to(sender, listener.local_addr()?)?;
                let stream = listener.accept().context("accepting")?.0;
                stream.set_read_timeout(Some(GLANCE))?;
                stream.set_linger(Some(Duration::ZERO))?;
                Ok((sender, Box::new(stream)))
            }
        }
    }

    fn connect_to(&self, sender: End, at: SocketAddr) -> anyhow::Result<Sender> {
        match sender {
            End::Kernel => {
                let connect = || std::net::TcpStream::connect_timeout(&at, PATIENCE);
                let stream = self.hosts[0].namespace.run(connect)?.context("connecting")?;
                stream.set_write_timeout(Some(GLANCE))?;
                sockopt::set_socket_linger(stream.as_fd(), Some(Duration::ZERO))?;
                sockopt::set_tcp_congestion(stream.as_fd(), CONGESTION_CONTROL)
                    .with_context(|| format!("the kernel's TCP has no {CONGESTION_CONTROL}"))?;
                Ok(Box::new(stream))
            }
            End::Towpath | End::Server => {
                let network = self.network(0)?;
                let stream = towpath_net::TcpStream::connect_timeout(network, &at, PATIENCE)
                    .context("connecting")?;
                stream.set_write_timeout(Some(GLANCE))?;
                stream.set_linger(Some(Duration::ZERO))?;
                Ok(Box::new(stream))
            }
        }
    }

    fn network(&self, side: usize) -> anyhow::Result<&Network> {
        self.networks[side].as_ref().context("this end of the wire has no network")
    }

    /// Returns UDP sockets of the kernel at both ends, connected to each other.
    pub(super) fn kernel_udp(&self) -> anyhow::Result<[std::net::UdpSocket; 2]> {
        let bind = |host: &Host| -> anyhow::Result<std::net::UdpSocket> {
            let socket = host.namespace.run(|| std::net::UdpSocket::bind((host.kernel, 0)))??;
            socket.set_read_timeout(Some(PATIENCE))?;
            Ok(socket)
        };
        let [near, far] = [bind(&self.hosts[0])?, bind(&self.hosts[1])?];
        near.connect(far.local_addr()?)?;
        far.connect(near.local_addr()?)?;
        Ok([near, far])
    }
}
