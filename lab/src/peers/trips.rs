//! Round trips of two applications of Towpath through a server.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::ensure;
use serde::{Deserialize, Serialize};
use towpath_client::WaitStrategy;
use towpath_testkit::pin;

use crate::child::{Child, Role, is_over, tell};
use crate::latency::Latency;
use crate::process::Process;
use crate::trip::{
    ANSWERS, ASKS, Application, Cores, LOOKS, PATIENCE, Packet, in_thread, timed, turned,
};

/// Two applications in one thread, which spins; the engine polls on the other core.
pub(super) struct Spinning {
    server: Process,
    asks: Application,
    answers: Application,
    packet: Packet,
    cpu: usize,
}

impl Spinning {
    /// The server is paused when this returns.
    pub(super) fn new(cores: (usize, usize)) -> anyhow::Result<Spinning> {
        let server = Process::start_switch(cores.0)?;
        let asks = Application::attach(&server.socket(), ASKS, WaitStrategy::Poll)?;
        let answers = Application::attach(&server.socket(), ANSWERS, WaitStrategy::Poll)?;
        let packet = asks.packet_to(answers.addresses()?)?;
        server.pause()?;
        Ok(Spinning { server, asks, answers, packet, cpu: cores.1 })
    }

    pub(super) fn run(&mut self, window: Duration) -> anyhow::Result<Latency> {
        let Spinning { server, asks, answers, packet, cpu } = self;
        server.resume()?;
        let times = in_thread(Some(*cpu), || {
            timed(window, || {
                asks.send(packet)?;
                let got = answers.spin()?;
                answers.send(&turned(&got))?;
                asks.spin().map(drop)
            })
        });
        server.pause()?;
        times
    }
}

/// Two applications that block, in two processes, and an engine that blocks in a third.
pub(super) struct Asleep {
    asks: Application,
    packet: Packet,
    cores: Cores,
    // The application that answers ends before the server.
    _answers: Child,
    _server: Process,
}

impl Asleep {
    pub(super) fn new(server: Process, cores: Cores) -> anyhow::Result<Asleep> {
        let asks = Application::attach(&server.socket(), ASKS, WaitStrategy::Block)?;
        let role = Answer { socket: server.socket(), cpu: cores.answers };
        let mut answers = Child::start(&role)?;
        let packet = asks.packet_to(serde_json::from_str(&answers.read_line()?)?)?;
        Ok(Asleep { _server: server, asks, packet, _answers: answers, cores })
    }

    pub(super) fn run(&mut self, window: Duration) -> anyhow::Result<Latency> {
        let Asleep { asks, packet, cores, .. } = self;
        in_thread(cores.asks, || {
            timed(window, || {
                asks.send(packet)?;
                loop {
                    ensure!(asks.session.wait(Some(PATIENCE))?, "a packet was lost");
                    if asks.receive()?.is_some() {
                        return Ok(());
                    }
                }
            })
        })
    }
}

/// Sends each packet back through a server, and sleeps until the next.
#[derive(Serialize, Deserialize)]
pub(crate) struct Answer {
    /// The server's socket.
    pub(crate) socket: PathBuf,
    /// The core; any core if `None`.
    pub(crate) cpu: Option<usize>,
}

impl Role for Answer {
    const NAME: &'static str = "Answer";

    fn act(self) -> anyhow::Result<()> {
        answer(&self.socket, self.cpu)
    }
}

/// Runs the process of the application that answers, until its parent is gone.
fn answer(socket: &Path, cpu: Option<usize>) -> anyhow::Result<()> {
    if let Some(cpu) = cpu {
        pin(cpu)?;
    }
    let mut application = Application::attach(socket, ANSWERS, WaitStrategy::Block)?;
    tell("ready")?;
    tell(&serde_json::to_string(&application.addresses()?)?)?;
    loop {
        if application.session.wait(Some(LOOKS))? {
            while let Some(packet) = application.receive()? {
                application.send(&turned(&packet))?;
            }
        } else if is_over() {
            return Ok(());
        }
    }
}
