//! The messages of systemd's descriptor store (sd_notify(3), sd_pid_notify_with_fds(3)): lines of
//! text, with descriptors beside them.
//!
//! | message | meaning |
//! |---|---|
//! | `FDSTORE=1`, `FDNAME=name`, `FDPOLL=0` | hold the descriptors that come with it, under a name |
//! | `FDSTOREREMOVE=1`, `FDNAME=name` | close everything under a name |
//! | `READY=1` | the server serves |
//! | `STATUS=text` | the reason for which the server is about to fail |
//! | `BARRIER=1` | close the descriptor that comes with it, once all earlier messages are handled |
//!
//! `FDPOLL=0` is required. Without it, systemd would drop a port holder at once: a bound socket
//! that does not listen polls as hung up.

/// The longest name, in bytes.
const NAME_BYTES: usize = 255;

/// The longest message, in bytes: two lines around the longest name.
pub(super) const MESSAGE_BYTES: usize = 512;

/// The most descriptors that come with a message.
pub(super) const MESSAGE_DESCRIPTORS: usize = 8;

/// The text of a barrier.
pub(super) const BARRIER: &str = "BARRIER=1";

/// A message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Notification<'a> {
    /// Hold the descriptors under this name.
    Store(&'a str),
    /// Close everything under this name.
    Remove(&'a str),
    /// Tell the server that all earlier messages are handled.
    Barrier,
    /// The server serves.
    Ready,
    /// The server is about to fail, for this reason.
    Failure(&'a str),
}

/// The text of a server that serves.
pub(super) const READY: &str = "READY=1";

/// The beginning of a reason.
const STATUS: &str = "STATUS=";

/// Returns the text that tells a reason, which may be too long for a message.
pub(super) fn failure(reason: &str) -> String {
    let reason = printable(reason, MESSAGE_BYTES - STATUS.len());
    format!("{STATUS}{reason}")
}

/// Returns the beginning of a text in one line, without control characters: at most so many bytes.
pub(super) fn printable(text: &str, most: usize) -> String {
    let mut shown = String::new();
    for one in text.chars().map(|one| if one.is_control() { ' ' } else { one }) {
        if shown.len() + one.len_utf8() > most {
            break;
        }
        shown.push(one);
    }
    shown
}

/// Returns the text with which descriptors are stored under a name.
pub(super) fn store(name: &str) -> String {
    format!("FDSTORE=1\nFDNAME={name}\nFDPOLL=0")
}

/// Returns the text that removes everything under a name.
pub(super) fn remove(name: &str) -> String {
    format!("FDSTOREREMOVE=1\nFDNAME={name}")
}

/// Returns `true` for a name that systemd's store takes: 1 to 255 printable ASCII characters
/// without a colon.
pub(super) fn is_name(name: &str) -> bool {
    let is_one = |byte: u8| matches!(byte, b' '..=b'~') && byte != b':';
    (1..=NAME_BYTES).contains(&name.len()) && name.bytes().all(is_one)
}

/// Reads a message; `None` if it has another form.
pub(super) fn parse(bytes: &[u8]) -> Option<Notification<'_>> {
    let text = std::str::from_utf8(bytes).ok()?;
    let text = text.strip_suffix('\n').unwrap_or(text);
    if text == BARRIER {
        return Some(Notification::Barrier);
    }
    if text == READY {
        return Some(Notification::Ready);
    }
    if let Some(reason) = text.strip_prefix(STATUS) {
        return Some(Notification::Failure(reason));
    }
    let (mut stores, mut removes, mut name, mut unpolled) = (false, false, None, false);
    for line in text.split('\n') {
        let once = match line {
            "FDSTORE=1" => !std::mem::replace(&mut stores, true),
            "FDSTOREREMOVE=1" => !std::mem::replace(&mut removes, true),
            "FDPOLL=0" => !std::mem::replace(&mut unpolled, true),
            _ => name.replace(line.strip_prefix("FDNAME=")?).is_none(),
        };
        if !once {
            return None;
        }
    }
    let name = name.filter(|name| is_name(name))?;
    match (stores, removes) {
        (true, false) if unpolled => Some(Notification::Store(name)),
        (false, true) => Some(Notification::Remove(name)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_follow_systemds_rules() {
        for name in ["state", "session-7-server", "port-tcp-192.0.2.1-80", "a b", &"x".repeat(255)]
        {
            assert!(is_name(name), "{name}");
            assert_eq!(parse(store(name).as_bytes()), Some(Notification::Store(name)));
            assert_eq!(parse(remove(name).as_bytes()), Some(Notification::Remove(name)));
            assert!(store(name).len() <= MESSAGE_BYTES);
        }
        for name in ["", "a:b", "a\nb", "a\tb", "\u{7f}", "ä", &"x".repeat(256)] {
            assert!(!is_name(name), "{name}");
            assert_eq!(parse(store(name).as_bytes()), None, "{name}");
        }
    }

    #[test]
    fn other_messages_are_refused() {
        for text in [
            "",
            "\n",
            "FDSTORE=1",
            "FDNAME=a",
            "FDSTORE=1\nFDNAME=a",
            "FDSTORE=1\nFDNAME=a\nFDPOLL=1",
            "FDSTORE=1\nFDNAME=a\nFDNAME=b\nFDPOLL=0",
            "FDSTORE=1\nFDSTOREREMOVE=1\nFDNAME=a\nFDPOLL=0",
            "FDSTORE=1\nFDNAME=a\nFDPOLL=0\nREADY=1",
            "BARRIER=1\nFDNAME=a",
        ] {
            assert_eq!(parse(text.as_bytes()), None, "{text:?}");
        }
        assert_eq!(parse(b"FDSTORE=1\nFDNAME=\xff\nFDPOLL=0"), None);
        assert_eq!(parse(b"FDPOLL=0\nFDNAME=a\nFDSTORE=1\n"), Some(Notification::Store("a")));
        assert_eq!(parse(b"BARRIER=1"), Some(Notification::Barrier));
        assert_eq!(parse(b"READY=1\n"), Some(Notification::Ready));
        let long = failure(&"ä\n".repeat(500));
        assert!(long.len() <= MESSAGE_BYTES && long.starts_with("STATUS=ä ä"), "{long}");
        assert!(matches!(parse(long.as_bytes()), Some(Notification::Failure(_))));
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_valid_name_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            for start in [&b""[..], b"FDSTORE=1\nFDPOLL=0\nFDNAME=", b"FDSTOREREMOVE=1\nFDNAME="] {
                let message = [start, &bytes].concat();
                match parse(&message) {
                    Some(Notification::Store(name) | Notification::Remove(name)) => {
                        prop_assert!(is_name(name));
                    }
                    Some(
                        Notification::Barrier | Notification::Ready | Notification::Failure(_),
                    )
                    | None => {}
                }
            }
        }
    }
}
