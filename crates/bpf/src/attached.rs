//! The programs of an interface, whichever process attached them.

use std::fmt;

use crate::error::Error;
use crate::link::Link;
use crate::program::{ATTACH_TCX_INGRESS, Program, ProgramInfo};
use crate::syscall::{Attribute, Command, call};

/// A program on an interface.
#[derive(Debug)]
pub struct Attached {
    /// The program.
    pub program: ProgramInfo,
    /// The link that attaches it, with the link's number; `None` for a program that was attached by
    /// rtnetlink, as `ip link` does.
    pub link: Option<(u32, Link)>,
}

impl fmt::Display for Attached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ProgramInfo { id, tag, name } = &self.program;
        write!(f, "id {id} \"{name}\", tag {:016x}, ", u64::from_be_bytes(*tag))?;
        match &self.link {
            Some((id, _)) => write!(f, "link {id}"),
            None => f.write_str("without a link"),
        }
    }
}

/// Describes the XDP program of this number on an interface. rtnetlink tells which program an
/// interface has; another network namespace may have an interface of the same number.
///
/// # Errors
/// [`Error::NotPermitted`] without CAP_SYS_ADMIN; [`Error::Refused`] if the program has gone.
pub fn attached(interface: u32, program: u32) -> Result<Attached, Error> {
    let described = Program::by_id(program)?.info()?;
    let mut at = 0;
    while let Some(id) = Link::next_id(at)? {
        at = id;
        // A link may vanish meanwhile.
        let Ok(link) = Link::by_id(id) else { continue };
        let Ok(info) = link.info() else { continue };
        if info.interface == Some(interface) && info.program == program {
            return Ok(Attached { program: described, link: Some((info.id, link)) });
        }
    }
    Ok(Attached { program: described, link: None })
}

/// The most programs of an ingress hook that [`attached_at_ingress`] describes; the kernel has room
/// for 64 (`BPF_MPROG_MAX`).
const MOST_PROGRAMS: usize = 64;

/// The query of a hook's programs and links (`union bpf_attr`).
#[repr(C)]
struct Query {
    interface: u32,
    attach: u32,
    query_flags: u32,
    attach_flags: u32,
    programs: u64,
    count: u32,
    padding: u32,
    program_flags: u64,
    links: u64,
    link_flags: u64,
    revision: u64,
}

// SAFETY: as the trait requires; both arrays are live during `attached_at_ingress`, and have
// `count` entries.
unsafe impl Attribute for Query {}

/// Describes the programs at the ingress hook of an interface of this thread's network namespace,
/// in the order in which they run. Leaves out all of them without CAP_SYS_ADMIN.
///
/// # Errors
/// [`Error::NotPermitted`] without CAP_NET_ADMIN; [`Error::Refused`] if there is no such interface.
pub fn attached_at_ingress(interface: u32) -> Result<Vec<Attached>, Error> {
    let (mut programs, mut links) = ([0u32; MOST_PROGRAMS], [0u32; MOST_PROGRAMS]);
    let mut query = Query {
        interface,
        attach: ATTACH_TCX_INGRESS,
        query_flags: 0,
        attach_flags: 0,
        programs: programs.as_mut_ptr() as u64,
        count: MOST_PROGRAMS as u32,
        padding: 0,
        program_flags: 0,
        links: links.as_mut_ptr() as u64,
        link_flags: 0,
        revision: 0,
    };
    match call(Command::ProgramQuery, &mut query) {
        Ok(_) => {}
        // Linux before 6.6 has no such hook; and a hook without programs is none.
        Err(cause) if matches!(cause.raw_os_error(), Some(libc::EINVAL | libc::ENOENT)) => {
            return Ok(Vec::new());
        }
        Err(cause) => return Err(Error::of("asking for the programs of an ingress hook")(cause)),
    }
    let count = (query.count as usize).min(MOST_PROGRAMS);
    let mut found = Vec::new();
    for (program, link) in programs.into_iter().zip(links).take(count) {
        // Either may vanish meanwhile.
        let Ok(program) = Program::by_id(program).and_then(|program| program.info()) else {
            continue;
        };
        let opened = (link != 0).then(|| Link::by_id(link)).transpose();
        found.push(Attached { program, link: opened.ok().flatten().map(|opened| (link, opened)) });
    }
    Ok(found)
}
