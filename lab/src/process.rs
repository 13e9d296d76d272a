//! A server in its own process, which is stopped while others are measured. So experiments compare
//! two ways of serving in turn, and a polling engine takes no core from others.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use rustix::process::Signal;
use serde::{Deserialize, Serialize};
use towpath_client::Setting;
use towpath_device::Device;
use towpath_device::tap::{Options, TapDevice};
use towpath_device::xdp::{self, XdpDevice};
use towpath_device_testing::loopback;
use towpath_device_testing::slow::{Pace, SlowDevice};
use towpath_netlink::Netlink;
use towpath_protocol::store::MemoryStore;
use towpath_server::{
    Config, Policy, Reach, Server, Subnet, Subnets, WaitStrategy as EngineStrategy,
};
use towpath_testkit::Namespace;

use crate::child::{Child, OwnSocket, Role, give, tell, wait_for_end};
use crate::switch::SwitchServer;

/// The server's own address on its device; on a TAP, the kernel's address.
pub(crate) const HOST: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);

/// The device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Wire {
    /// An in-memory device without a peer: endpoints talk to each other.
    Memory {
        /// The largest IP packet.
        mtu: usize,
    },
    /// A TAP of this name, in the network namespace of the process.
    Tap {
        name: String,
        /// `true` if large packets and packets with a partial checksum cross it.
        offloads: bool,
    },
    /// A slow TAP, which refuses packets when its slots are full: see [`SlowDevice`].
    SlowTap { name: String, packet_us: u64, places: usize },
    /// An interface of this name, by AF_XDP, in the network namespace of the process.
    Xdp {
        name: String,
        mode: XdpMode,
        /// The kernel's address there; the network has 24 bits.
        own: Ipv4Addr,
        /// The only address for an application.
        lease: Ipv4Addr,
    },
}

/// How the kernel runs the flow filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum XdpMode {
    Native,
    Generic,
}

impl XdpMode {
    /// Both modes, in the order of reports.
    pub(crate) const ALL: [XdpMode; 2] = [XdpMode::Native, XdpMode::Generic];

    /// Returns the word of a report.
    pub(crate) fn name(self) -> &'static str {
        match self {
            XdpMode::Native => "native",
            XdpMode::Generic => "generic",
        }
    }

    /// Returns the mode for [`xdp::Options`].
    pub(crate) fn of_device(self) -> xdp::Mode {
        match self {
            XdpMode::Native => xdp::Mode::Native,
            XdpMode::Generic => xdp::Mode::Generic,
        }
    }
}

impl Wire {
    /// Returns the name of the TAP.
    pub(crate) fn tap(&self) -> anyhow::Result<&str> {
        match self {
            Wire::Tap { name, .. } | Wire::SlowTap { name, .. } => Ok(name),
            Wire::Memory { .. } | Wire::Xdp { .. } => anyhow::bail!("this device is not a TAP"),
        }
    }
}

/// The configuration of a server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Serving {
    pub(crate) wire: Wire,
    /// `true` if the engine never sleeps.
    pub(crate) polls: bool,
    /// Packets that the engine takes from the device in one poll iteration.
    pub(crate) batch: usize,
    pub(crate) engine_cpu: Option<usize>,
    /// Engine threads.
    pub(crate) lanes: usize,
    /// Users that may attach, beside the server's own and root.
    #[serde(default)]
    pub(crate) users: Vec<u32>,
    /// `true` if it speaks RoCEv2 with other hosts.
    #[serde(default)]
    pub(crate) rdma: bool,
}

impl Serving {
    /// Returns a TAP with offloads on, and an engine that blocks when idle (`wait=block`, not the
    /// server's default).
    pub(crate) fn tap(name: &str) -> Serving {
        let wire = Wire::Tap { name: name.to_owned(), offloads: true };
        let (polls, batch, engine_cpu, lanes, users) = (false, 64, None, 1, Vec::new());
        Serving { wire, polls, batch, engine_cpu, lanes, users, rdma: false }
    }

    /// Returns an in-memory device.
    pub(crate) fn memory(mtu: usize) -> Serving {
        Serving { wire: Wire::Memory { mtu }, ..Serving::tap("") }
    }

    pub(crate) fn on(self, cpu: usize) -> Serving {
        Serving { engine_cpu: Some(cpu), ..self }
    }

    pub(crate) fn polling(self) -> Serving {
        Serving { polls: true, ..self }
    }
}

/// Serves a device as its settings say.
#[derive(Serialize, Deserialize)]
pub(crate) struct Serve {
    /// The device and its settings.
    pub(crate) serving: Serving,
    /// The socket's path.
    pub(crate) socket: PathBuf,
}

impl Role for Serve {
    const NAME: &'static str = "Serve";

    fn directory(&self) -> Option<&Path> {
        self.socket.parent()
    }

    fn act(self) -> anyhow::Result<()> {
        serve(&self.serving, self.socket)
    }
}

