//! docs/counters.md describes each counter of `towpath stat` in the words of the code.

use towpath_protocol::counters::{Device, Endpoint};

const CODE: &str = include_str!("../../../protocol/src/counters.rs");
const PAGE: &str = include_str!("../../../../docs/counters.md");

/// Returns the variants of an enum in the code, with their descriptions.
fn described(name: &str) -> Vec<(String, String)> {
    let start = format!("pub enum {name} {{\n");
    let body = CODE.split_once(&start).unwrap().1.split_once("\n}").unwrap().0;
    let (mut all, mut text) = (Vec::new(), String::new());
    for line in body.lines().map(str::trim) {
        if let Some(more) = line.strip_prefix("/// ") {
            text += if text.is_empty() { "" } else { " " };
            text += more;
        } else if let Some(variant) = line.strip_suffix(',') {
            all.push((variant.to_owned(), std::mem::take(&mut text)));
        }
    }
    all
}

/// Returns the table of one kind of counters, in the order in which `towpath stat` shows them.
fn table<T: std::fmt::Debug>(name: &str, counters: &[(T, &'static str)]) -> String {
    let described = described(name);
    assert_eq!(described.len(), counters.len(), "each variant of {name} is in its list");
    let mut rows: Vec<String> = counters
        .iter()
        .map(|(counter, shown)| {
            let variant = format!("{counter:?}");
            let found = described.iter().find(|(other, _)| *other == variant);
            let mut text = found.unwrap().1.clone();
            // A link to another counter shows that counter's name.
            for (other, shown) in counters {
                text = text.replace(&format!("[`{name}::{other:?}`]"), &format!("`{shown}`"));
            }
            assert!(!text.is_empty() && !text.contains("[`"), "{shown}: {text}");
            format!("| `{shown}` | {text} |\n")
        })
        .collect();
    rows.sort();
    format!("| counter | counts |\n|---|---|\n{}", rows.concat())
}

#[test]
fn the_page_describes_each_counter_as_the_code_does() {
    for (name, table) in
        [("Device", table("Device", &Device::ALL)), ("Endpoint", table("Endpoint", &Endpoint::ALL))]
    {
        assert!(PAGE.contains(&table), "docs/counters.md lacks this table of {name}:\n{table}");
    }
    let rows = PAGE.lines().filter(|line| line.starts_with("| `")).count();
    assert_eq!(rows, Device::ALL.len() + Endpoint::ALL.len(), "no row describes another counter");
}
