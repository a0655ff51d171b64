// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"smcr/internal/testing/testkind"
)

// limit is many times what an idle machine needs.
const limit = testkind.Patience

// serveLoopback starts a server, and returns its address.
func serveLoopback(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	udp, err := net.ListenPacket("udp4", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { Serve(ctx, ln, udp, func(err error) { t.Error(err) }) })
	t.Cleanup(func() { cancel(); wg.Wait() })
	return ln.Addr().String()
}

// newClient returns a client that connects by TCP.
func newClient(address string) *Client {
	return &Client{
		Dial: (&net.Dialer{}).DialContext, Address: address, Seed: 7,
		ConnectTime: limit, HungTime: limit, Pause: time.Millisecond,
	}
}

// run has a client execute commands, each after the one before, and returns what it wrote.
// between is called before the last command.
func run(t *testing.T, c *Client, between func(), commands ...string) (list []Line) {
	t.Helper()
	inR, inW := io.Pipe()
	outR, outW := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		ended <- c.Run(t.Context(), inR, outW)
		outW.Close()
	}()
	next := func(i int) {
		if i == len(commands)-1 {
			between()
		}
		if i == len(commands) {
			inW.Close()
			return
		}
		go fmt.Fprintln(inW, commands[i])
	}
	next(0)
	done := 0
	for dec := json.NewDecoder(outR); ; {
		var l Line
		if err := dec.Decode(&l); err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		list = append(list, l)
		if l.Done != "" {
			if l.Done != commands[done] {
				t.Errorf("%q is done, want %q", l.Done, commands[done])
			}
			done++
			next(done)
		}
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
	return list
}

// last returns the counts of a kind at the end, and the failures.
func last(list []Line, kind string) (t Tally, failures []Failure) {
	for _, l := range list {
		if got, ok := l.Tallies[kind]; ok {
			t = got
		}
		if l.Failure != nil {
			failures = append(failures, *l.Failure)
		}
	}
	return t, failures
}

// TestKinds: each kind of traffic moves bytes and finds nothing wrong.
func TestKinds(t *testing.T) {
	testkind.System(t)
	address := serveLoopback(t)
	for _, kind := range Kinds() {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			c := newClient(address)
			list := run(t, c, func() {
				testkind.Eventually(t, "there is traffic", func() (any, bool) {
					n := c.counts[kind].tally()
					return n, n.Bytes > 0 && (kind == "udp" || n.Conns > 0)
				})
			}, "start "+kind+" 2", "stop")
			got, failures := last(list, kind)
			if len(failures) > 0 {
				t.Errorf("failures: %+v", failures)
			}
			if got.Bytes == 0 || got.Open != 0 || kind != "udp" && (got.Conns == 0 || got.Conns != got.Tried) {
				t.Errorf("%+v", got)
			}
		})
	}
}

// TestHeld: connections that are held stay open, carry bytes again, and end.
func TestHeld(t *testing.T) {
	testkind.System(t)
	c := newClient(serveLoopback(t))
	list := run(t, c, func() {}, "batch 30 4", "hold 20 4", "exchange 4", "hold 25 4", "release 4")
	open := map[string]int64{}
	var tally Tally
	for _, l := range list {
		if l.Tallies != nil {
			tally = l.Tallies[Held]
		}
		if l.Done != "" {
			open[l.Done] = tally.Open
		}
	}
	for command, want := range map[string]int64{"batch 30 4": 0, "hold 20 4": 20, "exchange 4": 20, "hold 25 4": 25, "release 4": 0} {
		if open[command] != want {
			t.Errorf("after %q, %d connections are open, want %d", command, open[command], want)
		}
	}
	if got, failures := last(list, Batch); got.Conns != 30 || len(failures) > 0 {
		t.Errorf("%+v, failures %+v", got, failures)
	}
}

// TestFill: each held connection carries as many bytes as were asked for, both ways.
func TestFill(t *testing.T) {
	testkind.System(t)
	const conns, each = 5, 100_000
	var before, after int64
	for _, l := range run(t, newClient(serveLoopback(t)), func() {}, "hold 5 4", "fill 100000 4", "release 4") {
		switch {
		case l.Failure != nil:
			t.Errorf("%+v", l.Failure)
		case l.Tallies != nil:
			after = l.Tallies[Held].Bytes
		case l.Done == "hold 5 4":
			before = after
		}
	}
	if after-before != conns*each {
		t.Errorf("%d bytes came back, want %d", after-before, conns*each)
	}
}

