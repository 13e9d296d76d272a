//! The reports of experiments, and the documents that show their figures.
//!
//! | module | holds |
//! |---|---|
//! | [`experiment`] | the experiments' names and subjects |
//! | [`report`] | the result of an experiment: rows, machine, JSON and table |
//! | [`statistics`], [`machine`] | what a report sums up, and where it was measured |
//! | [`output`], [`figure`], [`svg`] | a report as files, with pictures |
//! | [`results`], [`age`] | the last full run of each experiment, in `lab/results` |
//! | [`page`], `headlines` | the page `docs/benchmarks.md` |
//! | [`prose`], `how_fast` | figures in other pages, and the README's chart |
//! | [`cast`], [`terminal`] | recorded terminals, and their pictures |
//! | [`documents`] | writes all of these, or compares them with the results |

#![forbid(unsafe_code)]

pub mod age;
pub mod cast;
pub mod documents;
pub mod experiment;
pub mod figure;
mod headlines;
mod how_fast;
pub mod machine;
pub mod output;
pub mod page;
pub mod prose;
pub mod report;
pub mod results;
#[cfg(test)]
mod scratch;
pub mod statistics;
pub mod svg;
pub mod terminal;

pub use experiment::Experiment;
pub use report::{Length, Report, Row};

/// The commit that the program was built from, with `-dirty` where its sources differ; `unknown`
/// without a repository.
pub const COMMIT: &str = env!("TOWPATH_COMMIT");
