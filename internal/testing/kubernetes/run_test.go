// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"smcr/internal/testing/netnstest"
)

// install runs the DaemonSet of the base on the node. The pod stays.
func (n *node) install(objects []runtime.Object) {
	n.t.Helper()
	n.newPod(objects, "smcr-profile").mustStart()
	if _, err := localhost(n.path("/var/lib/kubelet/seccomp/smcr/run.json")); err != nil {
		n.t.Fatal(err)
	}
}

// overSMC is the summary of smcr run -v of a program with one connection, over SMC-R.
const overSMC = "smcr: 1 connection over SMC-R, 0 over TCP"

// transfer runs the client of an example, which compares what it gets with its own copy, and
// wants that it says something. It returns the number of bytes.
func (p *pod) transfer(says string) int64 {
	t := p.node.t
	t.Helper()
	p.mustStart()
	r := p.find("curl")
	if err := r.proc.Wait(limit); err != nil || !strings.Contains(r.proc.Log(), "same\n") {
		t.Fatalf("the client: %v\n%s", err, r.proc.Log())
	}
	if log := r.proc.Log(); !strings.Contains(log, says) || strings.Contains(log, overSMC) != (says == overSMC) {
		t.Errorf("%s: want %q:\n%s", r.id, says, log)
	}
	st, err := os.Stat(p.volumes["smcr-program"] + "/smcr")
	if err != nil {
		t.Fatal(err)
	}
	return st.Size()
}

// wire checks that a file went over RoCE, and not over TCP.
func wire(t *testing.T, c *netnstest.Capture, size int64) {
	t.Helper()
	if _, err := c.Stop(); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(c.File)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	seen, err := netnstest.CountTraffic(f)
	if err != nil {
		t.Fatal(err)
	}
	roce := seen.RoCEv1.Payload + seen.RoCEv2.Payload
	t.Logf("a file of %d bytes: %d bytes over RoCE, %d over TCP", size, roce, seen.TCP.Payload)
	if roce < size || seen.TCP.Payload > 64<<10 || seen.SMCSYNs == 0 || seen.SMCSYNACKs == 0 {
		t.Errorf("%d SYNs and %d SYN-ACKs announce SMC", seen.SMCSYNs, seen.SMCSYNACKs)
	}
}

// report returns what a command of smcr in the container of a stack says in JSON.
func (p *pod) report(stack string, out any, args ...string) {
	p.node.t.Helper()
	text, err := p.exec(stack, append(append([]string{"/smcr"}, args...), "--output", "json")...)
	if err == nil {
		err = json.Unmarshal([]byte(text), out)
	}
	if err != nil {
		p.node.t.Fatal(err)
	}
}

// counted checks that a stack has a link group, and has counted the bytes of one connection.
func (p *pod) counted(stack string, size int64) {
	p.node.t.Helper()
	var groups []map[string]any
	p.report(stack, &groups, "linkgroup", "list")
	var stats []struct {
		SMCR struct {
			Connections int
			Rx          struct{ Bytes int64 }
		}
	}
	p.report(stack, &stats, "stats", "show", "--absolute")
	if len(groups) != 1 || len(stats) != 1 || stats[0].SMCR.Connections != 1 || stats[0].SMCR.Rx.Bytes < size {
		p.node.t.Errorf("link groups %v, counters %+v, want one connection with %d bytes", groups, stats, size)
	}
}

// powerless checks that the first process of a container has no capability, and can get none.
func (p *pod) powerless(name string) {
	p.node.t.Helper()
	status, err := p.exec(name, "cat", "/proc/1/status")
	if err != nil {
		p.node.t.Fatal(err)
	}
	for _, want := range []string{"CapInh:\t0000000000000000", "CapPrm:\t0000000000000000", "CapEff:\t0000000000000000", "CapAmb:\t0000000000000000", "NoNewPrivs:\t1", "Uid:\t65532\t65532\t65532\t65532"} {
		if !strings.Contains(status, want) {
			p.node.t.Errorf("%s: not %q:\n%s", name, want, status)
		}
	}
}

// newSidecars makes two nodes for the example in which each pod has a stack of its own, and
// returns its objects. The service "web" of the second node leads to the first one.
func newSidecars(t *testing.T) (a, b *node, example []runtime.Object) {
	t.Helper()
	if testing.Short() {
		t.Skip("runs the containers of some pods")
	}
	a, b = newNodes(t)
	base := mustBuild(t, "base")
	example = mustBuild(t, "examples/sidecar")
	a.install(base)
	b.install(base)
	b.service(example, "web", a)
	return a, b, example
}

