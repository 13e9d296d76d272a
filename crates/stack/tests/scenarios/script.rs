//! Runs a script: the peer, the link, the time and the application.
//!
//! | command | what it does |
//! |---|---|
//! | `config NAME VALUE` | changes the configuration; before all other steps |
//! | `passive [rtt S] [win N] [<OPTIONS>]` | establishes a connection by a SYN of the peer, and accepts it |
//! | `active [rtt S] [win N] [<OPTIONS>]` | establishes a connection by a SYN of the stack |
//! | `none S` | checks that the stack sends nothing for this time |
//! | `ignore S` | ignores all segments that the stack sends within this time |
//! | `isn N` | sets the peer's initial sequence number |
//! | `flood N` | N SYNs arrive, from as many other ports; the script ignores the answers |
//! | `repeat N SEGMENT` | the peer sends a segment N times |
//! | `answer S SEGMENT` | for this time, the peer answers each segment of the stack with this one |
//! | `sends A B S` | checks that the stack sends A to B segments with data within this time |
//! | `limit N` | ignores at most N segments that the stack has sent |
//! | `until S PATTERN` | ignores all that the stack sends before a segment of the pattern |
//! | `wrap N` | waits until the stack's initial sequence number is about N below zero |
//!
//! `commands.rs` has the commands of the application.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use towpath_stack::{Config, Instant, ListenerId, Meta, Stack, TcpId, Transmit};

use crate::checks::{Checks, peer_byte};
use crate::matching::expanded;
use crate::notation::{self, Choice, Line, Range, Spec, Stamp, Step, When};
use crate::wire::{self, ACK, SYN, Segment, TcpOption};

/// The peer's port of flow 0.
pub const PEER_PORT: u16 = 40_000;
/// The port on which the stack listens.
pub const STACK_PORT: u16 = 80;
/// The tolerance of timers, in microseconds: too early, too late, and too late in percent.
pub const TOLERANCE: (i64, i64, i64) = (1_500, 4_500, 1);
/// The longest time that an acknowledgement may wait.
const ACK_DELAY: i64 = 14_000;

/// A connection, or the peer's port of one.
pub struct Flow {
    pub stack_port: u16,
    pub socket: Option<TcpId>,
    pub peer_isn: u32,
    pub stack_isn: Option<u32>,
    /// The sequence number of the peer's latest SYN, and of the next byte to read and to write.
    pub syn: i64,
    pub read: u32,
    pub written: u32,
    window: u16,
    stamp: u32,
    pub checks: Checks,
}

/// The frames that the stack has sent.
#[derive(Default)]
struct Link(Vec<(Vec<u8>, Meta)>);

impl Transmit for Link {
    fn room(&mut self, _: usize) -> bool {
        true
    }

    fn transmit(&mut self, len: usize, meta: Meta, fill: impl FnOnce(&mut [u8])) -> bool {
        let mut frame = vec![0xa5; len];
        fill(&mut frame);
        self.0.push((frame, meta));
        true
    }
}

/// A script in progress.
pub struct Runner {
    pub config: Config,
    /// The stack, once the script needs it.
    made: Option<Stack>,
    link: Link,
    pub now: Instant,
    /// The time of the step before.
    pub last: Instant,
    pub flow: usize,
    pub flows: HashMap<usize, Flow>,
    pub listener: Option<ListenerId>,
    /// Segments of the stack that no step has expected yet.
    pub sent: VecDeque<(Instant, usize, Segment)>,
    /// All segments of the stack, for the quotes of ICMP errors.
    history: Vec<(usize, Segment)>,
    pub kept: HashMap<String, u32>,
    pub trace: Vec<String>,
    line: String,
    /// `true` after a segment before which the stack does not poll.
    held: bool,
}

/// Runs a script, and panics with the trace of all segments if the stack does not follow it.
pub fn run(script: &str) {
    let mut config = Config::new(wire::STACK_MAC);
    config.ipv4 = Some((wire::STACK_IP.into(), 24));
    config.ipv6_link_local = false;
    config.seed = 7;
    let mut runner = Runner {
        config,
        made: None,
        link: Link::default(),
        now: Instant::from_millis(1000),
        last: Instant::from_millis(1000),
        flow: 0,
        flows: HashMap::new(),
        listener: None,
        sent: VecDeque::new(),
        history: Vec::new(),
        kept: HashMap::new(),
        trace: Vec::new(),
        line: String::new(),
        held: false,
    };
    for line in notation::parse(script) {
        runner.step(&line);
    }
    runner.line = "the end".to_owned();
    runner.expect_none();
}

