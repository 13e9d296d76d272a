//! An assembler for BPF instructions (Documentation/bpf/standardization/instruction-set.rst).

use std::os::fd::RawFd;

/// An instruction, as the kernel takes it (`struct bpf_insn`).
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instruction {
    /// The operation.
    pub code: u8,
    /// The destination register in the low half, the source register in the high half.
    pub registers: u8,
    /// An offset: of memory in bytes, or of a jump in instructions.
    pub offset: i16,
    /// A number.
    pub immediate: i32,
}

/// A register.
///
/// A call takes its arguments in R1 to R5, returns its result in R0, and keeps R6 to R9. R10 is the
/// end of the stack frame of 512 bytes.
#[expect(missing_docs, reason = "the names say it")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Reg {
    R0,
    R1,
    R2,
    R3,
    R4,
    R5,
    R6,
    R7,
    R8,
    R9,
    R10,
}

/// The size of a memory access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Size {
    /// 4 bytes.
    Word = 0x00,
    /// 2 bytes.
    Half = 0x08,
    /// 1 byte.
    Byte = 0x10,
    /// 8 bytes.
    Double = 0x18,
}

/// An operation of arithmetic, or the condition of a jump. Numbers are unsigned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Op {
    /// Adds.
    Add = 0x07,
    /// Subtracts.
    Sub = 0x17,
    /// Ands bits.
    And = 0x57,
    /// Ors bits.
    Or = 0x47,
    /// Shifts to the left.
    ShiftLeft = 0x67,
    /// Shifts to the right.
    ShiftRight = 0x77,
    /// Copies.
    Move = 0xb7,
    /// Jumps if equal.
    Equal = 0x15,
    /// Jumps if not equal.
    NotEqual = 0x55,
    /// Jumps if above.
    Above = 0x25,
    /// Jumps if above or equal.
    NotBelow = 0x35,
    /// Jumps if below.
    Below = 0xa5,
    /// Jumps if below or equal.
    NotAbove = 0xb5,
    /// Jumps if a bit of both is set.
    Bits = 0x45,
}

/// A place in a program, to jump to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Label(usize);

/// An error of the program's author.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AssembleError {
    /// A jump to a label that has no place.
    #[error("the jump at instruction {0} has no destination")]
    Unplaced(usize),
    /// A jump over more than 32 767 instructions.
    #[error("the jump at instruction {0} is too far")]
    TooFar(usize),
}

/// The number in an instruction that refers to a map by its descriptor (`BPF_PSEUDO_MAP_FD`).
const PSEUDO_MAP_FD: u8 = 1;

/// A program under construction.
#[derive(Debug, Default)]
pub struct Assembler {
    instructions: Vec<Instruction>,
    /// The place of each label.
    labels: Vec<Option<usize>>,
    /// The jumps, each with its label.
    jumps: Vec<(usize, Label)>,
}

impl Assembler {
    fn emit(&mut self, code: u8, to: Reg, from: u8, offset: i16, immediate: i32) {
        let registers = to as u8 | from << 4;
        self.instructions.push(Instruction { code, registers, offset, immediate });
    }

    /// Makes a label without a place.
    pub fn label(&mut self) -> Label {
        self.labels.push(None);
        Label(self.labels.len() - 1)
    }

    /// Places a label before the next instruction.
    pub fn place(&mut self, label: Label) {
        self.labels[label.0] = Some(self.instructions.len());
    }

    /// Applies an operation to a register and a number, in 64 bits.
    pub fn op(&mut self, op: Op, to: Reg, number: i32) {
        self.emit(op as u8, to, 0, 0, number);
    }

    /// Applies an operation to two registers, in 64 bits.
    pub fn op_reg(&mut self, op: Op, to: Reg, from: Reg) {
        self.emit(op as u8 | 0x08, to, from as u8, 0, 0);
    }

    /// Copies a number to a register.
    pub fn set(&mut self, to: Reg, number: i32) {
        self.op(Op::Move, to, number);
    }

    /// Copies a register.
    pub fn copy(&mut self, to: Reg, from: Reg) {
        self.op_reg(Op::Move, to, from);
    }

    /// Converts the low 16, 32 or 64 bits of a register between big endian and the host's order;
    /// the others become 0.
    pub fn big_endian(&mut self, reg: Reg, bits: i32) {
        self.emit(0xdc, reg, 0, 0, bits);
    }

    /// Loads from memory.
    pub fn load(&mut self, size: Size, to: Reg, address: Reg, offset: i16) {
        self.emit(0x61 | size as u8, to, address as u8, offset, 0);
    }

    /// Stores a register.
    pub fn store(&mut self, size: Size, address: Reg, offset: i16, from: Reg) {
        self.emit(0x63 | size as u8, address, from as u8, offset, 0);
    }

    /// Stores a number.
    pub fn store_number(&mut self, size: Size, address: Reg, offset: i16, number: i32) {
        self.emit(0x62 | size as u8, address, 0, offset, number);
    }

