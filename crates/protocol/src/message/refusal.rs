//! The refusal of a request.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The reason why the server refused a request. This layout never changes.
#[derive(Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ErrorBody {
    /// A [`Refusal`].
    pub code: u32,
    /// Number of bytes of the text that count.
    pub text_bytes: u32,
    /// One line of UTF-8 that names the thing and the remedy.
    pub text: [u8; 240],
}

impl std::fmt::Debug for ErrorBody {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ErrorBody").field("code", &self.code).field("text", &self.text()).finish()
    }
}

impl ErrorBody {
    /// Creates a refusal with its text, truncated to at most 240 bytes.
    #[must_use]
    pub fn new(refusal: Refusal, text: &str) -> ErrorBody {
        let mut end = text.len().min(240);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        let mut body = ErrorBody { code: refusal as u32, text_bytes: end as u32, text: [0; 240] };
        body.text[..end].copy_from_slice(&text.as_bytes()[..end]);
        body
    }

    /// Returns the text; bytes of a hostile peer that are not UTF-8 become replacement characters.
    #[must_use]
    pub fn text(&self) -> String {
        let len = (self.text_bytes as usize).min(self.text.len());
        String::from_utf8_lossy(&self.text[..len]).into_owned()
    }

    /// Returns the code's meaning.
    #[must_use]
    pub fn refusal(&self) -> Refusal {
        use Refusal::{Device, InUse, Limit, Malformed, NotFound, Permission, State, Version};
        [Malformed, Version, Permission, Limit, InUse, NotFound, State, Device]
            .into_iter()
            .find(|refusal| *refusal as u32 == self.code)
            .unwrap_or(Malformed)
    }
}

/// The reason why the server refused a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Refusal {
    /// The message has no meaning, or a field is out of range.
    Malformed = 1,
    /// The peer speaks another version.
    Version = 2,
    /// The user lacks the permission.
    Permission = 3,
    /// A limit of sessions, endpoints, memory or addresses is reached.
    Limit = 4,
    /// The address, port or rule belongs to another session.
    InUse = 5,
    /// There is no such endpoint, queue pair or setting.
    NotFound = 6,
    /// The request does not fit the connection's current state.
    State = 7,
    /// The device failed.
    Device = 8,
}
