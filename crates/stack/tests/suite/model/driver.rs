//! Applies events to a stack and to the oracles, and compares.

use std::panic::resume_unwind;
use std::time::Duration;

use towpath_stack::{
    Config, Counters, Instant, ListenerId, Meta, SocketError, Stack, TcpId, Transmit,
};

use crate::model::compare::{Observation, byte, compare};
use crate::model::event::{Case, Event, Packet};
use crate::model::oracle::{Answer, Choices, Oracle, State};
use crate::model::stream::{Limits, SEND_BUFFER_BYTES};
use crate::wire::{self, RST, STACK_IP, Segment};

pub const STACK_PORT: u16 = 80;
pub const PEER_PORT: u16 = 40_000;
const RECEIVE_BUFFER_BYTES: usize = 8 * 1024;
/// The limits of the configuration below.
pub const LIMITS: Limits = Limits {
    connect: 60_000_000,
    half_open: 15_000_000,
    time_wait: 60_000_000,
    orphan: 60_000_000,
    slack: 1_000_000,
};

/// The link, and what it took.
#[derive(Default)]
struct Link {
    sent: Vec<(Vec<u8>, Meta)>,
    is_full: bool,
}

impl Transmit for Link {
    fn room(&mut self, _: usize) -> bool {
        !self.is_full
    }

    fn transmit(&mut self, len: usize, meta: Meta, fill: impl FnOnce(&mut [u8])) -> bool {
        if self.is_full {
            return false;
        }
        let mut frame = vec![0xa5; len];
        fill(&mut frame);
        self.sent.push((frame, meta));
        true
    }
}

/// A stack, its peer, and the possible states of the connection.
pub struct Driver {
    pub stack: Stack,
    pub case: Case,
    pub now: Instant,
    pub oracles: Vec<Oracle>,
    link: Link,
    listener: Option<ListenerId>,
    socket: Option<TcpId>,
    /// The peer's first number of the next connection, the end of the data that it has sent, the
    /// number of its FIN, and the stack's latest timestamp.
    pub peer_isn: u32,
    pub peer_end: u32,
    pub peer_fin: Option<u32>,
    pub stamp: u32,
    sent: Vec<Segment>,
    trace: Vec<String>,
}

fn config(case: &Case) -> Config {
    let mut config = Config::new(wire::STACK_MAC);
    config.ipv4 = Some((STACK_IP.into(), 24));
    config.ipv6_link_local = false;
    config.seed = case.seed;
    config.tcp.receive_buffer_bytes = RECEIVE_BUFFER_BYTES;
    config.tcp.send_buffer_bytes = SEND_BUFFER_BYTES as usize;
    // The oracle does not know when the peer last sent.
    config.tcp.user_timeout = Duration::from_secs(1_000_000);
    config
}

impl Driver {
    pub fn new(case: &Case) -> Driver {
        let first = Driver::at(case, Instant::ZERO);
        if !case.wraps {
            return first;
        }
        // The initial number follows a clock of 4 us (RFC 9293, 3.4.1): it is about to wrap at some
        // time.
        let steps = first.initial_number().wrapping_neg().wrapping_sub(3000);
        Driver::at(case, Instant::from_micros(u64::from(steps) * 4))
    }

    fn at(case: &Case, now: Instant) -> Driver {
        let mut stack = Stack::new(config(case), now).unwrap();
        let address = (STACK_IP, STACK_PORT).into();
        let listener = (!case.active).then(|| stack.tcp_listen(address, 4).unwrap());
        let mut driver = Driver {
            stack,
            case: case.clone(),
            now,
            oracles: vec![Oracle::new(!case.active)],
            link: Link::default(),
            listener,
            socket: None,
            peer_isn: case.peer_isn,
            peer_end: case.peer_isn,
            peer_fin: None,
            stamp: 0,
            sent: Vec::new(),
            trace: Vec::new(),
        };
        driver.pump();
        driver
    }

    /// Returns the initial number of a connection at this time.
    fn initial_number(mut self) -> u32 {
        if self.case.active {
            self.connect().unwrap();
        } else {
            let syn = Packet::syn().resolve(&mut self);
            self.stack.input(self.now, &syn.frame(), Meta::FULL);
        }
        self.pump();
        self.sent[0].sequence
    }

    fn connect(&mut self) -> Result<(), SocketError> {
        let peer = (wire::PEER_IP, PEER_PORT).into();
        let from = Some((STACK_IP, STACK_PORT).into());
        self.socket = Some(self.stack.tcp_connect(self.now, peer, from, None)?);
        Ok(())
    }

