//! The queues of a session's endpoints, and what the ledger holds of them.

use towpath_protocol::counters::OutOfBand as Count;
use towpath_protocol::layout::{OOB_INTENT_WORDS, SessionShape};
use towpath_protocol::oob::{OobMessage, PeerState};
use towpath_queue::oob::{Message, OobProducer};
use towpath_queue::{OwnWords, PeerWords, Violation};

use crate::account::Account;
use crate::reach::Reach;

use super::connection::{Connection, EndpointName};

/// One session's messages, or its requests, may have a quarter of a queue's slots.
const SHARE_DIVISOR: u32 = 4;
/// Slots that only the answer to a request may use.
pub(super) const ANSWER_SLOTS: u32 = 1;

const INTENT_SLOT: usize = 0;
const INTENT_PEER: usize = 1;
const INTENT_INDEX: usize = 2;
/// Marks a slot behind the last message that was handled.
const HANDLED: u64 = 1 << 32;
/// Marks the last word of an intent, which is stored last.
const INTENT_VALID: u64 = 1 << 32;
/// The message rejects a request.
const INTENT_REJECTS: u64 = 1 << 33;

/// Returns the bytes of the server's own memory that the queues of a session take at most.
pub fn oob_bytes(shape: &SessionShape) -> usize {
    let slots = shape.oob().map_or(0, |oob| oob.slots() as usize);
    let queue = size_of::<OobQueue>() + slots * (size_of::<u32>() + size_of::<EndpointName>());
    if slots > 0 { shape.endpoints as usize * queue } else { 0 }
}

/// The queues of a session's endpoints.
#[derive(Debug)]
pub(crate) struct SessionOob {
    queues: Vec<OobQueue>,
    /// For each queue pair, the slot behind the last message that was handled, or 0.
    handled: Option<OwnWords>,
    /// The queue pairs in which messages may come again that a predecessor handled.
    repeats: Vec<bool>,
    intent: Option<OwnWords>,
    /// The account, and the users with whose sessions it exchanges messages.
    pub(crate) account: Account,
    pub(crate) reach: Reach,
}

/// An endpoint's queue, and its connection.
#[derive(Debug)]
pub(crate) struct OobQueue {
    pub(super) producer: OobProducer,
    pub(super) connection: Connection,
    /// The connection for the next server.
    recorded: OwnWords,
    /// `true` until the endpoint's first message, if a predecessor recorded a connection: that
    /// message may be the one that the predecessor was handling.
    pub(super) may_repeat: bool,
    /// Endpoints that asked for a connection, and have no answer yet.
    pub(super) requests: Vec<EndpointName>,
    /// `true` if the queue is in the notifier's list of those with news.
    pub(crate) touched: bool,
}

/// Which message the engine is about to publish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Intent {
    pub(super) queue_pair: u32,
    /// The message's slot in that queue pair.
    pub(super) slot: u32,
    pub(super) to: EndpointName,
    /// The message's index in the queue of the endpoint that it is for.
    pub(super) index: u32,
    /// `true` if it rejects a request.
    pub(super) rejects: bool,
}

impl SessionOob {
    /// Creates the queues of a session over its memories, new ones or those that a predecessor
    /// left.
    pub(crate) fn new(
        shape: &SessionShape,
        own: Vec<OwnWords>,
        peer: Vec<PeerWords>,
        mut ledger: OwnWords,
    ) -> SessionOob {
        let Some(oob) = shape.oob() else { return SessionOob::none() };
        let intent = ledger.split_off_front(OOB_INTENT_WORDS);
        let handled = ledger.split_off_front(shape.queue_pairs as usize);
        let queues = own.into_iter().zip(peer).map(|(own, peer)| {
            let recorded = ledger.split_off_front(1);
            OobQueue {
                producer: OobProducer::new(oob, own, peer),
                connection: Connection::from_word(recorded.get(0)),
                recorded,
                requests: Vec::new(),
                may_repeat: false,
                touched: false,
            }
        });
        SessionOob {
            queues: queues.collect(),
            intent: Some(intent),
            handled: Some(handled),
            repeats: vec![false; shape.queue_pairs as usize],
            ..SessionOob::none()
        }
    }

