//! The last-flow cache: it keeps the previous packet's endpoint, for packets that come in trains.
//!
//! Tracey and Banerji (3.2) found that remembering the last network identifier helps trains of
//! packets for one receiver and hurts where flows interleave. They concluded that the average number
//! of packets in a row should decide, for each network identifier apart. So it does here: each
//! [class](class_of) of traffic has a last flow of its own, and the mean length of its trains, which
//! are consecutive lookups of that class that compare equal. So a class of interleaved packets turns
//! off its own cache alone.
//!
//! The comparison is the cost of the cache. While the cache of a class is unused, it therefore
//! measures only one window of [`WINDOW`] lookups in each [`REST`].
//!
//! Two thresholds keep the cache from oscillating. They lie around the point where it neither gains
//! nor loses (`towpath-lab demux`). That point is above two packets per train where a lookup reads
//! one or two tables, [`FEW_SETS`], and below where it saves more, [`MORE_SETS`].

use towpath_packet::plain;

use super::destination::Destination;
use super::hash;
use super::rule::{Fields, Key, LookupKey};

/// The conditions under which lookups remember the last flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FlowCache {
    /// Never.
    Off,
    /// Always.
    On,
    /// While the measured mean length of trains makes the cache worthwhile.
    #[default]
    Auto,
}

impl FlowCache {
    const ALL: [FlowCache; 3] = [FlowCache::Off, FlowCache::On, FlowCache::Auto];

    /// Returns the setting that the value stands for.
    pub(crate) fn of(value: u64) -> FlowCache {
        FlowCache::ALL.get(value as usize).copied().unwrap_or_default()
    }
}

/// Classes of traffic with a last flow and statistics of their own. More kinds of packets share them.
pub(super) const CLASSES: usize = 16;

/// Returns the class of a packet: a hash of its ethertype, IP version and IP protocol, which are the
/// low half of a key's second word. Frequent kinds have classes of their own.
#[inline(always)]
pub(super) fn class_of(kind: u64) -> usize {
    ((kind as u32).wrapping_mul(0x3685_156b) >> (u32::BITS - CLASSES.ilog2())) as usize
}

/// Lookups of a class after which the table decides anew about its used cache, and lookups that it
/// measures while the cache is unused.
pub const WINDOW: u64 = 128;
/// Lookups between two measured windows while the cache is unused.
pub const REST: u64 = 32 * WINDOW;

/// Mean lengths of trains, in tenths of a packet, at which the cache starts or stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Thresholds {
    /// From this length on, lookups use the cache.
    pub on_tenths: u64,
    /// Below this length, lookups stop using the cache.
    pub off_tenths: u64,
}

/// Thresholds where the device's rules give one or two sets of fields.
pub(super) const FEW_SETS: Thresholds = Thresholds { on_tenths: 30, off_tenths: 24 };
/// Thresholds where they give more sets.
pub(super) const MORE_SETS: Thresholds = Thresholds { on_tenths: 18, off_tenths: 14 };

/// The results of lookups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowCounts {
    /// All lookups.
    pub lookups: u64,
    /// Lookups that were compared with the previous one.
    pub compared: u64,
    /// Compared lookups that were for the same flow and took the endpoint from the cache.
    pub hits: u64,
    /// Times that the measurement started or stopped the cache.
    pub switches: u64,
}

impl FlowCounts {
    /// Returns the mean length of trains, in packets. The mean is 1 if no two consecutive packets
    /// are for the same flow. Returns `None` if no lookups were compared.
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

/// In [`Last::has`]: the cache is empty. No packet has this value.
const NOTHING: u16 = 0x100;

/// The last flow of a class, and whether lookups use it. Its alignment makes an index of one a
/// shift.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct Last {
    setting: FlowCache,
    /// `true` if lookups are compared with the last one.
    pub(super) compares: bool,
    /// `true` if the measurement favours the cache; otherwise comparisons only measure.
    used: bool,
    /// Lookups until the next decision, and those between it and the last one.
    left: u32,
    span: u32,
    hits: u64,
    /// The lookups and hits at the last decision.
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
            left: 0,
            span: 0,
            hits: 0,
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

    /// Changes the setting and keeps the counts.
    pub(super) fn set(&mut self, setting: FlowCache) {
        self.end_window();
        self.setting = setting;
        self.used = setting == FlowCache::On;
        // With [`FlowCache::Auto`], the cache measures the first window.
        self.compares = setting != FlowCache::Off;
        self.begin(if self.compares { WINDOW } else { REST });
        self.forget();
    }

