//! A PCI device's registers, interrupts and memory, by VFIO (`linux/vfio.h`;
//! Documentation/driver-api/vfio.rst).
//!
//! | object | is |
//! |---|---|
//! | container | the address space of the device: the IOMMU lets the device reach only the memory mapped there |
//! | group | the devices that the IOMMU cannot tell apart |
//! | device | registers and interrupts |
//!
//! The driver uses VFIO of type 1; iommufd would need Linux 6.2.

mod address_space;

use std::ffi::CString;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread::sleep;
use std::time::{Duration, Instant};

use towpath_device::{EarlierObjects, close_early};
use vfio_bindings::bindings::vfio::{
    VFIO_BASE, VFIO_GROUP_FLAGS_VIABLE, VFIO_IRQ_SET_ACTION_TRIGGER, VFIO_IRQ_SET_DATA_EVENTFD,
    VFIO_IRQ_SET_DATA_NONE, VFIO_PCI_BAR0_REGION_INDEX, VFIO_PCI_CONFIG_REGION_INDEX, VFIO_TYPE,
    VFIO_TYPE1v2_IOMMU, vfio_group_status, vfio_irq_set, vfio_region_info,
};

use super::address::PciAddress;
use super::error::PciError;

/// The kernel's interface has kept this number since Linux 3.6 (`VFIO_API_VERSION`).
const API_VERSION: i32 = 0;

/// The longest wait for a process that has been killed, whose group the kernel closes after a reset of the
/// device; and the pause between two attempts.
const BUSY_LIMIT: Duration = Duration::from_secs(2);
const BUSY_PAUSE: Duration = Duration::from_millis(5);

/// The vendor and device numbers in the configuration space (PCI Local Bus Specification 3.0, 6.2.1).
const VENDOR: u64 = 0;
const DEVICE_NUMBER: u64 = 2;

/// The command register of the configuration space, and its bits (PCI Local Bus Specification 3.0,
/// 6.2.2).
const COMMAND: u64 = 4;
const COMMAND_MEMORY: u16 = 1 << 1;
const COMMAND_BUS_MASTER: u16 = 1 << 2;
/// The base address registers of a device (as above, 6.2.5).
const BARS: u8 = 6;

/// A request number of `linux/vfio.h`: `_IO(VFIO_TYPE, VFIO_BASE + n)`.
const fn request(number: u32) -> libc::c_ulong {
    (VFIO_TYPE as libc::c_ulong) << 8 | (VFIO_BASE + number) as libc::c_ulong
}

const GET_API_VERSION: libc::c_ulong = request(0);
const CHECK_EXTENSION: libc::c_ulong = request(1);
const SET_IOMMU: libc::c_ulong = request(2);
const GROUP_GET_STATUS: libc::c_ulong = request(3);
const GROUP_SET_CONTAINER: libc::c_ulong = request(4);
const GROUP_GET_DEVICE_FD: libc::c_ulong = request(6);
const DEVICE_GET_REGION_INFO: libc::c_ulong = request(8);
const DEVICE_SET_IRQS: libc::c_ulong = request(10);

/// The names under which a keeper holds container, group and device, in the order in which it gets them.
const CONTAINER: &str = "device-vfio-container";
const GROUP: &str = "device-vfio-group";
const DEVICE: &str = "device-vfio-device";

/// From this version on, the kernel lets a process unmap memory that another one mapped: until then, the next
/// server could not unmap the sessions' memories (`vfio_dma_do_unmap` in drivers/vfio/vfio_iommu_type1.c).
const UNMAPS_FOR_OTHERS: u32 = 6;

/// An opened device.
#[derive(Debug)]
pub(super) struct Vfio {
    address: PciAddress,
    container: OwnedFd,
    /// The device works for as long as its group is open.
    group: OwnedFd,
    device: File,
    /// `true` once this process leaves the device to the next one, with the memories that it reaches.
    leaves: Arc<AtomicBool>,
}

/// Where a mapping of registers lies in the device's file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bar {
    pub(super) offset: u64,
    pub(super) bytes: usize,
}

