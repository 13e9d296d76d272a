//! The stack without input or output: scripts of segments, random schedules against an oracle,
//! simulated links, and another implementation.

mod attacks;
mod connection_memory;
mod datagrams;
mod groups;
mod hostile;
mod memory;
mod model;
mod multicast;
mod own;
mod path_mtu;
mod peer;
mod peers;
mod reused_ports;
mod scenarios;
mod segments;
mod simulation;
mod sockets;
mod transfers;
mod verification;
mod wire;

use towpath_testkit::CountingAllocator;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new();
