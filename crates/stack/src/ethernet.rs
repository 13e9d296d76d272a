//! Ethernet II headers.

/// The header's length, in bytes.
pub(crate) const HEADER_BYTES: usize = 14;
pub(crate) const ARP: u16 = 0x0806;
pub(crate) const IPV4: u16 = 0x0800;
pub(crate) const IPV6: u16 = 0x86dd;
pub(crate) const BROADCAST: [u8; 6] = [0xff; 6];

/// Writes the header.
pub(crate) fn write(frame: &mut [u8], dst: [u8; 6], src: [u8; 6], ethertype: u16) {
    frame[..6].copy_from_slice(&dst);
    frame[6..12].copy_from_slice(&src);
    frame[12..14].copy_from_slice(&ethertype.to_be_bytes());
}

/// Returns the group address of an IP multicast (RFC 1112, 6.4; RFC 2464, 7).
pub(crate) fn multicast(address: std::net::IpAddr) -> [u8; 6] {
    match address {
        std::net::IpAddr::V4(v4) => {
            let [_, b, c, d] = v4.octets();
            [1, 0, 0x5e, b & 0x7f, c, d]
        }
        std::net::IpAddr::V6(v6) => {
            let o = v6.octets();
            [0x33, 0x33, o[12], o[13], o[14], o[15]]
        }
    }
}
