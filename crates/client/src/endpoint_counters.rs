//! The counters of an endpoint.

/// The server's counters of an endpoint, with the names that `towpath stat` shows.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use towpath_client::{Options, Rule, Session};
///
/// let mut session = Session::attach("/run/towpath/eth0.sock", &Options::default())?;
/// let endpoint = session.open(&Rule::new().udp(7))?;
/// let counters = session.counters(endpoint);
/// println!("{} received, {} lost", counters.rx_packets(), counters.rx_dropped());
/// for (name, count) in &counters {
///     println!("{name} {count}");
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EndpointCounters {
    counters: Vec<(&'static str, u64)>,
}

impl EndpointCounters {
    pub(crate) fn new(counters: Vec<(&'static str, u64)>) -> EndpointCounters {
        EndpointCounters { counters }
    }

    /// Returns the counter with this name; `None` if endpoints have none of this name.
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(counters: &EndpointCounters) {
    /// let without_room = counters.get("rx_dropped_no_buffers");
    /// # }
    /// ```
    #[must_use]
    pub fn get(&self, name: &str) -> Option<u64> {
        self.iter().find(|(other, _)| *other == name).map(|(_, count)| count)
    }

    /// Returns the names and the values, in a fixed order.
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(counters: &EndpointCounters) {
    /// let all: u64 = counters.iter().map(|(_, count)| count).sum();
    /// # }
    /// ```
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        self.into_iter()
    }

    /// Returns the number of packets that the endpoint received.
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(counters: &EndpointCounters) {
    /// println!("rx_packets: {}", counters.rx_packets());
    /// # }
    /// ```
    #[must_use]
    pub fn rx_packets(&self) -> u64 {
        self.get("rx_packets").unwrap_or(0)
    }

    /// Returns the number of packets that the endpoint sent: to the device, or to another endpoint.
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(counters: &EndpointCounters) {
    /// println!("tx_packets: {}", counters.tx_packets());
    /// # }
    /// ```
    #[must_use]
    pub fn tx_packets(&self) -> u64 {
        self.get("tx_packets").unwrap_or(0)
    }

    /// Returns the number of packets for the endpoint that the server dropped, for whatever reason.
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(counters: &EndpointCounters) {
    /// println!("rx_dropped: {}", counters.rx_dropped());
    /// # }
    /// ```
    #[must_use]
    pub fn rx_dropped(&self) -> u64 {
        self.sum_of("rx_dropped_")
    }

    /// Returns the number of packets from the endpoint that the server did not send, for whatever reason.
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(counters: &EndpointCounters) {
    /// println!("tx_dropped: {}", counters.tx_dropped());
    /// # }
    /// ```
    #[must_use]
    pub fn tx_dropped(&self) -> u64 {
        self.sum_of("tx_dropped_")
    }

    fn sum_of(&self, prefix: &str) -> u64 {
        self.iter().filter(|(name, _)| name.starts_with(prefix)).map(|(_, count)| count).sum()
    }
}

impl IntoIterator for EndpointCounters {
    type Item = (&'static str, u64);
    type IntoIter = std::vec::IntoIter<(&'static str, u64)>;

    fn into_iter(self) -> Self::IntoIter {
        self.counters.into_iter()
    }
}

impl<'a> IntoIterator for &'a EndpointCounters {
    type Item = (&'static str, u64);
    type IntoIter = std::iter::Copied<std::slice::Iter<'a, (&'static str, u64)>>;

    fn into_iter(self) -> Self::IntoIter {
        self.counters.iter().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_have_names_and_sums() {
        let counters = EndpointCounters::new(vec![
            ("rx_packets", 5),
            ("rx_dropped_unusable", 2),
            ("rx_dropped_no_buffers", 1),
            ("tx_dropped_late", 4),
        ]);
        assert_eq!((counters.rx_packets(), counters.tx_packets()), (5, 0));
        assert_eq!((counters.rx_dropped(), counters.tx_dropped()), (3, 4));
        assert_eq!((counters.get("rx_dropped_unusable"), counters.get("unknown")), (Some(2), None));
        assert_eq!(counters.iter().count(), (&counters).into_iter().count());
        assert_eq!(counters.into_iter().next(), Some(("rx_packets", 5)));
    }
}
