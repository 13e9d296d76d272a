//! The counters of a stack.

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// The counters of a stack since its start. A dropped frame counts once, by its reason.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Counters {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Counters {
            /// Returns each counter's name and value, in the order of this type.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
                [$((stringify!($name), self.$name),)*].into_iter()
            }
        }
    };
}

counters! {
    /// Frames passed to the stack.
    rx_frames,
    /// Bytes of these frames.
    rx_bytes,
    /// Frames that the link accepted.
    tx_frames,
    /// Bytes of these frames.
    tx_bytes,
    /// Frames from this host to itself.
    own_frames,
    /// Dropped: shorter than the headers state, or inconsistent headers.
    rx_malformed,
    /// Dropped: for another station.
    rx_other_station,
    /// Dropped: an ethertype that the stack does not support.
    rx_ethertype,
    /// Dropped: for an IP address that is not ours.
    rx_other_address,
    /// Dropped: the source address is one that no host can have.
    rx_bad_source,
    /// Dropped: wrong IP header checksum.
    rx_ip_checksum,
    /// Dropped: wrong TCP, UDP or ICMP checksum.
    rx_checksum,
    /// Dropped: an IPv6 extension header or option that the stack does not support, an IPv4 source route, or a
    /// malformed IPv4 option.
    rx_extension,
    /// Dropped: an IP protocol that the stack does not support.
    rx_protocol,
    /// Fragments received.
    fragments_received,
    /// Packets reassembled from fragments.
    reassembled,
    /// Incomplete packets dropped: fragments overlapped.
    reassembly_overlap,
    /// Incomplete packets dropped: fragments did not all arrive in time.
    reassembly_timeout,
    /// Incomplete packets dropped: too many of them, or too many bytes.
    reassembly_limit,
    /// Fragments dropped: empty, beyond 64 KiB, or not a multiple of eight.
    reassembly_malformed,
    /// Fragments sent.
    fragments_sent,
    /// ARP packets received.
    arp_received,
    /// ARP packets sent.
    arp_sent,
    /// NDP messages received.
    ndp_received,
    /// NDP messages sent.
    ndp_sent,
    /// IGMP messages received, malformed ones included.
    igmp_received,
    /// IGMP reports sent.
    igmp_sent,
    /// MLD queries received, malformed ones included.
    mld_received,
    /// MLD reports sent.
    mld_sent,
    /// IGMP and MLD queries ignored: too many.
    group_queries_limited,
    /// Claims of another station on one of our addresses.
    address_conflicts,
    /// Neighbours that did not answer.
    neighbour_failures,
    /// Frames dropped that waited for a neighbour: too many, or no answer.
    neighbour_dropped,
    /// Neighbours evicted from the table: too many.
    neighbour_limit,
    /// ICMP messages received.
    icmp_received,
    /// Echo requests answered.
    icmp_echoes,
    /// ICMP errors sent.
    icmp_errors_sent,
    /// ICMP errors or TCP resets not sent: too many this second.
    errors_limited,
    /// ICMP errors ignored: they quote no packet that a socket has in flight, or contradict it.
    icmp_errors_unmatched,
    /// Path MTUs lowered.
    path_mtu_lowered,
    /// Frames dropped: no route to the destination.
    no_route,
    /// Frames dropped: too many wait to be sent.
    transmit_limit,
    /// Frames dropped: they waited for a neighbour, or for room in the link, when the program ended the host.
    unsent_at_end,
    /// Datagrams delivered to sockets.
    udp_received,
    /// Datagrams sent.
    udp_sent,
    /// Datagrams dropped: no socket.
    udp_no_socket,
    /// Datagrams dropped: the socket's receive queue is full.
    udp_queue_full,
    /// TCP segments received; a large packet counts as one.
    tcp_received,
    /// TCP segments sent; a large packet counts as one.
    tcp_sent,
    /// TCP segments sent that had been sent before.
    tcp_retransmitted,
    /// Segments dropped or answered with a reset: no connection, no listener.
    tcp_no_connection,
    /// Resets sent: in answer to segments, and at the abort of a connection.
    tcp_resets_sent,
    /// Resets received that ended a connection.
    tcp_resets_received,
    /// Outgoing connections established.
    tcp_connected,
    /// Incoming connections established.
    tcp_accepted,
    /// SYNs answered with a cookie: too many half-open connections.
    tcp_cookies_sent,
    /// Connections opened by a cookie.
    tcp_cookies_accepted,
    /// Of the segments without a connection, acknowledgements that no cookie explains while cookies
    /// were in use.
    tcp_cookies_refused,
    /// Half-open connections that timed out.
    tcp_half_open_timeout,
    /// SYNs and last segments of handshakes dropped: the accept queue is full.
    tcp_accept_overflow,
    /// SYNs or answers to cookies dropped, or connects refused: too many connections.
    tcp_connection_limit,
    /// Connections given up: the peer did not answer in time.
    tcp_timeouts,
    /// TIME-WAIT entries made.
    tcp_time_wait,
    /// TIME-WAIT entries evicted for newer ones.
    tcp_time_wait_evicted,
    /// TIME-WAIT entries reused by a newer SYN.
    tcp_time_wait_reused,
    /// Segments dropped: too short, port zero, or contradictory flags. A SYN with FIN to a closed port is refused instead
    /// (`tcp_no_connection`).
    tcp_malformed,
    /// Segments that the link refused after reporting room; they are sent later.
    tcp_transmit_refused,
    /// Recoveries begun without a retransmission timeout.
    tcp_fast_recoveries,
    /// Retransmission timeouts.
    tcp_retransmission_timeouts,
    /// Probes of the tail of the sent data (RFC 8985, 7).
    tcp_tail_probes,
    /// Recoveries taken back: nothing was lost.
    tcp_spurious_recoveries,
    /// Path MTUs lowered because full segments vanished without an error.
    tcp_black_holes,
    /// Reductions of the congestion window for the mark of a router (RFC 3168).
    tcp_ecn_reductions,
    /// Segments received ahead of a gap.
    tcp_out_of_order,
    /// Bytes received again.
    tcp_duplicate_bytes,
    /// Segments wholly outside of the window. The stack drops their data; the acknowledgement of an
    /// old one counts.
    tcp_unacceptable,
    /// Segments dropped: an old timestamp (PAWS, RFC 7323, 5).
    tcp_paws_dropped,
    /// Segments ignored: no acknowledgement where each segment has one, no SYN where one is awaited,
    /// data after the peer's FIN, or anything but a reset or a newer SYN in TIME-WAIT.
    tcp_ignored,
    /// Bytes dropped, a FIN as one: beyond the window.
    tcp_excess_bytes,
    /// Resets ignored: outside of the window, or without the acknowledgement of our SYN.
    tcp_resets_ignored,
    /// Acknowledgements sent to challenge a segment which may be forged (RFC 5961).
    tcp_challenges,
    /// Challenges, and answers to segments that do not fit the window, not sent: too many.
    tcp_challenges_limited,
    /// Times that data was not taken or written: the memory for buffers is used up, or too many gaps.
    tcp_buffer_limit,
    /// Received segments handled by a connection, and visits of connections in polls: a measure of
    /// the work.
    tcp_visits,
    /// Timers fired.
    timers_fired,
}
