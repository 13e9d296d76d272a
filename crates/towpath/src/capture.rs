//! `towpath capture`: a copy of every packet, received or sent, as a pcapng file.
#![forbid(unsafe_code)]

mod out;

use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use towpath_client::{Endpoint, OpenError, Options, QueuePair, Refusal, Rule, SendError, Session};
use towpath_packet::pcapng::{Direction, InterfaceId, Writer};

use crate::failure::{Failure, says};
use crate::find::ServerName;
use crate::number::Number;
use crate::signals::Signals;
use out::{Blocks, Out};

/// Text after the help.
pub(crate) const EXAMPLES: &str = "\
Root, the server's user, and users whose grant has capture = true may capture. The capture ends at
SIGINT, SIGTERM or SIGHUP, when its reader ends, or when it reaches the limit of -c or --seconds.

Examples:
  towpath capture -w wire.pcapng
  towpath capture -w - | tcpdump -nr -
  towpath capture tap0 -w - -c 1000 | tshark -r -
  towpath capture --seconds 10 -w ten.pcapng";

/// Buffers for packets that wait to be written: enough for a pause of the disk.
const SLOTS: u32 = 16_384;
/// Data bytes of each buffer; a longer packet takes several buffers.
const FRAME_BYTES: u32 = 2048;
/// Packets taken from the queue between two checks of signals and the clock.
const BATCH: usize = 256;

/// Options of `towpath capture`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    server: ServerName,
    /// The file to write, - for standard output
    #[arg(short = 'w', long = "write", value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    write: String,
    /// End after this many packets
    #[arg(short, long, value_name = "COUNT")]
    count: Option<Number<1, 1_000_000_000_000>>,
    /// End after this many seconds
    #[arg(long, value_name = "SECONDS")]
    seconds: Option<Number<1, 31_536_000>>,
}

/// Captures.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let socket = args.server.resolve()?;
    let signals = Signals::block()
        .map_err(|error| Failure::new(format!("waiting for signals: {}", says(&error))))?;
    let signals = Arc::new(signals);
    let options = Options {
        name: "towpath capture".to_owned(),
        endpoints: 1,
        transmit_slots: 8,
        transmit_buffer_bytes: 64,
        receive_slots: SLOTS,
        receive_buffer_bytes: FRAME_BYTES,
        ..Options::default()
    };
    let mut session = Session::attach(&socket, &options)
        .map_err(|error| Failure::new(format!("capture: {error}")))?;
    let device = session.info().device.clone();
    // A refused capture leaves the file as it is.
    let endpoint =
        session.open(&Rule::capture()).map_err(|error| Failure::new(forbidden(&error, &device)))?;
    let file = Out::open(&args.write, signals.clone())
        .map_err(|error| Failure::new(format!("capture: -w {}: {error}", args.write)))?;
    let mut capture = Capture::new(file, &device).map_err(|error| not_written(args, &error, ""))?;
    let limits = Limits {
        packets: args.count.map_or(u64::MAX, |count| count.get() as u64),
        until: args
            .seconds
            .map(|seconds| Instant::now() + Duration::from_secs(seconds.get() as u64)),
    };
    let outcome = capture.run(&mut session, endpoint, &signals, &limits);
    let dropped = session.counters(endpoint).rx_dropped();
    let outcome = match outcome {
        Err(End::Write(error)) => Err(End::Write(error)),
        // The file keeps the packets captured before a server's end.
        other => capture.finish(dropped).map_err(End::Write).and(other),
    };
    let mut unwritten = capture.writer.get_mut().unwritten();
    let packets = capture.packets - unwritten;
    if matches!(&outcome, Err(End::Write(_))) {
        // The packets that the server has captured, and that this program has not taken.
        let _ = session.receiver().receive(QueuePair::FIRST, SLOTS as usize, |_| unwritten += 1);
    }
    let unwritten =
        if unwritten > 0 { format!(", {unwritten} not written") } else { String::new() };
    let noun = if packets == 1 { "packet" } else { "packets" };
    let _ = writeln!(io::stderr(), "{packets} {noun} captured, {dropped} dropped{unwritten}");
    match outcome {
        Ok(()) => Ok(()),
        Err(End::Write(error))
            if error.kind() == io::ErrorKind::BrokenPipe || out::was_asked(&error) =>
        {
            Ok(())
        }
        Err(End::Write(error)) => Err(not_written(
            args,
            &error,
            "; the file keeps the packets written before, and lacks its end",
        )),
        Err(End::Failed(text)) => Err(Failure::new(format!("capture: {text}"))),
    }
}

/// Returns the failure of a write, with a remedy. `then`: a text about the file after the failure.
fn not_written(args: &Args, error: &io::Error, then: &str) -> Failure {
    let remedy = match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "make room on its file system, or choose a file on another one with -w"
        }
        io::ErrorKind::FileTooLarge => "raise the limit of file sizes (ulimit -f), or capture less",
        _ => "with -w, choose a file that can be written",
    };
    Failure::new(format!("capture: {}: {}{then}; {remedy}", args.write, says(error)))
}

