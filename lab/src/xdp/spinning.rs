//! Round trips with all sides polling.

use std::time::Duration;

use rustix::process::Signal;
use serde::{Deserialize, Serialize};
use towpath_client::WaitStrategy;
use towpath_testkit::Namespace;

use super::ends::{self, End, Kind};
use super::wire::Wire;
use crate::child::{Child, Role};
use crate::latency::Latency;
use crate::process::{Process, Serving, Wire as Device, XdpMode, start};
use crate::trip::{ASKS, Application, Packet, in_thread, timed, turned};

/// Drives the far end of a wire, sends each packet back, and polls.
#[derive(Serialize, Deserialize)]
pub(crate) struct AnswerSpinning {
    /// How it drives its interface.
    pub(crate) kind: Kind,
    /// The interface.
    pub(crate) interface: String,
    /// How the kernel runs the filter.
    pub(crate) mode: XdpMode,
    /// The core.
    pub(crate) cpu: usize,
}

impl Role for AnswerSpinning {
    const NAME: &'static str = "AnswerSpinning";

    fn act(self) -> anyhow::Result<()> {
        ends::answer(self.kind, &self.interface, self.mode, self.cpu)
    }
}

/// Two processes that each drive one end of a wire, without a server.
pub(super) struct Alone {
    end: End,
    answers: Child,
    packet: Packet,
    cpu: usize,
    _wire: Wire,
}

impl Alone {
    /// Asks from the second core, and answers from the first, in a process that is stopped when
    /// this returns.
    pub(super) fn new(
        kind: Kind,
        mode: XdpMode,
        (answers, asks): (usize, usize),
        wire: Wire,
    ) -> anyhow::Result<Alone> {
        let end = End::open(kind, &wire.near, mode)?;
        let interface = wire.far.clone();
        let answers = AnswerSpinning { kind, interface, mode, cpu: answers };
        let answers = start(&answers, Some(&wire.there))?;
        answers.signal(Signal::STOP)?;
        Ok(Alone { end, answers, packet: wire.packet()?, cpu: asks, _wire: wire })
    }

    pub(super) fn run(&mut self, window: Duration) -> anyhow::Result<Latency> {
        let Alone { end, answers, packet, cpu, .. } = self;
        answers.signal(Signal::CONT)?;
        let times = in_thread(Some(*cpu), || {
            timed(window, || {
                end.send(packet)?;
                end.spin().map(drop)
            })
        });
        answers.signal(Signal::STOP)?;
        times
    }
}

/// An application behind a server, and a bare socket at the far end, which answers.
pub(super) struct Served {
    server: Process,
    asks: Application,
    answers: End,
    packet: Packet,
    cpu: usize,
    _wire: Wire,
}

impl Served {
    /// The engine polls on the first core. One thread on the second core is the application, and
    /// answers at the far end meanwhile: a third core there is not. The server is stopped when this
    /// returns.
    pub(super) fn new(
        mode: XdpMode,
        (engine, ends): (usize, usize),
        wire: Wire,
    ) -> anyhow::Result<Served> {
        let server = Process::start(&serving(mode, &wire).on(engine).polling(), None)?;
        let asks = Application::attach(&server.socket(), ASKS, WaitStrategy::Poll)?;
        let packet = asks.packet_to((wire.far_mac, wire.far_ip()))?;
        let there: &Namespace = &wire.there;
        let answers = there.run(|| End::open(Kind::Bare, &wire.far, mode))??;
        server.pause()?;
        Ok(Served { server, asks, answers, packet, cpu: ends, _wire: wire })
    }

    pub(super) fn run(&mut self, window: Duration) -> anyhow::Result<Latency> {
        let Served { server, asks, answers, packet, cpu, .. } = self;
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

/// Returns a server of the near end of a wire.
pub(super) fn serving(mode: XdpMode, wire: &Wire) -> Serving {
    let (name, own, lease) = (wire.near.clone(), wire.near_ip(), wire.lease());
    Serving { wire: Device::Xdp { name, mode, own, lease }, ..Serving::tap("") }
}
