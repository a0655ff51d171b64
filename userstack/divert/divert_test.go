// SPDX-License-Identifier: Apache-2.0

package divert

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"smcr/internal/testing/netnstest"
	"smcr/internal/testing/testkind"
	"smcr/smc"
)

// bed is two hosts with a Diverter each.
type bed struct {
	*netnstest.Pair
	t     *testing.T
	d     [2]*Diverter
	taken [2]atomic.Int64
	// control sees the sockets that dial makes, before they connect.
	control func(network, address string, c syscall.RawConn) error
}

// agree stands for CLC: the client asks, the server answers.
func agree(f *Flow) error {
	const question, answer = "may I", "you may"
	outer, err := f.Outer()
	if err != nil {
		return err
	}
	says, hears := question, answer
	if f.Role == smc.Server {
		says, hears = answer, question
	} else if _, err := io.WriteString(outer, says); err != nil {
		return err
	}
	// What the peer's program sends may follow at once.
	b := make([]byte, len(hears))
	if _, err := io.ReadFull(outer, b); err != nil || string(b) != hears {
		return fmt.Errorf("%v got %q: %w", f.Role, b, err)
	}
	if f.Role == smc.Server {
		if _, err := io.WriteString(outer, says); err != nil {
			return err
		}
	}
	return nil
}

func newBed(t *testing.T, handle func(*bed, *Flow)) *bed {
	t.Helper()
	return newBedWith(t, handle, func(*Config) {})
}

func newBedWith(t *testing.T, handle func(*bed, *Flow), tune func(*Config)) *bed {
	t.Helper()
	return newBedOf(t, netnstest.Options{}, handle, tune)
}

func newBedOf(t *testing.T, o netnstest.Options, handle func(*bed, *Flow), tune func(*Config)) *bed {
	t.Helper()
	netnstest.Require(t)
	b := &bed{Pair: netnstest.New(t, o), t: t}
	for i, h := range []*netnstest.Host{b.A, b.B} {
		b.must(h.Do(func() (err error) {
			cfg := Config{Log: slog.New(slog.NewTextHandler(t.Output(), nil)), Handle: func(_ context.Context, f *Flow, handled func()) {
				b.taken[i].Add(1)
				go func() {
					defer handled()
					handle(b, f)
				}()
			}}
			tune(&cfg)
			b.d[i], err = New(cfg)
			return err
		}))
		t.Cleanup(func() {
			if err := b.d[i].Close(); err != nil {
				t.Errorf("close: %v", err)
			}
		})
		for _, l := range h.Links {
			b.must(b.d[i].AddDevice(b.index(h, l.Name)))
		}
		b.must(b.d[i].Attach(ownCgroup(t), Does{Connect: true, Accept: true}))
	}
	return b
}

func (b *bed) must(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
}

func (b *bed) index(h *netnstest.Host, name string) (index int) {
	b.must(h.Do(func() error {
		i, err := net.InterfaceByName(name)
		if err == nil {
			index = i.Index
		}
		return err
	}))
	return index
}

// ownCgroup returns the number of the cgroup of this process.
func ownCgroup(t *testing.T) uint64 {
	t.Helper()
	text, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if path, ok := strings.CutPrefix(strings.TrimSpace(line), "0::"); ok {
			st, err := os.Stat("/sys/fs/cgroup" + path)
			if err != nil {
				t.Skipf("needs cgroup2 at /sys/fs/cgroup: %v", err)
			}
			return st.Sys().(*syscall.Stat_t).Ino
		}
	}
	t.Skip("needs cgroup2")
	return 0
}

// listen listens on B.
func (b *bed) listen(address string) (l net.Listener) {
	b.must(b.B.Do(func() (err error) {
		l, err = net.Listen("tcp", net.JoinHostPort(address, "0"))
		return err
	}))
	b.t.Cleanup(func() { l.Close() })
	return l
}

// dial connects from A to B.
func (b *bed) dial(l net.Listener) (c *net.TCPConn) {
	b.t.Helper()
	b.must(b.A.Do(func() error {
		x, err := (&net.Dialer{Control: b.control}).Dial("tcp", l.Addr().String())
		if err == nil {
			c = x.(*net.TCPConn)
		}
		return err
	}))
	b.t.Cleanup(func() { c.Close() })
	return c
}

// cases counts the cases of a test that has very many. The short form has every fourth.
type cases int

func (c *cases) skips() bool {
	*c++
	return testing.Short() && *c%4 != 1
}

// splice is what a stack does that declines.
func splice(b *bed, f *Flow) {
	if err := agree(f); err != nil {
		b.t.Errorf("%v, %v: %v", f.Role, f.Tuple, err)
		f.Reset()
		return
	}
	if err := f.Splice(); err != nil && f.d.ctx.Err() == nil {
		b.t.Errorf("%v, %v: %v", f.Role, f.Tuple, err)
	}
}

// carry is what a stack does that carries a connection: it has the program's bytes, by a descriptor that it gives back. ok is false if
// the test has failed.
func (b *bed) carry(f *Flow) (fd int, giveBack func(), ok bool) {
	b.t.Helper()
	err := agree(f)
	if err == nil {
		fd, giveBack, err = f.Split()
	}
	if err != nil {
		b.t.Errorf("%v: %v", f.Role, err)
		f.Reset()
	}
	return fd, giveBack, err == nil
}

func TestTaken(t *testing.T) {
	testkind.System(t)
	t.Parallel()
	b := newBed(t, splice)
	for _, address := range []string{b.B.Addr(), b.B.Addr6()} {
		t.Run(address, func(t *testing.T) {
			before := [2]int64{b.taken[0].Load(), b.taken[1].Load()}
			l := b.listen(address)
			sum := make(chan string, 1)
			go func() {
				c, err := l.Accept()
				if err != nil {
					sum <- err.Error()
					return
				}
				defer c.Close()
				h := sha256.New()
				n, err := io.Copy(h, c)
				_, _ = fmt.Fprintf(c, "%d %x %v", n, h.Sum(nil), err)
				sum <- ""
			}()
			c := b.dial(l)
			data := make([]byte, 32<<20)
			_, _ = rand.NewChaCha8([32]byte{1}).Read(data)
			if _, err := c.Write(data); err != nil {
				t.Fatal(err)
			}
			if err := c.CloseWrite(); err != nil {
				t.Fatal(err)
			}
			got, err := io.ReadAll(c)
			if err != nil {
				t.Fatal(err)
			}
			if want := fmt.Sprintf("%d %x <nil>", len(data), sha256.Sum256(data)); string(got) != want {
				t.Errorf("server got %q, want %q", got, want)
			}
			if s := <-sum; s != "" {
				t.Error(s)
			}
			for i := range b.taken {
				if n := b.taken[i].Load() - before[i]; n != 1 {
					t.Errorf("host %d took %d connections, want 1", i, n)
				}
			}
		})
	}
}
