//! The addresses of endpoints, and the delivery of messages by their kinds.

use std::collections::HashMap;

use towpath_protocol::counters::OutOfBand as Count;
use towpath_protocol::oob::{Kind, OobAddress, OobMessage, PeerState, Refused};
use towpath_queue::Violation;

use super::connection::{Connection, EndpointName};
use super::parts::OobParts;
use super::queue::{ANSWER_SLOTS, Intent, NoRoom, OobQueue};
use crate::demux::Destination;
use crate::session::Session;
use crate::sessions::SessionTable;

/// The sender of a message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sender {
    /// The endpoint that sends it.
    pub(crate) from: Destination,
    /// Its session's number.
    pub(crate) session: u32,
    /// The queue pair, and the message's slot in it.
    pub(crate) queue_pair: u32,
    pub(crate) slot: u32,
    /// `true` if a predecessor may have begun to handle the message.
    pub(crate) may_repeat: bool,
}

impl Sender {
    pub(crate) fn name(&self) -> EndpointName {
        EndpointName { session: self.session, endpoint: self.from.endpoint }
    }
}

/// The reason why a value or message of a request is not delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotReady {
    /// The queue of the peer has no room.
    NoRoom,
    /// The endpoint has no peer any more.
    Closed,
}

impl OobParts<'_> {
    /// Puts the value or message of a request into the queue of the peer of an endpoint, unless a
    /// predecessor did.
    pub(crate) fn send_to_peer(
        &mut self,
        sender: &Sender,
        kind: Kind,
        payload: &[u8],
    ) -> Result<(), NotReady> {
        let from = sender.from;
        let queue = self.open_queue(from).ok_or(NotReady::Closed)?;
        let Connection::Connected(receiver) = queue.connection else {
            return Err(NotReady::Closed);
        };
        let session = self.sessions.get_mut(from.session).ok_or(NotReady::Closed)?;
        let capacity = session.shape().queues.transmit();
        if session.extras.oob.is_handled(sender.queue_pair, sender.slot, capacity) {
            return Ok(());
        }
        let own = session.receive.endpoints.get(from.endpoint);
        let own = own.and_then(|one| one.oob.first()).ok_or(NotReady::Closed)?;
        let message = OobMessage::new(kind, *own, payload).ok_or(NotReady::Closed)?;
        let message = message.from_sender(*own, session.extras.oob.account.uid, session.number());
        let (to, queue) = self.peer_queue(receiver).ok_or(NotReady::Closed)?;
        match queue.check_room(sender.session, ANSWER_SLOTS) {
            Ok(()) => {}
            Err(NoRoom::Full | NoRoom::Share) => return Err(NotReady::NoRoom),
            Err(NoRoom::Violates(violation)) => {
                self.sessions.condemn(to.session, violation);
                return Err(NotReady::Closed);
            }
        }
        publish(sender, &Delivery { kind, to, receiver, message }, self);
        if let Some(session) = self.sessions.get_mut(from.session) {
            session.extras.oob.handled(sender.queue_pair, sender.slot);
        }
        Ok(())
    }
}

/// A message on its way, with what the engine found of its receiver.
struct Delivery {
    kind: Kind,
    to: Destination,
    receiver: EndpointName,
    /// The message as its receiver gets it.
    message: OobMessage,
}

/// The addresses of all endpoints that take messages.
#[derive(Debug, Default)]
pub(crate) struct OobTable {
    addresses: HashMap<OobAddress, Destination>,
}

impl OobTable {
    /// Enters an endpoint's addresses. The control thread has checked that no other endpoint has
    /// them.
    pub(crate) fn insert(&mut self, addresses: &[OobAddress], at: Destination) {
        self.addresses.extend(addresses.iter().map(|address| (*address, at)));
    }

    /// Removes an endpoint's addresses.
    pub(crate) fn remove(&mut self, addresses: &[OobAddress], at: Destination) {
        for address in addresses {
            if self.addresses.get(address) == Some(&at) {
                self.addresses.remove(address);
            }
        }
    }

