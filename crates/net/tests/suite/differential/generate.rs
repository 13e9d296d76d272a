//! Random sequences, each from its seed.

use fastrand::Rng;

use super::step::{
    At, Bind, Direction, LISTENERS, ListenerCall, Peer, STREAMS, Setting, Step, StreamCall, To,
    UDPS, UdpCall,
};

/// The most calls of a sequence.
const MOST_STEPS: usize = 30;
/// Lengths of reads and writes. All writes of a sequence together fit into each buffer on the way.
const LENS: [u16; 7] = [0, 1, 2, 10, 200, 1000, 2000];
/// Lengths of datagrams: also of several fragments, and longer than UDP can carry.
const DATAGRAMS: [u32; 9] = [0, 1, 2, 100, 1000, 1472, 1473, 4000, 65_508];
const AT: [At; 5] = [At::V4, At::V6, At::AnyV4, At::Any, At::AnyV6];

/// Which slots have a socket, if each call succeeds.
#[derive(Default)]
struct Made {
    listeners: [bool; LISTENERS as usize],
    streams: [bool; STREAMS as usize],
    udps: [bool; UDPS as usize],
}

fn pick<T: Copy>(random: &mut Rng, of: &[T]) -> T {
    of[random.usize(..of.len())]
}

/// Returns one of the slots that are in use, or free.
fn slot(random: &mut Rng, slots: &[bool], used: bool) -> Option<u8> {
    let fitting: Vec<u8> =
        (0..).zip(slots).filter(|(_, is)| **is == used).map(|(at, _)| at).collect();
    (!fitting.is_empty()).then(|| pick(random, &fitting))
}

/// Returns the sequence of a seed.
pub(super) fn steps(seed: u64) -> Vec<Step> {
    let mut random = Rng::with_seed(seed);
    let mut made = Made::default();
    let count = random.usize(4..=MOST_STEPS);
    // Each sequence has one subject, so that its calls meet on few sockets.
    let is_udp = random.u8(..3) == 0;
    let mut steps = Vec::new();
    for _ in 0..count * 8 {
        if steps.len() == count {
            break;
        }
        let step = if is_udp {
            datagram_step(&mut random, &made)
        } else {
            stream_step(&mut random, &made)
        };
        let Some(step) = step else { continue };
        note(&mut made, step);
        steps.push(step);
    }
    steps
}

fn bind(random: &mut Rng, made: &[bool], at: &[At]) -> Bind {
    let port_of = if random.u8(..4) == 0 { slot(random, made, true) } else { None };
    Bind { at: pick(random, at), port_of, reuse_port: random.u8(..5) == 0 }
}

fn note(made: &mut Made, step: Step) {
    match step {
        Step::Listen { listener, .. } => made.listeners[usize::from(listener)] = true,
        Step::Connect { stream, .. }
        | Step::ConnectAgain { stream, .. }
        | Step::Accept { stream, .. } => made.streams[usize::from(stream)] = true,
        Step::Bind { udp, .. } => made.udps[usize::from(udp)] = true,
        Step::DropListener { listener } => made.listeners[usize::from(listener)] = false,
        Step::DropStream { stream } => made.streams[usize::from(stream)] = false,
        Step::DropUdp { udp } => made.udps[usize::from(udp)] = false,
        _ => {}
    }
}

fn stream_step(random: &mut Rng, made: &Made) -> Option<Step> {
    let clients = usize::from(STREAMS / 2);
    Some(match random.u8(..100) {
        0..9 => {
            let listener = slot(random, &made.listeners, false)?;
            Step::Listen { listener, bind: bind(random, &made.listeners, &AT) }
        }
        9..12 => Step::Listener {
            listener: slot(random, &made.listeners, true)?,
            call: listener_call(random),
        },
        12..24 => {
            let stream = slot(random, &made.streams[..clients], false)?;
            let to = match random.u8(..12) {
                0 => To::Closed,
                1 => To::Silent,
                _ => To::Listener {
                    listener: slot(random, &made.listeners, true)?,
                    v6: random.bool(),
                },
            };
            Step::Connect { stream, to, nonblocking: to == To::Silent || random.bool() }
        }
        24 => Step::ConnectAgain {
            stream: slot(random, &made.streams[..clients], false)?,
            of: slot(random, &made.streams[..clients], true)?,
        },
        25..36 => {
            let stream = clients as u8 + slot(random, &made.streams[clients..], false)?;
            Step::Accept { listener: slot(random, &made.listeners, true)?, stream }
        }
        36..38 => Step::DropListener { listener: slot(random, &made.listeners, true)? },
        38..46 => Step::DropStream { stream: slot(random, &made.streams, true)? },
        46 => Step::Fill { stream: slot(random, &made.streams, true)? },
        _ => Step::Stream { stream: slot(random, &made.streams, true)?, call: stream_call(random) },
    })
}

