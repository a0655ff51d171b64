// SPDX-License-Identifier: Apache-2.0

package service

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"smcr/userstack/broker"
	"smcr/userstack/internal/joined"
)

// twoPrograms are two programs with a connection, as descriptors, and what they see of it.
type twoPrograms struct {
	t      testing.TB
	a, b   int // -1: closed
	settle func()
	saw    []string
}

func (p *twoPrograms) see(format string, args ...any) {
	p.saw = append(p.saw, fmt.Sprintf(format, args...))
}

func (p *twoPrograms) close(fd *int) {
	_ = unix.Close(*fd)
	*fd = -1
	p.settle()
}

// poll sees what poll() reports.
func (p *twoPrograms) poll(fd int) {
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN | unix.POLLOUT | unix.POLLRDHUP}}
	if _, err := unix.Poll(fds, 0); err != nil {
		p.t.Fatal(err)
	}
	var names []string
	for _, e := range []struct {
		bit  int16
		name string
	}{{unix.POLLIN, "IN"}, {unix.POLLOUT, "OUT"}, {unix.POLLERR, "ERR"}, {unix.POLLHUP, "HUP"}, {unix.POLLRDHUP, "RDHUP"}} {
		if fds[0].Revents&e.bit != 0 {
			names = append(names, e.name)
		}
	}
	p.see("poll %s", strings.Join(names, "|"))
}

// write sees the result of a write of n bytes.
func (p *twoPrograms) write(fd, n int) {
	m, err := unix.SendmsgN(fd, bytes.Repeat([]byte{'x'}, n), nil, nil, unix.MSG_NOSIGNAL)
	if err != nil {
		p.see("write %v", err)
	} else {
		p.see("write %d", m)
	}
	p.settle()
}

// read sees what all reads together return, until the end, an error, or nothing for a while.
func (p *twoPrograms) read(fd int) {
	total, buf := 0, make([]byte, 64<<10)
	for {
		n, _, err := unix.Recvfrom(fd, buf, unix.MSG_DONTWAIT)
		total += max(n, 0)
		switch {
		case err != nil:
			p.see("read %d, %v", total, err)
			return
		case n == 0:
			p.see("read %d, EOF", total)
			return
		}
	}
}

func (p *twoPrograms) shut(fd, how int) {
	if err := unix.Shutdown(fd, how); err != nil {
		p.see("shutdown %v", err)
	}
	p.settle()
}

func (p *twoPrograms) linger(fd int, seconds int32) {
	if err := unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1, Linger: seconds}); err != nil {
		p.t.Fatal(err)
	}
}

