//! The hand-over to a session that replaces this one.

use towpath_protocol::message::Message;

use crate::error::OpenError;
use crate::session::Session;

impl Session {
    /// Lets a new session have the addresses of this session, and take over its flow rules. The new session has the same
    /// user and name, and [`Options::replace`](crate::Options::replace). This session receives as before until the new
    /// session takes a rule over ([`Rule::taken_over`](crate::Rule::taken_over)).
    ///
    /// To keep flows, such as open connections, the application first opens an endpoint for each flow, with both addresses
    /// and both ports in its rule: the more specific rule wins. It opens an endpoint of
    /// [`Rule::link_control`](crate::Rule::link_control) too, to learn link addresses afterwards. `Network::hand_over` of
    /// towpath-net does all of this.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use towpath_client::{Options, Rule, Session};
    ///
    /// let mut session = Session::attach("/run/towpath/eth0.sock", &Options::default())?;
    /// let endpoint = session.open(&Rule::new().udp(7))?;
    /// // ... the operator has started the new process.
    /// session.hand_over()?;
    /// while !session.is_revoked(endpoint) {
    ///     session.wait(None)?;
    ///     // Packets still arrive here until the new process takes over.
    ///     session.receiver().receive(endpoint.queue_pair(), 32, |packet| println!("{} bytes", packet.len()))?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`OpenError::Refused`] if the session shares the host's addresses, or has a hardware queue.
    pub fn hand_over(&mut self) -> Result<(), OpenError> {
        self.status.check()?;
        self.ask_with(&Message::HandOver).map(|_| ())
    }
}
