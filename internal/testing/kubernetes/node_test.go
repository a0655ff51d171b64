// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"smcr/internal/testing/netnstest"
)

const (
	// cgroups is where a container runtime expects the cgroup v2 tree.
	cgroups = "/sys/fs/cgroup"
	// prefix begins the names of the directory and of the cgroups of a test. The process of the
	// test follows.
	prefix = "smcr-kubernetes-"
	// limit is for everything that a test waits for.
	limit = 60 * time.Second
)

// inTree is a shell script that executes its arguments where the cgroup v2 tree is at cgroups,
// also on a machine that has version 1 there.
const inTree = `mount -t cgroup2 cgroup2 ` + cgroups + ` && exec "$@"`

// A node is a network namespace with a directory for what a node has: hostPath volumes, images,
// and the state of crun.
type node struct {
	t      *testing.T
	host   *netnstest.Host
	dir    string
	cgroup string // of the node, below the top of the tree
	smcr   string // the static program
	images map[string]*image
	pods   int
	// services are the addresses of services by name.
	services map[string]string
}

// newNodes returns a node for each host of a pair.
func newNodes(t *testing.T) (a, b *node) {
	t.Helper()
	netnstest.Require(t, "crun", "nsenter", "unshare", "tcpdump", "nginx", "curl", "busybox", "ip", "nft")
	removeStale(t)
	// The files must be readable for the users of containers, and t.TempDir is not.
	dir := filepath.Join(os.TempDir(), fmt.Sprintf("%s%d", prefix, os.Getpid()))
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	smcr := filepath.Join(dir, "smcr")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-buildvcs=false", "-trimpath", "-ldflags", "-s -w", "-o", smcr, "./cmd/smcr")
	cmd.Dir = "../../.."
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build smcr: %v\n%s", err, out)
	}
	pair := netnstest.New(t, netnstest.Options{})
	for i, host := range []*netnstest.Host{pair.A, pair.B} {
		n := &node{t: t, host: host, dir: filepath.Join(dir, strconv.Itoa(i)), smcr: smcr, images: map[string]*image{},
			cgroup: fmt.Sprintf("%s%d-%d", prefix, os.Getpid(), i)}
		if err := os.MkdirAll(n.path("/"), 0o755); err != nil {
			t.Fatal(err)
		}
		n.tree(`mkdir "$1"`, filepath.Join(cgroups, n.cgroup))
		t.Cleanup(func() { n.tree(removeTree, filepath.Join(cgroups, n.cgroup)) })
		if i == 0 {
			a = n
		} else {
			b = n
		}
	}
	return a, b
}

// removeTree ends all processes of a cgroup and removes it.
const removeTree = `[ ! -d "$1" ] || { echo 1 >"$1/cgroup.kill"; for i in 1 2 3 4 5 6 7 8 9 10; do
  find "$1" -depth -type d -exec rmdir {} + 2>/dev/null && break; sleep 0.1; done; [ ! -d "$1" ]; }`

// tree runs a script where the cgroup v2 tree is at cgroups.
func (n *node) tree(script string, args ...string) {
	n.t.Helper()
	if err := inCgroupTree(script, args...); err != nil {
		n.t.Error(err)
	}
}

func inCgroupTree(script string, args ...string) error {
	argv := append([]string{"--mount", "--propagation", "private", "sh", "-c", inTree, "sh", "sh", "-c", script, "sh"}, args...)
	if out, err := exec.Command("unshare", argv...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %q: %w\n%s", script, args, err, out)
	}
	return nil
}

// removeStale removes the containers, cgroups and directories of tests that were killed.
func removeStale(t *testing.T) {
	t.Helper()
	const script = `tmp=$1; for d in "$2$3"*; do
  [ -d "$d" ] || continue; pid=${d#"$2$3"}; pid=${pid%-*}
  [ -d "/proc/$pid" ] || { set -- "$d" "$2" "$3"; ` + removeTree + ` && rm -rf "$tmp/$3$pid"; }
done`
	if err := inCgroupTree(script, os.TempDir(), cgroups+"/", prefix); err != nil {
		t.Error(err)
	}
}

// path returns where a file of the node is.
func (n *node) path(name string) string { return filepath.Join(n.dir, "root", name) }

// hostPath returns the source of a volume of type hostPath.
func (n *node) hostPath(v *corev1.HostPathVolumeSource) (string, error) {
	if v.Path == cgroups {
		return filepath.Join(cgroups, n.cgroup), nil
	}
	dir := n.path(v.Path)
	switch *v.Type {
	case corev1.HostPathDirectoryOrCreate:
		return dir, os.MkdirAll(dir, 0o755)
	case corev1.HostPathDirectory:
		_, err := os.Stat(dir)
		return dir, err
	}
	return "", fmt.Errorf("hostPath of type %s", *v.Type)
}

// An image is what containers are made of.
type image struct {
	root       string
	entrypoint []string
	mounts     []specs.Mount
}

