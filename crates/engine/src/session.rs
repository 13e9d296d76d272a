//! The engine's view of a session.
//!
//! A session has five parts: the receiving side with the endpoints (`ReceiveSide`), the sending side
//! (`TransmitSide`), its `Events`, its `Extras`, and its `Activity`.

pub(crate) mod activity;
pub mod doorbell;
pub mod endpoints;
pub(crate) mod events;
pub mod memories;
pub(crate) mod receive_side;
pub(crate) mod transmit_side;

use std::os::fd::OwnedFd;
use std::sync::Arc;

use towpath_device::Registration;
use towpath_memory::{Mapping, own_words};
use towpath_protocol::layout::{
    CLOSED_WORD, ENGINE_NS_WORD, PARKED_WORD, REVOKED_WORD, SessionShape,
};
use towpath_protocol::settings::Setting;
use towpath_queue::buffers::BufferLedger;
use towpath_queue::doorbell::{PeerSleepFlag, Sleeper};
use towpath_queue::events::{Acknowledger, Marker};
use towpath_queue::receive::server_side;
use towpath_queue::{OwnWords, Violation};

use crate::account::Account;
use crate::apertures::states::{ApertureWords, SessionApertures};
use crate::coalescing;
use crate::forbidden::Forbidden;
use crate::oob::queue::SessionOob;
use crate::own::{Own, OwnQueue};
use crate::reach::Reach;
use crate::session::activity::{Activity, PARKED};
use crate::session::doorbell::Doorbell;
use crate::session::endpoints::{Endpoint, Endpoints};
use crate::session::events::Events;
use crate::session::memories::{LaneMemories, Memories};
use crate::session::receive_side::ReceiveSide;
use crate::session::transmit_side::TransmitSide;

/// Bytes of the server's own memory that an endpoint counts as. The tables of the engine and of the
/// control thread, and the flow table, take some 900 without settings of its own, and as much again
/// with them.
pub const ENDPOINT_BYTES: usize = 2560;
/// Bytes of the server's own memory that a queue pair counts as.
pub const QUEUE_PAIR_BYTES: usize = 1024;

/// The parts that only some sessions use.
#[derive(Debug)]
pub(crate) struct Extras {
    /// A hardware queue of the session's own.
    pub(crate) own: Own,
    /// The queues of out-of-band messages.
    pub(crate) oob: SessionOob,
    /// The states of the session's apertures, and its tripwires.
    pub(crate) apertures: SessionApertures,
    /// The limit of packets that the session's rights forbid, if there is one.
    pub(crate) forbidden: Option<Forbidden>,
}

/// How far the end of a session has come.
#[derive(Debug, Default)]
struct End {
    /// `true` if the engine removes the session as soon as none of its packets is in flight.
    closing: bool,
    /// `true` if the session's flow rules are gone.
    emptied: bool,
}

/// Everything of a session that the engine touches. The control thread makes it and hands it over
/// whole. The engine hands it back whole, and the control thread unmaps it.
#[derive(Debug)]
pub struct Session {
    number: u32,
    shape: SessionShape,
    pub(crate) receive: ReceiveSide,
    pub(crate) transmit: TransmitSide,
    pub(crate) events: Events,
    pub(crate) extras: Extras,
    pub(crate) activity: Activity,
    header: OwnWords,
    /// The accounts; of no words in the layout of an older application.
    accounts: OwnWords,
    end: End,
}

/// Returns a ledger in which no buffer has an owner: only the queues determine the owners.
fn cleared(words: OwnWords, buffers: u32) -> BufferLedger {
    let mut ledger = BufferLedger::new(words, buffers);
    ledger.clear();
    ledger
}

impl Session {
    /// Returns the session's number, as tools show it.
    #[inline]
    #[must_use]
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Returns the sizes of the session's parts.
    #[inline]
    #[must_use]
    pub fn shape(&self) -> &SessionShape {
        &self.shape
    }

    /// Gives the session the registration of its transmit buffer pool with the device.
    pub fn set_registration(&mut self, registration: Option<Registration>) {
        self.transmit.registration = registration;
    }

