// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/netnstest"
	"smcr/internal/testing/testkind"
)

// A containerHost is host A with container runtimes: their folders, and a command with the names of theirs.
type containerHost struct {
	*lab
	t      *testing.T
	dir    string // with the files of containers, and the folders
	cgroup string // in which the containers are, below the top of the tree
	within string // the process of a daemon, if the commands are in its mount namespace
}

// containerMounts is a shell script that executes its arguments where cgroup v2 is mounted as runtimes expect it, on a machine that has version 1, too,
// and where the logs of pods are those of this test.
const containerMounts = `umount -R /sys/fs/cgroup && mount -t cgroup2 cgroup2 /sys/fs/cgroup && mount -t tmpfs tmpfs /var/log && mkdir /var/log/pods && mount --bind "$0/pods" /var/log/pods && exec "$@"`

// command is one of host A among its containers.
func (c *containerHost) command(ctx context.Context, h *netnstest.Host, argv ...string) *exec.Cmd {
	if c.within != "" {
		return h.Command(ctx, "nsenter", append([]string{"--mount", "--target", c.within, "--"}, argv...)...)
	}
	cmd := h.Command(ctx, "unshare", append([]string{"--mount", "--propagation", "private", "sh", "-c", containerMounts, c.dir}, argv...)...)
	cmd.Env = append(cmd.Env, "PATH="+filepath.Join(c.dir, "bin")+":"+os.Getenv("PATH"))
	return cmd
}

// smcr runs smcr among the containers, and returns what it prints on both streams.
func (c *containerHost) smcr(h *netnstest.Host, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(c.t.Context(), commandTime)
	defer cancel()
	out, err := c.command(ctx, h, append([]string{bin("smcr")}, args...)...).CombinedOutput()
	return string(out), err
}

func (c *containerHost) must(h *netnstest.Host, args ...string) string {
	c.t.Helper()
	out, err := c.smcr(h, args...)
	if err != nil {
		c.t.Fatalf("smcr %q: %v\n%s", args, err, out)
	}
	return out
}

// crun is a command line of crun of host A.
func (c *containerHost) crun(args ...string) []string {
	return append([]string{"crun", "--root", filepath.Join(c.dir, "crun"), "--cgroup-manager", "cgroupfs"}, args...)
}

// start starts a container without rights, whose first process is a program with its arguments. It has a file with the number of this process.
func (c *containerHost) start(id, cgroup string, argv ...string) (p *netnstest.Process, pidFile string) {
	c.t.Helper()
	bundle := filepath.Join(c.dir, id)
	c.root(bundle)
	programs := filepath.Dir(bin("smcr"))
	spec := map[string]any{
		"ociVersion": "1.0.2",
		"process":    map[string]any{"args": argv, "cwd": "/", "user": map[string]any{}, "env": []string{"PATH=/usr/bin"}},
		"root":       map[string]any{"path": filepath.Join(bundle, "root")},
		"mounts": []any{
			map[string]any{"destination": "/proc", "type": "proc", "source": "proc"},
			map[string]any{"destination": "/usr", "type": "bind", "source": "/usr", "options": []string{"bind", "ro"}},
			map[string]any{"destination": "/run/smcr", "type": "bind", "source": "/run/smcr", "options": []string{"bind", "ro"}},
			map[string]any{"destination": programs, "type": "bind", "source": programs, "options": []string{"bind", "ro"}},
		},
		// No network namespace: that of the host.
		"linux": map[string]any{"cgroupsPath": filepath.Join("/", c.cgroup, cgroup), "namespaces": []any{
			map[string]any{"type": "pid"}, map[string]any{"type": "mount"}, map[string]any{"type": "ipc"}, map[string]any{"type": "cgroup"},
		}},
	}
	b, err := json.Marshal(spec)
	if err != nil {
		c.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(bundle, "config.json"), b, 0o644); err != nil {
		c.t.Fatal(err)
	}
	pidFile = filepath.Join(bundle, "pid")
	p = c.A.GoCmd(c.t, c.command(context.Background(), c.A, c.crun("run", "--bundle", bundle, "--pid-file", pidFile, id)...))
	c.t.Cleanup(func() {
		_ = c.command(context.Background(), c.A, c.crun("delete", "--force", id)...).Run()
	})
	return p, pidFile
}

