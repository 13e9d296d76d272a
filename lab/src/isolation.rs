//! Isolation: a neighbour's throughput while another application is killed, or stopped and resumed,
//! in the middle of its traffic.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde::{Deserialize, Serialize};
use towpath_client::{Options, QueuePair, Rule, SendError, Session};
use towpath_packet::build::Flow;
use towpath_testkit::pin;

use crate::Settings;
use crate::child::{Child, OwnSocket, Role, is_over, tell};
use crate::machine::two_cores;
use crate::report::{Outcome, Row};
use crate::statistics::Summary;
use crate::switch::{Load, SwitchServer};

/// The lower limit of the ratio.
const AT_LEAST: f64 = 0.95;
/// Pairs of windows, with any settings.
const PAIRS: usize = 20;
/// Packets that the other application submits together, each millisecond.
const BURST: usize = 128;
/// The size of the neighbour's packets.
const FRAME_BYTES: usize = 64;

/// What happens to the other application in the middle of a window.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Happens {
    Nothing,
    Killed,
    StoppedAndResumed,
}

pub(crate) fn measure(settings: Settings) -> anyhow::Result<Outcome> {
    let cores = two_cores()?;
    let own = OwnSocket::new()?;
    let socket = own.path();
    let _server = Child::start(&SwitchServer { socket: socket.clone(), engine_cpu: cores.0 })?;
    let window = Duration::from_millis(if settings.quick { 150 } else { 500 });
    let role = Application { socket: socket.clone(), cpu: cores.1, burst: BURST };
    let mut other = Child::start(&role)?;
    pin(cores.1)?;
    let mut load = Load::new(&socket, FRAME_BYTES)?;
    load.run(window)?;
    let (mut undisturbed, mut ratios) = (Vec::new(), [Vec::new(), Vec::new()]);
    let mut gaps = [Vec::new(), Vec::new()];
    for pair in 0..PAIRS {
        let event = if pair % 2 == 0 { Happens::Killed } else { Happens::StoppedAndResumed };
        let mut rates = [0.0; 2];
        let order = if pair / 2 % 2 == 0 { [0, 1] } else { [1, 0] };
        for place in order {
            let happens = if place == 0 { Happens::Nothing } else { event };
            let (rate, gap) = one_window(&mut load, window, happens, &other)?;
            rates[place] = rate;
            gaps[place].push(gap.as_secs_f64() * 1e6);
            if happens == Happens::Killed {
                other = Child::start(&role)?;
            }
        }
        undisturbed.push(rates[0]);
        ratios[pair % 2].push(rates[1] / rates[0]);
    }
    load.check()?;
    let all: Vec<f64> = ratios.concat();
    let parameters = [("packet_bytes", FRAME_BYTES as f64)];
    let lowest = |values: &[f64]| Summary::of(values).lowest;
    Ok(Outcome {
        how: format!(
            "server: a process, its engine polls on core {}; neighbour: generator and sink in one \
             thread on core {}; the other application, on the same core, sends {BURST} packets each \
             millisecond and is killed, or stopped and resumed, in the middle of a window of {} ms",
            cores.0,
            cores.1,
            window.as_millis()
        ),
        rows: vec![
            Row::new("neighbour, disturbed to undisturbed", &parameters, "ratio", &all)
                .at_least(AT_LEAST),
        ],
        context: vec![
            Row::new("when the other is killed", &parameters, "ratio", &ratios[0]),
            Row::new("when it is stopped and resumed", &parameters, "ratio", &ratios[1]),
            Row::new("lowest of all windows", &parameters, "ratio", &[lowest(&all)]),
            Row::new("neighbour, undisturbed", &parameters, "Mpps", &undisturbed),
            Row::new("longest pause, undisturbed", &parameters, "us", &gaps[0]),
            Row::new("longest pause, disturbed", &parameters, "us", &gaps[1]),
        ],
        ..Outcome::default()
    })
}

/// Measures a window in three parts; the disturbance happens between them.
fn one_window(
    load: &mut Load,
    window: Duration,
    happens: Happens,
    other: &Child,
) -> anyhow::Result<(f64, Duration)> {
    let start = Instant::now();
    let before = load.received();
    let mut gap = Duration::ZERO;
    for part in 0..3 {
        match (happens, part) {
            (Happens::Killed, 1) => other.signal(Signal::KILL)?,
            (Happens::StoppedAndResumed, 1) => other.signal(Signal::STOP)?,
            (Happens::StoppedAndResumed, 2) => other.signal(Signal::CONT)?,
            _ => {}
        }
        load.run(window / 3)?;
        gap = gap.max(load.longest_gap);
    }
    let rate = (load.received() - before) as f64 / start.elapsed().as_secs_f64() / 1e6;
    Ok((rate, gap))
}

/// Sends to itself through a server, as fast as its pace allows.
#[derive(Serialize, Deserialize)]
pub(crate) struct Application {
    /// The server's socket.
    pub(crate) socket: PathBuf,
    /// The core.
    pub(crate) cpu: usize,
    /// Packets that it submits together, once a millisecond.
    pub(crate) burst: usize,
}

impl Role for Application {
    const NAME: &'static str = "Application";

    fn act(self) -> anyhow::Result<()> {
        send_to_itself(&self.socket, self.cpu, self.burst)
    }
}

/// Runs the other application's process: sends to itself, a burst each millisecond, until its
/// parent is gone.
fn send_to_itself(socket: &Path, cpu: usize, burst: usize) -> anyhow::Result<()> {
    pin(cpu)?;
    let options = Options { name: "other".into(), ..Options::default() };
    let mut session = Session::attach(socket, &options)?;
    let mac = session.info().mac;
    let endpoint = session.open(&Rule::new())?;
    let mut flow = Flow::v4().macs(mac, mac);
    if let Some((ip, _)) = session.info().ipv4 {
        flow = flow.addresses(ip, ip);
    }
    let packet = flow.udp(&[0; 200]);
    let mut told = false;
    while !is_over() {
        for _ in 0..burst {
            match session.sender().send_bytes(endpoint, &packet) {
                Ok(()) => {}
                Err(SendError::Full) => break,
                Err(error) => return Err(error.into()),
            }
        }
        session.sender().flush()?;
        std::thread::sleep(Duration::from_millis(1));
        let mut sum = 0;
        let got = session
            .receiver()
            .receive(QueuePair::FIRST, 2 * burst, |packet| sum += packet.len())?;
        std::hint::black_box(sum);
        if got > 0 && !told {
            // Reports that it is ready when its traffic flows.
            tell("ready")?;
            told = true;
        }
    }
    Ok(())
}
