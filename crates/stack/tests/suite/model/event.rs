//! Events, and how their classes become numbers in the state of the moment.

use proptest::prelude::*;
use towpath_stack::Shutdown;

use crate::model::compare::byte;
use crate::model::driver::{Driver, PEER_PORT, STACK_PORT};
use crate::model::oracle::{State, at_least};
use crate::wire::{ACK, FIN, PSH, RST, SYN, Segment, TcpOption, URG};

/// A connection's conditions.
#[derive(Clone, Debug)]
pub struct Case {
    pub seed: u64,
    /// `true` if the stack connects; otherwise it listens.
    pub active: bool,
    /// `true` if the stack's numbers wrap soon.
    pub wraps: bool,
    pub peer_isn: u32,
    /// The options of the peer's SYN.
    pub stamps: bool,
    pub selective: bool,
    pub scale: Option<u8>,
    /// `true` if the handshake comes before the events.
    pub opens: bool,
}

#[derive(Clone, Copy, Debug)]
pub enum Event {
    Connect,
    Send(u16),
    Recv(u16),
    Shutdown(Shutdown),
    Close,
    Abort,
    Segment(Packet),
    /// Milliseconds.
    Wait(u32),
    /// The link has no room, or has room again.
    Full(bool),
}

/// A sequence number of the peer.
#[derive(Clone, Copy, Debug)]
pub enum Place {
    Exact,
    Initial,
    Old(u16),
    /// The last number: a repeated FIN, or a keep-alive probe.
    Last,
    Ahead(u16),
    LastInWindow,
    Edge,
    BeyondEdge(u16),
    HalfAround(i16),
}

/// An acknowledgement number of the peer.
#[derive(Clone, Copy, Debug)]
pub enum Acknowledgement {
    Una,
    Nxt,
    /// Between the two, in 256ths.
    Between(u8),
    Beyond(u16),
    Old(u16),
    TooOld(u16),
    HalfAround(i16),
}

#[derive(Clone, Copy, Debug)]
pub enum Stamp {
    Usual,
    Old,
    Missing,
}

/// A segment of the peer.
#[derive(Clone, Copy, Debug)]
pub struct Packet {
    pub flags: u8,
    pub place: Place,
    pub acknowledgement: Acknowledgement,
    pub window: u16,
    pub len: u16,
    pub stamp: Stamp,
}

impl Packet {
    pub fn syn() -> Packet {
        Packet {
            flags: SYN,
            place: Place::Exact,
            acknowledgement: Acknowledgement::Nxt,
            window: 8000,
            len: 0,
            stamp: Stamp::Usual,
        }
    }

    pub fn ack() -> Packet {
        Packet { flags: ACK, ..Packet::syn() }
    }

    /// Returns `true` if no sender uses the flags.
    pub fn is_odd(&self) -> bool {
        (self.flags & SYN != 0 && self.flags & (FIN | RST) != 0)
            || (self.flags & RST != 0 && self.flags & FIN != 0)
            || self.flags & (SYN | RST | ACK) == 0
    }

    pub fn has_old_stamp(&self) -> bool {
        matches!(self.stamp, Stamp::Old) && self.flags & SYN == 0
    }

    /// Returns `true` if the oracle can follow: it knows the stack's number, and one connection.
    pub fn applies(&self, driver: &Driver, held: bool) -> bool {
        driver.oracles.iter().all(|oracle| match oracle.state {
            State::Closed | State::TimeWait => {
                !(driver.stack.is_blocked() || held && self.flags & SYN != 0)
            }
            // The window of a SYN that was not answered yet may not count.
            State::SynReceived => oracle.iss.is_some() && !driver.stack.is_blocked(),
            _ => oracle.iss.is_some(),
        })
    }