// endings are what programs do at the end of a connection. differs has what the second
// program of a pair sees instead of what it sees over TCP; docs/sockets.md has the same list.
var endings = []struct {
	name    string
	do      func(p *twoPrograms)
	differs map[string]string
}{
	{"close, then writes", func(p *twoPrograms) {
		p.close(&p.a)
		p.poll(p.b)
		p.write(p.b, 1)
		p.poll(p.b)
		p.write(p.b, 1)
		p.read(p.b)
	}, map[string]string{"poll IN|OUT|ERR|HUP|RDHUP": "poll IN|OUT|HUP|RDHUP"}},
	{"close, then read", func(p *twoPrograms) {
		p.close(&p.a)
		p.read(p.b)
		p.write(p.b, 1)
		p.read(p.b)
		p.write(p.b, 1)
	}, nil},
	{"data and close", func(p *twoPrograms) {
		p.write(p.a, 100000)
		p.close(&p.a)
		p.poll(p.b)
		p.read(p.b)
		p.poll(p.b)
		p.close(&p.b)
	}, nil},
	{"data and close, a write, then read", func(p *twoPrograms) {
		p.write(p.a, 50000)
		p.close(&p.a)
		p.write(p.b, 10)
		p.read(p.b)
		p.write(p.b, 10)
	}, nil},
	{"close with unread data", func(p *twoPrograms) {
		p.write(p.b, 1000)
		p.close(&p.a)
		p.poll(p.b)
		p.read(p.b)
		p.write(p.b, 1)
	}, nil},
	{"close with unread data, and data before", func(p *twoPrograms) {
		p.write(p.b, 1000)
		p.write(p.a, 5000)
		p.close(&p.a)
		p.read(p.b)
	}, nil},
	{"close with SO_LINGER 0", func(p *twoPrograms) {
		p.write(p.a, 1000)
		p.linger(p.a, 0)
		p.close(&p.a)
		p.poll(p.b)
		p.read(p.b)
		p.write(p.b, 1)
	}, nil},
	{"close with SO_LINGER 1", func(p *twoPrograms) {
		p.write(p.a, 1000)
		p.linger(p.a, 1)
		p.close(&p.a)
		p.poll(p.b)
		p.read(p.b)
		p.write(p.b, 1)
	}, nil},
	{"half close, data back, close", func(p *twoPrograms) {
		p.write(p.a, 10)
		p.shut(p.a, unix.SHUT_WR)
		p.poll(p.b)
		p.read(p.b)
		p.write(p.b, 100000)
		p.close(&p.b)
		p.poll(p.a)
		p.read(p.a)
		p.write(p.a, 1)
	}, nil},
	{"both half close", func(p *twoPrograms) {
		p.write(p.a, 50000)
		p.shut(p.a, unix.SHUT_WR)
		p.shut(p.b, unix.SHUT_WR)
		p.poll(p.a)
		p.poll(p.b)
		p.read(p.b)
		p.read(p.a)
		p.write(p.a, 1)
		p.write(p.b, 1)
		p.close(&p.b)
		p.poll(p.a)
	}, nil},
	{"close, half close", func(p *twoPrograms) {
		p.write(p.a, 50000)
		p.close(&p.a)
		p.shut(p.b, unix.SHUT_WR)
		p.poll(p.b)
		p.read(p.b)
		p.write(p.b, 1)
	}, nil},
	{"half close, then close", func(p *twoPrograms) {
		p.shut(p.a, unix.SHUT_WR)
		p.close(&p.a)
		p.poll(p.b)
		p.write(p.b, 1)
		p.read(p.b)
		p.write(p.b, 1)
	}, nil},
	{"half close, then close with unread data", func(p *twoPrograms) {
		p.write(p.b, 10)
		p.shut(p.a, unix.SHUT_WR)
		p.close(&p.a)
		p.read(p.b)
		p.write(p.b, 1)
	}, nil},
	{"half close, then close with SO_LINGER 0", func(p *twoPrograms) {
		p.write(p.a, 10)
		p.shut(p.a, unix.SHUT_WR)
		p.linger(p.a, 0)
		p.close(&p.a)
		p.read(p.b)
		p.write(p.b, 1)
	}, nil},
	{"half close, the peer closes with SO_LINGER 0", func(p *twoPrograms) {
		p.shut(p.a, unix.SHUT_WR)
		p.linger(p.b, 0)
		p.close(&p.b)
		p.read(p.a)
	}, map[string]string{"read 0, connection reset by peer": "read 0, EOF"}},
	{"half close, the peer closes with unread data", func(p *twoPrograms) {
		p.write(p.a, 10)
		p.shut(p.a, unix.SHUT_WR)
		p.close(&p.b)
		p.read(p.a)
	}, nil},
	{"both half close, close with unread data", func(p *twoPrograms) {
		p.write(p.b, 10)
		p.shut(p.a, unix.SHUT_WR)
		p.shut(p.b, unix.SHUT_WR)
		p.close(&p.a)
		p.poll(p.b)
		p.read(p.b)
	}, nil},
	{"shut down for reading, the peer writes and closes", func(p *twoPrograms) {
		p.shut(p.a, unix.SHUT_RD)
		p.poll(p.b)
		p.write(p.b, 1)
		p.write(p.a, 10)
		p.read(p.b)
		p.close(&p.b)
		p.read(p.a)
	}, map[string]string{"write 1": "write broken pipe", "read 1, EOF": "read 0, EOF"}},
	{"one of two descriptors is closed", func(p *twoPrograms) {
		dup, err := unix.FcntlInt(uintptr(p.a), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			p.t.Fatal(err)
		}
		_ = unix.Close(p.a)
		p.a = dup
		p.write(p.b, 5)
		p.read(p.a)
		p.poll(p.b)
		p.close(&p.a)
		p.poll(p.b)
	}, nil},
}

