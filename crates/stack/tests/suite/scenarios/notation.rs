//! The notation of scripts, after packetdrill's.
//!
//! Each line is `[TIME] [@FLOW] STEP`; `#` begins a comment. A flow is a connection, by the peer's
//! port 40000 + FLOW; by default the flow of the line before, at the beginning 0.
//!
//! | time | meaning |
//! |---|---|
//! | none | at once |
//! | `+1.5` | 1.5 s after the step before, with the tolerance of timers |
//! | `+1.5~3` | 1.5 s to 3 s after the step before |
//! | `ack` | within the time for which an acknowledgement may wait |
//!
//! | step | meaning |
//! |---|---|
//! | `< SEGMENT` | the peer sends; the stack then polls |
//! | `<+ SEGMENT` | the peer sends, and the stack does not poll before the next step |
//! | `> PATTERN` | the stack sends a segment of the pattern, and none before |
//! | `> PATTERN \| PATTERN` | a segment of one of the patterns |
//! | `?> PATTERN` | the stack may send such a segment |
//! | `< icmp TYPE CODE [mtu N] quote SEGMENT` | a router or the peer reports an error |
//! | anything else | a command; `script.rs` lists them |
//!
//! A segment is `[ect0\|ect1\|ce\|nonect] FLAGS FROM:TO(BYTES) [ack N] [win N] [urg N] [doff N] [corrupt]
//! [<OPTIONS>]`. The flags are those of tcpdump and E (ECE), C (CWR), U (URG); `-` is none.
//! `(1000x3)` instead of `(1000)` means three segments of 1000 bytes. Without `win`, the peer repeats
//! its last window. Options: `mss N`, `sackOK`, `wscale N`, `TS` (the peer's clock in milliseconds, the
//! last timestamp of the stack), `TS val N ecr N`, `sack FROM:TO...`, `nop`, `raw HEX...`.
//!
//! In a pattern, `*` is any number, `A..`, `..B` and `A..B` are ranges, with both ends; a field that is
//! left out may have any value, except flags. PSH is compared only if the pattern has `P` or `p`, which
//! means no PSH. The segment may have more options than the pattern; `!OPTION` means that it must not
//! have this one. `TS val $a ecr *` keeps a value, and `$a`, `$a+1`, `$a-1` are that value in a later
//! line.

use crate::wire::{ACK, CWR, ECE, FIN, PSH, RST, SYN, URG};

/// A number, or a range of numbers, or any number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range(pub i64, pub i64);

impl Range {
    pub const ANY: Range = Range(i64::MIN, i64::MAX);

    pub fn has(self, number: i64) -> bool {
        (self.0..=self.1).contains(&number)
    }

    pub fn parse(text: &str) -> Range {
        if text == "*" {
            return Range::ANY;
        }
        match text.split_once("..") {
            None => Range(number(text), number(text)),
            Some((from, to)) => Range(
                if from.is_empty() { i64::MIN } else { number(from) },
                if to.is_empty() { i64::MAX } else { number(to) },
            ),
        }
    }
}

/// A timestamp.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stamp {
    /// The sender's usual value; in a pattern, any value.
    Usual,
    Number(u32),
    /// A kept value and an offset.
    Kept(String, i64),
}

/// An option, with relative sequence numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Choice {
    Nop,
    Mss(Range),
    SackPermitted,
    WindowScale(Range),
    Timestamps(Stamp, Stamp),
    Sack(Vec<(i64, i64)>),
    Raw(Vec<u8>),
    /// The segment must not have the option of this name.
    Not(String),
}

/// A segment or a pattern.
#[derive(Clone, Debug)]
pub struct Spec {
    pub ecn: Option<u8>,
    pub flags: u8,
    /// `Some` if PSH is compared.
    pub push: Option<bool>,
    pub from: Range,
    pub to: Range,
    pub bytes: Range,
    /// The number of segments of this many bytes.
    pub count: usize,
    pub ack: Range,
    pub window: Option<Range>,
    pub urgent: Option<u16>,
    pub offset: Option<u8>,
    pub corrupt: bool,
    pub options: Vec<Choice>,
}

/// The time of a step, in microseconds after the step before.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum When {
    Now,
    After(i64),
    Between(i64, i64),
    Acknowledgement,
}

/// A step of a script.
#[derive(Clone, Debug)]
pub enum Step {
    In { hold: bool, spec: Spec },
    Icmp { kind: u8, code: u8, mtu: u16, quote: Spec },
    Out { optional: bool, patterns: Vec<Spec> },
    Command(Vec<String>),
}

/// A line of a script.
#[derive(Clone, Debug)]
pub struct Line {
    pub number: usize,
    pub text: String,
    pub when: When,
    pub flow: Option<usize>,
    pub step: Step,
}

fn number(text: &str) -> i64 {
    text.parse().unwrap_or_else(|_| panic!("{text:?} is no number"))
}

/// Returns a time in seconds as microseconds.
pub fn micros(text: &str) -> i64 {
    let seconds: f64 = text.parse().unwrap_or_else(|_| panic!("{text:?} is no time"));
    (seconds * 1e6).round() as i64
}

/// Parses a script.
pub fn parse(script: &str) -> Vec<Line> {
    script
        .lines()
        .zip(1..)
        .map(|(line, number)| (line.split('#').next().unwrap_or("").trim(), number))
        .filter(|(text, _)| !text.is_empty())
        .map(|(text, number)| parse_line(text, number))
        .collect()
}

