//! The replacement of a network by one of another process, without an interruption.

use std::collections::HashSet;
use std::io;

use towpath_stack::Flow;

use crate::{LinkError, Network};

/// What a link does so that a network of another process can replace this network, or this network another one. See
/// [`Network::hand_over`] and [`Network::take_over`]. A flow is the addresses and ports of a socket and its peer; the other link
/// is the one that replaces this link, or that this link replaces.
///
/// To hand over, the network calls [`begin`](Replacement::begin), [`retain`](Replacement::retain) until nothing is left,
/// [`keep`](Replacement::keep) for each open flow, and [`hand_over`](Replacement::hand_over); after a failure,
/// [`cancel`](Replacement::cancel). While the link shares its addresses, the network calls `retain` and `keep` once a second.
///
/// The network calls these methods under its lock for the link. All but [`Replacement::is_shared`],
/// [`Replacement::is_taken_over`] and [`Replacement::next_refused`] may make system calls: the network does not hold the stack's
/// lock.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use towpath_client::Session;
/// use towpath_net::{Link, Replacement, SessionLink};
///
/// let session = Session::attach("/run/towpath/eth0.sock", &SessionLink::options("web"))?;
/// let mut link = SessionLink::new(session)?;
/// // `None` for a session with an endpoint for each port.
/// let replacement: Option<&mut dyn Replacement> = link.replacement();
/// assert!(replacement.is_none_or(|one| !one.is_shared()));
/// # Ok(())
/// # }
/// ```
pub trait Replacement {
    /// Returns `true` if the link shares its addresses with another link. The network then tells the link of the flows that
    /// have ended.
    fn is_shared(&self) -> bool;

    /// Prepares to hand over. From now on, each new connection has a flow that stays with this link.
    ///
    /// # Errors
    /// If the link cannot hand over, or is dead.
    fn begin(&mut self) -> io::Result<()>;

    /// Keeps a flow: its packets stay with this link. Does nothing for a flow that is kept already, or that belongs to this
    /// link anyway.
    ///
    /// # Errors
    /// If the link can keep no further flow, or is dead.
    fn keep(&mut self, flow: &Flow) -> io::Result<()>;

    /// Forgets the kept flows that are not open any more, a few at a time. Returns `true` if there are more of them.
    ///
    /// # Errors
    /// If the link is dead.
    fn retain(&mut self, open: &HashSet<Flow>) -> Result<bool, LinkError>;

    /// Removes and returns the flow of a connection that cannot begin here, because the other link has the flow; `None` if
    /// there is none. The network fails the connection.
    fn next_refused(&mut self) -> Option<Flow>;

    /// Lets the other link take over all packets that belong to no kept flow.
    ///
    /// # Errors
    /// If the server refuses, for instance because the session has a hardware queue; if the link is dead.
    fn hand_over(&mut self) -> io::Result<()>;

    /// Gives up a hand-over that has failed: the link continues as before [`Replacement::begin`].
    fn cancel(&mut self);

    /// Returns `true` once the other link has taken over.
    fn is_taken_over(&self) -> bool;

    /// Takes over all packets that belong to no flow which the earlier link keeps. Does nothing if this link replaces no other link.
    ///
    /// # Errors
    /// If the server refuses the endpoint for all packets, or the link is dead.
    fn take_over(&mut self) -> io::Result<()>;
}

impl Network {
    /// Lets a network of another process replace this network, without an interruption: a new version of a program, or one
    /// with other settings. That is a network of the same user and name which was built with
    /// [`NetworkBuilder::replacing`](crate::NetworkBuilder::replacing).
    ///
    /// Open connections, and UDP sockets with a peer, stay with this network until they end. All else goes to the other
    /// network from the moment at which it takes over ([`Network::take_over`]); until then, it goes to this network as
    /// before. No connection is refused or reset in between. After the moment, [`TcpListener::accept`] returns the
    /// connections that have arrived, and then [`SocketError::HandedOver`](crate::SocketError::HandedOver), of the kind
    /// [`io::ErrorKind::AddrNotAvailable`]. The same holds for receiving by UDP sockets without a peer. A program then
    /// finishes its connections ([`Network::drain`]), and ends. It may still make new connections.
    ///
    /// Each kept flow takes an endpoint of the session, beside the endpoint for all packets and that for link control. A
    /// session has 1024 endpoints by default
    /// ([`Options::endpoints`](towpath_client::Options::endpoints), in [`NetworkBuilder::session`](crate::NetworkBuilder::session)).
    ///
    /// ```no_run
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::time::Duration;
    /// use towpath_net::{Network, TcpListener};
    ///
    /// # fn serve(_: towpath_net::TcpStream) {}
    /// # fn operator_wants_a_replacement() {}
    /// let network = Network::builder().name("web").attach("/run/towpath/eth0.sock")?;
    /// let listener = TcpListener::bind(&network, "0.0.0.0:80")?;
    /// let old = network.clone();
    /// std::thread::spawn(move || {
    ///     operator_wants_a_replacement();
    ///     old.hand_over().unwrap();
    /// });
    /// // Ends after the new process has taken over.
    /// while let Ok((stream, _)) = listener.accept() {
    ///     std::thread::spawn(move || serve(stream));
    /// }
    /// network.drain(Duration::from_secs(60))?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`io::ErrorKind::Unsupported`] if the session has an endpoint for each port: it shares the host's addresses, or its
    /// ports are limited. [`io::ErrorKind::QuotaExceeded`] if the session has too few endpoints for the open flows: this
    /// network then continues as before. [`io::ErrorKind::InvalidInput`] if this network has yet to call
    /// [`Network::take_over`] itself. [`io::ErrorKind::Other`] if the session has a hardware queue. If the link is dead.
    ///
    /// [`TcpListener::accept`]: crate::TcpListener::accept
    pub fn hand_over(&self) -> io::Result<()> {
        self.checked()?.hand_over()
    }

    /// Returns `true` once another network has taken over the addresses, after [`Network::hand_over`].
    ///
    /// ```no_run
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let network = towpath_net::Network::attach("/run/towpath/eth0.sock")?;
    /// network.hand_over()?;
    /// if !network.is_taken_over() {
    ///     println!("the new process is not ready yet");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn is_taken_over(&self) -> bool {
        self.checked().is_ok_and(|shared| shared.is_taken_over())
    }

    /// Takes over from the network that this one replaces: new connections, and datagrams that are for no socket with a peer
    /// there, arrive here from now on. Call it once the listeners are bound. Before, this network receives nothing but the
    /// packets of its own connections. Does nothing if this network replaces no other network.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::time::Duration;
    /// use towpath_net::{Network, TcpListener};
    ///
    /// // Waits until the earlier process has called `hand_over`, or has ended. Without one, attaches at once.
    /// let builder = Network::builder().name("web").replacing(Duration::from_secs(60));
    /// let network = builder.attach("/run/towpath/eth0.sock")?;
    /// let listener = TcpListener::bind(&network, "0.0.0.0:80")?;
    /// network.take_over()?;
    /// let (stream, from) = listener.accept()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`io::ErrorKind::PermissionDenied`], [`io::ErrorKind::AddrInUse`] or [`io::ErrorKind::QuotaExceeded`] if the server
    /// refuses the endpoint for all packets; if the link is dead.
    pub fn take_over(&self) -> io::Result<()> {
        self.checked()?.take_over()
    }
}
