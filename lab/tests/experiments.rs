//! The experiments, each run whole. `make test-experiments` runs them, at most two at once: they take some
//! minutes of two processors. `bench.rs` has one more.

mod experiment;

use std::process::Command;

use towpath_testkit::{check_tun, skip};

use crate::experiment::{Directory, NOTHING, end_of, files_of, start, whole};

#[test]
fn notre_dame() {
    whole(
        "notre_dame",
        "notre-dame",
        &[
            "Towpath to AF_PACKET on both sides, all sleep",
            "on to off: both poll, neither sleeps",
            "on to off: wait=timer-driven, not block",
            "on to off: an expedited message is sent ahead of others",
            "on to off: rx_frames=16 rx_usecs=50",
            "on to off: timer_slack_us=500, not 5",
            "on to off: the application spins before it sleeps",
            "on to off: pacing=on, not off",
            "on minus off: watchdog=eager, not lazy",
            "on to off: watchdog=timestamp, not lazy",
            "all poll, first to second trip",
            "version 1 to version 0, lowest",
            "version 2 to version 0, p99",
            "version 3 minus version 2",
            "buffers moved by page protection (mprotect) to copied",
            "buffers moved by mapping elsewhere (mremap) minus copied",
            "buffers through an adapter that is mapped per packet to copied",
            "mapping elsewhere (mremap) to copying",
        ],
        &[
            "asleep-awake",
            "asleep-awake-differences",
            "copy-remap",
            "moves",
            "moves-differences",
            "techniques",
            "techniques-differences",
            "versions",
            "versions-differences",
        ],
    );
}

#[test]
fn cambridge() {
    whole(
        "cambridge",
        "cambridge",
        &[
            "bandwidth, Towpath to UDP",
            "server awake, to one idle endpoint",
            "engine and server asleep, to one idle endpoint",
            "kernel UDP, select, server asleep",
            "closed loop, Towpath to UDP and epoll",
            "overhead of a message, Towpath",
            "overhead of a message, spin of 15 us, then block, to block",
            "closed loop, idle sides sleep, spin-then-block, to block",
            "bandwidth, Towpath, with acknowledgements to without",
            "Towpath: done at four times the load",
            "kernel UDP, epoll: done at the most that its sender can send",
            "Towpath, dropped",
            "Towpath, waited when the time was over",
        ],
        &["bandwidth", "idle-endpoints", "connections", "offered-load"],
    );
}

/// The peers need not be installed. Without them, the rows of these names are there.
#[test]
fn channels() {
    whole(
        "channels",
        "channels",
        &[
            "round trip, both spin, channel to a cache line",
            "bandwidth, requests to programmed I/O",
            "round trip, all block, to one idle channel",
            "round trip, all poll, to one idle channel",
            "overhead per message and answer",
        ],
        &["bandwidth", "idle-channels", "load"],
    );
}

#[test]
fn rdma() {
    whole(
        "rdma",
        "rdma",
        &[
            "native: WRITE to TCP",
            "native: READ to TCP on the same pair",
            "native: WRITE: packets sent again",
            "native: WRITE until it is complete, p50",
            "generic: WRITE to TCP",
            "generic: READ to TCP",
            "generic: WRITE by length",
        ],
        &["sizes"],
    );
}

/// The peers need not be installed. Without them, the rows of these names are there.
#[test]
fn peers() {
    whole(
        "peers",
        "peers",
        &[
            "Towpath to a loop that validates, hashes and copies",
            "Towpath to kernel UDP over veth",
            "Towpath to kernel TCP over veth",
            "Towpath, engine: busy time",
            "Towpath, generator and sink: busy time",
            "round trip, both spin, Towpath to kernel UDP over veth, p50",
            "round trip, both sleep, engine on the core of one application, Towpath to epoll sockets, p99",
            "round trip, both sleep, all on one core, Towpath to epoll sockets, p50",
            "round trip, both sleep, unpinned, Towpath to epoll sockets, p50",
        ],
        &["in-flight", "throughput"],
    );
}

#[test]
fn karlsruhe() {
    whole(
        "karlsruhe",
        "karlsruhe",
        &[
            "sending: a packet costs, by least squares",
            "receiving: idle time lost by a thousand switches",
            "on to off: one notification for 16 packets",
            "on to off: wait=spin-then-block, not block",
            "on to off: a notification after 16 packets or 1 ms",
            "a switch costs, IRQ to send",
            "TCP receiving, busy, timers to one IPC per packet",
            "TCP sending, IPCs, all savings to one IPC per packet",
            "TCP sending, Linux: packets",
            "TCP both ways: an IPC costs, by least squares",
            "TCP receiving, idle time, Towpath to Linux",
        ],
        &["idle-switches", "tcp-idle-switches"],
    );
}

