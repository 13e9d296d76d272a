use std::sync::Arc;

use towpath_memory::{Region, SharedFile, own_words, peer_words};
use towpath_protocol::counters::OutOfBand as Count;
use towpath_protocol::layout::{ServerPages, SessionShape};
use towpath_protocol::oob::{Kind, OobAddress, OobMessage, PeerState, Refused};
use towpath_protocol::settings::Values;
use towpath_queue::oob::OobConsumer;
use towpath_queue::{OwnWords, PeerWords, Violation};

use super::connection::{Connection, EndpointName};
use super::{OobParts, OobTable, Sender};
use crate::apertures::ApertureTable;
use crate::demux::Destination;
use crate::notifier::Notifier;
use crate::reach::Reach;
use crate::relays::Relays;
use crate::remote::table::RemoteTable;
use crate::session::Session;
use crate::session::doorbell::Doorbell;
use crate::session::memories::Memories;
use crate::sessions::SessionTable;
use crate::testing;
use crate::wiring::event;

const SLOTS: u32 = 8;
const ENDPOINTS: u32 = 4;
pub(crate) const APERTURES: u32 = 300;

/// The files of a session, which outlive a server, and the application's side.
struct Files {
    server: SharedFile,
    application: SharedFile,
    ledger: SharedFile,
    pools: [SharedFile; 2],
    consumers: Vec<OobConsumer>,
    /// The tail of the first endpoint's queue, where a hostile application writes.
    tail: Option<OwnWords>,
}

fn shape() -> SessionShape {
    let shape = SessionShape::new(1, ENDPOINTS, 16, 16, 256, 256).unwrap();
    let shape = shape.with_oob(SLOTS).and_then(|shape| shape.with_apertures(APERTURES, 0));
    shape.unwrap()
}

impl Files {
    fn new() -> Files {
        let shape = shape();
        let file = |bytes| SharedFile::create("session", bytes).unwrap();
        let (server, application) = (shape.server_words() * 8, shape.application_words() * 8);
        let (server, application) = (file(server), file(application));
        let words: PeerWords = peer_words(&Arc::new(server.map_readable().unwrap()));
        let pages: ServerPages<PeerWords> = shape.server_peer(&words);
        let own = shape.application_own(own_words(application.map_writable().unwrap()));
        let (oob, pages) = (shape.oob().unwrap(), pages.oob);
        let queues = own.oob.into_iter().zip(&pages);
        let consumers = queues.map(|(own, peer)| OobConsumer::new(oob, own, peer)).collect();
        let pools = [shape.transmit_pool, shape.receive_pool].map(|pool| file(pool.pool_bytes()));
        let ledger = file(shape.ledger_words() * 8);
        Files { server, application, ledger, pools, consumers, tail: None }
    }

    /// Makes a server's view of the session.
    fn session(&self, number: u32) -> Box<Session> {
        let memories = Memories {
            server: self.server.map_writable().unwrap(),
            application: Arc::new(self.application.map_readable().unwrap()),
            ledger: self.ledger.map_writable().unwrap(),
            receive_pool: self.pools[1].map_writable().unwrap(),
            transmit_pool: Arc::new(self.pools[0].map_readable().unwrap()),
            armed: None,
        };
        let (ours, _theirs) = towpath_protocol::doorbell::pair().unwrap();
        let doorbell = Doorbell::direct(ours);
        Box::new(Session::new(number, shape(), memories, doorbell, event().unwrap()))
    }

    /// Lets the application write the tail of its first queue at will.
    fn be_hostile(&mut self) {
        let region: Region = self.application.map_writable().unwrap();
        let own = shape().application_own(own_words(region));
        self.tail = own.oob.into_iter().next();
    }
}

/// Sessions 1, 2, ... with endpoints, and the engine's parts that messages need.
pub(crate) struct World {
    files: Vec<Files>,
    pub(crate) sessions: SessionTable,
    pub(crate) notifier: Notifier,
    table: OobTable,
    pub(crate) apertures: ApertureTable,
    remote: RemoteTable,
    slot: u32,
}

fn address(session: u32, endpoint: u32) -> OobAddress {
    let ip = [192, 0, 2, session as u8].into();
    OobAddress { ip, protocol: 6, port: 7000 + endpoint as u16 }
}

impl World {
    pub(crate) fn new(sessions: u32) -> World {
        let files = (0..sessions).map(|_| Files::new()).collect();
        let mut world = World {
            files,
            sessions: SessionTable::default(),
            notifier: Notifier::new(&Values::default(), Relays::none().unwrap(), 64),
            table: OobTable::default(),
            apertures: ApertureTable::default(),
            remote: RemoteTable::new(None, 0),
            slot: 0,
        };
        world.serve((1..=sessions).collect());
        world
    }

