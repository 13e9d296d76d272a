//! The copy as vector moves of x86-64.
//!
//! Copies of 16 to 128 bytes are moves of SSE2, which every x86-64 has: from the front and from the
//! end, overlapping in the middle, as glibc's `memcpy` makes them. All loads come before all
//! stores. Longer copies are loops over the widest moves that the processor has. The first such
//! copy chooses the loop.
//!
//! Unsafe lives here for assembly on addresses.

use core::arch::asm;
use core::arch::x86_64::{__cpuid_count, CpuidResult};
use core::sync::atomic::{AtomicU8, Ordering};

/// Bytes that the loops move per round at most; they need a longer copy than this.
pub(super) const ROUND_BYTES: usize = 128;

/// Copies `len` bytes.
///
/// # Safety
/// As [`super::copy`].
#[inline(always)]
pub(super) unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    if len > 64 {
        if len > ROUND_BYTES {
            // SAFETY: the caller's promise; longer than a round.
            return unsafe { long(from, to, len) };
        }
        // SAFETY: all moves are inside, since 64 < len <= 128; the rest is the caller's promise.
        unsafe {
            asm!(
                "movups {a}, [{from}]",
                "movups {b}, [{from} + 16]",
                "movups {c}, [{from} + 32]",
                "movups {d}, [{from} + 48]",
                "movups {e}, [{from} + {len} - 64]",
                "movups {f}, [{from} + {len} - 48]",
                "movups {g}, [{from} + {len} - 32]",
                "movups {h}, [{from} + {len} - 16]",
                "movups [{to}], {a}",
                "movups [{to} + 16], {b}",
                "movups [{to} + 32], {c}",
                "movups [{to} + 48], {d}",
                "movups [{to} + {len} - 64], {e}",
                "movups [{to} + {len} - 48], {f}",
                "movups [{to} + {len} - 32], {g}",
                "movups [{to} + {len} - 16], {h}",
                from = in(reg) from, to = in(reg) to, len = in(reg) len,
                a = out(xmm_reg) _, b = out(xmm_reg) _, c = out(xmm_reg) _, d = out(xmm_reg) _,
                e = out(xmm_reg) _, f = out(xmm_reg) _, g = out(xmm_reg) _, h = out(xmm_reg) _,
                options(nostack, preserves_flags),
            );
        }
    } else if len > 32 {
        // SAFETY: all moves are inside, since 32 < len <= 64; the rest is the caller's promise.
        unsafe {
            asm!(
                "movups {a}, [{from}]",
                "movups {b}, [{from} + 16]",
                "movups {c}, [{from} + {len} - 32]",
                "movups {d}, [{from} + {len} - 16]",
                "movups [{to}], {a}",
                "movups [{to} + 16], {b}",
                "movups [{to} + {len} - 32], {c}",
                "movups [{to} + {len} - 16], {d}",
                from = in(reg) from, to = in(reg) to, len = in(reg) len,
                a = out(xmm_reg) _, b = out(xmm_reg) _, c = out(xmm_reg) _, d = out(xmm_reg) _,
                options(nostack, preserves_flags),
            );
        }
    } else if len >= 16 {
        // SAFETY: both moves of 16 bytes are inside, since 16 <= len <= 32; the rest is the
        // caller's promise.
        unsafe {
            asm!(
                "movups {a}, [{from}]",
                "movups {b}, [{from} + {len} - 16]",
                "movups [{to}], {a}",
                "movups [{to} + {len} - 16], {b}",
                from = in(reg) from, to = in(reg) to, len = in(reg) len,
                a = out(xmm_reg) _, b = out(xmm_reg) _,
                options(nostack, preserves_flags),
            );
        }
    } else if len > 0 {
        // SAFETY: the caller's promise.
        unsafe { short(from, to, len) };
    }
}