#[test]
fn penn() {
    whole(
        "penn",
        "penn",
        &[
            "over TAP, writing: throughput, Towpath to read() and write()",
            "over TAP, reading to writing: throughput",
            "throughput, PDU endpoints",
            "PDUs in AAL5 cells: throughput, to what the link's cells allow",
            "PDUs in AAL3/4 cells: throughput",
            "PDU endpoints cut to 1500, in AAL5 cells: throughput",
            "cells that the card loses at the link's rate",
            "transfer time, loaded",
            "processor left to five others",
            "memory bandwidth left beside Towpath",
            "clock: capacity, measured to the model",
            "engine's clock: processor time, measured",
            "over TAP: delay, worst, to the model's bound",
            "over TAP: processor time of the engine's clock, idle",
        ],
        &[
            "throughput",
            "delay",
            "transfer",
            "left",
            "clock-busy",
            "clock-capacity",
            "engine-clock",
            "engine-capacity",
        ],
    );
}

#[test]
fn freebsd() {
    whole(
        "freebsd",
        "freebsd",
        &[
            "empty UDP packets, one core, Towpath to the kernel's sockets",
            "empty UDP packets, slow device, directly, device without room",
            "empty UDP packets, handed over directly, to through a queue",
            "files over HTTP, two cores",
            "files over HTTP, slow device, through a queue, device without room",
            "locked instructions",
        ],
        &["kicks", "packets", "threads-1", "threads-2"],
    );
}

#[test]
fn attacks() {
    whole(
        "attacks",
        "attacks",
        &[
            "busy: round trip p99.9, attacked to undisturbed",
            "doorbell-splice: round trip p99.9, attacked to undisturbed",
            "linger: attach p99.9, attacked to undisturbed",
            "linger: attach p99, attacked to busy, upper end of the interval",
            "waiters-epoll: attach p99, attacked to waiters-alone, upper end of the interval",
            "waiters-nested: attach p99, baseline",
            "small-memories: attach worst, undisturbed",
        ],
        &[],
    );
}

/// The program `towpath` has to be built, as `make test-experiments` does, and `tcpdump` installed.
#[test]
fn hostile() {
    whole(
        "hostile",
        "hostile",
        &[
            "neighbour's throughput, hostile to busy",
            "words overwritten, by each application",
            "connections of the neighbour lost",
            "packets of others in the hostile memory",
            "frames that no right of their sender allows",
            "frames that tcpdump missed",
            "servers that ended",
            "memory of the server beyond that at the start",
        ],
        &[],
    );
}

#[test]
fn demux() {
    whole("demux", "demux", &["auto to off, speed", "auto: from the cache"], &["trains"]);
}

#[test]
fn optimistic() {
    whole(
        "optimistic",
        "optimistic",
        &[
            "to a mutex, speed, system call",
            "999 of 1000 calls are over within, mutex",
            "time blocked by the mutex, memory",
            "round trip, write path optimistic, to both under a mutex: average",
            "round trip, write and read path optimistic, to both under a mutex: lowest",
            "round trip, both under a mutex: waits for the client's mutex",
        ],
        &["threads"],
    );
}

#[test]
fn tap() {
    whole("tap", "tap", &["write: io_uring to one call per packet"], &[]);
}

#[test]
fn wire() {
    whole(
        "wire",
        "wire",
        &[
            "clean: Towpath to kernel, to kernel to kernel",
            "clean: kernel to Towpath behind a server, to kernel to kernel",
            "loss 0.1 %: kernel to Towpath, to kernel to kernel",
            "loss 1 %: Towpath to Towpath, to kernel to kernel",
            "reordering 1 %: kernel to kernel",
            "long path: Towpath to kernel, to kernel to kernel",
            "no delay, no bottleneck: kernel to kernel",
            "shared bottleneck: Towpath's share beside the kernel",
            "wire: round trip of UDP, more than its delay",
        ],
        &[
            "clean",
            "clean-window",
            "loss-0-1",
            "loss-0-1-window",
            "loss-1",
            "loss-1-window",
            "reordering",
            "reordering-window",
            "long",
            "long-window",
            "sharing",
            "sharing-window",
        ],
    );
}

/// The programs of the project have to be built, as `make test-experiments` does.
#[test]
fn web() {
    if !has_wrk() {
        let cause = "there is no wrk".to_owned();
        let remedy = "install it with: apt-get install wrk".to_owned();
        towpath_testkit::skip("web", &towpath_testkit::Unavailable { cause, remedy });
        return;
    }
    whole(
        "web",
        "web",
        &[
            "persistent connections, application to the kernel",
            "persistent connections, processor time per request, to the kernel",
            "fresh connections, application to the kernel",
            "fresh connections, application: errors",
            "persistent connections, application: wake-ups of server per request",
        ],
        &[],
    );
}

/// Returns whether wrk is in a directory of `PATH`.
fn has_wrk() -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|place| place.join("wrk").is_file())
}

/// The program `web` of the examples has to be built, as `make test-experiments` does.
#[test]
fn flood() {
    whole(
        "flood",
        "flood",
        &[
            "no flood: connections made within a second",
            "flood: connections made within a second",
            "flood: memory of web, growth during it",
            "flood: memory of web, growth after it",
            "flood, as fast as the server takes it: connections made within a second",
            "flood, as fast as the server takes it: SYNs sent",
        ],
        &[],
    );
}

