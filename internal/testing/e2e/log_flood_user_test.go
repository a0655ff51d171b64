// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"smcr/internal/testing/netnstest"
	"smcr/quota"
)

// garbledPorts is at how many ports garbled listens: what fails at one is not tried there again for a time.
const garbledPorts = 3000

// garbled is a server that announces SMC, and then says something else, or resets. It never ends.
const garbled = `
import resource, select, socket, struct, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (8192, 8192))
linger = struct.pack('ii', 1, 0)
poll, socks = select.epoll(), {}
for port in range(7700, 7700 + int(sys.argv[2])):
    l = socket.create_server((sys.argv[1], port), backlog=50)
    socks[l.fileno()] = l
    poll.register(l, select.EPOLLIN)
print('listening')
n = 0
while True:
    for fd, _ in poll.poll():
        try:
            c, _ = socks[fd].accept()
            n += 1
            c.settimeout(0.02)
            try: c.recv(8)
            except TimeoutError: pass
            if n % 4 == 0: c.sendall(b'\x1b[2Jmsg=forged\n' * 4)
            c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            c.close()
        except OSError: pass
`

// logging is a program whose connections fail, some hundred at a time, for some seconds. It says how many it has begun.
const logging = `
import random, socket, struct, sys, time
host, ports, seconds, each = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
linger = struct.pack('ii', 1, 0)
n, end = 0, time.time() + seconds
while n == 0 or time.time() < end:
    socks = []
    for i in range(each):
        s = socket.socket()
        s.setblocking(False)
        if i % 2: s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        try: s.connect((host, 7700 + random.randrange(ports)))
        except BlockingIOError: pass
        socks.append(s)
    time.sleep(0.3)
    n += len(socks)
    for s in socks: s.close()
print('done', n, flush=True)
`

// announceBoth has also each SYN-ACK of the second host announce SMC.
func announceBoth(frame []byte, first bool) []byte {
	return announceFlags(frame, first, func(flags byte) bool { return flags&2 != 0 })
}

// loggedUser is the other one.
const loggedUser = "1000"

// TestLogFloodOfUser: a user whose programs cause as many lines of the log as they can gets a part of it, and the rest is counted. A line
// about another user is there.
func TestLogFloodOfUser(t *testing.T) {
	const seconds = 8
	netnstest.Require(t, "nsenter", "setpriv", "/usr/bin/python3")
	lan := netnstest.NewLAN(t, 2)
	l := &lab{Pair: &netnstest.Pair{A: lan.Hosts[0], B: lan.Hosts[1]}, t: t}
	lan.Relay(t, announceBoth)
	stack := l.serve(l.A)
	server := l.B.Go(t, "/usr/bin/python3", "-u", "-c", garbled, l.B.Addr(), strconv.Itoa(garbledPorts))
	if err := server.WaitOutput("listening", startTime); err != nil {
		t.Fatal(err)
	}
	run := func(uid string, argv ...string) *netnstest.Process {
		argv = as(uid, underArgv(argv...)...)
		return l.A.Go(t, argv[0], argv[1:]...)
	}
	begin := len(stack.Log())
	exhaust := run(hostileUser, bin("hostile"), "exhaust", "requests", l.B.Addr()+":7700")
	var floods []*netnstest.Process
	for range 3 {
		floods = append(floods, run(hostileUser, "/usr/bin/python3", "-c", logging, l.B.Addr(), strconv.Itoa(garbledPorts), strconv.Itoa(seconds), "300"))
	}
	tried := 0
	for _, p := range floods {
		if err := p.WaitPart("done ", 5*startTime); err != nil {
			t.Fatal(err)
		}
		if m := regexp.MustCompile(`done (\d+)`).FindStringSubmatch(p.Log()); m != nil {
			n, _ := strconv.Atoi(m[1])
			tried += n
		}
	}
	// Another user, whose connection fails once, while the flood of requests goes on.
	other := run(loggedUser, "/usr/bin/python3", "-c", logging, l.B.Addr(), strconv.Itoa(garbledPorts), "0.3", "1")
	if err := other.WaitPart("done ", startTime); err != nil {
		t.Fatal(err)
	}
	if err := netnstest.Until(settleTime, func() error {
		if log := stack.Log()[begin:]; !strings.Contains(log, "user="+loggedUser+" ") {
			return fmt.Errorf("no line about the other user:\n%.3000s", log)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	exhaust.Kill()
	// What was left out is told as a number.
	lines, told := 0, 0
	if err := netnstest.Until(2*quota.LogTold+settleTime, func() error {
		lines, told = 0, 0
		for line := range strings.Lines(stack.Log()[begin:]) {
			if strings.Contains(line, "user="+hostileUser+" ") {
				lines++
			}
			if m := regexp.MustCompile(`left_out=([0-9]+)`).FindStringSubmatch(line); m != nil {
				n, _ := strconv.Atoi(m[1])
				told += n
			}
		}
		if told == 0 {
			return fmt.Errorf("nothing is told as a number, of %d connections and %d lines", tried, lines)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	size := len(stack.Log()) - begin
	t.Logf("%d connections, %d lines, %d told as a number, %d bytes", tried, lines, told, size)
	if lines > quota.LogSourceBurst+30 || told < lines {
		t.Errorf("%d lines, and %d more told as a number, of %d connections", lines, told, tried)
	}
	if size > mostLogOfUser {
		t.Errorf("%d bytes of the log, for %d connections:\n%.3000s", size, tried, stack.Log()[begin:])
	}
	wantClean(t, "the log", stack.Log())
}

// mostLogOfUser is what a user may add to a log in some seconds: of each kind of line LogSourceBurst, and few kinds are of users.
const mostLogOfUser = 8 * quota.LogSourceBurst * 256