/// Copies `len` bytes in ascending order. x86-64 makes stores visible in the order of the program,
/// and none of those below crosses a multiple of its own length. A store of 16 bytes may become
/// visible as two of 8 bytes.
///
/// # Safety
/// As [`super::copy`].
#[inline(never)]
pub(super) unsafe fn copy_in_order(from: *const u8, to: *mut u8, len: usize) {
    let mut at = to.align_offset(16).min(len);
    // SAFETY: each move is inside: up to `at`, then 16 bytes while as many are left, and then the
    // rest; the last rest is the caller's promise.
    unsafe {
        by_word(from, to, at);
        let rounds = (len - at) / 64;
        if rounds > 0 {
            asm!(
                ".p2align 4",
                "2:",
                "movups {a}, [{from}]",
                "movups {b}, [{from} + 16]",
                "movups {c}, [{from} + 32]",
                "movups {d}, [{from} + 48]",
                "add {from}, 64",
                "movaps [{to}], {a}",
                "movaps [{to} + 16], {b}",
                "movaps [{to} + 32], {c}",
                "movaps [{to} + 48], {d}",
                "add {to}, 64",
                "dec {rounds}",
                "jnz 2b",
                from = inout(reg) from.add(at) => _, to = inout(reg) to.add(at) => _,
                rounds = inout(reg) rounds => _,
                a = out(xmm_reg) _, b = out(xmm_reg) _, c = out(xmm_reg) _, d = out(xmm_reg) _,
                options(nostack),
            );
            at += rounds * 64;
        }
        by_word(from.add(at), to.add(at), len - at);
    }
}

/// Copies `len` bytes in ascending order, by aligned words where possible.
///
/// # Safety
/// As [`super::copy`].
#[inline(always)]
unsafe fn by_word(from: *const u8, to: *mut u8, len: usize) {
    let mut at = 0;
    while at < len {
        // SAFETY: at < len; the rest is the caller's promise.
        let (from, to) = unsafe { (from.add(at), to.add(at)) };
        if to.addr().is_multiple_of(8) && len - at >= 8 {
            // SAFETY: at + 8 <= len; the rest is the caller's promise.
            unsafe {
                asm!(
                    "mov {a}, [{from}]", "mov [{to}], {a}",
                    from = in(reg) from, to = in(reg) to, a = out(reg) _,
                    options(nostack, preserves_flags),
                );
            }
            at += 8;
        } else {
            // SAFETY: at + 1 <= len; the rest is the caller's promise.
            unsafe {
                asm!(
                    "movzx {a:e}, byte ptr [{from}]", "mov [{to}], {a:l}",
                    from = in(reg) from, to = in(reg) to, a = out(reg) _,
                    options(nostack, preserves_flags),
                );
            }
            at += 1;
        }
    }
}

/// Copies fewer than 16 bytes.
///
/// # Safety
/// As [`super::copy`], and `len` is below 16.
#[inline(never)]
unsafe fn short(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: every move is inside: two of 8 bytes from 8 on, two of 4 from 4 on, two of 2 from 2
    // on, and one of 1; the rest is the caller's promise.
    unsafe {
        match len {
            8.. => asm!(
                "mov {a}, [{from}]",
                "mov {b}, [{from} + {len} - 8]",
                "mov [{to}], {a}",
                "mov [{to} + {len} - 8], {b}",
                from = in(reg) from, to = in(reg) to, len = in(reg) len,
                a = out(reg) _, b = out(reg) _,
                options(nostack, preserves_flags),
            ),
            4.. => asm!(
                "mov {a:e}, [{from}]",
                "mov {b:e}, [{from} + {len} - 4]",
                "mov [{to}], {a:e}",
                "mov [{to} + {len} - 4], {b:e}",
                from = in(reg) from, to = in(reg) to, len = in(reg) len,
                a = out(reg) _, b = out(reg) _,
                options(nostack, preserves_flags),
            ),
            2.. => asm!(
                "movzx {a:e}, word ptr [{from}]",
                "movzx {b:e}, word ptr [{from} + {len} - 2]",
                "mov [{to}], {a:x}",
                "mov [{to} + {len} - 2], {b:x}",
                from = in(reg) from, to = in(reg) to, len = in(reg) len,
                a = out(reg) _, b = out(reg) _,
                options(nostack, preserves_flags),
            ),
            1 => asm!(
                "movzx {a:e}, byte ptr [{from}]",
                "mov [{to}], {a:l}",
                from = in(reg) from, to = in(reg) to, a = out(reg) _,
                options(nostack, preserves_flags),
            ),
            0 => {}
        }
    }
}

