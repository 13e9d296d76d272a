//! The descriptors of the receive and transmit rings: two words of 64 bits each.
//!
//! Names and places of the bits are those of Linux's driver (drivers/net/ethernet/intel/e1000e/hw.h and
//! defines.h). Received packets use the extended format (`union e1000_rx_desc_extended`), packets to send
//! the legacy format (`struct e1000_tx_desc`), and the extended one with a context
//! (`struct e1000_context_desc`) where the device completes a checksum.

use towpath_device::{Checksum, VLAN_TAG_BYTES};
use towpath_packet::segment::DeviceHeaders;

/// The words of a descriptor.
pub(super) type Words = [u64; 2];

/// The most parts of a packet to send.
pub(super) const MOST_PARTS: usize = 20;

/// Bytes of a descriptor.
pub(super) const DESCRIPTOR_BYTES: usize = 16;

/// Returns the receive descriptor of an empty buffer. The device overwrites both words.
#[inline]
pub(super) fn empty(address: u64) -> Words {
    [address, 0]
}

/// A receive descriptor that the device has written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Written {
    /// Bytes in the buffer.
    pub(super) len: u32,
    /// `true` if the buffer is the packet's last.
    pub(super) is_last: bool,
    /// `true` if the packet is damaged.
    pub(super) is_bad: bool,
    /// The device's finding on the checksum.
    pub(super) checksum: Checksum,
    /// The hash of the packet's flow.
    pub(super) hash: Option<u32>,
    /// The tag that the device removed, as on the wire: priority, DEI and number.
    pub(super) tag: Option<u16>,
}

impl Written {
    /// Returns the bytes of the packet on the wire that are not in its buffers.
    pub(super) fn tag_bytes(&self) -> usize {
        if self.tag.is_some() { VLAN_TAG_BYTES } else { 0 }
    }
}

const RX_DONE: u32 = 1;
const RX_LAST: u32 = 1 << 1;
const RX_NO_CHECKSUM: u32 = 1 << 2;
const RX_TAG: u32 = 1 << 3;
const RX_UDP_CHECKED: u32 = 1 << 4;
const RX_TCP_CHECKED: u32 = 1 << 5;
/// CRC, symbol and sequence errors, carrier extension, and errors of the data.
const RX_FRAME_ERRORS: u32 = 0x9700_0000;
const RX_TRANSPORT_ERROR: u32 = 1 << 29;
const RX_IP_ERROR: u32 = 1 << 30;
const RSS_TYPE: u64 = 0xf;

/// Reads a receive descriptor. `second`: the word that the device writes last. Returns `None` if the device has
/// not written it.
#[inline]
pub(super) fn written(first: u64, second: u64) -> Option<Written> {
    let status = second as u32;
    if status & RX_DONE == 0 {
        return None;
    }
    let is_checked = status & (RX_UDP_CHECKED | RX_TCP_CHECKED) != 0;
    let is_wrong = status & (RX_NO_CHECKSUM | RX_TRANSPORT_ERROR | RX_IP_ERROR) != 0;
    // A wrong checksum is left to the receiver, which counts it.
    let checksum = if is_checked && !is_wrong { Checksum::Verified } else { Checksum::Full };
    Some(Written {
        len: u32::from((second >> 32) as u16),
        is_last: status & RX_LAST != 0,
        is_bad: status & RX_FRAME_ERRORS != 0,
        checksum,
        hash: (first & RSS_TYPE != 0).then_some((first >> 32) as u32),
        tag: (status & RX_TAG != 0).then_some((second >> 48) as u16),
    })
}

const TX_LAST: u64 = 1 << 24;
const TX_FCS: u64 = 1 << 25;
const TX_REPORT: u64 = 1 << 27;
const TX_EXTENDED: u64 = 1 << 29;
const TX_INSERT_TAG: u64 = 1 << 30;
const TX_DEFERRED: u64 = 1 << 31;
const TX_DATA: u64 = 1 << 20;
const TX_SEGMENT: u64 = 1 << 26;
const TX_IP_CHECKSUM: u64 = 1 << 40;
const TX_TRANSPORT_CHECKSUM: u64 = 1 << 41;
const CONTEXT_TCP: u64 = 1 << 24;
const CONTEXT_IPV4: u64 = 1 << 25;
const TX_DONE: u64 = 1 << 32;

