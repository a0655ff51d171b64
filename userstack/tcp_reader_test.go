// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"bytes"
	"io"
	"net"
	"testing"
	"time"

	"smcr/internal/testing/testkind"
	"smcr/smc"
	"smcr/userstack/wire"
)

// TestReaderRest: what has arrived when a read is stopped is found, also if the read has not looked
// again, and not a byte behind the message. A host that stands still while the peer declines would
// otherwise decline as well, after the peer has stopped to wait for that, and its program would read
// a DECLINE.
func TestReaderRest(t *testing.T) {
	testkind.System(t)
	const data = "data of the program"
	decline, err := wire.Decline{Version: wire.Version1, PeerID: smc.PeerID{1}, Diagnosis: smc.DiagMem}.AppendBinary(nil)
	if err != nil {
		t.Fatal(err)
	}
	test := func(t *testing.T, peer io.Writer, tcp TCPConn) {
		r := tcpReader{tcp: tcp}
		defer r.close()
		send := func(b []byte) {
			t.Helper()
			if _, err := peer.Write(b); err != nil {
				t.Fatal(err)
			}
			time.Sleep(50 * time.Millisecond)
		}
		if got := r.rest(); len(got) != 0 {
			t.Errorf("%d bytes before any were sent", len(got))
		}
		r.request(readRequest{})
		if got := r.stop(); len(got) != 0 {
			t.Errorf("%d bytes before any were sent", len(got))
		}
		_ = tcp.SetReadDeadline(longAgo) // the deadline of stop, before the read has looked again
		send(decline[:10])
		if got := r.rest(); !bytes.Equal(got, decline[:10]) {
			t.Errorf("% x of a message, want % x", got, decline[:10])
		}
		send(append(decline[10:], data...))
		if got := r.rest(); !bytes.Equal(got, decline[10:]) {
			t.Errorf("the rest is % x, want % x", got, decline[10:])
		}
		if r.took != len(decline) {
			t.Errorf("%d bytes taken, want %d", r.took, len(decline))
		}
		_ = tcp.SetReadDeadline(time.Time{})
		left := make([]byte, len(data))
		if _, err := io.ReadFull(tcp, left); err != nil || string(left) != data {
			t.Errorf("then the program reads %q, %v", left, err)
		}
	}
	t.Run("kernel", func(t *testing.T) {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer ln.Close()
		peer, err := net.Dial("tcp", ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer peer.Close()
		c, err := ln.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		test(t, peer, c.(TCPConn))
	})
	t.Run("simulated", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			b := newBed(t, bedConfig{})
			c, s := b.tcp()
			test(t, c, s)
			_, _ = c.Close(), s.Close()
		})
	})
}
