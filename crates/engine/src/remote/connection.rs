//! One connection with another host, and its state.

use std::collections::VecDeque;

use towpath_packet::roce::{Path, cm};
use towpath_protocol::oob::OobAddress;
use towpath_rdma::Connection as Wire;
use towpath_rdma::responder::Progress;

use super::copies::RemoteCopies;
use super::lists::Listed;
use super::pending::{Pending, Waiting};
use crate::account::Account;
use crate::oob::connection::EndpointName;

/// How long a request of another host waits for an application, in nanoseconds.
pub(super) const ASKED_NS: u64 = 60_000_000_000;

/// The state of a connection.
#[derive(Debug)]
pub(super) enum State {
    /// An endpoint here asked for it.
    Asking(Attempt),
    /// An endpoint of another host asked for it; its request waits for an answer of the application
    /// with this endpoint.
    Asked {
        listener: EndpointName,
        request: Box<cm::Request>,
        /// Where the answer goes to.
        from: OobAddress,
        since: u64,
    },
    /// An endpoint here accepted it, and the other host has yet to confirm.
    Answered(Attempt),
    Open,
    /// It has ended here, and the other host has yet to confirm.
    Left(Attempt),
}

/// A message of the communication manager that is sent until there is an answer.
#[derive(Debug)]
pub(super) struct Attempt {
    pub(super) message: Box<cm::Mad>,
    /// How often it was sent.
    pub(super) tries: u32,
    /// When it is sent again, in nanoseconds.
    pub(super) at: u64,
    /// When it was sent first.
    pub(super) since: Option<u64>,
}

impl Attempt {
    /// Makes an attempt that is due at once.
    pub(super) fn new(message: cm::Mad, now: u64) -> Attempt {
        Attempt { message: Box::new(message), tries: 0, at: now, since: None }
    }
}

/// A connection.
#[derive(Debug)]
pub(super) struct Remote {
    /// The endpoint here, once there is one.
    pub(super) owner: Option<EndpointName>,
    /// The address of the endpoint at the other end.
    pub(super) peer: OobAddress,
    pub(super) state: State,
    /// The addresses; the link address of the other host is 0 until it is known.
    pub(super) path: Path,
    /// The communication manager's numbers of both sides, and that of the exchange.
    pub(super) local_id: u32,
    pub(super) remote_id: u32,
    pub(super) transaction: u64,
    /// The number of the other host's first packet.
    pub(super) expected_psn: u32,
    pub(super) destination: u32,
    pub(super) wire: Option<Box<Wire>>,
    /// Its place in the ledger, while it is open, and how far the peer's requests are recorded there.
    pub(super) place: Option<u32>,
    pub(super) recorded: Option<Progress>,
    /// When the connection ends at the latest, in nanoseconds, if its endpoint has left: before that,
    /// once the requests sent before are acknowledged.
    pub(super) leaves_at: Option<u64>,
    /// `true` once the endpoint here is removed: another one may have its number.
    pub(super) is_removed: bool,
    /// The account of the endpoint here, or of the one that a request of another host waits for.
    pub(super) account: Option<Account>,
    /// The slot of the transmit queue behind the last one that is acknowledged.
    pub(super) done: Option<u32>,
    /// Requests of the endpoint here that are not acknowledged, in order.
    pub(super) pending: VecDeque<Pending>,
    pub(super) next_id: u64,
    /// The queue pair of which a request waits for those before it.
    pub(super) waiting: Option<Waiting>,
    /// The copies for its packets.
    pub(super) copies: RemoteCopies,
    /// `true` if it is in the list of those with something to do.
    pub(super) is_ready: bool,
    pub(super) due: Option<u64>,
    pub(super) listed: Listed,
}

impl Remote {
    /// Creates a connection that has neither side yet.
    pub(super) fn new(peer: OobAddress, state: State, path: Path) -> Remote {
        Remote {
            owner: None,
            peer,
            state,
            path,
            local_id: 0,
            remote_id: 0,
            transaction: 0,
            expected_psn: 0,
            destination: 0,
            wire: None,
            place: None,
            recorded: None,
            is_removed: false,
            leaves_at: None,
            account: None,
            done: None,
            pending: VecDeque::new(),
            next_id: 0,
            waiting: None,
            copies: RemoteCopies::default(),
            is_ready: false,
            due: None,
            listed: Listed::default(),
        }
    }

    /// `true` once it has ended here.
    pub(super) fn is_left(&self) -> bool {
        matches!(self.state, State::Left(_))
    }

    /// Returns when there is something to do without a packet of the other host.
    pub(super) fn next_due(&self) -> Option<u64> {
        let due = self.next_due_of_state();
        self.copies.looks_at.map_or(due, |at| Some(due.map_or(at, |due| due.min(at))))
    }

    fn next_due_of_state(&self) -> Option<u64> {
        let wire = || self.wire.as_ref().and_then(|wire| wire.next_due());
        match &self.state {
            State::Asking(one) | State::Left(one) => Some(one.at),
            State::Asked { since, .. } => Some(since + ASKED_NS),
            State::Answered(one) => {
                let due = self.leaves_at.map_or(one.at, |until| until.min(one.at));
                Some(wire().map_or(due, |wire| wire.min(due)))
            }
            State::Open => {
                let until = self.leaves_at;
                wire().map_or(until, |due| Some(until.map_or(due, |until| due.min(until))))
            }
        }
    }
}

#[cfg(test)]
impl Remote {
    /// Returns an open connection of 192.0.2.1 with port 7 of 192.0.2.2, which has neither side yet.
    pub(super) fn for_tests() -> Remote {
        let ip = |last| std::net::IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, last));
        let path = Path {
            source_mac: [2; 6],
            destination_mac: [4; 6],
            source: ip(1),
            destination: ip(2),
            source_port: 0xc000,
            ecn: true,
        };
        let peer = OobAddress { ip: ip(2), protocol: 6, port: 7 };
        Remote::new(peer, State::Open, path)
    }
}
