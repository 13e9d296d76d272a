//! The replacement of a session by another session of the same user and name, without an interruption.
//!
//! 1. The earlier application gives each open connection an endpoint with the connection's exact flow. Then it sends a
//!    hand-over message. It continues to receive all other packets.
//! 2. The new application attaches and gets the same addresses. It receives nothing yet.
//! 3. The new application opens endpoints and takes the flow rules over. Each change of hands is one step of the engine, so
//!    each packet has a receiver.
//!
//! A session without a hand-over message keeps its addresses to itself. A user's other sessions could otherwise
//! send from these, and take packets by more specific rules.

use std::net::Ipv4Addr;

use towpath_engine::commands::{Command, Listening};
use towpath_protocol::message::{self, Message, Open, Refusal};

use crate::addresses::{Holder, Lease};
use crate::connection::{Connection, WithSession};
use crate::control::Control;
use crate::control_endpoint::ControlEndpoint;
use crate::control_session::ControlSession;
use crate::engines::Reply;
use crate::open::read_open;
use crate::refusal::Refused;

/// An endpoint whose flow rule another session takes over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TakenEndpoint {
    /// The token of the session's connection.
    token: u64,
    /// The session's number.
    pub(crate) session: u32,
    /// The endpoint's number.
    pub(crate) number: u32,
}

/// Returns `true` if a session of a connection is one that an application uses, or is about to claim from an earlier
/// server.
fn is_used(connection: &Connection) -> bool {
    connection.live().is_some() || connection.is_unclaimed()
}

impl Control {
    /// Lets a session that replaces this one have the addresses too, and take over the flow rules.
    pub(super) fn hand_over(&mut self, token: u64) -> Result<(), Refused> {
        let Some(WithSession { session, .. }) = self.connections.live(token) else {
            let text = "hand over: there is no session on this connection";
            return Err((Refusal::State, text.to_owned()));
        };
        let refused = |text: &str| Err((Refusal::State, format!("hand over: {text}")));
        if session.lease.shared {
            return refused(
                "the session shares the host's addresses; close the endpoints of its ports instead",
            );
        }
        if session.own_queue.is_some() {
            return refused("the session has a hardware queue, which goes to no other session");
        }
        session.hands_over = true;
        if let Some(record) = &mut session.record {
            record.hand_over();
        }
        self.answer(token, &Message::Done);
        Ok(())
    }

    /// Returns the addresses of the session that an application's new session replaces, if there is one: the newest of the
    /// same user and name. `wanted`: the address that the application asks for.
    ///
    /// # Errors
    /// Fails with the line that the server sends to the peer, if that session does not hand over.
    pub(crate) fn replaced_session(
        &self,
        holder: &Holder,
        wanted: Option<Ipv4Addr>,
    ) -> Result<Option<Lease>, Refused> {
        let has = |lease: &Lease, ip| lease.ipv4.is_some_and(|(own, _)| own == ip);
        let named =
            self.sessions_of(holder).filter(|(_, one)| wanted.is_none_or(|ip| has(&one.lease, ip)));
        let Some((is_used, earlier)) = named.max_by_key(|(_, one)| one.number) else {
            return Ok(None);
        };
        let ControlSession { number, name, .. } = earlier;
        let text = match (is_used, earlier.hands_over) {
            (true, true) => return Ok(Some(earlier.lease)),
            (true, false) => format!(
                "attach: session {number} ({name}) has not handed over its addresses; let its application hand over, \
                 or end it"
            ),
            (false, _) => format!(
                "attach: session {number} ({name}) begins or ends, and has the addresses; ask again"
            ),
        };
        Err((Refusal::InUse, text))
    }

