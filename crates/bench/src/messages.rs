//! Messages of any size in one direction, as fast as they go: through a server from one session to
//! another, and through the kernel's sockets.
//!
//! Every byte is written by the sender and read by the receiver. A message longer than
//! [`PIECE_BYTES`] is carried in several packets, by whomever.

use std::io::{Read, Write};
use std::net::{TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use towpath_client::{Endpoint, Meta, Options, Rule, SendError, Session};
use towpath_packet::build::Flow;
use towpath_rig::pin;

use crate::flow::{self, HEADER_BYTES};
use crate::kernel_wire::{self, KernelWire};
use crate::techniques::Waits;

/// What one packet carries at most.
pub(crate) const PIECE_BYTES: usize = 32 * 1024;
/// The MTU that this needs.
pub(crate) const MTU_BYTES: usize = 65_535;
/// Data bytes of a frame.
const FRAME_BYTES: usize = 2048;
const SLOTS: usize = 1024;
/// Packets on their way at most.
const WINDOW: u64 = 192;
/// Bytes on their way at most, or one packet.
const WINDOW_BYTES: usize = 1 << 20;
const PATIENCE: Duration = Duration::from_secs(5);

/// When enough was sent.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Amount {
    /// After so long.
    Time(Duration),
    /// After so many messages.
    Messages(u64),
}

/// What was moved, in which time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moved {
    pub(crate) messages: u64,
    pub(crate) took: Duration,
}

impl Moved {
    pub(crate) fn gbit_s(&self, message_bytes: usize) -> f64 {
        self.messages as f64 * message_bytes as f64 * 8.0 / self.took.as_secs_f64() / 1e9
    }
}

/// Packets of a message, and the bytes of each.
fn pieces(message_bytes: usize) -> (u64, usize) {
    let count = message_bytes.div_ceil(PIECE_BYTES).max(1);
    (count as u64, message_bytes.div_ceil(count))
}

/// Packets that may be on their way.
fn window(piece_bytes: usize) -> u64 {
    WINDOW.min((WINDOW_BYTES / (piece_bytes + HEADER_BYTES)) as u64).max(2)
}

/// Sends at a rate: when what was sent is due.
struct Pace {
    start: Instant,
    /// Nanoseconds of a message; 0: as fast as it goes.
    each_ns: f64,
}

impl Pace {
    fn new(message_bytes: usize, bits_per_s: Option<f64>) -> Pace {
        let each_ns = bits_per_s.map_or(0.0, |rate| message_bytes as f64 * 8.0 / rate * 1e9);
        Pace { start: Instant::now(), each_ns }
    }

