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
// seqpacket socket before it cancel the context of the service's handler. Closed is the last
// message of the service about each connection.
//
// From Attach on, what the program writes belongs to the service. If the launcher ends then,
// the handler goes on, in the handshake too: the program may have written its data, closed the
// descriptor and ended. [Conn.LauncherGone] tells the handler, which resets the connection if
// the program still has the other end.
//
// # The end of a session
//
// The launcher keeps a copy of each end that it passed with Attach until Broken or Closed.
// So the program does not see an end of file when the service dies. The launcher may write
// into the pair, which turns the end of the connection into a reset, when the process of
// the service has ended (Client.Dead), or when the service has marked the end (MarkUnread)
// because it does not read from it any more. It may do so at once if the service does not
// get the end: Attach failed, or Closed reports that the service gave up before. A service
// that ends a session marks the ends that it receives afterwards.
//
// A message for which the kernel has no memory (ENOBUFS, ENOMEM) is sent or received again.
// If this lasts for more than five seconds, the session ends with ErrNoMemory.
//
// # Another stack
//
// HandedOver tells that another process has become the stack, which listens at the same
// place. The launcher opens a session with it, passes its listening sockets and all new
// connections there, and ends the old session when its last connection has ended. Until
// then the old service serves everything that comes over the old session.
//
// # Rights
//
// SetOption and GetOption carry the capabilities of the program's thread. The Server uses
// them only if the launcher's SO_PEERCRED is user 0 in the user namespace of the service,
// and only those that the launcher's process is permitted in the same user namespace. For
// other launchers, and for launchers in a PID namespace that the service cannot see, it
// uses none.
//
// # Limits
//
// Any user may be at the other end of a session. A Server limits the sessions of each user
// and, by its Quota, the descriptors that come with messages. A Welcome with an Errno
// refuses a session. A NotCandidate with a reason refuses a connection. If the descriptor
// of a message did not arrive (MSG_CTRUNC), the Server refuses the request in the same way,
// and the session continues. A NotCandidate with an Errno means that the service has not
// looked at an accepted connection, whose peer may be waiting for CLC messages.
//
// The end that comes with Attach, and the second one of Detour, must be one of a pair that the
// process of the launcher has made with socketpair(): see ownPair. Otherwise the connection ends.
//
// Every descriptor that comes must be a socket. Any other descriptor ends the session. Such
// a descriptor is not closed in the goroutine of the session, because a file system (FUSE)
// may delay the close without limit. The session counts for its user until the descriptor
// is closed.
//
// # Threads
//
// No call on a descriptor that came over a session holds a thread: see package
// bounded.
//
// A Client, a Server and a Conn are safe for concurrent use. This package needs no
// privileges, but the handler of the service may.
package broker
