//! The results of all rounds, as a table and as JSON.

use serde_json::{Value, json};

use super::exchange::{Amounts, Measured};
use crate::table::Table;

/// The rounds of one way.
struct Way {
    name: String,
    /// The rounds, or the reason why the way is impossible.
    rounds: Result<Vec<Measured>, String>,
}

/// The results so far.
pub(super) struct Outcomes {
    amounts: Amounts,
    ways: Vec<Way>,
}

/// The median of some values, with the lowest and the highest one.
struct Spread {
    median: f64,
    lowest: f64,
    highest: f64,
}

impl Spread {
    fn of(values: impl Iterator<Item = f64>) -> Spread {
        let mut values: Vec<f64> = values.collect();
        values.sort_by(f64::total_cmp);
        let at = |index: usize| values.get(index).copied().unwrap_or(0.0);
        let (low, high) = (values.len().saturating_sub(1) / 2, values.len() / 2);
        Spread {
            median: (at(low) + at(high)) / 2.0,
            lowest: at(0),
            highest: at(values.len().saturating_sub(1)),
        }
    }
}

impl Outcomes {
    pub(super) fn new(amounts: Amounts) -> Outcomes {
        Outcomes { amounts, ways: Vec::new() }
    }

    /// Enters a way's result of one round. A way that fails once is left out from then on.
    pub(super) fn add(&mut self, name: &str, measured: Result<Measured, String>) {
        let known = self.ways.iter().position(|way| way.name == name);
        let index = known.unwrap_or_else(|| {
            self.ways.push(Way { name: name.to_owned(), rounds: Ok(Vec::new()) });
            self.ways.len() - 1
        });
        match (&mut self.ways[index].rounds, measured) {
            (Ok(rounds), Ok(one)) => rounds.push(one),
            (rounds, Err(why)) => *rounds = Err(why),
            (Err(_), Ok(_)) => {}
        }
    }

    /// Returns `true` if the way is impossible.
    pub(super) fn is_refused(&self, name: &str) -> bool {
        self.ways.iter().any(|way| way.name == name && way.rounds.is_err())
    }

    /// Returns the ways of serving that worked in all rounds.
    fn served(&self) -> impl Iterator<Item = (&str, &Vec<Measured>)> {
        // The first one is the kernel.
        let ways = self.ways.iter().skip(1);
        ways.filter_map(|way| Some((way.name.as_str(), way.rounds.as_ref().ok()?)))
    }

    /// Returns `true` if at least one way of serving works.
    pub(super) fn has_ways(&self) -> bool {
        self.served().next().is_some()
    }

    /// Returns each reason why ways are impossible, with the names of these ways.
    fn impossible(&self) -> Vec<(String, &str)> {
        let mut reasons: Vec<(String, &str)> = Vec::new();
        for way in &self.ways {
            let Err(why) = &way.rounds else { continue };
            match reasons.iter_mut().find(|(_, other)| other == why) {
                Some((names, _)) => *names += &format!(" and {}", way.name),
                None => reasons.push((way.name.clone(), why)),
            }
        }
        reasons
    }

    /// Returns the reasons why ways are impossible.
    pub(super) fn refusals(&self) -> String {
        let reasons = self.impossible().into_iter();
        reasons.map(|(names, why)| format!("{names}: {why}")).collect::<Vec<_>>().join("; ")
    }

    /// Returns the ratios of a way's rounds to the kernel's, round by round.
    fn to_kernel(&self, rounds: &[Measured], value: impl Fn(&Measured) -> f64) -> Spread {
        let kernel = self.ways.first().and_then(|way| way.rounds.as_ref().ok());
        let pairs = rounds.iter().zip(kernel.into_iter().flatten());
        Spread::of(pairs.map(|(one, kernel)| value(one) / value(kernel)))
    }

    /// Returns the way with the best median of a value, and the ways that are not worse: the ratios
    /// to them in the same rounds lie on both sides of 1.
    fn best(&self, value: fn(&Measured) -> f64, highest: bool) -> Vec<&str> {
        let median = |rounds: &[Measured]| Spread::of(rounds.iter().map(value)).median;
        let sign = if highest { 1.0 } else { -1.0 };
        let compare = |one: &(&str, &Vec<Measured>), other: &(&str, &Vec<Measured>)| {
            (sign * median(one.1)).total_cmp(&(sign * median(other.1)))
        };
        let Some((best, best_rounds)) = self.served().max_by(compare) else { return Vec::new() };
        let is_alike = |rounds: &[Measured]| {
            let pairs = rounds.iter().zip(best_rounds);
            let ratios = Spread::of(pairs.map(|(one, best)| value(one) / value(best)));
            ratios.lowest <= 1.0 && ratios.highest >= 1.0
        };
        let others = self.served().filter(|(name, rounds)| *name != best && is_alike(rounds));
        std::iter::once(best).chain(others.map(|(name, _)| name)).collect()
    }

