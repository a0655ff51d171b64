// SPDX-License-Identifier: Apache-2.0

package why

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"smcr/internal/cmdutil"
	"smcr/internal/testing/cmdtest"
	"smcr/nl"
	"smcr/smc"
)

func TestParseTarget(t *testing.T) {
	addr, pair := netip.MustParseAddr, netip.MustParseAddrPort
	for arg, want := range map[string]target{
		"1234": {number: 1234}, "80": {number: 80}, "pid:80": {pid: 80}, ":80": {port: 80}, "port:443": {port: 443}, "0.0.0.0:22": {port: 22}, "[::]:22": {port: 22},
		"10.1.0.5": {addr: addr("10.1.0.5")}, "::ffff:10.1.0.5": {addr: addr("10.1.0.5")}, "fd00::5": {addr: addr("fd00::5")}, "[fd00::5]": {addr: addr("fd00::5")}, "::1": {addr: addr("::1")},
		"fe80::1%eth0": {addr: addr("fe80::1")}, "10.1.0.5:443": {pair: pair("10.1.0.5:443")}, "[fd00::5]:443": {pair: pair("[fd00::5]:443")}, "[::ffff:10.1.0.5]:443": {pair: pair("10.1.0.5:443")},
		"container:web": {container: "web"}, "pod:a/b": {pods: "a/b"}, "pod:k=v": {pods: "k=v"},
		"nginx": {unit: "nginx.service", program: "nginx"}, "getty@tty1": {unit: "getty@tty1.service", program: "getty@tty1"}, "httpd2.4": {unit: "httpd2.4.service", program: "httpd2.4"},
		"hostA:443": {host: "hostA", hostPort: 443}, "db-1.example.com:5432": {host: "db-1.example.com", hostPort: 5432},
		"nginx.service": {unit: "nginx.service"}, "ssh.socket": {unit: "ssh.socket"}, "user-0.slice": {unit: "user-0.slice"}, "no-ueid.service": {unit: "no-ueid.service"},
	} {
		if got, err := parseTarget(arg); err != nil || got != want {
			t.Errorf("%q: %+v, %v, want %+v", arg, got, err, want)
		}
	}
	for arg, text := range map[string]string{
		"": "give a process", "0": "give a process", "-5": "give a process", ":0": "give a process", ":65536": "give a process", ":http": "give a process", "pid:": "give a process", "pid:x": "give a process",
		"port:": "give a process", "10.1.0.5:": "give a process", "10.1.0.5:0": "give a process", "10.1.0": "give a process", "hostA:": "give a process", "hostA:0": "give a process", "hostA:http": "give a process", "host A:80": "give a process", "99999999999": "give a process", "0.0.0.0": "give a process",
		"a b": "give a process", "a/b": "give a process", "$(x).service": "give a process", "no-ueid": "'smcr explain no-ueid'", "0x03010000": "'smcr explain 0x03010000'",
	} {
		if got, err := parseTarget(arg); err == nil || cmdutil.ExitCode(err) != cmdutil.ExitUsage || !strings.Contains(err.Error(), text) {
			t.Errorf("%q: %+v, %v, want %q", arg, got, err, text)
		}
	}
}

func TestFlags(t *testing.T) {
	cmdtest.Flags[options]{
		New: newCmd,
		Good: map[string]func(*options) bool{
			"1234": func(o *options) bool {
				return o.target.number == 1234 && o.interval == time.Second && !o.all && o.format == "table"
			},
			":443 --interval 0":         func(o *options) bool { return o.target.port == 443 && o.interval == 0 },
			":443 --interval 5 -a":      func(o *options) bool { return o.interval == 5*time.Second && o.all },
			"::1 -o json --all=false":   func(o *options) bool { return o.target.addr.IsLoopback() && o.format == "json" && !o.all },
			"nginx":                     func(o *options) bool { return o.target.unit == "nginx.service" },
			"10.1.0.5 --interval=500ms": func(o *options) bool { return o.interval == 500*time.Millisecond },
		},
		Bad: []string{"", "1 2", "--interval -1 :1", "--interval x :1", "-o wide :1", "non/sense", ":1 --backend"},
	}.Run(t)
}

// TestSelects: a port and an address are looked for on both sides, a listener at all addresses
// has each of this network namespace.
func TestSelects(t *testing.T) {
	own := map[netip.Addr]bool{netip.MustParseAddr("10.1.0.1"): true}
	conn := func(local, remote string) *nl.Connection {
		c := &nl.Connection{State: smc.StateActive, Local: netip.MustParseAddrPort(local)}
		if remote == "" {
			c.State = smc.StateListen
		} else {
			c.Remote = netip.MustParseAddrPort(remote)
		}
		return c
	}
	for _, test := range []struct {
		arg  string
		c    *nl.Connection
		want bool
	}{
		{":80", conn("10.1.0.1:80", "10.1.0.2:4000"), true},
		{":4000", conn("10.1.0.1:80", "10.1.0.2:4000"), true},
		{":81", conn("10.1.0.1:80", "10.1.0.2:4000"), false},
		{":80", conn("0.0.0.0:80", ""), true},
		{"10.1.0.2", conn("10.1.0.1:80", "10.1.0.2:4000"), true},
		{"10.1.0.2", conn("[::ffff:10.1.0.1]:80", "[::ffff:10.1.0.2]:4000"), true},
		{"10.1.0.1", conn("0.0.0.0:80", ""), false},
		{"10.1.0.1:80", conn("0.0.0.0:80", ""), true},
		{"127.0.0.1:80", conn("[::]:80", ""), true},
		{"10.1.0.9:80", conn("0.0.0.0:80", ""), false},
		{"10.1.0.2:80", conn("10.1.0.1:80", "10.1.0.2:4000"), false},
		{"10.1.0.2:4000", conn("10.1.0.1:80", "10.1.0.2:4000"), true},
	} {
		tg, err := parseTarget(test.arg)
		if err != nil {
			t.Fatal(err)
		}
		if got := tg.selects(test.c, own); got != test.want {
			t.Errorf("%s and %v, %v: %v", test.arg, test.c.Local, test.c.Remote, got)
		}
	}
}
