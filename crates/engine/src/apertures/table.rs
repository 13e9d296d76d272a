//! All apertures, by key and by the endpoints of their connections.

use std::collections::HashMap;

use towpath_protocol::apertures::{Access, ApertureState};
use towpath_queue::tripwire;

use super::commands::{ApertureCommand, ApertureReport, Exporting};
use super::states::SessionApertures;
use crate::notifier::Notifier;
use crate::oob::connection::{Connection, EndpointName};
use crate::sessions::SessionTable;

/// What an aperture grants to requests.
#[derive(Clone, Copy, Debug)]
pub(super) struct Granted {
    /// The session that exports it, and its memory there.
    pub(super) owner: u32,
    pub(super) memory: u32,
    pub(super) offset: u64,
    pub(super) len: u64,
    pub(super) access: Access,
}

#[derive(Clone, Copy, Debug)]
struct Aperture {
    owner: EndpointName,
    number: u32,
    granted: Granted,
    peer: EndpointName,
    /// Its number in the session that imported it.
    imported: Option<u32>,
}

/// All apertures that may be used.
#[derive(Debug, Default)]
pub(crate) struct ApertureTable {
    by_key: HashMap<u32, Aperture>,
    /// The keys of the apertures of a connection, under both of its endpoints.
    by_endpoint: HashMap<EndpointName, Vec<u32>>,
    /// Connections that have ended, with what is left of their apertures.
    ending: Vec<Ending>,
}

/// The apertures of a connection that has ended: none of them can be used.
#[derive(Debug)]
struct Ending {
    keys: Vec<u32>,
    endpoints: [EndpointName; 2],
    /// Their new state in the first endpoint's session; the other session gets `Closed`.
    state: ApertureState,
}

/// Apertures of ended connections that the engine removes at once, and per poll iteration, so that
/// one connection's thousands do not delay other sessions.
const ENDED_PER_ITERATION: usize = 64;

impl ApertureTable {
    /// Executes a command. Returns what the control thread is told.
    pub(crate) fn execute(
        &mut self,
        command: ApertureCommand,
        sessions: &mut SessionTable,
        notifier: &mut Notifier,
    ) -> Option<ApertureReport> {
        use ApertureCommand as Do;
        match command {
            Do::AddMemory { session: owner, number, memory } => {
                of(sessions, owner)?.add_memory(number, memory);
            }
            Do::ChangeMemory { session: owner, number, memory } => {
                of(sessions, owner)?.change_memory(number, memory);
            }
            Do::RemoveMemory { session: owner, number } => {
                of(sessions, owner)?.remove_memory(number)
            }
            Do::SetTripwire { session: owner, number, memory, range, access } => {
                of(sessions, owner)?.set_tripwire(number, memory, range, access);
            }
            Do::ImportTripwire { session: importer, number, tripwire } => {
                of(sessions, importer)?.set_imported(number, tripwire);
            }
            Do::Export(exporting) => {
                let peer = self.export(&exporting, sessions);
                let Exporting { owner, number, .. } = *exporting;
                return Some(ApertureReport::Exported { session: owner.session, number, peer });
            }
            Do::Import { key, session, number } => {
                let entered = self.import(key, session, number, sessions);
                return Some(ApertureReport::Imported { session, number, entered });
            }
            Do::Revoke { key, session, number } => {
                self.revoke(key, session, number, sessions, notifier);
            }
            Do::ReleaseImport { key, session, number } => {
                self.release(key, session, number, sessions);
            }
        }
        None
    }

