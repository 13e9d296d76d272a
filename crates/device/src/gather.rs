//! Writes a packet whose parts lie apart, with a header in front, by one system call.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use crate::{MAX_PARTS, Part, SHORTEST_FRAME_BYTES, Spaces};

static PADDING: [u8; SHORTEST_FRAME_BYTES] = [0; SHORTEST_FRAME_BYTES];

/// Returns the zeros that a frame of `len` bytes lacks.
pub(crate) fn padding(len: usize) -> &'static [u8] {
    &PADDING[..SHORTEST_FRAME_BYTES.saturating_sub(len)]
}

/// Writes a header, a packet's parts and padding as one packet. `None` if a part lies outside of
/// its space, or there are more than [`MAX_PARTS`].
pub(crate) fn write(
    fd: BorrowedFd<'_>,
    header: &[u8],
    spaces: &Spaces,
    parts: &[Part],
    padding: &'static [u8],
) -> Option<io::Result<()>> {
    if parts.len() > MAX_PARTS {
        return None;
    }
    let piece = |start: *const u8, len: usize| libc::iovec {
        iov_base: start.cast_mut().cast(),
        iov_len: len,
    };
    let mut pieces = [piece(std::ptr::null(), 0); MAX_PARTS + 2];
    pieces[0] = piece(header.as_ptr(), header.len());
    for (place, part) in pieces[1..].iter_mut().zip(parts) {
        let from = spaces.readable(part.space, part.offset, part.len).ok()?;
        *place = piece(from.as_ptr(), part.len as usize);
    }
    let mut count = 1 + parts.len();
    if !padding.is_empty() {
        pieces[count] = piece(padding.as_ptr(), padding.len());
        count += 1;
    }
    // SAFETY: the first `count` pieces name live memory: the header, parts that lie in their spaces
    // as just checked, and the static padding. The kernel only reads them, during the call.
    let put = unsafe { libc::writev(fd.as_raw_fd(), pieces.as_ptr(), count as libc::c_int) };
    Some(if put < 0 { Err(io::Error::last_os_error()) } else { Ok(()) })
}
