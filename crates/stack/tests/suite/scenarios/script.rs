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

use crate::scenarios::checks::Checks;
use crate::scenarios::matching::expanded;
use crate::scenarios::notation::{self, Line, Spec, Step, When};
use crate::wire::{self, SYN, Segment};

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
    pub window: u16,
    pub stamp: u32,
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
    /// The kind of this run.
    title: &'static str,
    /// The peer's initial sequence number.
    peer_isn: u32,
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
    pub history: Vec<(usize, Segment)>,
    pub kept: HashMap<String, u32>,
    pub trace: Vec<String>,
    pub line: String,
    /// `true` after a segment before which the stack does not poll.
    held: bool,
}

/// Runs a script, and panics with the trace of all segments if the stack does not follow it. The
/// script runs as it is, then with segmentation offload, then with numbers of the peer that wrap.
pub fn run(script: &str) {
    run_once("the script", script, false, 0x3000_0000);
    run_once("the script with segmentation offload", script, true, 0x3000_0000);
    run_once("the script with other numbers of the peer", script, false, 0xffff_fe00);
}

fn run_once(title: &'static str, script: &str, offload: bool, peer_isn: u32) {
    let mut config = Config::new(wire::STACK_MAC);
    config.ipv4 = Some((wire::STACK_IP.into(), 24));
    config.ipv6_link_local = false;
    config.seed = 7;
    if offload {
        crate::scenarios::commands::enable_offload(&mut config);
    }
    let mut runner = Runner {
        title,
        peer_isn,
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
        panic!("\n{trace}\n\nin {}, at {}:\n    {problem}\n", self.title, self.line)
    }

    pub fn stack(&mut self) -> &mut Stack {
        let (config, now) = (&self.config, self.now);
        self.made.get_or_insert_with(|| Stack::new(config.clone(), now).unwrap())
    }

    pub fn flow(&mut self) -> &mut Flow {
        let peer_isn = self.peer_isn;
        self.flows.entry(self.flow).or_insert_with(|| Flow {
            stack_port: STACK_PORT,
            socket: None,
            peer_isn,
            stack_isn: None,
            syn: 0,
            read: 1,
            written: 1,
            window: u16::MAX,
            stamp: 0,
            checks: Checks::default(),
        })
    }

    pub fn note(&mut self, what: &str) {
        let millis = self.now.as_micros() as f64 / 1000.0 - 1000.0;
        self.trace.push(format!("{millis:>12.3} {what}"));
    }

    pub fn step(&mut self, line: &Line) {
        self.line = format!("line {}: {}", line.number, line.text);
        self.flow = line.flow.unwrap_or(self.flow);
        match &line.step {
            Step::Out { optional, patterns } => return self.expect(line.when, *optional, patterns),
            Step::Command(words) if words[0] == "config" => {
                return crate::scenarios::commands::configure(&mut self.config, words);
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
