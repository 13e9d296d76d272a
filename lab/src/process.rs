//! A server in a process of its own, that is stopped while others are measured: so that two ways of
//! serving are compared in turn, and what polls takes no core from what does not.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::Context;
use rustix::process::Signal;
use serde::{Deserialize, Serialize};
use towpath_client::Setting;
use towpath_device::slow::{Pace, SlowDevice};
use towpath_device::tap::{Options, TapDevice};
use towpath_device::{Device, loopback};
use towpath_netlink::Netlink;
use towpath_protocol::store::MemoryStore;
use towpath_server::{Config, Policy, Server, Subnets, WaitStrategy as EngineStrategy};
use towpath_testkit::Namespace;

use crate::child::{Child, OwnSocket, ROLE_FLAG, Role, tell, wait_for_end};

/// The server's own address on its device, which is the kernel's on a TAP.
pub(crate) const HOST: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);

/// What is served.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Wire {
    /// An in-memory device whose other end nobody listens to: endpoints talk to each other.
    Memory {
        /// The largest IP packet.
        mtu: usize,
    },
    /// A TAP of this name, in the network namespace of the process.
    Tap {
        name: String,
        /// Whether large and unfinished packets cross it.
        offloads: bool,
    },
    /// A TAP that is slow, and refuses what it has no place for: see [`SlowDevice`].
    SlowTap { name: String, packet_us: u64, places: usize },
}

impl Wire {
    /// The name of the TAP.
    pub(crate) fn tap(&self) -> anyhow::Result<&str> {
        match self {
            Wire::Tap { name, .. } | Wire::SlowTap { name, .. } => Ok(name),
            Wire::Memory { .. } => anyhow::bail!("it is no TAP"),
        }
    }
}

/// How it is served.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Serving {
    pub(crate) wire: Wire,
    /// The engine never sleeps.
    pub(crate) polls: bool,
    /// Packets taken from the device in one turn.
    pub(crate) batch: usize,
    pub(crate) engine_cpu: Option<usize>,
    /// Users that may attach, beside the server's own and root.
    #[serde(default)]
    pub(crate) users: Vec<u32>,
}

impl Serving {
    /// A TAP, offloads on, the engine asleep when idle: how servers are started when nothing else
    /// is said.
    pub(crate) fn tap(name: &str) -> Serving {
        let wire = Wire::Tap { name: name.to_owned(), offloads: true };
        Serving { wire, polls: false, batch: 64, engine_cpu: None, users: Vec::new() }
    }

    /// An in-memory device.
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

/// The server's process: serves until its parent is gone.
pub(crate) fn serve(serving: &Serving, socket: PathBuf) -> anyhow::Result<()> {
    let (server, far) = start_server(serving, socket)?;
    tell("ready")?;
    wait_for_end()?;
    server.stop()?;
    drop(far);
    Ok(())
}

/// A server in this process, and the far end of its device, to be kept as long.
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
            Box::new(SlowDevice::new(Box::new(open(name, false)?), pace)?)
        }
    };
    let config = Config {
        socket: Some(socket),
        settings: if serving.polls { EngineStrategy::Poll } else { EngineStrategy::Block }.into(),
        batch: serving.batch,
        engine_cpu: serving.engine_cpu,
        policy: Policy { users: serving.users.clone(), ..Policy::default() },
        subnets: Subnets { ipv4: Some((HOST, 24)), ipv6: None },
        ..Config::default()
    };
    Ok((Server::start(&config, device, Box::<MemoryStore>::default())?, far))
}

/// A running server. It ends with this.
pub(crate) struct Process {
    child: Child,
    socket: OwnSocket,
}

impl Process {
    /// Starts one, in a network namespace other than the own where one is given.
    pub(crate) fn start(serving: &Serving, inside: Option<&Namespace>) -> anyhow::Result<Process> {
        let socket = OwnSocket::new()?;
        let role = Role::Serve { serving: serving.clone(), socket: socket.path() };
        let child = start(&role, inside)?;
        Ok(Process { child, socket })
    }

    /// Starts one that polls, with an in-memory device and room for as many sessions as there may be.
    pub(crate) fn start_switch(engine_cpu: usize) -> anyhow::Result<Process> {
        let socket = OwnSocket::new()?;
        let child = Child::start(&Role::Server { socket: socket.path(), engine_cpu })?;
        Ok(Process { child, socket })
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.socket.path()
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.pid()
    }

    /// Takes it off its core until [`Station::resume`].
    pub(crate) fn pause(&self) -> anyhow::Result<()> {
        self.child.signal(Signal::STOP)
    }

    pub(crate) fn resume(&self) -> anyhow::Result<()> {
        self.child.signal(Signal::CONT)
    }

    /// The device's counters.
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
pub(crate) fn start(role: &Role, inside: Option<&Namespace>) -> anyhow::Result<Child> {
    let program = std::env::current_exe().context("the program's own file")?;
    let mut command = Command::new(program);
    command.arg(ROLE_FLAG).arg(serde_json::to_string(role)?);
    if let Some(namespace) = inside {
        namespace.contain(&mut command);
    }
    Child::start_command(command)
}
