// SPDX-License-Identifier: Apache-2.0

package services

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// TestComplete: names of services, templates, instances, socket units and slices.
func TestComplete(t *testing.T) {
	b := newBed(t)
	b.write("list-unit-files", "a.service enabled enabled\na@.service static -\ngone.service masked enabled\nx.socket.service static -\nb.socket disabled enabled\nsmcr-exporter.service disabled enabled\nsmcr-run.socket disabled enabled\n")
	b.write("list-units", "a.service loaded active running The server a\na@1.service loaded active running Instance\nsystem-a.slice loaded active active Slice\nold.service not-found inactive dead old.service\nsmcr@x.service loaded active running A stack\nsystem-smcr.slice loaded active active Slice\n")
	o := &options{systemd: systemd{}}
	for _, c := range []struct {
		args []string
		word string
		want string
	}{
		{nil, "", "a a@ a@1 b.socket system-a.slice x.socket.service"},
		{[]string{"a", "b.socket"}, "", "a@ a@1 system-a.slice x.socket.service"},
		{nil, "a.s", "a.service a@ a@1 b.socket system-a.slice x.socket.service"},
	} {
		names, directive := o.completeUnits(&cobra.Command{}, c.args, c.word)
		if got := strings.Join(names, " "); got != c.want || directive != cobra.ShellCompDirectiveNoFileComp {
			t.Errorf("%q %q: %q, want %q", c.args, c.word, got, c.want)
		}
	}
	// What can be disabled is what is enabled.
	b.unit("a.service")
	b.must("enable", "a")
	b.must("__complete", "disable", "")
	if got := b.out.String(); got != "a\n:4\n" {
		t.Errorf("disable: %q", got)
	}
	b.write("systemctl", "#!/bin/sh\nexit 1\n")
	if names, _ := o.completeUnits(&cobra.Command{}, nil, ""); len(names) > 0 {
		t.Errorf("without systemd: %q", names)
	}
}
