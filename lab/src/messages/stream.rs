//! Messages from one session of a server to another.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::ensure;
use towpath_client::{Endpoint, Meta, Options, Rule, SendError, Session};
use towpath_packet::build::Flow;

use super::{Amount, Moved, PATIENCE, Pace, add, pieces, window};
use crate::flow::{self, HEADER_BYTES};
use crate::techniques::Waits;

/// Data bytes of a buffer.
const FRAME_BYTES: usize = 2048;
const SLOTS: usize = 1024;

/// Two sessions of a server, generator and sink in one thread.
pub(crate) struct Stream {
    sender: Session,
    receiver: Session,
    from: Endpoint,
    headers: [u8; HEADER_BYTES],
    flow: Flow,
    waits: Waits,
    sent: u64,
    received: u64,
    bytes: u64,
    sum: u64,
}

impl Stream {
    pub(crate) fn new(socket: &Path, waits: Waits) -> anyhow::Result<Stream> {
        let options = |name: &str| Options {
            name: name.into(),
            transmit_slots: SLOTS as u32,
            receive_slots: SLOTS as u32,
            transmit_buffer_bytes: FRAME_BYTES as u32,
            receive_buffer_bytes: FRAME_BYTES as u32,
            ..Options::default()
        };
        let mut sender = Session::attach(socket, &options("generator"))?;
        let mut receiver = Session::attach(socket, &options("sink"))?;
        let flow = flow::between(&sender, &receiver, (1000, 2000))?;
        let from = sender.open(&Rule::new().udp(1000))?;
        receiver.open(&Rule::new().udp(2000))?;
        let headers = [0; HEADER_BYTES];
        let (sent, received, bytes, sum) = (0, 0, 0, 0);
        Ok(Stream { sender, receiver, from, headers, flow, waits, sent, received, bytes, sum })
    }

    /// Sends and receives; returns when all packets sent have arrived.
    pub(crate) fn run(
        &mut self,
        message_bytes: usize,
        amount: Amount,
        bits_per_s: Option<f64>,
    ) -> anyhow::Result<Moved> {
        let (count, piece_bytes) = pieces(message_bytes);
        self.headers = flow::headers(&self.flow, piece_bytes)?;
        let frames = (piece_bytes + HEADER_BYTES).div_ceil(FRAME_BYTES) as u64;
        // Half of the slots: the application releases received buffers only after it sends the next
        // packets.
        let window = window(piece_bytes).min(SLOTS as u64 / 2 / frames).max(2);
        let (first, got_before) = (self.sent, self.received);
        let pace = Pace::new(message_bytes, bits_per_s);
        let mut last = pace.start;
        loop {
            let messages = (self.sent - first) / count;
            let over = amount.is_sent(&pace, messages);
            let on_the_way = self.sent - self.received;
            let due = pace.due();
            if over && on_the_way == 0 && (self.sent - first).is_multiple_of(count) {
                let messages = (self.received - got_before) / count;
                return Ok(Moved { messages, took: pace.start.elapsed() });
            }
            let mut sent = 0;
            if !over || !(self.sent - first).is_multiple_of(count) {
                let left = match amount {
                    Amount::Messages(all) => all * count - (self.sent - first),
                    Amount::Time(_) => u64::MAX,
                };
                let may = due.saturating_mul(count).saturating_sub(self.sent - first);
                sent =
                    self.send(window.saturating_sub(on_the_way).min(may).min(left), piece_bytes)?;
            }
            let got = self.receive()?;
            if got + sent > 0 {
                last = Instant::now();
                continue;
            }
            ensure!(last.elapsed() < PATIENCE, "{on_the_way} packets did not arrive");
            if self.waits == Waits::Blocks {
                self.sleep(on_the_way, &pace, (self.sent - first) / count)?;
            }
        }
    }

    fn send(&mut self, most: u64, piece_bytes: usize) -> anyhow::Result<u64> {
        let most = most.min(64);
        for number in 0..most {
            let (headers, fill) = (&self.headers, self.sent as u8);
            let len = HEADER_BYTES + piece_bytes;
            let sent = self.sender.send(self.from, len, Meta::FULL, |parts| {
                let mut before = HEADER_BYTES;
                for part in parts {
                    let (start, payload) = part.split_at_mut(before.min(part.len()));
                    start.copy_from_slice(&headers[..start.len()]);
                    before -= start.len();
                    payload.fill(fill);
                }
            });
            match sent {
                Ok(()) => self.sent += 1,
                Err(SendError::Full) => {
                    self.sender.flush()?;
                    return Ok(number);
                }
                Err(error) => return Err(error.into()),
            }
        }
        if most > 0 {
            self.sender.flush()?;
        }
        Ok(most)
    }

    fn receive(&mut self) -> anyhow::Result<u64> {
        let (mut sum, mut bytes) = (0u64, 0);
        let got = self.receiver.receive(0, 64, |packet| {
            for part in packet.parts() {
                sum = sum.wrapping_add(add(part));
                bytes += part.len() as u64;
            }
        })? as u64;
        self.sum = std::hint::black_box(self.sum.wrapping_add(sum));
        self.bytes += bytes;
        self.received += got;
        Ok(got)
    }

    /// Sleeps until something arrives, or the next message is due.
    fn sleep(&mut self, on_the_way: u64, pace: &Pace, messages: u64) -> anyhow::Result<()> {
        let left = pace.left(messages).unwrap_or_default();
        if on_the_way == 0 {
            thread::sleep(left.min(Duration::from_millis(100)));
            return Ok(());
        }
        let most = if pace.each_ns > 0.0 { left } else { Duration::from_millis(100) };
        if !most.is_zero() {
            self.receiver.wait(Some(most))?;
        }
        Ok(())
    }
}