impl Runner {
    /// Ends the test with the trace.
    pub fn fail(&self, problem: &str) -> ! {
        let trace = self.trace.join("\n");
        panic!("\n{trace}\n\nat {}:\n    {problem}\n", self.line)
    }

    pub fn stack(&mut self) -> &mut Stack {
        let (config, now) = (&self.config, self.now);
        self.made.get_or_insert_with(|| Stack::new(config.clone(), now).unwrap())
    }

    pub fn flow(&mut self) -> &mut Flow {
        self.flows.entry(self.flow).or_insert_with(|| Flow {
            stack_port: STACK_PORT,
            socket: None,
            peer_isn: 0x3000_0000,
            stack_isn: None,
            syn: 0,
            read: 1,
            written: 1,
            window: u16::MAX,
            stamp: 0,
            checks: Checks::default(),
        })
    }

    fn note(&mut self, what: &str) {
        let millis = self.now.as_micros() as f64 / 1000.0 - 1000.0;
        self.trace.push(format!("{millis:>12.3} {what}"));
    }

    fn step(&mut self, line: &Line) {
        self.line = format!("line {}: {}", line.number, line.text);
        self.flow = line.flow.unwrap_or(self.flow);
        match &line.step {
            Step::Out { optional, patterns } => return self.expect(line.when, *optional, patterns),
            Step::Command(words) if words[0] == "config" => {
                return crate::commands::configure(&mut self.config, words);
            }
            _ => {}
        }
        let delay = match line.when {
            When::Now => 0,
            When::After(delay) => delay,
            _ => panic!("only a pattern has a range of times: {}", self.line),
        };
        self.advance(self.last.as_micros() as i64 + delay);
        match &line.step {
            Step::In { hold, spec } => {
                if !hold {
                    self.expect_none();
                }
                for spec in expanded(spec) {
                    self.send(&spec);
                    self.held = *hold;
                    if !hold {
                        self.pump();
                    }
                }
            }
            Step::Icmp { kind, code, mtu, quote } => {
                self.expect_none();
                self.report(*kind, *code, *mtu, quote);
                self.pump();
            }
            Step::Command(words) => {
                let text = line.text.clone();
                self.note(&format!("* {text}"));
                self.command(words, &text);
            }
            Step::Out { .. } => unreachable!(),
        }
        self.last = self.last.max(self.now);
    }

    fn command(&mut self, words: &[String], text: &str) {
        let value = || words.get(1).map_or("0", String::as_str);
        let long = || notation::micros(value());
        match words[0].as_str() {
            "passive" | "active" => self.establish(words, text),
            "none" => {
                self.expect_none();
                self.advance(self.now.as_micros() as i64 + long());
                self.expect_none();
            }
            "ignore" => {
                self.advance(self.now.as_micros() as i64 + long());
                self.sent.clear();
            }
            "repeat" => {
                for _ in 0..value().parse().unwrap() {
                    self.send(&notation::parse_spec(&words[2..].join(" ")));
                    self.pump();
                }
            }
            "limit" => {
                let most = value().parse().unwrap();
                self.pump();
                if self.sent.len() > most {
                    self.fail(&format!("the stack sends {} segments", self.sent.len()));
                }
                self.sent.clear();
            }
            "answer" => self.answer(long(), &words[2..].join(" ")),
            "sends" => self.count(value().parse().unwrap(), &words[2], &words[3]),
            "until" => self.await_one(long(), &words[2..].join(" ")),
            "isn" => self.flow().peer_isn = value().parse().unwrap(),
            "flood" => self.flood(value().parse().unwrap()),
            "wrap" => self.wrap(value().parse().unwrap()),
            _ => {
                self.expect_none();
                self.operate(words);
                self.pump();
            }
        }
    }

