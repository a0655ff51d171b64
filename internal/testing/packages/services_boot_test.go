// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"fmt"
	"os"
	"strings"

	"smcr/internal/testing/netnstest"
)

// What happens to the machine of a service, and not to the service itself.

// crashStack kills the stack of host A while a service is enabled. The service answers
// without the stack, over TCP, and over SMC-R when systemd has started the stack again. Its main process
// stays. It reports whether all of that is so.
func (h host) crashStack(b host, s service) (right bool) {
	h.t.Helper()
	right = true
	pid, stack := h.mainPID(s.unit), h.mainPID(stackUnits[0])
	h.must("kill -KILL " + stack)
	if out, err := b.try(s.ask()); err != nil || !strings.Contains(out, s.answer) {
		h.t.Errorf("%s without its stack: %v, %q", s.unit, err, out)
		right = false
	}
	if err := netnstest.Until(startTime, func() error {
		if now := h.mainPID(stackUnits[0]); now == "0" || now == stack {
			return fmt.Errorf("the stack is process %s", now)
		}
		return nil
	}); err != nil {
		h.t.Fatal(err)
	}
	right = b.talk(s, true) && right
	if now := h.mainPID(s.unit); now != pid {
		h.t.Errorf("%s is process %s after the end of the stack, before %s", s.unit, now, pid)
		right = false
	}
	return right
}

// networkUnit makes the network of the hosts at boot, as that of a machine is there before its
// services.
const networkUnit = "[Unit]\nDefaultDependencies=no\nBefore=network.target\n[Service]\nType=oneshot\nRemainAfterExit=yes\nExecStart=/bin/bash /usr/local/sbin/test-network\n"

// bootServices boots the machine with all services enabled. Each starts at the first try, and speaks SMC-R. rows are of the services.
func (h host) bootServices(b host, rows []*tableRow) {
	h.t.Helper()
	for name, text := range map[string]string{"usr/local/sbin/test-network": makeHosts, "etc/systemd/system/test-network.service": networkUnit} {
		if err := os.WriteFile(h.path(name), []byte(text), 0o644); err != nil {
			h.t.Fatal(err)
		}
	}
	enabled := append([]string(nil), stackUnits...)
	for _, s := range testedServices() {
		h.must("smcr service enable --wait=0 " + s.unit)
		enabled = append(enabled, s.unit)
	}
	h.must("systemctl enable " + strings.Join(enabled, " "))
	if err := h.close(); err != nil {
		h.t.Fatal(err)
	}
	if err := h.machine.start("again", "/run/ready", inStore()...); err != nil {
		h.t.Fatal(err)
	}
	h.wantRunning()
	for _, s := range testedServices() {
		n := h.must("systemctl show --value --property=NRestarts " + s.unit)
		if n != "0" {
			h.t.Errorf("%s: %s restarts at boot", s.unit, n)
		}
		rowOf(rows, s.unit).saw("boot", b.talk(s, true) && n == "0", true)
		h.wantUnit(s)
	}
}
