//! Two servers in a process of their own, each at one end of a link of cells.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use towpath_client::Setting;
use towpath_device::Device;
use towpath_pdu::atm::Adaptation;
use towpath_protocol::store::MemoryStore;
use towpath_server::{Config, Server, Subnet, Subnets, WaitStrategy as EngineStrategy};

use super::device::pair;
use super::sizes::CELLS_PER_S;
use crate::child::{Child, OwnSocket, Role, tell, wait_for_end};

/// Serves both ends of a link of cells.
#[derive(Serialize, Deserialize)]
pub(crate) struct CellServers {
    near: PathBuf,
    is_aal34: bool,
    mtu: usize,
    cpu: usize,
}

impl Role for CellServers {
    const NAME: &'static str = "CellServers";

    fn directory(&self) -> Option<&Path> {
        self.near.parent()
    }

    fn act(self) -> anyhow::Result<()> {
        serve(&self)
    }
}

/// Returns the socket of the far server.
fn far_socket(near: &Path) -> PathBuf {
    near.with_extension("far")
}

/// Runs the process: serves until its parent is gone.
fn serve(serving: &CellServers) -> anyhow::Result<()> {
    let adaptation = if serving.is_aal34 { Adaptation::Aal34 } else { Adaptation::Aal5 };
    let sockets = [serving.near.clone(), far_socket(&serving.near)];
    let mut servers = Vec::new();
    for (device, socket) in pair(adaptation, CELLS_PER_S, serving.mtu).into_iter().zip(sockets) {
        let device: Box<dyn Device> = Box::new(device);
        let config = Config {
            socket: Some(socket),
            settings: EngineStrategy::Block.into(),
            engine_cpus: vec![serving.cpu],
            subnets: Subnets {
                ipv4: Some(Subnet::new(Ipv4Addr::new(10, 77, 0, 1), 24)),
                ipv6: None,
            },
            ..Config::default()
        };
        servers.push(Server::start(&config, device, Box::<MemoryStore>::default())?);
    }
    tell("ready")?;
    wait_for_end()?;
    servers.into_iter().try_for_each(|server| Ok(server.stop()?))
}

/// The running process, which ends when this is dropped.
pub(crate) struct CellProcess {
    _child: Child,
    socket: OwnSocket,
}

impl CellProcess {
    /// Starts both servers. Each engine polls its device `tick_hz` times a second.
    pub(crate) fn start(
        adaptation: Adaptation,
        mtu: usize,
        cpu: usize,
        tick_hz: u64,
    ) -> anyhow::Result<CellProcess> {
        let socket = OwnSocket::new()?;
        let is_aal34 = adaptation == Adaptation::Aal34;
        let serving = CellServers { near: socket.path(), is_aal34, mtu, cpu };
        let child = Child::start(&serving)?;
        let process = CellProcess { _child: child, socket };
        for socket in [process.near(), process.far()] {
            let set = |setting, value| towpath_client::set(&socket, None, setting, value);
            set(Setting::TickHz, tick_hz)?;
            set(Setting::Wait, Setting::Wait.parse("timer-driven")?)?;
        }
        Ok(process)
    }

    pub(crate) fn near(&self) -> PathBuf {
        self.socket.path()
    }

    pub(crate) fn far(&self) -> PathBuf {
        far_socket(&self.socket.path())
    }

    /// Sets how often the far engine polls its device.
    pub(crate) fn set_far_tick_hz(&self, hz: u64) -> anyhow::Result<()> {
        Ok(towpath_client::set(self.far(), None, Setting::TickHz, hz)?)
    }

    /// Returns the cells that found the far card's memory full.
    pub(crate) fn lost(&self) -> anyhow::Result<u64> {
        let report = towpath_client::report(self.far())?;
        let lost = report.pointer("/device/hardware/cells_lost").and_then(|lost| lost.as_u64());
        anyhow::Context::context(lost, "the far server's report has no counter cells_lost")
    }
}
