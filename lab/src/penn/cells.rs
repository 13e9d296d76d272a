//! PDUs as ATM cells over an OC-3c link, as the paper's interface sends them: an application behind
//! a server, the cards' simulation, another server, another application.
//!
//! The experiment computes the throughput that the link's cells allow: 353 208 cells a second, by
//! the cells of a PDU. The far engine polls its card β times a second; the card holds 7 000 cells
//! (section 2.4). All cells are of one circuit, and of MID 0.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use anyhow::ensure;
use towpath_client::{Options, Session};
use towpath_pdu::atm::{Adaptation, Circuit, Segmenter};
use towpath_pdu::{OVERHEAD_BYTES, PduEndpoint};
use towpath_testkit::pin;

use super::pdus;
use crate::Settings;
use crate::cells::{CELLS_PER_S, CellProcess, MTU_BYTES, RECEIVE_CELLS};
use crate::messages::add;
use crate::report::{Outcome, Row};
use crate::statistics::in_turn;

const CHANNEL: u32 = 1;
/// Bytes of one transfer: half a second of the link.
const TOTAL_BYTES: usize = 8 << 20;
/// The MTU of a real network.
pub(super) const ETHERNET_MTU_BYTES: u32 = 1500;
/// How often the engines poll their cards, unless the rows say otherwise.
const HZ: u64 = 1000;
/// The tick rates at which the experiment counts losses: the paper's 60 Hz, and one for which the
/// card is too small.
const TICK_RATES_HZ: [u64; 2] = [60, 40];
/// The PDU of these transfers.
const LOSS_PDU_BYTES: usize = 4096;
/// The time after which missing PDUs count as lost.
const PATIENCE: Duration = Duration::from_millis(500);

/// A way to cells.
#[derive(Clone, Copy)]
struct Way {
    name: &'static str,
    adaptation: Adaptation,
    mtu: usize,
}

const WAYS: [Way; 3] = [
    Way { name: "PDUs in AAL5 cells", adaptation: Adaptation::Aal5, mtu: MTU_BYTES },
    Way { name: "PDUs in AAL3/4 cells", adaptation: Adaptation::Aal34, mtu: MTU_BYTES },
    Way {
        name: "PDU endpoints cut to 1500, in AAL5 cells",
        adaptation: Adaptation::Aal5,
        mtu: ETHERNET_MTU_BYTES as usize,
    },
];

pub(super) fn measure(
    settings: Settings,
    cores: (usize, usize),
    outcome: &mut Outcome,
) -> anyhow::Result<()> {
    outcome.how += &format!(
        "; cells: the simulation of two cards and a link of {CELLS_PER_S} cells a second, two engines \
         on core {}, timer-driven at {HZ} Hz, both applications in one thread on core {}",
        cores.0, cores.1
    );
    pin(cores.1)?;
    let start = |way: Way| Transfer::start(way, cores.0).map(RefCell::new);
    let [aal5, aal34, cut] = WAYS.map(start);
    let (aal5, aal34, cut) = (aal5?, aal34?, cut?);
    let total = if settings.quick { TOTAL_BYTES / 8 } else { TOTAL_BYTES };
    let sizes: Vec<usize> = (10..=16).step_by(if settings.quick { 3 } else { 1 }).collect();
    for bytes in sizes.into_iter().map(|shift| 1_usize << shift) {
        let bytes = bytes.min(aal5.borrow().near.max_pdu_bytes());
        let run = |transfer: &RefCell<Transfer>| transfer.borrow_mut().rate(bytes, total);
        let values = in_turn(
            settings.pairs(),
            &mut [&mut || run(&aal5), &mut || run(&aal34), &mut || run(&cut)],
        )?;
        let parameters = [("pdu_bytes", bytes as f64), ("total_bytes", total as f64)];
        for ((way, values), transfer) in WAYS.iter().zip(&values).zip([&aal5, &aal34, &cut]) {
            let allowed = transfer.borrow().allowed(bytes);
            let ratios: Vec<f64> = values.iter().map(|value| value / allowed).collect();
            let name = format!("{}: throughput, to what the link's cells allow", way.name);
            outcome.rows.push(Row::new(&name, &parameters, "ratio", &ratios));
            let name = format!("{}: throughput", way.name);
            outcome.context.push(Row::new(&name, &parameters, "Mbit/s", values));
            let name = format!("{}: throughput that the link's cells allow", way.name);
            outcome.context.push(Row::new(&name, &parameters, "Mbit/s", &[allowed]));
        }
    }
    drop((aal34, cut));
    losses(settings, &mut aal5.borrow_mut(), outcome)
}

