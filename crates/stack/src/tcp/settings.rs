//! The settings of a connection, and what it tells of itself.

use std::time::Duration;

use super::connection::Ecn;
use super::receiving::AckDue;
use super::sending::Cork;
use super::table::Tcp;
use crate::config::KeepAlive;
use crate::{Instant, SocketError, TcpId};

/// The bits of explicit congestion notification in a traffic class (RFC 3168).
const ECN_BITS: u8 = 3;

/// What a connection has learned of its path, as `TCP_INFO` tells it on Linux. Sizes are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TcpInfo {
    /// The payload of a full segment to the peer.
    pub segment: u32,
    /// The bytes that congestion control allows in flight; 2^30 without congestion control.
    pub congestion_window: u32,
    /// The congestion window at which slow start ends; 2^30 before the first loss.
    pub slow_start_threshold: u32,
    /// The bytes in flight.
    pub in_flight: u32,
    /// The peer's window.
    pub peer_window: u32,
    /// This side's window, as the peer knows it.
    pub receive_window: u32,
    /// The smoothed round trip time, once measured.
    pub round_trip: Option<Duration>,
    /// The retransmission timeout, with its doublings.
    pub retransmission_timeout: Duration,
    /// `true` if both sides use timestamps (RFC 7323).
    pub timestamps: bool,
    /// `true` if both sides use selective acknowledgements (RFC 2018).
    pub selective: bool,
    /// `true` if both sides use explicit congestion notification (RFC 3168).
    pub ecn: bool,
}

impl Tcp {
    pub(crate) fn set_nodelay(&mut self, id: TcpId, nodelay: bool) -> Result<(), SocketError> {
        let sending = &mut self.owned(id)?.sending;
        sending.nodelay = nodelay;
        // As on Linux, this sends once what a cork holds back.
        if nodelay && sending.cork != Cork::Off && sending.has_unsent() {
            sending.cork = Cork::Over;
        }
        self.mark(id.index);
        Ok(())
    }

    pub(crate) fn nodelay(&mut self, id: TcpId) -> Result<bool, SocketError> {
        Ok(self.owned(id)?.sending.nodelay)
    }

    pub(crate) fn set_cork(&mut self, id: TcpId, cork: bool) -> Result<(), SocketError> {
        let sending = &mut self.owned(id)?.sending;
        match (cork, sending.cork) {
            (true, Cork::Off) => sending.cork = Cork::On,
            (true, _) => {}
            (false, _) => sending.cork = Cork::Off,
        }
        self.mark(id.index);
        Ok(())
    }

    pub(crate) fn cork(&mut self, id: TcpId) -> Result<bool, SocketError> {
        Ok(self.owned(id)?.sending.cork != Cork::Off)
    }

    pub(crate) fn set_quickack(&mut self, id: TcpId, quickack: bool) -> Result<(), SocketError> {
        let connection = self.owned(id)?;
        connection.acknowledges_at_once = quickack;
        if quickack && connection.receiving.due != AckDue::No {
            connection.receiving.acknowledge_now();
        }
        self.mark(id.index);
        Ok(())
    }

    pub(crate) fn quickack(&mut self, id: TcpId) -> Result<bool, SocketError> {
        Ok(self.owned(id)?.acknowledges_at_once)
    }

    pub(crate) fn set_traffic_class(&mut self, id: TcpId, class: u8) -> Result<(), SocketError> {
        // The stack itself uses the bits of congestion notification.
        self.owned(id)?.traffic_class = class & !ECN_BITS;
        Ok(())
    }

    pub(crate) fn traffic_class(&mut self, id: TcpId) -> Result<u8, SocketError> {
        Ok(self.owned(id)?.traffic_class)
    }

    pub(crate) fn set_keep_alive(
        &mut self,
        now: Instant,
        id: TcpId,
        keep_alive: Option<KeepAlive>,
    ) -> Result<(), SocketError> {
        let least = Duration::from_millis(1);
        let connection = self.owned(id)?;
        connection.keep_alive = keep_alive.map(|keep_alive| KeepAlive {
            idle: keep_alive.idle.max(least),
            interval: keep_alive.interval.max(least),
            ..keep_alive
        });
        // Silence before this call does not count.
        connection.last_received = now;
        connection.probes = 0;
        self.mark(id.index);
        Ok(())
    }

    pub(crate) fn keep_alive(&mut self, id: TcpId) -> Result<Option<KeepAlive>, SocketError> {
        Ok(self.owned(id)?.keep_alive)
    }

    pub(crate) fn set_linger(
        &mut self,
        id: TcpId,
        linger: Option<Duration>,
    ) -> Result<(), SocketError> {
        self.owned(id)?.linger = linger;
        Ok(())
    }

    pub(crate) fn linger(&mut self, id: TcpId) -> Result<Option<Duration>, SocketError> {
        Ok(self.owned(id)?.linger)
    }

    pub(crate) fn set_hop_limit(&mut self, id: TcpId, hop_limit: u8) -> Result<(), SocketError> {
        self.owned(id)?.hop_limit = hop_limit.max(1);
        Ok(())
    }

    pub(crate) fn hop_limit(&mut self, id: TcpId) -> Result<u8, SocketError> {
        Ok(self.owned(id)?.hop_limit)
    }

    pub(crate) fn set_user_timeout(
        &mut self,
        id: TcpId,
        timeout: Option<Duration>,
    ) -> Result<(), SocketError> {
        self.owned(id)?.user_timeout = timeout;
        self.mark(id.index);
        Ok(())
    }

    pub(crate) fn user_timeout(&mut self, id: TcpId) -> Result<Option<Duration>, SocketError> {
        Ok(self.owned(id)?.user_timeout)
    }

    /// Returns the number of written bytes that the peer has not acknowledged, and of received
    /// bytes not read.
    pub(crate) fn queues(&mut self, id: TcpId) -> Result<(usize, usize), SocketError> {
        let connection = self.owned(id)?;
        Ok((connection.sending.buffer.len(), connection.receiving.buffer.len()))
    }

    pub(crate) fn info(&mut self, id: TcpId) -> Result<TcpInfo, SocketError> {
        let connection = self.owned(id)?;
        let sending = &connection.sending;
        Ok(TcpInfo {
            segment: sending.segment,
            congestion_window: sending.congestion.window(),
            slow_start_threshold: sending.congestion.threshold(),
            in_flight: sending.in_flight(),
            peer_window: sending.window,
            receive_window: connection.receiving.window(),
            round_trip: sending.rtt.smoothed(),
            retransmission_timeout: sending.rtt.timeout(),
            timestamps: connection.timestamps,
            selective: sending.recovery.selective,
            ecn: connection.ecn == Ecn::On,
        })
    }
}