    /// Enters an aperture for the connection of its endpoint. Returns the other end; `None`, and
    /// enters nothing, if the endpoint has no connection, or another one than under the earlier
    /// server.
    fn export(
        &mut self,
        exporting: &Exporting,
        sessions: &mut SessionTable,
    ) -> Option<EndpointName> {
        let Exporting { key, owner, number, resumed_for, .. } = *exporting;
        let session = sessions.key(owner.session).and_then(|key| sessions.get_mut(key))?;
        let is_open = !session.is_closing() && session.receive.endpoints.takes_oob(owner.endpoint);
        let connection = session.extras.oob.queue(owner.endpoint).map(|queue| queue.connection());
        let peer = match connection {
            Some(Connection::Connected(peer)) if is_open => Some(peer),
            _ => None,
        };
        let peer = match resumed_for {
            None => peer,
            Some(before) => {
                let was_valid = session.extras.apertures.state(number) == ApertureState::Valid;
                peer.filter(|peer| was_valid && *peer == before)
            }
        };
        let state = match (peer, resumed_for) {
            (Some(_), _) => ApertureState::Valid,
            (None, None) => ApertureState::None,
            // What its owner, or the end of the connection, did before stays.
            (None, Some(_)) => match session.extras.apertures.state(number) {
                ApertureState::Valid => ApertureState::Closed,
                other => other,
            },
        };
        session.extras.apertures.set_state(number, state);
        let peer = peer?;
        let Exporting { memory, offset, len, access, .. } = *exporting;
        let granted = Granted { owner: owner.session, memory, offset, len, access };
        self.by_key.insert(key, Aperture { owner, number, granted, peer, imported: None });
        for name in [owner, peer] {
            self.by_endpoint.entry(name).or_default().push(key);
        }
        Some(peer)
    }

    /// Returns what an aperture grants to the requests of an endpoint; `None` if there is no such
    /// aperture for it.
    pub(super) fn granted(&self, key: u32, to: &EndpointName) -> Option<Granted> {
        let aperture =
            self.by_key.get(&key).filter(|one| one.peer == *to && self.is_connected(one));
        aperture.map(|one| one.granted)
    }

    /// `true` if the connection of an aperture has not ended.
    fn is_connected(&self, aperture: &Aperture) -> bool {
        self.ending.is_empty() || self.by_endpoint.contains_key(&aperture.owner)
    }

    /// Lets a session use an aperture that its endpoint was given. Returns `false` if there is no
    /// such aperture any more.
    fn import(&mut self, key: u32, session: u32, number: u32, sessions: &mut SessionTable) -> bool {
        let aperture = self.by_key.get(&key).filter(|one| one.peer.session == session);
        let is_valid = aperture.is_some_and(|one| self.is_connected(one));
        if let Some(aperture) = self.by_key.get_mut(&key).filter(|_| is_valid) {
            aperture.imported = Some(number);
        }
        let state = if is_valid { ApertureState::Valid } else { ApertureState::Closed };
        set_state(sessions, session, number, state);
        is_valid
    }

    /// Forgets that a session uses an aperture.
    fn release(&mut self, key: u32, session: u32, number: u32, sessions: &mut SessionTable) {
        let aperture = self.by_key.get_mut(&key).filter(|one| one.peer.session == session);
        if let Some(aperture) = aperture.filter(|one| one.imported == Some(number)) {
            aperture.imported = None;
        }
        set_state(sessions, session, number, ApertureState::None);
    }

    /// Revokes an aperture of a session. The importer may sleep until something happens there.
    fn revoke(
        &mut self,
        key: u32,
        session: u32,
        number: u32,
        sessions: &mut SessionTable,
        notifier: &mut Notifier,
    ) {
        // The owner's word comes first: if the server is killed in between, its successor does not
        // enter the aperture.
        set_state(sessions, session, number, ApertureState::Revoked);
        let aperture = self.by_key.get(&key).filter(|one| one.owner.session == session);
        let Some(&Aperture { peer, imported, .. }) = aperture else { return };
        self.remove(key, |_| ApertureState::Revoked, sessions);
        if imported.is_some()
            && let Some(key) = sessions.key(peer.session)
            && let Some(importer) = sessions.get_mut(key)
        {
            importer.extras.oob.tell_again(peer.endpoint);
            notifier.touch_oob(importer, key, peer.endpoint);
        }
    }

