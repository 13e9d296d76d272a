//! A request that an application wrote: never a panic, and one with a meaning is made of its parts
//! again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use towpath_protocol::requests::{
    MAX_LOCAL_RANGES, MAX_MOVED_BYTES, Request, RequestKind, SEND_BYTES,
};

fuzz_target!(|bytes: &[u8]| {
    let Some(request) = Request::from_bytes(bytes) else { return };
    let payload = request.payload().len();
    assert!(payload <= usize::from(request.count).max(MAX_LOCAL_RANGES * 16));
    let Some(checked) = request.check() else { return };
    if checked.kind == RequestKind::Send {
        assert_eq!((checked.local, checked.bytes), (0, 0));
        assert!(payload <= SEND_BYTES);
        let again = Request::message(request.sequence, request.payload()).expect("its own parts");
        assert_eq!(again.payload(), request.payload());
        assert_eq!(again.check(), Some(checked));
        return;
    }
    assert!((1..=MAX_LOCAL_RANGES).contains(&checked.local));
    assert!((1..=MAX_MOVED_BYTES).contains(&checked.bytes));
    let local = &request.local[..checked.local];
    let place = (request.key, request.remote);
    let again = Request::new(checked.kind, request.sequence, place, local).expect("its own parts");
    assert_eq!(again.check(), Some(checked));
    assert_eq!(again.local[..checked.local], *local);
});
