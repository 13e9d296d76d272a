//! The receive queue of a UDP socket: datagrams stored contiguously in one byte ring, so that the
//! queue's memory follows its content.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};

/// Address, port, address, traffic class, hop limit and length, in this order before a datagram's bytes.
const V4_RECORD_BYTES: usize = 4 + 2 + 4 + 2 + 2;
const V6_RECORD_BYTES: usize = 16 + 2 + 16 + 2 + 2;
/// The minimum memory that a queue allocates, and keeps once it had any.
const LEAST_BYTES: usize = 4096;
/// How often in a row a queue empties without the use of a quarter of its memory before it frees memory.
const SPARING: u8 = 64;

/// The header fields of a datagram that an application can ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Arrived {
    pub(super) from: SocketAddr,
    pub(super) to: IpAddr,
    pub(super) traffic_class: u8,
    pub(super) hop_limit: u8,
}

/// A datagram at the head of the queue, its bytes in two parts.
pub(super) struct Datagram<'a> {
    pub(super) arrived: Arrived,
    parts: (&'a [u8], &'a [u8]),
}

/// A socket's receive queue. The limit is on its memory, not only its content.
pub(super) struct Queue {
    ring: VecDeque<u8>,
    limit: usize,
    is_ipv4: bool,
    /// The peak of the bytes in use since the queue used a quarter of its memory.
    peak: usize,
    /// How often the queue was empty since then.
    sparing: u8,
}

impl Queue {
    /// Returns an empty queue without memory. All of its datagrams are of one IP version.
    pub(super) fn new(limit: usize, is_ipv4: bool) -> Queue {
        Queue { ring: VecDeque::new(), limit, is_ipv4, peak: 0, sparing: 0 }
    }

    fn record_bytes(&self) -> usize {
        if self.is_ipv4 { V4_RECORD_BYTES } else { V6_RECORD_BYTES }
    }

    /// Appends a datagram. Returns `false`, without a change, if the limit leaves no room.
    pub(super) fn push(&mut self, arrived: &Arrived, data: &[u8]) -> bool {
        let Arrived { from, to, traffic_class, hop_limit } = *arrived;
        let Ok(len) = u16::try_from(data.len()) else { return false };
        let used = self.ring.len() + self.record_bytes() + data.len();
        if used > self.limit || from.is_ipv4() != self.is_ipv4 || to.is_ipv4() != self.is_ipv4 {
            return false;
        }
        if used > self.ring.capacity() {
            // The capacity doubles each time, so the copies add up to at most the received bytes.
            let wanted = used.max(2 * self.ring.capacity()).max(LEAST_BYTES).min(self.limit);
            self.ring.reserve_exact(wanted - self.ring.len());
        }
        self.push_address(from.ip());
        self.ring.extend(&from.port().to_be_bytes());
        self.push_address(to);
        self.ring.extend(&[traffic_class, hop_limit]);
        self.ring.extend(&len.to_be_bytes());
        self.ring.extend(data);
        self.peak = self.peak.max(used);
        true
    }

    /// Returns the bytes of all datagrams, with their addresses.
    pub(super) fn used(&self) -> usize {
        self.ring.len()
    }

    fn push_address(&mut self, address: IpAddr) {
        match address {
            IpAddr::V4(v4) => self.ring.extend(&v4.octets()),
            IpAddr::V6(v6) => self.ring.extend(&v6.octets()),
        }
    }

    /// Returns the oldest datagram.
    pub(super) fn front(&self) -> Option<Datagram<'_>> {
        let mut at = 0;
        let (from, port) = (self.address(&mut at)?, self.be16(&mut at)?);
        let (to, [traffic_class, hop_limit]) = (self.address(&mut at)?, self.bytes(&mut at)?);
        let len = usize::from(self.be16(&mut at)?);
        let (first, second) = self.ring.as_slices();
        let split = first.len().clamp(at, at + len);
        let before = first.get(at..split).unwrap_or_default();
        let rest = split.saturating_sub(first.len())..(at + len).saturating_sub(first.len());
        let parts = (before, second.get(rest).unwrap_or_default());
        let from = SocketAddr::new(from, port);
        Some(Datagram { arrived: Arrived { from, to, traffic_class, hop_limit }, parts })
    }

    fn address(&self, at: &mut usize) -> Option<IpAddr> {
        if self.is_ipv4 {
            self.bytes::<4>(at).map(IpAddr::from)
        } else {
            self.bytes::<16>(at).map(IpAddr::from)
        }
    }

    fn be16(&self, at: &mut usize) -> Option<u16> {
        self.bytes(at).map(u16::from_be_bytes)
    }

    fn bytes<const LEN: usize>(&self, at: &mut usize) -> Option<[u8; LEN]> {
        let mut bytes = [0; LEN];
        for byte in &mut bytes {
            *byte = *self.ring.get(*at)?;
            *at += 1;
        }
        Some(bytes)
    }

    /// Removes the oldest datagram. An empty queue then frees memory, unless it lately used more than a
    /// quarter of its memory: so repeated bursts allocate nothing, also with single datagrams between them.
    pub(super) fn pop(&mut self) {
        let Some(len) = self.front().map(|datagram| datagram.len()) else { return };
        self.ring.drain(..self.record_bytes() + len);
        if self.ring.is_empty() {
            self.tidy();
        }
    }

    /// Frees memory that the last bursts did not need.
    fn tidy(&mut self) {
        self.sparing += 1;
        let is_spare = self.peak <= self.ring.capacity() / 4;
        if is_spare && self.sparing < SPARING {
            return;
        }
        if is_spare {
            self.ring.shrink_to((2 * self.peak).max(LEAST_BYTES));
        }
        (self.peak, self.sparing) = (0, 0);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.ring.is_empty()
    }
}