    /// Returns `true` unless the setting is [`FlowCache::Off`].
    #[inline]
    pub(super) fn is_allowed(&self) -> bool {
        self.setting != FlowCache::Off
    }

    /// Empties the cache, for example after the rules have changed.
    pub(super) fn forget(&mut self) {
        self.has = NOTHING;
    }

    /// Returns the number of all lookups.
    pub(super) fn lookups(&self) -> u64 {
        self.began.0 + u64::from(self.span - self.left)
    }

    /// `true` if the measurement or the setting favours the cache.
    pub(super) fn is_used(&self) -> bool {
        self.used
    }

    pub(super) fn counts(&self) -> FlowCounts {
        let running = if self.compares { u64::from(self.span - self.left) } else { 0 };
        FlowCounts {
            lookups: self.lookups(),
            compared: self.compared + running,
            hits: self.hits,
            switches: self.switches,
        }
    }

    /// Counts a lookup. The caller calls it once before each lookup.
    #[inline(always)]
    pub(super) fn count(&mut self, few: impl FnOnce() -> bool) {
        // One subtraction both counts and finds the end of the window.
        let (left, over) = self.left.overflowing_sub(1);
        if over {
            self.decide(if few() { FEW_SETS } else { MORE_SETS });
            self.left -= 1;
        } else {
            self.left = left;
        }
    }

    /// Begins a window.
    fn begin(&mut self, lookups: u64) {
        self.span = lookups as u32;
        self.left = self.span;
    }

    /// Counts the current window, and returns its lookups and hits.
    fn end_window(&mut self) -> (u64, u64) {
        let (lookups, hits) = (u64::from(self.span - self.left), self.hits - self.began.1);
        if self.compares {
            self.compared += lookups;
        }
        self.began = (self.lookups(), self.hits);
        self.left = self.span;
        (lookups, hits)
    }

    #[cold]
    fn decide(&mut self, thresholds: Thresholds) {
        let compared = self.compares;
        let (lookups, hits) = self.end_window();
        let used = match self.setting {
            FlowCache::Off => false,
            FlowCache::On => true,
            // After [`REST`] lookups without comparisons, the cache measures a window.
            FlowCache::Auto if !compared => {
                self.compares = true;
                self.begin(WINDOW);
                self.forget();
                return;
            }
            FlowCache::Auto => {
                let Thresholds { on_tenths, off_tenths } = thresholds;
                let threshold = if self.used { off_tenths } else { on_tenths };
                // This compares lookups per train without a division.
                lookups * 10 >= threshold * (lookups - hits)
            }
        };
        self.switches += u64::from(used != self.used);
        self.used = used;
        self.compares = used;
        self.begin(if used { WINDOW } else { REST });
    }

    /// Returns the remembered endpoint if this is the last flow again.
    #[inline]
    pub(super) fn ask(&mut self, lookup_key: &LookupKey) -> Option<Option<Destination>> {
        if self.has == u16::from(lookup_key.has) && hash::same(&self.key, &lookup_key.key) {
            self.hits += 1;
            return Some(self.found);
        }
        None
    }

    #[inline]
    pub(super) fn remember(&mut self, lookup_key: &LookupKey, found: Option<Destination>) {
        self.key = lookup_key.key;
        self.has = u16::from(lookup_key.has);
        self.found = found;
    }

    /// Returns the remembered endpoint if this is the last flow again: a plain packet where rules
    /// give only `fields`, and no remote IP address.
    #[inline(always)]
    pub(super) fn ask_local(
        &mut self,
        key: &plain::Key,
        fields: Fields,
    ) -> Option<Option<Destination>> {
        let [link, kind, low, high, ..] = &self.key;
        if self.has == u16::from(fields) && hash::same(&[*link, *kind, *low, *high], key) {
            self.hits += 1;
            return Some(self.found);
        }
        None
    }

    #[inline(always)]
    pub(super) fn remember_local(
        &mut self,
        [link, kind, low, high]: &plain::Key,
        fields: Fields,
        found: Option<Destination>,
    ) {
        self.key = [*link, *kind, *low, *high, 0, 0];
        self.has = u16::from(fields);
        self.found = found;
    }

    /// Returns the fields, for tests that compare the remembered flow.
    #[cfg(test)]
    pub(super) fn remembers(&self) -> Option<u8> {
        u8::try_from(self.has).ok()
    }
}
