//! The connection of an endpoint, as the ledger holds it.

/// An endpoint, named by session and endpoint number. Unlike a session key, a session's number is
/// the same in the next server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Peer {
    pub(crate) session: u32,
    pub(crate) endpoint: u32,
}

/// The connection of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Link {
    /// None.
    None,
    /// A request to this endpoint waits for an answer.
    Requested(Peer),
    /// With this endpoint.
    Connected(Peer),
}

const KIND_SHIFT: u32 = 62;
const ENDPOINT_SHIFT: u32 = 32;
const ENDPOINT_BITS: u32 = KIND_SHIFT - ENDPOINT_SHIFT;

impl Link {
    /// Returns the connection as a word.
    pub(super) fn to_word(self) -> u64 {
        let word = |kind: u64, peer: Peer| {
            kind << KIND_SHIFT
                | u64::from(peer.endpoint) << ENDPOINT_SHIFT
                | u64::from(peer.session)
        };
        match self {
            Link::None => 0,
            Link::Requested(peer) => word(1, peer),
            Link::Connected(peer) => word(2, peer),
        }
    }

    /// Returns the connection of a word.
    pub(super) fn from_word(word: u64) -> Link {
        let peer = Peer {
            session: word as u32,
            endpoint: (word >> ENDPOINT_SHIFT & ((1 << ENDPOINT_BITS) - 1)) as u32,
        };
        match word >> KIND_SHIFT {
            1 => Link::Requested(peer),
            2 => Link::Connected(peer),
            _ => Link::None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_there_and_back() {
        let peer = Peer { session: u32::MAX, endpoint: 16_383 };
        for link in [Link::None, Link::Requested(peer), Link::Connected(peer)] {
            assert_eq!(Link::from_word(link.to_word()), link);
        }
        assert_eq!(Link::from_word(u64::MAX), Link::None);
    }
}
