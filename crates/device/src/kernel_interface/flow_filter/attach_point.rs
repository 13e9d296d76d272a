//! The attach points of the program, and what it begins and ends with at each.
//!
//! An XDP program reads the packet itself. Behind the driver, the program first copies the packet's
//! beginning into memory of its own: a socket's filter may not read the packet directly, and an
//! interface may have taken a VLAN tag off.

use towpath_bpf::{AssembleError, Assembler, Instruction, Label, Op, Reg, Size};

use super::stack::{FLOW_OWNER, MATCHED, QUEUE, ZERO_INDEX, lookup};

/// The bytes of a packet's beginning that the program reads behind the driver: as many as the
/// headers' parser.
const BEGINNING_BYTES: i32 = towpath_packet::headers::PREFIX_BYTES as i32;
/// The size of the memory for them. The program's offsets stay below it, for the verifier.
pub(crate) const SCRATCH_BYTES: usize = 512;
const VLAN_TAG_BYTES: i32 = crate::VLAN_TAG_BYTES as i32;
/// The offset of a VLAN tag in a packet, in bytes.
const TAG_OFFSET: i16 = 12;

/// Numbers of the kernel's helpers (`enum bpf_func_id`).
const SKB_LOAD_BYTES: i32 = 26;
const REDIRECT_MAP: i32 = 51;
const XDP_GET_BUFF_LEN: i32 = 188;

/// Offsets in `struct xdp_md`.
const DATA: i16 = 0;
const DATA_END: i16 = 4;
const RX_QUEUE: i16 = 16;

/// Offsets in `struct __sk_buff`.
const LEN: i16 = 0;
const VLAN_PRESENT: i16 = 20;
const VLAN_CONTROL: i16 = 24;
const VLAN_PROTOCOL: i16 = 28;

/// Verdicts (`enum xdp_action`).
const DROP: i32 = 1;
const PASS: i32 = 2;
const REDIRECT: i32 = 4;

/// The counters: packets of owned flows for which there is no socket, and those that arrived on the
/// hardware queue of another session.
pub(super) const WITHOUT_SOCKET: u32 = 0;
pub(super) const OF_OTHER_OWNER: u32 = 1;

/// Where the program runs.
#[derive(Clone, Copy, Debug)]
pub(crate) enum AttachPoint {
    /// In the driver, or as if there.
    Xdp {
        /// The descriptors of the maps of sockets, of their owners, and of counters.
        sockets: i32,
        owners: i32,
        counters: i32,
        /// `true` if the program takes packets in several buffers.
        spans: bool,
    },
    /// Behind the driver: as a filter of a socket, or at the ingress hook.
    Packet {
        /// The descriptor of the map with the memory for the packet's beginning.
        scratch: i32,
        /// What the program returns for packets of owned flows, and for all others.
        owned_verdict: i32,
        other_verdict: i32,
    },
}

impl AttachPoint {
    /// Loads what the program needs; goes to `pass` if there is no mask. Afterwards R6 points to
    /// the masks, R7 to the packet, and R8 to its end; R9 is the number of the packet's bytes.
    pub(super) fn begin(self, asm: &mut Assembler, masks: i32, pass: Label) {
        asm.copy(Reg::R6, Reg::R1);
        match self {
            AttachPoint::Xdp { spans, .. } => begin_xdp(asm, spans),
            AttachPoint::Packet { .. } => {}
        }
        asm.store_number(Size::Word, Reg::R10, ZERO_INDEX, 0);
        lookup(asm, masks, ZERO_INDEX);
        asm.jump_if(Op::Equal, Reg::R0, 0, pass);
        asm.load(Size::Word, Reg::R1, Reg::R0, 0);
        asm.jump_if(Op::Equal, Reg::R1, 0, pass);
        match self {
            AttachPoint::Xdp { .. } => asm.copy(Reg::R6, Reg::R0),
            AttachPoint::Packet { scratch, .. } => begin_packet(asm, scratch, pass),
        }
    }

    /// Goes to `otherwise` if an offset from the network header on is beyond what the program
    /// reads.
    pub(super) fn check_offset(self, asm: &mut Assembler, offset: Reg, otherwise: Label) {
        if let AttachPoint::Packet { .. } = self {
            asm.jump_if(Op::Above, offset, BEGINNING_BYTES, otherwise);
        }
    }

