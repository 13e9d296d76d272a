//! An interpreter of programs for packets, for tests: it runs a program many millions of times
//! without the kernel, and finds accesses outside of memory and instructions without a meaning.
//!
//! Addresses have the number of their memory in the upper 32 bits, and an offset in the lower ones.

use std::os::fd::RawFd;

use crate::assembler::Instruction;
use crate::program::Verdict;

const CONTEXT: u64 = 1 << 32;
const PACKET: u64 = 2 << 32;
const STACK: u64 = 3 << 32;
/// The value of a map; the memories from this one on are those of values by number.
const VALUES: u64 = 4;
const STACK_BYTES: usize = 512;
/// More instructions than this are an endless loop.
const MOST_STEPS: usize = 100_000;

/// The kernel around a program: its maps, and where it redirects to.
pub trait Kernel {
    /// Returns the bytes of a map's keys.
    fn key_bytes(&self, map: RawFd) -> usize;

    /// Returns the number of a key's value.
    fn lookup(&mut self, map: RawFd, key: &[u8]) -> Option<u32>;

    /// Returns a value by its number.
    fn value(&mut self, number: u32) -> &mut [u8];

    /// Redirects the packet to an entry of a map. Returns `false` if there is none.
    fn redirect(&mut self, map: RawFd, index: u32) -> bool;
}

/// A packet as a program receives it.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a> {
    /// The bytes that the program can read: all, or those in the first buffer.
    pub bytes: &'a [u8],
    /// The bytes of the packet in all buffers.
    pub packet_len: usize,
    /// The hardware queue.
    pub queue: u32,
    /// The attach point of the program.
    pub attach_point: AttachPoint,
}

/// The attach point of a program, which determines its context and its helpers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AttachPoint {
    /// An XDP program.
    #[default]
    Xdp,
    /// A program behind the driver: a socket's filter, or one at an ingress hook.
    Packet {
        /// The protocol and the control field of a VLAN tag that the interface took off.
        tag: Option<(u16, u16)>,
    },
}

/// The outcome of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The verdict.
    pub verdict: Verdict,
    /// The number of instructions.
    pub instructions: usize,
}

/// A fault of a program, at an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("instruction {at}: {what}")]
pub struct Fault {
    /// The instruction's number.
    pub at: usize,
    /// The fault.
    pub what: &'static str,
}

struct Machine<'a, K> {
    kernel: &'a mut K,
    input: Input<'a>,
    stack: [u8; STACK_BYTES],
    /// The stack's bytes that the program has written.
    written: [bool; STACK_BYTES],
    registers: [u64; 11],
}

/// Runs a program.
///
/// # Errors
/// [`Fault`] for what the kernel's verifier would not allow.
pub fn run<K: Kernel>(
    instructions: &[Instruction],
    kernel: &mut K,
    input: Input<'_>,
) -> Result<Run, Fault> {
    let mut registers = [0; 11];
    (registers[1], registers[10]) = (CONTEXT, STACK + STACK_BYTES as u64);
    let (stack, written) = ([0; STACK_BYTES], [false; STACK_BYTES]);
    let mut machine = Machine { kernel, input, stack, written, registers };
    let mut at = 0;
    for step in 1..=MOST_STEPS {
        let fault = |what| Fault { at, what };
        let one = instructions.get(at).ok_or(fault("a jump past the end"))?;
        if one.code == 0x95 {
            let verdict = Verdict::of(machine.registers[0] as u32);
            return Ok(Run { verdict, instructions: step });
        }
        at = machine.step(one, at).map_err(fault)?;
    }
    Err(Fault { at, what: "an endless loop" })
}

