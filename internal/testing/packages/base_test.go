// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"smcr/internal/testing/netnstest"
)

const (
	// release is the Debian whose files the machines have.
	release = "bookworm"
	// extra are packages that not every Debian has: systemd, which the units need, and what
	// README.md uses for the first connection.
	extra = "systemd,iproute2,nginx-light,curl,iperf3"
)

// withServices adds the servers whose units TestServices tries, to the files of all machines.
func withServices() string {
	all := extra + ",procps"
	for _, s := range testedServices() {
		if !strings.Contains(all, s.pkg) {
			all += "," + s.pkg
		}
	}
	return all
}

// A store has the files of a new Debian.
type store struct {
	once sync.Once
	*machine
	dir     string // empty on the disk of this machine
	err     error
	missing error // why this machine cannot make it
}

// debian is one for all tests, because it takes half a minute.
var debian store

func TestMain(m *testing.M) {
	status := m.Run()
	if err := errors.Join(debian.remove(), built.remove()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		status = max(status, 1)
	}
	os.Exit(status)
}

func (s *store) remove() error {
	var err error
	if s.machine != nil {
		err = s.close()
	}
	if s.dir != "" {
		err = errors.Join(err, os.Remove(s.dir))
	}
	return err
}

func (s *store) make() error {
	var err error
	var mirror string
	if mirror, s.missing = mirrorOfApt(); s.missing != nil {
		return nil
	}
	if s.dir, err = os.MkdirTemp("", "smcr-packages-"); err != nil {
		return err
	}
	if s.machine, err = startMachine("store", s.dir, "store", filepath.Join(s.dir, "ready")); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), buildTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, "nsenter", fmt.Sprintf("--target=%d", s.pid), "--mount", "--pid", "--",
		"debootstrap", "--variant=minbase", "--include="+withServices(), release, filepath.Join(s.dir, "base"), mirror)
	cmd.Env = append(os.Environ(), "PATH="+os.Getenv("PATH")+":/usr/sbin:/sbin")
	proxy, err := exec.Command("apt-config", "shell", "p", "Acquire::http::Proxy").Output()
	if value, ok := strings.CutPrefix(strings.TrimSpace(string(proxy)), "p="); err == nil && ok {
		cmd.Env = append(cmd.Env, "http_proxy="+strings.Trim(value, "'"))
	}
	cmd.WaitDelay = time.Second
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("debootstrap: %w: %s", errors.Join(err, ctx.Err()), tail(string(out)))
	}
	return nil
}

// mirrorOfApt returns where apt of this machine finds the packages of Debian.
func mirrorOfApt() (string, error) {
	out, err := exec.Command("apt-get", "indextargets", "--format", "$(ORIGIN) $(LABEL) $(COMPONENT) $(REPO_URI)", "Created-By: Packages").Output()
	if err != nil {
		return "", fmt.Errorf("apt-get indextargets: %w", err)
	}
	for line := range strings.Lines(string(out)) {
		if uri, ok := strings.CutPrefix(strings.TrimSpace(line), "Debian Debian main "); ok {
			return uri, nil
		}
	}
	return "", errors.New("apt has no list of Debian's packages: run `apt-get update` with a mirror of Debian")
}

// boot starts a machine with a new Debian for the test: kind is chroot, systemd or own. The test is
// skipped if this computer cannot, and fails in continuous integration.
func boot(t *testing.T, kind string) *machine {
	t.Helper()
	debian.once.Do(func() { debian.err = debian.make() })
	if debian.missing != nil {
		skip(t, debian.missing)
	}
	if debian.err != nil {
		t.Fatal(debian.err)
	}
	name := fmt.Sprintf("smcr-packages-%d-%s", os.Getpid(), strings.ToLower(t.Name()))
	m, err := startMachine(kind, debian.dir, name, "/run/ready", inStore()...)
	if err != nil {
		t.Fatal(err)
	}
	m.t = t
	t.Cleanup(func() {
		if err := m.close(); err != nil {
			t.Error(err)
		}
	})
	return m
}

// inStore precedes the command of a machine whose files are in the store.
func inStore() []string {
	return []string{"nsenter", fmt.Sprintf("--target=%d", debian.pid), "--mount", "--"}
}

// skip skips the test, except in continuous integration, where it fails.
func skip(t *testing.T, why error) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatal(why)
	}
	t.Skip(why)
}

// need skips the test if this computer lacks something, see [netnstest.Require].
func need(t *testing.T, tools ...string) {
	t.Helper()
	if testing.Short() {
		t.Skip("takes a minute: run `sudo make test-all`")
	}
	netnstest.Require(t, tools...)
}

// The address of host A, and what both hosts have in /etc/hosts, as the documents assume.
const (
	addressA = "10.77.0.1"
	addressB = "10.77.0.2"
	hosts    = "127.0.0.1 localhost\n" + addressA + " hostA\n" + addressB + " hostB\n"
)

// hosts returns two hosts that are joined by a cable: the machine itself and a network namespace
// of it.
func (m *machine) hosts() (a, b host) {
	m.t.Helper()
	a = host{machine: m, name: "hostA"}
	b = host{machine: m, name: "hostB", net: []string{"nsenter", "--net=/run/netns/hostB", "--"}}
	if err := os.WriteFile(m.path("etc/hosts"), []byte(hosts), 0o644); err != nil {
		m.t.Fatal(err)
	}
	a.must(makeHosts)
	return a, b
}

// makeHosts makes the network of the hosts.
const makeHosts = `set -e
		ip netns add hostB
		ip link add eth0 type veth peer name eth0 netns hostB
		ip address add ` + addressA + `/24 dev eth0
		ip -n hostB address add ` + addressB + `/24 dev eth0
		ip link set eth0 up
		ip -n hostB link set eth0 up
		ip -n hostB link set lo up`

// put copies files of this computer to the machine's /tmp, and returns their paths there.
func (m *machine) put(files ...string) string {
	m.t.Helper()
	var all []string
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			m.t.Fatal(err)
		}
		name := filepath.Join("/tmp", filepath.Base(f))
		if err := os.WriteFile(m.path(name), b, 0o644); err != nil {
			m.t.Fatal(err)
		}
		all = append(all, name)
	}
	return strings.Join(all, " ")
}

// tail returns the end of a long output.
func tail(s string) string { return s[max(0, len(s)-4000):] }
