//! A socket of the kernel that asks the application once a millisecond, and counts the answers.

use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// The time from one request to the next.
const PERIOD: Duration = Duration::from_millis(1);
/// The time after which a request without an answer has none.
const LAST_ANSWER: Duration = Duration::from_millis(500);

/// The counts since the last report, and since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) asked: u64,
    pub(crate) answered: u64,
    /// Answers to requests that had one already.
    pub(crate) repeated: u64,
    /// The longest time from a request to its answer.
    pub(crate) longest: Duration,
}

impl Counts {
    /// Returns the counts as a line for the terminal.
    pub(crate) fn line(&self, since: &str) -> String {
        let Counts { asked, answered, repeated, longest } = self;
        let longest = longest.as_secs_f64() * 1e3;
        format!(
            "# {since}: {asked} requests, {answered} answers, {repeated} repeated, longest wait {longest:.1} ms"
        )
    }
}

#[derive(Debug, Default)]
struct State {
    /// When each request was sent, and whether it was answered.
    requests: Vec<(Instant, bool)>,
    part: Counts,
    all: Counts,
}

impl State {
    fn sent(&mut self, now: Instant) {
        self.requests.push((now, false));
        self.part.asked += 1;
        self.all.asked += 1;
    }

    /// Counts the answer to a request; other datagrams count for nothing.
    fn received(&mut self, number: u64, now: Instant) {
        let request = usize::try_from(number).ok().and_then(|at| self.requests.get_mut(at));
        let Some((sent, answered)) = request else { return };
        let (wait, before) = (now.duration_since(*sent), std::mem::replace(answered, true));
        for counts in [&mut self.part, &mut self.all] {
            counts.answered += u64::from(!before);
            counts.repeated += u64::from(before);
            counts.longest = if before { counts.longest } else { counts.longest.max(wait) };
        }
    }
}

/// The socket with its counts.
#[derive(Debug)]
pub(crate) struct Asker {
    socket: UdpSocket,
    to: SocketAddr,
    state: Mutex<State>,
    over: AtomicBool,
}

impl Asker {
    /// Makes a socket at an address of the kernel.
    pub(crate) fn new(from: SocketAddr, to: SocketAddr) -> anyhow::Result<Asker> {
        let socket = UdpSocket::bind(from)?;
        socket.set_nonblocking(true)?;
        Ok(Asker { socket, to, state: Mutex::default(), over: AtomicBool::new(false) })
    }

    /// Asks until [`Asker::stop`].
    pub(crate) fn ask(&self) {
        let mut next = Instant::now();
        while !self.over.load(Ordering::Relaxed) {
            let now = Instant::now();
            if now >= next {
                let number = self.state().all.asked;
                self.state().sent(now);
                // A request that the kernel refuses has no answer, which the counts show.
                let _ = self.socket.send_to(&number.to_le_bytes(), self.to);
                next = (next + PERIOD).max(now);
            }
            let left = next.saturating_duration_since(Instant::now());
            let timeout = Timespec { tv_sec: 0, tv_nsec: left.subsec_nanos().into() };
            // An interrupted wait only looks early.
            let _ = poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], Some(&timeout));
            self.receive();
        }
    }

    /// Counts the answers that have come.
    fn receive(&self) {
        let mut buffer = [0; 64];
        while let Ok((count, from)) = self.socket.recv_from(&mut buffer) {
            if let (8, true, Some(number)) = (count, from == self.to, buffer.first_chunk()) {
                self.state().received(u64::from_le_bytes(*number), Instant::now());
            }
        }
    }

    /// Ends the thread that asks.
    pub(crate) fn stop(&self) {
        self.over.store(true, Ordering::Relaxed);
    }

    /// Returns the counts since the last call, and since the start, once each request so far has its
    /// answer or will have none.
    pub(crate) fn counts(&self) -> [Counts; 2] {
        let until = Instant::now() + LAST_ANSWER;
        loop {
            let mut state = self.state();
            if state.all.answered == state.all.asked || Instant::now() > until {
                let part = std::mem::take(&mut state.part);
                return [part, state.all];
            }
            drop(state);
            std::thread::sleep(PERIOD / 20);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_counted_once_each() {
        let (mut state, start) = (State::default(), Instant::now());
        for _ in 0..3 {
            state.sent(start);
        }
        state.received(0, start + Duration::from_millis(2));
        state.received(0, start + Duration::from_millis(9));
        state.received(2, start + Duration::from_millis(3));
        state.received(7, start + Duration::from_millis(9));
        let longest = Duration::from_millis(3);
        let expected = Counts { asked: 3, answered: 2, repeated: 1, longest };
        assert_eq!([state.part, state.all], [expected; 2]);
        assert_eq!(
            expected.line("in all"),
            "# in all: 3 requests, 2 answers, 1 repeated, longest wait 3.0 ms"
        );
    }

    #[test]
    fn a_peer_that_answers_leaves_no_request_open() {
        let peer = UdpSocket::bind("127.0.0.1:0").unwrap();
        peer.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let asker = Asker::new("127.0.0.1:0".parse().unwrap(), peer.local_addr().unwrap()).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| asker.ask());
            for _ in 0..5 {
                let mut buffer = [0; 64];
                let (count, from) = peer.recv_from(&mut buffer).unwrap();
                peer.send_to(&buffer[..count], from).unwrap();
            }
            asker.stop();
        });
        let [part, all] = asker.counts();
        assert!(all.answered >= 4 && part == all, "{all:?}");
    }
}