/// The device's work on a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// The device sends the packet as it is.
    Plain,
    /// The device completes the checksum that the preceding context names.
    Checksum,
    /// The device makes segments as the preceding context says, and completes their checksums: that of IPv4,
    /// too, if `is_ipv4`.
    Segments { is_ipv4: bool },
}

/// Returns a transmit descriptor of a packet. The device reports the completion of a packet's last
/// descriptor.
#[inline]
pub(super) fn data(address: u64, len: u32, kind: Kind, is_last: bool) -> Words {
    let offload = match kind {
        Kind::Plain => 0,
        Kind::Checksum => TX_EXTENDED | TX_DATA | TX_TRANSPORT_CHECKSUM,
        Kind::Segments { is_ipv4 } => {
            let ip = if is_ipv4 { TX_IP_CHECKSUM } else { 0 };
            TX_EXTENDED | TX_DATA | TX_SEGMENT | TX_TRANSPORT_CHECKSUM | ip
        }
    };
    let end = if is_last { TX_LAST | TX_REPORT } else { 0 };
    [address, u64::from(len) | TX_FCS | offload | end]
}

/// Has the device defer the interrupt for a packet, by its last descriptor.
pub(super) fn defer_interrupt([_, second]: &mut Words) {
    *second |= TX_DEFERRED;
}

/// Has the device insert a tag into a packet, by one of its descriptors, or leaves a context as it is.
pub(super) fn insert_tag([_, second]: &mut Words, control: u16) {
    if *second & (TX_EXTENDED | TX_DATA) != TX_EXTENDED {
        *second |= TX_INSERT_TAG | u64::from(control) << 48;
    }
}

/// Makes the last descriptor of a packet one that others follow.
pub(super) fn continue_behind([_, second]: &mut Words) {
    *second &= !(TX_LAST | TX_REPORT);
}

/// Returns the context with which the device sums everything from `start` on, and writes the checksum
/// `offset` bytes behind. `None` if the fields cannot hold them.
pub(super) fn checksum_context(start: u16, offset: u16) -> Option<Words> {
    let start = u8::try_from(start).ok()?;
    let field = start.checked_add(u8::try_from(offset).ok()?)?;
    // The end of the sum is 0: the packet's end. The kind of the protocol matters to segmentation alone.
    let first = u64::from(start) << 32 | u64::from(field) << 40;
    Some([first, CONTEXT_TCP | TX_EXTENDED])
}

/// Returns the context with which the device segments a large packet of TCP. `None` if the fields cannot hold
/// it.
pub(super) fn segment_context(
    headers: &DeviceHeaders,
    segment_bytes: u16,
    is_ipv4: bool,
) -> Option<Words> {
    let byte = |value: usize| u8::try_from(value).ok().map(u64::from);
    let (l3, l4) = (byte(headers.l3)?, byte(headers.l4)?);
    let (ip_field, tcp_field) = (byte(headers.l3 + 10)?, byte(headers.l4 + 16)?);
    // The last byte of the header of IPv4, whose sum ends there.
    let (ip_end, ipv4) = if is_ipv4 { (l4 - 1, CONTEXT_IPV4) } else { (0, 0) };
    let first = l3 | ip_field << 8 | ip_end << 16 | l4 << 32 | tcp_field << 40;
    let command = CONTEXT_TCP | ipv4 | TX_SEGMENT | TX_EXTENDED;
    let payload = u64::from(u16::try_from(headers.payload_bytes).ok()?);
    let second = payload | command | byte(headers.header_bytes)? << 40;
    Some([first, second | u64::from(segment_bytes) << 48])
}

