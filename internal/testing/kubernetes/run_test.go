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

// transfer runs the client of an example, which compares what it gets with its own copy. It returns the number of bytes.
func (p *pod) transfer() int64 {
	t := p.node.t
	t.Helper()
	p.mustStart()
	r := p.find("curl")
	if err := r.proc.Wait(limit); err != nil || !strings.Contains(r.proc.Log(), "same\n") {
		t.Fatalf("the client: %v\n%s", err, r.proc.Log())
	}
	st, err := os.Stat(p.volumes["smcr-program"] + "/smcr")
	if err != nil {
		t.Fatal(err)
	}
	return st.Size()
}

// capture captures what passes the link of a node. What a stack gives to a program passes the device, and has no address of it.
func (n *node) capture() *netnstest.Capture {
	return n.host.StartCapture(n.t, netnstest.CaptureOptions{SnapLen: 96, Filter: "ether host " + n.host.Links[0].MAC.String()})
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

// counted checks that a stack has counted so many connections over SMC-R, with these bytes.
func (p *pod) counted(stack string, conns int, size int64) {
	p.node.t.Helper()
	var stats []struct {
		SMCR struct {
			Connections int
			Rx          struct{ Bytes int64 }
		}
	}
	p.report(stack, &stats, "stats", "show", "--absolute")
	if len(stats) != 1 || stats[0].SMCR.Connections != conns || stats[0].SMCR.Rx.Bytes < size {
		p.node.t.Errorf("counters %+v, want %d connections with %d bytes", stats, conns, size)
	}
}

// grant gives the stacks of workloads what the files leave to their users: CAP_SYS_ADMIN.
func grant(objects []runtime.Object) {
	for _, w := range workloads(objects) {
		for _, c := range containers(w.pod) {
			if isStack(c) {
				caps := c.SecurityContext.Capabilities
				caps.Add = append(caps.Add, "SYS_ADMIN")
			}
		}
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
	example = mustBuild(t, "examples/sidecar")
	grant(example)
	b.service(example, "web", a)
	return a, b, example
}

// TestSidecar runs the example in which each pod has a network and a stack of its own.
func TestSidecar(t *testing.T) {
	a, b, objects := newSidecars(t)
	web := a.newPod(objects, "web")
	web.mustStart()
	web.powerless("nginx")
	capture := b.capture()
	client := b.newPod(objects, "client")
	size := client.transfer()
	wire(t, capture, size)
	client.counted("smcr-stack", 1, size)
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
	grant(system)
	var stack *pod
	for _, n := range []*node{a, b} {
		stack = n.newPod(system, "smcr-stack")
		stack.mustStart()
	}
	b.service(objects, "web", a)
	web := a.newPod(objects, "web")
	web.mustStart()
	web.powerless("nginx")
	capture := b.capture()
	client := b.newPod(objects, "client")
	size := client.transfer()
	wire(t, capture, size)
	stack.counted("stack", 1, size)
}

// TestLess takes from the stack of the example one thing after the other that its manifest
// gives it: programs then use TCP, and the log of the stack says why.
func TestLess(t *testing.T) {
	a, b, objects := newSidecars(t)
	a.newPod(objects, "web").mustStart()
	for _, test := range []struct {
		name   string
		change func(program, stack *corev1.Container)
		log    string // of the stack
	}{
		{"the cgroup of the pod", func(_, s *corev1.Container) { s.Args = []string{"serve"} }, "msg=serving"},
		{"SYS_ADMIN", without("SYS_ADMIN"), "capability=CAP_SYS_ADMIN lost="},
		{"BPF and SYS_ADMIN", without("BPF", "SYS_ADMIN"), "capability=CAP_BPF lost="},
		{"NET_ADMIN", without("NET_ADMIN"), "capability=CAP_NET_ADMIN lost="},
	} {
		p := b.newPod(objects, "client")
		test.change(container(t, p.spec, "curl"), container(t, p.spec, "smcr-stack"))
		p.transfer()
		p.counted("smcr-stack", 0, 0)
		log := p.find("smcr-stack").proc.Log()
		if t.Logf("without %s: %s", test.name, log); !strings.Contains(log, test.log) {
			t.Errorf("without %s: the log of the stack does not say %q", test.name, test.log)
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

// without takes capabilities from the stack.
func without(names ...corev1.Capability) func(_, stack *corev1.Container) {
	return func(_, s *corev1.Container) {
		caps := s.SecurityContext.Capabilities
		caps.Add = slices.DeleteFunc(caps.Add, func(c corev1.Capability) bool { return slices.Contains(names, c) })
	}
}
