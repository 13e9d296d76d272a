//! The requests for memories, apertures and tripwires, and their replies.

use std::os::fd::{AsFd, OwnedFd};

use towpath_memory::SharedFile;
use towpath_protocol::apertures::{Access, MAX_OVERLAPPING, Sharing, is_inside};
use towpath_protocol::layout::MAX_MEMORY_BYTES;
use towpath_protocol::message::{
    CreateMemory, Created, Export, Import, ImportTripwire, Imported, Message, RELEASE_APERTURE,
    RELEASE_MEMORY, RELEASE_TRIPWIRE, Refusal, Release, SetTripwire,
};

use super::objects::{Entry, EntryWord, What};
use super::tables::{ApertureTables, Creating, ExportedAperture, MemoryFile, memory_name, random};
use crate::connection::{Progress, Refused};
use crate::control::Control;
use crate::engine::apertures::commands::{
    ApertureCommand, ApertureReport, Exporting, ImportedTripwire,
};
use crate::engine::commands::Command;
use crate::engine::oob::connection::EndpointName;
use crate::engines::Reply;
use crate::slow::Job;
use crate::worker::link::Packet;
use crate::worker::wire::command;

/// The most memories of a user, and of a server. Each takes a few descriptors of the server and of
/// its keeper.
const MEMORIES_PER_USER: usize = 256;
const MEMORIES: usize = 4096;

fn refused(refusal: Refusal, text: impl std::fmt::Display) -> Refused {
    (refusal, text.to_string())
}

impl Control {
    /// Returns the tables of a live session that may have apertures.
    ///
    /// # Errors
    /// Fails with the line that the server sends to the peer.
    fn apertures(&mut self, token: u64, what: &str) -> Result<&mut ApertureTables, Refused> {
        let connection = self.connections.get_mut(token);
        let lives = connection.filter(|one| matches!(one.progress, Progress::Lives));
        let Some(connection) = lives else {
            let text = format!("{what}: there is no session on this connection");
            return Err((Refusal::State, text));
        };
        connection.apertures.as_deref_mut().ok_or_else(|| {
            let text = format!(
                "{what}: the session has no apertures; attach with Options::apertures, and with \
                 Options::tripwires for tripwires"
            );
            (Refusal::State, text)
        })
    }

    /// Returns the number for a new object of a session, and its tables.
    fn number_for(
        &mut self,
        token: u64,
        kind: What,
        what: &str,
    ) -> Result<(u32, &mut ApertureTables), Refused> {
        let apertures = self.apertures(token, what)?;
        let number = apertures.objects.free(kind).ok_or_else(|| {
            let text = format!("{what}: the session has as many as it asked for; release one (an aperture that has ended counts until it is revoked or released)");
            (Refusal::Limit, text)
        })?;
        Ok((number, apertures))
    }

    /// Gives the commands of apertures to the first lane's engine, which has all connections.
    pub(super) fn command_first_lane(&mut self, command: ApertureCommand, reply: Reply) {
        self.parts.engines.command_each(vec![Command::Aperture(command)], reply);
    }

    /// Has the worker of the application's user allocate a new memory.
    pub(crate) fn create_memory(
        &mut self,
        token: u64,
        create: &CreateMemory,
    ) -> Result<(), Refused> {
        let what = "create memory";
        let objects = &self.apertures(token, what)?.objects;
        if let Some(number) = objects.repeated(create.sequence, Entry::MEMORY) {
            self.answer_memory(token, number);
            return Ok(());
        }
        let (number, apertures) = self.number_for(token, What::Memory, what)?;
        if apertures.creating.is_some() {
            // A worker passes no request on before the last one is answered, unless it is subverted.
            return Err(refused(Refusal::State, format!("{what}: another one is being created")));
        }
        if Sharing::from_number(create.sharing).is_none() {
            return Err(refused(Refusal::Malformed, format!("{what}: unknown sharing")));
        }
        let most = MAX_MEMORY_BYTES as u64;
        if create.bytes == 0 || create.bytes > most {
            let text = format!("{what}: {} bytes; 1 to {most} are possible", create.bytes);
            return Err((Refusal::Malformed, text));
        }
        let failed = |error| refused(Refusal::Limit, format!("{what}: {error}"));
        let bytes = (create.bytes as usize).next_multiple_of(towpath_memory::PAGE_BYTES);
        self.check_memories(token)?;
        let Some(connection) = self.connections.get(token) else { return Ok(()) };
        let limits = self.parts.policy.limits(&connection.terms);
        let charged = self.connections.charge_bytes(token, &limits, bytes);
        charged.map_err(|text| refused(Refusal::Limit, format!("{what}: {text}")))?;
        let file = SharedFile::create("towpath-memory", bytes).and_then(|file| {
            file.seal_seals()?;
            let theirs = file.as_fd().try_clone_to_owned()?;
            Ok((file, theirs, random::<8>()?))
        });
        let (file, theirs, id) = file.map_err(|error| {
            self.connections.take_bytes(token, bytes);
            failed(error)
        })?;
        let entry = Entry {
            kind: Entry::MEMORY,
            sequence: create.sequence,
            access: create.sharing,
            offset: u64::from_ne_bytes(id),
            len: bytes as u64,
            ..Entry::default()
        };
        self.apertures(token, what)?.creating =
            Some(Creating { number, entry, file, mapped: None });
        self.tell_worker(token, Packet::new(command::ALLOCATE, token, 0).with(vec![theirs]));
        Ok(())
    }

