//! The few commands of bpf(2) that a driver needs (`include/uapi/linux/bpf.h`): to assemble and
//! load a program, to fill its maps, and to attach it to an interface.
//!
//! No compiler is involved. [`Assembler`] makes the instructions, and the kernel's verifier checks
//! them.
//!
//! | type | is |
//! |---|---|
//! | [`Assembler`] | a program under construction, with labels |
//! | [`Map`] | a table that the program and this process share |
//! | [`Program`] | a loaded program |
//! | [`Link`] | the attachment of a program to an interface; it ends with its last descriptor |
//! | `interpreter` | runs a program without the kernel, for tests (feature `interpreter`) |

mod assembler;
mod attached;
mod error;
#[cfg(any(test, feature = "interpreter"))]
pub mod interpreter;
mod link;
mod map;
mod program;
mod syscall;

pub use assembler::{AssembleError, Assembler, Instruction, Label, Op, Reg, Size};
pub use attached::{Attached, attached, attached_at_ingress};
pub use error::Error;
pub use link::{Link, XdpMode};
pub use map::{Map, MapKind};
pub use program::{Program, ProgramInfo, TestRun, Verdict};

/// The Linux version from which interfaces have an ingress hook for programs (TCX).
pub const INGRESS_HOOK_SINCE: (u32, u32) = (6, 6);

/// Returns the first two numbers of the kernel's version.
#[must_use]
pub fn kernel_version() -> (u32, u32) {
    let name = rustix::system::uname();
    let release = name.release().to_string_lossy();
    let mut numbers = release.split(['.', '-']).map(|part| part.parse::<u32>().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}