/// Values of [`LOOP`]: not yet detected, or the width of the processor's moves.
const UNKNOWN: u8 = 0;
const SSE2: u8 = 1;
const AVX: u8 = 2;
const AVX512: u8 = 3;

/// The loop in use. All threads detect the same processor, and so the same loop.
static LOOP: AtomicU8 = AtomicU8::new(UNKNOWN);

/// Copies more than [`ROUND_BYTES`] bytes.
///
/// # Safety
/// As [`super::copy`], and `len` is more than [`ROUND_BYTES`].
#[inline(never)]
unsafe fn long(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: the caller's promise; `widest` asked the processor for the instructions.
    unsafe {
        match LOOP.load(Ordering::Relaxed) {
            AVX512 => by_64(from, to, len),
            AVX => by_32(from, to, len),
            SSE2 => by_16(from, to, len),
            _ => {
                LOOP.store(widest(), Ordering::Relaxed);
                long(from, to, len);
            }
        }
    }
}

/// Returns what `cpuid` says for a leaf, and its first subleaf where there are several.
#[allow(unused_unsafe, reason = "the function is unsafe in older versions of Rust")]
fn cpuid(leaf: u32) -> CpuidResult {
    // SAFETY: each processor of x86-64 has the instruction.
    unsafe { __cpuid_count(leaf, 0) }
}

/// Detects the widest moves that the processor has and whose registers the operating system saves.
/// This chooses moves of 64 bytes only where `rep movsb` is fast for short copies, which came with
/// Ice Lake. Earlier processors run slower for a while after such moves.
#[cold]
fn widest() -> u8 {
    let basic = cpuid(1);
    const OSXSAVE: u32 = 1 << 27;
    const AVX_THERE: u32 = 1 << 28;
    if basic.ecx & (OSXSAVE | AVX_THERE) != OSXSAVE | AVX_THERE {
        return SSE2;
    }
    let kept: u32;
    // SAFETY: OSXSAVE says that the processor has the instruction, which reads a register.
    unsafe {
        asm!(
            "xgetbv", in("ecx") 0, out("eax") kept, out("edx") _,
            options(nomem, nostack, preserves_flags),
        );
    }
    // XCR0: bits 1 and 2 for SSE and AVX; 5 to 7 for AVX-512's registers (Intel SDM volume 1,
    // 13.3).
    if kept & 0b110 != 0b110 {
        return SSE2;
    }
    let more = if cpuid(0).eax >= 7 { cpuid(7) } else { return AVX };
    const AVX512F: u32 = 1 << 16;
    const FAST_SHORT_REP_MOVSB: u32 = 1 << 4;
    let wide = more.ebx & AVX512F != 0 && more.edx & FAST_SHORT_REP_MOVSB != 0;
    if wide && kept & 0b1110_0110 == 0b1110_0110 { AVX512 } else { AVX }
}

/// Returns all loops that this processor can run.
#[cfg(test)]
pub(super) fn long_routines() -> Vec<unsafe fn(*const u8, *mut u8, usize)> {
    let all: [unsafe fn(*const u8, *mut u8, usize); 3] = [by_16, by_32, by_64];
    all[..usize::from(widest())].to_vec()
}

/// # Safety
/// As [`long`].
unsafe fn by_16(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: the loop stores at `to` from its start on, 64 bytes per round, while `to` is before
    // `end`, which is 64 bytes before the range's end. The last 64 bytes are stored from `end` on.
    // The loads are likewise.
    unsafe {
        asm!(
            "movups {e}, [{from} + {len} - 64]",
            "movups {f}, [{from} + {len} - 48]",
            "movups {g}, [{from} + {len} - 32]",
            "movups {h}, [{from} + {len} - 16]",
            "lea {end}, [{to} + {len} - 64]",
            ".p2align 4",
            "2:",
            "movups {a}, [{from}]",
            "movups {b}, [{from} + 16]",
            "movups {c}, [{from} + 32]",
            "movups {d}, [{from} + 48]",
            "add {from}, 64",
            "movups [{to}], {a}",
            "movups [{to} + 16], {b}",
            "movups [{to} + 32], {c}",
            "movups [{to} + 48], {d}",
            "add {to}, 64",
            "cmp {to}, {end}",
            "jb 2b",
            "movups [{end}], {e}",
            "movups [{end} + 16], {f}",
            "movups [{end} + 32], {g}",
            "movups [{end} + 48], {h}",
            from = inout(reg) from => _, to = inout(reg) to => _,
            len = in(reg) len, end = out(reg) _,
            a = out(xmm_reg) _, b = out(xmm_reg) _, c = out(xmm_reg) _, d = out(xmm_reg) _,
            e = out(xmm_reg) _, f = out(xmm_reg) _, g = out(xmm_reg) _, h = out(xmm_reg) _,
            options(nostack),
        );
    }
}