    /// Checks that a user may have one more memory: each takes descriptors of the server and its
    /// keeper.
    fn check_memories(&self, token: u64) -> Result<(), Refused> {
        let uid = self.connections.get(token).map(|connection| connection.account.uid);
        let (mut theirs, mut all) = (0, self.released_memories.len());
        for one in self.connections.sessions() {
            let count = one.apertures.as_ref().map_or(0, |one| one.files.len());
            all += count;
            theirs += if Some(one.account.uid) == uid { count } else { 0 };
        }
        let text = if theirs >= MEMORIES_PER_USER {
            format!("your user has {theirs} memories, which is the limit; release one")
        } else if all >= MEMORIES {
            format!("this server has {all} memories, which is the limit; release one")
        } else {
            return Ok(());
        };
        Err((Refusal::Limit, format!("create memory: {text}")))
    }

    /// Maps and populates a memory that the worker has allocated.
    pub(crate) fn memory_allocated(&mut self, token: u64, outcome: Result<Vec<OwnedFd>, i32>) {
        let Some(connection) = self.connections.get_mut(token) else { return };
        let uid = connection.account.uid;
        let Some(apertures) = &mut connection.apertures else { return };
        let Some(creating) = &mut apertures.creating else { return };
        let name = memory_name(apertures.objects.session, creating.entry.offset);
        let outcome = outcome.map_err(std::io::Error::from_raw_os_error).and_then(|pins| {
            let mapped = creating.file.map_common(true)?;
            mapped.mapping().keep_from_children()?;
            self.parts.store.put(&name, creating.file.as_fd())?;
            pins.iter().try_for_each(|pin| self.parts.store.put(&name, pin.as_fd()))?;
            Ok(mapped)
        });
        match outcome {
            Ok(mapped) => {
                let mapping = mapped.mapping().clone();
                creating.mapped = Some(mapped);
                self.slow.push(uid, Job::PopulateMemory { token, mapping });
            }
            Err(error) => {
                // No application has the file.
                let bytes = creating.entry.len as usize;
                apertures.creating = None;
                self.parts.store.remove(&name);
                self.connections.take_bytes(token, bytes);
                let text = format!("create memory: {error}");
                self.refuse(token, &(Refusal::Limit, text));
            }
        }
    }

    /// Enters a memory that is populated.
    pub(crate) fn memory_populated(&mut self, token: u64) {
        let Some(connection) = self.connections.get_mut(token) else { return };
        let Some(apertures) = &mut connection.apertures else { return };
        let Some(Creating { number, entry, file, mapped: Some(mapped) }) =
            apertures.creating.take()
        else {
            return;
        };
        let session = apertures.objects.session;
        apertures.objects.put(What::Memory, number, entry);
        apertures.objects.record(What::Memory, number);
        apertures.files.insert(number, MemoryFile { file, mapped: mapped.clone() });
        self.lock_memory(&mapped);
        let add = ApertureCommand::AddMemory { session, number, memory: mapped };
        self.command_first_lane(add, Reply::MemoryCreated(token, number));
    }

