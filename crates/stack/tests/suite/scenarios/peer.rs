//! The peer: segments, ICMP errors, and longer actions of a script.

use towpath_stack::{Instant, Meta};

use crate::scenarios::checks::{Checks, peer_byte};
use crate::scenarios::notation::{self, Choice, Range, Spec, Stamp};
use crate::scenarios::script::{Flow, PEER_PORT, Runner};
use crate::wire::{self, ACK, SYN, Segment, TcpOption};

impl Runner {
    /// Runs a command of a script.
    pub fn command(&mut self, words: &[String], text: &str) {
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
    pub fn send(&mut self, spec: &Spec) {
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
        state.checks.receive(&segment);
        if segment.has(SYN) {
            state.syn = first;
        }
        self.note(&self.describe('<', flow, &segment));
        let now = self.now;
        self.stack().input(now, &segment.frame(), Meta::FULL);
    }

    /// Sends an ICMP error about a segment of the stack.
    pub fn report(&mut self, kind: u8, code: u8, mtu: u16, quote: &Spec) {
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
}
