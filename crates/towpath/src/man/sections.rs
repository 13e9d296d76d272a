//! Parts of the manual that are not in the help: exit statuses, files, the environment.
#![forbid(unsafe_code)]

/// A term and its meaning.
type Term = (&'static str, &'static str);

/// Sections on one subcommand, or on the command itself.
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
const FAILED: Term = ("1", "Failed. One line on standard error gives the reason and the remedy.");
const USAGE: Term = ("2", "Wrong usage: an option, a setting, a configuration file.");

const UNAVAILABLE: Term =
    ("77", "Not available here: no /dev/net/tun, no permission to use it, or no user namespaces.");

const SOCKET_OF_ROOT: Term =
    ("/run/towpath/DEVICE.sock", "The default socket of a server that root starts.");
const SOCKET_OF_USER: Term = (
    "$XDG_RUNTIME_DIR/towpath/DEVICE.sock",
    "The default socket of a server that another user starts.",
);
const SOCKET_IN_TMP: Term =
    ("/tmp/towpath-UID/DEVICE.sock", "The same if XDG_RUNTIME_DIR is not set.");
const TUN: Term = ("/dev/net/tun", "The kernel's device for TAP interfaces; it must exist.");

const RUNTIME: Term = (
    "XDG_RUNTIME_DIR",
    "The directory below which servers of users other than root make their sockets.",
);
const ASKING: &[Term] = &[RUNTIME];
const SOCKETS: &[Term] = &[SOCKET_OF_ROOT, SOCKET_OF_USER, SOCKET_IN_TMP];

impl Sections {
    /// Returns the sections on a subcommand, or on the command itself. A subcommand without
    /// sections of its own has those common to all subcommands.
    pub(super) fn of(subcommand: Option<&str>) -> Sections {
        match subcommand {
            None => Sections::command(),
            Some("serve") => Sections::serve(),
            Some("up") => Sections::up(),
            Some("ls" | "stat" | "set" | "upgrade") => {
                Sections { environment: ASKING, files: SOCKETS, ..Sections::common() }
            }
            Some("capture") => Sections::capture(),
            Some("demo") => Sections::demo(),
            Some("doctor") => Sections {
                status: failed_with("Towpath cannot run here."),
                files: &[TUN],
                ..Sections::common()
            },
            Some("measure" | "detach") => {
                let mut sections = Sections::common();
                sections.status.push(("77", "No permission to attach or detach programs."));
                sections
            }
            Some("policy") => Sections {
                status: failed_with("The policy has no grant for the user of --user."),
                ..Sections::common()
            },
            Some("completions") => Sections {
                see_also: &[("bash", "1"), ("zsh", "1"), ("fish", "1")],
                ..Sections::common()
            },
            Some("man") => Sections { see_also: &[("man", "1")], ..Sections::common() },
            Some(_) => Sections::common(),
        }
    }

    fn common() -> Sections {
        Sections {
            description: &[],
            status: vec![DONE, FAILED, USAGE],
            environment: &[],
            files: &[],
            see_also: &[],
        }
    }

    /// Returns the sections on the command itself.
    fn command() -> Sections {
        let mut sections = Sections::common();
        sections.description = &[
            "A driver server, an ordinary process, owns a network interface. Applications \
             attach to the server over a Unix socket and get memory that they share with \
             it. They send, receive and wait through queues in that memory. The kernel \
             goes on using the same interface.",
            "Each subcommand has a page of its own.",
        ];
        sections.status.push(UNAVAILABLE);
        sections.environment = ASKING;
        sections.files = SOCKETS;
        sections.see_also = &[("ip", "8"), ("tcpdump", "8")];
        sections
    }

    /// Returns the sections on `towpath serve`.
    fn serve() -> Sections {
        let mut sections = Sections::common();
        sections.description = &[
            "A keeper and its server, two processes, serve one device. A second signal, while the \
             server ends, kills it. An interface that the server made ends with the server; one that \
             existed before stays. The server drops its capabilities after it has set up \
             the interface.",
            "Root and the server's user may always attach. Other users may attach if \
             --allow-user or --allow-group names them.",
        ];
        sections.status = vec![
            ("0", "A signal ended the server."),
            FAILED,
            USAGE,
            ("77", "Not available here: no /dev/net/tun, or no permission to use it."),
        ];
        sections.environment = &[
            RUNTIME,
            ("RUST_LOG", "The messages that the server logs; overrides --log."),
            ("NOTIFY_SOCKET", "The socket for READY=1 and STOPPING=1, set by systemd."),
        ];
        sections.files = &[
            SOCKET_OF_ROOT,
            SOCKET_OF_USER,
            SOCKET_IN_TMP,
            ("SOCKET.lock", "A file beside the socket, which the listening server keeps locked."),
            TUN,
        ];
        sections.see_also = &[("ip", "8"), ("systemd.service", "5"), ("capabilities", "7")];
        sections
    }

    /// Returns the sections on `towpath up`.
    fn up() -> Sections {
        let mut sections = Sections::serve();
        sections.description = &[
            "A keeper and a server for each device, processes of their own, serve the devices of the \
             file. A second signal, while the servers end, kills them. The keeper keeps the rights that \
             starting the servers of its devices takes, and no others.",
            "A wrong file ends the command before anything is served.",
        ];
        sections.status[0] = ("0", "A signal ended all servers.");
        sections.files = &[
            ("/etc/towpath/up.toml", "The file that is read by default."),
            SOCKET_OF_ROOT,
            SOCKET_OF_USER,
            SOCKET_IN_TMP,
            TUN,
        ];
        sections
    }

    /// Returns the sections on `towpath capture`.
    fn capture() -> Sections {
        let mut sections = Sections::common();
        sections.description =
            &["A capture attaches as a session with one endpoint. While the disk or the \
             reader is slow, the server drops and counts the packets that do not fit into \
             the session's buffers, and the capture reports their number at its end. The \
             file has mode 0600."];
        sections.status = vec![
            ("0", "A signal, -c, --seconds or the end of the reader ended the capture."),
            ("1", "Failed: no server, no permission, a full disk, or the server ended."),
            USAGE,
        ];
        sections.environment = ASKING;
        sections.files = SOCKETS;
        sections.see_also = &[("tcpdump", "8"), ("tshark", "1")];
        sections
    }

    /// Returns the sections on `towpath demo`.
    fn demo() -> Sections {
        let mut sections = Sections::common();
        sections.description =
            &["The demonstration serves a TAP interface in a network namespace of its own to \
             unprivileged applications, which exchange packets with ordinary kernel \
             sockets. It checks the results and shows them in one table. It does not need \
             root."];
        sections.status = failed_with("A check failed; the end of the output lists which.");
        sections.status.push(UNAVAILABLE);
        sections.files = &[TUN];
        sections
    }
}

/// Returns the exit statuses of a subcommand whose failure has this meaning.
fn failed_with(meaning: &'static str) -> Vec<Term> {
    vec![DONE, ("1", meaning), USAGE]
}