impl<K: Kernel> Machine<'_, K> {
    /// Runs one instruction. Returns the number of the next one.
    fn step(&mut self, one: &Instruction, at: usize) -> Result<usize, &'static str> {
        let to = usize::from(one.registers & 0xf);
        let from = usize::from(one.registers >> 4);
        if to > 10 || from > 10 {
            return Err("an unknown register");
        }
        let number = i64::from(one.immediate) as u64;
        let operand = if one.code & 8 == 0 { number } else { self.registers[from] };
        let value = self.registers[to];
        let jumped = (at as i64 + 1 + i64::from(one.offset)) as usize;
        let size = |code| match code & 0x18 {
            0x00 => 4,
            0x08 => 2,
            0x10 => 1,
            _ => 8,
        };
        match one.code {
            // Arithmetic in 64 bits.
            code if code & 7 == 7 => {
                self.registers[to] = calculate(code, value, operand)?;
            }
            0xdc => {
                self.registers[to] = match one.immediate {
                    16 => u64::from((value as u16).to_be()),
                    32 => u64::from((value as u32).to_be()),
                    64 => value.to_be(),
                    _ => return Err("an unknown number of bits"),
                };
            }
            0x18 => {
                self.registers[to] = number & 0xffff_ffff;
                return Ok(at + 2);
            }
            0x05 => return Ok(jumped),
            0x85 => self.call(one.immediate)?,
            code if code & 7 == 5 => {
                return Ok(if holds(code, value, operand)? { jumped } else { at + 1 });
            }
            code if code & 0xe7 == 0x61 => {
                let address = self.registers[from].wrapping_add(i64::from(one.offset) as u64);
                self.registers[to] = self.load(address, size(code))?;
            }
            code if code & 0xe7 == 0x63 || code & 0xe7 == 0x62 => {
                let stored = if code & 7 == 3 { self.registers[from] } else { number };
                let address = value.wrapping_add(i64::from(one.offset) as u64);
                self.store(address, size(code), stored)?;
            }
            0xdb => {
                let address = value.wrapping_add(i64::from(one.offset) as u64);
                let sum = self.load(address, 8)?.wrapping_add(self.registers[from]);
                self.store(address, 8, sum)?;
            }
            _ => return Err("an unknown instruction"),
        }
        Ok(at + 1)
    }

    /// Returns readable memory.
    fn bytes(&mut self, address: u64, len: usize) -> Result<&[u8], &'static str> {
        let (memory, from) = (address >> 32, (address & 0xffff_ffff) as usize);
        let bytes: &[u8] = match memory {
            2 => self.input.bytes,
            3 => {
                let written = self.written.get(from..from + len);
                if !written.is_some_and(|written| written.iter().all(|written| *written)) {
                    return Err("a read of the stack before a write, or outside of it");
                }
                &self.stack
            }
            value if value >= VALUES => self.kernel.value((value - VALUES) as u32),
            _ => return Err("a read of unmapped memory"),
        };
        bytes.get(from..from + len).ok_or("a read outside of memory")
    }

    fn load(&mut self, address: u64, len: usize) -> Result<u64, &'static str> {
        if address >> 32 == CONTEXT >> 32 {
            return match (self.input.attach_point, address & 0xffff_ffff, len) {
                (AttachPoint::Xdp, 0, 4) => Ok(PACKET),
                (AttachPoint::Xdp, 4, 4) => Ok(PACKET + self.input.bytes.len() as u64),
                (AttachPoint::Xdp, 16, 4) => Ok(self.input.queue.into()),
                (AttachPoint::Packet { .. }, 0, 4) => Ok(self.input.packet_len as u64),
                (AttachPoint::Packet { tag }, 20, 4) => Ok(tag.is_some().into()),
                (AttachPoint::Packet { tag: Some((_, control)) }, 24, 4) => Ok(control.into()),
                (AttachPoint::Packet { tag: Some((protocol, _)) }, 28, 4) => {
                    Ok(protocol.to_be().into())
                }
                _ => Err("an unknown field of the context"),
            };
        }
        let bytes = self.bytes(address, len)?;
        let mut word = [0; 8];
        word[..len].copy_from_slice(bytes);
        Ok(u64::from_le_bytes(word))
    }

    fn store(&mut self, address: u64, len: usize, value: u64) -> Result<(), &'static str> {
        let (memory, from) = (address >> 32, (address & 0xffff_ffff) as usize);
        let bytes: &mut [u8] = match memory {
            3 => {
                self.written
                    .get_mut(from..from + len)
                    .ok_or("a write outside of the stack")?
                    .fill(true);
                &mut self.stack
            }
            value if value >= VALUES => self.kernel.value((value - VALUES) as u32),
            _ => return Err("a write to unmapped memory"),
        };
        let bytes = bytes.get_mut(from..from + len).ok_or("a write outside of memory")?;
        bytes.copy_from_slice(&value.to_le_bytes()[..len]);
        Ok(())
    }

    /// Copies bytes of the packet to memory. Returns the helper's result: 0, or -EFAULT as a number
    /// of 64 bits.
    fn copy_packet(&mut self, from: usize, to: u64, len: usize) -> Result<u64, &'static str> {
        if len == 0 {
            return Err("a copy of no bytes");
        }
        let Some(bytes) = self.input.bytes.get(from..from.saturating_add(len)) else {
            return Ok(-i64::from(libc::EFAULT) as u64);
        };
        for (byte, at) in bytes.iter().zip(to..) {
            self.store(at, 1, u64::from(*byte))?;
        }
        Ok(0)
    }

    fn call(&mut self, helper: i32) -> Result<(), &'static str> {
        let [_, first, second, third, fourth, ..] = self.registers;
        let map = first as RawFd;
        let result = match helper {
            // bpf_map_lookup_elem
            1 => {
                let key_bytes = self.kernel.key_bytes(map);
                let key = self.bytes(second, key_bytes)?.to_vec();
                let found = self.kernel.lookup(map, &key);
                found.map_or(0, |number| (u64::from(number) + VALUES) << 32)
            }
            // bpf_skb_load_bytes
            26 if first == CONTEXT && self.input.attach_point != AttachPoint::Xdp => {
                self.copy_packet(second as usize, third, fourth as usize)?
            }
            // bpf_redirect_map: the third argument is the verdict without an entry.
            51 if self.kernel.redirect(map, second as u32) => 4,
            51 => third & 3,
            // bpf_xdp_get_buff_len
            188 if first == CONTEXT => self.input.packet_len as u64,
            _ => return Err("an unknown helper"),
        };
        self.registers[0] = result;
        // What no instruction may read before it writes it.
        self.registers[1..6].fill(u64::MAX);
        Ok(())
    }
}

