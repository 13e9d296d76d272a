//! The recorded terminal of the README: a server that is killed and upgraded while an application
//! answers. `scene` runs it, `cast` is its file (asciicast v2), and `terminal` draws the file.

mod asker;
pub(crate) mod cast;
mod scene;
mod screen;
mod terminal;

use std::path::{Path, PathBuf};

use cast::Cast;

use crate::documents::PICTURES;
use crate::output::replace;

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

/// Draws a cast, given as the text of its file.
///
/// # Errors
/// If the text is no cast of this program.
pub(crate) fn drawn(text: &str) -> anyhow::Result<String> {
    Ok(terminal::draw(&Cast::read(text)?))
}