    /// Establishes a connection.
    fn establish(&mut self, words: &[String], text: &str) {
        let after = |word| words.iter().position(|w| w == word).map(|at| words[at + 1].clone());
        let window = after("win").map_or(String::new(), |window| format!("win {window}"));
        let delay = after("rtt").map_or(String::new(), |rtt| format!("+{rtt} "));
        let options = text.find('<').map_or("", |at| &text[at..]);
        let stamp = if options.contains("TS") { "<TS>" } else { "" };
        let script = if words[0] == "active" {
            format!(
                "connect\n> S 0:0(0)\n{delay}< S. 0:0(0) ack 1 {window} {options}\n\
                 > . 1:1(0) ack 1\nstate established"
            )
        } else {
            // The window of a SYN-ACK is not scaled, so the stack may announce a larger one at once.
            format!(
                "listen\n< S 0:0(0) {window} {options}\n> S. 0:0(0) ack 1\n\
                 {delay}< . 1:1(0) ack 1 {window} {stamp}\n?> . 1:1(0) ack 1\naccept"
            )
        };
        for line in notation::parse(&script) {
            self.step(&line);
            self.line = format!("in {text}, {}", self.line);
        }
    }

    /// Answers each segment of the stack with the same segment.
    fn answer(&mut self, time: i64, segment: &str) {
        self.expect_none();
        let until = Instant::from_micros((self.now.as_micros() as i64 + time) as u64);
        while self.advance_one(until) {
            while self.sent.pop_front().is_some() {
                self.send(&notation::parse_spec(segment));
                self.pump();
            }
        }
        self.now = until;
    }

    /// Counts the segments with data that the stack sends.
    fn count(&mut self, least: usize, most: &str, time: &str) {
        self.advance(self.now.as_micros() as i64 + notation::micros(time));
        let count = self.sent.iter().filter(|(.., segment)| !segment.payload.is_empty()).count();
        if !(least..=most.parse().unwrap()).contains(&count) {
            self.fail(&format!("the stack sends {count} segments"));
        }
        self.sent.clear();
    }

    /// Ignores all segments before one of the pattern.
    fn await_one(&mut self, time: i64, pattern: &str) {
        let pattern = notation::parse_spec(pattern);
        let until = Instant::from_micros((self.now.as_micros() as i64 + time) as u64);
        loop {
            while let Some((at, flow, segment)) = self.sent.pop_front() {
                if self.compare(flow, &segment, &pattern).is_ok() {
                    self.last = at;
                    return;
                }
            }
            if !self.advance_one(until) {
                self.fail("no segment of the pattern was sent");
            }
        }
    }

    /// Sends SYNs from other ports, each a little later than the one before.
    fn flood(&mut self, count: usize) {
        let flow = self.flow;
        for index in 0..count {
            self.flow = 1000 + index;
            self.send(&notation::parse_spec("S 0:0(0) win 65535 <mss 1460>"));
            self.advance(self.now.as_micros() as i64 + 10);
            self.sent.clear();
        }
        self.flow = flow;
    }

    /// Waits until the initial sequence number of this flow, which follows a clock of 4 us (RFC 9293,
    /// 3.4.1), wraps soon.
    fn wrap(&mut self, distance: u32) {
        self.send(&notation::parse_spec("S 0:0(0) win 65535 <mss 1460>"));
        self.pump();
        let isn = self.sent.pop_front().map_or(0, |(_, _, segment)| segment.sequence);
        self.send(&notation::parse_spec("R 1:1(0)"));
        self.pump();
        let steps = isn.wrapping_neg().wrapping_sub(distance);
        self.advance(self.now.as_micros() as i64 + i64::from(steps) * 4);
        self.sent.clear();
        *self.flow() = Flow { checks: Checks::default(), ..self.flows.remove(&self.flow).unwrap() };
        self.flow().stack_isn = None;
    }

