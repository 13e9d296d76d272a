//! Parts of the manual that the help has no room for: exit statuses, files, the environment.
#![forbid(unsafe_code)]

/// A term and its meaning.
type Term = (&'static str, &'static str);

/// Sections on one verb, or on the command itself.
pub(super) struct Sections {
    /// Paragraphs after the help's text.
    pub(super) description: &'static [&'static str],
    pub(super) status: Vec<Term>,
    pub(super) environment: &'static [Term],
    pub(super) files: &'static [Term],
    /// Pages of others, with their section of the manual.
    pub(super) see_also: &'static [Term],
}

const DONE: Term = ("0", "Done.");
const FAILED: Term =
    ("1", "Tried, and failed. Standard error says in one line why, and what to do.");
const USAGE: Term = ("2", "Wrong usage: an option, a setting, a configuration file.");

const SOCKET_OF_ROOT: Term =
    ("/run/towpath/DEVICE.sock", "Where a server of root listens, if nothing else is said.");
const SOCKET_OF_USER: Term = (
    "$XDG_RUNTIME_DIR/towpath/DEVICE.sock",
    "Where a server of another user listens, if nothing else is said.",
);
const SOCKET_IN_TMP: Term =
    ("/tmp/towpath-UID/DEVICE.sock", "The same where XDG_RUNTIME_DIR is not set.");
const TUN: Term = ("/dev/net/tun", "Where TAP interfaces come from; must be there.");

const RUNTIME: Term =
    ("XDG_RUNTIME_DIR", "Where servers of users other than root have their sockets.");
const ASKING: &[Term] = &[RUNTIME];
const SOCKETS: &[Term] = &[SOCKET_OF_ROOT, SOCKET_OF_USER, SOCKET_IN_TMP];

impl Sections {
    /// Returns the sections on a verb, or on the command itself. A verb that is not named here has
    /// the sections common to all.
    pub(super) fn of(verb: Option<&str>) -> Sections {
        let failed = |meaning| vec![DONE, ("1", meaning), USAGE];
        let mut sections = Sections {
            description: &[],
            status: vec![DONE, FAILED, USAGE],
            environment: &[],
            files: &[],
            see_also: &[],
        };
        match verb {
            None => {
                sections.description = &[
                    "A driver server, an ordinary process, owns a network interface. Applications \
                     attach to it over a Unix socket, get memory shared with it, and send, receive \
                     and wait through queues in that memory. The kernel goes on using the same \
                     interface beside it.",
                    "Each verb has a page of its own.",
                ];
                sections.status.push(UNAVAILABLE);
                sections.environment = ASKING;
                sections.files = SOCKETS;
                sections.see_also = &[("ip", "8"), ("tcpdump", "8")];
            }
            Some("serve") => {
                sections.description = &[
                    "One process serves one device. A second signal while it ends kills it. An \
                     interface that it made goes with it, one that was there before stays. The \
                     server gives up its capabilities when interface and addresses are there.",
                    "Root and the server's user may always attach, others when --allow-user or \
                     --allow-group names them.",
                ];
                sections.status = vec![
                    ("0", "Ended as it was asked to, by a signal."),
                    FAILED,
                    USAGE,
                    ("77", "Not available here: no /dev/net/tun, or no right to it."),
                ];
                sections.environment = &[
                    RUNTIME,
                    ("RUST_LOG", "What is logged; overrules --log."),
                    ("NOTIFY_SOCKET", "Where systemd hears READY=1 and STOPPING=1."),
                ];
                sections.files = &[
                    SOCKET_OF_ROOT,
                    SOCKET_OF_USER,
                    SOCKET_IN_TMP,
                    (
                        "SOCKET.lock",
                        "Beside the socket: held by the one server that listens there.",
                    ),
                    TUN,
                ];
                sections.see_also = &[("ip", "8"), ("systemd.service", "5"), ("capabilities", "7")];
            }
            Some("ls" | "stat" | "set") => {
                sections.environment = ASKING;
                sections.files = SOCKETS;
            }
            Some("capture") => {
                sections.description = &[
                    "A capture is an endpoint of its own, and a session like any other. Packets \
                     that do not fit while the disk or the reader is slow are dropped, counted, and \
                     told at its end. The file has mode 0600.",
                ];
                sections.status = vec![
                    ("0", "Ended as it was asked to, or because its reader went."),
                    ("1", "Failed: no server, no right, a full disk, or the server has ended."),
                    USAGE,
                ];
                sections.environment = ASKING;
                sections.files = SOCKETS;
                sections.see_also = &[("tcpdump", "8"), ("tshark", "1")];
            }
            Some("demo") => {
                sections.description =
                    &["Serves a TAP interface in a network namespace of its own to unprivileged \
                     applications, which talk with ordinary kernel sockets. What came out is \
                     checked and shown in one table. Root is not needed."];
                sections.status = failed("A check failed; the end of the output lists which.");
                sections.status.push(UNAVAILABLE);
                sections.files = &[TUN];
            }
            Some("doctor") => {
                sections.status = failed("No way was found to run Towpath here.");
                sections.files = &[TUN];
            }
            Some("completions") => {
                sections.see_also = &[("bash", "1"), ("zsh", "1"), ("fish", "1")];
            }
            Some("man") => sections.see_also = &[("man", "1")],
            Some(_) => {}
        }
        sections
    }
}

const UNAVAILABLE: Term =
    ("77", "Not available here: no /dev/net/tun, no right to it, or no user namespaces.");