/// Runs the server's process: serves until its parent is gone.
fn serve(serving: &Serving, socket: PathBuf) -> anyhow::Result<()> {
    let (server, far) = start_server(serving, socket)?;
    tell("ready")?;
    wait_for_end()?;
    server.stop()?;
    drop(far);
    Ok(())
}

/// Starts a server in this process. The caller keeps the far end of its device for as long.
pub(crate) fn start_server(
    serving: &Serving,
    socket: PathBuf,
) -> anyhow::Result<(Server, Option<loopback::LoopbackDevice>)> {
    let open = |name: &str, offloads| -> anyhow::Result<TapDevice> {
        let device = TapDevice::open(&Options { name: name.to_owned(), offloads })?;
        let mut netlink = Netlink::open()?;
        netlink.add_address(name, format!("{HOST}/24").parse()?)?;
        netlink.set_up(name)?;
        Ok(device)
    };
    let mut far = None;
    let mut subnet = Subnet::new(HOST, 24);
    let device: Box<dyn Device> = match &serving.wire {
        Wire::Memory { mtu } => {
            let config = loopback::Config { mtu: *mtu, ..loopback::Config::default() };
            let (near, other) = loopback::pair(&config)?;
            far = Some(other);
            Box::new(near)
        }
        Wire::Tap { name, offloads } => Box::new(open(name, *offloads)?),
        Wire::SlowTap { name, packet_us, places } => {
            let packet_time = Duration::from_micros(*packet_us);
            let pace = Pace { packet_time, places: *places };
            Box::new(SlowDevice::new(Box::new(open(name, false)?), pace))
        }
        Wire::Xdp { name, mode, own, lease } => {
            subnet =
                Subnet { gateway: None, leases: Some((*lease, *lease)), ..Subnet::new(*own, 24) };
            let mode = mode.of_device();
            let (interface, lanes) = (name.clone(), serving.lanes);
            let options = xdp::Options { interface, mode, lanes, ..Default::default() };
            Box::new(XdpDevice::open(&options)?)
        }
    };
    let mut policy = Policy::granting(serving.users.clone(), Vec::new());
    for grant in &mut policy.grants {
        // Attackers and their neighbour share memory.
        Arc::make_mut(&mut grant.terms).out_of_band = Reach::All;
    }
    let config = Config {
        socket: Some(socket),
        settings: if serving.polls { EngineStrategy::Poll } else { EngineStrategy::Block }.into(),
        batch: serving.batch,
        engine_cpus: serving.engine_cpu.into_iter().collect(),
        lanes: serving.lanes,
        policy,
        subnets: Subnets { ipv4: Some(subnet), ipv6: None },
        rdma: serving.rdma,
        ..Config::default()
    };
    Ok((Server::start(&config, device, Box::<MemoryStore>::default())?, far))
}

/// A running server, which ends when this is dropped.
pub(crate) struct Process {
    child: Child,
    socket: OwnSocket,
}

impl Process {
    /// Starts a server, in another network namespace if one is given.
    pub(crate) fn start(serving: &Serving, inside: Option<&Namespace>) -> anyhow::Result<Process> {
        let socket = OwnSocket::new()?;
        let role = Serve { serving: serving.clone(), socket: socket.path() };
        let child = start(&role, inside)?;
        Ok(Process { child, socket })
    }

    /// Starts a polling server with an in-memory device and room for the largest number of
    /// sessions.
    pub(crate) fn start_switch(engine_cpu: usize) -> anyhow::Result<Process> {
        let socket = OwnSocket::new()?;
        let child = Child::start(&SwitchServer { socket: socket.path(), engine_cpu })?;
        Ok(Process { child, socket })
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.socket.path()
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.pid()
    }

    /// Takes the server off its core until [`Process::resume`].
    pub(crate) fn pause(&self) -> anyhow::Result<()> {
        self.child.signal(Signal::STOP)
    }

    pub(crate) fn resume(&self) -> anyhow::Result<()> {
        self.child.signal(Signal::CONT)
    }

    /// Returns the device's counters.
    pub(crate) fn counters(&self) -> anyhow::Result<BTreeMap<String, u64>> {
        let report = towpath_client::report(self.socket())?;
        let counters = report.pointer("/device/counters").context("a report without counters")?;
        Ok(serde_json::from_value(counters.clone())?)
    }

    /// Changes a setting of the device while the server runs.
    pub(crate) fn set(&self, setting: Setting, value: u64) -> anyhow::Result<()> {
        towpath_client::set(self.socket(), None, setting, value)
            .with_context(|| format!("setting {}={}", setting.spec().name, setting.show(value)))
    }
}

/// Starts another process of this program in a role, in a network namespace.
pub(crate) fn start<R: Role>(role: &R, inside: Option<&Namespace>) -> anyhow::Result<Child> {
    let program = std::env::current_exe().context("the path of this program")?;
    let mut command = Command::new(program);
    give(role, &mut command)?;
    if let Some(namespace) = inside {
        namespace.contain(&mut command);
    }
    Child::start_command(command)
}
