//! Several datagrams of one call, as with `UDP_SEGMENT` and `UDP_GRO` of udp(7).

use super::socket::HEADER_BYTES;
use crate::ip::Header;
use crate::outbox::Outbox;
use crate::{SocketError, fragment};

/// The most datagrams that one call sends or receives. Each version of Linux that segments UDP allows as many
/// (`UDP_MAX_SEGMENTS`, linux/udp.h: 64, and 128 since Linux 6.9); of received datagrams, it merges 64
/// (`UDP_GRO_CNT_MAX`, net/ipv4/udp_offload.c).
pub const MOST_SEGMENTS: usize = 64;

/// The data of one call, of which each piece becomes a datagram.
#[derive(Clone, Copy)]
pub(super) struct Pieces<'a> {
    data: &'a [u8],
    /// The length of each piece but the last, in bytes; at least 1.
    each: usize,
    /// `true` if the pieces may be several, which the host does not fragment.
    is_cut: bool,
}

impl<'a> Pieces<'a> {
    /// Returns the pieces of `each` bytes. Without `each`, the data is one piece.
    pub(super) fn new(data: &'a [u8], each: Option<usize>) -> Pieces<'a> {
        Pieces { data, each: each.unwrap_or(data.len()).max(1), is_cut: each.is_some() }
    }

    /// Returns the number of datagrams, at least 1: empty data is an empty datagram.
    pub(super) fn count(&self) -> usize {
        self.data.len().div_ceil(self.each).max(1)
    }

    /// Returns the length of the longest datagram, UDP header included, in bytes.
    pub(super) fn longest(&self) -> usize {
        HEADER_BYTES + self.data.len().min(self.each)
    }

    /// Returns the pieces in their order.
    pub(super) fn iter(&self) -> impl Iterator<Item = &'a [u8]> {
        let (first, rest) = self.data.split_at(self.data.len().min(self.each));
        std::iter::once(first).chain(rest.chunks(self.each))
    }

    /// Returns the cost in the outbox of all datagrams. `fragments`: `true` if the host fragments a datagram that comes alone
    /// and exceeds the path's MTU, `mtu` bytes.
    pub(super) fn cost(
        &self,
        header: &Header,
        mtu: usize,
        fragments: bool,
    ) -> Result<usize, SocketError> {
        let most = if header.src.is_ipv4() { 65_535 - header.len() } else { 65_535 };
        let is_too_long = header.len() + self.longest() > mtu;
        if HEADER_BYTES + self.data.len() > most || !self.is_cut && is_too_long && !fragments {
            return Err(SocketError::MessageTooLong);
        }
        if !self.is_cut {
            return Ok(Outbox::cost(fragment::frame_bytes(header, self.longest(), mtu)));
        }
        if self.count() > MOST_SEGMENTS {
            return Err(SocketError::TooManySegments);
        }
        if is_too_long {
            return Err(SocketError::SegmentTooLong { most: mtu - header.len() - HEADER_BYTES });
        }
        let cost = |piece: &[u8]| Outbox::cost(header.len() + HEADER_BYTES + piece.len());
        Ok(self.iter().map(cost).sum())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_the_data_in_order() {
        for (len, each, lengths) in [
            (0, None, &[0][..]),
            (7, None, &[7]),
            (0, Some(3), &[0]),
            (2, Some(3), &[2]),
            (3, Some(3), &[3]),
            (7, Some(3), &[3, 3, 1]),
            (6, Some(3), &[3, 3]),
        ] {
            let data: Vec<u8> = (0..len).collect();
            let pieces = Pieces::new(&data, each);
            let found: Vec<_> = pieces.iter().collect();
            assert_eq!(found.concat(), data);
            assert_eq!(found.iter().map(|piece| piece.len()).collect::<Vec<_>>(), lengths);
            assert_eq!(pieces.count(), lengths.len());
            assert_eq!(pieces.longest(), HEADER_BYTES + lengths[0]);
        }
    }
}
