//! The requests that tools send to a server.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use towpath_protocol::channel::Channel;
use towpath_protocol::message::{Cursor, Message, Set};
use towpath_protocol::settings::Setting;

use crate::control::{ANSWER_TIMEOUT, Answer, Deadline, ask, connect};
use crate::error::AttachError;
use crate::ids::EndpointId;

/// Returns the default path of a device's server socket. For root it is `/run/towpath/DEVICE.sock`,
/// for other users `$XDG_RUNTIME_DIR/towpath/DEVICE.sock`, or where the variable is not set or
/// empty, `/tmp/towpath-UID/DEVICE.sock`.
///
/// ```
/// let path = towpath_client::default_socket("tap0");
/// assert!(path.ends_with("tap0.sock"));
/// ```
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

/// Asks a server for its sessions and counters, and returns its JSON. Root and the server's
/// user see all sessions over its administration socket; others see only their own.
///
/// ```
/// # use towpath_client::*;
/// # fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let report = towpath_client::report("/run/towpath/tap0.sock")?;
/// println!("{}", report["sessions"]);
/// # Ok(()) }
/// ```
///
/// # Errors
/// As attaching.
pub fn report(path: impl AsRef<Path>) -> Result<serde_json::Value, AttachError> {
    let path = path.as_ref();
    report_over(connect(path, Deadline::after(ANSWER_TIMEOUT))?).map_err(|error| error.at(path))
}

/// Asks as [`report()`] does, over a connected socket from a server in this process.
///
/// ```
/// # use towpath_client::*;
/// # fn example(socket: std::os::fd::OwnedFd) -> Result<(), Box<dyn std::error::Error>> {
/// println!("{}", towpath_client::report_over(socket)?);
/// # Ok(()) }
/// ```
///
/// # Errors
/// As attaching.
pub fn report_over(socket: OwnedFd) -> Result<serde_json::Value, AttachError> {
    let channel = Channel::new(socket);
    let mut report = serde_json::Value::Null;
    let mut cursor = Cursor::default();
    loop {
        let (Message::Reported(next, text), _) = expect(&channel, &Message::Report(cursor))? else {
            return Err(AttachError::Protocol("the server answered with another message".into()));
        };
        let page = serde_json::from_slice(&text).map_err(|error| {
            AttachError::Protocol(format!("the server's report is not JSON: {error}"))
        })?;
        append(&mut report, page);
        if next == Cursor::END {
            return Ok(report);
        }
        if (next.connection, next.endpoint) <= (cursor.connection, cursor.endpoint) {
            return Err(AttachError::Protocol("the server's report has too many pages".into()));
        }
        cursor = next;
    }
}

/// Appends a page to the pages before it, and merges a session whose endpoints are on both.
fn append(report: &mut serde_json::Value, mut page: serde_json::Value) {
    if report.is_null() {
        *report = page;
        return;
    }
    let (Some(all), Some(more)) =
        (report["sessions"].as_array_mut(), page["sessions"].as_array_mut())
    else {
        return;
    };
    if let (Some(last), Some(first)) = (all.last_mut(), more.first_mut())
        && last["session"] == first["session"]
        && let (Some(endpoints), Some(rest)) =
            (last["endpoints"].as_array_mut(), first["endpoints"].as_array_mut())
    {
        endpoints.append(rest);
        more.remove(0);
    }
    all.append(more);
}

/// Changes a setting of the device, or of an endpoint, given by its session's number and its own.
/// For root and the server's user, over the server's administration socket
/// ([`administration_socket`](crate::administration_socket)); an application changes its own endpoints' settings by
/// [`crate::Session::set`].
///
/// ```
/// # use towpath_client::*;
/// # fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let endpoint = Some((1, EndpointId::new(0)));
/// towpath_client::set("/run/towpath/tap0.sock", endpoint, Setting::Weight, 200)?;
/// # Ok(()) }
/// ```
///
/// # Errors
/// As attaching; then the old value stays in force.
pub fn set(
    path: impl AsRef<Path>,
    endpoint: Option<(u32, EndpointId)>,
    setting: Setting,
    value: u64,
) -> Result<(), AttachError> {
    let path = path.as_ref();
    let socket = connect(path, Deadline::after(ANSWER_TIMEOUT))?;
    set_over(socket, endpoint, setting, value).map_err(|error| error.at(path))
}

/// Changes a setting as [`set`] does, over a connected socket from a server in this process.
///
/// ```
/// # use towpath_client::*;
/// # fn example(socket: std::os::fd::OwnedFd) -> Result<(), Box<dyn std::error::Error>> {
/// towpath_client::set_over(socket, None, Setting::Expedited, 16)?;
/// # Ok(()) }
/// ```
///
/// # Errors
/// As attaching; then the old value stays in force.
pub fn set_over(
    socket: OwnedFd,
    endpoint: Option<(u32, EndpointId)>,
    setting: Setting,
    value: u64,
) -> Result<(), AttachError> {
    let channel = Channel::new(socket);
    let (session, endpoint) = endpoint.map_or((0, 0), |(session, id)| (session, id.number()));
    let set = Set { setting: setting as u32, session, endpoint, reserved: 0, value };
    expect(&channel, &Message::Set(set)).map(|_| ())
}

fn expect(channel: &Channel, message: &Message) -> Result<(Message, Vec<OwnedFd>), AttachError> {
    match ask(channel, message, Deadline::after(ANSWER_TIMEOUT)) {
        Answer::Message(message, descriptors) => Ok((message, descriptors)),
        other => Err(other.into_attach_error()),
    }
}
