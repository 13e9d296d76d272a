//! The descriptor store of the service manager (systemd, `FileDescriptorStoreMax=`): where a keeper
//! leaves what it holds when its service ends, and finds it when the service starts again.
//!
//! The service manager closes everything when the service is stopped, and not restarted. Its messages
//! are those of sd_notify(3) and sd_listen_fds(3). One object, the list, has what the keeper left: for
//! what device, and how many objects. A list that is there says that the others arrived before.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::MemfdFlags;
use sd_notify::NotifyState;
use serde::{Deserialize, Serialize};
use tracing::{info, warn};

use super::ready::inherited;
use crate::failure::says;

/// The name of the list.
const LIST: &str = "towpath-list";

/// The version of the list's format.
const FORMAT: u32 = 1;

/// The longest list, in bytes.
const MOST_LIST_BYTES: u64 = 4096;

/// Objects that are sent before the keeper waits until the service manager has taken them: an
/// ordinary user may have few descriptors on their way.
const BATCH: usize = 64;

/// The longest time in which the service manager takes a batch.
const BATCH_TIMEOUT: Duration = Duration::from_secs(5);

/// What a keeper left.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct List {
    format: u32,
    /// The device that was served.
    device: String,
    objects: usize,
}

/// The objects of a keeper, by name.
pub(super) type Objects = Vec<(String, OwnedFd)>;

/// Returns `true` if there is a service manager that may have a store.
pub(super) fn is_there() -> bool {
    std::env::var_os("NOTIFY_SOCKET").is_some()
}

/// Takes over the descriptors that the service manager gave this process, by their numbers. Call it
/// before this process opens a descriptor.
///
/// # Errors
/// If the service manager's variables are no numbers, or a descriptor is not open.
pub(super) fn take() -> io::Result<Objects> {
    sd_notify::listen_fds_with_names()?
        .map(|(number, name)| Ok((name, inherited(number)?)))
        .collect()
}

/// Returns what an earlier keeper of this device left. Closes everything that is of no use. Has the
/// service manager close its copies, because the next server may need the kernel to free some of
/// these objects.
pub(super) fn left(mut given: Objects, device: &str) -> Objects {
    if given.is_empty() {
        return given;
    }
    if let Err(error) = forget(&given) {
        warn!("the service manager keeps copies of what an earlier keeper left: {}", says(&error));
    }
    let mut lists: Vec<_> = given.extract_if(.., |(name, _)| name == LIST).collect();
    match check(lists.pop().map(|(_, list)| list), device) {
        Ok(objects) if objects == given.len() => {
            info!(objects, "the service goes on with what its earlier keeper left");
        }
        Ok(objects) => warn!(
            "an earlier keeper left {objects} objects, and the service manager gives {}; the unit \
             needs a larger FileDescriptorStoreMax=",
            given.len()
        ),
        Err(why) => {
            warn!("what an earlier keeper left is of no use: {why}");
            given.clear();
        }
    }
    given
}

/// Has the service manager close its copies. Without this, it would give them to a later keeper once
/// more.
fn forget(given: &Objects) -> io::Result<()> {
    let names: BTreeSet<&str> = given.iter().map(|(name, _)| name.as_str()).collect();
    for name in names {
        sd_notify::notify(&[NotifyState::FdStoreRemove, NotifyState::FdName(name)])?;
    }
    barrier()
}

/// Returns the number of objects in a list; an error says why the objects are of no use.
fn check(list: Option<OwnedFd>, device: &str) -> Result<usize, String> {
    let Some(list) = list else {
        return Err(
            "its list is missing; the unit needs a larger FileDescriptorStoreMax=".to_owned()
        );
    };
    let list = read(list).map_err(|error| format!("its list: {}", says(&error)))?;
    if list.device != device {
        return Err(format!("it is of {}, and this keeper serves {device}", list.device));
    }
    Ok(list.objects)
}

/// Leaves objects to the next keeper of the service.
///
/// # Errors
/// If the service manager does not take them.
pub(super) fn leave(objects: &[(String, OwnedFd)], device: &str) -> io::Result<()> {
    let list = List { format: FORMAT, device: device.to_owned(), objects: objects.len() };
    for batch in objects.chunks(BATCH) {
        for (name, object) in batch {
            store(name, object)?;
        }
        barrier()?;
    }
    let file = rustix::fs::memfd_create("towpath-list", MemfdFlags::CLOEXEC)?;
    let mut file = File::from(file);
    file.write_all(&serde_json::to_vec(&list)?)?;
    store(LIST, &file.into())?;
    barrier()
}

fn store(name: &str, object: &OwnedFd) -> io::Result<()> {
    let message =
        [NotifyState::FdStore, NotifyState::FdName(name), NotifyState::Custom("FDPOLL=0")];
    sd_notify::notify_with_fds(&message, &[object.as_fd()])
}

/// Waits until the service manager has handled all messages before.
fn barrier() -> io::Result<()> {
    let (ours, theirs) = io::pipe()?;
    sd_notify::notify_with_fds(&[NotifyState::Custom("BARRIER=1")], &[theirs.as_fd()])?;
    drop(theirs);
    let until = Instant::now() + BATCH_TIMEOUT;
    loop {
        let left = Timespec::try_from(until.saturating_duration_since(Instant::now()));
        let mut ended = [PollFd::new(&ours, PollFlags::IN)];
        match poll(&mut ended, left.ok().as_ref()) {
            Err(rustix::io::Errno::INTR) => {}
            Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
            other => return other.map(|_| ()).map_err(Into::into),
        }
    }
}

fn read(list: OwnedFd) -> io::Result<List> {
    let mut file = File::from(list);
    let mut text = String::new();
    file.rewind()?;
    file.take(MOST_LIST_BYTES).read_to_string(&mut text)?;
    let list: List = serde_json::from_str(&text)?;
    if list.format != FORMAT {
        let text = format!("format {}, and this program knows {FORMAT}", list.format);
        return Err(io::Error::new(io::ErrorKind::InvalidData, text));
    }
    Ok(list)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(text: &str) -> OwnedFd {
        let mut file = File::from(rustix::fs::memfd_create("x", MemfdFlags::CLOEXEC).unwrap());
        file.write_all(text.as_bytes()).unwrap();
        file.into()
    }

    fn given(list: Option<&str>) -> Objects {
        let mut all = vec![("session-1-record".to_owned(), object("a"))];
        all.extend(list.map(|text| (LIST.to_owned(), object(text))));
        all.push(("device-tap.0".to_owned(), object("b")));
        all
    }

    fn names(objects: &Objects) -> Vec<&str> {
        objects.iter().map(|(name, _)| name.as_str()).collect()
    }

    #[test]
    fn only_the_objects_of_the_same_device_are_taken() {
        let list = |device: &str, format: u32| {
            serde_json::to_string(&List { format, device: device.to_owned(), objects: 2 }).unwrap()
        };
        let taken = left(given(Some(&list("tap:tap0", FORMAT))), "tap:tap0");
        assert_eq!(names(&taken), ["session-1-record", "device-tap.0"]);
        for wrong in
            [Some(&list("xdp:eth0", FORMAT)), Some(&list("tap:tap0", 2)), Some(&"{".into()), None]
        {
            let taken = left(given(wrong.map(String::as_str)), "tap:tap0");
            assert!(taken.is_empty(), "{wrong:?}");
        }
        assert!(left(Vec::new(), "tap:tap0").is_empty());
    }
}
