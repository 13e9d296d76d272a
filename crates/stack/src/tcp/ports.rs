//! The use of local ports, for a host whose ports belong to another host that must learn when a
//! port is free again.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;

/// A local port of one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct LocalPort {
    is_ipv4: bool,
    port: u16,
}

/// Counts the listeners, connections and TIME-WAIT entries of each local port.
#[derive(Debug, Default)]
pub(super) struct LocalPorts {
    /// `None` unless the host reports unused ports.
    uses: Option<HashMap<LocalPort, u32>>,
    unused: VecDeque<LocalPort>,
}

impl LocalPorts {
    pub(super) fn new(reports: bool) -> LocalPorts {
        LocalPorts { uses: reports.then(HashMap::new), unused: VecDeque::new() }
    }

    pub(super) fn add(&mut self, local: SocketAddr) {
        if let Some(uses) = &mut self.uses {
            *uses.entry(of(local)).or_default() += 1;
        }
    }

    pub(super) fn remove(&mut self, local: SocketAddr) {
        let Some(uses) = &mut self.uses else { return };
        let port = of(local);
        let Some(count) = uses.get_mut(&port) else { return };
        *count -= 1;
        if *count == 0 {
            uses.remove(&port);
            self.unused.push_back(port);
        }
    }

    /// Returns the next port that was used and is not any more, with `true` for IPv4.
    pub(super) fn next_unused(&mut self) -> Option<(bool, u16)> {
        let uses = self.uses.as_ref()?;
        while let Some(port) = self.unused.pop_front() {
            // A new connection may use the port again.
            if !uses.contains_key(&port) {
                return Some((port.is_ipv4, port.port));
            }
        }
        None
    }
}

fn of(local: SocketAddr) -> LocalPort {
    LocalPort { is_ipv4: local.is_ipv4(), port: local.port() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn a_port_is_reported_once_when_its_last_use_ends() {
        let mut ports = LocalPorts::new(true);
        let (listener, connection) = (at("0.0.0.0:80"), at("192.0.2.1:80"));
        ports.add(listener);
        ports.add(connection);
        ports.add(at("[::]:80"));
        ports.remove(listener);
        assert_eq!(ports.next_unused(), None);
        ports.remove(connection);
        assert_eq!(ports.next_unused(), Some((true, 80)));
        assert_eq!(ports.next_unused(), None);
        ports.remove(at("[::]:80"));
        assert_eq!(ports.next_unused(), Some((false, 80)));
        // In use again before the report.
        ports.add(listener);
        ports.remove(listener);
        ports.add(listener);
        assert_eq!(ports.next_unused(), None);
        ports.remove(listener);
        assert_eq!(ports.next_unused(), Some((true, 80)));
    }

    #[test]
    fn without_reports_nothing_is_kept() {
        let mut ports = LocalPorts::new(false);
        ports.add(at("0.0.0.0:80"));
        ports.remove(at("0.0.0.0:80"));
        assert_eq!(ports.next_unused(), None);
        assert!(ports.unused.is_empty());
    }
}