    /// Handles a rule that matches, which R0 points to. On a hardware queue that has an owner,
    /// every matching rule must be the owner's; goes to `next` to see the others. Otherwise the
    /// first one decides.
    pub(super) fn found(self, asm: &mut Assembler, labels: Found) {
        let AttachPoint::Xdp { owners, .. } = self else { return asm.jump(labels.matched) };
        asm.load(Size::Word, Reg::R1, Reg::R0, 0);
        asm.store(Size::Word, Reg::R10, FLOW_OWNER, Reg::R1);
        lookup(asm, owners, QUEUE);
        asm.jump_if(Op::Equal, Reg::R0, 0, labels.matched);
        asm.load(Size::Word, Reg::R1, Reg::R0, 0);
        asm.jump_if(Op::Equal, Reg::R1, 0, labels.matched);
        asm.load(Size::Word, Reg::R2, Reg::R10, FLOW_OWNER);
        asm.jump_if_reg(Op::NotEqual, Reg::R1, Reg::R2, labels.foreign);
        asm.store_number(Size::Word, Reg::R10, MATCHED, 1);
        asm.jump(labels.next);
    }

    /// Goes to `matched` if a rule of the hardware queue's owner matched.
    pub(super) fn if_found(self, asm: &mut Assembler, matched: Label) {
        if let AttachPoint::Xdp { .. } = self {
            asm.load(Size::Word, Reg::R1, Reg::R10, MATCHED);
            asm.jump_if(Op::NotEqual, Reg::R1, 0, matched);
        }
    }

    /// Gives the verdicts.
    pub(super) fn end(self, asm: &mut Assembler, pass: Label, matched: Label, foreign: Label) {
        match self {
            AttachPoint::Xdp { sockets, counters, .. } => {
                asm.place(pass);
                asm.set(Reg::R0, PASS);
                asm.exit();
                asm.place(foreign);
                asm.store_number(Size::Word, Reg::R10, FLOW_OWNER, OF_OTHER_OWNER as i32);
                drop_counted(asm, counters, FLOW_OWNER);
                asm.place(matched);
                redirect(asm, sockets, counters);
            }
            AttachPoint::Packet { owned_verdict, other_verdict, .. } => {
                asm.place(pass);
                asm.set(Reg::R0, other_verdict);
                asm.exit();
                asm.place(matched);
                asm.set(Reg::R0, owned_verdict);
                asm.exit();
            }
        }
    }
}

/// Where the program goes on after a rule that matches.
#[derive(Clone, Copy)]
pub(super) struct Found {
    /// The packet is the application's.
    pub(super) matched: Label,
    /// The packet is not for the owner of its hardware queue.
    pub(super) foreign: Label,
    /// Another rule may match, too.
    pub(super) next: Label,
}

fn begin_xdp(asm: &mut Assembler, spans: bool) {
    if spans {
        asm.call(XDP_GET_BUFF_LEN);
        asm.copy(Reg::R9, Reg::R0);
    }
    asm.load(Size::Word, Reg::R7, Reg::R6, DATA);
    asm.load(Size::Word, Reg::R8, Reg::R6, DATA_END);
    if !spans {
        asm.copy(Reg::R9, Reg::R8);
        asm.op_reg(Op::Sub, Reg::R9, Reg::R7);
    }
    asm.load(Size::Word, Reg::R1, Reg::R6, RX_QUEUE);
    asm.store(Size::Word, Reg::R10, QUEUE, Reg::R1);
    asm.store_number(Size::Word, Reg::R10, MATCHED, 0);
}

