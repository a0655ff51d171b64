// SPDX-License-Identifier: Apache-2.0

package service

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/netnstest"
	"smcr/internal/testing/testkind"
	"smcr/userstack"
	"smcr/userstack/broker"
	"smcr/userstack/internal/rights"
	"smcr/userstack/simfabric"
	"smcr/userstack/wire"
)

// carried is a connection over SMC-R between two services, of which a
// launcher with two programs has the ends.
type carried struct {
	client, server *serviceBed
	cc, sc         *broker.ClientConn
	cprog, sprog   *program
	cl, sl         *broker.Client
	serverHost     *simfabric.Host
	linkTests      atomic.Int64 // TEST LINK messages that have come from the client
}

// newCarried makes the connection; the client's launcher is user uid's.
func newCarried(t testing.TB, uid int) *carried {
	t.Helper()
	return newCarriedBy(t, uid, func(int) {}, attachEnd)
}

// newCarriedBy is newCarried with another attach for the client, and with early
// for what the program does to its TCP socket while the connection is made.
func newCarriedBy(t testing.TB, uid int, early func(fd int), attachClient func(testing.TB, *broker.ClientConn) *program) *carried {
	t.Helper()
	c := newServices(t, uid)
	c.connect(t, early, attachClient)
	return c
}

// newServices makes the two services of a carried, and no connection yet.
func newServices(t testing.TB, uid int) *carried {
	t.Helper()
	return newServicesOf(t, uid, func(*Config) {})
}

// newServicesOf is newServices with another configuration of the client's service.
func newServicesOf(t testing.TB, uid int, tune func(*Config)) *carried {
	t.Helper()
	return newServicesWith(t, uid, tune, nil)
}

// newServicesWith is newServicesOf with a change of the client's stack.
func newServicesWith(t testing.TB, uid int, tune func(*Config), tuneStack func(*userstack.Config)) *carried {
	t.Helper()
	checkLeaks(t)
	c := &carried{}
	w := simfabric.New(simfabric.Config{Delay: 10 * time.Microsecond, Observe: func(e *simfabric.Event) {
		if e.Kind == simfabric.EventSend && e.From.Host == "client" {
			if m, err := wire.ParseLLC(e.Data); err == nil && m.LLCType() == wire.LLCTestLink && !m.IsReply() {
				c.linkTests.Add(1)
			}
		}
	}})
	t.Cleanup(w.Close)
	c.serverHost = w.Host("server", netdev(2))
	c.client = newServiceBed(t, w.Host("client", netdev(1)), tuneStack)
	c.server = newServiceBed(t, c.serverHost, nil)
	tune(&c.client.s.cfg) // before sessions begin, which read it
	c.cl, c.sl = c.client.launcher(uid), c.server.launcher(os.Geteuid())
	return c
}

// connect makes a connection, the one that c holds.
func (c *carried) connect(t testing.TB, early func(fd int), attachClient func(testing.TB, *broker.ClientConn) *program) {
	t.Helper()
	l, remote := listenTCP(t)
	fd := tcpSocket(t, 0)
	var err error
	if c.cc, err = c.cl.Connect(fd, broker.ConnectRequest{Remote: remote}); err != nil {
		t.Fatal(err)
	}
	peer := accept(t, l)
	next(t, c.cc, broker.EventEstablished)
	early(fd)
	if err := unix.Close(dup2(t, fd)); err != nil { // the pair took its place
		t.Fatal(err)
	}
	if err := c.cc.Proceed(); err != nil {
		t.Fatal(err)
	}
	c.sc = passAccepted(t, c.sl, peer)
	next(t, c.sc, broker.EventTaken)
	c.sprog = attachEnd(t, c.sc)
	for _, cc := range []*broker.ClientConn{c.sc, c.cc} {
		if ev := next(t, cc, broker.EventReady); ev.Mode != broker.ModeSMCR {
			t.Fatalf("%+v", ev)
		}
	}
	c.cprog = attachClient(t, c.cc)
	c.cprog.write("both relays")
	c.sprog.read("both relays")
	c.sprog.write("are at work")
	c.cprog.read("are at work")
}