    /// Returns the best ways by each value.
    fn verdicts(&self) -> [(&'static str, Vec<&str>); 3] {
        [
            ("most_datagrams", self.best(|one| one.per_second, true)),
            ("shortest_round_trip", self.best(|one| one.trip_us, false)),
            ("least_processor_time", self.best(|one| one.cpu_us, false)),
        ]
    }

    /// Formats the results for people.
    pub(super) fn to_text(&self) -> String {
        let mut table = Table::new([
            "WAY",
            "DATAGRAMS/S",
            "TO KERNEL",
            "ROUND TRIP (US)",
            "TO KERNEL",
            "CPU/DATAGRAM (US)",
            "LOST",
        ]);
        let ratio = |spread: Spread| {
            format!("{:.2} ({:.2} to {:.2})", spread.median, spread.lowest, spread.highest)
        };
        for way in &self.ways {
            let Ok(rounds) = &way.rounds else { continue };
            let median = |value: fn(&Measured) -> f64| Spread::of(rounds.iter().map(value)).median;
            table.row([
                way.name.clone(),
                format!("{:.0}", median(|one| one.per_second)),
                ratio(self.to_kernel(rounds, |one| one.per_second)),
                format!("{:.1}", median(|one| one.trip_us)),
                ratio(self.to_kernel(rounds, |one| one.trip_us)),
                format!("{:.2}", median(|one| one.cpu_us)),
                rounds.iter().map(|one| one.lost).sum::<u64>().to_string(),
            ]);
        }
        let mut text = table.to_text();
        let Amounts { bytes, window, time } = self.amounts;
        text += &format!(
            "{bytes} bytes, {window} datagrams in flight, {} ms per round; medians (lowest to \
             highest)\n",
            time.as_millis()
        );
        for (names, why) in self.impossible() {
            text += &format!("{names}: impossible: {why}\n");
        }
        for (what, best) in self.verdicts() {
            let what = what.replace('_', " ");
            text += &match best[..] {
                [] => String::new(),
                [one] => format!("{what}: --device {one}\n"),
                _ => format!("{what}: no difference between {}\n", best.join(" and ")),
            };
        }
        text
    }

    /// Formats the results as JSON.
    pub(super) fn to_json(&self) -> String {
        let rounds = |rounds: &Vec<Measured>| -> Vec<Value> {
            let round = |one: &Measured| {
                json!({
                    "datagrams_per_second": one.per_second,
                    "round_trip_us": one.trip_us,
                    "cpu_us": one.cpu_us,
                    "lost": one.lost,
                })
            };
            rounds.iter().map(round).collect()
        };
        let way = |way: &Way| match &way.rounds {
            Ok(done) => json!({ "device": way.name, "rounds": rounds(done) }),
            Err(why) => json!({ "device": way.name, "impossible": why }),
        };
        let Amounts { bytes, window, time } = self.amounts;
        let whole = json!({
            "bytes": bytes,
            "window": window,
            "time_ms": time.as_millis() as u64,
            "ways": self.ways.iter().map(way).collect::<Vec<_>>(),
            "best": Value::Object(
                self.verdicts().into_iter().map(|(what, best)| (what.to_owned(), json!(best))).collect(),
            ),
        });
        format!("{whole:#}\n")
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn measured(per_second: f64, cpu_us: f64) -> Result<Measured, String> {
        Ok(Measured { per_second, trip_us: 1e6 / per_second, cpu_us, lost: 1 })
    }

    fn outcomes() -> Outcomes {
        let time = Duration::from_millis(500);
        Outcomes::new(Amounts { bytes: 64, window: 32, time })
    }

    #[test]
    fn the_best_way_is_named_by_medians_and_refusals_with_their_reason() {
        let mut outcomes = outcomes();
        for (kernel, first, second) in [(100.0, 210.0, 150.0), (200.0, 380.0, 320.0)] {
            outcomes.add("kernel", measured(kernel, 9.0));
            outcomes.add("xdp:a", measured(first, 5.0));
            outcomes.add("packet:a", measured(second, 4.0));
            outcomes.add("xdp:b", Err("no driver".to_owned()));
        }
        assert!(outcomes.has_ways() && outcomes.is_refused("xdp:b"));
        let text = outcomes.to_text();
        assert!(text.contains("2.00 (1.90 to 2.10)"), "{text}");
        assert!(text.contains("most datagrams: --device xdp:a"), "{text}");
        assert!(text.contains("least processor time: --device packet:a"), "{text}");
        assert!(text.contains("xdp:b: impossible: no driver"), "{text}");
        let json: Value = serde_json::from_str(&outcomes.to_json()).unwrap();
        assert_eq!(json["ways"][1]["rounds"].as_array().unwrap().len(), 2);
        assert_eq!(json["ways"][3]["impossible"], "no driver");
        assert_eq!(json["best"]["most_datagrams"], json!(["xdp:a"]));
    }

    #[test]
    fn ways_that_win_in_turn_do_not_differ() {
        let mut outcomes = outcomes();
        for (first, second) in [(210.0, 150.0), (300.0, 320.0), (250.0, 240.0)] {
            outcomes.add("kernel", measured(100.0, 9.0));
            outcomes.add("xdp:a", measured(first, 5.0));
            outcomes.add("packet:a", measured(second, 6.0));
        }
        let text = outcomes.to_text();
        let said = "most datagrams: no difference between xdp:a and packet:a";
        assert!(text.contains(said), "{text}");
        assert!(text.contains("least processor time: --device xdp:a"), "{text}");
    }

    #[test]
    fn a_way_that_fails_once_is_left_out() {
        let mut outcomes = outcomes();
        outcomes.add("kernel", measured(100.0, 9.0));
        outcomes.add("xdp:a", measured(100.0, 9.0));
        outcomes.add("xdp:a", Err("gone".to_owned()));
        outcomes.add("xdp:a", measured(100.0, 9.0));
        assert!(!outcomes.has_ways());
        assert_eq!(outcomes.refusals(), "xdp:a: gone");
        // Each reason once.
        outcomes.add("packet:a", Err("no right".to_owned()));
        outcomes.add("xdp:b", Err("gone".to_owned()));
        assert_eq!(outcomes.refusals(), "xdp:a and xdp:b: gone; packet:a: no right");
    }
}