    /// Returns those of a session that has none.
    pub(crate) fn none() -> SessionOob {
        SessionOob {
            queues: Vec::new(),
            handled: None,
            repeats: Vec::new(),
            intent: None,
            account: Account { uid: u32::MAX, group: None, is_limited: true },
            reach: Reach::None,
        }
    }

    /// Returns the number of queues.
    pub(super) fn len(&self) -> u32 {
        self.queues.len() as u32
    }

    /// Returns `true` if the session has no queues.
    pub(crate) fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }

    /// Returns the queue of an endpoint.
    pub(crate) fn queue(&mut self, endpoint: u32) -> Option<&mut OobQueue> {
        self.queues.get_mut(endpoint as usize)
    }

    /// Makes the state of an endpoint's peer news for its application, although it is the same.
    pub(crate) fn tell_again(&mut self, endpoint: u32) {
        if let Some(queue) = self.queue(endpoint) {
            let state = queue.state();
            queue.set_state(state);
        }
    }

    /// Connects an endpoint, as an earlier server left it.
    #[cfg(towpath_simulation)]
    pub(crate) fn set_connected(&mut self, endpoint: u32, peer: EndpointName) {
        if let Some(queue) = self.queue(endpoint) {
            queue.set_connection(Connection::Connected(peer));
        }
    }

    /// Returns `true` if this session and another one may exchange messages.
    pub(super) fn reaches(&self, other: &Self) -> bool {
        match (self.reach, other.reach) {
            (Reach::None, _) | (_, Reach::None) => false,
            (Reach::All, Reach::All) => true,
            _ => self.account.user() == other.account.user(),
        }
    }

    /// Returns `true` if a predecessor handled a message. `capacity`: the slots of the queue pair.
    pub(crate) fn is_handled(&mut self, queue_pair: u32, slot: u32, capacity: u32) -> bool {
        if self.repeats.get(queue_pair as usize) != Some(&true) {
            return false;
        }
        // Messages come in order: behind the first one that was not handled, none was.
        self.expect_repeats(queue_pair, slot, capacity)
    }

    /// Finds out whether messages come again that the predecessor handled, in a queue pair of which
    /// the server takes the slot `next` next. Returns whether they do.
    pub(super) fn expect_repeats(&mut self, queue_pair: u32, next: u32, capacity: u32) -> bool {
        let is_recorded = self.is_recorded(queue_pair, next, capacity);
        if let Some(repeats) = self.repeats.get_mut(queue_pair as usize) {
            *repeats = is_recorded;
        }
        is_recorded
    }

    /// Returns `true` if the ledger says of a message that it was handled.
    pub(super) fn is_recorded(&self, queue_pair: u32, slot: u32, capacity: u32) -> bool {
        let Some(words) = &self.handled else { return false };
        let handled = words.get(queue_pair as usize);
        handled & HANDLED != 0 && (1..=capacity).contains(&(handled as u32).wrapping_sub(slot))
    }

    /// Forgets the message that was to be published.
    pub(super) fn clear_intent(&mut self) {
        if let Some(words) = &mut self.intent {
            words.publish(INTENT_INDEX, 0);
        }
    }

    /// Records that a message was handled.
    pub(crate) fn handled(&mut self, queue_pair: u32, slot: u32) {
        if let Some(words) = &mut self.handled {
            words.publish(queue_pair as usize, HANDLED | u64::from(slot.wrapping_add(1)));
        }
    }

    pub(super) fn set_intent(&mut self, intent: &Intent) {
        let Some(words) = &mut self.intent else { return };
        // A reader must not find the old end with a new beginning.
        words.publish(INTENT_INDEX, 0);
        words.store(INTENT_SLOT, u64::from(intent.slot) | u64::from(intent.queue_pair) << 32);
        words.store(INTENT_PEER, Connection::Connected(intent.to).to_word());
        let rejects = if intent.rejects { INTENT_REJECTS } else { 0 };
        words.publish(INTENT_INDEX, INTENT_VALID | rejects | u64::from(intent.index));
    }

    pub(super) fn intent(&self) -> Option<Intent> {
        let words = self.intent.as_ref()?;
        let index = words.get(INTENT_INDEX);
        let Connection::Connected(to) = Connection::from_word(words.get(INTENT_PEER)) else {
            return None;
        };
        let slot = words.get(INTENT_SLOT);
        (index & INTENT_VALID != 0).then_some(Intent {
            queue_pair: (slot >> 32) as u32,
            slot: slot as u32,
            to,
            index: index as u32,
            rejects: index & INTENT_REJECTS != 0,
        })
    }
}

