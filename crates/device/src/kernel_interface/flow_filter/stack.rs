//! The stack of the program: what lies at which offset from its end.

use towpath_bpf::{Assembler, Op, Reg};

use super::key::{FIELDS_BYTES, KEY_BYTES};

/// `bpf_map_lookup_elem` (`enum bpf_func_id`).
const MAP_LOOKUP: i32 = 1;

/// The key of a lookup, and the fields of the packet and of the one that it quotes.
pub(super) const LOOKUP_KEY: i16 = -(KEY_BYTES as i16);
pub(super) const PACKET: i16 = LOOKUP_KEY - FIELDS_BYTES as i16;
pub(super) const QUOTED: i16 = PACKET - FIELDS_BYTES as i16;
/// The hardware queue.
pub(super) const QUEUE: i16 = QUOTED - 8;
/// 1 if the packet quotes another one.
pub(super) const HAS_QUOTED: i16 = QUOTED - 4;
/// 1 for an IPv6 fragment.
pub(super) const IS_FRAGMENT: i16 = QUOTED - 12;
/// The offset of an IPv6 extension header. Not 8-byte aligned: at an aligned slot the verifier
/// tracks each value, and checks the rest of the program once per value.
pub(super) const EXTENSION_OFFSET: i16 = QUOTED - 14;
/// 1 if a rule of the hardware queue's owner matches. Not 8-byte aligned, for the same reason.
pub(super) const MATCHED: i16 = QUOTED - 20;
/// The owner of the flow of a rule that matches, or an index into a map.
pub(super) const FLOW_OWNER: i16 = QUOTED - 28;
/// An index into a map of one entry.
pub(super) const ZERO_INDEX: i16 = QUOTED - 24;

/// Looks a key on the stack up in a map.
pub(super) fn lookup(asm: &mut Assembler, map: i32, key: i16) {
    asm.load_map(Reg::R1, map);
    asm.copy(Reg::R2, Reg::R10);
    asm.op(Op::Add, Reg::R2, key.into());
    asm.call(MAP_LOOKUP);
}
