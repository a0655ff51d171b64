// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"smcr/internal/testing/netnstest"
	clc "smcr/userstack/wire"
)

// copier is a device on the path that puts TCP options of each SYN into the answer.
type copier struct {
	only bool // only the option of SMC, not all that it does not know
	syns map[uint16][]byte
}

// edit carries a frame. The client is the second host.
func (c *copier) edit(frame []byte, first bool) []byte {
	tcp := netnstest.TCPOf(frame)
	if tcp == nil || tcp[13]&2 == 0 { // not a SYN
		return frame
	}
	header := int(tcp[12]>>4) * 4
	if !first {
		c.syns[binary.BigEndian.Uint16(tcp)] = c.copied(tcp[20:header])
		return frame
	}
	opts := append(append([]byte(nil), tcp[20:header]...), c.syns[binary.BigEndian.Uint16(tcp[2:])]...)
	for len(opts)%4 != 0 {
		opts = append(opts, 1)
	}
	out := append(append([]byte(nil), tcp[:20]...), opts...)
	out[12] = byte(len(out)/4)<<4 | out[12]&15
	return netnstest.SetTCP(frame, append(out, tcp[header:]...))
}

// copied returns the options that the device copies.
func (c *copier) copied(opts []byte) (out []byte) {
	for len(opts) > 1 && opts[0] != 0 {
		if opts[0] == 1 {
			opts = opts[1:]
			continue
		}
		n := int(opts[1])
		if n < 2 || n > len(opts) {
			break
		}
		if o := opts[:n]; o[0] > 8 && (!c.only || clc.HasTCPOption(o)) { // the others are those of each host
			out = append(out, o...)
		}
		opts = opts[n:]
	}
	return out
}

// TestOptionCopied: a device on the path copies TCP options of the SYN into the SYN-ACK, so a
// server without SMC seems to speak it.
func TestOptionCopied(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name string
		only bool
	}{
		{"all options", false},
		{"option of SMC", true}, // the server has to read PROPOSAL
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			netnstest.Require(t, "tcpdump", "nsenter", "curl", "python3", "tshark")
			lan := netnstest.NewLAN(t, 2)
			l := &lab{Pair: &netnstest.Pair{A: lan.Hosts[0], B: lan.Hosts[1]}, t: t}
			t.Cleanup(func() { l.stackLog(l.B) })
			dev := &copier{only: test.only, syns: map[uint16][]byte{}}
			lan.Relay(t, dev.edit)
			stack := l.serve(l.B)
			server := l.A.Go(t, "python3", "-c", lineServer, l.A.Addr(), "8080")
			if err := server.WaitOutput("listening", startTime); err != nil {
				t.Fatal(err)
			}
			curl := []string{"curl", "-sS", "-m", "15", "-w", "took %{time_total}\n", "http://" + l.A.Addr() + ":8080/"}
			if native := l.B.Go(t, curl[0], curl[1:]...); native.Wait(endTime) != nil {
				t.Fatalf("curl without smcr run:\n%s", native.Log())
			}
			for i := range 3 {
				w := l.watch()
				p := l.under(l.B, curl...)
				err := p.Wait(endTime)
				log := p.Log()
				if err != nil || !strings.Contains(log, "hello") {
					t.Errorf("connection %d: %v\n%s", i, err, log)
				}
				if !strings.Contains(log, "option-replayed") || !strings.Contains(log, "0 connections over SMC-R, 1 over TCP") {
					t.Errorf("connection %d: no reason:\n%s", i, log)
				}
				var took float64
				if _, after, ok := strings.Cut(log, "took "); ok {
					_, _ = fmt.Sscan(after, &took)
				}
				if took > 5 { // a client that waits for an answer of SMC waits for more than 6 s
					t.Errorf("connection %d took %v s", i, took)
				}
				s := w.stop(t)
				switch {
				case i == 0 && s.SMCSYNs == 0:
					t.Error("the first SYN did not announce SMC")
				case i > 0 && s.SMCSYNs > 0:
					t.Errorf("connection %d announces SMC", i)
				}
			}
			if out := l.smcr(l.B, "--backend", "user", "info", "-o", "table"); !strings.Contains(out, "user 0: ") || !strings.Contains(out, l.A.Addr()+":8080, option-replayed, for ") {
				t.Errorf("info:\n%s", out)
			}
			p := l.under(l.B, "curl", "-sSN", "-m", "300", "http://"+l.A.Addr()+":8080/stay")
			if err := p.WaitOutput("hello", startTime); err != nil {
				t.Fatal(err)
			}
			if out := l.smcr(l.B, "--backend", "user", "connection", "list", "--all"); !strings.Contains(out, "TCP options are copied back") {
				t.Errorf("connection list:\n%s", out)
			}
			if out := l.smcr(l.B, "--backend", "user", "stats", "-o", "json"); !strings.Contains(out, "0x03fb0000") {
				t.Errorf("stats:\n%s", out)
			}
			out, _ := l.try(l.B, "--backend", "user", "check", l.A.Addr()+":8080", "-o", "json")
			if !strings.Contains(out, `"option-replayed"`) || strings.Contains(out, "internal-error") {
				t.Errorf("check:\n%s", out)
			}
			// A stack that has not seen the device yet.
			terminate(t, stack)
			stack = l.serve(l.B)
			out, _ = l.try(l.B, "--backend", "user", "check", l.A.Addr()+":8080", "-o", "json")
			if !strings.Contains(out, `"option-replayed"`) || !json.Valid([]byte(out)) {
				t.Errorf("first check:\n%s", out)
			}
			if test.only {
				return // the option of the server is not a copy
			}
			// A server behind the device that speaks SMC and sends first, and a stack that has not
			// seen the device: both take the connection for TCP at once.
			terminate(t, stack)
			l.serve(l.B)
			l.serve(l.A)
			banner := l.under(l.A, "python3", "-c", holder, l.A.Addr(), "8081")
			if err := banner.WaitOutput("listening", startTime); err != nil {
				t.Fatal(err)
			}
			p = l.under(l.B, "python3", "-c", caller, l.A.Addr(), "8081")
			if err := p.WaitOutput("HTTP/", startTime); err != nil { // otherwise the server resets it after 6 s
				t.Errorf("no banner: %v\n%s", err, p.Log())
			}
		})
	}
}

// lineServer is an HTTP server that answers the first line that it reads, whatever it is, and
// keeps the connection open for the path /stay.
const lineServer = `
import socket, sys
l = socket.create_server((sys.argv[1], int(sys.argv[2])))
print("listening", flush=True)
held = []
while True:
    c, _ = l.accept()
    try:
        line = c.recv(4096)
        if line.startswith(b"GET "):
            c.sendall(b"HTTP/1.0 200 OK\r\n\r\nhello\n")
        else:
            c.sendall(b"HTTP/1.0 400 Bad request\r\n\r\n")
    except OSError:
        pass
    if b"/stay" in line:
        held.append(c)
    else:
        c.close()
`
