//! Ethernet addresses.

use std::fmt;
use std::str::FromStr;

/// A MAC address of 48 bits (EUI-48, IEEE Std 802, clause 8): an Ethernet address.
///
/// The text form has six hexadecimal bytes with colons between them. Parsing also accepts hyphens, as
/// in the standard's own form.
///
/// ```
/// use towpath_packet::MacAddr;
///
/// let mac: MacAddr = "52:54:00:12:34:56".parse()?;
/// assert_eq!(mac, MacAddr::new([0x52, 0x54, 0, 0x12, 0x34, 0x56]));
/// assert_eq!(mac.to_string(), "52:54:00:12:34:56");
/// assert!(!mac.is_multicast());
/// # Ok::<(), towpath_packet::MacAddrError>(())
/// ```
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MacAddr([u8; 6]);

/// The error of a text that is no MAC address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MacAddrError;

impl MacAddr {
    /// The address of all stations, `ff:ff:ff:ff:ff:ff`.
    ///
    /// ```
    /// assert!(towpath_packet::MacAddr::BROADCAST.is_broadcast());
    /// ```
    pub const BROADCAST: MacAddr = MacAddr([0xff; 6]);

    /// Makes an address from its bytes, in the order of the wire.
    ///
    /// ```
    /// let mac = towpath_packet::MacAddr::new([2, 0, 0, 0, 0, 9]);
    /// assert_eq!(mac.to_string(), "02:00:00:00:00:09");
    /// ```
    #[must_use]
    pub const fn new(octets: [u8; 6]) -> MacAddr {
        MacAddr(octets)
    }

    /// Returns the bytes, in the order of the wire.
    ///
    /// ```
    /// assert_eq!(towpath_packet::MacAddr::BROADCAST.octets(), [0xff; 6]);
    /// ```
    #[inline]
    #[must_use]
    pub const fn octets(self) -> [u8; 6] {
        self.0
    }

    /// Returns `true` for the address of a group: a multicast address, or the broadcast address.
    ///
    /// ```
    /// use towpath_packet::MacAddr;
    ///
    /// assert!(MacAddr::new([0x33, 0x33, 0, 0, 0, 1]).is_multicast());
    /// assert!(MacAddr::BROADCAST.is_multicast());
    /// ```
    #[inline]
    #[must_use]
    pub const fn is_multicast(self) -> bool {
        self.0[0] & 1 != 0
    }

    /// Returns `true` for the broadcast address.
    ///
    /// ```
    /// assert!(!towpath_packet::MacAddr::new([0x33, 0x33, 0, 0, 0, 1]).is_broadcast());
    /// ```
    #[inline]
    #[must_use]
    pub const fn is_broadcast(self) -> bool {
        matches!(self.0, [0xff, 0xff, 0xff, 0xff, 0xff, 0xff])
    }

    /// Returns `true` for the address of all zeros, which no station has.
    ///
    /// ```
    /// assert!(towpath_packet::MacAddr::default().is_unspecified());
    /// ```
    #[inline]
    #[must_use]
    pub const fn is_unspecified(self) -> bool {
        matches!(self.0, [0, 0, 0, 0, 0, 0])
    }
}

impl From<[u8; 6]> for MacAddr {
    #[inline]
    fn from(octets: [u8; 6]) -> MacAddr {
        MacAddr(octets)
    }
}

impl From<MacAddr> for [u8; 6] {
    #[inline]
    fn from(mac: MacAddr) -> [u8; 6] {
        mac.0
    }
}

impl PartialEq<[u8; 6]> for MacAddr {
    #[inline]
    fn eq(&self, octets: &[u8; 6]) -> bool {
        self.0 == *octets
    }
}

impl fmt::Display for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for MacAddr {
    type Err = MacAddrError;

    fn from_str(text: &str) -> Result<MacAddr, MacAddrError> {
        let separator = text.as_bytes().get(2).copied();
        let separator = separator.filter(|byte| matches!(byte, b':' | b'-'));
        let mut parts = text.split(char::from(separator.ok_or(MacAddrError)?));
        let mut octets = [0; 6];
        for octet in &mut octets {
            let part = parts.next().ok_or(MacAddrError)?;
            if part.len() != 2 || !part.bytes().all(|byte| byte.is_ascii_hexdigit()) {
                return Err(MacAddrError);
            }
            *octet = u8::from_str_radix(part, 16).map_err(|_| MacAddrError)?;
        }
        if parts.next().is_some() { Err(MacAddrError) } else { Ok(MacAddr(octets)) }
    }
}

impl fmt::Display for MacAddrError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "no MAC address; six hexadecimal bytes with colons are, such as 52:54:00:12:34:56",
        )
    }
}

impl std::error::Error for MacAddrError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_read_as_it_is_shown() {
        let mac = MacAddr::new([0x52, 0x54, 0, 0, 0xab, 0xfe]);
        assert_eq!(mac.to_string().parse(), Ok(mac));
        assert_eq!("52-54-00-00-AB-FE".parse(), Ok(mac));
        assert_eq!(format!("{mac:?}"), "52:54:00:00:ab:fe");
        assert!(mac == [0x52, 0x54, 0, 0, 0xab, 0xfe]);
    }

    #[test]
    fn other_texts_are_no_addresses() {
        for text in [
            "",
            "52",
            "52:54",
            "52:54:00:00:00",
            "52:54:00:00:00:xx",
            "52:54:00:00:00:0",
            "52:54:00:00:00:000",
            "52:54:00:00:00:00:00",
            "52:54-00:00:00:00",
            "525400000000",
            "+2:54:00:00:00:00",
            "52:54:00:00:00:+1",
            "ää:54:00:00:00:00",
        ] {
            assert_eq!(text.parse::<MacAddr>(), Err(MacAddrError), "{text}");
        }
    }

    #[test]
    fn groups_are_told_by_the_first_bit() {
        let own = MacAddr::new([2, 0, 0, 0, 0, 1]);
        assert!(!own.is_multicast() && !own.is_broadcast() && !own.is_unspecified());
        let group = MacAddr::new([1, 0, 0x5e, 0, 0, 1]);
        assert!(group.is_multicast() && !group.is_broadcast());
        assert!(MacAddr::BROADCAST.is_multicast() && MacAddr::BROADCAST.is_broadcast());
        assert!(MacAddr::default().is_unspecified());
    }
}
