//! The part of the program that reads an IPv6 header, its extension headers, and ICMPv6 errors.

use towpath_bpf::{Assembler, Label, Op, Reg, Size};

use super::super::key::{HAS, HAS_IP, HAS_IPV6, LOCAL_IP, PROTOCOL, REMOTE_IP};
use super::super::stack::{EXTENSION_OFFSET, IS_FRAGMENT, PACKET, QUOTED};
use super::{Labels, Program, load16, version_is, within};

const MAX_EXTENSION_HEADERS: usize = towpath_packet::headers::MAX_EXTENSION_HEADERS;
/// Above the sum of the headers before the transport header, and in the verifier's reach.
const MAX_OFFSET: i32 = 0x7fff;

impl Program {
    pub(super) fn ipv6(&mut self) {
        let Labels { search, ports, ipv6, .. } = self.labels;
        let asm = &mut self.asm;
        asm.place(ipv6);
        within(asm, 40, search);
        asm.load(Size::Byte, Reg::R1, Reg::R7, 0);
        version_is(asm, 6, search);
        load16(asm, Reg::R5, Reg::R7, 4);
        asm.copy(Reg::R1, Reg::R5);
        asm.op(Op::Add, Reg::R1, 40);
        asm.jump_if_reg(Op::Above, Reg::R1, Reg::R9, search);
        asm.jump_if(Op::Above, Reg::R1, 0xffff, search);
        let has = HAS_IP | HAS_IPV6;
        asm.store_number(Size::Byte, Reg::R10, PACKET + HAS as i16, has.into());
        asm.load(Size::Byte, Reg::R4, Reg::R7, 6);
        self.ipv6_addresses(PACKET, 24, 8);
        let asm = &mut self.asm;
        let (no_extension, transport) = (asm.label(), asm.label());
        unless_extension(asm, Reg::R4, no_extension);
        // The packet's own length, without padding.
        asm.copy(Reg::R9, Reg::R1);
        self.extension_headers(transport);
        let asm = &mut self.asm;
        asm.place(no_extension);
        asm.op(Op::Add, Reg::R7, 40);
        asm.place(transport);
        asm.store(Size::Byte, Reg::R10, PACKET + PROTOCOL as i16, Reg::R4);
        asm.jump_if(Op::NotEqual, Reg::R4, 58, ports);
        // ICMPv6.
        asm.jump_if(Op::Below, Reg::R5, 8 + 40, search);
        within(asm, 8 + 40, search);
        asm.load(Size::Byte, Reg::R1, Reg::R7, 0);
        asm.jump_if(Op::Equal, Reg::R1, 0, search);
        asm.jump_if(Op::Above, Reg::R1, 4, search);
        asm.load(Size::Byte, Reg::R1, Reg::R7, 8);
        version_is(asm, 6, search);
        asm.load(Size::Byte, Reg::R4, Reg::R7, 8 + 6);
        let plain = asm.label();
        unless_extension(asm, Reg::R4, plain);
        asm.jump(search);
        asm.place(plain);
        self.quoted(has);
        self.ipv6_addresses(QUOTED, 8 + 8, 8 + 24);
        self.asm.set(Reg::R1, 8 + 40);
        self.quoted_ports(has);
    }

