//! The flow filter: an XDP program, and maps that say which packets it takes from the kernel.
//!
//! The server changes the maps while the program runs. A rule names some of a packet's fields.
//! Rules that name the same fields share a mask; the program applies each mask to the packet's
//! fields, and looks the result up.

mod attach_point;
mod key;
mod program;
mod stack;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use towpath_bpf::{AssembleError, Error, Instruction, Map, MapKind, Program};

use crate::{EarlierObjects, Filter, FilterError, FlowRule};
use attach_point::{AttachPoint, OF_OTHER_OWNER, SCRATCH_BYTES, WITHOUT_SOCKET};
use key::{Fields, KEY_BYTES, Key};
use program::{MASK_BYTES, MASKS, MASKS_BYTES, MapFds};

/// The programs' names.
pub(crate) const PROGRAM_FLOWS: &str = "towpath_flows";
pub(crate) const PROGRAM_ALL: &str = "towpath_all";
pub(crate) const PROGRAM_PACKETS: &str = "towpath_packets";

/// What the programs of a packet socket return for the packets of owned flows, and for all others:
/// all bytes or none; `TC_ACT_SHOT` or `TCX_NEXT` (`linux/bpf.h`).
const COPY: (i32, i32) = (-1, 0);
const DROP: (i32, i32) = (2, -1);

/// The most MAC addresses, and the most flows.
const MACS: u32 = 4096;
const FLOWS: u32 = 65_536;
/// The name of the sockets' map among the objects that outlive a server.
const SOCKETS: &str = "device-map-sockets";
/// The names of the program and of the other maps. A server goes on with the program and the maps of an
/// earlier one only if it finds all of them, so the maps' names have a number, which changes with the
/// program or a map. The masks' map has the second name if the program takes packets in several
/// buffers.
const PROGRAM: &str = "device-program";
const OWNERS: &str = "device-map-owners-1";
const COUNTERS: &str = "device-map-counters-1";
const ADDRESSES: &str = "device-map-macs-1";
const FLOW_MASKS: [&str; 2] = ["device-map-masks-1", "device-map-masks-1-spans"];
const FLOW_KEYS: &str = "device-map-flows-1";
/// The owner of a flow, or of a hardware queue, that belongs to no one session.
const NO_OWNER: [u8; 4] = [0; 4];
/// A MAC address in its map: six bytes and two zeros.
const MAC_KEY_BYTES: usize = 8;

/// The flow filter of an XDP program.
pub(crate) struct FlowFilter {
    program: Program,
    spans: bool,
    sockets: Map,
    /// The owner of each hardware queue; 0 for none.
    owners: Map,
    counters: Map,
    /// `None` for a program that takes every packet.
    flows: Option<Flows>,
}

/// The flow filter of a packet socket: a program by which the socket copies the packets of owned
/// flows, and one that keeps these packets from the kernel's network stack.
pub(crate) struct PacketFilter {
    copies: Program,
    drops: Program,
    flows: Flows,
}

/// The owned addresses and flows, in the maps that the programs read.
struct Flows {
    maps: Maps,
    tables: Tables,
    /// The addresses in the map that this server added.
    macs: usize,
    /// What an earlier server added, and this one has not added so far.
    earlier: Earlier,
}

/// Addresses and flows of an earlier server.
#[derive(Default)]
struct Earlier {
    macs: HashSet<Vec<u8>>,
    flows: HashSet<Key>,
}

struct Maps {
    macs: Map,
    masks: Map,
    flows: Map,
}

/// A mask in use.
#[derive(Clone, Copy, Debug)]
struct Mask {
    mask: Fields,
    /// The number of rules with this mask.
    rules: usize,
}

/// What the maps contain.
#[derive(Default)]
struct Tables {
    masks: [Option<Mask>; MASKS],
    /// The number of each rule's mask.
    flows: HashMap<Key, usize>,
}

impl Tables {
    /// Returns the number of a mask: that of a mask in use, or a free one.
    fn number_of(&self, mask: &Fields) -> Option<usize> {
        let used = self.masks.iter().position(|one| one.is_some_and(|one| one.mask == *mask));
        used.or_else(|| self.masks.iter().position(Option::is_none))
    }

