//! The tripwires that sessions set and import.

use std::os::fd::OwnedFd;

use towpath_engine::apertures::commands::{ApertureCommand, ImportedTripwire};
use towpath_protocol::apertures::{Access, MAX_OVERLAPPING, is_inside};
use towpath_protocol::message::{Created, ImportTripwire, Message, Refusal, SetTripwire};

use super::lookup::{NewObject, outside, refused};
use super::objects::{Entry, EntryWord, ObjectKind};
use crate::control::Control;
use crate::engines::Reply;
use crate::refusal::Refused;

impl Control {
    /// Sets a tripwire in a memory of the session.
    pub(crate) fn set_tripwire(&mut self, token: u64, set: &SetTripwire) -> Result<(), Refused> {
        let what = "set tripwire";
        let objects = &self.connections.apertures(token, what)?.objects;
        if let Some(number) = objects.repeated(set.sequence, Entry::TRIPWIRE) {
            self.answer(token, &Message::Created(Created { number, key: 0 }));
            return Ok(());
        }
        let NewObject { number, apertures, .. } =
            self.connections.new_object(token, ObjectKind::Tripwire, what)?;
        let memory = apertures.memory(set.memory, what)?;
        if Access::from_number(set.access).is_none() || set.reserved != 0 {
            return Err(refused(
                Refusal::Malformed,
                format!("{what}: unknown access, or a reserved field that is not 0"),
            ));
        }
        if !is_inside(set.offset, set.len, memory.len) {
            return Err(outside(what, set.offset, set.len, &memory));
        }
        let entry = Entry {
            kind: Entry::TRIPWIRE,
            sequence: set.sequence,
            memory: set.memory,
            access: set.access,
            offset: set.offset,
            len: set.len,
            ..Entry::default()
        };
        let others = apertures.objects.all(ObjectKind::Tripwire);
        let others = others.filter(|(_, one)| {
            one.kind == Entry::TRIPWIRE && one.memory == set.memory && one.overlaps(&entry)
        });
        if others.count() >= MAX_OVERLAPPING {
            let text = format!(
                "{what}: {MAX_OVERLAPPING} other tripwires overlap this range, which is the limit; release one"
            );
            return Err((Refusal::Limit, text));
        }
        apertures.objects.put(ObjectKind::Tripwire, number, entry);
        apertures.objects.record(ObjectKind::Tripwire, number);
        let command = set_tripwire_command(apertures.objects.session, number, &entry, true);
        self.command_first_lane(command, Reply::TripwireSet(token, number));
        Ok(())
    }

    /// Imports a tripwire that lies in an aperture which the session imported.
    pub(crate) fn import_tripwire(
        &mut self,
        token: u64,
        import: &ImportTripwire,
    ) -> Result<(), Refused> {
        let what = "import tripwire";
        let objects = &self.connections.apertures(token, what)?.objects;
        let repeated = objects.repeated(import.sequence, Entry::IMPORTED_TRIPWIRE);
        let number = match repeated {
            Some(number) => number,
            None => self.connections.new_object(token, ObjectKind::Tripwire, what)?.number,
        };
        if import.reserved != 0 {
            return Err(refused(
                Refusal::Malformed,
                "import tripwire: the reserved field must be 0",
            ));
        }
        let apertures = self.connections.apertures(token, what)?;
        let aperture = apertures.objects.get(ObjectKind::Aperture, import.aperture);
        let (entry, armed) = self.find_tripwire(import, aperture)?;
        let apertures = self.connections.apertures(token, what)?;
        if repeated.is_none() {
            apertures.objects.put(ObjectKind::Tripwire, number, entry);
            apertures.objects.record(ObjectKind::Tripwire, number);
        } else if apertures.objects.get(ObjectKind::Tripwire, number) != Some(entry) {
            return Err(refused(
                Refusal::Malformed,
                "import tripwire: an earlier request with this number imported another tripwire",
            ));
        }
        let session = apertures.objects.session;
        self.shared.tripwires.enter(session, number, &entry);
        let command = import_tripwire_command(session, number, Some(&entry));
        let created = Created { number, key: entry.other_session };
        // From the answer on, the application counts on the engine.
        self.command_first_lane(command, Reply::TripwireImported(token, created, armed));
        Ok(())
    }

