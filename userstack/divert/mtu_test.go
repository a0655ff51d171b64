// SPDX-License-Identifier: Apache-2.0

package divert

import (
	"bytes"
	"io"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"smcr/internal/testing/testkind"
)

// TestMTU has a peer whose device takes larger packets than that of this host: it names a segment size
// that this host must not use.
func TestMTU(t *testing.T) {
	testkind.System(t)
	t.Parallel()
	b := newBed(t, splice)
	mtu := func(n int) {
		b.must(b.B.Do(func() error {
			l, err := netlink.LinkByName(b.B.Links[0].Name)
			if err != nil {
				return err
			}
			return netlink.LinkSetMTU(l, n)
		}))
	}
	mtu(9000)
	client, server := b.connect(b.listen(b.B.Addr()))
	mtu(1500) // veth does not check what the sender may send, only what the receiver takes
	// Less than a segment of the peer, and more than one of this host.
	data := bytes.Repeat([]byte("0123456789"), 500)
	if _, err := client.Write(data); err != nil {
		t.Fatal(err)
	}
	_ = server.SetReadDeadline(time.Now().Add(testkind.Patience))
	got := make([]byte, len(data))
	if _, err := io.ReadFull(server, got); err != nil || !bytes.Equal(got, data) {
		t.Errorf("%v", err)
	}
	b.wantTaken(1, 1)
}