    /// Begins a server with these sessions.
    pub(crate) fn serve(&mut self, numbers: Vec<u32>) {
        (self.sessions, self.table) = (SessionTable::default(), OobTable::default());
        self.notifier = Notifier::new(&Values::default(), Relays::none().unwrap(), 64);
        self.apertures = ApertureTable::default();
        for number in numbers {
            let mut session = self.files[number as usize - 1].session(number);
            (session.extras.oob.account.uid, session.extras.oob.reach) = (1000, Reach::Own);
            let key = self.sessions.reserve();
            for endpoint in 0..ENDPOINTS {
                let mut one = testing::endpoint(2000);
                one.oob = [address(number, endpoint)].into();
                self.table.insert(&one.oob, Destination { session: key, endpoint });
                session.put_in(endpoint, Box::new(one));
            }
            self.sessions.insert(key, session);
        }
        self.parts().restore();
    }

    pub(crate) fn parts(&mut self) -> OobParts<'_> {
        let (sessions, notifier) = (&mut self.sessions, &mut self.notifier);
        let (apertures, remote) = (&mut self.apertures, &mut self.remote);
        OobParts { sessions, notifier, apertures, remote }
    }

    pub(crate) fn at(&self, session: u32, endpoint: u32) -> Destination {
        Destination { session: self.sessions.key(session).unwrap(), endpoint }
    }

    pub(crate) fn send(&mut self, from: (u32, u32), kind: Kind, to: (u32, u32)) {
        let message = OobMessage::new(kind, address(to.0, to.1), &[]).unwrap();
        assert_eq!(self.send_any(from, &message), Ok(()));
    }

    fn send_any(&mut self, from: (u32, u32), message: &OobMessage) -> Result<(), Violation> {
        self.slot += 1;
        let place = self.at(from.0, from.1);
        let (session, slot) = (from.0, self.slot);
        let sender = Sender { from: place, session, queue_pair: 0, slot, may_repeat: false };
        let table = std::mem::take(&mut self.table);
        let outcome = table.send(&sender, message, &mut self.parts());
        self.table = table;
        outcome
    }

    pub(crate) fn state(&self, (session, endpoint): (u32, u32)) -> PeerState {
        let consumer = &self.files[session as usize - 1].consumers[endpoint as usize];
        PeerState::from_number(consumer.state() as u32).unwrap()
    }

    fn count(&self, (session, endpoint): (u32, u32), count: Count) -> u64 {
        self.files[session as usize - 1].consumers[endpoint as usize].counter(count as usize)
    }

    /// Takes all messages of an endpoint.
    pub(crate) fn taken(&mut self, (session, endpoint): (u32, u32)) -> Vec<Kind> {
        let consumer = &mut self.files[session as usize - 1].consumers[endpoint as usize];
        let next = || consumer.take().unwrap();
        let kind = |words| OobMessage::from_words(words).check().unwrap().0;
        std::iter::from_fn(next).map(kind).collect()
    }

    pub(crate) fn connect(&mut self, one: (u32, u32), listener: (u32, u32), other: (u32, u32)) {
        self.send(one, Kind::Request, listener);
        assert_eq!(self.state(one), PeerState::Requested);
        self.send(other, Kind::Accept, one);
        let states = (self.state(one), self.state(other));
        assert_eq!(states, (PeerState::Connected, PeerState::Connected));
    }
}

#[test]
fn a_next_server_goes_on_with_requests_and_connections() {
    let mut world = World::new(3);
    world.connect((1, 0), (2, 0), (2, 1));
    world.send((1, 1), Kind::Request, (2, 0));
    world.send((3, 0), Kind::Request, (2, 0));
    world.serve(vec![1, 2, 3]);
    assert_eq!(world.state((1, 0)), PeerState::Connected);
    assert_eq!(world.state((1, 1)), PeerState::Requested);
    // The request from before is answered, and the other one learns of the listener's end.
    world.send((2, 2), Kind::Accept, (1, 1));
    assert_eq!(world.state((1, 1)), PeerState::Connected);
    let listener = world.at(2, 0);
    world.parts().forget(listener, PeerState::Closed);
    assert_eq!(world.state((3, 0)), PeerState::Refused(Refused::NoEndpoint));
    assert_eq!(world.taken((2, 0)), [Kind::Request; 3]);
    assert_eq!(world.taken((1, 1)), [Kind::Accept]);
    // Of sessions that the next server does not have, the peers are gone.
    world.serve(vec![1, 3]);
    assert_eq!(world.state((1, 0)), PeerState::Gone);
    assert_eq!(world.state((1, 1)), PeerState::Gone);
    assert_eq!(world.state((3, 0)), PeerState::Refused(Refused::NoEndpoint));
    world.send((1, 0), Kind::Request, (3, 1));
    assert_eq!(world.state((1, 0)), PeerState::Requested, "it is free again");
}

