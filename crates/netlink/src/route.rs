//! Routes (`RTM_NEWROUTE` and its kin, `linux/rtnetlink.h`).
#![forbid(unsafe_code)]

use std::net::IpAddr;

use rustix::io::Errno;

use crate::error::Error;
use crate::message::NLM_F_REPLACE;
use crate::message::{
    Attributes, Malformed, NLM_F_ACK, NLM_F_CREATE, NLM_F_EXCL, Request, u8_at, u16_at, u32_at,
};
use crate::prefix::{self, Prefix};
use crate::socket::Netlink;

pub(crate) const RTM_NEWROUTE: u16 = 24;
pub(crate) const RTM_DELROUTE: u16 = 25;
const RTM_GETROUTE: u16 = 26;

const RTA_DST: u16 = 1;
const RTA_SRC: u16 = 2;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RTA_PRIORITY: u16 = 6;
const RTA_PREFSRC: u16 = 7;
const RTA_TABLE: u16 = 15;
const RTA_VIA: u16 = 18;

const RTN_UNICAST: u8 = 1;
const RTPROT_STATIC: u8 = 4;
const RT_SCOPE_UNIVERSE: u8 = 0;
const RT_SCOPE_LINK: u8 = 253;
const RT_SCOPE_NOWHERE: u8 = 255;

/// `struct rtmsg`: family, two prefix lengths, service, table, protocol, scope, type, flags.
const RTMSG_BYTES: usize = 12;

/// A unicast route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Route {
    /// The destination.
    pub destination: Prefix,
    /// The gateway; `None` for a direct route to the destination.
    pub gateway: Option<IpAddr>,
    /// The interface, by its number; that of the gateway if `None`.
    pub link: Option<u32>,
    /// The source address of packets from here; the kernel's choice if `None`.
    pub source: Option<IpAddr>,
    /// The metric, of which the lowest wins; the kernel's default if `None`.
    pub metric: Option<u32>,
    /// The number of its table.
    pub table: u32,
}

impl Route {
    /// The number of the table that `ip route` shows.
    pub const MAIN_TABLE: u32 = 254;

    /// Creates a route to a network, without host bits, in the main table. The route needs at least
    /// one of [`via`](Route::via) and [`on`](Route::on).
    #[must_use]
    pub fn to(destination: Prefix) -> Route {
        Route {
            destination: destination.network(),
            gateway: None,
            link: None,
            source: None,
            metric: None,
            table: Route::MAIN_TABLE,
        }
    }

    /// Sets the gateway.
    #[must_use]
    pub fn via(self, gateway: IpAddr) -> Route {
        Route { gateway: Some(gateway), ..self }
    }

    /// Sets the interface, by its number.
    #[must_use]
    pub fn on(self, index: u32) -> Route {
        Route { link: Some(index), ..self }
    }
}

/// The kernel's choice for packets to one destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RouteTo {
    /// The interface, by its number.
    pub link: u32,
    /// The gateway, which may be of the other family (RFC 5549); `None` for a destination on the
    /// link.
    pub gateway: Option<IpAddr>,
}

impl Netlink {
    /// Returns the kernel's choice for packets from an address of this host to a destination, by
    /// all rules and tables of the namespace; `None` if no unicast route leads there. The
    /// destination may be one of the host's own addresses, to which no unicast route leads.
    ///
    /// # Errors
    /// Any [`Error`].
    pub fn route_to(
        &mut self,
        destination: IpAddr,
        source: Option<IpAddr>,
    ) -> Result<Option<RouteTo>, Error> {
        let host = Prefix::host(destination);
        let mut part = [0; RTMSG_BYTES];
        (part[0], part[1]) = (host.family(), host.len_bits());
        let mut request = Request::new(RTM_GETROUTE, NLM_F_ACK);
        if let Some(source) = source {
            part[2] = Prefix::host(source).len_bits();
        }
        request.fixed(&part);
        request.attribute(RTA_DST, &prefix::octets(&destination));
        if let Some(source) = source {
            request.attribute(RTA_SRC, &prefix::octets(&source));
        }
        let mut found = None;
        let subject = destination.to_string();
        let answer = self.ask("look up the route to", &subject, request, &mut |message| {
            if message.kind == RTM_NEWROUTE {
                found = read_route_to(message.body)?;
            }
            Ok(())
        });
        match answer {
            Ok(()) => Ok(found),
            Err(error) => match error.errno() {
                // No route, an "unreachable" or "prohibit" route, a "blackhole", and a source that
                // the host does not have.
                Some(
                    Errno::NETUNREACH
                    | Errno::HOSTUNREACH
                    | Errno::ACCESS
                    | Errno::INVAL
                    | Errno::ADDRNOTAVAIL,
                ) => Ok(None),
                _ => Err(error),
            },
        }
    }

    /// Returns all unicast routes of the namespace, of all tables, IPv4 and IPv6.
    ///
    /// # Errors
    /// Any [`Error`].
    pub fn routes(&mut self) -> Result<Vec<Route>, Error> {
        self.dump(
            "list the routes",
            RTM_GETROUTE,
            RTM_NEWROUTE,
            |request| request.fixed(&[0; RTMSG_BYTES]),
            read_route,
        )
    }

    /// Adds a route.
    ///
    /// # Errors
    /// Any [`Error`]; `EEXIST` if the route exists, `ENETUNREACH` if no route leads to the gateway.
    pub fn add_route(&mut self, route: &Route) -> Result<(), Error> {
        let flags = NLM_F_CREATE | NLM_F_EXCL;
        self.change_route("add route", route, RTM_NEWROUTE, flags)
    }

