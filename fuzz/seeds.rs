//! Rewrites the seed corpora, from frames that the builders make: `cargo run --example seeds`, in
//! this directory.

use std::path::Path;

use towpath_device::virtio;
use towpath_packet::build::{Flow, Tcp};
use towpath_packet::roce::cm::{
    CmMessage, Disconnect, Disconnected, IpHeader, Mad, PathMtu, Ready, Receipt, Reject, Reply,
    Request as ConnectionRequest, gid_of, reason, service_of,
};
use towpath_packet::roce::{
    Aeth, Bth, Deth, Extension, GENERAL_SERVICES_QKEY, GENERAL_SERVICES_QP, NakCode, Opcode,
    Path as RocePath, Reth, Syndrome, frame_bytes, seal, write_headers,
};
use towpath_packet::transport::tcp_flags::{ACK, CWR, FIN, PSH, RST, SYN};
use towpath_packet::{Checksum, Meta};
use towpath_pdu::atm::{Cell, Circuit, Segmenter};
use towpath_pdu::{Fragment, OVERHEAD_BYTES};
use towpath_protocol::VERSION;
use towpath_protocol::message::{
    ATTACH_OOB_SHIFT, Attach, Attached, CAN_CHECKSUM, CAN_SEGMENT, Close, CreateMemory, Created,
    Cursor, ErrorBody, Export, Import, ImportTripwire, Imported, MAX_BYTES, Message, OPEN_ALL,
    Open, Opened, RELEASE_APERTURE, RULE_ALL, Refusal, Release, Resume, SHARED, Set, SetTripwire,
    TRUSTED, fixed_name,
};
use towpath_protocol::oob::{Kind, OobAddress, OobMessage};
use towpath_protocol::requests::{LocalRange, Request, RequestKind};

fn frames() -> Vec<(&'static str, Vec<u8>)> {
    let options = [2, 4, 5, 0xb4, 1, 3, 3, 7];
    let syn = Tcp { flags: SYN, options: &options, ..Tcp::default() };
    let fragment = |pieces: u16| {
        let mut frame = Flow::v4().udp(&[7; 16]);
        frame[20..22].copy_from_slice(&pieces.to_be_bytes());
        frame
    };
    // Hop-by-hop options, routing, destination options, then UDP.
    let mut chain = vec![43, 0, 1, 4, 0, 0, 0, 0, 60, 0, 0, 0, 0, 0, 0, 0, 17, 0, 1, 4, 0, 0, 0, 0];
    chain.extend_from_slice(&Flow::v6().udp(b"x")[54..]);
    let mut fragment6 = vec![17, 0, 0, 1, 0, 0, 0, 9];
    fragment6.extend_from_slice(&Flow::v6().udp(b"12345678")[54..]);
    let quoted = |flow: Flow, head: [u8; 8]| {
        let mut message = head.to_vec();
        message.extend_from_slice(&flow.udp(b"quoted")[14..]);
        flow.reversed().icmp(message)
    };
    vec![
        ("arp-request", Flow::v4().who_has()),
        ("arp-reply", Flow::v4().i_have()),
        ("solicitation", Flow::v6().who_has()),
        ("advertisement", Flow::v6().i_have()),
        ("udp4", Flow::v4().udp(b"payload")),
        ("udp6", Flow::v6().udp(b"payload")),
        ("udp4-vlan", Flow::v4().vlan(0x6005).udp(b"payload")),
        ("tcp4-syn", Flow::v4().tcp(&syn, &[])),
        ("tcp6-syn", Flow::v6().tcp(&syn, &[])),
        ("tcp4", Flow::v4().tcp(&Tcp::default(), b"payload")),
        ("tcp6-vlan", Flow::v6().vlan(5).tcp(&Tcp::default(), b"payload")),
        ("echo4", Flow::v4().echo(true, 1, 2, b"ping")),
        ("echo6", Flow::v6().echo(false, 1, 2, b"pong")),
        ("unreachable4", quoted(Flow::v4(), [3, 3, 0, 0, 0, 0, 0, 0])),
        ("too-big4", quoted(Flow::v4(), [3, 4, 0, 0, 0, 0, 5, 0])),
        ("too-big6", quoted(Flow::v6(), [2, 0, 0, 0, 0, 0, 5, 0])),
        ("fragment-first4", fragment(0x2000)),
        ("fragment-later4", fragment(3)),
        ("fragment-first6", Flow::v6().ip(44, &fragment6)),
        ("extension-headers", Flow::v6().ip(0, &chain)),
        ("sctp", Flow::v4().ip(132, &[3, 232, 7, 208, 0, 0, 0, 1, 0, 0, 0, 0])),
    ]
}