    /// Makes the segment for the state of the moment.
    pub fn resolve(&self, driver: &mut Driver) -> Segment {
        let oracle = &driver.oracles[0];
        let synchronized = oracle.is_synchronized();
        let (nxt, edge) = match synchronized {
            true => (oracle.rcv_nxt, oracle.rcv_edge),
            false => (driver.peer_isn, driver.peer_isn.wrapping_add(1000)),
        };
        let around = |from: u32, by: i16| from.wrapping_add(1 << 31).wrapping_add(by as u32);
        let sequence = match self.place {
            Place::Exact => nxt,
            Place::Initial if synchronized => oracle.irs,
            Place::Initial => nxt,
            Place::Last => nxt.wrapping_sub(1),
            Place::Old(by) => nxt.wrapping_sub(by.into()),
            Place::Ahead(by) => nxt.wrapping_add(by.into()),
            Place::LastInWindow => edge.wrapping_sub(1),
            Place::Edge => edge,
            Place::BeyondEdge(by) => edge.wrapping_add(by.into()),
            Place::HalfAround(by) => around(nxt, by),
        };
        let (una, sent) = (oracle.una, oracle.nxt);
        let acknowledgement = match self.acknowledgement {
            Acknowledgement::Una => una,
            Acknowledgement::Nxt => sent,
            Acknowledgement::Between(part) => {
                let flight = u64::from(sent.wrapping_sub(una));
                una.wrapping_add((flight * u64::from(part) / 256) as u32)
            }
            Acknowledgement::Beyond(by) => sent.wrapping_add(by.into()),
            Acknowledgement::Old(by) => una.wrapping_sub(by.into()),
            Acknowledgement::TooOld(by) => {
                una.wrapping_sub(oracle.max_window).wrapping_sub(by.into())
            }
            Acknowledgement::HalfAround(by) => around(sent, by),
        };
        let stamps = if synchronized { oracle.stamps } else { driver.case.stamps };
        let mut segment = Segment {
            src_port: PEER_PORT,
            dst_port: STACK_PORT,
            sequence,
            acknowledgement: if self.flags & ACK != 0 { acknowledgement } else { 0 },
            flags: self.flags,
            window: self.window,
            ..Segment::default()
        };
        if self.flags & (SYN | RST) == 0 {
            let data = sequence..;
            segment.payload = data_from(data.start, self.len);
        }
        segment.options = self.options(driver, stamps);
        if segment.has(SYN) {
            return segment;
        }
        driver.keep_stream_consistent(&mut segment);
        segment
    }

    fn options(&self, driver: &Driver, stamps: bool) -> Vec<TcpOption> {
        let mut options = Vec::new();
        let millis = (driver.now.as_micros() / 1000) as u32;
        let is_syn = self.flags & SYN != 0;
        if is_syn {
            options.push(TcpOption::Mss(1460));
            if driver.case.selective {
                options.push(TcpOption::SackPermitted);
            }
            options.extend(driver.case.scale.map(TcpOption::WindowScale));
        }
        let val = match self.stamp {
            _ if is_syn => Some(millis.wrapping_add(5_000_000)).filter(|_| driver.case.stamps),
            Stamp::Usual => Some(millis.wrapping_add(5_000_000)).filter(|_| stamps),
            Stamp::Old => Some(((driver.case.seed % 1000) as u32).wrapping_add(4_000_000)),
            Stamp::Missing => None,
        };
        let ecr = if self.flags & ACK != 0 { driver.stamp } else { 0 };
        options.extend(val.map(|val| TcpOption::Timestamps { val, ecr }));
        options
    }
}

fn data_from(sequence: u32, len: u16) -> Vec<u8> {
    (0..u32::from(len)).map(|at| byte(sequence.wrapping_add(at))).collect()
}

impl Driver {
    /// Keeps the peer from contradicting itself about the end of its stream, on which the RFC is
    /// silent.
    fn keep_stream_consistent(&mut self, segment: &mut Segment) {
        let acceptable = self.oracles.iter().any(|oracle| {
            let edge = segment.sequence == oracle.rcv_edge;
            oracle.is_synchronized() && (edge || oracle.acceptable(segment))
        });
        if !acceptable {
            return;
        }
        if let Some(fin) = self.peer_fin {
            let left = fin.wrapping_sub(segment.sequence) as i32;
            segment.payload.truncate(left.max(0) as usize);
        }
        let data = segment.payload.len() as u32;
        let end = segment.sequence.wrapping_add(data);
        if segment.has(FIN) {
            let fits = match self.peer_fin {
                Some(fin) => fin == end,
                None => at_least(end, self.peer_end),
            };
            if fits {
                self.peer_fin = Some(end);
            } else {
                segment.flags &= !FIN;
            }
        }
        if at_least(end, self.peer_end) {
            self.peer_end = end;
        }
    }
}

