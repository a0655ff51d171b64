// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"context"
	"errors"
	"net"
	"runtime"
	"strings"
	"testing"

	"smcr/internal/testing/testkind"
	"smcr/smc"
)

// stacks returns the stacks of all goroutines.
func stacks() string {
	b := make([]byte, 1<<20)
	return string(b[:runtime.Stack(b, true)])
}

// TestAttended: while a rendezvous waits for a peer whose TCP connection an engine watches, there is no goroutine for it, and it ends whatever
// happens. What the peer does is handled by the engine.
func TestAttended(t *testing.T) {
	testkind.System(t)
	for _, test := range []struct {
		name   string
		do     func(peer *net.TCPConn, cancel func(), s *Stack)
		want   func(error) bool
		engine bool // its thread calls done
	}{
		{"data", func(peer *net.TCPConn, _ func(), _ *Stack) { _, _ = peer.Write([]byte("GET / HTTP/1.0\r\n\r\n")) }, func(err error) bool {
			d, ok := errors.AsType[*DeclineError](err)
			return ok && d.Code == ReasonPeerNoSMC
		}, true},
		{"a part of a header, and its time passes", func(peer *net.TCPConn, _ func(), _ *Stack) { _, _ = peer.Write([]byte{0xe2, 0xd4}) },
			func(err error) bool { return err != nil }, false},
		{"end", func(peer *net.TCPConn, _ func(), _ *Stack) { _ = peer.Close() }, func(err error) bool { return err != nil }, true},
		{"reset", func(peer *net.TCPConn, _ func(), _ *Stack) { _ = peer.SetLinger(0); _ = peer.Close() }, func(err error) bool { return err != nil }, true},
		{"the context ends", func(_ *net.TCPConn, cancel func(), _ *Stack) { cancel() }, func(err error) bool { return errors.Is(err, context.Canceled) }, false},
		{"the stack ends", func(_ *net.TCPConn, _ func(), s *Stack) { _ = s.Close() }, func(err error) bool { return errors.Is(err, ErrStackClosed) }, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			s, err := New(Config{NoEngine: true})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			ln, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer ln.Close()
			c, err := net.Dial("tcp", ln.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			peer, err := ln.Accept()
			if err != nil {
				t.Fatal(err)
			}
			defer peer.Close()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			type result struct {
				err error
				by  string
			}
			done := make(chan result, 2)
			s.attend(ctx, watch(t, c.(*net.TCPConn)), smc.Server, lookConfig(true, noCLC()), func(_ *Conn, err error) {
				b := make([]byte, 1<<16)
				done <- result{err, string(b[:runtime.Stack(b, false)])}
			})
			select {
			case r := <-done:
				t.Fatalf("it has ended before anything happened: %v", r.err)
			default:
			}
			if all := stacks(); strings.Contains(all, "userstack.(*handshake)") || strings.Contains(all, "userstack.(*tcpReader)") {
				t.Fatalf("a goroutine waits:\n%s", all)
			}
			test.do(peer.(*net.TCPConn), cancel, s)
			r := <-done
			if !test.want(r.err) {
				t.Errorf("it ended with %v", r.err)
			}
			if got := strings.Contains(r.by, "engine.(*Loop).run"); got != test.engine {
				t.Errorf("called by the engine: %t, want %t:\n%s", got, test.engine, r.by)
			}
			select {
			case r := <-done:
				t.Errorf("it has ended twice, with %v", r.err)
			default:
			}
		})
	}
}
