// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/nettest"
	"golang.org/x/sys/unix"

	"smcr/internal/testing/netnstest"
	"smcr/internal/testing/testkind"
)

// engines are the ways to move the packets of a stack.
var engines = map[string]Config{
	"engine":   {},
	"no spin":  {Spin: -1},
	"long":     {Spin: 300 * time.Microsecond},
	"none":     {NoEngine: true},
	"version1": {NoVersion2: true},
}

// testEngines runs a test with each engine, in the short form with one.
func testEngines(t *testing.T, test func(t *testing.T, cfg Config)) {
	for name, cfg := range engines {
		if testing.Short() && name != "engine" {
			continue
		}
		t.Run(name, func(t *testing.T) { test(t, cfg) })
	}
}

// hosts are two stacks on two hosts, over software RoCE.
type hosts struct {
	client, server *Stack
	l              net.Listener
	addr           string
}

func newHosts(t testing.TB, p *netnstest.Pair, cfg Config) *hosts {
	t.Helper()
	h := &hosts{addr: p.A.Addr() + ":7777"}
	stack := func(at *netnstest.Host) (s *Stack) {
		if err := at.Do(func() (err error) { s, err = New(cfg); return err }); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
			if n := s.driver.MemoryInUse(); n != 0 {
				t.Errorf("%d bytes of memory are still handed out", n)
			}
		})
		return s
	}
	h.server, h.client = stack(p.A), stack(p.B)
	if err := p.A.Do(func() (err error) { h.l, err = h.server.Listen("tcp", ":7777"); return err }); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.l.Close() })
	return h
}

// connect returns both ends of an SMC-R connection.
func (h *hosts) connect(p *netnstest.Pair) (c, s *Conn, err error) {
	type accepted struct {
		c   net.Conn
		err error
	}
	ch := make(chan accepted, 1)
	go func() {
		c, err := h.l.Accept()
		ch <- accepted{c, err}
	}()
	var nc net.Conn
	if err := p.B.Do(func() (err error) { nc, err = h.client.Dial("tcp", h.addr); return err }); err != nil {
		return nil, nil, err
	}
	a := <-ch
	if a.err != nil {
		return nil, nil, a.err
	}
	c, ok1 := AsConn(nc)
	s, ok2 := AsConn(a.c)
	if !ok1 || !ok2 {
		return nil, nil, fmt.Errorf("%T and %T are no SMC-R connections", nc, a.c)
	}
	return c, s, nil
}

// TestNetConnRoCE runs the suite of golang.org/x/net on connections over software
// RoCE, with and without an engine.
func TestNetConnRoCE(t *testing.T) {
	p := netnstest.New(t, netnstest.Options{MTU: 9000})
	testEngines(t, func(t *testing.T, cfg Config) {
		h := newHosts(t, p, cfg)
		swap := false
		nettest.TestConn(t, func() (c1, c2 net.Conn, stop func(), err error) {
			c, s, err := h.connect(p)
			if err != nil {
				return nil, nil, nil, err
			}
			c1, c2 = c, s
			if swap = !swap; swap {
				c1, c2 = s, c
			}
			return c1, c2, func() { c.Close(); s.Close() }, nil
		})
	})
}

// TestEngineEnds: after Close no thread, goroutine or descriptor is left.
func TestEngineEnds(t *testing.T) {
	p := netnstest.New(t, netnstest.Options{})
	count := func() (fds, goroutines int) {
		list, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(list), runtime.NumGoroutine()
	}
	once := func() {
		t.Run("stacks", func(t *testing.T) {
			h := newHosts(t, p, Config{})
			c, s, err := h.connect(p)
			if err != nil {
				t.Fatal(err)
			}
			if h.client.loop == nil {
				t.Error("a stack with nothing configured has no engine")
			}
			go s.Write([]byte("x"))
			if _, err := c.Read(make([]byte, 1)); err != nil {
				t.Error(err)
			}
			go c.Read(make([]byte, 1)) // Close ends it
		})
	}
	once() // opens descriptors that stay open
	fds, goroutines := count()
	once()
	testkind.Eventually(t, fmt.Sprintf("more than %d descriptors and %d goroutines", fds, goroutines), func() (any, bool) {
		f, g := count()
		return []int{f, g}, f <= fds && g <= goroutines
	})
}

// TestStreamsRoCE sends data both ways at the same time, with Write and Read and with
// Peek and Reserve, while other connections exchange single bytes: drivers, helpers and
// the thread of the engine take turns.
func TestStreamsRoCE(t *testing.T) {
	p := netnstest.New(t, netnstest.Options{MTU: 9000})
	testEngines(t, func(t *testing.T, cfg Config) {
		h := newHosts(t, p, cfg)
		var wg sync.WaitGroup
		for i := range 6 {
			c, s, err := h.connect(p)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			defer s.Close()
			for _, x := range []*Conn{c, s} {
				_ = x.SetDeadline(time.Now().Add(time.Minute))
			}
			if i%2 == 0 {
				wg.Go(func() { pingPong(t, c, s) })
				continue
			}
			data := pattern(uint64(i), 1<<20)
			for _, ends := range [][2]*Conn{{c, s}, {s, c}} {
				wg.Go(func() {
					if err := send(ends[0], data, i == 1); err != nil {
						t.Error(err)
					}
				})
				wg.Go(func() {
					got, err := receive(ends[1], i == 1)
					if err != nil || !bytes.Equal(got, data) {
						t.Errorf("%d bytes of %d, %v", len(got), len(data), err)
					}
				})
			}
		}
		wg.Wait()
	})
}

