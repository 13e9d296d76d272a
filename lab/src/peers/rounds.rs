//! Pairs of Towpath and a peer, of which the peer may fail.

use crate::statistics::Pairs;

/// The failure of a peer; all other errors are failures of the experiment.
#[derive(Debug)]
struct PeerFailed(anyhow::Error);

impl std::fmt::Display for PeerFailed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:#}", self.0)
    }
}

impl std::error::Error for PeerFailed {}

/// Marks errors of a peer.
pub(super) fn of_peer<T>(outcome: anyhow::Result<T>) -> anyhow::Result<T> {
    outcome.map_err(|error| PeerFailed(error).into())
}

/// Measures Towpath and a peer in turn, as [`Pairs::measure`] does.
pub(super) fn pairs(
    count: usize,
    ours: impl FnMut() -> anyhow::Result<f64>,
    mut base: impl FnMut() -> anyhow::Result<f64>,
) -> anyhow::Result<Pairs> {
    Pairs::measure(count, ours, || of_peer(base()))
}

/// Two quantiles of the same runs.
#[derive(Clone, Debug, Default)]
pub(super) struct Quantiles {
    pub(super) p50: Pairs,
    pub(super) p99: Pairs,
}

/// Measures two quantiles of Towpath and of a peer in turn.
pub(super) fn quantiles(
    count: usize,
    mut ours: impl FnMut() -> anyhow::Result<[f64; 2]>,
    mut base: impl FnMut() -> anyhow::Result<[f64; 2]>,
) -> anyhow::Result<Quantiles> {
    let mut p99 = Pairs::default();
    let first = |values: &mut Vec<f64>, outcome: anyhow::Result<[f64; 2]>| {
        let [p50, p99] = outcome?;
        values.push(p99);
        anyhow::Ok(p50)
    };
    let p50 = Pairs::measure(
        count,
        || first(&mut p99.ours, ours()),
        || of_peer(first(&mut p99.base, base())),
    )?;
    // As of the medians, the first pair does not count.
    p99.ours.remove(0);
    p99.base.remove(0);
    Ok(Quantiles { p50, p99 })
}

/// Returns the figures; or `None` if the peer failed, after reporting why.
pub(super) fn settled<T>(
    outcome: anyhow::Result<T>,
    failed: impl FnOnce(String),
) -> anyhow::Result<Option<T>> {
    match outcome {
        Ok(figures) => Ok(Some(figures)),
        Err(error) => match error.downcast::<PeerFailed>() {
            Ok(peer) => {
                failed(peer.to_string());
                Ok(None)
            }
            Err(error) => Err(error),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_quantiles_are_of_the_same_pairs() {
        let (mut ours, mut base) = (0.0, 0.0);
        let measured = quantiles(
            3,
            || {
                ours += 1.0;
                Ok([ours, ours * 10.0])
            },
            || {
                base += 2.0;
                Ok([base, base * 10.0])
            },
        )
        .unwrap();
        assert_eq!(measured.p50.ours, [2.0, 3.0, 4.0]);
        assert_eq!(measured.p99.ours, [20.0, 30.0, 40.0]);
        assert_eq!(measured.p99.base, [40.0, 60.0, 80.0]);
        assert_eq!(measured.p99.ratios(), [0.5; 3]);
    }

    #[test]
    fn a_peer_may_fail_and_towpath_may_not() {
        let fails = || anyhow::bail!("no answer");
        let mut why = String::new();
        let peer = pairs(5, || Ok(1.0), fails);
        assert!(settled(peer, |said| why = said).unwrap().is_none());
        assert_eq!(why, "no answer");
        let own = settled(pairs(5, fails, || Ok(1.0)), |_| panic!("this is no peer's failure"));
        assert_eq!(own.unwrap_err().to_string(), "no answer");
        assert!(settled(pairs(5, || Ok(1.0), || Ok(2.0)), |_| ()).unwrap().is_some());
    }
}
