//! Network namespaces, interfaces and users for the demonstration, benchmarks and tests, and what
//! is to be counted there: time, system calls, allocations, descriptors.
//!
//! A program becomes its own little network with [`enter`], first thing in `main`; a test with
//! [`isolated!`]. Both work for root and, where the kernel allows user namespaces, for everybody.
//!
//! ```no_run
//! use towpath_rig::{End, Namespace, connect};
//!
//! # fn main() -> Result<(), towpath_rig::Error> {
//! towpath_rig::enter()?;
//! let (here, there) = (Namespace::current()?, Namespace::create()?);
//! let (ours, theirs) = ("192.0.2.1/24".parse()?, "192.0.2.2/24".parse()?);
//! connect(
//!     &End { namespace: &here, name: "near", addresses: &[ours] },
//!     &End { namespace: &there, name: "far", addresses: &[theirs] },
//!     None,
//! )?;
//! let socket = there.run(|| std::net::UdpSocket::bind("192.0.2.2:7"))?;
//! # drop(socket); Ok(())
//! # }
//! ```
//!
//! What the machine refuses is an [`Unavailable`]: a line of cause and a line of remedy. A program
//! then ends with [`EXIT_UNAVAILABLE`], a test says SKIP, or fails where everything is required.

mod allocator;
mod census;
mod cores;
mod enter;
mod error;
mod idle;
mod isolated;
mod namespace;
mod packet_socket;
mod pages;
pub mod probe;
mod select;
mod steps;
mod syscalls;
mod times;
mod tun;
mod users;

pub use allocator::{Allocations, CountingAllocator};
pub use census::Census;
pub use cores::{Core, cores, pin};
pub use enter::{Entered, check_namespaces, enter, isolate};
pub use error::{EXIT_UNAVAILABLE, Error, Unavailable};
pub use idle::{IdleCounters, IdleMoment};
pub use isolated::{ISOLATED_LIMIT, REQUIRE_ALL, isolated, required, skip, test_name};
pub use namespace::{End, Namespace, connect};
pub use packet_socket::PacketSocket;
pub use pages::{Move, PAGE_BYTES, Pages};
pub use rustix::thread::CapabilitySet;
pub use select::Selected;
pub use steps::{StepWatch, Steps};
pub use syscalls::{SyscallCount, SyscallWatch, WatchEnd};
pub use times::{
    Moment, Participants, ProcessTimes, ThreadTimes, Usage, process_cpu_time, this_thread_cpu_time,
    this_thread_usage,
};
pub use tun::check_tun;
pub use users::{Executable, User, Users};