func pingPong(t *testing.T, c, s *Conn) {
	go func() { _, _ = io.Copy(struct{ io.Writer }{s}, struct{ io.Reader }{s}) }()
	var b [1]byte
	for i := range 500 {
		if _, err := c.Write([]byte{byte(i)}); err != nil {
			t.Error(err)
			return
		}
		if _, err := c.Read(b[:]); err != nil || b[0] != byte(i) {
			t.Errorf("%d: %d, %v", i, b[0], err)
			return
		}
	}
}

// send writes data and then closes the direction.
func send(c *Conn, data []byte, direct bool) error {
	for len(data) > 0 && direct {
		a, b, err := c.Reserve(1)
		if err != nil {
			return err
		}
		n := copy(a, data)
		n += copy(b, data[n:])
		if err := c.Commit(n); err != nil {
			return err
		}
		data = data[n:]
	}
	if _, err := c.Write(data); err != nil {
		return err
	}
	return c.CloseWrite()
}

func receive(c *Conn, direct bool) (got []byte, err error) {
	if !direct {
		return io.ReadAll(struct{ io.Reader }{c})
	}
	for {
		a, b, err := c.Peek(1)
		if err == io.EOF {
			return got, nil
		}
		if err != nil {
			return got, err
		}
		got = append(append(got, a...), b...)
		if _, err := c.Discard(len(a) + len(b)); err != nil {
			return got, err
		}
	}
}

// TestAllocsRoCE: reading and writing allocate nothing, neither in the program's
// goroutine nor in the engine.
func TestAllocsRoCE(t *testing.T) {
	if raceDetector() {
		t.Skip("pools drop buffers under the race detector: go test -run TestAllocsRoCE ./userstack")
	}
	runs := 200
	if testing.Short() { // what each call allocates is found as well
		runs = 50
	}
	p := netnstest.New(t, netnstest.Options{MTU: 9000})
	for name, cfg := range engines {
		if cfg.NoEngine { // its goroutines wait in Go's poller
			continue
		}
		t.Run(name, func(t *testing.T) {
			h := newHosts(t, p, cfg)
			c, s, err := h.connect(p)
			if err != nil {
				t.Fatal(err)
			}
			buf, in := make([]byte, 32<<10), make([]byte, 32<<10)
			for what, f := range map[string]func() error{
				"Write and Read": func() error {
					if _, err := c.Write(buf); err != nil {
						return err
					}
					for n := 0; n < len(in); {
						m, err := s.Read(in[n:])
						if err != nil {
							return err
						}
						n += m
					}
					return nil
				},
				"Peek and Reserve": func() error {
					if _, _, err := c.Reserve(len(buf)); err != nil {
						return err
					}
					if err := c.Commit(len(buf)); err != nil {
						return err
					}
					if _, _, err := s.Peek(len(buf)); err != nil {
						return err
					}
					_, err := s.Discard(len(buf))
					return err
				},
			} {
				for range 50 { // fills the pools
					if err := f(); err != nil {
						t.Fatal(err)
					}
				}
				// Timers of the runtime also allocate, and so do pools after a garbage
				// collection, and packets that are sent again. On a busy machine this can
				// be much in one attempt, but not in all of them.
				least := math.Inf(1)
				for try := 0; try < 10 && least > 0; try++ {
					least = min(least, testing.AllocsPerRun(runs, func() {
						if err := f(); err != nil {
							t.Fatal(err)
						}
					}))
				}
				if least > 0 {
					t.Errorf("%s: %.1f allocations", what, least)
				}
			}
		})
	}
}

// TestUrgentEndsRide: an urgent byte that arrived before SetOOBInline is not in the
// stream. It is passed to goroutines at once, even if no data follows it.
func TestUrgentEndsRide(t *testing.T) {
	p := netnstest.New(t, netnstest.Options{})
	h := newHosts(t, p, Config{})
	c, s, err := h.connect(p)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	defer s.Close()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fds[1])
	sock, err := s.d.Carried.Loop().NewSocket(fds[0])
	if err != nil {
		t.Fatal(err)
	}
	defer sock.Close()
	s.d.Carried.Attach(sock)
	defer s.d.Carried.Detach()
	back := make(chan struct{})
	if !s.d.Carried.Ride(func() { close(back) }) {
		t.Fatal("it does not ride")
	}
	if _, err := c.Write([]byte("data")); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 10)
	if err := netnstest.Until(testkind.Patience, func() error {
		n, err := unix.Read(fds[1], buf)
		if err == nil && string(buf[:n]) != "data" {
			err = fmt.Errorf("read %q", buf[:n])
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	select {
	case <-back:
		t.Fatal("plain data ended the ride")
	default:
	}
	if _, err := c.WriteUrgent([]byte("!")); err != nil {
		t.Fatal(err)
	}
	select {
	case <-back:
	case <-time.After(testkind.Patience):
		t.Error("the ride goes on over an urgent byte")
	}
}

// raceDetector reports whether the test runs with the race detector, under which
// sync.Pool drops values.
func raceDetector() bool {
	info, ok := debug.ReadBuildInfo()
	return ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
}
