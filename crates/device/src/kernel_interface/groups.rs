//! Packets to groups: the kernel needs them too, so a driver receives copies from a packet socket.
//! The socket also holds the device's own MAC addresses and promiscuous mode, which vanish with it.

use std::io;
use std::sync::Arc;

use libc::sock_filter;

use super::packet_socket::{PacketSocket, RETURN};
use crate::{Filter, is_group};

/// All bytes of a packet: what a classic filter returns for a packet to keep.
const KEEP: u32 = u32::MAX;

/// The packet socket for groups, and what it copies.
pub(crate) struct Groups {
    socket: Arc<PacketSocket>,
    /// The socket for which the interface receives packets: this one, or another one that ends with
    /// its server while the other goes on.
    members: Arc<PacketSocket>,
    wanted: Wanted,
    /// The interface's own MAC address.
    mac: [u8; 6],
}

impl Groups {
    /// Takes a socket that copies packets, and one for which the interface receives them.
    pub(crate) fn new(
        socket: Arc<PacketSocket>,
        members: Arc<PacketSocket>,
        mac: [u8; 6],
    ) -> Groups {
        Groups { socket, members, wanted: Wanted::default(), mac }
    }

    /// Has the socket copy what is wanted, and no longer what an earlier server wanted.
    ///
    /// # Errors
    /// The kernel's error.
    pub(crate) fn refresh(&self) -> io::Result<()> {
        self.socket.set_filter(self.wanted.program())
    }

    /// Changes what the socket copies; ignores filters for flows and the device's own addresses.
    pub(crate) fn change(&mut self, filter: &Filter, wanted: bool) -> io::Result<()> {
        let mut changed = self.wanted.clone();
        if !changed.change(filter, wanted) {
            return Ok(());
        }
        // What fails leaves all as it was.
        if wanted {
            self.join(filter, true)?;
        }
        if let Err(error) = self.socket.set_filter(changed.program()) {
            if wanted {
                let _ = self.join(filter, false);
            }
            return Err(error);
        }
        self.wanted = changed;
        if wanted { Ok(()) } else { self.join(filter, false) }
    }

    /// Makes the interface receive the packets of a filter, or no longer.
    fn join(&self, filter: &Filter, wanted: bool) -> io::Result<()> {
        match filter {
            Filter::Everything => self.members.promiscuous(wanted),
            Filter::AllGroups => self.members.join_all(wanted),
            Filter::Address(group) => self.members.join(group, wanted),
            Filter::Flow(_) => Ok(()),
        }
    }

    /// Makes the interface receive packets to one of the server's own addresses, or no longer.
    pub(crate) fn receive_for(&self, mac: &[u8; 6], wanted: bool) -> io::Result<()> {
        if *mac == self.mac { Ok(()) } else { self.members.receive_for(mac, wanted) }
    }
}

/// What the socket copies.
#[derive(Clone, Debug, Default)]
struct Wanted {
    /// The groups' addresses.
    groups: Vec<[u8; 6]>,
    all_groups: bool,
    everything: bool,
}

impl Wanted {
    /// Adds or removes a filter. Returns `true` if it changes what the socket copies.
    fn change(&mut self, filter: &Filter, wanted: bool) -> bool {
        match filter {
            Filter::Address(mac) if is_group(mac) => {
                self.groups.retain(|one| one != mac);
                if wanted {
                    self.groups.push(*mac);
                }
            }
            Filter::AllGroups => self.all_groups = wanted,
            Filter::Everything => self.everything = wanted,
            Filter::Address(_) | Filter::Flow(_) => return false,
        }
        true
    }

    /// Returns the classic BPF program (`linux/filter.h`) that keeps the wanted packets.
    fn program(&self) -> Vec<sock_filter> {
        const LOAD_WORD: u16 = 0x20;
        const LOAD_HALF: u16 = 0x28;
        const LOAD_BYTE: u16 = 0x30;
        const JUMP_EQUAL: u16 = 0x15;
        const JUMP_BITS: u16 = 0x45;
        let one = |code, jt, jf, k| sock_filter { code, jt, jf, k };
        let mut program = Vec::new();
        if self.everything {
            program.push(one(RETURN, 0, 0, KEEP));
        }
        if self.all_groups {
            program.push(one(LOAD_BYTE, 0, 0, 0));
            program.push(one(JUMP_BITS, 0, 1, 1));
            program.push(one(RETURN, 0, 0, KEEP));
        }
        for [a, b, c, d, e, f] in &self.groups {
            program.push(one(LOAD_WORD, 0, 0, 0));
            program.push(one(JUMP_EQUAL, 0, 3, u32::from_be_bytes([*a, *b, *c, *d])));
            program.push(one(LOAD_HALF, 0, 0, 4));
            program.push(one(JUMP_EQUAL, 0, 1, u32::from(u16::from_be_bytes([*e, *f]))));
            program.push(one(RETURN, 0, 0, KEEP));
        }
        program.push(one(RETURN, 0, 0, 0));
        program
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a program of loads, comparisons and returns on the beginning of a frame.
    fn keeps(program: &[sock_filter], frame: &[u8; 6]) -> bool {
        let (mut at, mut value) = (0, 0);
        loop {
            let one = &program[at];
            at += 1;
            let jump = |taken: bool| usize::from(if taken { one.jt } else { one.jf });
            match one.code {
                0x20 => value = u32::from_be_bytes(*frame[one.k as usize..].first_chunk().unwrap()),
                0x28 => {
                    value =
                        u16::from_be_bytes(*frame[one.k as usize..].first_chunk().unwrap()).into()
                }
                0x30 => value = frame[one.k as usize].into(),
                0x15 => at += jump(value == one.k),
                0x45 => at += jump(value & one.k != 0),
                0x06 => return one.k != 0,
                code => panic!("{code:#x}"),
            }
        }
    }

    #[test]
    fn the_filter_keeps_what_is_wanted() {
        let (one, two, own) = ([1, 0, 94, 1, 2, 3], [1, 0, 94, 1, 2, 4], [2, 0, 94, 1, 2, 3]);
        let mut wanted = Wanted::default();
        let kept =
            |wanted: &Wanted| [one, two, [0xff; 6], own].map(|mac| keeps(&wanted.program(), &mac));
        assert_eq!(kept(&wanted), [false; 4]);
        assert!(wanted.change(&Filter::Address(one), true));
        assert_eq!(kept(&wanted), [true, false, false, false]);
        assert!(wanted.change(&Filter::Address(two), true));
        assert_eq!(kept(&wanted), [true, true, false, false]);
        assert!(wanted.change(&Filter::Address(one), false));
        assert_eq!(kept(&wanted), [false, true, false, false]);
        assert!(wanted.change(&Filter::AllGroups, true));
        assert_eq!(kept(&wanted), [true, true, true, false]);
        assert!(wanted.change(&Filter::Everything, true));
        assert_eq!(kept(&wanted), [true; 4]);
        assert!(!wanted.change(&Filter::Address(own), true));
    }
}
