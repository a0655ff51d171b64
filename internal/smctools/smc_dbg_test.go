// SPDX-License-Identifier: Apache-2.0

package smctools

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"smcr/internal/cmdutil"
	"smcr/internal/smctools/tool"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// testCollector returns a collector whose programs print their command lines. smcr and
// smcd print their versions to standard error, like the real ones.
func testCollector(t *testing.T, arch string) *collector {
	programs := map[string]Main{}
	for _, name := range []string{"smcr", "smcd", "smcss", "smc_pnet", "smc_rnics", "smc_chk"} {
		programs[name] = func(_ context.Context, e *tool.Env, args []string) int {
			line := e.Name + " " + strings.Join(args, " ") + "\n"
			if len(name) == 4 && args[0] == "-v" {
				fmt.Fprint(e.IO.ErrOut, line)
			} else {
				fmt.Fprint(e.IO.Out, line)
			}
			return 1
		}
	}
	sysfs := t.TempDir()
	for name, text := range map[string]string{"if_name": "enc1000", "chpid": "A1", "portno": "0"} {
		path := filepath.Join(sysfs, "bus/ccwgroup/devices/0.0.1000", name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return &collector{programs, t.TempDir(), arch, sysfs, func() time.Time { return time.Unix(1, 0) }}
}

func runDBG(t *testing.T, c *collector, args ...string) (out, errOut string, status int) {
	streams, _, o, e := cmdutil.MemoryStreams()
	status = c.main(t.Context(), tool.NewEnv(&cmdutil.Factory{IO: streams}, "smc_dbg"), args)
	return o.String(), e.String(), status
}

const versions = "smcss -v\nsmc_dbg utility, smc-tools-1.8.5\nsmc_pnet -v\nsmc_rnics -v\nsmc_chk -v\n"

func TestPrint(t *testing.T) {
	out, errOut, status := runDBG(t, testCollector(t, "amd64"))
	want := "\n" + versions + "\nsmcss --all --debug\n\nsmcss --smcr\n\nsmc_pnet --show\n\nsmcr -d linkgroup link-show\n" +
		"\nsmcd -d linkgroup show\n\nsmcd info\n\nsmcd -d stats\n\nsmcr -d stats\n"
	if diff := cmp.Diff(want, out); diff != "" || errOut != "smcd -v\nsmcr -v\n" || status != 0 {
		t.Errorf("%d, %q (-want +got):\n%s", status, errOut, diff)
	}
}

func TestArchive(t *testing.T) {
	c := testCollector(t, "s390x")
	out, errOut, status := runDBG(t, c, "--tgz")
	path, ok := strings.CutPrefix(strings.TrimSuffix(out, "\n"), "Debug output written to ")
	if !ok || errOut != "" || status != 0 || filepath.Dir(path) != c.Dir {
		t.Fatalf("%d, %q, %q", status, out, errOut)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		if name := strings.TrimPrefix(h.Name, strings.TrimSuffix(filepath.Base(path), ".tgz")+"/"); name != "" {
			got[name] = string(b)
		}
	}
	want := map[string]string{
		"version.txt": versions + "smcd -v\nsmcr -v\n",
		"devices.txt": "CCW Devices:\n  Device    CHPID  Port  PNET ID\n  -------------------------------------------\n" +
			"  0.0.1000  0xa1   0     smc_chk -i enc1000\n\nPCI Devices:\n  smc_rnics \n",
		"smcss_smcd": "smcss --smcd\n", "smcss_all.txt": "smcss --all --debug\n", "smcss_smcr": "smcss --smcr\n",
		"pnet_table.txt": "smc_pnet --show\n", "smcr_links.txt": "smcr -d linkgroup link-show\n", "smcd_lgs.txt": "smcd -d linkgroup show\n",
		"smcd_info.txt": "smcd info\n", "smcd_stats.txt": "smcd -d stats\n", "smcr_stats.txt": "smcr -d stats\n",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
	c.Dir = "/no/such/folder"
	if out, errOut, status := runDBG(t, c, "-t"); out != "" || errOut == "" || status != 1 {
		t.Errorf("no folder: %d, %q, %q", status, out, errOut)
	}
}

// TestArchiveNotWritten checks that no part of the archive remains after a failed write.
func TestArchiveNotWritten(t *testing.T) {
	c := testCollector(t, "amd64")
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_FSIZE, &was); err != nil {
		t.Fatal(err)
	}
	signal.Ignore(unix.SIGXFSZ)
	defer signal.Reset(unix.SIGXFSZ)
	if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: 100, Max: was.Max}); err != nil {
		t.Fatal(err)
	}
	out, errOut, status := runDBG(t, c, "--tgz")
	if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &was); err != nil {
		t.Fatal(err)
	}
	if out != "" || !strings.Contains(errOut, unix.EFBIG.Error()) || status != 1 {
		t.Errorf("%d, %q, %q", status, out, errOut)
	}
	if left, err := os.ReadDir(c.Dir); err != nil || len(left) != 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}