    /// Returns `true` if there is room for the flows of `wanted` without those of `removed`.
    fn would_have_room(&self, wanted: &[Filter], removed: &[Filter]) -> bool {
        let flows = |filters: &[Filter]| {
            let flows = filters.iter().filter_map(|one| match one {
                Filter::Flow(rule) => Some(key::of_rule(rule)),
                _ => None,
            });
            flows.collect::<Vec<_>>()
        };
        let (mut masks, mut rules) = (self.masks, self.flows.len());
        for (fields, mask) in flows(removed) {
            let Some(number) = self.number_of(&mask) else { continue };
            if self.flows.contains_key(&key::key(&fields, number as u32)) {
                let left = |one: Mask| Some(Mask { rules: one.rules - 1, ..one });
                masks[number] = masks[number].and_then(left).filter(|one| one.rules > 0);
                rules -= 1;
            }
        }
        let wanted = flows(wanted);
        rules += wanted.len();
        rules <= FLOWS as usize
            && wanted.into_iter().all(|(_, mask)| {
                let has = |one: &Option<Mask>| one.is_some_and(|one| one.mask == mask);
                masks.iter().any(has)
                    || masks.iter_mut().find(|one| one.is_none()).is_some_and(|free| {
                        *free = Some(Mask { mask, rules: 1 });
                        true
                    })
            })
    }

    /// Adds a rule under the mask of this number.
    fn add(&mut self, key: Key, number: usize, mask: Fields) {
        if self.flows.insert(key, number).is_none() {
            self.masks[number].get_or_insert(Mask { mask, rules: 0 }).rules += 1;
        }
    }

    /// Returns the masks that the program reads, without rules.
    fn of_masks(bytes: &[u8]) -> Tables {
        let mut tables = Tables::default();
        let Some((head, places)) = bytes.split_first_chunk::<8>() else { return tables };
        let count = u32::from_ne_bytes([head[0], head[1], head[2], head[3]]) as usize;
        let places = places.chunks_exact(MASK_BYTES).take(count);
        for (mask, place) in tables.masks.iter_mut().zip(places) {
            let is_used = place[..4] != [0; 4];
            let fields = Fields::try_from(&place[8..]).ok().filter(|_| is_used);
            *mask = fields.map(|mask| Mask { mask, rules: 0 });
        }
        tables
    }

    /// Adds a rule that is in the map already. Returns `false` if its mask is not in use.
    fn add_earlier(&mut self, key: Key) -> bool {
        let number = key::mask_number(&key) as usize;
        let Some(Some(mask)) = self.masks.get_mut(number) else { return false };
        mask.rules += 1;
        self.flows.insert(key, number);
        true
    }

    /// Frees the masks without rules.
    fn free_unused_masks(&mut self) {
        for mask in &mut self.masks {
            *mask = mask.filter(|mask| mask.rules > 0);
        }
    }

    /// Removes a rule. Returns `true` if its mask is free now.
    fn remove(&mut self, key: &Key) -> bool {
        let Some(number) = self.flows.remove(key) else { return false };
        let Some(mask) = &mut self.masks[number] else { return false };
        mask.rules -= 1;
        let is_free = mask.rules == 0;
        if is_free {
            self.masks[number] = None;
        }
        is_free
    }

    /// Returns the masks as the program reads them. `not_yet`: the number of a mask that the
    /// program must not use yet.
    fn masks(&self, not_yet: Option<usize>) -> Vec<u8> {
        let mut bytes = vec![0; MASKS_BYTES];
        let count = self.masks.iter().rposition(Option::is_some).map_or(0, |last| last as u32 + 1);
        bytes[..4].copy_from_slice(&count.to_ne_bytes());
        let places = bytes[8..].chunks_exact_mut(MASK_BYTES);
        for ((place, mask), number) in places.zip(&self.masks).zip(0..) {
            if let Some(Mask { mask, .. }) = mask {
                let in_use = u32::from(not_yet != Some(number));
                place[..4].copy_from_slice(&in_use.to_ne_bytes());
                place[8..].copy_from_slice(mask);
            }
        }
        bytes
    }
}