    /// Hands over a memory.
    pub(crate) fn answer_memory(&mut self, token: u64, number: u32) {
        let Ok(apertures) = self.apertures(token, "create memory") else { return };
        let Some(memory) = apertures.files.get(&number) else { return };
        match memory.file.as_fd().try_clone_to_owned() {
            Ok(file) => {
                let created = Message::Created(Created { number, key: 0 });
                self.answer_with(token, &created, vec![file], 0);
            }
            Err(error) => {
                let text = format!("create memory: {error}");
                self.refuse(token, &(Refusal::Limit, text));
            }
        }
    }

    /// Has the engine enter an aperture.
    pub(crate) fn export(&mut self, token: u64, export: &Export) -> Result<(), Refused> {
        let what = "export";
        let objects = &self.apertures(token, what)?.objects;
        if let Some(number) = objects.repeated(export.sequence, Entry::EXPORTED) {
            self.answer_export(token, number);
            return Ok(());
        }
        let (number, apertures) = self.number_for(token, What::Aperture, what)?;
        let entry = apertures.read_export(export)?;
        let session = apertures.objects.session;
        let connection = self.connections.get(token);
        let endpoint =
            connection.and_then(|one| one.endpoints.get(export.endpoint as usize)?.as_ref());
        if !endpoint.is_some_and(|one| one.out_of_band && !one.revoked) {
            let text = format!(
                "{what}: there is no endpoint {} that takes out-of-band messages; open one with \
                 Rule::out_of_band, and connect it",
                export.endpoint
            );
            return Err((Refusal::NotFound, text));
        }
        let key = self.new_key().map_err(|error| {
            refused(Refusal::Limit, format!("{what}: no random number for its key: {error}"))
        })?;
        let entry = Entry { key, ..entry };
        let Some(connection) = self.connections.get_mut(token) else { return Ok(()) };
        let Some(apertures) = &mut connection.apertures else { return Ok(()) };
        apertures.objects.put(What::Aperture, number, entry);
        self.exported_apertures
            .insert(key, ExportedAperture { owner: session, number, imported: None });
        let owner = EndpointName { session, endpoint: export.endpoint };
        let exporting = exporting(owner, number, &entry, None);
        self.command_first_lane(
            ApertureCommand::Export(Box::new(exporting)),
            Reply::Exported(token, number),
        );
        Ok(())
    }

    /// Returns a key that no aperture has.
    fn new_key(&self) -> std::io::Result<u32> {
        loop {
            let key = u32::from_ne_bytes(random()?);
            if key != 0 && !self.exported_apertures.contains_key(&key) {
                return Ok(key);
            }
        }
    }

    /// Records what became of a command for an aperture.
    pub(crate) fn aperture_report(&mut self, report: &ApertureReport) {
        match *report {
            ApertureReport::Exported { session, number, peer } => {
                self.aperture_entered(session, number, peer);
            }
            ApertureReport::Imported { session, number, entered } => {
                self.aperture_imported(session, number, entered);
            }
        }
    }

    /// Records that the engine entered an aperture for an endpoint, or did not.
    fn aperture_entered(&mut self, session: u32, number: u32, peer: Option<EndpointName>) {
        let Some(token) = self.connections.token_of(session) else { return };
        let connection = self.connections.get_mut(token);
        let Some(apertures) = connection.and_then(|one| one.apertures.as_mut()) else { return };
        let Some(entry) = apertures.objects.get_mut(What::Aperture, number) else { return };
        let peer = peer.unwrap_or(EndpointName { session: 0, endpoint: 0 });
        (entry.other_session, entry.other) = (peer.session, peer.endpoint);
    }

    /// Answers a request to export, once the engine has entered the aperture.
    pub(crate) fn answer_export(&mut self, token: u64, number: u32) {
        let Ok(apertures) = self.apertures(token, "export") else { return };
        let Some(entry) = apertures.objects.get(What::Aperture, number) else { return };
        match apertures.check_peer(&entry) {
            Ok(()) => {
                apertures.objects.record(What::Aperture, number);
                let created = Created { number, key: entry.key };
                self.answer(token, &Message::Created(created));
            }
            Err(refused) => {
                if let Some(revoke) = self.revoke_aperture(token, number) {
                    self.command_first_lane(revoke, Reply::Nothing);
                }
                self.refuse(token, &refused);
            }
        }
    }