fn with_words(meta: &Meta, packet: &[u8]) -> Vec<u8> {
    let mut bytes: Vec<u8> = meta.to_words().iter().flat_map(|word| word.to_le_bytes()).collect();
    bytes.extend_from_slice(packet);
    bytes
}

fn offloads() -> Vec<(&'static str, (Vec<u8>, Meta))> {
    let last = Tcp { flags: ACK | PSH | FIN | CWR, ..Tcp::default() };
    let payload = [0x5a; 500];
    Vec::from([
        ("udp4", Flow::v4().udp_partial(b"payload")),
        ("udp6-vlan", Flow::v6().vlan(5).udp_partial(b"payload")),
        ("tcp4", Flow::v4().tcp_partial(&last, b"payload")),
        ("large4", Flow::v4().tcp_large(&last, &payload, 200)),
        ("large6", Flow::v6().tcp_large(&last, &payload, 200)),
        ("large4-vlan", Flow::v4().vlan(5).tcp_large(&last, &payload, 100)),
        ("large4-one", Flow::v4().tcp_large(&last, b"x", 1460)),
        ("finished", (Flow::v4().udp(b"payload"), Meta::FULL)),
        (
            "verified",
            (Flow::v4().udp(b""), Meta { checksum: Checksum::Verified, segmentation: None }),
        ),
    ])
}