/// The server is killed between the state of a peer and its connection: the close comes again.
#[test]
fn a_close_in_the_middle_is_done_again() {
    let mut world = World::new(2);
    world.connect((1, 0), (2, 0), (2, 1));
    let peer = world.at(2, 1);
    world.parts().set_state(peer, PeerState::Closed);
    world.serve(vec![1, 2]);
    assert_eq!(world.state((2, 1)), PeerState::Connected, "as if nothing had begun");
    world.send((1, 0), Kind::Close, (0, 0));
    assert_eq!((world.state((1, 0)), world.state((2, 1))), (PeerState::None, PeerState::Closed));
    // Killed after the peer's part, and before the closing endpoint's.
    world.connect((1, 0), (2, 0), (2, 1));
    world.parts().end(peer, PeerState::Closed);
    world.serve(vec![1, 2]);
    assert_eq!(world.state((1, 0)), PeerState::Closed);
    world.send((1, 0), Kind::Close, (0, 0));
    assert_eq!((world.state((1, 0)), world.state((2, 1))), (PeerState::None, PeerState::Closed));
}

/// The server is killed in an accept: with one side's connection, or with both, and no message.
#[test]
fn an_accept_in_the_middle_is_done_again() {
    for both in [false, true] {
        let mut world = World::new(2);
        world.send((1, 0), Kind::Request, (2, 0));
        let (one, other) = (world.at(1, 0), world.at(2, 1));
        let [requester, accepting] =
            [(1, 0), (2, 1)].map(|(session, endpoint)| EndpointName { session, endpoint });
        let mut parts = world.parts();
        parts.open_queue(other).unwrap().set_connection(Connection::Connected(requester));
        if both {
            parts.open_queue(one).unwrap().set_connection(Connection::Connected(accepting));
        }
        world.serve(vec![1, 2]);
        world.send((2, 1), Kind::Accept, (1, 0));
        assert_eq!(world.taken((1, 0)), [Kind::Accept]);
        let states = (world.state((1, 0)), world.state((2, 1)));
        assert_eq!(states, (PeerState::Connected, PeerState::Connected), "{both}");
        // A second one does not fit.
        world.send((2, 2), Kind::Accept, (1, 0));
        assert_eq!(world.state((2, 2)), PeerState::Refused(Refused::State));
    }
}

#[test]
fn the_last_message_is_handled_if_it_arrived() {
    for arrived in [false, true] {
        let mut world = World::new(2);
        world.send((1, 0), Kind::Plain, (2, 0));
        let slot = world.slot;
        if !arrived {
            // As if the index had not been published: the first word of the queue's line.
            let region: Region = world.files[1].server.map_writable().unwrap();
            let mut pages = shape().server_own(own_words(region));
            pages.oob[0].store(0, 0);
        }
        world.serve(vec![1, 2]);
        let key = world.at(1, 0).session;
        let session = world.sessions.get_mut(key).unwrap();
        assert_eq!(session.extras.oob.is_handled(0, slot, 16), arrived);
        assert!(!session.extras.oob.is_handled(0, slot + 1, 16));
    }
}

#[test]
fn an_impossible_tail_condemns_its_own_session() {
    let mut world = World::new(2);
    world.files[1].be_hostile();
    world.files[1].tail.as_mut().unwrap().store(0, 77);
    world.send((1, 0), Kind::Plain, (2, 0));
    assert_eq!(world.sessions.take_condemned(), Some(world.at(2, 0).session));
    assert_eq!(world.count((1, 0), Count::DroppedNoEndpoint), 1);
    world.send((1, 0), Kind::Plain, (2, 1));
    assert_eq!(world.count((1, 0), Count::DroppedNoEndpoint), 2, "it is about to end");
    assert_eq!(world.sessions.take_condemned(), None);
}