    /// Finds the tripwire that a session asks to import, in the aperture that it imported. Returns its entry for the
    /// session, and the owner's armed words.
    fn find_tripwire(
        &self,
        import: &ImportTripwire,
        aperture: Option<Entry>,
    ) -> Result<(Entry, OwnedFd), Refused> {
        let what = "import tripwire";
        let aperture = aperture.filter(|one| one.kind == Entry::IMPORTED).ok_or_else(|| {
            let text =
                format!("{what}: the session has not imported an aperture {}", import.aperture);
            (Refusal::NotFound, text)
        })?;
        let unknown = || {
            let text = format!(
                "{what}: the aperture contains no tripwire {}; the owner sets one there, and sends its \
                 number",
                import.tripwire
            );
            (Refusal::NotFound, text)
        };
        let key = self.shared.exported.get(aperture.key).ok_or_else(unknown)?;
        let (exported, _) = self.exported(&key).ok_or_else(unknown)?;
        let theirs = self.connections.apertures_of(key.owner).ok_or_else(unknown)?;
        let tripwire = theirs.objects.get(ObjectKind::Tripwire, import.tripwire);
        let is_there = |one: &Entry| {
            let is_in = is_inside(one.offset.wrapping_sub(exported.offset), one.len, exported.len);
            one.kind == Entry::TRIPWIRE && one.memory == exported.memory && is_in
        };
        if !tripwire.as_ref().is_some_and(is_there) {
            return Err(unknown());
        }
        let armed = theirs
            .armed
            .as_ref()
            .ok_or_else(unknown)?
            .try_clone()
            .map_err(|error| refused(Refusal::Limit, format!("{what}: {error}")))?;
        let entry = Entry {
            kind: Entry::IMPORTED_TRIPWIRE,
            sequence: import.sequence,
            key: aperture.key,
            memory: import.aperture,
            other_session: key.owner,
            other: import.tripwire,
            ..Entry::default()
        };
        Ok((entry, armed))
    }

    /// Has the engine enter an imported tripwire, or remove it.
    pub(super) fn update_imported_tripwire(
        &mut self,
        session: u32,
        number: u32,
        entry: Option<&Entry>,
    ) {
        let command = import_tripwire_command(session, number, entry);
        self.command_first_lane(command, Reply::Nothing);
    }

    /// Removes a tripwire of a session from the sessions that imported it: its number is another
    /// one's soon.
    pub(super) fn forget_tripwire(&mut self, owner: u32, tripwire: u32) {
        for (session, number) in self.shared.tripwires.take(owner, tripwire) {
            let importer = self.connections.of_session_mut(session);
            let Some(apertures) = importer.and_then(|(_, one)| one.apertures_mut()) else {
                continue;
            };
            let objects = &mut apertures.objects;
            if let Some(entry) = objects.get_mut(ObjectKind::Tripwire, number) {
                entry.key = 0;
            }
            objects.record_word(ObjectKind::Tripwire, number, EntryWord::Key);
            self.update_imported_tripwire(session, number, None);
        }
    }
}

/// Returns the command by which the engine enters a tripwire of a session, or removes it.
pub(super) fn set_tripwire_command(
    session: u32,
    number: u32,
    entry: &Entry,
    is_set: bool,
) -> ApertureCommand {
    ApertureCommand::SetTripwire {
        session,
        number,
        memory: entry.memory,
        range: (entry.offset, entry.len),
        access: Access::from_number(entry.access).filter(|_| is_set),
    }
}

/// Returns the command by which the engine enters an imported tripwire, or removes it.
pub(super) fn import_tripwire_command(
    session: u32,
    number: u32,
    entry: Option<&Entry>,
) -> ApertureCommand {
    let tripwire = entry.map(|entry| ImportedTripwire {
        key: entry.key,
        owner: entry.other_session,
        tripwire: entry.other,
    });
    ApertureCommand::ImportTripwire { session, number, tripwire }
}
