// SPDX-License-Identifier: Apache-2.0

package nl_test

import (
	"fmt"
	"net"
	"os"
	"testing"

	"smcr/nl"
	"smcr/nl/nltest"
)

// BenchmarkList asks a server in the same process for tables over a socket. The time is
// that of both client and server.
func BenchmarkList(b *testing.B) {
	for _, rows := range []int{1, 1000, 100000} {
		address := fmt.Sprintf("@smcr-bench-%d/%d", os.Getpid(), rows)
		l, err := nl.ListenUnix(address)
		if err != nil {
			b.Fatal(err)
		}
		c := benchClient(b, l, address, rows)
		for _, table := range []struct {
			name string
			list func() (int, error)
		}{
			{"linkgroups", func() (int, error) { s, err := c.LinkGroups(b.Context()); return len(s), err }},
			{"links", func() (int, error) { s, err := c.Links(b.Context()); return len(s), err }},
			{"connections", func() (int, error) { s, err := c.Connections(b.Context()); return len(s), err }},
		} {
			b.Run(fmt.Sprintf("%s/%d", table.name, rows), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					if n, err := table.list(); err != nil || n != rows {
						b.Fatalf("%d rows, %v", n, err)
					}
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(rows), "ns/row")
			})
		}
	}
}

func benchClient(b *testing.B, l *net.UnixListener, address string, rows int) *nl.Client {
	b.Helper()
	s := nl.NewServer(nltest.NewFake(nltest.Rows(rows)), nl.ServerConfig{})
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	c, err := nl.DialUnix(b.Context(), address)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		c.Close()
		s.Close()
		if err := <-done; err != nil {
			b.Error(err)
		}
	})
	return c
}