    /// Lets the stack send until it has nothing to do at this time.
    fn pump(&mut self) {
        for _ in 0..1000 {
            let worked = self.stack.poll(self.now, &mut self.link);
            for (frame, meta) in std::mem::take(&mut self.link.sent) {
                if let Some(answer) = wire::arp_answer(&frame) {
                    self.stack.input(self.now, &answer, Meta::FULL);
                }
                let segments = wire::parse(&frame, meta, 1500).unwrap_or_else(|e| self.fail(&e));
                for segment in segments {
                    self.stamp = segment.timestamps().map_or(self.stamp, |(val, _)| val);
                    self.note('>', &segment);
                    self.sent.push(segment);
                }
            }
            let due = self.stack.poll_at(self.now).is_some_and(|at| at <= self.now);
            if self.stack.is_blocked() || !worked && !due {
                return;
            }
        }
        self.fail("the stack never becomes idle");
    }

    fn note(&mut self, direction: char, segment: &Segment) {
        let flags: String = "FSRPAU"
            .chars()
            .enumerate()
            .filter_map(|(bit, name)| segment.has(1 << bit).then_some(name))
            .collect();
        let Segment { sequence, acknowledgement, window, payload, .. } = segment;
        self.trace.push(format!(
            "{:9.3} {direction} {flags} {sequence}({}) ack {acknowledgement} win {window}{}",
            self.now.as_micros() as f64 / 1e6,
            payload.len(),
            segment.timestamps().map_or(String::new(), |stamps| format!(" TS {stamps:?}")),
        ));
    }

    /// Ends the test, with all events so far. The panic is silent, for there is one per step of the
    /// search for the smallest schedule, and proptest prints the last.
    fn fail(&self, what: &str) -> ! {
        let trace = self.trace.join("\n");
        resume_unwind(Box::new(format!("{what}\nafter {:?}\n{trace}\n", self.oracles)));
    }

    /// Applies an event.
    pub fn step(&mut self, event: &Event) {
        self.trace.push(format!("{event:?}"));
        let (before, was_full) = (*self.stack.counters(), self.link.is_full);
        let choices = self.apply(event);
        self.pump();
        self.observe(choices, &before, was_full);
    }

    /// Compares what the stack did since `before` with the oracles.
    fn observe(&mut self, choices: Choices, before: &Counters, was_full: bool) {
        if self.socket.is_none()
            && let Some(listener) = self.listener
            && let Ok((id, _)) = self.stack.tcp_accept(listener)
        {
            self.trace.push("accepted".to_string());
            self.socket = Some(id);
        }
        let after = *self.stack.counters();
        let seen = Observation {
            now: self.now.as_micros(),
            sent: std::mem::take(&mut self.sent),
            sizes: self.stack.tcp_sizes(),
            state: self.socket.map(|id| self.stack.tcp_state(id).unwrap()),
            unread: self.socket.map(|id| self.stack.tcp_queues(id).unwrap().1),
            limited: after.tcp_challenges_limited + after.errors_limited
                > before.tcp_challenges_limited + before.errors_limited,
            blocked: self.link.is_full,
            late: was_full,
        };
        self.narrow(choices, &seen);
        if self.oracles.iter().all(|oracle| oracle.state == State::Closed) && self.socket.is_none()
        {
            self.next_connection();
        }
    }

    /// Keeps the oracles that explain what the stack did.
    fn narrow(&mut self, choices: Choices, seen: &Observation) {
        let mut left: Vec<Oracle> = Vec::new();
        let mut reasons = Vec::new();
        for (mut oracle, answer) in choices {
            let accepts = !oracle.active && !matches!(oracle.state, State::SynReceived);
            oracle.held |= accepts
                && oracle.state != State::Closed
                && oracle.dropped.is_none()
                && self.socket.is_some();
            let kept = oracle.clone();
            if self.socket.is_some() && !oracle.held {
                reasons.push(format!("{:?}: a connection to accept", kept.state));
                continue;
            }
            match compare(&mut oracle, answer, seen) {
                Ok(()) if left.contains(&oracle) => {}
                Ok(()) => left.push(oracle),
                Err(reason) => reasons.push(format!("{:?}, {answer:?}: {reason}", kept.state)),
            }
        }
        if left.is_empty() {
            self.fail(&format!("no oracle explains this: {reasons:#?}"));
        }
        self.oracles = left;
    }

    fn next_connection(&mut self) {
        if self.peer_end != self.peer_isn {
            self.peer_isn = self.peer_end.wrapping_add(100_000);
        }
        self.peer_end = self.peer_isn;
        self.peer_fin = None;
    }

    /// Returns the next states of every oracle.
    fn each(&self, step: impl Fn(&Oracle) -> Choices) -> Choices {
        self.oracles.iter().flat_map(step).collect()
    }

