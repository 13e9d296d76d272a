//! The registers of the Intel 82574L that the driver uses, and their bits. The names are those of Linux's
//! driver (drivers/net/ethernet/intel/e1000e/regs.h and defines.h).

use crate::registers::Register;

/// Device control: link, reset, VLANs.
pub(super) const CTRL: Register = Register(0x0000);
pub(super) const CTRL_FULL_DUPLEX: u32 = 1;
pub(super) const CTRL_MASTER_DISABLE: u32 = 1 << 2;
pub(super) const CTRL_AUTO_SPEED: u32 = 1 << 5;
pub(super) const CTRL_LINK_UP: u32 = 1 << 6;
pub(super) const CTRL_RESET: u32 = 1 << 26;
/// Remove the tags of received packets, and insert those of descriptors into packets to send.
pub(super) const CTRL_VLAN_MODE: u32 = 1 << 30;

pub(super) const STATUS: Register = Register(0x0008);
pub(super) const STATUS_LINK_UP: u32 = 1 << 1;
pub(super) const STATUS_SPEED: u32 = 3 << 6;
pub(super) const STATUS_SPEED_100: u32 = 1 << 6;
pub(super) const STATUS_MASTER: u32 = 1 << 19;

/// Control of the NVM; a bit says that the device has read its settings after a reset.
pub(super) const EECD: Register = Register(0x0010);
pub(super) const EECD_AUTO_READ_DONE: u32 = 1 << 9;

pub(super) const CTRL_EXT: Register = Register(0x0018);
/// Set for the 82574 by Linux's `e1000_init_hw_bits_82571`, without a name.
pub(super) const CTRL_EXT_82574: u32 = 1 << 22;
pub(super) const CTRL_EXT_DRIVER_LOADED: u32 = 1 << 28;
/// Unmasking a cause also clears the pending bit of its vector.
pub(super) const CTRL_EXT_CLEAR_PENDING: u32 = 1 << 31;

/// The ethertype of VLAN tags.
pub(super) const VET: Register = Register(0x0038);

/// Causes of interrupts. A write clears the bits that it has.
pub(super) const ICR: Register = Register(0x00c0);
/// Throttling of the interrupts of all causes, without MSI-X.
pub(super) const ITR: Register = Register(0x00c4);
/// The causes that a vector's interrupt clears.
pub(super) const EIAC: Register = Register(0x00dc);
pub(super) const IMS: Register = Register(0x00d0);
pub(super) const IMC: Register = Register(0x00d8);
pub(super) const IAM: Register = Register(0x00e0);
/// The vector of each cause.
pub(super) const IVAR: Register = Register(0x00e4);
/// Receive queues 0 and 1, transmit queues 0 and 1, and other causes: vectors 0 to 4, each valid.
pub(super) const IVAR_ONE_EACH: u32 = 0x000c_ba98;

/// The least time between two interrupts of a vector, in units of 256 ns; one register per vector.
pub(super) const EITR: Register = Register(0x00e8);

/// A descriptor of a sent packet was written.
pub(super) const CAUSE_TX_WRITTEN: u32 = 1 << 0;
pub(super) const CAUSE_LINK: u32 = 1 << 2;
/// A packet was received, and its delay is over.
pub(super) const CAUSE_RX_TIMER: u32 = 1 << 7;
/// The causes of queue 0. Those of queue 1 are one bit higher.
pub(super) const CAUSE_RX: u32 = 1 << 20;
pub(super) const CAUSE_TX: u32 = 1 << 22;
pub(super) const QUEUE_CAUSES: u32 = 3 * (CAUSE_RX | CAUSE_TX);
pub(super) const CAUSE_OTHER: u32 = 1 << 24;

/// Receive control.
pub(super) const RCTL: Register = Register(0x0100);
pub(super) const RCTL_ENABLE: u32 = 1 << 1;
pub(super) const RCTL_ALL_UNICAST: u32 = 1 << 3;
pub(super) const RCTL_ALL_MULTICAST: u32 = 1 << 4;
pub(super) const RCTL_LONG: u32 = 1 << 5;
pub(super) const RCTL_BROADCAST: u32 = 1 << 15;
pub(super) const RCTL_STRIP_CRC: u32 = 1 << 26;

/// Transmit control.
pub(super) const TCTL: Register = Register(0x0400);
pub(super) const TCTL_ENABLE: u32 = 1 << 1;
/// Pad short packets; 15 attempts after a collision, a collision distance for full duplex, and the
/// retransmission of late collisions, as Linux's driver sets them.
pub(super) const TCTL_DEFAULT: u32 = 1 << 3 | 15 << 4 | 63 << 12 | 1 << 24;
/// The gaps between packets, for copper.
pub(super) const TIPG: Register = Register(0x0410);
pub(super) const TIPG_DEFAULT: u32 = 8 | 8 << 10 | 6 << 20;