    /// Sends a segment of the peer.
    fn send(&mut self, spec: &Spec) {
        let millis = (self.now.as_micros() / 1000) as u32;
        let flow = self.flow;
        let kept = self.kept.clone();
        let state = self.flow();
        if let Some(window) = spec.window {
            state.window = window.0 as u16;
        }
        let isn = state.stack_isn.unwrap_or(0);
        let (first, usual) = (spec.from.0, (millis.wrapping_add(5_000_000), state.stamp));
        let value = |stamp: &Stamp, usual| match stamp {
            Stamp::Usual => usual,
            Stamp::Number(number) => *number,
            Stamp::Kept(name, offset) => kept[name].wrapping_add(*offset as u32),
        };
        let options = spec.options.iter().map(|option| match option {
            Choice::Nop => TcpOption::Nop,
            Choice::Mss(mss) => TcpOption::Mss(mss.0 as u16),
            Choice::SackPermitted => TcpOption::SackPermitted,
            Choice::WindowScale(scale) => TcpOption::WindowScale(scale.0 as u8),
            Choice::Timestamps(val, ecr) => {
                // A SYN has no timestamp to echo.
                let last = if spec.flags & ACK == 0 { 0 } else { usual.1 };
                TcpOption::Timestamps { val: value(val, usual.0), ecr: value(ecr, last) }
            }
            Choice::Sack(blocks) => TcpOption::Sack(
                blocks
                    .iter()
                    .map(|(a, b)| (isn.wrapping_add(*a as u32), isn.wrapping_add(*b as u32)))
                    .collect(),
            ),
            Choice::Raw(bytes) => TcpOption::Raw(bytes.clone()),
            Choice::Not(name) => panic!("the peer cannot send !{name}"),
        });
        let has_ack = spec.flags & ACK != 0 || spec.ack != Range::ANY;
        let acknowledgement = if has_ack { isn.wrapping_add(spec.ack.0 as u32) } else { 0 };
        let data = first + i64::from(spec.flags & SYN != 0);
        let segment = Segment {
            ecn: spec.ecn.unwrap_or(0),
            src_port: PEER_PORT + flow as u16,
            dst_port: state.stack_port,
            sequence: state.peer_isn.wrapping_add(first as u32),
            acknowledgement,
            flags: spec.flags,
            window: state.window,
            urgent: spec.urgent.unwrap_or(0),
            options: options.collect(),
            payload: (0..spec.bytes.0).map(|at| peer_byte((data + at) as u32)).collect(),
            offset: spec.offset,
            corrupt: spec.corrupt,
        };
        state.checks.hear(&segment);
        if segment.has(SYN) {
            state.syn = first;
        }
        self.note(&self.describe('<', flow, &segment));
        let now = self.now;
        self.stack().input(now, &segment.frame(), Meta::FULL);
    }

    /// Sends an ICMP error about a segment of the stack.
    fn report(&mut self, kind: u8, code: u8, mtu: u16, quote: &Spec) {
        let flow = self.flow;
        let state = self.flow();
        let sequence = state.stack_isn.unwrap_or(0).wrapping_add(quote.from.0 as u32);
        let stack_port = state.stack_port;
        let same = |(of, segment): &&(usize, Segment)| *of == flow && segment.sequence == sequence;
        let len = self.history.iter().rev().find(same).map_or(40 + quote.bytes.0 as u16, |found| {
            let header = found.1.frame().len() - 14;
            header as u16
        });
        let mut message = vec![kind, code, 0, 0, 0, 0];
        message.extend_from_slice(&mtu.to_be_bytes());
        message.extend_from_slice(&[0x45, 0]);
        message.extend_from_slice(&len.to_be_bytes());
        message.extend_from_slice(&[0, 0, 0x40, 0, 60, 6, 0, 0]);
        message.extend_from_slice(&wire::STACK_IP);
        message.extend_from_slice(&wire::PEER_IP);
        message.extend_from_slice(&stack_port.to_be_bytes());
        message.extend_from_slice(&(PEER_PORT + flow as u16).to_be_bytes());
        message.extend_from_slice(&sequence.to_be_bytes());
        let check = !wire::sum(&message);
        message[2..4].copy_from_slice(&check.to_be_bytes());
        self.note(&format!("< ICMP {kind}/{code} mtu {mtu} about {}, {len} bytes", quote.from.0));
        let now = self.now;
        self.stack().input(now, &wire::packet(1, 0, &message), Meta::FULL);
    }

