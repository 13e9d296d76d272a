//! smoltcp's interface, and the link's capabilities as smoltcp sees them.

use std::net::IpAddr;

use smoltcp::iface::{Config as InterfaceConfig, Interface};
use smoltcp::phy::{ChecksumCapabilities, DeviceCapabilities, Medium};
use smoltcp::wire::HardwareAddress;

use super::port::{Ingress, Path};
use crate::Instant;
use crate::host::Host;

/// Returns the link's capabilities as smoltcp sees them.
pub(super) fn capabilities(host: &Host) -> DeviceCapabilities {
    let mut capabilities = DeviceCapabilities::default();
    capabilities.medium = Medium::Ip;
    capabilities.checksum = ChecksumCapabilities::ignored();
    capabilities.max_transmission_unit = host.config.mtu;
    let offload = host.config.offload;
    if offload.tcp_segmentation {
        // smoltcp drops packets over IPv6 that are larger than its MTU even if the link would
        // segment them. So the stack configures the largest MTU. The segment size option limits the
        // real segments (clamped in both directions), and each packet's metadata has its segment
        // size.
        let most = offload.max_frame_bytes.min(65_535 + crate::ethernet::HEADER_BYTES)
            - crate::ethernet::HEADER_BYTES;
        capabilities.max_transmission_unit = most;
        capabilities.segmentation.tcpv4 = std::num::NonZeroUsize::new(most);
        capabilities.segmentation.tcpv6 = std::num::NonZeroUsize::new(most);
    }
    capabilities
}

/// Creates an interface of smoltcp.
pub(super) fn interface(
    host: &Host,
    capabilities: &DeviceCapabilities,
    now: Instant,
    seed: u64,
) -> Interface {
    let mut config = InterfaceConfig::new(HardwareAddress::Ip);
    config.random_seed = seed;
    let unspecified = IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED);
    let path = Path {
        local: unspecified,
        remote: unspecified,
        local_mss: 0,
        mss: 0,
        offload: host.config.offload,
        sent_to: None,
        edge: None,
    };
    let mut nothing = Vec::new();
    let mut port =
        Ingress { packet: None, path: &path, capabilities, reply: &mut nothing, sent: None };
    let mut interface = Interface::new(config, &mut port, now.to_smoltcp());
    // The stack has checked the destination address before smoltcp sees the packet.
    interface.set_any_ip(true);
    interface
}
