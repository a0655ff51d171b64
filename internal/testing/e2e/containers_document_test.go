// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"smcr/internal/testing/doctest"
	"smcr/internal/testing/netnstest"
	"smcr/internal/testing/testkind"
)

// imageConf has nginx serve without files of its distribution.
const imageConf = `user root; pid /tmp/nginx.pid; error_log /dev/stderr; events {} http { access_log off; server { listen 80; location / { return 200 "hello\n"; } } }`

// nginxImage imports an image named nginx, with Debian's nginx and the libraries that it needs.
func (d *dockerHost) nginxImage() {
	d.t.Helper()
	root := filepath.Join(d.dir, "nginx")
	script := `set -e; mkdir -p "$0/usr/sbin" "$0/usr/bin" "$0/etc/nginx" "$0/tmp" "$0/var/log/nginx" "$0/var/lib/nginx"
for f in /usr/sbin/nginx $(ldd /usr/sbin/nginx | grep -o '/[^ ]*'); do mkdir -p "$0/$(dirname $f)"; cp -L $f "$0/$f"; done
echo root:x:0:0::/:/bin/sh >"$0/etc/passwd"; echo root:x:0: >"$0/etc/group"; echo "$1" >"$0/etc/nginx/nginx.conf"; mkdir -p "$0/usr/share/nginx"
tar -C "$0" -cf "$0.tar" .`
	if out, err := exec.CommandContext(d.t.Context(), "sh", "-c", script, root, imageConf).CombinedOutput(); err != nil {
		d.t.Fatalf("%v: %s", err, out)
	}
	d.mustDocker("import", "--change", `CMD ["nginx","-g","daemon off;"]`, root+".tar", "nginx")
}

// serves waits until nginx listens in each container.
func (d *dockerHost) serves() {
	d.t.Helper()
	testkind.Eventually(d.t, "nginx listens", func() (any, bool) {
		for name := range strings.FieldsSeq(d.mustDocker("ps", "--quiet")) {
			b, err := os.ReadFile(filepath.Join("/proc", d.mustDocker("inspect", "--format", "{{.State.Pid}}", name), "net/tcp"))
			if err != nil || !strings.Contains(string(b), ":0050 00000000:0000 0A ") {
				return string(b), false
			}
		}
		return nil, true
	})
}

// TestContainersDocument executes the commands of docs/containers.md in their order, with a real Docker, and compares what they print.
func TestContainersDocument(t *testing.T) {
	netnstest.RequireTools(t, "nginx", "curl", "ldd", "nsenter")
	if raceDetector {
		t.Skip("the race detector links smcr with libraries that the image does not have")
	}
	text, err := os.ReadFile("../../../docs/containers.md")
	if err != nil {
		t.Fatal(err)
	}
	d := newDockerHost(t)
	d.nginxImage()
	for _, h := range []*netnstest.Host{d.A, d.B} { // as 'smcr serve' has it that is not told otherwise
		d.must(h, "ueid", "add", "SMCR-USERSTACK")
	}
	all := doctest.Parse(string(text))
	if len(all) < 20 {
		t.Fatalf("only %d commands", len(all))
	}
	replace := strings.NewReplacer("-v /usr/bin/smcr:", "-v "+bin("smcr")+":", "hostA", d.A.Addr(), "hostB", d.B.Addr(), "-v --", "-v --no-adapt --")
	for _, c := range all {
		t.Logf("%s# %s", c.Host, c.Text)
		argv := []string{"sh", "-c", `PATH="$0:$PATH"; ` + replace.Replace(c.Text), filepath.Dir(bin("smcr"))}
		if c.Background {
			argv[2] = strings.Replace(argv[2], "nsenter", "exec nsenter", 1)
			stack := d.A.GoCmd(t, d.command(context.Background(), d.A, argv...))
			t.Cleanup(func() { terminate(t, stack) })
			if err := stack.WaitPart("msg=serving", startTime); err != nil {
				t.Fatal(err, stack.Log())
			}
			continue
		}
		ctx, cancel := context.WithTimeout(t.Context(), commandTime)
		cmd := d.B.Command(ctx, argv[0], argv[1:]...)
		if c.Host == "hostA" {
			cmd = d.command(ctx, d.A, argv...)
		}
		out, _ := cmd.CombinedOutput()
		cancel()
		if err := c.Check(string(out), cmd.ProcessState.ExitCode()); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		if strings.HasPrefix(c.Text, "docker run -d") || strings.HasPrefix(c.Text, "docker restart") {
			d.serves()
		}
	}
}
