//! The Internet checksum (RFC 1071).

use std::net::IpAddr;

/// A one's complement sum in the making. Every piece but the last must be of even length.
#[derive(Clone, Copy, Default)]
pub(crate) struct Sum(u64);

impl Sum {
    /// The pseudo-header's sum (RFC 9293, 3.1; RFC 8200, 8.1).
    pub(crate) fn pseudo(src: IpAddr, dst: IpAddr, protocol: u8, len: usize) -> Sum {
        let sum = match (src, dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => Sum(0).add(&src.octets()).add(&dst.octets()),
            (src, dst) => {
                let octets = |address| match address {
                    IpAddr::V4(v4) => std::net::Ipv4Addr::to_ipv6_mapped(&v4).octets(),
                    IpAddr::V6(v6) => v6.octets(),
                };
                Sum(0).add(&octets(src)).add(&octets(dst))
            }
        };
        let len = (len as u32).to_be_bytes();
        sum.add(&len).add(&[0, protocol])
    }

    /// Adds bytes. Sums of native words swap with the bytes (RFC 1071, 2 B), so nothing is swapped
    /// until the end.
    pub(crate) fn add(self, data: &[u8]) -> Sum {
        let mut sum = self.0;
        let mut words = data.chunks_exact(4);
        for word in &mut words {
            sum += u64::from(u32::from_ne_bytes([word[0], word[1], word[2], word[3]]));
        }
        let rest = words.remainder();
        let mut last = [0; 4];
        last[..rest.len()].copy_from_slice(rest);
        sum += u64::from(u32::from_ne_bytes(last));
        Sum((sum & 0xffff_ffff) + (sum >> 32))
    }

    /// The 16-bit sum, not complemented: what an unfinished checksum field holds.
    pub(crate) fn folded(self) -> u16 {
        let mut sum = self.0;
        while sum >> 16 != 0 {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        u16::from_be(sum as u16)
    }

    /// The checksum.
    pub(crate) fn finish(self) -> u16 {
        !self.folded()
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
