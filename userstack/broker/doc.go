// SPDX-License-Identifier: Apache-2.0

// Package broker is the protocol between a launcher (package launch, which
// runs an unmodified program and takes over its TCP sockets) and the stack of
// the network namespace (package service): messages over a unix seqpacket
// socket, with descriptors passed by SCM_RIGHTS.
//
// It holds the message codec, the launcher's half (Client) and the service's
// half (Server, Handler, Conn), with the limits of what a session may ask for. It
// does nothing to the sockets that messages bring, and knows nothing of seccomp and
// nothing of SMC.
//
// # A connection that the program opens
//
//	launcher                                service
//	Connect + TCP socket             ->
//	                                 <-     NotCandidate: the launcher lets the system
//	                                        call run natively, end; or
//	                                        the service marks and connects the socket:
//	                                 <-     Failed(errno), end; or
//	                                 <-     Established(no SMC), end: the socket is
//	                                        connected and the program's own; or
//	                                 <-     Established(SMC)
//	(the program's descriptor becomes
//	a stream socketpair's end, kept
//	unwritable)
//	Proceed                          ->
//	                                        CLC handshake
//	                                 <-     Ready(mode) or Failed(errno)
//	Attach + the pair's other end    ->     the service carries bytes between the pair
//	                                        and SMC (or the TCP socket, where declined); or,
//	                                        only where mode is TCP:
//	Release                          ->     the program has its TCP socket back; the
//	                                        service drops its copy, end
//
// or, if the program at the peer is one of the same host, after the socket is
// connected:
//
//	                                <-     Local + an end of a pair for the program
//	Proceed                          ->     the program has it; no process carries bytes
//	                                <-     Closed, when one of the ends is; or
//	Release                          ->     the program keeps its TCP socket, end
//
// # A connection that the program accepts
//
//	Accept + TCP socket              ->
//	                                 <-     NotCandidate: the socket is the program's
//	                                        own, end; or
//	                                 <-     Taken
//	Attach + the pair's other end    ->     (the CLC handshake runs meanwhile)
//	                                 <-     Ready(mode), for the record; or
//	                                 <-     Local + an end of a pair for the program
//
// While a connection lives the launcher may send SetOption and GetOption,
// which act on the TCP socket the service holds; the service may send Broken
// and waits for BrokenDone before it closes its end of the pair unread, so
// that the program sees ECONNRESET and not an end of file. Before an urgent byte
// that follows another the service sends DropUrgent and waits for UrgentDropped. Cancel (the
// program closed the descriptor, or died, before Attach) and the end of the
// seqpacket socket cancel the context of the service's handler. The service
// ends each connection with Closed.
//
// # The end of a session
//
// The launcher keeps a copy of each end that it passed with Attach until Broken
// or Closed, so that the death of the service is no end of file to the program.
// Once the process is dead (Client.Dead), or has marked an end as one that it
// reads no more (MarkUnread), the launcher may write into the pair and make the
// end a reset. So it may at once where the service never gets the end: Attach
// failed, or Closed says that the service had given up before. A service that
// ends a session marks the ends that were still under way.
//
// # Rights
//
// SetOption and GetOption carry the capabilities of the program's thread. The
// Server takes them from a launcher whose SO_PEERCRED, as the service's user
// namespace sees it, is user 0, and of them what that process is permitted in
// this same user namespace; from others it takes none. A launcher in a PID namespace
// that the service cannot see into has none either.
//
// # Limits
//
// Any user may be at the other end of a session. A Server limits the sessions of
// each, and by its Quota the descriptors that come with messages: a Welcome with an
// Errno refuses the session, a NotCandidate with the reason the connection. A
// message whose descriptor was lost (MSG_CTRUNC) is refused likewise, and the
// session goes on. A NotCandidate with an Errno says that the service has not
// looked at an accepted connection, whose peer may be waiting for CLC messages.
//
// Every descriptor that comes has to be a socket: another one ends the session.
// It is not closed in the session's goroutine, as a file system (FUSE) may never
// let that end. The session counts as its user's until it is closed.
//
// # Threads
//
// No call on a descriptor that came over a session holds a thread: see package
// bounded.
//
// A Client, a Server and a Conn are safe for concurrent use. No privileges
// are needed by this package; the service's handler has its own needs.
package broker
