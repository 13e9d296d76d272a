//! The conditions under which the pairings are measured.

use std::time::Duration;

use super::path::Conditions;
use crate::Settings;
use crate::latency::Latency;
use crate::report::Row;

/// The lower limit of Towpath's throughput to the kernel's, over paths that lose,
/// reorder or are long.
const AT_LEAST: f64 = 0.9;

/// The connections of a run with losses: together they are far from filling the bottleneck.
const LOSSY: usize = 4;

/// Conditions, with their words and limits.
#[derive(Clone, Debug)]
pub(super) struct Case {
    /// The beginning of the rows' names.
    pub(super) name: &'static str,
    /// The end of the picture's title, and its file.
    pub(super) title: &'static str,
    pub(super) picture: &'static str,
    pub(super) conditions: Conditions,
    /// The connections of a run, side by side. Where losses limit each one, several lose more often
    /// in the same time, so their sum varies less.
    pub(super) connections: usize,
    /// `true` if pairings with a server are measured, too.
    server: bool,
    /// The lower limit of the ratios, in both directions.
    pub(super) at_least: Option<f64>,
    /// The length of a run, and that of a quick one.
    window: Duration,
    quick: Duration,
}

impl Case {
    /// Returns `true` if the pairings with a server are measured, too. A quick run has them once.
    pub(super) fn has_server(&self, settings: Settings) -> bool {
        self.server && (!settings.quick || self.name == usual().name)
    }

    pub(super) fn window(&self, settings: Settings) -> Duration {
        if settings.quick { self.quick } else { self.window }
    }

    /// Makes a row with the conditions as parameters.
    pub(super) fn row(&self, name: &str, unit: &str, values: &[f64]) -> Row {
        Row::new(name, &self.parameters(), unit, values)
    }

    /// Makes rows of the median and the tail of times.
    pub(super) fn quantiles(&self, name: &str, times: &Latency) -> Vec<Row> {
        times.rows(name, &self.parameters())
    }

    fn parameters(&self) -> Vec<(&'static str, f64)> {
        let Conditions { rate_bit_s, delay, loss, reordered, .. } = self.conditions;
        let rate_mbit_s = rate_bit_s.unwrap_or_default() as f64 / 1e6;
        let round_trip_ms = 2.0 * delay.as_secs_f64() * 1e3;
        let mut parameters = vec![("rate_mbit_s", rate_mbit_s), ("round_trip_ms", round_trip_ms)];
        if self.connections > 1 {
            parameters.push(("connections", self.connections as f64));
        }
        // A part in percent, without the digits of binary fractions.
        let percent = |part: f64| (part * 1e5).round() / 1e3;
        if loss > 0.0 {
            parameters.push(("loss_percent", percent(loss)));
        }
        if reordered > 0.0 {
            parameters.push(("late_percent", percent(reordered)));
        }
        parameters
    }
}

fn usual() -> Case {
    Case {
        name: "clean",
        title: "200 Mbit/s, round trip 20 ms",
        picture: "clean",
        conditions: Conditions::bottleneck(200_000_000, Duration::from_millis(10)),
        connections: 1,
        server: true,
        at_least: None,
        window: Duration::from_secs(5),
        quick: Duration::from_millis(150),
    }
}

/// Returns the cases in which one pairing at a time uses the wire.
pub(super) fn all() -> Vec<Case> {
    let usual = usual();
    let loss = |loss: f64| Conditions { loss, ..usual.conditions };
    let late = [Duration::from_millis(1), Duration::from_millis(3)];
    vec![
        usual.clone(),
        Case {
            name: "loss 0.1 %",
            title: "200 Mbit/s, round trip 20 ms, loss 0.1 %, four connections",
            picture: "loss-0-1",
            conditions: loss(0.001),
            connections: LOSSY,
            server: false,
            at_least: Some(AT_LEAST),
            window: Duration::from_secs(8),
            ..usual
        },
        Case {
            name: "loss 1 %",
            title: "200 Mbit/s, round trip 20 ms, loss 1 %, four connections",
            picture: "loss-1",
            conditions: loss(0.01),
            connections: LOSSY,
            at_least: Some(AT_LEAST),
            window: Duration::from_secs(8),
            ..usual
        },
        Case {
            name: "reordering 1 %",
            title: "200 Mbit/s, round trip 20 ms, 1 % late by 1 to 3 ms",
            picture: "reordering",
            conditions: Conditions { reordered: 0.01, late, ..usual.conditions },
            server: false,
            at_least: Some(AT_LEAST),
            ..usual
        },
        Case {
            name: "long path",
            title: "1 Gbit/s, round trip 100 ms",
            picture: "long",
            conditions: Conditions::bottleneck(1_000_000_000, Duration::from_millis(50)),
            connections: 1,
            server: true,
            at_least: Some(AT_LEAST),
            window: Duration::from_secs(10),
            quick: Duration::from_millis(300),
        },
    ]
}

/// Returns the conditions of two connections that share a bottleneck.
pub(super) fn sharing() -> Case {
    Case {
        name: "shared bottleneck",
        title: "two connections, 200 Mbit/s, round trip 20 ms",
        picture: "sharing",
        window: Duration::from_secs(15),
        quick: Duration::from_millis(300),
        ..usual()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cases_have_names_and_pictures_of_their_own() {
        let all = all();
        for (place, case) in all.iter().enumerate() {
            assert!(all[..place].iter().all(|other| other.name != case.name));
            assert!(all[..place].iter().all(|other| other.picture != case.picture));
            assert!(!case.picture.contains('.'), "{}", case.picture);
        }
        let row = all[1].row("x", "ratio", &[1.0]);
        assert_eq!(row.parameters["loss_percent"], 0.1);
        assert_eq!(row.parameters["round_trip_ms"], 20.0);
        // One bandwidth-delay product: 200 Mbit/s for 20 ms, and 1 Gbit/s for 100 ms.
        assert_eq!(all[0].conditions.queue_bytes, 500_000);
        assert_eq!(all[4].conditions.queue_bytes, 12_500_000);
    }
}
