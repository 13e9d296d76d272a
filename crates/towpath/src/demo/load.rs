//! The traffic of all kinds, at once.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::Context;

use super::addresses::{ECHO_V4, ECHO_V6, WEB_V4, WEB_V6};
use super::progress::Shown;
use super::traffic::{self, Carried, Content, Progress, RoundTrips};

/// The time limit of all traffic.
const DEADLINE: Duration = Duration::from_secs(35);

/// The amount of traffic.
#[derive(Debug, Clone, Copy)]
pub(super) struct Amounts {
    pub(super) file_bytes: u64,
    pub(super) round_trips: u64,
    pub(super) pings: u64,
}

/// The traffic of all kinds, at once, while this thread does other work.
pub(super) struct Traffic {
    pub(super) carried: [Carried; 2],
    pub(super) udp: RoundTrips,
    pub(super) pings: RoundTrips,
}

/// Runs the traffic of all kinds, and `meanwhile` beside it.
pub(super) fn drive<T>(
    content: &Content,
    amounts: Amounts,
    meanwhile: impl FnOnce(&Progress) -> anyhow::Result<T>,
) -> anyhow::Result<(Traffic, T)> {
    let progress = Progress::default();
    let mut shown = Shown::new(amounts.round_trips, amounts.pings);
    let until = Instant::now() + DEADLINE;
    std::thread::scope(|scope| {
        let http = scope.spawn(|| traffic::files(content, WEB_V4, WEB_V6, &progress));
        let udp = scope.spawn(|| traffic::round_trips(ECHO_V4, amounts.round_trips, &progress));
        let pings = scope.spawn(|| traffic::pings(ECHO_V4, ECHO_V6, amounts.pings, &progress));
        let watch = scope.spawn(|| {
            while !(http.is_finished() && udp.is_finished() && pings.is_finished()) {
                if udp.is_finished() && pings.is_finished() {
                    progress.enough.store(true, Ordering::Relaxed);
                }
                if Instant::now() > until {
                    progress.stop.store(true, Ordering::Relaxed);
                }
                shown.show(&progress);
                std::thread::sleep(Duration::from_millis(20));
            }
            shown.clear();
            (http.join(), udp.join(), pings.join())
        });
        let meanwhile = meanwhile(&progress);
        if meanwhile.is_err() {
            progress.stop.store(true, Ordering::Relaxed);
        }
        let joined = watch.join().map_err(|_| anyhow::anyhow!("the traffic panicked"))?;
        let (Ok(carried), Ok(udp), Ok(pings)) = joined else {
            anyhow::bail!("the traffic panicked");
        };
        // A failure around the killed application is reported first: the others follow from it.
        let meanwhile = meanwhile?;
        Ok((
            Traffic {
                carried: carried.context("HTTP")?,
                udp: udp.context("UDP")?,
                pings: pings.context("ping")?,
            },
            meanwhile,
        ))
    })
}
