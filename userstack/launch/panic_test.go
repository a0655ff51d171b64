// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/testkind"
	"smcr/userstack/broker"
)

// planted is a session whose methods panic: Connect to one address, the first Listen, and
// the first Accept. They run within the answers to calls of the program.
type planted struct {
	Broker
	bad            netip.AddrPort
	listen, accept sync.Once
}

func (p *planted) Connect(sock int, req broker.ConnectRequest) (*broker.ClientConn, error) {
	if req.Remote == p.bad {
		panic("planted in connect")
	}
	return p.Broker.Connect(sock, req)
}

func (p *planted) Listen(ctx context.Context, sock int) error {
	p.listen.Do(func() { panic("planted in listen") })
	return p.Broker.Listen(ctx, sock)
}

func (p *planted) Accept(sock int, local, remote netip.AddrPort) (*broker.ClientConn, error) {
	p.accept.Do(func() { panic("planted in accept") })
	return p.Broker.Accept(sock, local, remote)
}

// lockedBuffer is the log of a launcher.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// TestPanicInCall plants panics in the answers to connect(), listen() and accept(). connect()
// and accept() fail with ECONNABORTED, and the kernel does listen(). The program, its other connections and further calls
// go on, also on the same sockets. Each panic is in the log once, and is counted.
func TestPanicInCall(t *testing.T) {
	testkind.System(t)
	const calls = 3 + 1 + 1 // of probeUnlucky: connect, listen, accept
	good := echoServer(t, "tcp4", "127.0.0.1:0", "")
	bad := echoServer(t, "tcp4", "127.0.0.1:0", "")
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	stack := &fakeStack{t: t}
	log := &lockedBuffer{}
	p := start(t, Config{
		Argv: []string{exe, bad, good}, Env: append(os.Environ(), probeEnv+"=unlucky", quietRuntime),
		Broker: &planted{Broker: stack.client(), bad: netip.MustParseAddrPort(bad)},
		Log:    slog.New(slog.NewTextHandler(log, nil)),
	})
	native, taken := p.line(t), p.line(t)
	// The connection whose accept() fails ends. The others work.
	for i, addr := range []string{native, taken, taken} {
		ends := i == 1
		c, err := net.Dial("tcp4", addr)
		if ends && errors.Is(err, unix.ECONNRESET) {
			continue // it has ended before Dial looked at it
		}
		if err != nil {
			t.Fatalf("%v\n%s", err, log)
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(patience))
		_, _ = io.WriteString(c, "hello")
		b := make([]byte, 5)
		_, err = io.ReadFull(c, b)
		if ends && (err == nil || errors.Is(err, os.ErrDeadlineExceeded)) {
			t.Errorf("the connection whose accept() failed has not ended: %q, %v", b, err)
		}
		if !ends && (err != nil || string(b) != "hello") {
			t.Errorf("connection %d: %q, %v", i, b, err)
		}
	}
	if res := p.wait(t); res.status != 0 || res.stats.Panics != calls {
		t.Errorf("status %d, %d panics counted, want %d\n%s%s", res.status, res.stats.Panics, calls, res.out, log)
	} else if smc := res.stats.ByMode[broker.ModeSMCR]; smc != 4 {
		t.Errorf("%d connections over SMC-R, want 4: %+v", smc, res.stats)
	}
	for what, n := range map[string]int{"connect": 3, "listen": 1, "accept": 1} {
		if got := strings.Count(log.String(), "panic=\"planted in "+what+"\""); got != n {
			t.Errorf("%d panics in %s are in the log, want %d", got, what, n)
		}
	}
	if n := strings.Count(log.String(), "level=ERROR"); n != calls {
		t.Errorf("%d errors in the log, want %d:\n%s", n, calls, log)
	}
}

// probeUnlucky makes calls whose answers panic, and others beside them.
func probeUnlucky(args []string) error {
	bad, _, _ := sockaddrOf(args[0])
	good, _, _ := sockaddrOf(args[1])
	socket := func(flags int) int {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|flags, 0)
		if err != nil {
			panic(err)
		}
		return fd
	}
	before := socket(0)
	if err := unix.Connect(before, good); err != nil {
		return err
	}
	for _, flags := range []int{0, unix.SOCK_NONBLOCK} {
		fd := socket(flags)
		for range 2 - flags/unix.SOCK_NONBLOCK {
			if err := unix.Connect(fd, bad); !errors.Is(err, unix.ECONNABORTED) {
				return fmt.Errorf("connect with a panic: %v", err)
			}
		}
		// The same socket can be used for another connection.
		if err := unix.Connect(fd, good); err != nil && !errors.Is(err, unix.EINPROGRESS) {
			return fmt.Errorf("connect after a panic: %w", err)
		}
		if err := pollOnce(fd); err != nil {
			return err
		}
		if err := echo(fd, "after the panic"); err != nil {
			return err
		}
	}
	var listening [2]int
	for i := range listening {
		listening[i] = socket(0)
		if err := unix.Bind(listening[i], &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
			return err
		}
		if err := unix.Listen(listening[i], 8); err != nil {
			return fmt.Errorf("listen %d: %w", i, err)
		}
		name, err := unix.Getsockname(listening[i])
		if err != nil {
			return err
		}
		fmt.Println(toAddrPort(name))
	}
	if err := serveUnlucky(listening[0]); err != nil {
		return fmt.Errorf("the socket of the listen with a panic: %w", err)
	}
	if _, _, err := acceptAgain(listening[1], 0); !errors.Is(err, unix.ECONNABORTED) {
		return fmt.Errorf("accept with a panic: %v", err)
	}
	if err := serveUnlucky(listening[1]); err != nil {
		return fmt.Errorf("after the panic in accept: %w", err)
	}
	return echo(before, "a connection from before the panics")
}

// serveUnlucky accepts a connection and sends back what it reads from it.
func serveUnlucky(l int) error {
	fd, _, err := acceptAgain(l, 0)
	if err != nil {
		return err
	}
	b := make([]byte, 5)
	for n := 0; n < len(b); {
		m, err := unix.Read(fd, b[n:])
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if m == 0 || err != nil {
			return fmt.Errorf("read: %d, %w", m, err)
		}
		n += m
	}
	_, err = unix.Write(fd, b)
	return err
}
