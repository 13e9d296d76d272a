//! The default limit of the memory of all sessions: half of the machine's memory. If the server's control group
//! (cgroups(7)) has a lower limit, half of that.
#![forbid(unsafe_code)]

use std::path::{Component, Path};

use towpath_net::SessionLink;
use towpath_protocol::layout::SessionShape;
use towpath_server::session_bytes;
use tracing::warn;

use crate::failure::Failure;

/// The mount points of control groups, each with the file that limits a group's memory: version 2, version 2 beside
/// version 1, and version 1.
const LIMITS: [(&str, &str); 3] =
    [("", "memory.max"), ("unified", "memory.max"), ("memory", "memory.limit_in_bytes")];

/// The divisor of the memory: sessions may have half of it by default. The rest is for the device's packets, the
/// processes and the applications' own memory.
const SESSIONS_DIVISOR: u64 = 2;

/// Returns the bytes that all sessions of a server may have together by default.
pub(super) fn default_total_bytes() -> usize {
    let system = rustix::system::sysinfo();
    let machine = system.totalram as u64 * u64::from(system.mem_unit);
    let own = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let group = least_limit(&own, Path::new("/sys/fs/cgroup"));
    let bytes = group.map_or(machine, |group| group.min(machine)) / SESSIONS_DIVISOR;
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

/// The smallest buffer of a session, in bytes.
const MIN_BUFFER_BYTES: u32 = 64;

/// The divisor of the limit for one granted user, who may have half of it.
const USER_DIVISOR: usize = 2;

/// Returns the bytes of the smallest session on a server with `lanes` engine threads.
fn smallest_session_bytes(lanes: usize) -> usize {
    let bytes = MIN_BUFFER_BYTES;
    // Queues have a power of two of slots, and not every one.
    let shape = (0..u32::BITS)
        .find_map(|power| SessionShape::new(1, 1, 1 << power, 1 << power, bytes, bytes).ok());
    shape.map_or(0, |shape| session_bytes(&shape, lanes))
}

/// Returns the bytes of a session of a program that uses the sockets of `towpath-net`.
fn sockets_session_bytes(lanes: usize) -> usize {
    let shape = SessionLink::options("").shape();
    shape.map_or(0, |shape| session_bytes(&shape, lanes))
}

/// Checks that a given limit has room for a session.
pub(super) fn check(total: usize, lanes: usize) -> Result<(), Failure> {
    let least = smallest_session_bytes(lanes);
    if total >= least {
        return Ok(());
    }
    let useful = sockets_session_bytes(lanes) * USER_DIVISOR;
    Err(Failure::usage(format!(
        "--total-bytes {total}: the smallest session takes {least} bytes; give at least {useful}, for one \
         program that uses sockets, or 0 for half of the machine's memory"
    )))
}

/// Warns if one granted user's half of the limit has no room for a program that uses sockets.
pub(super) fn warn_if_small(total: usize, lanes: usize) {
    let wanted = sockets_session_bytes(lanes);
    if total / USER_DIVISOR < wanted {
        warn!(
            "all sessions may have {total} bytes (--total-bytes), and one user half of them: a program that uses \
             sockets takes {wanted} bytes, so the server refuses it; give at least {}",
            wanted * USER_DIVISOR
        );
    }
}

/// Returns the lowest limit of the groups in `own`, the text of `/proc/self/cgroup`, and of the groups above them.
fn least_limit(own: &str, root: &Path) -> Option<u64> {
    let paths = own.lines().filter_map(|line| {
        let (_, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        let limits_memory =
            controllers.is_empty() || controllers.split(',').any(|one| one == "memory");
        limits_memory.then_some(Path::new(path))
    });
    let mut least = None;
    for path in paths {
        // The path of a group outside of this process' cgroup namespace begins with `/..`. The limit of the mount
        // itself holds for such a group.
        let is_within =
            path.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
        let path = if is_within { path } else { Path::new("/") };
        for group in path.ancestors() {
            let group = group.strip_prefix("/").unwrap_or(group);
            for (mount, file) in LIMITS {
                let limit = std::fs::read_to_string(root.join(mount).join(group).join(file));
                // Without a limit, version 2 says `max`.
                let limit = limit.ok().and_then(|text| text.trim().parse::<u64>().ok());
                least = least.into_iter().chain(limit).min();
            }
        }
    }
    least
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_limit_of_a_group_and_those_above_it_holds() {
        let root = std::env::temp_dir().join(format!("towpath-cgroup-{}", std::process::id()));
        let write = |file: &str, text: &str| {
            let path = root.join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("a/b/memory.max", "max\n");
        write("a/memory.max", "5000000\n");
        write("memory/c/memory.limit_in_bytes", "4000000\n");
        write("memory/memory.limit_in_bytes", "9223372036854771712\n");
        let least = |own| least_limit(own, &root);
        assert_eq!(least("0::/a/b\n"), Some(5_000_000));
        assert_eq!(least("4:memory:/c\n1:cpu:/a\n0::/\n"), Some(4_000_000));
        assert_eq!(least("4:cpu,memory:/elsewhere\n"), Some(9_223_372_036_854_771_712));
        assert_eq!(least("0::/../a\n"), Some(9_223_372_036_854_771_712), "only the mount itself");
        assert_eq!(least("1:cpu:/a\n"), None);
        assert_eq!(least(""), None);
        std::fs::remove_dir_all(&root).unwrap();
        assert!(default_total_bytes() > 1 << 20);
    }

    #[test]
    fn a_limit_without_room_for_a_session_is_refused() {
        for lanes in [1, 4] {
            let least = smallest_session_bytes(lanes);
            assert!(least > 0 && least < sockets_session_bytes(lanes));
            let refused = check(least - 1, lanes).unwrap_err();
            let useful = sockets_session_bytes(lanes) * 2;
            assert!(refused.text().contains(&format!("at least {useful}")), "{refused:?}");
            assert_eq!(check(least, lanes), Ok(()));
        }
    }
}
