// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/binary"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"smcr/internal/testing/netnstest"
	"smcr/quota"
	clc "smcr/userstack/wire"
)

// announce has each SYN of the second host announce SMC, as a host of the LAN may that speaks
// something else afterwards.
func announce(frame []byte, first bool) []byte {
	return announceFlags(frame, first, func(flags byte) bool { return flags&18 == 2 }) // a SYN, and no SYN-ACK
}

// announceFlags has packets of the second host with some flags announce SMC.
func announceFlags(frame []byte, first bool, which func(flags byte) bool) []byte {
	tcp := netnstest.TCPOf(frame)
	if first || tcp == nil || !which(tcp[13]) {
		return frame
	}
	opts := clc.AppendTCPOption(append([]byte(nil), tcp[20:int(tcp[12]>>4)*4]...))
	for len(opts)%4 != 0 {
		opts = append(opts, 1)
	}
	if len(opts) > 40 {
		return frame
	}
	out := append(append([]byte(nil), tcp[:20]...), opts...)
	out[12] = byte(len(out)/4)<<4 | out[12]&15
	binary.BigEndian.PutUint16(out[16:], 0)
	return netnstest.SetTCP(frame, append(out, tcp[int(tcp[12]>>4)*4:]...))
}

// garbler makes connections, and ends each within a message of CLC.
const garbler = `
import socket, sys
host, n = sys.argv[1], int(sys.argv[2])
for i in range(n):
    try:
        with socket.create_connection((host, 7700), timeout=20) as c:
            c.sendall(b'\xe2\xd4\xc3\xd9\x01\x00\x34\x10' + b'\x1b[2Jmsg=forged\n')
    except OSError: pass
print('done')
`

// TestLogFlood: a host of the LAN, or a user, whose handshakes fail by the thousand gets a part of the log
// and is counted.
func TestLogFlood(t *testing.T) {
	const n = 1000
	netnstest.Require(t, "nsenter", "/usr/bin/python3")
	lan := netnstest.NewLAN(t, 2)
	l := &lab{Pair: &netnstest.Pair{A: lan.Hosts[0], B: lan.Hosts[1]}, t: t}
	lan.Relay(t, announce)
	stack := l.serve(l.A)
	server := l.under(l.A, "/usr/bin/python3", "-u", "-c", `
import socket, sys
l = socket.create_server((sys.argv[1], 7700), backlog=100)
print('listening')
while True: l.accept()[0].close()
`, l.A.Addr())
	if err := server.WaitOutput("listening", startTime); err != nil {
		t.Fatal(err)
	}
	begin := len(stack.Log())
	client := l.B.Go(t, "/usr/bin/python3", "-u", "-c", garbler, l.A.Addr(), strconv.Itoa(n))
	if err := client.WaitOutput("done", 5*startTime); err != nil {
		t.Fatal(err)
	}
	failed := func() int { return strings.Count(stack.Log(), "msg=\"rendezvous failed\"") }
	// All are told, as lines and as numbers, and soon after the last one.
	var told int
	err := netnstest.Until(2*quota.LogTold+settleTime, func() error {
		told = 0
		for line := range strings.Lines(stack.Log()) {
			if !strings.Contains(line, "msg=\"rendezvous failed\"") {
				continue
			}
			if strings.Contains(line, "remote=") {
				told++
			}
			if m := regexp.MustCompile(`left_out=([0-9]+)`).FindStringSubmatch(line); m != nil {
				left, _ := strconv.Atoi(m[1])
				told += left
			}
		}
		if told < n {
			return fmt.Errorf("%d of %d are told:\n%.3000s", told, n, stack.Log()[begin:])
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if lines := failed(); lines > quota.LogSourceBurst+30 || told != n {
		t.Errorf("%d lines tell %d of %d handshakes", lines, told, n)
	}
	if size := len(stack.Log()) - begin; size > 64<<10 {
		t.Errorf("%d bytes of the log, for %d connections:\n%.3000s", size, n, stack.Log()[begin:])
	}
	wantClean(t, "the log", stack.Log())
	t.Logf("%d lines, %d bytes", failed(), len(stack.Log())-begin)
}
