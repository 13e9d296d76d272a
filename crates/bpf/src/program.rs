//! Programs.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use crate::assembler::Instruction;
use crate::error::Error;
use crate::syscall::{Attribute, Command, call, call_for_fd, info_of, name, u32_at};

/// `BPF_PROG_TYPE_SOCKET_FILTER`, `BPF_PROG_TYPE_SCHED_CLS` and `BPF_PROG_TYPE_XDP`.
const TYPE_SOCKET_FILTER: u32 = 1;
const TYPE_CLASSIFIER: u32 = 3;
const TYPE_XDP: u32 = 6;
/// `BPF_XDP` and `BPF_TCX_INGRESS`, the attach types.
const ATTACH_XDP: u32 = 37;
pub(crate) const ATTACH_TCX_INGRESS: u32 = 46;
/// `BPF_F_XDP_HAS_FRAGS` (Linux 5.18): the program takes packets in several buffers.
const HAS_FRAGS: u32 = 1 << 5;
/// The size of the verifier's log, in bytes, and of the part of it that an error shows.
const LOG_BYTES: usize = 64 << 10;
const SHOWN_LOG_BYTES: usize = 2048;
/// The licence of the programs. Without one that is compatible with the GPL, the kernel refuses
/// some helpers.
const LICENCE: &std::ffi::CStr = c"Dual MIT/GPL";

/// A loaded program.
#[derive(Debug)]
pub struct Program {
    fd: OwnedFd,
}

/// The identity of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramInfo {
    /// The kernel's number.
    pub id: u32,
    /// A hash of the instructions.
    pub tag: [u8; 8],
    /// The name, at most 15 bytes.
    pub name: String,
}

/// What an XDP program does with a packet (`enum xdp_action`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Verdict {
    /// The program failed.
    Aborted,
    /// The packet is dropped.
    Drop,
    /// The packet goes on to the kernel.
    Pass,
    /// The packet leaves by its interface.
    Transmit,
    /// The packet goes to a socket or another interface.
    Redirect,
}

impl Verdict {
    /// Returns the verdict of a program's return value; an unknown one counts as aborted, as in the
    /// kernel.
    #[must_use]
    pub fn of(value: u32) -> Verdict {
        match value {
            1 => Verdict::Drop,
            2 => Verdict::Pass,
            3 => Verdict::Transmit,
            4 => Verdict::Redirect,
            _ => Verdict::Aborted,
        }
    }
}

/// The outcome of [`Program::test_run`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TestRun {
    /// The program's verdict.
    pub verdict: Verdict,
    /// The mean time of a run, in nanoseconds.
    pub nanoseconds: u32,
}

#[repr(C)]
struct Load {
    kind: u32,
    count: u32,
    instructions: u64,
    licence: u64,
    log_level: u32,
    log_bytes: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
    name: [u8; 16],
    interface: u32,
    attach: u32,
}

// SAFETY: as the trait requires; instructions, licence and log are live during `Program::load`.
unsafe impl Attribute for Load {}

#[repr(C)]
struct Test {
    program: u32,
    verdict: u32,
    bytes_in: u32,
    bytes_out: u32,
    data_in: u64,
    data_out: u64,
    repeat: u32,
    duration: u32,
}

// SAFETY: as the trait requires; the input is live during `Program::test_run`, and there is no
// output.
unsafe impl Attribute for Test {}

#[repr(C)]
struct ById {
    id: u32,
    next: u32,
    flags: u32,
}

// SAFETY: as the trait requires; it has no pointers.
unsafe impl Attribute for ById {}

/// A program's descriptor, which another process held.
impl From<OwnedFd> for Program {
    fn from(fd: OwnedFd) -> Program {
        Program { fd }
    }
}

impl Program {
    /// Loads an XDP program. `frags`: it takes packets in several buffers.
    ///
    /// # Errors
    /// [`Error::NotPermitted`] without CAP_BPF and CAP_NET_ADMIN; [`Error::Rejected`] with the end
    /// of the verifier's log.
    pub fn load_xdp(
        program_name: &str,
        instructions: &[Instruction],
        frags: bool,
    ) -> Result<Program, Error> {
        let flags = if frags { HAS_FRAGS } else { 0 };
        Program::load(TYPE_XDP, ATTACH_XDP, flags, program_name, instructions)
    }

