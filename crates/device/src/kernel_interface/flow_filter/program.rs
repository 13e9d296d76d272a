//! The program that looks a packet's flow up. It runs at one of two [attach
//! points](super::attach_point).
//!
//! The verdict of an XDP program for a packet:
//!
//! 1. To a group, or to a MAC address that is not one of the server's: pass.
//! 2. The fields of the packet, or of the packet that an ICMP error quotes, match a rule: to the
//!    socket of the hardware queue that received it. Without a socket, dropped and counted: the
//!    kernel must not answer for a flow that is an application's.
//!    A hardware queue may have an owner. Then every rule that matches must be the owner's;
//!    otherwise the program drops and counts the packet.
//! 3. All others: pass.
//!
//! Behind the driver, a program says only whether case 2 holds.
//!
//! The parser reads a packet as `towpath_packet::headers` does, apart from two rules: a fragment
//! has no ports, not even the first one; and an ICMPv6 error that quotes a packet with extension
//! headers is the kernel's.

mod ipv6;

use towpath_bpf::{AssembleError, Assembler, Instruction, Label, Op, Reg, Size};

use super::attach_point::{AttachPoint, Found};
use super::key::{
    ETHERTYPE, FIELDS_BYTES, HAS, HAS_IP, HAS_PORTS, LOCAL_IP, LOCAL_PORT, MAC, PROTOCOL,
    REMOTE_IP, REMOTE_PORT, VLAN,
};
use super::stack::{HAS_QUOTED, LOOKUP_KEY, PACKET, QUOTED, lookup};

/// The most masks.
pub(super) const MASKS: usize = 16;
/// A mask in its map: a word that is 1 if it is in use, four zeros, and the mask.
pub(super) const MASK_BYTES: usize = 8 + FIELDS_BYTES;
/// The masks in their map: how many to read, four zeros, and the masks.
pub(super) const MASKS_BYTES: usize = 8 + MASKS * MASK_BYTES;

/// The file descriptors of the maps that contain the flows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MapFds {
    pub(crate) macs: i32,
    pub(crate) masks: i32,
    pub(crate) flows: i32,
}

/// Returns the program.
pub(crate) fn assemble(
    maps: MapFds,
    attach_point: AttachPoint,
) -> Result<Vec<Instruction>, AssembleError> {
    let mut asm = Assembler::default();
    let labels = Labels {
        pass: asm.label(),
        matched: asm.label(),
        foreign: asm.label(),
        search: asm.label(),
        ipv6: asm.label(),
        ports: asm.label(),
    };
    let mut program = Program { asm, labels, maps, attach_point };
    attach_point.begin(&mut program.asm, maps.masks, labels.pass);
    program.ethernet();
    program.ipv4();
    program.ipv6();
    program.ports();
    program.search();
    attach_point.end(&mut program.asm, labels.pass, labels.matched, labels.foreign);
    program.asm.finish()
}

#[derive(Clone, Copy)]
struct Labels {
    pass: Label,
    matched: Label,
    /// The hardware queue belongs to another session than the packet's flow.
    foreign: Label,
    /// All fields that the packet has are known.
    search: Label,
    ipv6: Label,
    /// R7: transport header, R4: protocol, R5: bytes of header and payload.
    ports: Label,
}

/// The program under construction. From `ethernet` on, R6 points to the masks, R7 into the packet,
/// R8 to its end; R9 is the number of bytes from the network header on, padding included.
struct Program {
    asm: Assembler,
    labels: Labels,
    maps: MapFds,
    attach_point: AttachPoint,
}

