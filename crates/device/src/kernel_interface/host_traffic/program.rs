//! The program that finds the packets of owned flows among those of the loopback interface.
//!
//! It runs in two places. As a filter of the packet socket it keeps these packets, and only these.
//! On the way to the network stack it drops them, since they are an application's. A packet belongs
//! to an owned flow if it is whole, has no IP options, is TCP or UDP, has the same source and
//! destination address, and the address, the protocol and the destination port are in the map.

use towpath_bpf::{AssembleError, Assembler, Instruction, Label, Op, Reg, Size};

/// A key of the map: an address (IPv4 in the first four bytes), protocol, IP version, port in
/// network order, and zeros.
pub(crate) const KEY_BYTES: usize = 24;
pub(crate) const KEY_PROTOCOL: usize = 16;
pub(crate) const KEY_VERSION: usize = 17;
pub(crate) const KEY_PORT: usize = 18;

/// Numbers of the kernel's helpers (`enum bpf_func_id`).
const MAP_LOOKUP: i32 = 1;
const SKB_LOAD_BYTES: i32 = 26;

/// Offsets on the stack, from its end.
const KEY: i16 = -(KEY_BYTES as i16);
const IP: i16 = KEY - 40;
const PORTS: i16 = IP - 4;
const ETHERTYPE: i16 = IP - 8;

/// What the program returns for the packets of owned flows, and for all others.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Verdicts {
    owned: i32,
    other: i32,
}

/// The filter of a socket: all bytes, or none.
pub(crate) const COPY: Verdicts = Verdicts { owned: -1, other: 0 };
/// On the way to the stack: `TC_ACT_SHOT`, or `TCX_NEXT` (`linux/bpf.h`).
pub(crate) const DROP: Verdicts = Verdicts { owned: 2, other: -1 };

/// Returns the program. `map`: the descriptor of its map.
pub(crate) fn assemble(map: i32, verdicts: Verdicts) -> Result<Vec<Instruction>, AssembleError> {
    let mut asm = Assembler::default();
    let (other, ipv6, search) = (asm.label(), asm.label(), asm.label());
    asm.copy(Reg::R6, Reg::R1);
    for at in (0..KEY_BYTES as i16).step_by(8) {
        asm.store_number(Size::Double, Reg::R10, KEY + at, 0);
    }
    load(&mut asm, 12, ETHERTYPE, 2, other);
    asm.load(Size::Half, Reg::R7, Reg::R10, ETHERTYPE);
    asm.big_endian(Reg::R7, 16);
    asm.jump_if(Op::Equal, Reg::R7, 0x86dd, ipv6);
    asm.jump_if(Op::NotEqual, Reg::R7, 0x0800, other);

    load(&mut asm, 14, IP, 20, other);
    asm.load(Size::Byte, Reg::R1, Reg::R10, IP);
    asm.jump_if(Op::NotEqual, Reg::R1, 0x45, other);
    asm.load(Size::Half, Reg::R1, Reg::R10, IP + 6);
    asm.big_endian(Reg::R1, 16);
    // A fragment: more follow, or an offset.
    asm.jump_if(Op::Bits, Reg::R1, 0x3fff, other);
    asm.load(Size::Word, Reg::R1, Reg::R10, IP + 12);
    asm.load(Size::Word, Reg::R2, Reg::R10, IP + 16);
    asm.jump_if_reg(Op::NotEqual, Reg::R1, Reg::R2, other);
    asm.store(Size::Word, Reg::R10, KEY, Reg::R2);
    asm.load(Size::Byte, Reg::R8, Reg::R10, IP + 9);
    asm.store_number(Size::Byte, Reg::R10, KEY + KEY_VERSION as i16, 4);
    load(&mut asm, 34, PORTS, 4, other);
    asm.jump(search);

    asm.place(ipv6);
    load(&mut asm, 14, IP, 40, other);
    for half in [0, 8] {
        asm.load(Size::Double, Reg::R1, Reg::R10, IP + 8 + half);
        asm.load(Size::Double, Reg::R2, Reg::R10, IP + 24 + half);
        asm.jump_if_reg(Op::NotEqual, Reg::R1, Reg::R2, other);
        asm.store(Size::Double, Reg::R10, KEY + half, Reg::R2);
    }
    asm.load(Size::Byte, Reg::R8, Reg::R10, IP + 6);
    asm.store_number(Size::Byte, Reg::R10, KEY + KEY_VERSION as i16, 6);
    load(&mut asm, 54, PORTS, 4, other);

    asm.place(search);
    asm.store(Size::Byte, Reg::R10, KEY + KEY_PROTOCOL as i16, Reg::R8);
    asm.load(Size::Half, Reg::R1, Reg::R10, PORTS + 2);
    asm.store(Size::Half, Reg::R10, KEY + KEY_PORT as i16, Reg::R1);
    asm.load_map(Reg::R1, map);
    asm.copy(Reg::R2, Reg::R10);
    asm.op(Op::Add, Reg::R2, KEY.into());
    asm.call(MAP_LOOKUP);
    asm.jump_if(Op::Equal, Reg::R0, 0, other);
    asm.set(Reg::R0, verdicts.owned);
    asm.exit();
    asm.place(other);
    asm.set(Reg::R0, verdicts.other);
    asm.exit();
    asm.finish()
}

/// Copies bytes of the packet to the stack, or leaves for `otherwise` if it is shorter.
fn load(asm: &mut Assembler, from: i32, to: i16, len: i32, otherwise: Label) {
    asm.copy(Reg::R1, Reg::R6);
    asm.set(Reg::R2, from);
    asm.copy(Reg::R3, Reg::R10);
    asm.op(Op::Add, Reg::R3, to.into());
    asm.set(Reg::R4, len);
    asm.call(SKB_LOAD_BYTES);
    asm.jump_if(Op::NotEqual, Reg::R0, 0, otherwise);
}