/// Why the engine does not put a message into a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoRoom {
    Full,
    Share,
    /// The queue's owner broke the protocol.
    Violates(Violation),
}

impl OobQueue {
    /// Begins anew, for another endpoint.
    pub(crate) fn reset(&mut self) {
        self.set_connection(Connection::None);
        self.requests.clear();
        self.may_repeat = false;
        self.producer.reset();
    }

    /// Returns the connection of the endpoint.
    pub(crate) fn connection(&self) -> Connection {
        self.connection
    }

    pub(super) fn set_connection(&mut self, connection: Connection) {
        self.connection = connection;
        self.recorded.publish(0, connection.to_word());
    }

    /// `true` unless the application was told that its endpoint's connection has ended.
    pub(crate) fn may_continue(&mut self) -> bool {
        [PeerState::None, PeerState::Requested, PeerState::Connected].contains(&self.state())
    }

    /// `true` if the application was told that its endpoint is connected.
    pub(crate) fn is_told_connected(&mut self) -> bool {
        self.state() == PeerState::Connected
    }

    /// Returns the index that the next message gets.
    pub(crate) fn next_index(&self) -> u32 {
        self.producer.next_index()
    }

    /// Records that the endpoint asked one of another host for a connection.
    pub(crate) fn set_requested(&mut self, peer: EndpointName) {
        self.set_connection(Connection::Requested(peer));
    }

    /// Returns `true` for the first message of an endpoint of which a predecessor recorded a
    /// connection.
    pub(super) fn may_repeat_once(&mut self) -> bool {
        std::mem::take(&mut self.may_repeat)
    }

    /// Returns the state of the peer.
    pub(super) fn state(&mut self) -> PeerState {
        PeerState::from_number(self.producer.state() as u32).unwrap_or(PeerState::None)
    }

    pub(super) fn set_state(&mut self, state: PeerState) {
        let changes = (self.producer.state() >> 32).wrapping_add(1);
        self.producer.set_state(changes << 32 | u64::from(state.number()));
    }

    pub(super) fn count(&mut self, count: Count) {
        self.producer.add(count as usize, 1);
    }

    /// Checks that there is room for a message of a session. `kept`: messages for which room stays.
    pub(super) fn check_room(&mut self, session: u32, kept: u32) -> Result<(), NoRoom> {
        let unread = self.producer.unread().map_err(NoRoom::Violates)?;
        if unread >= self.producer.slots() - kept {
            return Err(NoRoom::Full);
        }
        if kept > 0 && self.producer.unread_of(session) >= self.producer.slots() / SHARE_DIVISOR {
            return Err(NoRoom::Share);
        }
        Ok(())
    }

    /// Checks that the endpoint may have one more request of a session.
    pub(super) fn check_requests(&self, session: u32) -> Result<(), NoRoom> {
        let theirs = self.requests.iter().filter(|one| one.session == session).count();
        match (
            self.requests.len() as u32 >= self.producer.slots(),
            theirs as u32 >= self.producer.slots() / SHARE_DIVISOR,
        ) {
            (true, _) => Err(NoRoom::Full),
            (_, true) => Err(NoRoom::Share),
            _ => Ok(()),
        }
    }

    /// Publishes a message. The caller has checked that there is room.
    pub(super) fn push(&mut self, message: &OobMessage) {
        let words: Message = message.to_words();
        let pushed = self.producer.push(&words);
        debug_assert!(pushed, "there was room");
        self.count(Count::Received);
    }
}
