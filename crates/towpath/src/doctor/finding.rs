//! One line of the report, and the reads on which findings stand.

use std::io;

use serde::Serialize;

/// The state of one feature that Towpath uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Standing {
    /// All parts that Towpath can use are available.
    Ok,
    /// Some parts are not available, and Towpath does without them.
    Limited,
    /// Not available.
    Missing,
}

/// One line of the report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    /// The feature, in a word or two.
    pub(super) name: &'static str,
    pub(super) standing: Standing,
    /// The finding.
    pub(super) found: String,
    /// Its meaning for Towpath.
    pub(super) means: String,
    /// The remedy, where there is one.
    pub(super) remedy: Option<String>,
}

impl Finding {
    pub(super) fn new(
        name: &'static str,
        standing: Standing,
        found: impl Into<String>,
        means: impl Into<String>,
    ) -> Finding {
        Finding { name, standing, found: found.into(), means: means.into(), remedy: None }
    }

    /// Adds a remedy, unless the state is [`Standing::Ok`].
    pub(super) fn remedy(mut self, remedy: impl Into<String>) -> Finding {
        if self.standing != Standing::Ok {
            self.remedy = Some(remedy.into());
        }
        self
    }
}

/// Returns the trimmed text of a small file of `/proc` or `/sys`; `None` if the file is missing, as
/// in many containers.
pub(super) fn read(path: &str) -> Option<String> {
    Some(std::fs::read_to_string(path).ok()?.trim().to_owned())
}

/// Returns the kernel's text for an error number, without the number.
pub(super) fn says(errno: rustix::io::Errno) -> String {
    let text = io::Error::from(errno).to_string();
    text.split(" (os error").next().unwrap_or_default().to_lowercase()
}