fn place() -> impl Strategy<Value = Place> {
    prop_oneof![
        12 => Just(Place::Exact),
        1 => Just(Place::Initial),
        2 => Just(Place::Last),
        3 => (1..2000_u16).prop_map(Place::Old),
        4 => (1..4000_u16).prop_map(Place::Ahead),
        1 => Just(Place::LastInWindow),
        1 => Just(Place::Edge),
        1 => (1..3000_u16).prop_map(Place::BeyondEdge),
        1 => any::<i16>().prop_map(Place::HalfAround),
    ]
}

fn acknowledgement() -> impl Strategy<Value = Acknowledgement> {
    prop_oneof![
        12 => Just(Acknowledgement::Nxt),
        3 => Just(Acknowledgement::Una),
        3 => any::<u8>().prop_map(Acknowledgement::Between),
        1 => (1..3000_u16).prop_map(Acknowledgement::Beyond),
        1 => (1..1000_u16).prop_map(Acknowledgement::Old),
        1 => (0..1000_u16).prop_map(Acknowledgement::TooOld),
        1 => any::<i16>().prop_map(Acknowledgement::HalfAround),
    ]
}

fn packet() -> impl Strategy<Value = Packet> {
    let flags = prop_oneof![
        16 => Just(ACK),
        6 => Just(ACK | PSH),
        5 => Just(ACK | FIN),
        2 => Just(SYN),
        2 => Just(SYN | ACK),
        2 => Just(RST),
        2 => Just(RST | ACK),
        2 => (0..64_u8).prop_map(|flags| flags & !URG),
    ];
    let window =
        prop_oneof![6 => Just(8000_u16), 2 => 0..3000_u16, 1 => Just(0), 1 => any::<u16>()];
    let len = prop_oneof![5 => Just(0_u16), 4 => 1..1461_u16, 1 => Just(1)];
    let stamp =
        prop_oneof![10 => Just(Stamp::Usual), 1 => Just(Stamp::Old), 1 => Just(Stamp::Missing)];
    (flags, place(), acknowledgement(), window, len, stamp).prop_map(
        |(flags, place, acknowledgement, window, len, stamp)| Packet {
            flags,
            place,
            acknowledgement,
            window,
            len,
            stamp,
        },
    )
}

pub fn event() -> impl Strategy<Value = Event> {
    let wait = prop_oneof![
        4 => 0..20_u32,
        3 => 20..700_u32,
        2 => 700..5000_u32,
        1 => Just(16_500_u32),
        1 => Just(62_000_u32),
    ];
    let how = prop_oneof![4 => Just(Shutdown::Write), 1 => Just(Shutdown::Read), 1 => Just(Shutdown::Both)];
    prop_oneof![
        24 => packet().prop_map(Event::Segment),
        6 => wait.prop_map(Event::Wait),
        5 => (1..5000_u16).prop_map(Event::Send),
        5 => (1..5000_u16).prop_map(Event::Recv),
        2 => how.prop_map(Event::Shutdown),
        2 => Just(Event::Close),
        1 => Just(Event::Abort),
        2 => Just(Event::Connect),
        1 => any::<bool>().prop_map(Event::Full),
        2 => Just(Event::Full(false)),
    ]
}

pub fn case() -> impl Strategy<Value = Case> {
    let isn = prop_oneof![any::<u32>(), (0..5000_u32).prop_map(u32::wrapping_neg)];
    let scale = prop_oneof![Just(None), Just(Some(0)), Just(Some(3))];
    (any::<u64>(), any::<bool>(), any::<bool>(), isn, any::<bool>(), any::<bool>(), scale, 0..4_u8)
        .prop_map(|(seed, active, wraps, peer_isn, stamps, selective, scale, opens)| Case {
            seed,
            active,
            wraps,
            peer_isn,
            stamps,
            selective,
            scale,
            opens: opens > 0,
        })
}
