//! The parts in the network's operation that a session may play.

use std::fmt;

/// A part in the network's operation. Other stations believe a station that plays it, whatever address its packets come
/// from, so a session needs a grant for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Role {
    /// A router: router advertisements, redirects, and the protocols among routers.
    Router,
    /// A server or relay agent of DHCP.
    DhcpServer,
    /// A querier of multicast groups (IGMP, MLD).
    Querier,
    /// A switch: frames that bridges exchange among themselves, and with the stations at their ports.
    Switch,
    /// A clock of the Precision Time Protocol (IEEE 1588).
    Clock,
    /// An end of a tunnel: packets and frames within packets, and PPPoE.
    Tunnel,
    /// Any other ethertype, IP protocol, or type of an ICMP message.
    OtherProtocols,
}

impl Role {
    /// All roles.
    pub const ALL: [Role; 7] = [
        Role::Router,
        Role::DhcpServer,
        Role::Querier,
        Role::Switch,
        Role::Clock,
        Role::Tunnel,
        Role::OtherProtocols,
    ];

    /// Returns the role's name in a policy file.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Role::Router => "router",
            Role::DhcpServer => "dhcp-server",
            Role::Querier => "querier",
            Role::Switch => "switch",
            Role::Clock => "clock",
            Role::Tunnel => "tunnel",
            Role::OtherProtocols => "other-protocols",
        }
    }

    /// Returns the role with a name.
    ///
    /// ```
    /// use towpath_engine::roles::Role;
    ///
    /// assert_eq!(Role::named("dhcp-server"), Some(Role::DhcpServer));
    /// assert_eq!(Role::named("king"), None);
    /// ```
    #[must_use]
    pub fn named(name: &str) -> Option<Role> {
        Role::ALL.into_iter().find(|role| role.name() == name)
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A set of roles.
///
/// ```
/// use towpath_engine::roles::{Role, Roles};
///
/// let roles: Roles = [Role::Router, Role::Querier].into_iter().collect();
/// assert!(roles.has(Role::Querier) && !roles.has(Role::Switch));
/// assert!(Roles::ALL.has(Role::Switch));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Roles(u8);

impl Roles {
    /// No role.
    pub const NONE: Roles = Roles(0);
    /// All roles.
    pub const ALL: Roles = Roles((1 << Role::ALL.len()) - 1);

    /// Returns `true` if another set has all roles of this one.
    #[must_use]
    pub const fn are_within(self, other: Roles) -> bool {
        self.0 & !other.0 == 0
    }

    /// Returns `true` if the set has a role.
    #[must_use]
    pub const fn has(self, role: Role) -> bool {
        self.0 & 1 << role as u8 != 0
    }
}

impl FromIterator<Role> for Roles {
    fn from_iter<I: IntoIterator<Item = Role>>(roles: I) -> Roles {
        Roles(roles.into_iter().fold(0, |all, role| all | 1 << role as u8))
    }
}