/// The part of the packet buffer that is for received packets, in KiB. The rest of 40 KiB is for packets
/// to send.
pub(super) const PBA: Register = Register(0x1000);
pub(super) const PBA_DEFAULT: u32 = 20;

/// Flow control: thresholds of the packet buffer.
pub(super) const FCRTL: Register = Register(0x2160);
pub(super) const FCRTH: Register = Register(0x2168);

/// The registers of receive queue 0. Those of queue 1 are [`QUEUE_STRIDE`] bytes behind.
pub(super) const RDBAL: Register = Register(0x2800);
pub(super) const RDBAH: Register = Register(0x2804);
pub(super) const RDLEN: Register = Register(0x2808);
pub(super) const RDH: Register = Register(0x2810);
pub(super) const RDT: Register = Register(0x2818);
/// Delays of receive interrupts without MSI-X, in units of 1.024 us: after the last packet, and at most.
pub(super) const RDTR: Register = Register(0x2820);
pub(super) const RXDCTL: Register = Register(0x2828);
/// Thresholds in descriptors.
pub(super) const RXDCTL_DEFAULT: u32 = 1 << 24 | 4 << 16 | 4 << 8 | 0x20;
pub(super) const RADV: Register = Register(0x282c);
/// Interrupts for small packets, and the delay of those for acknowledgements.
pub(super) const RSRPD: Register = Register(0x2c00);
pub(super) const RAID: Register = Register(0x2c08);

/// The registers of transmit queue 0.
pub(super) const TDBAL: Register = Register(0x3800);
pub(super) const TDBAH: Register = Register(0x3804);
pub(super) const TDLEN: Register = Register(0x3808);
pub(super) const TDH: Register = Register(0x3810);
pub(super) const TDT: Register = Register(0x3818);
pub(super) const TIDV: Register = Register(0x3820);
pub(super) const TXDCTL: Register = Register(0x3828);
/// Thresholds in descriptors; count descriptors; write each descriptor back at once.
pub(super) const TXDCTL_DEFAULT: u32 = 1 << 24 | 1 << 22 | 1 << 16 | 1 << 8 | 0x1f;
pub(super) const TADV: Register = Register(0x382c);
pub(super) const TARC: Register = Register(0x3840);
/// The queue is on, with a share of 3.
pub(super) const TARC_DEFAULT: u32 = 3 | 1 << 10;
/// A bit without a name, which Linux's driver sets for queue 0 of the 82574.
pub(super) const TARC_82574: u32 = 1 << 26;
/// The distance of the registers of the two queues, in bytes.
pub(super) const QUEUE_STRIDE: u32 = 0x100;

/// Packets that the device dropped because its packet buffer was full. Reading clears it.
pub(super) const MPC: Register = Register(0x4010);

pub(super) const RXCSUM: Register = Register(0x5000);
/// Check the checksums of IPv4, and of TCP and UDP; report the hash in place of a sum.
pub(super) const RXCSUM_DEFAULT: u32 = 1 << 8 | 1 << 9 | 1 << 13;
pub(super) const RFCTL: Register = Register(0x5008);
/// Extended descriptors, and no interrupts for acknowledgements.
pub(super) const RFCTL_DEFAULT: u32 = 1 << 15 | 1 << 12;
/// The hash table of group addresses: 128 registers.
pub(super) const MTA: Register = Register(0x5200);
/// Received addresses: 16 pairs of registers.
pub(super) const RAL: Register = Register(0x5400);
pub(super) const RAH: Register = Register(0x5404);
pub(super) const RAH_VALID: u32 = 1 << 31;
/// The filter of VLANs: 128 registers.
pub(super) const VFTA: Register = Register(0x5600);
pub(super) const WUC: Register = Register(0x5800);
/// Several receive queues, chosen by the hash of TCP over IPv4 and IPv6, and of both without it.
pub(super) const MRQC: Register = Register(0x5818);
pub(super) const MRQC_BOTH: u32 = 1 | 0x1f << 16;
/// The table of queues by hash: a byte for each, whose upper bit chooses queue 1.
pub(super) const RETA: Register = Register(0x5c00);
pub(super) const RETA_BOTH: u32 = 0x8000_8000;
pub(super) const RETA_SECOND: u32 = 0x8080_8080;
/// The key of the hash.
pub(super) const RSSRK: Register = Register(0x5c80);
pub(super) const GCR: Register = Register(0x5b00);
/// Bits that Linux's driver sets for the 82574: one without a name, and `E1000_GCR_L1_ACT_WITHOUT_L0S_RX`.
pub(super) const GCR_82574: u32 = 1 << 22 | 1 << 27;
pub(super) const GCR2: Register = Register(0x5b64);
/// Set by Linux's driver against an erratum of the 82574: timeouts of PCIe with power saving.
pub(super) const GCR2_82574: u32 = 1;
