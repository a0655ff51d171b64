// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"strings"
	"testing"
)

const (
	configFile   = "/etc/smcr/smcr.yaml"
	servicesFile = "/etc/smcr/smcr.yaml.d/50-services.yaml"
)

// TestServiceUpgrade upgrades the Debian package while a unit is enabled and serves a download, removes it and purges it. The unit's
// processes stay, the download is complete, and new connections use SMC-R until there is no stack any more. dpkg has nothing to ask,
// because the configuration file is as the package has made it.
func TestServiceUpgrade(t *testing.T) {
	need(t, debTools...)
	a, b, before := bootSystemd(t, "own")
	first, second := a.put(pack(t, "deb", older)), a.put(pack(t, "deb", newer))
	web := service{unit: "nginx", port: 80, request: `HEAD / HTTP/1.0\r\n\r\n`, answer: "HTTP/1.1 200"}
	a.must("dpkg -i " + first)
	a.must("systemctl enable --now " + strings.Join(stackUnits, " ") + " && systemctl start nginx")
	a.wantListens(web)
	main := a.mainPID(web.unit)
	// An earlier release wrote into the configuration file itself. What it wrote is moved.
	a.must("cp " + configFile + " /tmp/default && printf 'programs:\n  - cgroup: /system.slice/nginx.service\n' >>" + configFile)
	a.must("smcr service enable --wait=0 " + web.unit)
	a.must("cmp /tmp/default " + configFile)
	sum := a.makeBig()
	b.download("smcr run -- curl -s", sum)
	hold := b.slow()

	config, stack := a.must("cat "+servicesFile), a.mainPID(stackUnits[0])
	if out := a.must("dpkg -i " + second + " </dev/null"); strings.Contains(out, "onfiguration file") {
		t.Errorf("dpkg asks:\n%s", out)
	}
	if now := a.must("cat " + configFile); !strings.HasSuffix(now+"\n", newDefault) {
		t.Errorf("the configuration file is not that of the new release:\n%s", now)
	}
	if now := a.mainPID(stackUnits[0]); now == stack || now == "0" {
		t.Errorf("the stack is process %s after the upgrade, before %s", now, stack)
	}
	if out := a.must("systemctl is-active nginx " + stackUnits[0] + "; systemctl show --value --property=NRestarts " + stackUnits[0]); out != "active\nactive\n0" {
		t.Errorf("after the upgrade: %q", out)
	}
	if now := a.must("cat " + servicesFile); now != config || !strings.Contains(now, "cgroup: /system.slice/nginx.service") {
		t.Errorf("after the upgrade, the drop-in file is\n%s\nand was\n%s", now, config)
	}
	b.download("smcr run -- curl -s", sum)
	hold.finish(sum)
	a.wantUnit(web)
	if now := a.mainPID(web.unit); now != main {
		t.Errorf("nginx is process %s, and was %s", now, main)
	}
	a.must("systemctl restart nginx")
	a.wantListens(web)
	b.talk(web, true)

	// Without the package, the unit serves over TCP.
	main = a.mainPID(web.unit)
	if out := a.must("dpkg -r smcr"); strings.Contains(out, "arning") {
		t.Errorf("the removal says:\n%s", out)
	}
	wantNoStack(a, b)
	if out, err := b.try(web.ask()); err != nil || !strings.Contains(out, web.answer) || a.mainPID(web.unit) != main {
		t.Errorf("without smcr: %v, %q, process %s, before %s", err, out, a.mainPID(web.unit), main)
	}
	// The next installation finds it enabled.
	a.must("dpkg -i " + second + " && systemctl start " + strings.Join(stackUnits, " "))
	a.wantUnitEnabled(web)
	b.talk(web, true)
	a.must("dpkg -P smcr")
	wantNoStack(a, b)
	if out, err := b.try(web.ask()); err != nil || !strings.Contains(out, web.answer) || a.mainPID(web.unit) != main {
		t.Errorf("after the purge: %v, %q, process %s, before %s", err, out, a.mainPID(web.unit), main)
	}
	// systemd keeps its slice of the units of a template.
	if left := a.must("find /sys/fs/cgroup /run/netns -name '*smcr*' ! -name system-smcr.slice; ip netns list | grep -v hostB; ip -brief link | grep -v -e ^lo -e ^eth0; true"); left != "" {
		t.Errorf("after the purge, there is %s", left)
	}
	a.list().wantSame(t, before, usedFiles...)
	a.must("systemctl stop nginx")
}

// wantUnitEnabled checks that a unit is enabled, and has been attached by the stack that runs now.
func (h host) wantUnitEnabled(s service) {
	h.t.Helper()
	for _, r := range h.services() {
		if r.Unit == s.unit+".service" && r.Enabled && r.Attached {
			return
		}
	}
	h.t.Errorf("%s is not enabled: %+v", s.unit, h.services())
}
