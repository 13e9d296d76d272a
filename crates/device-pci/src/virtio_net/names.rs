//! The registers, bits and numbers of virtio cards that the driver uses. Sections are those of the virtio
//! specification 1.2; the names in parentheses those of Linux's headers (`linux/virtio_pci.h`,
//! `linux/virtio_config.h`, `linux/virtio_ring.h`, `linux/virtio_net.h`).

use crate::registers::Register;

/// The vendor of virtio devices, and the number of a network card with the modern interface: 0x1040 and
/// its device type 1 (4.1.2; 5.1.1).
pub(super) const VENDOR: u16 = 0x1af4;
pub(super) const NETWORK_CARD: u16 = 0x1041;

/// The registers of the common configuration (4.1.4.3, `struct virtio_pci_common_cfg`), and its bytes.
pub(super) const DEVICE_FEATURE_SELECT: Register = Register(0);
pub(super) const DEVICE_FEATURE: Register = Register(4);
pub(super) const DRIVER_FEATURE_SELECT: Register = Register(8);
pub(super) const DRIVER_FEATURE: Register = Register(12);
/// 16 bits: the vector of changes of the configuration.
pub(super) const CONFIG_VECTOR: Register = Register(16);
/// 8 bits each.
pub(super) const STATUS: Register = Register(20);
pub(super) const CONFIG_GENERATION: Register = Register(21);
/// 16 bits each, up to `QUEUE_NOTIFY_OFFSET`: those of the selected virtqueue.
pub(super) const QUEUE_SELECT: Register = Register(22);
pub(super) const QUEUE_SIZE: Register = Register(24);
pub(super) const QUEUE_VECTOR: Register = Register(26);
pub(super) const QUEUE_ENABLE: Register = Register(28);
pub(super) const QUEUE_NOTIFY_OFFSET: Register = Register(30);
/// The device addresses of the three areas, in halves of 32 bits.
pub(super) const QUEUE_DESCRIPTORS: Register = Register(32);
pub(super) const QUEUE_AVAILABLE: Register = Register(40);
pub(super) const QUEUE_USED: Register = Register(48);
pub(super) const COMMON_BYTES: u32 = 56;

/// The bits of `STATUS` (2.1; `VIRTIO_CONFIG_S_*`).
pub(super) const STATUS_ACKNOWLEDGE: u8 = 1;
pub(super) const STATUS_DRIVER: u8 = 2;
pub(super) const STATUS_DRIVER_OK: u8 = 4;
pub(super) const STATUS_FEATURES_OK: u8 = 8;
pub(super) const STATUS_NEEDS_RESET: u8 = 0x40;
/// The value of `STATUS` once the card is gone.
pub(super) const STATUS_GONE: u8 = u8::MAX;

/// The vector that is none (4.1.4.3, `VIRTIO_MSI_NO_VECTOR`).
pub(super) const NO_VECTOR: u16 = 0xffff;

/// The features (5.1.3, `VIRTIO_NET_F_*`; 6, `VIRTIO_F_*`), as bits.
pub(super) const FEATURE_MAC: u64 = 1 << 5;
pub(super) const FEATURE_STATUS: u64 = 1 << 16;
pub(super) const FEATURE_CONTROL: u64 = 1 << 17;
pub(super) const FEATURE_CONTROL_RX: u64 = 1 << 18;
pub(super) const FEATURE_CONTROL_RX_EXTRA: u64 = 1 << 20;
pub(super) const FEATURE_VERSION_1: u64 = 1 << 32;
pub(super) const FEATURE_ACCESS_PLATFORM: u64 = 1 << 33;
pub(super) const FEATURE_ORDER_PLATFORM: u64 = 1 << 36;

/// The device's own configuration (5.1.4, `struct virtio_net_config`): six bytes of address, and 16 bits of
/// link state.
pub(super) const MAC: Register = Register(0);
pub(super) const LINK: Register = Register(6);
pub(super) const LINK_UP: u16 = 1;
pub(super) const CONFIG_BYTES: u32 = 8;

/// The numbers of the virtqueues (5.1.2), without `VIRTIO_NET_F_MQ`.
pub(super) const RX: u16 = 0;
pub(super) const TX: u16 = 1;
pub(super) const CONTROL: u16 = 2;

/// The flags of a descriptor (2.7.5, `VRING_DESC_F_*`).
pub(super) const DESCRIPTOR_NEXT: u16 = 1;
pub(super) const DESCRIPTOR_WRITE: u16 = 2;
/// The driver needs no interrupts (2.7.6, `VRING_AVAIL_F_NO_INTERRUPT`), and the device no notifications
/// (2.7.8, `VRING_USED_F_NO_NOTIFY`).
pub(super) const NO_INTERRUPT: u16 = 1;
pub(super) const NO_NOTIFICATION: u16 = 1;

/// Classes and commands of the control virtqueue (5.1.6.5, `VIRTIO_NET_CTRL_*`).
pub(super) const CLASS_RX: u8 = 0;
pub(super) const CLASS_MAC: u8 = 1;
/// Commands of `CLASS_RX`: receive everything, all groups; no groups, nothing to one address, no broadcast.
pub(super) const RX_EVERYTHING: u8 = 0;
pub(super) const RX_ALL_GROUPS: u8 = 1;
pub(super) const RX_NO_GROUPS: u8 = 3;
pub(super) const RX_NO_UNICAST: u8 = 4;
pub(super) const RX_NO_BROADCAST: u8 = 5;
/// The command of `CLASS_MAC` that replaces the tables of addresses.
pub(super) const MAC_TABLE_SET: u8 = 0;
/// The device's answer to a command that it executed.
pub(super) const CONTROL_OK: u8 = 0;