impl Datagram<'_> {
    /// Returns the datagram's length.
    pub(super) fn len(&self) -> usize {
        self.parts.0.len() + self.parts.1.len()
    }

    /// Copies as many bytes as fit into `buffer`, and returns their number.
    pub(super) fn copy_to(&self, buffer: &mut [u8]) -> usize {
        let first = self.parts.0.len().min(buffer.len());
        let (head, tail) = buffer.split_at_mut(first);
        head.copy_from_slice(&self.parts.0[..first]);
        let second = self.parts.1.len().min(tail.len());
        tail[..second].copy_from_slice(&self.parts.1[..second]);
        first + second
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrived(is_ipv4: bool, number: u16) -> Arrived {
        let ip = |last| -> IpAddr {
            if is_ipv4 {
                [10, 0, 0, last].into()
            } else {
                [0xfe80, 0, 0, 0, 1, 2, 3, last.into()].into()
            }
        };
        let from = SocketAddr::new(ip(number as u8), number);
        Arrived { from, to: ip(200), traffic_class: number as u8, hop_limit: !number as u8 }
    }

    /// Compares with a plain list, with lengths that make the ring wrap at every offset.
    #[test]
    fn datagrams_come_out_as_they_went_in() {
        for is_ipv4 in [true, false] {
            let mut queue = Queue::new(10_000, is_ipv4);
            let mut list: VecDeque<(u16, Vec<u8>)> = VecDeque::new();
            let mut refused = 0;
            for number in 1..5_000u16 {
                let data = vec![number as u8; usize::from(number) * 37 % 1009];
                if queue.push(&arrived(is_ipv4, number), &data) {
                    list.push_back((number, data));
                } else {
                    refused += 1;
                }
                assert!(queue.ring.capacity() <= 10_000, "{}", queue.ring.capacity());
                if number % 3 == 0 || number % 1000 > 900 {
                    let (number, data) = list.pop_front().unwrap();
                    let got = queue.front().unwrap();
                    assert_eq!((got.arrived, got.len()), (arrived(is_ipv4, number), data.len()));
                    let mut buffer = [0; 2000];
                    assert_eq!(got.copy_to(&mut buffer), data.len());
                    assert_eq!(buffer[..data.len()], data);
                    let short = got.copy_to(&mut buffer[..data.len() / 2]);
                    assert_eq!(short, data.len() / 2);
                    queue.pop();
                }
                assert_eq!(queue.is_empty(), list.is_empty());
            }
            assert!(refused > 100, "the limit was never reached");
        }
    }

    #[test]
    fn bursts_keep_memory_and_single_datagrams_release_it() {
        let mut queue = Queue::new(1 << 20, true);
        let mut burst = |count: usize| {
            for _ in 0..count {
                assert!(queue.push(&arrived(true, 7), &[1; 1000]));
            }
            let held = queue.ring.capacity();
            (0..count).for_each(|_| queue.pop());
            (held, queue.ring.capacity())
        };
        let (first, kept) = burst(500);
        assert!(first >= 500_000 && kept == first);
        assert_eq!(burst(400), (kept, kept), "the same memory again");
        for _ in 1..SPARING {
            assert_eq!(burst(1), (kept, kept));
        }
        assert_eq!(burst(500), (kept, kept), "the same memory again");
        for _ in 1..SPARING {
            assert_eq!(burst(1), (kept, kept));
        }
        let (held, after) = burst(1);
        assert_eq!((held, after), (kept, LEAST_BYTES));
        assert_eq!(burst(1), (LEAST_BYTES, LEAST_BYTES));
    }
}