impl FlowFilter {
    /// Loads a filter that passes every packet, for so many hardware queues.
    pub(crate) fn new(queues: u32) -> Result<FlowFilter, Error> {
        let (sockets, counters) = (sockets(queues)?, counters()?);
        let owners = owners(queues)?;
        let flows = Flows::new()?;
        let (program, spans) = load(PROGRAM_FLOWS, |spans| {
            let (sockets, owners, counters) = (fd(&sockets), fd(&owners), fd(&counters));
            let attach_point = AttachPoint::Xdp { sockets, owners, counters, spans };
            program::assemble(flows.maps.fds(), attach_point)
        })?;
        let flows = Some(flows);
        Ok(FlowFilter { program, spans, sockets, owners, counters, flows })
    }

    /// Goes on with the program and the maps of the earlier server whose program is attached, for so
    /// many hardware queues; `None` if it left none of this kind. Its addresses and flows stay until
    /// [`FlowFilter::remove_earlier`].
    pub(crate) fn of_earlier_server(
        queues: u32,
        attached: u32,
        earlier: &EarlierObjects,
    ) -> Option<FlowFilter> {
        // A server that was killed during its start left maps that no attached program reads.
        let (program, server) = attached_program(attached, earlier)?;
        let map = |name, kind, key_bytes, value_bytes| {
            let map = earlier.copy_of(name, server).ok()??;
            Map::from_fd(map, kind, key_bytes, value_bytes).ok()
        };
        let sockets = map(SOCKETS, MapKind::Xsk, 4, 4).filter(|map| map.entries() == queues)?;
        let owners = map(OWNERS, MapKind::Array, 4, NO_OWNER.len())?;
        let counters = map(COUNTERS, MapKind::PerCpuArray, 4, 8)?;
        let masks =
            |spans: bool| map(FLOW_MASKS[usize::from(spans)], MapKind::Array, 4, MASKS_BYTES);
        let (spans, masks) = match masks(true) {
            Some(masks) => (true, masks),
            None => (false, masks(false)?),
        };
        let macs = map(ADDRESSES, MapKind::Hash, MAC_KEY_BYTES, 4)?;
        let flows = map(FLOW_KEYS, MapKind::Hash, KEY_BYTES, 4)?;
        let flows = Flows::of_earlier_server(Maps { macs, masks, flows }).ok()?;
        Some(FlowFilter { program, spans, sockets, owners, counters, flows: Some(flows) })
    }

    /// Removes the addresses and flows of an earlier server that were not added again.
    pub(crate) fn remove_earlier(&mut self) {
        if let Some(flows) = &mut self.flows {
            flows.remove_earlier();
        }
    }

    /// Loads a program that takes every packet.
    pub(crate) fn of_all(queues: u32) -> Result<FlowFilter, Error> {
        let (sockets, owners, counters) = (sockets(queues)?, owners(queues)?, counters()?);
        let (program, spans) =
            load(PROGRAM_ALL, |_| attach_point::assemble_all(fd(&sockets), fd(&counters)))?;
        Ok(FlowFilter { program, spans, sockets, owners, counters, flows: None })
    }

    /// Returns the sockets' map of the filter of the earlier server whose program is attached; that of
    /// the last one if it is not known which it is.
    pub(crate) fn earlier_sockets(attached: u32, earlier: &EarlierObjects) -> Option<Map> {
        let map = match attached_program(attached, earlier) {
            Some((_, server)) => earlier.copy_of(SOCKETS, server).ok()??,
            None => earlier.copy(SOCKETS).ok()??,
        };
        Map::from_fd(map, MapKind::Xsk, 4, 4).ok()
    }

    /// Returns `true` if the program takes packets in several buffers.
    pub(crate) fn spans(&self) -> bool {
        self.spans
    }

    pub(crate) fn program(&self) -> &Program {
        &self.program
    }

    /// Gives the packets of a hardware queue to a socket.
    pub(crate) fn set_socket(&self, queue: u32, socket: BorrowedFd<'_>) -> Result<(), Error> {
        self.sockets.set_fd(queue, socket)
    }

