//! Devices: which are usable, and by which users.
#![forbid(unsafe_code)]

use rustix::io::Errno;
use rustix::thread::CapabilitySet;
use towpath_sandbox::{check_namespaces, check_tun, probe};

use super::finding::{Finding, Standing, read, says};
use crate::serve::confine::FOR_INTERFACES;

pub(super) struct Network {
    pub(super) findings: Vec<Finding>,
    /// The ways in which Towpath can use a device.
    pub(super) ways: Vec<String>,
}

pub(super) fn look() -> Network {
    let own = rustix::thread::capabilities(None)
        .map_or(CapabilitySet::empty(), |capabilities| capabilities.effective);
    let (socket, map) = (probe::xdp_socket(), probe::xdp_map());
    // Without AF_XDP, the kernel refuses its map for another reason.
    let may_load = own.contains(FOR_INTERFACES) && map != Err(Errno::PERM);
    let mut ways = Vec::new();
    let findings = vec![
        capabilities(own),
        namespaces(),
        tap(own, &mut ways),
        xdp(own, socket, map, &mut ways),
        ingress_hook(may_load, &mut ways),
        bpf(),
    ];
    Network { findings, ways }
}

fn capabilities(own: CapabilitySet) -> Finding {
    let uid = rustix::process::geteuid().as_raw();
    let found = format!("user {uid}, {}", names(own));
    let useful = CapabilitySet::NET_ADMIN | CapabilitySet::NET_RAW | CapabilitySet::BPF;
    if own.contains(useful) {
        let means = "a server may open any device, and drops the capabilities after that";
        return Finding::new("capabilities", Standing::Ok, found, means);
    }
    Finding::new(
        "capabilities",
        Standing::Limited,
        found,
        "a server on the host's interfaces needs CAP_NET_ADMIN; applications need none",
    )
    .remedy("start the server as root or from a unit with AmbientCapabilities=")
}

/// Returns the names of a set's members, or of the missing ones if that is shorter.
fn names(set: CapabilitySet) -> String {
    let list = |set: CapabilitySet| -> Vec<String> {
        set.iter_names().map(|(name, _)| format!("CAP_{name}")).collect()
    };
    let (has, lacks) = (list(set), list(!set));
    match (has.len(), lacks.len()) {
        (0, _) => "none".to_owned(),
        (_, 0) => "all".to_owned(),
        (held, lacking) if lacking < held => format!("all but {}", lacks.join(" ")),
        _ => has.join(" "),
    }
}

fn namespaces() -> Finding {
    match check_namespaces() {
        Ok(()) => Finding::new(
            "namespaces",
            Standing::Ok,
            "this user can make a network namespace",
            "towpath demo, tests and benchmarks run, without effect on the host's network",
        ),
        Err(why) => Finding::new(
            "namespaces",
            Standing::Missing,
            why.cause,
            "no towpath demo; tests that need a network are skipped",
        )
        .remedy(why.remedy),
    }
}

fn tap(own: CapabilitySet, ways: &mut Vec<String>) -> Finding {
    let inside = check_tun();
    let opens = rustix::fs::open(
        "/dev/net/tun",
        rustix::fs::OFlags::RDWR | rustix::fs::OFlags::CLOEXEC,
        rustix::fs::Mode::empty(),
    )
    .is_ok();
    let host = opens && own.contains(CapabilitySet::NET_ADMIN);
    if host {
        ways.push("a TAP on this host".to_owned());
    }
    if inside.is_ok() {
        ways.push("a TAP in a network namespace of its own".to_owned());
    }
    match (host, inside) {
        (true, Ok(())) => Finding::new(
            "TAP",
            Standing::Ok,
            "/dev/net/tun opens, here and in a namespace of its own",
            "Towpath reaches any interface through the kernel's bridge or routes",
        ),
        (true, Err(why)) => Finding::new(
            "TAP",
            Standing::Limited,
            format!("on this host; {}", why.cause),
            "servers run; towpath demo does not",
        )
        .remedy(why.remedy),
        (false, Ok(())) => Finding::new(
            "TAP",
            Standing::Limited,
            "only in a namespace of its own",
            "towpath demo runs; this user cannot run a server on the host's network",
        )
        .remedy(
            "start the server with CAP_NET_ADMIN, or have a TAP made for this user: \
                 ip tuntap add mode tap user NAME",
        ),
        (false, Err(why)) => {
            let means = "no TAP device, so no towpath demo";
            Finding::new("TAP", Standing::Missing, why.cause, means).remedy(why.remedy)
        }
    }
}

