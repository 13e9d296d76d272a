//! The XDP program of an interface, whichever process attached it.

use std::fmt;

use crate::error::Error;
use crate::link::Link;
use crate::program::{Program, ProgramInfo};

/// An XDP program on an interface.
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
