// SPDX-License-Identifier: Apache-2.0

package doctest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"smcr/internal/testing/netnstest"
	"smcr/internal/testing/testkind"
)

const (
	// commandLimit is the time limit of a command of a document.
	commandLimit = time.Minute
	// startLimit is how long the next command waits for a background command to listen. One
	// that listens nowhere, such as a client, costs all of quietLimit.
	startLimit, quietLimit = testkind.Patience, 2 * time.Second
)

// host is a host with files of its own, on which a shell runs commands.
type host struct {
	*netnstest.Host
	t    *testing.T
	name string
	dir  string // output of the commands
	in   io.Writer
	out  *bufio.Reader
	n    int
}

// setup gives the shell a copy of the folders that documents change. It runs in a mount
// namespace and in a PID namespace of its own. $1 is the file with the names of the hosts, $2 is the directory with
// the program smcr and its files.
const setup = `
set -e
mount -t tmpfs tmpfs /mnt
mkdir /mnt/etc
cp -a /etc/. /mnt/etc
cp "$1" /mnt/etc/hosts
rm -rf /mnt/etc/smcr
mount --bind /mnt/etc /etc
for d in /root /home /usr/local /run /var/www /var/log; do
  [ -d $d ] && mount -t tmpfs -o mode=755 tmpfs $d
done
mkdir -p /var/www/html /var/log/nginx /usr/local/bin
cp "$2"/smcr /usr/local/bin
for name in smcd smcss smc_pnet smc_run smc_rnics smc_chk smc_dbg; do ln -s smcr /usr/local/bin/$name; done
cd /root
export HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
set +e
exec 3>&1
echo ready >&3
`

// newHost starts the shell of a host.
func newHost(t *testing.T, h *netnstest.Host, name, names, programs string) *host {
	t.Helper()
	x := &host{Host: h, t: t, name: name, dir: t.TempDir()}
	cmd := h.Command(t.Context(), "unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--mount-proc", "--kill-child",
		"bash", "--norc", "-s", names, programs)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdout = w
	x.in, x.out = in, bufio.NewReader(r)
	h.GoCmd(t, cmd)
	w.Close()
	t.Cleanup(func() { r.Close() })
	if said, err := x.ask(setup); err != nil || said != "ready" {
		t.Fatalf("%s: %q, %v", name, said, err)
	}
	return x
}

// ask gives the shell a text and returns the next line that it says.
func (x *host) ask(text string) (string, error) {
	if _, err := io.WriteString(x.in, text); err != nil {
		return "", err
	}
	type line struct {
		text string
		err  error
	}
	got := make(chan line, 1)
	go func() {
		s, err := x.out.ReadString('\n')
		got <- line{strings.TrimSpace(s), err}
	}()
	select {
	case l := <-got:
		return l.text, l.err
	case <-time.After(commandLimit):
		return "", fmt.Errorf("no answer within %v", commandLimit)
	}
}

// script returns the shell's commands for a command of a document, whose output goes to file.
func (x *host) script(c Command, file string) (string, error) {
	command := filepath.Join(x.dir, fmt.Sprintf("%d.sh", x.n))
	if err := os.WriteFile(command, []byte(c.Text+"\n"), 0o644); err != nil {
		return "", err
	}
	run := ". " + command
	if !c.Root {
		run = "setpriv --reuid=65534 --regid=65534 --clear-groups bash -c '. /dev/fd/9' 9<" + command
	}
	run = "{ " + run + "\n} >" + file + " 2>&1 </dev/null"
	if c.Background {
		return run + " &\necho 0 >&3\n", nil
	}
	return run + "\necho $? >&3\n", nil
}

// run runs a command and compares its output with the page.
func (x *host) run(c Command) error {
	x.n++
	file := filepath.Join(x.dir, fmt.Sprintf("%d.out", x.n))
	script, err := x.script(c, file)
	if err != nil {
		return err
	}
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		return err
	}
	before := x.listeners()
	said, err := x.ask(script)
	if err != nil {
		return err
	}
	status, err := strconv.Atoi(said)
	if err != nil {
		return err
	}
	if c.Background {
		return x.started(c, file, before)
	}
	out, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if err := c.Check(string(out), status); err != nil {
		return fmt.Errorf("%w. It printed:\n%s", err, out)
	}
	x.t.Logf("%s: %s\n%s", x.name, c.Text, out)
	return nil
}

// started waits until a background command listens, or until it is quiet for a while.
func (x *host) started(c Command, file string, before string) error {
	begin := time.Now()
	return netnstest.Until(startLimit, func() error {
		out, err := os.ReadFile(file)
		if err != nil {
			return netnstest.Stop(err)
		}
		if err := c.Check(string(out), c.Exit); err != nil {
			return err
		}
		// Real time: what listens nowhere is quiet in it.
		if time.Since(begin) > quietLimit || x.listeners() != before {
			return nil
		}
		return errors.New("nothing listens yet")
	})
}

// listeners returns the listening TCP sockets.
func (x *host) listeners() string {
	ctx, cancel := context.WithTimeout(context.Background(), commandLimit)
	defer cancel()
	out, err := x.Output(ctx, "ss", "-Hltn")
	if err != nil {
		return err.Error()
	}
	var list []string
	for line := range strings.Lines(out) {
		if f := strings.Fields(line); len(f) > 3 {
			list = append(list, f[3])
		}
	}
	return strings.Join(list, " ")
}