/// Returns `true` if the device has sent the packet whose last descriptor this is.
#[inline]
pub(super) fn is_sent(second: u64) -> bool {
    second & TX_DONE != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_descriptors_are_not_done() {
        let [first, second] = empty(0x1234_5000);
        assert_eq!((first, written(first, second)), (0x1234_5000, None));
    }

    #[test]
    fn written_descriptors_are_read() {
        let word = |status: u64, len: u64, tag: u64| status | len << 32 | tag << 48;
        let whole = written(0, word(0x3, 60, 0)).unwrap();
        let expected = Written {
            len: 60,
            is_last: true,
            is_bad: false,
            checksum: Checksum::Full,
            hash: None,
            tag: None,
        };
        assert_eq!(whole, expected);
        assert!(!written(0, word(0x1, 2048, 0)).unwrap().is_last);
        assert_eq!(written(0, word(0xb, 60, 0x2064)).unwrap().tag, Some(0x2064));
        assert_eq!(written(0xdead_beef_0000_0001, word(3, 60, 0)).unwrap().hash, Some(0xdead_beef));
        for (status, checksum) in [
            (0x23, Checksum::Verified),
            (0x13, Checksum::Verified),
            (0x27, Checksum::Full),
            (0x2000_0023, Checksum::Full),
            (0x4000_0023, Checksum::Full),
        ] {
            assert_eq!(written(0, status).unwrap().checksum, checksum, "{status:x}");
        }
        for bad in [24, 25, 26, 28, 31] {
            assert!(written(0, 3 | 1 << bad).unwrap().is_bad);
        }
        assert!(!written(0, 3 | 3 << 29).unwrap().is_bad, "a checksum is no frame error");
    }

    #[test]
    fn transmit_descriptors() {
        assert_eq!(data(0x1000, 60, Kind::Plain, true), [0x1000, 0x0b00_003c]);
        assert_eq!(data(0x1000, 60, Kind::Plain, false), [0x1000, 0x0200_003c]);
        assert_eq!(data(0x1000, 1514, Kind::Checksum, true), [0x1000, 0x0200_2b10_05ea]);
        let mut last = data(0x1000, 60, Kind::Plain, true);
        continue_behind(&mut last);
        assert_eq!(last, data(0x1000, 60, Kind::Plain, false));
        let mut tagged =
            [data(0x1000, 60, Kind::Plain, true), data(0x1000, 60, Kind::Checksum, true)];
        tagged.iter_mut().for_each(|words| insert_tag(words, 0xe007));
        assert_eq!(tagged[0], [0x1000, 0xe007_0000_4b00_003c]);
        assert_eq!(tagged[1], [0x1000, 0xe007_0200_6b10_003c]);
        for context in
            [checksum_context(34, 16).unwrap(), [1, CONTEXT_TCP | TX_SEGMENT | TX_EXTENDED]]
        {
            let mut same = context;
            insert_tag(&mut same, 0xe007);
            assert_eq!(same, context, "a context has no tag");
        }
        assert!(is_sent(0x1_0b00_003c) && !is_sent(0x0b00_003c));
        assert_eq!(checksum_context(34, 16), Some([0x3222_0000_0000, 0x2100_0000]));
        assert_eq!(checksum_context(250, 16), None);
        assert_eq!(checksum_context(300, 6), None);
        assert_eq!(checksum_context(34, 300), None);
    }

    /// The values are those that Linux's `e1000_tso` makes for the same packets.
    #[test]
    fn descriptors_of_large_packets() {
        let headers = DeviceHeaders { l3: 14, l4: 34, header_bytes: 66, payload_bytes: 40_000 };
        let context = segment_context(&headers, 1448, true).unwrap();
        assert_eq!(context, [0x0000_3222_0021_180e, 0x05a8_4200_2700_9c40]);
        let v6 = DeviceHeaders { l4: 54, header_bytes: 86, ..headers };
        let context = segment_context(&v6, 1428, false).unwrap();
        assert_eq!(context, [0x0000_4636_0000_180e, 0x0594_5600_2500_9c40]);
        let far = DeviceHeaders { l4: 250, header_bytes: 270, ..headers };
        assert_eq!(segment_context(&far, 1448, false), None);
        let kind = Kind::Segments { is_ipv4: true };
        assert_eq!(data(0x1000, 66, kind, false), [0x1000, 0x0300_2610_0042]);
        let kind = Kind::Segments { is_ipv4: false };
        assert_eq!(data(0x1000, 100, kind, true), [0x1000, 0x0200_2f10_0064]);
    }
}
