// SPDX-License-Identifier: Apache-2.0

package guesttest

import (
	"strings"
	"testing"
)

// TestKernel boots one pair of guests. Each part uses the state that the part before has
// left.
func TestKernel(t *testing.T) {
	a, b := bed(t)
	t.Run("NoModule", func(t *testing.T) { testNoModule(t, a) })
	t.Run("Autoload", func(t *testing.T) { testAutoload(t, a) })
	t.Run("Control", func(t *testing.T) { testControl(t, a) })
	t.Run("SetUp", func(t *testing.T) {
		a.setUp(t)
		b.setUp(t)
	})
	if t.Failed() {
		return
	}
	t.Run("Tables", func(t *testing.T) { testTables(t, a) })
	t.Run("Traffic", func(t *testing.T) { testTraffic(t, a, b) })
	t.Run("Fallback", func(t *testing.T) { testFallback(t, a, b) })
	t.Run("Exporter", func(t *testing.T) { testExporter(t, a, b) })
	t.Run("Top", func(t *testing.T) { testTop(t, a, b) })
	t.Run("Undo", func(t *testing.T) { testUndo(t, a) })
}

// testNoModule tests with a kernel that has no SMC and cannot load it.
func testNoModule(t *testing.T, h *host) {
	loader := strings.TrimSpace(h.run(t, "cat", "/proc/sys/kernel/modprobe"))
	set := func(program string) {
		h.run(t, "sh", "-c", "echo $0 >/proc/sys/kernel/modprobe", program)
	}
	set("/bin/false")
	defer set(loader)

	const noBackend = 5
	tests := []struct {
		args []string
		say  string
	}{
		{[]string{"info", "--backend", "kernel"}, "smcr: the kernel has no SMC: try 'modprobe smc'"},
		{[]string{"linkgroup", "list", "--backend", "kernel"}, "smcr: the kernel has no SMC: try 'modprobe smc'"},
		{[]string{"pnet", "add", "SMC1", "-I", "eth0", "--backend", "kernel"}, "smcr: the kernel has no SMC: try 'modprobe smc'"},
		{[]string{"stats", "show", "-o", "json", "--backend", "kernel"}, "smcr: the kernel has no SMC: try 'modprobe smc'"},
		{[]string{"device", "list"}, "smcr: no SMC: this kernel does not support it and no user-space stack runs in this network namespace"},
		{[]string{"connection", "list", "-o", "json"}, "smcr: no SMC: this kernel does not support it and no user-space stack runs in this network namespace"},
	}
	for _, tt := range tests {
		said := h.fails(t, noBackend, append([]string{h.smcr}, tt.args...)...)
		if !strings.HasPrefix(said, tt.say) || strings.Count(said, "\n") != 1 {
			t.Errorf("smcr %s says %q, want one line that begins %q", strings.Join(tt.args, " "), said, tt.say)
		}
	}
	if said := h.fails(t, 1, h.peer, "serve", "0.0.0.0:1"); !strings.Contains(said, "address family not supported") {
		t.Errorf("AF_SMC without the module: %q", said)
	}
	if mods := h.run(t, "cat", "/proc/modules"); strings.Contains(mods, "smc ") {
		t.Errorf("the module came in spite of all:\n%s", mods)
	}
}

// testAutoload checks that a request to the kernel loads its SMC.
func testAutoload(t *testing.T, h *host) {
	x := queryOne[info](t, h, "info")
	if want := (info{Stack: "kernel", Version: 2, Release: 1, Host: "a", V2: true}); x != want {
		t.Errorf("info: got %+v, want %+v", x, want)
	}
	if mods := h.run(t, "cat", "/proc/modules"); !strings.HasPrefix(mods, "smc ") && !strings.Contains(mods, "\nsmc ") {
		t.Errorf("asking did not load smc:\n%s", mods)
	}
}

// testControl runs the tests of package inguest that change the kernel's state.
func testControl(t *testing.T, h *host) {
	if err := h.LoadSMC(t.Context()); err != nil {
		t.Fatal(err)
	}
	out := h.run(t, h.tests, "-test.v", "-test.run", "^(TestControl|TestUnprivileged|TestNamespace)$", "-test.timeout=50s")
	passed(t, out, "TestControl", "TestControl/SysInfo", "TestControl/Consistency", "TestControl/Context",
		"TestControl/UEID", "TestControl/Deletion", "TestControl/Trace", "TestControl/HSLimitation", "TestControl/PNET", "TestControl/Close",
		"TestUnprivileged", "TestNamespace")
}

// testTables compares the settings of setUp with the listings of smcr.
func testTables(t *testing.T, h *host) {
	type row struct {
		Stack  string `json:"stack"`
		UEID   string `json:"ueid"`
		PNETID string `json:"pnetid"`
		NetDev string `json:"netdev"`
		IBDev  string `json:"ibdev"`
		IBPort int    `json:"ibport"`
	}
	if got, want := queryOne[row](t, h, "ueid", "list"), (row{Stack: "kernel", UEID: "SMCV2-EXAMPLE-UEID"}); got != want {
		t.Errorf("ueid list: got %+v, want %+v", got, want)
	}
	pnets := query[row](t, h, "pnet", "list")
	if len(pnets) != 2 || pnets[0].NetDev != "eth0" || pnets[1].IBDev != "rxe0" || pnets[1].IBPort != 1 ||
		pnets[0].PNETID != "SMC1" || pnets[1].PNETID != "SMC1" {
		t.Errorf("pnet list: got %+v", pnets)
	}
	d := queryOne[device](t, h, "device", "list")
	if d.IBDev != "rxe0" || len(d.Ports) != 1 {
		t.Fatalf("device list: got %+v", d)
	}
	if got, want := d.Ports[0], (port{Port: 1, NetDev: "eth0", State: "ACTIVE", PNETID: "SMC1", ByUser: true}); got != want {
		t.Errorf("device list: got port %+v, want %+v", got, want)
	}
	h.fails(t, 1, h.smcr, "ueid", "add", "SMCV2-EXAMPLE-UEID", "--backend", "kernel")
	h.fails(t, 2, h.smcr, "ueid", "add", "lower", "--backend", "kernel")
	h.fails(t, 3, h.smcr, "ueid", "del", "NONE", "--backend", "kernel")
	h.fails(t, 3, h.smcr, "pnet", "del", "NONE", "--backend", "kernel")
	h.fails(t, 4, "setpriv", "--reuid=65534", "--clear-groups", h.smcr, "pnet", "flush", "--backend", "kernel")
}

// testUndo empties the tables.
func testUndo(t *testing.T, h *host) {
	h.run(t, h.smcr, "ueid", "del", "SMCV2-EXAMPLE-UEID", "--backend", "kernel")
	h.run(t, h.smcr, "pnet", "del", "SMC1", "--backend", "kernel")
	if rows := query[any](t, h, "ueid", "list"); len(rows) != 0 {
		t.Errorf("ueid list: %v", rows)
	}
	if rows := query[any](t, h, "pnet", "list"); len(rows) != 0 {
		t.Errorf("pnet list: %v", rows)
	}
}