fn listener_call(random: &mut Rng) -> ListenerCall {
    match random.u8(..4) {
        0 => ListenerCall::LocalAddr,
        1 => ListenerCall::TakeError,
        2 => ListenerCall::Clone,
        _ => ListenerCall::Ttl(pick(random, &[0, 1, 17, 255, 256])),
    }
}

fn stream_call(random: &mut Rng) -> StreamCall {
    let mut len = || pick(random, &LENS);
    let (one, other) = (len(), len());
    match random.u8(..100) {
        0..20 => StreamCall::Read(one.max(1)),
        20..26 => StreamCall::ReadVectored(one, other),
        26..33 => StreamCall::Peek(one.max(1)),
        33..53 => StreamCall::Write(one),
        53..59 => StreamCall::WriteVectored(one, other),
        59..70 => StreamCall::Shutdown(match random.u8(..5) {
            0 => Direction::Read,
            1 => Direction::Both,
            _ => Direction::Write,
        }),
        70..75 => StreamCall::TakeError,
        75..79 => StreamCall::LocalAddr,
        79..83 => StreamCall::PeerAddr,
        83..85 => StreamCall::Clone,
        _ => StreamCall::Set(stream_setting(random)),
    }
}

fn stream_setting(random: &mut Rng) -> Setting {
    let seconds = pick(random, &[None, Some(0), Some(1), Some(7)]);
    match random.u8(..10) {
        0 => Setting::Nonblocking(random.bool()),
        1 => Setting::ReadTimeout(seconds),
        2 => Setting::WriteTimeout(seconds),
        3 => Setting::Ttl(pick(random, &[0, 1, 17, 255, 256])),
        4 => Setting::Tos(pick(random, &[0, 4, 0x10, 0xfc])),
        5 => Setting::Nodelay(random.bool()),
        6 => Setting::Cork(false),
        7 => Setting::Linger(seconds),
        8 => Setting::KeepAlive(seconds.filter(|time| *time > 0)),
        _ => Setting::UserTimeout(pick(random, &[None, Some(1), Some(7)])),
    }
}

fn datagram_step(random: &mut Rng, made: &Made) -> Option<Step> {
    Some(match random.u8(..100) {
        0..17 => {
            let udp = slot(random, &made.udps, false)?;
            Step::Bind { udp, bind: bind(random, &made.udps, &AT) }
        }
        17..23 => Step::DropUdp { udp: slot(random, &made.udps, true)? },
        _ => Step::Udp { udp: slot(random, &made.udps, true)?, call: udp_call(random) },
    })
}

fn udp_call(random: &mut Rng) -> UdpCall {
    let peer = match random.u8(..16) {
        0 => Peer::Closed,
        1 => Peer::PortZero,
        2 => Peer::OtherFamily,
        _ => Peer::Udp(random.u8(..UDPS)),
    };
    let (buffer, len) = (pick(random, &LENS), pick(random, &DATAGRAMS));
    match random.u8(..100) {
        0..14 if peer != Peer::PortZero => UdpCall::Connect(peer),
        0..14 => UdpCall::PeerAddr,
        14..30 => UdpCall::Send(len),
        30..48 => UdpCall::SendTo(peer, len),
        48..57 => UdpCall::Recv(buffer),
        57..68 => UdpCall::RecvFrom(buffer),
        68..73 => UdpCall::Peek(buffer),
        73..78 => UdpCall::PeekFrom(buffer),
        78..82 => UdpCall::TakeError,
        82..85 => UdpCall::LocalAddr,
        85..88 => UdpCall::PeerAddr,
        88 => UdpCall::Clone,
        _ => UdpCall::Set(udp_setting(random)),
    }
}

fn udp_setting(random: &mut Rng) -> Setting {
    let seconds = pick(random, &[None, Some(0), Some(1), Some(7)]);
    match random.u8(..8) {
        0 => Setting::Nonblocking(random.bool()),
        1 => Setting::ReadTimeout(seconds),
        2 => Setting::WriteTimeout(seconds),
        3 => Setting::Ttl(pick(random, &[0, 1, 17, 255, 256])),
        4 => Setting::Tos(pick(random, &[0, 4, 0x10, 0xfc])),
        5 => Setting::Broadcast(random.bool()),
        6 => Setting::MulticastTtl(pick(random, &[1, 17, 255, 256])),
        _ => Setting::MulticastLoop(random.bool()),
    }
}
