//! The words of a session's apertures and tripwires.

use towpath_protocol::apertures::{Access, ApertureState};
use towpath_protocol::layout::{REQUEST_WORDS, SessionShape};
use towpath_protocol::requests::RequestFault;
use towpath_queue::tripwire::{self, Firing};
use towpath_queue::{OwnWords, PeerWords};

use super::commands::ImportedTripwire;
use super::memory::{Copying, EngineMemory};
use super::places::Places;

/// Bytes of the server's own memory that an aperture or a tripwire counts as, in the tables of the
/// engine and of the control thread.
pub const APERTURE_BYTES: usize = 256;

/// A memory that a session created.
#[derive(Debug)]
struct SessionMemory {
    memory: EngineMemory,
    tripwires: Places,
}

/// A word of the ledger that says how far a request is: valid, slot, bytes.
const PROGRESS_VALID: u64 = 1 << 63;
const PROGRESS_SLOT_SHIFT: u32 = 31;
const PROGRESS_BYTES: u64 = (1 << PROGRESS_SLOT_SHIFT) - 1;
const _: () = assert!(towpath_protocol::requests::MAX_MOVED_BYTES <= PROGRESS_BYTES);

/// A session's memories, the words of its apertures, tripwires and requests, and the tripwires that
/// it imported.
#[derive(Debug)]
pub(crate) struct SessionApertures {
    states: OwnWords,
    /// The requests of each endpoint.
    requests: OwnWords,
    /// How far the request at the head of each queue pair is.
    progress: OwnWords,
    /// For each queue pair, the slot of a request that waits for room at the other end, and since
    /// when.
    waits: Vec<(u32, u64)>,
    /// For each queue pair, the copies of its request.
    copying: Vec<Copying>,
    memories: Vec<Option<SessionMemory>>,
    firing: Option<Firing>,
    imported: Vec<Option<ImportedTripwire>>,
}

/// The words of a session's apertures that the server writes.
#[derive(Debug)]
pub(crate) struct ApertureWords {
    /// The states of the apertures.
    pub(crate) states: OwnWords,
    /// The tripwires that fired.
    pub(crate) fired: OwnWords,
    /// The requests of each endpoint.
    pub(crate) requests: OwnWords,
    /// How far the request at the head of each queue pair is.
    pub(crate) progress: OwnWords,
}

impl SessionApertures {
    /// Takes over the words of a session, new ones or those that a predecessor left. `armed`:
    /// `None` if the session has no tripwires in this lane.
    pub(crate) fn new(
        shape: &SessionShape,
        words: ApertureWords,
        armed: Option<PeerWords>,
    ) -> SessionApertures {
        let ApertureWords { states, fired, requests, progress } = words;
        let tripwires = shape.tripwires();
        let imported = if armed.is_some() { tripwires.tripwires() as usize } else { 0 };
        SessionApertures {
            states,
            requests,
            waits: vec![(0, 0); progress.len()],
            copying: std::iter::repeat_with(Copying::default).take(progress.len()).collect(),
            progress,
            memories: Vec::new(),
            firing: armed.map(|armed| Firing::new(tripwires, fired, armed)),
            imported: vec![None; imported],
        }
    }

    /// `true` if the session can have no apertures.
    pub(crate) fn is_empty(&self) -> bool {
        self.states.is_empty()
    }

    /// Enters a memory.
    pub(super) fn add_memory(&mut self, number: u32, memory: EngineMemory) {
        let number = number as usize;
        if self.memories.len() <= number {
            self.memories.resize_with(number + 1, || None);
        }
        self.memories[number] = Some(SessionMemory { memory, tripwires: Places::default() });
    }

    /// Removes a memory.
    pub(super) fn remove_memory(&mut self, number: u32) {
        if let Some(one) = self.memories.get_mut(number as usize) {
            *one = None;
        }
    }

    /// Returns a memory.
    pub(crate) fn memory(&self, number: u32) -> Option<&EngineMemory> {
        Some(&self.memories.get(number as usize)?.as_ref()?.memory)
    }

    /// Has the engine reach a memory in another way.
    pub(super) fn change_memory(&mut self, number: u32, memory: EngineMemory) {
        if let Some(one) = self.memories.get_mut(number as usize).and_then(Option::as_mut) {
            one.memory = memory;
        }
    }

    /// Takes the copies of a queue pair's request. [`SessionApertures::put_copying`] puts them back.
    pub(super) fn take_copying(&mut self, queue_pair: u32) -> Copying {
        self.copying.get_mut(queue_pair as usize).map(std::mem::take).unwrap_or_default()
    }

    /// Puts the copies of a queue pair's request back.
    pub(super) fn put_copying(&mut self, queue_pair: u32, copying: Copying) {
        if let Some(place) = self.copying.get_mut(queue_pair as usize) {
            *place = copying;
        }
    }

