//! Receive-side scaling: the device chooses the queue of a packet by a hash of its flow.

use super::names::*;
use crate::registers::Registers;

/// The words of the table of queues, with four entries each, and those of the hash's key.
const TABLE_WORDS: u32 = 32;
pub(super) const KEY_WORDS: usize = 10;

/// Has the device spread flows over both queues, by a Toeplitz hash with this key. The hash is over addresses and
/// ports of TCP, and over the addresses of other packets. A packet that is not IP comes to queue 0.
fn set(registers: &Registers, key: &[u32; KEY_WORDS]) {
    set_table(registers, RETA_BOTH);
    for (at, word) in (0..).zip(key) {
        registers.write(RSSRK.at(at, 4), *word);
    }
    registers.write(MRQC, MRQC_BOTH);
}

/// How the device chooses the queue of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Steering {
    /// Queue 0 receives all packets.
    First,
    /// Flows are spread over both queues, by a hash with this key.
    Spread([u32; KEY_WORDS]),
    /// Packets of IP go to queue 1, a session's own, or to queue 0; see [`direct`].
    Directed,
}

impl Steering {
    /// Sets the registers, while the device receives nothing.
    pub(super) fn set(&self, registers: &Registers) {
        match self {
            Steering::First => {}
            Steering::Spread(key) => set(registers, key),
            Steering::Directed => {
                direct(registers, false);
                registers.write(MRQC, MRQC_BOTH);
            }
        }
    }
}

/// Has the device put packets of IP into queue 1, or into queue 0. Only the table changes, which devices allow
/// while they receive.
pub(super) fn direct(registers: &Registers, to_second: bool) {
    set_table(registers, if to_second { RETA_SECOND } else { 0 });
}

fn set_table(registers: &Registers, entries: u32) {
    for word in 0..TABLE_WORDS {
        registers.write(RETA.at(word, 4), entries);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_queue_gets_every_other_entry() {
        let registers = Registers::double(0x20000);
        set(&registers, &[7; KEY_WORDS]);
        let word = registers.read(RETA.at(31, 4)).to_le_bytes();
        assert_eq!(word, [0, 0x80, 0, 0x80]);
        assert_eq!(registers.read(RSSRK.at(9, 4)), 7);
        assert_eq!(registers.read(MRQC) & 3, 1);
    }
}