/// Returns the text for a capture that the server refused, with a remedy.
fn forbidden(error: &OpenError, device: &str) -> String {
    match error {
        OpenError::Refused { refusal: Refusal::Permission, .. } => format!(
            "capture: {device}: your user may not capture; run the command as root, for example \
             with sudo, or ask the administrator for a grant with capture = true"
        ),
        _ => format!("capture: {device}: {error}"),
    }
}

/// Conditions under which a capture ends by itself.
struct Limits {
    packets: u64,
    until: Option<Instant>,
}

/// The reason for an early end of a capture.
enum End {
    Write(io::Error),
    Failed(String),
}

struct Capture {
    writer: Writer<Blocks>,
    interface: InterfaceId,
    /// The output, polled for the end of its reader.
    reader: Option<Arc<std::fs::File>>,
    packets: u64,
    /// Holds a copy of a packet that lies in several buffers.
    whole: Vec<u8>,
}

impl Capture {
    fn new(file: Out, device: &str) -> io::Result<Capture> {
        let reader = file.waits().then(|| file.watched());
        let mut writer = Writer::new(Blocks::new(file), "towpath")?;
        let interface = writer.interface(device, 0)?;
        // The reader sees at once that the capture began.
        writer.flush()?;
        Ok(Capture { writer, interface, reader, packets: 0, whole: Vec::new() })
    }

    /// Writes packets until it is time to end.
    fn run(
        &mut self,
        session: &mut Session,
        endpoint: Endpoint,
        signals: &Signals,
        limits: &Limits,
    ) -> Result<(), End> {
        let lost = |error: towpath_client::Lost| End::Failed(error.to_string());
        loop {
            let room = limits.packets - self.packets;
            if room == 0 || limits.until.is_some_and(|until| Instant::now() >= until) {
                return Ok(());
            }
            let budget = BATCH.min(usize::try_from(room).unwrap_or(BATCH));
            let taken = self.take(session, budget)?;
            if session.is_revoked(endpoint) {
                return Err(End::Failed(SendError::Revoked.to_string()));
            }
            if taken == budget {
                if asked(signals) {
                    return Ok(());
                }
                continue;
            }
            self.writer.flush().map_err(End::Write)?;
            if session.arm().map_err(lost)? {
                session.disarm();
                if asked(signals) {
                    return Ok(());
                }
                continue;
            }
            let end = self.sleep(session, signals, limits);
            session.disarm();
            if end? {
                return Ok(());
            }
        }
    }

    /// Writes at most `budget` waiting packets.
    fn take(&mut self, session: &mut Session, budget: usize) -> Result<usize, End> {
        let Capture { writer, interface, packets, whole, .. } = self;
        let mut outcome = Ok(());
        let taken = session.receiver().receive(QueuePair::FIRST, budget, |packet| {
            if outcome.is_err() {
                return;
            }
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            let time_ns = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
            let way = if packet.is_outgoing() { Direction::Outbound } else { Direction::Inbound };
            let bytes = packet.contiguous().unwrap_or_else(|| {
                whole.clear();
                packet.append_to(whole);
                whole
            });
            outcome = writer.packet(*interface, time_ns, way, &[bytes], packet.len());
            *packets += u64::from(outcome.is_ok());
            if outcome.is_ok() && writer.get_mut().is_full() {
                outcome = writer.flush();
            }
        });
        outcome.map_err(End::Write)?;
        taken.map_err(|error| End::Failed(error.to_string()))
    }

    /// Sleeps until a packet waits. Returns `true` if it is time to end.
    fn sleep(
        &self,
        session: &mut Session,
        signals: &Signals,
        limits: &Limits,
    ) -> Result<bool, End> {
        let timeout = limits.until.map(|until| {
            let left = until.saturating_duration_since(Instant::now());
            Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) }
        });
        let (notified, ended, gone) = {
            let doorbell = session.as_fd();
            let reader = self.reader.as_ref().map_or(doorbell, |reader| reader.as_fd());
            let mut polled = [
                PollFd::from_borrowed_fd(doorbell, PollFlags::IN),
                PollFd::new(signals, PollFlags::IN),
                // No events are requested: poll(2) reports errors and hang-ups in any case.
                PollFd::from_borrowed_fd(reader, PollFlags::empty()),
            ];
            match poll(&mut polled, timeout.as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(End::Failed(format!("waiting: {}", says(&errno.into())))),
            }
            let gone = PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL;
            (
                !polled[0].revents().is_empty(),
                !polled[1].revents().is_empty(),
                self.reader.is_some() && polled[2].revents().intersects(gone),
            )
        };
        if notified {
            session.take_notifications();
        }
        Ok(ended || gone)
    }

    /// Writes the counters, and the buffered rest.
    fn finish(&mut self, dropped: u64) -> io::Result<()> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let time_ns = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
        self.writer.statistics(self.interface, time_ns, self.packets + dropped, dropped)?;
        self.writer.flush()
    }
}

/// Returns `true` if a signal asked for the end.
fn asked(signals: &Signals) -> bool {
    let mut polled = [PollFd::new(signals, PollFlags::IN)];
    poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|count| count > 0)
}
