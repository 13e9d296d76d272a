//! The bytes in front of a packet to send that tell a device its offload work.

use crate::{Checksum, Meta};

/// The form of a device's bytes in front of each packet to send. The owner of the packet's memory
/// writes them: it is memory that no application can write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TxHeadroom {
    /// There are none, as for most devices.
    #[default]
    None,
    /// `struct xsk_tx_metadata` of AF_XDP (`linux/if_xdp.h`;
    /// Documentation/networking/xsk-tx-metadata.rst).
    Xsk,
}

/// The metadata that a headroom holds, right in front of the packet.
pub const TX_METADATA_BYTES: usize = 24;

/// `XDP_TXMD_FLAGS_CHECKSUM`.
const XSK_CHECKSUM: u64 = 2;

impl TxHeadroom {
    /// Returns the size of the headroom in bytes: a multiple of a cache line, at least
    /// [`TX_METADATA_BYTES`]; or 0.
    #[must_use]
    pub fn bytes(self) -> usize {
        match self {
            TxHeadroom::None => 0,
            TxHeadroom::Xsk => 64,
        }
    }

    /// Returns the last bytes of the headroom of a packet with such metadata. A device with
    /// headroom reads them only for a packet with a partial checksum.
    #[must_use]
    pub fn metadata(self, meta: &Meta) -> [u8; TX_METADATA_BYTES] {
        let mut bytes = [0; TX_METADATA_BYTES];
        if let (TxHeadroom::Xsk, Checksum::Partial { start, offset }) = (self, meta.checksum) {
            bytes[0..8].copy_from_slice(&XSK_CHECKSUM.to_ne_bytes());
            bytes[8..10].copy_from_slice(&start.to_ne_bytes());
            bytes[10..12].copy_from_slice(&offset.to_ne_bytes());
            // The rest is the time of launch, which is not requested.
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The layout of `linux/if_xdp.h` of Linux 6.14, whose first 16 bytes are that of 6.8.
    #[repr(C)]
    struct XskTxMetadata {
        flags: u64,
        csum_start: u16,
        csum_offset: u16,
        launch_time: u64,
    }

    #[test]
    fn the_metadata_have_the_kernels_layout() {
        assert_eq!(size_of::<XskTxMetadata>(), TX_METADATA_BYTES);
        let checksum = Checksum::Partial { start: 0x1234, offset: 0x5678 };
        let bytes = TxHeadroom::Xsk.metadata(&Meta { checksum, segmentation: None });
        let at = |from: usize| u16::from_ne_bytes([bytes[from], bytes[from + 1]]);
        let start = std::mem::offset_of!(XskTxMetadata, csum_start);
        let offset = std::mem::offset_of!(XskTxMetadata, csum_offset);
        assert_eq!((at(start), at(offset)), (0x1234, 0x5678));
        let flags = std::mem::offset_of!(XskTxMetadata, flags);
        assert_eq!(bytes[flags..flags + 8], 2_u64.to_ne_bytes());
        let time = std::mem::offset_of!(XskTxMetadata, launch_time);
        assert_eq!(bytes[time..time + 8], [0; 8]);
        for (headroom, meta) in [
            (TxHeadroom::Xsk, Meta::FULL),
            (TxHeadroom::None, Meta { checksum, segmentation: None }),
        ] {
            assert_eq!(headroom.metadata(&meta), [0; TX_METADATA_BYTES], "nothing is requested");
        }
        for headroom in [TxHeadroom::None, TxHeadroom::Xsk] {
            assert!(headroom == TxHeadroom::None || headroom.bytes() >= TX_METADATA_BYTES);
            assert_eq!(headroom.bytes() % 64, 0);
        }
    }
}
