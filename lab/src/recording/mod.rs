//! The recorded terminal of the README: a server that is killed and upgraded while an application
//! answers. `scene` runs it. `towpath_report` has its file (asciicast v2), and draws the file.

mod asker;
mod scene;
mod screen;

use std::path::{Path, PathBuf};

use towpath_report::output::PICTURES;
use towpath_report::output::replace;
use towpath_report::terminal;

/// The name of the recording's two files.
const NAME: &str = "kill-and-upgrade";

/// Runs the scene, and writes its cast and its picture below a repository. Returns both files. The
/// caller calls it before the process has a second thread.
///
/// # Errors
/// With a missing requirement or a failure, in words; [`towpath_testkit::Unavailable`] among them.
pub fn record(repository: &Path) -> anyhow::Result<[PathBuf; 2]> {
    crate::tcp::enter()?;
    let cast = scene::play()?;
    let file = repository.join(PICTURES).join(NAME);
    let files = [file.with_extension("cast"), file.with_extension("svg")];
    replace(&files[0], &cast.to_text()?)?;
    replace(&files[1], &terminal::draw(&cast))?;
    Ok(files)
}
