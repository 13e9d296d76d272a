//! The seeds of tests.

/// Returns the seed of a test: that in `TOWPATH_SEED`, or the test's own. Prints it, so that a
/// failure can be repeated.
#[must_use]
pub fn seed(own: u64) -> u64 {
    let seed = std::env::var("TOWPATH_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(own);
    println!("TOWPATH_SEED={seed}");
    seed
}
