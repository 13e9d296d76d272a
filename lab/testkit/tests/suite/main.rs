//! The testkit and the sandbox against the kernel.

mod network;
mod packet_ring;
mod processes;

use towpath_testkit::CountingAllocator;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new();
