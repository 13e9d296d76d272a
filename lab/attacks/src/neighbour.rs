//! The neighbour of an attacker. It makes round trips between two sessions of its own through the
//! server, and attaches and detaches a third repeatedly. It reports the time of each. A further session of it shares
//! memory with any program that asks (module `partner`).
//!
//! An operation in progress when a window ends counts with its time so far, and again in the next
//! window: a server that hangs shows as long times, not as missing ones.

use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use towpath_client::{
    Endpoint, Options, QueuePair, Rule, Session, WaitStrategy, administration_socket,
};
use towpath_packet::build::Flow;

use crate::partner;
use crate::session::connect;

/// The time that one step of a round trip waits before it checks for the end.
const STEP: Duration = Duration::from_millis(100);
/// The time between one attachment's end and the next.
const PAUSE: Duration = Duration::from_millis(1);
/// The longest time distinguished from longer ones: ten minutes in nanoseconds.
const LONGEST: u64 = 600_000_000_000;

/// Times of one kind of operation in a window, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// Operations that came to their end.
    pub count: u64,
    /// Operations that failed.
    pub failed: u64,
    /// Median.
    pub p50: u64,
    /// 99th percentile.
    pub p99: u64,
    /// 99.9th percentile.
    pub p999: u64,
    /// Longest.
    pub worst: u64,
}

impl fmt::Display for Times {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Times { count, failed, p50, p99, p999, worst } = self;
        write!(f, "{count} {failed} {p50} {p99} {p999} {worst}")
    }
}

/// A neighbour's measurements in a window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Round trips.
    pub trips: Times,
    /// Attachments, each with its first endpoint.
    pub attaches: Times,
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "trips {} attaches {}", self.trips, self.attaches)
    }
}

impl Seen {
    /// Parses the line that a neighbour's process prints.
    #[must_use]
    pub fn read(line: &str) -> Option<Seen> {
        let (trips, attaches) = line.strip_prefix("trips ")?.split_once(" attaches ")?;
        let times = |text: &str| {
            let numbers: Option<Vec<u64>> =
                text.split(' ').map(|number| number.parse().ok()).collect();
            let [count, failed, p50, p99, p999, worst] = numbers?.try_into().ok()?;
            Some(Times { count, failed, p50, p99, p999, worst })
        };
        Some(Seen { trips: times(trips)?, attaches: times(attaches)? })
    }
}

/// Times as they are collected.
#[derive(Debug)]
struct Tally {
    times: Histogram<u64>,
    failed: u64,
    under_way: Option<Instant>,
    over: bool,
}

#[derive(Clone, Debug)]
struct SharedTally(Arc<Mutex<Tally>>);

impl SharedTally {
    fn new() -> SharedTally {
        // Bounds and digits for which a histogram always exists.
        let times = Histogram::new_with_bounds(1, LONGEST, 3);
        let times = times.unwrap_or_else(|error| unreachable!("{error}"));
        let tally = Tally { times, failed: 0, under_way: None, over: false };
        SharedTally(Arc::new(Mutex::new(tally)))
    }

    fn change<T>(&self, change: impl FnOnce(&mut Tally) -> T) -> T {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn is_over(&self) -> bool {
        self.change(|tally| tally.over)
    }

    fn begin(&self) {
        self.change(|tally| tally.under_way = Some(Instant::now()));
    }

    fn end(&self, well: bool) {
        self.change(|tally| {
            let Some(since) = tally.under_way.take() else { return };
            tally.times.saturating_record(since.elapsed().as_nanos() as u64);
            tally.failed += u64::from(!well);
        });
    }

    fn so_far(&self) -> u64 {
        self.change(|tally| tally.times.len() - tally.failed.min(tally.times.len()))
    }

    /// Ends a window, and begins the next.
    fn take(&self) -> Times {
        self.change(|tally| {
            let count = tally.times.len() - tally.failed.min(tally.times.len());
            if let Some(since) = tally.under_way {
                tally.times.saturating_record(since.elapsed().as_nanos() as u64);
            }
            let at = |quantile| tally.times.value_at_quantile(quantile);
            let times = Times {
                count,
                failed: tally.failed,
                p50: at(0.5),
                p99: at(0.99),
                p999: at(0.999),
                worst: tally.times.max(),
            };
            tally.times.reset();
            tally.failed = 0;
            times
        })
    }
}

/// A running neighbour. It ends with its process, because a thread may wait for a server that
/// hangs.
#[derive(Debug)]
pub struct Neighbour {
    trips: SharedTally,
    attaches: SharedTally,
}

impl Neighbour {
    /// Attaches two sessions and starts. With `spins` they poll instead of sleeping.
    ///
    /// # Errors
    /// A refusal of the server.
    pub fn start(socket: &Path, spins: bool) -> Result<Neighbour, Box<dyn std::error::Error>> {
        let neighbour = Neighbour { trips: SharedTally::new(), attaches: SharedTally::new() };
        let mut pair = Pair::attach(socket, spins)?;
        partner::start(socket)?;
        let trips = neighbour.trips.clone();
        std::thread::spawn(move || {
            while !trips.is_over() {
                trips.begin();
                let well = pair.round_trip(&trips);
                trips.end(well);
                if !well {
                    std::thread::sleep(PAUSE);
                }
            }
        });
        let (attaches, socket) = (neighbour.attaches.clone(), socket.to_owned());
        std::thread::spawn(move || attach_again_and_again(&socket, &attaches));
        Ok(neighbour)
    }