    /// Adds to 64 bits of memory in one step (`BPF_ATOMIC | BPF_ADD`).
    pub fn add_to_memory(&mut self, address: Reg, offset: i16, from: Reg) {
        self.emit(0xdb, address, from as u8, offset, 0);
    }

    /// Jumps.
    pub fn jump(&mut self, to: Label) {
        self.jumps.push((self.instructions.len(), to));
        self.emit(0x05, Reg::R0, 0, 0, 0);
    }

    /// Jumps if a condition holds for a register and a number, in 64 bits.
    pub fn jump_if(&mut self, condition: Op, reg: Reg, number: i32, to: Label) {
        self.jumps.push((self.instructions.len(), to));
        self.emit(condition as u8, reg, 0, 0, number);
    }

    /// Jumps if a condition holds for two registers, in 64 bits.
    pub fn jump_if_reg(&mut self, condition: Op, reg: Reg, other: Reg, to: Label) {
        self.jumps.push((self.instructions.len(), to));
        self.emit(condition as u8 | 0x08, reg, other as u8, 0, 0);
    }

    /// Calls a helper of the kernel by its number (`enum bpf_func_id`).
    pub fn call(&mut self, helper: i32) {
        self.emit(0x85, Reg::R0, 0, 0, helper);
    }

    /// Loads the reference to a map, which takes two instructions.
    pub fn load_map(&mut self, to: Reg, map: RawFd) {
        self.emit(0x18, to, PSEUDO_MAP_FD, 0, map);
        self.emit(0x00, Reg::R0, 0, 0, 0);
    }

    /// Ends the program, which returns R0.
    pub fn exit(&mut self) {
        self.emit(0x95, Reg::R0, 0, 0, 0);
    }

    /// Returns the instructions, with the jumps resolved.
    ///
    /// # Errors
    /// [`AssembleError`] for a jump without destination, or that is too far.
    pub fn finish(mut self) -> Result<Vec<Instruction>, AssembleError> {
        for (at, label) in self.jumps {
            let to = self.labels[label.0].ok_or(AssembleError::Unplaced(at))?;
            // A jump counts from the instruction behind it.
            let distance = to as i64 - at as i64 - 1;
            let offset = i16::try_from(distance).map_err(|_| AssembleError::TooFar(at))?;
            self.instructions[at].offset = offset;
        }
        Ok(self.instructions)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Encodings from the kernel's documentation and `tools/include/linux/filter.h`.
    #[test]
    fn instructions_have_the_kernels_encoding() {
        let mut program = Assembler::default();
        program.set(Reg::R0, 2);
        program.copy(Reg::R6, Reg::R1);
        program.load(Size::Word, Reg::R2, Reg::R1, 4);
        program.store(Size::Double, Reg::R10, -8, Reg::R2);
        program.store_number(Size::Half, Reg::R10, -2, 7);
        program.big_endian(Reg::R3, 16);
        program.op_reg(Op::Add, Reg::R3, Reg::R2);
        program.add_to_memory(Reg::R0, 8, Reg::R1);
        program.call(1);
        program.exit();
        let bytes: Vec<(u8, u8, i16, i32)> = program
            .finish()
            .unwrap()
            .iter()
            .map(|one| (one.code, one.registers, one.offset, one.immediate))
            .collect();
        let expected = [
            (0xb7, 0x00, 0, 2),
            (0xbf, 0x16, 0, 0),
            (0x61, 0x12, 4, 0),
            (0x7b, 0x2a, -8, 0),
            (0x6a, 0x0a, -2, 7),
            (0xdc, 0x03, 0, 16),
            (0x0f, 0x23, 0, 0),
            (0xdb, 0x10, 8, 0),
            (0x85, 0x00, 0, 1),
            (0x95, 0x00, 0, 0),
        ];
        assert_eq!(bytes, expected);
    }

    #[test]
    fn jumps_count_from_the_next_instruction() {
        let mut program = Assembler::default();
        let (end, start) = (program.label(), program.label());
        program.place(start);
        program.jump_if(Op::Equal, Reg::R1, 5, end);
        program.jump_if_reg(Op::Above, Reg::R1, Reg::R2, start);
        program.jump(end);
        program.place(end);
        program.exit();
        let offsets: Vec<i16> = program.finish().unwrap().iter().map(|one| one.offset).collect();
        assert_eq!(offsets, [2, -2, 0, 0]);
    }

    #[test]
    fn a_jump_needs_a_destination_in_reach() {
        let mut program = Assembler::default();
        let nowhere = program.label();
        program.jump(nowhere);
        assert_eq!(program.finish(), Err(AssembleError::Unplaced(0)));
        let mut program = Assembler::default();
        let far = program.label();
        program.jump(far);
        for _ in 0..40_000 {
            program.set(Reg::R0, 0);
        }
        program.place(far);
        program.exit();
        assert_eq!(program.finish(), Err(AssembleError::TooFar(0)));
    }
}
