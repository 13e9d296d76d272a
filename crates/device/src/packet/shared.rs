//! What the control part and the queue share.

use std::sync::Arc;

use crate::kernel_interface::host_traffic::HostTraffic;
use crate::kernel_interface::packet_sender::PacketSender;
use crate::kernel_interface::packet_socket::PacketSocket;

/// The sockets of a device.
pub(super) struct SharedSockets {
    pub(super) groups: Arc<PacketSocket>,
    /// The socket that copies the packets of owned flows.
    pub(super) flows: Arc<PacketSocket>,
    pub(super) sender: PacketSender,
    pub(super) host_traffic: Option<HostTraffic>,
}
