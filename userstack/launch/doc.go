// SPDX-License-Identifier: Apache-2.0

//go:build linux

// Package launch runs an unmodified program and takes over its TCP sockets, so
// that its connections use SMC if the peer has SMC too. It is the
// implementation of smcr run.
//
// # How
//
// Run starts its own executable again as a stub (see MaybeChild), which sets
// no_new_privs, installs a seccomp filter whose listener goes to the launcher,
// and executes the program. With Become, the stub is the process itself that was
// started, so that it is the program for who has started it: see front.go. The filter allows nearly all calls. Calls that make
// connections (connect, bind, listen, accept) and calls that show a difference
// between a socketpair and a TCP socket (getpeername, getsockname, some socket
// options) stop the calling thread until the launcher has answered: it lets the
// kernel do the call (CONTINUE), answers in place of the kernel, or places a
// descriptor in the program.
//
// The launcher passes the TCP socket of a connection that may use SMC to the
// stack service with package broker. In the program, one end of a unix stream
// socketpair replaces the socket under the same number. The service carries the
// bytes through it. read, write, poll, sendfile, dup, fork, exec, shutdown,
// close and passing the descriptor on therefore work natively. Every connection
// whose peer does not speak SMC keeps its TCP socket, with nothing in between.
//
// The package does not restrict the program: if the program changes its memory
// while the launcher reads it, it gets plain TCP or an error. But the launcher,
// which may be root, gives the program no rights (rights.go): it sets and reads
// options with the effective capabilities of the thread that asks, and with
// none if that thread is in another user namespace. It makes sockets and sets
// owners of signals as the program's user. See docs/security.md.
//
// # What the program can notice
//
//   - A socket that has several descriptors when connect() is called, in one or
//     more processes of the program, stays native: all its descriptors have to
//     show the same connection (copies.go). A descriptor that is in the queue
//     of a unix socket then, or in a process outside of the launch, is not
//     found: it stays the TCP socket. If another thread duplicates the
//     socket while connect() waits, the launcher connects once more, without SMC.
//   - io_uring makes connections without system calls. The launcher answers
//     io_uring_setup with ENOSYS, so that programs use epoll instead. If
//     Config.AllowIOUring is set, io_uring works, and its connections are
//     native TCP.
//   - TCP Fast Open on the client side fails with EOPNOTSUPP, and Multipath TCP
//     with EPROTONOSUPPORT. Programs then use ordinary TCP.
//   - SO_SNDBUF and SO_RCVBUF that are set after connect() change the
//     socketpair.
//   - SO_KEEPALIVE, TCP_KEEPIDLE, TCP_KEEPINTVL, TCP_KEEPCNT and TCP_NODELAY
//     are set a short time after setsockopt() has returned. If an eBPF program
//     of the cgroup refuses one, it is not set, but the program does not see
//     the error.
//   - SO_ZEROCOPY and TCP_ULP (kernel TLS) are refused. A socket on which
//     SO_ZEROCOPY is set before connect() stays native.
//   - TCP_REPAIR is refused, also to root. On a socket of a network namespace
//     that is not the launcher's, all options except common ones are refused.
//   - When a program has made a Landlock ruleset for networks, new connections
//     of all programs of the launcher are native.
//   - sendmsg() and sendmmsg() with an address on a connected socket fail with
//     EISCONN. sendto() with an address works, but the launcher does it
//     (sendto.go), which takes longer. It also sees sendto() of UDP sockets,
//     which the kernel then does.
//   - If the peer resets the connection after the program's own
//     shutdown(SHUT_WR), read() returns an end of file: the byte that would
//     cause ECONNRESET cannot be written into the socketpair any more.
//     getsockopt(SO_ERROR) returns the error.
//   - A signal whose handler has no SA_RESTART can end any trapped call with
//     EINTR while it waits for the launcher, also calls that never wait
//     without the launcher, such as getsockname(). After other signals, the
//     kernel repeats the call.
//   - The kernel can drop an answer that meets a signal, and nobody sees it.
//     If signals interrupt a program's calls, what must not be lost is answered
//     with care (notify.signals, notif.replyOnce). Then accept() loses nothing,
//     and connect(), SO_ERROR and sendto() with an address only if a signal
//     comes within the same few microseconds.
//   - On a connection to a program of the same host, poll() reports POLLHUP
//     as soon as the peer has closed, and the peer's writes fail after
//     shutdown(SHUT_RD). If a process has the descriptor twice, SO_LINGER and
//     urgent data work as on a socketpair: after SO_LINGER with 0 seconds the
//     peer reads an end of file, and an urgent byte becomes an ordinary byte
//     when another one follows.
//   - set-user-ID programs gain no privileges (no_new_privs).
//   - If the stack is killed, its connections are reset. For this the launcher
//     needs one descriptor for each connection. It uses at most half of what
//     RLIMIT_NOFILE allows. Further connections, and connections that the
//     program has passed to processes that are not its descendants, end with
//     an end of file instead.
//   - If the stack ends during a connect(), the launcher connects once more: the
//     server may see one connection that is reset at once, and then another.
//   - If the launcher itself carries the bytes of a connection, to a peer without
//     SMC, it ends when the peer has taken the last bytes of the program, or has
//     taken none for 10 s.
//   - If a server's SYN-ACK announces SMC, and the server does not speak it, the launcher
//     connects once more: the server sees a connection with a message of SMC, and then
//     another.
//   - If the launcher is killed, the trapped calls of the program fail with
//     ENOSYS, and the service resets the SMC connections that the program still
//     has. What the program had written and closed is sent, unless the launcher
//     carried it itself, or was killed between the success of a connect() and the
//     message that passes the connection to the service.
//   - 32-bit programs on a 64-bit kernel are not trapped: their connections are
//     native.
//
// # A server that accepts late
//
// Connections that wait for accept() are taken early, so that the handshakes of
// SMC go on (late.go, early.go). A connection of the launcher stands for them
// in the queue of the listening socket (placeholder.go), which ss shows.
//
// With TCP_DEFER_ACCEPT, connections of SMC clients are held back until the service has
// brought their first data (deferred.go).
//
// # When the service ends
//
// When the session ends, connections are native until Config.Redial finds the
// next one, in which the listening sockets are marked again. The launcher sends a
// CLC DECLINE to peers to which the ended service had announced SMC (plain.go).
//
// # The kernel's SMC
//
// With Config.Kernel the filter stops socket() for TCP and Multipath TCP
// sockets, and Landlock's rulesets; the launcher makes an SMC socket and places
// it in the program instead, in the program's network namespace and with its
// user as owner. The launcher has nothing to do with the connection after that. A
// program can notice the following: SO_DOMAIN returns AF_SMC (if Kernel.Inet is set,
// SO_PROTOCOL returns IPPROTO_SMC instead). Sockets that io_uring makes are TCP. In
// a network namespace that the launcher is not allowed to enter, all sockets are
// TCP. If the launcher is killed, the program's connections continue, but socket()
// fails with ENOSYS for new TCP sockets. AF_SMC is the default because IPPROTO_SMC
// only exists since Linux 6.11.
//
// # Rules
//
// One goroutine receives notifications, and no notification blocks it: it only
// reads the link of a descriptor in /proc, for which the kernel asks no file
// system. Everything that may wait runs in its own goroutine, for
// which Run waits. conn and listener are guarded by their own mutexes; the lock
// order is listener, conn, registry.
//
// A program can delay some actions of the launcher without limit: reading its
// memory (userfaultfd, a FUSE file), closing a copy of its descriptor (a FUSE
// file), or asking one of its epoll instances or sockets, whose lock another of
// its calls holds. Such an action is a look (looks.go): it has its own
// goroutine, the number of these is limited for each process, and Run waits for
// them at most a second after the program's end. A connect() that has to wait
// too long for its look is done by the kernel. No look that reads or writes
// memory is made with conn.mu held, because processes share connections. Only
// sockets and epoll instances are copied into the launcher, after their links
// were checked.
//
// One case has no limit yet: after a connection has begun, a program that holds
// the lock of a socket (some calls hold it while they copy from memory that is
// not there) can block one thread of the launcher for each such connection. Other
// programs of the launcher, which may be those of other users, go on: no call that
// may wait so is a raw system call, which would stop all goroutines
// (bounded.Sockname).
//
// The launcher needs no privileges. It needs Linux 5.14 or newer
// (SECCOMP_ADDFD_FLAG_SEND), and permission to trace the program: its children (the
// default, also under Yama), or with Become processes of the same user.
package launch
