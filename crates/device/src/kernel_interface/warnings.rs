//! What about an interface may keep packets from the applications.

use std::ops::Range;
use std::path::Path;

use super::ethtool::Ethtool;

/// Drivers of virtual interfaces whose clouds deliver packets only to the MAC address that they
/// gave: Amazon's, Google's, and Microsoft's.
const CLOUD_DRIVERS: [&str; 4] = ["ena", "gve", "hv_netvsc", "mana"];

/// Returns a warning of a driver that hides VLAN tags from XDP programs. A socket's filter and the
/// ingress hook see these tags, and a packet socket's ring reports them.
pub(crate) fn of_hidden_tags(name: &str, ethtool: &Ethtool, is_virtual: bool) -> Option<String> {
    // A veth carries tags beside the packet, too, but only if its other end has a VLAN interface.
    (!is_virtual && ethtool.strips_vlan_tags()).then(|| {
        format!(
            "{name} removes VLAN tags from received packets, so applications see these as untagged; to \
             keep the tags: ethtool -K {name} rxvlan off"
        )
    })
}

/// Returns a warning of a network that drops packets of applications with addresses of their own.
pub(crate) fn of_one_address(name: &str, ethtool: &Ethtool) -> Option<String> {
    let driver = ethtool.driver();
    let is_wireless = Path::new("/sys/class/net").join(name).join("phy80211").exists();
    (is_wireless || CLOUD_DRIVERS.contains(&driver.as_str())).then(|| {
        format!(
            "the network of {name} drops packets to and from other MAC addresses than its own, so \
             applications with addresses of their own may reach no other host"
        )
    })
}

/// Returns warnings about the hardware queues that sessions may have to themselves, if they are in
/// `usable`.
pub(crate) fn of_own_queues(
    name: &str,
    ethtool: &Ethtool,
    own_queues: &[u32],
    usable: &Range<u32>,
) -> Vec<String> {
    let table = ethtool.rss_table();
    let text = |queue: &u32| match &table {
        _ if !usable.contains(queue) => Some(match usable.len() {
            0 => format!(
                "no session gets hardware queue {queue} of {name} to itself: the server needs all that \
                 {name} has; ethtool -L {name} combined N makes more"
            ),
            _ => format!(
                "no session gets hardware queue {queue} of {name} to itself: only {} to {} can be \
                 had; change own-queues in the policy",
                usable.start,
                usable.end - 1
            ),
        }),
        None => Some(format!(
            "{name} does not say how it spreads packets among its hardware queues: while a session \
             has hardware queue {queue} to itself, packets of other applications that arrive there \
             are dropped and counted"
        )),
        Some(table) if table.contains(queue) => Some(format!(
            "{name} spreads packets to hardware queue {queue}, too: while a session has it to itself, \
             packets of other applications that arrive there are dropped and counted; ethtool -X \
             {name} weight ... keeps them away, and ethtool -N {name} flow-type ... action {queue} \
             sends the session's there"
        )),
        Some(_) => None,
    };
    own_queues.iter().filter_map(text).collect()
}
