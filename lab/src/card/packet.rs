//! The packets: an Ethernet header, a byte that says what becomes of the packet, and zeros.

/// The packets' type, which IEEE 802 reserves for experiments.
pub(super) const ETHERTYPE: u16 = 0x88b5;
/// Where a packet says what becomes of it.
const PURPOSE_AT: usize = 14;
/// The purpose of a packet that goes back to its sender.
const BACK: u8 = 1;

/// Makes a packet of `bytes` bytes.
pub(super) fn packet(from: [u8; 6], to: [u8; 6], is_back: bool, bytes: usize) -> Vec<u8> {
    let mut packet = [&to[..], &from, &ETHERTYPE.to_be_bytes()].concat();
    packet.resize(bytes.max(PURPOSE_AT + 1), 0);
    packet[PURPOSE_AT] = if is_back { BACK } else { 0 };
    packet
}

/// `true` if a packet goes back to its sender.
#[inline]
pub(super) fn goes_back(packet: &[u8]) -> bool {
    packet.get(PURPOSE_AT) == Some(&BACK)
}

/// Exchanges the addresses of a packet. Returns `true`.
#[inline]
pub(super) fn swap(packet: &mut [u8]) -> bool {
    let (first, second) = packet.split_at_mut(6);
    first.swap_with_slice(&mut second[..6]);
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_says_whether_it_goes_back() {
        let (a, b) = ([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]);
        let mut back = packet(a, b, true, 64);
        assert!(back.len() == 64 && goes_back(&back) && !goes_back(&packet(a, b, false, 1500)));
        swap(&mut back);
        assert_eq!(back, packet(b, a, true, 64));
        assert!(!goes_back(&[]));
    }
}