/// The program `towpath` has to be built, as `make test-experiments` does.
#[test]
fn kills() {
    whole(
        "kills",
        "kills",
        &[
            "connections lost",
            "kills that the application's session outlived",
            "longest pause of each connection after each kill, p99",
        ],
        &[],
    );
}

/// The program `towpath` has to be built, as `make test-experiments` does.
#[test]
fn upgrades() {
    whole(
        "upgrades",
        "upgrades",
        &[
            "datagrams lost, application to kernel",
            "datagrams repeated, application to kernel",
            "datagrams out of order, application to kernel",
            "datagrams lost, kernel to application",
            "datagrams repeated, kernel to application",
            "datagrams out of order, kernel to application",
        ],
        &[],
    );
}

/// The program `towpath` has to be built, as `make test-experiments` does.
#[test]
fn soak() {
    whole(
        "soak",
        "soak",
        &[
            "connections lost",
            "sessions of killed applications left",
            "addresses in use beyond the application's",
            "descriptors of the keeper beyond those at the start",
            "memory of the keeper beyond that at the start",
            "descriptors of the server beyond those at the start",
            "memory of the server beyond that at the start",
        ],
        &[],
    );
}

#[test]
fn coexistence() {
    whole(
        "coexistence",
        "coexistence",
        &[
            "generic: kernel receives, filter idle, to no filter",
            "native: application sends, to the kernel in segments",
        ],
        &[],
    );
}

/// The programs of the project have to be built, as `make test-experiments` does; those of the
/// system need not be installed.
#[test]
fn sharing() {
    whole(
        "sharing",
        "sharing",
        &[
            "native: application receives, to the kernel",
            "generic: application sends, to the kernel",
            "generic: kernel receives over the untouched pair",
        ],
        &[],
    );
}

#[test]
fn lanes() {
    whole(
        "lanes",
        "lanes",
        &[
            "native, timer-driven: processor time per packet, two lanes to one",
            "generic, block: datagrams that overtook one of their flow",
            "generic, timer-driven: packets of the lane with fewer",
        ],
        &[],
    );
}

/// The program `towpath` has to be built, as `make test-experiments` does. testpmd need not be
/// installed.
#[test]
fn card() {
    whole(
        "card",
        "card",
        &[
            "received: Towpath linked to kernel driver, AF_PACKET: packets/s",
            "forwarded: Towpath server to kernel driver, AF_PACKET: processor time per packet",
            "received: Towpath server: instructions per packet",
            "forwarded: kernel driver, AF_PACKET: register writes per packet",
            "forwarded: Towpath linked: interrupts per packet",
            "onto a card, one processor, directly, under a mutex, to through a queue: instructions",
            "onto a card, one processor, directly, optimistic section: locked instructions",
            "onto a card, one processor, through a queue, two mutexes: lock operations",
            "onto a card, two processors, directly, optimistic section: link down, enqueued",
            "onto a card, two processors, directly, under a mutex: time blocked",
        ],
        &[],
    );
}

#[test]
fn xdp() {
    whole(
        "xdp",
        "xdp",
        &[
            "spin, native: embedded to bare AF_XDP, p50",
            "spin, generic: server to bare AF_XDP, p50",
            "spin, native: kernel UDP, p99",
            "sleep, all on one core, generic: server to kernel UDP, p50",
            "sleep, unpinned, native: embedded to kernel UDP, p99",
        ],
        &[],
    );
}

#[test]
fn watchdog() {
    whole(
        "watchdog",
        "watchdog",
        &["watchdog lazy, alone", "watchdog eager, application to far end, to off"],
        &["alone"],
    );
}

#[test]
fn scale() {
    whole(
        "scale",
        "scale",
        &[
            "busy among idle sessions, to alone",
            "busy among idle endpoints, to alone",
            "busy among idle connections, to alone",
            "memory of an end of an idle connection, without data",
            "memory of an end of an idle connection, after data",
        ],
        &["idle"],
    );
}

/// The programs `towpath` and `udp_echo` have to be built, as `make test-experiments` does.
#[test]
fn recording() {
    if let Err(why) = check_tun() {
        skip("recording", &why);
        return;
    }
    let directory = Directory::new();
    let (temporary, repository) = (directory.make("tmp"), directory.make("repository"));
    let mut command = Command::new(env!("CARGO_BIN_EXE_towpath-lab"));
    command.args(["recording", "--repository"]).arg(&repository).env("TMPDIR", &temporary);
    let child = start(&mut command);
    let output = end_of(&command, child);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let pictures = repository.join("docs/pictures");
    assert_eq!(files_of(&pictures), ["kill-and-upgrade.cast", "kill-and-upgrade.svg"]);
    let cast = std::fs::read_to_string(pictures.join("kill-and-upgrade.cast")).unwrap();
    for text in
        ["$ kill -9 ", "killed by signal 9", "$ towpath upgrade", "# in all, from one udp_echo"]
    {
        assert!(cast.contains(text), "{text} in {cast}");
    }
    assert_eq!(files_of(&temporary), NOTHING);
}
