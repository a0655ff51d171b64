// SPDX-License-Identifier: Apache-2.0

package divert

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/gopacket/gopacket/layers"
	"golang.org/x/sys/unix"

	"smcr/internal/testing/netnstest"
	"smcr/internal/testing/testkind"
)

// childVariable has the cgroup for which the process is a stack that the test kills or stops. With splicesVariable, it carries the bytes
// of its connections until those pass; without, it keeps them until it is killed, however long the test takes.
const childVariable, splicesVariable = "SMCR_DIVERT_CHILD", "SMCR_DIVERT_CHILD_SPLICES"

func TestMain(m *testing.M) {
	if c := os.Getenv(childVariable); c != "" {
		fmt.Fprintln(os.Stderr, child(c))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// child is a stack that declines each connection, and holds those with the port 9999 of a server for ever.
func child(cgroup string) error {
	id, err := strconv.ParseUint(cgroup, 10, 64)
	if err != nil {
		return err
	}
	d, err := New(Config{Log: slog.New(slog.NewTextHandler(os.Stderr, nil)), Handle: func(_ context.Context, f *Flow, handled func()) {
		go func() {
			defer handled()
			if f.Tuple.Remote.Port() == 9999 || f.Tuple.Local.Port() == 9999 {
				fmt.Println("holds")
				return
			}
			if err := agree(f); err != nil {
				return
			}
			if os.Getenv(splicesVariable) != "" {
				_ = f.Splice()
			} else if _, _, err := f.Split(); err != nil {
				fmt.Fprintln(os.Stderr, err)
			}
		}()
	}})
	if err != nil {
		return err
	}
	if err := errors.Join(d.Attach(id, Does{Connect: true, Accept: true}), d.Follow(func(string) bool { return true })); err != nil {
		return err
	}
	fmt.Println("follows")
	select {}
}

// newKilled returns a bed whose host A has its stack in a process of its own, with further variables in its environment.
func newKilled(t *testing.T, variables ...string) (*bed, *netnstest.Process) {
	t.Helper()
	return newKilledBy(t, splice, variables...)
}

// newKilledBy is newKilled with what the stack of host B does with a connection.
func newKilledBy(t *testing.T, handle func(*bed, *Flow), variables ...string) (*bed, *netnstest.Process) {
	t.Helper()
	b := newBed(t, handle)
	b.must(b.d[0].Close())
	self, err := os.Executable()
	b.must(err)
	cmd := b.A.Command(t.Context(), self)
	cmd.Env = append(os.Environ(), append(variables, childVariable+"="+strconv.FormatUint(ownCgroup(t), 10))...)
	p, err := b.A.Start(cmd)
	b.must(err)
	t.Cleanup(p.Kill)
	b.must(p.WaitOutput("follows", testkind.Patience))
	return b, p
}

// works checks that a new connection carries bytes.
func (b *bed) works(l net.Listener) {
	b.t.Helper()
	client, server := b.connect(l)
	b.exchanges(client, server)
	client.Close()
	server.Close()
}

// TestKilled kills a stack: both programs of a connection see a reset, a connection that it holds is made
// again, and new ones are TCP. Its successor finds nothing that is in the way.
func TestKilled(t *testing.T) {
	testkind.System(t)
	t.Parallel()
	b, p := newKilled(t)
	l := b.listen(b.B.Addr())
	client, server := b.connect(l)
	b.wantTaken(0, 1)
	var held net.Listener
	b.must(b.B.Do(func() (err error) {
		held, err = net.Listen("tcp", net.JoinHostPort(b.B.Addr(), "9999"))
		return err
	}))
	defer held.Close()
	connected := make(chan struct{})
	go func() {
		defer close(connected)
		b.works(held)
	}()
	b.must(p.WaitOutput("holds", testkind.Patience))
	p.Kill()
	for name, c := range map[string]*net.TCPConn{"client": client, "server": server} {
		if _, err := c.Read(make([]byte, 9)); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("%s: %v, want ECONNRESET", name, err)
		}
	}
	<-connected
	b.works(l)
	b.must(b.A.Do(func() (err error) {
		b.d[0], err = New(b.d[0].cfg)
		return err
	}))
	defer b.d[0].Close()
	b.must(b.d[0].AddDevice(b.index(b.A, b.A.Links[0].Name)))
	b.must(b.d[0].Attach(ownCgroup(t), Does{Connect: true, Accept: true}))
	before := b.taken[0].Load()
	b.works(l)
	if n := b.taken[0].Load() - before; n != 1 {
		t.Errorf("the successor took %d connections, want 1", n)
	}
}

// TestServerKilled kills the stack of a server that has the ends of handshakes, and nothing comes in its place. The clients' stack gives up,
// and their programs send SYN again: their connections are TCP, and none is refused, although the server's host sends SYN-ACK again, too.
func TestServerKilled(t *testing.T) {
	testkind.System(t)
	t.Parallel()
	b, p := newKilledBy(t, func(b *bed, f *Flow) {
		if err := agree(f); err == nil {
			b.t.Error("the server's stack agreed")
		}
		f.Retry()
	})
	var l net.Listener
	b.must(b.A.Do(func() (err error) {
		l, err = net.Listen("tcp", net.JoinHostPort(b.A.Addr(), "9999"))
		return err
	}))
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.Copy(c, c)
				_ = c.Close()
			}()
		}
	}()
	const all = 20
	ends := make(chan error, all)
	for i := range all {
		go func() {
			ends <- b.B.Do(func() error {
				c, err := (&net.Dialer{Control: b.control}).Dial("tcp", l.Addr().String())
				if err != nil {
					return err
				}
				defer c.Close()
				text := fmt.Sprint("connection ", i)
				if _, err := io.WriteString(c, text); err != nil {
					return err
				}
				got := make([]byte, len(text))
				if _, err := io.ReadFull(c, got); err != nil || string(got) != text {
					return fmt.Errorf("%q, want %q: %w", got, text, err)
				}
				return nil
			})
		}()
	}
	testkind.Eventually(t, "the stack holds all", func() (any, bool) {
		n := strings.Count(p.Log(), "holds\n")
		return n, n == all
	})
	p.Kill()
	for range all {
		if err := <-ends; err != nil {
			t.Errorf("a client: %v", err)
		}
	}
}