    /// Gives a hardware queue an owner, or takes it away. The queue of an owner receives the
    /// packets of the owner's flows alone.
    pub(crate) fn set_owner(&self, queue: u32, owned: bool) -> Result<(), Error> {
        let owner = if owned { owner_of(queue) } else { NO_OWNER };
        self.owners.update(&queue.to_ne_bytes(), &owner)
    }

    /// Makes a flow, which was added before, the owner's of a hardware queue.
    pub(crate) fn own_flow(&self, rule: &FlowRule, queue: u32) -> Result<(), FilterError> {
        let flows = self.flows.as_ref().ok_or(FilterError::Unsupported)?;
        let (fields, mask) = key::of_rule(rule);
        let number = flows.tables.number_of(&mask).ok_or(FilterError::Full)?;
        let key = key::key(&fields, number as u32);
        flows.maps.flows.update(&key, &owner_of(queue)).map_err(refused)
    }

    /// Returns the number of packets that belonged to an application and found no socket, or the
    /// hardware queue of another session.
    pub(crate) fn without_socket(&self) -> u64 {
        self.unserved() + self.counters.sum(OF_OTHER_OWNER).unwrap_or(0)
    }

    /// Returns the number of packets that belonged to an application and arrived on a hardware queue without
    /// a socket.
    pub(crate) fn unserved(&self) -> u64 {
        self.counters.sum(WITHOUT_SOCKET).unwrap_or(0)
    }

    /// Returns the program and the maps, with the names under which a keeper holds them.
    pub(crate) fn objects(&self) -> Vec<(&'static str, BorrowedFd<'_>)> {
        let own = [(SOCKETS, &self.sockets), (OWNERS, &self.owners), (COUNTERS, &self.counters)];
        let own = own.map(|(name, map)| (name, map.as_fd())).into_iter();
        let own = own.chain([(PROGRAM, self.program.as_fd())]);
        own.chain(self.flows.iter().flat_map(|flows| flows.maps(self.spans))).collect()
    }

    /// Adds an address or a flow.
    pub(crate) fn add(&mut self, filter: &Filter) -> Result<(), FilterError> {
        self.flows.as_mut().map_or(Ok(()), |flows| flows.add(filter))
    }

    /// Returns `true` if there is room for the addresses and flows of `wanted` without those of `removed`.
    pub(crate) fn would_have_room(&self, wanted: &[Filter], removed: &[Filter]) -> bool {
        self.flows.as_ref().is_none_or(|flows| flows.would_have_room(wanted, removed))
    }

    /// Removes an address or a flow.
    pub(crate) fn remove(&mut self, filter: &Filter) {
        if let Some(flows) = &mut self.flows {
            flows.remove(filter);
        }
    }
}

/// Returns the program with this number, if an earlier server left it, and that server's number.
fn attached_program(number: u32, earlier: &EarlierObjects) -> Option<(Program, u32)> {
    earlier.with_prefix(PROGRAM).find_map(|(_, server, program)| {
        let program = Program::from(program.try_clone_to_owned().ok()?);
        (program.info().ok()?.id == number).then_some((program, server))
    })
}

impl PacketFilter {
    /// Loads programs that find no packet.
    pub(crate) fn new() -> Result<PacketFilter, Error> {
        let scratch = Map::create(MapKind::PerCpuArray, "towpath_packet", 4, SCRATCH_BYTES, 1)?;
        let flows = Flows::new()?;
        let assembled = |(owned_verdict, other_verdict)| {
            let scratch = fd(&scratch);
            let attach_point = AttachPoint::Packet { scratch, owned_verdict, other_verdict };
            program::assemble(flows.maps.fds(), attach_point).map_err(not_assembled)
        };
        let copies = Program::load_socket_filter(PROGRAM_PACKETS, &assembled(COPY)?)?;
        let drops = Program::load_ingress(PROGRAM_PACKETS, &assembled(DROP)?)?;
        Ok(PacketFilter { copies, drops, flows })
    }

    /// Returns the program for the packet socket.
    pub(crate) fn copies(&self) -> &Program {
        &self.copies
    }

    /// Returns the program for the ingress hook.
    pub(crate) fn drops(&self) -> &Program {
        &self.drops
    }