// TestLocalEndings: what a program sees of what the other one does at the end of a connection
// is the same over TCP and over a pair, whoever made the connection.
func TestLocalEndings(t *testing.T) {
	for _, tt := range endings {
		t.Run(tt.name, func(t *testing.T) {
			tcp := overTCP(t)
			tt.do(tcp)
			want := tcp.saw
			for i, s := range want {
				if d, ok := tt.differs[s]; ok {
					want[i] = d
				}
			}
			for _, first := range []joined.Side{joined.Client, joined.Server} {
				t.Run(first.String(), func(t *testing.T) {
					b := newLocalBed(t)
					pair := b.overPair(first)
					tt.do(pair)
					if got := pair.saw; fmt.Sprint(got) != fmt.Sprint(want) {
						t.Errorf("the %v is the first program:\npair %q\nTCP  %q", first, got, want)
					}
					for _, fd := range []*int{&pair.a, &pair.b} {
						if *fd >= 0 {
							pair.close(fd)
						}
					}
					b.idle()
				})
			}
		})
	}
}

func overTCP(t *testing.T) *twoPrograms {
	p := &twoPrograms{t: t, a: -1, b: -1, settle: func() { time.Sleep(10 * time.Millisecond) }}
	l, addr := listenTCP(t)
	var err error
	if p.a, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err == nil {
		err = unix.Connect(p.a, &unix.SockaddrInet4{Addr: addr.Addr().As4(), Port: int(addr.Port())})
	}
	if err != nil {
		t.Fatal(err)
	}
	accepted := accept(t, l)
	rc, err := accepted.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if cerr := rc.Control(func(fd uintptr) { p.b, err = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0) }); cerr != nil || err != nil {
		t.Fatal(cerr, err)
	}
	_ = accepted.Close()
	t.Cleanup(func() {
		for _, fd := range []int{p.a, p.b} {
			if fd >= 0 {
				_ = unix.Close(fd)
			}
		}
	})
	return p
}

// overPair makes a connection of two programs over a pair. The first of them is the program
// of side first.
func (b *localBed) overPair(first joined.Side) *twoPrograms {
	b.t.Helper()
	cc, fd, ev := b.connect(b.launcher(os.Geteuid()))
	ends := [2]int{joined.Client: ev.End.Take()}
	if err := cc.Proceed(); err != nil {
		b.t.Fatal(err)
	}
	sock := b.accept()
	sc := b.handOver(b.server, sock)
	ends[joined.Server] = next(b.t, sc, broker.EventLocal).End.Take()
	b.drop(fd)
	b.drop(sock)
	h := b.holding()
	p := &twoPrograms{t: b.t, a: ends[first], b: ends[first.Peer()]}
	p.settle = func() {
		b.t.Helper()
		b.await("the holder has handled what the programs did", func() bool {
			h.mu.Lock()
			defer h.mu.Unlock()
			for s, fd := range map[joined.Side]int{first: p.a, first.Peer(): p.b} {
				x := &h.side[s]
				open := x.end.Control(func(fd int) error {
					if x.late && waiting(fd) > 0 {
						return errors.New("bytes have come late")
					}
					return nil
				})
				if fd < 0 && !x.late && open == nil || open != nil && !errors.Is(open, os.ErrClosed) {
					return false
				}
			}
			return true
		})
		time.Sleep(10 * time.Millisecond)
	}
	return p
}