/// Copies the packet's beginning, with its VLAN tag. R0: the masks, R6: the context.
fn begin_packet(asm: &mut Assembler, scratch: i32, pass: Label) {
    asm.copy(Reg::R8, Reg::R0);
    lookup(asm, scratch, ZERO_INDEX);
    asm.jump_if(Op::Equal, Reg::R0, 0, pass);
    asm.copy(Reg::R7, Reg::R0);
    asm.load(Size::Word, Reg::R9, Reg::R6, LEN);
    asm.jump_if(Op::Below, Reg::R9, 14, pass);
    let (untagged, copied) = (asm.label(), asm.label());
    asm.load(Size::Word, Reg::R1, Reg::R6, VLAN_PRESENT);
    asm.jump_if(Op::Equal, Reg::R1, 0, untagged);
    asm.set(Reg::R4, TAG_OFFSET.into());
    copy(asm, 0, 0, pass);
    asm.load(Size::Word, Reg::R1, Reg::R6, VLAN_PROTOCOL);
    asm.store(Size::Half, Reg::R7, TAG_OFFSET, Reg::R1);
    asm.load(Size::Word, Reg::R1, Reg::R6, VLAN_CONTROL);
    asm.big_endian(Reg::R1, 16);
    asm.store(Size::Half, Reg::R7, TAG_OFFSET + 2, Reg::R1);
    asm.copy(Reg::R4, Reg::R9);
    asm.op(Op::Sub, Reg::R4, TAG_OFFSET.into());
    asm.op(Op::Add, Reg::R9, VLAN_TAG_BYTES);
    at_most(asm, Reg::R4, BEGINNING_BYTES - i32::from(TAG_OFFSET) - VLAN_TAG_BYTES);
    copy(asm, TAG_OFFSET.into(), i32::from(TAG_OFFSET) + VLAN_TAG_BYTES, pass);
    asm.jump(copied);
    asm.place(untagged);
    asm.copy(Reg::R4, Reg::R9);
    at_most(asm, Reg::R4, BEGINNING_BYTES);
    copy(asm, 0, 0, pass);
    asm.place(copied);
    asm.copy(Reg::R1, Reg::R9);
    at_most(asm, Reg::R1, BEGINNING_BYTES);
    asm.copy(Reg::R6, Reg::R8);
    asm.copy(Reg::R8, Reg::R7);
    asm.op_reg(Op::Add, Reg::R8, Reg::R1);
}

/// Copies R4 bytes of the packet to the scratch memory, or goes to `otherwise`.
fn copy(asm: &mut Assembler, from: i32, to: i32, otherwise: Label) {
    asm.copy(Reg::R1, Reg::R6);
    asm.set(Reg::R2, from);
    asm.copy(Reg::R3, Reg::R7);
    asm.op(Op::Add, Reg::R3, to);
    asm.call(SKB_LOAD_BYTES);
    asm.jump_if(Op::NotEqual, Reg::R0, 0, otherwise);
}

/// Limits a number.
fn at_most(asm: &mut Assembler, number: Reg, most: i32) {
    let fits = asm.label();
    asm.jump_if(Op::NotAbove, number, most, fits);
    asm.set(number, most);
    asm.place(fits);
}

/// Gives a packet to the socket of its hardware queue; without one, drops and counts the packet.
fn redirect(asm: &mut Assembler, sockets: i32, counters: i32) {
    let no_socket = asm.label();
    asm.load(Size::Word, Reg::R2, Reg::R10, QUEUE);
    asm.load_map(Reg::R1, sockets);
    asm.set(Reg::R3, DROP);
    asm.call(REDIRECT_MAP);
    asm.jump_if(Op::NotEqual, Reg::R0, REDIRECT, no_socket);
    asm.exit();
    asm.place(no_socket);
    drop_counted(asm, counters, ZERO_INDEX);
}

/// Drops a packet, and counts it under the index on the stack.
fn drop_counted(asm: &mut Assembler, counters: i32, index: i16) {
    let dropped = asm.label();
    lookup(asm, counters, index);
    asm.jump_if(Op::Equal, Reg::R0, 0, dropped);
    asm.set(Reg::R1, 1);
    asm.add_to_memory(Reg::R0, 0, Reg::R1);
    asm.place(dropped);
    asm.set(Reg::R0, DROP);
    asm.exit();
}

/// Returns the XDP program that takes every packet.
pub(crate) fn assemble_all(sockets: i32, counters: i32) -> Result<Vec<Instruction>, AssembleError> {
    let mut asm = Assembler::default();
    asm.load(Size::Word, Reg::R1, Reg::R1, RX_QUEUE);
    asm.store(Size::Word, Reg::R10, QUEUE, Reg::R1);
    asm.store_number(Size::Word, Reg::R10, ZERO_INDEX, 0);
    redirect(&mut asm, sockets, counters);
    asm.finish()
}
