//! Memories for apertures, and tripwires on them: the server has few of the first, and looks the second up for the
//! other side of each.

use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use towpath_client::{
    Access, Aperture, ApertureKey, Endpoint, Memory, OobAddress, OobKind, Options, PeerState,
    Refused, Rule, Session, Sharing,
};

use crate::{Deeds, Field};

/// Sessions that create memories.
const SESSIONS: usize = 8;
/// Tripwires of the owner, and as many imports, unless the field says otherwise.
const TRIPWIRES: u64 = 4_000;
/// Requests for connections of one user.
const ASKED: u32 = 280;
/// The bytes of a tripwire's range.
const RANGE: usize = 8;
/// The longest time that the attacker waits for a connection between its sessions.
const PATIENCE: Duration = Duration::from_secs(20);

fn attach(path: &Path, tripwires: u32) -> io::Result<Session> {
    let options = Options {
        name: "attacker".into(),
        endpoints: 8,
        transmit_slots: 64,
        receive_slots: 64,
        oob_slots: 16,
        apertures: 300,
        tripwires,
        ..Options::default()
    };
    Session::attach(path, &options).map_err(io::Error::other)
}

/// Takes all memories that the server grants, and asks for more again and again.
pub(crate) fn memories(field: &Field) -> io::Result<Deeds> {
    let mut sessions: Vec<(Session, Vec<Memory>)> = Vec::new();
    while sessions.len() < SESSIONS && !field.over() {
        let Ok(mut session) = attach(&field.socket, 0) else { break };
        let mut own = Vec::new();
        while let Ok(memory) = session.memories().create(4096, Sharing::MapRead) {
            own.push(memory);
        }
        let is_last = own.is_empty();
        sessions.push((session, own));
        if is_last {
            break;
        }
    }
    let count: usize = sessions.iter().map(|(_, own)| own.len()).sum();
    field.begun();
    let mut refused = 0;
    while !field.over() {
        let Some((session, own)) = sessions.last_mut() else {
            field.sit();
            break;
        };
        match session.memories().create(4096, Sharing::MapRead) {
            // Another attacker has ended.
            Ok(memory) => own.push(memory),
            Err(_) => refused += 1,
        }
    }
    Ok(vec![("memories", count as u64), ("refused", refused)])
}

/// Opens an endpoint for connections. Returns its address, too.
fn open(session: &mut Session) -> io::Result<(Endpoint, OobAddress)> {
    let endpoint = session.open(&Rule::new().tcp(0).out_of_band()).map_err(io::Error::other)?;
    let (ip, _) = session.info().ipv4.ok_or_else(|| io::Error::other("no address"))?;
    Ok((endpoint, OobAddress { ip: ip.into(), protocol: 6, port: endpoint.port() }))
}

