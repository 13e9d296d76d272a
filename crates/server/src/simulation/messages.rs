//! Out-of-band messages between neighbours, and the connection of the first two applications.

use towpath_client::{
    Endpoint, Lost, OobAddress, OobKind, PeerState, QueuePair, QueuePairError, SendError, Session,
};
use towpath_packet::headers::PROTOCOL_UDP;

use super::random::Random;

/// Returns the loss of a session for a failed call: each session has the first queue pair.
pub(super) fn lost(error: QueuePairError) -> Lost {
    match error {
        QueuePairError::Lost(lost) => lost,
        other => panic!("{other}"),
    }
}

/// The port of an application.
pub(super) fn port(application: usize) -> u16 {
    2000 + application as u16
}

/// The port of an application's endpoint for requests.
pub(super) fn second_port(application: usize) -> u16 {
    3000 + application as u16
}

/// Returns an application's address.
pub(super) fn address(application: usize) -> OobAddress {
    let ip = [192, 0, 2, 2].into();
    OobAddress { ip, protocol: PROTOCOL_UDP, port: port(application) }
}

/// The messages of an application.
pub(super) struct Messages {
    number: usize,
    neighbour: usize,
    hostile: Option<usize>,
    pub(super) sent: u32,
    pub(super) all: u32,
    /// The number after that of the last message, and how many came.
    pub(super) next: u32,
    pub(super) received: u32,
    /// Connections that this application had and ended.
    pub(super) connections: u32,
    /// Changes of the connection that it may still make.
    changes: u32,
    /// A request that it has yet to answer.
    request: Option<OobAddress>,
}

impl Messages {
    pub(super) fn new(
        number: usize,
        applications: usize,
        all: u32,
        hostile: Option<usize>,
    ) -> Messages {
        let neighbour = (number + 1) % applications;
        let all = if applications > 1 { all } else { 0 };
        let is_one_of_two = number < 2 && applications > 1;
        let changes = if is_one_of_two && hostile.is_none_or(|one| one > 1) { all } else { 0 };
        Messages {
            number,
            neighbour,
            hostile,
            sent: 0,
            all,
            next: 0,
            received: 0,
            connections: 0,
            changes,
            request: None,
        }
    }

    /// Returns `true` once everything is sent.
    pub(super) fn is_sent(&self) -> bool {
        self.sent == self.all && self.request.is_none()
    }

    /// Sends messages, or changes the connection. Returns a word for the trace.
    pub(super) fn send(
        &mut self,
        session: &mut Session,
        endpoint: Endpoint,
        random: &mut Random,
    ) -> Result<u64, Lost> {
        self.answer(session, endpoint)?;
        for _ in 0..=random.below(4) {
            if self.sent == self.all {
                break;
            }
            match session.oob().send(endpoint, address(self.neighbour), &self.sent.to_le_bytes()) {
                Ok(()) => self.sent += 1,
                Err(SendError::Full) => {
                    session.sender().want_room(QueuePair::FIRST).map_err(lost)?;
                    return Ok(13);
                }
                Err(SendError::Lost(lost)) => return Err(lost),
                Err(other) => panic!("{other}"),
            }
        }
        if self.changes > 0 && random.once_in(2) {
            self.changes -= 1;
            return self.change(session, endpoint, random);
        }
        Ok(8)
    }

    /// The first application asks the second one; either of both ends the connection at random, and
    /// the first one may take its request back.
    fn change(
        &mut self,
        session: &mut Session,
        endpoint: Endpoint,
        random: &mut Random,
    ) -> Result<u64, Lost> {
        let outcome = match session.peer_state(endpoint) {
            PeerState::Connected => {
                self.connections += 1;
                session.oob().disconnect(endpoint)
            }
            PeerState::Requested if self.number == 0 && random.once_in(4) => {
                session.oob().disconnect(endpoint)
            }
            PeerState::Requested => return Ok(9),
            _ if self.number == 0 => {
                session.oob().request_connection(endpoint, address(1), b"simulated")
            }
            _ => return Ok(10),
        };
        match outcome {
            Ok(()) | Err(SendError::Full) => Ok(11),
            Err(SendError::Lost(lost)) => Err(lost),
            Err(other) => panic!("{other}"),
        }
    }

    /// Answers a request, if there is room.
    fn answer(&mut self, session: &mut Session, endpoint: Endpoint) -> Result<(), Lost> {
        let Some(to) = self.request.take() else { return Ok(()) };
        let answered = match session.oob().accept_connection(endpoint, to, b"accepted") {
            Err(SendError::HasPeer) => session.oob().reject_connection(endpoint, to, b"rejected"),
            other => other,
        };
        match answered {
            Ok(()) => Ok(()),
            Err(SendError::Full) => {
                self.request = Some(to);
                session.sender().want_room(QueuePair::FIRST).map_err(lost)
            }
            Err(SendError::Lost(lost)) => Err(lost),
            Err(other) => panic!("{other}"),
        }
    }

    /// Receives messages: each once, and in order.
    pub(super) fn receive(
        &mut self,
        session: &mut Session,
        endpoint: Endpoint,
        most: u64,
    ) -> Result<u64, Lost> {
        let mut trace = 12;
        for _ in 0..most {
            let Some(message) = session.oob().receive(endpoint)? else { break };
            trace = trace * 31 + u64::from(message.session());
            // A hostile application also sends from its endpoint for requests.
            let from = message.session() as usize - 1;
            let ports = [port(from), second_port(from)];
            assert!(ports.contains(&message.from().port), "{message:?}");
            if Some(from) == self.hostile || Some(self.number) == self.hostile {
                continue;
            }
            match message.kind() {
                OobKind::Message => {
                    let number = u32::from_le_bytes(message.payload().try_into().unwrap());
                    assert!(number >= self.next, "message {number} after {}", self.next);
                    self.next = number + 1;
                    self.received += 1;
                }
                OobKind::Request => {
                    assert_eq!(message.payload(), b"simulated");
                    self.request = Some(message.from());
                    self.answer(session, endpoint)?;
                }
                OobKind::Accept => assert_eq!(message.payload(), b"accepted"),
                OobKind::Reject => assert_eq!(message.payload(), b"rejected"),
                other => panic!("{other:?}"),
            }
        }
        let _ = session.oob().ready()?;
        Ok(trace)
    }
}
