//! The command as an operator uses it: servers started, inspected, captured from, bridged, ended
//! and killed, in network namespaces of their own, as root and as an ordinary user.

mod administrators;
mod apertures;
mod beside_the_kernel;
mod blocking;
mod bursts;
mod capturing;
mod completing;
mod containers;
mod counters;
mod devices;
mod ending;
mod finding;
mod hosts;
mod interface_changes;
mod keeping;
mod lanes;
mod manual;
mod measuring;
mod multicast;
mod networks;
mod offloads;
mod own_queues;
mod policies;
mod promiscuous;
mod refusals;
mod refused_calls;
mod replacing;
mod restarting;
mod resuming;
mod running;
mod serving;
mod sharing;
mod slow_closes;
mod upgrading;