// TestLateReject has the reset of a server whose stack was killed come late: the stack of the client has given up, and the program has
// another connection, whose next number is the same. Any other reset ends that.
func TestLateReject(t *testing.T) {
	testkind.System(t)
	for name, v6 := range map[string]bool{"IPv4": false, "IPv6": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			gone := make(chan error, 1)
			b := newBed(t, func(b *bed, f *Flow) {
				gone <- agree(f)
				f.Retry()
			})
			s := b.scripted(b.B, b.A, v6, 9999)
			connected := make(chan *net.TCPConn, 1)
			go func() {
				var c net.Conn
				if err := b.A.Do(func() (err error) {
					c, err = net.Dial("tcp", s.at.String())
					return err
				}); err != nil {
					b.t.Error(err)
					close(connected)
					return
				}
				connected <- c.(*net.TCPConn)
			}()
			isSYN := func(t *layers.TCP) bool { return t.SYN && !t.ACK }
			s.rcv = s.hears("SYN", isSYN).Seq + 1
			answer := func(options []layers.TCPOption) {
				s.segment(layers.TCP{SYN: true, ACK: true}, s.snd, s.rcv, options, "")
			}
			rejects := func() { s.segment(layers.TCP{RST: true}, s.snd+1, s.rcv, withOption(), "") }
			answer(withOption())
			s.hears("PROPOSAL", func(t *layers.TCP) bool { return len(t.Payload) > 0 })
			rejects()
			if err := <-gone; !errors.Is(err, syscall.ECONNRESET) {
				t.Fatalf("the stack: %v, want ECONNRESET", err)
			}
			s.hears("SYN again", isSYN)
			answer(withOption()[:1])
			c := <-connected
			if c == nil {
				t.FailNow()
			}
			defer c.Close()
			rejects()
			s.snd++
			s.says("hello")
			got := make([]byte, 5)
			if _, err := io.ReadFull(c, got); err != nil || string(got) != "hello" {
				t.Fatalf("the program reads %q, %v", got, err)
			}
			s.segment(layers.TCP{RST: true}, s.snd, s.rcv, nil, "")
			if _, err := c.Read(got); !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("the program reads: %v, want ECONNRESET", err)
			}
		})
	}
}

// TestStopped has a stack that stands still: new connections are TCP, after a moment.
func TestStopped(t *testing.T) {
	testkind.System(t)
	t.Parallel()
	b, p := newKilled(t, splicesVariable+"=1")
	l := b.listen(b.B.Addr())
	b.works(l)
	b.must(p.Signal(unix.SIGSTOP))
	// The signal stops one thread after the other: until then, connections are taken.
	testkind.Eventually(t, "all threads of the stack stand still", func() (any, bool) { return stopped(p.Pid()) })
	before := b.taken[1].Load()
	b.works(l) // within the moment, SYN-ACK is held until the stack counts as dead
	b.works(l)
	if n := b.taken[1].Load() - before; n > 1 {
		t.Errorf("the peer has taken %d connections of a stack that stands still", n)
	}
	b.must(p.Signal(unix.SIGCONT))
	testkind.Eventually(t, "connections are taken again", func() (any, bool) {
		b.works(l)
		return b.taken[1].Load(), b.taken[1].Load() > before+1
	})
}

// stopped reports whether all threads of a process are stopped, and the states of the threads.
func stopped(pid int) (states string, all bool) {
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	for _, name := range files {
		text, _ := os.ReadFile(name)
		_, rest, _ := strings.Cut(string(text), ") ")
		states += rest[:min(1, len(rest))]
	}
	return states, states != "" && strings.Trim(states, "T") == ""
}