#[test]
fn the_policy_of_both_sides_decides() {
    use Reach::{All, None, Own};
    for (one, other, same_user, allowed) in [
        (Own, Own, true, true),
        (Own, All, true, true),
        (Own, None, true, false),
        (None, All, true, false),
        (All, All, false, true),
        (All, Own, false, false),
        (Own, Own, false, false),
    ] {
        let mut world = World::new(2);
        for (number, uid, reach) in [(1, 1000, one), (2, if same_user { 1000 } else { 2 }, other)] {
            let key = world.at(number, 0).session;
            let oob = &mut world.sessions.get_mut(key).unwrap().extras.oob;
            (oob.account.uid, oob.reach) = (uid, reach);
        }
        world.send((1, 0), Kind::Plain, (2, 0));
        world.send((1, 0), Kind::Request, (2, 0));
        let what = format!("{one:?} {other:?} {same_user}");
        assert_eq!(world.taken((2, 0)).len(), if allowed { 2 } else { 0 }, "{what}");
        let refused = PeerState::Refused(Refused::Policy);
        let state = if allowed { PeerState::Requested } else { refused };
        assert_eq!(world.state((1, 0)), state, "{what}");
        let dropped = world.count((1, 0), Count::DroppedPolicy);
        assert_eq!(dropped, if allowed { 0 } else { 2 }, "{what}");
    }
}

#[test]
fn a_malformed_message_is_a_violation() {
    let mut world = World::new(2);
    let valid = OobMessage::new(Kind::Plain, address(2, 0), b"x").unwrap();
    for wrong in [
        OobMessage { kind: 77, ..valid },
        OobMessage { uid: 1, ..valid },
        OobMessage { session: 1, ..valid },
        OobMessage { len: 65, ..valid },
    ] {
        assert_eq!(world.send_any((1, 0), &wrong), Err(Violation::Flags));
    }
    assert_eq!(world.taken((2, 0)), []);
    // An endpoint that is not open any more is no violation.
    let key = world.at(1, 0).session;
    world.sessions.get_mut(key).unwrap().take_out(0);
    assert_eq!(world.send_any((1, 0), &valid), Ok(()));
    assert_eq!(world.taken((2, 0)), []);
}

/// An intent of a predecessor's predecessor is not taken for a later message at the same index.
#[test]
fn an_intent_holds_for_one_successor() {
    let mut world = World::new(3);
    world.send((1, 0), Kind::Plain, (2, 0));
    let slot = world.slot;
    let region: Region = world.files[1].server.map_writable().unwrap();
    let mut pages = shape().server_own(own_words(region));
    pages.oob[0].store(0, 0);
    world.serve(vec![1, 2, 3]);
    world.send((3, 0), Kind::Plain, (2, 0));
    world.serve(vec![1, 2, 3]);
    let key = world.at(1, 0).session;
    assert!(!world.sessions.get_mut(key).unwrap().extras.oob.is_handled(0, slot, 16));
}

/// What was handled behind the last published message stays so.
#[test]
fn a_restart_takes_nothing_back() {
    let mut world = World::new(2);
    world.send((1, 0), Kind::Plain, (2, 0));
    let (key, slot) = (world.at(1, 0).session, world.slot);
    world.sessions.get_mut(key).unwrap().extras.oob.handled(0, slot + 3);
    world.serve(vec![1, 2]);
    let oob = &mut world.sessions.get_mut(key).unwrap().extras.oob;
    assert!((slot..=slot + 3).all(|slot| oob.is_handled(0, slot, 16)));
    assert!(!oob.is_handled(0, slot + 4, 16) && !oob.is_handled(0, slot, 16), "it goes on");
}

#[test]
fn a_reject_that_arrived_ends_the_request() {
    let mut world = World::new(2);
    world.send((1, 0), Kind::Request, (2, 0));
    world.send((2, 0), Kind::Reject, (1, 0));
    let one = world.at(1, 0);
    // As if the server had been killed behind the message.
    let listener = EndpointName { session: 2, endpoint: 0 };
    world.parts().open_queue(one).unwrap().set_connection(Connection::Requested(listener));
    world.parts().set_state(one, PeerState::Requested);
    world.serve(vec![1, 2]);
    assert_eq!(world.state((1, 0)), PeerState::Refused(Refused::Rejected));
    assert_eq!(world.taken((1, 0)), [Kind::Reject]);
}