    /// Returns the application's violation.
    #[inline]
    pub(crate) fn violation(&self) -> Option<Violation> {
        self.receive.violation
    }

    /// Records a violation of the application, unless there is one already.
    #[inline]
    pub(crate) fn violate(&mut self, violation: Violation) {
        self.receive.violation.get_or_insert(violation);
    }

    /// Returns `true` if the session ends: the engine no longer serves it.
    #[inline]
    pub(crate) fn is_closing(&self) -> bool {
        self.end.closing
    }

    /// Records that the flow rules of an ending session are gone.
    pub(crate) fn set_emptied(&mut self) {
        self.end.emptied = true;
    }

    /// Returns `true` if nothing of an ending session is left in the engine.
    pub(crate) fn has_ended(&self) -> bool {
        self.end.closing && self.end.emptied && self.transmit.in_flight() == 0
    }

    /// Creates a session of a server with one lane over its memories, either new ones or those that
    /// a predecessor left.
    #[must_use]
    pub fn new(
        number: u32,
        shape: SessionShape,
        mut memories: Memories,
        doorbell: Doorbell,
        wake: OwnedFd,
    ) -> Session {
        let memories = memories.split_off_lane(&shape, 0);
        Session::of_lane(number, shape, memories, doorbell, Some(wake))
    }

    /// Creates a lane's part of a session. `wake`: `None` for a session of an earlier server, which
    /// its application has yet to claim.
    pub fn of_lane(
        number: u32,
        shape: SessionShape,
        memories: LaneMemories,
        doorbell: Doorbell,
        wake: Option<OwnedFd>,
    ) -> Session {
        let mut server = shape.server_own(own_words(memories.server));
        let header = server.header.split_off_front(PARKED_WORD);
        let parked = server.header.split_off_front(REVOKED_WORD - PARKED_WORD);
        let application = shape.application_peer(&memories.application);
        let ledger = shape.ledger(own_words(memories.ledger));
        let words = server.queue_pairs.into_iter().zip(&application.queue_pairs);
        let sides = words.zip(ledger.queue_pairs).map(|((own, peer), done)| {
            server_side(&shape.queues, shape.transmit_pool, own, peer, done)
        });
        let (consumers, producers): (Vec<_>, Vec<_>) = sides.unzip();
        let to_client = Marker::new(
            shape.events_to_application(),
            server.events,
            &application.acknowledgements,
        );
        let from_client = Acknowledger::new(
            shape.events_to_server(),
            server.acknowledgements,
            &application.events,
        );
        let sleep_flag = PeerSleepFlag::new(application.header);
        let [sent, received] = [shape.transmit_pool, shape.receive_pool].map(|pool| pool.buffers());
        Session {
            number,
            receive: ReceiveSide::new(
                producers.into_iter(),
                cleared(ledger.receive, received),
                shape.receive_pool,
                memories.receive_pool,
                Endpoints::new(shape.endpoints, server.counters, server.header),
            ),
            transmit: TransmitSide::new(
                consumers.into_iter(),
                cleared(ledger.transmit, sent),
                memories.transmit_pool,
                shape.endpoints,
            ),
            events: Events::new(to_client, from_client, sleep_flag, doorbell, wake),
            extras: Extras {
                own: Own::None,
                oob: match memories.is_first {
                    true => SessionOob::new(&shape, server.oob, application.oob, ledger.oob),
                    false => SessionOob::none(),
                },
                apertures: SessionApertures::new(
                    &shape,
                    ApertureWords {
                        states: server.apertures,
                        fired: server.fired,
                        requests: server.requests,
                        progress: ledger.progress,
                    },
                    memories.armed.filter(|_| memories.is_first),
                ),
                forbidden: None,
            },
            activity: Activity { parking: Sleeper::new(parked), at: PARKED, news_at: 0 },
            header,
            accounts: server.accounts,
            end: End::default(),
            shape,
        }
    }

    /// Sets whom the server charges for the session, the users with whose sessions it exchanges out-of-band messages,
    /// and the limit of forbidden packets per second.
    pub fn set_terms(&mut self, account: Account, reach: Reach, forbidden: Option<u32>) {
        self.extras.forbidden = forbidden.map(Forbidden::new);
        (self.extras.oob.account, self.extras.oob.reach) = (account, reach);
    }

