//! An out-of-band message that an application wrote: never a panic, and one with a meaning is made of
//! its parts again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use towpath_protocol::oob::OobMessage;

fuzz_target!(|bytes: &[u8]| {
    let (words, []) = bytes.as_chunks::<8>() else { return };
    let Ok(words) = <[[u8; 8]; 16]>::try_from(words) else { return };
    let message = OobMessage::from_words(words.map(u64::from_ne_bytes));
    let Some((kind, address)) = message.check() else { return };
    let again = OobMessage::new(kind, address, message.payload()).expect("its own parts");
    assert_eq!(OobMessage { uid: message.uid, session: message.session, ..again }, message);
    let received = message.from_sender(address, 1000, 7);
    assert_eq!(received.check(), Some((kind, address)));
    assert_eq!(OobMessage::from_words(received.to_words()), received);
});