// server starts the server of wireHalf in a container, and returns its process.
func (c *containerHost) server(id, cgroup string) (p *netnstest.Process, pid string) {
	c.t.Helper()
	p, pidFile := c.start(id, cgroup, "/usr/bin/python3", "-u", "-c", wireServer, c.A.Addr())
	if err := p.WaitOutput("listening", startTime); err != nil {
		c.t.Fatal(err, p.Log())
	}
	b, err := os.ReadFile(pidFile)
	if err != nil {
		c.t.Fatal(err)
	}
	return p, strings.TrimSpace(string(b))
}

// root makes the root of a container, which has the programs of this machine.
func (c *containerHost) root(bundle string) {
	c.t.Helper()
	for _, dir := range []string{"proc", "usr", "dev", "tmp", "etc", "run", "sys"} {
		if err := os.MkdirAll(filepath.Join(bundle, "root", dir), 0o755); err != nil {
			c.t.Fatal(err)
		}
	}
	for _, dir := range []string{"bin", "lib", "lib64"} {
		if err := os.Symlink("usr/"+dir, filepath.Join(bundle, "root", dir)); err != nil {
			c.t.Fatal(err)
		}
	}
}

func newContainerHost(t *testing.T) *containerHost {
	t.Helper()
	l := newLab(t, "crun", "unshare", "/usr/bin/python3", "tshark")
	for _, h := range []*netnstest.Host{l.A, l.B} {
		l.serve(h)
	}
	c := &containerHost{lab: l, t: t, dir: t.TempDir(), cgroup: fmt.Sprintf("smcr-test-e2e-%d-containers", os.Getpid())}
	for _, dir := range []string{"bin", "pods"} {
		if err := os.Mkdir(filepath.Join(c.dir, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(cgroupTop(t), c.cgroup), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.t = t
		c.removeCgroups(0)
	})
	return c
}

// removeCgroups removes the cgroups of containers that have ended, from a depth on.
func (c *containerHost) removeCgroups(depth int) {
	c.t.Helper()
	testkind.Eventually(c.t, "the cgroups of containers are removed", func() (any, bool) {
		out, err := exec.CommandContext(context.Background(), "find", filepath.Join(cgroupTop(c.t), c.cgroup), "-mindepth", fmt.Sprint(depth), "-depth", "-type", "d", "-exec", "rmdir", "{}", "+").CombinedOutput()
		return fmt.Sprintf("%v: %s", err, out), err == nil
	})
}

// runtime has a program of a name print what it would print for a container.
func (c *containerHost) runtime(program, name, id, pid string) {
	c.t.Helper()
	text := fmt.Sprintf(`#!/bin/sh
[ "$*" = "container inspect %s" ] || { echo "Error: No such container: $3" >&2; exit 1; }
echo '[{"Id":"%s","Created":"2026-01-01T00:00:00Z","State":{"Status":"running","Running":true,"Pid":%s},"Name":"/%[1]s"}]'
`, name, id, pid)
	if err := os.WriteFile(filepath.Join(c.dir, "bin", program), []byte(text), 0o755); err != nil {
		c.t.Fatal(err)
	}
}

// TestAttachContainer: a container is attached by its name, its ID or its pod, as each runtime has them, and detached. Its server has run all the
// time. From another network namespace, the command says how.
func TestAttachContainer(t *testing.T) {
	c := newContainerHost(t)
	const uid, other = "9e1b0c3a-6a5f-4c0e-9d0c-0e6f3b0f0001", "9e1b0c3a-6a5f-4c0e-9d0c-0e6f3b0f0002"
	for i, x := range []struct{ runtime, cgroup, flag, name, also string }{
		{"docker", "system.slice/docker-ID.scope", "--container", "web", "ID"},
		{"podman", "machine.slice/libpod-ID.scope/container", "--container", "db", "12"},
		{"", "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + strings.ReplaceAll(uid, "-", "_") + ".slice/cri-containerd-ID.scope", "--pod", "shop/web-0", uid},
		{"", "kubepods/burstable/pod" + other + "/ID", "--pod", "db-0", other},
	} {
		t.Run(x.cgroup, func(t *testing.T) {
			c.t = t
			id := fmt.Sprintf("%08x%08x%048x", os.Getpid(), i+1, 1)
			server, pid := c.server(id, strings.ReplaceAll(x.cgroup, "ID", id))
			noun := "container:"
			if x.runtime != "" {
				c.runtime(x.runtime, x.name, id, pid)
			} else {
				noun = "pod:"
				if err := os.MkdirAll(filepath.Join(c.dir, "pods", "shop_"+strings.TrimPrefix(x.name, "shop/")+"_"+x.also), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			also := strings.ReplaceAll(x.also, "ID", id)
			if x.also == "12" {
				also = id[:12]
			}
			c.wireHalf(false, underArgv()...)
			if out := c.must(c.A, "why", noun+x.name, "--interval", "0"); !strings.Contains(out, "python3") || !strings.Contains(strings.Join(strings.Fields(out), " "), "'smcr attach --container "+id[:12]+"'") {
				t.Errorf("why, before:\n%s", out)
			}
			// Where it is not: what the message says is what works.
			out, err := c.smcr(c.B, "attach", x.flag, x.name)
			want := fmt.Sprintf("nsenter --target %s --net smcr attach %s %s", pid, x.flag, x.name)
			if err == nil || !strings.Contains(out, want) || !strings.Contains(out, "is in a network namespace of its own") {
				t.Errorf("on another host: %v, %s, want %q", err, out, want)
			}
			hint := append(strings.Fields(strings.Replace(want, " smcr ", " "+bin("smcr")+" ", 1)), "--accept")
			if out, err := c.command(t.Context(), c.B, hint...).CombinedOutput(); err != nil {
				t.Errorf("%q: %v\n%s", hint, err, out)
			}
			c.wireHalf(true, underArgv()...)
			if out := c.must(c.A, "why", noun+x.name, "--interval", "0"); !strings.Contains(out, "SMC-R") || strings.Contains(out, "smcr attach") {
				t.Errorf("why, after:\n%s", out)
			}
			c.must(c.A, "detach", x.flag, also)
			c.wireHalf(false, underArgv()...)
			c.must(c.A, "attach", x.flag, also)
			c.wireHalf(true, underArgv()...)
			c.must(c.A, "detach", x.flag, x.name)
			if out, err := c.smcr(c.A, "attach", x.flag, "nosuch"); err == nil || !strings.Contains(out, "nosuch") {
				t.Errorf("none such: %v, %s", err, out)
			}
			// It ends, with its cgroup, and still has the name, which detaches it.
			c.must(c.A, "attach", x.flag, x.name)
			server.Kill()
			if out, err := c.command(t.Context(), c.A, c.crun("delete", "--force", id)...).CombinedOutput(); err != nil {
				t.Error(err, string(out))
			}
			c.removeCgroups(1) // as the kubelet does with that of a pod
			if x.runtime != "" {
				c.runtime(x.runtime, x.name, id, "0")
			}
			c.must(c.A, "detach", x.flag, x.name)
			if out := c.must(c.A, "program", "list", "-o", "json"); strings.Contains(out, id) {
				t.Errorf("it is still attached:\n%s", out)
			}
			if out, err := c.smcr(c.A, "detach", x.flag, x.name); err == nil || !strings.Contains(out, "no such container") {
				t.Errorf("it is detached twice: %v, %s", err, out)
			}
		})
	}
}

// waitsForSignal says which process it is, and ends with status 5 when it gets SIGTERM.
const waitsForSignal = "import os, signal\n" +
	"def term(*a): print('terminated', flush=True); os._exit(5)\n" +
	"signal.signal(15, term)\nprint('running as', os.getpid(), flush=True)\nwhile True: signal.pause()\n"

// TestMainProcessCrun: a program under smcr run is the first process of a container of crun: its end is the container's, it gets the signals, and its
// connections use SMC-R.
func TestMainProcessCrun(t *testing.T) {
	c := newContainerHost(t)
	server := c.wireServer(c.B)
	n := 0
	for name, run := range starts() {
		t.Run(name, func(t *testing.T) {
			c.t = t
			start := func(argv ...string) *netnstest.Process {
				n++
				p, _ := c.start(fmt.Sprintf("smcr-test-%d-%d", os.Getpid(), n), fmt.Sprintf("run-%d", n), append(slices.Clone(run), argv...)...)
				return p
			}
			status := func(p *netnstest.Process, want int) {
				t.Helper()
				if err := p.Wait(endTime); p.Cmd.ProcessState.ExitCode() != want {
					t.Errorf("%v, want status %d\n%s", err, want, p.Log())
				}
			}
			status(start("/bin/sh", "-c", "exit 7"), 7)
			p := start("/usr/bin/python3", "-c", wireClient, c.B.Addr(), "half")
			status(p, 0)
			if log := p.Log(); !strings.Contains(log, "right\n") || strings.Contains(log, "over TCP") && !strings.Contains(log, "1 connection over SMC-R, 0 over TCP") {
				t.Errorf("%s", log)
			}
			p = start("/usr/bin/python3", "-c", waitsForSignal)
			if err := p.WaitOutput("running as ", startTime); err != nil {
				t.Fatal(err, p.Log())
			}
			if err := p.Cmd.Process.Signal(unix.SIGTERM); err != nil { // crun passes it on
				t.Error(err)
			}
			status(p, 5)
			if log := p.Log(); !strings.Contains(log, "terminated") {
				t.Errorf("%s", log)
			}
		})
	}
	server.Kill()
}

// processesWith returns the command lines in which a text stands.
func processesWith(t *testing.T, text string) (lines []string) {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		// A process may have ended since.
		if b, err := os.ReadFile(name); err == nil && bytes.Contains(b, []byte(text)) {
			lines = append(lines, string(bytes.ReplaceAll(b, []byte{0}, []byte{' '})))
		}
	}
	return lines
}

// TestAttachPodman is TestAttachContainer with containers of a real podman.
func TestAttachPodman(t *testing.T) {
	if _, err := exec.LookPath("podman"); err != nil {
		t.Skip(err)
	}
	c := newContainerHost(t)
	bundle := filepath.Join(c.dir, "real")
	c.root(bundle)
	name := fmt.Sprintf("smcr-test-%d", os.Getpid())
	store := []string{"--root", filepath.Join(c.dir, "store"), "--runroot", filepath.Join(c.dir, "run"), "--storage-driver", "vfs"}
	podman := append([]string{"podman", "--cgroup-manager", "cgroupfs"}, store...)
	run := func(args ...string) (string, error) {
		out, err := c.command(context.Background(), c.A, append(podman, args...)...).CombinedOutput()
		return string(out), err
	}
	// The command asks podman without options.
	text := "#!/bin/sh\nexec /usr/bin/podman " + strings.Join(store, " ") + ` "$@"` + "\n"
	if err := os.WriteFile(filepath.Join(c.dir, "bin", "podman"), []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if out, err := run("rm", "--force", "--time", "0", "--all"); err != nil {
			t.Error(err, out)
		}
		// What a container has run when it ended, in the background, still writes there.
		testkind.Eventually(t, "no process of podman is left", func() (any, bool) {
			left := processesWith(t, filepath.Join(c.dir, "store"))
			return left, len(left) == 0
		})
	})
	start := func(name, network string, program ...string) {
		t.Helper()
		if out, err := run(append([]string{"run", "--detach", "--privileged", "--pids-limit", "0", "--name", name, "--network", network, "--ulimit", "nofile=1024:1024",
			"--ulimit", "nproc=1024:1024", "--cgroup-parent", "/" + c.cgroup, "--volume", "/usr:/usr:ro", "--rootfs", filepath.Join(bundle, "root")}, program...)...); err != nil {
			t.Fatal(err, out)
		}
	}
	start(name, "host", "/usr/bin/python3", "-u", "-c", wireServer, c.A.Addr())
	if err := netnstest.Until(startTime, func() error {
		out, err := run("logs", name)
		if !strings.Contains(out, "listening") {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	c.wireHalf(false, underArgv()...)
	c.must(c.A, "attach", "--container", name)
	c.wireHalf(true, underArgv()...)
	if out := c.must(c.A, "why", "container:"+name, "--interval", "0"); !strings.Contains(out, "SMC-R") || !strings.Contains(out, ", container ") {
		t.Errorf("why:\n%s", out)
	}
	// It has the same ID after a restart.
	if out, err := run("restart", "--time", "0", name); err != nil {
		t.Fatal(err, out)
	}
	if err := netnstest.Until(startTime, func() error {
		out, err := run("logs", name)
		if strings.Count(out, "listening") < 2 {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	c.wireHalf(true, underArgv()...)
	c.must(c.A, "detach", "--container", name)
	c.wireHalf(false, underArgv()...)
	start(name+"-alone", "none", "/usr/bin/sleep", "600")
	if out, err := c.smcr(c.A, "attach", "--container", name+"-alone"); err == nil || !strings.Contains(out, "is in a network namespace of its own") {
		t.Errorf("with a network of its own: %v, %s", err, out)
	}
	if out, err := run("stop", "--time", "0", name); err != nil {
		t.Fatal(err, out)
	}
	if out, err := c.smcr(c.A, "attach", "--container", name); err == nil || !strings.Contains(out, "does not run") {
		t.Errorf("it is stopped: %v, %s", err, out)
	}
}
