//! What about an interface may keep packets from the applications.

use std::path::Path;

use super::ethtool::Ethtool;

/// Drivers of virtual interfaces whose clouds deliver packets only to the MAC address that they
/// gave: Amazon's, Google's, and Microsoft's.
const CLOUD_DRIVERS: [&str; 4] = ["ena", "gve", "hv_netvsc", "mana"];

/// Returns warnings, one line each.
pub(crate) fn of(name: &str, ethtool: &Ethtool, is_virtual: bool) -> Vec<String> {
    let driver = ethtool.driver();
    let mut warnings = Vec::new();
    // A veth carries tags beside the packet, too, but only if its other end has a VLAN interface.
    if !is_virtual && ethtool.strips_vlan_tags() {
        warnings.push(format!(
            "{name} removes VLAN tags from received packets, so applications see these as untagged; to \
             keep the tags: ethtool -K {name} rxvlan off"
        ));
    }
    let is_wireless = Path::new("/sys/class/net").join(name).join("phy80211").exists();
    if is_wireless || CLOUD_DRIVERS.contains(&driver.as_str()) {
        warnings.push(format!(
            "the network of {name} drops packets to and from other MAC addresses than its own, so \
             applications with addresses of their own may reach no other host"
        ));
    }
    warnings
}
