//! What tests and experiments count and trace: time, system calls, allocations, single steps; and tests in
//! a network namespace of their own.
//!
//! A test becomes its own little network with [`isolated!`]. What the machine refuses is an
//! [`Unavailable`]: the test says SKIP, or fails where everything is required.
//!
//! All of `towpath_sandbox` is here, too, since most tests need both.

mod allocator;
mod idle;
mod isolated;
mod packet_socket;
mod pages;
mod select;
mod steps;
mod syscalls;
mod times;

pub use allocator::{Allocations, CountingAllocator};
pub use idle::{IdleCounters, IdleMoment};
pub use isolated::{ISOLATED_LIMIT, REQUIRE_ALL, isolated, required, skip, test_name};
pub use packet_socket::PacketSocket;
pub use pages::{Move, PAGE_BYTES, Pages};
pub use select::Selected;
pub use steps::{StepWatch, Steps};
pub use syscalls::{SyscallCount, SyscallWatch, WatchEnd};
pub use times::{
    Moment, Participants, ProcessTimes, ThreadTimes, Usage, process_cpu_time, this_thread_cpu_time,
    this_thread_usage,
};
pub use towpath_sandbox::*;
