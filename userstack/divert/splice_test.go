// SPDX-License-Identifier: Apache-2.0

package divert

import (
	"fmt"
	"io"
	"net"
	"testing"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/socktest"
	"smcr/internal/testing/testkind"
)

// TestSpliceUrgent has a program send an urgent byte after a decline, both ways: it stays urgent, and the bytes
// behind it come.
func TestSpliceUrgent(t *testing.T) {
	testkind.System(t)
	t.Parallel()
	b := newBed(t, splice)
	client, server := b.connect(b.listen(b.B.Addr()))
	for _, c := range [][2]*net.TCPConn{{client, server}, {server, client}} {
		socktest.Control(t, c[0], func(fd int) error {
			_, err := unix.SendmsgN(fd, []byte("beforeU"), nil, nil, unix.MSG_OOB)
			return err
		})
		testkind.Eventually(t, "an urgent byte", func() (any, bool) {
			var got [1]byte
			var n int
			var err error
			socktest.Control(t, c[1], func(fd int) error {
				n, _, err = unix.Recvfrom(fd, got[:], unix.MSG_OOB)
				return nil
			})
			return fmt.Sprintf("%q, %v", got[:max(n, 0)], err), n == 1 && got[0] == 'U'
		})
		if _, err := io.WriteString(c[0], "after"); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, len("beforeafter"))
		if _, err := io.ReadFull(c[1], got); err != nil || string(got) != "beforeafter" {
			t.Errorf("%q, %v", got, err)
		}
	}
	b.wantTaken(1, 1)
}
