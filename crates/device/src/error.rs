//! Faults of a device as a whole.

/// A fault of a device as a whole. The device counts single bad packets, and returns no error for
/// them.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// The interface is gone: deleted, or its namespace with it.
    #[error("device {name} is gone: {cause}")]
    Gone {
        /// The interface.
        name: String,
        /// The kernel's error.
        cause: std::io::Error,
    },
    /// The interface has changed, and only a device that is opened anew can serve all of it. The next server can
    /// resume the sessions.
    #[error("device {name} has changed: {what}")]
    Changed {
        /// The interface.
        name: String,
        /// The change, in words.
        what: String,
    },
    /// The kernel refused an operation, which a reset may repair.
    #[error("device {name}: {what}: {cause}")]
    Failed {
        /// The interface.
        name: String,
        /// The operation that failed.
        what: &'static str,
        /// The kernel's error.
        cause: std::io::Error,
    },
    /// The device kept packets that it had taken to send, and its reset failed.
    #[error("device {name} stalled, and its reset failed: {cause}")]
    Stalled {
        /// The interface.
        name: String,
        /// The error of the reset.
        cause: Box<DeviceError>,
    },
}

impl DeviceError {
    /// Returns `true` if the interface is gone: no other server can serve it.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        matches!(self, DeviceError::Gone { .. })
    }

    /// Returns the error of a queue that the device does not have, or that is already open.
    #[must_use]
    pub fn no_queue(name: &str, is_open: bool) -> DeviceError {
        let errno = if is_open { libc::EBUSY } else { libc::ENODEV };
        let cause = std::io::Error::from_raw_os_error(errno);
        DeviceError::Failed { name: name.to_owned(), what: "opening a queue", cause }
    }
}