    /// Returns the maps, with the names under which a keeper holds them.
    pub(crate) fn maps(&self) -> Vec<(&'static str, BorrowedFd<'_>)> {
        self.flows.maps(false).into()
    }

    /// Adds an address or a flow.
    pub(crate) fn add(&mut self, filter: &Filter) -> Result<(), FilterError> {
        self.flows.add(filter)
    }

    /// Returns `true` if there is room for the addresses and flows of `wanted` without those of `removed`.
    pub(crate) fn would_have_room(&self, wanted: &[Filter], removed: &[Filter]) -> bool {
        self.flows.would_have_room(wanted, removed)
    }

    /// Removes an address or a flow.
    pub(crate) fn remove(&mut self, filter: &Filter) {
        self.flows.remove(filter);
    }
}

impl Flows {
    fn new() -> Result<Flows, Error> {
        let maps = Maps {
            macs: Map::create(MapKind::Hash, "towpath_macs", MAC_KEY_BYTES, 4, MACS)?,
            masks: Map::create(MapKind::Array, "towpath_masks", 4, MASKS_BYTES, 1)?,
            flows: Map::create(MapKind::Hash, "towpath_flows", KEY_BYTES, 4, FLOWS)?,
        };
        Ok(Flows { maps, tables: Tables::default(), macs: 0, earlier: Earlier::default() })
    }

    /// Goes on with the maps of an earlier server.
    fn of_earlier_server(maps: Maps) -> Result<Flows, Error> {
        let masks = maps.masks.lookup(&0u32.to_ne_bytes())?.unwrap_or_default();
        let mut tables = Tables::of_masks(&masks);
        let macs = maps.macs.keys()?.into_iter().collect();
        let mut earlier = Earlier { macs, flows: HashSet::new() };
        for bytes in maps.flows.keys()? {
            let Ok(key) = Key::try_from(&bytes[..]) else { continue };
            if tables.add_earlier(key) {
                earlier.flows.insert(key);
            } else {
                // That server was killed while it added or removed the flow.
                maps.flows.delete(&key)?;
            }
        }
        tables.free_unused_masks();
        Ok(Flows { maps, tables, macs: 0, earlier })
    }

    fn remove_earlier(&mut self) {
        let Earlier { macs, flows } = std::mem::take(&mut self.earlier);
        // The kernel refuses nothing of this.
        for mac in macs {
            let _ = self.maps.macs.delete(&mac);
        }
        for key in flows {
            if self.tables.remove(&key) {
                let _ = self.maps.set_masks(&self.tables.masks(None));
            }
            let _ = self.maps.flows.delete(&key);
        }
    }

    fn maps(&self, spans: bool) -> [(&'static str, BorrowedFd<'_>); 3] {
        let Maps { macs, masks, flows } = &self.maps;
        [(ADDRESSES, macs), (FLOW_MASKS[usize::from(spans)], masks), (FLOW_KEYS, flows)]
            .map(|(name, map)| (name, map.as_fd()))
    }

    /// Adds an address or a flow.
    fn add(&mut self, filter: &Filter) -> Result<(), FilterError> {
        let maps = &self.maps;
        match filter {
            Filter::Address(mac) => {
                let key = mac_key(mac);
                self.earlier.macs.remove(&key[..]);
                maps.macs.update(&key, &[0; 4]).map_err(refused)?;
                self.macs += 1;
                Ok(())
            }
            Filter::Flow(rule) => {
                let (fields, mask) = key::of_rule(rule);
                let number = self.tables.number_of(&mask).ok_or(FilterError::Full)?;
                let key = key::key(&fields, number as u32);
                self.earlier.flows.remove(&key);
                if self.tables.flows.contains_key(&key) {
                    return Ok(());
                }
                let is_new = self.tables.masks[number].is_none();
                maps.flows.update(&key, &NO_OWNER).map_err(refused)?;
                self.tables.add(key, number, mask);
                // The program may run during the change of a mask, so it sees a new one only when
                // it is complete.
                let steps: &[_] = if is_new { &[Some(number), None] } else { &[] };
                for not_yet in steps {
                    if let Err(error) = maps.set_masks(&self.tables.masks(*not_yet)) {
                        self.tables.remove(&key);
                        let _ = maps.flows.delete(&key);
                        return Err(refused(error));
                    }
                }
                Ok(())
            }
            Filter::AllGroups | Filter::Everything => Err(FilterError::Unsupported),
        }
    }

