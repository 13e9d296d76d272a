//! The links of a switch's hosts, as a test changes them.

use std::io;

use towpath_client::Lost;

use super::{Switch, Wire};
use crate::{Network, NetworkBuilder};

impl Switch {
    /// Adds the next host, as [`Switch::host_with`] does, over a wire with a delay, a rate or an MTU.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> {
    /// use std::time::Duration;
    /// use towpath_net::Network;
    /// use towpath_net::testing::{Switch, Wire};
    ///
    /// let switch = Switch::new();
    /// let wire = Wire::new().delay(Duration::from_millis(20));
    /// let host = switch.host_over(wire, Network::builder())?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Switch::host_with`]; [`io::ErrorKind::InvalidInput`] for an MTU outside of 1280 to 65 535 bytes.
    pub fn host_over(&self, wire: Wire, builder: NetworkBuilder) -> io::Result<Network> {
        self.add(wire, builder)
    }

    /// Changes the wire of a host, for frames that are sent from now on. `host`: the number of the host, 1 for the first of the
    /// switch. The MTU stays, since a host does not ask for it again.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> {
    /// use std::time::Duration;
    /// use towpath_net::testing::{Switch, Wire};
    ///
    /// let switch = Switch::new();
    /// let host = switch.host()?;
    /// // From now on the host is far away.
    /// switch.set_wire(1, Wire::new().delay(Duration::from_millis(150)))?;
    /// assert!(switch.set_wire(2, Wire::new()).is_err());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`] if the switch has no such host.
    pub fn set_wire(&self, host: usize, wire: Wire) -> io::Result<()> {
        self.check();
        let mut state = self.shared.state();
        let port = state.port(host)?;
        port.wire = wire.mtu(port.wire.mtu_bytes());
        Ok(())
    }

    /// Ends the link of a host as the end of a session does: each call on its network and sockets fails with
    /// [`NetworkDown`](io::ErrorKind::NetworkDown), and the error contains
    /// [`LinkError::Lost`](crate::LinkError::Lost) with this reason. So a test sees what the program does when its server is
    /// lost ([`Lost::ServerGone`]), or when the policy takes its rights away ([`Lost::Revoked`]). `host`: the number of the
    /// host, 1 for the first of the switch. The host's peers see no sign. A program that attaches again gets a new host
    /// ([`Switch::host`]), with other addresses.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> {
    /// use std::io::ErrorKind;
    /// use towpath_net::testing::Switch;
    /// use towpath_net::{LinkError, Lost, UdpSocket};
    ///
    /// let switch = Switch::new();
    /// let host = switch.host()?;
    /// let socket = UdpSocket::bind(&host, "10.0.0.1:7")?;
    /// switch.lose_link(1, Lost::ServerGone)?;
    /// let error = socket.recv(&mut [0; 8]).unwrap_err();
    /// assert_eq!(error.kind(), ErrorKind::NetworkDown);
    /// let cause = error.get_ref().and_then(|cause| cause.downcast_ref());
    /// assert!(matches!(cause, Some(LinkError::Lost(Lost::ServerGone))));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`] if the switch has no such host.
    pub fn lose_link(&self, host: usize, reason: Lost) -> io::Result<()> {
        self.check();
        let mut state = self.shared.state();
        let port = state.port(host)?;
        port.lost.get_or_insert(reason);
        port.close();
        port.notify();
        Ok(())
    }
}