/// Counts the cells that the far card loses, by the far engine's tick rate.
fn losses(
    settings: Settings,
    transfer: &mut Transfer,
    outcome: &mut Outcome,
) -> anyhow::Result<()> {
    let total = if settings.quick { TOTAL_BYTES / 2 } else { 2 * TOTAL_BYTES };
    let count = total / LOSS_PDU_BYTES;
    for hz in TICK_RATES_HZ {
        transfer.process.set_far_tick_hz(hz)?;
        let mut shares = Vec::new();
        for _ in 0..3 {
            let before = transfer.process.lost()?;
            transfer.run(LOSS_PDU_BYTES, count)?;
            let cells = (count * transfer.cells(LOSS_PDU_BYTES)) as f64;
            shares.push((transfer.process.lost()? - before) as f64 / cells);
        }
        let parameters = [("hz", hz as f64)];
        let row = |name, values: &[f64]| Row::new(name, &parameters, "share", values);
        outcome.rows.push(row("cells that the card loses at the link's rate", &shares));
        let in_tick = f64::from(CELLS_PER_S) / hz as f64;
        let model = (1.0 - RECEIVE_CELLS as f64 / in_tick).max(0.0);
        outcome.context.push(row("cells that the card loses, by the model", &[model]));
    }
    Ok(())
}

/// Two applications, one behind each card, in one thread.
struct Transfer {
    way: Way,
    process: CellProcess,
    near: PduEndpoint,
    far: PduEndpoint,
    /// Bytes of a PDU in one frame.
    chunk_bytes: usize,
    sum: u64,
}

impl Transfer {
    fn start(way: Way, cpu: usize) -> anyhow::Result<Transfer> {
        let process = CellProcess::start(way.adaptation, way.mtu, cpu, HZ)?;
        // One buffer for the longest frame; the receiver's packets take several.
        let transmit_buffer_bytes = if way.mtu == MTU_BYTES { 1 << 16 } else { 1 << 11 };
        let open = |socket, name: &str| -> anyhow::Result<PduEndpoint> {
            let options = Options {
                name: name.into(),
                transmit_slots: 128,
                receive_slots: 4096,
                transmit_buffer_bytes,
                ..Options::default()
            };
            let session = Session::attach(socket, &options)?;
            Ok(PduEndpoint::open(session, &towpath_pdu::Options::default())?)
        };
        let (near, far) = (open(process.near(), "near")?, open(process.far(), "far")?);
        let chunk_bytes = near.chunk_bytes();
        Ok(Transfer { way, process, near, far, chunk_bytes, sum: 0 })
    }

    /// Returns the cells of a PDU.
    fn cells(&self, pdu_bytes: usize) -> usize {
        let circuit = Circuit { vpi: 0, vci: 32 };
        let frame = |part: usize| {
            let bytes = OVERHEAD_BYTES + part;
            let segmenter = match self.way.adaptation {
                Adaptation::Aal5 => Segmenter::aal5(circuit, bytes),
                Adaptation::Aal34 => Segmenter::aal34(circuit, 0, 0, bytes),
            };
            segmenter.map_or(0, |segmenter| segmenter.remaining())
        };
        let (whole, rest) = (pdu_bytes / self.chunk_bytes, pdu_bytes % self.chunk_bytes);
        whole * frame(self.chunk_bytes) + if rest > 0 { frame(rest) } else { 0 }
    }

    /// Returns the throughput that the link's cells allow, in Mbit/s.
    fn allowed(&self, pdu_bytes: usize) -> f64 {
        f64::from(CELLS_PER_S) / self.cells(pdu_bytes) as f64 * pdu_bytes as f64 * 8.0 / 1e6
    }

    /// Returns the throughput of a transfer, in Mbit/s. PDUs that are lost because an engine is late do not
    /// count.
    fn rate(&mut self, pdu_bytes: usize, total: usize) -> anyhow::Result<f64> {
        let count = total / pdu_bytes;
        let (got, took) = self.run(pdu_bytes, count)?;
        ensure!(got * 2 >= count as u64, "{got} of {count} PDUs arrived");
        Ok((got * pdu_bytes as u64) as f64 * 8.0 / took.as_secs_f64() / 1e6)
    }

    /// Sends PDUs as fast as the card takes them. Returns the number that arrived, and the time to
    /// the last of them.
    fn run(&mut self, pdu_bytes: usize, count: usize) -> anyhow::Result<(u64, Duration)> {
        let count = count as u64;
        let to = self.far.session().info().mac;
        let (mut sent, mut got, mut sum) = (0, 0, self.sum);
        let start = Instant::now();
        let mut last = start;
        while got < count && (sent < count || last.elapsed() < PATIENCE) {
            let before = (sent, got);
            sent += pdus::send(&mut self.near, (to.octets(), CHANNEL), count - sent, pdu_bytes)?;
            self.far.receive(256, |pdu| {
                sum = pdu.parts().map(add).fold(sum, u64::wrapping_add);
                got += 1;
            })?;
            if (sent, got) != before {
                last = Instant::now();
            }
            ensure!(last.elapsed() < 10 * PATIENCE, "the card takes no packets");
        }
        self.sum = std::hint::black_box(sum);
        Ok((got, last.duration_since(start)))
    }
}
