//! The XDP program of an interface, whoever attached it.

use std::fmt;

use crate::error::Error;
use crate::link::Link;
use crate::program::{Program, ProgramInfo};

/// An XDP program that a link attaches to an interface.
#[derive(Debug)]
pub struct Attached {
    /// The program.
    pub program: ProgramInfo,
    /// The link's number.
    pub link_id: u32,
    /// The link.
    pub link: Link,
}

impl fmt::Display for Attached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ProgramInfo { id, tag, name } = &self.program;
        write!(
            f,
            "id {id} \"{name}\", tag {:016x}, link {}",
            u64::from_be_bytes(*tag),
            self.link_id
        )
    }
}

/// Returns the XDP program that a link attaches to an interface; `None` if no link does. A program
/// attached by rtnetlink, without a link, has none.
///
/// # Errors
/// [`Error::NotPermitted`] without CAP_SYS_ADMIN.
pub fn attached(interface: u32) -> Result<Option<Attached>, Error> {
    let mut at = 0;
    while let Some(id) = Link::next_id(at)? {
        at = id;
        // A link may vanish meanwhile.
        let Ok(link) = Link::by_id(id) else { continue };
        let Ok(info) = link.info() else { continue };
        if info.interface == Some(interface) {
            let program = Program::by_id(info.program)?.info()?;
            return Ok(Some(Attached { program, link_id: info.id, link }));
        }
    }
    Ok(None)
}
