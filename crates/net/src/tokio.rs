//! Sockets for tasks of tokio (feature `tokio`): the counterparts of `tokio::net`.
//!
//! Calls that take no name need no particular runtime. [`drive`], and calls that resolve a name, must run on a runtime of
//! tokio; `drive` needs its input and output enabled. Any thread may drive the network:
//!
//! - With [`Driving::Thread`](crate::Driving::Thread), the library's thread wakes the tasks.
//! - With [`Driving::Application`](crate::Driving::Application), spawn [`drive`]: then a task of the runtime
//!   drives the network, and no thread of the library exists. A packet wakes the runtime directly.
//!
//! All calls are cancel safe as those of `tokio::net` are: a read, a write, an accept or a datagram either happened
//! completely, or not at all. A cancelled connect ends the connection.
//!
//! ```no_run
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! use towpath_net::{Driving, Network};
//! use towpath_net::tokio::{TcpListener, drive};
//!
//! let network = Network::builder().driving(Driving::Application).attach("/run/towpath/eth0.sock")?;
//! tokio::spawn(drive(network.clone()));
//! let listener = TcpListener::bind(&network, "0.0.0.0:7").await?;
//! loop {
//!     let (mut stream, _) = listener.accept().await?;
//!     tokio::spawn(async move {
//!         let (mut reader, mut writer) = stream.split();
//!         tokio::io::copy(&mut reader, &mut writer).await
//!     });
//! }
//! # }
//! ```

mod listener;
mod names;
mod split;
mod stream;
mod udp;

use std::io;
use std::os::fd::OwnedFd;

use tokio::io::unix::AsyncFd;

use crate::Network;

pub use listener::TcpListener;
pub use split::{OwnedReadHalf, OwnedWriteHalf, ReadHalf, ReuniteError, WriteHalf};
pub use stream::TcpStream;
pub use udp::UdpSocket;

/// Drives a network with [`Driving::Application`](crate::Driving::Application) until its link is dead: receives,
/// sends, and handles due timers whenever there is work. Spawn it once per network, on a runtime whose input and output
/// are enabled.
///
/// The task holds a handle of the network. To end the network, abort the task and drop the other handles.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> std::io::Result<()> {
/// # use towpath_net::testing::Switch;
/// use towpath_net::tokio::{UdpSocket, drive};
/// use towpath_net::{Driving, Network};
///
/// let network = Switch::new().host_with(Network::builder().driving(Driving::Application))?;
/// let driving = tokio::spawn(drive(network.clone()));
/// let socket = UdpSocket::bind(&network, "10.0.0.1:7").await?;
/// socket.send_to(b"to this socket", "10.0.0.1:7").await?;
/// socket.recv(&mut [0; 64]).await?;
/// // Ends the network, together with the drop of the other handles.
/// driving.abort();
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`io::ErrorKind::NetworkDown`] once the link is dead; [`io::ErrorKind::InvalidInput`] if a thread of the library
/// drives the network.
///
/// # Panics
/// Outside of a runtime of tokio with input and output enabled.
pub async fn drive(network: Network) -> io::Result<()> {
    // A copy, since the runtime's registration must not borrow the network.
    let descriptor: OwnedFd = network.work_fd()?.try_clone_to_owned()?;
    #[expect(
        deprecated,
        reason = "an OwnedFd is the same descriptor until its end, and this crate has no unsafe code"
    )]
    let work = AsyncFd::with_interest(descriptor, tokio::io::Interest::READABLE)?;
    network.turn()?;
    loop {
        let mut ready = work.readable().await?;
        // Before the turn: work that comes during it makes the descriptor readable again.
        ready.clear_ready();
        network.turn()?;
    }
}
