// SPDX-License-Identifier: Apache-2.0

package nl_test

import (
	"fmt"
	"os"
	"testing"

	"smcr/nl"
	"smcr/nl/nltest"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// TestLargeTables compares all rows of tables with many datagrams.
func TestLargeTables(t *testing.T) {
	address := fmt.Sprintf("@smcr-test-%d/%s", os.Getpid(), t.Name())
	l, err := nl.ListenUnix(address)
	if err != nil {
		t.Fatal(err)
	}
	want := nltest.Rows(3000)
	s := nl.NewServer(nltest.NewFake(want), nl.ServerConfig{})
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	defer func() {
		s.Close()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	c := dial(t, address)
	groups, err := c.LinkGroups(t.Context())
	if diff := cmp.Diff(want.LinkGroups, groups); err != nil || diff != "" {
		t.Errorf("link groups: %v (-want +got)\n%s", err, diff)
	}
	links, err := c.Links(t.Context())
	if diff := cmp.Diff(want.Links, links); err != nil || diff != "" {
		t.Errorf("links: %v (-want +got)\n%s", err, diff)
	}
	conns, err := c.Connections(t.Context())
	if diff := cmp.Diff(want.Connections, conns, cmpopts.EquateComparable(want.Connections[0].Local)); err != nil || diff != "" {
		t.Errorf("connections: %v (-want +got)\n%s", err, diff)
	}
	// Row by row, over netlink and from a Control without that method.
	for name, ctl := range map[string]nl.Control{"client": c, "fake": nltest.NewFake(want)} {
		var conns []nl.Connection
		begins := 0
		err := nl.EachConnection(t.Context(), ctl, func() { begins++ }, func(x *nl.Connection) { conns = append(conns, *x) })
		if diff := cmp.Diff(want.Connections, conns, cmpopts.EquateComparable(want.Connections[0].Local)); err != nil || begins != 1 || diff != "" {
			t.Errorf("each connection, %s: %v, begun %d times (-want +got)\n%s", name, err, begins, diff)
		}
	}
}
