//! The memory of a device's packets.

use std::io;
use std::os::fd::OwnedFd;

use towpath_memory::{HUGE_PAGE_BYTES, Region};

/// The name of the memory file, as `/proc/PID/maps` shows it.
const NAME: &str = "towpath-packets";

/// Allocates zeroed memory for a device's packets, which this process alone writes: in huge pages
/// if enough of them are free. `is_kept`: the memory is a memory file, whose descriptor a keeper can
/// hold, and a device can reach it by itself.
///
/// # Errors
/// `ENOMEM` when there is no memory; other errors of making and mapping a memory file.
pub fn packet_memory(bytes: usize, is_kept: bool) -> io::Result<(Region, Option<OwnedFd>)> {
    if bytes >= HUGE_PAGE_BYTES
        && let Ok((region, file)) = Region::in_huge_pages(NAME, bytes)
    {
        return Ok((region, is_kept.then_some(file)));
    }
    if !is_kept {
        return Ok((Region::private(bytes)?, None));
    }
    let (region, file) = Region::in_kept_file(NAME, bytes)?;
    Ok((region, Some(file)))
}

#[cfg(test)]
mod tests {
    use towpath_memory::PAGE_BYTES;

    use super::*;

    /// With two free huge pages (`sysctl vm.nr_hugepages=2`) the memory has them, if no other test
    /// takes them meanwhile. It is the same memory without.
    #[test]
    fn there_is_memory_whatever_pages_are_free() {
        for (bytes, is_kept) in [(1, true), (PAGE_BYTES, false), (3 << 20, true), (3 << 20, false)]
        {
            let (mut region, file) = packet_memory(bytes, is_kept).unwrap();
            assert_eq!(file.is_some(), is_kept);
            assert_eq!(region.len(), bytes.next_multiple_of(PAGE_BYTES), "not rounded up further");
            assert!(region.copy_in(bytes - 1, &[7]));
            assert_eq!(region.bytes(bytes - 1, 1), Some([7].as_slice()));
            let page_bytes = region.mapping().page_bytes();
            println!("{bytes} bytes in pages of {page_bytes}");
            assert!(page_bytes == PAGE_BYTES || bytes >= page_bytes);
        }
    }
}