impl Program {
    /// Reads the Ethernet header and a VLAN tag, and looks the destination up.
    fn ethernet(&mut self) {
        let (asm, Labels { pass, search, ipv6, .. }) = (&mut self.asm, self.labels);
        within(asm, 14, pass);
        asm.load(Size::Byte, Reg::R1, Reg::R7, 0);
        asm.jump_if(Op::Bits, Reg::R1, 1, pass);
        for at in (0..FIELDS_BYTES as i16).step_by(8) {
            asm.store_number(Size::Double, Reg::R10, PACKET + at, 0);
        }
        asm.store_number(Size::Word, Reg::R10, HAS_QUOTED, 0);
        asm.load(Size::Word, Reg::R1, Reg::R7, 0);
        asm.store(Size::Word, Reg::R10, PACKET + MAC as i16, Reg::R1);
        asm.load(Size::Half, Reg::R1, Reg::R7, 4);
        asm.store(Size::Half, Reg::R10, PACKET + MAC as i16 + 4, Reg::R1);
        // The VLAN's field behind the address is still 0.
        lookup(asm, self.maps.macs, PACKET + MAC as i16);
        asm.jump_if(Op::Equal, Reg::R0, 0, pass);

        let (untagged, known) = (asm.label(), asm.label());
        load16(asm, Reg::R1, Reg::R7, 12);
        let tagged = asm.label();
        asm.jump_if(Op::Equal, Reg::R1, 0x8100, tagged);
        asm.jump_if(Op::NotEqual, Reg::R1, 0x88a8, untagged);
        asm.place(tagged);
        // A packet that ends in its tag has the tag's ethertype.
        asm.store(Size::Half, Reg::R10, PACKET + ETHERTYPE as i16, Reg::R1);
        within(asm, 18, search);
        load16(asm, Reg::R1, Reg::R7, 14);
        asm.op(Op::And, Reg::R1, 0xfff);
        asm.store(Size::Half, Reg::R10, PACKET + VLAN as i16, Reg::R1);
        load16(asm, Reg::R1, Reg::R7, 16);
        asm.op(Op::Add, Reg::R7, 18);
        asm.op(Op::Sub, Reg::R9, 18);
        asm.jump(known);
        asm.place(untagged);
        asm.op(Op::Add, Reg::R7, 14);
        asm.op(Op::Sub, Reg::R9, 14);
        asm.place(known);
        asm.store(Size::Half, Reg::R10, PACKET + ETHERTYPE as i16, Reg::R1);
        asm.jump_if(Op::Equal, Reg::R1, 0x86dd, ipv6);
        asm.jump_if(Op::NotEqual, Reg::R1, 0x0800, search);
    }

    fn ipv4(&mut self) {
        let (asm, Labels { search, ports, .. }) = (&mut self.asm, self.labels);
        within(asm, 20, search);
        asm.load(Size::Byte, Reg::R1, Reg::R7, 0);
        version_is(asm, 4, search);
        header_bytes(asm, Reg::R1);
        asm.jump_if(Op::Below, Reg::R1, 20, search);
        asm.jump_if_reg(Op::Above, Reg::R1, Reg::R9, search);
        load16(asm, Reg::R5, Reg::R7, 2);
        asm.jump_if_reg(Op::Below, Reg::R5, Reg::R1, search);
        asm.jump_if_reg(Op::Above, Reg::R5, Reg::R9, search);
        asm.store_number(Size::Byte, Reg::R10, PACKET + HAS as i16, HAS_IP.into());
        asm.load(Size::Byte, Reg::R4, Reg::R7, 9);
        asm.store(Size::Byte, Reg::R10, PACKET + PROTOCOL as i16, Reg::R4);
        self.ipv4_addresses(PACKET, 16, 12);
        let asm = &mut self.asm;
        load16(asm, Reg::R3, Reg::R7, 6);
        asm.jump_if(Op::Bits, Reg::R3, 0x3fff, search);
        asm.op_reg(Op::Sub, Reg::R5, Reg::R1);
        asm.op_reg(Op::Add, Reg::R7, Reg::R1);
        asm.jump_if(Op::NotEqual, Reg::R4, 1, ports);
        // ICMP.
        asm.jump_if(Op::Below, Reg::R5, 8 + 20, search);
        within(asm, 8 + 20, search);
        asm.load(Size::Byte, Reg::R1, Reg::R7, 0);
        let is_error = asm.label();
        for kind in [3, 4, 5, 11, 12] {
            asm.jump_if(Op::Equal, Reg::R1, kind, is_error);
        }
        asm.jump(search);
        asm.place(is_error);
        asm.load(Size::Byte, Reg::R1, Reg::R7, 8);
        version_is(asm, 4, search);
        header_bytes(asm, Reg::R1);
        asm.jump_if(Op::Below, Reg::R1, 20, search);
        asm.load(Size::Byte, Reg::R4, Reg::R7, 8 + 9);
        load16(asm, Reg::R3, Reg::R7, 8 + 6);
        self.quoted(HAS_IP);
        self.ipv4_addresses(QUOTED, 8 + 12, 8 + 16);
        let asm = &mut self.asm;
        asm.jump_if(Op::Bits, Reg::R3, 0x1fff, search);
        asm.op(Op::Add, Reg::R1, 8);
        self.quoted_ports(HAS_IP);
    }

