//! The words of a session's apertures and tripwires.

use towpath_protocol::apertures::ApertureState;
use towpath_protocol::layout::SessionShape;
use towpath_queue::tripwire::{self, Firing};
use towpath_queue::{OwnWords, PeerWords};

/// Bytes of the server's own memory that an aperture or a tripwire counts as, in the tables of the
/// engine and of the control thread.
pub(crate) const APERTURE_BYTES: usize = 256;

/// A tripwire that a session imported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImportedTripwire {
    /// The key of the aperture that it is in.
    pub(crate) key: u32,
    /// The session that set it, and its number there.
    pub(crate) owner: u32,
    pub(crate) tripwire: u32,
}

/// The words of a session's apertures and tripwires, and the tripwires that it imported.
#[derive(Debug)]
pub(crate) struct SessionApertures {
    states: OwnWords,
    firing: Option<Firing>,
    imported: Vec<Option<ImportedTripwire>>,
}

impl SessionApertures {
    /// Takes over the words of a session, new ones or those that a predecessor left. `armed`: `None`
    /// if the session has no tripwires in this lane.
    pub(crate) fn new(
        shape: &SessionShape,
        (states, fired): (OwnWords, OwnWords),
        armed: Option<PeerWords>,
    ) -> SessionApertures {
        let tripwires = shape.tripwires();
        let imported = if armed.is_some() { tripwires.tripwires() as usize } else { 0 };
        SessionApertures {
            states,
            firing: armed.map(|armed| Firing::new(tripwires, fired, armed)),
            imported: vec![None; imported],
        }
    }

    /// Returns the state of an aperture of the session.
    pub(crate) fn state(&self, number: u32) -> ApertureState {
        let number = number as usize;
        if number >= self.states.len() {
            return ApertureState::None;
        }
        ApertureState::from_word(self.states.get(number))
    }

    /// Sets the state of an aperture of the session.
    pub(super) fn set_state(&mut self, number: u32, state: ApertureState) {
        let number = number as usize;
        if number < self.states.len() {
            self.states.publish(number, state as u64);
        }
    }

    /// Fires a tripwire of the session if it is armed. Returns whether this call fired it.
    pub(super) fn fire(&mut self, fenced: tripwire::Fenced, number: u32) -> bool {
        self.firing.as_mut().is_some_and(|firing| firing.fire(fenced, number))
    }

    /// Returns an imported tripwire.
    pub(super) fn imported(&self, number: u32) -> Option<ImportedTripwire> {
        *self.imported.get(number as usize)?
    }

    /// Enters or removes an imported tripwire.
    pub(crate) fn set_imported(&mut self, number: u32, tripwire: Option<ImportedTripwire>) {
        if let Some(one) = self.imported.get_mut(number as usize) {
            *one = tripwire;
        }
    }
}
