//! The ways in which a packet passes from one protection domain to another: from the client to the
//! driver, or back.
//!
//! Both domains are in one process, so a packet crosses no boundary of processes; the system calls
//! and their effect on the page tables of both cores are those that separate domains would need.

use std::io;

use towpath_memory::{Region, SharedFile};
use towpath_testkit::{Move, Pages};

/// The longest packet.
pub(super) const LONGEST: usize = 1514;
/// The memory of the paper's adapter.
const ADAPTER_BYTES: usize = 16 << 10;

/// A way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pass {
    /// Through the adapter's memory, which is mapped once if it is reserved, and else for each
    /// packet (the paper's `vm_att`).
    Adapter { reserved: bool },
    /// In a buffer of pages that move from domain to domain (the paper's MOVE), or are copied.
    Buffer(Move),
}

/// What passes the packets of one direction.
pub(super) enum Passing {
    Adapter { memory: SharedFile, reserved: Option<Region> },
    Buffer { pages: Pages, how: Move },
}

impl Passing {
    pub(super) fn new(pass: Pass) -> io::Result<Passing> {
        match pass {
            Pass::Adapter { reserved } => {
                let memory = SharedFile::create("adapter", ADAPTER_BYTES)?;
                let reserved = reserved.then(|| memory.map_writable()).transpose()?;
                Ok(Passing::Adapter { memory, reserved })
            }
            Pass::Buffer(how) => Ok(Passing::Buffer { pages: Pages::new(LONGEST)?, how }),
        }
    }

    /// Passes a packet, and copies it into the receiver's own memory.
    pub(super) fn pass(&mut self, packet: &[u8], to: &mut Vec<u8>) -> io::Result<()> {
        to.resize(packet.len(), 0);
        let passed = match self {
            Passing::Adapter { reserved: Some(adapter), .. } => through(adapter, packet, to),
            Passing::Adapter { memory, reserved: None } => {
                through(&mut memory.map_writable()?, packet, to)
            }
            Passing::Buffer { pages, how } => {
                pages.write(*how, packet)?;
                pages.give(*how, packet.len())?;
                pages.read(*how, to)?;
                true
            }
        };
        if passed { Ok(()) } else { Err(io::ErrorKind::InvalidInput.into()) }
    }
}

/// Returns whether the packet fits into the adapter's memory.
fn through(adapter: &mut Region, packet: &[u8], to: &mut [u8]) -> bool {
    adapter.copy_in(0, packet) && adapter.mapping().copy_out(adapter.offset(), to)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_passes_the_packet() {
        let adapters = [true, false].map(|reserved| Pass::Adapter { reserved });
        for pass in adapters.into_iter().chain(Move::ALL.map(Pass::Buffer)) {
            let mut passing = Passing::new(pass).unwrap();
            let mut got = Vec::new();
            for round in 1..10_u8 {
                let packet = vec![round; 60 + usize::from(round) * 100];
                passing.pass(&packet, &mut got).unwrap();
                assert_eq!(got, packet, "{pass:?}");
            }
            assert!(passing.pass(&[0; 64 << 10], &mut got).is_err(), "{pass:?}");
        }
    }
}
