//! Ethernet addresses as text.

/// Returns an address as text.
pub(super) fn shown_mac(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

/// Reads an address.
pub(super) fn parsed_mac(text: &str) -> Option<[u8; 6]> {
    let bytes: Vec<u8> =
        text.split(':').map(|byte| u8::from_str_radix(byte, 16).ok()).collect::<Option<_>>()?;
    bytes.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_read_as_it_is_shown() {
        let mac = [0x52, 0x54, 0, 0, 0, 0xfe];
        assert_eq!(parsed_mac(&shown_mac(mac)), Some(mac));
        assert_eq!(parsed_mac("52:54"), None);
        assert_eq!(parsed_mac("52:54:00:00:00:xx"), None);
    }
}