/// Encodes a conversation: each frame follows its flags (see the target), the time to wait before
/// it in the target's unit, and its length.
fn conversation(steps: &[(u8, u8, Vec<u8>)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (flags, wait, frame) in steps {
        bytes.extend_from_slice(&[*flags, *wait]);
        bytes.extend_from_slice(&(frame.len() as u16).to_be_bytes());
        bytes.extend_from_slice(frame);
    }
    bytes
}

fn conversations() -> Vec<(&'static str, Vec<u8>)> {
    // The target's flags: 1 corrects checksums, 2 answers the last TCP segment, 8 lets the
    // application read and write, 16 lets it close.
    let mut all: Vec<_> =
        frames().into_iter().map(|(name, frame)| (name, conversation(&[(0, 0, frame)]))).collect();
    for (flow, server, client) in
        [(Flow::v4(), "tcp4-server", "tcp4-client"), (Flow::v6(), "tcp6-server", "tcp6-client")]
    {
        let tcp = |flags| flow.tcp(&Tcp { flags, ..Tcp::default() }, &[]);
        let data = flow.tcp(&Tcp { flags: ACK | PSH, ..Tcp::default() }, b"data");
        let steps = [
            (0, 0, flow.i_have()),
            (0, 0, tcp(SYN)),
            (3, 0, tcp(ACK)),
            (3 | 8, 1, data.clone()),
            (3, 1, tcp(ACK)),
            (3 | 16, 0, tcp(FIN | ACK)),
            (3, 1, tcp(ACK)),
        ];
        all.push((server, conversation(&steps)));
        // The other direction: the target requests its neighbour's address, then answers arrive.
        let steps = [
            (0, 0, flow.i_have()),
            (3, 0, tcp(SYN | ACK)),
            (3 | 8, 0, data),
            (3, 1, tcp(ACK)),
            (3, 200, tcp(RST)),
        ];
        all.push((client, conversation(&steps)));
    }
    let pieces = |pieces: u16| {
        let mut frame = Flow::v4().udp(&[7; 16]);
        frame[20..22].copy_from_slice(&pieces.to_be_bytes());
        frame
    };
    let fragments = [(1, 0, pieces(3)), (1, 0, pieces(0x2000)), (8, 255, Flow::v4().udp(b"late"))];
    all.push(("fragments", conversation(&fragments)));
    all
}

/// Returns PDUs in fragments: in order and out of order, duplicated, late, contradictory, whole.
fn pdus() -> Vec<(&'static str, Vec<u8>)> {
    let bytes: Vec<u8> = (0..900_u32).map(|place| (place % 251) as u8).collect();
    let fragment = |id: u32, total: usize, offset: usize, len: usize| {
        let fragment = Fragment {
            destination: [2, 0, 0, 0, 0, 1].into(),
            source: [2, 0, 0, 0, 0, 2].into(),
            channel: 7,
            id,
            total: total as u32,
            offset: offset as u32,
            len: len as u16,
            crc: crc32c::crc32c(&bytes[..total.min(900)]),
        };
        let mut frame = [0; OVERHEAD_BYTES];
        fragment.write(&mut frame);
        // Padded as on Ethernet.
        let mut frame = [&frame[..], &bytes[offset..offset + len]].concat();
        frame.resize(frame.len().max(60), 0);
        frame
    };
    let part = |offset| fragment(1, 900, offset, 300);
    let many: Vec<_> = (0..10).map(|id| (1, 2, fragment(id, 900, 0, 20))).collect();
    let large: Vec<_> = (0..6).map(|id| (1, 0, fragment(id, 65_536, 5, 9))).collect();
    // Unpadded: a seed has at most 4096 bytes.
    let hole = |number: usize| fragment(1, 900, number * 2, 1)[..OVERHEAD_BYTES + 1].to_vec();
    let holes: Vec<_> = (0..66).map(|number| (1, 0, hole(number))).collect();
    // Opens a queue of three PDUs, fills it, takes from it in both ways, and closes it.
    let queue: Vec<_> = (0..5)
        .map(|id| (if id == 0 { 8 } else { 0 }, 2, fragment(id, 46, 0, 46)))
        .chain([(16, 0, fragment(9, 900, 0, 300)), (48, 0, fragment(10, 46, 0, 46))])
        .chain([(8, 0, fragment(11, 46, 0, 46))])
        .collect();
    vec![
        ("empty", conversation(&[(0, 0, fragment(1, 0, 0, 0))])),
        ("whole", conversation(&[(0, 0, fragment(1, 46, 0, 46)), (4, 0, fragment(1, 46, 0, 46))])),
        ("mended", conversation(&[(3, 0, fragment(1, 200, 0, 200))])),
        ("in-order", conversation(&[(0, 0, part(0)), (1, 0, part(300)), (4, 1, part(600))])),
        ("reversed", conversation(&[(1, 0, part(600)), (5, 0, part(300)), (0, 1, part(0))])),
        (
            "twice",
            conversation(&[(0, 0, part(0)), (0, 0, part(0)), (0, 0, part(300)), (0, 0, part(600))]),
        ),
        ("late", conversation(&[(0, 0, part(0)), (0, 60, part(300)), (0, 60, part(600))])),
        ("overlap", conversation(&[(0, 0, part(0)), (1, 0, fragment(1, 900, 200, 300))])),
        ("another-length", conversation(&[(0, 0, part(0)), (1, 0, fragment(1, 800, 300, 300))])),
        ("too-many", conversation(&many)),
        ("too-large", conversation(&large)),
        ("holes", conversation(&holes)),
        ("queue", conversation(&queue)),
    ]
}

/// Returns messages, each after the number of descriptors that go with it.
fn control() -> Vec<(&'static str, Vec<u8>)> {
    let encoded =
        |message: &Message, descriptors: u8| [&[descriptors], message.encode().as_slice()].concat();
    let attach = Attach {
        queue_pairs: 2,
        endpoints: 3,
        transmit_slots: 8,
        receive_slots: 16,
        transmit_buffer_bytes: 2048,
        receive_buffer_bytes: 2048,
        name: fixed_name("seed"),
        ipv4: [10, 0, 0, 1],
        flags: 0,
        apertures: 0,
        tripwires: 0,
    };
    let attached = Attached {
        epoch: 7,
        session: 1,
        mtu: 1500,
        lanes: 1,
        capabilities: CAN_CHECKSUM | CAN_SEGMENT,
        flags: TRUSTED | SHARED,
        mac: [2, 0, 0, 0, 0, 1],
        ipv4_prefix: 24,
        ipv6_prefix: 64,
        ipv4: [10, 0, 0, 2],
        ipv4_gateway: [10, 0, 0, 1],
        ipv6: [0xfd; 16],
        ipv6_gateway: [0xfe; 16],
        device: fixed_name("tap0"),
    };
    let open = Open {
        given: RULE_ALL,
        queue_pair: 1,
        flags: OPEN_ALL,
        vlan: 5,
        ethertype: 0x0800,
        mac: [2, 0, 0, 0, 0, 1],
        protocol: 17,
        ip_version: 4,
        ip: [10, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        remote_ip: [10, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        port: 53,
        remote_port: 5353,
        sequence: 1,
    };
    let export = Export { offset: 64, len: 128, endpoint: 1, memory: 0, access: 3, sequence: 3 };
    let imported = Imported {
        offset: 64,
        len: 128,
        memory: 1 << 32 | 2,
        number: 1,
        access: 3,
        sharing: 3,
        reserved: 0,
    };
    let tripwire =
        SetTripwire { offset: 64, len: 8, memory: 0, access: 2, sequence: 4, reserved: 0 };
    let refused = Message::Error(Box::new(ErrorBody::new(Refusal::Version, "use matching builds")));
    let mut messages: Vec<_> = [
        ("attach", Message::Attach(attach), 0),
        ("attach-largest", Message::Attach(Attach { queue_pairs: 16_384, ..attach }), 0),
        ("attach-overflow", Message::Attach(Attach { transmit_slots: 1 << 31, ..attach }), 0),
        ("attach-frames", Message::Attach(Attach { receive_buffer_bytes: 1 << 18, ..attach }), 0),
        ("attach-oob", Message::Attach(Attach { flags: 64 << ATTACH_OOB_SHIFT, ..attach }), 0),
        (
            "attach-apertures",
            Message::Attach(Attach {
                flags: 8 << ATTACH_OOB_SHIFT,
                apertures: 65,
                tripwires: 129,
                ..attach
            }),
            0,
        ),
        ("attached", Message::Attached(attached), 7),
        ("mapped", Message::Mapped, 0),
        ("open", Message::Open(open), 0),
        ("opened", Message::Opened(Opened { endpoint: 2, port: 80 }), 0),
        ("close", Message::Close(Close { endpoint: 2 }), 0),
        ("resume", Message::Resume(Resume { epoch: 7, session: 1, reserved: 0 }), 0),
        ("resumed", Message::Attached(attached), 2),
        ("report", Message::Report(Cursor::default()), 0),
        ("reported", Message::Reported(Cursor::END, b"{}".to_vec()), 0),
        (
            "set",
            Message::Set(Set { setting: 0, session: 1, endpoint: 2, reserved: 0, value: 1 }),
            0,
        ),
        (
            "create-memory",
            Message::CreateMemory(CreateMemory { bytes: 4096, sharing: 3, sequence: 2 }),
            0,
        ),
        ("created", Message::Created(Created { number: 1, key: 7 }), 1),
        ("export", Message::Export(export), 0),
        ("import", Message::Import(Import { endpoint: 1, key: 7, sequence: 3, reserved: 0 }), 0),
        ("imported", Message::Imported(imported), 1),
        ("set-tripwire", Message::SetTripwire(tripwire), 0),
        (
            "import-tripwire",
            Message::ImportTripwire(ImportTripwire {
                aperture: 1,
                tripwire: 2,
                sequence: 5,
                reserved: 0,
            }),
            0,
        ),
        ("release", Message::Release(Release { kind: RELEASE_APERTURE, number: 1 }), 0),
        ("hand-over", Message::HandOver, 0),
        ("done", Message::Done, 0),
        ("done-too-many-descriptors", Message::Done, 8),
        ("error", refused.clone(), 0),
    ]
    .into_iter()
    .map(|(name, message, descriptors)| (name, encoded(&message, descriptors)))
    .collect();
    let of_version = |message: &Message| {
        let mut bytes = encoded(message, 0);
        bytes[5..7].copy_from_slice(&(VERSION + 1).to_ne_bytes());
        bytes
    };
    messages.push(("error-other-version", of_version(&refused)));
    messages.push(("done-other-version", of_version(&Message::Done)));
    let mut too_long = encoded(&Message::Done, 0);
    too_long.resize(2 + MAX_BYTES, 0);
    messages.push(("done-too-long", too_long));
    messages
}

fn write(target: &str, seeds: &[(&str, Vec<u8>)]) -> std::io::Result<()> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target);
    std::fs::create_dir_all(&directory)?;
    for (name, bytes) in seeds {
        std::fs::write(directory.join(name), bytes)?;
    }
    println!("{target}: {} seeds", seeds.len());
    Ok(())
}

/// Returns transfers in both directions: clean, with each fault of the link, and with all of them.
fn transfers() -> Vec<(&'static str, Vec<u8>)> {
    // The target's settings: 1 our host listens, 2 the link changes segments.
    let with = |settings: u8, fate: u8| {
        let mut input = vec![settings, 200, 0x40, 0, 0x20, 0];
        input.extend((0..120u8).map(|at| if at % 9 == 4 { fate } else { 0 }));
        input
    };
    let mut all = vec![2, 20, 0x80, 0, 0x80, 0];
    all.extend((0..=255u8).map(|at| at.wrapping_mul(37)));
    vec![
        ("clean-connect", with(0, 0)),
        ("clean-listen", with(1, 0)),
        ("lost", with(0, 1)),
        ("twice", with(1, 3)),
        ("late", with(0, 0x74)),
        ("changed-numbers", with(2, 0x65)),
        ("changed-flags", with(3, 0x15)),
        ("changed-options", with(2, 0xb6)),
        ("all", all),
    ]
}

/// Returns PDUs in cells: of both layers, with a cell lost, two at once, in circuits that close,
/// and with checks for the target to correct.
fn cells() -> Vec<(&'static str, Vec<u8>)> {
    let bytes: Vec<u8> = (0..200).collect();
    let aal5: Vec<Cell> =
        Segmenter::aal5(Circuit { vpi: 0, vci: 32 }, 200).unwrap().cells(&bytes).collect();
    let aal34 = |mid| -> Vec<Cell> {
        let circuit = Circuit { vpi: 7, vci: 1000 };
        Segmenter::aal34(circuit, mid, 9, 200).unwrap().cells(&bytes).collect()
    };
    let stream = |flags: u8, wait: u8, cells: &[Cell]| {
        cells.iter().flat_map(|cell| [&[flags, wait][..], cell].concat()).collect::<Vec<u8>>()
    };
    let many: Vec<Cell> = (0..9).flat_map(|mid| [aal34(mid)[0], aal34(mid)[1]]).collect();
    let both: Vec<Cell> = aal34(1).into_iter().zip(aal34(2)).flat_map(|(a, b)| [a, b]).collect();
    vec![
        ("aal5", stream(0, 0, &aal5)),
        ("aal34", stream(0, 0, &aal34(5))),
        ("lost", [stream(0, 0, &aal5[1..]), stream(0, 0, &aal34(5)[2..])].concat()),
        ("many", stream(0, 1, &many)),
        ("both", stream(0, 0, &both)),
        ("late", stream(0, 30, &aal34(5))),
        ("corrected", [stream(1 | 4, 0, &aal34(5)), stream(1 | 2, 0, &aal5)].concat()),
        ("closed", [stream(0, 0, &aal5[..3]), stream(8 | 4, 0, &aal5[3..])].concat()),
        ("before", stream(16 | 4, 100, &aal34(5))),
        // The first 400 cells of long PDUs, in four circuits: more than the memory.
        ("full", [4, 4 | 64, 0, 64].map(|flags| stream(32 | flags, 0, &aal5[..1])).concat()),
    ]
}

/// Returns requests of each kind.
fn requests() -> Vec<(&'static str, Vec<u8>)> {
    let range = LocalRange { offset: 4096, len: 64, memory: 1 };
    let of = |kind, local: &[LocalRange]| {
        Request::new(kind, 7, (5, 64), local).unwrap().to_bytes().to_vec()
    };
    vec![
        ("write", of(RequestKind::Write, &[range])),
        ("write-value", of(RequestKind::WriteWithValue, &[range; 2])),
        ("read", of(RequestKind::Read, &[range; 6])),
        ("send", Request::message(8, b"hello").unwrap().to_bytes().to_vec()),
    ]
}

/// Returns steps of a side of a channel and of its peer.
fn rings() -> Vec<(&'static str, Vec<u8>)> {
    const STORE: u8 = 0;
    const RECEIVE: u8 = 1;
    const SEND: u8 = 2;
    const SLEEP: u8 = 3;
    const ROOM: u8 = 4;
    let step = |what: u8, place: u8, word: u64| [&[what, place][..], &word.to_le_bytes()].concat();
    let message = |place: u8, len: u64| step(STORE, place, 1 << 32 | len);
    let consumed = |position: u64| step(STORE, 0, position);
    vec![
        (
            "receive",
            [message(32, 16), message(35, 0), step(RECEIVE, 0, 0), step(RECEIVE, 0, 0)].concat(),
        ),
        ("end", [step(STORE, 32, 2 << 32), step(RECEIVE, 0, 0), step(SLEEP, 0, 0)].concat()),
        (
            "send",
            [
                step(SEND, 7, 100),
                step(SLEEP, 0, 0),
                step(SEND, 8, 200),
                consumed(112),
                step(SEND, 8, 200),
            ]
            .concat(),
        ),
        (
            "wanted",
            [step(STORE, 16, 8), message(32, 8), step(RECEIVE, 0, 0), step(SLEEP, 0, 0)].concat(),
        ),
        ("ahead", [step(STORE, 8, u64::MAX), message(32, 240), step(RECEIVE, 0, 0)].concat()),
        ("consumed", [step(SEND, 1, 8), consumed(17), step(ROOM, 0, 0)].concat()),
        ("long", [message(32, 241), step(RECEIVE, 0, 0)].concat()),
    ]
}

/// Returns out-of-band messages of each kind, and of both families.
fn messages() -> Vec<(&'static str, Vec<u8>)> {
    let to = |ip: &str| OobAddress { ip: ip.parse().unwrap(), protocol: 6, port: 7471 };
    let message = |kind, ip, payload: &[u8]| {
        OobMessage::new(kind, to(ip), payload).unwrap().to_words().map(u64::to_ne_bytes).concat()
    };
    vec![
        ("plain4", message(Kind::Plain, "192.0.2.7", &[0x5a; 64])),
        ("plain6", message(Kind::Plain, "2001:db8::7", b"hello")),
        ("request", message(Kind::Request, "192.0.2.7", &[0xa5; 56])),
        ("accept", message(Kind::Accept, "2001:db8::7", b"")),
        ("reject", message(Kind::Reject, "192.0.2.7", b"no")),
        ("close", message(Kind::Close, "0.0.0.0", b"")),
    ]
}

/// Returns a message of the communication manager of each kind.
fn connections() -> Vec<(&'static str, Vec<u8>)> {
    let (local_id, remote_id) = (1, 2);
    let (source, destination) = (Flow::v4().source, Flow::v4().destination);
    let header = IpHeader { source, destination, source_port: 1000 };
    let request = ConnectionRequest {
        local_id,
        service: service_of(6, 2000),
        local_guid: 7,
        local_qpn: 17,
        responder_resources: 16,
        initiator_depth: 16,
        remote_response_timeout: 20,
        local_response_timeout: 20,
        starting_psn: 1000,
        retry_count: 7,
        rnr_retry_count: 7,
        path_mtu: PathMtu::M1024,
        max_retries: 15,
        pkey: 0xffff,
        local_gid: gid_of(source),
        remote_gid: gid_of(destination),
        ack_timeout: 19,
        reliable: true,
        private: header.write(b"private").expect("short data"),
    };
    let reply = Reply {
        local_id,
        remote_id,
        local_qpn: 18,
        starting_psn: 2000,
        responder_resources: 16,
        initiator_depth: 16,
        target_ack_delay: 15,
        rnr_retry_count: 7,
        local_guid: 8,
        private: [0x5a; 196],
    };
    let reason = reason::INVALID_SERVICE_ID;
    let reject = Reject { local_id, remote_id, rejected: 0, reason, private: [0; 148] };
    let receipt = Receipt { local_id, remote_id, message: 0, service_timeout: 20 };
    let disconnect = Disconnect { local_id, remote_id, remote_qpn: 18 };
    [
        ("request", CmMessage::Request(Box::new(request))),
        ("reply", CmMessage::Reply(Box::new(reply))),
        ("ready", CmMessage::ReadyToUse(Ready { local_id, remote_id })),
        ("reject", CmMessage::Reject(reject)),
        ("receipt", CmMessage::Receipt(receipt)),
        ("disconnect", CmMessage::Disconnect(disconnect)),
        ("disconnected", CmMessage::Disconnected(Disconnected { local_id, remote_id })),
    ]
    .map(|(name, message)| (name, Mad { transaction: 3, message }.to_bytes().to_vec()))
    .to_vec()
}

/// Returns RoCEv2 frames: packets of each kind of header, and the messages that set connections up.
fn roce() -> Vec<(&'static str, Vec<u8>)> {
    let extension = Extension {
        reth: Some(Reth { address: 0x1000, key: 0xcafe, len: 4096 }),
        aeth: Some(Aeth { syndrome: Syndrome::Ack { credits: 31 }, msn: 5 }),
        immediate: Some(7),
        deth: Some(Deth { qkey: GENERAL_SERVICES_QKEY, source: GENERAL_SERVICES_QP }),
    };
    let nak = Aeth { syndrome: Syndrome::Nak(NakCode::SequenceError), msn: 5 };
    let nak = Extension { aeth: Some(nak), ..extension };
    let frame = |flow: Flow, bth: &Bth, extension: &Extension, payload: &[u8]| {
        let path = RocePath {
            source_mac: flow.source_mac,
            destination_mac: flow.destination_mac,
            source: flow.source,
            destination: flow.destination,
            source_port: 0xc000,
            ecn: true,
        };
        let mut frame = vec![0; frame_bytes(&path, bth.opcode, payload.len())];
        let at = write_headers(&path, bth, extension, payload.len(), &mut frame).unwrap();
        frame[at..at + payload.len()].copy_from_slice(payload);
        assert!(seal(&mut frame));
        frame
    };
    let of = |flow: Flow, opcode: Opcode, payload: &[u8]| {
        frame(flow, &Bth { ack_request: true, ..Bth::new(opcode, 17, 1000) }, &extension, payload)
    };
    let cnp = Bth { becn: true, ..Bth::new(Opcode::CongestionNotification, 17, 0) };
    let mut all = vec![
        ("send4", of(Flow::v4(), Opcode::SendOnly, b"hello")),
        ("send6", of(Flow::v6(), Opcode::SendOnly, b"hello")),
        ("send-immediate", of(Flow::v4(), Opcode::SendLastImmediate, b"last")),
        ("write", of(Flow::v4(), Opcode::WriteFirst, &[0x5a; 256])),
        ("write-immediate6", of(Flow::v6(), Opcode::WriteOnlyImmediate, b"x")),
        ("read", of(Flow::v4(), Opcode::ReadRequest, b"")),
        ("read-response", of(Flow::v4(), Opcode::ReadResponseOnly, b"response")),
        ("acknowledge", of(Flow::v4(), Opcode::Acknowledge, b"")),
        ("nak6", frame(Flow::v6(), &Bth::new(Opcode::Acknowledge, 17, 1000), &nak, b"")),
        ("congestion", frame(Flow::v4(), &cnp, &extension, b"")),
        ("datagram", connections().swap_remove(0).1),
    ];
    let general = Bth::new(Opcode::DatagramSendOnly, GENERAL_SERVICES_QP, 1);
    all.extend(
        connections()
            .into_iter()
            .map(|(name, message)| (name, frame(Flow::v4(), &general, &extension, &message))),
    );
    all
}

/// Returns conversations of a connection of RoCEv2, each of steps as `fuzz_targets/rdma.rs` reads them.
fn rdma_conversations() -> Vec<(&'static str, Vec<u8>)> {
    // The next packet of the peer, or the oldest of this side; in the exported memory; with a full payload.
    const NEXT: u8 = 0x71;
    const OLDEST: u8 = 0x72;
    const EXPORTED: u8 = 4;
    const FULL: u8 = 8;
    let step = |kind: u8, a: u8, b: u8| vec![kind, a, b];
    let packet = |flags: u8, opcode: u8, rest: &[u8]| {
        let mut packet = vec![opcode, 0, 0xff, 0xff, 0, 0, 0, 17, 0x80, 0, 0, 0];
        packet.extend(rest);
        [&[0, flags, packet.len() as u8], &packet[..]].concat()
    };
    let reth = |len: u16| {
        let mut reth = [0; 16];
        reth[14..].copy_from_slice(&len.to_be_bytes());
        reth
    };
    let aeth = |syndrome: u8| [syndrome, 0, 0, 1];
    let (send, long) = (step(6, 63, 0), reth(600));
    let written = [reth(8).as_slice(), &[1; 8]].concat();
    vec![
        ("message", [packet(NEXT, 4, b"hello...  "), send.clone()].concat()),
        (
            "write",
            [
                packet(NEXT | EXPORTED | FULL, 6, &long),
                packet(NEXT | FULL, 7, b""),
                packet(NEXT, 8, &[2; 88]),
                send.clone(),
            ]
            .concat(),
        ),
        (
            "write-again",
            [packet(NEXT | EXPORTED, 10, &written), packet(0x61 | EXPORTED, 10, &written)].concat(),
        ),
        ("not-ready", [step(7, 0, 0), packet(NEXT, 4, b"full"), send.clone()].concat()),
        (
            "read",
            [
                packet(NEXT | EXPORTED, 12, &long),
                step(6, 1, 0),
                packet(0x51 | EXPORTED, 12, &reth(300)),
                send.clone(),
            ]
            .concat(),
        ),
        ("revoked", [packet(NEXT | EXPORTED, 12, &long), step(7, 8, 3), send.clone()].concat()),
        (
            "gap",
            [packet(0x91, 4, b"late"), send.clone(), packet(NEXT, 4, b"first"), send.clone()]
                .concat(),
        ),
        (
            "works",
            [
                packet(OLDEST, 17, &aeth(31)),
                step(4, 0, 20),
                step(4, 3, 64),
                send.clone(),
                packet(OLDEST, 17, &aeth(31)),
                packet(OLDEST, 17, &aeth(0x60)),
                packet(OLDEST, 17, &aeth(0x21)),
                step(5, 255, 0),
                send.clone(),
            ]
            .concat(),
        ),
        (
            "reads",
            [
                packet(OLDEST, 17, &aeth(31)),
                step(4, 2, 15),
                step(4, 2, 4),
                send.clone(),
                packet(OLDEST | FULL, 13, &aeth(31)),
                packet(OLDEST | FULL, 14, b""),
                packet(OLDEST, 16, &aeth(31)),
                send.clone(),
            ]
            .concat(),
        ),
        (
            "refused",
            [
                packet(OLDEST, 17, &aeth(31)),
                step(4, 1, 9),
                send.clone(),
                packet(OLDEST, 17, &aeth(0x62)),
            ]
            .concat(),
        ),
        (
            "silent",
            [
                packet(OLDEST, 17, &aeth(31)),
                step(5, 255, 255),
                send.clone(),
                step(5, 255, 255),
                step(5, 255, 255),
                send.clone(),
            ]
            .concat(),
        ),
        ("congestion", [packet(NEXT, 0x81, &[0; 16]), step(4, 0, 40), send].concat()),
    ]
}

fn main() -> std::io::Result<()> {
    write("headers", &frames())?;
    let words: Vec<_> = offloads()
        .into_iter()
        .map(|(name, (packet, meta))| (name, with_words(&meta, &packet)))
        .collect();
    write("segment", &words)?;
    write("meta", &words)?;
    let virtio: Vec<_> = offloads()
        .into_iter()
        .map(|(name, (packet, meta))| (name, [&virtio::header(meta)[..], &packet].concat()))
        .collect();
    write("virtio", &virtio)?;
    write("stack_input", &conversations())?;
    write("tcp_peer", &transfers())?;
    write("control", &control())?;
    write("pdu", &pdus())?;
    write("cells", &cells())?;
    write("oob", &messages())?;
    write("request", &requests())?;
    write("ring", &rings())?;
    write("roce", &roce())?;
    write("rdma", &rdma_conversations())
}
