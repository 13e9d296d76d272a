//! A session with a driver server, as a link.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use towpath_client::{
    AttachError, Endpoint, Info, Lost, OpenError, Options, Rule, SendError, Session,
};
use towpath_stack::{Config, Meta, Offload};

use crate::{Armed, Driving, Link, LinkError, LinkInfo, Network};

/// The largest frame of a link, in bytes. Linux leaves longer ones to no device to segment
/// (`GSO_LEGACY_MAX_SIZE`, linux/netdevice.h).
const LARGEST_BYTES: usize = 65_535;

/// A session with a driver server that carries a network's frames.
pub struct SessionLink {
    session: Session,
    endpoint: Endpoint,
    /// The memory in which the link assembles a packet of several buffers, since the stack reads a
    /// packet in one piece.
    whole: Vec<u8>,
}

/// The reason why no host could start over a driver server.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// The server is unreachable, or refused.
    #[error(transparent)]
    Attach(#[from] AttachError),
    /// The server refused the endpoint that the host needs.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The host itself could not start.
    #[error("starting the host: {0}")]
    Start(#[from] std::io::Error),
}

impl SessionLink {
    /// Returns the options of a session for a host. Each transmit buffer has room for a large
    /// packet in one piece. The receive buffers are many, of 2 KiB each, so that small packets take
    /// little memory.
    #[must_use]
    pub fn options(name: &str) -> Options {
        Options {
            name: name.to_owned(),
            endpoints: 4,
            transmit_slots: 128,
            receive_slots: 1024,
            transmit_buffer_bytes: (LARGEST_BYTES as u32).next_multiple_of(128),
            receive_buffer_bytes: 2048,
            ..Options::default()
        }
    }

    /// Creates a link over a session. Opens an endpoint for all packets to the session's address,
    /// broadcast and multicast, which accepts large packets and partial checksums.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn new(mut session: Session) -> Result<SessionLink, OpenError> {
        let endpoint = session.open(&Rule::new().with_group().with_offload())?;
        Ok(SessionLink { session, endpoint, whole: Vec::with_capacity(LARGEST_BYTES) })
    }

    /// Returns the session's properties, as the server granted them.
    #[must_use]
    pub fn session_info(&self) -> &Info {
        self.session.info()
    }

    /// Returns a host's configuration with the addresses granted to the session.
    #[must_use]
    pub fn config(&self) -> Config {
        let info = self.session.info();
        let mut config = Config::new(info.mac);
        config.mtu = info.mtu;
        config.ipv4 = info.ipv4;
        config.ipv4_gateway = info.ipv4_gateway;
        config.ipv6 = info.ipv6.into_iter().collect();
        config.ipv6_gateway = info.ipv6_gateway;
        config
    }
}

impl Network {
    /// Starts a private host for this application on the device whose server listens at `path`. The
    /// server assigns its addresses, and a thread of the library drives it.
    ///
    /// # Errors
    /// [`HostError`] gives the reason.
    pub fn attach(path: impl AsRef<Path>) -> Result<Network, HostError> {
        let name = Options::default().name;
        let session = Session::attach(path, &SessionLink::options(&name))?;
        Network::over(session, Driving::Thread)
    }

    /// Starts the same host over an attached session.
    ///
    /// # Errors
    /// [`HostError`] gives the reason.
    pub fn over(session: Session, driving: Driving) -> Result<Network, HostError> {
        let link = SessionLink::new(session)?;
        let config = link.config();
        Ok(Network::new(Box::new(link), config, driving)?)
    }
}

impl SessionLink {
    /// Returns an error if the server has closed the endpoint.
    fn check(&self) -> Result<(), LinkError> {
        if self.session.is_revoked(self.endpoint) {
            return Err(LinkError::Gone(Arc::from(SendError::Revoked.to_string())));
        }
        Ok(())
    }
}

fn gone(lost: Lost) -> LinkError {
    LinkError::Gone(Arc::from(lost.to_string()))
}

impl Link for SessionLink {
    fn info(&self) -> LinkInfo {
        let info = self.session.info();
        LinkInfo {
            mac: info.mac,
            mtu: info.mtu,
            offload: Offload {
                checksum: info.can_checksum,
                tcp_segmentation: info.can_checksum && info.can_segment,
                max_frame_bytes: LARGEST_BYTES,
            },
        }
    }

    fn sleep_fd(&self) -> std::io::Result<OwnedFd> {
        self.session.as_fd().try_clone_to_owned()
    }

    fn receive(
        &mut self,
        budget: usize,
        take: &mut dyn FnMut(&[u8], Meta),
    ) -> Result<usize, LinkError> {
        self.check()?;
        let whole = &mut self.whole;
        let outcome = self.session.receive(0, budget, |packet| {
            let meta = packet.meta();
            match packet.contiguous() {
                Some(bytes) => take(bytes, meta),
                None => {
                    whole.clear();
                    packet.append_to(whole);
                    take(whole, meta);
                }
            }
        });
        outcome.map_err(gone)
    }

    fn room(&mut self, len: usize) -> bool {
        self.session.has_room(self.endpoint, len)
    }

    fn transmit(&mut self, len: usize, meta: Meta, fill: &mut dyn FnMut(&mut [u8])) -> bool {
        let outcome = self.session.send(self.endpoint, len, meta, |parts| {
            // A buffer has room for the longest packet.
            if let [whole] = parts {
                fill(whole);
            }
        });
        outcome.is_ok()
    }

    fn flush(&mut self) -> Result<(), LinkError> {
        self.session.flush().map_err(gone)
    }

    fn arm(&mut self, blocked: bool) -> Result<Armed, LinkError> {
        if blocked {
            self.session.want_room(0).map_err(gone)?;
        }
        let news = self.session.arm().map_err(gone)?;
        self.check()?;
        Ok(if news { Armed::Work } else { Armed::Sleep { writable: false } })
    }

    fn disarm(&mut self) {
        self.session.disarm();
        self.session.take_notifications();
    }
}
