//! Attaching: the requests to the server, and the memory and descriptors that it hands over.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use towpath_memory::{Mapping, Region, SharedFile};
use towpath_protocol::channel::Channel;
use towpath_protocol::layout::{STATE_WORDS, SessionShape};
use towpath_protocol::message::{self, Attach, Message};

use crate::control::{Answer, Deadline, ask};
use crate::error::AttachError;
use crate::options::Options;

/// The result of attaching.
pub(crate) struct Attachment {
    pub(crate) channel: Channel,
    pub(crate) shape: SessionShape,
    /// The server's grant.
    pub(crate) granted: message::Attached,
    pub(crate) memories: Memories,
    pub(crate) doorbell: OwnedFd,
    /// For each lane, the eventfd that notifies its engine.
    pub(crate) wakes: Vec<OwnedFd>,
}

/// The mapped memories of a session.
pub(crate) struct Memories {
    pub(crate) server: Arc<Mapping>,
    pub(crate) receive_pool: Mapping,
    pub(crate) state: Arc<Mapping>,
    pub(crate) application: Region,
    pub(crate) transmit_pool: Region,
    /// The words by which the application arms its tripwires; `None` if it can have none.
    pub(crate) armed: Option<Region>,
}

/// A session that the server granted, and that the application has yet to map.
pub(crate) struct Granted {
    channel: Channel,
    shape: SessionShape,
    granted: message::Attached,
    descriptors: Vec<OwnedFd>,
}

/// Asks for a session over a connected socket.
pub(crate) fn ask_for_session(
    socket: OwnedFd,
    options: &Options,
    deadline: Deadline,
) -> Result<Granted, AttachError> {
    let channel = Channel::new(socket);
    let request = request(options);
    let shape = check(options)?;
    match ask(&channel, &Message::Attach(request), deadline) {
        Answer::Message(Message::Attached(granted), descriptors) => {
            Ok(Granted { channel, shape, granted, descriptors })
        }
        other => Err(other.into_attach_error()),
    }
}

/// Maps the memories of a granted session, and has the server serve it.
pub(crate) fn attach(granted: Granted, deadline: Deadline) -> Result<Attachment, AttachError> {
    let Granted { channel, shape, granted, descriptors } = granted;
    let mut descriptors = descriptors;
    let lanes = usize::from(granted.lanes);
    let mut wakes = descriptors.split_off(descriptors.len().min(6));
    let armed_bytes = shape.tripwires().owner_words() * 8;
    let armed = if armed_bytes > 0 && !wakes.is_empty() { Some(wakes.remove(0)) } else { None };
    let Ok([server, receive_pool, state, application, transmit_pool, doorbell]) =
        <[OwnedFd; 6]>::try_from(descriptors)
    else {
        return Err(AttachError::Protocol("the server's answer lacks descriptors".into()));
    };
    if wakes.len() != lanes || shape.check_lanes(lanes).is_err() {
        return Err(AttachError::Protocol("the server's answer has too few or many lanes".into()));
    }
    let (server, state) = (Arc::new(map_readable(server)?), Arc::new(map_readable(state)?));
    let receive_pool = map_readable(receive_pool)?;
    let application = map_writable(application)?;
    let transmit_pool = map_writable(transmit_pool)?;
    let armed = armed.map(map_writable).transpose()?;
    if armed_bytes > armed.as_ref().map_or(0, Region::len)
        || server.len() < shape.server_words() * 8 * lanes
        || application.len() < shape.application_words() * 8 * lanes
        || state.len() < STATE_WORDS * 8 * lanes
    {
        return Err(AttachError::Protocol("the session's memory is too small".into()));
    }
    match ask(&channel, &Message::Mapped, deadline) {
        Answer::Message(Message::Done, _) => {}
        other => return Err(other.into_attach_error()),
    }
    let memories = Memories { server, receive_pool, state, application, transmit_pool, armed };
    Ok(Attachment { channel, shape, granted, memories, doorbell, wakes })
}

fn request(options: &Options) -> Attach {
    Attach {
        queue_pairs: options.queue_pairs,
        endpoints: options.endpoints,
        transmit_slots: options.transmit_slots,
        receive_slots: options.receive_slots,
        transmit_buffer_bytes: options.transmit_buffer_bytes,
        receive_buffer_bytes: options.receive_buffer_bytes,
        name: message::fixed_name(&options.name),
        ipv4: options.ipv4.map_or([0; 4], |ip| ip.octets()),
        flags: options.addresses.to_flags()
            | if options.own_queue { message::ATTACH_OWN_QUEUE } else { 0 }
            | if options.replace.is_some() { message::ATTACH_REPLACE } else { 0 }
            | options.oob_slots << message::ATTACH_OOB_SHIFT,
        apertures: options.apertures,
        tripwires: options.tripwires,
    }
}

/// Checks the options before the request, and returns the sizes of the session's parts.
fn check(options: &Options) -> Result<SessionShape, AttachError> {
    let refused = |text: String| AttachError::Refused {
        refusal: message::Refusal::Malformed,
        text: format!("attach: {text}"),
    };
    let shape = options.shape().map_err(|error| refused(error.to_string()))?;
    options.wait_strategy.check().map_err(|wrong| refused(wrong.to_string()))?;
    if let Some(small) = options.expedited_queue_pair
        && small.number() >= options.queue_pairs
    {
        let pairs = options.queue_pairs;
        return Err(refused(format!(
            "expedited_queue_pair={small}, and the session has {pairs} queue pairs"
        )));
    }
    Ok(shape)
}

fn map_readable(file: OwnedFd) -> std::io::Result<Mapping> {
    let mapping = SharedFile::adopt(file)?.map_readable()?;
    mapping.keep_from_children()?;
    Ok(mapping)
}

/// Maps new memory of this session, and allocates it, so that this process pays for its memory. A server
/// could not free memory that it allocates here while an application keeps the file.
fn map_writable(file: OwnedFd) -> std::io::Result<Region> {
    let mut region = SharedFile::adopt(file)?.map_writable()?;
    region.mapping().keep_from_children()?;
    region.allocate()?;
    Ok(region)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn an_application_allocates_its_own_memory() {
        let file = SharedFile::create("test", 100_000).unwrap();
        let _region = map_writable(file.as_fd().try_clone_to_owned().unwrap()).unwrap();
        let metadata = std::fs::File::from(OwnedFd::from(file)).metadata().unwrap();
        let blocks = std::os::linux::fs::MetadataExt::st_blocks(&metadata);
        assert_eq!((metadata.len(), blocks * 512), (102_400, 102_400));
    }
}