// TestSidecar runs the example in which each pod has a network and a stack of its own.
func TestSidecar(t *testing.T) {
	a, b, objects := newSidecars(t)
	web := a.newPod(objects, "web")
	web.mustStart()
	web.powerless("nginx")
	capture := b.host.StartCapture(t, netnstest.CaptureOptions{SnapLen: 96})
	client := b.newPod(objects, "client")
	size := client.transfer(overSMC)
	wire(t, capture, size)
	client.counted("smcr-stack", size)
	if _, err := client.exec("smcr-stack", "/smcr", "check", a.host.Addr()+":8080"); err != nil {
		t.Error(err)
	}
}

// TestHostNetwork runs the example in which pods use the network and the stack of their node.
func TestHostNetwork(t *testing.T) {
	if testing.Short() {
		t.Skip("runs the containers of some pods")
	}
	a, b := newNodes(t)
	system, objects := mustBuild(t, "daemonset"), mustBuild(t, "examples/hostnetwork")
	var stack *pod
	for _, n := range []*node{a, b} {
		n.install(system)
		stack = n.newPod(system, "smcr-stack")
		stack.mustStart()
	}
	b.service(objects, "web", a)
	web := a.newPod(objects, "web")
	web.mustStart()
	web.powerless("nginx")
	capture := b.host.StartCapture(t, netnstest.CaptureOptions{SnapLen: 96})
	client := b.newPod(objects, "client")
	size := client.transfer(overSMC)
	wire(t, capture, size)
	stack.counted("stack", size)
}

// TestLess takes from the client of the example one thing after the other that its manifest
// gives it: programs then use TCP, and say why.
func TestLess(t *testing.T) {
	a, b, objects := newSidecars(t)
	a.newPod(objects, "web").mustStart()
	for _, test := range []struct {
		name   string
		change func(program, stack *corev1.Container)
		says   string // the program
		log    string // of the stack
	}{
		{"the seccomp profile for smcr run", func(c, _ *corev1.Container) {
			c.SecurityContext.SeccompProfile = &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}
		}, "the launcher cannot take the program's sockets", ""},
		// The default profile depends on the capability. A program of another user than root
		// does not get it.
		{"the profile, with SYS_PTRACE instead", func(c, _ *corev1.Container) {
			c.SecurityContext.SeccompProfile = &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}
			c.SecurityContext.Capabilities.Add = []corev1.Capability{"SYS_PTRACE"}
			c.Args[2] = "grep -q CapEff:.0000000000000000 /proc/self/status && " + c.Args[2]
		}, overSMC, ""},
		{"the sockets of the stack", func(c, _ *corev1.Container) {
			c.VolumeMounts = slices.DeleteFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == "/run/smcr" })
		}, "all connections over TCP: the kernel has no SMC; no smcr stack in this network namespace", ""},
		{"the cgroup of the pod", func(_, s *corev1.Container) { s.Args = []string{"serve"} }, "the peer does not speak SMC", "this stack is in a container"},
		{"BPF", without("BPF"), "the TCP option of SMC is not permitted here", "capability=CAP_BPF lost="},
		{"NET_ADMIN", without("NET_ADMIN"), "the TCP option of SMC is not permitted here", "capability=CAP_NET_ADMIN lost="},
	} {
		p := b.newPod(objects, "client")
		test.change(container(t, p.spec, "curl"), container(t, p.spec, "smcr-stack"))
		p.transfer(test.says)
		t.Logf("without %s: %s", test.name, p.find("curl").proc.Log())
		if log := p.find("smcr-stack").proc.Log(); !strings.Contains(log, test.log) {
			t.Errorf("without %s: the log of the stack does not say %q:\n%s", test.name, test.log, log)
		}
		p.stop()
	}
	// Without these, there is no stack, and so no pod.
	for says, change := range map[string]func(_, stack *corev1.Container){
		"needs CAP_NET_RAW":     without("NET_RAW"),
		"read-only file system": func(_, s *corev1.Container) { s.VolumeMounts = s.VolumeMounts[1:] },
		"cgroup":                func(_, s *corev1.Container) { s.VolumeMounts = s.VolumeMounts[:1] },
	} {
		p := b.newPod(objects, "client")
		change(nil, container(t, p.spec, "smcr-stack"))
		if err := p.start(); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%v, want %q", err, says)
		}
		p.stop()
	}
}

// without takes a capability from the stack.
func without(name corev1.Capability) func(_, stack *corev1.Container) {
	return func(_, s *corev1.Container) {
		caps := s.SecurityContext.Capabilities
		caps.Add = slices.DeleteFunc(caps.Add, func(c corev1.Capability) bool { return c == name })
	}
}
