//! The descriptor store of the service manager (systemd, `FileDescriptorStoreMax=`): where a keeper
//! leaves its objects when its service ends, and where the next keeper finds them.
//!
//! The service manager closes everything at a stop of the service. Its messages are those of
//! sd_notify(3) and sd_listen_fds(3).
//!
//! The service manager names all descriptors in one environment variable, compares each new one with
//! all others, and may change their order. So the keeper sends its objects into sockets of its own, and
//! stores the other ends of these, and a list. The list has the names of the objects, in their order.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut, Read, Seek, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::MemfdFlags;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use sd_notify::NotifyState;
use serde::{Deserialize, Serialize};
use towpath_keeper::LeftObjects;
use towpath_protocol::position::Crash;
use tracing::{info, warn};

use super::notify::notify_until;
use super::ready::inherited;
use crate::failure::says;

/// The name of the list, and of the sockets.
const LIST: &str = "towpath-list";
const OBJECTS: &str = "towpath-objects";

/// The version of the list's format, and of the sockets' messages.
const FORMAT: u32 = 1;

/// The longest list, in bytes: of a quarter of a million objects.
const MOST_LIST_BYTES: u64 = 64 << 20;

/// The objects of a message. The kernel allows 253 (`SCM_MAX_FD`).
const MOST_OF_A_MESSAGE: usize = 250;

/// The longest time in which the service manager takes the sockets and the list.
const TIMEOUT: Duration = Duration::from_secs(5);

/// What a keeper left.
#[derive(Debug, Serialize, Deserialize)]
struct List {
    format: u32,
    /// The device that was served.
    device: String,
    /// `true` if the last server crashed, and the engine that hung if it hung.
    crashed: bool,
    hung: Option<usize>,
    names: Vec<String>,
}

impl List {
    fn crash(&self) -> Option<Crash> {
        self.hung.map(Crash::Hang).or(self.crashed.then_some(Crash::InUnknownThread))
    }
}

/// Descriptors that the service manager gave, by name.
pub(super) type Given = Vec<(String, OwnedFd)>;

/// Takes over the descriptors that the service manager gave this process, by their numbers. Call it
/// before this process opens or takes over any other descriptor.
///
/// # Errors
/// If the service manager's variables are no numbers, or a descriptor is not open.
pub(super) fn take_given() -> io::Result<Given> {
    sd_notify::listen_fds_with_names()?
        .map(|(number, name)| Ok((name, inherited(number)?)))
        .collect()
}

/// Returns the objects that an earlier keeper of this device left. Closes everything that is of no
/// use. Has the service manager close its copies of the sockets and the list.
pub(super) fn adopt(given: Given, device: &str) -> LeftObjects {
    if given.is_empty() {
        return LeftObjects::default();
    }
    if let Err(error) = close_copies(&given, Instant::now() + TIMEOUT) {
        warn!("the service manager keeps copies of an earlier keeper's list: {}", says(&error));
    }
    match unpack(given, device) {
        Ok(left) => {
            let objects = left.objects.len();
            info!(objects, "the keeper goes on with the objects of the earlier keeper");
            left
        }
        Err(why) => {
            warn!("this keeper closes the objects that an earlier keeper left: {why}");
            LeftObjects::default()
        }
    }
}

/// Has the service manager close its copies. Without this, it would give them to a later keeper once
/// more.
fn close_copies(given: &Given, until: Instant) -> io::Result<()> {
    let names: BTreeSet<&str> = given.iter().map(|(name, _)| name.as_str()).collect();
    for name in names {
        notify_until(&[NotifyState::FdStoreRemove, NotifyState::FdName(name)], &[], until)?;
    }
    barrier(until)
}

/// Leaves objects to the next keeper of the service.
///
/// # Errors
/// If the service manager does not take them, or the kernel has no room for their messages.
pub(super) fn leave(left: &LeftObjects, device: &str) -> io::Result<()> {
    let until = Instant::now() + TIMEOUT;
    for (name, object) in pack(left, device)? {
        // The sockets count as hung up, which would have the service manager drop them.
        let message =
            [NotifyState::FdStore, NotifyState::FdName(&name), NotifyState::Custom("FDPOLL=0")];
        notify_until(&message, &[object.as_fd()], until)?;
    }
    barrier(until)
}