    /// Loads a program that decides for each packet which a socket might receive, how many of its
    /// bytes the socket gets (socket(7), `SO_ATTACH_BPF`).
    ///
    /// # Errors
    /// As [`Program::load_xdp`].
    pub fn load_socket_filter(
        program_name: &str,
        instructions: &[Instruction],
    ) -> Result<Program, Error> {
        Program::load(TYPE_SOCKET_FILTER, 0, 0, program_name, instructions)
    }

    /// Loads a program for the packets that an interface has received (Linux 6.6).
    ///
    /// # Errors
    /// As [`Program::load_xdp`].
    pub fn load_ingress(
        program_name: &str,
        instructions: &[Instruction],
    ) -> Result<Program, Error> {
        Program::load(TYPE_CLASSIFIER, ATTACH_TCX_INGRESS, 0, program_name, instructions)
    }

    fn load(
        kind: u32,
        attach: u32,
        flags: u32,
        program_name: &str,
        instructions: &[Instruction],
    ) -> Result<Program, Error> {
        let mut attribute = Load {
            kind,
            count: instructions.len() as u32,
            instructions: instructions.as_ptr() as u64,
            licence: LICENCE.as_ptr() as u64,
            log_level: 0,
            log_bytes: 0,
            log: 0,
            kernel_version: 0,
            flags,
            name: name(program_name),
            interface: 0,
            attach,
        };
        let cause = match call_for_fd(Command::ProgramLoad, &mut attribute) {
            Ok(fd) => return Ok(Program { fd }),
            Err(cause) if matches!(cause.raw_os_error(), Some(libc::EPERM)) => {
                return Err(Error::of("loading a BPF program")(cause));
            }
            Err(cause) => cause,
        };
        // The log costs time, so only a second attempt writes it.
        let mut log = vec![0; LOG_BYTES];
        attribute.log_level = 1;
        attribute.log_bytes = LOG_BYTES as u32;
        attribute.log = log.as_mut_ptr() as u64;
        match call_for_fd(Command::ProgramLoad, &mut attribute) {
            Ok(fd) => Ok(Program { fd }),
            Err(_) => {
                let end = log.iter().position(|byte| *byte == 0).unwrap_or(LOG_BYTES);
                let shown = &log[end.saturating_sub(SHOWN_LOG_BYTES)..end];
                Err(Error::Rejected { cause, log: String::from_utf8_lossy(shown).into_owned() })
            }
        }
    }

    /// Returns the same program, by a descriptor of its own.
    ///
    /// # Errors
    /// If the process has no room for a descriptor.
    pub fn try_clone(&self) -> std::io::Result<Program> {
        Ok(Program { fd: self.fd.try_clone()? })
    }

    /// Opens a program by its number.
    ///
    /// # Errors
    /// [`Error::NotPermitted`] without CAP_SYS_ADMIN; [`Error::Refused`] if there is none.
    pub(crate) fn by_id(id: u32) -> Result<Program, Error> {
        let mut attribute = ById { id, next: 0, flags: 0 };
        let opened = call_for_fd(Command::ProgramById, &mut attribute);
        Ok(Program { fd: opened.map_err(Error::of("opening a BPF program by its id"))? })
    }

    /// Returns the program's identity.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn info(&self) -> Result<ProgramInfo, Error> {
        let info =
            info_of::<80>(self.fd.as_raw_fd()).map_err(Error::of("asking for a BPF program"))?;
        let tag = info[8..16].first_chunk().copied().unwrap_or_default();
        let name = info[64..80].iter().copied().take_while(|byte| *byte != 0).collect();
        let name = String::from_utf8(name).unwrap_or_default();
        Ok(ProgramInfo { id: u32_at(&info, 4), tag, name })
    }

    /// Runs the program on a packet of at least 14 bytes, `repeat` times (`BPF_PROG_TEST_RUN`). The
    /// packet seems to come from hardware queue 0 of the loopback interface.
    ///
    /// # Errors
    /// [`Error::Refused`] for a packet that is too short or longer than a page.
    pub fn test_run(&self, packet: &[u8], repeat: u32) -> Result<TestRun, Error> {
        let mut attribute = Test {
            program: self.fd.as_raw_fd() as u32,
            verdict: 0,
            bytes_in: packet.len() as u32,
            bytes_out: 0,
            data_in: packet.as_ptr() as u64,
            data_out: 0,
            repeat,
            duration: 0,
        };
        call(Command::ProgramTestRun, &mut attribute).map_err(Error::of("testing a program"))?;
        let Test { verdict, duration, .. } = attribute;
        Ok(TestRun { verdict: Verdict::of(verdict), nanoseconds: duration })
    }
}

impl AsFd for Program {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
