//! How the card interrupts, and how long it defers interrupts.
//!
//! | mode | causes | deferral |
//! |---|---|---|
//! | MSI-X | a vector for each queue and direction, and one for the rest; an interrupt clears and masks its causes | the least time between two interrupts of a vector (`EITR`) |
//! | MSI | one interrupt for all, the causes of which the driver masks and clears | after each packet, and at most from the first one on (`RDTR`, `RADV`, `TIDV`, `TADV`) |

use std::time::Duration;

use super::names::*;
use crate::registers::{GONE, Registers};

/// The largest time between two interrupts, in microseconds: 16 bits in units of 256 ns.
pub(super) const MOST_USECS: u32 = u16::MAX as u32 * EITR_NS / 1000;
/// The largest delays with MSI, in microseconds.
pub(super) const MOST_DELAY_USECS: u32 = u16::MAX as u32 * DELAY_NS / 1000;

/// The least time between two interrupts for other causes than packets, in microseconds.
const LINK_USECS: u32 = 1000;
/// The unit of `EITR`, in nanoseconds, and that of the delays with MSI.
const EITR_NS: u32 = 256;
const DELAY_NS: u32 = 1024;

/// The mode, with the values of its registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Interrupts {
    /// MSI-X: the values of `EITR`, in the order of `IVAR_ONE_EACH`.
    Vectors([u32; 5]),
    /// MSI: the values of `RDTR` and `RADV`, and of `TIDV` and `TADV`.
    One { rx: [u32; 2], tx: [u32; 2] },
}

/// Returns a time in microseconds, at most `most`, in units of so many nanoseconds.
fn units(usecs: u32, most: u32, ns: u32) -> u32 {
    (usecs.min(most) * 1000).div_ceil(ns)
}

impl Interrupts {
    /// Returns MSI-X with these least times between two interrupts, in microseconds.
    pub(super) fn vectors(rx_usecs: u32, tx_usecs: u32) -> Interrupts {
        let [rx, tx, link] =
            [rx_usecs, tx_usecs, LINK_USECS].map(|usecs| units(usecs, MOST_USECS, EITR_NS));
        Interrupts::Vectors([rx, rx, tx, tx, link])
    }

    /// Returns MSI with these delays after each packet, and the longest ones, in microseconds.
    pub(super) fn one(rx: [u32; 2], tx: [u32; 2]) -> Interrupts {
        let delays = |all: [u32; 2]| all.map(|usecs| units(usecs, MOST_DELAY_USECS, DELAY_NS));
        Interrupts::One { rx: delays(rx), tx: delays(tx) }
    }

    /// Returns the time after which no deferred interrupt comes.
    pub(super) fn longest(&self) -> Duration {
        let (most, ns) = match self {
            Interrupts::Vectors(all) => (all.iter().max(), EITR_NS),
            Interrupts::One { rx, tx } => (rx.iter().chain(tx).max(), DELAY_NS),
        };
        Duration::from_nanos(u64::from(*most.unwrap_or(&0)) * 2 * u64::from(ns))
    }

    /// Returns `true` if there is one interrupt for all causes.
    pub(super) fn is_one(&self) -> bool {
        matches!(self, Interrupts::One { .. })
    }

    /// Returns `true` if the interrupts for sent packets are deferred by descriptor.
    pub(super) fn defers_sent(&self) -> bool {
        matches!(self, Interrupts::One { tx: [delay, _], .. } if *delay > 0)
    }

    /// Returns the causes of a queue: received packets, and sent ones if `sent`.
    pub(super) fn causes(&self, queue: u32, sent: bool) -> u32 {
        let (received, tx) = match self {
            Interrupts::Vectors(_) => (CAUSE_RX << queue, CAUSE_TX << queue),
            Interrupts::One { .. } => (CAUSE_RX_TIMER, CAUSE_TX_WRITTEN),
        };
        received | if sent { tx } else { 0 }
    }

    /// Sets the registers, and enables the interrupt for the link.
    pub(super) fn start(&self, registers: &Registers) {
        match self {
            Interrupts::Vectors(all) => {
                for (vector, value) in (0..).zip(all) {
                    registers.write(EITR.at(vector, 4), *value);
                }
                registers.write(IVAR, IVAR_ONE_EACH);
                registers.write(EIAC, QUEUE_CAUSES);
            }
            Interrupts::One { rx, tx } => {
                for (register, value) in
                    [RDTR, RADV, TIDV, TADV].into_iter().zip(rx.iter().chain(tx))
                {
                    registers.write(register, *value);
                }
                registers.write(ICR, u32::MAX);
            }
        }
        self.enable_link(registers);
    }

    /// Enables the interrupt for the next change of the link.
    pub(super) fn enable_link(&self, registers: &Registers) {
        match self {
            Interrupts::Vectors(_) => {
                // All causes of the vector: one that stays, such as the lack of receive buffers, would interrupt again.
                registers.write(ICR, !QUEUE_CAUSES);
                registers.write(IMS, CAUSE_LINK | CAUSE_OTHER);
            }
            Interrupts::One { .. } => registers.write(IMS, CAUSE_LINK),
        }
    }

    /// Masks and clears the causes of the queue, if the device does not do that by itself. Returns `true`
    /// if the link may have changed, too.
    pub(super) fn acknowledge(&self, registers: &Registers) -> bool {
        if matches!(self, Interrupts::Vectors(_)) {
            return false;
        }
        registers.write(IMC, CAUSE_RX_TIMER | CAUSE_TX_WRITTEN);
        // By the data sheet (10.2.4.1), a read clears the causes only in some states.
        let causes = registers.read(ICR);
        registers.write(ICR, causes);
        causes != GONE && causes & CAUSE_LINK != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_in_units_of_the_card() {
        let vectors = |rx, tx| match Interrupts::vectors(rx, tx) {
            Interrupts::Vectors(all) => all,
            other => panic!("{other:?}"),
        };
        assert_eq!(vectors(0, 0), [0, 0, 0, 0, 3907]);
        assert_eq!(vectors(1, 50), [4, 4, 196, 196, 3907]);
        assert!(vectors(MOST_USECS, u32::MAX).iter().all(|units| *units <= 0xffff));
        assert_eq!(
            Interrupts::one([1, 100], [0, u32::MAX]),
            Interrupts::One { rx: [1, 98], tx: [0, 65_535] }
        );
        assert_eq!(Interrupts::vectors(0, 0).longest(), Duration::from_nanos(3907 * 512));
    }

    #[test]
    fn one_interrupt_has_its_causes_masked_and_cleared_by_the_driver() {
        let registers = Registers::double(0x20000);
        let one = Interrupts::one([20, 0], [64, 0]);
        assert!(one.defers_sent() && !Interrupts::one([20, 0], [0, 9]).defers_sent());
        one.start(&registers);
        assert_eq!((registers.read(RDTR), registers.read(TIDV)), (20, 63));
        assert_eq!(registers.read(IMS), CAUSE_LINK);
        registers.write(ICR, CAUSE_RX_TIMER);
        assert!(!one.acknowledge(&registers));
        assert_eq!(registers.read(IMC), one.causes(0, true));
        registers.write(ICR, CAUSE_LINK);
        assert!(one.acknowledge(&registers));
        registers.write(ICR, GONE);
        assert!(!one.acknowledge(&registers), "a card that is gone");
        assert!(!Interrupts::vectors(0, 0).acknowledge(&registers));
    }
}
