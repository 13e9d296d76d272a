//! ARP, NDP, ICMP, UDP and TCP without input or output.
