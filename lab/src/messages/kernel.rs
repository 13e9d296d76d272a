//! Messages through the kernel's sockets, over a veth pair.

use std::io::Write;
use std::net::{TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use towpath_testkit::pin;

use super::amount::{Amount, Moved, PATIENCE, PIECE_BYTES, Pace, add, pieces, window};
use crate::kernel_wire::{self, KernelWire, read};

/// A UDP socket at the near end, and the one at the far end that it sends to.
struct Sockets {
    near: UdpSocket,
    far: UdpSocket,
    /// Packets of a message, and the bytes of each.
    count: u64,
    piece_bytes: usize,
    /// The largest number of packets in flight: nothing is lost while the far socket's buffer holds
    /// them.
    window: u64,
}

impl Sockets {
    fn new(wire: &KernelWire, message_bytes: usize) -> anyhow::Result<Sockets> {
        let far = wire.far_udp(0, 1)?.pop().context("no socket")?;
        let near = wire.near_udp(0)?;
        near.connect(far.local_addr()?)?;
        let (count, piece_bytes) = pieces(message_bytes);
        // The kernel accounts for more than a packet's bytes.
        let held = rustix::net::sockopt::socket_recv_buffer_size(&far)? / (2 * piece_bytes + 2048);
        let window = window(piece_bytes).min(held as u64).max(1);
        Ok(Sockets { near, far, count, piece_bytes, window })
    }
}

/// Carries messages over UDP sockets: sender and receiver in a thread each, the receiver in
/// `epoll`. The receiver reports its count through shared memory, so that nothing is lost, at no
/// cost.
pub(crate) fn udp(
    wire: &KernelWire,
    cores: (usize, usize),
    message_bytes: usize,
    amount: Amount,
    bits_per_s: Option<f64>,
) -> anyhow::Result<Moved> {
    let sockets = Sockets::new(wire, message_bytes)?;
    let (received, over) = (AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        let sink = scope.spawn(|| drain(&sockets.far, cores.0, &received, &over));
        let generator = scope.spawn(|| -> anyhow::Result<_> {
            pin(cores.1)?;
            let sent = generate(&sockets, amount, bits_per_s, &received);
            over.store(true, Ordering::Release);
            sent
        });
        let moved = generator.join().map_err(|_| anyhow::anyhow!("the sender failed"))?;
        sink.join().map_err(|_| anyhow::anyhow!("the receiver failed"))??;
        moved
    })
}

fn generate(
    Sockets { near, count, piece_bytes, window, .. }: &Sockets,
    amount: Amount,
    bits_per_s: Option<f64>,
    received: &AtomicU64,
) -> anyhow::Result<Moved> {
    let (count, window) = (*count, *window);
    let mut buffer = vec![0; *piece_bytes];
    let pace = Pace::new(piece_bytes * count as usize, bits_per_s);
    let (mut sent, mut last) = (0, pace.start);
    loop {
        let got = received.load(Ordering::Acquire);
        let over = amount.is_sent(&pace, sent / count);
        if over && sent.is_multiple_of(count) {
            if got == sent {
                return Ok(Moved { messages: got / count, took: pace.start.elapsed() });
            }
        } else if sent - got < window && sent < pace.due().saturating_mul(count) {
            buffer.fill(sent as u8);
            match near.send(&buffer) {
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
        // At a rate there is time, so other threads may have the core.
        match pace.left(sent / count) {
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

/// Carries messages over UDP sockets in one thread, which fills the receiver's socket and then
/// drains it. That suits a single processor best, since a veth pair delivers at once.
pub(crate) fn udp_alone(
    wire: &KernelWire,
    message_bytes: usize,
    amount: Amount,
    bits_per_s: Option<f64>,
) -> anyhow::Result<Moved> {
    let Sockets { near, far, count, piece_bytes, window } = Sockets::new(wire, message_bytes)?;
    let (mut buffer, mut into) = (vec![0; piece_bytes], vec![0; PIECE_BYTES + 1]);
    let pace = Pace::new(message_bytes, bits_per_s);
    let (mut sent, mut got, mut sum, mut last) = (0_u64, 0_u64, 0_u64, pace.start);
    loop {
        let over = amount.is_sent(&pace, sent / count);
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
        if let Some(left) = pace.left(sent / count) {
            thread::sleep(left);
        }
    }
}

/// Carries messages over a TCP connection; a message is a `write`.
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
        // The receiver's error comes first: if the receiver is gone, the sender's error only
        // follows from that.
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
    let mut polled = [PollFd::from_borrowed_fd(stream.as_fd(), PollFlags::IN)];
    poll(&mut polled, Some(&Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 }))?;
    let start = Instant::now();
    loop {
        let len = read(&mut stream, &mut buffer).context("receiving")?;
        if len == 0 {
            std::hint::black_box(sum);
            return Ok((bytes, start.elapsed()));
        }
        sum = sum.wrapping_add(add(&buffer[..len]));
        bytes += len as u64;
    }
}