/// A connected peer cannot fill the queue with answers, beyond its share.
#[test]
fn an_accept_is_for_one_request() {
    let mut world = World::new(2);
    world.connect((1, 0), (2, 0), (2, 1));
    for _ in 0..2 * SLOTS {
        world.send((2, 1), Kind::Accept, (1, 0));
        world.send((1, 1), Kind::Request, (2, 0));
    }
    assert_eq!(world.taken((1, 0)), [Kind::Accept]);
    assert_eq!(world.taken((2, 0)), [Kind::Request; 2]);
    assert_eq!(world.state((1, 0)), PeerState::Connected);
}

#[test]
fn a_stricter_policy_ends_connections_and_requests() {
    let mut world = World::new(3);
    for (number, uid) in [(1, 1), (2, 2), (3, 2)] {
        let key = world.at(number, 0).session;
        let oob = &mut world.sessions.get_mut(key).unwrap().extras.oob;
        (oob.account.uid, oob.reach) = (uid, Reach::All);
    }
    world.connect((1, 0), (2, 0), (2, 1));
    world.connect((3, 0), (2, 0), (2, 2));
    world.send((1, 1), Kind::Request, (2, 0));
    world.send((3, 1), Kind::Request, (2, 0));
    world.send((2, 3), Kind::Request, (1, 2));
    let key = world.at(2, 0).session;
    world.sessions.get_mut(key).unwrap().extras.oob.reach = Reach::Own;
    world.parts().enforce(key);
    let refused = PeerState::Refused(Refused::Policy);
    for ended in [(1, 0), (2, 1), (1, 1), (2, 3)] {
        assert_eq!(world.state(ended), refused, "{ended:?}");
    }
    for stays in [(3, 0), (2, 2)] {
        assert_eq!(world.state(stays), PeerState::Connected, "{stays:?}");
    }
    assert_eq!(world.state((3, 1)), PeerState::Requested);
}

/// The accept was in the middle, and its requester does not wait any more.
#[test]
fn an_accept_in_the_middle_may_find_nothing() {
    let mut world = World::new(2);
    world.send((1, 0), Kind::Request, (2, 0));
    let accepting = world.at(2, 1);
    let requester = EndpointName { session: 1, endpoint: 0 };
    let queue = world.parts().open_queue(accepting).map(|queue| {
        queue.set_connection(Connection::Connected(requester));
    });
    assert!(queue.is_some());
    world.serve(vec![1, 2]);
    world.send((1, 0), Kind::Close, (0, 0));
    world.send((2, 1), Kind::Accept, (1, 0));
    assert_eq!(world.state((2, 1)), PeerState::Refused(Refused::State));
    world.send((2, 1), Kind::Request, (1, 1));
    assert_eq!(world.state((2, 1)), PeerState::Requested, "it is free");
}

#[test]
fn any_message_leaves_both_ends_of_a_connection_alike() {
    let mut random = 1_u32;
    let mut next = |below: u32| {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (random >> 16) % below
    };
    let mut world = World::new(3);
    let kinds = [Kind::Request, Kind::Accept, Kind::Accept, Kind::Reject, Kind::Close, Kind::Plain];
    let mut connected = 0;
    for step in 0..20_000 {
        let from = (1 + next(3), next(ENDPOINTS));
        let to = (1 + next(3), next(ENDPOINTS));
        world.send(from, kinds[next(6) as usize], to);
        if next(50) == 0 {
            world.serve(vec![1, 2, 3]);
        }
        for place in (1..=3).flat_map(|one| (0..ENDPOINTS).map(move |endpoint| (one, endpoint))) {
            let at = world.at(place.0, place.1);
            let own = EndpointName { session: place.0, endpoint: place.1 };
            let connection = world.parts().open_queue(at).unwrap().connection;
            match connection {
                Connection::Connected(peer) => {
                    let (_, theirs) = world
                        .parts()
                        .peer_queue(peer)
                        .map(|(at, one)| (at, one.connection))
                        .unwrap();
                    assert_eq!(theirs, Connection::Connected(own), "step {step}");
                    assert_eq!(world.state(place), PeerState::Connected);
                    connected += 1;
                }
                Connection::Requested(peer) => {
                    let mut parts = world.parts();
                    let (_, listener) = parts.peer_queue(peer).unwrap();
                    let times = listener.requests.iter().filter(|one| **one == own).count();
                    assert_eq!(times, 1, "step {step}");
                    assert_eq!(world.state(place), PeerState::Requested);
                }
                Connection::None => {
                    let state = world.state(place);
                    let has_none = !matches!(state, PeerState::Connected | PeerState::Requested);
                    assert!(has_none, "step {step}: {state:?}");
                }
            }
            if next(2) == 0 {
                world.taken(place);
            }
        }
    }
    assert!(connected > 1000, "{connected}");
}
