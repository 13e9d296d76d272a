//! An honest application that shares memory for writing with any program that connects, as a part of the neighbour. It
//! releases what it shared when the other program goes.

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::time::Duration;

use towpath_client::{
    Access, Aperture, ApertureKey, Endpoint, Export, Memory, OobAddress, OobKind, Options,
    PeerState, ReceivedOob, Rule, Session, Sharing,
};

/// The UDP port of the partner.
const PORT: u16 = 4077;
/// The host numbers among which the partner's address is.
const HOSTS: std::ops::Range<u8> = 1..32;
/// The time for one step of the conversation.
const STEP: Duration = Duration::from_millis(500);
/// The bytes of a shared memory.
pub(crate) const BYTES: usize = 64 << 10;
/// The most objects of one session.
pub(crate) const MOST: u32 = 16;

/// What the two sides say to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Word {
    /// Create and export a memory, and tell the key.
    Export,
    /// Import this aperture.
    Import(u32),
    /// The key of an exported aperture.
    Key(u32),
    /// The aperture is imported.
    Imported,
    /// The server refused, because it cannot free earlier memories.
    Refused,
}

impl Word {
    fn write(self) -> [u8; 5] {
        let (kind, [a, b, c, d]) = match self {
            Word::Export => (0, [0; 4]),
            Word::Import(key) => (1, key.to_le_bytes()),
            Word::Key(key) => (2, key.to_le_bytes()),
            Word::Imported => (3, [0; 4]),
            Word::Refused => (4, [0; 4]),
        };
        [kind, a, b, c, d]
    }

    fn read(message: &ReceivedOob) -> Option<Word> {
        let [kind, key @ ..] = *message.payload().first_chunk::<5>()?;
        let key = u32::from_le_bytes(key);
        match kind {
            0 => Some(Word::Export),
            1 => Some(Word::Import(key)),
            2 => Some(Word::Key(key)),
            3 => Some(Word::Imported),
            4 => Some(Word::Refused),
            _ => None,
        }
    }
}

/// One end of a conversation.
pub(crate) struct End {
    pub(crate) session: Session,
    pub(crate) endpoint: Endpoint,
    address: OobAddress,
    peer: Option<OobAddress>,
}

impl End {
    /// Opens an endpoint of a session that was attached with [`options`].
    pub(crate) fn open(mut session: Session, port: u16) -> Result<End, String> {
        let text = |error: &dyn std::fmt::Display| error.to_string();
        let rule = Rule::new().udp(port).out_of_band();
        let endpoint = session.open(&rule).map_err(|error| text(&error))?;
        let (ip, _) = session.info().ipv4.ok_or("no address")?;
        let address = OobAddress { ip: ip.into(), protocol: 17, port: endpoint.port() };
        Ok(End { session, endpoint, address, peer: None })
    }

    /// Connects with the partner, whose address is one of the first of the subnet.
    pub(crate) fn find_partner(&mut self) -> Result<(), String> {
        let IpAddr::V4(own) = self.address.ip else { return Err("no IPv4 address".into()) };
        let [a, b, c, _] = own.octets();
        for host in HOSTS {
            let ip = IpAddr::V4(Ipv4Addr::new(a, b, c, host));
            let to = OobAddress { ip, protocol: 17, port: PORT };
            if ip == self.address.ip || !self.request(to) {
                continue;
            }
            self.peer = Some(to);
            return Ok(());
        }
        Err("no partner accepts a connection".into())
    }

    /// Asks for a connection. Returns `true` once it exists.
    fn request(&mut self, to: OobAddress) -> bool {
        if self.session.oob().request_connection(self.endpoint, to, b"").is_err()
            || self.session.sender().flush().is_err()
        {
            return false;
        }
        while self.session.peer_state(self.endpoint) == PeerState::Requested {
            if !matches!(self.session.wait(Some(STEP)), Ok(true)) {
                return false;
            }
            self.discard_news();
        }
        self.session.peer_state(self.endpoint) == PeerState::Connected
    }

    /// Takes note of the endpoint's news, so that they end no later wait. Messages stay.
    fn discard_news(&mut self) {
        let _ = self.session.oob().ready();
    }

    /// Says a word to the peer.
    pub(crate) fn say(&mut self, word: Word) -> bool {
        let Some(peer) = self.peer else { return false };
        self.session.oob().send(self.endpoint, peer, &word.write()).is_ok()
            && self.session.sender().flush().is_ok()
    }

