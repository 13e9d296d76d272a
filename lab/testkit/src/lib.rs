//! Counters and tracers for tests and experiments: time, system calls, allocations, single steps;
//! and tests in a network namespace of their own, with mounts, interfaces and commands as they need them.
//!
//! A test becomes its own little network with [`isolated!`]. A refusal of the machine is an
//! [`Unavailable`]: the test prints SKIP, or fails where everything is required.
//!
//! The crate re-exports `towpath_sandbox`, since most tests need both.

mod allocator;
mod command;
mod echo;
mod family;
mod held_pages;
mod idle;
mod isolated;
mod mounts;
mod offloads;
mod packet_ring;
mod packet_socket;
mod pages;
mod pid_namespace;
mod programs;
mod realtime;
mod ring;
mod select;
mod steps;
mod syscalls;
mod tcp_info;
mod times;
mod tun;
mod udp_offloads;
mod xdp_socket;

pub use allocator::{Allocations, CountingAllocator};
pub use command::{as_only_user, set_limit, with_default_signals, with_descriptors, without_users};
pub use echo::ping;
pub use family::family;
pub use held_pages::HeldPages;
pub use idle::{IdleCounters, IdleMoment};
pub use isolated::{ISOLATED_LIMIT, REQUIRE_ALL, isolated, required, skip, test_name};
pub use mounts::{enter_own_mounts, mount_tmpfs, replace_tun};
pub use offloads::{set_tcp_segmentation, without_large_packets};
pub use packet_ring::PacketRing;
pub use packet_socket::PacketSocket;
pub use pages::{Move, PAGE_BYTES, Pages};
pub use pid_namespace::in_pid_namespace;
pub use programs::{find_program, has_programs};
pub use realtime::run_before_others;
pub use ring::Ring;
pub use select::Selected;
pub use steps::{StepWatch, Steps};
pub use syscalls::{SyscallCount, SyscallWatch, WatchEnd};
pub use tcp_info::congestion_window;
pub use times::{
    Moment, Participants, ProcessTimes, ThreadTimes, Usage, process_cpu_time, this_thread_cpu_time,
    this_thread_usage,
};
pub use towpath_sandbox::*;
pub use tun::{TunMode, add_persistent_tun};
pub use udp_offloads::{recv_udp_gro, set_udp_gro, set_udp_segment};
pub use xdp_socket::XdpSocket;
