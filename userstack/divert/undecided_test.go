// SPDX-License-Identifier: Apache-2.0

package divert

import (
	"io"
	"net"
	"testing"
	"time"

	"smcr/internal/testing/testkind"
	"smcr/smc"
)

// retransmits is longer than the first two retransmissions of a SYN, and of a SYN-ACK, take.
const retransmits = 3500 * time.Millisecond

// exchanges checks that a connection carries bytes both ways.
func (b *bed) exchanges(client, server net.Conn) {
	b.t.Helper()
	for _, way := range [][2]net.Conn{{server, client}, {client, server}} {
		if _, err := io.WriteString(way[0], "hello"); err != nil {
			b.t.Fatal(err)
		}
		got := make([]byte, 5)
		if _, err := io.ReadFull(way[1], got); err != nil || string(got) != "hello" {
			b.t.Fatalf("got %q, %v", got, err)
		}
	}
}

// TestUndecidedLong has one of the stacks hold a connection for longer than the programs' sockets wait for an answer: they repeat
// SYN, or SYN-ACK, and nothing is lost by that.
func TestUndecidedLong(t *testing.T) {
	testkind.System(t)
	t.Parallel()
	for name, address := range addresses {
		for _, slow := range []smc.Role{smc.Client, smc.Server} {
			t.Run(name+"/"+slow.String(), func(t *testing.T) {
				t.Parallel()
				b := newBed(t, func(b *bed, f *Flow) {
					if err := agree(f); err != nil {
						b.t.Error(err)
					}
					if f.Role == slow {
						time.Sleep(retransmits) // Real time: that of the kernel's timers.
					}
					if err := f.Splice(); err != nil {
						b.t.Error(err)
					}
				})
				client, server := b.connect(b.listen(address(b.B)))
				b.exchanges(client, server)
				client.Close()
				server.Close()
				b.gone()
			})
		}
	}
}