    /// Lets the stack send all that it can at this time.
    pub fn pump(&mut self) {
        self.held = false;
        for _ in 0..1_000 {
            let (now, mut link) = (self.now, std::mem::take(&mut self.link));
            let worked = self.stack().poll(now, &mut link);
            for (frame, meta) in link.0 {
                if let Some(answer) = wire::arp_answer(&frame) {
                    self.stack().input(now, &answer, Meta::FULL);
                }
                match wire::parse(&frame, meta, self.config.mtu) {
                    Ok(segments) => segments.into_iter().for_each(|segment| self.took(segment)),
                    Err(problem) => self.fail(&problem),
                }
            }
            if !worked && !self.stack().wants_poll() {
                return;
            }
        }
        self.fail("the stack never becomes idle");
    }

    /// Notes and checks a segment of the stack.
    fn took(&mut self, segment: Segment) {
        let flow = usize::from(segment.dst_port.wrapping_sub(PEER_PORT));
        let seconds = self.now.as_micros() / 1_000_000;
        let current = std::mem::replace(&mut self.flow, flow);
        let state = self.flow();
        state.stack_port = segment.src_port;
        if segment.has(SYN) {
            state.stack_isn = Some(segment.sequence);
        }
        if let Some((val, _)) = segment.timestamps() {
            state.stamp = val;
        }
        let checked = state.checks.see(&segment, seconds);
        self.flow = current;
        self.note(&self.describe('>', flow, &segment));
        if let Err(problem) = checked {
            self.fail(&problem);
        }
        self.history.push((flow, segment.clone()));
        self.sent.push_back((self.now, flow, segment));
    }

    /// Lets time pass, with the stack's timers.
    pub fn advance(&mut self, to: i64) {
        let to = Instant::from_micros(to as u64);
        if self.held && to <= self.now {
            return;
        }
        self.pump();
        while self.advance_one(to) {}
        self.now = self.now.max(to);
        self.pump();
    }

    /// Lets time pass until the stack's next timer. Returns `false` if there is none until `to`.
    pub fn advance_one(&mut self, to: Instant) -> bool {
        let now = self.now;
        let Some(at) = self.stack().poll_at(now).filter(|at| *at <= to) else { return false };
        // A timer that is due and does nothing must not stop the time.
        self.now = if at > now { at } else { now + Duration::from_micros(50) };
        self.pump();
        true
    }

    /// Checks that the stack has sent nothing unexpected.
    pub fn expect_none(&self) {
        if let Some((_, flow, segment)) = self.sent.front() {
            self.fail(&format!("unexpected: {}", self.describe('>', *flow, segment)));
        }
    }

    /// Expects segments of one of the patterns.
    fn expect(&mut self, when: When, optional: bool, patterns: &[Spec]) {
        let base = self.last.as_micros() as i64;
        let (early, late, percent) = TOLERANCE;
        let (from, to) = match when {
            When::Now if optional => (base, self.now.as_micros() as i64),
            When::Now => (base, base + late),
            When::Acknowledgement => (base, base + ACK_DELAY),
            When::Between(from, to) => (base + from - early, base + to + late),
            When::After(at) => {
                (base + at - early - at * percent / 100, base + at + late + at * percent / 100)
            }
        };
        self.pump();
        let limit = Instant::from_micros(to as u64);
        while self.sent.is_empty() && self.advance_one(limit) {}
        let Some((at, flow, segment)) = self.sent.front().cloned() else {
            if optional {
                return;
            }
            self.now = self.now.max(limit);
            self.fail(&format!("nothing was sent until {:.3} s after", (to - base) as f64 / 1e6));
        };
        let found = patterns.iter().map(|pattern| {
            let first = expanded(pattern).remove(0);
            self.compare(flow, &self.whole(&first, &segment), &first).map(|()| pattern.clone())
        });
        let found: Vec<Result<Spec, String>> = found.collect();
        let Some(pattern) = found.iter().find_map(|found| found.as_ref().ok()).cloned() else {
            if optional {
                return;
            }
            let problems: Vec<String> = found.into_iter().filter_map(Result::err).collect();
            self.fail(&problems.join("; "));
        };
        let took = at.as_micros() as i64;
        if !(from..=to).contains(&took) && !optional {
            let seconds = |time: i64| (time - base) as f64 / 1e6;
            let range = format!("{:.4} to {:.4}", seconds(from), seconds(to));
            self.fail(&format!("sent {:.4} s after, not {range} s", seconds(took)));
        }
        let mut specs = VecDeque::from(expanded(&pattern));
        while let Some(spec) = specs.pop_front() {
            self.take(&spec);
        }
    }
}