    /// Gives the session a hardware queue of its own.
    pub fn set_own_queue(&mut self, own: Box<OwnQueue>) {
        self.extras.own = Own::Queue(own);
    }

    /// Takes the session's own hardware queue, unless it has none or the engine serves it.
    pub fn take_own_queue(&mut self) -> Option<Box<OwnQueue>> {
        self.extras.own.take_queue()
    }

    /// Returns the memory with packets to send.
    pub fn transmit_memory(&self) -> &Arc<Mapping> {
        self.transmit.memory()
    }

    /// Adds to the engine's time for the session, in nanoseconds.
    pub(crate) fn add_time(&mut self, ns: u64) {
        if !self.accounts.is_empty() {
            let total = self.accounts.get(ENGINE_NS_WORD).wrapping_add(ns);
            self.accounts.store(ENGINE_NS_WORD, total);
        }
    }

    /// Tells the application that the server closed an endpoint, unless it has been told already.
    pub(crate) fn tell_revoked(&mut self, number: u32) {
        if self.receive.endpoints.tell_revoked(number) {
            self.events.note_revoked();
        }
    }

    /// Tells the application that the session is over, and the reason (0: none). Returns
    /// the doorbell for the worker of the application's user to close, once all lanes have returned
    /// it. The close informs the application.
    #[must_use]
    pub fn close(&mut self, reason: u32) -> Option<Arc<OwnedFd>> {
        self.end.closing = true;
        self.header.publish(CLOSED_WORD, 1 << 32 | u64::from(reason));
        self.events.doorbell_mut().take_socket()
    }

    /// Returns `true` if the application has been told that the session is over, by this server or
    /// an earlier one.
    pub fn is_closed(&self) -> bool {
        self.header.get(CLOSED_WORD) != 0
    }

    /// Returns the remaining descriptors of a session that is over, and the doorbell if it is still
    /// open, and no other lane has it.
    pub fn into_closed(self) -> (Option<OwnedFd>, Option<OwnedFd>) {
        let (wake, doorbell) = self.events.into_descriptors();
        (wake, doorbell.into_socket().and_then(Arc::into_inner))
    }

    /// Returns `true` if an application has the session, and `false` until one claims a session of
    /// an earlier server.
    #[inline]
    pub(crate) fn is_claimed(&self) -> bool {
        self.events.are_claimed()
    }

    /// Gives the session to its application, which has restarted its event queues.
    ///
    /// # Errors
    /// [`Violation::Index`] if the application's index is impossible.
    pub(crate) fn claim(&mut self, doorbell: Doorbell, wake: OwnedFd) -> Result<(), Violation> {
        self.events.claim(doorbell, wake)
    }

    /// Changes the coalescing of an endpoint. For endpoints that share a queue pair, the engine
    /// notifies as soon as the first of them requires a notification.
    pub(crate) fn set_coalescing(&mut self, number: u32, setting: Setting, value: u32) {
        let Some(one) = self.receive.endpoints.get_mut(number) else { return };
        let old = one.coalescing;
        match setting {
            Setting::RxFrames if value == 0 => one.coalescing.0 = coalescing::UNSET.0,
            Setting::RxFrames => one.coalescing.0 = value,
            _ => one.coalescing.1 = value,
        }
        let (queue_pair, new) = (one.queue_pair, one.coalescing);
        self.receive.coalesce(queue_pair, Some(old), Some(new));
    }

    /// Enters an endpoint.
    pub(crate) fn put_in(&mut self, number: u32, endpoint: Box<Endpoint>) {
        self.receive.coalesce(endpoint.queue_pair, None, Some(endpoint.coalescing));
        self.receive.endpoints.insert(number, endpoint);
    }

    /// Removes an endpoint.
    pub(crate) fn take_out(&mut self, number: u32) -> Option<Box<Endpoint>> {
        let endpoint = self.receive.endpoints.remove(number)?;
        self.receive.coalesce(endpoint.queue_pair, Some(endpoint.coalescing), None);
        Some(endpoint)
    }
}