    /// Measures for this long.
    #[must_use]
    pub fn window(&self, long: Duration) -> Seen {
        self.take();
        std::thread::sleep(long);
        self.take()
    }

    /// Measures until this many operations of each kind have ended, or for the longest time.
    #[must_use]
    pub fn until(&self, trips: u64, attaches: u64, at_most: Duration) -> Seen {
        self.take();
        let end = Instant::now() + at_most;
        while (self.trips.so_far() < trips || self.attaches.so_far() < attaches)
            && Instant::now() < end
        {
            std::thread::sleep(Duration::from_millis(2));
        }
        self.take()
    }

    /// Follows `window MS` or `until TRIPS ATTACHES MS`; `None` for any other line.
    #[must_use]
    pub fn follow(&self, order: &str) -> Option<Seen> {
        let mut words = order.split(' ');
        let kind = words.next()?;
        let numbers: Option<Vec<u64>> = words.map(|word| word.parse().ok()).collect();
        match (kind, &numbers?[..]) {
            ("window", [long]) => Some(self.window(Duration::from_millis(*long))),
            ("until", [trips, attaches, at_most]) => {
                Some(self.until(*trips, *attaches, Duration::from_millis(*at_most)))
            }
            _ => None,
        }
    }

    fn take(&self) -> Seen {
        Seen { trips: self.trips.take(), attaches: self.attaches.take() }
    }
}

impl Drop for Neighbour {
    fn drop(&mut self) {
        for kind in [&self.trips, &self.attaches] {
            kind.change(|tally| tally.over = true);
        }
    }
}

fn attach_again_and_again(socket: &Path, attaches: &SharedTally) {
    let options = Options { name: "neighbour-comes".into(), ..small() };
    while !attaches.is_over() {
        attaches.begin();
        let opened = attach_once(socket, &options);
        attaches.end(opened.is_ok());
        if let Err(error) = opened {
            eprintln!("the neighbour's session: {error}");
        }
        std::thread::sleep(PAUSE);
    }
}

fn attach_once(socket: &Path, options: &Options) -> Result<(), Box<dyn std::error::Error>> {
    // `Session::attach` would hide connections that the server closed.
    let socket = administration_socket(socket).unwrap_or_else(|| socket.to_owned());
    Session::attach_over(connect(&socket)?, options)?.open(&Rule::new())?;
    Ok(())
}

fn small() -> Options {
    Options { endpoints: 2, transmit_slots: 64, receive_slots: 64, ..Options::default() }
}

/// Two sessions that send each other one packet at a time.
struct Pair {
    sides: [(Session, Endpoint, Vec<u8>); 2],
}

impl Pair {
    fn attach(socket: &Path, spins: bool) -> Result<Pair, Box<dyn std::error::Error>> {
        let waiting = if spins { WaitStrategy::Poll } else { WaitStrategy::Block };
        let attach = |name: &str| -> Result<(Session, Endpoint), Box<dyn std::error::Error>> {
            let options = Options { name: name.into(), wait_strategy: waiting, ..small() };
            let mut session = Session::attach(socket, &options)?;
            let endpoint = session.open(&Rule::new())?;
            Ok((session, endpoint))
        };
        let ((a, of_a), (b, of_b)) = (attach("neighbour-a")?, attach("neighbour-b")?);
        let packet = |from: &Session, to: &Session| {
            let mut flow = Flow::v4().macs(from.info().mac, to.info().mac);
            if let (Some((source, _)), Some((destination, _))) = (from.info().ipv4, to.info().ipv4)
            {
                flow = flow.addresses(source, destination);
            }
            flow.udp(&[0; 64])
        };
        let (there, back) = (packet(&a, &b), packet(&b, &a));
        Ok(Pair { sides: [(a, of_a, there), (b, of_b, back)] })
    }

    /// Sends a packet there and back; `false` when the server is gone or the measurement over.
    fn round_trip(&mut self, trips: &SharedTally) -> bool {
        let [a, b] = &mut self.sides;
        one_way(a, b, trips) && one_way(b, a, trips)
    }
}

fn one_way(
    from: &mut (Session, Endpoint, Vec<u8>),
    to: &mut (Session, Endpoint, Vec<u8>),
    trips: &SharedTally,
) -> bool {
    if from.0.sender().send_bytes(from.1, &from.2).is_err() || from.0.sender().flush_now().is_err()
    {
        return false;
    }
    let length = from.2.len();
    loop {
        let mut came = false;
        // Other packets, such as the network's broadcasts, are not the answer.
        if to.0.wait(Some(STEP)).is_err() {
            return false;
        }
        let outcome =
            to.0.receiver().receive(QueuePair::FIRST, 64, |one| came |= one.len() == length);
        match outcome {
            Ok(_) if came => return true,
            Ok(_) if !trips.is_over() => {}
            _ => return false,
        }
    }
}
