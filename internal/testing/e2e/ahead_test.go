// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"io"
	"strings"
	"testing"
)

// aheadClient makes a connection for each line that it reads.
const aheadClient = `
import hashlib, socket, sys
print('ready', flush=True)
data = b'x' * (3 << 20)
for line in sys.stdin:
    c = socket.create_connection((sys.argv[1], 7500))
    c.sendall(data)
    c.shutdown(socket.SHUT_WR)
    want = b'%d %s' % (len(data), hashlib.sha256(data).hexdigest().encode())
    print('right' if c.makefile('rb').read() == want else 'wrong', line.strip(), flush=True)
`

// TestAhead: a program under smcr run that begins before there is a stack, and may start none, uses TCP until one starts, and then
// SMC-R, also with -v.
func TestAhead(t *testing.T) {
	for _, flags := range [][]string{nil, {"-v"}} {
		t.Run(fmt.Sprint(flags), func(t *testing.T) {
			l := newLab(t, "/usr/bin/python3", "setpriv", "tshark")
			l.serve(l.A)
			server := l.wireServer(l.A)
			argv := append(inCgroup(session(t)), "setpriv", "--bounding-set=-all", "--inh-caps=-all", bin("smcr"), "run")
			argv = append(append(argv, flags...), "--", "/usr/bin/python3", "-u", "-c", aheadClient, l.A.Addr())
			ctx, cancel := context.WithTimeout(t.Context(), commandTime)
			defer cancel()
			cmd := l.B.Command(ctx, argv[0], argv[1:]...)
			in, err := cmd.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			client := l.B.GoCmd(t, cmd)
			half := func(name string, carried bool) {
				t.Helper()
				w := l.watch()
				if _, err := fmt.Fprintln(in, name); err != nil {
					t.Fatal(err)
				}
				if err := client.WaitOutput("right "+name, startTime); err != nil {
					t.Fatal(err, client.Log())
				}
				if s := w.stop(t); (s.roce.Payload > 2<<20) != carried {
					t.Errorf("%s: %d bytes over RoCE", name, s.roce.Payload)
				}
			}
			if err := client.WaitOutput("ready", startTime); err != nil {
				t.Fatal(err, client.Log())
			}
			if log := client.Log(); !strings.HasPrefix(log, "smcr: connections are TCP until there is a stack: ") || !strings.Contains(log, "run 'smcr serve' as root") {
				t.Errorf("smcr run prints %q", log)
			}
			half("before", false)
			stack := l.serve(l.B)
			half("after", true)
			if err := in.(io.Closer).Close(); err != nil {
				t.Error(err)
			}
			if err := client.Wait(startTime); err != nil {
				t.Error(err, client.Log())
			}
			if flags != nil {
				wantSummary(t, client.Log(), 1)
			}
			server.Kill()
			l.wantNoRuns()
			terminate(t, stack)
		})
	}
}
