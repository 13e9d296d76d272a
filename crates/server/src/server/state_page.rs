//! The state page, which the engines write and every session maps.

use std::os::fd::AsFd;
use std::sync::Arc;

use towpath_memory::{Mapping, Region, SharedFile};
use towpath_protocol::layout::STATE_WORDS;
use towpath_protocol::store::Store;

use crate::config::{StartError, resources};
use crate::resume::left::{Left, STATE};
use crate::worker::pin::pin;
use crate::worker::wire::Descriptors;

/// The state page, which the engines write and every session maps.
pub(super) struct StatePage {
    pub(super) file: SharedFile,
    pub(super) region: Region,
    pub(super) mapping: Arc<Mapping>,
    /// The descriptors that keep the page in place.
    pub(super) pins: Descriptors,
}

impl StatePage {
    /// Takes over the page of an earlier server, which applications have mapped, or creates one.
    pub(super) fn adopt_or_create(
        left: &mut Left,
        store: &mut dyn Store,
        lanes: usize,
    ) -> Result<StatePage, StartError> {
        let Some(file) = left.state.take() else { return StatePage::create(lanes) };
        match SharedFile::adopt(file) {
            Ok(file) if file.len() >= lanes * STATE_WORDS * 8 => StatePage::map(file),
            Ok(file) => {
                // A server of fewer lanes made it.
                store.remove(STATE);
                drop(file);
                StatePage::create(lanes)
            }
            Err(cause) => Err(resources("the state page of an earlier server")(cause)),
        }
    }

    fn create(lanes: usize) -> Result<StatePage, StartError> {
        let (what, bytes) = ("the state page", lanes * STATE_WORDS * 8);
        let file = SharedFile::create("towpath-state", bytes).map_err(resources(what))?;
        file.seal_seals().map_err(resources(what))?;
        StatePage::map(file)
    }

    fn map(file: SharedFile) -> Result<StatePage, StartError> {
        let what = "the state page";
        let region = file.map_writable().map_err(resources(what))?;
        let mapping = region.mapping().clone();
        let pins = pin(&[file.as_fd()]).map_err(resources(what))?;
        Ok(StatePage { file, region, mapping, pins })
    }
}