    /// Delivers a message, or drops and counts it.
    ///
    /// # Errors
    /// The sender's violation: no correct application sends such a message.
    pub(crate) fn send(
        &self,
        sender: &Sender,
        message: &OobMessage,
        parts: &mut OobParts<'_>,
    ) -> Result<(), Violation> {
        let Some((kind, address)) = message.check() else { return Err(Violation::Flags) };
        let Some(session) = parts.sessions.get(sender.from.session) else { return Ok(()) };
        if session.extras.oob.is_empty()
            || message.uid != 0
            || message.session != 0
            || kind == Kind::Value
        {
            return Err(Violation::Flags);
        }
        if !session.receive.endpoints.takes_oob(sender.from.endpoint) {
            // The endpoint was closed meanwhile.
            parts.count(sender.from, Count::DroppedState);
            return Ok(());
        }
        let may_repeat = parts.open_queue(sender.from).is_some_and(OobQueue::may_repeat_once);
        let sender = &Sender { may_repeat, ..*sender };
        let Some(session) = parts.sessions.get(sender.from.session) else { return Ok(()) };
        if kind == Kind::Close {
            parts.disconnect(sender.from, PeerState::Closed, PeerState::None);
            parts.count(sender.from, Count::Sent);
            return Ok(());
        }
        if !self.addresses.contains_key(&address) && parts.remote.is_on() {
            match parts.send_remote(sender, kind, address, message) {
                Ok(()) => parts.count(sender.from, Count::Sent),
                Err(why) => refuse(sender, kind, why, parts),
            }
            return Ok(());
        }
        match self.find(sender, session, kind, address, message, parts.sessions) {
            Ok(delivery) => deliver(sender, &delivery, parts),
            Err(why) => refuse(sender, kind, why, parts),
        }
        Ok(())
    }

    /// Returns the endpoint that has an address.
    pub(crate) fn at(&self, address: &OobAddress) -> Option<Destination> {
        self.addresses.get(address).copied()
    }

    /// Finds the receiver of a message, and checks that the sender may send to it.
    fn find(
        &self,
        sender: &Sender,
        session: &Session,
        kind: Kind,
        address: OobAddress,
        message: &OobMessage,
        sessions: &SessionTable,
    ) -> Result<Delivery, Refused> {
        let to = *self.addresses.get(&address).ok_or(Refused::NoEndpoint)?;
        let receiver = sessions.get(to.session).ok_or(Refused::NoEndpoint)?;
        if receiver.violation().is_some() || !receiver.receive.endpoints.takes_oob(to.endpoint) {
            return Err(Refused::NoEndpoint);
        }
        if !session.extras.oob.reaches(&receiver.extras.oob) {
            return Err(Refused::Policy);
        }
        if to == sender.from {
            return Err(Refused::State);
        }
        let own = session.receive.endpoints.oob_address(sender.from.endpoint, address.ip);
        let own = own.ok_or(Refused::NoEndpoint)?;
        Ok(Delivery {
            kind,
            to,
            receiver: EndpointName { session: receiver.number(), endpoint: to.endpoint },
            message: message.from_sender(own, session.extras.oob.account.uid, session.number()),
        })
    }
}

/// Counts a message that is not delivered. A request or an accepting answer that is not delivered
/// is refused.
fn refuse(sender: &Sender, kind: Kind, why: Refused, parts: &mut OobParts<'_>) {
    let count = match why {
        Refused::NoEndpoint => Count::DroppedNoEndpoint,
        Refused::Policy => Count::DroppedPolicy,
        _ => Count::DroppedState,
    };
    parts.count(sender.from, count);
    refuse_connection(sender, kind, why, parts);
}