    fn apply(&mut self, event: &Event) -> Choices {
        let (now, at) = (self.now, self.now.as_micros());
        match (event, self.socket) {
            (Event::Segment(packet), _) => self.receive_segment(packet),
            (Event::Wait(ms), _) => self.wait(Duration::from_millis((*ms).into())),
            (Event::Full(full), _) => {
                self.link.is_full = *full;
                self.pass()
            }
            (Event::Connect, None) if self.case.active && !self.link.is_full => {
                let found = self.connect();
                let (expected, _) = self.oracles[0].connect(at);
                self.agree(&[expected], &found);
                self.each(|oracle| oracle.connect(at).1)
            }
            (Event::Send(len), Some(id)) => self.send(id, usize::from(*len)),
            (Event::Recv(len), Some(id)) => self.receive(id, usize::from(*len)),
            (Event::Shutdown(how), Some(id)) => {
                let found = self.stack.tcp_shutdown(now, id, *how);
                let choices = self.each(|oracle| oracle.shutdown(*how, found));
                if choices.is_empty() {
                    self.fail(&format!("the call returns {found:?}"));
                }
                choices
            }
            (Event::Close, Some(id)) => {
                self.stack.tcp_close(now, id).unwrap();
                self.socket = None;
                self.each(|oracle| oracle.close(at))
            }
            (Event::Abort, Some(id)) => {
                self.stack.tcp_abort(now, id).unwrap();
                self.each(Oracle::abort)
            }
            _ => self.each(|oracle| vec![(oracle.clone(), Answer::Nothing)]),
        }
    }

    fn agree<T: PartialEq + std::fmt::Debug>(&self, expected: &[T], found: &T) {
        if !expected.contains(found) {
            self.fail(&format!("the call returns {found:?}, not one of {expected:?}"));
        }
    }

    fn receive_segment(&mut self, packet: &Packet) -> Choices {
        if !packet.applies(self, self.socket.is_some()) {
            return self.each(|oracle| vec![(oracle.clone(), Answer::Nothing)]);
        }
        let segment = packet.resolve(self);
        self.note('<', &segment);
        let before = self.stack.counters().tcp_malformed;
        self.stack.input(self.now, &segment.frame(), Meta::FULL);
        let malformed = self.stack.counters().tcp_malformed > before;
        let (at, old) = (self.now.as_micros(), packet.has_old_stamp());
        if malformed {
            if !packet.is_odd() {
                self.fail("a segment with ordinary flags counts as malformed");
            }
            return self.each(|oracle| vec![(oracle.clone(), Answer::Nothing)]);
        }
        let mut choices = self.each(|oracle| oracle.arrive(at, &segment, old));
        if packet.is_odd() && !segment.has(RST) {
            choices.extend(self.each(|oracle| vec![(oracle.clone(), Answer::MaySyn)]));
        }
        choices
    }

    /// Lets time pass, with all that becomes due.
    fn wait(&mut self, time: Duration) -> Choices {
        let until = self.now + time;
        while let Some(next) = self.stack.poll_at(self.now).filter(|next| *next <= until) {
            self.now = self.now.max(next);
            let (before, was_full) = (*self.stack.counters(), self.link.is_full);
            self.pump();
            let choices = self.pass();
            self.observe(choices, &before, was_full);
            if self.stack.is_blocked() {
                break;
            }
        }
        self.now = until;
        self.pass()
    }

    fn pass(&self) -> Choices {
        let (at, is_full) = (self.now.as_micros(), self.link.is_full);
        self.each(|oracle| oracle.pass(at, &LIMITS, is_full))
    }

    fn send(&mut self, id: TcpId, len: usize) -> Choices {
        let start = self.oracles[0].written;
        let data: Vec<u8> = (start..).take(len).map(byte).collect();
        let found = self.stack.tcp_send(id, &data);
        let mut expected = Vec::new();
        let mut choices = Vec::new();
        for oracle in &self.oracles {
            let mut next = oracle.clone();
            let most = next.send(len);
            expected.push(most);
            let fits = match (most, found) {
                (Ok(most), Ok(sent)) => sent > 0 && sent <= most,
                (most, found) => most == found,
            };
            if fits {
                next.written += found.unwrap_or(0) as u32;
                choices.push((next, Answer::MayAck));
            }
        }
        if choices.is_empty() {
            self.fail(&format!("the call returns {found:?}, not {expected:?}"));
        }
        choices
    }

    fn receive(&mut self, id: TcpId, len: usize) -> Choices {
        let mut buffer = vec![0; len];
        let found = self.stack.tcp_recv(self.now, id, &mut buffer);
        let mut expected = Vec::new();
        let mut choices = Vec::new();
        for oracle in &self.oracles {
            let mut next = oracle.clone();
            let most = next.receive(len);
            expected.push(most);
            if most != found {
                continue;
            }
            let got = found.unwrap_or(0);
            let first = next.irs.wrapping_add(1).wrapping_add(next.read);
            let right =
                (0..got as u32).all(|at| buffer[at as usize] == byte(first.wrapping_add(at)));
            if right {
                next.read += got as u32;
                next.unread = next.unread.saturating_sub(got as u32);
                choices.push((next, Answer::MayAck));
            }
        }
        if choices.is_empty() {
            self.fail(&format!("the call returns {found:?}, not {expected:?}, or wrong bytes"));
        }
        choices
    }
}
