//! Compares the stack's segments with patterns, and describes segments.

use std::time::Duration;

use crate::scenarios::notation::{Choice, Range, Spec, Stamp};
use crate::scenarios::script::{Flow, Runner, TOLERANCE};
use crate::wire::{self, ACK, FIN, PSH, RST, SYN, Segment, TcpOption};

/// Returns the single segments of a specification such as `1:3001(1000x3)`.
pub fn expanded(spec: &Spec) -> Vec<Spec> {
    if spec.count == 1 {
        return vec![spec.clone()];
    }
    let bytes = spec.bytes.0;
    assert_eq!(spec.to.0 - spec.from.0, bytes * spec.count as i64, "FROM:TO(BYTESxCOUNT)");
    (0..spec.count as i64)
        .map(|index| {
            let from = spec.from.0 + index * bytes;
            let (from, to) = (Range(from, from), Range(from + bytes, from + bytes));
            Spec { from, to, count: 1, ..spec.clone() }
        })
        .collect()
}

fn relative(number: u32, isn: u32) -> i64 {
    i64::from(number.wrapping_sub(isn) as i32)
}

impl Runner {
    /// Returns the segment, together with a FIN that follows it at once: a stack may send the FIN
    /// with the last data or alone.
    pub fn whole(&self, pattern: &Spec, segment: &Segment) -> Segment {
        let mut segment = segment.clone();
        if self.splits_fin(pattern, &segment) {
            segment.flags |= FIN;
        }
        segment
    }

    fn splits_fin(&self, pattern: &Spec, segment: &Segment) -> bool {
        let wanted = pattern.flags & FIN != 0 && pattern.bytes.0 > 0;
        let next = self.sent.get(1).map(|(_, _, next)| next);
        wanted
            && !segment.has(FIN)
            && next.is_some_and(|next| {
                next.has(FIN) && next.payload.is_empty() && next.sequence == segment.end()
            })
    }

    /// Takes a segment that the stack sends at once, which must have the pattern.
    pub fn take(&mut self, pattern: &Spec) {
        if self.sent.is_empty() {
            let limit = self.now + Duration::from_micros(TOLERANCE.1 as u64);
            while self.sent.is_empty() && self.advance_one(limit) {}
        }
        let Some((at, flow, segment)) = self.sent.front().cloned() else {
            let from = pattern.from.0;
            self.fail(&format!("the stack does not send the segment from {from}"));
        };
        let split = self.splits_fin(pattern, &segment);
        let segment = self.whole(pattern, &segment);
        if let Err(problem) = self.compare(flow, &segment, pattern) {
            self.fail(&problem);
        }
        self.keep(pattern, &segment);
        self.sent.pop_front();
        if split {
            self.sent.pop_front();
        }
        self.last = at;
    }

    /// Keeps the timestamps to which the pattern gives names.
    fn keep(&mut self, pattern: &Spec, segment: &Segment) {
        for option in &pattern.options {
            if let (Choice::Timestamps(val, ecr), Some(stamps)) = (option, segment.timestamps()) {
                for (stamp, value) in [(val, stamps.0), (ecr, stamps.1)] {
                    if let Stamp::Kept(name, 0) = stamp {
                        self.kept.entry(name.clone()).or_insert(value);
                    }
                }
            }
        }
    }

    /// Compares a segment with a pattern.
    pub fn compare(&self, flow: usize, segment: &Segment, pattern: &Spec) -> Result<(), String> {
        let same = |what: &str, right: bool| {
            let got = self.describe('>', flow, segment);
            if right { Ok(()) } else { Err(format!("another {what}: {got}")) }
        };
        let state = &self.flows[&flow];
        let isn = state.stack_isn.unwrap_or(0);
        let bits = FIN | SYN | RST | ACK | wire::URG | wire::ECE | wire::CWR;
        same("flow", flow == self.flow)?;
        same("set of flags", segment.flags & bits == pattern.flags & bits)?;
        same("PSH", pattern.push.is_none_or(|push| segment.has(PSH) == push))?;
        same("ECN field", pattern.ecn.is_none_or(|ecn| segment.ecn == ecn))?;
        let end = segment.sequence.wrapping_add(segment.payload.len() as u32);
        same("sequence number", pattern.from.has(relative(segment.sequence, isn)))?;
        same("length", pattern.bytes.has(segment.payload.len() as i64))?;
        same("end", pattern.to.has(relative(end, isn)))?;
        let ack = relative(segment.acknowledgement, state.peer_isn);
        same("acknowledgement", !segment.has(ACK) || pattern.ack.has(ack))?;
        let window = i64::from(state.checks.window(segment));
        same(&format!("window ({window})"), pattern.window.is_none_or(|w| w.has(window)))?;
        same("urgent pointer", pattern.urgent.is_none_or(|urgent| segment.urgent == urgent))?;
        for option in &pattern.options {
            same(&format!("option ({option:?})"), self.has_option(state, segment, option))?;
        }
        Ok(())
    }