/// Tells the sender of a request or of an acceptance that there is no connection, unless it has
/// another one. One that a predecessor had begun to make ends.
fn refuse_connection(sender: &Sender, kind: Kind, why: Refused, parts: &mut OobParts<'_>) {
    let Some(queue) = parts.open_queue(sender.from) else { return };
    let state = PeerState::Refused(why);
    match (kind, queue.connection) {
        (Kind::Request | Kind::Accept, Connection::None) => parts.set_state(sender.from, state),
        (Kind::Request, Connection::Requested(peer)) if sender.may_repeat => {
            parts.forget_request(peer, sender.name());
            parts.end(sender.from, state);
        }
        (Kind::Accept, Connection::Connected(peer)) if sender.may_repeat => {
            let back = Connection::Connected(sender.name());
            if parts.peer_queue(peer).is_none_or(|(_, queue)| queue.connection != back) {
                parts.end(sender.from, state);
            }
        }
        _ => {}
    }
}

/// Counts a message for which a queue has no room.
fn no_room(sender: &Sender, delivery: &Delivery, why: NoRoom, parts: &mut OobParts<'_>) {
    match why {
        NoRoom::Full => parts.count(delivery.to, Count::DroppedFull),
        NoRoom::Share => parts.count(delivery.to, Count::DroppedShare),
        NoRoom::Violates(violation) => {
            parts.sessions.condemn(delivery.to.session, violation);
            parts.count(sender.from, Count::DroppedNoEndpoint);
        }
    }
    if delivery.kind == Kind::Request {
        refuse_connection(sender, Kind::Request, Refused::Full, parts);
    }
}

/// Delivers a message by its kind.
fn deliver(sender: &Sender, delivery: &Delivery, parts: &mut OobParts<'_>) {
    let done = match delivery.kind {
        Kind::Plain => deliver_plain(sender, delivery, parts),
        Kind::Request => deliver_request(sender, delivery, parts),
        Kind::Accept => deliver_accept(sender, delivery, parts),
        Kind::Reject => deliver_reject(sender, delivery, parts),
        // No application sends one.
        Kind::Close | Kind::Value => Ok(()),
    };
    match done {
        Ok(()) => parts.count(sender.from, Count::Sent),
        Err(Undelivered::NoRoom(why)) => no_room(sender, delivery, why, parts),
        Err(Undelivered::State) => refuse(sender, delivery.kind, Refused::State, parts),
    }
}

/// Why a message is not delivered to the receiver that was found.
enum Undelivered {
    NoRoom(NoRoom),
    /// It does not fit the state of the connection.
    State,
}

impl From<NoRoom> for Undelivered {
    fn from(why: NoRoom) -> Undelivered {
        Undelivered::NoRoom(why)
    }
}

/// Publishes a message in its receiver's queue, and tells the application.
fn publish(sender: &Sender, delivery: &Delivery, parts: &mut OobParts<'_>) {
    let Some(queue) = parts.open_queue(delivery.to) else { return };
    let index = queue.producer.next_index();
    let Sender { queue_pair, slot, .. } = *sender;
    let rejects = delivery.kind == Kind::Reject;
    let intent = Intent { queue_pair, slot, to: delivery.receiver, index, rejects };
    if let Some(session) = parts.sessions.get_mut(sender.from.session) {
        session.extras.oob.set_intent(&intent);
    }
    if let Some(queue) = parts.open_queue(delivery.to) {
        queue.push(&delivery.message);
    }
    let Destination { session: key, endpoint } = delivery.to;
    if let Some(session) = parts.sessions.get_mut(key) {
        parts.notifier.touch_oob(session, key, endpoint);
    }
}

fn deliver_plain(
    sender: &Sender,
    delivery: &Delivery,
    parts: &mut OobParts<'_>,
) -> Result<(), Undelivered> {
    let queue = parts.open_queue(delivery.to).ok_or(Undelivered::State)?;
    queue.check_room(sender.session, ANSWER_SLOTS)?;
    publish(sender, delivery, parts);
    Ok(())
}

