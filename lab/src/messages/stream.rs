//! Messages from one session of a server to another.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::ensure;
use towpath_client::{Endpoint, Meta, Options, QueuePair, Rule, SendError, Session};
use towpath_packet::build::Flow;

use super::amount::{Amount, Moved, PATIENCE, Pace, add, pieces, window};
use super::credit::{Acknowledgement, Credit, Granter};
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
    /// With flow control in the protocol; without it, the sender sees the receiver's count.
    control: Option<Control>,
}

/// Flow control by acknowledgements, which the receiver sends as packets.
struct Control {
    /// The receiver's endpoint.
    from: Endpoint,
    headers: [u8; HEADER_BYTES],
    granter: Granter,
    credit: Credit,
    /// Buffers of a packet.
    each: u64,
    /// Acknowledgements sent so far.
    acknowledged: u64,
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
        let (sent, received, bytes, sum, control) = (0, 0, 0, 0, None);
        Ok(Stream {
            sender,
            receiver,
            from,
            headers,
            flow,
            waits,
            sent,
            received,
            bytes,
            sum,
            control,
        })
    }

    /// Creates a stream whose receiver sends acknowledgements, which carry the free buffer space.
    /// Both sides poll.
    pub(crate) fn acknowledged(socket: &Path) -> anyhow::Result<Stream> {
        let mut stream = Stream::new(socket, Waits::Polls)?;
        let back = flow::between(&stream.receiver, &stream.sender, (2001, 1000))?;
        let from = stream.receiver.open(&Rule::new().udp(2001))?;
        stream.control = Some(Control {
            from,
            headers: flow::headers(&back, Acknowledgement::BYTES)?,
            granter: Granter::new(0, 0),
            credit: Credit::new(0, 0),
            each: 1,
            acknowledged: 0,
        });
        Ok(stream)
    }

    /// Returns the packets received and the acknowledgements sent so far.
    pub(crate) fn counts(&self) -> [u64; 2] {
        let acknowledged = self.control.as_ref().map_or(0, |control| control.acknowledged);
        [self.received, acknowledged]
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
        if let Some(control) = &mut self.control {
            control.begin(window, frames);
        }
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
                let room = match &mut self.control {
                    None => window.saturating_sub(on_the_way),
                    Some(control) => control.room(&mut self.sender)?,
                };
                sent = self.send(room.min(may).min(left), piece_bytes)?;
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
            let sent = self.sender.sender().send(self.from, len, Meta::FULL, |parts| {
                let mut before = HEADER_BYTES;
                for part in parts {
                    let (start, payload) = part.split_at_mut(before.min(part.len()));
                    start.copy_from_slice(&headers[..start.len()]);
                    before -= start.len();
                    payload.fill(fill);
                }
            });
            match sent {
                Ok(()) => {
                    self.sent += 1;
                    self.control.iter_mut().for_each(|control| control.credit.fill(control.each));
                }
                Err(SendError::Full) => {
                    self.sender.sender().flush()?;
                    return Ok(number);
                }
                Err(error) => return Err(error.into()),
            }
        }
        if most > 0 {
            self.sender.sender().flush()?;
        }
        Ok(most)
    }

    fn receive(&mut self) -> anyhow::Result<u64> {
        let (mut sum, mut bytes) = (0u64, 0);
        let got = self.receiver.receiver().receive(QueuePair::FIRST, 64, |packet| {
            for part in packet.parts() {
                sum = sum.wrapping_add(add(part));
                bytes += part.len() as u64;
            }
        })? as u64;
        self.sum = std::hint::black_box(self.sum.wrapping_add(sum));
        self.bytes += bytes;
        self.received += got;
        if let Some(control) = &mut self.control {
            control.acknowledge(&mut self.receiver, got)?;
        }
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

impl Control {
    /// Begins a run, in which the receiver grants the buffers of `window` packets, `each` a packet.
    /// All packets of the run before have arrived.
    fn begin(&mut self, window: u64, each: u64) {
        let emptied = self.granter.emptied();
        self.granter = Granter::new(window * each, emptied);
        self.credit = Credit::new(window * each, emptied);
        self.each = each;
    }

    /// Takes the acknowledgements that have come. Returns the packets that may be sent.
    fn room(&mut self, sender: &mut Session) -> anyhow::Result<u64> {
        let credit = &mut self.credit;
        sender.receiver().receive(QueuePair::FIRST, 64, |packet| {
            let bytes = packet.contiguous().and_then(|bytes| bytes.get(HEADER_BYTES..));
            if let Some(bytes) = bytes.and_then(|bytes| bytes.first_chunk()) {
                credit.take(Acknowledgement::from_bytes(*bytes));
            }
        })?;
        Ok(self.credit.room() / self.each)
    }

    /// Notes that the receiver has read packets, and sends an acknowledgement if one is due.
    fn acknowledge(&mut self, receiver: &mut Session, packets: u64) -> anyhow::Result<()> {
        self.granter.empty(packets * self.each);
        let Some(acknowledgement) = self.granter.due() else { return Ok(()) };
        let frame = [&self.headers[..], &acknowledgement.to_bytes()].concat();
        receiver.sender().send_bytes(self.from, &frame)?;
        receiver.sender().flush()?;
        self.acknowledged += 1;
        Ok(())
    }
}