fn until(mut so: impl FnMut() -> io::Result<bool>) -> io::Result<()> {
    let end = Instant::now() + PATIENCE;
    while !so()? {
        if Instant::now() > end {
            return Err(io::ErrorKind::TimedOut.into());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// Connects two sessions. Returns the endpoint of each.
fn connect(from: &mut Session, to: &mut Session) -> io::Result<(Endpoint, Endpoint)> {
    let failed = io::Error::other::<towpath_client::Lost>;
    let (one, _) = open(from)?;
    let (listener, address) = open(to)?;
    from.oob().request_connection(one, address, b"").map_err(io::Error::other)?;
    from.sender().flush_now().map_err(failed)?;
    let mut requester = None;
    until(|| {
        let found = to.oob().receive(listener).map_err(io::Error::other)?;
        requester = found.filter(|one| one.kind() == OobKind::Request).map(|one| one.from());
        Ok(requester.is_some())
    })?;
    let (other, _) = open(to)?;
    let requester = requester.ok_or(io::ErrorKind::NotFound)?;
    to.oob().accept_connection(other, requester, b"").map_err(io::Error::other)?;
    to.sender().flush_now().map_err(failed)?;
    until(|| Ok(from.peer_state(one) == PeerState::Connected))?;
    Ok((one, other))
}

/// A memory of one session, which another imports.
struct SharedMemory {
    owner: Session,
    memory: Memory,
    endpoint: Endpoint,
}

impl SharedMemory {
    fn export(&mut self) -> io::Result<ApertureKey> {
        let all = 0..self.memory.len();
        let export =
            self.owner.memories().export(self.endpoint, &self.memory, all, Access::ReadWrite);
        Ok(export.map_err(io::Error::other)?.key())
    }
}

/// Shares a memory between two new sessions.
fn share(field: &Field, tripwires: u64) -> io::Result<(SharedMemory, Session, Aperture)> {
    let mut owner = attach(&field.socket, tripwires as u32)?;
    let mut importer = attach(&field.socket, tripwires as u32)?;
    let (endpoint, other) = connect(&mut owner, &mut importer)?;
    let bytes = tripwires as usize * RANGE;
    let memory = owner.memories().create(bytes, Sharing::MapWrite).map_err(io::Error::other)?;
    let mut shared = SharedMemory { owner, memory, endpoint };
    let key = shared.export()?;
    let aperture = importer.memories().import(other, key).map_err(io::Error::other)?;
    Ok((shared, importer, aperture))
}

/// Sets tripwires in a shared memory, and imports each of them. Returns their number.
fn set_all(
    shared: &mut SharedMemory,
    importer: &mut Session,
    aperture: &Aperture,
    most: u64,
) -> u64 {
    let mut one = |place: u64| {
        let range = place as usize * RANGE..(place as usize + 1) * RANGE;
        let tripwire =
            shared.owner.memories().set_tripwire(&shared.memory, range, Access::ReadWrite).ok()?;
        importer.memories().import_tripwire(aperture, tripwire.number()).ok()
    };
    (0..most).take_while(|place| one(*place).is_some()).count() as u64
}

/// Keeps two sessions with very many tripwires and imports of them, and attaches and detaches two more with a few,
/// again and again.
pub(crate) fn tripwires(field: &Field) -> io::Result<Deeds> {
    let wanted = field.size_or(TRIPWIRES);
    let (mut shared, mut importer, aperture) = share(field, wanted)?;
    let set = set_all(&mut shared, &mut importer, &aperture, wanted);
    field.begun();
    let mut ended = 0;
    while !field.over() {
        let few = share(field, 4);
        let Ok((mut shared, mut importer, aperture)) = few else { continue };
        ended += u64::from(set_all(&mut shared, &mut importer, &aperture, 4) == 4);
    }
    Ok(vec![("tripwires", set), ("ended", ended)])
}

/// Asks a host that does not answer for as many connections as a session may, and again when a request has failed. The
/// server needs connections with other hosts; without them, each request fails at once.
pub(crate) fn asked(field: &Field) -> io::Result<Deeds> {
    let options = Options {
        name: "attacker".into(),
        endpoints: ASKED,
        oob_slots: 16,
        transmit_slots: 64,
        receive_slots: 64,
        ..Options::default()
    };
    let mut session = Session::attach(&field.socket, &options).map_err(io::Error::other)?;
    let (_, own) = open(&mut session)?;
    let silent = OobAddress { ip: [10, 77, 0, 250].into(), port: 9, ..own };
    let mut endpoints = Vec::new();
    while endpoints.len() + 1 < ASKED as usize && !field.over() {
        endpoints.push(open(&mut session)?.0);
    }
    let (mut asked, mut full, mut begun) = (0, 0, false);
    while !field.over() {
        for endpoint in &endpoints {
            let state = session.peer_state(*endpoint);
            full += u64::from(state == PeerState::Refused(Refused::Full));
            if state != PeerState::Requested {
                asked +=
                    u64::from(session.oob().request_connection(*endpoint, silent, b"").is_ok());
            }
        }
        session.sender().flush_now().map_err(io::Error::other)?;
        session.wait(Some(Duration::from_millis(5))).map_err(io::Error::other)?;
        while session.oob().ready().map_err(io::Error::other)?.is_some() {}
        if !begun && asked >= u64::from(ASKED) {
            begun = true;
            field.begun();
        }
    }
    Ok(vec![("asked", asked), ("full", full)])
}
