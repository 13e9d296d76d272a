//! Checks of settings against each other, before the server makes any object.
#![forbid(unsafe_code)]

use std::path::Path;

use towpath_device_pci::e1000e::{MOST_QUEUES, Moderation};
use towpath_protocol::admin_socket::{ADMIN_SUFFIX, is_admin_socket};

use super::Settings;
use crate::failure::Failure;
use crate::number::Number;
use crate::serve::memory_limit;
use crate::serve::values::Driver;

impl Settings {
    /// Checks that a given `--total-bytes` has room for a session.
    pub(crate) fn check_total_bytes(&self) -> Result<(), Failure> {
        let given = self.total_bytes.map(Number::get).filter(|bytes| *bytes > 0);
        given.map_or(Ok(()), |bytes| memory_limit::check(bytes, self.lanes()))
    }

    /// Checks that programs can tell the two sockets apart by their paths.
    pub(crate) fn check_sockets(&self) -> Result<(), Failure> {
        if let Some(socket) = self.socket.as_deref().filter(|one| is_admin_socket(one)) {
            return Err(Failure::usage(format!(
                "--socket {}: {ADMIN_SUFFIX} is the end of an administration socket's path; choose another name",
                socket.display()
            )));
        }
        match self.admin_socket.as_deref().filter(|one| !is_admin_socket(one)) {
            Some(admin) => Err(Failure::usage(format!(
                "--admin-socket {0}: the path has to end in {ADMIN_SUFFIX}; give {0}{ADMIN_SUFFIX}",
                admin.display()
            ))),
            None => Ok(()),
        }
    }

    /// Checks that `--pcap` does not name the standard output as `towpath capture -w` does.
    pub(crate) fn check_pcap(&self) -> Result<(), Failure> {
        if self.pcap.as_deref() == Some(Path::new("-")) {
            return Err(Failure::usage(
                "--pcap -: the server writes packets to files; give --pcap ./- for a file of this name, or run \
                 towpath capture -w - for standard output",
            ));
        }
        Ok(())
    }

    /// Checks that the device, and the wrappers around it, can have so many lanes.
    ///
    /// # Errors
    /// Fails with the option to leave out.
    pub(crate) fn check_lanes(&self) -> Result<(), Failure> {
        let lanes = self.lanes();
        let wrapper = [("--pcap", self.pcap.is_some()), ("--fault", self.fault.is_some())];
        let driver = self.device.as_ref().map(|device| &device.driver);
        let has_one_queue = matches!(driver, Some(Driver::Tap | Driver::Packet));
        let of_card = match driver {
            Some(Driver::Pci(options)) => Some(options),
            _ => None,
        };
        if self.rdma && self.share_host && self.lease.is_empty() {
            return Err(Failure::usage(
                "--rdma needs addresses of applications' own, and with --share-host they use the host's: \
                 UDP port 4791 there is the kernel's; give --lease as well, or leave out one of the two",
            ));
        }
        match wrapper.iter().find(|(_, given)| *given) {
            _ if lanes == 1 => Ok(()),
            _ if self.rdma => Err(Failure::usage(format!(
                "--rdma works with one engine thread; leave it out, or --lanes {lanes}"
            ))),
            Some((option, _)) => Err(Failure::usage(format!(
                "{option} works with one engine thread; leave it out, or --lanes {lanes}"
            ))),
            None if has_one_queue => Err(Failure::usage(format!(
                "--lanes {lanes}: TAP interfaces and packet sockets have one queue; leave it out, or \
                 serve an interface with several by --device xdp:INTERFACE"
            ))),
            None if of_card.is_some() && lanes > MOST_QUEUES => Err(Failure::usage(format!(
                "--lanes {lanes}: the card has {MOST_QUEUES} queues; give at most {MOST_QUEUES}"
            ))),
            None if of_card
                .is_some_and(|card| matches!(card.moderation, Moderation::One { .. })) =>
            {
                Err(Failure::usage(format!(
                    "--lanes {lanes}: with interrupts=msi, the card has one interrupt for one engine thread; \
                     leave out either"
                )))
            }
            None => Ok(()),
        }
    }
}
