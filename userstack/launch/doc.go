// SPDX-License-Identifier: Apache-2.0

//go:build linux

// Package launch runs an unmodified program and takes over its TCP sockets,
// so that its connections use SMC where the peer does too: smcr run.
//
// # How
//
// Run starts its own executable again as a stub (see MaybeChild), which sets
// no_new_privs, installs a seccomp filter whose listener goes to the launcher,
// and executes the program. The filter passes nearly everything. Calls that
// make connections (connect, listen, accept) and calls that tell a socketpair
// from a TCP socket (getpeername, getsockname, some socket options) stop the
// calling thread until the launcher has answered: let it run natively
// (CONTINUE), answer in its place, or place a descriptor in the program.
//
// The TCP socket of a connection that may use SMC is handed to the stack
// service by package broker. In the program its place, under the same number,
// is taken by one end of a unix stream socketpair, through which the service
// carries the bytes. read, write, poll, sendfile, dup, fork, exec, shutdown,
// close and passing the descriptor on therefore work natively. Every
// connection whose peer does not speak SMC keeps its TCP socket, with nothing
// in between.
//
// Nothing here is a security boundary for the program: one that races with the
// launcher's reading of its memory gets plain TCP, or an error, at worst. But the
// launcher, which may be root, lends it nothing (rights.go): it sets and reads
// options with the effective capabilities of the thread that asks, none if that is
// in another user namespace, and makes sockets and owners of signals as the
// program's user. docs/security.md has the whole of it.
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
//   - SO_KEEPALIVE, TCP_NODELAY and the three numbers of keepalive are set a moment
//     after setsockopt() has returned. An eBPF program of the cgroup that refuses
//     one keeps it from being set, but the program does not see the error.
//     SO_ZEROCOPY and TCP_ULP (kernel TLS) are refused on it; a socket with
//     SO_ZEROCOPY set before connect() stays native.
//   - TCP_REPAIR is refused to root, too. All but common options are refused on a
//     socket of another network namespace than the launcher's.
//   - Once a program makes a Landlock ruleset for networks, new connections of all
//     programs of the launcher are native.
//   - sendto() with an address on a connected socket fails with EISCONN.
//   - A reset by the peer after the program's own shutdown(SHUT_WR) is read as
//     an end of file: the byte that makes it ECONNRESET can no longer be put
//     into the socketpair. getsockopt(SO_ERROR) tells.
//   - A signal whose handler has no SA_RESTART can end any trapped call with
//     EINTR while it waits for the launcher, also those that never wait
//     otherwise, such as getsockname(). Others are made again by the kernel.
//   - On a connection to a program of the same host, poll() tells of a hang-up as soon
//     as the peer has closed, and the peer's writes fail after shutdown(SHUT_RD). A
//     process that has the descriptor twice, and sets SO_LINGER to 0 or sends urgent
//     data, gets what a socketpair does: an end of file at the peer, and urgent bytes
//     that become ordinary ones when others follow.
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
// Connections that wait for accept() are taken early, so that the handshakes of SMC
// go on (late.go, early.go). A connection of the launcher stands for them in the
// queue of the listening socket (placeholder.go), which ss shows.
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
// sockets, and Landlock's rulesets; the launcher makes an SMC socket and places it in the program
// instead, in the program's network namespace and with its user as owner. From
// then on the program and the kernel are by themselves. What a program can
// notice: SO_DOMAIN tells AF_SMC (unless Kernel.Inet is set: SO_PROTOCOL then
// tells IPPROTO_SMC), sockets that io_uring makes are TCP, and where the
// program is in a network namespace into which the launcher may not follow,
// all are. A launcher that is killed leaves a program whose connections live on
// and which makes no new TCP sockets (ENOSYS). AF_SMC is the default because
// IPPROTO_SMC is young (Linux 6.11).
//
// # Rules
//
// One goroutine receives notifications and never blocks on one: of the program it
// reads nothing but the link of a descriptor in /proc, for which the kernel asks
// no file system. Whatever may wait has its own goroutine, which Run waits
// for. conn and listener are guarded by their own mutexes; the lock order is
// listener, conn, registry.
//
// A program can make it last for ever to read its memory (userfaultfd, a FUSE
// file), to close a copy of its descriptor (a FUSE file again), or to ask one of
// its epoll instances or sockets, whose lock another of its calls holds. All that
// is a look (looks.go): it has its own goroutine, of which each process may
// have a few, and Run does not wait for it beyond a second after the program's
// end. A connect() that has to wait for its turn in its own process becomes a
// native one. No look is made with conn.mu held that reads or writes memory, as
// processes share connections; and only sockets and epoll instances are copied
// into the launcher, after a look at their links.
//
// What is not bounded yet: once a connection has begun, a program that has a
// socket's lock held (as some calls do that copy from absent memory) can block a
// thread of the launcher for each such connection.
//
// The launcher needs no privileges, but Linux 5.14 or newer (SECCOMP_ADDFD_FLAG_SEND);
// it has to be allowed to trace its children (the default, also under Yama).
package launch
