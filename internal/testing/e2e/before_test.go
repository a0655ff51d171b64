// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"smcr/internal/retry"
	"smcr/internal/testing/netnstest"
)

// A listening is a listening socket of a program on a host, which does not block.
type listening struct {
	fd int
	at *unix.SockaddrInet4
}

// listens makes one.
func (l *lab) listens(h *netnstest.Host) *listening {
	l.t.Helper()
	fd := l.socket(h)
	addr := h.Links[0].IPv4.As4()
	if err := errors.Join(unix.Bind(fd, &unix.SockaddrInet4{Addr: addr}), unix.Listen(fd, 64)); err != nil {
		l.t.Fatal(err)
	}
	at, err := unix.Getsockname(fd)
	if err != nil {
		l.t.Fatal(err)
	}
	return &listening{fd, at.(*unix.SockaddrInet4)}
}

// socket makes a TCP socket on a host that does not block.
func (l *lab) socket(h *netnstest.Host) (fd int) {
	l.t.Helper()
	if err := h.Do(func() (err error) {
		fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		return os.NewSyscallError("socket", err)
	}); err != nil {
		l.t.Fatal(err)
	}
	return fd
}

// connects has a program on B connect to a server on A, and bytes go each way. It returns an error if the server has the connection when
// the client does not.
func (l *lab) connects(ln *listening, client int) error {
	if err := unix.Connect(client, ln.at); err != unix.EINPROGRESS {
		return fmt.Errorf("connect: %w", err)
	}
	server := -1
	for began := time.Now(); server < 0; {
		fd, _, err := unix.Accept4(ln.fd, unix.SOCK_CLOEXEC)
		switch {
		case err == nil:
			server = fd
		case err != unix.EAGAIN:
			return fmt.Errorf("accept: %w", err)
		case time.Since(began) > startTime: // Real time: the patience of all tests.
			return errors.New("nothing to accept")
		}
	}
	defer unix.Close(server)
	info, err := unix.GetsockoptTCPInfo(client, unix.IPPROTO_TCP, unix.TCP_INFO)
	if err != nil {
		return fmt.Errorf("getsockopt: %w", err)
	}
	if info.State != unix.BPF_TCP_ESTABLISHED {
		return fmt.Errorf("accept() has returned before connect(): the client's socket is in state %d", info.State)
	}
	_ = unix.SetNonblock(client, false)
	var b [8]byte
	for _, way := range [][2]int{{client, server}, {server, client}} {
		for _, fd := range way {
			_ = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: int64(startTime / time.Second)})
		}
		if _, err := unix.Write(way[0], []byte("message")); err != nil {
			return fmt.Errorf("write: %w", err)
		}
		n := 0
		if err := retry.Interrupted(func() (err error) { n, err = unix.Read(way[1], b[:]); return err }); err != nil || string(b[:n]) != "message" {
			return fmt.Errorf("read: %q, %w", b[:max(n, 0)], errors.Join(err, syscall.EBADMSG))
		}
	}
	return nil
}

// TestConnectBeforeAccept: accept() of a server never returns before connect() of the client has, or would, as over TCP: on an existing
// link group, on a new one, and where SMC is declined, at once or because RoCE does not pass.
func TestConnectBeforeAccept(t *testing.T) {
	for _, test := range []struct {
		name           string
		server, client []string // flags of the stacks
		conns          int
		before         func(l *lab, i int) // each connection
		noPeer, tcp    bool
	}{
		{name: "version 1", server: []string{"--no-default-eid"}, client: []string{"--no-default-eid"}, conns: 1200},
		{name: "version 2", conns: 1200},
		{name: "first contacts, version 1", server: []string{"--no-default-eid"}, client: []string{"--no-default-eid"}, conns: 24, before: (*lab).endGroups},
		{name: "first contacts, version 2", conns: 24, before: (*lab).endGroups},
		{name: "declined by the server", server: []string{"--roce", "v1"}, client: []string{"--roce", "v2"}, conns: 200, tcp: true},
		{name: "RoCE does not pass", conns: 2, tcp: true, before: func(l *lab, i int) {
			if i == 0 {
				if err := l.B.BlockRoCE(0, 0); err != nil {
					l.t.Error(err)
				}
			}
		}},
		{name: "no peer", noPeer: true, conns: 50, tcp: true},
	} {
		t.Run(test.name, func(t *testing.T) {
			l := newLab(t)
			l.bare = true
			hosts := []*netnstest.Host{l.B}
			l.serveAsIs(l.B, test.client...)
			if !test.noPeer {
				l.serveAsIs(l.A, test.server...)
				hosts = append(hosts, l.A)
			}
			l.awaitActive(hosts...)
			conns := test.conns
			if testing.Short() {
				conns = (conns + 3) / 4
			}
			const workers = 2
			var wg sync.WaitGroup
			var mu sync.Mutex
			wrong := map[string]int{}
			for w := range workers {
				wg.Go(func() {
					if w > 0 && test.before != nil {
						return
					}
					for i := w; i < conns; i += workers {
						if test.before != nil {
							test.before(l, i/workers)
						}
						// Each connection is announced, whatever became of others: their ports are other ones.
						ln, client := l.listens(l.A), l.socket(l.B)
						if err := l.connects(ln, client); err != nil {
							mu.Lock()
							wrong[err.Error()]++
							mu.Unlock()
						}
						_, _ = unix.Close(client), unix.Close(ln.fd)
					}
				})
			}
			wg.Wait()
			for what, n := range wrong {
				t.Errorf("%d of %d connections: %s", n, conns, what)
			}
			out := l.smcr(l.B, "stats", "show")
			want := "0"
			if test.tcp {
				want = strconv.Itoa(conns)
				if test.before != nil {
					want = strconv.Itoa((conns + workers - 1) / workers)
				}
			}
			if m := fallbacksRE.FindStringSubmatch(out); m[1] != want {
				t.Errorf("%s connections became TCP, want %s:\n%s", m[1], want, out)
			}
		})
	}
}

// endGroups ends the link groups, so that the next connection is a first contact.
func (l *lab) endGroups(int) {
	rows, err := l.rows(l.B, "linkgroup")
	if err != nil {
		l.t.Error(err)
	}
	for _, row := range rows {
		_, _ = l.try(l.B, "--backend", "user", "linkgroup", "delete", fmt.Sprint(row["id"]))
	}
	l.wantNoConnections(l.A, l.B)
}