    fn has_option(&self, state: &Flow, segment: &Segment, option: &Choice) -> bool {
        let matches = |stamp: &Stamp, value: u32| match stamp {
            Stamp::Usual => true,
            Stamp::Number(number) => value == *number,
            Stamp::Kept(name, offset) => {
                self.kept.get(name).is_none_or(|kept| value == kept.wrapping_add(*offset as u32))
            }
        };
        let name = |option: &TcpOption| match option {
            TcpOption::Nop => "nop",
            TcpOption::Mss(_) => "mss",
            TcpOption::SackPermitted => "sackOK",
            TcpOption::WindowScale(_) => "wscale",
            TcpOption::Timestamps { .. } => "TS",
            TcpOption::Sack(_) => "sack",
            TcpOption::Raw(_) => "raw",
        };
        if let Choice::Not(not) = option {
            return segment.options.iter().all(|found| name(found) != not);
        }
        segment.options.iter().any(|found| match (option, found) {
            (Choice::Nop, TcpOption::Nop) => true,
            (Choice::SackPermitted, TcpOption::SackPermitted) => true,
            (Choice::Mss(range), TcpOption::Mss(mss)) => range.has(i64::from(*mss)),
            (Choice::WindowScale(range), TcpOption::WindowScale(scale)) => {
                range.has(i64::from(*scale))
            }
            (Choice::Timestamps(val, ecr), TcpOption::Timestamps { val: v, ecr: e }) => {
                matches(val, *v) && matches(ecr, *e)
            }
            (Choice::Sack(wanted), TcpOption::Sack(blocks)) => {
                let isn = state.peer_isn;
                let blocks = blocks.iter().map(|(a, b)| (relative(*a, isn), relative(*b, isn)));
                blocks.eq(wanted.iter().copied())
            }
            _ => false,
        })
    }

    /// Returns a segment in the notation of scripts.
    pub fn describe(&self, direction: char, flow: usize, segment: &Segment) -> String {
        let state = &self.flows[&flow];
        let (mine, other) = match direction {
            '>' => (state.stack_isn.unwrap_or(0), state.peer_isn),
            _ => (state.peer_isn, state.stack_isn.unwrap_or(0)),
        };
        let letters = [(SYN, 'S'), (FIN, 'F'), (RST, 'R'), (PSH, 'P'), (wire::URG, 'U')];
        let letters = letters.into_iter().chain([(wire::ECE, 'E'), (wire::CWR, 'C'), (ACK, '.')]);
        let flags: String =
            letters.filter(|(bit, _)| segment.has(*bit)).map(|(_, letter)| letter).collect();
        let (from, len) = (relative(segment.sequence, mine), segment.payload.len());
        let ecn = ["", "ect1 ", "ect0 ", "ce "][usize::from(segment.ecn)];
        let mut text = format!("{direction} {ecn}{flags} {from}:{}({len})", from + len as i64);
        if segment.has(ACK) {
            text += &format!(" ack {}", relative(segment.acknowledgement, other));
        }
        text += &format!(" win {}", segment.window);
        if segment.has(wire::URG) {
            text += &format!(" urg {}", segment.urgent);
        }
        let options: Vec<String> = segment
            .options
            .iter()
            .map(|option| match option {
                TcpOption::Nop => "nop".to_owned(),
                TcpOption::Mss(mss) => format!("mss {mss}"),
                TcpOption::SackPermitted => "sackOK".to_owned(),
                TcpOption::WindowScale(scale) => format!("wscale {scale}"),
                TcpOption::Timestamps { val, ecr } => format!("TS val {val} ecr {ecr}"),
                TcpOption::Sack(blocks) => {
                    let isn = other;
                    let blocks = blocks
                        .iter()
                        .map(|(a, b)| format!(" {}:{}", relative(*a, isn), relative(*b, isn)));
                    format!("sack{}", blocks.collect::<String>())
                }
                TcpOption::Raw(bytes) => format!("raw {bytes:02x?}"),
            })
            .collect();
        if !options.is_empty() {
            text += &format!(" <{}>", options.join(","));
        }
        if flow == 0 { text } else { format!("@{flow} {text}") }
    }
}
