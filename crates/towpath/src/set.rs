//! `towpath set`: change how a running server works.
#![forbid(unsafe_code)]

use std::str::FromStr;

use crate::failure::Failure;
use crate::find;

/// What follows the help.
pub(crate) const EXAMPLES: &str = "\
Only root and the server's user may.

Examples:
  towpath set tap0 mode=poll
  towpath set /run/towpath/tap0.sock mode=interrupt";

/// Options of `towpath set`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The device, or the path of its server's socket
    device: String,
    /// mode=poll: look without end, on a processor of its own; mode=interrupt: sleep meanwhile
    #[arg(value_name = "SETTING=VALUE", required = true)]
    settings: Vec<Setting>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Setting {
    Mode(u32),
}

impl FromStr for Setting {
    type Err = String;

    fn from_str(text: &str) -> Result<Setting, String> {
        match text.split_once('=') {
            Some(("mode", "poll")) => Ok(Setting::Mode(towpath_client::MODE_POLL)),
            Some(("mode", "interrupt")) => Ok(Setting::Mode(towpath_client::MODE_INTERRUPT)),
            _ => Err("mode=poll and mode=interrupt are possible".to_owned()),
        }
    }
}

/// Changes settings, in the order in which they were given.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let socket = find::named(&args.device)?;
    for setting in &args.settings {
        let Setting::Mode(mode) = setting;
        towpath_client::set_mode(&socket, *mode)
            .map_err(|error| Failure::new(error.to_string()))?;
    }
    Ok(())
}
