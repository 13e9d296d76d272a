//! Packets through an engine without threads, for a tool that counts instructions.

use serde::{Deserialize, Serialize};
use towpath_engine::solo::{Solo, Traffic};
use towpath_server::Values;

use crate::child::Role;

/// Moves packets, and prints their number.
#[derive(Serialize, Deserialize)]
pub(crate) struct Count {
    /// The path of the packets.
    way: Traffic,
    /// The number of successive packets of one flow.
    train: usize,
    /// The number of packets.
    packets: usize,
    /// Uses the code with support for captures, though no capture is open.
    taps: bool,
}

impl Role for Count {
    const NAME: &'static str = "Count";

    fn act(self) -> anyhow::Result<()> {
        let mut solo = Solo::new(&Values::default()).map_err(anyhow::Error::from_boxed)?;
        solo.assume_captures(self.taps);
        let turns = self.packets.div_ceil(Solo::BATCH);
        let moved =
            solo.run(self.way, turns, self.train.max(1)).map_err(anyhow::Error::from_boxed)?;
        println!("{moved} packets");
        Ok(())
    }
}