    /// Copies IPv4 addresses: the one that is local for the server, and the remote one.
    fn ipv4_addresses(&mut self, to: i16, local: i16, remote: i16) {
        for (field, from) in [(LOCAL_IP, local), (REMOTE_IP, remote)] {
            self.asm.load(Size::Word, Reg::R0, Reg::R7, from);
            self.asm.store(Size::Word, Reg::R10, to + field as i16, Reg::R0);
        }
    }

    /// Fills in the fields of the quoted packet, R4 being its protocol, except addresses and ports.
    fn quoted(&mut self, has: u8) {
        let asm = &mut self.asm;
        for at in (8..FIELDS_BYTES as i16).step_by(8) {
            asm.store_number(Size::Double, Reg::R10, QUOTED + at, 0);
        }
        asm.load(Size::Double, Reg::R0, Reg::R10, PACKET);
        asm.store(Size::Double, Reg::R10, QUOTED, Reg::R0);
        asm.load(Size::Half, Reg::R0, Reg::R10, PACKET + ETHERTYPE as i16);
        asm.store(Size::Half, Reg::R10, QUOTED + ETHERTYPE as i16, Reg::R0);
        asm.store(Size::Byte, Reg::R10, QUOTED + PROTOCOL as i16, Reg::R4);
        asm.store_number(Size::Byte, Reg::R10, QUOTED + HAS as i16, has.into());
        asm.store_number(Size::Word, Reg::R10, HAS_QUOTED, 1);
    }

    /// Fills in the ports of the quoted packet, whose transport header begins R1 bytes behind R7.
    fn quoted_ports(&mut self, has: u8) {
        let (asm, Labels { search, .. }) = (&mut self.asm, self.labels);
        let has_ports = asm.label();
        asm.jump_if(Op::Equal, Reg::R4, 6, has_ports);
        asm.jump_if(Op::Equal, Reg::R4, 17, has_ports);
        asm.jump_if(Op::NotEqual, Reg::R4, 132, search);
        asm.place(has_ports);
        asm.copy(Reg::R2, Reg::R1);
        asm.op(Op::Add, Reg::R2, 8);
        asm.jump_if_reg(Op::Below, Reg::R5, Reg::R2, search);
        asm.op_reg(Op::Add, Reg::R7, Reg::R1);
        within(asm, 8, search);
        // The quoted packet went the other way.
        store_ports(asm, QUOTED, 0, 2, has | HAS_PORTS);
        asm.jump(search);
    }

    /// Reads ports.
    fn ports(&mut self) {
        let (asm, Labels { search, ports, .. }) = (&mut self.asm, self.labels);
        let (tcp, sctp, store) = (asm.label(), asm.label(), asm.label());
        asm.place(ports);
        asm.jump_if(Op::Equal, Reg::R4, 6, tcp);
        asm.jump_if(Op::Equal, Reg::R4, 132, sctp);
        asm.jump_if(Op::NotEqual, Reg::R4, 17, search);
        asm.jump_if(Op::Below, Reg::R5, 8, search);
        within(asm, 8, search);
        load16(asm, Reg::R1, Reg::R7, 4);
        asm.jump_if(Op::Below, Reg::R1, 8, search);
        asm.jump_if_reg(Op::Above, Reg::R1, Reg::R5, search);
        asm.jump(store);
        asm.place(tcp);
        asm.jump_if(Op::Below, Reg::R5, 20, search);
        within(asm, 20, search);
        asm.load(Size::Byte, Reg::R1, Reg::R7, 12);
        asm.op(Op::ShiftRight, Reg::R1, 4);
        asm.op(Op::ShiftLeft, Reg::R1, 2);
        asm.jump_if(Op::Below, Reg::R1, 20, search);
        asm.jump_if_reg(Op::Above, Reg::R1, Reg::R5, search);
        asm.jump(store);
        asm.place(sctp);
        asm.jump_if(Op::Below, Reg::R5, 12, search);
        within(asm, 12, search);
        asm.place(store);
        asm.load(Size::Byte, Reg::R1, Reg::R10, PACKET + HAS as i16);
        asm.op(Op::Or, Reg::R1, HAS_PORTS.into());
        asm.store(Size::Byte, Reg::R10, PACKET + HAS as i16, Reg::R1);
        for (field, from) in [(LOCAL_PORT, 2), (REMOTE_PORT, 0)] {
            load16(asm, Reg::R1, Reg::R7, from);
            asm.store(Size::Half, Reg::R10, PACKET + field as i16, Reg::R1);
        }
    }