    /// Enters or removes a tripwire of the session.
    pub(super) fn set_tripwire(
        &mut self,
        number: u32,
        memory: u32,
        range: (u64, u64),
        access: Option<Access>,
    ) {
        let Some(Some(memory)) = self.memories.get_mut(memory as usize) else { return };
        match access {
            Some(access) => memory.tripwires.insert(number, range, access),
            None => memory.tripwires.remove(number, range),
        }
    }

    /// Fires the armed tripwires that an access to a memory touches, and passes them to `fired`.
    /// The access has taken place. Returns how many it touches, armed or not.
    pub(super) fn fire_touched(
        &mut self,
        memory: u32,
        accessed: (u64, u64),
        access: Access,
        mut fired: impl FnMut(u32),
    ) -> u64 {
        let memory = self.memories.get(memory as usize).and_then(Option::as_ref);
        let memory = memory.filter(|memory| !memory.tripwires.is_empty());
        let (Some(memory), Some(firing)) = (memory, &mut self.firing) else { return 0 };
        let (mut fenced, mut touched) = (None, 0);
        memory.tripwires.touched(accessed, access, |number| {
            touched += 1;
            if firing.fire(*fenced.get_or_insert_with(tripwire::fence), number) {
                fired(number);
            }
        });
        touched
    }

    /// Returns how many bytes of a request are moved.
    pub(super) fn progress(&self, queue_pair: u32, slot: u32) -> u64 {
        let word = self.progress.get(queue_pair as usize);
        let of_slot = PROGRESS_VALID | u64::from(slot) << PROGRESS_SLOT_SHIFT;
        if word & !PROGRESS_BYTES == of_slot { word & PROGRESS_BYTES } else { 0 }
    }

    /// Records how many bytes of a request are moved.
    pub(super) fn set_progress(&mut self, queue_pair: u32, slot: u32, bytes: u64) {
        let slot = u64::from(slot) << PROGRESS_SLOT_SHIFT;
        self.progress.publish(queue_pair as usize, PROGRESS_VALID | slot | bytes);
    }

    /// Returns since when a request waits for room at the other end: this call if it is the first.
    pub(super) fn waits_since(&mut self, queue_pair: u32, slot: u32, now: u64) -> u64 {
        let Some(waits) = self.waits.get_mut(queue_pair as usize) else { return 0 };
        if waits.0 != slot || waits.1 == 0 {
            *waits = (slot, now);
        }
        waits.1
    }

    /// Records that a request of an endpoint is complete, and all before it.
    pub(crate) fn complete(&mut self, endpoint: u32, sequence: u32) {
        self.requests.publish(endpoint as usize * REQUEST_WORDS, u64::from(sequence));
    }

    /// `true` if a request of an endpoint is complete, by its number: that of the last one, or
    /// before.
    pub(super) fn is_complete(&self, endpoint: u32, sequence: u32) -> bool {
        let last = self.requests.get(endpoint as usize * REQUEST_WORDS) as u32;
        last.wrapping_sub(sequence) < 1 << 31
    }

    /// Records that a request of an endpoint failed, unless one before it did.
    pub(crate) fn fail(&mut self, endpoint: u32, sequence: u32, fault: RequestFault) {
        if !self.has_failed(endpoint) {
            let word = u64::from(fault as u32) << 32 | u64::from(sequence);
            self.requests.publish(endpoint as usize * REQUEST_WORDS + 1, word);
        }
    }

    /// Returns why a request of an endpoint's connection failed.
    #[cfg(test)]
    pub(super) fn fault(&self, endpoint: u32) -> Option<RequestFault> {
        let word = self.requests.get(endpoint as usize * REQUEST_WORDS + 1);
        RequestFault::from_number((word >> 32) as u32)
    }

    /// `true` if a request of an endpoint's connection failed.
    pub(super) fn has_failed(&self, endpoint: u32) -> bool {
        self.requests.get(endpoint as usize * REQUEST_WORDS + 1) != 0
    }

    /// Begins with a new connection of an endpoint: no request has failed.
    pub(crate) fn connect(&mut self, endpoint: u32) {
        let word = endpoint as usize * REQUEST_WORDS + 1;
        if word < self.requests.len() && self.requests.get(word) != 0 {
            self.requests.publish(word, 0);
        }
    }

    /// Begins with a new endpoint.
    pub(crate) fn reset(&mut self, endpoint: u32) {
        let first = endpoint as usize * REQUEST_WORDS;
        if first + 1 < self.requests.len() {
            self.requests.store(first, 0);
            self.requests.store(first + 1, 0);
        }
    }

    /// Makes an aperture valid, as an earlier server left it.
    #[cfg(towpath_simulation)]
    pub(crate) fn set_valid(&mut self, number: u32) {
        self.set_state(number, ApertureState::Valid);
    }

    /// Returns the state of an aperture of the session.
    pub(super) fn state(&self, number: u32) -> ApertureState {
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
    pub(super) fn set_imported(&mut self, number: u32, tripwire: Option<ImportedTripwire>) {
        if let Some(one) = self.imported.get_mut(number as usize) {
            *one = tripwire;
        }
    }
}
