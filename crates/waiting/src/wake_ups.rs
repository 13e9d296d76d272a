//! The time from a notification until the notified thread runs.

use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::thread::{CpuSet, sched_setaffinity};
use rustix::time::{ClockId, Timespec, clock_gettime};

/// How long a thread waits for its partner before it assumes that the partner has ended.
const PARTNER: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// The measurements.
#[derive(Clone, Debug)]
pub struct RoundTrips {
    /// The time of each round trip: two wake-ups.
    pub times: Vec<Duration>,
    /// The total processor time of both threads.
    pub cpu: Duration,
}

/// Measures round trips between two threads that each sleep on an eventfd until the other one
/// notifies it: at most `most`, and as many as fit into `limit`. The threads run on the given
/// processors. If there are none, or they are not allowed, the scheduler places the threads.
///
/// # Errors
/// When the system has no threads or descriptors left, or a thread ends early.
pub fn round_trips(
    processors: Option<[usize; 2]>,
    most: usize,
    limit: Duration,
) -> io::Result<RoundTrips> {
    let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
    let (call, answer) = (eventfd(0, flags)?, eventfd(0, flags)?);
    let place = |side: usize| {
        if let Some(processors) = processors {
            let mut one = CpuSet::new();
            one.set(processors[side]);
            let _ = sched_setaffinity(None, &one);
        }
        cpu()
    };
    let ended = || io::Error::other("a measuring thread ended early");
    std::thread::scope(|scope| {
        let partner = std::thread::Builder::new().spawn_scoped(scope, || {
            let start = place(0);
            // The partner ends after the last call.
            while wait(&call)? {
                ring(&answer)?;
            }
            io::Result::Ok(cpu() - start)
        })?;
        let caller = std::thread::Builder::new().spawn_scoped(scope, || {
            let mut times = Vec::with_capacity(most);
            let (start, until) = (place(1), Instant::now() + limit);
            while times.len() < most && Instant::now() < until {
                let start = Instant::now();
                ring(&call)?;
                if !wait(&answer)? {
                    break;
                }
                times.push(start.elapsed());
            }
            let own = cpu() - start;
            rustix::io::write(&call, &END.to_ne_bytes())?;
            io::Result::Ok((times, own))
        });
        let caller = match caller {
            Ok(caller) => caller.join(),
            Err(error) => {
                rustix::io::write(&call, &END.to_ne_bytes())?;
                return Err(error);
            }
        };
        let theirs = partner.join().unwrap_or_else(|_| Err(ended()))?;
        let (times, own) = caller.unwrap_or_else(|_| Err(ended()))?;
        Ok(RoundTrips { times, cpu: Duration::from_nanos(own + theirs) })
    })
}

/// Returns the processor time of this thread, in nanoseconds.
pub(crate) fn cpu() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The notification that ends the partner: the largest value that an eventfd takes at once.
const END: u64 = u64::MAX - 2;

fn ring(bell: &OwnedFd) -> io::Result<()> {
    rustix::io::write(bell, &1_u64.to_ne_bytes())?;
    Ok(())
}

/// Sleeps until a notification. Returns `false` when the other side requests the end, or has ended.
fn wait(bell: &OwnedFd) -> io::Result<bool> {
    let mut polled = [PollFd::new(bell, PollFlags::IN)];
    if poll(&mut polled, Some(&PARTNER))? == 0 {
        return Ok(false);
    }
    let mut count = [0; 8];
    rustix::io::read(bell, &mut count)?;
    Ok(u64::from_ne_bytes(count) < END)
}