    /// Returns `true` if there is room for the addresses and flows of `wanted` without those of `removed`. Addresses of
    /// groups need none.
    fn would_have_room(&self, wanted: &[Filter], removed: &[Filter]) -> bool {
        let is_address = |one: &&Filter| matches!(one, Filter::Address(mac) if mac[0] & 1 == 0);
        let addresses = |filters: &[Filter]| filters.iter().filter(is_address).count();
        let kept = (self.macs + self.earlier.macs.len()).saturating_sub(addresses(removed));
        kept + addresses(wanted) <= MACS as usize && self.tables.would_have_room(wanted, removed)
    }

    /// Removes an address or a flow.
    fn remove(&mut self, filter: &Filter) {
        let maps = &self.maps;
        // The kernel refuses nothing of this, apart from entries that are not there.
        let _ = match filter {
            Filter::Address(mac) => {
                self.macs = self.macs.saturating_sub(1);
                maps.macs.delete(&mac_key(mac))
            }
            Filter::Flow(rule) => {
                let (fields, mask) = key::of_rule(rule);
                let Some(number) = self.tables.number_of(&mask) else { return };
                let key = key::key(&fields, number as u32);
                if self.tables.remove(&key) {
                    let _ = maps.set_masks(&self.tables.masks(None));
                }
                maps.flows.delete(&key)
            }
            Filter::AllGroups | Filter::Everything => return,
        };
    }
}

impl Maps {
    fn fds(&self) -> MapFds {
        MapFds { macs: fd(&self.macs), masks: fd(&self.masks), flows: fd(&self.flows) }
    }

    fn set_masks(&self, masks: &[u8]) -> Result<(), Error> {
        self.masks.update(&0u32.to_ne_bytes(), masks)
    }
}

fn fd(map: &Map) -> i32 {
    map.as_fd().as_raw_fd()
}

fn counters() -> Result<Map, Error> {
    Map::create(MapKind::PerCpuArray, "towpath_counts", 4, 8, OF_OTHER_OWNER + 1)
}

fn owners(queues: u32) -> Result<Map, Error> {
    Map::create(MapKind::Array, "towpath_owners", 4, NO_OWNER.len(), queues)
}

/// Returns the owner of a hardware queue, as the maps hold it.
fn owner_of(queue: u32) -> [u8; 4] {
    (queue + 1).to_ne_bytes()
}

fn sockets(queues: u32) -> Result<Map, Error> {
    Map::create(MapKind::Xsk, "towpath_sockets", 4, 4, queues)
}

fn mac_key(mac: &[u8; 6]) -> [u8; MAC_KEY_BYTES] {
    let [a, b, c, d, e, f] = *mac;
    [a, b, c, d, e, f, 0, 0]
}

/// A map without room is no room for the filter.
fn refused(error: Error) -> FilterError {
    match error.errno() {
        Some(libc::E2BIG | libc::ENOSPC | libc::ENOMEM) => FilterError::Full,
        _ => FilterError::Failed(error.into()),
    }
}

/// Loads a program for packets in several buffers, or else for those in one. Returns which.
fn load(
    name: &str,
    assemble: impl Fn(bool) -> Result<Vec<Instruction>, AssembleError>,
) -> Result<(Program, bool), Error> {
    let program = |spans| {
        let instructions = assemble(spans).map_err(not_assembled)?;
        Program::load_xdp(name, &instructions, spans)
    };
    match program(true) {
        Ok(program) => Ok((program, true)),
        Err(error @ Error::NotPermitted { .. }) => Err(error),
        // Linux 5.17 and older.
        Err(error) => program(false).map(|program| (program, false)).map_err(|_| error),
    }
}

fn not_assembled(error: AssembleError) -> Error {
    Error::Refused { what: "assembling the flow filter", cause: io::Error::other(error) }
}
