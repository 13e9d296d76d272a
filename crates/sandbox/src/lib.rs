//! Network namespaces, interfaces and users for the demonstration and the laboratory, and checks
//! whether the machine allows them.
//!
//! A program enters a private network with [`enter`], at the start of `main`. That works for root
//! and, if the kernel allows user namespaces, for every user.
//!
//! ```no_run
//! use towpath_sandbox::{End, Namespace, connect};
//!
//! # fn main() -> Result<(), towpath_sandbox::Error> {
//! towpath_sandbox::enter()?;
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
//! If the machine refuses, the error is an [`Unavailable`]: a line of cause and a line of remedy. A
//! program then exits with [`EXIT_UNAVAILABLE`].

mod census;
mod child;
mod cores;
mod enter;
mod error;
mod namespace;
pub mod probe;
mod refusal;
mod softirq;
mod tun;
mod users;

pub use census::Census;
pub use child::end_with_parent;
pub use cores::{Core, cores, pin};
pub use enter::{Entered, check_namespaces, enter, explain, isolate};
pub use error::{EXIT_UNAVAILABLE, Error, Unavailable};
pub use namespace::{End, Namespace, connect};
pub use rustix::thread::CapabilitySet;
pub use softirq::softirq_time;
pub use tun::check_tun;
pub use users::{Executable, User, Users};
