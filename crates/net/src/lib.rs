//! UDP and TCP sockets, shaped like those of `std::net`, over Towpath.
//!
//! A [`Network`] is a private host: a [`Stack`](towpath_stack::Stack) and the [`Link`] that carries
//! its frames. Use [`UdpSocket`], [`TcpListener`] and [`TcpStream`] like those of `std::net`:
//! blocking, with timeouts, or non-blocking and registered with a [`Poller`], whose descriptor goes
//! into epoll. The feature `tokio` adds sockets for tasks, `mio` sockets for a `mio::Poll`, `quinn` sockets for
//! QUIC, `axum` makes listeners usable by `axum::serve`, and `testing` a network in memory for a
//! program's own tests.
//!
//! ```no_run
//! use std::io::{self, Read, Write};
//! use towpath_net::{Network, TcpListener, TcpStream};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let network = Network::attach("/run/towpath/tap0.sock")?;
//! let listener = TcpListener::bind(&network, "0.0.0.0:80")?;
//! for stream in listener.incoming() {
//!     let stream = stream?;
//!     // An error of one connection ends only that connection.
//!     std::thread::spawn(move || answer(stream));
//! }
//!
//! fn answer(mut stream: TcpStream) -> io::Result<()> {
//!     let mut request = [0; 1024];
//!     let len = stream.read(&mut request)?;
//!     stream.write_all(&request[..len])
//! }
//! # Ok(())
//! # }
//! ```
//!
//! [`Network::builder`] sets other properties, such as the name, the addresses and the stack's settings. It can also use
//! any [`Link`].
//!
//! # Compared to `std::net`
//! Each method of `std::net` has its counterpart of the same name, except `set_only_v6` and `only_v6`, which `std` deprecates;
//! so have most options of the crate `socket2`. A method takes the network as first argument if it makes a socket. `docs/sockets.md` in the
//! repository lists all of them, with the few differences: in lingering, and in multicast.
//!
//! # Driving
//! With [`Driving::Thread`] a thread of the library receives, acknowledges and retransmits while
//! the application computes. A sending thread sends its frames itself, without waking the library's
//! thread. Once the library's thread has woken one thread, and no other, eight times in a row, that
//! thread receives by itself, and the library's thread only stands by: it drives again when the
//! other thread wakes a third one, or one to two milliseconds after the other thread stops blocking.
//! With [`Driving::Application`] there is no such thread. A thread blocked in a call drives the network, as does one in
//! [`Poller::wait`] or [`Network::drive`]. A program's own event loop drives it by [`Network::work_fd`] and
//! [`Network::turn`], and a task of tokio by `tokio::drive`.
//!
//! A thread that drives, and that waits to read from a socket to which the program has written
//! since it last read, spins for up to 68 µs before it sleeps, as long as that recently cost less
//! than sleep.
//!
//! # Children made by `fork`
//! A network belongs to the process that made it. In a child made by `fork`, each call on the network
//! and its sockets fails at once with [`NetworkDown`](std::io::ErrorKind::NetworkDown), and the error
//! contains [`LinkError::Forked`]. This holds for each method, also where its own list of errors is
//! empty. Methods without an error return no addresses, counts of zero and no events. Drops in the
//! child have no effect on the parent, whose network continues undisturbed. A program that becomes a
//! daemon makes its networks afterwards, in the child.
//!
//! ```
//! use towpath_net::LinkError;
//!
//! /// Returns `true` if a call failed because the process was forked.
//! fn is_forked(error: &std::io::Error) -> bool {
//!     let cause = error.get_ref().and_then(|cause| cause.downcast_ref::<LinkError>());
//!     matches!(cause, Some(LinkError::Forked))
//! }
//! ```
//!
//! The check makes no system call. Each network and each poller has a page that the kernel wipes in
//! children (`MADV_WIPEONFORK`); a call loads one word of the page and compares. A call checks before it
//! takes a lock, since a thread of the parent may have held the lock at the fork. The memory and the
//! descriptors of inherited networks stay with the child until it ends or calls `exec`.
//!
//! A network with a library thread makes a program multi-threaded. By fork(2), a child of such a
//! program may call only async-signal-safe functions until it calls `exec`. Some C libraries allow
//! more.
//!
//! # Locks
//! One lock guards the stack, another the link. The library makes system calls under the link's
//! lock only, or under no lock. A thread that wants to send while another one holds the link's lock
//! sets a flag, and the holder sends the frames. Each socket has its own condition variable, and
//! the library wakes only waiting threads. Of several threads that accept, a connection wakes one;
//! a connection and the data that arrived with it cost that thread one wake-up.

#![forbid(unsafe_code)]

// Under loom, only the readiness core.
mod lock;
mod readiness;
mod ready_set;
mod sync;
mod watchers;

mod builder;
mod clock;
#[cfg(feature = "testing")]
pub mod cookbook;
mod datagram;
mod driver;
mod error;
mod link;
mod link_input;
mod listener;
#[cfg(feature = "mio")]
pub mod mio;
mod multicast;
mod network;
mod options;
mod poller;
#[cfg(test)]
mod poller_tests;
#[cfg(feature = "quinn")]
pub mod quinn;
mod replacement;
mod replacing;
mod session_link;
mod spinning;
mod standby;
mod stream;
#[cfg(test)]
mod stream_tests;
#[cfg(feature = "tokio")]
mod tasks;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(feature = "tokio")]
pub mod tokio;
mod udp;
mod wait;
#[cfg(test)]
mod wakeup_tests;
mod watch;
#[cfg(test)]
mod wire_tests;
mod work_fd;

pub use builder::NetworkBuilder;
pub use datagram::{DatagramToSend, ReceivedDatagram};
pub use link::{Armed, Link, LinkError, LinkInfo, PortProtocol};
pub use listener::{Incoming, IntoIncoming, TcpListener};
pub use network::{Driving, Network};
pub use options::BindOptions;
pub use poller::Poller;
pub use readiness::{Interest, Ready, Trigger};
pub use ready_set::{Event, Events};
pub use replacement::Replacement;
pub use session_link::{HostError, SessionLink};
pub use stream::TcpStream;
pub use towpath_client::{Addresses, Lost, MacAddr};
pub use towpath_stack::{
    Checksum, Config, CongestionControl, Counters, Flow, KeepAlive, Limits, Meta, Offload,
    Segmentation, SegmentationKind, SocketError, SocketId, SocketInfo, TcpConfig, TcpInfo,
    TcpState,
};
pub use udp::UdpSocket;
pub use watch::Source;
