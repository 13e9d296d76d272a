//! Endpoints: the requests to the server that open, change and close them, and their counters.

use std::os::fd::OwnedFd;
use std::time::Duration;

use towpath_protocol::counters;
use towpath_protocol::message::{self, Message};
use towpath_protocol::oob::{OobAddress, PeerState};
use towpath_protocol::settings::Setting;

use crate::clock;
use crate::control::{Answer, Deadline, ask};
use crate::endpoint_counters::EndpointCounters;
use crate::error::{Lost, OpenError, Refusal};
use crate::lanes::no_counters;
use crate::options::Endpoint;
use crate::rule::Rule;
use crate::session::Session;

impl Session {
    /// Returns the server's counters of an endpoint. All are zero in a child made by `fork`, and
    /// for an endpoint of another session whose number this session cannot have.
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(session: &Session, endpoint: Endpoint) {
    /// println!("{} packets", session.counters(endpoint).rx_packets());
    /// # }
    /// ```
    #[must_use]
    pub fn counters(&self, endpoint: Endpoint) -> EndpointCounters {
        if !self.status.is_parents() {
            return EndpointCounters::new(no_counters());
        }
        let mut lanes = self.status.lanes().iter().map(|lane| lane.counters(endpoint.number));
        let mut all = lanes.next().unwrap_or_else(no_counters);
        lanes.for_each(|lane| counters::add_lane(&mut all, &lane));
        if let Some(oob) = &self.oob {
            all.extend(oob.counters(endpoint.number));
        }
        EndpointCounters::new(all)
    }

    /// Returns what an endpoint's peer does: one load of a word that the server writes. So before
    /// it sends, an application can tell whether the peer has closed or died.
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(session: &Session, endpoint: Endpoint) {
    /// if session.peer_state(endpoint) == PeerState::Connected {
    ///     println!("the peer is there");
    /// }
    /// # }
    /// ```
    #[inline]
    #[must_use]
    pub fn peer_state(&self, endpoint: Endpoint) -> PeerState {
        let oob = self.oob.as_ref().filter(|_| self.status.is_parents());
        oob.map_or(PeerState::None, |oob| oob.peer_state(endpoint.number))
    }

    /// Returns the address with which the application last connected an endpoint.
    pub(crate) fn connected_with(&self, endpoint: Endpoint) -> Option<OobAddress> {
        self.oob.as_ref()?.queues.get(endpoint.number as usize)?.connected_with
    }

    /// Opens an endpoint.
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(session: &mut Session) -> Result<(), Box<dyn std::error::Error>> {
    /// let endpoint = session.open(&Rule::new().udp(0))?;
    /// println!("port {}", endpoint.port());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(&mut self, rule: &Rule) -> Result<Endpoint, OpenError> {
        self.status.check()?;
        let open = message::Open { sequence: self.next_sequence(), ..rule.to_message() };
        match self.ask(&Message::Open(open))? {
            Message::Opened(opened) => {
                let endpoint = Endpoint {
                    number: opened.endpoint,
                    queue_pair: rule.uses(),
                    port: opened.port as u16,
                    oob: rule.is_out_of_band(),
                };
                self.begin_messages(endpoint);
                Ok(endpoint)
            }
            _ => Err(Lost::ServerGone.into()),
        }
    }

    /// Returns the sequence number of the next message that creates something.
    pub(crate) fn next_sequence(&mut self) -> u32 {
        self.requests = self.requests.wrapping_add(1).max(1);
        self.requests
    }

    /// Closes an endpoint. The server drops its packets that wait to be sent.
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(session: &mut Session, endpoint: Endpoint) -> Result<(), Box<dyn std::error::Error>> {
    /// session.close(endpoint)?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn close(&mut self, endpoint: Endpoint) -> Result<(), OpenError> {
        self.status.check()?;
        self.ask(&Message::Close(message::Close { endpoint: endpoint.number }))?;
        let discarded = self.oob.as_mut().map_or(Ok(()), |oob| oob.discard(endpoint.number));
        Ok(discarded.map_err(|violation| self.status.wrong(violation))?)
    }

    /// Begins with the messages and requests of an endpoint that the server opened.
    fn begin_messages(&mut self, endpoint: Endpoint) {
        if let Some(oob) = self.oob.as_mut().filter(|_| endpoint.oob) {
            oob.begin(endpoint.number);
        }
        if let Some(apertures) = &mut self.apertures {
            apertures.requests.begin(endpoint.number);
        }
    }

    /// Changes a setting of one of this session's endpoints. An application may change the settings
    /// whose [`Scope`](crate::Scope) is `OwnEndpoint`.
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(session: &mut Session, endpoint: Endpoint) -> Result<(), Box<dyn std::error::Error>> {
    /// session.set(endpoint, Setting::RxFrames, 16)?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`OpenError`]; then the old value stays in force.
    pub fn set(
        &mut self,
        endpoint: Endpoint,
        setting: Setting,
        value: u64,
    ) -> Result<(), OpenError> {
        self.status.check()?;
        self.ask(&Message::Set(message::Set {
            setting: setting as u32,
            session: self.info().session,
            endpoint: endpoint.number,
            reserved: 0,
            value,
        }))
        .map(|_| ())
    }

    /// Asks the server. A server that resumes the session is asked again: a request to close may
    /// then find its endpoint closed.
    fn ask(&mut self, message: &Message) -> Result<Message, OpenError> {
        self.ask_with(message).map(|(message, _)| message)
    }

    /// Asks as [`Session::ask`] does. Also returns the descriptors that came with the answer.
    pub(crate) fn ask_with(
        &mut self,
        message: &Message,
    ) -> Result<(Message, Vec<OwnedFd>), OpenError> {
        let mut is_repeated = false;
        loop {
            match ask(&self.channel, message, Deadline::after(self.answer_timeout)) {
                Answer::HungUp if self.start_resuming() => {
                    // The session's own timeout ends this.
                    let far = clock::now() + Duration::from_secs(86_400);
                    while !self.resume(Some(far))? {}
                    is_repeated = true;
                }
                Answer::Refused(Refusal::NotFound, _)
                    if is_repeated
                        && matches!(message, Message::Close(_) | Message::Release(_)) =>
                {
                    return Ok((Message::Done, Vec::new()));
                }
                answer => return self.answered(answer),
            }
        }
    }

    fn answered(&mut self, answer: Answer) -> Result<(Message, Vec<OwnedFd>), OpenError> {
        match answer {
            Answer::Message(message, descriptors) => Ok((message, descriptors)),
            Answer::Refused(refusal, text) => Err(OpenError::Refused { refusal, text }),
            Answer::HungUp | Answer::Wrong(_) => Err(self.status.over().into()),
            Answer::Missing(after) => Err(self.status.end(Lost::NoAnswer { after }).into()),
        }
    }
}
