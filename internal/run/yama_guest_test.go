// SPDX-License-Identifier: Apache-2.0

package run

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

// yamaHosts makes two hosts of a guest, ya and yb, each with a stack in user space.
const yamaHosts = `
set -e
ip netns add ya; ip netns add yb
ip link add e0 netns ya type veth peer name e0 netns yb
ip -n ya addr add 10.78.0.1/24 dev e0; ip -n yb addr add 10.78.0.2/24 dev e0
for n in ya yb; do
    ip -n $n link set lo up; ip -n $n link set e0 up
    SMCR_HOST_ID=$n ip netns exec $n $SMCR serve >/tmp/$n.log 2>&1 &
    echo $! >/tmp/$n.pid
done
for n in ya yb; do
    for i in $(seq 300); do grep -q msg=serving /tmp/$n.log && break; sleep .1; done
    grep -q msg=serving /tmp/$n.log || { cat /tmp/$n.log; exit 1; }
done
`

const yamaEnd = `
kill $(cat /tmp/ya.pid /tmp/yb.pid); ip netns del ya; ip netns del yb; echo 0 >/proc/sys/kernel/yama/ptrace_scope
`

// yamaPair runs a server whose children accept, and a client, whose daemon connects, too. The
// client prints what who has started it sees.
const yamaPair = `
import os, signal, sys
uid, smcr = sys.argv[1:]
server = '''
import os, socket
l = socket.create_server(('10.78.0.1', 7300))
print('listening')
for _ in range(2):
    if os.fork() == 0:
        c, _ = l.accept(); c.sendall(c.recv(9)); c.recv(1); os._exit(0)
    os.wait()
'''
client = '''
import os, socket
def talk():
    c = socket.create_connection(('10.78.0.1', 7300)); c.sendall(b'some text'); got = b''
    while len(got) < 9: got += c.recv(9)
    c.close()
talk()
r, w = os.pipe()
if os.fork() == 0:
    if os.fork() == 0:
        os.setsid(); os.close(r); talk(); os.write(w, b'x'); os._exit(0)
    os._exit(0)
os.close(w); os.wait()
assert os.read(r, 1) == b'x', 'the daemon has failed'
print(os.getpid(), os.environ['LISTEN_PID'])
'''
def start(netns, code):
    r, w = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.dup2(w, 1); os.environ['LISTEN_PID'] = str(os.getpid())
        os.execvp('ip', ['ip', 'netns', 'exec', netns, 'setpriv', '--reuid=' + uid, '--regid=' + uid, '--clear-groups', smcr, 'run', '--', '/usr/bin/python3', '-u', '-c', code])
    os.close(w)
    return pid, os.fdopen(r)
s, said = start('ya', server)
try:
    assert said.readline().strip() == 'listening', 'the server has failed'
    c, said = start('yb', client)
    own, listen = map(int, said.readline().split())
    assert os.waitpid(c, 0)[1] == 0, 'the client has failed'
    assert own == listen, 'LISTEN_PID is that of another process'
except:
    os.kill(s, signal.SIGKILL)
    raise
assert os.waitpid(s, 0)[1] == 0, 'the server has failed'
print('beside' if own == c else 'below a waiter')
`

// restricted: a program and its daemon use SMC-R with each restriction of ptrace by Yama, as root
// and as a user.
func restricted(t *testing.T, n *node) {
	const python = "/usr/bin/python3"
	n.run(t, "env", "SMCR="+n.smcr, "sh", "-c", yamaHosts)
	t.Cleanup(func() { _, _ = n.Run(context.Background(), "sh", "-c", yamaEnd) })
	made := func() int {
		var stats []struct {
			SMCR struct {
				V1 int `json:"client_v1"`
				V2 int `json:"client_v2"`
			} `json:"smcr"`
		}
		out := n.run(t, "ip", "netns", "exec", "yb", n.smcr, "--backend", "user", "stats", "show", "-o", "json").Stdout
		if err := json.Unmarshal([]byte(out), &stats); err != nil || len(stats) != 1 {
			t.Fatalf("%v\n%s", err, out)
		}
		return stats[0].SMCR.V1 + stats[0].SMCR.V2
	}
	for scope := range 4 { // the last one cannot be taken back
		n.run(t, "sh", "-c", fmt.Sprintf("echo %d >/proc/sys/kernel/yama/ptrace_scope", scope))
		for _, uid := range []string{"0", "65534"} {
			t.Run(fmt.Sprintf("scope %d, user %s", scope, uid), func(t *testing.T) {
				want, conns := "beside\n", 2
				if scope > 0 && uid != "0" {
					want = "below a waiter\n"
				}
				if scope == 3 || scope == 2 && uid != "0" { // nobody may, or only the privileged
					want, conns = "beside\n", 0
				}
				before := made()
				r := n.run(t, python, "-c", yamaPair, uid, n.smcr)
				if r.Stdout != want {
					t.Errorf("the program is %q, want %q", r.Stdout, want)
				}
				if got := made() - before; got != conns {
					t.Errorf("%d connections over SMC-R, want %d", got, conns)
				}
				said := strings.Count(r.Stderr, fmt.Sprintf("smcr: all connections over TCP: the program could not be put under a launcher: the launcher cannot take the program's sockets: kernel.yama.ptrace_scope is %d, and must be 0 or 1: ", scope))
				if said != 2-conns {
					t.Errorf("messages with the reason: %d, want %d\n%s", said, 2-conns, r.Stderr)
				}
			})
		}
	}
}
