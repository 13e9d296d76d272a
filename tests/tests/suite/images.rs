//! Memory images of older versions, which this server resumes (`tests/images/capture` makes them).

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use rustix::process::{PidfdFlags, getpid, getuid, pidfd_open};
use towpath_device::Meta;
use towpath_device_testing::conformance::{DeviceFarEnd, FarEnd};
use towpath_device_testing::loopback;
use towpath_memory::{Region, SharedFile, own_words, peer_words};
use towpath_packet::build::Flow;
use towpath_protocol::OLDEST_VERSION;
use towpath_protocol::channel::Channel;
use towpath_protocol::layout::SessionShape;
use towpath_protocol::message::{Message, Resume};
use towpath_protocol::store::{MemoryStore, Store};
use towpath_queue::events::{Marker, fence};
use towpath_server::{Config, Server, Subnet, Subnets};
use towpath_tests::{eventually, raw};

const V0_1_0: &str = include_str!("../../images/v0.1.0.image");
/// The names of a session's objects in the store, by the names of their memory files.
const OF_A_SESSION: [(&str, &str); 6] = [
    ("server-pages", "server"),
    ("receive-pool", "receive-pool"),
    ("ledger", "ledger"),
    ("application-pages", "application"),
    ("transmit-pool", "transmit-pool"),
    ("record", "record"),
];
/// The IP addresses of the image's server and session.
const SERVER: Ipv4Addr = Ipv4Addr::new(10, 79, 0, 1);
const SESSION: Ipv4Addr = Ipv4Addr::new(10, 79, 0, 2);

/// The memory files that a killed server left.
struct Image {
    /// Its memory files, by their names in the store.
    files: BTreeMap<String, OwnedFd>,
    /// The pages that the application writes, mapped before the seals forbid another writable mapping.
    application: Option<Region>,
}

impl Image {
    fn read(text: &str) -> Image {
        let (mut files, mut application) = (BTreeMap::new(), None);
        let mut lines = text.lines().peekable();
        while let Some(line) = lines.next() {
            let words: Vec<_> = line.split(' ').collect();
            let ["object", name, bytes, seals] = words[..] else { panic!("{line}") };
            let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
            let file = File::from(memfd_create(name, flags).unwrap());
            file.set_len(bytes.parse().unwrap()).unwrap();
            while let Some(line) = lines.next_if(|line| !line.starts_with("object")) {
                let (offset, bytes) = line.split_once(' ').unwrap();
                let digits: Vec<_> = bytes.as_bytes().chunks(2).collect();
                let byte = |two: &[u8]| u8::from_str_radix(str::from_utf8(two).unwrap(), 16);
                let bytes: Vec<u8> = digits.into_iter().map(|two| byte(two).unwrap()).collect();
                file.write_all_at(&bytes, offset.parse().unwrap()).unwrap();
            }
            // The seal against execution depends on the kernel.
            let known = SealFlags::SEAL
                | SealFlags::SHRINK
                | SealFlags::GROW
                | SealFlags::WRITE
                | SealFlags::FUTURE_WRITE;
            fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW).unwrap();
            if name == "application-pages" {
                let shared = SharedFile::adopt(file.try_clone().unwrap().into()).unwrap();
                application = Some(shared.map_writable().unwrap());
            }
            let seals = SealFlags::from_bits_retain(seals.parse().unwrap()) & known;
            fcntl_add_seals(&file, seals).unwrap();
            let session = OF_A_SESSION.iter().find(|(one, _)| *one == name);
            let name = session.map_or(name.to_owned(), |(_, part)| format!("session-1-{part}"));
            assert!(files.insert(name, file.into()).is_none());
        }
        Image { files, application }
    }

    /// Returns a store with the files, and with this process as that of the application.
    fn store(&self) -> MemoryStore {
        let mut store = MemoryStore::default();
        for (name, file) in &self.files {
            store.put(name, file.as_fd()).unwrap();
        }
        let process = pidfd_open(getpid(), PidfdFlags::empty()).unwrap();
        store.put("session-1-process", process.as_fd()).unwrap();
        store
    }

    /// Returns the session's MAC address: that of the first packet that it received.
    fn mac(&self) -> [u8; 6] {
        *self.bytes("session-1-receive-pool")[128..].first_chunk().unwrap()
    }

    fn bytes(&self, name: &str) -> Vec<u8> {
        let file = File::from(self.files[name].try_clone().unwrap());
        let mut bytes = vec![0; file.metadata().unwrap().len() as usize];
        file.read_exact_at(&mut bytes, 0).unwrap();
        bytes
    }
}

/// The application's side of the image's event queues.
struct Events {
    marker: Marker,
}

impl Events {
    /// Takes over the application's words, as its client does when its server is gone.
    fn restart(image: &mut Image) -> Events {
        let shape = SessionShape::new(2, 4, 8, 8, 512, 512).unwrap().of_version(OLDEST_VERSION);
        let server = SharedFile::adopt(image.files["session-1-server"].try_clone().unwrap());
        let server = Arc::new(server.unwrap().map_readable().unwrap());
        let pages = shape.server_peer(&peer_words(&server));
        let own = shape.application_own(own_words(image.application.take().unwrap()));
        let mut marker = Marker::new(shape.events_to_server(), own.events, &pages.acknowledgements);
        marker.restart();
        Events { marker }
    }

