//! The configuration of a driver, the counts, and the errors.

/// How the threads of a program keep out of each other's way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protection {
    /// A thread waits for a mutex, as a driver that raises the interrupt level lets an interrupt
    /// wait.
    Mutex,
    /// A thread tries an optimistic section. If another thread is inside, the thread leaves its
    /// work to it.
    #[default]
    Optimistic,
}

/// The numbers of a driver's buffers, and its protection.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Packets that threads may leave, a power of two up to 65 536.
    pub left: u32,
    /// Packets of threads inside that may wait for the device, 1 to 65 536.
    pub own: u32,
    /// Buffers to receive into, 1 to 65 536.
    pub receive: u32,
    /// Packets that may wait for each [`Reader`](crate::Reader), and those that may be deferred
    /// besides: a power of two up to 65 536.
    pub reader: u32,
    /// The write path: what protects the device from threads that send, receive or reset at once.
    pub write: Protection,
    /// The read path: what protects the packets of a reader from the thread that delivers.
    pub read: Protection,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            left: 256,
            own: 256,
            receive: 256,
            reader: 256,
            write: Protection::Optimistic,
            read: Protection::Optimistic,
        }
    }
}

/// The reason for which a call fails in a child made by `fork`.
pub(crate) const FORKED: &str =
    "this process was forked, and the device belongs to its parent; open a device in this process";

/// The reason why the driver did not send a packet. The packet stays with the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// There is no room now.
    #[error("no room; drive the device, and send again")]
    WouldBlock,
    /// The packet is longer than the device takes.
    #[error("{len} bytes; the device takes at most {most}")]
    TooLong {
        /// The packet's length, in bytes.
        len: usize,
        /// The longest packet, in bytes.
        most: usize,
    },
    /// The device failed; [`Embedded::failure`](crate::Embedded::failure) returns the reason. A
    /// reset may repair it, unless a thread panicked inside of the device's code.
    #[error("the device failed")]
    Failed,
    /// This process is a child made by `fork`, and the driver is its parent's.
    #[error("{FORKED}")]
    Forked,
}

/// The reason for which a reader's call fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// This process is a child made by `fork`, and the reader is its parent's.
    #[error("{FORKED}")]
    Forked,
}

/// The counts of a driver.
///
/// Each packet that the thread inside sends itself is one of four cases: `straight`, `busy`,
/// `behind` or `link_down` (Watson's `em_startmbuf` has the same).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Packets that the thread inside sent itself.
    pub direct: u64,
    /// Packets that other threads left for the thread inside.
    pub left: u64,
    /// Of `direct`: packets that went straight into the device's ring, while none waited.
    pub straight: u64,
    /// Of `direct`: packets that waited, the first ones, because the device had no room.
    pub busy: u64,
    /// Of `direct`: packets that went behind waiting ones. The thread then submitted all in order,
    /// as far as the device had room.
    pub behind: u64,
    /// Of `direct`: packets that waited because the device's link was down.
    pub link_down: u64,
    /// Packets of the thread inside that the driver refused for want of a buffer.
    pub refused: u64,
    /// Packets that the device took.
    pub taken: u64,
    /// Packets that the device completed.
    pub returned: u64,
    /// Of these, the packets that the device had not sent when it was reset.
    pub lost: u64,
    /// Times that a thread entered the section, or locked the mutex.
    pub entered: u64,
    /// Of these, times that a thread had to wait for the mutex.
    pub contended: u64,
    /// The time that threads waited for the mutex, all together, in nanoseconds.
    pub blocked_ns: u64,
    /// Times that a thread did the work of an interrupt ([`Embedded::interrupt`]).
    ///
    /// [`Embedded::interrupt`]: crate::Embedded::interrupt
    pub interrupts: u64,
    /// Of these, times that a thread inside did it for the thread that handles interrupts.
    pub interrupts_left: u64,
    /// Received packets that the program's function gave to no reader.
    pub rx_no_reader: u64,
    /// Received packets that were not inside of their buffers.
    pub rx_malformed: u64,
    /// Resets.
    pub resets: u64,
    /// The device's counters.
    pub device: towpath_device::Counters,
}

/// The counts of a reader.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReaderCounts {
    /// Packets that were delivered into the reader's queue.
    pub delivered: u64,
    /// Of these, packets that came while the reader had its flag set, and were deferred.
    pub deferred: u64,
    /// Packets that were dropped, because the queue was full.
    pub dropped_full: u64,
    /// Packets that were dropped, because too many were deferred.
    pub dropped_deferred: u64,
    /// Packets that the reader took.
    pub read: u64,
    /// Times that the thread that delivers had to wait for the reader's mutex.
    pub contended: u64,
}
