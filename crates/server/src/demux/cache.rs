//! The last-flow cache: the answer to the packet before, for packets that come in trains.
//!
//! Tracey and Banerji (3.2) found that remembering the last network identifier helps trains of
//! packets for one receiver and hurts where flows interleave, and that the statistics of run
//! lengths should decide. So they do here: what is measured is the mean length of trains, lookups
//! that compare equal one after the other. To compare is what the cache costs, so while it rests,
//! only one window of [`WINDOW`] lookups in each [`REST`] is measured.
//!
//! Two thresholds keep it from switching to and fro. They lie around where the cache neither gains
//! nor loses (`towpath-lab demux`): above two packets a train where one or two tables are asked,
//! [`FEW_SETS`], and below where there are more to be spared, [`MORE_SETS`].

use super::rule::{Key, Looked};
use super::{Destination, hash};

/// Whether lookups remember the last flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FlowCache {
    /// Never.
    Off,
    /// Always.
    On,
    /// While the measured mean length of trains says that it pays.
    #[default]
    Auto,
}

impl FlowCache {
    const ALL: [FlowCache; 3] = [FlowCache::Off, FlowCache::On, FlowCache::Auto];

    /// As the setting's value has it.
    pub(crate) fn of(value: u64) -> FlowCache {
        FlowCache::ALL.get(value as usize).copied().unwrap_or_default()
    }
}

/// Lookups after which the cache, where it is used, is decided about again; and as many are
/// measured while it rests.
pub const WINDOW: u64 = 128;
/// Lookups between two measured windows while the cache rests.
pub const REST: u64 = 32 * WINDOW;

/// Mean lengths of trains, in tenths of a packet, at which the cache is put to use or to rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Thresholds {
    /// From here on it is used.
    pub on_tenths: u64,
    /// Below, it is not used any more.
    pub off_tenths: u64,
}

/// Where the device's rules give one or two sets of fields.
pub(super) const FEW_SETS: Thresholds = Thresholds { on_tenths: 30, off_tenths: 24 };
/// Where they give more.
pub(super) const MORE_SETS: Thresholds = Thresholds { on_tenths: 18, off_tenths: 14 };

/// What lookups came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowCounts {
    /// Lookups.
    pub lookups: u64,
    /// Of these, how many were compared with the one before.
    pub compared: u64,
    /// Of these, how many were for the same flow and had their answer from the cache.
    pub hits: u64,
    /// Times that the cache was put to use, or to rest, by what was measured.
    pub switches: u64,
}

impl FlowCounts {
    /// The mean length of trains, in packets: 1 where no two packets in succession are for the same
    /// flow; nothing where none were compared.
    #[must_use]
    pub fn mean_train(&self) -> Option<f64> {
        let trains = self.compared.checked_sub(self.hits).filter(|trains| *trains > 0)?;
        Some(self.compared as f64 / trains as f64)
    }
}

impl std::ops::Add for FlowCounts {
    type Output = FlowCounts;

    fn add(self, other: FlowCounts) -> FlowCounts {
        FlowCounts {
            lookups: self.lookups + other.lookups,
            compared: self.compared + other.compared,
            hits: self.hits + other.hits,
            switches: self.switches + other.switches,
        }
    }
}

/// In [`Last::has`]: nothing is remembered. No packet has it.
const NOTHING: u16 = 0x100;

/// The last flow, and whether it is asked.
#[derive(Debug)]
pub(super) struct Last {
    setting: FlowCache,
    /// Lookups are compared with the last one.
    pub(super) compares: bool,
    /// The decision, as far as it is measured: else it compares to measure.
    used: bool,
    lookups: u64,
    hits: u64,
    /// At how many lookups there is something to decide.
    due: u64,
    /// Where the window that is being measured began.
    began: (u64, u64),
    compared: u64,
    switches: u64,
    key: Key,
    has: u16,
    found: Option<Destination>,
}

impl Last {
    pub(super) fn new(setting: FlowCache) -> Last {
        let mut last = Last {
            setting,
            compares: false,
            used: false,
            lookups: 0,
            hits: 0,
            due: 0,
            began: (0, 0),
            compared: 0,
            switches: 0,
            key: [0; 6],
            has: NOTHING,
            found: None,
        };
        last.set(setting);
        last
    }

    /// Changes the setting. What was counted stays.
    pub(super) fn set(&mut self, setting: FlowCache) {
        self.end_window();
        self.setting = setting;
        self.used = setting == FlowCache::On;
        // Automatic: the first window is measured.
        self.compares = setting != FlowCache::Off;
        self.due = if setting == FlowCache::Off { u64::MAX } else { self.lookups + WINDOW };
        self.forget();
    }

    /// The rules have changed.
    pub(super) fn forget(&mut self) {
        self.has = NOTHING;
    }

    pub(super) fn counts(&self) -> FlowCounts {
        let running = if self.compares { self.lookups - self.began.0 } else { 0 };
        FlowCounts {
            lookups: self.lookups,
            compared: self.compared + running,
            hits: self.hits,
            switches: self.switches,
        }
    }

    /// To be called once before each lookup.
    #[inline]
    pub(super) fn count(&mut self, few: bool) {
        if self.lookups == self.due {
            self.decide(if few { FEW_SETS } else { MORE_SETS });
        }
        self.lookups += 1;
    }

    /// Counts the window that is being measured; answers its lookups and hits.
    fn end_window(&mut self) -> (u64, u64) {
        let (lookups, hits) = (self.lookups - self.began.0, self.hits - self.began.1);
        if self.compares {
            self.compared += lookups;
        }
        self.began = (self.lookups, self.hits);
        (lookups, hits)
    }

    #[cold]
    fn decide(&mut self, thresholds: Thresholds) {
        let compared = self.compares;
        let (lookups, hits) = self.end_window();
        let used = match self.setting {
            FlowCache::Off => false,
            FlowCache::On => true,
            // It has rested: a window is measured.
            FlowCache::Auto if !compared => {
                self.compares = true;
                self.due = self.lookups + WINDOW;
                self.forget();
                return;
            }
            FlowCache::Auto => {
                let Thresholds { on_tenths, off_tenths } = thresholds;
                let threshold = if self.used { off_tenths } else { on_tenths };
                // Lookups by trains, without a division.
                lookups * 10 >= threshold * (lookups - hits)
            }
        };
        self.switches += u64::from(used != self.used);
        self.used = used;
        self.compares = used;
        self.due = self.lookups + if used { WINDOW } else { REST };
    }

    /// The answer, if this is the last flow again.
    #[inline]
    pub(super) fn ask(&mut self, looked: &Looked) -> Option<Option<Destination>> {
        if self.has == u16::from(looked.has) && hash::same(&self.key, &looked.key) {
            self.hits += 1;
            return Some(self.found);
        }
        None
    }

    #[inline]
    pub(super) fn remember(&mut self, looked: &Looked, found: Option<Destination>) {
        self.key = looked.key;
        self.has = u16::from(looked.has);
        self.found = found;
    }

    /// The fields, for tests that compare what is remembered.
    #[cfg(test)]
    pub(super) fn remembers(&self) -> Option<u8> {
        u8::try_from(self.has).ok()
    }
}