/// Waits until the service manager has handled all messages before.
fn barrier(until: Instant) -> io::Result<()> {
    let (ours, theirs) = io::pipe()?;
    notify_until(&[NotifyState::Custom("BARRIER=1")], &[theirs.as_fd()], until)?;
    drop(theirs);
    loop {
        let left = Timespec::try_from(until.saturating_duration_since(Instant::now()));
        let mut ended = [PollFd::new(&ours, PollFlags::IN)];
        match poll(&mut ended, left.ok().as_ref()) {
            Err(Errno::INTR) => {}
            Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
            other => return other.map(|_| ()).map_err(Into::into),
        }
    }
}

/// Returns sockets with the objects, and the list, with the names under which they are stored.
fn pack(left: &LeftObjects, device: &str) -> io::Result<Given> {
    let mut stored = Given::new();
    let mut socket: Option<OwnedFd> = None;
    for batch in left.objects.chunks(MOST_OF_A_MESSAGE) {
        let batch: Vec<_> = batch.iter().map(|(_, object)| object.as_fd()).collect();
        if let Some(socket) = &socket
            && send(socket, &batch)?
        {
            continue;
        }
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        stored.push((format!("{OBJECTS}-{}", stored.len()), theirs));
        if !send(&ours, &batch)? {
            return Err(Errno::NOBUFS.into());
        }
        socket = Some(ours);
    }
    let list = List {
        format: FORMAT,
        device: device.to_owned(),
        crashed: left.crash.is_some(),
        hung: left.crash.and_then(|crash| match crash {
            Crash::Hang(engine) => Some(engine),
            Crash::InUnknownThread => None,
        }),
        names: left.objects.iter().map(|(name, _)| name.clone()).collect(),
    };
    let mut file = File::from(rustix::fs::memfd_create(LIST, MemfdFlags::CLOEXEC)?);
    file.write_all(&serde_json::to_vec(&list)?)?;
    stored.push((LIST.to_owned(), file.into()));
    Ok(stored)
}

/// Returns the objects in sockets, by the list; an error says why they are of no use.
fn unpack(mut given: Given, device: &str) -> Result<LeftObjects, String> {
    let mut lists: Vec<_> = given.extract_if(.., |(name, _)| name == LIST).collect();
    let list = lists
        .pop()
        .ok_or("the list of objects is missing; the unit needs a larger FileDescriptorStoreMax=")?;
    if !lists.is_empty() {
        return Err("there are two lists of objects".to_owned());
    }
    let list = read(list.1).map_err(|error| format!("the list of objects: {}", says(&error)))?;
    if list.device != device {
        return Err(format!("they are of {}, and this keeper serves {device}", list.device));
    }
    let number = |name: &str| name.strip_prefix(OBJECTS)?.strip_prefix('-')?.parse::<u32>().ok();
    let mut sockets: Vec<_> =
        given.into_iter().filter_map(|(name, socket)| Some((number(&name)?, socket))).collect();
    sockets.sort_by_key(|(number, _)| *number);
    let mut objects = Vec::new();
    for (_, socket) in sockets {
        receive(&socket, &mut objects)
            .map_err(|error| format!("the sockets with the objects: {}", says(&error)))?;
    }
    if objects.len() != list.names.len() {
        return Err(format!(
            "{} of {} objects are there; the unit needs a larger FileDescriptorStoreMax= or \
             LimitNOFILE=",
            objects.len(),
            list.names.len()
        ));
    }
    let crash = list.crash();
    Ok(LeftObjects { objects: list.names.into_iter().zip(objects).collect(), crash })
}

/// Sends a message with objects. Returns `false` if the socket has no room.
fn send(socket: &OwnedFd, objects: &[BorrowedFd<'_>]) -> io::Result<bool> {
    let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_OF_A_MESSAGE))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(objects)) {
        return Err(Errno::INVAL.into());
    }
    match sendmsg(socket, &[IoSlice::new(&[1])], &mut control, SendFlags::NOSIGNAL) {
        Err(Errno::AGAIN) => Ok(false),
        sent => Ok(sent.map(|_| true)?),
    }
}