    /// Looks the packet's fields up with each mask, and then those of the quoted packet.
    fn search(&mut self) {
        let Labels { pass, matched, search, .. } = self.labels;
        self.asm.place(search);
        self.search_for(PACKET);
        self.attach_point.if_found(&mut self.asm, matched);
        self.asm.load(Size::Word, Reg::R1, Reg::R10, HAS_QUOTED);
        self.asm.jump_if(Op::Equal, Reg::R1, 0, pass);
        self.search_for(QUOTED);
        self.attach_point.if_found(&mut self.asm, matched);
    }

    /// Looks fields up with each mask. R7: the mask's number, R9: the mask.
    fn search_for(&mut self, fields: i16) {
        let Labels { matched, foreign, .. } = self.labels;
        let asm = &mut self.asm;
        let (again, next, end) = (asm.label(), asm.label(), asm.label());
        asm.load(Size::Word, Reg::R8, Reg::R6, 0);
        asm.copy(Reg::R9, Reg::R6);
        asm.op(Op::Add, Reg::R9, 8);
        asm.set(Reg::R7, 0);
        asm.place(again);
        asm.jump_if_reg(Op::NotBelow, Reg::R7, Reg::R8, end);
        asm.load(Size::Word, Reg::R1, Reg::R9, 0);
        asm.jump_if(Op::Equal, Reg::R1, 0, next);
        for at in (0..FIELDS_BYTES as i16).step_by(8) {
            asm.load(Size::Double, Reg::R1, Reg::R9, 8 + at);
            asm.load(Size::Double, Reg::R2, Reg::R10, fields + at);
            asm.op_reg(Op::And, Reg::R1, Reg::R2);
            asm.store(Size::Double, Reg::R10, LOOKUP_KEY + at, Reg::R1);
        }
        let number = LOOKUP_KEY + FIELDS_BYTES as i16;
        asm.store(Size::Word, Reg::R10, number, Reg::R7);
        asm.store_number(Size::Word, Reg::R10, number + 4, 0);
        lookup(asm, self.maps.flows, LOOKUP_KEY);
        asm.jump_if(Op::Equal, Reg::R0, 0, next);
        self.attach_point.found(asm, Found { matched, foreign, next });
        asm.place(next);
        asm.op(Op::Add, Reg::R9, MASK_BYTES as i32);
        asm.op(Op::Add, Reg::R7, 1);
        asm.jump_if(Op::Below, Reg::R7, MASKS as i32, again);
        asm.place(end);
    }
}

/// Goes to `otherwise` unless this many bytes from R7 on are within the packet.
fn within(asm: &mut Assembler, bytes: i32, otherwise: Label) {
    asm.copy(Reg::R2, Reg::R7);
    asm.op(Op::Add, Reg::R2, bytes);
    asm.jump_if_reg(Op::Above, Reg::R2, Reg::R8, otherwise);
}

/// Loads a number of 16 bits in the network's order.
fn load16(asm: &mut Assembler, to: Reg, address: Reg, offset: i16) {
    asm.load(Size::Half, to, address, offset);
    asm.big_endian(to, 16);
}

/// Goes to `otherwise` unless R1, the first byte of an IP header, has this version. Uses R2.
fn version_is(asm: &mut Assembler, version: i32, otherwise: Label) {
    asm.copy(Reg::R2, Reg::R1);
    asm.op(Op::ShiftRight, Reg::R2, 4);
    asm.jump_if(Op::NotEqual, Reg::R2, version, otherwise);
}

/// Converts the first byte of an IPv4 header to the header's length in bytes.
fn header_bytes(asm: &mut Assembler, reg: Reg) {
    asm.op(Op::And, reg, 0xf);
    asm.op(Op::ShiftLeft, reg, 2);
}

/// Stores the ports of the header at R7: the local one and the remote one.
fn store_ports(asm: &mut Assembler, fields: i16, local: i16, remote: i16, has: u8) {
    for (field, from) in [(LOCAL_PORT, local), (REMOTE_PORT, remote)] {
        load16(asm, Reg::R1, Reg::R7, from);
        asm.store(Size::Half, Reg::R10, fields + field as i16, Reg::R1);
    }
    asm.store_number(Size::Byte, Reg::R10, fields + HAS as i16, has.into());
}