/// Makes an ioctl of VFIO with a number as argument.
fn ioctl_number(
    fd: BorrowedFd<'_>,
    request: libc::c_ulong,
    argument: libc::c_ulong,
) -> io::Result<i32> {
    // SAFETY: the requests that this function is called with take a plain number.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), request, argument) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Makes an ioctl of VFIO with a structure that the kernel reads, and may write.
///
/// # Safety
/// The request takes a pointer to a `T`. If its length field says more bytes than a `T` has, these
/// follow it in the same allocation.
unsafe fn ioctl_struct<T>(
    fd: BorrowedFd<'_>,
    request: libc::c_ulong,
    argument: &mut T,
) -> io::Result<i32> {
    // SAFETY: the pointer is that of a live value, of the request's type by the caller's promise.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), request, std::ptr::from_mut(argument)) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Returns the name of the file that a link leads to.
fn link_name(link: &Path) -> Option<String> {
    let target = fs::read_link(link).ok()?;
    Some(target.file_name()?.to_str()?.to_owned())
}

impl Vfio {
    /// Opens a device that `vfio-pci` has, in a container of its own.
    pub(super) fn open(address: PciAddress) -> Result<Vfio, PciError> {
        let refused = |what: &'static str| move |cause| PciError::Refused { address, what, cause };
        let directory = address.directory();
        if !directory.exists() {
            return Err(PciError::Absent { address });
        }
        let group = link_name(&directory.join("iommu_group")).and_then(|name| name.parse().ok());
        let group_number: u32 = group.ok_or(PciError::NoIommu { address })?;
        let driver = link_name(&directory.join("driver"));
        if driver.as_deref() != Some("vfio-pci") {
            return Err(PciError::OtherDriver { address, driver });
        }
        let open = |path: PathBuf| {
            open_file(&path).map_err(|cause| match cause.raw_os_error() {
                Some(libc::EACCES | libc::EPERM) => PciError::Forbidden { address, path, cause },
                Some(libc::EBUSY) => PciError::Busy { address },
                Some(libc::ENOENT | libc::ENODEV) => PciError::NoVfio { path, cause },
                _ => refused("opening a file of VFIO")(cause),
            })
        };
        let path = PathBuf::from("/dev/vfio/vfio");
        // The next server of a killed one needs the card, unless the keeper has it.
        let container = close_early(open(path.clone())?);
        let group = PathBuf::from(format!("/dev/vfio/{group_number}"));
        let begun = Instant::now();
        let group = loop {
            match open(group.clone()) {
                Err(PciError::Busy { .. }) if begun.elapsed() < BUSY_LIMIT => sleep(BUSY_PAUSE),
                other => break close_early(other?),
            }
        };
        let version = ioctl_number(container.as_fd(), GET_API_VERSION, 0);
        let known = ioctl_number(container.as_fd(), CHECK_EXTENSION, VFIO_TYPE1v2_IOMMU.into());
        if version.ok() != Some(API_VERSION) || known.ok() != Some(1) {
            let cause = io::Error::from_raw_os_error(libc::EOPNOTSUPP);
            return Err(PciError::NoVfio { path, cause });
        }
        let argsz = size_of::<vfio_group_status>() as u32;
        let mut status = vfio_group_status { argsz, flags: 0 };
        // SAFETY: the request takes a `vfio_group_status`.
        unsafe { ioctl_struct(group.as_fd(), GROUP_GET_STATUS, &mut status) }
            .map_err(refused("asking for the group's state"))?;
        if status.flags & VFIO_GROUP_FLAGS_VIABLE == 0 {
            let others = driven_in_group(address, group_number);
            return Err(PciError::GroupInUse { address, group: group_number, others });
        }
        let mut container_fd = container.as_raw_fd();
        // SAFETY: the request takes a pointer to the descriptor's number.
        unsafe { ioctl_struct(group.as_fd(), GROUP_SET_CONTAINER, &mut container_fd) }
            .map_err(refused("adding the group to a container"))?;
        ioctl_number(container.as_fd(), SET_IOMMU, VFIO_TYPE1v2_IOMMU.into())
            .map_err(refused("choosing VFIO of type 1"))?;
        let device = open_device(address, group.as_fd()).map_err(refused("opening the device"))?;
        Ok(Vfio { address, container, group, device, leaves: Arc::default() })
    }

    /// Takes the device over from an earlier server, which left it open with a keeper; `None` if it did not.
    /// Then nothing else has the device.
    pub(super) fn of_earlier(
        address: PciAddress,
        earlier: &EarlierObjects,
    ) -> io::Result<Option<Vfio>> {
        let (container, group) = (earlier.copy(CONTAINER)?, earlier.copy(GROUP)?);
        let Some((container, group)) = container.zip(group) else { return Ok(None) };
        let device = match earlier.copy(DEVICE)? {
            Some(device) => device.into(),
            // The server was killed before it could leave the device.
            None => open_device(address, group.as_fd())?,
        };
        Ok(Some(Vfio { address, container, group, device, leaves: Arc::default() }))
    }

    /// Returns what a keeper must hold so that the device goes on without this process, with the names.
    /// Nothing for a kernel with which no other process could.
    pub(super) fn objects(&self) -> Vec<(&'static str, BorrowedFd<'_>)> {
        if !outlives_its_server() {
            return Vec::new();
        }
        vec![
            (CONTAINER, self.container.as_fd()),
            (GROUP, self.group.as_fd()),
            (DEVICE, self.device.as_fd()),
        ]
    }

    /// Returns the flag with which this process leaves the device to the next one: once it is `true`, no memory is
    /// unmapped.
    pub(super) fn leaves(&self) -> &Arc<AtomicBool> {
        &self.leaves
    }

    /// Returns a function that makes the error of an operation which the kernel refused.
    pub(super) fn refused(&self, what: &'static str) -> impl FnOnce(io::Error) -> PciError + use<> {
        let address = self.address;
        move |cause| PciError::Refused { address, what, cause }
    }

    /// Returns the place of the registers of a BAR, 0 to 5, in the device's file.
    pub(super) fn bar(&self, number: u8) -> io::Result<Bar> {
        if number >= BARS {
            return Err(io::Error::other(format!("it has no BAR {number}")));
        }
        let (offset, bytes) = self.region(VFIO_PCI_BAR0_REGION_INDEX + u32::from(number))?;
        Ok(Bar { offset, bytes: bytes as usize })
    }

    fn region(&self, index: u32) -> io::Result<(u64, u64)> {
        let argsz = size_of::<vfio_region_info>() as u32;
        let mut info = vfio_region_info { argsz, index, ..vfio_region_info::default() };
        // SAFETY: the request takes a `vfio_region_info`.
        unsafe { ioctl_struct(self.device.as_fd(), DEVICE_GET_REGION_INFO, &mut info)? };
        Ok((info.offset, info.size))
    }

    /// Returns the device's file, to map registers.
    pub(super) fn device(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }

    /// Reads from the configuration space.
    pub(super) fn configuration(&self, at: u64) -> io::Result<u16> {
        self.configuration_bytes(at).map(u16::from_le_bytes)
    }

    /// Reads bytes from the configuration space.
    pub(super) fn configuration_bytes<const N: usize>(&self, at: u64) -> io::Result<[u8; N]> {
        let (offset, _) = self.region(VFIO_PCI_CONFIG_REGION_INDEX)?;
        let mut bytes = [0; N];
        self.device.read_exact_at(&mut bytes, offset + at)?;
        Ok(bytes)
    }

    /// Checks that the device has the vendor and device numbers of a driver. `known`: what that driver knows.
    pub(super) fn check_numbers(
        &self,
        numbers: (u16, u16),
        known: &'static str,
    ) -> Result<(), PciError> {
        let number = |at| self.configuration(at).map_err(self.refused("reading its configuration"));
        let address = self.address;
        match (number(VENDOR)?, number(DEVICE_NUMBER)?) {
            found if found == numbers => Ok(()),
            (u16::MAX, _) => Err(PciError::NoAnswer { address }),
            (vendor, device) => Err(PciError::Unknown { address, vendor, device, known }),
        }
    }

    /// Returns `true` if the device may access memory.
    pub(super) fn is_bus_master(&self) -> bool {
        self.configuration(COMMAND).is_ok_and(|command| command & COMMAND_BUS_MASTER != 0)
    }

    /// Lets the device access memory if `is_on`, or ends that. Also makes its registers readable.
    pub(super) fn set_bus_master(&self, is_on: bool) -> io::Result<()> {
        let (offset, _) = self.region(VFIO_PCI_CONFIG_REGION_INDEX)?;
        let command = self.configuration(COMMAND)? | COMMAND_MEMORY;
        let command =
            if is_on { command | COMMAND_BUS_MASTER } else { command & !COMMAND_BUS_MASTER };
        self.device.write_all_at(&command.to_le_bytes(), offset + COMMAND)
    }

    /// Ends the interrupts of this kind: the kernel has one kind at a time. Does nothing for a kind that is not in use.
    pub(super) fn end_interrupts(&self, index: u32) {
        let bytes = size_of::<vfio_irq_set>() as u32;
        let mut words = [bytes, VFIO_IRQ_SET_DATA_NONE | VFIO_IRQ_SET_ACTION_TRIGGER, index, 0, 0];
        // SAFETY: the words are a `vfio_irq_set`, without data behind it.
        let _ = unsafe { ioctl_struct(self.device.as_fd(), DEVICE_SET_IRQS, &mut words[0]) };
    }

    /// Has the kernel signal these eventfds at the interrupts of this kind: the first one at vector 0, and so on.
    pub(super) fn set_interrupts(&self, index: u32, events: &[BorrowedFd<'_>]) -> io::Result<()> {
        let bytes = size_of::<vfio_irq_set>() + size_of_val(events);
        let header = [
            bytes as u32,
            VFIO_IRQ_SET_DATA_EVENTFD | VFIO_IRQ_SET_ACTION_TRIGGER,
            index,
            0,
            events.len() as u32,
        ];
        let events = events.iter().map(|event| event.as_raw_fd() as u32);
        let mut words: Vec<u32> = header.into_iter().chain(events).collect();
        let Some(first) = words.first_mut() else { return Ok(()) };
        // SAFETY: the words are a `vfio_irq_set`, whose length field says how many they are.
        match unsafe { ioctl_struct(self.device.as_fd(), DEVICE_SET_IRQS, first)? } {
            0 => Ok(()),
            // The kernel has set none.
            free => Err(io::Error::other(format!("the kernel has only {free} interrupts free"))),
        }
    }
}

/// Returns `true` if another process can go on with the device when this one has ended.
pub(super) fn outlives_its_server() -> bool {
    let name = rustix::system::uname();
    let major = name.release().to_str().ok().and_then(|text| text.split('.').next()?.parse().ok());
    major.is_some_and(|major: u32| major >= UNMAPS_FOR_OTHERS)
}

fn open_device(address: PciAddress, group: BorrowedFd<'_>) -> io::Result<File> {
    let name = CString::new(address.to_string()).unwrap_or_default();
    // SAFETY: the request takes a pointer to a string, which lives.
    let device = unsafe { libc::ioctl(group.as_raw_fd(), GROUP_GET_DEVICE_FD, name.as_ptr()) };
    if device < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just returned this descriptor, which nothing else has.
    let device = unsafe { OwnedFd::from_raw_fd(device) };
    Ok(close_early(device).into())
}

fn open_file(path: &Path) -> io::Result<OwnedFd> {
    Ok(File::options().read(true).write(true).open(path)?.into())
}

/// Returns the other devices of an IOMMU group that the kernel drives, each with its driver, but for ports of
/// PCI Express.
#[must_use]
pub fn driven_in_group(address: PciAddress, group: u32) -> Vec<String> {
    let entries = fs::read_dir(format!("/sys/kernel/iommu_groups/{group}/devices"));
    let names = entries
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let with_driver = |name: String| {
        let driver = link_name(&Path::new("/sys/bus/pci/devices").join(&name).join("driver"));
        driver
            .filter(|driver| driver != "vfio-pci" && driver != "pcieport")
            .map(|driver| format!("{name} ({driver})"))
    };
    names.filter(|name| *name != address.to_string()).filter_map(with_driver).collect()
}
