// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"smcr/internal/testing/testkind"
)

// A dockerHost is host A with a Docker daemon of its own.
type dockerHost struct {
	*containerHost
	image string // with the programs of this machine, if it is given their folder
}

// dockerMounts is a shell script that executes its arguments where Docker's files are those of a test. containerd has sockets in /run whatever it is
// told, and the daemon writes to /etc, where the users are that --userns-remap needs.
const dockerMounts = `mkdir -p "$0/smcr" && mount --rbind /run/smcr "$0/smcr" && mount -t tmpfs tmpfs /run && mkdir /run/smcr /run/etc /run/work &&
mount --rbind "$0/smcr" /run/smcr && mount -t overlay -o lowerdir=/etc,upperdir=/run/etc,workdir=/run/work overlay /etc &&
echo nobody:300000:65536 >/etc/subuid && echo nobody:300000:65536 >/etc/subgid && exec "$@"`

// newDockerHost starts a Docker daemon with these arguments on host A, for which the networks of containers are made.
func newDockerHost(t *testing.T, args ...string) *dockerHost {
	t.Helper()
	for _, program := range []string{"dockerd", "docker", "containerd", "runc"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skip(err)
		}
	}
	d := &dockerHost{newContainerHost(t), "smcr-test"}
	// The names of sockets are at most 107 characters long.
	dir, err := os.MkdirTemp("", "smcr-docker-")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil { // for the root of a user namespace
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	pidFile := filepath.Join(dir, "pid")
	argv := append([]string{"sh", "-c", dockerMounts, dir, "dockerd", "--data-root", filepath.Join(dir, "data"), "--exec-root", filepath.Join(dir, "exec"),
		"--pidfile", pidFile, "--storage-driver", "vfs", "--iptables=false", "--ip6tables=false", "--ip-masq=false", "--bridge", "none",
		"--userland-proxy=false", "--cgroup-parent", "/" + d.cgroup, "--shutdown-timeout", "0"}, args...)
	daemon := d.A.GoCmd(t, d.command(context.Background(), d.A, argv...))
	t.Cleanup(func() {
		if t.Failed() {
			log := daemon.Log()
			t.Logf("dockerd:\n%s", log[max(0, len(log)-8000):])
		}
		// The daemon ends containerd, and that its processes beside the containers.
		terminate(t, daemon)
		testkind.Eventually(t, "no process of Docker is left", func() (any, bool) {
			left := processesWith(t, dir)
			return left, len(left) == 0
		})
	})
	if err := daemon.WaitPart("API listen on", startTime); err != nil {
		t.Fatal(err, daemon.Log())
	}
	b, err := os.ReadFile(pidFile)
	if err != nil {
		t.Fatal(err)
	}
	d.within = strings.TrimSpace(string(b))
	t.Cleanup(func() {
		if out, err := d.docker("ps", "--all", "--quiet"); err != nil {
			t.Error(err, out)
		} else if all := strings.Fields(out); len(all) > 0 {
			if out, err := d.docker(append([]string{"rm", "--force"}, all...)...); err != nil {
				t.Error(err, out)
			}
		}
	})
	bundle := filepath.Join(d.dir, "image")
	d.root(bundle)
	tar := filepath.Join(d.dir, "image.tar")
	if out, err := exec.CommandContext(t.Context(), "tar", "-C", filepath.Join(bundle, "root"), "-cf", tar, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	d.mustDocker("import", tar, d.image)
	return d
}

// docker runs the client, and returns what it prints on both streams.
func (d *dockerHost) docker(args ...string) (string, error) {
	out, err := d.command(context.Background(), d.A, append([]string{"docker"}, args...)...).CombinedOutput()
	return string(out), err
}

func (d *dockerHost) mustDocker(args ...string) string {
	d.t.Helper()
	out, err := d.docker(args...)
	if err != nil {
		d.t.Fatalf("docker %q: %v\n%s", args, err, out)
	}
	return strings.TrimSpace(out)
}

// create is the command line that makes a container with these options, in which the programs of this machine and smcr are.
func (d *dockerHost) create(name string, options []string, argv ...string) []string {
	programs := filepath.Dir(bin("smcr"))
	args := append([]string{"run", "--name", name, "--volume", "/usr:/usr:ro", "--volume", "/run/smcr:/run/smcr:ro", "--volume", programs + ":" + programs + ":ro"}, options...)
	return append(append(args, d.image), argv...)
}

// listens waits until the server in a container has listened that many times.
func (d *dockerHost) listens(name string, times int) {
	d.t.Helper()
	testkind.Eventually(d.t, "the server listens", func() (any, bool) {
		out, err := d.docker("logs", name)
		return out, err == nil && strings.Count(out, "listening") >= times
	})
}

// TestAttachDocker is TestAttachContainer with containers of a real Docker.
func TestAttachDocker(t *testing.T) {
	d := newDockerHost(t)
	name := fmt.Sprintf("smcr-test-%d", os.Getpid())
	id := d.mustDocker(d.create(name, []string{"--detach", "--network", "host"}, "/usr/bin/python3", "-u", "-c", wireServer, d.A.Addr())...)
	d.listens(name, 1)
	d.wireHalf(false, underArgv()...)
	why := func(wants, not string) {
		t.Helper()
		out := strings.Join(strings.Fields(d.must(d.A, "why", "container:"+name, "--interval", "0")), " ")
		if !strings.Contains(out, wants) || strings.Contains(out, not) {
			t.Errorf("why, want %q and not %q:\n%s", wants, not, out)
		}
	}
	hint := "'smcr attach --container " + id[:12] + "'"
	why(hint, "SMC-R ")
	for i, by := range []string{name, id, id[:12], id[:5]} {
		d.must(d.A, "attach", "--container", by)
		d.wireHalf(true, underArgv()...)
		why("SMC-R", hint)
		// It has the same ID after a restart.
		d.mustDocker("restart", "--time", "0", name)
		d.listens(name, i+2)
		d.wireHalf(true, underArgv()...)
		d.must(d.A, "detach", "--container", by)
		d.wireHalf(false, underArgv()...)
	}
	wants := func(name, want string) {
		t.Helper()
		if out, err := d.smcr(d.A, "attach", "--container", name); err == nil || !strings.Contains(out, want) {
			t.Errorf("attach %s: %v, %q, want %q", name, err, out, want)
		}
	}
	wants("nosuch", "no such container nosuch")
	d.must(d.A, "attach", "--container", name)
	d.mustDocker("pause", name)
	why("SMC-R", hint)
	d.must(d.A, "detach", "--container", name)
	d.must(d.A, "attach", "--container", name)
	d.mustDocker("unpause", name)
	d.wireHalf(true, underArgv()...)
	// It is attached while it does not run, and can be detached.
	d.mustDocker("stop", "--time", "0", name)
	d.awaitNoCgroup(id)
	wants(name, "does not run")
	attached := func(want bool) {
		t.Helper()
		if out := d.must(d.A, "program", "list", "-o", "json"); strings.Contains(out, id) != want {
			t.Errorf("attached, want %v:\n%s", want, out)
		}
	}
	attached(true)
	d.must(d.A, "detach", "--container", name)
	attached(false)
	d.mustDocker("start", name)
	d.listens(name, 6)
	d.wireHalf(false, underArgv()...)
	d.must(d.A, "attach", "--container", name)
	d.mustDocker("rm", "--force", name)
	d.awaitNoCgroup(id)
	wants(name, "no such container "+name)
	if out, err := d.smcr(d.A, "detach", "--container", name); err == nil || !strings.Contains(out, "no such container "+name) {
		t.Errorf("detach by a name that is gone: %v, %s", err, out)
	}
	attached(true)
	d.must(d.A, "detach", "--container", id[:12])
	attached(false)
}

// awaitNoCgroup waits until a container has no cgroup.
func (d *dockerHost) awaitNoCgroup(id string) {
	d.t.Helper()
	testkind.Eventually(d.t, "the container has no cgroup", func() (any, bool) {
		dirs, err := filepath.Glob(filepath.Join(cgroupTop(d.t), d.cgroup, "*"+id+"*"))
		return fmt.Sprint(dirs, err), len(dirs) == 0 && err == nil
	})
}
