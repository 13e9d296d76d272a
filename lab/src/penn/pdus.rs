//! PDU endpoints: the same sizes, segmented to an MTU of 1 500 bytes and reassembled, beside the
//! same bytes as packets without segmentation.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use anyhow::ensure;
use towpath_client::{Options, Session};
use towpath_pdu::{PduEndpoint, SendError};
use towpath_testkit::pin;

use crate::Settings;
use crate::messages::{Amount, MTU_BYTES, Stream, add};
use crate::process::{Process, Serving};
use crate::report::{Outcome, Row};
use crate::statistics::Pairs;
use crate::techniques::Waits;

const CHANNEL: u32 = 1;
const PATIENCE: Duration = Duration::from_secs(5);
/// The most PDUs in flight, and their bytes.
const WINDOW: u64 = 64;
const WINDOW_BYTES: usize = 256 << 10;

pub(super) fn measure(
    settings: Settings,
    cores: (usize, usize),
    outcome: &mut Outcome,
) -> anyhow::Result<()> {
    let total: usize = if settings.quick { 4 << 20 } else { 32 << 20 };
    let sizes: Vec<usize> = (10..=16).step_by(if settings.quick { 3 } else { 1 }).collect();
    let serving = |mtu| Serving::memory(mtu).on(cores.0).polling();
    let cut = Process::start(&serving(1500), None)?;
    let whole = Process::start(&serving(MTU_BYTES), None)?;
    pin(cores.1)?;
    let pdus = RefCell::new(Pdus::new(&cut)?);
    let stream = RefCell::new(Stream::new(&whole.socket(), Waits::Polls)?);
    cut.pause()?;
    whole.pause()?;
    for bytes in sizes.into_iter().map(|shift| 1usize << shift) {
        // A PDU of 64 KiB is the longest.
        let bytes = bytes.min(pdus.borrow().sender.max_pdu_bytes());
        let count = (total / bytes) as u64;
        let pairs = Pairs::measure(
            settings.pairs(),
            || {
                cut.resume()?;
                let took = pdus.borrow_mut().run(bytes, count)?;
                cut.pause()?;
                Ok(count as f64 * bytes as f64 * 8.0 / took.as_secs_f64() / 1e6)
            },
            || {
                whole.resume()?;
                let moved = stream.borrow_mut().run(bytes, Amount::Messages(count), None)?;
                whole.pause()?;
                Ok(moved.gbit_s(bytes) * 1e3)
            },
        )?;
        let parameters = [("pdu_bytes", bytes as f64), ("total_bytes", total as f64)];
        let row = |name, unit, values: &[f64]| Row::new(name, &parameters, unit, values);
        let name = "throughput, PDU endpoints cut to 1500 to packets that are not";
        outcome.rows.push(row(name, "ratio", &pairs.ratios()));
        outcome.context.push(row("throughput, PDU endpoints", "Mbit/s", &pairs.ours));
    }
    Ok(())
}

/// Sends at most `most` PDUs to a station and channel, as many as find room. Returns their number.
pub(super) fn send(
    endpoint: &mut PduEndpoint,
    (to, channel): ([u8; 6], u32),
    most: u64,
    pdu_bytes: usize,
) -> anyhow::Result<u64> {
    let mut sent = 0;
    while sent < most {
        match endpoint.message(to, channel, pdu_bytes) {
            Ok(mut message) => {
                while let Some(chunk) = message.next_chunk() {
                    chunk.fill(sent as u8);
                }
                message.send()?;
                sent += 1;
            }
            Err(SendError::Full) => break,
            Err(error) => return Err(error.into()),
        }
    }
    endpoint.flush()?;
    Ok(sent)
}

/// Two PDU endpoints, in one thread.
struct Pdus {
    sender: PduEndpoint,
    receiver: PduEndpoint,
    to: [u8; 6],
}

impl Pdus {
    fn new(process: &Process) -> anyhow::Result<Pdus> {
        let open = |name: &str| -> anyhow::Result<PduEndpoint> {
            let options = Options {
                name: name.into(),
                transmit_slots: 1024,
                receive_slots: 1024,
                ..Options::default()
            };
            let session = Session::attach(process.socket(), &options)?;
            Ok(PduEndpoint::open(session, &towpath_pdu::Options::default())?)
        };
        let (sender, receiver) = (open("generator")?, open("sink")?);
        let to = receiver.session().info().mac.octets();
        Ok(Pdus { sender, receiver, to })
    }

    fn run(&mut self, bytes: usize, count: u64) -> anyhow::Result<Duration> {
        let window = WINDOW.min((WINDOW_BYTES / bytes) as u64).max(1);
        let (mut sent, mut got, mut sum) = (0_u64, 0_u64, 0_u64);
        let start = Instant::now();
        let mut last = start;
        while got < count {
            let before = sent + got;
            let may = (count - sent).min(window - (sent - got));
            sent += send(&mut self.sender, (self.to, CHANNEL), may, bytes)?;
            self.receiver.receive(256, |pdu| {
                sum = pdu.parts().map(add).fold(sum, u64::wrapping_add);
                got += 1;
            })?;
            if sent + got > before {
                last = Instant::now();
            }
            ensure!(last.elapsed() < PATIENCE, "{} PDUs did not arrive", sent - got);
        }
        std::hint::black_box(sum);
        Ok(start.elapsed())
    }
}
