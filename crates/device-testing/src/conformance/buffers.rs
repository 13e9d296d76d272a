//! The account of one received packet's buffers.

use towpath_device::{Info, Meta, Received, SpaceId};

/// Checks the buffers of one received packet against what the device says of itself.
pub(super) fn check_buffers(info: &Info, pool: SpaceId, buffers: &[Received], what: &str) {
    assert!(buffers.len() <= info.limits.rx_packet_buffers, "{what}: too many buffers");
    for (index, got) in buffers.iter().enumerate() {
        assert_eq!(got.space, pool, "{what}: a buffer's space");
        let end = u64::from(got.offset) + u64::from(got.len);
        assert!(
            got.offset as usize >= got.buffer as usize + info.limits.rx_headroom_bytes
                && end <= u64::from(got.buffer) + info.limits.rx_buffer_bytes as u64,
            "{what}: data outside of its buffer",
        );
        assert!(got.len > 0, "{what}: a buffer without data");
        if !info.can.rx_offload {
            assert!(got.meta.is_full(), "{what}: not requested: {:?}", got.meta);
        }
        let rest = (got.meta, got.tag, got.hash);
        assert!(
            index == 0 || rest == (Meta::FULL, None, None),
            "{what}: {rest:?} in a buffer that is not the packet's first"
        );
    }
}