    /// Messages that may have been sent by now.
    fn due(&self) -> u64 {
        if self.each_ns == 0.0 {
            return u64::MAX;
        }
        (self.start.elapsed().as_nanos() as f64 / self.each_ns) as u64 + 1
    }
}

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
            transmit_frame_bytes: FRAME_BYTES as u32,
            receive_frame_bytes: FRAME_BYTES as u32,
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

    /// Sends and receives; answers when all that was sent is there.
    pub(crate) fn run(
        &mut self,
        message_bytes: usize,
        amount: Amount,
        bits_per_s: Option<f64>,
    ) -> anyhow::Result<Moved> {
        let (count, piece_bytes) = pieces(message_bytes);
        self.headers = flow::headers(&self.flow, piece_bytes)?;
        let frames = (piece_bytes + HEADER_BYTES).div_ceil(FRAME_BYTES) as u64;
        // Half of the slots: what is received was not given back yet when the next one is sent.
        let window = window(piece_bytes).min(SLOTS as u64 / 2 / frames).max(2);
        let (first, got_before) = (self.sent, self.received);
        let pace = Pace::new(message_bytes, bits_per_s);
        let mut last = pace.start;
        loop {
            let messages = (self.sent - first) / count;
            let over = match amount {
                Amount::Time(time) => pace.start.elapsed() >= time,
                Amount::Messages(all) => messages >= all,
            };
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
            let sent = self.sender.send(self.from, len, Meta::FINISHED, |parts| {
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

    /// Until something arrives, or the next message is due.
    fn sleep(&mut self, on_the_way: u64, pace: &Pace, messages: u64) -> anyhow::Result<()> {
        let due = Duration::from_nanos((messages as f64 * pace.each_ns) as u64);
        let left = due.saturating_sub(pace.start.elapsed());
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

/// Reads all of some bytes.
pub(crate) fn add(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let words = words.iter().map(|word| u64::from_ne_bytes(*word));
    let rest = rest.iter().map(|byte| u64::from(*byte));
    words.chain(rest).fold(0, u64::wrapping_add)
}

/// A UDP socket at the near end, and the one at the far end that it sends to.
fn sockets(wire: &KernelWire) -> anyhow::Result<(UdpSocket, UdpSocket)> {
    let far = wire.far_udp(0, 1)?.pop().context("no socket")?;
    let near = wire.near_udp(0)?;
    near.connect(far.local_addr()?)?;
    Ok((near, far))
}

/// Packets that may be on their way to a socket: nothing is lost while its buffer holds them. The kernel
/// counts more than a packet's bytes.
fn window_of(far: &UdpSocket, piece_bytes: usize) -> anyhow::Result<u64> {
    let granted = rustix::net::sockopt::socket_recv_buffer_size(far)?;
    Ok(window(piece_bytes).min((granted / (2 * piece_bytes + 2048)) as u64).max(1))
}

/// The same over UDP sockets: sender and receiver in a thread each, the receiver in `epoll`. What
/// was received is told to the sender through memory, so that nothing is lost, at no cost.
pub(crate) fn udp(
    wire: &KernelWire,
    cores: (usize, usize),
    message_bytes: usize,
    amount: Amount,
    bits_per_s: Option<f64>,
) -> anyhow::Result<Moved> {
    let (near, far) = sockets(wire)?;
    let (count, piece_bytes) = pieces(message_bytes);
    let window = window_of(&far, piece_bytes)?;
    let (received, over) = (AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        let sink = scope.spawn(|| drain(&far, cores.0, &received, &over));
        let generator = scope.spawn(|| -> anyhow::Result<_> {
            pin(cores.1)?;
            let sent = generate(&near, (count, piece_bytes), window, amount, bits_per_s, &received);
            over.store(true, Ordering::Release);
            sent
        });
        let moved = generator.join().map_err(|_| anyhow::anyhow!("the sender failed"))?;
        sink.join().map_err(|_| anyhow::anyhow!("the receiver failed"))??;
        moved
    })
}

fn generate(
    socket: &UdpSocket,
    (count, piece_bytes): (u64, usize),
    window: u64,
    amount: Amount,
    bits_per_s: Option<f64>,
    received: &AtomicU64,
) -> anyhow::Result<Moved> {
    let mut buffer = vec![0; piece_bytes];
    let pace = Pace::new(piece_bytes * count as usize, bits_per_s);
    let (mut sent, mut last) = (0, pace.start);
    loop {
        let got = received.load(Ordering::Acquire);
        let over = match amount {
            Amount::Time(time) => pace.start.elapsed() >= time,
            Amount::Messages(all) => sent >= all * count,
        };
        if over && sent.is_multiple_of(count) {
            if got == sent {
                return Ok(Moved { messages: got / count, took: pace.start.elapsed() });
            }
        } else if sent - got < window && sent < pace.due().saturating_mul(count) {
            buffer.fill(sent as u8);
            match socket.send(&buffer) {
                Ok(_) => {
                    sent += 1;
                    last = Instant::now();
                    continue;
                }
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error.into()),
            }
        }
        ensure!(last.elapsed() < PATIENCE, "{} packets did not arrive", sent - got);
        // At a rate there is time: others may have the core.
        let due = Duration::from_nanos(((sent / count) as f64 * pace.each_ns) as u64);
        match due.checked_sub(pace.start.elapsed()) {
            Some(left) if left > Duration::from_micros(20) => thread::sleep(left),
            _ => thread::yield_now(),
        }
    }
}

fn drain(
    socket: &UdpSocket,
    cpu: usize,
    received: &AtomicU64,
    over: &AtomicBool,
) -> anyhow::Result<()> {
    pin(cpu)?;
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    epoll::add(&epoll, socket, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
    let mut events =
        [epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) }];
    let (mut buffer, mut sum) = (vec![0; PIECE_BYTES + 1], 0u64);
    let timeout = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
    while !over.load(Ordering::Acquire) {
        match epoll::wait(&epoll, &mut events[..], Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let mut got = 0;
        while let Some(len) = kernel_wire::receive(socket, &mut buffer)? {
            sum = sum.wrapping_add(add(&buffer[..len]));
            got += 1;
            if got % 32 == 0 {
                received.fetch_add(32, Ordering::Release);
            }
        }
        received.fetch_add(got % 32, Ordering::Release);
    }
    std::hint::black_box(sum);
    Ok(())
}

/// The same over UDP sockets in one thread, which sends as much as the receiver's socket takes and
/// then receives it: what a single processor does best, since a veth pair delivers at once.
pub(crate) fn udp_alone(
    wire: &KernelWire,
    message_bytes: usize,
    amount: Amount,
    bits_per_s: Option<f64>,
) -> anyhow::Result<Moved> {
    let (near, far) = sockets(wire)?;
    let (count, piece_bytes) = pieces(message_bytes);
    let window = window_of(&far, piece_bytes)?;
    let (mut buffer, mut into) = (vec![0; piece_bytes], vec![0; PIECE_BYTES + 1]);
    let pace = Pace::new(message_bytes, bits_per_s);
    let (mut sent, mut got, mut sum, mut last) = (0_u64, 0_u64, 0_u64, pace.start);
    loop {
        let over = match amount {
            Amount::Time(time) => pace.start.elapsed() >= time,
            Amount::Messages(all) => sent >= all * count,
        };
        if over && sent.is_multiple_of(count) && got == sent {
            std::hint::black_box(sum);
            return Ok(Moved { messages: got / count, took: pace.start.elapsed() });
        }
        let due = pace.due().saturating_mul(count);
        let before = sent + got;
        while (!over || !sent.is_multiple_of(count)) && sent - got < window && sent < due {
            buffer.fill(sent as u8);
            match near.send(&buffer) {
                Ok(_) => sent += 1,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error.into()),
            }
            if matches!(amount, Amount::Messages(all) if sent >= all * count) {
                break;
            }
        }
        while let Some(len) = kernel_wire::receive(&far, &mut into)? {
            sum = sum.wrapping_add(add(&into[..len]));
            got += 1;
        }
        if sent + got > before {
            last = Instant::now();
            continue;
        }
        ensure!(last.elapsed() < PATIENCE, "{} packets did not arrive", sent - got);
        let due = Duration::from_nanos(((sent / count) as f64 * pace.each_ns) as u64);
        if let Some(left) = due.checked_sub(pace.start.elapsed()) {
            thread::sleep(left);
        }
    }
}

/// The same over a TCP connection; a message is a `write`.
pub(crate) fn tcp(
    wire: &KernelWire,
    cores: (usize, usize),
    message_bytes: usize,
    window: Duration,
) -> anyhow::Result<Moved> {
    let (near, far) = wire.tcp()?;
    for stream in [&near, &far] {
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
    }
    thread::scope(|scope| {
        let sink = scope.spawn(|| {
            pin(cores.0)?;
            sink_stream(far)
        });
        let generator = scope.spawn(move || -> anyhow::Result<u64> {
            pin(cores.1)?;
            let (mut stream, mut buffer) = (near, vec![0; message_bytes]);
            let (start, mut sent) = (Instant::now(), 0);
            while start.elapsed() < window {
                buffer.fill(sent as u8);
                stream.write_all(&buffer).context("sending")?;
                sent += 1;
            }
            Ok(sent)
        });
        let sent = generator.join().map_err(|_| anyhow::anyhow!("the sender failed"))?;
        let received = sink.join().map_err(|_| anyhow::anyhow!("the receiver failed"))?;
        // Who sends to a receiver that is gone has the lesser error of the two.
        let ((bytes, took), sent) = (received?, sent?);
        if bytes != sent * message_bytes as u64 {
            bail!("{sent} messages of {message_bytes} bytes sent, {bytes} bytes received");
        }
        Ok(Moved { messages: sent, took })
    })
}

/// Reads a stream to its end: bytes, and the time from the first to the last.
fn sink_stream(mut stream: TcpStream) -> anyhow::Result<(u64, Duration)> {
    let (mut buffer, mut bytes, mut sum) = (vec![0; 128 * 1024], 0, 0u64);
    let mut heard = [PollFd::from_borrowed_fd(stream.as_fd(), PollFlags::IN)];
    poll(&mut heard, Some(&Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 }))?;
    let start = Instant::now();
    loop {
        let len = stream.read(&mut buffer).context("receiving")?;
        if len == 0 {
            std::hint::black_box(sum);
            return Ok((bytes, start.elapsed()));
        }
        sum = sum.wrapping_add(add(&buffer[..len]));
        bytes += len as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_carried_in_as_few_packets_as_possible() {
        assert_eq!(pieces(16), (1, 16));
        assert_eq!(pieces(PIECE_BYTES), (1, PIECE_BYTES));
        assert_eq!(pieces(2 * PIECE_BYTES), (2, PIECE_BYTES));
        assert_eq!(pieces(48_000), (2, 24_000));
        for bytes in [16, 1500, PIECE_BYTES] {
            assert!((2..=WINDOW).contains(&window(bytes)));
        }
    }

    #[test]
    fn all_bytes_are_read() {
        assert_eq!(add(&[1; 8]), 0x0101_0101_0101_0101);
        assert_eq!(add(&[0, 0, 0, 0, 0, 0, 0, 0, 5, 6]), 11);
    }
}