/// Appends all objects in a socket to `objects`.
fn receive(socket: &OwnedFd, objects: &mut Vec<OwnedFd>) -> io::Result<()> {
    let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_OF_A_MESSAGE))];
    loop {
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let (mut byte, flags) = ([0], RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT);
        match recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut control, flags) {
            Err(Errno::INTR) => continue,
            Ok(received) if received.bytes > 0 => {}
            Ok(_) | Err(Errno::AGAIN) => return Ok(()),
            Err(errno) => return Err(errno.into()),
        }
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                objects.extend(rights);
            }
        }
    }
}

/// Reads a list.
fn read(list: OwnedFd) -> io::Result<List> {
    let mut file = File::from(list);
    let mut text = String::new();
    file.rewind()?;
    file.take(MOST_LIST_BYTES).read_to_string(&mut text)?;
    let wrong = |text: String| io::Error::new(io::ErrorKind::InvalidData, text);
    // The version first: a list of another version may have other fields.
    let contents: serde_json::Value = serde_json::from_str(&text)?;
    if contents["format"] != FORMAT {
        let format = &contents["format"];
        return Err(wrong(format!("its format is {format}, and this program knows {FORMAT}")));
    }
    Ok(serde_json::from_value(contents)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEVICE: &str = "tap:tap0";

    fn left(objects: usize, crash: Option<Crash>) -> LeftObjects {
        let object = |number: usize| {
            let file = rustix::fs::memfd_create(number.to_string(), MemfdFlags::CLOEXEC).unwrap();
            (format!("port-tcp-{number}"), file)
        };
        LeftObjects { objects: (0..objects).map(object).collect(), crash }
    }

    fn with_list(list: &str) -> Given {
        let mut stored = pack(&left(2, None), DEVICE).unwrap();
        stored.retain(|(name, _)| name != LIST);
        let file = rustix::fs::memfd_create("list", MemfdFlags::CLOEXEC).unwrap();
        rustix::io::write(&file, list.as_bytes()).unwrap();
        stored.push((LIST.to_owned(), file));
        stored
    }

    #[test]
    fn objects_arrive_in_their_order_under_their_names() {
        for crash in [None, Some(Crash::InUnknownThread), Some(Crash::Hang(2))] {
            let sent = left(600, crash);
            let stored = pack(&sent, DEVICE).unwrap();
            // Few, whatever the number of objects.
            assert_eq!(stored.len(), 2);
            let found = unpack(stored, DEVICE).unwrap();
            assert_eq!(found.crash, crash);
            assert_eq!(found.objects.len(), 600);
            for ((name, object), (other, file)) in sent.objects.iter().zip(&found.objects) {
                assert_eq!(name, other);
                let inode = |one: &OwnedFd| rustix::fs::fstat(one).unwrap().st_ino;
                assert_eq!(inode(object), inode(file));
            }
        }
        assert!(unpack(pack(&left(0, None), DEVICE).unwrap(), DEVICE).unwrap().objects.is_empty());
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let list = |format: u32, device: &str, count: usize| {
            let names = vec!["a".to_owned(); count];
            let device = device.to_owned();
            let list = List { format, device, crashed: false, hung: None, names };
            serde_json::to_string(&list).unwrap()
        };
        assert!(unpack(with_list(&list(FORMAT, DEVICE, 2)), DEVICE).is_ok());
        for (text, why) in [
            (list(FORMAT, "xdp:eth0", 2), "xdp:eth0"),
            (list(2, DEVICE, 2), "format is 2"),
            (list(FORMAT, DEVICE, 3), "2 of 3 objects"),
            ("{".to_owned(), "the list of objects"),
        ] {
            let refused = unpack(with_list(&text), DEVICE).unwrap_err();
            assert!(refused.contains(why), "{refused}");
        }
        let mut stored = with_list(&list(FORMAT, DEVICE, 2));
        let (_, copy) = stored.last().unwrap();
        let copy = copy.try_clone().unwrap();
        stored.push((LIST.to_owned(), copy));
        assert!(unpack(stored, DEVICE).unwrap_err().contains("two lists"));
        let mut stored = pack(&left(2, None), DEVICE).unwrap();
        stored.retain(|(name, _)| name != LIST);
        assert!(unpack(stored, DEVICE).unwrap_err().contains("FileDescriptorStoreMax="));
        assert!(adopt(Given::new(), DEVICE).objects.is_empty());
    }
}
