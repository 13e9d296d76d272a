//! The roles of this program's children.

use std::collections::BTreeMap;

use anyhow::{Context, ensure};
use rustix::process::Signal;
use serde_json::Value;

use crate::child::{self, Keep, Role};
use crate::count::Count;
use crate::{
    attacks, card, cells, channels, coexistence, echo, freebsd, handoff, isolation, karlsruhe,
    peers, penn, process, scale, switch, tcp, xdp,
};

/// A role's name, and its work.
type Entry = (&'static str, fn(Value) -> anyhow::Result<()>);

fn entry<R: Role>() -> Entry {
    (R::NAME, child::act::<R>)
}

fn all() -> [Entry; 28] {
    [
        entry::<attacks::AttackerProcess>(),
        entry::<attacks::NeighbourProcess>(),
        entry::<card::Order>(),
        entry::<card::Receiver>(),
        entry::<card::Plan>(),
        entry::<cells::CellServers>(),
        entry::<channels::Requester>(),
        entry::<coexistence::SharedServer>(),
        entry::<Count>(),
        entry::<echo::EchoProcess>(),
        entry::<freebsd::Counted>(),
        entry::<handoff::HandoffSteps>(),
        entry::<handoff::Plan>(),
        entry::<isolation::Application>(),
        entry::<karlsruhe::CountIdle>(),
        entry::<Keep>(),
        entry::<peers::Answer>(),
        entry::<peers::AnswerSocket>(),
        entry::<peers::MakeCalls>(),
        entry::<penn::Factor>(),
        entry::<penn::Stride>(),
        entry::<process::Serve>(),
        entry::<scale::IdleConnections>(),
        entry::<switch::CountApplication>(),
        entry::<switch::SwitchServer>(),
        entry::<tcp::TapServer>(),
        entry::<xdp::AnswerAsleep>(),
        entry::<xdp::AnswerSpinning>(),
    ]
}

/// Runs the role that a parent gave. Returns when the parent is gone.
///
/// # Errors
/// With the failure, in words; the parent shows them, as the child shares its standard error.
pub fn act(role: &str) -> anyhow::Result<()> {
    let role: BTreeMap<String, Value> = serde_json::from_str(role).context("no role")?;
    ensure!(role.len() == 1, "{} roles", role.len());
    let (name, role) = role.into_iter().next().context("no role")?;
    let (_, act) =
        all().into_iter().find(|one| one.0 == name).context("no role of this program")?;
    // A stopped child would not see that its input has ended.
    rustix::process::set_parent_process_death_signal(Some(Signal::CONT))?;
    act(role)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_role_has_a_name_of_its_own() {
        let names: BTreeSet<_> = all().map(|(name, _)| name).into();
        assert_eq!(names.len(), all().len());
        assert!(act("{\"King\":null}").is_err_and(|error| error.to_string().contains("no role")));
        assert!(act("{}").is_err() && act("").is_err());
    }
}
