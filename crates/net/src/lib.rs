//! UDP and TCP sockets, shaped like those of std::net, over Towpath.
