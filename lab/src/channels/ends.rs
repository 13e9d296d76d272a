//! Two applications with channels between them.

use std::net::IpAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use towpath_client::{
    Channel, ChannelOffer, Endpoint, Memory, OobAddress, OobKind, Options, PeerState, Rule,
    Session, Sharing, WaitStrategy,
};

use crate::trip::PATIENCE;

/// The port of the endpoint that is asked for a connection.
const PORT: u16 = 9;
const TCP: u8 = 6;

/// An application: a session with an endpoint that is connected with the other one's, and channels.
pub(super) struct Side {
    pub(super) session: Session,
    pub(super) endpoint: Endpoint,
    pub(super) channels: Vec<Channel>,
    /// The memory of its rings.
    _memory: Memory,
}

impl Side {
    /// Returns the channels' places by the numbers of their tripwires.
    pub(super) fn by_tripwire(&self) -> Vec<usize> {
        let mut places = Vec::new();
        for (place, channel) in self.channels.iter().enumerate() {
            let tripwire = channel.tripwire().number() as usize;
            if places.len() <= tripwire {
                places.resize(tripwire + 1, usize::MAX);
            }
            places[tripwire] = place;
        }
        places
    }
}

/// Opens `count` channels between two applications, each with rings of `ring_bytes`.
pub(super) fn open(
    socket: &Path,
    wait_strategy: WaitStrategy,
    (count, ring_bytes): (usize, usize),
) -> anyhow::Result<[Side; 2]> {
    let objects = 2 * count as u32 + 8;
    let options = |name: &str| Options {
        name: name.into(),
        oob_slots: 16,
        apertures: objects,
        tripwires: objects,
        wait_strategy,
        ..Options::default()
    };
    let mut asks = Session::attach(socket, &options("asks"))?;
    let mut answers = Session::attach(socket, &options("answers"))?;
    let (near, far) = connect(&mut asks, &mut answers)?;
    let each = ChannelOffer::memory_bytes(ring_bytes).context("no ring has this length")?;
    let memory = |session: &mut Session| session.memories().create(each * count, Sharing::MapWrite);
    let memories = [memory(&mut asks)?, memory(&mut answers)?];
    let mut channels = [Vec::with_capacity(count), Vec::with_capacity(count)];
    for number in 0..count {
        let place = number * each;
        let mut one = ChannelOffer::new(&mut asks, near, (&memories[0], place), ring_bytes)?;
        let mut other = ChannelOffer::new(&mut answers, far, (&memories[1], place), ring_bytes)?;
        asks.sender().flush()?;
        answers.sender().flush()?;
        channels[0].push(complete(&mut one, &mut asks, near)?);
        channels[1].push(complete(&mut other, &mut answers, far)?);
    }
    let [one, other] = channels;
    let [near_memory, far_memory] = memories;
    Ok([
        Side { session: asks, endpoint: near, channels: one, _memory: near_memory },
        Side { session: answers, endpoint: far, channels: other, _memory: far_memory },
    ])
}

/// Connects an endpoint of one session with one of another: of the same server, or of one that
/// speaks RoCEv2 with it. Returns both.
pub(crate) fn connect(
    asks: &mut Session,
    answers: &mut Session,
) -> anyhow::Result<(Endpoint, Endpoint)> {
    let listener = answers.open(&Rule::new().tcp(PORT).out_of_band())?;
    let near = asks.open(&Rule::new().tcp(0).out_of_band())?;
    let ip = answers.info().ipv4.context("a session without an IPv4 address")?.0;
    let to = OobAddress { ip: IpAddr::V4(ip), protocol: TCP, port: PORT };
    asks.oob().request_connection(near, to, b"")?;
    asks.sender().flush()?;
    let request = message(answers, listener)?;
    let far = answers.open(&Rule::new().tcp(0).out_of_band())?;
    answers.oob().accept_connection(far, request.from(), b"")?;
    answers.sender().flush()?;
    ensure!(message(asks, near)?.kind() == OobKind::Accept, "no connection");
    let until = Instant::now() + PATIENCE;
    for (session, endpoint) in [(asks, near), (answers, far)] {
        while session.peer_state(endpoint) != PeerState::Connected {
            ensure!(Instant::now() < until, "no connection in {PATIENCE:?}");
            session.wait(Some(Duration::from_millis(1)))?;
        }
    }
    Ok((near, far))
}

fn message(
    session: &mut Session,
    endpoint: Endpoint,
) -> anyhow::Result<towpath_client::ReceivedOob> {
    let until = Instant::now() + PATIENCE;
    loop {
        if let Some(message) = session.oob().receive(endpoint)? {
            return Ok(message);
        }
        ensure!(Instant::now() < until, "no message in {PATIENCE:?}");
        session.wait(Some(Duration::from_millis(1)))?;
    }
}

fn complete(
    offer: &mut ChannelOffer,
    session: &mut Session,
    endpoint: Endpoint,
) -> anyhow::Result<Channel> {
    loop {
        let message = message(session, endpoint)?;
        if let Some(channel) = offer.complete(session, &message)? {
            return Ok(channel);
        }
    }
}
