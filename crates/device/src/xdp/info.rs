//! What the device says of itself, and the sizes of its receive buffers.

use super::locked;
use super::queue::PACKET_SOCKET_BUFFERS;
use super::shared::Properties;
use super::socket::{RX_ENTRIES, TX_ENTRIES, TxChecksum};
use crate::kernel_interface::host_traffic;
use crate::{
    Capabilities, ETHERNET_HEADER_BYTES, Info, LARGE_FRAME_BYTES, Limits, TxHeadroom,
    VLAN_TAG_BYTES,
};

/// Bytes that the kernel keeps free at the beginning of each receive buffer
/// (`XDP_PACKET_HEADROOM`, `linux/bpf.h`).
pub(super) const HEADROOM_BYTES: usize = 256;
/// The sizes of a receive buffer, in bytes: for packets that fit into one, and for others. The
/// kernel allows 2048 to a page. Merged packets of 64 KiB in buffers of 2048 bytes took 9 % more processor time.
pub(super) const SMALL_CHUNK_BYTES: usize = 2048;
pub(super) const LARGE_CHUNK_BYTES: usize = 4096;
/// The most parts of a packet to send. A part that crosses a chunk's end takes two descriptors, and
/// a packet at most 17.
pub(super) const PACKET_PARTS: usize = 8;
/// Receive buffers for each hardware queue: the packets of a burst that the queue holds, since each packet takes at
/// least one. They take 8 MiB in the small size, and 16 MiB in the large size. A process with the usual limit of
/// locked memory, 8 MiB, has half or a quarter of them (`locked`).
pub(super) const RX_BUFFERS: usize = RX_ENTRIES as usize;
/// The most receive buffers of a queue to open. More hardware queues share them.
const MAX_RX_BUFFERS: usize = 8192;

/// Describes the device. `rx_buffers`: receive buffers for each hardware queue. All queues to open
/// have as many buffers as the one with the most hardware queues.
pub(super) fn info(
    link: &towpath_netlink::Link,
    mac: [u8; 6],
    properties: &Properties,
    rx_buffers: usize,
    tx_large_copied: bool,
) -> Info {
    let (spans, chunk_bytes) = (properties.binding.spans, properties.chunk_bytes as usize);
    let data_bytes = chunk_bytes - HEADROOM_BYTES;
    let tx_checksum = properties.tx_checksum != TxChecksum::Engine;
    Info {
        name: link.name.clone(),
        mac,
        mtu: link.mtu as usize,
        can: Capabilities {
            rx_offload: properties.may_be_partial,
            tx_checksum,
            tx_asynchronous: true,
            tx_large_copied,
            ..Capabilities::default()
        },
        queues: properties.lanes as usize,
        limits: Limits {
            rx_alignment: chunk_bytes,
            rx_headroom_bytes: HEADROOM_BYTES,
            rx_packet_buffers: rx_packet_buffers(spans, data_bytes),
            rx_ring: rx_ring(properties.queues, properties.lanes, rx_buffers),
            tx_ring: TX_ENTRIES as usize,
            tx_packet_parts: if spans && !tx_checksum { PACKET_PARTS } else { 1 },
            tx_headroom: if tx_checksum { TxHeadroom::Xsk } else { TxHeadroom::None },
            ..Limits::new(chunk_bytes)
        },
        rx_queue_packets: rx_queue_packets(rx_buffers, spans, link.mtu as usize, data_bytes),
    }
}

/// Returns the number of receive buffers of a queue to open, with `rx_buffers` for each hardware queue.
fn rx_ring(queues: u32, lanes: u32, rx_buffers: usize) -> usize {
    let theirs = queues.div_ceil(lanes) as usize;
    (theirs * rx_buffers).min(MAX_RX_BUFFERS) + PACKET_SOCKET_BUFFERS
}

/// Returns the number of receive buffers of a queue to open, if the interface had `queues` hardware queues.
pub(super) fn rx_ring_of(queues: u32, properties: &Properties) -> usize {
    let Properties { lanes, gives_queues, chunk_bytes, .. } = properties;
    let chunk_bytes = *chunk_bytes as usize;
    let rx_buffers =
        locked::receive_buffers(RX_BUFFERS, chunk_bytes, queues, *lanes, *gives_queues);
    rx_ring(queues, *lanes, rx_buffers)
}

/// Returns how many packets of the longest length wait in a hardware queue with `rx_buffers` buffers, each for so
/// many bytes. `spans`: a packet may have several.
fn rx_queue_packets(rx_buffers: usize, spans: bool, mtu: usize, data_bytes: usize) -> usize {
    let frame_bytes = mtu + ETHERNET_HEADER_BYTES + VLAN_TAG_BYTES;
    let packet_buffers = if spans { frame_bytes.div_ceil(data_bytes) } else { 1 };
    (rx_buffers.min(RX_ENTRIES as usize) / packet_buffers).max(1)
}

/// Returns the maximum number of buffers of a received packet, each for so many bytes.
pub(super) fn rx_packet_buffers(spans: bool, data_bytes: usize) -> usize {
    if spans { LARGE_FRAME_BYTES.div_ceil(data_bytes) } else { 1 }
}

/// Describes a device that carries packets of the loopback interface, too. That interface leaves
/// checksums and segmentation to the receiver.
pub(super) fn announce_host_traffic(info: &mut Info, chunk_bytes: usize) {
    info.can.tx_to_host = true;
    info.can.rx_offload = true;
    info.limits.rx_packet_buffers =
        host_traffic::FRAME_BYTES.div_ceil(chunk_bytes - HEADROOM_BYTES);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_has_room_for_as_many_packets_as_its_buffers_take() {
        let small = SMALL_CHUNK_BYTES - HEADROOM_BYTES;
        let large = LARGE_CHUNK_BYTES - HEADROOM_BYTES;
        assert_eq!(rx_queue_packets(RX_BUFFERS, false, 1500, small), 4096);
        assert_eq!(rx_queue_packets(RX_BUFFERS, true, 4176, large), 2048);
        assert_eq!(rx_queue_packets(10, true, 65536, large), 1);
    }
}
