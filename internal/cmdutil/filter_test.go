// SPDX-License-Identifier: Apache-2.0

package cmdutil

import (
	"io"
	"net/netip"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

func TestFilter(t *testing.T) {
	var plain, upper, choice, role Filter
	cmd := &cobra.Command{Use: "list", RunE: func(*cobra.Command, []string) error { return nil }}
	AddFilter(cmd, &plain, "dev", "x", nil)
	AddUpperFilter(cmd, &upper, "pnetid", "x", nil)
	AddChoiceFilter(cmd, &choice, "state", "x", "ACTIVE", "DOWN")
	AddRoleFilter(cmd, &role)
	cmd.SetOut(io.Discard)
	cmd.SetErr(io.Discard)
	for _, f := range []*Filter{&plain, &upper, &choice, &role} {
		if f.Any() || !f.Keep() || !f.Keep("x") || !f.KeepAddr(netip.AddrPort{}) {
			t.Error("a filter that is not given keeps not everything")
		}
	}
	cmd.SetArgs(strings.Fields("--dev eth0,eth1 --dev Eth2 --pnetid net1 --state down --role server --role=CLNT"))
	if err := cmd.Execute(); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		f      *Filter
		values []string
		want   bool
	}{
		{&plain, []string{"eth1"}, true},
		{&plain, []string{"Eth2"}, true},
		{&plain, []string{"eth2"}, false},
		{&plain, []string{"eth9", "eth0"}, true},
		{&plain, nil, false},
		{&plain, []string{""}, false},
		{&upper, []string{"NET1"}, true},
		{&choice, []string{"DOWN"}, true},
		{&choice, []string{"ACTIVE"}, false},
		{&role, []string{"SERV"}, true},
		{&role, []string{"CLNT"}, true},
	} {
		if got := test.f.Keep(test.values...); got != test.want {
			t.Errorf("%v keeps %q: %t", test.f, test.values, got)
		}
	}
	for _, line := range []string{"--dev=", "--dev a,,b", "--state up", "--role peer"} {
		cmd.SetArgs(strings.Fields(line))
		if err := cmd.Execute(); err == nil {
			t.Errorf("%s: no error", line)
		}
	}
}

func TestKeepAddr(t *testing.T) {
	at := netip.MustParseAddrPort
	for _, test := range []struct {
		value string
		addr  netip.AddrPort
		want  bool
	}{
		{"10.1.0.2", at("10.1.0.2:80"), true},
		{"10.1.0.2", at("[::ffff:10.1.0.2]:80"), true},
		{"10.1.0.2:80", at("10.1.0.2:80"), true},
		{"10.1.0.2:81", at("10.1.0.2:80"), false},
		{"10.1.0.0/16", at("10.1.0.2:80"), true},
		{"10.2.0.0/16", at("10.1.0.2:80"), false},
		{"fd00::/8", at("[fd00::2]:80"), true},
		{"fe80::1", at("[fe80::1%eth0]:80"), true},
		{"[fd00::2]:80", at("[fd00::2]:80"), true},
		{"10.1.0.2", netip.AddrPort{}, false},
		{"0.0.0.0/0", netip.AddrPort{}, false},
		{"host-b", at("10.1.0.2:80"), false},
	} {
		var f Filter
		if err := f.Set(test.value); err != nil {
			t.Fatal(err)
		}
		if got := f.KeepAddr(test.addr); got != test.want {
			t.Errorf("%s keeps %v: %t", test.value, test.addr, got)
		}
	}
	var f Filter
	if err := f.Set("host-b"); err != nil || !f.KeepAddr(netip.AddrPort{}, "host-b") {
		t.Error("a host name is not kept")
	}
}
