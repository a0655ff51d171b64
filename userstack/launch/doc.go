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
// and executes the program. The filter allows nearly all calls. Calls that make
// connections (connect, listen, accept) and calls that show a difference
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
//   - A socket duplicated before connect() keeps the TCP socket in the
//     duplicate.
//   - io_uring makes connections without system calls. io_uring_setup is
//     answered with ENOSYS, so that programs fall back to epoll, unless
//     Config.AllowIOUring is set; its connections are then native TCP.
//   - TCP Fast Open on the client side is answered with EOPNOTSUPP, Multipath
//     TCP with EPROTONOSUPPORT; programs fall back to what they name.
//   - SO_SNDBUF and SO_RCVBUF set after connect() act on the socketpair.
//   - SO_KEEPALIVE, TCP_NODELAY and the three numbers of keepalive are set a
//     moment after setsockopt() has returned. An eBPF program of the cgroup
//     that refuses one keeps it from being set, but the program does not see
//     the error. SO_ZEROCOPY and TCP_ULP (kernel TLS) are refused on it; a
//     socket with SO_ZEROCOPY set before connect() stays native.
//   - TCP_REPAIR is refused to root, too. All but common options are refused on
//     a socket of another network namespace than the launcher's.
//   - Once a program makes a Landlock ruleset for networks, new connections of
//     all programs of the launcher are native.
//   - sendto() with an address on a connected socket fails with EISCONN.
//   - A reset by the peer after the program's own shutdown(SHUT_WR) is read as
//     an end of file: the byte that makes it ECONNRESET can no longer be put
//     into the socketpair. getsockopt(SO_ERROR) tells.
//   - A signal whose handler has no SA_RESTART can end any trapped call with
//     EINTR while it waits for the launcher, also those that never wait
//     otherwise, such as getsockname(). Others are made again by the kernel.
//   - On a connection to a program of the same host, poll() tells of a hang-up
//     as soon as the peer has closed, and the peer's writes fail after
//     shutdown(SHUT_RD). A process that has the descriptor twice, and sets
//     SO_LINGER to 0 or sends urgent data, gets what a socketpair does: an end
//     of file at the peer, and urgent bytes that become ordinary ones when
//     others follow.
//   - set-user-ID programs gain no privileges (no_new_privs).
//   - A stack that is killed resets its connections, like a peer that dies. The
//     launcher needs one descriptor for each connection for that and takes at
//     most half of what RLIMIT_NOFILE allows it; connections beyond, and
//     connections that the program has passed on to processes that are not its
//     descendants, end in an end of file then.
//   - A connect() that is under way when the stack ends is made once more: the
//     server may see a connection that is reset at once, and then this one.
//   - The launcher ends up to 10 s after the program where it carries bytes
//     itself, for a peer without SMC, and that peer is slow to read the last.
//   - A launcher that is killed leaves a program whose trapped calls fail with
//     ENOSYS; the service resets its SMC connections.
//   - 32-bit programs on a 64-bit kernel are not trapped at all.
//
// # A server that accepts late
//
// Connections that wait for accept() are taken early, so that the handshakes of
// SMC go on (late.go, early.go). A connection of the launcher stands for them
// in the queue of the listening socket (placeholder.go), which ss shows.
//
// # Without a service, for a while
//
// When the session ends, connections are native until Config.Redial finds the
// next one, in which the listening sockets are marked anew. Peers that were
// promised SMC by then are answered with a CLC DECLINE (plain.go).
//
// # The kernel's SMC
//
// With Config.Kernel the filter stops socket() for TCP and Multipath TCP
// sockets, and Landlock's rulesets; the launcher makes an SMC socket and places
// it in the program instead, in the program's network namespace and with its
// user as owner. The launcher takes no further part in the connection. What a
// program can notice: SO_DOMAIN tells AF_SMC (unless Kernel.Inet is set:
// SO_PROTOCOL then tells IPPROTO_SMC), sockets that io_uring makes are TCP, and
// where the program is in a network namespace into which the launcher may not
// follow, all are. A launcher that is killed leaves a program whose connections
// live on and which makes no new TCP sockets (ENOSYS). AF_SMC is the default
// because IPPROTO_SMC is young (Linux 6.11).
//
// # Rules
//
// One goroutine receives notifications and never blocks on one: of the program
// it reads nothing but the link of a descriptor in /proc, for which the kernel
// asks no file system. Everything that may wait runs in its own goroutine, for
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
// not there) can block one thread of the launcher for each such connection.
//
// The launcher needs no privileges. It needs Linux 5.14 or newer
// (SECCOMP_ADDFD_FLAG_SEND), and permission to trace its children (the default,
// also under Yama).
package launch
