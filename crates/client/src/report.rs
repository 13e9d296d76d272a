//! What tools ask of a server.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use towpath_protocol::channel::Channel;
use towpath_protocol::memory::SharedFile;
use towpath_protocol::message::{Message, Set};
use towpath_protocol::settings::Setting;

use crate::control::{Answer, ask, connect};
use crate::error::AttachError;

/// Where the server of a device listens when nothing else is said: `/run/towpath/DEVICE.sock` for
/// root and for system services, `$XDG_RUNTIME_DIR/towpath/DEVICE.sock` for other users, or where that
/// is not set or empty, `/tmp/towpath-UID/DEVICE.sock`.
#[must_use]
pub fn default_socket(device: &str) -> PathBuf {
    let name = format!("{device}.sock");
    if rustix::process::geteuid().is_root() {
        return Path::new("/run/towpath").join(name);
    }
    match std::env::var_os("XDG_RUNTIME_DIR").filter(|directory| !directory.is_empty()) {
        Some(directory) => Path::new(&directory).join("towpath").join(name),
        None => {
            let uid = rustix::process::geteuid().as_raw();
            PathBuf::from(format!("/tmp/towpath-{uid}")).join(name)
        }
    }
}

/// Asks a server for its sessions and counters; the answer is JSON. Users other than root and the
/// server's see their own sessions.
///
/// # Errors
/// As attaching.
pub fn report(path: impl AsRef<Path>) -> Result<serde_json::Value, AttachError> {
    report_over(connect(path.as_ref())?)
}

/// The same over a connected socket: one that a server in this process gave.
///
/// # Errors
/// As attaching.
pub fn report_over(socket: OwnedFd) -> Result<serde_json::Value, AttachError> {
    let channel = Channel::new(socket);
    let (Message::Reported, mut descriptors) = expect(&channel, &Message::Report)? else {
        return Err(AttachError::Protocol("the server answered with another message".into()));
    };
    let file = descriptors
        .pop()
        .ok_or_else(|| AttachError::Protocol("the report came without a descriptor".into()))?;
    let mapping = SharedFile::adopt(file)?.map_readable()?;
    let mut bytes = vec![0; mapping.len()];
    let _ = mapping.copy_out(0, &mut bytes);
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    serde_json::from_slice(&bytes[..end])
        .map_err(|error| AttachError::Protocol(format!("the report is no JSON: {error}")))
}

/// Changes a setting of the device, or of an endpoint, which is named by its session and its number
/// there. For root and the server's user; an application changes its own endpoints' by
/// [`crate::Session::set`].
///
/// # Errors
/// As attaching; the old value stands then.
pub fn set(
    path: impl AsRef<Path>,
    endpoint: Option<(u32, u32)>,
    setting: Setting,
    value: u64,
) -> Result<(), AttachError> {
    set_over(connect(path.as_ref())?, endpoint, setting, value)
}

/// The same over a connected socket: one that a server in this process gave.
///
/// # Errors
/// As attaching; the old value stands then.
pub fn set_over(
    socket: OwnedFd,
    endpoint: Option<(u32, u32)>,
    setting: Setting,
    value: u64,
) -> Result<(), AttachError> {
    let channel = Channel::new(socket);
    let (session, endpoint) = endpoint.unwrap_or((0, 0));
    let set = Set { setting: setting as u32, session, endpoint, reserved: 0, value };
    expect(&channel, &Message::Set(set)).map(|_| ())
}

fn expect(channel: &Channel, message: &Message) -> Result<(Message, Vec<OwnedFd>), AttachError> {
    match ask(channel, message) {
        Answer::Message(message, descriptors) => Ok((message, descriptors)),
        other => Err(other.into_attach_error()),
    }
}
