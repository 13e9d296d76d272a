//! The report of a guest: the lines that its script writes.

use std::fmt;

/// A check's result.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Check {
    name: String,
    passed: bool,
}

/// The result of one machine.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outcome {
    title: String,
    checks: Vec<Check>,
    /// The number of checks by the script's last line.
    announced: Option<usize>,
    /// The reason why the machine did not run to its end.
    broken: Option<String>,
    seconds: u64,
}

impl Outcome {
    pub(crate) fn new(title: &str) -> Outcome {
        Outcome { title: title.to_owned(), ..Outcome::default() }
    }

    /// Takes a line of the script: `check ok NAME`, `check FAILED NAME`, `end NUMBER`, or other
    /// text.
    pub(crate) fn take(&mut self, line: &str) {
        let mut words = line.trim().splitn(3, ' ');
        match (words.next(), words.next(), words.next()) {
            (Some("check"), Some(how @ ("ok" | "FAILED")), Some(name)) => {
                self.checks.push(Check { name: name.to_owned(), passed: how == "ok" });
            }
            (Some("end"), Some(count), None) => self.announced = count.parse().ok(),
            _ => {}
        }
    }

    pub(crate) fn end(&mut self, seconds: u64, broken: Option<String>) {
        (self.seconds, self.broken) = (seconds, broken);
    }

    /// Returns `true` if the script ran to its end, and all of its checks passed.
    pub(crate) fn passed(&self) -> bool {
        self.broken.is_none()
            && !self.checks.is_empty()
            && self.announced == Some(self.checks.len())
            && self.checks.iter().all(|check| check.passed)
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let failed = self.checks.iter().filter(|check| !check.passed);
        let names: Vec<&str> = failed.map(|check| check.name.as_str()).collect();
        let passed = self.checks.len() - names.len();
        let (title, seconds) = (&self.title, self.seconds);
        write!(f, "{title}: {passed} checks passed, {} failed, in {seconds} s", names.len())?;
        if !names.is_empty() {
            write!(f, ": {}", names.join(", "))?;
        }
        if let Some(why) = &self.broken {
            write!(f, "; {why}")?;
        } else if self.announced != Some(self.checks.len()) {
            write!(f, "; the script did not run to its end")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(lines: &[&str]) -> Outcome {
        let mut outcome = Outcome::new("guest");
        lines.iter().for_each(|line| outcome.take(line));
        outcome
    }

    #[test]
    fn only_a_whole_script_without_a_failed_check_passes() {
        let whole = ["check ok one", "  said: something", "check ok two words\r", "end 2"];
        assert!(outcome(&whole).passed());
        for lines in [
            &[][..],
            &["end 0"],
            &["check ok one"],
            &["check ok one", "end 2"],
            &["check FAILED one", "end 1"],
            &["check one", "end 1"],
        ] {
            assert!(!outcome(lines).passed(), "{lines:?}");
        }
        let mut broken = outcome(&whole);
        broken.end(7, Some("too long".to_owned()));
        assert!(!broken.passed());
        assert_eq!(broken.to_string(), "guest: 2 checks passed, 0 failed, in 7 s; too long");
        let failed = outcome(&["check FAILED one", "end 1"]);
        assert_eq!(failed.to_string(), "guest: 0 checks passed, 1 failed, in 0 s: one");
    }
}
