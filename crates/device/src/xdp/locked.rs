//! The limit of locked memory, which the kernel counts for all processes of a user.

use rustix::process::{Resource, getrlimit};

use super::options::Notes;

/// The memory of a thread beside its receive buffers, in bytes: for packets to send, and for a
/// batch of received ones.
pub(super) const THREAD_BYTES: usize = 2560 << 10;
/// The bytes of receive buffers of one hardware queue and one thread that the usual limit leaves.
const USUAL_BYTES: usize = 4 << 20;
/// The fewest receive buffers of a hardware queue.
pub(super) const MIN_RX_BUFFERS: usize = 64;

/// Returns the number of bytes that this process may lock; `None` without a limit.
fn limit() -> Option<usize> {
    usize::try_from(getrlimit(Resource::Memlock).current?).ok()
}

/// Returns the number of receive buffers for each hardware queue: `most`, or fewer so that the
/// memory fits into the limit of locked memory. If sessions may have own queues, the memory must
/// fit into half of the limit, because the memory of sessions' own queues counts, too.
pub(super) fn receive_buffers(
    most: usize,
    chunk_bytes: usize,
    queues: u32,
    lanes: u32,
    has_own_queues: bool,
) -> usize {
    let limit = limit().map(|limit| if has_own_queues { limit / 2 } else { limit });
    limit.map_or(most, |limit| within(limit, most, chunk_bytes, queues, lanes))
}

/// Tells an operator if the device has fewer receive buffers than it would have without the limit. This is a warning if
/// the usual limit, 8 MiB, would leave more buffers to one hardware queue.
pub(super) fn tell(notes: &mut Notes, name: &str, buffers: usize, chunk_bytes: usize, most: usize) {
    if buffers < most {
        let text = format!(
            "{name} has {buffers} receive buffers for each hardware queue, and not {most}, because of \
             the limit of locked memory; raise it (ulimit -l, LimitMEMLOCK=)"
        );
        let is_usual = buffers * chunk_bytes >= USUAL_BYTES;
        if is_usual { &mut notes.notes } else { &mut notes.warnings }.push(text);
    }
}

/// Returns `true` if this number of bytes fits into the limit of locked memory.
pub(super) fn fits(bytes: usize) -> bool {
    limit().is_none_or(|limit| bytes <= limit)
}

fn within(limit: usize, most: usize, chunk_bytes: usize, queues: u32, lanes: u32) -> usize {
    let left = limit.saturating_sub(lanes as usize * THREAD_BYTES);
    // Each thread has as many buffers as the one with the most queues.
    let queues = queues.next_multiple_of(lanes) as usize;
    let mut buffers = most;
    while buffers > MIN_RX_BUFFERS && queues * buffers * chunk_bytes > left {
        buffers /= 2;
    }
    buffers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_queues_fit_into_the_usual_limit() {
        let usual = 8 << 20;
        assert_eq!(within(usual, 2048, 2048, 1, 1), 2048);
        assert_eq!(within(usual, 2048, 2048, 2, 1), 1024);
        assert_eq!(within(usual, 2048, 2048, 4, 2), 256);
        assert_eq!(within(usual, 1024, 4096, 4, 2), 128);
        assert_eq!(within(1 << 30, 2048, 2048, 4, 2), 2048);
        assert_eq!(within(0, 2048, 2048, 1, 1), MIN_RX_BUFFERS, "the kernel refuses this");
    }
}