    /// Has the engine let a session use an aperture that its endpoint was given.
    pub(crate) fn import(&mut self, token: u64, import: &Import) -> Result<(), Refused> {
        let what = "import";
        let objects = &self.apertures(token, what)?.objects;
        if let Some(number) = objects.repeated(import.sequence, Entry::IMPORTED) {
            self.answer_import(token, number);
            return Ok(());
        }
        let (number, apertures) = self.number_for(token, What::Aperture, what)?;
        if import.reserved != 0 {
            return Err(refused(Refusal::Malformed, "import: the reserved field must be 0"));
        }
        let session = apertures.objects.session;
        let unknown = || {
            let text = "import: no aperture has this key and is for this endpoint's connection; the \
                        peer exports one, and sends its key";
            refused(Refusal::NotFound, text)
        };
        let key = *self.exported_apertures.get(&import.key).ok_or_else(unknown)?;
        let (exported, memory) = self.exported(&key).ok_or_else(unknown)?;
        if (exported.other_session, exported.other) != (session, import.endpoint) {
            return Err(unknown());
        }
        if key.imported.is_some() {
            let text = "import: the aperture is imported already; use it, or release it first";
            return Err(refused(Refusal::InUse, text));
        }
        let is_mapped = Sharing::from_number(memory.access).is_some_and(Sharing::is_mapped);
        let entry = Entry {
            kind: Entry::IMPORTED,
            sequence: import.sequence,
            key: import.key,
            endpoint: import.endpoint,
            access: exported.access,
            other_session: key.owner,
            other: key.number,
            offset: memory.offset,
            len: if is_mapped { memory.len } else { 0 },
            ..Entry::default()
        };
        self.charge_import(token, &entry)?;
        self.apertures(token, what)?.objects.put(What::Aperture, number, entry);
        if let Some(key) = self.exported_apertures.get_mut(&import.key) {
            key.imported = Some((session, number));
        }
        let command = ApertureCommand::Import { key: import.key, session, number };
        self.command_first_lane(command, Reply::Imported(token, number));
        Ok(())
    }

    /// Returns the tables of a session, also if its application has yet to claim it.
    fn tables_of(&self, session: u32) -> Option<&ApertureTables> {
        let token = self.connections.token_of(session)?;
        self.connections.get(token)?.apertures.as_deref()
    }

    /// Returns an exported aperture, and its memory.
    pub(super) fn exported(&self, key: &ExportedAperture) -> Option<(Entry, Entry)> {
        let apertures = self.tables_of(key.owner)?;
        let exported = apertures.objects.get(What::Aperture, key.number)?;
        let memory = apertures.objects.get(What::Memory, exported.memory)?;
        (exported.kind == Entry::EXPORTED).then_some((exported, memory))
    }

    /// Counts the bytes of a memory that a session is about to map against its limits, unless it
    /// has the memory mapped already.
    fn charge_import(&mut self, token: u64, imported: &Entry) -> Result<(), Refused> {
        let Some(connection) = self.connections.get(token) else { return Ok(()) };
        let limits = self.parts.policy.limits(&connection.terms);
        let bytes = self.apertures(token, "import")?.map(imported);
        let charged = self.connections.charge_bytes(token, &limits, bytes);
        charged.map_err(|text| {
            if let Ok(apertures) = self.apertures(token, "import") {
                apertures.unmap(imported);
            }
            refused(Refusal::Limit, format!("import: {text}"))
        })
    }

    /// Records that the engine does not let a session use an aperture: it ended meanwhile.
    fn aperture_imported(&mut self, session: u32, number: u32, entered: bool) {
        let Some(token) = self.connections.token_of(session).filter(|_| !entered) else { return };
        let connection = self.connections.get_mut(token);
        let Some(apertures) = connection.and_then(|one| one.apertures.as_mut()) else { return };
        if let Some(entry) = apertures.objects.get_mut(What::Aperture, number) {
            entry.access = 0;
        }
    }

    /// Answers a request to import, once the engine has let the session use the aperture.
    pub(crate) fn answer_import(&mut self, token: u64, number: u32) {
        if let Err(refused) = self.try_answer_import(token, number) {
            if let Some(release) = self.release_import(token, number) {
                self.command_first_lane(release, Reply::Nothing);
            }
            self.refuse(token, &refused);
        }
    }

