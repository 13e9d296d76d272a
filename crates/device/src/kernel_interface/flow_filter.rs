//! The flow filter: an XDP program, and maps that say which packets it takes from the kernel.
//!
//! The server changes the maps while the program runs. A rule names some of a packet's fields.
//! Rules that name the same fields share a mask; the program applies each mask to the packet's
//! fields, and looks the result up.

mod attach_point;
mod flows;
mod key;
mod program;
mod stack;
mod tables;
#[cfg(test)]
mod tests;

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use towpath_bpf::{AssembleError, Error, Instruction, Map, MapKind, Program};

use super::filters::ProgramMaps;
use crate::{EarlierObjects, Filter, FilterError, FlowRule};
use attach_point::{AttachPoint, OF_OTHER_OWNER, SCRATCH_BYTES, WITHOUT_SOCKET};
use flows::{ADDRESSES, FLOW_KEYS, FLOW_MASKS, Flows, MAC_KEY_BYTES, Maps, NO_OWNER, fd, refused};
use key::KEY_BYTES;
use program::MASKS_BYTES;

/// The programs' names.
pub(crate) const PROGRAM_FLOWS: &str = "towpath_flows";
pub(crate) const PROGRAM_ALL: &str = "towpath_all";
pub(crate) const PROGRAM_PACKETS: &str = "towpath_packets";

/// What the programs of a packet socket return for the packets of owned flows, and for all others:
/// all bytes or none; `TC_ACT_SHOT` or `TCX_NEXT` (`linux/bpf.h`).
const COPY: (i32, i32) = (-1, 0);
const DROP: (i32, i32) = (2, -1);

/// The name of the sockets' map among the objects that outlive a server.
const SOCKETS: &str = "device-map-sockets";
/// The names of the program and of the other maps. A server goes on with the program and the maps of an
/// earlier one only if it finds all of them, so the maps' names have a number, which changes with the
/// program or a map. The masks' map has the second name if the program takes packets in several
/// buffers.
const PROGRAM: &str = "device-program";
const OWNERS: &str = "device-map-owners-1";
const COUNTERS: &str = "device-map-counters-1";

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

    /// Returns `true` if there is room for the addresses and flows of `wanted` without those of `removed`.
    pub(crate) fn would_have_room(&self, wanted: &[Filter], removed: &[Filter]) -> bool {
        self.flows.would_have_room(wanted, removed)
    }
}

impl ProgramMaps for PacketFilter {
    fn add(&mut self, filter: &Filter) -> Result<(), FilterError> {
        self.flows.add(filter)
    }

    fn remove(&mut self, filter: &Filter) {
        self.flows.remove(filter);
    }
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
