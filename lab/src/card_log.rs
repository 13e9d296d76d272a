//! QEMU's log of a guest: accesses of the cards' registers and interrupts, between the marks of each
//! trial.

use std::io::BufRead;

use anyhow::ensure;

/// The file of the host bridge's configuration. QEMU reports each read, so that a byte without meaning
/// marks a moment among the accesses of registers.
pub(crate) const MARKS: &str = "/sys/bus/pci/devices/0000:00:00.0/config";
/// The offsets of the bytes that mark the start and the end of a window, and the end of a trial, which
/// has one or several windows. No other program reads single bytes there.
pub(crate) const START: u64 = 0xfd;
pub(crate) const END: u64 = 0xfb;
pub(crate) const DONE: u64 = 0xf9;

/// The events that QEMU has to log (hw/net/trace-events, hw/pci/trace-events).
pub(crate) const EVENTS: [&str; 7] = [
    "e1000e_core_read",
    "e1000e_core_write",
    "e1000e_irq_msix_notify_vec",
    "e1000e_irq_msix_notify_postponed_vec",
    "e1000e_irq_msi_notify",
    "e1000e_irq_legacy_notify",
    "pci_cfg_read",
];

/// What a trial's cards counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Accesses {
    pub(crate) reads: u64,
    pub(crate) writes: u64,
    pub(crate) interrupts: u64,
}

/// Returns the counts of each trial in the log.
pub(crate) fn trials(log: impl BufRead) -> anyhow::Result<Vec<Accesses>> {
    let (mut trials, mut now, mut is_open) = (Vec::new(), Accesses::default(), false);
    for line in log.split(b'\n') {
        let line = line?;
        let line = String::from_utf8_lossy(&line);
        if let Some(mark) = mark(&line) {
            ensure!(is_open == (mark == END), "a mark out of order in QEMU's log: {line}");
            is_open = mark == START;
            if mark == DONE {
                trials.push(std::mem::take(&mut now));
            }
        } else if is_open {
            now.reads += u64::from(line.contains("e1000e_core_read"));
            now.writes += u64::from(line.contains("e1000e_core_write"));
            now.interrupts += u64::from(line.contains("e1000e_irq_"));
        }
    }
    Ok(trials)
}

/// Returns the offset of a mark.
fn mark(line: &str) -> Option<u64> {
    let (_, rest) = line.split_once("pci_cfg_read mch 00:00.0 @0x")?;
    let offset = u64::from_str_radix(rest.split(' ').next()?, 16).ok()?;
    [START, END, DONE].contains(&offset).then_some(offset)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accesses_between_marks_are_counted() {
        let log = "e1000e_core_write Write to register 0x3818, 4 byte(s), value: 0x1\n\
            pci_cfg_read mch 00:00.0 @0xfc -> 0x0\n\
            pci_cfg_read mch 00:00.0 @0xfd -> 0x0\n\
            e1000e_core_write Write to register 0x3818, 4 byte(s), value: 0x2\n\
            e1000e_irq_msix_notify_vec MSI-X notify vector 0x0\n\
            e1000e_core_read Read from register 0xc0, 4 byte(s), value: 0x2\n\
            e1000e_core_write Write to register 0xd0, 4 byte(s), value: 0x2\n\
            pci_cfg_read mch 00:00.0 @0xfb -> 0x0\n\
            e1000e_core_read Read from register 0xc0, 4 byte(s), value: 0x2\n\
            pci_cfg_read mch 00:00.0 @0xfd -> 0x0\n\
            e1000e_core_read Read from register 0xc0, 4 byte(s), value: 0x2\n\
            pci_cfg_read mch 00:00.0 @0xfb -> 0x0\n\
            pci_cfg_read mch 00:00.0 @0xf9 -> 0x0\n\
            pci_cfg_read mch 00:00.0 @0xfd -> 0x0\npci_cfg_read mch 00:00.0 @0xfb -> 0x0\n\
            pci_cfg_read mch 00:00.0 @0xf9 -> 0x0\n";
        let first = Accesses { reads: 2, writes: 2, interrupts: 1 };
        assert_eq!(trials(log.as_bytes()).unwrap(), [first, Accesses::default()]);
        assert!(trials("pci_cfg_read mch 00:00.0 @0xfb -> 0x0\n".as_bytes()).is_err());
    }
}
