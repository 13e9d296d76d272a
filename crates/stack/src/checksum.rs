//! The Internet checksum (RFC 1071), summed piece by piece.

use std::net::IpAddr;

use towpath_packet::checksum;

/// A running one's complement sum.
#[derive(Clone, Copy, Default)]
pub(crate) struct Sum(checksum::Sum);

impl Sum {
    /// Returns the pseudo-header's sum (RFC 9293, 3.1; RFC 8200, 8.1). Both addresses are of one
    /// family.
    pub(crate) fn pseudo(src: IpAddr, dst: IpAddr, protocol: u8, len: usize) -> Sum {
        let mut sum = checksum::Sum::default();
        match (src, dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                sum.add(&src.octets());
                sum.add(&dst.octets());
            }
            (src, dst) => {
                for address in [src, dst] {
                    match address {
                        IpAddr::V4(v4) => sum.add(&v4.to_ipv6_mapped().octets()),
                        IpAddr::V6(v6) => sum.add(&v6.octets()),
                    }
                }
            }
        }
        sum.add(&(len as u32).to_be_bytes());
        sum.add(&[0, protocol]);
        Sum(sum)
    }

    /// Adds bytes.
    pub(crate) fn add(mut self, data: &[u8]) -> Sum {
        self.0.add(data);
        self
    }

    /// Returns the 16-bit sum, not complemented: the content of a partial checksum field.
    pub(crate) fn folded(self) -> u16 {
        self.0.folded()
    }

    /// Returns the checksum.
    pub(crate) fn finish(self) -> u16 {
        self.0.checksum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(data: &[u8]) -> u16 {
        let mut sum = 0u32;
        for pair in data.chunks(2) {
            sum += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
        }
        while sum >> 16 != 0 {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        sum as u16
    }

    #[test]
    fn agrees_with_the_definition() {
        let data: Vec<u8> = (0..2000u32).map(|i| ((i * 7919) >> 3) as u8).collect();
        for len in (0..70).chain([1459, 1460, 1500, 2000]) {
            assert_eq!(Sum::default().add(&data[..len]).folded(), plain(&data[..len]), "{len}");
        }
        let cut = Sum::default().add(&data[..38]).add(&data[38..77]);
        assert_eq!(cut.folded(), plain(&data[..77]));
        // RFC 1071, section 3.
        let example = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(Sum::default().add(&example).folded(), 0xddf2);
    }
}