    /// Returns the sessions of a user and a name that have addresses of their own, each with `true` if an application uses
    /// it.
    fn sessions_of<'a>(
        &'a self,
        holder: &'a Holder,
    ) -> impl Iterator<Item = (bool, &'a ControlSession)> {
        let theirs =
            self.connections.sessions().filter(|one| one.application.peer.uid == holder.uid);
        let theirs = theirs.filter_map(|one| Some((is_used(one), one.session()?)));
        theirs.filter(|(_, one)| one.name == holder.name && !one.lease.shared)
    }

    /// Returns the lease with an index in the pool, if a session of the same user and name has it: one of the two sessions
    /// replaces the other session.
    pub(crate) fn shared_lease(&self, holder: &Holder, host_number: u32) -> Option<Lease> {
        let mut leases = self.sessions_of(holder).map(|(_, one)| one.lease);
        leases.find(|lease| lease.host_number() == host_number)
    }

    /// Returns `true` if another session has the addresses of a connection's session: one of the two sessions replaces the
    /// other session.
    pub(crate) fn has_companion(&self, token: u64) -> bool {
        let Some(session) = self.connections.session(token) else { return false };
        let (number, host_number) = (session.number, session.lease.host_number());
        let mut others = self.connections.sessions().filter_map(Connection::session);
        !session.lease.shared
            && others.any(|one| {
                one.number != number && !one.lease.shared && one.lease.host_number() == host_number
            })
    }

    /// Returns the endpoint whose flow rule a request takes over, if it takes one over.
    ///
    /// # Errors
    /// Fails with the line that the server sends to the peer, if the other session does not give its rules away.
    pub(super) fn taken_endpoint(
        &self,
        token: u64,
        open: &Open,
    ) -> Result<Option<TakenEndpoint>, Refused> {
        let connection = self.connections.get(token);
        let asks = open.flags & message::OPEN_TAKE_OVER != 0;
        let Some(connection) = connection.filter(|_| asks) else { return Ok(None) };
        let Some(session) = connection.session() else { return Ok(None) };
        let opened = read_open(open, &connection.application, session, &self.addresses)?;
        let owner = self.addresses.rules().owner_of(&opened.rule);
        let Some(owner) = owner.filter(|one| *one != session.number) else { return Ok(None) };
        let text = format!(
            "open: session {owner} has an endpoint with the same flow rule, and has not handed over; let its \
             application hand over, or end it"
        );
        let refused = (Refusal::InUse, text);
        let Some((token, earlier)) =
            self.connections.token_of(owner).zip(self.connections.of_session(owner))
        else {
            return Err(refused);
        };
        let is_theirs = earlier.application.peer.uid == connection.application.peer.uid;
        let endpoint = earlier.session().filter(|one| {
            is_theirs && one.hands_over && one.lease.host_number() == session.lease.host_number()
        });
        let endpoint = endpoint.and_then(|one| endpoint_of(one, &opened));
        let number = endpoint.ok_or(refused)?;
        Ok(Some(TakenEndpoint { token, session: owner, number }))
    }

    /// Closes the endpoint for link control of a session, if it is the last one with these addresses: all packets are for
    /// this session again. If the session has yet to open the endpoint, the server closes it then.
    pub(crate) fn end_link_control(&mut self, lease: &Lease) {
        let has = |one: &&Connection| {
            let session = one.session();
            session.is_some_and(|one| {
                !one.lease.shared && one.lease.host_number() == lease.host_number()
            })
        };
        let theirs: Vec<u32> =
            self.connections.sessions().filter(has).take(2).map(|one| one.number).collect();
        let [session] = theirs[..] else { return };
        let Some(token) = self.connections.token_of(session) else { return };
        let is_control =
            |one: &ControlEndpoint| one.listening == Some(Listening::LinkControl) && !one.revoked;
        let Some(only) = self.connections.session_mut(token) else { return };
        let mut all = only.endpoints.all();
        let number = all.find(|(_, one)| is_control(one)).map(|(number, _)| number);
        drop(all);
        only.is_alone = number.is_none();
        let Some(number) = number else { return };
        self.give_up(TakenEndpoint { token, session, number });
        self.command(Command::RevokeEndpoint { session, number }, Reply::Closed(None, None));
    }

    /// Closes the endpoints for link control of the sessions that are the last ones with their addresses, after the start of
    /// the server: the other application may have ended while no server ran.
    pub(crate) fn end_link_controls(&mut self) {
        let has_control = |one: &ControlSession| {
            let mut opened = one.endpoints.all();
            !one.hands_over && opened.any(|(_, one)| one.listening == Some(Listening::LinkControl))
        };
        let sessions = self.connections.sessions().filter_map(Connection::session);
        let leases: Vec<Lease> =
            sessions.filter(|one| has_control(one)).map(|one| one.lease).collect();
        leases.iter().for_each(|lease| self.end_link_control(lease));
    }

    /// Marks an endpoint as revoked, in the record too, and forgets its flow rule. The caller has the engines close it.
    pub(super) fn give_up(&mut self, taken: TakenEndpoint) {
        let Some(of) = self.connections.with_session(taken.token) else { return };
        let Some(opened) = of.session.endpoints.get_mut(taken.number) else { return };
        let before = opened.clone();
        opened.revoked = true;
        if let Some(record) = &mut of.session.record {
            record.revoke(taken.number);
        }
        self.forget_rule(&before);
    }
}

/// Returns the number of the endpoint of a session that has the flow rule of another one. An endpoint for out-of-band
/// messages has connections, and keeps its rule.
fn endpoint_of(session: &ControlSession, wanted: &ControlEndpoint) -> Option<u32> {
    let mut all = session
        .endpoints
        .all()
        .filter(|(_, one)| one.has_rule() && !one.revoked && !one.out_of_band);
    all.find(|(_, one)| one.rule == wanted.rule).map(|(number, _)| number)
}
