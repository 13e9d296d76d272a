//! The statistics registers, each of which a read clears.

use std::time::{Duration, Instant};

use super::names::MPC;
use crate::registers::{GONE, Register, Registers};

/// A statistic: its name, as `ethtool -S` shows it with Linux's driver (`e1000_gstrings_stats` in ethtool.c) where that
/// shows it, or else the data sheet's, and its register.
type Statistic = (&'static str, Register);

/// Statistics of 32 bits.
const SHORT: [Statistic; 29] = [
    ("rx_crc_errors", Register(0x4000)),
    ("rx_align_errors", Register(0x4004)),
    ("rx_symbol_errors", Register(0x4008)),
    ("rxerrc", Register(0x400c)),
    ("rx_missed_errors", MPC),
    ("tx_single_coll_ok", Register(0x4014)),
    ("tx_abort_excess_coll", Register(0x4018)),
    ("tx_multi_coll_ok", Register(0x401c)),
    ("tx_abort_late_coll", Register(0x4020)),
    ("collisions", Register(0x4028)),
    ("tx_deferred_ok", Register(0x4030)),
    ("tx_no_carrier_sense", Register(0x4034)),
    ("rlec", Register(0x4040)),
    ("rx_flow_control_xon", Register(0x4048)),
    ("tx_flow_control_xon", Register(0x404c)),
    ("rx_flow_control_xoff", Register(0x4050)),
    ("tx_flow_control_xoff", Register(0x4054)),
    ("rx_packets", Register(0x4074)),
    ("rx_broadcast", Register(0x4078)),
    ("rx_multicast", Register(0x407c)),
    ("tx_packets", Register(0x4080)),
    ("rx_no_buffer_count", Register(0x40a0)),
    ("rx_short_length_errors", Register(0x40a4)),
    ("rx_fragment_errors", Register(0x40a8)),
    ("rx_long_length_errors", Register(0x40ac)),
    ("rx_jabber_errors", Register(0x40b0)),
    ("tx_multicast", Register(0x40f0)),
    ("tx_broadcast", Register(0x40f4)),
    ("tx_tcp_seg_good", Register(0x40f8)),
];

/// Statistics of 64 bits: a read of the upper half, in the next register, clears both.
const LONG: [Statistic; 2] = [("rx_bytes", Register(0x4088)), ("tx_bytes", Register(0x4090))];

/// The place of the packets that the device dropped because its packet buffer was full.
const MISSED: usize = 4;

/// The time in which the registers are not read again: any user of the server may ask for its report.
const FRESH: Duration = Duration::from_millis(100);

/// Sums of what the registers counted.
#[derive(Debug)]
pub(super) struct Statistics {
    /// When all registers were read last.
    read: Option<Instant>,
    short: [u64; SHORT.len()],
    long: [u64; LONG.len()],
}

impl Default for Statistics {
    fn default() -> Statistics {
        Statistics { read: None, short: [0; SHORT.len()], long: [0; LONG.len()] }
    }
}

/// Reads a register of a device that answers.
fn read(registers: &Registers, register: Register) -> u64 {
    match registers.read(register) {
        // A counter that reads as all ones is none.
        GONE => 0,
        count => u64::from(count),
    }
}

impl Statistics {
    /// Adds what the device counted of dropped packets. Returns the sum.
    pub(super) fn count_missed(&mut self, registers: &Registers) -> u64 {
        self.short[MISSED] += read(registers, MPC);
        self.short[MISSED]
    }

    /// Adds what the device counted since some time ago, and returns all sums with their names.
    pub(super) fn count(
        &mut self,
        registers: &Registers,
        now: Instant,
    ) -> Vec<(&'static str, u64)> {
        if self.read.is_none_or(|read| now - read >= FRESH) {
            self.read = Some(now);
            self.add_all(registers);
        }
        let short = SHORT.iter().zip(self.short);
        let long = LONG.iter().zip(self.long);
        short.chain(long).map(|((name, _), sum)| (*name, sum)).collect()
    }

    fn add_all(&mut self, registers: &Registers) {
        for (sum, (_, register)) in self.short.iter_mut().zip(SHORT) {
            *sum += read(registers, register);
        }
        for (sum, (_, register)) in self.long.iter_mut().zip(LONG) {
            let low = read(registers, register);
            *sum += low | read(registers, register.at(1, 4)) << 32;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_add_up_and_each_has_its_place() {
        let registers = Registers::double(0x20000);
        let mut statistics = Statistics::default();
        for (register, value) in
            [(MPC, 3), (Register(0x4074), 7), (Register(0x4088), 5), (Register(0x408c), 2)]
        {
            registers.write(register, value);
        }
        assert_eq!(statistics.count_missed(&registers), 3);
        let of = |all: &[(&str, u64)], name| all.iter().find(|one| one.0 == name).unwrap().1;
        let mut now = Instant::now();
        let all = statistics.count(&registers, now);
        assert_eq!((of(&all, "rx_missed_errors"), of(&all, "rx_packets")), (6, 7));
        assert_eq!(of(&all, "rx_bytes"), 5 | 2 << 32);
        now += FRESH / 2;
        assert_eq!(of(&statistics.count(&registers, now), "rx_packets"), 7, "read again too soon");
        now += FRESH;
        assert_eq!(of(&statistics.count(&registers, now), "rx_packets"), 14);
        registers.write(Register(0x4074), GONE);
        now += FRESH;
        assert_eq!(of(&statistics.count(&registers, now), "rx_packets"), 14);
        let mut names: Vec<_> = all.iter().map(|(name, _)| name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all.len());
    }
}