    /// Adds a route, or replaces one to the same destination.
    ///
    /// # Errors
    /// Any [`Error`].
    pub fn replace_route(&mut self, route: &Route) -> Result<(), Error> {
        let flags = NLM_F_CREATE | NLM_F_REPLACE;
        self.change_route("replace route", route, RTM_NEWROUTE, flags)
    }

    /// Deletes the first route that matches all given fields.
    ///
    /// # Errors
    /// Any [`Error`]; `ESRCH` if no route matches.
    pub fn delete_route(&mut self, route: &Route) -> Result<(), Error> {
        self.change_route("delete route", route, RTM_DELROUTE, 0)
    }

    fn change_route(
        &mut self,
        operation: &'static str,
        route: &Route,
        kind: u16,
        flags: u16,
    ) -> Result<(), Error> {
        let subject = match (route.gateway, route.link) {
            (Some(gateway), Some(link)) => {
                format!("{} via {gateway} on link {link}", route.destination)
            }
            (Some(gateway), None) => format!("{} via {gateway}", route.destination),
            (None, Some(link)) => format!("{} on link {link}", route.destination),
            (None, None) => route.destination.to_string(),
        };
        let deleted = kind == RTM_DELROUTE;
        self.carry_out(operation, &subject, kind, flags, |request| {
            write_route(request, route, deleted);
        })
    }
}

fn write_route(request: &mut Request, route: &Route, deleted: bool) {
    let destination = route.destination.network();
    let mut part = [0; RTMSG_BYTES];
    part[0] = destination.family();
    part[1] = destination.len_bits();
    // A table above 255 is only in the attribute.
    part[4] = u8::try_from(route.table).unwrap_or(0);
    if deleted {
        // Matches any protocol, type and scope.
        part[6] = RT_SCOPE_NOWHERE;
    } else {
        part[5] = RTPROT_STATIC;
        part[6] = if route.gateway.is_some() { RT_SCOPE_UNIVERSE } else { RT_SCOPE_LINK };
        part[7] = RTN_UNICAST;
    }
    request.fixed(&part);
    request.attribute_u32(RTA_TABLE, route.table);
    if destination.len_bits() > 0 {
        request.attribute(RTA_DST, &prefix::octets(&destination.address()));
    }
    if let Some(gateway) = route.gateway {
        request.attribute(RTA_GATEWAY, &prefix::octets(&gateway));
    }
    if let Some(link) = route.link {
        request.attribute_u32(RTA_OIF, link);
    }
    if let Some(source) = route.source {
        request.attribute(RTA_PREFSRC, &prefix::octets(&source));
    }
    if let Some(metric) = route.metric {
        request.attribute_u32(RTA_PRIORITY, metric);
    }
}

/// Reads the kernel's choice from an `RTM_NEWROUTE` message; `None` if it is no unicast route.
pub(crate) fn read_route_to(body: &[u8]) -> Result<Option<RouteTo>, Malformed> {
    let kind = u8_at(body, 7).ok_or(Malformed("a route without its fixed part"))?;
    if kind != RTN_UNICAST {
        return Ok(None);
    }
    let (mut link, mut gateway) = (None, None);
    for attribute in Attributes::after(body, RTMSG_BYTES)? {
        let (kind, value) = attribute?;
        match kind {
            RTA_OIF => link = u32_at(value, 0),
            RTA_GATEWAY => gateway = Some(prefix::read(value)?),
            // `struct rtvia`: family, address.
            RTA_VIA if u16_at(value, 0) == Some(libc::AF_INET6 as u16) => {
                gateway = Some(prefix::read(&value[2..])?);
            }
            _ => {}
        }
    }
    Ok(link.map(|link| RouteTo { link, gateway }))
}

/// Reads a route from an `RTM_NEWROUTE` message; `None` if it is not unicast IPv4 or IPv6.
pub(crate) fn read_route(body: &[u8]) -> Result<Option<Route>, Malformed> {
    let (Some(family), Some(len_bits), Some(table), Some(kind)) =
        (u8_at(body, 0), u8_at(body, 1), u8_at(body, 4), u8_at(body, 7))
    else {
        return Err(Malformed("a route without its fixed part"));
    };
    let everywhere = match i32::from(family) {
        libc::AF_INET => Prefix::DEFAULT_V4,
        libc::AF_INET6 => Prefix::DEFAULT_V6,
        _ => return Ok(None),
    };
    if kind != RTN_UNICAST {
        return Ok(None);
    }
    let mut route = Route { table: u32::from(table), ..Route::to(everywhere) };
    let mut destination = everywhere.address();
    for attribute in Attributes::after(body, RTMSG_BYTES)? {
        let (kind, value) = attribute?;
        match kind {
            RTA_DST => destination = prefix::read(value)?,
            RTA_GATEWAY => route.gateway = Some(prefix::read(value)?),
            RTA_PREFSRC => route.source = Some(prefix::read(value)?),
            RTA_OIF => route.link = u32_at(value, 0),
            RTA_PRIORITY => route.metric = u32_at(value, 0),
            RTA_TABLE => route.table = u32_at(value, 0).unwrap_or(route.table),
            _ => {}
        }
    }
    route.destination =
        Prefix::new(destination, len_bits).map_err(|_| Malformed("a prefix too long"))?;
    Ok(Some(route))
}
