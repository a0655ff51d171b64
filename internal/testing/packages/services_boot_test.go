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
// stays.
func (h host) crashStack(b host, s service) {
	h.t.Helper()
	pid, stack := h.mainPID(s.unit), h.mainPID(stackUnits[0])
	h.must("kill -KILL " + stack)
	if out, err := b.try(s.ask()); err != nil || !strings.Contains(out, s.answer) {
		h.t.Errorf("%s without its stack: %v, %q", s.unit, err, out)
	}
	if err := netnstest.Until(startTime, func() error {
		if now := h.mainPID(stackUnits[0]); now == "0" || now == stack {
			return fmt.Errorf("the stack is process %s", now)
		}
		return nil
	}); err != nil {
		h.t.Fatal(err)
	}
	b.talk(s, true)
	if now := h.mainPID(s.unit); now != pid {
		h.t.Errorf("%s is process %s after the end of the stack, before %s", s.unit, now, pid)
	}
}

// networkUnit makes the network of the hosts at boot, as that of a machine is there before its
// services.
const networkUnit = "[Unit]\nDefaultDependencies=no\nBefore=network.target\n[Service]\nType=oneshot\nRemainAfterExit=yes\nExecStart=/bin/bash /usr/local/sbin/test-network\n"

// bootServices boots the machine with all services enabled. Each starts at the first try, and speaks SMC-R.
func (h host) bootServices(b host) {
	h.t.Helper()
	for name, text := range map[string]string{"usr/local/sbin/test-network": makeHosts, "etc/systemd/system/test-network.service": networkUnit} {
		if err := os.WriteFile(h.path(name), []byte(text), 0o644); err != nil {
			h.t.Fatal(err)
		}
	}
	enabled := append([]string(nil), stackUnits...)
	for _, s := range testedServices() {
		h.must("smcr service enable " + s.unit)
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
		if n := h.must("systemctl show --value --property=NRestarts " + s.unit); n != "0" {
			h.t.Errorf("%s: %s restarts at boot", s.unit, n)
		}
		b.talk(s, true)
		h.wantUnit(s)
	}
}