/// Returns the result of an operation in 64 bits.
fn calculate(code: u8, value: u64, operand: u64) -> Result<u64, &'static str> {
    Ok(match code & 0xf0 {
        0x00 => value.wrapping_add(operand),
        0x10 => value.wrapping_sub(operand),
        0x40 => value | operand,
        0x50 => value & operand,
        0x60 => value.wrapping_shl(operand as u32),
        0x70 => value.wrapping_shr(operand as u32),
        0xb0 => operand,
        _ => return Err("unknown arithmetic"),
    })
}

/// Returns `true` if the condition of a jump holds.
fn holds(code: u8, value: u64, operand: u64) -> Result<bool, &'static str> {
    Ok(match code & 0xf0 {
        0x10 => value == operand,
        0x20 => value > operand,
        0x30 => value >= operand,
        0x40 => value & operand != 0,
        0x50 => value != operand,
        0xa0 => value < operand,
        0xb0 => value <= operand,
        _ => return Err("an unknown condition"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::assembler::{Assembler, Op, Reg, Size};

    struct Nothing;

    impl Kernel for Nothing {
        fn key_bytes(&self, _: RawFd) -> usize {
            4
        }

        fn lookup(&mut self, _: RawFd, _: &[u8]) -> Option<u32> {
            None
        }

        fn value(&mut self, _: u32) -> &mut [u8] {
            &mut []
        }

        fn redirect(&mut self, _: RawFd, _: u32) -> bool {
            false
        }
    }

    fn outcome(build: impl FnOnce(&mut Assembler)) -> Result<Run, Fault> {
        let mut program = Assembler::default();
        build(&mut program);
        program.exit();
        let bytes = [7; 60];
        let input =
            Input { bytes: &bytes, packet_len: 60, queue: 0, attach_point: AttachPoint::Xdp };
        run(&program.finish().unwrap(), &mut Nothing, input)
    }

    #[test]
    fn a_verdict_ends_a_run() {
        let run = outcome(|program| {
            program.load(Size::Word, Reg::R2, Reg::R1, 0);
            program.load(Size::Byte, Reg::R0, Reg::R2, 59);
            program.op(Op::Sub, Reg::R0, 5);
        });
        assert_eq!(run, Ok(Run { verdict: Verdict::Pass, instructions: 4 }));
    }

    #[test]
    fn faults_are_found() {
        let behind = outcome(|program| {
            program.load(Size::Word, Reg::R2, Reg::R1, 0);
            program.load(Size::Half, Reg::R0, Reg::R2, 59);
        });
        assert_eq!(behind, Err(Fault { at: 1, what: "a read outside of memory" }));
        let unwritten = outcome(|program| program.load(Size::Byte, Reg::R0, Reg::R10, -8));
        assert!(unwritten.is_err(), "{unwritten:?}");
        let endless = outcome(|program| {
            let here = program.label();
            program.place(here);
            program.jump(here);
        });
        assert_eq!(endless, Err(Fault { at: 0, what: "an endless loop" }));
    }
}