fn parse_line(text: &str, number: usize) -> Line {
    let (mut when, mut flow, mut rest) = (When::Now, None, text);
    loop {
        let (word, after) = rest.split_once(' ').unwrap_or((rest, ""));
        if let Some(time) = word.strip_prefix('+') {
            when = match time.split_once('~') {
                Some((from, to)) => When::Between(micros(from), micros(to)),
                None => When::After(micros(time)),
            };
        } else if word == "ack" {
            when = When::Acknowledgement;
        } else if let Some(index) = word.strip_prefix('@') {
            flow = Some(index.parse().unwrap_or_else(|_| panic!("{index:?} is no flow")));
        } else {
            break;
        }
        rest = after.trim();
    }
    let (word, after) = rest.split_once(' ').unwrap_or((rest, ""));
    let step = match word {
        "<" if after.starts_with("icmp") => parse_icmp(after),
        "<" | "<+" => Step::In { hold: word == "<+", spec: parse_spec(after) },
        ">" | "?>" => Step::Out {
            optional: word == "?>",
            patterns: after.split(" | ").map(parse_spec).collect(),
        },
        _ => Step::Command(rest.split_whitespace().map(str::to_owned).collect()),
    };
    Line { number, text: text.to_owned(), when, flow, step }
}

fn parse_icmp(text: &str) -> Step {
    let (head, quote) = text.split_once("quote").expect("an ICMP error quotes a segment");
    let words: Vec<&str> = head.split_whitespace().collect();
    let small = |at: usize| number(words[at]);
    Step::Icmp {
        kind: small(1) as u8,
        code: small(2) as u8,
        mtu: if words.get(3) == Some(&"mtu") { small(4) as u16 } else { 0 },
        quote: parse_spec(quote),
    }
}

/// Parses a segment or pattern.
pub fn parse_spec(text: &str) -> Spec {
    let mut spec = Spec {
        ecn: None,
        flags: 0,
        push: None,
        from: Range::ANY,
        to: Range::ANY,
        bytes: Range::ANY,
        count: 1,
        ack: Range::ANY,
        window: None,
        urgent: None,
        offset: None,
        corrupt: false,
        options: Vec::new(),
    };
    let (head, options) = match text.split_once('<') {
        Some((head, options)) => (head, options.split('>').next().unwrap_or("")),
        None => (text, ""),
    };
    let mut words = head.split_whitespace().peekable();
    let ecn = words.peek().and_then(|word| match *word {
        "nonect" => Some(0),
        "ect1" => Some(1),
        "ect0" => Some(2),
        "ce" => Some(3),
        _ => None,
    });
    if ecn.is_some() {
        spec.ecn = ecn;
        words.next();
    }
    parse_flags(words.next().expect("a segment has flags"), &mut spec);
    let place = words.next().expect("a segment has sequence numbers");
    let (from, rest) = place.split_once(':').expect("FROM:TO(BYTES)");
    let (to, bytes) = rest.split_once('(').expect("FROM:TO(BYTES)");
    let bytes = bytes.trim_end_matches(')');
    let (bytes, count) = bytes.split_once('x').unwrap_or((bytes, "1"));
    (spec.from, spec.to) = (Range::parse(from), Range::parse(to));
    (spec.bytes, spec.count) = (Range::parse(bytes), number(count) as usize);
    while let Some(word) = words.next() {
        let mut value = || words.next().unwrap_or_else(|| panic!("{word} has no value"));
        match word {
            "ack" => spec.ack = Range::parse(value()),
            "win" => spec.window = Some(Range::parse(value())),
            "urg" => spec.urgent = Some(number(value()) as u16),
            "doff" => spec.offset = Some(number(value()) as u8),
            "corrupt" => spec.corrupt = true,
            _ => panic!("{word:?} is unknown in a segment"),
        }
    }
    let options = options.split(',').map(str::trim).filter(|option| !option.is_empty());
    spec.options = options.map(parse_option).collect();
    spec
}

fn parse_flags(letters: &str, spec: &mut Spec) {
    for letter in letters.chars() {
        spec.flags |= match letter {
            'F' => FIN,
            'S' => SYN,
            'R' => RST,
            '.' => ACK,
            'U' => URG,
            'E' => ECE,
            'C' => CWR,
            'P' => PSH,
            'p' | '-' => 0,
            _ => panic!("{letter:?} is no flag"),
        };
        match letter {
            'P' => spec.push = Some(true),
            'p' => spec.push = Some(false),
            _ => {}
        }
    }
}

fn parse_option(text: &str) -> Choice {
    if let Some(name) = text.strip_prefix('!') {
        return Choice::Not(name.to_owned());
    }
    let words: Vec<&str> = text.split_whitespace().collect();
    match words[0] {
        "nop" => Choice::Nop,
        "mss" => Choice::Mss(Range::parse(words[1])),
        "sackOK" => Choice::SackPermitted,
        "wscale" => Choice::WindowScale(Range::parse(words[1])),
        "TS" if words.len() == 1 => Choice::Timestamps(Stamp::Usual, Stamp::Usual),
        "TS" => Choice::Timestamps(parse_stamp(words[2]), parse_stamp(words[4])),
        "sack" => {
            let block = |word: &&str| {
                let (from, to) = word.split_once(':').expect("FROM:TO");
                (number(from), number(to))
            };
            Choice::Sack(words[1..].iter().map(block).collect())
        }
        "raw" => {
            let byte = |word: &&str| u8::from_str_radix(word, 16).expect("hexadecimal bytes");
            Choice::Raw(words[1..].iter().map(byte).collect())
        }
        other => panic!("{other:?} is no option"),
    }
}

fn parse_stamp(text: &str) -> Stamp {
    if text == "*" {
        return Stamp::Usual;
    }
    let Some(name) = text.strip_prefix('$') else { return Stamp::Number(number(text) as u32) };
    let at = name.find(['+', '-']).unwrap_or(name.len());
    let offset = if at == name.len() { 0 } else { number(name[at..].trim_start_matches('+')) };
    Stamp::Kept(name[..at].to_owned(), offset)
}