// dup2 puts a socket of no use in the place of the program's TCP socket, whose
// last descriptor the service then has, and returns a copy.
func dup2(t testing.TB, fd int) int {
	t.Helper()
	other, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Dup3(other, fd, unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	return other
}

// passAccepted offers an accepted connection, which the program has no more.
func passAccepted(t testing.TB, cl *broker.Client, conn *net.TCPConn) *broker.ClientConn {
	t.Helper()
	f, err := conn.File()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	_ = conn.Close()
	c, err := cl.Accept(int(f.Fd()), netip.AddrPort{}, netip.AddrPort{})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// launcherLeaves ends the session of the client's launcher and wants the server's
// program to see a reset.
func (c *carried) launcherLeaves(t testing.TB) {
	t.Helper()
	if err := c.cl.Close(); err != nil {
		t.Fatal(err)
	}
	brokenBy(t, c.sc, c.sprog)
	c.sprog.wantEnd(unix.ECONNRESET)
	if ev := next(t, c.sc, broker.EventClosed); ev.Text == "" {
		t.Error("no reset")
	}
}

// over wants both connections to end, as resets or not.
func (c *carried) over(t testing.TB, reset bool) {
	t.Helper()
	for _, cc := range []*broker.ClientConn{c.cc, c.sc} {
		if ev := next(t, cc, broker.EventClosed); (ev.Text != "") != reset {
			t.Errorf("ended by %q, want a reset: %v", ev.Text, reset)
		}
	}
	for _, b := range []*serviceBed{c.client, c.server} {
		testkind.Eventually(t, "the stack has a connection still", func() (any, bool) { return nil, !b.s.programs.Busy() })
	}
}

func TestCarry(t *testing.T) {
	big := strings.Repeat("over SMC-R ", 200<<10)
	c := newCarried(t, os.Geteuid())
	if !c.client.s.programs.Busy() || !c.server.s.programs.Busy() {
		t.Error("a stack with a connection is not busy")
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if n, err := c.cprog.send(big); n != len(big) || err != nil {
			t.Errorf("sent %d bytes, %v", n, err)
		}
	}()
	c.sprog.read(big)
	<-done
	c.cprog.shutdown()
	c.sprog.wantEnd(nil)
	c.sprog.write("answer")
	c.sprog.close()
	c.cprog.read("answer")
	c.cprog.wantEnd(nil)
	c.cprog.close()
	c.over(t, false)
}

// The launcher's half of Broken is played by hand.
func brokenBy(t testing.TB, cc *broker.ClientConn, p *program) {
	t.Helper()
	if ev := next(t, cc, broker.EventBroken); ev.Errno != syscall.ECONNRESET {
		t.Errorf("%+v", ev)
	}
	if err := unix.Sendto(p.fd, []byte{0}, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, nil); err != nil {
		t.Error(err)
	}
	if err := cc.BrokenDone(); err != nil {
		t.Error(err)
	}
}

func TestCarryReset(t *testing.T) {
	t.Run("unread data", func(t *testing.T) {
		c := newCarried(t, os.Geteuid())
		c.cprog.write("unread")
		c.sprog.wantUnread(6)
		c.sprog.close()
		brokenBy(t, c.cc, c.cprog)
		c.cprog.wantEnd(unix.ECONNRESET)
		c.over(t, true)
	})
	t.Run("SO_LINGER", func(t *testing.T) {
		c := newCarried(t, os.Geteuid())
		if err := c.cc.SetOption(t.Context(), rights.All, unix.SOL_SOCKET, unix.SO_LINGER, []byte{1, 1, 1, 1, 0, 0, 0, 0}); err != nil {
			t.Fatal(err)
		}
		c.cprog.close()
		brokenBy(t, c.sc, c.sprog)
		c.sprog.wantEnd(unix.ECONNRESET)
		c.over(t, true)
	})
	t.Run("SO_LINGER in time", func(t *testing.T) {
		c := newCarriedBy(t, os.Geteuid(), func(fd int) {
			if err := unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}); err != nil {
				t.Fatal(err)
			}
		}, attachEnd)
		c.cprog.close()
		brokenBy(t, c.sc, c.sprog)
		c.sprog.wantEnd(unix.ECONNRESET)
		c.over(t, true)
	})
	t.Run("SO_LINGER taken back", func(t *testing.T) {
		c := newCarried(t, os.Geteuid())
		for _, on := range []byte{1, 0} {
			if err := c.cc.SetOption(t.Context(), rights.All, unix.SOL_SOCKET, unix.SO_LINGER, []byte{on, 0, 0, 0, 0, 0, 0, 0}); err != nil {
				t.Fatal(err)
			}
		}
		c.cprog.close()
		c.sprog.wantEnd(nil)
		c.sprog.close()
		c.over(t, false)
	})
	t.Run("launcher gone", func(t *testing.T) {
		newCarried(t, os.Geteuid()).launcherLeaves(t)
	})
	t.Run("session lost", func(t *testing.T) {
		endCopy := -1
		c := newCarriedBy(t, os.Geteuid(), func(int) {}, func(t testing.TB, cc *broker.ClientConn) (p *program) {
			p, endCopy = attachKept(t, cc)
			return p
		})
		defer unix.Close(endCopy)
		if broker.MarkedUnread(endCopy) {
			t.Error("let go before the end")
		}
		if err := c.cl.Close(); err != nil {
			t.Fatal(err)
		}
		testkind.Eventually(t, "the service does not let go", func() (any, bool) { return nil, broker.MarkedUnread(endCopy) })
		c.cprog.write("x") // the launcher's, which nobody may read
		brokenBy(t, c.sc, c.sprog)
		c.sprog.wantEnd(unix.ECONNRESET)
		if n, err := unix.IoctlGetInt(endCopy, unix.SIOCINQ); n != 1 || err != nil {
			t.Errorf("%d bytes unread, %v", n, err)
		}
	})
	t.Run("launcher stopped", func(t *testing.T) {
		c := newCarried(t, os.Geteuid())
		c.client.wantEnd(testTime, func() {}) // Broken without an answer
		if err := c.sc.BrokenDone(); err != nil {
			t.Error(err)
		}
		if ev := next(t, c.cc, broker.EventBroken); ev.Errno != syscall.ECONNRESET {
			t.Errorf("%+v", ev)
		}
	})
	t.Run("service ends", func(t *testing.T) {
		c := newCarried(t, os.Geteuid())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			c.client.end()
		}()
		// Its own program too, which could take an end of file for one that
		// the peer meant.
		brokenBy(t, c.cc, c.cprog)
		c.cprog.wantEnd(unix.ECONNRESET)
		brokenBy(t, c.sc, c.sprog)
		c.sprog.wantEnd(unix.ECONNRESET)
		<-ended
		if ev := next(t, c.sc, broker.EventClosed); ev.Text == "" {
			t.Error("no reset")
		}
	})
}

