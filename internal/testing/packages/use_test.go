// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"smcr/internal/testing/doctest"
	"smcr/internal/testing/netnstest"
)

// quietTime is how long a background command of a document may take until it listens. One that
// listens nowhere, such as a client, costs all of it.
const quietTime = 2 * time.Second

// follow does what a document says, on both hosts.
func follow(t *testing.T, document string, a, b host) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, document))
	if err != nil {
		t.Fatal(err)
	}
	commands := doctest.Parse(string(text))
	if len(commands) < 5 {
		t.Fatalf("%s has only %d commands", document, len(commands))
	}
	for _, c := range commands {
		h := a
		if c.Host == "hostB" {
			h = b
		}
		line := c.Text
		if !c.Root {
			line = "exec setpriv --reuid=nobody --regid=nogroup --clear-groups bash -c " + quote(line)
		}
		if c.Background {
			before := h.must("ss -Hltn")
			p, begun := h.start(line), time.Now()
			if err := netnstest.Until(startTime, func() error {
				if h.must("ss -Hltn") == before && time.Since(begun) < quietTime {
					return errors.New("does not listen yet")
				}
				return nil
			}); err != nil {
				t.Fatalf("%s: %v", p.line, err)
			}
			continue
		}
		ctx, cancel := context.WithTimeout(t.Context(), commandTime)
		cmd := h.shell(ctx, line)
		out, err := cmd.CombinedOutput()
		cancel()
		if cmd.ProcessState == nil {
			t.Fatal(err)
		}
		if err := c.Check(string(out), cmd.ProcessState.ExitCode()); err != nil {
			t.Fatalf("%s:%d: %s: %s: %v. It printed:\n%s", document, c.Line, c.Host, c.Text, err, out)
		}
	}
}

// quote quotes a word for a shell.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// bigSize is the size of the file that [host.download] fetches.
const bigSize = 32 << 20

// makeBig makes a file of random bytes on the web server, and returns its checksum.
func (h host) makeBig() string {
	h.t.Helper()
	return h.must(fmt.Sprintf("head -c %d /dev/urandom >/var/www/html/big && sha256sum </var/www/html/big", bigSize))
}

// received returns how many bytes programs of the host have received over SMC-R.
func (h host) received() (bytes int) {
	h.t.Helper()
	out, err := h.try("smcr --backend user stats show -o json")
	if err != nil {
		return 0 // there is no stack yet
	}
	var rows []struct {
		SMCR struct {
			RX struct{ Bytes int }
		}
	}
	if err := json.Unmarshal([]byte(out), &rows); err != nil {
		h.t.Fatalf("%v: %s", err, out)
	}
	for _, r := range rows {
		bytes += r.SMCR.RX.Bytes
	}
	return bytes
}

// download fetches the file of [host.makeBig] from host A with a command that runs under smcr,
// and checks that its bytes are the right ones and travelled over SMC-R. The command gets the
// URL as its last argument.
func (h host) download(command, sum string) {
	h.t.Helper()
	before := h.received()
	if got := h.must("set -o pipefail; " + command + " http://hostA/big | sha256sum"); got != sum {
		h.t.Errorf("%s: the file has the checksum %q, want %q", command, got, sum)
	}
	if n := h.received() - before; n < bigSize {
		h.t.Errorf("%s: %d bytes were moved by SMC-R, want at least %d", command, n, bigSize)
	}
}

// slow starts a download that lasts until [slowDownload.finish].
func (h host) slow() *slowDownload {
	h.t.Helper()
	d := &slowDownload{host: h}
	// A pipe that nobody reads stops the download.
	d.program = h.start("set -o pipefail; mkfifo /run/gate && smcr run -v -- curl -sN http://hostA/big | { head -c 1000000; cat /run/gate >&2; cat; } | sha256sum; rm /run/gate")
	if err := netnstest.Until(startTime, func() error {
		out, err := h.try("smcr --backend user connection list")
		if err == nil && !strings.Contains(out, addressA+":80 ") {
			err = fmt.Errorf("no connection: %s", out)
		}
		return err
	}); err != nil {
		h.t.Fatalf("%v\n%s", err, d.program.out.String())
	}
	return d
}

// A slowDownload is a client whose connection lasts as long as the test wants.
type slowDownload struct {
	host
	program *program
}

// finish lets the client read the rest, and checks that it is complete and came over SMC-R.
func (d *slowDownload) finish(sum string) {
	d.t.Helper()
	d.must("echo >/run/gate")
	d.program.wantEnd()
	for _, want := range []string{sum, "1 connection over SMC-R, 0 over TCP"} {
		if out := d.program.out.String(); !strings.Contains(out, want) {
			d.t.Errorf("%s printed no %q:\n%s", d.program.line, want, out)
		}
	}
}

// stack returns the process ID of the stack of the host, as the machine numbers it. The process that makes cgroups for users is none.
func (h host) stack() string {
	h.t.Helper()
	return h.must(`for p in /proc/[0-9]*; do
		[ "$(readlink $p/ns/net)" = "$(readlink /proc/self/ns/net)" ] || continue
		tr '\0' ' ' 2>/dev/null <$p/cmdline | grep '^[^ ]*smcr serve' | grep -qv ' --runs ' && echo ${p#/proc/}
	done; true`)
}
