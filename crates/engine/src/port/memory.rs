//! The memory of a device's queue: the pool, which the device writes, and behind it the bounce buffers.

use std::io;
use std::os::fd::OwnedFd;

use towpath_device::{
    ETHERNET_HEADER_BYTES, Info, Limits, PacketMemory, SpaceId, TxHeadroom, VLAN_TAG_BYTES,
    packet_memory,
};
use towpath_memory::Region;

use crate::own::BounceFile;
use crate::source::TAGGED_BYTES;

/// Number of bounce buffers, which hold packets between their check and their completion. At most
/// 960 of them hold packets in the backlog or in flight. The engine reserves 32 more for expedited
/// packets (`EXPEDITED_SLOTS`), and 32 for packets under check (`BATCH`).
pub(crate) const BOUNCE_SLOTS: u32 = 1024;

/// Bytes of a frame around its IP packet: the Ethernet header and a VLAN tag.
pub(crate) const FRAME_BYTES: usize = ETHERNET_HEADER_BYTES + VLAN_TAG_BYTES;

/// The memory of the bounce buffers.
#[derive(Debug)]
pub(crate) struct BounceMemory {
    /// The writable memory.
    pub(crate) region: Region,
    /// The data space of the whole mapping.
    pub(crate) space: SpaceId,
    /// The number of bounce buffers.
    pub(crate) slots: u32,
    /// The size of each, in bytes, with the headroom that is in front of each packet.
    pub(crate) slot_bytes: usize,
    /// That headroom.
    pub(crate) headroom: TxHeadroom,
    /// The same memory, for the queues of sessions' own; `None` for a device without such queues.
    pub(crate) file: Option<BounceFile>,
}

/// Returns the size of a bounce buffer, in bytes. `registers`: the device reaches only registered
/// memory; `builds`: the engine makes whole packets itself.
pub(super) fn slot_bytes(info: &Info, registers: bool, builds: bool) -> usize {
    let (limits, can) = (info.limits, info.can);
    // The engine copies whole packets if the device cannot reach them, or needs help.
    let is_whole = !can.tx_in_place || registers || builds;
    let slot_bytes = if !is_whole && can.tx_checksum && can.tx_segmentation {
        // With a VLAN tag.
        TAGGED_BYTES.next_multiple_of(64)
    } else {
        (info.mtu + FRAME_BYTES).next_multiple_of(128).max(TAGGED_BYTES.next_multiple_of(64))
    } + limits.tx_headroom.bytes();
    // No slot crosses the end of one of the device's buffers without need.
    if slot_bytes < limits.rx_alignment {
        slot_bytes.next_power_of_two()
    } else {
        slot_bytes.next_multiple_of(limits.rx_alignment)
    }
}

/// A device's memory, with its file if a keeper can hold it, and the bounce buffers' part if sessions'
/// own queues map it once more.
pub(super) type DeviceMemory = (Region, Option<OwnedFd>, Option<BounceFile>);

/// Checks that offsets of 32 bits and the device reach a memory of so many bytes.
pub(super) fn check_reach(limits: &Limits, bytes: usize) -> io::Result<()> {
    let reaches = u32::try_from(bytes).is_ok() && limits.reaches(bytes);
    if reaches { Ok(()) } else { Err(rustix::io::Errno::FBIG.into()) }
}

/// Maps the memory of an earlier server's packets.
pub(super) fn earlier_memory(file: OwnedFd, bytes: usize) -> io::Result<DeviceMemory> {
    let (region, file) = Region::of_earlier_file(file, bytes)?;
    Ok((region, Some(file), None))
}

/// Makes the memory of a device, and its file if a keeper can hold that. If it gives sessions
/// queues, the bounce buffers, which begin behind the pool, are mapped once more for each of these;
/// the file stays in this process then, because it is not sealed against writers.
pub(super) fn device_memory(
    PacketMemory { bytes, pool_bytes }: PacketMemory,
    is_kept: bool,
    gives_queues: bool,
) -> io::Result<DeviceMemory> {
    if !gives_queues {
        let (region, file) = packet_memory(bytes, is_kept)?;
        return Ok((region, file, None));
    }
    let (region, file) = Region::private_file("towpath-packets", bytes)?;
    region.mapping().keep_from_children()?;
    let len = region.len() - pool_bytes;
    Ok((region, None, Some(BounceFile::new(file, pool_bytes, len))))
}
