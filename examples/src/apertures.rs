//! Connections between applications, and those by which an application lets others use its memory:
//! each gets the key of an aperture of its own.

use std::error::Error;
use std::net::SocketAddr;

use towpath_client::{
    Access, ApertureKey, Endpoint, Export, Memory, OobAddress, OobKind, PeerState, QueuePair,
    ReceivedOob, Rule, Session,
};

const TCP: u8 = 6;

/// Returns the address of an endpoint, such as `10.77.0.2:9`.
///
/// # Errors
/// A text that is no address.
pub fn address(text: &str) -> Result<OobAddress, Box<dyn Error>> {
    let at: SocketAddr =
        text.parse().map_err(|_| format!("{text}: no address, such as 10.77.0.2:9"))?;
    Ok(OobAddress { ip: at.ip(), protocol: TCP, port: at.port() })
}

/// An application that has an aperture.
#[derive(Debug)]
pub struct Admitted {
    endpoint: Endpoint,
    export: Export,
}

/// Connects an endpoint with an application that asked for it. Returns `None` if the application
/// does not wait any more.
///
/// # Errors
/// The errors of the session.
pub fn accept(
    session: &mut Session,
    request: &ReceivedOob,
) -> Result<Option<Endpoint>, Box<dyn Error>> {
    if request.kind() != OobKind::Request {
        return Ok(None);
    }
    let endpoint = session.open(&Rule::new().tcp(0).out_of_band())?;
    session.oob().accept_connection(endpoint, request.from(), b"")?;
    while session.peer_state(endpoint) == PeerState::Requested {
        session.wait(None)?;
    }
    if session.peer_state(endpoint) != PeerState::Connected {
        session.close(endpoint)?;
        return Ok(None);
    }
    Ok(Some(endpoint))
}

/// Connects an endpoint with an application that asked for it, and sends it the key of an aperture
/// of the first `bytes` bytes of a memory. Returns `None` if the application does not wait any
/// more.
///
/// # Errors
/// The errors of the session.
pub fn admit(
    session: &mut Session,
    request: &ReceivedOob,
    (memory, bytes, access): (&Memory, usize, Access),
) -> Result<Option<Admitted>, Box<dyn Error>> {
    let Some(endpoint) = accept(session, request)? else { return Ok(None) };
    // With as many as it may have, the example refuses others.
    let Ok(export) = session.memories().export(endpoint, memory, 0..bytes, access) else {
        session.close(endpoint)?;
        return Ok(None);
    };
    session.oob().send(endpoint, request.from(), &export.key().0.to_le_bytes())?;
    session.sender().flush()?;
    Ok(Some(Admitted { endpoint, export }))
}

/// Closes the endpoints whose peers have closed or died, and revokes their apertures, which count
/// until then.
///
/// # Errors
/// The errors of the session.
pub fn close_gone(
    session: &mut Session,
    admitted: &mut Vec<Admitted>,
) -> Result<(), Box<dyn Error>> {
    let is_gone = |one: &mut Admitted| session.peer_state(one.endpoint) != PeerState::Connected;
    let gone: Vec<_> = admitted.extract_if(.., is_gone).collect();
    for Admitted { endpoint, export } in gone {
        session.memories().revoke(export)?;
        session.close(endpoint)?;
    }
    Ok(())
}

/// Connects with the application at an address. Returns the endpoint, and the address of the
/// endpoint at the other end.
///
/// # Errors
/// A refusal, or the errors of the session.
pub fn connect(
    session: &mut Session,
    to: OobAddress,
) -> Result<(Endpoint, OobAddress), Box<dyn Error>> {
    let endpoint = session.open(&Rule::new().tcp(0).out_of_band())?;
    session.oob().request_connection(endpoint, to, b"")?;
    loop {
        // Others may send messages to the endpoint, too. The answer tells the peer's address.
        let message = next(session, endpoint, to)?;
        if message.kind() == OobKind::Accept {
            return Ok((endpoint, message.from()));
        }
    }
}

/// Connects with the application at an address. Returns the endpoint, and the key of the aperture
/// that the application sent.
///
/// # Errors
/// A refusal, or the errors of the session.
pub fn ask(
    session: &mut Session,
    to: OobAddress,
) -> Result<(Endpoint, ApertureKey), Box<dyn Error>> {
    let (endpoint, peer) = connect(session, to)?;
    loop {
        let message = next(session, endpoint, to)?;
        let key = message.payload().first_chunk().copied();
        let is_key = message.from() == peer && message.kind() == OobKind::Message;
        if let Some(key) = key.filter(|_| is_key) {
            return Ok((endpoint, ApertureKey(u32::from_le_bytes(key))));
        }
    }
}

/// Waits for the next message of an endpoint that is connected with the one at an address, or is to
/// be.
fn next(
    session: &mut Session,
    endpoint: Endpoint,
    to: OobAddress,
) -> Result<ReceivedOob, Box<dyn Error>> {
    loop {
        if let Some(message) = session.oob().receive(endpoint)? {
            return Ok(message);
        }
        let state = session.peer_state(endpoint);
        if !matches!(state, PeerState::Requested | PeerState::Connected) {
            return Err(format!("{to}: {state}").into());
        }
        session.wait(None)?;
        session.receiver().receive(QueuePair::FIRST, usize::MAX, |_| {})?;
    }
}