    /// Returns the next word of the peer; `None` if the peer goes or is silent for too long.
    pub(crate) fn receive(&mut self, at_most: Duration) -> Option<Word> {
        loop {
            while let Some(message) = self.session.oob().receive(self.endpoint).ok()? {
                if let Some(word) =
                    Word::read(&message).filter(|_| message.kind() == OobKind::Message)
                {
                    return Some(word);
                }
            }
            if self.session.peer_state(self.endpoint) != PeerState::Connected {
                return None;
            }
            if !self.session.wait(Some(at_most)).ok()? {
                return None;
            }
            self.discard_news();
        }
    }
}

/// Returns the options of a session that shares memory.
pub(crate) fn options(name: &str) -> Options {
    Options {
        name: name.into(),
        endpoints: 1,
        transmit_slots: 64,
        receive_slots: 64,
        oob_slots: 32,
        apertures: MOST,
        ..Options::default()
    }
}

/// What the partner shares with a peer.
#[derive(Default)]
struct SharedObjects {
    exported: Vec<(Export, Memory)>,
    imported: Vec<Aperture>,
}

/// Attaches the partner, and runs it in a thread until the server goes.
pub(crate) fn start(socket: &Path) -> Result<(), String> {
    let session = Session::attach(socket, &options("neighbour-shares"));
    let mut end = End::open(session.map_err(|error| error.to_string())?, PORT)?;
    std::thread::spawn(move || while serve_peer(&mut end).is_some() {});
    Ok(())
}

/// Serves the next program that connects, until it goes; `None` when the server is gone.
fn serve_peer(end: &mut End) -> Option<()> {
    let from = loop {
        match end.session.oob().receive(end.endpoint).ok()? {
            Some(message) if message.kind() == OobKind::Request => break message.from(),
            Some(_) => {}
            None => {
                end.session.wait(None).ok()?;
                end.discard_news();
            }
        }
    };
    end.session.oob().accept_connection(end.endpoint, from, b"").ok()?;
    end.session.sender().flush().ok()?;
    end.peer = Some(from);
    while end.session.peer_state(end.endpoint) == PeerState::Requested {
        end.session.wait(Some(STEP)).ok()?;
        end.discard_news();
    }
    let mut shared = SharedObjects::default();
    while end.session.peer_state(end.endpoint) == PeerState::Connected {
        if let Some(word) = end.receive(STEP) {
            let answer = shared.answer(end, word);
            end.say(answer);
        }
    }
    shared.release(end);
    Some(())
}

impl SharedObjects {
    fn answer(&mut self, end: &mut End, word: Word) -> Word {
        match word {
            Word::Import(key) => {
                match end.session.memories().import(end.endpoint, ApertureKey(key)) {
                    Ok(aperture) => {
                        self.imported.push(aperture);
                        Word::Imported
                    }
                    Err(error) => refusal(&error.to_string()),
                }
            }
            _ => match self.export(end) {
                Ok(key) => Word::Key(key),
                Err(error) => refusal(&error),
            },
        }
    }

    fn export(&mut self, end: &mut End) -> Result<u32, String> {
        let text = |error: &dyn std::fmt::Display| error.to_string();
        let memory = end.session.memories().create(BYTES, Sharing::MapWrite);
        let memory = memory.map_err(|error| text(&error))?;
        let export =
            end.session.memories().export(end.endpoint, &memory, 0..BYTES, Access::ReadWrite);
        let export = export.map_err(|error| text(&error))?;
        let key = export.key().0;
        self.exported.push((export, memory));
        Ok(key)
    }

    fn release(self, end: &mut End) {
        for (export, memory) in self.exported {
            let _ = end.session.memories().revoke(export);
            let _ = end.session.memories().release(&memory);
        }
        for aperture in self.imported {
            let _ = end.session.memories().release_aperture(aperture);
        }
    }
}

/// Returns the word for a refusal of the server.
pub(crate) fn refusal(text: &str) -> Word {
    if !is_for_hangs(text) {
        eprintln!("the neighbour's memory: {text}");
    }
    Word::Refused
}

/// Returns `true` if the server refuses because it cannot free earlier memories.
pub(crate) fn is_for_hangs(text: &str) -> bool {
    text.contains("cannot free") && text.contains("end these processes")
}
