//! The connection of an endpoint, as the ledger holds it.

/// An endpoint, named by session and endpoint number. Unlike a session key, a session's number is
/// the same in the next server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EndpointName {
    /// The session's number.
    pub session: u32,
    /// The endpoint's number in its session.
    pub endpoint: u32,
}

/// The session number in the names of endpoints of other hosts. No session has it.
const OTHER_HOST: u32 = u32::MAX;

impl EndpointName {
    /// Returns the name of the endpoint at the other end of a connection with another host, by this
    /// side's QPN: 24 bits.
    pub fn of_other_host(qpn: u32) -> EndpointName {
        EndpointName { session: OTHER_HOST, endpoint: qpn }
    }

    /// Returns this side's QPN if the name is of an endpoint of another host.
    pub fn qpn(self) -> Option<u32> {
        (self.session == OTHER_HOST).then_some(self.endpoint)
    }
}

/// The connection of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Connection {
    /// None.
    None,
    /// A request to this endpoint waits for an answer.
    Requested(EndpointName),
    /// With this endpoint.
    Connected(EndpointName),
}

const KIND_SHIFT: u32 = 62;
const ENDPOINT_SHIFT: u32 = 32;
const ENDPOINT_BITS: u32 = KIND_SHIFT - ENDPOINT_SHIFT;

impl Connection {
    /// Returns the connection as a word.
    pub fn to_word(self) -> u64 {
        let word = |kind: u64, peer: EndpointName| {
            kind << KIND_SHIFT
                | u64::from(peer.endpoint) << ENDPOINT_SHIFT
                | u64::from(peer.session)
        };
        match self {
            Connection::None => 0,
            Connection::Requested(peer) => word(1, peer),
            Connection::Connected(peer) => word(2, peer),
        }
    }

    /// Returns the connection of a word.
    pub fn from_word(word: u64) -> Connection {
        let peer = EndpointName {
            session: word as u32,
            endpoint: (word >> ENDPOINT_SHIFT & ((1 << ENDPOINT_BITS) - 1)) as u32,
        };
        match word >> KIND_SHIFT {
            1 => Connection::Requested(peer),
            2 => Connection::Connected(peer),
            _ => Connection::None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_there_and_back() {
        let peer = EndpointName { session: u32::MAX, endpoint: 16_383 };
        for connection in
            [Connection::None, Connection::Requested(peer), Connection::Connected(peer)]
        {
            assert_eq!(Connection::from_word(connection.to_word()), connection);
        }
        assert_eq!(Connection::from_word(u64::MAX), Connection::None);
    }
}
