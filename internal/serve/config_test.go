// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"smcr/internal/config"
	"smcr/nl"
	"smcr/nl/nltest"
)

// picky is a stack that refuses the device lo, and to lose a pnetid.
type picky struct{ *nltest.Fake }

func (p picky) AddPNET(ctx context.Context, n nl.PNET) error {
	if n.NetDev == "lo" {
		return syscall.EADDRINUSE
	}
	return p.Fake.AddPNET(ctx, n)
}

func (p picky) RemovePNET(context.Context, string) error { return syscall.EBUSY }

// TestErrorsOfDropIns: what a stack refuses of a valid configuration is said with the file and the line that ask for it, and so is what it
// cannot use. Only where no file asks for it are all files named.
func TestErrorsOfDropIns(t *testing.T) {
	conf := filepath.Join(t.TempDir(), "smcr.yaml")
	first, second := filepath.Join(config.DropIns(conf), "10.yaml"), filepath.Join(config.DropIns(conf), "20.yaml")
	for file, text := range map[string]string{
		conf:   "ueids: [A]\n",
		first:  "# one\npnetids:\n  - {pnetid: A, netdev: none-such}\n",
		second: "\n\npnetids:\n  - {pnetid: B, ibdev: none-such}\n  - pnetid: B\n    netdev: lo\n",
	} {
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	for name, tt := range map[string]struct {
		has  []nl.PNET
		want string
	}{
		"an entry": {nil, "config: " + second + ": line 5: give pnetid B to lo: address already in use; nothing was changed"},
		"no entry": {[]nl.PNET{{ID: "OLD", NetDev: "eth0"}}, strings.Join([]string{conf, first, second}, " ") + ": config: remove pnetid OLD: device or resource busy; nothing was changed"},
	} {
		t.Run(name, func(t *testing.T) {
			var out strings.Builder
			log := slog.New(slog.NewTextHandler(&out, nil))
			fake := nltest.NewFake(nltest.State{SysInfo: nl.SysInfo{Version: 2, Stack: "smcr"}})
			for _, n := range tt.has {
				if err := fake.AddPNET(t.Context(), n); err != nil {
					t.Fatal(err)
				}
			}
			dir := t.TempDir()
			c := &configurator{path: conf, control: newPersistentControl(picky{fake}, dir, dir, log), log: log}
			err := c.start(t.Context())
			if err == nil || err.Error() != tt.want {
				t.Errorf("%v, want\n%s", err, tt.want)
			}
			for _, where := range []string{first + ": line 3", second + ": line 4"} {
				if n := strings.Count(out.String(), `msg="configuration entry ignored" file="`+where+`"`); n != 1 {
					t.Errorf("%s is in the log %d times:\n%s", where, n, &out)
				}
			}
		})
	}
}
