//! The recent destinations of large datagrams from sockets without a peer. For such a socket the
//! stack accepts an ICMP "too big" only about one of them.

use std::net::SocketAddr;
use std::time::Duration;

use crate::random::Random;
use crate::{Instant, UdpId};

/// The time for which the stack remembers a destination: longer than any round trip.
const LIFETIME: Duration = Duration::from_secs(10);
/// The number of slots; a destination replaces another one in its slot.
const PLACES: usize = 1024;

/// The table. A keyed hash stands for a socket and its destination, so that the network cannot
/// choose which of them share a slot.
pub(super) struct Recent {
    places: Vec<Option<(u64, Instant)>>,
}

impl Recent {
    pub(super) fn new() -> Recent {
        Recent { places: Vec::new() }
    }

    /// Records that a socket sent a datagram.
    pub(super) fn note(&mut self, now: Instant, random: &Random, id: UdpId, to: SocketAddr) {
        if self.places.is_empty() {
            self.places = vec![None; PLACES];
        }
        let key = random.keyed(&(id, to));
        self.places[key as usize % PLACES] = Some((key, now + LIFETIME));
    }

    /// Returns `true` if a socket recently sent a datagram there.
    pub(super) fn contains(
        &self,
        now: Instant,
        random: &Random,
        id: UdpId,
        to: SocketAddr,
    ) -> bool {
        let key = random.keyed(&(id, to));
        let place = self.places.get(key as usize % PLACES).copied().flatten();
        place.is_some_and(|(of, until)| of == key && now < until)
    }
}