// image returns an image of the node. That of smcr is made as its Containerfile says. The
// programs of the others are those of this machine.
func (n *node) image(name string) (*image, error) {
	if i := n.images[name]; i != nil {
		return i, nil
	}
	i := &image{root: filepath.Join(n.dir, "images", regexp.MustCompile(`[:/]`).ReplaceAllString(name, "-"))}
	if err := os.MkdirAll(i.root, 0o755); err != nil {
		return nil, err
	}
	var err error
	switch repository, _, _ := strings.Cut(name, ":"); repository {
	case "smcr":
		err = i.fromContainerfile(n.smcr)
	case "busybox":
		err = i.busybox()
	case "nginx", "curlimages/curl":
		err = i.fromMachine()
	default:
		err = errors.New("no such image")
	}
	if err != nil {
		return nil, fmt.Errorf("image %s: %w", name, err)
	}
	n.images[name] = i
	return i, nil
}

// fromContainerfile does what the Containerfile says, in a folder that has only smcr.
func (i *image) fromContainerfile(smcr string) error {
	b, err := os.ReadFile(filepath.Join(deployed, "Containerfile"))
	if err != nil {
		return err
	}
	var steps []string
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) == 0 || f[0] == "#" || strings.HasPrefix(f[0], "#") {
			continue
		}
		steps = append(steps, strings.Join(f, " "))
		if f[0] == "ENTRYPOINT" {
			for _, m := range regexp.MustCompile(`"([^"]*)"`).FindAllStringSubmatch(line, -1) {
				i.entrypoint = append(i.entrypoint, m[1])
			}
		}
	}
	if got, want := strings.Join(steps, "\n"), "FROM scratch\nCOPY smcr /smcr\nENTRYPOINT [\"/smcr\"]"; got != want {
		return fmt.Errorf("the Containerfile has %q: this test knows only %q", got, want)
	}
	return copyFile(filepath.Join(i.root, "smcr"), smcr)
}

// busybox makes an image of the static busybox of this machine.
func (i *image) busybox() error {
	path, err := exec.LookPath("busybox")
	if err != nil {
		return err
	}
	bin := filepath.Join(i.root, "bin")
	if err := errors.Join(os.Mkdir(bin, 0o755), copyFile(filepath.Join(bin, "busybox"), path)); err != nil {
		return err
	}
	for _, name := range []string{"sh", "cp", "chmod", "mv", "tail"} {
		if err := os.Symlink("busybox", filepath.Join(bin, name)); err != nil {
			return err
		}
	}
	return nil
}

// fromMachine makes an image that has the programs and libraries of this machine.
func (i *image) fromMachine() error {
	for _, dir := range []string{"/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64"} {
		st, err := os.Lstat(dir)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue
		case err != nil:
			return err
		case st.Mode().Type() == fs.ModeSymlink:
			target, err := os.Readlink(dir)
			if err == nil {
				err = os.Symlink(target, filepath.Join(i.root, dir))
			}
			if err != nil {
				return err
			}
		default:
			i.mounts = append(i.mounts, specs.Mount{Destination: dir, Type: "bind", Source: dir, Options: []string{"bind", "ro", "rprivate"}})
		}
	}
	// nginx opens its log in /var before it reads its configuration.
	for _, dir := range []string{"etc", "var/log/nginx", "var/lib/nginx", "tmp", "run"} {
		if err := os.MkdirAll(filepath.Join(i.root, dir), 0o755); err != nil {
			return err
		}
	}
	for name, text := range map[string]string{
		"passwd": "root:x:0:0::/:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n", "group": "root:x:0:\nnogroup:x:65534:\n", "nsswitch.conf": "hosts: files dns\n",
	} {
		if err := os.WriteFile(filepath.Join(i.root, "etc", name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	return copyFile(filepath.Join(i.root, "etc/ld.so.cache"), "/etc/ld.so.cache")
}

func copyFile(to, from string) error {
	b, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	st, err := os.Stat(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, b, st.Mode().Perm())
}

// crun returns a command that runs crun on the node.
func (n *node) crun(ctx context.Context, args ...string) *exec.Cmd {
	argv := append([]string{"--mount", "--propagation", "private", "sh", "-c", inTree, "sh",
		"crun", "--root", filepath.Join(n.dir, "crun"), "--cgroup-manager", "cgroupfs"}, args...)
	cmd := n.host.Command(ctx, "unshare", argv...)
	return cmd
}

// service gives a service of one pod, which is on the node server, an address for the programs
// of n: the network of the node translates it, as it does with the rules of kube-proxy.
func (n *node) service(objects []runtime.Object, name string, server *node) {
	n.t.Helper()
	const addr = "10.96.0.17"
	for _, o := range objects {
		s, ok := o.(*corev1.Service)
		if !ok || s.Name != name {
			continue
		}
		port := s.Spec.Ports[0].Port
		target := fmt.Sprintf("%s:%d", server.host.Addr(), port)
		for _, argv := range [][]string{
			{"ip", "route", "add", addr, "via", server.host.Addr()},
			{"nft", "add table ip services; add chain ip services output { type nat hook output priority -100; }; " +
				fmt.Sprintf("add rule ip services output ip daddr %s tcp dport %d dnat to %s", addr, port, target)},
		} {
			if _, err := n.host.Output(n.t.Context(), argv[0], argv[1:]...); err != nil {
				n.t.Fatal(err)
			}
		}
		n.services = map[string]string{name: addr}
		return
	}
	n.t.Fatalf("no service %s", name)
}
