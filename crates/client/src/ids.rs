//! The numbers by which an application names queue pairs and endpoints.

use std::fmt;

/// The number of a queue pair in its session, from 0 on ([`Options::queue_pairs`](crate::Options::queue_pairs)).
///
/// ```
/// use towpath_client::QueuePair;
///
/// assert_eq!(QueuePair::FIRST, QueuePair::new(0));
/// assert_eq!(QueuePair::new(3).to_string(), "3");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueuePair(u32);

impl QueuePair {
    /// The queue pair that each session has, and that endpoints use by default.
    pub const FIRST: QueuePair = QueuePair(0);

    /// Returns the queue pair with this number. A session that has no such queue pair returns
    /// [`QueuePairError::NoQueuePair`](crate::QueuePairError::NoQueuePair).
    ///
    /// ```
    /// let pairs = (0..4).map(towpath_client::QueuePair::new);
    /// assert_eq!(pairs.count(), 4);
    /// ```
    #[inline]
    #[must_use]
    pub const fn new(number: u32) -> QueuePair {
        QueuePair(number)
    }

    /// Returns the number.
    ///
    /// ```
    /// assert_eq!(towpath_client::QueuePair::FIRST.number(), 0);
    /// ```
    #[inline]
    #[must_use]
    pub const fn number(self) -> u32 {
        self.0
    }
}

impl fmt::Display for QueuePair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The number of an endpoint in its session, as tools show it and as received packets name it
/// ([`Received::endpoint`](crate::Received::endpoint)).
///
/// ```
/// use towpath_client::EndpointId;
///
/// assert_eq!(EndpointId::new(7).to_string(), "7");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EndpointId(u32);

impl EndpointId {
    /// Returns the endpoint with this number.
    ///
    /// ```
    /// # let shown_by_a_tool = 3;
    /// let endpoint = towpath_client::EndpointId::new(shown_by_a_tool);
    /// ```
    #[inline]
    #[must_use]
    pub const fn new(number: u32) -> EndpointId {
        EndpointId(number)
    }

    /// Returns the number.
    ///
    /// ```
    /// assert_eq!(towpath_client::EndpointId::new(7).number(), 7);
    /// ```
    #[inline]
    #[must_use]
    pub const fn number(self) -> u32 {
        self.0
    }
}

impl fmt::Display for EndpointId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