fn xdp(
    own: CapabilitySet,
    socket: Result<(), Errno>,
    map: Result<(), Errno>,
    ways: &mut Vec<String>,
) -> Finding {
    let needed = "CAP_NET_RAW, CAP_NET_ADMIN, CAP_BPF and CAP_PERFMON of the host itself";
    match (socket, map) {
        (Ok(()), Ok(())) if own.contains(CapabilitySet::NET_ADMIN) => {
            ways.push("AF_XDP (--device xdp:INTERFACE)".to_owned());
            Finding::new(
                "AF_XDP",
                Standing::Ok,
                "sockets and their maps can be made",
                "towpath serve --device xdp:INTERFACE can share an interface with the kernel",
            )
        }
        (Err(Errno::AFNOSUPPORT), _) => Finding::new(
            "AF_XDP",
            Standing::Missing,
            "this kernel has none",
            "no towpath serve --device xdp:INTERFACE; TAP and packet:INTERFACE work without it",
        )
        .remedy("a kernel with CONFIG_XDP_SOCKETS"),
        (socket, map) => {
            let refused = |what, result: Result<(), Errno>| match result {
                Ok(()) => format!("{what}: can be made"),
                Err(errno) => format!("{what}: {}", says(errno)),
            };
            Finding::new(
                "AF_XDP",
                Standing::Limited,
                format!("{}; {}", refused("socket", socket), refused("map", map)),
                format!("towpath serve --device xdp:INTERFACE needs {needed}"),
            )
            .remedy("start the server as root or from a unit with AmbientCapabilities=")
        }
    }
}

/// Describes the ingress hook, which also serves packet sockets if this process may load programs.
fn ingress_hook(may_load: bool, ways: &mut Vec<String>) -> Finding {
    let (major, minor) = towpath_bpf::kernel_version();
    let found = format!("Linux {major}.{minor}");
    if (major, minor) >= towpath_bpf::INGRESS_HOOK_SINCE {
        if may_load {
            ways.push("packet sockets (--device packet:INTERFACE)".to_owned());
        }
        return Finding::new(
            "ingress hook (TCX)",
            Standing::Ok,
            found,
            "--device packet:INTERFACE; with --share-host, programs of this host reach applications",
        );
    }
    Finding::new(
        "ingress hook (TCX)",
        Standing::Missing,
        found,
        "no --device packet:INTERFACE; with --share-host, only other hosts reach applications",
    )
    .remedy("Linux 6.6 or later")
}

fn bpf() -> Finding {
    let (found, means) = match read("/proc/sys/kernel/unprivileged_bpf_disabled").as_deref() {
        Some("0") => {
            ("0: ordinary users may load programs", "Towpath does not need that; 1 or 2 is safer")
        }
        Some("1") => ("1: only with CAP_BPF, until the next boot", "sufficient for AF_XDP"),
        Some("2") => ("2: only with CAP_BPF", "sufficient for AF_XDP"),
        _ => {
            ("the setting cannot be read", "the line AF_XDP above says whether AF_XDP is possible")
        }
    };
    Finding::new("BPF for users", Standing::Ok, found, means)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_capability_sets_are_named_by_what_they_lack() {
        assert_eq!(names(CapabilitySet::empty()), "none");
        assert_eq!(names(CapabilitySet::all()), "all");
        let two = CapabilitySet::NET_ADMIN | CapabilitySet::BPF;
        assert_eq!(names(two), "CAP_NET_ADMIN CAP_BPF");
        assert_eq!(names(!two), "all but CAP_NET_ADMIN CAP_BPF");
    }
}