    /// Walks along IPv6 extension headers. R4: the first one's number, R7: the network header, R9:
    /// the packet's bytes from there. Goes to `transport` with R4: protocol, R5: bytes from the
    /// transport header on, R7: that header.
    fn extension_headers(&mut self, transport: Label) {
        let (asm, Labels { search, .. }) = (&mut self.asm, self.labels);
        let (stop, done) = (asm.label(), asm.label());
        asm.store_number(Size::Byte, Reg::R10, IS_FRAGMENT, 0);
        asm.store_number(Size::Half, Reg::R10, EXTENSION_OFFSET, 40);
        for _ in 0..MAX_EXTENSION_HEADERS {
            load_offset(asm, Reg::R1);
            self.attach_point.check_offset(asm, Reg::R1, stop);
            asm.copy(Reg::R5, Reg::R9);
            asm.op_reg(Op::Sub, Reg::R5, Reg::R1);
            asm.jump_if(Op::Below, Reg::R5, 8, stop);
            asm.copy(Reg::R2, Reg::R7);
            asm.op_reg(Op::Add, Reg::R2, Reg::R1);
            asm.copy(Reg::R3, Reg::R2);
            asm.op(Op::Add, Reg::R3, 8);
            asm.jump_if_reg(Op::Above, Reg::R3, Reg::R8, stop);
            // R3: the header's bytes.
            let (is_fragment, is_other, known) = (asm.label(), asm.label(), asm.label());
            asm.load(Size::Byte, Reg::R3, Reg::R2, 1);
            asm.jump_if(Op::Equal, Reg::R4, 44, is_fragment);
            asm.jump_if(Op::NotEqual, Reg::R4, 51, is_other);
            asm.op(Op::Add, Reg::R3, 2);
            asm.op(Op::ShiftLeft, Reg::R3, 2);
            asm.jump(known);
            asm.place(is_fragment);
            asm.set(Reg::R3, 8);
            asm.jump(known);
            asm.place(is_other);
            asm.op(Op::Add, Reg::R3, 1);
            asm.op(Op::ShiftLeft, Reg::R3, 3);
            asm.place(known);
            asm.jump_if_reg(Op::Above, Reg::R3, Reg::R5, stop);
            asm.op_reg(Op::Sub, Reg::R5, Reg::R3);
            asm.op_reg(Op::Add, Reg::R1, Reg::R3);
            asm.store(Size::Half, Reg::R10, EXTENSION_OFFSET, Reg::R1);
            // R0: the next header.
            asm.load(Size::Byte, Reg::R0, Reg::R2, 0);
            let (next, one_packet) = (asm.label(), asm.label());
            asm.jump_if(Op::NotEqual, Reg::R4, 44, next);
            load16(asm, Reg::R3, Reg::R2, 2);
            asm.copy(Reg::R4, Reg::R0);
            // A fragment that holds its whole packet does not count as one (RFC 6946).
            asm.copy(Reg::R1, Reg::R3);
            asm.op(Op::And, Reg::R1, 0xfff9);
            asm.jump_if(Op::Equal, Reg::R1, 0, one_packet);
            asm.store_number(Size::Byte, Reg::R10, IS_FRAGMENT, 1);
            // Behind the header of a later fragment is payload.
            asm.jump_if(Op::Bits, Reg::R3, 0xfff8, stop);
            asm.jump_if(Op::Bits, Reg::R5, 7, stop);
            asm.place(one_packet);
            asm.jump_if(Op::Equal, Reg::R0, 44, stop);
            asm.place(next);
            asm.copy(Reg::R4, Reg::R0);
            unless_extension(asm, Reg::R4, done);
        }
        asm.place(stop);
        asm.store(Size::Byte, Reg::R10, PACKET + PROTOCOL as i16, Reg::R4);
        asm.jump(search);
        asm.place(done);
        asm.load(Size::Byte, Reg::R1, Reg::R10, IS_FRAGMENT);
        asm.jump_if(Op::NotEqual, Reg::R1, 0, stop);
        load_offset(asm, Reg::R1);
        self.attach_point.check_offset(asm, Reg::R1, stop);
        asm.copy(Reg::R5, Reg::R9);
        asm.op_reg(Op::Sub, Reg::R5, Reg::R1);
        asm.op_reg(Op::Add, Reg::R7, Reg::R1);
        asm.jump(transport);
    }

    /// Copies IPv6 addresses.
    fn ipv6_addresses(&mut self, to: i16, local: i16, remote: i16) {
        for (field, from) in [(LOCAL_IP, local), (REMOTE_IP, remote)] {
            for half in [0, 8] {
                self.asm.load(Size::Double, Reg::R0, Reg::R7, from + half);
                self.asm.store(Size::Double, Reg::R10, to + field as i16 + half, Reg::R0);
            }
        }
    }
}

/// Loads the offset of an IPv6 extension header.
fn load_offset(asm: &mut Assembler, to: Reg) {
    asm.load(Size::Half, to, Reg::R10, EXTENSION_OFFSET);
    asm.op(Op::And, to, MAX_OFFSET);
}

/// Goes to `otherwise` unless an IPv6 next header is an extension header.
fn unless_extension(asm: &mut Assembler, reg: Reg, otherwise: Label) {
    let extension = asm.label();
    for number in [0, 43, 44, 51] {
        asm.jump_if(Op::Equal, reg, number, extension);
    }
    asm.jump_if(Op::NotEqual, reg, 60, otherwise);
    asm.place(extension);
}
