//! The bandwidth by the length of messages: the paper's figure 4, between two applications of one
//! host. The sender stores each message into the receiver's memory itself (programmed I/O, by a
//! channel), or requests that the server writes it there. Acknowledgements tell the sender how much
//! room there is. The sender writes every byte, and the receiver copies it.

use std::collections::VecDeque;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure};
use towpath_client::{
    Access, ApertureKey, Memory, Request, RequestError, RequestId, RequestState, Sharing,
    WaitStrategy,
};
use towpath_testkit::pin;

use super::ends::{self, Side};
use super::spinning::Spinning;
use crate::Settings;
use crate::figure::{Axis, Figure, Series};
use crate::peers::SpinningChannel;
use crate::process::{Process, Serving};
use crate::report::{Outcome, Row};
use crate::statistics::{Pairs, Summary};
use crate::trip::PATIENCE;

/// The length of each ring.
const RING_BYTES: usize = 4 << 20;
/// The offset at which each side's memory holds the other side's position.
const POSITION: usize = RING_BYTES;
/// The most requests of a side that are not complete.
const MAX_PENDING: usize = 64;

pub(super) fn measure(
    settings: Settings,
    cores: (usize, usize),
    outcome: &mut Outcome,
) -> anyhow::Result<()> {
    outcome.how += &format!(
        "; bandwidth: by a channel as above, with rings of {RING_BYTES} bytes; by requests, the engine \
         polls on core {}, and both applications are one thread on core {}",
        cores.0, cores.1
    );
    let window = Duration::from_millis(if settings.quick { 20 } else { 150 });
    let sizes = (4..=20).step_by(if settings.quick { 8 } else { 2 }).map(|shift| 1_usize << shift);
    let blocking = Process::start(&Serving::memory(1500), None)?;
    let mut channel = Spinning::with_rings(&blocking.socket(), cores, [RING_BYTES; 2])?;
    let polling = Process::start(&Serving::memory(1500).on(cores.0).polling(), None)?;
    let mut requests = Requests::new(&polling.socket())?;
    polling.pause()?;
    let mut curves = [Vec::new(), Vec::new()];
    for bytes in sizes {
        let gbit_s = |million_per_s: f64| million_per_s * bytes as f64 * 8.0 / 1e3;
        let pairs = Pairs::measure(
            settings.pairs(),
            || {
                polling.resume()?;
                pin(cores.1)?;
                let rate = requests.run(bytes, window);
                polling.pause()?;
                rate.map(gbit_s)
            },
            || channel.messages(bytes, window).map(gbit_s),
        )?;
        let parameters = [("message_bytes", bytes as f64)];
        let name = "bandwidth, requests to programmed I/O";
        outcome.rows.push(Row::new(name, &parameters, "ratio", &pairs.ratios()));
        let both = [("requests", &pairs.ours), ("programmed I/O", &pairs.base)];
        for ((name, values), curve) in both.into_iter().zip(&mut curves) {
            let name = format!("bandwidth, {name}");
            outcome.context.push(Row::new(&name, &parameters, "Gbit/s", values));
            curve.push([bytes as f64, Summary::of(values).median]);
        }
    }
    let [by_requests, by_stores] = curves;
    outcome.figures.push(
        Figure::new(
            "bandwidth",
            "Bandwidth by message size",
            Axis::log("message", "B"),
            Axis::log("bandwidth", "Gbit/s"),
        )
        .with(Series::line("programmed I/O", by_stores))
        .with(Series::line("requests", by_requests)),
    );
    Ok(())
}

/// A side with memory, and the key of the other one's.
struct End {
    side: Side,
    memory: Memory,
    far: ApertureKey,
    /// Requests that are not complete, with the position behind their bytes.
    pending: VecDeque<(RequestId, u64)>,
    /// The position up to which requests are complete.
    complete: u64,
}

impl End {
    /// Queues a request, if there is room. Returns whether there was.
    fn request(&mut self, request: &Request, end: u64) -> anyhow::Result<bool> {
        if self.pending.len() >= MAX_PENDING {
            return Ok(false);
        }
        match self.side.session.requests().queue(self.side.endpoint, request) {
            Ok(id) => self.pending.push_back((id, end)),
            Err(RequestError::Full) => return Ok(false),
            Err(error) => return Err(error.into()),
        }
        Ok(true)
    }

    /// Removes the complete requests.
    fn take_completions(&mut self) -> anyhow::Result<()> {
        while let Some((id, end)) = self.pending.front().copied() {
            match self.side.session.requests().state(id) {
                RequestState::Pending => break,
                RequestState::Complete => self.complete = end,
                state => bail!("a request failed: {state:?}"),
            }
            self.pending.pop_front();
        }
        Ok(())
    }
}

/// Two applications, of which one sends to the other by requests.
pub(super) struct Requests {
    sender: End,
    receiver: End,
    /// The positions up to which messages are sent and received, since the first run.
    sent: u64,
    received: u64,
    acknowledged: u64,
}

