//! The ratios themselves, each with the row that holds it.

use crate::results::Better::{self, Higher, Lower};

/// A ratio of the page's first table.
pub(super) struct Headline {
    /// The two things compared, in words.
    pub(super) compared: &'static str,
    /// The experiment, the row and its parameters.
    pub(super) reference: &'static str,
    pub(super) better: Better,
}

pub(super) const fn headline(
    compared: &'static str,
    reference: &'static str,
    better: Better,
) -> Headline {
    Headline { compared, reference, better }
}

pub(super) const HEADLINES: [Headline; 81] = [
    headline(
        "descriptor queue, checked, to a bare queue: packets/s, 64 B",
        "queue; queue to bare queue; packet_bytes=64",
        Higher,
    ),
    headline(
        "endpoint to endpoint through the server, to a bare queue: packets/s, 64 B",
        "switch; to a bare queue; packet_bytes=64",
        Higher,
    ),
    headline(
        "the same, to testpmd between memifs (DPDK): packets/s, 64 B",
        "peers; Towpath to memif switch; packet_bytes=64",
        Higher,
    ),
    headline(
        "the same, to testpmd between memifs (DPDK): packets/s, 1500 B",
        "peers; Towpath to memif switch; packet_bytes=1500",
        Higher,
    ),
    headline(
        "the same, to a loop that only validates, hashes and copies: packets/s, 64 B",
        "peers; Towpath to a loop that validates, hashes and copies; packet_bytes=64",
        Higher,
    ),
    headline(
        "round trip of two applications, all spin, to Aeron IPC: p50",
        "peers; round trip, both spin, Towpath to Aeron IPC, p50; packet_bytes=64",
        Lower,
    ),
    headline(
        "the same, to iceoryx2: p50",
        "peers; round trip, both spin, Towpath to iceoryx2, p50; packet_bytes=64",
        Lower,
    ),
    headline(
        "round trip of two applications, all sleep, the engine on the core of one application, to epoll sockets: p50",
        "peers; round trip, both sleep, engine on the core of one application, Towpath to epoll sockets, p50; packet_bytes=64",
        Lower,
    ),
    headline(
        "round trip of two applications, all sleep, the engine on the core of one application, to epoll sockets: p99",
        "peers; round trip, both sleep, engine on the core of one application, Towpath to epoll sockets, p99; packet_bytes=64",
        Lower,
    ),
    headline(
        "round trip of two applications, all sleep, all on one core, to epoll sockets: p50",
        "peers; round trip, both sleep, all on one core, Towpath to epoll sockets, p50; packet_bytes=64",
        Lower,
    ),
    headline(
        "round trip of two applications, all sleep, all on one core, to epoll sockets: p99",
        "peers; round trip, both sleep, all on one core, Towpath to epoll sockets, p99; packet_bytes=64",
        Lower,
    ),
    headline(
        "a neighbour while another application is killed or stopped: its packets/s to undisturbed",
        "isolation; neighbour, disturbed to undisturbed; packet_bytes=64",
        Higher,
    ),
    headline(
        "a busy session among 1000 idle ones, to alone: packets/s",
        "scale; busy among idle sessions, to alone; idle=1000",
        Higher,
    ),
    headline(
        "flow cache automatic to off, trains of 16 packets, four sets of fields: speed",
        "demux; auto to off, speed; sets=4, train=16",
        Higher,
    ),
    headline(
        "flow cache automatic to off, flows interleaved: speed",
        "demux; auto to off, speed; sets=1, train=1",
        Higher,
    ),
    headline(
        "round trip over TAP to AF_PACKET on both sides, all poll: time",
        "notre-dame; Towpath to AF_PACKET on both sides, all poll; packet_bytes=60",
        Lower,
    ),
    headline(
        "round trip over TAP to AF_PACKET on both sides, all sleep: time",
        "notre-dame; Towpath to AF_PACKET on both sides, all sleep; packet_bytes=60",
        Lower,
    ),
    headline(
        "the same, a process sends the packet back: time",
        "notre-dame; Towpath to AF_PACKET on both sides, all sleep, sent back by a process; packet_bytes=60",
        Lower,
    ),
    headline(
        "empty UDP packets over TAP to kernel sockets over veth, two cores: packets/s",
        "freebsd; empty UDP packets, two cores, Towpath to the kernel's sockets; unit=ratio of packets/s",
        Higher,
    ),
    headline(
        "the same: processor time per packet",
        "freebsd; empty UDP packets, two cores, Towpath to the kernel's sockets; unit=ratio of CPU/packet",
        Lower,
    ),
    headline(
        "HTTP files of 1 KiB over TAP to the kernel over veth, a connection per file, four clients, two cores: files/s",
        "freebsd; files over HTTP, two cores, Towpath to the kernel; unit=ratio of files/s",
        Higher,
    ),
    headline(
        "HTTP files of 1 KiB over TAP to the kernel over veth, a connection per file, four clients, one core: files/s",
        "freebsd; files over HTTP, one core, Towpath to the kernel; unit=ratio of files/s",
        Higher,
    ),
    headline(
        "round trip over AF_XDP, native, spinning, `embedded` to a bare socket: p50",
        "xdp; spin, native: embedded to bare AF_XDP, p50; packet_bytes=64",
        Lower,
    ),
    headline(
        "the same, a server and an application",
        "xdp; spin, native: server to bare AF_XDP, p50; packet_bytes=64",
        Lower,
    ),
    headline(
        "round trip over AF_XDP, native, asleep on one core, server and application to kernel UDP: p50",
        "xdp; sleep, all on one core, native: server to kernel UDP, p50; packet_bytes=64",
        Lower,
    ),
    headline(
        "round trip over AF_XDP, generic, spinning, `embedded` to a bare socket: p50",
        "xdp; spin, generic: embedded to bare AF_XDP, p50; packet_bytes=64",
        Lower,
    ),
    headline(
        "the same, a server and an application",
        "xdp; spin, generic: server to bare AF_XDP, p50; packet_bytes=64",
        Lower,
    ),
    headline(
        "round trip over AF_XDP, generic, asleep on one core, server and application to kernel UDP: p50",
        "xdp; sleep, all on one core, generic: server to kernel UDP, p50; packet_bytes=64",
        Lower,
    ),
    headline(
        "TCP on a shared address, native, application to the kernel beside the filter, receiving: throughput",
        "sharing; native: application receives, to the kernel",
        Higher,
    ),
    headline("the same, sending", "sharing; native: application sends, to the kernel", Higher),
    headline(
        "the kernel receiving beside an idle filter, native, to a pair without: throughput",
        "sharing; native: kernel receives, to the untouched pair",
        Higher,
    ),
    headline(
        "HTTP files of 1 KiB on a shared address, native, persistent connections, to the kernel: files/s",
        "sharing; native: web, persistent connections, application to the kernel; file_bytes=1024",
        Higher,
    ),
    headline(
        "the same, a connection per file",
        "sharing; native: web, fresh connections, application to the kernel; file_bytes=1024",
        Higher,
    ),
    headline(
        "TCP on a shared address, generic, application to the kernel beside the filter, receiving: throughput",
        "sharing; generic: application receives, to the kernel",
        Higher,
    ),
    headline("the same, sending", "sharing; generic: application sends, to the kernel", Higher),
    headline(
        "the kernel receiving beside an idle filter, generic, to a pair without: throughput",
        "sharing; generic: kernel receives, to the untouched pair",
        Higher,
    ),
    headline(
        "HTTP files of 1 KiB on a shared address, generic, persistent connections, to the kernel: files/s",
        "sharing; generic: web, persistent connections, application to the kernel; file_bytes=1024",
        Higher,
    ),
    headline(
        "the same, a connection per file",
        "sharing; generic: web, fresh connections, application to the kernel; file_bytes=1024",
        Higher,
    ),
    headline(
        "two engine threads to one, native, at ticks: processor time per packet",
        "lanes; native, timer-driven: processor time per packet, two lanes to one",
        Lower,
    ),
    headline(
        "two engine threads to one, generic, at ticks: processor time per packet",
        "lanes; generic, timer-driven: processor time per packet, two lanes to one",
        Lower,
    ),
    headline(
        "TCP, kernel to application over TAP, to kernel to kernel over veth: throughput",
        "tcp; kernel to application, to kernel to kernel",
        Higher,
    ),
    headline(
        "TCP, application to kernel over TAP, to kernel to kernel over veth: throughput",
        "tcp; application to kernel, to kernel to kernel",
        Higher,
    ),
    headline(
        "HTTP files of 1 KiB over TAP, 16 persistent connections, to the kernel over veth: files/s",
        "web; persistent connections, application to the kernel; connections=16",
        Higher,
    ),
    headline(
        "the same: processor time per file",
        "web; persistent connections, processor time per request, to the kernel; connections=16",
        Lower,
    ),
    headline(
        "HTTP files of 1 KiB over TAP, one persistent connection, to the kernel over veth: files/s",
        "web; persistent connections, application to the kernel; connections=1",
        Higher,
    ),
    headline(
        "HTTP files of 1 KiB over TAP, 100 persistent connections, to the kernel over veth: files/s",
        "web; persistent connections, application to the kernel; connections=100",
        Higher,
    ),
    headline(
        "the same: processor time per file",
        "web; persistent connections, processor time per request, to the kernel; connections=100",
        Lower,
    ),
    headline(
        "HTTP files of 1 KiB over TAP, a connection per file, 16 at a time, to the kernel over veth: files/s",
        "web; fresh connections, application to the kernel; connections=16",
        Higher,
    ),
    headline(
        "the same, 100 at a time",
        "web; fresh connections, application to the kernel; connections=100",
        Higher,
    ),
    headline(
        "RDMA WRITE of 64 KiB between two hosts, AF_XDP on veth, native, path MTU 4096, to kernel TCP on a pair without a program: throughput",
        "rdma; native: WRITE to TCP; mtu_bytes=4176, path_mtu_bytes=4096",
        Higher,
    ),
    headline(
        "the same, generic",
        "rdma; generic: WRITE to TCP; mtu_bytes=4176, path_mtu_bytes=4096",
        Higher,
    ),
    headline(
        "the same, native, wait=spin-then-block",
        "rdma; native: WRITE, wait=spin-then-block, to TCP; mtu_bytes=4176, path_mtu_bytes=4096",
        Higher,
    ),
    headline(
        "the same, native, wait=auto",
        "rdma; native: WRITE, wait=auto, to TCP; mtu_bytes=4176, path_mtu_bytes=4096",
        Higher,
    ),
    headline(
        "the same, native, wait=block, to kernel TCP on the servers' pair",
        "rdma; native: WRITE to TCP on the same pair; mtu_bytes=4176, path_mtu_bytes=4096",
        Higher,
    ),
    headline(
        "TCP over 200 Mbit/s, round trip 20 ms, 0.1 % lost, Towpath to kernel, to kernel to kernel: throughput",
        "wire; loss 0.1 %: Towpath to kernel, to kernel to kernel",
        Higher,
    ),
    headline(
        "TCP over 200 Mbit/s, round trip 20 ms, 0.1 % lost, kernel to Towpath, to kernel to kernel: throughput",
        "wire; loss 0.1 %: kernel to Towpath, to kernel to kernel",
        Higher,
    ),
    headline(
        "TCP over 200 Mbit/s, round trip 20 ms, 1 % lost, Towpath to kernel, to kernel to kernel: throughput",
        "wire; loss 1 %: Towpath to kernel, to kernel to kernel",
        Higher,
    ),
    headline(
        "TCP over 200 Mbit/s, round trip 20 ms, 1 % lost, kernel to Towpath, to kernel to kernel: throughput",
        "wire; loss 1 %: kernel to Towpath, to kernel to kernel",
        Higher,
    ),
    headline(
        "TCP over 1 Gbit/s, round trip 100 ms, Towpath to kernel, to kernel to kernel: throughput",
        "wire; long path: Towpath to kernel, to kernel to kernel",
        Higher,
    ),
    headline(
        "TCP over 1 Gbit/s, round trip 100 ms, kernel to Towpath, to kernel to kernel: throughput",
        "wire; long path: kernel to Towpath, to kernel to kernel",
        Higher,
    ),
    headline(
        "card in a guest, packets of 64 B received by a program with the driver in it, to AF_PACKET: instructions",
        "card; received: Towpath linked to kernel driver, AF_PACKET: processor time per packet; packet_bytes=64, packets_per_s=none",
        Lower,
    ),
    headline(
        "the same, to testpmd (DPDK): packets/s",
        "card; received: Towpath linked to DPDK testpmd: packets/s; packet_bytes=64",
        Higher,
    ),
    headline(
        "card in a guest, packets of 64 B received through a server, to AF_PACKET: instructions",
        "card; received: Towpath server to kernel driver, AF_PACKET: processor time per packet; packet_bytes=64, packets_per_s=none",
        Lower,
    ),
    headline(
        "the same, 10 000 packets/s: instructions",
        "card; received: Towpath server to kernel driver, AF_PACKET: processor time per packet; packet_bytes=64, packets_per_s=10000",
        Lower,
    ),
    headline(
        "the same, forwarded, packets that wait: instructions",
        "card; forwarded: Towpath server to kernel driver, AF_PACKET: processor time per packet; packet_bytes=64, packets_per_s=none",
        Lower,
    ),
    headline(
        "TCP sending 400 Mbit/s over TAP, to Linux: busy time",
        "karlsruhe; TCP sending, busy time, Towpath to Linux; mbit_per_s=400",
        Lower,
    ),
    headline(
        "TCP receiving 400 Mbit/s over TAP, to Linux: busy time",
        "karlsruhe; TCP receiving, busy time, Towpath to Linux; mbit_per_s=400",
        Lower,
    ),
    headline(
        "TCP sending 2 Gbit/s over TAP, to Linux: idle time",
        "karlsruhe; TCP sending, idle time, Towpath to Linux; mbit_per_s=2000",
        Higher,
    ),
    headline(
        "`wait=auto` within 1 ms, 10 000 packets/s, to kernel sockets: processor time per packet",
        "waiting; processor time per packet, to the kernel's; bound_us=1000, packets_per_s=10000",
        Lower,
    ),
    headline(
        "`wait=auto` within 0.1 ms, 10 000 packets/s, to kernel sockets: processor time per packet",
        "waiting; processor time per packet, to the kernel's; bound_us=100, packets_per_s=10000",
        Lower,
    ),
    headline(
        "messages of 64 B to UDP sockets, no device crossed: bandwidth",
        "cambridge; bandwidth, Towpath to UDP; message_bytes=64",
        Higher,
    ),
    headline(
        "messages of 64 KiB to TCP, no device crossed: bandwidth",
        "cambridge; bandwidth, Towpath to TCP; message_bytes=65536",
        Higher,
    ),
    headline(
        "10 000 idle endpoints to one, all sleep, no device crossed: round trip",
        "cambridge; Towpath, engine and server asleep, to one idle endpoint; idle_endpoints=10000",
        Lower,
    ),
    headline(
        "messages of 64 B in a channel of two applications, to a memif pair (DPDK): messages/s",
        "channels; messages, channel to memif pair; message_bytes=64",
        Higher,
    ),
    headline(
        "the same, to Aeron IPC: messages/s",
        "channels; messages, channel to Aeron IPC; message_bytes=64",
        Higher,
    ),
    headline(
        "the same, all spin, to Aeron IPC: round trip, p50",
        "channels; round trip, both spin, channel to Aeron IPC, p50; message_bytes=64",
        Lower,
    ),
    headline(
        "10 000 idle channels to one, all sleep: round trip",
        "channels; round trip, all block, to one idle channel; idle_channels=10000",
        Lower,
    ),
    headline(
        "PDUs of 64 KiB cut to 1500 B to packets that are not cut, no device crossed: throughput",
        "penn; throughput, PDU endpoints cut to 1500 to packets that are not; pdu_bytes=65536",
        Higher,
    ),
    headline(
        "PDUs of 48 B at 135 Mbit/s to read() and write(), five others compute, over TAP: transfer time",
        "penn; transfer time, loaded, Towpath to read() and write(); pdu_bytes=48, mbit_per_s=135",
        Lower,
    ),
    headline(
        "memory bandwidth left beside PDUs of 48 B at 135 Mbit/s, over TAP, to all of it",
        "penn; memory bandwidth left beside Towpath, to all of it; pdu_bytes=48",
        Higher,
    ),
    headline(
        "the same beside read() and write()",
        "penn; memory bandwidth left beside read() and write(), to all of it; pdu_bytes=48",
        Higher,
    ),
];