// TestLocalCloseOrder: the TCP sockets of a pair end in the order in which the programs
// ended, also if the stack is late with the first, so TIME-WAIT is at the side that was first.
func TestLocalCloseOrder(t *testing.T) {
	for name, end := range map[string]func(p *twoPrograms){
		"close":    func(p *twoPrograms) { _ = unix.Close(p.a); p.a = -1 },
		"linger":   func(p *twoPrograms) { p.linger(p.a, 1); _ = unix.Close(p.a); p.a = -1 },
		"shutdown": func(p *twoPrograms) { p.shut(p.a, unix.SHUT_WR) },
	} {
		for _, first := range []joined.Side{joined.Client, joined.Server} {
			t.Run(fmt.Sprint(name, " of the ", first), func(t *testing.T) {
				b := newLocalBed(t)
				p := b.overPair(first)
				settle := p.settle
				p.settle = func() {}
				h := b.holding()
				h.mu.Lock()
				var of [2]netip.AddrPort
				for s := range h.side {
					_ = h.side[s].sock.Control(func(fd int) error {
						sa, err := unix.Getsockname(fd)
						if in, ok := sa.(*unix.SockaddrInet4); ok {
							of[s] = netip.AddrPortFrom(netip.AddrFrom4(in.Addr), uint16(in.Port))
						}
						return err
					})
				}
				h.turn(first, func() { time.Sleep(100 * time.Millisecond) })
				h.mu.Unlock()
				end(p)
				b.await("the other program reads the end", func() bool {
					fds := []unix.PollFd{{Fd: int32(p.b), Events: unix.POLLRDHUP}}
					n, err := unix.Poll(fds, 0)
					return n == 1 && err == nil
				})
				_ = unix.Close(p.b)
				p.b = -1
				if p.a >= 0 {
					_ = unix.Close(p.a)
					p.a = -1
				}
				settle()
				b.idle()
				b.await("TIME-WAIT is at the side that ended first", func() bool {
					return slices.Equal(timeWaits(t, of[0], of[1]), []netip.AddrPort{of[first]})
				})
			})
		}
	}
}

// timeWaits returns which of some addresses have a connection in TIME-WAIT.
func timeWaits(t *testing.T, of ...netip.AddrPort) (in []netip.AddrPort) {
	t.Helper()
	b, err := os.ReadFile("/proc/thread-self/net/tcp")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		w := strings.Fields(line)
		for _, ap := range of {
			a := ap.Addr().As4()
			if len(w) > 3 && w[3] == "06" && w[1] == fmt.Sprintf("%02X%02X%02X%02X:%04X", a[3], a[2], a[1], a[0], ap.Port()) {
				in = append(in, ap)
			}
		}
	}
	return in
}

// holding waits for the only pair, until both programs have their ends.
func (b *localBed) holding() (h *holding) {
	b.t.Helper()
	o := &b.s.local.holder
	b.await("a pair is held", func() bool {
		o.mu.Lock()
		for _, h = range o.byID {
		}
		o.mu.Unlock()
		if h == nil {
			return false
		}
		h.mu.Lock()
		defer h.mu.Unlock()
		return h.side[joined.Server].done != nil && h.side[joined.Client].done != nil
	})
	return h
}

// idle waits until no pair is held.
func (b *localBed) idle() {
	b.t.Helper()
	o := &b.s.local.holder
	b.await("no pair is held", func() bool {
		o.mu.Lock()
		defer o.mu.Unlock()
		return len(o.byID) == 0 && len(o.ends) == 0
	})
}

// await waits until a condition holds.
func (b *localBed) await(what string, holds func() bool) {
	b.t.Helper()
	for end := time.Now().Add(testTime); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			b.t.Fatalf("it is not true that %s", what)
		}
	}
}