/// # Safety
/// As [`long`], and the processor has AVX.
unsafe fn by_32(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: the first 32 and the last 128 bytes are moved separately. Between them `to` is
    // rounded up to the next multiple of 32 bytes, at most 32 further. The loop stores 128 bytes
    // per round while `to` is before `end`, which is 128 bytes before the range's end. The loads
    // are likewise.
    unsafe {
        asm!(
            "vmovups ymm8, [{from}]",
            "vmovups ymm4, [{from} + {len} - 128]",
            "vmovups ymm5, [{from} + {len} - 96]",
            "vmovups ymm6, [{from} + {len} - 64]",
            "vmovups ymm7, [{from} + {len} - 32]",
            "lea {end}, [{to} + {len} - 128]",
            "vmovups [{to}], ymm8",
            "sub {from}, {to}",
            "or {to}, 31",
            "inc {to}",
            "add {from}, {to}",
            "cmp {to}, {end}",
            "jae 3f",
            ".p2align 4",
            "2:",
            "vmovups ymm0, [{from}]",
            "vmovups ymm1, [{from} + 32]",
            "vmovups ymm2, [{from} + 64]",
            "vmovups ymm3, [{from} + 96]",
            "sub {from}, -128",
            "vmovaps [{to}], ymm0",
            "vmovaps [{to} + 32], ymm1",
            "vmovaps [{to} + 64], ymm2",
            "vmovaps [{to} + 96], ymm3",
            "sub {to}, -128",
            "cmp {to}, {end}",
            "jb 2b",
            "3:",
            "vmovups [{end}], ymm4",
            "vmovups [{end} + 32], ymm5",
            "vmovups [{end} + 64], ymm6",
            "vmovups [{end} + 96], ymm7",
            "vzeroupper",
            from = inout(reg) from => _, to = inout(reg) to => _,
            len = in(reg) len, end = out(reg) _,
            out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _, out("xmm4") _,
            out("xmm5") _, out("xmm6") _, out("xmm7") _, out("xmm8") _,
            options(nostack),
        );
    }
}

/// # Safety
/// As [`long`], and the processor has AVX-512F.
unsafe fn by_64(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: as in `by_32`, with 64 in place of 32 bytes.
    unsafe {
        asm!(
            "vmovups zmm4, [{from}]",
            "vmovups zmm2, [{from} + {len} - 128]",
            "vmovups zmm3, [{from} + {len} - 64]",
            "lea {end}, [{to} + {len} - 128]",
            "vmovups [{to}], zmm4",
            "sub {from}, {to}",
            "or {to}, 63",
            "inc {to}",
            "add {from}, {to}",
            "cmp {to}, {end}",
            "jae 3f",
            ".p2align 4",
            "2:",
            "vmovups zmm0, [{from}]",
            "vmovups zmm1, [{from} + 64]",
            "sub {from}, -128",
            "vmovaps [{to}], zmm0",
            "vmovaps [{to} + 64], zmm1",
            "sub {to}, -128",
            "cmp {to}, {end}",
            "jb 2b",
            "3:",
            "vmovups [{end}], zmm2",
            "vmovups [{end} + 64], zmm3",
            "vzeroupper",
            from = inout(reg) from => _, to = inout(reg) to => _,
            len = in(reg) len, end = out(reg) _,
            out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _, out("xmm4") _,
            options(nostack),
        );
    }
}