impl Requests {
    pub(super) fn new(socket: &Path) -> anyhow::Result<Requests> {
        let [mut near, mut far] = ends::open(socket, WaitStrategy::Poll, (1, 64))?;
        let share = |side: &mut Side| -> anyhow::Result<(Memory, ApertureKey)> {
            let memory = side.session.memories().create(RING_BYTES + 4096, Sharing::Requests)?;
            let all = 0..memory.len();
            let export =
                side.session.memories().export(side.endpoint, &memory, all, Access::ReadWrite)?;
            Ok((memory, export.key()))
        };
        let (near_memory, near_key) = share(&mut near)?;
        let (far_memory, far_key) = share(&mut far)?;
        let end =
            |side, memory, far| End { side, memory, far, pending: VecDeque::new(), complete: 0 };
        Ok(Requests {
            sender: end(near, near_memory, far_key),
            receiver: end(far, far_memory, near_key),
            sent: 0,
            received: 0,
            acknowledged: 0,
        })
    }

    /// Sends messages for a time. Returns millions of messages received per second.
    pub(super) fn run(&mut self, bytes: usize, window: Duration) -> anyhow::Result<f64> {
        let (mut out, mut into) = (vec![0_u8; bytes], vec![0_u8; bytes]);
        // Each run begins at the start of the ring.
        let begin = self.sent.next_multiple_of(RING_BYTES as u64);
        (self.sent, self.received, self.acknowledged) = (begin, begin, begin);
        self.sender.memory.store(POSITION, begin)?;
        self.sender.complete = begin;
        self.receiver.memory.store(POSITION, begin)?;
        let (start, mut last, mut count) = (Instant::now(), Instant::now(), 0_u64);
        let mut took = Duration::ZERO;
        loop {
            let is_over = took >= window;
            if !is_over {
                self.send(&mut out)?;
            }
            let got = self.receive(&mut into)?;
            count += if is_over { 0 } else { got };
            let now = Instant::now();
            if got > 0 {
                last = now;
            }
            if !is_over {
                took = now - start;
            } else if self.received == self.sent {
                return Ok(count as f64 / took.as_secs_f64() / 1e6);
            }
            ensure!(now - last < PATIENCE, "no message in {PATIENCE:?}");
        }
    }

    /// Sends what there is room for: a write of the message, and one of how much was sent.
    fn send(&mut self, message: &mut [u8]) -> anyhow::Result<()> {
        let (bytes, end) = (message.len(), &mut self.sender);
        end.take_completions()?;
        let acknowledged = end.memory.load(POSITION)?;
        let before = self.sent;
        let mut number = 0_u8;
        // Its own copy must be sent before it is written anew.
        while self.sent + bytes as u64 - acknowledged.min(end.complete) <= RING_BYTES as u64
            && end.pending.len() + 2 < MAX_PENDING
        {
            let place = self.sent as usize % RING_BYTES;
            message.fill(number);
            number = number.wrapping_add(1);
            end.memory.write(place, message)?;
            let write = Request::write(end.far, place as u64);
            let write = write.local(&end.memory, place..place + bytes).together();
            if !end.request(&write, self.sent + bytes as u64)? {
                break;
            }
            self.sent += bytes as u64;
        }
        if self.sent != before {
            // Each write has a slot of its own, since the engine may not have read the earlier ones.
            let slot = POSITION + 64 + (self.sent / bytes as u64 % MAX_PENDING as u64) as usize * 8;
            end.memory.store(slot, self.sent)?;
            let write = Request::write(end.far, POSITION as u64);
            let write = write.local(&end.memory, slot..slot + 8);
            while !end.request(&write, self.sent)? {
                end.side.session.sender().flush()?;
                end.take_completions()?;
            }
            end.side.session.sender().flush()?;
        }
        Ok(())
    }

    /// Receives what there is, and acknowledges an eighth of the ring at a time. Returns the number
    /// of messages.
    fn receive(&mut self, into: &mut [u8]) -> anyhow::Result<u64> {
        let end = &mut self.receiver;
        let sent = end.memory.load(POSITION)?;
        let mut count = 0;
        while self.received < sent {
            end.memory.read(self.received as usize % RING_BYTES, into)?;
            std::hint::black_box(&into);
            self.received += into.len() as u64;
            count += 1;
        }
        if self.received - self.acknowledged >= RING_BYTES as u64 / 8 {
            end.take_completions()?;
            let slot = POSITION + 64 + (end.pending.len() % MAX_PENDING) * 8;
            end.memory.store(slot, self.received)?;
            let write = Request::write(end.far, POSITION as u64);
            if end.request(&write.local(&end.memory, slot..slot + 8), self.received)? {
                end.side.session.sender().flush()?;
                self.acknowledged = self.received;
            }
        }
        Ok(count)
    }
}
