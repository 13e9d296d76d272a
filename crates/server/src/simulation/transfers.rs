//! Requests between the first two applications: writes into each other's memory. Every second request has a value, and
//! a tripwire reports the requests without a value.
//!
//! An application fills a place with words that number the request, and has the server write it
//! into the same place of its neighbour's memory. Two of the four places take several transfers.

use std::collections::VecDeque;

use towpath_client::{
    Access, ApertureKey, Endpoint, Lost, Memory, OobKind, QueuePair, Request, RequestError,
    RequestId, RequestState, Session, Tripwire,
};

use super::messages::lost;
use super::random::Random;

/// The places in the memory: the offset and the length of each.
const PLACES: [(usize, usize); 4] = [(0, 64), (64, 8), (4096, 100_000), (106_496, 65_544)];
/// The length of the part of the memory to which the neighbour writes, from offset 0 on.
pub(super) const INBOX_BYTES: usize = 176_128;
/// The length of an application's memory. Behind the inbox are the places from which the application writes.
pub(super) const MEMORY_BYTES: usize = 2 * INBOX_BYTES;

/// Returns the key of an application's aperture.
pub(super) fn key(application: usize) -> ApertureKey {
    ApertureKey(100 + application as u32)
}

/// The endpoint, the memory and the tripwire that an application needs for requests.
pub(super) struct Means {
    pub(super) endpoint: Endpoint,
    pub(super) memory: Memory,
    pub(super) tripwire: Tripwire,
}

/// Creates the memory and the tripwire. The simulated control thread answers.
pub(super) fn means(session: &mut Session, endpoint: Endpoint) -> Means {
    let memory =
        session.memories().create(MEMORY_BYTES, towpath_client::Sharing::Requests).unwrap();
    let tripwire = session.memories().set_tripwire(&memory, 0..INBOX_BYTES, Access::Write).unwrap();
    Means { endpoint, memory, tripwire }
}

/// The requests of an application.
pub(super) struct Transfers {
    means: Means,
    neighbour: usize,
    pub(super) sent: u32,
    pub(super) all: u32,
    /// Requests that may be incomplete, in their order.
    pending: VecDeque<(u32, RequestId)>,
    /// The next value that the application expects.
    pub(super) next: u32,
    /// The numbers of the last requests in the two places of requests without a value.
    seen: [u64; 2],
    is_armed: bool,
}

impl Transfers {
    /// `all`: the number of requests that the application makes; its neighbour makes as many.
    pub(super) fn new(means: Means, number: usize, all: u32) -> Transfers {
        Transfers {
            means,
            neighbour: 1 - number.min(1),
            sent: 0,
            all,
            pending: VecDeque::new(),
            next: 0,
            seen: [0; 2],
            is_armed: false,
        }
    }

    /// Returns `true` once all requests are complete.
    pub(super) fn is_sent(&self) -> bool {
        self.sent == self.all && self.pending.is_empty()
    }

    /// Makes requests. Returns a word for the trace.
    pub(super) fn send(&mut self, session: &mut Session, random: &mut Random) -> Result<u64, Lost> {
        for _ in 0..=random.below(3) {
            self.collect(session);
            let number = self.sent;
            let is_free = !self.pending.iter().any(|(one, _)| one % 4 == number % 4);
            if number == self.all || !is_free {
                break;
            }
            let (at, len) = PLACES[number as usize % 4];
            let words = vec![u64::from(number) + 1; len / 8];
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            self.means.memory.write(INBOX_BYTES + at, &bytes).unwrap();
            let from = INBOX_BYTES + at..INBOX_BYTES + at + len;
            let request = Request::write(key(self.neighbour), at as u64);
            let request = request.local(&self.means.memory, from);
            let request =
                if number.is_multiple_of(2) { request.with_value(number) } else { request };
            match session.requests().queue(self.means.endpoint, &request) {
                Ok(id) => {
                    self.pending.push_back((number, id));
                    self.sent += 1;
                }
                Err(RequestError::Full) => {
                    session.sender().want_room(QueuePair::FIRST).map_err(lost)?;
                    return Ok(22);
                }
                Err(RequestError::Lost(lost)) => return Err(lost),
                Err(other) => panic!("{other}"),
            }
        }
        Ok(20 + u64::from(self.sent) * 31 + self.pending.len() as u64)
    }

    /// Forgets the requests that are complete.
    pub(super) fn collect(&mut self, session: &mut Session) {
        while let Some((number, id)) = self.pending.front() {
            match session.requests().state(*id) {
                RequestState::Complete => self.pending.pop_front(),
                RequestState::Pending => return,
                failed => panic!("request {number} failed: {failed:?}"),
            };
        }
    }

    /// Receives values: each once, in order and behind its bytes. Checks the places of requests without a value if the
    /// tripwire has fired or is armed again.
    pub(super) fn receive(&mut self, session: &mut Session, most: u64) -> Result<u64, Lost> {
        self.collect(session);
        for _ in 0..most {
            let Some(message) = session.oob().receive(self.means.endpoint)? else { break };
            assert_eq!(message.kind(), OobKind::Value, "{message:?}");
            let (value, bytes) = message.value().unwrap();
            let (at, len) = PLACES[value as usize % 4];
            assert_eq!((value, bytes as usize), (self.next, len));
            self.next += 2;
            let mut placed = vec![0; len];
            self.means.memory.read(at, &mut placed).unwrap();
            for word in placed.as_chunks::<8>().0 {
                let word = u64::from_le_bytes(*word);
                let is_its_place = word % 4 == (u64::from(value) + 1) % 4;
                assert!(word > u64::from(value) && is_its_place, "{word} in place of {value}");
            }
        }
        while session.tripwires().ready()?.is_some() {
            self.is_armed = false;
        }
        if !self.is_armed {
            self.is_armed = true;
            session.tripwires().arm(self.means.tripwire);
            for (seen, (at, _)) in self.seen.iter_mut().zip([PLACES[1], PLACES[3]]) {
                let word = self.means.memory.load(at).unwrap();
                assert!(word >= *seen, "{word} after {seen}");
                *seen = word;
            }
        }
        Ok(21 + u64::from(self.next) * 31 + self.seen[0] * 37 + self.seen[1])
    }

    /// Checks the final bytes that the neighbour's requests have written.
    pub(super) fn check(&self) {
        assert_eq!(self.next, self.all.next_multiple_of(2), "values");
        for (index, seen) in self.seen.iter().enumerate() {
            let last = (0..self.all).rev().find(|one| *one as usize % 4 == 2 * index + 1);
            assert_eq!(*seen, last.map_or(0, |one| u64::from(one) + 1), "a tripwire did not tell");
        }
    }
}