// TestReset: the server sees that the connections are reset.
func TestReset(t *testing.T) {
	testkind.System(t)
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	const conns = 3
	ends := make(chan error, conns)
	go func() {
		for range conns {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_, err := io.Copy(c, struct{ io.Reader }{c})
				ends <- err
			}()
		}
	}()
	got, failures := last(run(t, newClient(ln.Addr().String()), func() {}, "hold 3 1", "reset 2"), Held)
	if len(failures) > 0 || got.Open != 0 {
		t.Errorf("%+v, failures %+v", got, failures)
	}
	for range conns {
		if err := <-ends; !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("the server reads %v, want %v", err, syscall.ECONNRESET)
		}
	}
}

// TestFindsFailures: a server that changes, loses, adds or delays bytes is found out.
func TestFindsFailures(t *testing.T) {
	testkind.System(t)
	for name, c := range map[string]struct {
		want Class
		echo func(c net.Conn, b []byte)
	}{
		"changed": {Corrupt, func(c net.Conn, b []byte) { b[len(b)-1] ^= 1; c.Write(b) }},
		"lost":    {Corrupt, func(c net.Conn, b []byte) { c.Write(b[:len(b)-1]); c.Close() }},
		"nothing": {Hung, func(net.Conn, []byte) {}},
		"reset":   {Refused, func(c net.Conn, _ []byte) { c.(*net.TCPConn).SetLinger(0); c.Close() }},
	} {
		t.Run(name, func(t *testing.T) {
			ln, err := net.Listen("tcp4", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer ln.Close()
			go func() {
				for {
					conn, err := ln.Accept()
					if err != nil {
						return
					}
					b := make([]byte, 4096)
					if n, err := conn.Read(b); err == nil {
						c.echo(conn, b[:n])
					}
				}
			}()
			client := newClient(ln.Addr().String())
			if c.want == Hung {
				client.HungTime = 200 * time.Millisecond
			}
			_, failures := last(run(t, client, func() {}, "batch 1 1"), Batch)
			if len(failures) != 1 || failures[0].Class != c.want {
				t.Errorf("%+v, want one failure: %s", failures, c.want)
			}
		})
	}
	t.Run("refused", func(t *testing.T) {
		ln, err := net.Listen("tcp4", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		ln.Close()
		_, failures := last(run(t, newClient(ln.Addr().String()), func() {}, "batch 1 1"), Batch)
		if len(failures) != 1 || failures[0].Class != Refused {
			t.Errorf("%+v, want one failure: %s", failures, Refused)
		}
	})
}

// TestFindsEnd: a connection that ends after its first use has ended, and was not refused.
func TestFindsEnd(t *testing.T) {
	testkind.System(t)
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	go func() {
		conn, err := ln.Accept()
		if err != nil {
			return
		}
		b := make([]byte, 4096)
		for range 2 {
			n, _ := conn.Read(b)
			conn.Write(b[:n])
		}
		conn.(*net.TCPConn).SetLinger(0)
		conn.Close()
	}()
	_, failures := last(run(t, newClient(ln.Addr().String()), func() {}, "hold 1 1", "exchange 1", "exchange 1"), Held)
	if len(failures) != 1 || failures[0].Class != Ended {
		t.Errorf("%+v, want one failure: %s", failures, Ended)
	}
}

// TestCommands: what is no command is an error.
func TestCommands(t *testing.T) {
	testkind.System(t)
	for _, bad := range []string{"walk", "start", "start short", "start long 1", "start short 0", "batch 1", "hold x 1", "stop 1", "fill 1", "reset"} {
		if err := newClient("127.0.0.1:1").Run(t.Context(), strings.NewReader(bad+"\n"), io.Discard); err == nil {
			t.Errorf("%q is no error", bad)
		}
	}
}

// TestStream: the sequence is the same however it is cut, and a byte that differs is found
// at its place.
func TestStream(t *testing.T) {
	whole := make([]byte, 1000)
	(&stream{seed: 3}).fill(whole)
	s, c := stream{seed: 3}, stream{seed: 3}
	for rest := whole; len(rest) > 0; {
		n := min(len(rest), 1+int(s.at)%13)
		part := make([]byte, n)
		s.fill(part)
		if !bytes.Equal(part, rest[:n]) {
			t.Fatalf("other bytes at %d", s.at)
		}
		if err := c.check(part); err != nil {
			t.Fatal(err)
		}
		rest = rest[n:]
	}
	for at := range whole {
		bad := bytes.Clone(whole)
		bad[at] ^= 0x10
		err, ok := (&stream{seed: 3}).check(bad).(*CorruptError)
		if !ok || err.At != uint64(at) {
			t.Fatalf("byte %d is changed: %v", at, err)
		}
	}
	if other := (&stream{seed: 4}).check(whole); other == nil {
		t.Error("two seeds have the same bytes")
	}
}