    fn try_answer_import(&mut self, token: u64, number: u32) -> Result<(), Refused> {
        let gone = || refused(Refusal::State, "import: the aperture was revoked meanwhile");
        let apertures = self.apertures(token, "import")?;
        let entry = apertures.objects.get(What::Aperture, number);
        let entry = entry.filter(|one| one.access != 0).ok_or_else(gone)?;
        let key = *self.exported_apertures.get(&entry.key).ok_or_else(gone)?;
        let (exported, memory) = self.exported(&key).ok_or_else(gone)?;
        let sharing = Sharing::from_number(memory.access).unwrap_or(Sharing::Requests);
        let mut handed = Vec::new();
        if sharing.is_mapped() {
            let owner = self.tables_of(key.owner).ok_or_else(gone)?;
            let file = owner.files.get(&exported.memory);
            let file = &file.ok_or_else(gone)?.file;
            let writes = Access::from_number(exported.access).is_some_and(Access::writes);
            let descriptor = match writes {
                true => file.as_fd().try_clone_to_owned(),
                false => file.read_only(),
            };
            let failed = |error| refused(Refusal::Limit, format!("import: {error}"));
            handed.push(descriptor.map_err(failed)?);
        }
        let imported = Imported {
            offset: exported.offset,
            len: exported.len,
            memory: memory.offset,
            number,
            access: exported.access,
            sharing: memory.access,
            reserved: 0,
        };
        self.apertures(token, "import")?.objects.record(What::Aperture, number);
        self.answer_with(token, &Message::Imported(imported), handed, 0);
        Ok(())
    }

