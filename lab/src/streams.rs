//! TCP connections between the kernel and an application of this process, with every byte checked.
//!
//! Half of the connections send in each direction. A sender writes blocks without a pause, or one in each
//! period. With a period, a longer pause at the receiver shows that the connection stands still.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use towpath_net::{Network, TcpListener, TcpStream};

const PORT: u16 = 80;
/// The time limit of a read: a connection that stands still for longer is lost.
pub(crate) const LOST: Duration = Duration::from_secs(20);
/// The bytes of a stream repeat after this many, a prime number, so wrong places show unless they are a
/// multiple of this number apart.
const PATTERN_BYTES: usize = 65_521;
/// The distance of the places at which two streams begin.
const STREAM_OFFSET: usize = 3_001;

/// How the senders write.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    /// The size of a block, up to [`PATTERN_BYTES`].
    pub(crate) block_bytes: usize,
    /// The time from one block to the next; without one, a sender does not wait.
    pub(crate) period: Option<Duration>,
}

impl Load {
    /// Blocks of 2 KiB, one a millisecond per connection.
    pub(crate) const STEADY: Load =
        Load { block_bytes: 2048, period: Some(Duration::from_millis(1)) };
    pub(crate) const UNPACED: Load = Load { block_bytes: 1 << 15, period: None };
}

/// Open connections: the kernel's end and the application's.
pub(crate) struct Streams {
    connections: Vec<(std::net::TcpStream, TcpStream)>,
    load: Load,
    /// The pattern twice, so that each block is one slice of it.
    pattern: Vec<u8>,
}

/// The outcome of a run.
pub(crate) struct Ran<T> {
    /// What the function returned that acted meanwhile.
    pub(crate) outcome: T,
    /// The connections of which an end failed.
    pub(crate) lost: usize,
    /// The bytes that arrived and were right.
    pub(crate) bytes: u64,
}

impl Streams {
    /// Connects the kernel to the application. `connect` connects from the kernel's end.
    pub(crate) fn between(
        network: &Network,
        (connections, load): (usize, Load),
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
        let connections = (0..connections).map(pair).collect::<anyhow::Result<_>>()?;
        // Multiplied by an odd number: no short period.
        let byte = |place: usize| (place.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as u8;
        let pattern = (0..2 * PATTERN_BYTES).map(|place| byte(place % PATTERN_BYTES)).collect();
        Ok(Streams { connections, load, pattern })
    }

    /// Sends and receives while `act` runs.
    pub(crate) fn run<T>(self, act: impl FnOnce(&[Progress]) -> T) -> anyhow::Result<Ran<T>> {
        let progress: Vec<Progress> =
            self.connections.iter().map(|_| Progress::default()).collect();
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            let (mut senders, mut receivers) = (Vec::new(), Vec::new());
            for (number, ((kernel, application), progress)) in
                self.connections.iter().zip(&progress).enumerate()
            {
                let stream = Stream {
                    pattern: &self.pattern,
                    begin: number * STREAM_OFFSET % PATTERN_BYTES,
                    progress,
                };
                let (load, over) = (self.load, &over);
                if number % 2 == 0 {
                    senders.push(scope.spawn(move || {
                        stream.send(kernel, load, over)?;
                        kernel.shutdown(std::net::Shutdown::Write)
                    }));
                    receivers.push(scope.spawn(move || stream.receive(application)));
                } else {
                    senders.push(scope.spawn(move || {
                        stream.send(application, load, over)?;
                        application.shutdown(std::net::Shutdown::Write)
                    }));
                    receivers.push(scope.spawn(move || stream.receive(kernel)));
                }
            }
            let outcome = act(&progress);
            over.store(true, Ordering::Relaxed);
            let failed = |_| anyhow::anyhow!("a thread of a connection failed");
            let mut lost = 0;
            for (sender, receiver) in senders.into_iter().zip(receivers) {
                let sent = sender.join().map_err(failed)?;
                let received = receiver.join().map_err(failed)?;
                lost += usize::from(sent.is_err() || received.is_err());
            }
            let bytes = progress.iter().map(Progress::bytes).sum();
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
    received: AtomicU64,
    /// The longest pause since the last [`Progress::take_longest_pause`], in nanoseconds.
    longest_ns: AtomicU64,
}

impl Progress {
    /// Returns the bytes that the receiver has read, and found right.
    pub(crate) fn bytes(&self) -> u64 {
        self.received.load(Ordering::Acquire)
    }

    /// Returns `true` if the sender has written bytes that the receiver has not read.
    pub(crate) fn has_unread_bytes(&self) -> bool {
        // A receiver can be ahead of what its sender has noted.
        let sent = self.sent.load(Ordering::Acquire);
        sent > self.bytes()
    }

    /// Returns the longest pause between two reads since the last call.
    pub(crate) fn take_longest_pause(&self) -> Duration {
        Duration::from_nanos(self.longest_ns.swap(0, Ordering::Relaxed))
    }
}

/// The bytes of a connection.
#[derive(Clone, Copy)]
struct Stream<'a> {
    pattern: &'a [u8],
    /// The place in the pattern at which the stream begins.
    begin: usize,
    progress: &'a Progress,
}

impl Stream<'_> {
    /// Writes blocks until `over` is set.
    fn send(self, mut to: impl Write, load: Load, over: &AtomicBool) -> std::io::Result<()> {
        let (mut place, mut sent, mut next) = (self.begin, 0, Instant::now());
        while !over.load(Ordering::Relaxed) {
            to.write_all(&self.pattern[place..place + load.block_bytes])?;
            place = (place + load.block_bytes) % PATTERN_BYTES;
            sent += load.block_bytes as u64;
            self.progress.sent.store(sent, Ordering::Release);
            let Some(period) = load.period else { continue };
            // After a pause, the sender does not make up for what it has not written.
            next = (next + period).max(Instant::now());
            thread::sleep(next.saturating_duration_since(Instant::now()));
        }
        Ok(())
    }

    /// Reads and checks bytes until the other end closes the connection.
    fn receive(self, mut from: impl Read) -> anyhow::Result<()> {
        let (mut buffer, mut place, mut last) =
            (vec![0; PATTERN_BYTES], self.begin, Instant::now());
        loop {
            let count = match from.read(&mut buffer) {
                Ok(0) => return Ok(()),
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(error).context("reading"),
            };
            ensure!(
                buffer[..count] == self.pattern[place..place + count],
                "wrong bytes after {} right ones",
                self.progress.bytes()
            );
            place = (place + count) % PATTERN_BYTES;
            let now = Instant::now();
            let pause = now.duration_since(last).as_nanos() as u64;
            last = now;
            self.progress.longest_ns.fetch_max(pause, Ordering::Relaxed);
            self.progress.received.fetch_add(count as u64, Ordering::AcqRel);
        }
    }
}
