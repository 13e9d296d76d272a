//! TCP connections between the kernel and an application of this process, with every byte checked.
//!
//! Half of the connections send in each direction. Every sender writes a block in each period, so a
//! connection on which nothing arrives for longer is one that stands still.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use towpath_net::{Network, TcpListener, TcpStream};

const PORT: u16 = 80;
/// What a sender writes in each period.
pub(crate) const BLOCK_BYTES: usize = 2048;
pub(crate) const PERIOD: Duration = Duration::from_millis(1);
/// The time limit of a read: a connection that stands still for longer is lost.
pub(crate) const LOST: Duration = Duration::from_secs(20);

/// Open connections: the kernel's end and the application's.
pub(crate) struct Streams(Vec<(std::net::TcpStream, TcpStream)>);

/// What happened while the connections ran.
pub(crate) struct Ran<T> {
    pub(crate) outcome: T,
    pub(crate) lost: usize,
    pub(crate) bytes: u64,
}

impl Streams {
    /// Connects the kernel to the application, by a function that connects from its end.
    pub(crate) fn between(
        network: &Network,
        connections: usize,
        connect: impl Fn(SocketAddr) -> anyhow::Result<std::net::TcpStream>,
    ) -> anyhow::Result<Streams> {
        let own = network.addresses().into_iter().find(IpAddr::is_ipv4);
        let own = own.context("the application has no address")?;
        let listener = TcpListener::bind(network, SocketAddr::new(own, PORT))?;
        let pair = |_| {
            let kernel = connect(SocketAddr::new(own, PORT))?;
            let (application, _) = listener.accept()?;
            kernel.set_read_timeout(Some(LOST))?;
            application.set_read_timeout(Some(LOST))?;
            Ok((kernel, application))
        };
        Ok(Streams((0..connections).map(pair).collect::<anyhow::Result<_>>()?))
    }

    /// Sends and receives while `act` runs.
    pub(crate) fn run<T>(self, act: impl FnOnce(&[Progress]) -> T) -> anyhow::Result<Ran<T>> {
        let progress: Vec<Progress> = self.0.iter().map(|_| Progress::default()).collect();
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            let over = &over;
            let (mut senders, mut receivers) = (Vec::new(), Vec::new());
            for (number, ((kernel, application), progress)) in
                self.0.iter().zip(&progress).enumerate()
            {
                if number % 2 == 0 {
                    senders.push(scope.spawn(move || {
                        send(kernel, number, progress, over)
                            .and_then(|()| kernel.shutdown(std::net::Shutdown::Write))
                    }));
                    receivers.push(scope.spawn(move || receive(application, number, progress)));
                } else {
                    senders.push(scope.spawn(move || {
                        send(application, number, progress, over)
                            .and_then(|()| application.shutdown(std::net::Shutdown::Write))
                    }));
                    receivers.push(scope.spawn(move || receive(kernel, number, progress)));
                }
            }
            let outcome = act(&progress);
            over.store(true, Ordering::Relaxed);
            let failed = |_| anyhow::anyhow!("a thread of a connection failed");
            let mut lost = 0;
            for sender in senders {
                lost += usize::from(sender.join().map_err(failed)?.is_err());
            }
            for receiver in receivers {
                lost += usize::from(receiver.join().map_err(failed)?.is_err());
            }
            let bytes = progress.iter().map(|one| one.bytes.load(Ordering::Relaxed)).sum();
            Ok(Ran { outcome, lost, bytes })
        })
    }
}

/// A connection, as other threads see it.
#[derive(Default)]
pub(crate) struct Progress {
    /// The bytes that its sender has written.
    sent: AtomicU64,
    /// The bytes that its receiver has read.
    bytes: AtomicU64,
    /// The longest pause in this window, in nanoseconds.
    pub(crate) longest_ns: AtomicU64,
}

impl Progress {
    /// Returns `true` if the sender has written bytes that the receiver has not read.
    pub(crate) fn has_unread_bytes(&self) -> bool {
        // A receiver can be ahead of what its sender has noted.
        let sent = self.sent.load(Ordering::Acquire);
        sent > self.bytes.load(Ordering::Acquire)
    }
}

/// Returns the byte at a place of a stream.
fn byte_at(stream: usize, place: u64) -> u8 {
    let word = (place / 8).wrapping_add(stream as u64 * 1_000_003);
    word.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()[(place % 8) as usize]
}

/// Writes a block in each period until it is over.
fn send(
    mut to: impl Write,
    stream: usize,
    progress: &Progress,
    over: &AtomicBool,
) -> std::io::Result<()> {
    let (mut place, mut next) = (0, Instant::now());
    while !over.load(Ordering::Relaxed) {
        let block: Vec<u8> =
            (place..place + BLOCK_BYTES as u64).map(|place| byte_at(stream, place)).collect();
        to.write_all(&block)?;
        place += BLOCK_BYTES as u64;
        progress.sent.store(place, Ordering::Release);
        next += PERIOD;
        // After a pause, the sender does not make up for what it has not written.
        next = next.max(Instant::now());
        thread::sleep(next.saturating_duration_since(Instant::now()));
    }
    Ok(())
}

/// Reads and checks bytes until the other end closes the connection.
fn receive(mut from: impl Read, stream: usize, progress: &Progress) -> anyhow::Result<()> {
    let (mut buffer, mut place, mut last) = (vec![0; 1 << 16], 0, Instant::now());
    loop {
        let count = match from.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => return Err(error).context("reading"),
        };
        let now = Instant::now();
        let pause = now.duration_since(last).as_nanos() as u64;
        last = now;
        for byte in &buffer[..count] {
            ensure!(*byte == byte_at(stream, place), "stream {stream}: byte {place} is wrong");
            place += 1;
        }
        progress.longest_ns.fetch_max(pause, Ordering::Relaxed);
        progress.bytes.store(place, Ordering::Release);
    }
}
