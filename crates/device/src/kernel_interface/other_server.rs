//! Finds another server of the same interface. The kernel lets programs of several servers attach
//! to an ingress hook, but two servers would give the same addresses to their applications.

use std::time::Duration;

use towpath_bpf::Attached;

use super::flow_filter::{PROGRAM_ALL, PROGRAM_FLOWS, PROGRAM_PACKETS};
use crate::EarlierObjects;

/// The name of a packet driver's link among the objects that outlive a server.
pub(crate) const INGRESS: &str = "device-ingress";

/// How often, and after which pause, [`until_gone`] looks again.
const LOOKS: usize = 10;
const PAUSE: Duration = Duration::from_millis(20);

/// Repeats `look` for a short time while it finds a program that is in the way. A server's programs
/// leave the interface when the server ends. A process that lists the system's BPF links holds each
/// link for a moment, and the link's program stays attached for that moment.
pub(crate) fn until_gone<T>(mut look: impl FnMut() -> T, is_there: impl Fn(&T) -> bool) -> T {
    for _ in 0..LOOKS {
        let found = look();
        if !is_there(&found) {
            return found;
        }
        std::thread::sleep(PAUSE);
    }
    look()
}

/// Describes another server's program at the ingress hook of an interface, by the interface's
/// number. Leaves out the programs of `earlier`. Without CAP_SYS_ADMIN there seems to be none: a server
/// that got its capabilities from a unit does not find the other one.
pub(crate) fn at_ingress(interface: u32, earlier: &EarlierObjects) -> Option<String> {
    let look = || {
        let attached = towpath_bpf::attached_at_ingress(interface).ok()?;
        let servers = attached.iter().filter(|one| one.program.name == PROGRAM_PACKETS);
        // The earlier server's links are among these. The kernel does not say which, so this skips as
        // many.
        let mut others = servers.skip(earlier.count(INGRESS));
        others.next().map(Attached::to_string)
    };
    until_gone(look, Option::is_some)
}

/// Describes the XDP program of this number, if it is a server's. Without CAP_SYS_ADMIN it seems to
/// be none.
pub(crate) fn with_xdp(interface: u32, program: u32) -> Option<String> {
    let look = || {
        let attached = towpath_bpf::attached(interface, program).ok()?;
        has_xdp_name(&attached).then(|| attached.to_string())
    };
    until_gone(look, Option::is_some)
}

/// Returns `true` if an XDP program has the name of a server's.
pub(crate) fn has_xdp_name(attached: &Attached) -> bool {
    [PROGRAM_FLOWS, PROGRAM_ALL].contains(&attached.program.name.as_str())
}