// TestKeepAliveOption: the link of a program that asks for keepalive is tested as often as it asks
// for, and the program learns of a peer that is gone.
func TestKeepAliveOption(t *testing.T) { keepAliveOption(t) }

// TestTimingKeepAliveOption: it learns of that after the time that it asked for, and the time for
// which the peer may stand still: 7 s of Config.StallTime, within 16/7 of that.
func TestTimingKeepAliveOption(t *testing.T) {
	testkind.Timing(t)
	noticed := keepAliveOption(t)
	t.Logf("noticed after %v", noticed)
	if noticed > 20*time.Second {
		t.Error("that is too late")
	}
}

// keepAliveOption returns how long it takes until a program notices that its peer is gone.
func keepAliveOption(t *testing.T) (noticed time.Duration) {
	t.Helper()
	c := newServicesWith(t, os.Geteuid(), func(cfg *Config) { cfg.MinKeepAlive = time.Hour }, // of TCP, not of the link
		func(cfg *userstack.Config) {
			if testing.Short() {
				cfg.StallTime = 2 * time.Second
			}
		})
	c.connect(t, func(int) {}, attachEnd)
	one := []byte{1, 0, 0, 0}
	for _, o := range [][2]int{{unix.IPPROTO_TCP, unix.TCP_KEEPIDLE}, {unix.SOL_SOCKET, unix.SO_KEEPALIVE}} {
		if err := c.cc.SetOption(t.Context(), rights.All, o[0], o[1], one); err != nil {
			t.Fatal(err)
		}
	}
	// Otherwise a link is tested each 30 s, and three times in more time than the test waits.
	testkind.Eventually(t, "the link is not tested", func() (any, bool) { return c.linkTests.Load(), c.linkTests.Load() >= 3 })
	c.serverHost.SetVanished(true)
	start := time.Now()
	brokenBy(t, c.cc, c.cprog)
	c.cprog.wantEnd(unix.ECONNRESET)
	noticed = time.Since(start)
	c.sprog.close()
	return noticed
}