    /// Notifies the next server of packets in the first queue pair.
    fn notify(&mut self, wake: &OwnedFd) {
        assert!(self.marker.mark(fence(), 0).unwrap() && self.marker.publish());
        rustix::io::write(wake, &1u64.to_ne_bytes()).unwrap();
    }
}

/// Serves a device whose sessions get MAC addresses of the same block as `mac`.
fn serve(image: &Image, mac: [u8; 6]) -> (Server, DeviceFarEnd) {
    // The server folds the device's address into the second and the third byte.
    let device = [0x02, 0, 0, 0x02 ^ mac[1], mac[2], 0];
    let config = loopback::Config { mac: Some(device), ..loopback::Config::default() };
    let (near, far) = loopback::pair(&config).unwrap();
    let subnets = Subnets { ipv4: Some(Subnet::new(SERVER, 24)), ipv6: None };
    let config = Config { subnets, ..Config::default() };
    let server = Server::start(&config, Box::new(near), Box::new(image.store())).unwrap();
    (server, DeviceFarEnd::new(Box::new(far)))
}

fn report(server: &Server) -> serde_json::Value {
    towpath_client::report_over(server.connect().unwrap()).unwrap()
}

/// Returns `true` if a file has these bytes somewhere.
fn has(file: &[u8], bytes: &str) -> bool {
    file.windows(bytes.len()).any(|one| one == bytes.as_bytes())
}

fn is_root_or_skips(test: &str) -> bool {
    if getuid().is_root() {
        return true;
    }
    let cause = "the image is of an application of root's".to_owned();
    let remedy = "run as root".to_owned();
    towpath_testkit::skip(test, &towpath_testkit::Unavailable { cause, remedy });
    false
}

/// A server resumes a session of 0.1.0: it delivers to its endpoints, and sends its packets.
#[test]
fn a_session_of_0_1_0_is_resumed() {
    if !is_root_or_skips("a_session_of_0_1_0_is_resumed") {
        return;
    }
    let mut image = Image::read(V0_1_0);
    let mut events = Events::restart(&mut image);
    let mac = image.mac();
    let (server, mut far) = serve(&image, mac);
    let sessions = report(&server)["sessions"].clone();
    let [session] = &sessions.as_array().unwrap()[..] else { panic!("{sessions}") };
    assert_eq!(session["name"], "image");
    let endpoints = session["endpoints"].as_array().unwrap();
    let receives: Vec<_> = endpoints.iter().map(|one| one["receives"].to_string()).collect();
    assert_eq!(receives.len(), 2, "{receives:?}");
    assert!(receives[0].contains("1000") && receives[1].contains("2000"), "{receives:?}");

    // An unclaimed session receives, behind what it had not received.
    let packet = Flow::v4()
        .macs([2, 0, 0, 0, 0, 9], mac)
        .addresses(SERVER, SESSION)
        .ports(7, 1000)
        .udp(b"after the kill");
    assert!(far.send(&packet, Meta::default()));
    eventually("it arrives", || has(&image.bytes("session-1-receive-pool"), "after the kill"));
    for number in 0..3 {
        assert!(has(&image.bytes("session-1-receive-pool"), &format!("unread {number}")));
    }
    assert!(far.receive().is_none(), "nothing is sent for an application that has not come back");

    // The application claims the session in the words of its version.
    let channel = Channel::new(server.connect().unwrap());
    let resume = Message::Resume(Resume { epoch: 1, session: 1, reserved: 0 });
    channel.send_bytes(&resume.encode_for(OLDEST_VERSION), &[]).unwrap();
    let (bytes, descriptors) = raw::receive(&channel).unwrap();
    let (answer, version) = Message::decode_any(&bytes).unwrap();
    assert_eq!(version, OLDEST_VERSION);
    let Message::Attached(attached) = answer else { panic!("{answer:?}") };
    assert_eq!((attached.session, attached.mac, attached.ipv4), (1, mac, SESSION.octets()));
    let [_doorbell, wake] = &descriptors[..] else { panic!("{descriptors:?}") };
    events.notify(wake);
    for number in 0..3 {
        let mut came = None;
        eventually("a packet that waited", || {
            came = far.receive();
            came.is_some()
        });
        let (frame, _) = came.unwrap();
        assert!(has(&frame, &format!("unsent {number}")), "{frame:02x?}");
    }
    assert!(report(&server)["sessions"][0]["unclaimed"].is_null());
}

/// Files that do not fit are refused, and the server serves.
#[test]
fn a_damaged_image_ends_its_session_alone() {
    if !is_root_or_skips("a_damaged_image_ends_its_session_alone") {
        return;
    }
    let mac = Image::read(V0_1_0).mac();
    let mut damaged: Vec<Image> = Vec::new();
    for (_, part) in OF_A_SESSION {
        // Without a part, and with a part that is too short and not sealed.
        let mut image = Image::read(V0_1_0);
        let name = format!("session-1-{part}");
        image.files.remove(&name);
        damaged.push(image);
        let mut image = Image::read(V0_1_0);
        let mut file = File::from(memfd_create("other", MemfdFlags::CLOEXEC).unwrap());
        file.write_all(b"other").unwrap();
        image.files.insert(name, file.into());
        damaged.push(image);
    }
    for image in damaged {
        let (server, _far) = serve(&image, mac);
        assert!(report(&server)["sessions"].as_array().unwrap().is_empty());
        towpath_client::Session::attach_over(server.connect().unwrap(), &Default::default())
            .unwrap();
    }
}