    /// Ends all apertures of an endpoint's connection. `state`: theirs from now on, in the session
    /// of the endpoint.
    pub(crate) fn end_connection(
        &mut self,
        endpoint: EndpointName,
        state: ApertureState,
        sessions: &mut SessionTable,
    ) {
        // Most connections have none.
        let Some(keys) = self.by_endpoint.remove(&endpoint) else { return };
        let Some(one) = keys.first().and_then(|key| self.by_key.get(key)) else { return };
        let other = if one.owner == endpoint { one.peer } else { one.owner };
        // Both ends of a connection have the same ones.
        self.by_endpoint.remove(&other);
        self.ending.push(Ending { keys, endpoints: [endpoint, other], state });
        self.remove_ended(sessions);
    }

    /// Removes apertures of ended connections. Returns their number.
    pub(crate) fn remove_ended(&mut self, sessions: &mut SessionTable) -> usize {
        let mut removed = 0;
        while removed < ENDED_PER_ITERATION
            && let Some(Ending { keys, endpoints: [first, _], state }) = self.ending.last_mut()
        {
            let (first, state) = (*first, *state);
            let Some(key) = keys.pop() else {
                self.ending.pop();
                continue;
            };
            let of = |name| if name == first { state } else { ApertureState::Closed };
            self.remove(key, of, sessions);
            removed += 1;
        }
        self.ending.retain(|one| !one.keys.is_empty());
        removed
    }

    /// `true` if apertures of an ended connection of one of these endpoints are left: the endpoint
    /// gets no other connection before they are removed.
    pub(crate) fn is_ending(&self, endpoints: [EndpointName; 2]) -> bool {
        let mut all = self.ending.iter().flat_map(|one| &one.endpoints);
        all.any(|one| endpoints.contains(one))
    }

    /// `true` if apertures of ended connections are left.
    pub(crate) fn has_ending(&self) -> bool {
        !self.ending.is_empty()
    }

    /// Fires the tripwire that an imported one stands for, if its owner armed it.
    pub(crate) fn trip(
        &self,
        session: u32,
        number: u32,
        sessions: &mut SessionTable,
        notifier: &mut Notifier,
    ) {
        let is_there = |key: u32| self.by_key.get(&key).is_some_and(|one| self.is_connected(one));
        let tripped = sessions.get(session).and_then(|one| one.extras.apertures.imported(number));
        let Some(tripped) = tripped.filter(|one| is_there(one.key)) else {
            return;
        };
        let Some(key) = sessions.key(tripped.owner) else { return };
        let Some(owner) = sessions.get_mut(key).filter(|one| !one.is_closing()) else { return };
        // The access came before the event that led here.
        if owner.extras.apertures.fire(tripwire::fence(), tripped.tripwire) {
            notifier.touch_tripwire(owner, key, tripped.tripwire);
        }
    }

    fn remove(
        &mut self,
        key: u32,
        state: impl Fn(EndpointName) -> ApertureState,
        sessions: &mut SessionTable,
    ) {
        let Some(aperture) = self.by_key.remove(&key) else { return };
        // The owner's word comes first, as in `revoke`.
        set_state(sessions, aperture.owner.session, aperture.number, state(aperture.owner));
        if let Some(number) = aperture.imported {
            set_state(sessions, aperture.peer.session, number, state(aperture.peer));
        }
        for name in [aperture.owner, aperture.peer] {
            if let Some(keys) = self.by_endpoint.get_mut(&name) {
                keys.retain(|one| *one != key);
                if keys.is_empty() {
                    self.by_endpoint.remove(&name);
                }
            }
        }
    }
}

fn set_state(sessions: &mut SessionTable, session: u32, number: u32, state: ApertureState) {
    if let Some(apertures) = of(sessions, session) {
        apertures.set_state(number, state);
    }
}

/// Returns the words and memories of a session.
fn of(sessions: &mut SessionTable, number: u32) -> Option<&mut SessionApertures> {
    let key = sessions.key(number)?;
    Some(&mut sessions.get_mut(key)?.extras.apertures)
}