func TestOptions(t *testing.T) {
	one := []byte{1, 0, 0, 0}
	t.Run("any user", func(t *testing.T) {
		c := newCarried(t, os.Geteuid())
		if err := c.cc.SetOption(t.Context(), rights.All, unix.IPPROTO_TCP, unix.TCP_NODELAY, one); err != nil {
			t.Error(err)
		}
		v, err := c.cc.GetOption(t.Context(), rights.All, unix.IPPROTO_TCP, unix.TCP_NODELAY, 4)
		if err != nil || string(v) != string(one) {
			t.Errorf("TCP_NODELAY %v, %v", v, err)
		}
		if err := c.cc.SetOption(t.Context(), rights.All, unix.IPPROTO_TCP, 9999, one); !errors.Is(err, syscall.ENOPROTOOPT) {
			t.Errorf("an option that is none: %v", err)
		}
		c.cprog.close()
		c.sprog.close()
		c.over(t, false)
		if err := c.cc.SetOption(t.Context(), rights.All, unix.IPPROTO_TCP, unix.TCP_NODELAY, one); !errors.Is(err, syscall.ENOTCONN) {
			t.Errorf("after the end: %v, want ENOTCONN", err)
		}
	})
	// The service could set any of them: it must not for everybody.
	t.Run("privileges", func(t *testing.T) {
		netnstest.Require(t)
		for uid, want := range map[int]error{0: nil, 65534: syscall.EPERM} {
			c := newCarriedBy(t, uid, func(int) {}, attachAs(uid))
			if err := c.cc.SetOption(t.Context(), rights.All, unix.SOL_SOCKET, unix.SO_MARK, one); !errors.Is(err, want) {
				t.Errorf("user %d sets SO_MARK: %v, want %v", uid, err, want)
			}
			if err := c.cc.SetOption(t.Context(), rights.All, unix.SOL_SOCKET, unix.SO_KEEPALIVE, one); err != nil {
				t.Errorf("user %d sets SO_KEEPALIVE: %v", uid, err)
			}
			v, err := c.cc.GetOption(t.Context(), rights.All, unix.SOL_SOCKET, unix.SO_MARK, 4)
			if marked := string(v) == string(one); err != nil || marked != (want == nil) {
				t.Errorf("user %d: SO_MARK %v, %v", uid, v, err)
			}
			c.cprog.close()
			c.sprog.close()
			c.over(t, false)
		}
	})
}

// A service with a launcher, or with connections that outlive it, is not idle.
func TestIdle(t *testing.T) {
	c := newCarried(t, os.Geteuid())
	s := c.client.s
	now := time.Now()
	s.idleSince = now.Add(-time.Hour)
	if d := s.idle(now); d != 0 {
		t.Errorf("idle for %v with a connection", d)
	}
	c.cprog.close()
	c.sprog.close()
	c.over(t, false)
	if d := s.idle(now.Add(time.Minute)); d != time.Minute {
		t.Errorf("idle for %v, want a minute since it was busy", d)
	}
	s.count(1)
	if d := s.idle(time.Now().Add(time.Hour)); d != 0 {
		t.Errorf("idle for %v with a launcher", d)
	}
	s.count(1)
	s.count(-1)
	if d := s.idle(time.Now().Add(time.Hour)); d != 0 {
		t.Errorf("idle for %v with a launcher of two", d)
	}
	s.count(-1)
	end := time.Now()
	if d := s.idle(end.Add(time.Minute)); d < time.Minute || d > time.Minute+testTime {
		t.Errorf("idle for %v, want a minute since the launcher ended", d)
	}
}
