//! Answers to connections, by their workers.

use std::os::fd::OwnedFd;

use towpath_protocol::message::{ErrorBody, Message};

use crate::connection::State;
use crate::control::Control;
use crate::refusal::Refused;
use crate::worker::link::Packet;
use crate::worker::wire::command;

impl Control {
    /// Answers a request; the worker then reads the connection's next message.
    pub(crate) fn answer(&mut self, token: u64, message: &Message) {
        self.answer_with(token, message, Vec::new(), 0);
    }

    /// Refuses a request.
    pub(crate) fn refuse(&mut self, token: u64, refused: &Refused) {
        self.answer(token, &error(refused));
    }

    /// Refuses a request and ends the connection.
    pub(crate) fn cut_off(&mut self, token: u64, refused: &Refused) {
        self.answer_with(token, &error(refused), Vec::new(), command::LAST);
    }

    /// Sends an answer with descriptors.
    pub(crate) fn answer_with(
        &mut self,
        token: u64,
        message: &Message,
        descriptors: Vec<OwnedFd>,
        flags: u64,
    ) {
        let Some(connection) = self.connections.get(token) else { return };
        let attaches = match &connection.state {
            State::New => true,
            State::Attaching(attaching) => attaching.counter.is_none(),
            State::Mapped(_) | State::Ended => false,
        };
        let flags = flags | if attaches { command::TIMED } else { 0 };
        let answer = Packet::new(command::ANSWER, token, flags)
            .with(descriptors)
            .saying(message.encode_for(connection.application.version));
        self.tell_worker(token, answer);
    }

    pub(crate) fn tell_worker(&mut self, token: u64, packet: Packet) {
        let Some(connection) = self.connections.get(token) else { return };
        self.workers.tell(connection.application.worker, connection.application.owner(), packet);
    }
}

fn error((refusal, text): &Refused) -> Message {
    Message::Error(Box::new(ErrorBody::new(*refusal, text)))
}