    /// Sets a tripwire in a memory of the session.
    pub(crate) fn set_tripwire(&mut self, token: u64, set: &SetTripwire) -> Result<(), Refused> {
        let what = "set tripwire";
        let objects = &self.apertures(token, what)?.objects;
        if let Some(number) = objects.repeated(set.sequence, Entry::TRIPWIRE) {
            self.answer(token, &Message::Created(Created { number, key: 0 }));
            return Ok(());
        }
        let (number, apertures) = self.number_for(token, What::Tripwire, what)?;
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
        let others = apertures.objects.all(What::Tripwire);
        let others = others.filter(|(_, one)| {
            one.kind == Entry::TRIPWIRE && one.memory == set.memory && one.overlaps(&entry)
        });
        if others.count() >= MAX_OVERLAPPING {
            let text = format!(
                "{what}: {MAX_OVERLAPPING} other tripwires overlap this range, which is the limit; release one"
            );
            return Err((Refusal::Limit, text));
        }
        apertures.objects.put(What::Tripwire, number, entry);
        apertures.objects.record(What::Tripwire, number);
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
        let objects = &self.apertures(token, what)?.objects;
        let repeated = objects.repeated(import.sequence, Entry::IMPORTED_TRIPWIRE);
        let (number, apertures) = match repeated {
            Some(number) => (number, self.apertures(token, what)?),
            None => self.number_for(token, What::Tripwire, what)?,
        };
        if import.reserved != 0 {
            return Err(refused(
                Refusal::Malformed,
                "import tripwire: the reserved field must be 0",
            ));
        }
        let aperture = apertures.objects.get(What::Aperture, import.aperture);
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
        let key = self.exported_apertures.get(&aperture.key).copied().ok_or_else(unknown)?;
        let (exported, _) = self.exported(&key).ok_or_else(unknown)?;
        let theirs = self.tables_of(key.owner).ok_or_else(unknown)?;
        let tripwire = theirs.objects.get(What::Tripwire, import.tripwire);
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
        let apertures = self.apertures(token, what)?;
        if repeated.is_none() {
            apertures.objects.put(What::Tripwire, number, entry);
            apertures.objects.record(What::Tripwire, number);
        }
        let command = import_tripwire_command(apertures.objects.session, number, Some(&entry));
        let created = Created { number, key: key.owner };
        // From the answer on, the application counts on the engine.
        self.command_first_lane(command, Reply::TripwireImported(token, created, armed));
        Ok(())
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
}

/// Returns an aperture as the engine enters it. `resumed_for`: the endpoint that it was for under
/// an earlier server.
pub(super) fn exporting(
    owner: EndpointName,
    number: u32,
    entry: &Entry,
    resumed_for: Option<EndpointName>,
) -> Exporting {
    Exporting {
        key: entry.key,
        owner,
        number,
        memory: entry.memory,
        offset: entry.offset,
        len: entry.len,
        access: Access::from_number(entry.access).unwrap_or(Access::Read),
        resumed_for,
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
fn import_tripwire_command(session: u32, number: u32, entry: Option<&Entry>) -> ApertureCommand {
    let tripwire = entry.map(|entry| ImportedTripwire {
        key: entry.key,
        owner: entry.other_session,
        tripwire: entry.other,
    });
    ApertureCommand::ImportTripwire { session, number, tripwire }
}

impl Control {
    /// Releases an object of a session.
    pub(crate) fn release_object(&mut self, token: u64, release: Release) -> Result<(), Refused> {
        let what = "release";
        let Release { kind, number } = release;
        let none =
            |name| (Refusal::NotFound, format!("{what}: the session has no {name} {number}"));
        let apertures = self.apertures(token, what)?;
        let session = apertures.objects.session;
        let command = match kind {
            RELEASE_MEMORY => {
                apertures.objects.get(What::Memory, number).ok_or_else(|| none("memory"))?;
                apertures.check_unused(number)?;
                let command = ApertureCommand::RemoveMemory { session, number };
                self.command_first_lane(command, Reply::MemoryRemoved(token, number));
                return Ok(());
            }
            RELEASE_APERTURE => {
                let entry = apertures.objects.get(What::Aperture, number);
                match entry.ok_or_else(|| none("aperture"))?.kind {
                    Entry::EXPORTED => self.revoke_aperture(token, number),
                    _ => self.release_import(token, number),
                }
            }
            RELEASE_TRIPWIRE => {
                let entry = apertures.objects.remove(What::Tripwire, number);
                let entry = entry.ok_or_else(|| none("tripwire"))?;
                if entry.kind == Entry::TRIPWIRE {
                    self.forget_tripwire(session, number);
                    Some(set_tripwire_command(session, number, &entry, false))
                } else {
                    Some(import_tripwire_command(session, number, None))
                }
            }
            _ => return Err(refused(Refusal::Malformed, "release: unknown kind of object")),
        };
        match command {
            // The answer follows the engine's part.
            Some(command) => self.command_first_lane(command, Reply::Done(token)),
            None => self.answer(token, &Message::Done),
        }
        Ok(())
    }

    /// Removes a tripwire of a session from the sessions that imported it: its number is another
    /// one's soon.
    fn forget_tripwire(&mut self, owner: u32, tripwire: u32) {
        let theirs = |one: &Entry| {
            one.kind == Entry::IMPORTED_TRIPWIRE
                && (one.other_session, one.other) == (owner, tripwire)
        };
        for token in self.connections.of_all() {
            let connection = self.connections.get_mut(token);
            let Some(apertures) = connection.and_then(|one| one.apertures.as_mut()) else {
                continue;
            };
            let objects = &mut apertures.objects;
            let session = objects.session;
            let numbers = objects.all(What::Tripwire).filter(|(_, one)| theirs(one));
            for number in numbers.map(|(number, _)| number).collect::<Vec<_>>() {
                if let Some(entry) = objects.get_mut(What::Tripwire, number) {
                    entry.key = 0;
                }
                objects.record_word(What::Tripwire, number, EntryWord::Key);
                let command = Command::Aperture(import_tripwire_command(session, number, None));
                self.parts.engines.command_each(vec![command], Reply::Nothing);
            }
        }
    }

    /// Releases a memory that the engine has removed.
    pub(crate) fn release_memory(&mut self, token: u64, number: u32) {
        let Some(connection) = self.connections.get_mut(token) else { return };
        let by = (connection.worker, connection.account.uid);
        let Some(apertures) = &mut connection.apertures else { return };
        let session = apertures.objects.session;
        let entry = apertures.objects.remove(What::Memory, number);
        let file = apertures.files.remove(&number);
        if let (Some(entry), Some(file)) = (entry, file) {
            self.connections.take_bytes(token, entry.len as usize);
            self.dispose_of_memory(session, entry.offset, file, by);
        }
    }

    /// Forgets an aperture that a session exports. Returns the command that revokes it.
    fn revoke_aperture(&mut self, token: u64, number: u32) -> Option<ApertureCommand> {
        let apertures = self.apertures(token, "release").ok()?;
        let session = apertures.objects.session;
        let entry = apertures.objects.remove(What::Aperture, number)?;
        self.exported_apertures.remove(&entry.key);
        Some(ApertureCommand::Revoke { key: entry.key, session, number })
    }

    /// Forgets an aperture that a session imported. Takes the memory's bytes off the session's if
    /// that was its last aperture there. Returns the command by which the engine forgets it.
    fn release_import(&mut self, token: u64, number: u32) -> Option<ApertureCommand> {
        let apertures = self.apertures(token, "release").ok()?;
        let session = apertures.objects.session;
        let entry = apertures.objects.get(What::Aperture, number)?;
        let entry = Some(entry).filter(|one| one.kind == Entry::IMPORTED)?;
        apertures.objects.remove(What::Aperture, number);
        if let Some(key) = self.exported_apertures.get_mut(&entry.key) {
            key.imported = key.imported.filter(|one| *one != (session, number));
        }
        let bytes = self.apertures(token, "release").map_or(0, |one| one.unmap(&entry));
        self.connections.take_bytes(token, bytes);
        self.free_if_unmapped(entry.offset);
        Some(ApertureCommand::ReleaseImport { key: entry.key, session, number })
    }
}

fn outside(what: &str, offset: u64, len: u64, memory: &Entry) -> Refused {
    let bytes = memory.len;
    let text = format!(
        "{what}: {len} bytes from byte {offset} on; the memory has {bytes} bytes, and a range must not be empty"
    );
    (Refusal::Malformed, text)
}

impl ApertureTables {
    /// Returns a memory of the session.
    fn memory(&self, number: u32, what: &str) -> Result<Entry, Refused> {
        self.objects.get(What::Memory, number).ok_or_else(|| {
            (Refusal::NotFound, format!("{what}: the session has no memory {number}"))
        })
    }

    /// Checks that no aperture and no tripwire is in a memory.
    fn check_unused(&self, number: u32) -> Result<(), Refused> {
        let mut apertures = self.objects.all(What::Aperture);
        let mut tripwires = self.objects.all(What::Tripwire);
        let what = if apertures.any(|(_, one)| one.exports(number)) {
            "exported apertures; revoke them"
        } else if tripwires.any(|(_, one)| one.kind == Entry::TRIPWIRE && one.memory == number) {
            "tripwires; release them"
        } else {
            return Ok(());
        };
        Err((Refusal::State, format!("release: memory {number} has {what} first")))
    }

    /// Reads a request to export.
    fn read_export(&self, export: &Export) -> Result<Entry, Refused> {
        let what = "export";
        let memory = self.memory(export.memory, what)?;
        let Some(access) = Access::from_number(export.access) else {
            return Err(refused(Refusal::Malformed, "export: unknown access"));
        };
        if !is_inside(export.offset, export.len, memory.len) {
            return Err(outside(what, export.offset, export.len, &memory));
        }
        if self.sharing(export.memory) == Sharing::MapRead && access.writes() {
            let text = "export: the memory's importers map it for reading; export it with Access::Read, \
                        or create a memory with another sharing";
            return Err(refused(Refusal::State, text));
        }
        let entry = Entry {
            kind: Entry::EXPORTED,
            sequence: export.sequence,
            memory: export.memory,
            endpoint: export.endpoint,
            access: export.access,
            offset: export.offset,
            len: export.len,
            ..Entry::default()
        };
        let writes = |one: &Entry| one.access & Access::Write as u32 != 0;
        let mut others = self.objects.all(What::Aperture).filter(|(_, one)| {
            one.exports(export.memory) && one.overlaps(&entry) && (writes(one) || access.writes())
        });
        match others.next() {
            None => Ok(entry),
            Some((number, _)) => {
                let text = format!(
                    "export: the range overlaps that of aperture {number}, and one of the two may be \
                     written; revoke that one, or choose another range"
                );
                Err((Refusal::InUse, text))
            }
        }
    }

    /// Checks that an aperture may be for the endpoint at the other end of its connection.
    fn check_peer(&mut self, entry: &Entry) -> Result<(), Refused> {
        if entry.other_session == 0 {
            let text =
                format!("export: endpoint {} is not connected; connect it first", entry.endpoint);
            return Err((Refusal::State, text));
        }
        if self.sharing(entry.memory) != Sharing::MapWrite {
            return Ok(());
        }
        let Some(memory) = self.objects.get_mut(What::Memory, entry.memory) else { return Ok(()) };
        // That session may go on to map the memory, even after its apertures are revoked.
        let before = memory.other_session;
        if before != 0 && before != entry.other_session {
            let text = format!(
                "export: only session {before} may map this memory for writing; create another memory for \
                 session {}",
                entry.other_session
            );
            return Err((Refusal::State, text));
        }
        if before == 0 {
            memory.other_session = entry.other_session;
            self.objects.record_word(What::Memory, entry.memory, EntryWord::Other);
        }
        Ok(())
    }
}
