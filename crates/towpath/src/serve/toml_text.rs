//! Texts of TOML, and errors in them in the words of the documents.
#![forbid(unsafe_code)]

use serde::de::DeserializeOwned;
use towpath_server::Setting;

use crate::text_file::line_of;

/// Returns the parser's message in the words of the documents, with a remedy. `rest` is the text
/// from the faulty place on.
fn in_words(message: &str, rest: &str) -> String {
    if let Some(unknown) = message.strip_prefix("unknown field ") {
        let key = unknown.split('`').nth(1).unwrap_or_default();
        if Setting::named(key).is_ok() {
            return format!("`{key}` is a setting: set = [\"{key}=VALUE\"]");
        }
        return format!("unknown key {unknown}");
    }
    if message.contains("expected a sequence") {
        return "a list is expected, such as [\"NAME\"]".to_owned();
    }
    let is_bare = rest.starts_with(|first: char| first.is_ascii_alphabetic() || first == '/');
    if is_bare && message.contains("invalid") {
        return format!("{message}; a string needs quotes");
    }
    message.to_owned()
}

/// Parses a text of TOML. An error has the number of its line, from 1, and a message.
pub(super) fn from_toml<T: DeserializeOwned>(text: &str) -> Result<T, (usize, String)> {
    toml::from_str(text).map_err(|error: toml::de::Error| {
        let at = error.span().map_or(0, |span| span.start.min(text.len()));
        (line_of(text, at), in_words(error.message(), &text[at..]))
    })
}