fn deliver_request(
    sender: &Sender,
    delivery: &Delivery,
    parts: &mut OobParts<'_>,
) -> Result<(), Undelivered> {
    let connection = Connection::Requested(delivery.receiver);
    let own = parts.open_queue(sender.from).ok_or(Undelivered::State)?;
    // A request that an earlier server was about to deliver has its connection already.
    let is_again = own.connection == connection && sender.may_repeat;
    if own.connection != Connection::None && !is_again {
        return Err(Undelivered::State);
    }
    let queue = parts.open_queue(delivery.to).ok_or(Undelivered::State)?;
    queue.requests.retain(|one| *one != sender.name());
    let room = queue.check_room(sender.session, ANSWER_SLOTS);
    if let Err(why) = room.and_then(|()| queue.check_requests(sender.session)) {
        parts.clear_connection(sender.from);
        return Err(why.into());
    }
    queue.requests.push(sender.name());
    if let Some(own) = parts.open_queue(sender.from) {
        own.set_connection(connection);
    }
    parts.set_state(sender.from, PeerState::Requested);
    publish(sender, delivery, parts);
    Ok(())
}

/// What an answer is for.
enum Answerable {
    /// A request to this endpoint, of the sender's session.
    Requested(EndpointName),
    /// A connection with the sender: a predecessor was killed while it accepted.
    Connected,
}

/// Returns what an answer is for; `None` if its receiver waits for none of this session.
fn answerable(
    sender: &Sender,
    delivery: &Delivery,
    parts: &mut OobParts<'_>,
) -> Option<Answerable> {
    let queue = parts.open_queue(delivery.to)?;
    match queue.connection {
        Connection::Requested(asked) if asked.session == sender.session => {
            Some(Answerable::Requested(asked))
        }
        Connection::Connected(with) if with == sender.name() && sender.may_repeat => {
            Some(Answerable::Connected)
        }
        _ => None,
    }
}

fn deliver_accept(
    sender: &Sender,
    delivery: &Delivery,
    parts: &mut OobParts<'_>,
) -> Result<(), Undelivered> {
    let connection = Connection::Connected(delivery.receiver);
    let own = parts.open_queue(sender.from).ok_or(Undelivered::State)?;
    let is_again = own.connection == connection && sender.may_repeat;
    if own.connection != Connection::None && !is_again {
        return Err(Undelivered::State);
    }
    if parts.apertures.is_ending([sender.name(), delivery.receiver]) {
        return Err(Undelivered::State);
    }
    let answerable = answerable(sender, delivery, parts).ok_or(Undelivered::State)?;
    let queue = parts.open_queue(delivery.to).ok_or(Undelivered::State)?;
    if let Err(why) = queue.check_room(sender.session, 0) {
        // Neither side may wait for the other for ever.
        if let Answerable::Requested(listener) = answerable {
            parts.forget_request(listener, delivery.receiver);
        }
        parts.end(sender.from, PeerState::Refused(Refused::Full));
        parts.end(delivery.to, PeerState::Refused(Refused::Full));
        return Err(why.into());
    }
    if let Some(own) = parts.open_queue(sender.from) {
        own.set_connection(connection);
    }
    if let Some(queue) = parts.open_queue(delivery.to) {
        queue.set_connection(Connection::Connected(sender.name()));
    }
    if let Answerable::Requested(listener) = answerable {
        parts.forget_request(listener, delivery.receiver);
    }
    for at in [delivery.to, sender.from] {
        if let Some(session) = parts.sessions.get_mut(at.session) {
            session.extras.apertures.connect(at.endpoint);
        }
    }
    publish(sender, delivery, parts);
    parts.set_state(delivery.to, PeerState::Connected);
    parts.set_state(sender.from, PeerState::Connected);
    Ok(())
}

fn deliver_reject(
    sender: &Sender,
    delivery: &Delivery,
    parts: &mut OobParts<'_>,
) -> Result<(), Undelivered> {
    let Some(Answerable::Requested(listener)) = answerable(sender, delivery, parts) else {
        return Err(Undelivered::State);
    };
    let queue = parts.open_queue(delivery.to).ok_or(Undelivered::State)?;
    // The state says all that matters; the payload comes along if there is room.
    let has_room = queue.check_room(sender.session, 0);
    if has_room.is_ok() {
        publish(sender, delivery, parts);
    }
    parts.forget_request(listener, delivery.receiver);
    parts.end(delivery.to, PeerState::Refused(Refused::Rejected));
    Ok(has_room?)
}
